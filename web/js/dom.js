// Elements. Whatever comes from the daemon goes in as text: nothing here reads markup.

/**
 * An element. `props`: `class`, `text`, `on` (listeners), `data` (dataset), `style` (custom
 * properties and others, set one by one as the content policy wants it), and attributes;
 * `null`, `undefined` and `false` leave an attribute out.
 */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else if (name === "on") for (const [event, tell] of Object.entries(value)) node.addEventListener(event, tell);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "style") for (const [key, of] of Object.entries(value)) node.style.setProperty(key, of);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  add(node, ...children);
  return node;
}

/** Appends elements and texts; what is null or false is left out. */
export function add(node, ...children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child);
  }
  return node;
}

/** Sets a text if it is another one: an unchanged cell costs no layout. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttr(node, name, value) {
  const wanted = value === null || value === false ? null : String(value);
  if (node.getAttribute(name) === wanted) return;
  if (wanted === null) node.removeAttribute(name);
  else node.setAttribute(name, wanted);
}

let numbers = 0;
/** An id that no other element has. */
export const newId = (stem) => `${stem}-${(numbers += 1)}`;

/** A label with its input. `hint` and an error stand below it. */
export function field(label, input, hint = "") {
  const id = input.id || newId("field");
  input.id = id;
  const below = el("div", { class: "hint", id: `${id}-hint`, text: hint });
  input.setAttribute("aria-describedby", below.id);
  const node = el("div", { class: "field" }, el("label", { for: id, text: label }), input, below);
  return {
    node,
    input,
    /** Shows what is wrong; empty for nothing. */
    error(text) {
      setText(below, text || hint);
      below.classList.toggle("error", Boolean(text));
      setAttr(input, "aria-invalid", text ? "true" : null);
    },
  };
}

/** A select of `[value, text]` pairs. */
export function select(pairs, value, props = {}) {
  const node = el(
    "select",
    props,
    pairs.map(([of, text]) => el("option", { value: of, text })),
  );
  node.value = value;
  return node;
}

/** Brings the choices of a select up to date without touching what is chosen. */
export function offer(node, names) {
  const known = new Set(Array.from(node.options, (option) => option.value));
  for (const name of names) if (!known.has(name)) node.append(el("option", { value: name, text: name }));
}

/** Calls `draw` at the next frame, once however often it is asked. */
export function atFrame(draw) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  };
}

export function when(unixMs) {
  if (!unixMs) return "–";
  const date = new Date(unixMs);
  const today = new Date();
  const time = date.toLocaleTimeString([], { hour12: false });
  const same = date.toDateString() === today.toDateString();
  return same ? time : `${date.toLocaleDateString([], { year: "numeric", month: "short", day: "numeric" })} ${time}`;
}

/** A time with its exact moment for machines and pointers. */
export const timeElement = (unixMs) =>
  el("time", { datetime: new Date(unixMs).toISOString(), title: new Date(unixMs).toISOString(), text: when(unixMs) });
