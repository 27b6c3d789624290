// All services: what the machine has, who gets it now, and the table.

import { atFrame, el, setAttr, setText } from "../dom.js";
import { editLimit } from "../inline.js";
import { Plot, clock, numbers } from "../plot.js";
import { remainder, stack } from "../series.js";
import { ALL } from "../tape.js";
import { ServiceTable } from "../table.js";
import { colour, lineColour, thin } from "../theme.js";
import { RESOURCES, TITLES, rate } from "../units.js";

const LINES = 8;
const WINDOW_S = 120;
const SHORTEST_S = 30;

/** The time that a live plot shows: as much of two minutes as is known. */
export function lastMinutes(tape) {
  const now = tape.times[tape.head] || Date.now() / 1000;
  const first = tape.first() ?? now;
  return [Math.max(now - WINDOW_S, Math.min(first, now - SHORTEST_S)), now];
}

/** The resource of which most is used, measured by what the machine has. */
export function busiest(status) {
  let best = "send";
  let most = 0;
  for (const resource of RESOURCES) {
    const capacity = status.capacity[resource];
    // Without a capacity there is nothing to share out: it is shown if nothing else is used.
    const part = (status.used[resource] ?? 0) / (capacity ?? 1e15);
    if (part > most) [best, most] = [resource, part];
  }
  return best;
}

function meters(app, choose) {
  const cards = new Map();
  const node = el("div", { class: "meters", role: "tablist", "aria-label": "Resources" });
  for (const resource of RESOURCES) {
    const used = el("span", { class: "big num" });
    const of = el("span", { class: "of" });
    const bar = el(
      "span",
      { class: "meter", "aria-hidden": "true" },
      el("span", { class: "meter-used" }),
      el("span", { class: "meter-min" }),
    );
    const tab = el(
      "button",
      {
        type: "button",
        role: "tab",
        class: "meter-card",
        id: `tab-${resource}`,
        "aria-controls": "resource-panel",
        on: { click: () => choose(resource) },
      },
      el("span", { class: "label", text: TITLES[resource] }),
      used,
      bar,
      of,
    );
    cards.set(resource, { tab, used, of, bar });
    node.append(tab);
  }
  node.addEventListener("keydown", (event) => {
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!way) return;
    event.preventDefault();
    const at = (RESOURCES.indexOf(app.resource) + way + RESOURCES.length) % RESOURCES.length;
    choose(RESOURCES[at]);
    cards.get(RESOURCES[at]).tab.focus();
  });
  return {
    node,
    update() {
      const { status } = app.store;
      for (const [resource, card] of cards) {
        const selected = resource === app.resource;
        setAttr(card.tab, "aria-selected", selected);
        setAttr(card.tab, "tabindex", selected ? "0" : "-1");
        if (!status) continue;
        const used = status.used[resource] ?? 0;
        const min = status.guaranteed[resource] ?? 0;
        const capacity = status.capacity[resource];
        setText(card.used, rate(used, resource));
        const kept = min > 0 ? ` · ${rate(min, resource)} guaranteed` : "";
        setText(card.of, capacity ? `of ${rate(capacity, resource)}${kept}` : `no capacity set${kept}`);
        card.bar.style.setProperty("--used", capacity ? `${Math.min(100, (100 * used) / capacity)}%` : "0%");
        card.bar.style.setProperty("--min", capacity ? `${Math.min(100, (100 * min) / capacity)}%` : "0%");
        card.bar.classList.toggle("unmarked", !capacity || min === 0);
      }
    },
  };
}

/** The services that got most, kept in their order for as long as they are among them. */
class Largest {
  constructor() {
    this.ids = [];
  }

  pick(store, resource) {
    const of = [...store.services.keys()]
      .map((id) => [id, store.use(id, resource)?.got ?? 0])
      .filter(([id, got]) => got > 0 || this.ids.includes(id));
    of.sort((a, b) => b[1] - a[1]);
    const best = of.slice(0, LINES - 1).map(([id]) => id);
    // Whoever has a colour keeps it: only what fell out makes room.
    const kept = this.ids.map((id) => (best.includes(id) ? id : null));
    for (const id of best) {
      if (kept.includes(id)) continue;
      const free = kept.indexOf(null);
      if (free < 0) kept.push(id);
      else kept[free] = id;
    }
    this.ids = kept;
    return kept;
  }
}

