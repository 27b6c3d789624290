// A service that is no `bonsai run`: an interface with real traffic, seen and limited by the page. All
// of it runs in a network namespace of its own: nothing of the machine's is touched.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { Machine, read, until } from "./machine.mjs";

/** Sends 40 Mbit/s out of an interface, whatever its queue drops. */
const SENDER = `
import socket, sys, time
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind((sys.argv[1], 0x88b5))
frame = b"\\xff" * 6 + b"\\x02" * 6 + b"\\x88\\xb5" + bytes(1386)
due = time.monotonic()
while True:
    try:
        out.send(frame, socket.MSG_DONTWAIT)
    except OSError:
        pass
    due = max(due + len(frame) / 5e6, time.monotonic() - 0.05)
    time.sleep(max(0, due - time.monotonic()))
`;

const CONFIG = `
[services.guest]
target = "v1"
send = { max = "16Mbit/s" }
[services.away]
target = "container:nobody"
`;

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

if (process.env.BONSAI_ROOM === undefined) {
  test("services_outside_in_a_namespace_of_their_own", async (t) => {
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
    assert.equal(code, 0, told);
  });
} else {
  let machine;
  let sender;
  before(async () => {
    // The guest is behind v1, and sends by e1.
    run("ip link add v1 type veth peer name e1");
    run("ip link set v1 up");
    run("ip link set e1 up");
    sender = spawn("python3", ["-c", SENDER, "e1"], { stdio: "ignore" });
    machine = await Machine.start({ config: CONFIG });
  });
  after(async () => {
    sender?.kill();
    await machine?.stop();
  });

  const row = (page, id) => page.locator(`tr[data-id="${id}"]`);
  const got = async (page) => read(await row(page, "guest").locator(".col-got").textContent());

  test("the_limit_of_an_interface_that_is_a_service_is_changed_in_its_row", async (t) => {
    const page = await machine.open({ hash: "/" });
    await page.click("#tab-send");
    await row(page, "guest").getByText("v1").waitFor();
    await row(page, "away").getByText("not running").waitFor();
    assert.match(await row(page, "away").getByText("not running").getAttribute("title"), /nobody/);
    // A sender that is short of a processor sends less than it could.
    const atLimit = (rate) => rate > 0.8e6 && rate < 2.3e6;
    await until(async () => atLimit(await got(page)), "what it sends is at its limit");
    await row(page, "guest").getByRole("button", { name: /^Limit of guest/ }).click();
    const input = row(page, "guest").getByRole("textbox");
    await input.fill("4Mbit/s");
    const start = performance.now();
    await page.keyboard.press("Enter");
    await until(async () => (await got(page)) < 0.6e6, "what it sends follows");
    t.diagnostic(`seen after ${Math.round(performance.now() - start)} ms`);
    await until(async () => (await got(page)) > 0.4e6, "it sends as much as it may");
    const [entry] = (await machine.ask("GET", "/v1/audit?limit=1")).entries;
    assert.deepEqual(entry.differences, [{ path: "services.guest.send.max", from: "16Mbit/s", to: "4Mbit/s" }]);
    assert.deepEqual(page.complaints, []);
    await page.context().close();
  });

  test("its_view_says_what_it_is_and_what_it_has_not", async () => {
    const page = await machine.open({ hash: "/service/guest" });
    await page.getByText(/^v1 · is there/).waitFor();
    await page.getByRole("tab", { name: /^Send/ }).waitFor();
    assert.equal(await page.getByRole("tab", { name: /^Read/ }).isVisible(), false);
    const calls = await machine.ask("PATCH", "/v1/services/guest", { calls: { max: "5/s" } }).catch(String);
    assert.match(calls, /422.*calls are seen inside programs only/);
    await page.getByRole("button", { name: "No limit" }).click();
    await until(async () => (await machine.use("guest", "send")).got > 4e6, "nothing holds it back");
    assert.deepEqual(page.complaints, []);
    await page.context().close();
  });
}
