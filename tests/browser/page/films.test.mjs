// Films of a folder in the browser: their list, and the page that plays one as HLS cut from its file.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { AXE, BONSAI, chromium, until } from "./machine.mjs";

const why = () => (spawnSync("ffmpeg", ["-version"]).error ? "ffmpeg is not installed" : "");

/** A name that is markup, an address with a query, and no ASCII. */
const NAME = "deep/a <b>&?#ø.mp4";

let folder;
let browser;
let server;
let source;
let origin;

before(async () => {
  if (why()) return;
  folder = await mkdtemp(path.join(tmpdir(), "bonsai-films-"));
  await mkdir(path.join(folder, "deep"));
  const pictures = "testsrc2=size=320x180:rate=25";
  const sounds = ["sine=440:sample_rate=48000", "sine=880:sample_rate=48000"].flatMap((of) => ["-f", "lavfi", "-i", of]);
  const { status, stderr } = spawnSync(
    "ffmpeg",
    [
      ...["-v", "error", "-f", "lavfi", "-i", pictures, ...sounds, "-map", "0", "-map", "1", "-map", "2", "-t", "30"],
      ...["-metadata:s:a:0", "language=eng", "-metadata:s:a:1", "language=nor"],
      ...["-c:v", "libx264", "-preset", "ultrafast", "-bf", "2", "-g", "50", "-c:a", "aac", path.join(folder, NAME)],
    ],
    { encoding: "utf8" },
  );
  assert.equal(status, 0, stderr);
  const camera = ["-c:v", "libx264", "-preset", "ultrafast", "-bf", "0", "-g", "25", "-c:a", "aac"];
  const made = spawnSync("ffmpeg", [
    ...["-v", "error", "-f", "lavfi", "-i", pictures, "-f", "lavfi", "-i", "sine=440:sample_rate=48000", "-t", "90"],
    ...camera,
    path.join(folder, "deep/camera.mp4"),
  ]);
  assert.equal(made.status, 0);
  await writeFile(path.join(folder, "deep/a <b>&?#ø.en.srt"), "1\n00:00:00,000 --> 00:00:20,000\nSaid <i>so</i>\n");
  const serve = (...args) => {
    const server = spawn(BONSAI, ["serve", folder, ...args], { stdio: ["ignore", "pipe", "pipe"] });
    server.told = "";
    server.stderr.on("data", (data) => (server.told += data));
    return server;
  };
  const told = (of, pattern) => until(() => pattern.exec(of.told)?.[0], "the server listens");
  source = serve("--rtsp", ":0");
  const rtsp = await told(source, /rtsp:\/\/127\.0\.0\.1:\d+\//);
  server = serve("--http", ":0", "--live", `cam=${rtsp}${encodeURIComponent(NAME.split("/")[0])}/camera.mp4`);
  origin = await told(server, /http:\/\/127\.0\.0\.1:\d+\//);
  browser = await chromium.launch({
    executablePath: process.env.BONSAI_CHROMIUM,
    args: process.getuid() === 0 ? ["--no-sandbox"] : [],
  });
});

after(async () => {
  await browser?.close().catch(() => {});
  for (const one of [server, source]) {
    if (!one || one.exitCode !== null) continue;
    one.kill("SIGKILL");
    await once(one, "exit");
  }
  if (folder) await rm(folder, { recursive: true, force: true });
});

async function open(context = {}) {
  const visitor = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...context });
  const page = await visitor.newPage();
  page.setDefaultTimeout(15_000);
  page.complaints = [];
  page.on("pageerror", (error) => page.complaints.push(String(error)));
  page.on("console", (said) => said.type() === "error" && page.complaints.push(said.text()));
  return page;
}

const time = (page) => page.locator("#video").evaluate((video) => video.currentTime);

test("a film is chosen from the list and plays, goes on where it is told to, and has its sounds and subtitles", async (t) => {
  if (why()) return t.skip(why());
  const page = await open();
  await page.goto(origin);
  const picture = page.getByRole("row", { name: NAME }).locator("video[data-film]");
  await until(() => picture.evaluate((video) => video.videoWidth === 320 && video.currentTime > 4), "the picture of the film");
  await page.getByRole("link", { name: NAME }).click();
  await page.waitForFunction(() => document.getElementById("video").videoWidth === 320);
  assert.equal(await page.locator("#title").textContent(), NAME.split("/").at(-1));
  const length = await page.locator("#video").evaluate((video) => video.duration);
  assert.ok(Math.abs(length - 30) < 0.3, `${length}`);
  await page.locator("#video").evaluate((video) => {
    video.muted = true;
    return video.play();
  });
  await until(async () => (await time(page)) > 0.5, "it plays");
  // Words are those of the file, at their time.
  const words = () => page.locator("#video").evaluate((video) => [...(video.textTracks[0]?.cues ?? [])].map((cue) => cue.text));
  await page.locator("#video").evaluate((video) => (video.textTracks[0].mode = "showing"));
  await until(async () => (await words()).includes("Said <i>so</i>"), "the subtitles");
  assert.deepEqual(await page.locator("#sound option").allTextContents(), ["eng (1)", "nor (2)"]);
  await page.locator("#sound").selectOption("1");
  await page.locator("#video").evaluate((video) => (video.currentTime = 22));
  await until(async () => (await time(page)) > 22.5, "it plays on from there");
  assert.equal(await page.locator("#said").textContent(), "");
  await page.evaluate(readFileSync(AXE, "utf8"));
  const { violations } = await page.evaluate(() => window.axe.run(document));
  assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes[0].html}`), []);
  assert.deepEqual(page.complaints, []);
});

test("a film that is not there, or is none, is said to be", async (t) => {
  if (why()) return t.skip(why());
  await writeFile(path.join(folder, "none.mp4"), "this is no film");
  const page = await open();
  await page.goto(`${origin}-/watch.html?film=none.mp4`);
  await until(async () => (await page.locator("#said").textContent()).includes("415"), "the reason");
  await page.goto(`${origin}-/watch.html?film=gone.mp4`);
  await until(async () => (await page.locator("#said").textContent()).includes("404"), "the reason");
  await page.goto(`${origin}-/watch.html`);
  await until(async () => (await page.locator("#said").textContent()) === "The address names no film.", "the reason");
});

test("a live stream plays, close behind its source", async (t) => {
  if (why()) return t.skip(why());
  const page = await open();
  await page.goto(`${origin}-/watch.html?live=cam`);
  await page.waitForFunction(() => document.getElementById("video").videoWidth === 320);
  await page.locator("#video").evaluate((video) => {
    video.muted = true;
    return video.play();
  });
  const from = await time(page);
  await until(async () => (await time(page)) > from + 3, "it plays on");
  const behind = await page.locator("#video").evaluate((video) => video.seekable.end(video.seekable.length - 1) - video.currentTime);
  assert.ok(behind < 15, `${behind} s`);
  assert.equal(await page.locator("#file").isVisible(), false);
  assert.deepEqual(page.complaints, []);
});

test("the list fits a phone", async (t) => {
  if (why()) return t.skip(why());
  const page = await open({ viewport: { width: 360, height: 640 } });
  await page.goto(`${origin}clips.html`);
  const { inner, outer } = await page.evaluate(() => ({ inner: document.documentElement.scrollWidth, outer: innerWidth }));
  assert.ok(inner <= outer, `${inner} > ${outer}`);
});
