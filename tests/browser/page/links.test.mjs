// Interfaces: the rate of a running one is changed, and what moves through it follows. All of it runs
// in a network namespace of its own: nothing of the machine's is touched.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { AXE, cutCells, goByKeys, Machine, PHONE, read, until } from "./machine.mjs";

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
  test("interfaces_in_a_namespace_of_their_own", async (t) => {
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
    run("ip link add v1 type veth peer name e1");
    run("ip link set v1 up");
    run("ip link set e1 up");
    sender = spawn("python3", ["-c", SENDER, "v1"], { stdio: "ignore" });
    machine = await Machine.start({ config: '[links.v1]\ntx = "16Mbit/s"\n[links.later]\ntx = "1Mbit/s"\n' });
  });
  after(async () => {
    sender?.kill();
    await machine?.stop();
  });

  const row = (page, name) =>
    page.getByRole("row").filter({ has: page.getByRole("rowheader", { name, exact: true }) });
  const sends = async (page) => read(await row(page, "v1").getByRole("cell").nth(1).textContent());

  test("the_rate_of_a_running_interface_is_changed_in_its_cell", async (t) => {
    const page = await machine.open({ hash: "/" });
    // By the keyboard alone.
    await page.getByRole("link", { name: "Interfaces" }).waitFor();
    await goByKeys(page, "i", "Interfaces");
    await row(page, "v1").getByText("in force").waitFor();
    await row(page, "later").getByText("waiting", { exact: true }).waitFor();
    await until(async () => Math.abs((await sends(page)) - 2e6) < 0.3e6, "what it sends is at its limit");
    await row(page, "v1").getByRole("button", { name: /^Limit of what v1 sends/ }).focus();
    await page.keyboard.press("Enter");
    const input = page.getByRole("textbox", { name: /^Limit of what v1 sends/ });
    await input.fill("5/s");
    await page.keyboard.press("Enter");
    await page.getByText(/counts calls, and this is about bytes/).first().waitFor();
    await input.fill("4Mbit/s");
    const start = performance.now();
    await page.keyboard.press("Enter");
    await until(async () => (await sends(page)) < 0.6e6, "what it sends follows");
    t.diagnostic(`seen after ${Math.round(performance.now() - start)} ms`);
    await until(async () => (await sends(page)) > 0.4e6, "it sends as much as it may");
    const shown = await machine.ask("GET", "/v1/links/v1");
    assert.deepEqual([shown.state, shown.tx_limit], ["in-force", 500_000]);
    const [entry] = (await machine.ask("GET", "/v1/audit?limit=1")).entries;
    assert.deepEqual(entry.differences, [{ path: "links.v1.tx", from: "16Mbit/s", to: "4Mbit/s" }]);
    // Back again, by the page.
    await page.getByRole("button", { name: "Take the limits of v1 away" }).click();
    await row(page, "v1").getByText("not limited").waitFor();
    await until(async () => (await sends(page)) > 4e6, "nothing holds it back");
    assert.deepEqual(page.complaints, []);
    await page.context().close();
  });

  test("a_limit_of_an_interface_that_others_changed_is_not_overwritten", async () => {
    await machine.ask("PATCH", "/v1/links/later", { tx: "2Mbit/s" });
    const page = await machine.open({ hash: "/links" });
    const cell = page.getByRole("button", { name: /^Limit of what later sends/ });
    await until(async () => /2 ?Mbit/.test(await cell.textContent()), "the limit is shown");
    await cell.click();
    const input = page.getByRole("textbox", { name: /^Limit of what later sends/ });
    await input.fill("3Mbit/s");
    await machine.ask("PATCH", "/v1/links/later", { tx: "5Mbit/s" });
    await page.keyboard.press("Enter");
    const asked = page.locator("dialog");
    await asked.waitFor();
    assert.match(await asked.textContent(), /changed it at.*5 ?Mbit\/s/s);
    assert.equal((await machine.ask("GET", "/v1/links/later")).settings.tx, "5Mbit/s");
    await page.getByRole("button", { name: "Make my change anyway" }).click();
    await until(async () => (await machine.ask("GET", "/v1/links/later")).settings.tx === "3Mbit/s", "it is made");
    await page.context().close();
  });

  test("on_a_phone_all_of_an_interface_is_seen", async () => {
    const page = await machine.open({ hash: "/links", ...PHONE });
    await row(page, "later").waitFor();
    for (const name of ["v1", "later"]) assert.deepEqual(await cutCells(row(page, name)), [], name);
    assert.equal(await row(page, "v1").getByRole("cell").filter({ visible: true }).count(), 5);
    await page.context().close();
  });

  test("the_view_of_interfaces_is_accessible_and_readers_change_nothing", async () => {
    const page = await machine.open({ hash: "/links", token: machine.reader });
    await row(page, "later").getByText("waiting", { exact: true }).waitFor();
    // A cell that does not open says why, and what is typed at it is no shortcut.
    const cell = page.getByRole("button", { name: /^Limit of what v1 sends/ });
    assert.equal(await cell.getAttribute("aria-disabled"), "true");
    await cell.focus();
    await page.keyboard.press("Enter");
    await page.getByText("Your token may look and not change.").first().waitFor();
    const theme = await page.getByRole("button", { name: /^Colours/ }).textContent();
    await page.keyboard.type("tu1");
    assert.equal(await page.getByRole("button", { name: /^Colours/ }).textContent(), theme);
    assert.equal(await page.getByRole("textbox", { name: /^Limit/ }).count(), 0);
    await page.evaluate(readFileSync(AXE, "utf8"));
    const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
    const grave = found.violations.filter(({ impact }) => impact === "serious" || impact === "critical");
    assert.deepEqual(
      grave.map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target.join(" ")).join(", ")}`),
      [],
    );
    await page.context().close();
  });
}
