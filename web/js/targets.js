// Inputs for what clients are to see at most: of a service, or of all of a class.

import { el, field, select } from "./dom.js";
import { RESOURCES, TITLES } from "./units.js";

const KINDS = [
  ["loss", "Loss, at most", "0.1%"],
  ["delay", "Delay, at most", "400ms"],
  ["jitter", "Jitter, at most", "50ms"],
  ["stalls", "Stalls in a report, at most", "0"],
];

export class TargetsForm {
  constructor(onInput) {
    this.fields = Object.fromEntries(
      KINDS.map(([key, label, example]) => [
        key,
        field(
          label,
          el("input", { type: "text", placeholder: "not watched", autocomplete: "off", on: { input: onInput } }),
          example,
        ),
      ]),
    );
    this.resource = select([["", "send"], ...RESOURCES.filter((of) => of !== "send").map((of) => [of, TITLES[of]])], "", {
      on: { change: onInput },
    });
    this.node = el(
      "fieldset",
      {},
      el("legend", { text: "What clients are to see" }),
      el(
        "div",
        { class: "row" },
        Object.values(this.fields).map(({ node }) => node),
        field("Guarantee that is raised for it", this.resource).node,
      ),
    );
  }

  set(targets = {}) {
    for (const [key, of] of Object.entries(this.fields)) {
      of.input.value = targets[key] ?? "";
      of.error("");
    }
    this.resource.value = targets.resource === "send" ? "" : (targets.resource ?? "");
    this.before = targets;
  }

  /** `{ targets }` as they would be written, or `{ error }`. */
  get() {
    const targets = {};
    for (const [key, of] of Object.entries(this.fields)) {
      const text = of.input.value.trim();
      of.error("");
      if (text === "") continue;
      if (key === "stalls" && !/^\d{1,9}$/.test(text)) {
        of.error("A whole number.");
        return { error: "Stalls are a whole number." };
      }
      targets[key] = key === "stalls" ? Number(text) : text;
    }
    // What is the default need not be said, unless it was.
    if (this.resource.value !== "") targets.resource = this.resource.value;
    else if (this.before?.resource === "send") targets.resource = "send";
    return { targets };
  }
}
