// The page of a library: search, results, the personal playlist, recommendations.

import { get, named, onReach, reached, watched } from "./api.js";
import { el, setText } from "./dom.js";
import { keys } from "./keys.js";
import { Player } from "./player.js";
import { nextTheme, theme } from "./theme.js";
import { clock, others, rate, told } from "./words.js";

const FIELDS = ["player", "type", "card", "team"];
const byId = (id) => document.getElementById(id);
const form = byId("search");
const said = byId("said");
const banner = byId("banner");

/** Titles of videos by name, and what was watched, as `video:number`. */
const titles = new Map();
const seen = new Set();
const keyOf = ({ video, number }) => `${video}:${number}`;

// What is said

function say(text, isBad = false) {
  setText(said, text);
  said.classList.toggle("bad", isBad);
}

function announce(text) {
  setText(byId("live"), text);
}

// The server goes, and comes back

let retry = null;
let timer = 0;

function lost(again) {
  if (again) retry = again;
  if (!banner.hidden) return;
  banner.replaceChildren(
    el("span", { text: "The server does not answer. What was loaded plays on." }),
    el("button", { type: "button", class: "small", text: "Try again", on: { click: probe } }),
  );
  banner.hidden = false;
  timer = setInterval(probe, 3000);
}

function back() {
  if (banner.hidden) return;
  clearInterval(timer);
  banner.hidden = true;
  banner.replaceChildren();
  announce("The server answers again.");
  const again = retry;
  retry = null;
  again?.();
  library();
}

/** True while the server is asked whether it is there again. */
let probing = false;

/**
 * Asks whether it is there again; `onReach` hears the answer. One question at a time, which is given up: a server that takes connections
 * and does not answer would hold all that a browser makes to one host, and the questions after it would not be sent.
 */
async function probe() {
  if (probing) return;
  probing = true;
  await get("videos", {}, AbortSignal.timeout(10_000)).catch(() => {});
  probing = false;
}

onReach((is) => (is ? back() : lost(null)));

const player = new Player({
  watched(events) {
    for (const event of events) mark(event);
    recommend();
  },
  lost(again) {
    retry = again;
    reached(false);
  },
  back: () => reached(true),
  failed: (text) => say(text, true),
});

// Hits

function mark(event) {
  const key = keyOf(event);
  seen.add(key);
  for (const item of document.querySelectorAll("li[data-key]")) {
    if (item.dataset.key === key) showSeen(item);
  }
}

function showSeen(item) {
  item.dataset.seen = "true";
  const button = item.querySelector(".mark");
  if (!button) return;
  setText(button, "Watched");
  button.removeAttribute("aria-label");
  button.disabled = true;
}

function hitItem(hit, because = []) {
  const text = told(hit.event);
  const title = titles.get(hit.video) ?? hit.video;
  const item = el(
    "li",
    { data: { key: keyOf(hit) } },
    el("span", { class: "text", text }),
    el(
      "span",
      { class: "acts" },
      el("button", {
        type: "button",
        class: "small",
        text: "Play",
        "aria-label": `Play ${text}`,
        on: { click: () => playEvents([hit]) },
      }),
      el("button", {
        type: "button",
        class: "small quiet mark",
        text: "Mark watched",
        "aria-label": `Mark watched: ${text}`,
        on: { click: () => note(hit) },
      }),
    ),
    el("span", {
      class: "about",
      text: [`${title}, ${clock(hit.event.at_ms)}`, ...others(hit.event), ...because].join(" · "),
    }),
  );
  if (seen.has(keyOf(hit))) showSeen(item);
  return item;
}

async function note(hit) {
  try {
    await watched([hit]);
    mark(hit);
    recommend();
  } catch (error) {
    say(error.message, true);
  }
}

// Searches

const asked = () => Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value).trim()]));
const isEmpty = (query) => !query.q && FIELDS.every((name) => !query[name]);

let searching = null;

/** Shows what is found; whether something was. */
async function search() {
  const { length, ...query } = asked();
  byId("results").replaceChildren();
  if (isEmpty(query)) {
    say("Say what to look for: words, or what a field has to be.", true);
    byId("words").focus();
    return false;
  }
  searching?.abort();
  searching = new AbortController();
  const kept = new URLSearchParams(Object.entries({ ...query, length }).filter(([, value]) => value));
  window.history.replaceState(null, "", `#${kept}`);
  try {
    const found = await get("search", { ...query, most: "50" }, searching.signal);
    byId("results").replaceChildren(...found.hits.map((hit) => hitItem(hit)));
    const count = found.total === 1 ? "1 event" : `${found.total} events`;
    const shown = found.hits.length < found.total ? `, the best ${found.hits.length} are shown` : "";
    say([found.total === 0 ? "Nothing was found." : `${count}${shown}.`, ...found.problems].join(" "));
    return found.total > 0;
  } catch (error) {
    if (error.name !== "AbortError") say(error.message, true);
    return false;
  }
}

