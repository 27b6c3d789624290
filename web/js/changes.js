// Making changes: with the revision that they start from, an undo at hand, and an answer to every
// refusal.

import { ApiError, servicePath } from "./api.js";
import { askConflict, askUndo, whoseOf } from "./dialogs.js";
import { linkPath, settingsOf } from "./links.js";
import { announce, toast } from "./notices.js";
import { equal } from "./patch.js";
import { forInput } from "./units.js";


/** A value of a difference as its resource is read: `services.vod.send.min` is in bit/s. */
export function printDifference(text, path) {
  const resource = /\.?(read|write|send|recv|calls)(\.(min|max))?$/.exec(path)?.[1];
  return resource ? forInput(text, resource) : text;
}

const sentence = (differences) =>
  differences
    .slice(0, 2)
    .map(({ path, from, to }) => {
      const of = (value) => (value === null ? "nothing" : printDifference(value, path));
      return `${path.replace(/^services\./, "")}: ${of(from)} → ${of(to)}`;
    })
    .join(", ") + (differences.length > 2 ? ` and ${differences.length - 2} more` : "");

export class Changes {
  constructor(api, store) {
    this.api = api;
    this.store = store;
  }

  /** What a patch would do, without doing it. Throws `ApiError`. */
  preview(path, patch, options = {}) {
    return this.api.patch(path, patch, { query: { dry_run: "true", for: options.span }, signal: options.signal });
  }

  /**
   * Makes a change and tells of it. `base` is `{ revision, state, read }`: the revision that
   * the change starts from, what was there, and how to read what is there now.
   * Gives `{ changed }`, `{ taken: true }` if the new state of others is to be taken over,
   * `{ kept: true }` if nothing was done, or `{ error }` with a sentence.
   */
  async make(path, patch, { base, span, reason, service, about } = {}) {
    // Without a patch all of it is taken away.
    const method = patch === null ? "DELETE" : "PATCH";
    const body = patch ?? undefined;
    const send = async (ifMatch) => (await this.api.json(path, { method, body, ifMatch, query: { for: span, reason } })).data;
    try {
      return this.done(await send(base?.revision));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status !== 412 || !base) return { error: this.explain(error) };
    }
    return this.settle(send, base, { service, about });
  }

  /** The state has moved: tries again if that was elsewhere, asks if it was the same place. */
  async settle(send, base, what) {
    try {
      for (let attempt = 0; attempt < 3; attempt += 1) {
        const now = await base.read();
        if (!equal(now.state, base.state)) {
          const entries = await this.since(base.revision, what);
          const answer = await askConflict(entries, printDifference);
          if (answer === "take") return { taken: true };
          if (answer !== "force") return { kept: true };
          base = { ...base, state: now.state };
        }
        try {
          return this.done(await send(now.revision));
        } catch (error) {
          if (error.status !== 412) throw error;
        }
      }
      return { error: "Others change things faster than this change can be made: try again." };
    } catch (error) {
      if (error instanceof ApiError) return { error: this.explain(error) };
      throw error;
    }
  }

  /** What was changed after a revision, as far as the audit tells: of a service, or below a path. */
  async since(revision, { service, about = "" }) {
    try {
      const page = await this.api.get("/audit", { limit: 50, service });
      const after = page.entries.filter((entry) => entry.revision > revision);
      return after.filter((entry) => entry.differences.some(({ path }) => path.startsWith(about))).slice(0, 5);
    } catch {
      return [];
    }
  }

  done(changed) {
    this.store.takeChanged(changed);
    const until = changed.until_unix_ms
      ? `, until ${new Date(changed.until_unix_ms).toLocaleTimeString([], { hour12: false })}`
      : "";
    const what = changed.differences.length > 0 ? sentence(changed.differences) + until : "Nothing was different.";
    const action = changed.differences.length > 0 ? { text: "Undo", run: () => this.undo(changed.revision) } : null;
    toast(what, { action });
    for (const text of [...changed.problems, ...(changed.held ?? [])]) toast(text, { error: true });
    return { changed };
  }

  /**
   * Undoes the last change, if what is shown is still the last state. With the revision of one's own change it is done at
   * once; otherwise its actor and its differences are said first.
   */
  async undo(own = null) {
    const shown = own ?? this.store.revision;
    try {
      if (own === null) {
        const would = await this.api.post("/undo", {}, { ifMatch: shown, query: { dry_run: "true" } });
        if ((await askUndo(would, printDifference)) !== "undo") return;
      }
      const changed = await this.api.post("/undo", {}, { ifMatch: shown });
      this.store.takeChanged(changed);
      const whose = own === null ? ` the change of ${whoseOf(changed)}` : "";
      toast(`Undone${whose}. ${sentence(changed.differences)}`);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const text =
        error.status === 412
          ? "Not undone: something else was changed since. The audit shows what."
          : `Not undone: ${this.explain(error)}`;
      toast(text, { error: true });
    }
  }

  /** A refusal as a sentence for people. */
  explain(error) {
    if (error.status === 0) return "The daemon does not answer: nothing was changed.";
    if (error.status === 401) return "The daemon wants a token: nothing was changed.";
    announce(error.message);
    return error.message;
  }
}

/** What a change of a service starts from. */
export function baseOf(api, store, id) {
  return {
    revision: store.revision,
    state: store.services.get(id)?.settings ?? {},
    read: async () => {
      const { data, revision } = await api.json(servicePath(id));
      return { state: data.settings, revision };
    },
  };
}

/** What a change of the configuration starts from: the parts that are edited. */
export function baseOfConfig(api, config, revision, parts) {
  const of = (all) => Object.fromEntries(parts.map((part) => [part, all[part] ?? {}]));
  return {
    revision,
    state: of(config),
    read: async () => {
      const { data, revision: now } = await api.json("/config");
      return { state: of(data), revision: now };
    },
  };
}

/** What a change of an interface starts from: what was shown, at which revision. */
export function baseOfLink(api, link, revision) {
  return {
    revision,
    state: settingsOf(link),
    read: async () => {
      const { data, revision: now } = await api.json(linkPath(link.target));
      return { state: settingsOf(data), revision: now };
    },
  };
}
