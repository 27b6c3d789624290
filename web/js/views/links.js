// Interfaces: whose they are, what moves through them, and what they may. A limit is edited in its
// cell, and the answer says whether the kernel does it.

import { ApiError } from "../api.js";
import { later } from "../awake.js";
import { baseOfLink } from "../changes.js";
import { el, setAttr, setText } from "../dom.js";
import { keyOf, limitText, linkPath, settingOf, shareText } from "../links.js";
import { announce, toast } from "../notices.js";
import { spark } from "../spark.js";
import { colour } from "../theme.js";
import { parseShare, rate } from "../units.js";

/** So often is asked. */
const EVERY_MS = 500;

/** Two minutes of it. */
const MOMENTS = 240;

const STATES = {
  free: ["off", "not limited"],
  "in-force": ["good", "in force"],
  waiting: ["off", "waiting"],
  problem: ["bad", "not in force"],
};

class Row {
  constructor(view, link) {
    this.view = view;
    this.link = link;
    this.series = { tx: [], rx: [] };
    this.name = el("th", { scope: "row", class: "col-name" });
    this.whose = el("td", { class: "drop1" });
    this.now = {};
    this.canvas = {};
    this.limit = {};
    const cells = ["tx", "rx"].flatMap((direction) => {
      this.now[direction] = el("span", { class: "num" });
      this.canvas[direction] = el("canvas", { class: "spark", "aria-hidden": "true" });
      this.limit[direction] = el("button", {
        type: "button",
        class: "edit",
        on: { click: () => this.edit(direction) },
      });
      const word = { tx: "Sends", rx: "Receives" }[direction];
      return [
        el("td", { class: "num", data: { head: word } }, this.now[direction]),
        el("td", { class: "drop1" }, this.canvas[direction]),
        el("td", { class: "num", data: { head: "Limit" } }, this.limit[direction]),
      ];
    });
    this.share = el("td", { class: "drop2" });
    this.state = el("span");
    this.why = el("div", { class: "hint" });
    this.clear = el("button", {
      type: "button",
      class: "small quiet",
      text: "Clear",
      on: { click: () => this.remove() },
    });
    this.node = el(
      "tr",
      {},
      this.name,
      this.whose,
      cells,
      this.share,
      el("td", { class: "state", data: { head: "State" } }, this.state, " ", this.clear, this.why),
    );
    this.update(link);
  }

  update(link) {
    this.link = link;
    setText(this.name, link.namespace ? `${link.name} of ${link.namespace}` : link.name);
    // A group of processes has a class of its uplink instead of an interface.
    const isGroup = link.kind === "group";
    const isThere = link.index !== 0;
    const kind = isThere ? (link.kind ?? "device") + (link.up ? "" : ", down") : isGroup ? "group of processes" : "";
    setAttr(this.name, "title", kind || null);
    setText(this.whose, link.whose ?? (link.swapped ? link.target : "–"));
    const editable = link.target !== null && this.view.mayWrite();
    for (const direction of ["tx", "rx"]) {
      const isCounted = isThere || (isGroup && direction === "tx");
      this.series[direction].push(isCounted ? link[direction] : null);
      if (this.series[direction].length > MOMENTS) this.series[direction].shift();
      setText(this.now[direction], isCounted ? rate(link[direction], "send") : "–");
      const limit = link[`${direction}_limit`];
      const configured = limitText(link, direction);
      setText(this.limit[direction], limit ? rate(limit, "send") : configured || "none");
      const word = { tx: "sends", rx: "receives" }[direction];
      setAttr(this.limit[direction], "aria-label", `Limit of what ${link.name} ${word}: ${limit ? rate(limit, "send") : configured || "none"}`);
      // One that cannot be changed takes the focus all the same, and says why.
      this.limit[direction].disabled = link.target === null || (isGroup && direction === "rx");
      setAttr(this.limit[direction], "aria-disabled", editable ? null : "true");
    }
    setText(this.share, shareText(link.share));
    const [kindOfState, text] = STATES[link.state] ?? ["off", link.state];
    this.state.className = `badge ${kindOfState}`;
    setText(this.state, link.by === "hand" && link.state === "in-force" ? "in force, by hand" : text);
    setText(this.why, link.problem ?? "");
    this.clear.hidden = !editable || link.settings === null;
    setAttr(this.clear, "aria-label", `Take the limits of ${link.target} away`);
    this.draw();
  }

  draw() {
    for (const direction of ["tx", "rx"]) {
      const known = this.series[direction];
      const before = Array.from({ length: MOMENTS - known.length }, () => null);
      spark(this.canvas[direction], [...before, ...known], colour("got"));
    }
  }

