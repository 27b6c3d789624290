// The page of one film or live stream: HLS that the server makes of it, or the file itself where the browser plays no HLS.

import Hls from "../vendor/hls.min.mjs";
import { el, setText } from "./dom.js";

const byId = (id) => document.getElementById(id);
const video = byId("video");
const asked = new URLSearchParams(location.search);
const film = asked.get("film") ?? "";
const live = asked.get("live") ?? "";

/** A live stream that is away is asked for again after so long, ms. */
const AGAIN = 5000;

/** A path as an address: each of its parts alone, as slashes stay. */
const address = (path) => path.split("/").map(encodeURIComponent).join("/");

function say(text, isBad = false) {
  setText(byId("said"), text);
  byId("said").classList.toggle("bad", isBad);
}

/** Plays the file as it is, with ranges. */
function playFile(why) {
  video.src = `../${address(film)}`;
  video.addEventListener("error", () => say(why || "This browser cannot play the film.", true), { once: true });
}

/** Offers the sound tracks where there are several. */
function offerSounds(hls) {
  const tracks = hls.audioTracks;
  byId("sounds").hidden = tracks.length < 2;
  byId("sound").replaceChildren(...tracks.map(({ name }, at) => el("option", { value: String(at), text: name })));
  byId("sound").value = String(Math.max(hls.audioTrack, 0));
}

function start(source) {
  // Workers would come from an object of the page, which its policy does not allow.
  const hls = new Hls({ enableWorker: false, backBufferLength: 60 });
  let recoveries = 0;
  hls.on(Hls.Events.AUDIO_TRACKS_UPDATED, () => offerSounds(hls));
  hls.on(Hls.Events.FRAG_LOADED, () => say(""));
  hls.on(Hls.Events.ERROR, (_, error) => {
    const status = error.response?.code;
    if (error.type === Hls.ErrorTypes.NETWORK_ERROR && !status) say("The server does not answer. What was loaded plays on.", true);
    if (!error.fatal) return;
    if (error.type === Hls.ErrorTypes.MEDIA_ERROR && recoveries < 2) {
      recoveries += 1;
      hls.recoverMediaError();
    } else if (live) {
      say("The live stream is away: asking again.", true);
      hls.destroy();
      setTimeout(() => start(source), AGAIN);
    } else if (error.type === Hls.ErrorTypes.NETWORK_ERROR && !status) {
      setTimeout(() => (hls.levels?.length ? hls.startLoad(video.currentTime) : hls.loadSource(source)), 3000);
    } else {
      hls.destroy();
      playFile(status ? `It cannot be loaded: the server said ${status}.` : `This browser cannot play it: ${error.details}.`);
    }
  });
  byId("sound").onchange = () => {
    hls.audioTrack = Number(byId("sound").value);
  };
  hls.attachMedia(video);
  hls.loadSource(source);
}

const name = live || film.split("/").at(-1);
if (name) {
  document.title = name;
  setText(byId("title"), name);
  byId("file").hidden = Boolean(live);
  byId("file").href = `../${address(film)}`;
  const source = live ? `live/${encodeURIComponent(live)}/master.m3u8` : `hls/${address(film)}/master.m3u8`;
  if (Hls.isSupported()) start(source);
  else if (video.canPlayType("application/vnd.apple.mpegurl")) video.src = source;
  else if (live) say("This browser plays no streams (no Media Source Extensions).", true);
  else playFile();
} else {
  byId("file").hidden = true;
  say("The address names no film.", true);
}
