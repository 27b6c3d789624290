// The page of one film: HLS that the server cuts from the file, or the file itself where the browser plays no HLS.

import Hls from "../vendor/hls.min.mjs";
import { el, setText } from "./dom.js";

const byId = (id) => document.getElementById(id);
const video = byId("video");
const film = new URLSearchParams(location.search).get("film") ?? "";

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
    } else if (error.type === Hls.ErrorTypes.NETWORK_ERROR && !status) {
      setTimeout(() => (hls.levels?.length ? hls.startLoad(video.currentTime) : hls.loadSource(source)), 3000);
    } else {
      hls.destroy();
      playFile(status ? `It cannot be loaded: the server said ${status}.` : `This browser cannot play it: ${error.details}.`);
    }
  });
  byId("sound").addEventListener("change", () => {
    hls.audioTrack = Number(byId("sound").value);
  });
  hls.attachMedia(video);
  hls.loadSource(source);
}

const name = film.split("/").at(-1);
if (name) {
  document.title = name;
  setText(byId("title"), name);
  byId("file").href = `../${address(film)}`;
  const source = `hls/${address(film)}/master.m3u8`;
  if (Hls.isSupported()) start(source);
  else if (video.canPlayType("application/vnd.apple.mpegurl")) video.src = source;
  else playFile();
} else {
  byId("file").hidden = true;
  say("The address names no film.", true);
}
