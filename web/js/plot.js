// Plots over time: uPlot with the page's colours, sizes that follow the page, and a text for those
// who cannot see it.

import { el, setAttr } from "./dom.js";
import { colour, onTheme } from "./theme.js";
import { plotFactor, rate, waits } from "./units.js";

/* global uPlot */

const NARROW = 600;

const two = (number) => String(number).padStart(2, "0");

/** Ticks of time in 24 hours, as fine as they are apart: `09:57:30`, `09:57`, `22 Nov`. */
export function clock(u, ticks, axis, space, seconds) {
  let before = "";
  return ticks.map((tick) => {
    const at = new Date(tick * 1000);
    const day = `${at.getDate()} ${at.toLocaleString("en", { month: "short" })}`;
    if (seconds >= 86_400) return day;
    const time = `${two(at.getHours())}:${two(at.getMinutes())}${seconds < 60 ? `:${two(at.getSeconds())}` : ""}`;
    // The day is told where it changes, unless all are of today.
    const told = before !== "" && before !== day ? `${time}\n${day}` : time;
    before = day;
    return told;
  });
}

export class Plot {
  /**
   * `series`: `{ label, stroke(), fill(), dash, width, waits }` each. `bands` as uPlot has them.
   * `xRange()` gives seconds, `top(most)` the upper end in units/s. `onZoom(from, to)` lets the
   * pointer select a time. `onDraw()` follows each drawing, `onCursor(index or null)` the pointer.
   */
  constructor(options) {
    this.options = options;
    this.resource = options.resource;
    this.node = el("div", { class: "plot" });
    this.frozen = null;
    this.data = null;
    this.build();
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.node);
    this.offTheme = onTheme(() => this.build());
  }

  get factor() {
    return plotFactor(this.resource);
  }

  build() {
    const { options } = this;
    this.u?.destroy();
    const width = this.node.clientWidth || 600;
    const line = (of) => ({
      label: of.label,
      scale: of.waits ? "w" : "y",
      stroke: of.stroke ?? "transparent",
      fill: of.fill,
      dash: of.dash,
      width: of.width ?? 1.5,
      paths: of.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: false },
      spanGaps: false,
    });
    const axis = {
      stroke: () => colour("muted"),
      grid: { stroke: () => colour("grid"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
    };
    const axes = [
      { ...axis, space: 76, size: options.onZoom ? 42 : 28, values: options.times },
      {
        ...axis,
        size: width < NARROW ? 62 : 74,
        values: (_, ticks) => ticks.map((tick) => (tick === 0 ? "0" : rate(tick / this.factor, this.resource))),
      },
    ];
    if (options.series.some((of) => of.waits) && width >= NARROW) {
      axes.push({
        ...axis,
        stroke: () => colour("waits"),
        scale: "w",
        side: 1,
        size: 62,
        grid: { show: false },
        values: (_, ticks) => ticks.map((tick) => waits(tick)),
      });
    }
    this.u = new uPlot(
      {
        width,
        height: options.height(width),
        padding: [10, width < NARROW ? 14 : 10, 0, 0],
        legend: { show: false },
        cursor: { y: false, points: { show: false }, drag: { x: Boolean(options.onZoom), y: false, setScale: false } },
        select: { show: Boolean(options.onZoom) },
        scales: {
          x: { time: true, range: (u, min, max) => options.xRange?.() ?? [min, max] },
          y: { range: (u, min, max) => this.yRange(max) },
          w: { range: (u, min, max) => [0, Math.max(0.01, max ?? 0) * 3] },
        },
        axes,
        series: [{}, ...options.series.map(line)],
        bands: options.bands,
        hooks: {
          draw: [() => options.onDraw?.()],
          setCursor: [(u) => options.onCursor?.(u.cursor.idx ?? null)],
          setSelect: [(u) => this.selected(u)],
        },
      },
      this.data ?? [[], ...options.series.map(() => [])],
      this.node,
    );
    const canvas = this.node.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", this.label ?? "Nothing is drawn yet.");
    options.onBuild?.(this);
  }

  yRange(most) {
    if (this.frozen !== null) return [0, this.frozen * this.factor];
    const top = this.options.top ? this.options.top((most ?? 0) / this.factor) : ((most ?? 0) / this.factor) * 1.1;
    return [0, Math.max(top, 0.001) * this.factor];
  }

  selected(u) {
    if (!this.options.onZoom || u.select.width < 8) return;
    const from = u.posToVal(u.select.left, "x");
    const to = u.posToVal(u.select.left + u.select.width, "x");
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.options.onZoom(from, to);
  }

  /** `times` in seconds; `columns` in units/s (waits in s/s), one for each series. */
  setData(times, columns) {
    const { factor } = this;
    const scaled = columns.map((column, at) =>
      factor === 1 || this.options.series[at].waits
        ? column
        : column.map((value) => (value === null ? null : value * factor)),
    );
    this.data = [times, ...scaled];
    this.u.setData(this.data);
  }

  /** The sentence that stands for the picture. Not live: it is read when somebody comes by. */
  setLabel(text) {
    this.label = text;
    const canvas = this.node.querySelector("canvas");
    if (canvas) setAttr(canvas, "aria-label", text);
  }

  /** Holds the upper end where it is, while something is dragged against it. */
  freeze() {
    this.frozen = this.u.scales.y.max / this.factor;
  }

  thaw() {
    this.frozen = null;
    if (this.data) this.u.setData(this.data);
  }

  /** Pixels from the upper edge, of a rate; and back. */
  position(value) {
    return this.u.valToPos(value * this.factor, "y");
  }

  value(position) {
    return this.u.posToVal(position, "y") / this.factor;
  }

  resize() {
    const width = this.node.clientWidth;
    if (!width || width === this.u.width) return;
    // Another number of axes needs another plot.
    if (width < NARROW !== this.u.width < NARROW) this.build();
    else this.u.setSize({ width, height: this.options.height(width) });
  }

  destroy() {
    this.observer.disconnect();
    this.offTheme();
    this.u.destroy();
  }
}

/** A list of what the lines are; `set(at, text)` writes the value behind one. */
export function legend(entries) {
  const values = [];
  const node = el(
    "ul",
    { class: "legend" },
    entries.map(({ label, mark, colour: of }) => {
      const value = el("span", { class: "num" });
      values.push(value);
      return el(
        "li",
        {},
        el("span", { class: `mark ${mark ?? ""}`, style: { "--mark": of }, "aria-hidden": "true" }),
        el("span", { class: "name", text: label }),
        " ",
        value,
      );
    }),
  );
  return {
    node,
    set(at, text) {
      if (values[at].textContent !== text) values[at].textContent = text;
    },
  };
}

/** Numbers of a plot as a table, made when somebody opens it. `rows()` gives arrays of texts. */
export function numbers(headings, rows) {
  const body = el("tbody");
  const node = el(
    "details",
    { class: "numbers" },
    el("summary", { text: "The same in numbers" }),
    el(
      "div",
      { class: "scroll", tabindex: "0", role: "group", "aria-label": "Numbers of the plot" },
      el(
        "table",
        { class: "plain" },
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            headings.map((text) => el("th", { scope: "col", text })),
          ),
        ),
        body,
      ),
    ),
  );
  const fill = () => {
    body.replaceChildren(
      ...rows().map((cells) =>
        el(
          "tr",
          {},
          cells.map((text, at) => el(at ? "td" : "th", { class: at ? "num" : "", scope: at ? null : "row", text })),
        ),
      ),
    );
  };
  node.addEventListener("toggle", () => node.open && fill());
  return node;
}
