// How is decided for the whole machine: policy, capacity, groups and classes, and what the policy
// proposes.

import { atFrame, el, field, select, setText } from "../dom.js";
import { MODES } from "../terms.js";
import { CapacityForm } from "./capacity.js";
import { ConfigForm } from "./config-form.js";
import { treeSection } from "./groups.js";
import { proposalSection } from "./proposals.js";

const TEXTS = [
  ["headroom", "Headroom", "how far above its use a service's demand is taken to be"],
  ["hysteresis", "Hysteresis", "changes of a share by less than this are not made"],
  ["reserve", "Reserve", "the part of the capacity that learned guarantees leave alone"],
  ["half-life", "Half-life", "after this time what was seen counts half"],
  ["percentile", "Percentile", "the part of the time in which a learned guarantee is to suffice"],
  ["margin", "Margin", "how far above that percentile a learned guarantee is"],
];

class PolicyForm extends ConfigForm {
  constructor(app) {
    super(app, "Policy", "policy");
    this.mode = select(MODES, "dynamic", { on: { change: this.touched } });
    this.automatic = el("input", { type: "checkbox", role: "switch", on: { change: this.touched } });
    this.overcommit = select(
      [
        ["refuse", "are refused"],
        ["scale", "are all made smaller"],
      ],
      "refuse",
      { on: { change: this.touched } },
    );
    this.texts = Object.fromEntries(
      TEXTS.map(([key, label, hint]) => [
        key,
        field(label, el("input", { type: "text", autocomplete: "off", on: { input: this.touched } }), hint),
      ]),
    );
    this.fieldset.append(
      el(
        "label",
        { class: "switch" },
        this.automatic,
        el("span", { text: "Let the policy make its changes by itself; otherwise it only proposes them." }),
      ),
      el(
        "div",
        { class: "row" },
        field("Mode, where nothing else is said", this.mode).node,
        field("Guarantees that the machine has not", this.overcommit).node,
      ),
      el(
        "details",
        { class: "more" },
        el("summary", { text: "Fine points" }),
        el(
          "div",
          { class: "row" },
          Object.values(this.texts).map(({ node }) => node),
        ),
      ),
    );
  }

  write(policy) {
    this.mode.value = policy.mode ?? "dynamic";
    this.automatic.checked = policy.automatic === "on";
    this.overcommit.value = policy.overcommit ?? "refuse";
    for (const [key, of] of Object.entries(this.texts)) of.input.value = policy[key] ?? "";
  }

  read() {
    const policy = {
      mode: this.mode.value,
      automatic: this.automatic.checked ? "on" : "dry-run",
      overcommit: this.overcommit.value,
    };
    for (const [key, of] of Object.entries(this.texts)) policy[key] = of.input.value.trim();
    return policy;
  }
}

export function policyView(app) {
  const forms = [new PolicyForm(app), new CapacityForm(app)];
  const groups = treeSection(app, "groups");
  const classes = treeSection(app, "classes");
  const proposals = proposalSection(app);
  const note = el("p", { class: "hint why-not", role: "status" });
  const element = el(
    "div",
    {},
    el("h1", { text: "Policy" }),
    note,
    el(
      "div",
      { class: "columns even" },
      forms.map((form) => form.element),
    ),
    proposals.element,
    groups.element,
    classes.element,
  );

  async function load() {
    try {
      const { data, revision } = await app.api.json("/config");
      for (const form of forms) form.take(data, revision ?? app.store.revision);
      groups.take(data, revision ?? app.store.revision);
      classes.take(data, revision ?? app.store.revision);
      update();
    } catch (error) {
      setText(note, `The configuration cannot be read: ${error.message}`);
    }
  }

  function update() {
    const may = app.store.mayWrite();
    setText(note, app.store.whyNot());
    for (const form of forms) {
      if (!form.editing) continue;
      if (form.fieldset.disabled === may) form.fieldset.disabled = !may;
      form.editing.update();
    }
    groups.update(may);
    classes.update(may);
    proposals.update(may);
  }

  app.reloadConfig = load;
  const soon = atFrame(update);
  const off = [store("services"), store("status"), store("connection"), app.store.on("audit", load)];
  function store(topic) {
    return app.store.on(topic, soon);
  }
  load();
  return {
    element,
    title: "Policy",
    destroy() {
      off.forEach((stop) => stop());
      app.reloadConfig = null;
    },
  };
}