export function overview(app) {
  const { store } = app;
  // Until somebody chooses, the first status does.
  let chosen = app.resource !== null;
  app.resource ??= "send";
  const largest = new Largest();
  let stacked = app.stacked ?? true;
  let plot = null;
  let shown = [];

  const legendList = el("ul", { class: "legend" });
  const plotPlace = el("div");
  const kind = el("button", {
    type: "button",
    class: "small quiet",
    "aria-pressed": String(stacked),
    text: "Stacked",
    on: {
      click: () => {
        app.stacked = stacked = !stacked;
        setAttr(kind, "aria-pressed", stacked);
        rebuild();
      },
    },
  });
  const table = new ServiceTable(app, (id, cell, button) => editLimit(app, id, app.resource, cell, button));
  const filter = el("input", {
    type: "search",
    id: "filter",
    placeholder: "name, class, group, mode",
    autocomplete: "off",
    on: { input: () => table.setFilter(filter.value) },
  });
  const empty = el(
    "p",
    { class: "panel empty", hidden: true },
    "No service runs yet. Start one with ",
    el("code", { text: "bonsai run --name NAME -- PROGRAM" }),
    "; it appears here by itself.",
  );
  const cards = meters(app, choose);
  const title = el("h2", { id: "plot-title" });
  const asNumbers = numbers(["Service", "Got now", "Least in 2 min", "Most in 2 min"], () => numberRows());
  const panel = el(
    "div",
    { id: "resource-panel", role: "tabpanel" },
    el(
      "section",
      { class: "panel", "aria-labelledby": "plot-title" },
      el("div", { class: "panel-head" }, title, kind),
      plotPlace,
      legendList,
      asNumbers,
    ),
    el(
      "section",
      { class: "panel", "aria-labelledby": "table-title" },
      el(
        "div",
        { class: "panel-head" },
        el("h2", { id: "table-title", text: "Services" }),
        el("label", { class: "filter" }, el("span", { text: "Filter " }), filter),
      ),
      table.node,
    ),
    empty,
  );
  const element = el("div", {}, el("h1", { class: "unseen", text: "Overview" }), cards.node, panel);

  function choose(resource) {
    chosen = true;
    if (resource === app.resource) return;
    app.resource = resource;
    largest.ids = [];
    rebuild();
    table.setResource(resource);
    update();
  }

  function numberRows() {
    return shown
      .filter((id) => id && id !== "others")
      .map((id) => {
        const got = store.tape.series(id, app.resource, "got").filter((value) => value !== null);
        return [
          id,
          rate(got.at(-1) ?? null, app.resource),
          rate(Math.min(...got), app.resource),
          rate(Math.max(...got), app.resource),
        ];
      });
  }

  function rebuild() {
    plot?.destroy();
    const lines = Array.from({ length: LINES }, (_, at) => at);
    // Stacked, each area reaches down to the one below it.
    plot = new Plot({
      resource: app.resource,
      height: (width) => (width < 600 ? 170 : 220),
      xRange: () => lastMinutes(store.tape),
      times: clock,
      top: (most) => {
        const capacity = store.capacity(app.resource);
        // The capacity is a good measure as long as something can be seen against it.
        return capacity && most > capacity / 3 ? Math.max(capacity, most) * 1.04 : most * 1.15;
      },
      series: [
        ...lines.map((at) => ({
          label: String(at),
          stroke: () => lineColour(at),
          fill: stacked ? () => thin(lineColour(at), 0.55) : undefined,
          width: stacked ? 1 : 1.75,
        })),
        { label: "capacity", stroke: () => colour("muted"), dash: [6, 4], width: 1 },
      ],
      bands: stacked ? lines.slice(1).map((at) => ({ series: [at + 1, at] })) : undefined,
    });
    plotPlace.replaceChildren(plot.node);
    plot.resize();
  }

  function draw() {
    const times = store.tape.moments();
    if (times.length === 0) return;
    const { resource } = app;
    shown = [...largest.pick(store, resource)];
    const series = shown.map((id) => (id ? store.tape.series(id, resource, "got") : times.map(() => null)));
    const rest = store.services.size - shown.filter(Boolean).length;
    while (series.length < LINES - 1) {
      series.push(times.map(() => null));
      shown.push(null);
    }
    series.push(remainder(store.tape.series(ALL, resource, "got"), series));
    shown.push("others");
    const columns = stacked ? stack(series) : series;
    const capacity = store.capacity(resource);
    plot.setData(times, [...columns, times.map(() => capacity)]);
    const total = store.status?.used[resource];
    plot.setLabel(
      `${TITLES[resource]} of all services in the last two minutes. Now ${rate(total, resource)}${capacity ? ` of ${rate(capacity, resource)}` : ""}. The largest: ${
        shown
          .filter((id) => id && id !== "others")
          .slice(0, 3)
          .join(", ") || "none"
      }.`,
    );
    drawLegend(rest);
  }

  function drawLegend(others) {
    const wanted = shown.map((id, at) => ({ id, at })).filter(({ id }) => id && (id !== "others" || others > 0));
    while (legendList.children.length > wanted.length) legendList.lastElementChild.remove();
    wanted.forEach(({ id, at }, place) => {
      let item = legendList.children[place];
      if (!item) {
        item = el(
          "li",
          {},
          el("span", { class: "mark", "aria-hidden": "true" }),
          el("span", { class: "name" }),
          " ",
          el("span", { class: "num" }),
        );
        legendList.append(item);
      }
      item.children[0].style.setProperty("--mark", `var(--c${at})`);
      setText(item.children[1], id === "others" ? `${others} more` : id);
      setText(item.children[2], id === "others" ? "" : rate(store.use(id, app.resource)?.got, app.resource));
    });
  }

  function update() {
    if (!chosen && store.status !== null) {
      choose(busiest(store.status));
      return;
    }
    cards.update();
    const { resource } = app;
    const capacity = store.capacity(resource);
    setText(title, `${TITLES[resource]}, last 2 minutes`);
    const some = store.services.size > 0;
    panel.querySelectorAll("section").forEach((section) => (section.hidden = !some && store.status !== null));
    empty.hidden = some || store.status === null;
    setAttr(panel, "aria-labelledby", `tab-${resource}`);
    table.resource = resource;
    element.classList.toggle("no-capacity", capacity === null);
    draw();
    table.update();
  }

  rebuild();
  table.resource = app.resource;
  const soon = atFrame(update);
  const off = [store.on("services", soon), store.on("status", soon)];
  update();
  return {
    element,
    title: "Overview",
    focusFilter: () => filter.focus(),
    choose,
    destroy() {
      off.forEach((stop) => stop());
      table.destroy();
      plot.destroy();
    },
  };
}
