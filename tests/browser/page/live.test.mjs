// Seeing services and changing them, with real programs under real limits.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Machine, read, sleep, until } from "./machine.mjs";

const CONFIG = `
[capacity]
send = "160Mbit/s"
read = "40MB/s"
[groups.media]
send = { weight = 2 }
`;

let machine;
let page;
before(async () => {
  // 8 MB/s are 64 Mbit/s.
  machine = await Machine.start({
    config: CONFIG,
    services: [
      { name: "vod", rate: 8e6 },
      { name: "backup", rate: 4e6 },
    ],
  });
});
after(async () => machine?.stop());

async function open(hash, options = {}) {
  page = await machine.open({ hash, ...options });
  return page;
}

const row = (id) => page.locator(`tr[data-id="${id}"]`);
const limitOf = async (id) => (await machine.service(id)).settings.send?.max ?? null;
const clear = (id) => machine.ask("PATCH", `/v1/services/${id}`, { send: null });

/** The rates that the page shows for some seconds, once the limit was in force for one. */
async function shownRates(locator, seconds = 3) {
  await sleep(1500);
  const rates = [];
  for (let at = 0; at < seconds * 4; at += 1) {
    rates.push(read(await locator.textContent()));
    await sleep(250);
  }
  return rates;
}

test("services_are_seen_with_what_they_get", async () => {
  await open("/");
  await row("vod").waitFor();
  await page.click("#tab-send");
  await until(async () => read(await row("vod").locator(".col-got").textContent()) > 1e6, "the rate of vod is seen");
  assert.match(await page.locator("#tab-send .of").textContent(), /^of 160 Mbit\/s/);
  assert.equal(await page.locator(".count").textContent(), "2 services");
  assert.ok(!page.url().includes("token"), "the token does not stay in the address");
  const label = await page.locator(".plot canvas").getAttribute("aria-label");
  assert.match(label, /Send of all services.*vod/);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("a_limit_that_is_typed_is_in_force", async () => {
  await open("/");
  await page.click("#tab-send");
  await row("vod").locator(".edit").click();
  await page.locator("input.inline").fill("16Mbit/s");
  await page.keyboard.press("Enter");
  await until(
    async () => (await row("vod").locator(".edit").textContent()) === "16 Mbit/s",
    "the page shows the limit",
    5,
  );
  assert.equal((await machine.use("vod", "send")).max, 2e6);
  // Burst and the instants of the pictures allow for some of it.
  for (const got of await shownRates(row("vod").locator(".col-got")))
    assert.ok(got <= 2e6 * 1.15, `${got} B/s above 2e6`);
  // A slip is told, and nothing is changed.
  await row("vod").locator(".edit").click();
  await page.locator("input.inline").fill("16");
  await page.keyboard.press("Enter");
  assert.match(await page.locator(".toast.bad").textContent(), /no unit/);
  await page.keyboard.press("Escape");
  assert.equal((await machine.use("vod", "send")).max, 2e6);
  await clear("vod");
  await page.context().close();
});

test("a_limit_that_is_dragged_is_in_force", async () => {
  await open("/service/vod?resource=send");
  const grip = page.locator(".handle-grip");
  await grip.waitFor();
  await until(async () => read(await page.locator(".legend li:nth-child(2)").textContent()) > 1e6, "the plot has data");
  const box = await grip.boundingBox();
  const plot = await page.locator(".u-over").boundingBox();
  await page.mouse.move(box.x + 20, box.y + box.height / 2);
  await page.mouse.down();
  await page.mouse.move(box.x + 20, plot.y + plot.height * 0.8, { steps: 12 });
  // Nothing is sent before it is let go.
  assert.equal(await limitOf("vod"), null);
  const held = await page.locator(".handle").getAttribute("aria-valuetext");
  await page.mouse.up();
  await until(async () => (await limitOf("vod")) !== null, "the daemon has the limit", 5);
  const { max } = await machine.use("vod", "send");
  assert.ok(Math.abs(max - read(held)) < 1, `${max} is ${held}`);
  assert.ok(max < 8e6, "it was dragged below what is asked for");
  for (const got of await shownRates(page.locator(".legend li:nth-child(2)")))
    assert.ok(got <= max * 1.15, `${got} B/s above ${max}`);
  // Arrow keys move it, and a held key is one change.
  const before = (await machine.ask("GET", "/v1/status")).revision;
  await page.locator(".handle").focus();
  // All within one task: a busy machine's pause between two keys would part them.
  await page.locator(".handle").evaluate((handle) => {
    for (let at = 0; at < 4; at += 1)
      handle.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true, cancelable: true }));
  });
  await until(async () => (await machine.use("vod", "send")).max < max, "the keys are in force", 5);
  assert.equal((await machine.ask("GET", "/v1/status")).revision, before + 1);
  await page.keyboard.press("Delete");
  await until(async () => (await limitOf("vod")) === null, "there is no limit", 5);
  await clear("vod");
  await page.context().close();
});