  /** Enter applies, Escape leaves it. */
  edit(direction) {
    if (!this.view.mayWrite()) {
      toast(this.view.whyNot(), { error: true });
      return;
    }
    const { link } = this;
    // The state that was shown when this began.
    const base = this.view.base(link);
    const button = this.limit[direction];
    const before = limitText(link, direction);
    const word = { tx: "sends", rx: "receives" }[direction];
    const input = el("input", {
      type: "text",
      class: "inline",
      value: before,
      placeholder: "none",
      "aria-label": `Limit of what ${link.name} ${word}: a rate or none`,
      spellcheck: "false",
      autocomplete: "off",
    });
    let open = true;
    const close = (focus) => {
      if (!open) return;
      open = false;
      input.replaceWith(button);
      if (focus) button.focus();
    };
    const refuse = (text) => {
      setAttr(input, "aria-invalid", "true");
      toast(text, { error: true });
    };
    const apply = async () => {
      const parsed = parseShare(input.value, "send");
      if (parsed.error || parsed.percent !== undefined) {
        refuse(parsed.error ?? "A limit of an interface is a rate: write 20Mbit/s.");
        return;
      }
      if (input.value.trim() === before) {
        close(true);
        return;
      }
      const value = parsed.none ? null : input.value.trim();
      const error = await this.view.change(link.target, { [settingOf(link, direction)]: value }, base);
      if (error) refuse(error);
      else close(true);
    };
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      if (event.key === "Enter") apply();
      else close(true);
    });
    input.addEventListener("blur", () => input.value.trim() === before && close(false));
    button.replaceWith(input);
    input.focus();
    input.select();
  }

  async remove() {
    const error = await this.view.change(this.link.target, null, this.view.base(this.link));
    if (error) toast(error, { error: true });
  }
}

export function linksView(app) {
  const { api, store, changes } = app;
  const rows = new Map();
  const body = el("tbody");
  const note = el("p", { class: "hint", role: "status" });
  let filterText = "";
  const filter = el("input", {
    type: "search",
    id: "filter",
    placeholder: "name, whose, state",
    autocomplete: "off",
    on: {
      input: () => {
        filterText = filter.value.trim().toLowerCase();
        for (const row of rows.values()) row.node.hidden = !fits(row.link);
      },
    },
  });
  const fits = (link) =>
    [link.name, link.target, link.whose, link.namespace, link.kind, link.state].some((text) =>
      (text ?? "").toLowerCase().includes(filterText),
    );
  const heads = [
    ["Interface", ""],
    ["Whose", "drop1"],
    ["Sends", "num"],
    ["2 min", "drop1"],
    ["Limit of sending", "num"],
    ["Receives", "num"],
    ["2 min", "drop1"],
    ["Limit of receiving", "num"],
    ["Share", "drop2"],
    ["State", ""],
  ];
  const element = el(
    "div",
    {},
    el("h1", { text: "Interfaces" }),
    el(
      "section",
      { class: "panel", "aria-labelledby": "links-title" },
      el(
        "div",
        { class: "panel-head" },
        el("h2", { id: "links-title", text: "What passes where" }),
        el("label", { class: "filter" }, el("span", { text: "Filter " }), filter),
      ),
      el(
        "div",
        { class: "scroll" },
        el(
          "table",
          { class: "services links stack" },
          el("caption", { class: "unseen", text: "Interfaces, what moves through them, and their limits." }),
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              heads.map(([text, of]) => el("th", { scope: "col", class: of || null, text })),
            ),
          ),
          body,
        ),
      ),
      note,
    ),
  );
  let timer = () => {};
  let gone = false;

  // The revision of what is shown.
  let revision = null;
  const view = {
    mayWrite: () => store.mayWrite(),
    whyNot: () => store.whyNot() || "Nothing can be changed now.",
    base: (link) => baseOfLink(api, link, revision),
    change,
  };

  /** Makes a change for what was shown, and tells whether it took effect; what is wrong with it, or nothing. */
  async function change(target, patch, base) {
    const result = await changes.make(linkPath(target), patch, { base, about: `links.${target}` });
    if (result.error) return result.error;
    const { changed } = result;
    if (changed?.in_force) announce(`${target}: in force`);
    else if (changed) toast(`${target}: ${changed.why ?? "not in force"}`, { error: changed.state === "problem" });
    timer();
    await load();
    // The next look has nothing in it of before the change.
    timer();
    if (!gone) timer = later(load, EVERY_MS / 2);
    return "";
  }

  function show({ links, problems = [] }) {
    const known = new Set();
    for (const link of links) {
      const key = keyOf(link);
      known.add(key);
      const row = rows.get(key);
      if (row) row.update(link);
      else rows.set(key, new Row(view, link));
      const { node } = rows.get(key);
      node.hidden = !fits(link);
      if (node.parentNode !== body) body.append(node);
    }
    for (const [key, row] of rows) {
      if (known.has(key)) continue;
      row.node.remove();
      rows.delete(key);
    }
    setText(note, problems.join(" ") || (links.length === 0 ? "There is no interface." : ""));
  }

  async function load() {
    try {
      const { data, revision: now } = await api.json("/links");
      revision = now;
      if (!gone) show(data);
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
    title: "Interfaces",
    focusFilter: () => filter.focus(),
    destroy() {
      gone = true;
      timer();
    },
  };
}
