// What is said of exports of block servers.

import { percent, size } from "./units.js";

/** A block, in bytes. */
export const BLOCK = 4096;

/** What tells an export from others. */
export const keyOf = (of) => `${of.server}/${of.name}`;

/** A number that grows, per second since it was taken last; null if that is not known. */
export class Meter {
  constructor() {
    this.last = null;
  }

  take(unixMs, value) {
    const { last } = this;
    this.last = { unixMs, value };
    // A server that was started anew counts from 0.
    if (!last || unixMs <= last.unixMs || value < last.value) return null;
    return ((value - last.value) * 1000) / (unixMs - last.unixMs);
  }
}

const REASONS = [
  ["not_known", "not known"],
  ["leads", "lead"],
  ["cold", "cold"],
  ["split", "split"],
  ["raced", "raced"],
  ["wrong", "wrong"],
];

/** Why blocks were read where they are: what there is, the most first. */
export function whyText(sharing) {
  if (!sharing) return "learns nothing";
  const all = REASONS.map(([key, text]) => [sharing.not_redirected[key], text]);
  const some = all.filter(([count]) => count > 0).sort(([a], [b]) => b - a);
  return some.map(([count, text]) => `${count} ${text}`).join(", ") || "–";
}

/** Reads that needed no disk, and what part of all that is. */
export function savedText(of) {
  if (!of.sharing) return "–";
  const saved = of.sharing.reads_saved;
  return of.reads > 0 ? `${saved} (${percent(saved / of.reads)})` : String(saved);
}

/** Of a server: what is known, and what that takes. */
export function mapText({ known_blocks: known, dedup_factor: factor, metadata_bytes: bytes, metadata_limit: most }) {
  const times = factor === null ? "" : `, each content ${factor.toFixed(2)} times`;
  return `${size(known * BLOCK)} known${times}; ${size(bytes)} of ${size(most)} of metadata`;
}

/** What exports of a group have in common, in words. */
export function groupText(of) {
  const known = of.known_blocks.reduce((sum, blocks) => sum + blocks, 0);
  const about = of.one_in > 1 ? `, by one content in ${of.one_in}` : "";
  return `${size(known * BLOCK)} known, ${size(of.contents * BLOCK)} different${about}. ${cacheText(of.cache)}`;
}

/** What of that the page cache has, in words. */
export function cacheText(cache) {
  if (!cache) return "The kernel does not say what the page cache has.";
  if (cache.dedup_factor === null) return "The page cache has none of it.";
  const error = cache.one_in > 1 ? ` ± ${cache.error.toFixed(2)}` : "";
  return `The page cache has ${size(cache.resident_blocks * BLOCK)}, ${size(cache.contents * BLOCK)} different: each content ${cache.dedup_factor.toFixed(2)}${error} times.`;
}
