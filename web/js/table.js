// The table of services. A thousand rows are made a few at a time, and at each tick only the cells
// whose text is another one are touched.

import { el, setAttr } from "./dom.js";
import { whoseLimit } from "./owner.js";
import { spark } from "./spark.js";
import { colour } from "./theme.js";
import { rate, waits } from "./units.js";

const ROWS_A_FRAME = 60;
/** Two pictures a second move enough: rows change places at most so often, ms. */
const SORT_PAUSE_MS = 2000;
const MANY = 200;
/** Of rows that nobody sees, so many are brought up to date at each tick. */
const UNSEEN_A_TICK = 40;

const asked = (use, resource) => {
  if (!use) return "–";
  // Where nothing is shared out, nobody estimates what is asked for.
  if (use.asked === null) return use.waiting ? "all it can get" : "–";
  return rate(use.asked, resource);
};

/** What each column shows, by what it is sorted, and where it is left out on narrow screens. */
export const COLUMNS = [
  { key: "name", title: "Service", by: (service) => service.id.toLowerCase() },
  {
    key: "asked",
    title: "Asked",
    num: true,
    drop: 2,
    help: "What it is taken to ask for",
    text: (use, resource) => asked(use, resource),
    by: (_, use) => use?.asked ?? (use?.waiting ? Infinity : (use?.got ?? 0)),
  },
  {
    key: "got",
    title: "Got",
    num: true,
    text: (use, resource) => rate(use?.got, resource),
    by: (_, use) => use?.got ?? 0,
  },
  {
    key: "share",
    title: "Share",
    num: true,
    drop: 1,
    help: "What it would get now if all took what they are due",
    text: (use, resource) => rate(use?.share, resource),
    by: (_, use) => use?.share ?? 0,
  },
  {
    key: "max",
    title: "Limit",
    num: true,
    edit: true,
    text: (use, resource) => (use?.max === null || !use ? "none" : rate(use.max, resource)),
    by: (_, use) => use?.max ?? Infinity,
  },
  {
    key: "min",
    title: "Guarantee",
    num: true,
    drop: 1,
    text: (use, resource) => (use?.min > 0 ? rate(use.min, resource) : "–"),
    by: (_, use) => use?.min ?? 0,
  },
  {
    key: "borrowed",
    title: "Borrowed",
    num: true,
    drop: 2,
    help: "What of it is lent by others",
    text: (use, resource) => (use?.borrowed > 0 ? rate(use.borrowed, resource) : "–"),
    by: (_, use) => use?.borrowed ?? 0,
  },
  {
    key: "waited",
    title: "Waits",
    num: true,
    drop: 1,
    help: "Waits imposed, over all threads",
    text: (use) => (use?.waited > 0 ? waits(use.waited) : "–"),
    by: (_, use) => use?.waited ?? 0,
  },
  { key: "mode", title: "Mode", drop: 2, text: (_, __, service) => service.mode, by: (service) => service.mode },
  { key: "spark", title: "2 min", drop: 1 },
];

