// Requests to the library. Addresses are relative: it may be behind another server.

/** An answer that is none, or says no. `status` is 0 when nothing answered. */
export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.name = "ApiError";
    this.status = status;
  }
}

const watchers = new Set();

/** Tells `tell(true)` when the server answers, and `tell(false)` when it does not. */
export const onReach = (tell) => watchers.add(tell);

/** Says whether the server was reached. */
export function reached(is) {
  for (const tell of watchers) tell(is);
}

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, { cache: "no-store", credentials: "same-origin", ...options });
  } catch (error) {
    if (options?.signal?.aborted) throw error;
    reached(false);
    throw new ApiError(0, "the server does not answer");
  }
  reached(true);
  if (answer.ok) return answer;
  let text = `${answer.status} ${answer.statusText}`.trim();
  try {
    text = (await answer.json()).error || text;
  } catch {
    // Not one of ours, as from a server between: the status has to do.
  }
  throw new ApiError(answer.status, text);
}

/** What is at an address, as JSON; `query` without what is empty. */
export async function get(path, query = {}, signal = undefined) {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== ""));
  const text = asked.toString();
  return (await ask(text ? `${path}?${text}` : path, { signal })).json();
}

/** Notes that events were watched. */
export async function watched(events) {
  const body = JSON.stringify({ events: events.map(({ video, number }) => ({ video, number })) });
  await ask("watched", { method: "POST", headers: { "Content-Type": "application/json" }, body });
}

/** Events as a playlist of them is asked for. */
export const named = (events) => events.map(({ video, number }) => `${video}:${number}`).join(",");
