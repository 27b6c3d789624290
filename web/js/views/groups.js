// Groups as a tree, and classes: each opens into a form.

import { baseOfConfig } from "../changes.js";
import { el, field, select, setAttr, setText } from "../dom.js";
import { Editing } from "../editing.js";
import { diff, tidy } from "../patch.js";
import { TargetsForm } from "../targets.js";
import { MODES, TermsForm } from "../terms.js";
import { inOrder, summary } from "../tree.js";
import { RESOURCES, TITLES, rate } from "../units.js";

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$/;

const WORDS = {
  groups: {
    title: "Groups",
    one: "group",
    hint: "Services of a group are treated as one against the others; groups may be in groups.",
  },
  classes: {
    title: "Classes",
    one: "class",
    hint: "Defaults for services that name them. The class default is that of services which name none.",
  },
};

class EntryForm {
  constructor(app, part, name, config, revision, close) {
    Object.assign(this, {
      app,
      part,
      config,
      close,
      service: null,
      before: config[part]?.[name] ?? {},
      isNew: name === "",
    });
    this.oldName = name;
    this.base = baseOfConfig(app.api, config, revision, [part]);
    const touched = () => this.editing?.touched();
    this.name = field(
      "Name",
      el("input", { type: "text", value: name, autocomplete: "off", readonly: !this.isNew, on: { input: touched } }),
    );
    this.terms = Object.fromEntries(RESOURCES.map((resource) => [resource, new TermsForm(resource, touched)]));
    for (const resource of RESOURCES) this.terms[resource].set(this.before[resource]);
    const parents = Object.keys(config.groups ?? {})
      .filter((of) => of !== name)
      .map((of) => [of, of]);
    this.parent =
      part === "groups"
        ? select([["", "none"], ...parents], this.before.parent ?? "", { on: { change: touched } })
        : null;
    this.mode =
      part === "classes"
        ? select([["", "as the policy says"], ...MODES], this.before.mode ?? "", { on: { change: touched } })
        : null;
    this.targets = part === "classes" ? new TargetsForm(touched) : null;
    this.targets?.set(this.before.qos);
    this.editing = new Editing(app, this);
    const remove = el("button", {
      type: "button",
      class: "quiet",
      text: `Remove this ${WORDS[part].one}`,
      on: { click: () => this.remove() },
    });
    this.node = el(
      "form",
      {
        class: "entry-form",
        novalidate: true,
        "aria-label": name || `New ${WORDS[part].one}`,
        on: {
          submit: (event) => {
            event.preventDefault();
            this.editing.submit();
          },
        },
      },
      el(
        "div",
        { class: "row" },
        this.name.node,
        this.parent ? field("In", this.parent).node : null,
        this.mode ? field("Mode", this.mode).node : null,
      ),
      el(
        "div",
        { class: "terms-grid" },
        RESOURCES.map((resource) => this.terms[resource].node),
      ),
      this.targets?.node,
      this.editing.node,
      el(
        "div",
        { class: "buttons" },
        this.isNew ? null : remove,
        el("button", { type: "button", class: "quiet", text: "Close", on: { click: () => close() } }),
      ),
    );
  }

  path() {
    return "/config";
  }

  reset() {
    this.close();
    this.app.reloadConfig?.();
  }

  wanted() {
    // What this form does not show stays as it is.
    const wanted = { ...this.before };
    for (const resource of RESOURCES) {
      const read = this.terms[resource].get();
      if (read.error) return read;
      wanted[resource] = read.terms;
    }
    if (this.parent) wanted.parent = this.parent.value;
    if (this.mode) wanted.mode = this.mode.value;
    if (this.targets) {
      const read = this.targets.get();
      if (read.error) return read;
      wanted.qos = read.targets;
    }
    return { wanted: tidy(wanted) };
  }

