// What the machine has: configured, or measured first. What was measured is put into the form like
// something that was typed, so that it is previewed before it is applied.

import { ApiError } from "../api.js";
import { ConfigForm } from "./config-form.js";
import { el, field, select, setText } from "../dom.js";
import { announce } from "../notices.js";
import { RESOURCES, TITLES, forInput, parseShare, rate, size } from "../units.js";

/** How a reason begins that came with a measurement. */
const MEASURED = "measured on ";

/** Where each capacity is from, as far as the audit tells: `{ read: "measured on ..." }`. */
export function sources(capacity, entries) {
  const found = {};
  for (const resource of RESOURCES) {
    if (capacity[resource] === undefined || capacity[resource] === null) {
      found[resource] = "not configured: not shared out";
      continue;
    }
    const last = entries.find((entry) => entry.differences.some(({ path }) => path === `capacity.${resource}`));
    found[resource] = last?.reason.startsWith(MEASURED) ? last.reason : "configured";
  }
  return found;
}

/** What a measurement says, in sentences. */
export function told(probed) {
  const of = (value) => rate(value, probed.resource);
  const lines = [`${TITLES[probed.resource]}: ${of(probed.median)}, ${probed.of}.`];
  if (probed.slices.length > 0) {
    const others = probed.others === null ? "" : `, ${of(probed.others)} of it by others`;
    lines.push(
      `The median of ${probed.slices.length} slices from ${of(probed.low)} to ${of(probed.high)}${others}; ${size(probed.moved)} were moved for it.`,
    );
  }
  return lines;
}

export class CapacityForm extends ConfigForm {
  constructor(app) {
    super(app, "Capacity", "capacity");
    this.fields = Object.fromEntries(
      RESOURCES.map((resource) => [
        resource,
        field(
          TITLES[resource],
          el("input", {
            type: "text",
            placeholder: "not shared out",
            autocomplete: "off",
            on: { input: this.touched },
          }),
        ),
      ]),
    );
    this.from = Object.fromEntries(RESOURCES.map((resource) => [resource, el("div", { class: "hint from" })]));
    for (const [resource, of] of Object.entries(this.fields)) of.node.append(this.from[resource]);
    this.fieldset.append(
      el("p", {
        class: "hint",
        text: "What the machine has of each. What is not said is not shared out: only limits in plain rates hold there.",
      }),
      el(
        "div",
        { class: "row" },
        Object.values(this.fields).map(({ node }) => node),
      ),
      this.measuring(),
    );
  }

  measuring() {
    this.what = select(
      RESOURCES.filter((resource) => resource !== "calls").map((resource) => [resource, TITLES[resource]]),
      "read",
      { on: { change: () => this.kind() } },
    );
    this.where = field("Folder on the disk", el("input", { type: "text", autocomplete: "off" }));
    this.time = select(
      [
        ["1s", "for 1 s"],
        ["3s", "for 3 s"],
        ["10s", "for 10 s"],
        ["20s", "for 20 s"],
      ],
      "3s",
      {},
    );
    this.button = el("button", { type: "button", text: "Measure", on: { click: () => this.measure() } });
    this.measured = el("div", { class: "answer", role: "status" });
    const node = el(
      "details",
      { class: "more" },
      el("summary", { text: "Measure a disk or a link" }),
      el("p", {
        class: "hint",
        text: "A disk reads or writes a file of its own, which others feel for that time. Of a link the speed is read that its driver says. Nothing is changed by it: the value is put into the form above.",
      }),
      el(
        "div",
        { class: "row" },
        field("Of", this.what).node,
        this.where.node,
        field("Time", this.time).node,
      ),
      el("div", { class: "buttons" }, this.button),
      this.measured,
    );
    this.kind();
    return node;
  }

  /** A disk is named by a folder, a link by its name. */
  kind() {
    const isDisk = ["read", "write"].includes(this.what.value);
    setText(this.where.node.querySelector("label"), isDisk ? "Folder on the disk" : "Interface");
    this.where.input.placeholder = isDisk ? "where the daemon keeps its state" : "that of the default route";
    this.time.disabled = !isDisk;
  }

  async measure() {
    const resource = this.what.value;
    const isDisk = ["read", "write"].includes(resource);
    const where = this.where.input.value.trim();
    const request = { resource, for: this.time.value };
    if (where !== "") request[isDisk ? "path" : "interface"] = where;
    this.button.disabled = true;
    this.measured.replaceChildren(el("p", { text: isDisk ? "Being measured …" : "Being asked …" }));
    try {
      const probed = await this.app.api.post("/capacity/probe", request);
      this.measured.replaceChildren(
        ...told(probed).map((text) => el("p", { text })),
        probed.doubts.length > 0
          ? el(
              "ul",
              { class: "doubts" },
              probed.doubts.map((text) => el("li", { text: `In doubt: ${text}` })),
            )
          : "",
      );
      this.fields[resource].input.value = forInput(probed.capacity, resource);
      this.editing.reason.value = probed.reason;
      this.touched();
      announce(this.measured.textContent);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.measured.replaceChildren(el("p", { class: "error", text: error.message }));
    } finally {
      this.button.disabled = false;
    }
  }

  write(capacity) {
    this.shown = {};
    for (const [resource, of] of Object.entries(this.fields)) {
      of.input.value = this.shown[resource] = forInput(capacity[resource], resource);
      of.error("");
    }
    this.tellSources(capacity);
  }

  async tellSources(capacity) {
    let entries = [];
    try {
      ({ entries } = await this.app.api.get("/audit", { limit: 500 }));
    } catch (error) {
      // Who may not read the trail sees what is in force.
      if (!(error instanceof ApiError)) throw error;
    }
    for (const [resource, text] of Object.entries(sources(capacity, entries))) setText(this.from[resource], text);
  }

  read() {
    const capacity = {};
    for (const [resource, of] of Object.entries(this.fields)) {
      const text = of.input.value.trim();
      of.error("");
      if (text === this.shown[resource]) {
        capacity[resource] = this.config.capacity?.[resource];
        continue;
      }
      const parsed = parseShare(text, resource);
      const error =
        parsed.error ?? (parsed.percent === undefined ? "" : "A capacity is a rate: write 1Gbit/s or 200MB/s.");
      if (error) {
        of.error(error);
        return { error };
      }
      if (!parsed.none) capacity[resource] = text;
    }
    return capacity;
  }
}