// Playing

async function playOf(query) {
  try {
    const playlist = await get("personal/playlist.json", query);
    const clips = playlist.clips.length === 1 ? "1 clip" : `${playlist.clips.length} clips`;
    announce(`A playlist of ${clips}, ${clock(playlist.length_ms)}.`);
    await player.play(playlist);
  } catch (error) {
    say(error.message, true);
  }
}

const playEvents = (events) => playOf({ events: named(events), length: "24h" });

async function playAll() {
  const query = asked();
  if (await search()) await playOf(query);
}

// The library

const UNWATCHED = "Watch something: recommendations follow from it.";

async function recommend() {
  const list = byId("liked");
  try {
    const { hits, watched: count } = await get("recommended", { most: "10" });
    list.replaceChildren(...hits.map((hit) => hitItem(hit, [`because of ${hit.because.join(", ")}`])));
    const none = count === 0 ? UNWATCHED : "Nothing has anything in common with what was watched.";
    setText(byId("liked-said"), hits.length === 0 ? none : "");
    byId("play-liked").hidden = hits.length === 0;
    byId("play-liked").onclick = () => playEvents(hits);
  } catch (error) {
    list.replaceChildren();
    byId("play-liked").hidden = true;
    setText(byId("liked-said"), error.status === 400 ? UNWATCHED : error.message);
  }
}

function videoItem(video) {
  const best = video.qualities[0];
  const qualities = video.qualities.map(({ height }) => `${height}p`).join(" ");
  return el(
    "li",
    {},
    el("span", { class: "text", text: video.title }),
    el(
      "span",
      { class: "acts" },
      el("button", {
        type: "button",
        class: "small",
        text: "Play",
        "aria-label": `Play ${video.title}`,
        on: { click: () => player.play({ hls: video.hls, title: video.title }) },
      }),
    ),
    el("span", {
      class: "about",
      text: `${clock(video.length_ms)} · ${video.events} events · ${qualities} · ${best ? rate(best.mean_bits) : ""}`,
    }),
  );
}

async function library() {
  try {
    const { videos, problems, has_clips: hasClips } = await get("videos");
    byId("clips").hidden = !hasClips;
    for (const { name, title } of videos) titles.set(name, title);
    byId("videos").replaceChildren(...videos.map(videoItem));
    if (problems.length > 0) say(problems.join(" "), true);
    const { fields } = await get("fields");
    for (const name of FIELDS) {
      byId(`of-${name}`).replaceChildren(...(fields[name] ?? []).map((value) => el("option", { value })));
    }
    for (const event of (await get("watched")).events) seen.add(keyOf(event));
    await recommend();
  } catch (error) {
    if (error.status !== 0) say(error.message, true);
  }
}

// What is pressed

function showTheme() {
  setText(byId("theme"), `Colours: ${theme()}`);
}

function changeTheme() {
  nextTheme();
  showTheme();
}

const { video } = player;
const help = keys({
  search: () => byId("words").select(),
  pause: () => (video.paused ? video.play().catch(() => {}) : video.pause()),
  leap: (by) => (video.currentTime = Math.max(0, video.currentTime + by)),
  step: (by) => player.step(by),
  quality: () => player.nextQuality(),
  mute: () => (video.muted = !video.muted),
  full: () => (document.fullscreenElement ? document.exitFullscreen() : video.requestFullscreen?.()),
  theme: changeTheme,
});
byId("help").addEventListener("click", help);
byId("theme").addEventListener("click", changeTheme);
byId("play").addEventListener("click", playAll);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  search();
});
form.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !event.ctrlKey) return;
  event.preventDefault();
  playAll();
});

showTheme();
const start = new URLSearchParams(window.location.hash.slice(1));
for (const [name, value] of start) {
  const input = form.elements.namedItem(name);
  if (input instanceof HTMLInputElement) input.value = value;
}
await library();
if (!isEmpty(asked())) search();
