// What the policy proposes. One proposal is applied alone, as a person's change, after a preview.

import { ApiError, servicePath } from "../api.js";
import { baseOf } from "../changes.js";
import { el, setText } from "../dom.js";
import { previewElement } from "../preview.js";
import { TITLES, rate, written } from "../units.js";

const HEADS = ["Service", "Resource", "Guarantee now", "Proposed", "Why", ""];

/** The reason that stands in the audit. */
const reasonOf = ({ reason }) => `proposed by the policy: ${reason}`.slice(0, 1000);

export function proposalSection(app) {
  const body = el("tbody");
  const note = el("p", { class: "hint" });
  const place = el("div", { class: "previewed" });
  const head = el(
    "tr",
    {},
    HEADS.map((text) => (text ? el("th", { scope: "col", text }) : el("td"))),
  );
  const table = el("table", { class: "plain stack" }, el("thead", {}, head), body);
  const element = el(
    "section",
    { class: "panel", "aria-labelledby": "proposals-title" },
    el("h2", { id: "proposals-title", text: "What the policy proposes" }),
    el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Proposals" }, table),
    place,
    note,
  );
  let key = "";
  let may = false;

  async function show(proposal) {
    const { id, resource, to } = proposal;
    const path = servicePath(id);
    const patch = { [resource]: { min: to > 0 ? written(to, resource) : null } };
    const base = baseOf(app.api, app.store, id);
    const title = `${id}: a guarantee of ${rate(to, resource)} for ${TITLES[resource].toLowerCase()}`;
    const leave = () => place.replaceChildren();
    const apply = async () => {
      button.disabled = true;
      const result = await app.changes.make(path, patch, { base, reason: reasonOf(proposal), service: id });
      if (result.error) app.toast(result.error, { error: true });
      leave();
    };
    const button = el("button", { type: "button", class: "main", text: "Apply this one", on: { click: apply } });
    try {
      const changed = await app.changes.preview(path, patch);
      place.replaceChildren(
        el("h3", { text: title }),
        previewElement(app.store, changed, id),
        el(
          "div",
          { class: "buttons" },
          el("button", { type: "button", class: "quiet", text: "Leave it", on: { click: leave } }),
          button,
        ),
      );
      button.focus();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      place.replaceChildren(el("p", { class: "error", role: "alert", text: error.message }));
    }
  }

  const line = (proposal) => {
    const { id, resource, from, to, reason } = proposal;
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, el("a", { href: `#/service/${encodeURIComponent(id)}`, text: id })),
      el("td", { text: TITLES[resource], data: { head: HEADS[1] } }),
      el("td", { class: "num", text: rate(from, resource), data: { head: HEADS[2] } }),
      el("td", { class: "num", text: rate(to, resource), data: { head: HEADS[3] } }),
      el("td", { text: reason, data: { head: HEADS[4] } }),
      el(
        "td",
        {},
        el("button", {
          type: "button",
          class: "small",
          disabled: !may,
          "aria-label": `Preview the proposal for ${id}, ${TITLES[resource]}`,
          text: "Preview",
          on: { click: () => show(proposal) },
        }),
      ),
    );
  };

  return {
    element,
    update(mayWrite) {
      const all = [...app.store.services.values()].flatMap((service) =>
        service.proposals.map((proposal) => ({ id: service.id, ...proposal })),
      );
      const now = JSON.stringify([mayWrite, all]);
      if (now === key) return;
      key = now;
      may = mayWrite;
      table.hidden = all.length === 0;
      body.replaceChildren(...all.map(line));
      setText(
        note,
        all.length === 0
          ? "Nothing now. Services in mode adaptive or qos are watched."
          : "One can be applied alone; the switch above lets the policy apply all of them, and what comes after.",
      );
    },
  };
}