  patch() {
    const name = this.name.input.value.trim();
    const { wanted, error } = this.wanted();
    if (error) return { error };
    if (this.isNew) {
      if (name === "") return Object.keys(wanted).length > 0 ? { error: "It needs a name." } : { patch: {} };
      if (!NAME.test(name))
        return {
          error: "A name has letters, digits, dots, dashes and underscores, and begins with a letter or digit.",
        };
      if (this.config[this.part]?.[name]) return { error: `There is a ${WORDS[this.part].one} ${name} already.` };
      return { patch: { [this.part]: { [name]: wanted } } };
    }
    const inner = diff(tidy(this.before), wanted);
    return { patch: Object.keys(inner).length > 0 ? { [this.part]: { [name]: inner } } : {} };
  }

  async remove() {
    const result = await this.app.changes.make(
      "/config",
      { [this.part]: { [this.oldName]: null } },
      { base: this.base },
    );
    if (result.error) this.app.toast(result.error, { error: true });
    else this.reset();
  }
}

/** The list of groups or classes. */
export function treeSection(app, part) {
  const words = WORDS[part];
  const list = el("ul", { class: "tree" });
  const place = el("div");
  const fresh = el("button", {
    type: "button",
    class: "small",
    text: `New ${words.one}`,
    on: { click: () => open("") },
  });
  const element = el(
    "section",
    { class: "panel", "aria-label": words.title },
    el("div", { class: "panel-head" }, el("h2", { text: words.title }), fresh),
    el("p", { class: "hint", text: words.hint }),
    list,
    place,
  );
  let config = {};
  let revision = null;
  let form = null;
  let opener = null;

  function open(name) {
    opener = document.activeElement;
    form = new EntryForm(app, part, name, config, revision, close);
    place.replaceChildren(form.node);
    form.node.querySelector("input:not([readonly])")?.focus();
    form.node.scrollIntoView({ block: "nearest" });
  }

  function close() {
    form = null;
    place.replaceChildren();
    if (opener?.isConnected) opener.focus();
  }

  function uses(name) {
    const shares = app.store.groups.find((group) => group.name === name);
    if (!shares) return "";
    return RESOURCES.filter((resource) => shares.got[resource] > 0)
      .map((resource) => `${TITLES[resource].toLowerCase()} ${rate(shares.got[resource], resource)}`)
      .join(", ");
  }

  return {
    element,
    take(next, at) {
      config = next;
      revision = at;
      const entries = config[part] ?? {};
      const order =
        part === "groups"
          ? inOrder(entries)
          : Object.keys(entries)
              .sort()
              .map((name) => ({ name, depth: 0 }));
      list.replaceChildren(
        ...order.map(({ name, depth }) => {
          const members = Object.entries(config.services ?? {})
            .filter(([, settings]) => settings[part === "groups" ? "group" : "class"] === name)
            .map(([id]) => id);
          return el(
            "li",
            { style: { "--depth": String(depth) }, data: { name } },
            el("button", {
              type: "button",
              class: "small edit-entry",
              "aria-label": `Edit ${name}`,
              text: name,
              on: { click: () => open(name) },
            }),
            el("span", { text: ` ${summary(entries[name])}` }),
            el("span", {
              class: "hint",
              text:
                members.length > 0
                  ? ` · ${members.slice(0, 6).join(", ")}${members.length > 6 ? ` and ${members.length - 6} more` : ""}`
                  : " · no service",
            }),
            part === "groups" ? el("span", { class: "hint now", text: "" }) : null,
          );
        }),
      );
      if (order.length === 0) list.append(el("li", { class: "hint", text: "None yet." }));
    },
    update(may) {
      fresh.disabled = !may;
      for (const button of list.querySelectorAll(".edit-entry")) setAttr(button, "disabled", may ? null : "");
      for (const item of list.querySelectorAll("li[data-name]")) {
        const now = item.querySelector(".now");
        const text = now ? uses(item.dataset.name) : "";
        if (now) setText(now, text ? ` · now ${text}` : "");
      }
      form?.editing.update();
    },
  };
}
