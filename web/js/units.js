// Amounts as people read and write them. Rounds as the command line does: three digits, or whole
// units, whichever is finer. Inside the page every rate is a number of bytes/s or calls/s.

export const RESOURCES = ["read", "write", "send", "recv", "calls"];

export const TITLES = {
  read: "Read",
  write: "Write",
  send: "Send",
  recv: "Receive",
  calls: "Calls",
};

// What a network carries is told in bits, what a disk carries in bytes.
const isNetwork = (resource) => resource === "send" || resource === "recv";

const ladder = (first, names) =>
  names.map((name, at) => ({ from: first * 1000 ** at, ticks: first * 1000 ** at, name }));

// Ticks are thousandths of a unit: the finest rate that there is.
const BITS = ladder(1000, [" bit/s", " kbit/s", " Mbit/s", " Gbit/s", " Tbit/s"]);
const BYTES = ladder(1000, [" B/s", " kB/s", " MB/s", " GB/s", " TB/s"]);
const CALLS = [{ from: 1000, ticks: 1000, name: "/s" }];
const SIZES = ladder(1, [" B", " kB", " MB", " GB", " TB"]);
// Minutes, hours and days are used from two of them on.
const TIMES = [
  ...ladder(1, [" ns", " us", " ms", " s"]),
  ...[
    [60, " min"],
    [3600, " h"],
    [86_400, " d"],
  ].map(([s, name]) => ({ from: 2e9 * s, ticks: 1e9 * s, name })),
];

function human(ticks, rungs) {
  let at = rungs.length - 1;
  while (at > 0 && rungs[at].from > ticks) at -= 1;
  const rung = rungs[at];
  const whole = Math.floor(ticks / rung.ticks);
  const decimals = whole >= 100 ? 0 : whole >= 10 ? 1 : whole >= 1 ? 2 : 3;
  const scale = 10 ** decimals;
  const rounded = Math.round((ticks * scale) / rung.ticks);
  const next = rungs[at + 1];
  // 999.6 kB is 1 MB, not 1000 kB.
  if (next && rounded * rung.ticks >= next.from * scale) return human(next.from, rungs);
  return String(rounded / scale) + rung.name;
}

/** A rate of a resource for people: `80 Mbit/s`, `1.45 kB/s`, `100/s`. */
export function rate(perSecond, resource) {
  if (perSecond === null || perSecond === undefined || Number.isNaN(perSecond)) return "–";
  const milli = Math.max(0, Math.round(perSecond * 1000));
  if (resource === "calls") return human(milli, CALLS);
  return isNetwork(resource) ? human(milli * 8, BITS) : human(milli, BYTES);
}

/** The same as it is written in a setting: `80Mbit/s`. */
export const written = (perSecond, resource) => rate(perSecond, resource).replace(" ", "");

/** A time for people: `1.23 ms`. */
export const duration = (ns) => human(Math.max(0, Math.round(ns)), TIMES);

/** Waits, in seconds per second over all threads. */
export function waits(secondsPerSecond) {
  if (!(secondsPerSecond > 0)) return "0";
  return `${duration(secondsPerSecond * 1e9)}/s`;
}

/** Bytes for people. */
export const size = (bytes) => human(Math.max(0, Math.round(bytes)), SIZES);

/** A part of a whole: `12.3 %`. */
export function percent(part) {
  if (part === null || part === undefined || Number.isNaN(part)) return "–";
  const of100 = part * 100;
  const decimals = of100 >= 99.95 ? 0 : of100 >= 10 ? 1 : 2;
  return `${Number(of100.toFixed(decimals))} %`;
}

const PREFIXES = {
  "": 1,
  k: 1e3,
  M: 1e6,
  G: 1e9,
  T: 1e12,
  Ki: 2 ** 10,
  Mi: 2 ** 20,
  Gi: 2 ** 30,
  Ti: 2 ** 40,
};
const RATE = /^(\d+(?:\.\d+)?)\s*(?:(Ki|Mi|Gi|Ti|[kMGT])?(B|bit)|(calls?)?)\s*\/\s*s$/;
const PERCENT = /^(\d{1,3}(?:\.\d{1,3})?)\s*%$/;
const LEAST = 0.001;
const MOST = 100e9;

const examples = (resource) =>
  resource === "calls" ? "1000/s, 40% or none" : isNetwork(resource) ? "40Mbit/s, 40% or none" : "10MB/s, 40% or none";

/**
 * What somebody wrote as a rate of a resource: `{ none }`, `{ rate }`, `{ percent }` or
 * `{ error }`. Stops plain slips before they travel; the daemon judges for itself.
 */
export function parseShare(text, resource) {
  const trimmed = text.trim();
  if (trimmed === "" || trimmed.toLowerCase() === "none") return { none: true };
  const error = (why) => ({ error: `${JSON.stringify(trimmed)} ${why}: write ${examples(resource)}` });
  const part = PERCENT.exec(trimmed);
  if (part) {
    const value = Number(part[1]);
    return value >= 0.001 && value <= 100 ? { percent: value } : error("is no percentage from 0.001% to 100%");
  }
  if (/^[\d.,_']+$/.test(trimmed)) return error("has no unit");
  const found = RATE.exec(trimmed);
  if (!found) return error("is no rate");
  const [, number, prefix = "", kind] = found;
  if ((kind === undefined) !== (resource === "calls")) {
    return error(kind ? "counts bytes, and this is about calls" : "counts calls, and this is about bytes");
  }
  const value = (Number(number) * PREFIXES[prefix]) / (kind === "bit" ? 8 : 1);
  if (value < LEAST) return error("is less than the least rate");
  if (value > MOST) return error("is more than the highest rate, 100 GB/s");
  return { rate: value };
}

/**
 * A setting as the daemon tells it (`5MB/s`), in the unit that the resource is read in
 * (`40Mbit/s`), if that says exactly the same; otherwise as it is. What was written in bits stays so.
 */
export function forInput(text, resource) {
  if (text === null || text === undefined) return "";
  const parsed = parseShare(text, resource);
  if (parsed.rate === undefined || /bit\s*\/s$/.test(text)) return text;
  const short = written(parsed.rate, resource);
  const back = parseShare(short, resource).rate;
  return back !== undefined && Math.abs(back - parsed.rate) < 0.0005 ? short : text;
}

/** Units/s of a setting, given what the machine has; `null` for nothing or unknown. */
export function resolve(text, resource, capacity) {
  if (text === null || text === undefined) return null;
  const parsed = parseShare(text, resource);
  if (parsed.percent !== undefined) return capacity ? (capacity * parsed.percent) / 100 : null;
  return parsed.rate ?? null;
}

/** The next rate up or down that is visibly another one. */
export function step(perSecond, factor, resource) {
  let next = perSecond;
  // Three digits may round a small step away: take a larger one until the text changes.
  for (let grow = factor; written(next, resource) === written(perSecond, resource); grow *= factor) {
    next = perSecond * grow;
    if (grow > 1e6 || grow < 1e-6) break;
  }
  return Math.min(MOST, Math.max(LEAST, next));
}

/** What values are multiplied by in a plot, so that its ticks are round in the unit it is read in. */
export const plotFactor = (resource) => (isNetwork(resource) ? 8 : 1);
