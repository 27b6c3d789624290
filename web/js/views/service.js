// One service: what it asks and gets, its limit to be dragged, and its settings.

import { servicePath } from "../api.js";
import { baseOf, printDifference } from "../changes.js";
import { differenceList } from "../dialogs.js";
import { atFrame, el, setAttr, setText, timeElement } from "../dom.js";
import { LimitHandle } from "../handle.js";
import { Plot, clock, legend, numbers } from "../plot.js";
import { colour, thin } from "../theme.js";
import { RESOURCES, TITLES, rate, waits, written } from "../units.js";
import { lastMinutes } from "./overview.js";
import { ServiceForm } from "./service-form.js";

const LINES = [
  { field: "asked", label: "Asked", mark: "dashed", name: "asked", dash: [4, 3] },
  { field: "got", label: "Got", mark: "area", name: "got", area: true },
  { field: "share", label: "Share", mark: "line", name: "share", width: 1 },
  { field: "min", label: "Guarantee", mark: "dotted", name: "min", dash: [2, 3] },
  { field: "max", label: "Limit", mark: "line", name: "limit", stepped: true },
  { field: "waited", label: "Waits", mark: "line", name: "waits", waits: true, width: 1 },
];

/** Limits that are not the daemon's. */
const OWNERS = {
  service: "The limit was set by bonsai run, attach or set --direct. ",
  system: "The limit is that of root's daemon. ",
  user: "The limit is that of the daemon of its user. ",
};

const ENFORCED = {
  pool: "Shared in the ledger: what others leave is lent within microseconds.",
  limit: "By a limit of its own that is rewritten each period.",
  uplink: "In the kernel's queue of its uplink: what others leave is lent within a millisecond.",
  none: "Nothing holds this resource back.",
};

/** The resource with a setting, or that is used most. */
function startResource(app, service) {
  const wanted = new URLSearchParams(window.location.hash.split("?")[1] ?? "").get("resource");
  if (RESOURCES.includes(wanted)) return wanted;
  const use = service.resources.find((of) => of.resource === app.resource);
  if (use && (use.got > 0 || service.settings[app.resource])) return app.resource;
  const set = RESOURCES.find((resource) => service.settings[resource]);
  if (set || !service.target) return set ?? app.resource ?? "send";
  // What is no bonsai run has not all resources.
  return use ? app.resource : (service.resources[0]?.resource ?? "send");
}

export function serviceView(app, id) {
  const { store } = app;
  const element = el("div", {});
  let inner = null;
  const build = () => {
    if (inner || !store.services.has(id)) return;
    inner = new ServiceView(app, id);
    element.replaceChildren(inner.element);
  };
  const missing = () => {
    if (inner || store.status === null) return;
    element.replaceChildren(
      el(
        "div",
        { class: "panel" },
        el("h1", { text: id }),
        el("p", { text: "There is no such service, or you may not see it." }),
        el("a", { href: "#/", text: "All services" }),
      ),
    );
  };
  const soon = atFrame(() => {
    build();
    if (inner) inner.update();
    else missing();
  });
  const off = [
    store.on("services", soon),
    store.on("status", soon),
    store.on("connection", soon),
    store.on("audit", (entry) => inner?.tell(entry)),
  ];
  soon();
  return {
    element,
    title: id,
    choose: (resource) => inner?.choose(resource),
    destroy() {
      off.forEach((stop) => stop());
      inner?.destroy();
    },
  };
}

class ServiceView {
  constructor(app, id) {
    this.app = app;
    this.id = id;
    this.resource = startResource(app, app.store.services.get(id));
    this.state = el("span", { class: "state" });
    this.tabs = this.makeTabs();
    this.plotPlace = el("div");
    this.legend = legend(LINES.map(({ label, mark, name }) => ({ label, mark, colour: `var(--${name})` })));
    this.reason = el("p", { class: "reason" });
    this.problems = el("ul", { class: "problems", hidden: true });
    this.notes = el("p", { class: "hint" });
    this.proposals = el("section", { class: "panel", "aria-label": "Proposals", hidden: true });
    this.limits = el("p", { class: "hint" });
    this.audit = el("ol", { class: "audit-list" });
    this.title = el("h2", { id: "service-plot-title" });
    this.form = new ServiceForm(app, id);
    this.quick = el("button", {
      type: "button",
      class: "small",
      text: "No limit",
      on: { click: () => this.setLimit(null) },
    });
    this.element = this.layout();
    this.form.show(this.resource);
    this.rebuild();
    this.readAudit();
  }

