// What is told in passing: toasts for the eye, one live region for the ear. Changes are told,
// ticks are not.

import { el, setText } from "./dom.js";

let lastTold = 0;

/** Has a screen reader say it. */
export function announce(text) {
  const live = document.getElementById("live");
  // The same sentence twice is not read again unless the text was another one between.
  setText(live, "");
  const at = (lastTold += 1);
  setTimeout(() => {
    if (at === lastTold) setText(live, text);
  }, 50);
}

/** A note at the edge; `action` is `{ text, run }`. Errors stay until they are closed. */
export function toast(text, { action = null, error = false } = {}) {
  const place = document.getElementById("toasts");
  const note = el("div", {
    class: error ? "toast bad" : "toast",
    role: error ? "alert" : "group",
    "aria-label": "Notice",
  });
  const close = () => note.remove();
  note.append(el("span", { text }));
  if (action) {
    const run = () => {
      close();
      action.run();
    };
    note.append(el("button", { type: "button", class: "small", text: action.text, on: { click: run } }));
  }
  note.append(
    el("button", {
      type: "button",
      class: "quiet small",
      "aria-label": "Close this notice",
      text: "×",
      on: { click: close },
    }),
  );
  // An older change can no longer be undone alone: its note makes room.
  for (const old of [...place.children]) if (!error || place.children.length > 2) old.remove();
  place.append(note);
  if (!error) {
    announce(text);
    // Whoever is on its way to the button keeps it.
    let timer = setTimeout(close, 10_000);
    const hold = () => clearTimeout(timer);
    const go = () => {
      clearTimeout(timer);
      timer = setTimeout(close, 4000);
    };
    for (const event of ["pointerenter", "focusin"]) note.addEventListener(event, hold);
    for (const event of ["pointerleave", "focusout"]) note.addEventListener(event, go);
  }
  return close;
}
