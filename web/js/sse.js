// Server-Sent Events over fetch: EventSource cannot send the header that carries the token.

/** Reads the text of a stream, in whatever pieces it comes, and calls `emit(event, data, id)`. */
export function parser(emit) {
  let rest = "";
  let event = "";
  let data = [];
  let id = "";
  const line = (text) => {
    if (text === "") {
      if (data.length > 0) emit(event || "message", data.join("\n"), id);
      event = "";
      data = [];
      return;
    }
    if (text.startsWith(":")) return;
    const colon = text.indexOf(":");
    const field = colon < 0 ? text : text.slice(0, colon);
    const value = colon < 0 ? "" : text.slice(colon + 1).replace(/^ /, "");
    if (field === "event") event = value;
    else if (field === "data") data.push(value);
    else if (field === "id") id = value;
  };
  return (piece) => {
    // A large event comes in many pieces: only the new one is searched for its end.
    if (!piece.includes("\n")) {
      rest += piece;
      return;
    }
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    for (const text of lines) line(text.endsWith("\r") ? text.slice(0, -1) : text);
  };
}

/** How long to wait before the next attempt, ms: 0.5 s, doubled up to 8 s. */
export const backOff = (failures, random = Math.random()) =>
  Math.round(Math.min(8000, 500 * 2 ** Math.max(0, failures - 1)) * (0.8 + 0.4 * random));

/**
 * A stream that comes back by itself. `open(signal)` gives the answer of fetch or throws;
 * `on.event(name, data)`, `on.live()`, `on.lost(error, retryAtMs)` and `on.refused(error)` are told.
 * A refusal (wrong token) is not tried again until `retry()`.
 */
export class Stream {
  constructor(open, on, silenceMs = 8000) {
    this.open = open;
    this.on = on;
    this.silenceMs = silenceMs;
    this.failures = 0;
    this.timer = 0;
    this.abort = null;
    this.stopped = true;
  }

  start() {
    this.stopped = false;
    this.retry();
  }

  stop() {
    this.stopped = true;
    clearTimeout(this.timer);
    this.abort?.abort();
  }

  /** Tries at once, and ends what is open. */
  retry() {
    if (this.stopped) return;
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = new AbortController();
    this.run(this.abort);
  }

  async run(abort) {
    let watch = 0;
    // A connection may hang without an end: silence ends it.
    const heard = () => {
      clearTimeout(watch);
      watch = setTimeout(() => abort.abort(), this.silenceMs);
    };
    try {
      heard();
      const answer = await this.open(abort.signal);
      const feed = parser((name, text) => this.on.event(name, JSON.parse(text)));
      const reader = answer.body.getReader();
      const decoder = new TextDecoder();
      this.on.live();
      for (;;) {
        const { value, done } = await reader.read();
        if (done) throw new Error("the daemon ended the connection");
        heard();
        this.failures = 0;
        feed(decoder.decode(value, { stream: true }));
      }
    } catch (error) {
      clearTimeout(watch);
      // Another attempt has taken over.
      if (this.stopped || this.abort !== abort) return;
      if (error.status === 401) {
        this.on.refused(error);
        return;
      }
      this.failures += 1;
      const wait = backOff(this.failures);
      this.on.lost(error, Date.now() + wait);
      this.timer = setTimeout(() => this.retry(), wait);
    }
  }
}
