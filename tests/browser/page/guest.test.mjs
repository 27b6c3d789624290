// A real guest: the rate of its tap is changed in the page while it sends, and what it sends follows. All
// of it runs in a network namespace of its own.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { Machine, read, until } from "./machine.mjs";

const BOOT = fileURLToPath(new URL("../../guests/boot.sh", import.meta.url));
const HOST = "10.77.0.1";
const TAP = "guest0";
const NAME = `page-${process.pid}`;

const why = () => {
  if (process.getuid() !== 0) return "making network namespaces needs root";
  for (const tool of ["ip", "unshare"]) {
    if (spawnSync(tool, ["-V"]).error) return `${tool} is not installed`;
  }
  return spawnSync("unshare", ["-n", "true"]).status === 0 ? "" : "no network namespace can be made";
};

const run = (line) => {
  const [program, ...args] = line.split(" ");
  const { status, stderr } = spawnSync(program, args, { encoding: "utf8" });
  assert.equal(status, 0, `${line}: ${stderr}`);
};

/** Boots a guest that sends to `port`: its process, or why it cannot be. */
async function boot(hypervisor, folder, port) {
  const words = ["guest.address=10.77.0.2/24", `guest.send=${HOST}:${port}`];
  const stdio = ["ignore", "pipe", "inherit"];
  // A group of its own: User Mode Linux is several processes.
  const child = spawn(BOOT, [hypervisor, NAME, folder, TAP, ...words], { stdio, detached: true });
  let said = "";
  child.stdout.on("data", (data) => (said += data));
  const ended = await Promise.race([once(child, "exit"), new Promise((done) => setTimeout(done, 1000))]);
  return ended?.[0] === 77 ? { said: said.trim() } : { child };
}

if (process.env.BONSAI_ROOM === undefined) {
  test("the_rate_of_a_real_guest_is_changed_in_the_page", async (t) => {
    const reason = why();
    if (reason) {
      t.skip(reason);
      return;
    }
    const env = { ...process.env, BONSAI_ROOM: "1" };
    delete env.NODE_TEST_CONTEXT;
    const line = 'ip link set lo up && exec "$0" --test --test-reporter=tap "$1"';
    const args = ["-n", "sh", "-c", line, process.execPath, fileURLToPath(import.meta.url)];
    const child = spawn("unshare", args, { env, stdio: ["ignore", "pipe", "pipe"] });
    let told = "";
    for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (told += data));
    const [code] = await once(child, "exit");
    for (const seen of told.matchAll(/# (seen .*)/g)) t.diagnostic(seen[1]);
    const skipped = /# SKIP (.*)/.exec(told);
    if (skipped) t.skip(skipped[1]);
    assert.equal(code, 0, told);
  });
} else {
  let machine;
  let guest;
  let folder;
  let server;
  let moved = 0;
  before(async () => {
    run(`ip tuntap add ${TAP} mode tap`);
    run(`ip addr add ${HOST}/24 dev ${TAP}`);
    run(`ip link set ${TAP} up`);
    server = net.createServer((socket) => {
      // One whose other end is killed stays open.
      socket.unref();
      socket.on("data", (data) => (moved += data.length)).on("error", () => {});
    });
    server.listen(0, HOST);
    await once(server, "listening");
    folder = await mkdtemp(path.join(tmpdir(), "bonsai-guest-"));
    guest = await boot("qemu", folder, server.address().port);
    if (!guest.child) guest = await boot("uml", folder, server.address().port);
    if (!guest.child) return;
    const console = () => readFile(path.join(folder, "console"), "utf8").catch(() => "");
    await until(() => moved > 0, "the guest sends", 180).catch(async (error) => {
      throw new Error(`${error.message}: ${await console()}`);
    });
    machine = await Machine.start({ config: `[links."vm:${NAME}"]\ntx = "6Mbit/s"\n` });
  });
  after(async () => {
    await machine?.stop();
    if (guest?.child) {
      try {
        process.kill(-guest.child.pid, "SIGKILL");
      } catch {
        // It has gone.
      }
    }
    server?.close().unref();
    if (folder) await rm(folder, { recursive: true, force: true });
  });

  test("the_rate_of_a_guest_is_changed_in_its_cell", async (t) => {
    if (!guest.child) {
      t.skip(guest.said);
      return;
    }
    const page = await machine.open({ hash: "/links" });
    const row = page.getByRole("row").filter({ has: page.getByRole("rowheader", { name: TAP, exact: true }) });
    await row.getByText("in force").waitFor();
    await row.getByText(new RegExp(`machine ${NAME} `)).waitFor();
    // What the guest sends is what its tap receives.
    const receives = async () => read(await row.getByRole("cell").nth(4).textContent());
    await until(async () => (await receives()) > 0.5e6, "it sends as much as it may", 60);
    await until(async () => (await receives()) < 0.85e6, "no more than its limit", 20);
    await row.getByRole("button", { name: new RegExp(`^Limit of what ${TAP} receives`) }).click();
    await page.getByRole("textbox", { name: new RegExp(`^Limit of what ${TAP} receives`) }).fill("2Mbit/s");
    const start = performance.now();
    await page.keyboard.press("Enter");
    await until(async () => (await receives()) < 0.3e6, "what it sends follows");
    t.diagnostic(`seen after ${Math.round(performance.now() - start)} ms`);
    const shown = await machine.ask("GET", `/v1/links/${encodeURIComponent(`vm:${NAME}`)}`);
    assert.deepEqual([shown.state, shown.swapped, shown.rx_limit], ["in-force", true, 250_000]);
    const [entry] = (await machine.ask("GET", "/v1/audit?limit=1")).entries;
    assert.deepEqual(entry.differences, [{ path: `links.vm:${NAME}.tx`, from: "6Mbit/s", to: "2Mbit/s" }]);
    const counted = moved;
    await until(() => moved > counted + 100_000, "its connection goes on", 60);
    assert.deepEqual(page.complaints, []);
    await page.context().close();
  });
}
