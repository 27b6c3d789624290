// Dialogs: the token, a conflict, the shortcuts. The browser's own element keeps the focus inside,
// closes by Escape and gives the focus back.

import { el, newId, timeElement } from "./dom.js";

/** Shows a dialog and resolves to the value of the button that closed it; `""` for none. */
export function ask(title, content, buttons) {
  const heading = newId("dialog");
  const dialog = el("dialog", { "aria-labelledby": heading });
  // Enter in a field means the one button that submits: the main one.
  const row = buttons.map(({ text, value, main }) =>
    main
      ? el("button", { type: "submit", value, class: "main", text })
      : el("button", { type: "button", text, on: { click: () => dialog.close(value) } }),
  );
  const form = el(
    "form",
    { method: "dialog" },
    el("h2", { id: heading, text: title }),
    content,
    el("div", { class: "buttons" }, row),
  );
  // Closed by hand: the content policy forbids forms to go anywhere.
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    dialog.close(buttons.find(({ main }) => main)?.value ?? "");
  });
  dialog.append(form);
  document.body.append(dialog);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue);
    });
    dialog.returnValue = "";
    dialog.showModal();
  });
}

/** Asks for a token; the empty text if none was given. */
export async function askToken(why) {
  const id = newId("token");
  const input = el("input", {
    id,
    type: "password",
    autocomplete: "off",
    spellcheck: "false",
    required: true,
    autofocus: true,
  });
  const content = el(
    "div",
    {},
    el("p", { text: why }),
    el(
      "p",
      {},
      "The command ",
      el("code", { text: "bonsai page" }),
      " prints an address with a fresh token; ",
      el("code", { text: "bonsai token create" }),
      " makes lasting ones.",
    ),
    el("label", { for: id, text: "Token" }),
    input,
  );
  const answer = await ask("The daemon wants a token", content, [
    { text: "Not now", value: "" },
    { text: "Use it", value: "use", main: true },
  ]);
  const text = input.value.trim();
  // A whole address may be pasted, too.
  return answer === "use" ? (/#token=([^&\s]+)/.exec(text)?.[1] ?? text) : "";
}

/** The differences of a change, one a line, and how many more there were. */
export function differenceList(differences, print = (text) => text, more = 0) {
  const shown = (difference, side) =>
    difference[side] === null ? "nothing" : print(difference[side], difference.path);
  return el(
    "ul",
    { class: "differences" },
    differences.map((difference) =>
      el(
        "li",
        {},
        el("code", { text: difference.path }),
        " ",
        el("span", { class: "was", text: shown(difference, "from") }),
        el("span", { class: "arrow", "aria-label": "to", role: "img", text: "→" }),
        el("span", { class: "is", text: shown(difference, "to") }),
      ),
    ),
    more > 0 ? el("li", { text: `and ${more} more` }) : "",
  );
}

/** What others changed meanwhile: `take`, `force` or `""`. */
export function askConflict(entries, print) {
  const told =
    entries.length > 0
      ? entries.map((entry) =>
          el(
            "div",
            { class: "entry" },
            el(
              "p",
              {},
              el("strong", { text: entry.actor }),
              " changed it at ",
              timeElement(entry.unix_ms),
              entry.reason ? `: ${entry.reason}` : "",
            ),
            differenceList(entry.differences, print, entry.left_out),
          ),
        )
      : [el("p", { text: "The audit does not say what was changed." })];
  const content = el(
    "div",
    {},
    el("p", { text: "Your change was not made: what it started from has changed meanwhile." }),
    told,
  );
  return ask("Changed meanwhile", content, [
    { text: "Keep editing", value: "" },
    { text: "Make my change anyway", value: "force" },
    { text: "Take over the new state", value: "take", main: true },
  ]);
}

/** Who made the changes that an undo takes back, in words. */
export const whoseOf = (undo) => {
  const all = [...new Set(undo.undone.map(({ actor }) => actor ?? "somebody who is not known any more"))];
  return all.join(" and ") || "nobody";
};

/** Whose change an undo takes back, and what would be different: `undo` or `""`. */
export function askUndo(would, print) {
  const revisions = would.undone.map(({ revision }) => revision).join(", ");
  const content = el(
    "div",
    {},
    el("p", {}, el("strong", { text: whoseOf(would) }), ` made it, as revision ${revisions}. Without it:`),
    would.differences.length > 0
      ? differenceList(would.differences, print)
      : el("p", { text: "Nothing would be different." }),
  );
  return ask("Undo this change?", content, [
    { text: "Leave it", value: "" },
    { text: "Undo it", value: "undo", main: true },
  ]);
}
