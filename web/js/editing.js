// What every form of settings has in common: a preview of what it would do, for how long, why, and
// the button that does it. The preview comes by itself a moment after the last key.

import { ApiError } from "./api.js";
import { add, el, field, select, setText } from "./dom.js";
import { announce } from "./notices.js";
import { isEmpty } from "./patch.js";
import { previewElement } from "./preview.js";

const PAUSE_MS = 400;

/**
 * The foot of a form. `form` has `path()`, `patch()` (which gives `{ patch }` or `{ error }`),
 * `base` (see `Changes.make`), `service` (or null) and `reset()`, which reads the state anew.
 */
export class Editing {
  constructor(app, form) {
    this.app = app;
    this.form = form;
    this.timer = 0;
    this.previewed = el("div", { class: "previewed" });
    this.problem = el("p", { class: "error", role: "alert" });
    this.span = select(
      [
        ["", "until it is changed"],
        ["10min", "for 10 min"],
        ["1h", "for 1 hour"],
        ["8h", "for 8 hours"],
      ],
      "",
      {},
    );
    this.reason = el("input", { type: "text", maxlength: 200, placeholder: "for the audit" });
    this.apply = el("button", { type: "submit", class: "main", text: "Apply" });
    this.preview = el("button", { type: "button", text: "Preview", on: { click: () => this.show(true) } });
    this.revert = el("button", {
      type: "button",
      class: "quiet",
      text: "Discard",
      on: { click: () => this.discard() },
    });
    this.node = add(
      el("div", { class: "editing" }),
      el("div", { class: "row" }, field("How long", this.span).node, field("Why", this.reason).node),
      this.problem,
      this.previewed,
      el("div", { class: "buttons" }, this.revert, this.preview, this.apply),
      (this.idle = el("p", {
        class: "hint idle-hint",
        text: "Whatever you change is shown as a preview for all services before you apply it.",
      })),
    );
    this.update();
  }

  /** Whether something was typed that is not applied. */
  get dirty() {
    const made = this.form.patch();
    return made.error !== undefined || !isEmpty(made.patch);
  }

  /** Something was typed. */
  touched() {
    clearTimeout(this.timer);
    this.update();
    if (this.dirty) this.timer = setTimeout(() => this.show(false), PAUSE_MS);
    else this.clear();
  }

  update() {
    const dirty = this.dirty;
    this.node.classList.toggle("idle", !dirty);
    this.idle.hidden = dirty;
    for (const button of [this.apply, this.preview, this.revert])
      button.disabled = !dirty || !this.app.store.mayWrite();
  }

  clear() {
    this.abort?.abort();
    clearTimeout(this.timer);
    setText(this.problem, "");
    this.previewed.replaceChildren();
  }

  discard() {
    this.clear();
    this.form.reset();
    this.update();
  }

  /** Fetches and shows what the form would do. */
  async show(asked) {
    const made = this.form.patch();
    if (made.error) {
      // While somebody types, half a number is no mistake yet to be told of aloud.
      if (asked) setText(this.problem, made.error);
      this.previewed.replaceChildren();
      return;
    }
    this.abort?.abort();
    this.abort = new AbortController();
    const { signal } = this.abort;
    try {
      const changed = await this.app.changes.preview(this.form.path(), made.patch, { span: this.span.value, signal });
      if (signal.aborted) return;
      setText(this.problem, "");
      this.previewed.replaceChildren(
        el("h3", { text: "This would happen" }),
        previewElement(this.app.store, changed, this.form.service),
      );
      if (asked) announce(`Preview: ${this.previewed.textContent}`);
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      this.previewed.replaceChildren();
      setText(this.problem, error.message);
    }
  }

  async submit() {
    const made = this.form.patch();
    if (made.error) {
      setText(this.problem, made.error);
      return;
    }
    if (isEmpty(made.patch)) return;
    this.clear();
    this.apply.disabled = true;
    const result = await this.app.changes.make(this.form.path(), made.patch, {
      base: this.form.base,
      span: this.span.value,
      reason: this.reason.value.trim(),
      service: this.form.service,
    });
    if (result.changed) {
      this.reason.value = "";
      this.span.value = "";
      this.form.reset();
    } else if (result.taken) {
      this.form.reset();
    } else if (result.error) {
      setText(this.problem, result.error);
    }
    this.update();
  }
}
