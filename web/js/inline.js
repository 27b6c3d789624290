// A limit that is edited in its cell: Enter applies, Escape leaves it.

import { baseOf } from "./changes.js";
import { servicePath } from "./api.js";
import { el, setAttr } from "./dom.js";
import { toast } from "./notices.js";
import { forInput, parseShare } from "./units.js";

export function editLimit(app, id, resource, cell, button) {
  if (!app.store.mayWrite()) {
    toast(app.store.whyNot() || "Nothing can be changed now.", { error: true });
    return;
  }
  const base = baseOf(app.api, app.store, id);
  const before = forInput(base.state[resource]?.max, resource);
  const input = el("input", {
    type: "text",
    class: "inline",
    value: before,
    placeholder: "none",
    "aria-label": `Limit of ${id}: a rate, a percentage or none`,
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
  const apply = async () => {
    const parsed = parseShare(input.value, resource);
    if (parsed.error) {
      setAttr(input, "aria-invalid", "true");
      toast(parsed.error, { error: true });
      return;
    }
    if (input.value.trim() === before) {
      close(true);
      return;
    }
    const max = parsed.none ? null : input.value.trim();
    const result = await app.changes.make(servicePath(id), { [resource]: { max } }, { base, service: id });
    if (result.error) {
      setAttr(input, "aria-invalid", "true");
      toast(result.error, { error: true });
      return;
    }
    close(true);
  };
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== "Escape") return;
    // The button that gets the focus back would take the same key for a click.
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Enter") apply();
    else close(true);
  });
  // Going elsewhere without having written anything leaves it; what was written stays.
  input.addEventListener("blur", () => input.value.trim() === before && close(false));
  button.replaceWith(input);
  input.focus();
  input.select();
}
