// The limit in a plot, to be dragged: by pointer, finger or keys. What is dragged is shown at
// once and sent when it is let go, so that one movement is one change in the audit.

import { el, setAttr, setText } from "./dom.js";
import { parseShare, rate, step, written } from "./units.js";

/** After the last key; a held key is one change. */
const KEY_PAUSE_MS = 500;

export class LimitHandle {
  /** `of`: `resource`, `name`, `get()` (units/s or null), `set(value or null)`, `may()`, `capacity()`. */
  constructor(plot, of) {
    this.plot = plot;
    this.of = of;
    this.held = undefined;
    this.timer = 0;
    this.label = el("span", { class: "handle-label" });
    this.node = el(
      "div",
      {
        class: "handle",
        role: "slider",
        tabindex: "0",
        "aria-orientation": "vertical",
        "aria-label": `Limit of ${of.name}`,
        "aria-valuemin": "0",
      },
      el("span", { class: "handle-line", "aria-hidden": "true" }),
      el("span", { class: "handle-grip", "aria-hidden": "true" }, this.label),
    );
    this.node.addEventListener("pointerdown", (event) => this.down(event));
    this.node.addEventListener("pointermove", (event) => this.move(event));
    this.node.addEventListener("pointerup", () => this.up());
    this.node.addEventListener("pointercancel", () => this.drop());
    this.node.addEventListener("keydown", (event) => this.key(event));
    this.node.addEventListener("blur", () => this.commitKeys());
    // The plot would take it for a movement of its own.
    for (const event of ["mousedown", "mousemove", "dblclick"])
      this.node.addEventListener(event, (e) => e.stopPropagation());
  }

  /** Puts it into a plot that was just built. */
  attach() {
    this.plot.u.over.append(this.node);
    this.place();
  }

  get value() {
    return this.held === undefined ? this.of.get() : this.held;
  }

  place() {
    const { value } = this;
    const height = this.plot.u.over.clientHeight;
    const at = value === null ? 0 : Math.max(0, Math.min(height, this.plot.position(value)));
    this.node.style.transform = `translateY(${at}px)`;
    this.node.classList.toggle("none", value === null);
    this.node.classList.toggle("held", this.held !== undefined);
    // Below the line, where there is no room above it.
    this.node.classList.toggle("below", at < 24);
    const text = value === null ? "no limit" : rate(value, this.of.resource);
    setText(this.label, text);
    const top = Math.max(this.of.capacity() ?? 0, this.plot.u.scales.y.max / this.plot.factor || 0, value ?? 0);
    setAttr(this.node, "aria-valuemax", Math.round(top));
    setAttr(this.node, "aria-valuenow", Math.round(value ?? top));
    setAttr(this.node, "aria-valuetext", text);
    setAttr(this.node, "aria-disabled", this.of.may() ? null : "true");
  }

  /** The nearest rate that is written with three digits: what is shown is what is sent. */
  rounded(value) {
    const most = Math.min(this.of.capacity() ?? 100e9, 100e9);
    return parseShare(written(Math.min(most, Math.max(0.001, value)), this.of.resource), this.of.resource).rate;
  }

  down(event) {
    if (!this.of.may() || event.button !== 0) return;
    event.preventDefault();
    this.node.focus({ preventScroll: true });
    this.node.setPointerCapture(event.pointerId);
    this.plot.freeze();
    // The handle is taken where it is, not where its middle is.
    const start = this.value === null ? 0 : this.plot.position(this.value);
    this.drag = { offset: event.clientY - start, from: event.clientY, moved: false };
  }

  move(event) {
    if (!this.drag) return;
    // A click is no change.
    if (!this.drag.moved && Math.abs(event.clientY - this.drag.from) < 3) return;
    this.drag.moved = true;
    const at = Math.min(event.clientY - this.drag.offset, this.plot.u.over.clientHeight - 1);
    this.held = this.rounded(this.plot.value(at));
    this.place();
  }

  up() {
    const moved = this.drag?.moved;
    this.drag = null;
    if (moved) this.send();
    this.plot.thaw();
  }

  drop() {
    this.drag = null;
    clearTimeout(this.timer);
    this.timer = 0;
    this.held = undefined;
    this.plot.thaw();
    this.place();
  }

  key(event) {
    if (event.key === "Escape" && (this.held !== undefined || this.drag)) {
      event.stopPropagation();
      this.drop();
      return;
    }
    if (event.key === "Enter" && this.timer) {
      this.commitKeys();
      return;
    }
    const factors = {
      ArrowUp: 1.02,
      ArrowRight: 1.02,
      ArrowDown: 1 / 1.02,
      ArrowLeft: 1 / 1.02,
      PageUp: 1.25,
      PageDown: 0.8,
    };
    const factor = factors[event.key];
    const ends = ["Home", "End", "Delete"].includes(event.key);
    if ((!factor && !ends) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    if (!this.of.may()) return;
    const top = this.of.capacity() ?? this.plot.u.scales.y.max / this.plot.factor;
    if (event.key === "Delete" || event.key === "End") this.held = null;
    else if (event.key === "Home") this.held = this.rounded(top / 100);
    else if (this.value === null) this.held = factor < 1 ? this.rounded(top) : null;
    else this.held = this.rounded(step(this.value, factor, this.of.resource));
    this.place();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.commitKeys(), KEY_PAUSE_MS);
  }

  commitKeys() {
    if (!this.timer) return;
    clearTimeout(this.timer);
    this.timer = 0;
    this.send();
  }

  /** Sends it, and shows it until the answer is there. */
  async send() {
    const wanted = this.held;
    await this.of.set(wanted);
    if (this.held === wanted && !this.timer && !this.drag) this.held = undefined;
    this.place();
  }
}
