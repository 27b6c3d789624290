// What goes wrong: the daemon ends and comes back, tokens are missing, wrong or may only look.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Machine, read, until } from "./machine.mjs";

let machine;
before(async () => {
  machine = await Machine.start({ config: '[capacity]\nsend = "160Mbit/s"\n', services: [{ name: "vod", rate: 4e6 }] });
});
after(async () => machine?.stop());

test("a_daemon_that_is_started_anew_is_found_again", async () => {
  const page = await machine.open({ hash: "/service/vod?resource=send" });
  await page.locator(".handle").waitFor();
  await machine.ask("PATCH", "/v1/services/vod", { send: { max: "16Mbit/s" } });
  await until(
    async () => (await page.locator(".handle").getAttribute("aria-valuetext")) === "16 Mbit/s",
    "the limit is shown",
    5,
  );
  await page.evaluate(() => (window.theSamePage = true));
  // It has no time to say goodbye.
  await machine.stopDaemon("SIGKILL");
  const banner = page.locator("#banner");
  await until(async () => /Connection lost/.test(await banner.textContent()), "the loss is told", 15);
  const weight = page.getByLabel("Weight").first();
  await until(async () => weight.isDisabled(), "nothing can be changed meanwhile", 5);
  await machine.startDaemon();
  await until(async () => banner.isHidden(), "it is connected again", 20);
  assert.ok(await page.evaluate(() => window.theSamePage), "the page was not loaded anew");
  await page.getByText("The daemon was started anew, and is connected again.").first().waitFor();
  // What was changed before is still in force, and the page works on.
  await until(
    async () => (await page.locator(".handle").getAttribute("aria-valuetext")) === "16 Mbit/s",
    "the limit is there again",
    10,
  );
  await until(
    async () => read(await page.locator(".legend li:nth-child(2)").textContent()) > 0,
    "numbers come again",
    10,
  );
  await page.getByLabel("Limit", { exact: true }).first().fill("24Mbit/s");
  await page.getByRole("button", { name: "Apply" }).click();
  await until(async () => (await machine.use("vod", "send")).max === 3e6, "a change goes through", 5);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("what_is_typed_while_the_daemon_is_away_is_no_shortcut", async () => {
  await machine.ask("PATCH", "/v1/services/vod", { send: { max: "16Mbit/s" } });
  const page = await machine.open({ hash: "/" });
  await page.click("#tab-send");
  const cell = page.getByRole("button", { name: /^Limit of vod/ });
  await until(async () => /16 Mbit/.test(await cell.textContent()), "the limit is shown");
  await machine.stopDaemon("SIGKILL");
  const banner = page.locator("#banner");
  await until(async () => /Connection lost/.test(await banner.textContent()), "the loss is told", 15);
  const colours = page.getByRole("button", { name: /^Colours/ });
  const state = async () => [
    await colours.textContent(),
    await page.locator('[role=tab][aria-selected="true"]').textContent(),
    await page.evaluate(() => document.activeElement.tagName),
    new URL(page.url()).hash,
  ];
  await cell.click();
  await page.getByText("The daemon does not answer.").first().waitFor();
  const before = await state();
  // All that a limit is made of, and all shortcuts.
  await page.keyboard.type("11Mbit/s tu/gp");
  assert.deepEqual(await state(), before);
  await page.evaluate(() => document.activeElement.blur());
  const anywhere = await state();
  await page.keyboard.type("11Mbit/s tu/gp");
  assert.deepEqual(await state(), anywhere);
  await machine.startDaemon();
  await until(async () => banner.isHidden(), "it is connected again", 20);
  assert.equal((await machine.use("vod", "send")).max, 2e6, "nothing was undone");
  // Awake again.
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("t");
  await until(async () => (await colours.textContent()) !== before[0], "the shortcut acts");
  await machine.ask("PATCH", "/v1/services/vod", { send: null });
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("an_undo_says_whose_change_it_takes_back", async () => {
  const page = await machine.open({ hash: "/" });
  await page.locator('tr[data-id="vod"]').waitFor();
  await machine.ask("PATCH", "/v1/services/vod", { send: { weight: 7 } });
  const { actor } = (await machine.ask("GET", "/v1/audit?limit=1")).entries[0];
  const button = page.getByRole("button", { name: "Undo", exact: true });
  const asked = page.locator("dialog");
  await until(async () => {
    await button.click();
    await asked.waitFor({ timeout: 3000 });
    return true;
  }, "the page has seen that change");
  const told = await asked.textContent();
  assert.ok(told.includes(`${actor} made it`) && told.includes("services.vod.send.weight"), told);
  // Left alone.
  await page.keyboard.press("Escape");
  assert.equal((await machine.service("vod")).settings.send.weight, 7);
  await button.click();
  await asked.waitFor();
  // Another change is faster: the undo would not be the one that was shown.
  await machine.ask("PATCH", "/v1/services/vod", { send: { weight: 9 } });
  await page.getByRole("button", { name: "Undo it" }).click();
  await page.getByText(/Not undone: something else was changed since/).first().waitFor();
  assert.equal((await machine.service("vod")).settings.send.weight, 9);
  await machine.ask("PATCH", "/v1/services/vod", { send: null });
  await page.context().close();
});

test("a_page_of_which_a_part_did_not_come_is_loaded_again", async () => {
  const page = await machine.open({ hash: "/" });
  await page.locator("#tab-send").waitFor();
  let missed = 0;
  await page.route(/js\/views\/groups\.js$/, (route) => {
    missed += 1;
    return missed > 2 ? route.continue() : route.abort("internetdisconnected");
  });
  await page.reload();
  await page.locator("#tab-send").waitFor();
  assert.equal(missed, 3);
  // What never comes is given up.
  await page.route(/js\/views\/groups\.js$/, (route) => {
    missed += 1;
    return route.abort("internetdisconnected");
  });
  missed = 0;
  await page.reload();
  await until(() => missed === 6, "it is tried", 15);
  await new Promise((done) => setTimeout(done, 1500));
  assert.equal(missed, 6);
  await page.context().close();
});

test("a_missing_or_wrong_token_is_asked_for", async () => {
  const page = await machine.open({ token: null });
  const dialog = page.locator("dialog");
  await dialog.waitFor();
  assert.equal(await page.locator("tbody tr").count(), 0, "nothing is shown without one");
  await dialog.getByLabel("Token").fill("wrong");
  await dialog.getByRole("button", { name: "Use it" }).click();
  await until(
    async () => /refused the present one/.test(await page.locator("dialog").textContent()),
    "the wrong one is refused",
    5,
  );
  await page.keyboard.press("Escape");
  await page.locator("#banner").getByRole("button", { name: "Enter a token" }).click();
  await page.locator("dialog").getByLabel("Token").fill(machine.token);
  await page.keyboard.press("Enter");
  await page.locator('tr[data-id="vod"]').waitFor();
  // It stays with the tab, and is nowhere else.
  await page.reload();
  await page.locator('tr[data-id="vod"]').waitFor();
  const places = await page.evaluate(() =>
    [location.href, document.cookie, JSON.stringify({ ...localStorage })].join(" "),
  );
  assert.ok(!places.includes(machine.token));
  await page.context().close();
});

test("whoever_may_only_look_is_told_so", async () => {
  const page = await machine.open({ token: machine.reader, hash: "/service/vod?resource=send" });
  await page.getByText("Your token may look and not change.").first().waitFor();
  assert.ok(await page.getByLabel("Weight").first().isDisabled());
  assert.ok(await page.locator(".tools").getByRole("button", { name: "Undo" }).isDisabled());
  const before = (await machine.use("vod", "send")).max;
  await page.locator(".handle").focus();
  await page.keyboard.press("ArrowDown");
  await page.goto(`${page.url().split("#")[0]}#/`);
  await page.click("#tab-send");
  await page.locator('tr[data-id="vod"] .edit').click();
  assert.match(await page.locator(".toast.bad").textContent(), /may look/);
  assert.equal(await page.locator("input.inline").count(), 0);
  assert.equal((await machine.use("vod", "send")).max, before);
  await page.context().close();
});

test("the_page_of_the_command_opens_by_itself", async () => {
  const opened = await machine.ask("POST", "/v1/page");
  assert.match(opened.url, /^http:\/\/127\.0\.0\.1:\d+\/#token=/);
  const context = await machine.browser.newContext();
  const page = await context.newPage();
  await page.goto(opened.url);
  await page.locator('tr[data-id="vod"]').waitFor();
  assert.ok(!page.url().includes("token"));
  await context.close();
});
