// Exports of block servers: what is read, what of that needed no disk, and what each two have in common.

import { ApiError } from "../api.js";
import { later } from "../awake.js";
import { groupText, keyOf, mapText, Meter, savedText, whyText, BLOCK } from "../drives.js";
import { el, setAttr, setText } from "../dom.js";
import { spark } from "../spark.js";
import { colour } from "../theme.js";
import { rate, size } from "../units.js";

/** So often is asked. */
const EVERY_MS = 1000;

/** Two minutes of it. */
const MOMENTS = 120;

class Row {
  constructor() {
    this.meters = { reads: new Meter(), writes: new Meter(), saved: new Meter() };
    this.saved = [];
    this.name = el("a");
    this.cells = Object.fromEntries(
      ["group", "reads", "writes", "saved", "rate", "elsewhere", "why", "image"].map((key) => [key, el("span")]),
    );
    this.canvas = el("canvas", { class: "spark", "aria-hidden": "true" });
    this.wrong = el("div", { class: "hint" });
    const { group, reads, writes, saved, rate: perSecond, elsewhere, why, image } = this.cells;
    this.node = el(
      "tr",
      {},
      el("th", { scope: "row", class: "col-name" }, this.name),
      el("td", {}, group),
      el("td", { class: "num" }, reads),
      el("td", { class: "num" }, writes),
      el("td", { class: "num" }, saved),
      el("td", { class: "num" }, perSecond),
      el("td", { class: "drop1" }, this.canvas),
      el("td", { class: "num drop1" }, elsewhere),
      el("td", { class: "state drop2" }, why),
      el("td", { class: "state drop1" }, image, this.wrong),
    );
  }

  update(unixMs, of) {
    const { cells, meters } = this;
    setText(this.name, of.name);
    setAttr(this.name, "href", of.service === null ? null : `#/service/${encodeURIComponent(of.service)}?resource=read`);
    setAttr(this.name, "title", `${of.charged}${of.sharing ? `; ${mapText(of.sharing)}` : ""}`);
    setText(cells.group, of.sharing?.group ?? "–");
    setText(cells.reads, rate(meters.reads.take(unixMs, of.read_bytes), "read"));
    setText(cells.writes, rate(meters.writes.take(unixMs, of.written_bytes), "write"));
    setText(cells.saved, savedText(of));
    const saved = of.sharing ? meters.saved.take(unixMs, of.sharing.reads_saved) : null;
    setText(cells.rate, rate(saved, "calls"));
    this.saved.push(saved);
    if (this.saved.length > MOMENTS) this.saved.shift();
    const elsewhere = of.sharing ? of.sharing.redirected_bytes + of.sharing.zero_bytes : null;
    setText(cells.elsewhere, elsewhere === null ? "–" : size(elsewhere));
    setText(cells.why, whyText(of.sharing));
    setText(cells.image, `${of.image}${of.read_only ? ", read-only" : ""}`);
    setText(this.wrong, of.wrong ?? "");
    const before = Array.from({ length: MOMENTS - this.saved.length }, () => null);
    spark(this.canvas, [...before, ...this.saved], colour("got"));
  }
}

const head = (text, of = "") => el("th", { scope: "col", class: of || null, text });

/** What each of a group has in common with each. */
function matrix(of) {
  const name = `Group ${of.group}`;
  if (of.exports.length < 2) return null;
  if (of.shared_blocks.length === 0)
    return el("p", { class: "hint", text: "There are too many exports to count what each two have in common." });
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: "services links" },
      el("caption", { class: "unseen", text: `${name}: what each export has in common with each.` }),
      el("thead", {}, el("tr", {}, head("What it has in common"), of.exports.map((other) => head(`with ${other}`, "num")), head("Known", "num"))),
      el(
        "tbody",
        {},
        of.exports.map((one, row) =>
          el(
            "tr",
            {},
            el("th", { scope: "row", class: "col-name", text: one }),
            of.shared_blocks[row].map((blocks) => el("td", { class: "num", text: size(blocks * BLOCK) })),
            el("td", { class: "num", text: size(of.known_blocks[row] * BLOCK) }),
          ),
        ),
      ),
    ),
  );
}

export function exportsView(app) {
  const { api } = app;
  const rows = new Map();
  const body = el("tbody");
  const note = el("p", { class: "hint", role: "status" });
  const groups = el("div");
  const heads = [
    ["Export", ""],
    ["Group", ""],
    ["Read", "num"],
    ["Written", "num"],
    ["Reads saved", "num"],
    ["Saved now", "num"],
    ["2 min", "drop1"],
    ["Read elsewhere", "num drop1"],
    ["Blocks not redirected", "drop2"],
    ["Image", "drop1"],
  ];
  const element = el(
    "div",
    {},
    el("h1", { text: "Exports" }),
    el(
      "section",
      { class: "panel", "aria-labelledby": "exports-title" },
      el("div", { class: "panel-head" }, el("h2", { id: "exports-title", text: "What block servers read, and need not read" })),
      el(
        "div",
        { class: "scroll" },
        el(
          "table",
          { class: "services links" },
          el("caption", { class: "unseen", text: "Exports of block servers, what is read of them, and what was saved." }),
          el("thead", {}, el("tr", {}, heads.map(([text, of]) => head(text, of)))),
          body,
        ),
      ),
      note,
    ),
    groups,
  );
  let timer = () => {};
  let gone = false;
  let shown = "";

  function show({ unix_ms: unixMs, exports, groups: all, problems }) {
    const known = new Set();
    for (const of of exports) {
      const key = keyOf(of);
      known.add(key);
      if (!rows.has(key)) rows.set(key, new Row());
      const row = rows.get(key);
      row.update(unixMs, of);
      if (row.node.parentNode !== body) body.append(row.node);
    }
    for (const [key, row] of rows) {
      if (known.has(key)) continue;
      row.node.remove();
      rows.delete(key);
    }
    const text = [...problems, ...(exports.length === 0 ? ["No images are served (bonsai drive serve)."] : [])].join(" ");
    setText(note, text);
    // Their age alone is no change.
    const now = JSON.stringify(all.map((of) => ({ ...of, age_ms: 0 })));
    if (now === shown) return;
    shown = now;
    groups.replaceChildren(
      ...all.map((of, at) =>
        el(
          "section",
          { class: "panel", "aria-labelledby": `group-${at}` },
          el("div", { class: "panel-head" }, el("h2", { id: `group-${at}`, text: `Group ${of.group}` })),
          el("p", { class: "hint", text: groupText(of) }),
          matrix(of),
        ),
      ),
    );
  }

  async function load() {
    try {
      const told = await api.get("/exports");
      if (!gone) show(told);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setText(note, error.message);
    }
    timer();
    if (!gone) timer = later(load, EVERY_MS);
  }
  load();
  return {
    element,
    title: "Exports",
    destroy() {
      gone = true;
      timer();
    },
  };
}
