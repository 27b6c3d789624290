// Dark and light: what the system prefers, until somebody chooses.

const KEY = "bonsai-theme";
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();
let colours = null;

function stored() {
  try {
    return window.localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function show() {
  const chosen = stored();
  const isDark = chosen === "dark" || (chosen !== "light" && dark.matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  colours = null;
  for (const tell of listeners) tell();
}

dark.addEventListener("change", show);

/** `auto`, `light` or `dark`. */
export const theme = () => stored() ?? "auto";

/** The next of auto, light, dark. */
export function nextTheme() {
  const next = { auto: "light", light: "dark", dark: "auto" }[theme()] ?? "auto";
  try {
    if (next === "auto") window.localStorage.removeItem(KEY);
    else window.localStorage.setItem(KEY, next);
  } catch {
    // Without storage there is no choice to keep.
  }
  show();
  return next;
}

export function onTheme(tell) {
  listeners.add(tell);
  return () => listeners.delete(tell);
}

/** A colour of the style sheet, for what is drawn on a canvas. */
export function colour(name) {
  colours ??= { style: getComputedStyle(document.documentElement), known: new Map() };
  let value = colours.known.get(name);
  if (!value) colours.known.set(name, (value = colours.style.getPropertyValue(`--${name}`).trim() || "#888"));
  return value;
}

/** Colours of services in one plot. */
export const lineColour = (at) => colour(`c${at % 8}`);

/** A colour with so much of the ground shining through. */
export const thin = (hex, part) =>
  hex +
  Math.round(part * 255)
    .toString(16)
    .padStart(2, "0");
