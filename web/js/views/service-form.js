// What is configured for a service, to be edited: with a preview for all before it is applied.

import { servicePath } from "../api.js";
import { baseOf } from "../changes.js";
import { el, field, offer, select, setText } from "../dom.js";
import { Editing } from "../editing.js";
import { Pairs } from "../pairs.js";
import { diff, equal, tidy } from "../patch.js";
import { TargetsForm } from "../targets.js";
import { MODES, TermsForm } from "../terms.js";
import { RESOURCES } from "../units.js";

export class ServiceForm {
  constructor(app, id) {
    this.app = app;
    this.service = id;
    const touched = () => this.editing?.touched();
    const inherit = (what) => [["", `inherited${what}`]];
    this.terms = Object.fromEntries(RESOURCES.map((resource) => [resource, new TermsForm(resource, touched)]));
    this.group = select(inherit(": none"), "", { on: { change: touched } });
    this.class = select(inherit(": default"), "", { on: { change: touched } });
    this.mode = select([...inherit(""), ...MODES], "", { on: { change: touched } });
    this.limits = new Pairs({
      title: "Further limits",
      name: "such as send/stream",
      value: "such as 2Mbit/s",
      hint: "As for bonsai run --limit; those on a whole resource are written as its limit above.",
      onInput: touched,
    });
    this.targets = new TargetsForm(touched);
    this.notice = el("div", { class: "notice", role: "alert", hidden: true });
    this.whyNot = el("p", { class: "hint why-not" });
    this.fieldset = el("fieldset", { class: "bare" });
    this.editing = null;
    this.reset();
    this.editing = new Editing(app, this);
    this.more = el("details", { class: "more" }, el("summary", { text: "Other resources" }));
    this.first = el("div");
    this.fieldset.append(
      this.first,
      this.more,
      el("div", { class: "row" }, field("Class", this.class).node, field("Group", this.group).node),
      field("Mode", this.mode).node,
      el(
        "details",
        { class: "more" },
        el("summary", { text: "Further limits and targets for clients" }),
        this.limits.node,
        this.targets.node,
      ),
      this.editing.node,
    );
    this.node = el(
      "form",
      {
        class: "settings",
        novalidate: true,
        "aria-label": `Settings of ${id}`,
        on: {
          submit: (event) => {
            event.preventDefault();
            this.editing.submit();
          },
        },
      },
      this.whyNot,
      this.notice,
      this.fieldset,
    );
    this.names();
  }

  /** Which resource stands on top. */
  show(resource) {
    this.first.replaceChildren(this.terms[resource].node);
    this.more.replaceChildren(
      this.more.firstElementChild,
      ...RESOURCES.filter((of) => of !== resource).map((of) => this.terms[of].node),
    );
  }

  /** Classes and groups that there are. */
  async names() {
    try {
      const config = await this.app.api.get("/config");
      const fill = (input, names, chosen) => {
        offer(input, names);
        input.value = chosen ?? "";
      };
      fill(this.class, Object.keys(config.classes ?? {}), this.base.state.class);
      fill(this.group, Object.keys(config.groups ?? {}), this.base.state.group);
    } catch {
      // Without the lists the present ones remain to be chosen.
    }
  }

  path() {
    return servicePath(this.service);
  }

  /** Reads the present state into the inputs. */
  reset() {
    this.base = baseOf(this.app.api, this.app.store, this.service);
    const settings = this.base.state;
    for (const resource of RESOURCES) this.terms[resource].set(settings[resource]);
    const choose = (input, value = "") => {
      offer(input, [value]);
      input.value = value;
    };
    choose(this.class, settings.class);
    choose(this.group, settings.group);
    choose(this.mode, settings.mode);
    this.limits.set(settings.limits);
    this.targets.set(settings.qos);
    this.notice.hidden = true;
    this.settled = true;
  }

  /** The patch from what was there to what is written. */
  patch() {
    const wanted = {
      class: this.class.value,
      group: this.group.value,
      mode: this.mode.value,
      limits: this.limits.get(),
    };
    let error = "";
    for (const resource of RESOURCES) {
      const read = this.terms[resource].get();
      error ||= read.error ?? "";
      wanted[resource] = read.terms;
    }
    if (error) return { error };
    const { targets, error: wrong } = this.targets.get();
    if (wrong) return { error: wrong };
    wanted.qos = targets;
    return { patch: diff(tidy(this.base.state), tidy(wanted)) };
  }

  /** A picture came: takes it over, or says that it is another one than was started from. */
  update() {
    const may = this.app.store.mayWrite();
    if (this.fieldset.disabled === may) this.fieldset.disabled = !may;
    setText(this.whyNot, may ? "" : this.app.store.whyNot());
    for (const resource of RESOURCES) this.terms[resource].inherit(this.app.store.use(this.service, resource));
    const now = this.app.store.services.get(this.service)?.settings;
    if (!now) return;
    if (equal(now, this.base.state)) {
      // The revision may go on with changes elsewhere.
      if (!this.editing.dirty) this.base.revision = this.app.store.revision;
      this.notice.hidden = true;
      return;
    }
    if (!this.editing.dirty) {
      this.reset();
      this.editing.update();
    } else if (this.notice.hidden) {
      const take = () => this.editing.discard();
      this.notice.replaceChildren(
        "These settings were changed by somebody else meanwhile. ",
        el("button", { type: "button", class: "small", text: "Take over the new state", on: { click: take } }),
      );
      this.notice.hidden = false;
    }
  }
}