test("a_finger_drags_the_limit_too", async () => {
  await open("/service/vod?resource=send", { viewport: { width: 390, height: 800 }, hasTouch: true, isMobile: true });
  await page.locator(".handle-grip").waitFor();
  await until(async () => read(await page.locator(".legend li:nth-child(2)").textContent()) > 1e6, "the plot has data");
  await page.locator(".handle").scrollIntoViewIfNeeded();
  const box = await page.locator(".handle-grip").boundingBox();
  const plot = await page.locator(".u-over").boundingBox();
  const touch = await page.context().newCDPSession(page);
  const at = (y) => ({ touchPoints: [{ x: box.x + 20, y }] });
  await touch.send("Input.dispatchTouchEvent", { type: "touchStart", ...at(box.y + box.height / 2) });
  for (let step = 1; step <= 8; step += 1) {
    await touch.send("Input.dispatchTouchEvent", {
      type: "touchMove",
      ...at(box.y + (step / 8) * (plot.y + plot.height * 0.7 - box.y)),
    });
  }
  await touch.send("Input.dispatchTouchEvent", { type: "touchEnd", touchPoints: [] });
  await until(async () => (await limitOf("vod")) !== null, "the daemon has the limit", 5);
  await clear("vod");
  await page.context().close();
});

test("nothing_is_applied_before_it_was_previewed_and_applied", async () => {
  await open("/service/vod?resource=send");
  const guarantee = page.getByLabel("Guarantee", { exact: true }).first();
  await guarantee.fill("80Mbit/s");
  const preview = page.locator(".preview");
  await preview.waitFor();
  const told = await preview.textContent();
  assert.match(told, /services\.vod\.send\.min.*80Mbit\/s/);
  assert.equal((await machine.service("vod")).settings.send?.min ?? null, null);
  // Weight and duration belong to the same change.
  await page.getByLabel("Weight").first().fill("3");
  await page.getByLabel("How long").selectOption("10min");
  await page.getByLabel("Why").fill("an evening");
  await page.getByRole("button", { name: "Apply" }).click();
  await until(async () => (await machine.use("vod", "send")).min === 10e6, "the guarantee is in force", 5);
  const { settings } = await machine.service("vod");
  assert.equal(settings.send.weight, 3);
  const [entry] = (await machine.ask("GET", "/v1/audit?limit=1&service=vod")).entries;
  assert.equal(entry.reason, "an evening");
  assert.match(await page.locator(".toast").textContent(), /until \d/);
  // And back by the button of the note.
  await page.locator(".toast").getByRole("button", { name: "Undo" }).click();
  await until(async () => (await machine.use("vod", "send")).min === 0, "the change is undone", 5);
  await clear("vod");
  await page.context().close();
});

test("what_the_daemon_refuses_is_told_and_changes_nothing", async () => {
  await open("/service/vod?resource=send");
  await page.getByLabel("Guarantee", { exact: true }).first().fill("100%");
  await machine.ask("PATCH", "/v1/services/backup", { send: { min: "50%" } });
  await page.getByRole("button", { name: "Preview" }).click();
  const problem = page.locator(".editing .error").first();
  await until(async () => (await problem.textContent()).length > 20, "the refusal is told", 5);
  assert.equal((await machine.service("vod")).settings.send?.min ?? null, null);
  await clear("backup");
  await page.context().close();
});

