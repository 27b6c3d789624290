// A form over one part of the configuration of the whole machine.

import { baseOfConfig } from "../changes.js";
import { el } from "../dom.js";
import { Editing } from "../editing.js";
import { diff, tidy } from "../patch.js";

export class ConfigForm {
  constructor(app, title, part) {
    this.app = app;
    this.part = part;
    this.service = null;
    this.base = null;
    this.config = {};
    // Until there is something to change: what was typed before would be written over.
    this.fieldset = el("fieldset", { class: "bare", disabled: true });
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
