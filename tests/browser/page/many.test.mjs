// A hundred services, most of them idle, as on a busy machine.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Machine, until } from "./machine.mjs";

const MANY = 100;
let machine;
before(async () => {
  const services = Array.from({ length: MANY }, (_, at) => ({
    name: `svc-${String(at).padStart(3, "0")}`,
    rate: at < 4 ? 1e6 * (at + 1) : 0,
  }));
  machine = await Machine.start({ config: '[capacity]\nsend = "800Mbit/s"\n', services });
});
after(async () => machine?.stop());

test("a_hundred_services_are_seen_sorted_and_filtered", async () => {
  const page = await machine.open();
  await until(async () => (await page.locator("tbody tr[data-id]").count()) === MANY, "all rows are there", 20);
  await page.click("#tab-send");
  await page.locator("th.col-got button").click();
  const first = page.locator("tr[data-id]").first();
  await until(async () => /svc-00[0-3]/.test(await first.getAttribute("data-id")), "the busiest is on top", 10);
  assert.equal(await page.locator("th.col-got").getAttribute("aria-sort"), "descending");
  await page.locator("#filter").fill("svc-09");
  await until(async () => (await page.locator(".count").textContent()) === "10 of 100 services", "the filter acts", 5);
  assert.equal(await page.locator("tr[data-id]:visible").count(), 10);
  await page.locator("#filter").fill("");
  // One that comes and one that goes are seen without a reload.
  const late = machine.run({ name: "latecomer", rate: 0 });
  await page.locator('tr[data-id="latecomer"]').waitFor({ state: "attached" });
  late.kill("SIGTERM");
  await until(
    async () =>
      (await page.locator('tr[data-id="latecomer"]').count()) === 0 ||
      /not running/.test(await page.locator('tr[data-id="latecomer"]').textContent()),
    "its end is seen",
  );
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("rows_are_touched_only_where_something_changed", async () => {
  const page = await machine.open();
  await until(async () => (await page.locator("tbody tr[data-id]").count()) === MANY, "all rows are there", 20);
  await page.click("#tab-send");
  await page.waitForTimeout(1000);
  const touched = await page.evaluate(async () => {
    const rows = new Set();
    const seen = new MutationObserver((changes) => {
      for (const { target } of changes)
        rows.add((target.nodeType === 3 ? target.parentElement : target).closest("tr")?.dataset.id);
    });
    seen.observe(document.querySelector("table.services tbody"), {
      childList: true,
      characterData: true,
      subtree: true,
    });
    await new Promise((done) => setTimeout(done, 3000));
    return [...rows];
  });
  // The shares of idle services may move with what is free, their use does not; all cells of all
  // rows would be a hundred rows.
  assert.ok(touched.length < MANY, `${touched.length} rows`);
  await page.context().close();
});

test("a_limit_is_changed_among_a_hundred", async () => {
  const page = await machine.open();
  await page.click("#tab-send");
  await page.locator("#filter").fill("svc-003");
  await page.locator('tr[data-id="svc-003"] .edit').click();
  await page.locator("input.inline").fill("8Mbit/s");
  await page.keyboard.press("Enter");
  await until(async () => (await machine.use("svc-003", "send")).max === 1e6, "it is in force", 5);
  await page.context().close();
});
