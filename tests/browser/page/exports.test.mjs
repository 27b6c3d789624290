// Exports of a block server: what is read and saved moves, what two images share is shown, and an export leads to
// its service. The client is qemu-io.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import path from "node:path";
import { after, before, test } from "node:test";
import { AXE, goByKeys, Machine, until } from "./machine.mjs";

const why = spawnSync("qemu-io", ["--version"]).error ? "qemu-io is not installed" : "";
const BLOCK = 4096;

let machine;
let socket;
before(async () => {
  if (why) return;
  machine = await Machine.start({});
  const image = randomBytes(64 * BLOCK);
  const images = { web: image, dev: Buffer.concat([image.subarray(0, 48 * BLOCK), randomBytes(16 * BLOCK)]) };
  const files = [];
  for (const [name, bytes] of Object.entries(images)) {
    files.push(path.join(machine.folder, `${name}.raw`));
    await writeFile(files.at(-1), bytes);
  }
  socket = path.join(machine.folder, "disks.sock");
  const server = machine.spawn(["drive", "serve", ...files, "--group", "lab", "--scan", "--socket", socket]);
  await until(() => server.told.includes("dev.raw is served at"), "it serves");
});
after(async () => {
  await machine?.stop();
});

const read = (name, commands) => {
  const uri = `nbd+unix:///${name}?socket=${socket}`;
  const { status, stdout, stderr } = spawnSync("qemu-io", ["-r", "-f", "raw", ...commands.flatMap((one) => ["-c", one]), uri], {
    encoding: "utf8",
  });
  assert.equal(status, 0, stdout + stderr);
};

const row = (page, name) => page.getByRole("row").filter({ has: page.getByRole("rowheader", { name, exact: true }) });

test("what_exports_read_and_share_is_shown", { skip: why || false }, async () => {
  const page = await machine.open({ hash: "/" });
  await page.getByRole("link", { name: "Exports" }).waitFor();
  // By the keyboard alone.
  await goByKeys(page, "e", "Exports");
  const exports = page.getByRole("table", { name: /^Exports of block servers/ });
  const web = exports.getByRole("row").filter({ has: page.getByRole("rowheader", { name: "web", exact: true }) });
  await web.getByText("lab", { exact: true }).waitFor();
  // 48 blocks are in both; each is 4 KiB.
  await page.getByRole("heading", { name: "Group lab" }).waitFor();
  await page.getByText(/^524 kB known, 328 kB different\. /).waitFor();
  const matrix = page.getByRole("table", { name: /^Group lab/ });
  const shares = matrix.getByRole("row").filter({ has: page.getByRole("rowheader", { name: "web", exact: true }) });
  assert.deepEqual(await shares.getByRole("cell").allTextContents(), ["0 B", "197 kB", "262 kB"]);
  // What is read is seen within two looks.
  const before = (await machine.ask("GET", "/v1/exports")).exports.find((of) => of.name === "web").reads;
  await until(async () => {
    read("web", ["read 0 256k"]);
    return (await web.getByRole("cell").nth(1).textContent()).match(/[1-9].* [kMG]?B\/s/);
  }, "its reads are shown");
  const told = (await machine.ask("GET", "/v1/exports")).exports.find((of) => of.name === "web");
  assert.ok(told.reads > before, `${told.reads} reads`);
  assert.deepEqual(page.complaints, []);
  await web.getByRole("link", { name: "web" }).click();
  await page.getByRole("heading", { name: /^web/ }).waitFor();
  await page.context().close();
});

test("the_view_of_exports_is_accessible_and_fits_a_phone", { skip: why || false }, async () => {
  const page = await machine.open({ hash: "/exports", token: machine.reader });
  await row(page, "dev").first().waitFor();
  await page.getByRole("heading", { name: "Group lab" }).waitFor();
  await page.evaluate(readFileSync(AXE, "utf8"));
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const grave = found.violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  assert.deepEqual(
    grave.map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target.join(" ")).join(", ")}`),
    [],
  );
  await page.setViewportSize({ width: 360, height: 740 });
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(wide <= 360, `${wide} pixels wide`);
  await page.context().close();
});

test("a_server_that_hangs_is_named", { skip: why || false }, async () => {
  const [{ server }] = (await machine.ask("GET", "/v1/exports")).exports;
  const page = await machine.open({ hash: "/exports" });
  await row(page, "dev").first().waitFor();
  process.kill(server, "SIGSTOP");
  try {
    await page.getByText(`the block server ${server} of`).waitFor();
    await page.getByText("does not answer").first().waitFor();
  } finally {
    process.kill(server, "SIGCONT");
  }
  await row(page, "dev").first().waitFor();
  await page.context().close();
});
