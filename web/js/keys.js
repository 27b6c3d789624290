// Shortcuts. Single letters can be switched off, for those whose voice or switch input types them.

import { ask } from "./dialogs.js";
import { el } from "./dom.js";
import { RESOURCES, TITLES } from "./units.js";

const KEY = "bonsai-shortcuts";
const SEQUENCE_MS = 1500;

const GO = {
  o: ["", "Overview"],
  p: ["policy", "Policy"],
  i: ["links", "Interfaces"],
  e: ["exports", "Exports"],
  h: ["history", "History"],
  a: ["audit", "Audit"],
  q: ["qos", "QoS"],
};

const TABLE = [
  ["?", "these shortcuts"],
  ["/", "filter the services"],
  ...RESOURCES.map((resource, at) => [String(at + 1), TITLES[resource]]),
  ...Object.entries(GO).map(([key, [, title]]) => [`g ${key}`, title]),
  ["u", "undo the last change"],
  ["t", "colours: auto, light, dark"],
  ["Arrow keys, Page up, Page down", "on a limit in a plot: move it"],
  ["Home, End or Delete", "on a limit in a plot: a hundredth, none"],
  ["While the daemon is away", "none of them does anything"],
  ["Escape", "leave what is being moved, typed or asked"],
];

const enabled = () => {
  try {
    return window.localStorage.getItem(KEY) !== "off";
  } catch {
    return true;
  }
};

function enable(on) {
  try {
    if (on) window.localStorage.removeItem(KEY);
    else window.localStorage.setItem(KEY, "off");
  } catch {
    // Without storage they stay as they are.
  }
}

async function help() {
  const box = el("input", { type: "checkbox" });
  box.checked = enabled();
  box.addEventListener("change", () => enable(box.checked));
  const rows = TABLE.map(([key, what]) =>
    el("tr", {}, el("th", { scope: "row" }, el("kbd", { text: key })), el("td", { text: what })),
  );
  await ask(
    "Shortcuts",
    el(
      "div",
      {},
      el("table", { class: "plain" }, el("tbody", {}, rows)),
      el("label", { class: "switch" }, box, el("span", { text: "Use single letters" })),
    ),
    [{ text: "Close", value: "", main: true }],
  );
}

/** Listens for shortcuts; `on` is what they do. */
export function keys(on) {
  let since = 0;
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey) return;
    // On a cell that opens by a click, or would if it could be changed now, what is typed is a limit.
    if (event.target.closest("input, select, textarea, dialog, [role=slider], .edit")) return;
    const { key } = event;
    if ((!enabled() || on.sleeps()) && key !== "?") return;
    const sequence = performance.now() - since < SEQUENCE_MS;
    since = 0;
    if (sequence && Object.hasOwn(GO, key)) on.go(GO[key][0]);
    else if (key === "g") since = performance.now();
    else if (key === "?") help();
    else if (key === "/") on.filter();
    else if (key === "u") on.undo();
    else if (key === "t") on.theme();
    else if (key >= "1" && key <= String(RESOURCES.length)) on.choose(RESOURCES[Number(key) - 1]);
    else return;
    event.preventDefault();
  });
  return { help };
}
