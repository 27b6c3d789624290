// JSON merge patches (RFC 7396): what changes are made of.

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** `target` with `patch` applied; neither is changed. */
export function merge(target, patch) {
  if (!isObject(patch)) return patch;
  const result = isObject(target) ? { ...target } : {};
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete result[key];
    else result[key] = merge(result[key], value);
  }
  return result;
}

/** Whether two JSON values say the same. */
export function equal(a, b) {
  if (a === b) return true;
  if (Array.isArray(a) && Array.isArray(b)) {
    return a.length === b.length && a.every((item, at) => equal(item, b[at]));
  }
  if (!isObject(a) || !isObject(b)) return false;
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && equal(a[key], b[key]));
}

/** The patch that leads from one object to another; `{}` where nothing is different. */
export function diff(from, to) {
  const patch = {};
  for (const key of Object.keys(from)) {
    if (!Object.hasOwn(to, key)) patch[key] = null;
  }
  for (const [key, value] of Object.entries(to)) {
    const before = from[key];
    if (isObject(value) && isObject(before)) {
      const inner = diff(before, value);
      if (Object.keys(inner).length > 0) patch[key] = inner;
    } else if (!equal(before, value)) {
      patch[key] = value;
    }
  }
  return patch;
}

/** An object without what is empty in it: `undefined`, `""` and objects of nothing. */
export function tidy(object) {
  const result = {};
  for (const [key, value] of Object.entries(object)) {
    const kept = isObject(value) ? tidy(value) : value;
    if (kept === undefined || kept === "" || (isObject(kept) && Object.keys(kept).length === 0)) continue;
    result[key] = kept;
  }
  return result;
}

/** Whether a patch changes nothing. */
export const isEmpty = (patch) => Object.keys(patch).length === 0;
