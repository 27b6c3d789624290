// Shortcuts. Single letters can be switched off, for those whose voice or switch input types them.

import { el } from "./dom.js";

const KEY = "bonsai-shortcuts";

const TABLE = [
  ["?", "these keys"],
  ["/", "search"],
  ["Enter", "in the search: find"],
  ["Ctrl Enter", "in the search: play all"],
  ["k or Space", "play, pause"],
  ["j, l or arrows", "10 s back, on"],
  ["p, n", "the event before, the next event"],
  ["q", "the next quality"],
  ["m, f", "sound off, full screen"],
  ["t", "colours: auto, light, dark"],
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

/** Listens for keys; `on` is what they do. Returns what shows them. */
export function keys(on) {
  const dialog = document.getElementById("keys");
  const letters = document.getElementById("letters");
  letters.checked = enabled();
  letters.addEventListener("change", () => enable(letters.checked));
  const rows = TABLE.map(([key, what]) =>
    el("tr", {}, el("th", { scope: "row" }, el("kbd", { text: key })), el("td", { text: what })),
  );
  document.getElementById("keys-table").append(el("tbody", {}, rows));
  const help = () => dialog.showModal();
  const does = {
    "?": help,
    "/": on.search,
    k: on.pause,
    " ": on.pause,
    j: () => on.leap(-10),
    ArrowLeft: () => on.leap(-10),
    l: () => on.leap(10),
    ArrowRight: () => on.leap(10),
    p: () => on.step(-1),
    n: () => on.step(1),
    q: on.quality,
    m: on.mute,
    f: on.full,
    t: on.theme,
  };
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.target.closest("input, select, textarea, dialog, video")) return;
    // What is pressed by the space bar stays so.
    if (event.key === " " && event.target.closest("button, a, summary")) return;
    if (!Object.hasOwn(does, event.key)) return;
    if (!enabled() && /^[a-z/]$/.test(event.key)) return;
    event.preventDefault();
    does[event.key]();
  });
  return help;
}
