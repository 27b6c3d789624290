// What things are called.

/** A position, ms: `12:34`, or `1:02:03`. */
export function clock(ms) {
  const seconds = Math.floor(ms / 1000);
  const two = (number) => String(number).padStart(2, "0");
  const [h, m, s] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
  return h > 0 ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

/** An event in a line: what it is, who, and what was said of it. */
export function told(event) {
  const parts = [event.type, event.players.join(", "), event.card, event.team].filter(Boolean);
  const start = parts.join(" · ");
  return [start, event.text].filter(Boolean).join(": ") || "an event";
}

/** What else is known of it. */
export function others(event) {
  const known = ["at_ms", "type", "players", "text", "card", "team"];
  return Object.entries(event)
    .filter(([name]) => !known.includes(name))
    .map(([name, value]) => `${name}: ${value}`);
}

/** Bits per second. */
export function rate(bits) {
  return bits >= 1e6 ? `${(bits / 1e6).toFixed(1)} Mbit/s` : `${Math.round(bits / 1e3)} kbit/s`;
}
