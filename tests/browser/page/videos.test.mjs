// The page of a library: real films, cut, searched and played by `bonsai serve`.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { AXE, BONSAI, chromium, until } from "./machine.mjs";

const EVENTS = {
  brann: `time,type,players,card,team,half,text
0:08,tackle,8,yellow,Brann,1,"A late sliding tackle, <b>from behind</b>"
0:20,goal,14,,Brann,1,A header after a corner
`,
  viking: `time,type,players,card,team,text
0:07,tackle,8;5,red,Viking,Another sliding tackle
0:22,goal,Tore André Flo,,Viking,From a free kick
`,
};

const why = () => (spawnSync("ffmpeg", ["-version"]).error ? "ffmpeg is not installed" : "");

let folder;
let browser;
let server;
let port = "0";

function run(program, args) {
  const { status, stderr } = spawnSync(program, args, { encoding: "utf8" });
  assert.equal(status, 0, `${program} ${args.join(" ")}: ${stderr}`);
}

async function start() {
  server = spawn(BONSAI, ["serve", path.join(folder, "library"), "--http", `:${port}`], { stdio: ["ignore", "pipe", "pipe"] });
  server.told = "";
  server.stderr.on("data", (data) => (server.told += data));
  const at = await until(() => /http:\/\/127\.0\.0\.1:(\d+)\//.exec(server.told), "the server listens");
  port = at[1];
}

async function stop(signal) {
  if (server.exitCode !== null || server.signalCode !== null) return;
  server.kill(signal);
  await once(server, "exit");
}

before(async () => {
  if (why()) return;
  folder = await mkdtemp(path.join(tmpdir(), "bonsai-videos-"));
  for (const [name, events] of Object.entries(EVENTS)) {
    const film = path.join(folder, `${name}.mp4`);
    const pictures = "testsrc2=size=320x180:rate=25";
    const sound = `sine=frequency=${name === "brann" ? 440 : 660}:sample_rate=48000`;
    run("ffmpeg", [
      ...["-v", "error", "-f", "lavfi", "-i", pictures, "-f", "lavfi", "-i", sound, "-t", "30"],
      ...["-c:v", "libx264", "-preset", "ultrafast", "-c:a", "aac", film],
    ]);
    await writeFile(path.join(folder, `${name}.csv`), events);
    const where = ["--library", path.join(folder, "library"), "--events", path.join(folder, `${name}.csv`)];
    run(BONSAI, ["davvi", "import", film, "--qualities", "180,90", "--title", `The ${name} match`, ...where]);
  }
  await start();
  browser = await chromium.launch({
    executablePath: process.env.BONSAI_CHROMIUM,
    args: process.getuid() === 0 ? ["--no-sandbox"] : [],
  });
});

after(async () => {
  await browser?.close().catch(() => {});
  if (server) await stop("SIGKILL");
  if (folder) await rm(folder, { recursive: true, force: true });
});

/** The page of a new visitor; what the browser complains about is in `page.complaints`. */
async function open({ hash = "", ...context } = {}) {
  const visitor = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...context });
  const page = await visitor.newPage();
  page.setDefaultTimeout(15_000);
  page.complaints = [];
  page.on("pageerror", (error) => page.complaints.push(String(error.stack)));
  page.on("console", (message) => {
    if (message.type() === "error" && /Content Security Policy|Refused to/.test(message.text()))
      page.complaints.push(message.text());
  });
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(`http://127.0.0.1:${port}/`) && !url.startsWith("blob:") && !url.startsWith("data:"))
      page.complaints.push(`it asks elsewhere: ${url}`);
  });
  await page.goto(`http://127.0.0.1:${port}/${hash}`);
  await page.locator("#videos li").first().waitFor();
  return page;
}

const asked = (page, of) => page.locator("#video").evaluate((video, name) => video[name], of);
const time = (page) => asked(page, "currentTime");
const found = (page, words) => page.locator("#results li .text", { hasText: words });
const seen = async () => (await (await fetch(`http://127.0.0.1:${port}/watched`)).json()).events;

function skips(t) {
  const reason = why();
  if (reason) t.skip(reason);
  return Boolean(reason);
}

