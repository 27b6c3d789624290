// Names and values that somebody may add to and take from, such as further limits.

import { el, newId } from "./dom.js";

export class Pairs {
  constructor({ title, name, value, hint, onInput }) {
    this.of = { name, value };
    this.onInput = onInput;
    this.rows = el("div", { class: "pairs" });
    this.node = el(
      "fieldset",
      {},
      el("legend", { text: title }),
      this.rows,
      el("button", { type: "button", class: "small", text: "Add", on: { click: () => this.add("", "", true) } }),
      el("p", { class: "hint", text: hint }),
    );
  }

  set(pairs = {}) {
    this.rows.replaceChildren();
    for (const [name, value] of Object.entries(pairs)) this.add(name, value);
  }

  add(name, value, focus = false) {
    const input = (text, label) =>
      el("input", {
        type: "text",
        value: text,
        id: newId("pair"),
        "aria-label": label,
        placeholder: label,
        autocomplete: "off",
        spellcheck: "false",
        on: { input: this.onInput },
      });
    const first = input(name, this.of.name);
    const row = el("div", { class: "pair" }, first, input(value, this.of.value));
    const remove = () => {
      row.remove();
      this.onInput();
    };
    row.append(
      el("button", {
        type: "button",
        class: "small quiet",
        "aria-label": `Remove ${name || "this one"}`,
        text: "×",
        on: { click: remove },
      }),
    );
    this.rows.append(row);
    if (focus) first.focus();
  }

  get() {
    const pairs = {};
    for (const row of this.rows.children) {
      const [name, value] = [...row.querySelectorAll("input")].map((input) => input.value.trim());
      if (name && value) pairs[name] = value;
    }
    return pairs;
  }
}
