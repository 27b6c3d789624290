// Inputs for what somebody has of one resource: guarantee, limit, weight. Used for services,
// classes and groups.

import { el, field, setAttr } from "./dom.js";
import { unsetText } from "./owner.js";
import { TITLES, forInput, parseShare } from "./units.js";

const example = (resource) =>
  resource === "calls" ? "1000/s, 40%" : resource === "send" || resource === "recv" ? "40Mbit/s, 40%" : "10MB/s, 40%";

export class TermsForm {
  constructor(resource, onInput) {
    this.resource = resource;
    const input = (props) =>
      el("input", { type: "text", autocomplete: "off", spellcheck: "false", on: { input: onInput }, ...props });
    this.fields = {
      min: field("Guarantee", input({ placeholder: "none" }), example(resource)),
      max: field("Limit", input({ placeholder: "none" }), `${example(resource)}, none`),
      weight: field("Weight", input({ inputmode: "numeric", placeholder: "1" }), "1 to 1000"),
    };
    this.node = el(
      "fieldset",
      { class: "terms" },
      el("legend", { text: TITLES[resource] }),
      Object.values(this.fields).map(({ node }) => node),
    );
  }

  set(terms = {}) {
    this.fields.min.input.value = forInput(terms.min, this.resource);
    this.fields.max.input.value = forInput(terms.max, this.resource);
    this.fields.weight.input.value = terms.weight ?? "";
    this.before = this.raw();
    this.terms = terms;
    for (const of of Object.values(this.fields)) of.error("");
  }

  /** What holds where nothing is written, by its class or group. */
  inherit(use) {
    for (const key of ["min", "max"]) setAttr(this.fields[key].input, "placeholder", unsetText(use?.[key], this.resource));
  }

  raw() {
    return Object.fromEntries(Object.entries(this.fields).map(([key, { input }]) => [key, input.value.trim()]));
  }

  /** `{ terms }` as they would be written, or `{ error }`. What was not touched stays as it was. */
  get() {
    const terms = { ...this.terms };
    const now = this.raw();
    let error = "";
    for (const key of ["min", "max"]) {
      this.fields[key].error("");
      if (now[key] === this.before[key]) continue;
      const parsed = parseShare(now[key], this.resource);
      if (parsed.error) {
        this.fields[key].error(parsed.error);
        error ||= parsed.error;
      } else if (parsed.none) delete terms[key];
      else terms[key] = now[key];
    }
    this.fields.weight.error("");
    if (now.weight !== this.before.weight) {
      const weight = Number(now.weight);
      if (now.weight === "") delete terms.weight;
      else if (Number.isInteger(weight) && weight >= 1 && weight <= 1000) terms.weight = weight;
      else {
        error ||= "A weight is a whole number from 1 to 1000.";
        this.fields.weight.error("A whole number from 1 to 1000.");
      }
    }
    return error ? { error } : { terms };
  }
}

/** The modes, as they are chosen; the empty one is inherited. */
export const MODES = [
  ["static", "static: as configured, nothing is lent"],
  ["dynamic", "dynamic: what is unused is lent"],
  ["adaptive", "adaptive: guarantees follow the past"],
  ["qos", "qos: guarantees follow what clients see"],
];