test("a_search_becomes_a_playlist_that_plays_from_video_to_video", async (t) => {
  if (skips(t)) return;
  const page = await open();
  await page.getByText("Watch something: recommendations follow from it.").waitFor();
  await page.getByLabel("Words").fill("sliding tackle");
  await page.getByLabel("Player", { exact: true }).fill("8");
  await page.getByRole("button", { name: "Search" }).click();
  await page.getByText("2 events.", { exact: true }).waitFor();
  // What is in annotations is text.
  await found(page, "A late sliding tackle, <b>from behind</b>").waitFor();
  assert.equal(await page.locator("#results b").count(), 0);
  await page.getByRole("button", { name: "Play all" }).click();
  await until(async () => (await time(page)) > 0.5, "it plays");
  assert.equal(await asked(page, "paused"), false);
  const items = page.locator("#playlist button");
  assert.equal(await items.count(), 2);
  assert.equal(await items.nth(0).getAttribute("aria-current"), "true");
  assert.match(await page.locator("#now").textContent(), /^1 of 2 · tackle/);
  // Faster, so that the test does not take as long as the film.
  await page.locator("#video").evaluate((video) => (video.playbackRate = 4));
  // Six seconds on each side of an event in whole segments: the second video begins at 14 s at the latest.
  await until(async () => (await time(page)) > 16, "it goes on in the other video", 30);
  assert.equal(await items.nth(1).getAttribute("aria-current"), "true");
  const played = await page.locator("#video").evaluate((video) => ({
    pictures: video.getVideoPlaybackQuality().totalVideoFrames,
    sound: video.webkitAudioDecodedByteCount,
    error: video.error?.message ?? "",
  }));
  assert.ok(played.pictures > 100 && played.sound > 10_000 && played.error === "", JSON.stringify(played));
  // What was passed is noted, here and in the library, and others like it are recommended.
  await until(async () => (await seen()).length === 2, "both are noted", 30);
  assert.deepEqual(await seen(), [
    { video: "brann", number: 0 },
    { video: "viking", number: 0 },
  ]);
  await until(async () => (await page.locator('#results li[data-seen="true"]').count()) === 2, "both are marked");
  await until(async () => asked(page, "ended"), "it comes to its end", 40);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("qualities_are_shown_and_chosen", async (t) => {
  if (skips(t)) return;
  const page = await open();
  await page.locator("#videos li", { hasText: "The brann match" }).getByRole("button", { name: "Play" }).click();
  await until(async () => (await time(page)) > 0.2, "it plays");
  // On a busy machine a change may take longer than the video has left.
  await page.evaluate(() => (document.getElementById("video").loop = true));
  const quality = page.getByLabel("Quality", { exact: true });
  const names = await quality.locator("option").allTextContents();
  assert.equal(names.length, 3);
  assert.equal(names[0], "Automatic");
  assert.match(names[1], /^180p · [\d.]+ [kM]bit\/s$/);
  assert.match(names[2], /^90p · /);
  for (const [at, lines] of [
    [2, 90],
    [1, 180],
  ]) {
    await quality.selectOption({ index: at });
    await until(async () => (await asked(page, "videoHeight")) === lines, `${lines} lines are shown`);
    await page.getByText(`${lines}p is shown`).waitFor();
  }
  const before = await time(page);
  // Also where it begins anew.
  await until(async () => Math.abs((await time(page)) - before) > 0.5, "it plays on");
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("events_are_played_marked_and_recommended_one_by_one", async (t) => {
  if (skips(t)) return;
  const page = await open({ hash: "#type=goal" });
  // What was looked for is in the address.
  await page.getByText("2 events.", { exact: true }).waitFor();
  const goal = page.locator("#results li", { hasText: "From a free kick" });
  await goal.getByRole("button", { name: /^Mark watched/ }).click();
  await goal.getByRole("button", { name: "Watched" }).waitFor();
  const isSeen = ({ video, number }) => video === "viking" && number === 1;
  await until(async () => (await seen()).some(isSeen), "the server knows");
  const liked = page.locator("#liked li");
  // What was watched before has its own list until this one is there.
  await liked.locator(".about", { hasText: /because of .*type=goal/ }).first().waitFor();
  await page.getByRole("button", { name: "Play these" }).click();
  await until(async () => (await time(page)) > 0.2, "it plays");
  assert.equal(await page.locator("#playlist button").count(), await liked.count());
  await page.locator("#results li", { hasText: "A header" }).getByRole("button", { name: /^Play / }).click();
  await until(async () => (await page.locator("#playlist button").count()) === 1, "that one is played");
  await page.getByLabel("Words").fill('"not closed');
  await page.getByRole("button", { name: "Search" }).click();
  await page.getByText(/a quote is not closed/).waitFor();
  await page.getByLabel("Words").fill("offside");
  await page.getByRole("button", { name: "Search" }).click();
  await page.getByText("Nothing was found.").waitFor();
  await page.getByLabel("Words").fill("");
  await page.getByLabel("Type").fill("");
  await page.getByRole("button", { name: "Play all" }).click();
  await page.getByText(/^Say what to look for/).waitFor();
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("everything_is_done_by_keys", async (t) => {
  if (skips(t)) return;
  const page = await open();
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.className), "skip");
  await page.keyboard.press("/");
  await page.keyboard.type("sliding");
  await page.keyboard.press("Enter");
  await page.getByText("2 events.", { exact: true }).waitFor();
  await page.keyboard.press("Control+Enter");
  await until(async () => (await time(page)) > 0.2, "it plays");
  await page.locator("#results").focus();
  await page.keyboard.press("k");
  assert.equal(await asked(page, "paused"), true);
  await page.keyboard.press("n");
  await until(async () => (await time(page)) > 10, "it leaps to the next event");
  assert.equal(await asked(page, "paused"), false);
  await page.keyboard.press("q");
  assert.equal(await page.locator("#quality").evaluate((of) => of.selectedIndex), 1);
  await page.keyboard.press("m");
  assert.equal(await asked(page, "muted"), true);
  await page.keyboard.press("?");
  await page.getByRole("dialog").waitFor();
  await page.getByLabel("Use single letters").uncheck();
  await page.keyboard.press("Escape");
  await page.keyboard.press("m");
  assert.equal(await asked(page, "muted"), true, "single letters are switched off");
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("a_server_that_goes_away_is_told_of_and_found_again", async (t) => {
  if (skips(t)) return;
  const page = await open();
  await page.getByLabel("Words").fill("sliding");
  await page.getByRole("button", { name: "Play all" }).click();
  await until(async () => (await time(page)) > 0.2, "it plays");
  await stop("SIGKILL");
  const banner = page.locator("#banner");
  await page.getByRole("button", { name: "Search" }).click();
  await until(async () => banner.isVisible(), "it is told of");
  assert.match(await banner.textContent(), /The server does not answer/);
  // What was loaded plays on.
  const before = await time(page);
  await until(async () => (await time(page)) > before + 0.5, "it plays on");
  await start();
  await banner.getByRole("button", { name: "Try again" }).click();
  await until(async () => banner.isHidden(), "it is found again");
  await page.getByRole("button", { name: "Search" }).click();
  await page.getByText("2 events.", { exact: true }).waitFor();
  await page.context().close();
});

for (const scheme of ["light", "dark"]) {
  test(`no_serious_finding_of_axe_in_${scheme}_and_a_phone_shows_all_of_it`, async (t) => {
    if (skips(t)) return;
    const page = await open({ colorScheme: scheme, viewport: { width: 360, height: 740 }, hash: "#q=sliding" });
    await page.getByText("2 events.", { exact: true }).waitFor();
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), scheme);
    await page.evaluate(await readFile(AXE, "utf8"));
    const serious = () =>
      page.evaluate(async () => {
        const { violations } = await window.axe.run(document, { resultTypes: ["violations"] });
        return violations
          .filter(({ impact }) => impact === "serious" || impact === "critical")
          .map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target.join(" ")).join(", ")}`);
      });
    assert.deepEqual(await serious(), []);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= 360, `${wide} pixels`);
    await page.getByRole("button", { name: "Keys" }).click();
    await page.getByRole("dialog").waitFor();
    assert.deepEqual(await serious(), [], "dialog");
    assert.deepEqual(page.complaints, []);
    await page.context().close();
  });
}