test("two_at_once_see_each_other_and_do_not_overwrite", async () => {
  const first = await machine.open({ hash: "/service/vod?resource=send" });
  const second = await machine.open({ hash: "/" });
  await second.click("#tab-send");
  const limit = first.getByLabel("Limit", { exact: true }).first();
  await limit.fill("24Mbit/s");
  // The other one is faster.
  await second.locator('tr[data-id="vod"] .edit').click();
  await second.locator("input.inline").fill("40Mbit/s");
  await second.keyboard.press("Enter");
  await first.getByText("changed by somebody else meanwhile").waitFor();
  await first.getByRole("button", { name: "Apply" }).click();
  const dialog = first.locator("dialog");
  await dialog.waitFor();
  const told = await dialog.textContent();
  assert.match(told, /token test.*services\.vod\.send\.max.*nothing.*40Mbit\/s/s);
  assert.equal((await machine.use("vod", "send")).max, 5e6);
  await dialog.getByRole("button", { name: "Take over" }).click();
  await until(async () => (await limit.inputValue()) === "40Mbit/s", "the form shows the new state", 5);
  // From there it goes through, and the other one sees it.
  await limit.fill("24Mbit/s");
  await first.getByRole("button", { name: "Apply" }).click();
  await until(
    async () => (await second.locator('tr[data-id="vod"] .edit').textContent()) === "24 Mbit/s",
    "the other sees it",
    5,
  );
  await clear("vod");
  await first.context().close();
  await second.context().close();
});

test("a_change_elsewhere_is_no_conflict", async () => {
  await open("/service/vod?resource=send");
  const limit = page.getByLabel("Limit", { exact: true }).first();
  await limit.fill("24Mbit/s");
  await machine.ask("PATCH", "/v1/services/backup", { send: { weight: 9 } });
  await page.getByRole("button", { name: "Apply" }).click();
  await until(async () => (await machine.use("vod", "send")).max === 3e6, "it went through", 5);
  assert.equal(await page.locator("dialog").count(), 0);
  await clear("vod");
  await clear("backup");
  await page.context().close();
});

test("policy_capacity_and_groups_are_changed_with_a_preview", async () => {
  await open("/policy");
  const capacity = page.getByRole("region", { name: "Capacity" });
  await capacity.getByLabel("Write").fill("50MB/s");
  await capacity.locator(".preview").waitFor();
  assert.equal((await machine.ask("GET", "/v1/config")).capacity.write ?? null, null);
  await capacity.getByRole("button", { name: "Apply" }).click();
  await until(
    async () => (await machine.ask("GET", "/v1/config")).capacity.write === "50MB/s",
    "the capacity is set",
    5,
  );

  const policy = page.getByRole("region", { name: "Policy", exact: true });
  await policy.getByRole("switch").check();
  await policy.getByRole("button", { name: "Apply" }).click();
  await until(async () => (await machine.ask("GET", "/v1/config")).policy.automatic === "on", "the policy may act", 5);

  const groups = page.getByRole("region", { name: "Groups" });
  await groups.getByRole("button", { name: "New group" }).click();
  await groups.getByLabel("Name").fill("vip");
  await groups.getByLabel("In", { exact: true }).selectOption("media");
  await groups.getByRole("button", { name: "Apply" }).click();
  await until(
    async () => (await machine.ask("GET", "/v1/config")).groups.vip?.parent === "media",
    "the group is there",
    5,
  );
  await groups.locator('li[data-name="vip"]').waitFor();
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("a_hidden_tab_asks_for_nothing", async () => {
  await open("/qos");
  const asked = [];
  page.on("request", (request) => asked.push(new URL(request.url()).pathname));
  await until(() => asked.includes("/v1/qos"), "it asks again and again while it is seen");
  const see = (hidden) =>
    page.evaluate((hidden) => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
      document.dispatchEvent(new Event("visibilitychange"));
    }, hidden);
  await see(true);
  await sleep(12_000);
  asked.length = 0;
  await clear("vod");
  await sleep(6000);
  assert.deepEqual(asked, []);
  await see(false);
  await until(() => asked.includes("/v1/events") && asked.includes("/v1/qos"), "it asks again");
  assert.equal(await page.evaluate(() => document.body.dataset.connection), "live");
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});
