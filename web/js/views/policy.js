// How is decided for the whole machine: policy, capacity, groups and classes, and what the policy
// proposes.

import { baseOfConfig } from "../changes.js";
import { atFrame, el, field, select, setText } from "../dom.js";
import { Editing } from "../editing.js";
import { diff, tidy } from "../patch.js";
import { MODES } from "../terms.js";
import { RESOURCES, TITLES, forInput, parseShare, rate } from "../units.js";
import { treeSection } from "./groups.js";

const TEXTS = [
  ["headroom", "Headroom", "how far above its use a service's demand is taken to be"],
  ["hysteresis", "Hysteresis", "changes of a share by less than this are not made"],
  ["reserve", "Reserve", "the part of the capacity that learned guarantees leave alone"],
  ["half-life", "Half-life", "after this time what was seen counts half"],
  ["percentile", "Percentile", "the part of the time in which a learned guarantee is to suffice"],
  ["margin", "Margin", "how far above that percentile a learned guarantee is"],
];

/** A form over one part of the configuration. */
export class ConfigForm {
  constructor(app, title, part) {
    this.app = app;
    this.part = part;
    this.service = null;
    this.base = null;
    this.config = {};
    this.fieldset = el("fieldset", { class: "bare" });
    this.node = el(
      "form",
      {
        novalidate: true,
        on: {
          submit: (event) => {
            event.preventDefault();
            this.editing.submit();
          },
        },
      },
      this.fieldset,
    );
    this.element = el("section", { class: "panel", "aria-label": title }, el("h2", { text: title }), this.node);
    this.touched = () => this.editing?.touched();
  }

  path() {
    return "/config";
  }

  /** Shows a configuration, unless something else is being written. */
  take(config, revision) {
    if (this.editing?.dirty) return;
    this.config = config;
    this.base = baseOfConfig(this.app.api, config, revision, [this.part]);
    this.write(config[this.part] ?? {});
    this.editing ??= new Editing(this.app, this);
    this.fieldset.append(this.editing.node);
    this.editing.update();
  }

  reset() {
    this.write(this.config[this.part] ?? {});
    this.app.reloadConfig?.();
  }

  patch() {
    const wanted = this.read();
    if (wanted.error) return wanted;
    const inner = diff(tidy(this.config[this.part] ?? {}), tidy(wanted));
    return { patch: Object.keys(inner).length > 0 ? { [this.part]: inner } : {} };
  }
}

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

class CapacityForm extends ConfigForm {
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
    );
  }

  write(capacity) {
    this.shown = {};
    for (const [resource, of] of Object.entries(this.fields)) {
      of.input.value = this.shown[resource] = forInput(capacity[resource], resource);
      of.error("");
    }
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

function proposalSection(app) {
  const body = el("tbody");
  const note = el("p", { class: "hint" });
  const table = el(
    "table",
    { class: "plain" },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        ["Service", "Resource", "Guarantee now", "Proposed", "Why"].map((text) => el("th", { scope: "col", text })),
      ),
    ),
    body,
  );
  const element = el(
    "section",
    { class: "panel", "aria-labelledby": "proposals-title" },
    el("h2", { id: "proposals-title", text: "What the policy proposes" }),
    el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Proposals" }, table),
    note,
  );
  let key = "";
  return {
    element,
    update() {
      const all = [...app.store.services.values()].flatMap((service) =>
        service.proposals.map((proposal) => ({ id: service.id, ...proposal })),
      );
      const now = JSON.stringify(all);
      if (now === key) return;
      key = now;
      table.hidden = all.length === 0;
      body.replaceChildren(
        ...all.map(({ id, resource, from, to, reason }) =>
          el(
            "tr",
            {},
            el("th", { scope: "row" }, el("a", { href: `#/service/${encodeURIComponent(id)}`, text: id })),
            el("td", { text: TITLES[resource] }),
            el("td", { class: "num", text: rate(from, resource) }),
            el("td", { class: "num", text: rate(to, resource) }),
            el("td", { text: reason }),
          ),
        ),
      );
      setText(note, all.length === 0 ? "Nothing now. Services in mode adaptive or qos are watched." : "");
    },
  };
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
      if (form.fieldset.disabled === may) form.fieldset.disabled = !may;
      if (form.editing) form.editing.update();
    }
    groups.update(may);
    classes.update(may);
    proposals.update();
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
