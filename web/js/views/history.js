// The past, with a zoom: a shorter time has finer points.

import { el, select, setText, atFrame } from "../dom.js";
import { announce } from "../notices.js";
import { Plot, clock, legend, numbers } from "../plot.js";
import { columnsOf } from "../series.js";
import { colour, thin } from "../theme.js";
import { RESOURCES, TITLES, duration, rate, waits } from "../units.js";

const RANGES = [
  ["10 min", 600e3],
  ["1 h", 3600e3],
  ["24 h", 86_400e3],
  ["7 d", 7 * 86_400e3],
  ["30 d", 30 * 86_400e3],
];
/** Finer than this nothing is kept. */
const SHORTEST_MS = 10_000;

const LINES = [
  { key: "got_max", label: "most", name: "got", hidden: true },
  { key: "got_min", label: "least", name: "got", hidden: true },
  { key: "asked", label: "Asked", mark: "dashed", name: "asked", dash: [4, 3] },
  { key: "got", label: "Got, mean (least to most shaded)", mark: "area", name: "got" },
  { key: "limit", label: "Share", mark: "line", name: "share", stepped: true, width: 1 },
  { key: "guarantee", label: "Guarantee", mark: "dotted", name: "min", dash: [2, 3], stepped: true },
  { key: "waited", label: "Waits", mark: "line", name: "waits", waits: true, width: 1 },
];