  layout() {
    const { id } = this;
    return el(
      "div",
      {},
      el(
        "div",
        { class: "view-head" },
        el("a", { href: "#/", class: "back", text: "All services" }),
        el("h1", {}, id, " ", this.state),
        el("a", { href: `#/history?service=${encodeURIComponent(id)}`, text: "History" }),
        el("a", { href: `#/audit?service=${encodeURIComponent(id)}`, text: "Audit" }),
      ),
      this.problems,
      this.notes,
      this.tabs.node,
      el(
        "div",
        { class: "columns", id: "service-panel", role: "tabpanel" },
        el(
          "section",
          { class: "panel grow", "aria-labelledby": "service-plot-title" },
          el(
            "div",
            { class: "panel-head" },
            this.title,
            el("span", { class: "hint drag-hint", text: "Drag the limit, or use the arrow keys on it." }),
            this.quick,
          ),
          this.plotPlace,
          this.legend.node,
          this.reason,
          this.limits,
          numbers(["At", ...LINES.map(({ label }) => label)], () => this.rows()),
        ),
        el(
          "section",
          { class: "panel side", "aria-labelledby": "settings-title" },
          el("h2", { id: "settings-title", text: "Settings" }),
          this.form.node,
        ),
      ),
      this.proposals,
      el(
        "section",
        { class: "panel", "aria-labelledby": "last-title" },
        el("h2", { id: "last-title", text: "Last changes" }),
        this.audit,
      ),
    );
  }

