// Requests to the daemon.

/** An answer that is none, or says no. `status` is 0 when nothing answered. */
export class ApiError extends Error {
  constructor(status, detail, kind = "") {
    super(detail);
    this.name = "ApiError";
    this.status = status;
    this.kind = kind;
  }
}

const KEY = "bonsai-token";

// Storage may be forbidden; then the token lives as long as the page.
function storage(action) {
  try {
    return action(window.sessionStorage);
  } catch {
    return null;
  }
}

/**
 * The token from the address (`#token=...`), which is taken out of the address bar so that it
 * is neither bookmarked nor passed on; otherwise the one of this tab.
 */
export function takeToken() {
  const found = /^#token=([^&]*)&?(.*)$/.exec(window.location.hash);
  if (found) {
    let token = found[1];
    try {
      token = decodeURIComponent(token);
    } catch {
      // Not encoded: it is meant as it is.
    }
    keepToken(token);
    window.history.replaceState(null, "", `${window.location.pathname}#${found[2] || "/"}`);
    return token;
  }
  return storage((place) => place.getItem(KEY)) ?? "";
}

/** Keeps the token for this tab. */
export function keepToken(token) {
  storage((place) => place.setItem(KEY, token));
}

async function problem(answer) {
  let detail = `${answer.status} ${answer.statusText}`.trim();
  let kind = "";
  try {
    const told = await answer.json();
    detail = told.detail || told.title || detail;
    kind = told.type ?? "";
  } catch {
    // No problem+json, as from a proxy: the status has to do.
  }
  return new ApiError(answer.status, detail, kind);
}

export class Api {
  constructor(token) {
    this.token = token;
    /** Called with every refusal for want of a right token. */
    this.onRefused = () => {};
  }

  /** The answer as fetch has it; throws `ApiError` for everything but success. */
  async fetch(path, { method = "GET", query = {}, body, ifMatch, signal } = {}) {
    const url = new URL(`/v1${path}`, window.location.origin);
    for (const [key, value] of Object.entries(query)) {
      if (value !== undefined && value !== null && value !== "") url.searchParams.set(key, value);
    }
    const headers = {};
    if (this.token) headers.Authorization = `Bearer ${this.token}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    if (ifMatch !== undefined && ifMatch !== null) headers["If-Match"] = `"${ifMatch}"`;
    let answer;
    try {
      answer = await fetch(url, {
        method,
        headers,
        signal,
        cache: "no-store",
        credentials: "omit",
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new ApiError(0, "the daemon does not answer");
    }
    if (!answer.ok) {
      const error = await problem(answer);
      if (error.status === 401) this.onRefused(error);
      throw error;
    }
    return answer;
  }

  /** `{ data, revision }` of an answer in JSON. */
  async json(path, options) {
    const answer = await this.fetch(path, options);
    const revision = Number(/\d+/.exec(answer.headers.get("ETag") ?? "")?.[0] ?? NaN);
    const text = await answer.text();
    return {
      data: text === "" ? null : JSON.parse(text),
      revision: Number.isNaN(revision) ? null : revision,
    };
  }

  async get(path, query, signal) {
    return (await this.json(path, { query, signal })).data;
  }

  async post(path, body, options = {}) {
    return (await this.json(path, { ...options, method: "POST", body })).data;
  }

  async patch(path, body, options = {}) {
    return (await this.json(path, { ...options, method: "PATCH", body })).data;
  }
}

/** The path of a service. */
export const servicePath = (id) => `/services/${encodeURIComponent(id)}`;