export function historyView(app, query) {
  const state = {
    service: query.get("service") ?? "",
    resource: RESOURCES.includes(query.get("resource")) ? query.get("resource") : (app.resource ?? "send"),
    span: 3600e3,
    from: 0,
    to: 0,
    zooms: [],
  };
  let series = null;
  let plot = null;
  let abort = null;

  const service = select([["", "all services together"]], "", {
    id: "history-service",
    on: {
      change: () => {
        state.service = service.value;
        load();
      },
    },
  });
  const resource = select(
    RESOURCES.map((of) => [of, TITLES[of]]),
    state.resource,
    {
      id: "history-resource",
      on: {
        change: () => {
          state.resource = resource.value;
          build();
          load();
        },
      },
    },
  );
  const ranges = RANGES.map(([text, span]) =>
    el("button", { type: "button", class: "small", text, data: { span }, on: { click: () => last(span) } }),
  );
  const back = el("button", { type: "button", class: "small", text: "Zoom out", on: { click: zoomOut } });
  const note = el("p", { class: "hint", role: "status" });
  const place = el("div");
  const shown = LINES.filter(({ hidden }) => !hidden);
  const names = legend(shown.map(({ label, mark, name }) => ({ label, mark, colour: `var(--${name})` })));
  const saves = ["csv", "parquet"].map((format) =>
    el("button", {
      type: "button",
      class: "small",
      text: format === "csv" ? "Save as CSV" : "Save as Parquet",
      on: { click: () => save(format) },
    }),
  );
  const element = el(
    "div",
    {},
    el("h1", { text: "History" }),
    el(
      "section",
      { class: "panel", "aria-label": "History" },
      el(
        "div",
        { class: "controls" },
        el("label", { for: "history-service" }, "Of ", service),
        el("label", { for: "history-resource" }, "What ", resource),
        el("div", { class: "group", role: "group", "aria-label": "How long" }, ranges, back),
        el("div", { class: "group", role: "group", "aria-label": "Export" }, saves),
      ),
      place,
      names.node,
      note,
      numbers(["From", "Got, mean", "Least", "Most", "Asked", "Guarantee", "Waits"], rows),
    ),
  );

  function build() {
    plot?.destroy();
    plot = new Plot({
      resource: state.resource,
      height: (width) => (width < 600 ? 240 : 360),
      xRange: () => [state.from / 1000, state.to / 1000],
      series: LINES.map((line) => ({ ...line, stroke: line.hidden ? undefined : () => colour(line.name) })),
      bands: [{ series: [1, 2], fill: () => thin(colour("got"), 0.22) }],
      times: clock,
      onZoom: (from, to) => zoom(from * 1000, to * 1000),
      onCursor: readAt,
    });
    place.replaceChildren(plot.node);
    plot.resize();
    plot.u.over.addEventListener("dblclick", zoomOut);
  }

  function readAt(at) {
    shown.forEach(({ key, waits: isWaits }, line) => {
      const column = plot?.data?.[LINES.findIndex((of) => of.key === key) + 1];
      const value = column && at !== null ? column[at] : null;
      names.set(
        line,
        value === null || value === undefined ? "" : isWaits ? waits(value) : rate(value / plot.factor, state.resource),
      );
    });
  }

  function last(span) {
    state.span = span;
    state.zooms = [];
    load();
  }

  function zoom(from, to) {
    if (to - from < SHORTEST_MS) {
      const middle = (from + to) / 2;
      [from, to] = [middle - SHORTEST_MS / 2, middle + SHORTEST_MS / 2];
    }
    state.zooms.push([Math.round(from), Math.round(to)]);
    load();
  }

  function zoomOut() {
    if (state.zooms.length > 0) state.zooms.pop();
    else state.span = Math.min(365 * 86_400e3, state.span * 2);
    load();
  }

  async function load() {
    [state.from, state.to] = state.zooms.at(-1) ?? [Date.now() - state.span, Date.now()];
    for (const button of ranges)
      button.setAttribute(
        "aria-pressed",
        String(state.zooms.length === 0 && Number(button.dataset.span) === state.span),
      );
    abort?.abort();
    abort = new AbortController();
    const { signal } = abort;
    const points = Math.max(100, Math.min(2000, Math.round((place.clientWidth || 800) * 0.75)));
    setText(note, "Loading …");
    try {
      series = await app.api.get(
        "/history",
        { service: state.service, resource: state.resource, from: state.from, to: state.to, points },
        signal,
      );
    } catch (error) {
      if (!signal.aborted) setText(note, error.message);
      return;
    }
    if (signal.aborted) return;
    const { times, columns } = columnsOf(
      series,
      LINES.map(({ key }) => key),
    );
    plot.setData(times, columns);
    readAt(null);
    const what = `${TITLES[state.resource]} of ${state.service || "all services"}, ${stamp(state.from)} to ${stamp(state.to)}`;
    const about =
      series.points.length === 0
        ? "nothing is known of this time"
        : `${series.points.length} points of ${duration(series.step_ms * 1e6)}`;
    setText(note, `${what}: ${about}. Drag over the plot to look closer.`);
    const got = series.points.map((point) => point.got);
    plot.setLabel(
      `${what}. ${got.length > 0 ? `Mean ${rate(got.reduce((a, b) => a + b, 0) / got.length, state.resource)}, most ${rate(Math.max(...series.points.map((point) => point.got_max)), state.resource)}.` : "Nothing is known."}`,
    );
    announce(`${what}: ${about}.`);
  }

  function rows() {
    const points = series?.points ?? [];
    const every = Math.max(1, Math.ceil(points.length / 24));
    return points
      .filter((_, at) => at % every === 0)
      .map((point) => [
        stamp(point.unix_ms),
        ...[point.got, point.got_min, point.got_max, point.asked, point.guarantee].map((value) =>
          rate(value, state.resource),
        ),
        waits(point.waited),
      ]);
  }

  /** Fetched with the token, which a plain link would not carry. */
  async function save(format) {
    try {
      const answer = await app.api.fetch("/history/export", {
        query: { format, from: state.from, to: state.to, service: state.service },
      });
      const link = el("a", {
        href: URL.createObjectURL(await answer.blob()),
        download: `bonsai-${(state.service || "all").replace(/[^\w.-]/g, "_")}.${format}`,
      });
      document.body.append(link);
      link.click();
      link.remove();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    } catch (error) {
      app.toast(`Not saved: ${error.message}`, { error: true });
    }
  }

  async function known() {
    let of = [];
    try {
      of = await app.api.get("/history/known");
    } catch {
      // Those that run can be chosen all the same.
    }
    const ids = new Set([
      ...of.map((one) => one.service),
      ...app.store.services.keys(),
      ...(state.service ? [state.service] : []),
    ]);
    for (const id of [...ids].sort()) service.append(el("option", { value: id, text: id }));
    service.value = state.service;
  }

  build();
  // The width decides how many points are worth asking for.
  atFrame(load)();
  known();
  return {
    element,
    title: "History",
    choose(of) {
      state.resource = resource.value = of;
      build();
      load();
    },
    destroy() {
      abort?.abort();
      plot.destroy();
    },
  };
}

const stamp = (ms) =>
  new Date(ms).toLocaleString([], {
    month: "short",
    day: "numeric",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    hour12: false,
  });