  makeTabs() {
    const values = new Map();
    const node = el("div", { class: "tabs", role: "tablist", "aria-label": "Resources" });
    for (const resource of RESOURCES) {
      const value = el("span", { class: "num" });
      const tab = el(
        "button",
        { type: "button", role: "tab", "aria-controls": "service-panel", on: { click: () => this.choose(resource) } },
        el("span", { text: TITLES[resource] }),
        " ",
        value,
      );
      values.set(resource, { tab, value });
      node.append(tab);
    }
    node.addEventListener("keydown", (event) => {
      const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!way) return;
      event.preventDefault();
      const at = (RESOURCES.indexOf(this.resource) + way + RESOURCES.length) % RESOURCES.length;
      this.choose(RESOURCES[at]);
      values.get(RESOURCES[at]).tab.focus();
    });
    return { node, values };
  }

  choose(resource) {
    if (resource === this.resource) return;
    this.resource = resource;
    this.app.resource = resource;
    this.form.show(resource);
    this.rebuild();
    this.update();
  }

  get use() {
    return this.app.store.use(this.id, this.resource);
  }

  rebuild() {
    this.plot?.destroy();
    const { store } = this.app;
    this.plot = new Plot({
      resource: this.resource,
      height: (width) => (width < 600 ? 240 : 320),
      xRange: () => lastMinutes(store.tape),
      times: clock,
      top: () => this.top(),
      series: LINES.map((line) => ({
        ...line,
        stroke: () => colour(line.name),
        fill: line.area ? () => thin(colour("got"), 0.18) : undefined,
      })),
      onDraw: () => this.handle?.place(),
      onCursor: (at) => this.readAt(at),
      onBuild: () => this.handle?.attach(),
    });
    this.handle = new LimitHandle(this.plot, {
      resource: this.resource,
      name: `${this.id}, ${TITLES[this.resource]}`,
      get: () => this.use?.max ?? null,
      set: (value) => this.setLimit(value),
      may: () => store.mayWrite(),
      capacity: () => store.capacity(this.resource),
    });
    this.plotPlace.replaceChildren(this.plot.node);
    this.plot.resize();
    this.handle.attach();
    this.cursor = null;
    this.update();
  }

  /** Room above the highest line; what is asked without bound does not squeeze the rest. */
  top() {
    const { tape } = this.app.store;
    const most = (field) => Math.max(0, ...tape.series(this.id, this.resource, field).map((value) => value ?? 0));
    const base = Math.max(most("got"), this.use?.max ?? 0, this.use?.min ?? 0, this.handle?.held ?? 0);
    return (
      Math.max(
        base,
        Math.min(most("asked"), 2 * base || Infinity),
        Math.min(this.use?.share ?? 0, 3 * base || Infinity),
      ) * 1.2 || 1
    );
  }

  async setLimit(value) {
    const max = value === null ? null : written(value, this.resource);
    const base = baseOf(this.app.api, this.app.store, this.id);
    const result = await this.app.changes.make(
      servicePath(this.id),
      { [this.resource]: { max } },
      { base, service: this.id },
    );
    if (result.error) this.app.toast(result.error, { error: true });
  }

  columns() {
    const { tape } = this.app.store;
    return LINES.map(({ field }) => {
      const column = tape.series(this.id, this.resource, field);
      // No guarantee is no line.
      return field === "min" ? column.map((value) => value || null) : column;
    });
  }

  text(field, value) {
    if (field === "waited") return waits(value);
    if (value === null && field === "asked") return this.use?.waiting ? "all it can get" : "–";
    if (value === null && (field === "max" || field === "min")) return "none";
    return rate(value, this.resource);
  }

  readAt(at) {
    this.cursor = at;
    const data = this.plot?.data;
    LINES.forEach(({ field, waits: isWaits }, line) => {
      const column = data?.[line + 1];
      const value = column?.[at ?? column.length - 1] ?? null;
      this.legend.set(line, this.text(field, value === null || isWaits ? value : value / this.plot.factor));
    });
  }

  rows() {
    const times = this.app.store.tape.moments();
    const columns = this.columns();
    const every = Math.max(1, Math.floor(times.length / 12));
    return times
      .map((time, at) => ({ time, at }))
      .filter(({ at }) => (times.length - 1 - at) % every === 0)
      .map(({ time, at }) => [
        new Date(time * 1000).toLocaleTimeString([], { hour12: false }),
        ...LINES.map(({ field }, line) => this.text(field, columns[line][at])),
      ]);
  }

  update() {
    const service = this.app.store.services.get(this.id);
    if (!service) {
      setText(this.state, "gone");
      return;
    }
    const what = service.target ? "is there" : "runs";
    const led = service.keeper || !service.target ? `, process ${service.keeper ?? "unknown"}` : "";
    const missing = service.target ? "is not there" : "does not run";
    const state = service.running ? `${what}${led}` : missing;
    setText(this.state, [service.target, state, service.mode].filter(Boolean).join(" · "));
    if (service.target && service.running) {
      for (const [resource, { tab }] of this.tabs.values) tab.hidden = !this.app.store.use(this.id, resource);
    }
    for (const use of service.resources) {
      const tab = this.tabs.values.get(use.resource);
      setText(tab.value, rate(use.got, use.resource));
      setAttr(tab.tab, "aria-selected", use.resource === this.resource);
      setAttr(tab.tab, "tabindex", use.resource === this.resource ? "0" : "-1");
    }
    setText(this.title, `${TITLES[this.resource]}, last 2 minutes`);
    const { use } = this;
    if (use) {
      this.plot.setData(this.app.store.tape.moments(), this.columns());
      if (this.cursor === null) this.readAt(null);
      this.handle.place();
      const limit = use.max === null ? "no limit" : `limit ${rate(use.max, this.resource)}`;
      this.plot.setLabel(
        `${TITLES[this.resource]} of ${this.id} in the last two minutes. Now it gets ${rate(use.got, this.resource)}, ${limit}, guarantee ${use.min > 0 ? rate(use.min, this.resource) : "none"}, waits ${waits(use.waited)}.`,
      );
      setText(
        this.reason,
        `${OWNERS[use.limit?.by] ?? ""}${use.reason ? `${use.reason[0].toUpperCase()}${use.reason.slice(1)}. ` : ""}${ENFORCED[use.enforced] ?? ""}`.replace(
          "..",
          ".",
        ),
      );
      this.quick.disabled = use.max === null || !this.app.store.mayWrite();
    }
    this.problems.hidden = service.problems.length === 0;
    const problems = service.problems.join("\n");
    if (this.problems.dataset.text !== problems) {
      this.problems.dataset.text = problems;
      this.problems.replaceChildren(...service.problems.map((text) => el("li", { text })));
    }
    setText(this.notes, (service.notes ?? []).join(" "));
    const limits = Object.entries(service.limits).map(([scope, value]) => `${scope} ${value}`);
    setText(this.limits, limits.length > 0 ? `Further limits: ${limits.join(", ")}` : "");
    this.showProposals(service.proposals);
    this.form.update();
  }

  showProposals(proposals) {
    const key = JSON.stringify(proposals);
    if (this.proposed === key) return;
    this.proposed = key;
    this.proposals.hidden = proposals.length === 0;
    const made = this.app.store.status?.automatic === "on";
    this.proposals.replaceChildren(
      el("h2", { text: made ? "Changes made by the policy" : "Changes that the policy proposes" }),
      el(
        "ul",
        {},
        proposals.map(({ resource, from, to, reason }) =>
          el(
            "li",
            {},
            `${TITLES[resource]}: guarantee ${rate(from, resource)} → ${rate(to, resource)}`,
            el("span", { class: "hint", text: ` ${reason}` }),
          ),
        ),
      ),
      made ? "" : el("a", { href: "#/policy", text: "Let the policy make them" }),
    );
  }

  async readAudit() {
    try {
      const page = await this.app.api.get("/audit", { service: this.id, limit: 5 });
      this.audit.replaceChildren(...page.entries.map(auditItem));
      if (page.entries.length === 0) this.audit.append(el("li", { text: "Nothing was changed yet." }));
    } catch (error) {
      this.audit.replaceChildren(el("li", { text: error.message }));
    }
  }

  /** An entry of the audit came. */
  tell(entry) {
    if (entry.service !== this.id && !entry.differences.some(({ path }) => path.startsWith(`services.${this.id}.`)))
      return;
    this.audit.prepend(auditItem(entry));
    while (this.audit.children.length > 5) this.audit.lastElementChild.remove();
  }

  destroy() {
    this.plot.destroy();
  }
}

/** One entry, as a list item. */
export function auditItem(entry) {
  return el(
    "li",
    {},
    el(
      "div",
      { class: "audit-line" },
      timeElement(entry.unix_ms),
      " ",
      el("strong", { text: entry.actor }),
      " ",
      el("span", { class: "badge", text: entry.action }),
      entry.reason ? ` ${entry.reason}` : "",
    ),
    differenceList(entry.differences, printDifference, entry.left_out),
    entry.problem ? el("p", { text: entry.problem }) : "",
  );
}
