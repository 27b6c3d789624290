// Who changed what, when, from what to what, and why.

import { el, offer, select, setText } from "../dom.js";
import { auditItem } from "./service.js";

const PAGE = 50;

export function auditView(app, query) {
  let service = query.get("service") ?? "";
  let before = null;
  const list = el("ol", { class: "audit-list" });
  const note = el("p", { class: "hint", role: "status" });
  const older = el("button", { type: "button", text: "Older", on: { click: () => load(false) } });
  const filter = select([["", "everything"], ...(service ? [[service, service]] : [])], service, {
    id: "audit-service",
    on: {
      change: () => {
        service = filter.value;
        load(true);
      },
    },
  });
  const element = el(
    "div",
    {},
    el("h1", { text: "Audit" }),
    el(
      "section",
      { class: "panel", "aria-label": "Changes, the youngest first" },
      el("div", { class: "controls" }, el("label", { for: "audit-service" }, "About ", filter)),
      list,
      note,
      older,
    ),
  );

  async function load(fresh) {
    if (fresh) {
      before = null;
      list.replaceChildren();
    }
    older.disabled = true;
    try {
      const page = await app.api.get("/audit", { before, limit: PAGE, service });
      list.append(...page.entries.map(auditItem));
      before = page.before;
      older.hidden = before === null;
      setText(note, list.children.length === 0 ? "Nothing was changed yet." : before === null ? "That is all." : "");
    } catch (error) {
      setText(note, error.message);
    }
    older.disabled = false;
  }

  const offerAll = () => offer(filter, [...app.store.services.keys()].sort());
  offerAll();
  const off = [
    app.store.on("services", offerAll),
    app.store.on("audit", (entry) => {
      if (!service || entry.service === service) list.prepend(auditItem(entry));
    }),
  ];
  load(true);
  return { element, title: "Audit", destroy: () => off.forEach((stop) => stop()) };
}
