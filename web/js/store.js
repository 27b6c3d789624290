// What the page knows. Views read it and are told by topic when something came:
// `services`, `status`, `audit`, `connection`.

import { Tape } from "./tape.js";

/** The limit that is shown is the lowest in force, which need not be the daemon's. */
function shown(use) {
  return use.limit ? { ...use, max: use.limit.rate } : use;
}

/** Two minutes, at two pictures a second. */
const MOMENTS = 240;

export class Store {
  constructor() {
    this.status = null;
    this.services = new Map();
    this.groups = [];
    this.revision = null;
    this.changed = { revision: 0, until: 0 };
    this.tape = new Tape(MOMENTS);
    /** `connecting`, `live`, `lost` or `refused`. */
    this.connection = { state: "connecting", why: "", retryAt: 0 };
    this.listeners = new Map();
  }

  /** Calls `tell` at each event of the topic until the returned function is called. */
  on(topic, tell) {
    let of = this.listeners.get(topic);
    if (!of) this.listeners.set(topic, (of = new Set()));
    of.add(tell);
    return () => of.delete(tell);
  }

  emit(topic, value) {
    for (const tell of [...(this.listeners.get(topic) ?? [])]) tell(value);
  }

  /** Takes in a picture of all services. */
  takeServices(picture) {
    // One that was on its way while a change was made would show the state before it.
    if (picture.revision < this.changed.revision && Date.now() < this.changed.until) return;
    for (const service of picture.services) service.resources = service.resources.map(shown);
    this.services = new Map(picture.services.map((service) => [service.id, service]));
    this.groups = picture.groups;
    this.revision = picture.revision;
    this.tape.turn(picture.unix_ms);
    for (const service of picture.services) {
      for (const use of service.resources) this.tape.write(service.id, use);
    }
    this.tape.total(picture.services);
    this.tape.forget(this.services);
    this.emit("services", picture);
  }

  /** Takes in what an own change led to, before the next picture comes. */
  takeChanged(changed) {
    this.revision = Math.max(this.revision ?? 0, changed.revision);
    this.changed = { revision: changed.revision, until: Date.now() + 2000 };
    for (const service of changed.services) {
      const before = this.services.get(service.id);
      if (!before) continue;
      const resources = before.resources.map((use) => {
        const { min, max, weight, share, reason, enforced, limit } = shown(
          service.resources.find((of) => of.resource === use.resource) ?? use,
        );
        return { ...use, min, max, weight, share, reason, enforced, limit };
      });
      this.services.set(service.id, {
        ...before,
        settings: service.settings,
        mode: service.mode,
        limits: service.limits,
        resources,
      });
    }
    this.emit("services", null);
  }

  /** Takes in the state of the daemon; says whether it is another one than before. */
  takeStatus(status) {
    const before = this.status;
    this.status = status;
    this.emit("status", status);
    return before !== null && before.started_unix_ms !== status.started_unix_ms;
  }

  takeAudit(entry) {
    this.emit("audit", entry);
  }

  /** Nothing is heard from now on. What happens meanwhile is unknown, and a line across it would be a lie. */
  rest() {
    if (this.tape.head >= 0) this.tape.turn(Date.now());
  }

  connect(state, why = "", retryAt = 0) {
    this.connection = { state, why, retryAt };
    if (state === "lost") this.rest();
    this.emit("connection", this.connection);
  }

  /** One resource of a service; `undefined` if either is unknown. */
  use(id, resource) {
    return this.services.get(id)?.resources.find((use) => use.resource === resource);
  }

  capacity(resource) {
    return this.status?.capacity[resource] ?? null;
  }

  mayWrite() {
    return this.connection.state === "live" && this.status?.may_write === true;
  }

  /** Why nothing can be changed, in a sentence; empty if it can. */
  whyNot() {
    if (this.connection.state === "lost") return "The daemon does not answer.";
    if (this.connection.state === "refused") return "The daemon wants a token.";
    if (this.status && !this.status.may_write) return "Your token may look and not change.";
    return "";
  }
}
