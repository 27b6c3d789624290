// What a change would do to everybody, before it is made.

import { differenceList } from "./dialogs.js";
import { printDifference } from "./changes.js";
import { el } from "./dom.js";
import { RESOURCES, TITLES, rate } from "./units.js";

/** Changes of a share by less than this part are not worth a row. */
const WORTH = 0.01;
const ROWS = 12;

const differs = (a, b) => Math.abs((a ?? 0) - (b ?? 0)) > WORTH * Math.max(a ?? 0, b ?? 0, 1e-9) || (a === null) !== (b === null);

/** `{ resource, id, before, after }` of every share that would be another one. */
export function compare(store, changed) {
  const rows = [];
  for (const service of changed.services) {
    for (const after of service.resources) {
      const before = store.use(service.id, after.resource);
      if (!before) continue;
      if (differs(before.share, after.share) || differs(before.min, after.min) || differs(before.max, after.max)) {
        rows.push({ resource: after.resource, id: service.id, before, after });
      }
    }
  }
  const size = ({ before, after }) => Math.abs((after.share ?? 0) - (before.share ?? 0));
  return rows.sort((a, b) => size(b) - size(a));
}

function bar(row, most) {
  const part = (value) => `${most > 0 ? Math.min(100, (100 * (value ?? most)) / most) : 0}%`;
  return el(
    "span",
    { class: "bars", "aria-hidden": "true" },
    el("span", { class: "before", style: { width: part(row.before.share) } }),
    el("span", { class: "after", style: { width: part(row.after.share) } }),
  );
}

function table(resource, rows, focus) {
  const most = Math.max(...rows.map(({ before, after }) => Math.max(before.share ?? 0, after.share ?? 0)));
  const shown = rows.slice(0, ROWS);
  const cell = (value) => el("td", { class: "num", text: rate(value, resource) });
  const line = (row) =>
    el(
      "tr",
      { class: row.id === focus ? "focus" : "" },
      el("th", { scope: "row", text: row.id }),
      cell(row.before.share),
      cell(row.after.share),
      el("td", { class: "wide" }, bar(row, most)),
      el("td", { class: "num", text: `${rate(row.after.min, resource)} – ${row.after.max === null ? "none" : rate(row.after.max, resource)}` }),
    );
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: "plain preview-table" },
      el("caption", { text: `${TITLES[resource]}: what each would get now` }),
      el("thead", {}, el("tr", {}, ["Service", "Now", "Then", "", "Guarantee – limit"].map((text) => el("th", { scope: "col", class: text === "" ? "wide" : "", text })))),
      el("tbody", {}, shown.map(line)),
    ),
    rows.length > ROWS ? el("p", { class: "hint", text: `and ${rows.length - ROWS} more` }) : null,
  );
}

/** The preview as an element. */
export function previewElement(store, changed, focus = null) {
  const rows = compare(store, changed);
  const node = el("div", { class: "preview" });
  if (changed.problems.length > 0) {
    node.append(el("ul", { class: "problems" }, changed.problems.map((text) => el("li", { text }))));
  }
  if (changed.differences.length === 0) {
    node.append(el("p", { text: "Nothing would be different." }));
    return node;
  }
  node.append(differenceList(changed.differences, printDifference));
  for (const resource of RESOURCES) {
    const of = rows.filter((row) => row.resource === resource);
    if (of.length > 0) node.append(table(resource, of, focus));
  }
  const reached = new Set(rows.map((row) => row.id)).size;
  const others = changed.services.length - reached;
  const tail = reached === 0 ? "No service would get more or less than it does now." : `${others} other${others === 1 ? "" : "s"} unchanged.`;
  node.append(el("p", { class: "hint", text: tail }));
  return node;
}
