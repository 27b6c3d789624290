// The last two minutes of every service, in rings of equal length that turn together: what comes
// in at one time stands at one place in all of them. Single precision, because a thousand
// services have some ten thousand rings.

/** The name under which all services together stand. */
export const ALL = "";

const FIELDS = ["got", "asked", "share", "max", "min", "waited"];

export class Tape {
  /** @param {number} length how many moments are kept */
  constructor(length) {
    this.length = length;
    this.times = new Float64Array(length).fill(NaN);
    this.head = -1;
    this.rings = new Map();
  }

  /** Begins a moment. Whatever is not written in it is unknown then. */
  turn(unixMs) {
    this.head = (this.head + 1) % this.length;
    this.times[this.head] = unixMs / 1000;
    for (const ofService of this.rings.values()) {
      for (const ring of ofService.values()) {
        for (const field of FIELDS) ring[field][this.head] = NaN;
      }
    }
  }

  /** Writes one resource of a service into the moment that was begun last. */
  write(service, use) {
    let ofService = this.rings.get(service);
    if (!ofService) this.rings.set(service, (ofService = new Map()));
    let ring = ofService.get(use.resource);
    if (!ring) {
      // What was never used and is not configured needs no memory.
      if (use.got === 0 && use.max === null && use.min === 0 && !use.waiting) return;
      ring = Object.fromEntries(FIELDS.map((field) => [field, new Float32Array(this.length).fill(NaN)]));
      ofService.set(use.resource, ring);
    }
    for (const field of FIELDS) ring[field][this.head] = use[field] ?? NaN;
  }

  /** Writes what all services got together, so that nobody has to add up a thousand rings. */
  total(services) {
    const sums = new Map();
    for (const { resources } of services) {
      for (const { resource, got } of resources) sums.set(resource, (sums.get(resource) ?? 0) + got);
    }
    for (const [resource, got] of sums) this.write(ALL, { resource, got, max: null, min: 0, waiting: true });
  }

  /** Drops the services that `keep` does not have. */
  forget(keep) {
    for (const service of this.rings.keys()) {
      if (service !== ALL && !keep.has(service)) this.rings.delete(service);
    }
  }

  /** Where the moments stand, the oldest first. */
  *order() {
    for (let at = 1; at <= this.length; at += 1) {
      const place = (this.head + at + this.length) % this.length;
      if (!Number.isNaN(this.times[place])) yield place;
    }
  }

  /** Seconds since 1970 of the oldest moment; `null` if there is none. */
  first() {
    const { value } = this.order().next();
    return value === undefined ? null : this.times[value];
  }

  /** Seconds since 1970 of all moments, the oldest first. */
  moments() {
    return Array.from(this.order(), (place) => this.times[place]);
  }

  /** A field of a resource at all moments; `null` is unknown. */
  series(service, resource, field) {
    const ring = this.rings.get(service)?.get(resource)?.[field];
    return Array.from(this.order(), (place) => {
      const value = ring?.[place];
      return value === undefined || Number.isNaN(value) ? null : value;
    });
  }
}