export class ServiceTable {
  /** `app`, and `onEdit(id, cell)`, which lets somebody edit the limit in its cell. */
  constructor(app, onEdit) {
    this.app = app;
    this.onEdit = onEdit;
    this.resource = "send";
    this.sort = { key: "name", down: false };
    this.filter = "";
    this.rows = new Map();
    this.sorted = 0;
    this.seen = new Set();
    this.body = el("tbody");
    this.heads = new Map();
    this.count = el("p", { class: "hint count" });
    this.node = el("div", {}, el("table", { class: "services" }, this.caption(), this.head(), this.body), this.count);
    // Lines are drawn only where somebody can see them.
    this.observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        const { id } = target.dataset;
        if (!isIntersecting) this.seen.delete(id);
        else if (!this.seen.has(id)) {
          this.seen.add(id);
          this.refresh(id);
        }
      }
      this.sparks();
    });
  }

  caption() {
    return el("caption", { class: "unseen", text: "Services and what they get. The headings sort." });
  }

  head() {
    const cells = COLUMNS.map((column) => {
      const content =
        column.by === undefined
          ? column.title
          : el(
              "button",
              { type: "button", title: column.help, on: { click: () => this.sortBy(column.key) } },
              el("span", { text: column.title }),
              el("span", { class: "way", "aria-hidden": "true" }),
            );
      const cell = el("th", { scope: "col", class: this.classes(column) }, content);
      this.heads.set(column.key, cell);
      return cell;
    });
    this.showSort(cells);
    return el("thead", {}, el("tr", {}, cells));
  }

  classes({ key, num, drop }) {
    return [`col-${key}`, num ? "num" : "", drop ? `drop${drop}` : ""].filter(Boolean).join(" ");
  }

  showSort() {
    for (const [key, cell] of this.heads) {
      setAttr(cell, "aria-sort", key === this.sort.key ? (this.sort.down ? "descending" : "ascending") : null);
    }
  }

  sortBy(key) {
    // Of amounts, the largest is looked for first.
    const first = key !== "name" && key !== "mode";
    this.sort = key === this.sort.key ? { key, down: !this.sort.down } : { key, down: first };
    this.showSort();
    this.place(true);
  }

  setFilter(text) {
    this.filter = text.trim().toLowerCase();
    this.place(true);
  }

  setResource(resource) {
    this.resource = resource;
    this.sorted = 0;
    this.update();
    this.place(true);
  }

  matches(service) {
    if (!this.filter) return true;
    const { settings } = service;
    const text = [service.id, service.target, settings.class, settings.group, service.mode, service.running ? "running" : "stopped"]
      .join(" ")
      .toLowerCase();
    return this.filter.split(/\s+/).every((word) => text.includes(word));
  }

  makeRow(service) {
    const cells = {};
    const texts = {};
    const tr = el("tr", { data: { id: service.id } });
    for (const column of COLUMNS) {
      let cell;
      if (column.key === "name") {
        cells.notes = el("span", { class: "notes" });
        const link = el("a", { href: `#/service/${encodeURIComponent(service.id)}`, text: service.id });
        cells.target = el("span", { class: "hint target" });
        cell = el("th", { scope: "row", class: this.classes(column) }, link, cells.target, cells.notes);
      } else if (column.key === "spark") {
        cells.spark = el("canvas", { class: "spark", "aria-hidden": "true" });
        cell = el("td", { class: this.classes(column) }, cells.spark);
      } else if (column.edit) {
        const text = document.createTextNode("");
        const button = el("button", { type: "button", class: "edit" }, text);
        cell = el("td", { class: this.classes(column) }, button);
        button.addEventListener("click", () => this.onEdit(service.id, cell, button));
        cells[column.key] = text;
        cells.edit = button;
      } else {
        const text = document.createTextNode("");
        cell = el("td", { class: this.classes(column) }, text);
        cells[column.key] = text;
      }
      tr.append(cell);
    }
    const row = { tr, cells, texts };
    this.rows.set(service.id, row);
    this.observer.observe(tr);
    return row;
  }

  fill(service, row) {
    const use = service.resources.find((of) => of.resource === this.resource);
    for (const column of COLUMNS) {
      if (!column.text) continue;
      const text = column.text(use, this.resource, service);
      // A limit that is not the service's own is shown as such: what is typed there makes one of its own.
      const whose = column.edit ? whoseLimit(use, service.settings?.[this.resource]) : "";
      const key = `${text}|${whose}`;
      if (row.texts[column.key] === key) continue;
      row.texts[column.key] = key;
      row.cells[column.key].data = text;
      if (!column.edit) continue;
      const { edit } = row.cells;
      edit.classList.toggle("inherited", whose !== "");
      setAttr(edit, "title", whose || null);
      edit.setAttribute("aria-label", `Limit of ${service.id}: ${text}${whose ? `, ${whose}` : ""}. Change it`);
    }
    if (row.texts.target !== service.target) {
      row.texts.target = service.target;
      row.cells.target.textContent = service.target ? ` ${service.target}` : "";
    }
    const state = !service.running ? "not running" : use?.waiting ? "waits" : "";
    // Why one is not there is no problem of its own.
    const problems = service.running ? service.problems.length : 0;
    const why = service.running ? "" : service.problems.join("\n");
    const notes = [state, problems > 0 ? "!" : "", why].join("|");
    if (row.texts.notes !== notes) {
      row.texts.notes = notes;
      row.cells.notes.replaceChildren(
        ...(state ? [el("span", { class: `badge ${service.running ? "wait" : "off"}`, title: why || null, text: state })] : []),
        ...(problems > 0
          ? [
              el("span", {
                class: "badge bad",
                title: service.problems.join("\n"),
                text: problems === 1 ? "1 problem" : `${problems} problems`,
              }),
            ]
          : []),
      );
      row.tr.classList.toggle("stopped", !service.running);
    }
  }

  /** Brings the cells up to date; makes what rows are missing, some of them. */
  update() {
    const { services } = this.app.store;
    for (const [id, row] of this.rows) {
      if (services.has(id)) continue;
      this.observer.unobserve(row.tr);
      row.tr.remove();
      this.rows.delete(id);
      this.seen.delete(id);
    }
    this.make();
    if (services.size <= MANY) {
      for (const id of this.rows.keys()) this.refresh(id);
    } else {
      // A changed cell costs a layout of the whole table: first come those that are seen, and
      // the others take turns.
      for (const id of this.seen) this.refresh(id);
      this.queue = this.queue?.length > 0 ? this.queue : [...this.rows.keys()];
      for (const id of this.queue.splice(0, UNSEEN_A_TICK)) this.refresh(id);
    }
    const pause = services.size > MANY ? 3 * SORT_PAUSE_MS : SORT_PAUSE_MS;
    const live = this.sort.key !== "name" && this.sort.key !== "mode" && performance.now() - this.sorted > pause;
    // Nothing moves away under a pointer or a focus.
    if (live && !this.body.matches(":hover, :focus-within")) this.place(false);
    this.sparks();
  }

  /** Makes some of the rows that are missing, and comes back for the others. */
  make() {
    const { services } = this.app.store;
    if (this.rows.size === services.size) return;
    let made = 0;
    for (const service of services.values()) {
      if (this.rows.has(service.id)) continue;
      if (made === ROWS_A_FRAME) break;
      made += 1;
      const row = this.makeRow(service);
      this.fill(service, row);
      this.body.append(row.tr);
    }
    // Services come in the order of their names: only another order needs work.
    if (this.rows.size === services.size) this.place(true);
    else {
      cancelAnimationFrame(this.more);
      this.more = requestAnimationFrame(() => this.make());
    }
  }

  refresh(id) {
    const service = this.app.store.services.get(id);
    const row = this.rows.get(id);
    if (service && row) this.fill(service, row);
  }

  /** Puts the rows in order and hides what is filtered away. */
  place(now) {
    this.sorted = performance.now();
    const { services } = this.app.store;
    const { by } = COLUMNS.find(({ key }) => key === this.sort.key);
    const keyed = [];
    for (const [id, row] of this.rows) {
      const service = services.get(id);
      if (!service) continue;
      const use = service.resources.find((of) => of.resource === this.resource);
      keyed.push({ row, key: by(service, use), id, shown: this.matches(service) });
    }
    const way = this.sort.down ? -1 : 1;
    keyed.sort((a, b) => (a.key < b.key ? -way : a.key > b.key ? way : a.id < b.id ? -1 : 1));
    let at = this.body.firstElementChild;
    let shown = 0;
    for (const { row, shown: isShown } of keyed) {
      if (row.tr.hidden === isShown) row.tr.hidden = !isShown;
      if (isShown) shown += 1;
      if (row.tr === at) at = at.nextElementSibling;
      else this.body.insertBefore(row.tr, at);
    }
    const all = services.size;
    const text = shown === all ? `${all} service${all === 1 ? "" : "s"}` : `${shown} of ${all} services`;
    if (this.count.textContent !== text) this.count.textContent = text;
    if (now) this.sparks();
  }

  sparks() {
    const line = colour("got");
    for (const id of this.seen) {
      const row = this.rows.get(id);
      if (row && !row.tr.hidden) spark(row.cells.spark, this.app.store.tape.series(id, this.resource, "got"), line);
    }
  }

  destroy() {
    cancelAnimationFrame(this.more);
    this.observer.disconnect();
  }
}
