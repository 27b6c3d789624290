// What a change would do to everybody, before it is made.

import { differenceList } from "./dialogs.js";
import { printDifference } from "./changes.js";
import { el } from "./dom.js";
import { RESOURCES, TITLES, rate } from "./units.js";

/** Changes of a share by less than this part are not worth a row. */
const WORTH = 0.02;
const ROWS = 12;

const differs = (a, b) =>
  Math.abs((a ?? 0) - (b ?? 0)) > WORTH * Math.max(a ?? 0, b ?? 0, 1e-9) || (a === null) !== (b === null);

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

/** What of its terms would be others, such as a guarantee in percent of another capacity. */
function termsOf({ before, after, resource }) {
  const told = (value, none) => (value === null || value === none ? "none" : rate(value, resource));
  const parts = [];
  if (differs(before.min, after.min)) parts.push(`guarantee ${told(before.min, 0)} → ${told(after.min, 0)}`);
  if (differs(before.max, after.max)) parts.push(`limit ${told(before.max)} → ${told(after.max)}`);
  return parts.join(", ");
}

function table(resource, rows, focus) {
  const most = Math.max(...rows.map(({ before, after }) => Math.max(before.share ?? 0, after.share ?? 0)));
  const cell = (value) => el("td", { class: "num", text: rate(value, resource) });
  const line = (row) =>
    el(
      "tr",
      { class: row.id === focus ? "focus" : "" },
      el("th", { scope: "row" }, row.id, row.id === focus ? null : el("div", { class: "hint", text: termsOf(row) })),
      cell(row.before.share),
      cell(row.after.share),
      el("td", { class: "wide" }, bar(row, most)),
    );
  return el(
    "div",
    {},
    el(
      "table",
      { class: "plain preview-table" },
      el("caption", { text: `${TITLES[resource]}: what each would get now` }),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ["Service", "Now", "Then"].map((text) => el("th", { scope: "col", text })),
          el("td", { class: "wide" }),
        ),
      ),
      el("tbody", {}, rows.slice(0, ROWS).map(line)),
    ),
    rows.length > ROWS ? el("p", { class: "hint", text: `and ${rows.length - ROWS} more` }) : null,
  );
}

/** The resources that a change is about; all of them if it names none. */
function resourcesOf(changed) {
  const named = RESOURCES.filter((resource) =>
    changed.differences.some(({ path }) => path.split(".").includes(resource)),
  );
  const general = changed.differences.some(({ path }) => !path.split(".").some((part) => RESOURCES.includes(part)));
  return general ? RESOURCES : named;
}

/** The preview as an element. */
export function previewElement(store, changed, focus = null) {
  const node = el("div", { class: "preview" });
  if (changed.problems.length > 0) {
    node.append(
      el(
        "ul",
        { class: "problems" },
        changed.problems.map((text) => el("li", { text })),
      ),
    );
  }
  if (changed.differences.length === 0) {
    node.append(el("p", { text: "Nothing would be different." }));
    return node;
  }
  node.append(differenceList(changed.differences, printDifference));
  const about = resourcesOf(changed);
  // What is asked for moves all the time: in other resources that is all that would be seen.
  const rows = compare(store, changed).filter(({ resource }) => about.includes(resource));
  for (const resource of about) {
    const of = rows.filter((row) => row.resource === resource);
    if (of.length > 0) node.append(table(resource, of, focus));
  }
  const others = changed.services.length - new Set(rows.map((row) => row.id)).size;
  const tail =
    rows.length === 0
      ? "No service would get more or less than it does now."
      : others > 0
        ? `${others} other${others === 1 ? "" : "s"} unchanged.`
        : "";
  node.append(el("p", { class: "hint", text: tail }));
  return node;
}
