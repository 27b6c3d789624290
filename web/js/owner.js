// Owners of limits, in words.

import { rate } from "./units.js";

/** The owner of a limit that is none of the service's own settings, in words; empty if it is one. */
export function whoseLimit(use, settings) {
  if (!use?.limit) return "";
  if (use.limit.by === "service") return "set by bonsai run, attach or set --direct";
  if (use.limit.by === "system") return "of root's daemon";
  if (use.limit.by === "user") return "of the user's daemon";
  return settings?.max === undefined ? "of its group or class" : "";
}

/** A guarantee or limit that is none of the service's own settings, for an input in which nothing is written. */
export const unsetText = (value, resource) => (value > 0 ? `${rate(value, resource)}, not set here` : "none");
