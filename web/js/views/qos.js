// What clients are to see, what they see, and whether more of them fit.

import { ApiError } from "../api.js";
import { later } from "../awake.js";
import { el, field, offer, select, setText, timeElement } from "../dom.js";
import { announce } from "../notices.js";
import { RESOURCES, TITLES, parseShare, percent, rate } from "../units.js";

/** Reports come every few seconds at most. */
const EVERY_MS = 3000;

const KINDS = [
  ["Loss", (target) => target.loss, (last) => (last.loss === undefined ? null : percent(last.loss))],
  [
    "Delay",
    (target) => target.delay,
    (last) => (last["delay-ms"] === undefined ? null : `${Number(last["delay-ms"].toFixed(1))} ms`),
  ],
  [
    "Jitter",
    (target) => target.jitter,
    (last) => (last["jitter-ms"] === undefined ? null : `${Number(last["jitter-ms"].toFixed(1))} ms`),
  ],
  ["Stalls", (target) => target.stalls, (last) => (last.stalls === undefined ? null : String(last.stalls))],
];

function card(view) {
  const state =
    view.holds === null ? ["off", "no report yet"] : view.holds ? ["good", "holds"] : ["bad", "does not hold"];
  const rows = KINDS.map(([name, target, seen]) => ({
    name,
    target: target(view.target),
    seen: view.last ? seen(view.last) : null,
  })).filter(({ target, seen }) => target !== undefined || seen !== null);
  return el(
    "article",
    { class: "panel qos-card", "aria-label": view.service },
    el(
      "h2",
      {},
      el("a", { href: `#/service/${encodeURIComponent(view.service)}`, text: view.service }),
      " ",
      el("span", { class: `badge ${state[0]}`, text: state[1] }),
    ),
    el(
      "table",
      { class: "plain" },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("td"),
          ["Seen", "At most"].map((text) => el("th", { scope: "col", text })),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map(({ name, target, seen }) =>
          el(
            "tr",
            {},
            el("th", { scope: "row", text: name }),
            el("td", { class: "num", text: seen ?? "–" }),
            el("td", { class: "num", text: target === undefined ? "–" : String(target) }),
          ),
        ),
      ),
    ),
    el("p", { text: view.action }),
    view.last_unix_ms
      ? el(
          "p",
          { class: "hint" },
          "Last report ",
          timeElement(view.last_unix_ms),
          view.last?.source ? ` by ${view.last.source}` : "",
        )
      : null,
  );
}

function admission(app) {
  const streams = field(
    "Streams",
    el("input", { type: "number", min: 1, max: 1_000_000, value: "10", required: true }),
  );
  const each = field(
    "Rate of each",
    el("input", { type: "text", value: "2Mbit/s", autocomplete: "off", required: true }),
  );
  const service = field("For", select([], "", {}));
  const resource = field(
    "Of",
    select(
      RESOURCES.map((of) => [of, TITLES[of]]),
      "send",
      {},
    ),
  );
  const answer = el("div", { class: "answer", role: "status" });
  const submit = async (event) => {
    event.preventDefault();
    const of = resource.input.value;
    const parsed = parseShare(each.input.value, of);
    each.error(parsed.error ?? (parsed.none ? "A rate is needed." : ""));
    if (parsed.error || parsed.none) return;
    try {
      const told = await app.api.post("/admit", {
        service: service.input.value,
        resource: of,
        streams: Number(streams.input.value),
        rate: each.input.value.trim(),
      });
      answer.replaceChildren(
        el(
          "p",
          {},
          el("span", {
            class: `badge ${told.admitted ? "good" : "bad"}`,
            text: told.admitted ? "Yes, they fit" : "No, they do not fit",
          }),
          ` ${told.reason}`,
        ),
        el("p", {
          class: "hint",
          text: `Needed ${rate(told.needed, of)}, free of guarantees ${rate(told.free, of)}; everybody gets what they need with a probability of ${percent(told.probability)}.`,
        }),
      );
      if (told.give.length > 0)
        answer.append(
          el("p", { text: "What could give:" }),
          el(
            "ul",
            {},
            told.give.map((give) => el("li", { text: `${give.service}: ${rate(give.amount, of)} (${give.reason})` })),
          ),
        );
      announce(answer.textContent);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      answer.replaceChildren(el("p", { class: "error", text: error.message }));
    }
  };
  // The page may have been opened here, before anything is known.
  const offerAll = () => offer(service.input, [...app.store.services.keys()].sort());
  offerAll();
  const off = app.store.on("services", offerAll);
  const element = el(
    "section",
    { class: "panel", "aria-labelledby": "admit-title" },
    el("h2", { id: "admit-title", text: "Would more fit?" }),
    el(
      "form",
      { novalidate: true, on: { submit } },
      el("div", { class: "row" }, streams.node, each.node, resource.node, service.node),
      el("div", { class: "buttons" }, el("button", { type: "submit", class: "main", text: "Ask" })),
    ),
    answer,
  );
  return { element, off };
}

export function qosView(app) {
  const cards = el("div", { class: "cards" });
  const note = el("p", { class: "hint" });
  const asking = admission(app);
  const element = el("div", {}, el("h1", { text: "What clients see" }), asking.element, cards, note);
  let key = "";
  let timer = () => {};
  let gone = false;

  async function load() {
    try {
      const views = await app.api.get("/qos");
      const now = JSON.stringify(views);
      if (now !== key) {
        key = now;
        cards.replaceChildren(...views.map(card));
      }
      setText(
        note,
        views.length === 0
          ? "No service has targets for its clients. They are set on the page of a service, or for all of a class under Policy."
          : "",
      );
    } catch (error) {
      setText(note, error.message);
    }
    if (!gone) timer = later(load, EVERY_MS);
  }
  load();
  return {
    element,
    title: "QoS",
    destroy() {
      gone = true;
      asking.off();
      timer();
    },
  };
}
