// Groups and classes, told in words and put in order.

import { RESOURCES, TITLES, forInput } from "./units.js";

/** What one has, in a line: `send at least 40 Mbit/s, weight 3`. */
export function summary(settings) {
  const parts = [];
  if (settings.mode) parts.push(settings.mode);
  for (const resource of RESOURCES) {
    const { min, max, weight } = settings[resource] ?? {};
    const told = [
      min && `at least ${forInput(min, resource)}`,
      max && `at most ${forInput(max, resource)}`,
      weight && `weight ${weight}`,
    ].filter(Boolean);
    if (told.length > 0) parts.push(`${TITLES[resource].toLowerCase()} ${told.join(", ")}`);
  }
  const { qos = {} } = settings;
  const targets = ["loss", "delay", "jitter", "stalls"].filter((kind) => qos[kind] !== undefined);
  if (targets.length > 0) parts.push(`clients see at most ${targets.map((kind) => `${kind} ${qos[kind]}`).join(", ")}`);
  return parts.join("; ") || "nothing of its own";
}

/** Groups in the order of the tree, with their depth. One whose parent is not there is a root. */
export function inOrder(groups) {
  const order = [];
  const seen = new Set();
  const visit = (name, depth) => {
    if (seen.has(name)) return;
    seen.add(name);
    order.push({ name, depth });
    for (const child of Object.keys(groups).sort()) if (groups[child].parent === name) visit(child, depth + 1);
  };
  for (const name of Object.keys(groups).sort()) if (!groups[groups[name].parent]) visit(name, 0);
  // What stands in a loop has no root and is shown all the same.
  for (const name of Object.keys(groups).sort()) visit(name, 0);
  return order;
}
