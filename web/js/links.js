// What is said of an interface.

import { forInput, rate } from "./units.js";

/** The path of an interface. */
export const linkPath = (target) => `/links/${encodeURIComponent(target)}`;

/** What tells a row from others. */
export const keyOf = (link) => `${link.namespace ?? ""}/${link.index || link.target}`;

/** Which setting limits what the interface itself sends or receives: at the other end, the opposite one. */
export const settingOf = (link, direction) => (link.swapped ? { tx: "rx", rx: "tx" }[direction] : direction);

/** The part of an uplink that it has, in words. */
export function shareText(share) {
  if (!share) return "–";
  const guarantee = share.guarantee ? `${rate(share.guarantee, "send")} ` : "";
  const ceiling = share.ceiling ? `up to ${rate(share.ceiling, "send")} ` : "";
  return `${guarantee}${ceiling}weight ${share.weight} of ${share.uplink}`;
}

/** What is said of it: configured, or by hand. */
export const settingsOf = (link) =>
  link.settings ?? Object.fromEntries(["tx_limit", "rx_limit"].map((name) => [name, link[name] ?? null]));

/** What is limited now, as it would be written; empty for nothing. */
export function limitText(link, direction) {
  const configured = link.settings?.[settingOf(link, direction)];
  if (configured !== undefined) return forInput(configured, "send");
  const inForce = link[`${direction}_limit`];
  return inForce ? forInput(`${inForce}B/s`, "send") : "";
}
