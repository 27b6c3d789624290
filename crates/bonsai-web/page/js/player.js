// The player: a playlist in HLS, what of it is shown now, and in which quality.

import Hls from "../vendor/hls.min.mjs";
import { watched } from "./api.js";
import { el, setAttr, setText } from "./dom.js";
import { clock, rate, told } from "./words.js";

/** An event is watched when so much after it was shown, s. */
const WATCHED_AFTER = 1;

/** Who goes so far at once has not seen what is between, s. */
const LEAP = 2;

export class Player {
  /** `on.watched(event)`, `on.lost(retry)` when the server is gone, `on.back()`, `on.failed(text)`. */
  constructor(on) {
    this.on = on;
    this.video = document.getElementById("video");
    this.quality = document.getElementById("quality");
    this.shown = document.getElementById("shown");
    this.list = document.getElementById("playlist");
    this.now = document.getElementById("now");
    this.events = [];
    this.hls = null;
    this.current = -1;
    this.last = 0;
    this.quality.addEventListener("change", () => this.choose(Number(this.quality.value)));
    this.video.addEventListener("timeupdate", () => this.follow());
    this.video.addEventListener("seeking", () => {
      // A hole between clips is stepped over, and is no leap.
      const to = this.video.currentTime;
      if (Math.abs(to - this.last) > LEAP) this.last = to;
    });
  }

  /** Plays a playlist: `{ hls, events, title }`, events with `shown_ms`. */
  async play({ hls, events = [], title = "" }) {
    this.end();
    this.events = events.map((event) => ({ ...event, seen: false }));
    this.title = title;
    this.draw();
    if (Hls.isSupported()) this.start(hls);
    else if (this.video.canPlayType("application/vnd.apple.mpegurl")) this.video.src = hls;
    else {
      this.on.failed("This browser plays no streams (no Media Source Extensions).");
      return;
    }
    try {
      await this.video.play();
    } catch (error) {
      // A browser that wants a click first gets it on the player's own button.
      if (error.name !== "NotAllowedError" && error.name !== "AbortError") this.on.failed(error.message);
    }
  }

  start(address) {
    // Workers would come from an object of the page, which its policy does not allow. Between clips of two
    // videos there is a hole as long as pictures are out of order: with the width of 0.1 s that it has by
    // itself, hls.js takes what is on both sides for one piece, and the end of the last for none.
    const hls = new Hls({ enableWorker: false, backBufferLength: 60, maxBufferHole: 0.05 });
    this.hls = hls;
    let media = 0;
    hls.on(Hls.Events.MANIFEST_PARSED, () => this.offer());
    hls.on(Hls.Events.LEVEL_SWITCHED, () => this.say());
    hls.on(Hls.Events.FRAG_LOADED, () => this.on.back());
    hls.on(Hls.Events.FRAG_BUFFERED, () => this.say());
    hls.on(Hls.Events.ERROR, (_, error) => {
      if (error.type === Hls.ErrorTypes.NETWORK_ERROR && !error.response?.code) {
        // Nothing answered: what is buffered is played on.
        this.on.lost(() => this.again(address));
      }
      if (!error.fatal) return;
      if (error.type === Hls.ErrorTypes.MEDIA_ERROR && media < 2) {
        media += 1;
        hls.recoverMediaError();
      } else if (error.type !== Hls.ErrorTypes.NETWORK_ERROR) this.on.failed(`It cannot be played: ${error.details}.`);
      else if (error.response?.code) this.on.failed(`It cannot be loaded: the server said ${error.response.code}.`);
    });
    hls.attachMedia(this.video);
    hls.loadSource(address);
  }

  /** Goes on after the server was away, where it was. */
  again(address) {
    if (!this.hls) return;
    const at = this.video.currentTime;
    if (this.hls.levels?.length) this.hls.startLoad(at);
    else this.hls.loadSource(address);
  }

  end() {
    this.hls?.destroy();
    this.hls = null;
    this.video.removeAttribute("src");
    this.video.load();
    this.current = -1;
    this.last = 0;
    this.quality.replaceChildren();
    this.quality.disabled = true;
    setText(this.shown, "");
  }

  /** The qualities that there are. */
  offer() {
    const { levels } = this.hls;
    const options = levels.map((level, at) => ({ at, text: `${level.height}p · ${rate(level.bitrate)}`, of: level.height }));
    options.sort((a, b) => b.of - a.of);
    this.quality.replaceChildren(
      el("option", { value: "-1", text: "Automatic" }),
      ...options.map(({ at, text }) => el("option", { value: String(at), text })),
    );
    this.quality.value = "-1";
    this.quality.disabled = false;
  }

  choose(level) {
    if (!this.hls) return;
    // At once: what is buffered of another quality is dropped.
    this.hls.currentLevel = level;
    this.say();
  }

  /** The next of the qualities, by key. */
  nextQuality() {
    if (this.quality.disabled) return;
    const { options } = this.quality;
    this.quality.selectedIndex = (this.quality.selectedIndex + 1) % options.length;
    this.choose(Number(this.quality.value));
  }

  say() {
    const level = this.hls?.levels?.[this.hls.currentLevel];
    setText(this.shown, level ? `${level.height}p is shown` : "");
  }

  draw() {
    this.items = this.events.map((event, at) =>
      el(
        "button",
        { type: "button", on: { click: () => this.go(at) } },
        el("span", { class: "num", text: clock(event.shown_ms) }),
        el("span", { text: told(event.event) }),
      ),
    );
    this.list.replaceChildren(...this.items.map((item) => el("li", {}, item)));
    this.follow();
  }

  /** Goes to an event, a little before it. */
  go(at) {
    const event = this.events[at];
    if (!event) return;
    this.video.currentTime = Math.max(0, event.shown_ms / 1000 - 2);
    this.video.play().catch(() => {});
  }

  /** To the next event, or the one before. */
  step(by) {
    const to = this.current + by;
    this.go(by < 0 ? Math.max(0, to) : Math.min(this.events.length - 1, to));
  }

  /** Shows what is played now, and notes what was watched. */
  follow() {
    const at = this.video.currentTime;
    const before = this.last;
    this.last = at;
    // The event that is next, or was just now.
    let current = this.events.findIndex((event) => at < event.shown_ms / 1000 + 4);
    if (current < 0) current = this.events.length - 1;
    if (current !== this.current || this.events.length === 0) {
      this.current = current;
      this.items.forEach((item, of) => setAttr(item, "aria-current", of === current ? "true" : null));
      const event = this.events[current];
      const place = event ? `${current + 1} of ${this.events.length} · ${told(event.event)}` : this.title;
      setText(this.now, place || "Nothing is played yet: search, and press Play all.");
      if (event && !this.video.paused) this.items[current].scrollIntoView({ block: "nearest" });
    }
    // Only what was passed by playing: a leap over an event is no look at it.
    if (this.video.seeking || at <= before) return;
    const passed = this.events.filter((event) => {
      const due = event.shown_ms / 1000 + WATCHED_AFTER;
      return !event.seen && before < due && due <= at;
    });
    if (passed.length === 0) return;
    for (const event of passed) event.seen = true;
    watched(passed)
      .then(() => this.on.watched(passed))
      .catch(() => {
        for (const event of passed) event.seen = false;
      });
  }
}
