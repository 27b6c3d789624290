// The past, the audit, and what clients see.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Machine, sleep, until } from "./machine.mjs";

let machine;
let page;
before(async () => {
  machine = await Machine.start({ config: '[capacity]\nsend = "160Mbit/s"\n', services: [{ name: "vod", rate: 4e6 }] });
});
after(async () => machine?.stop());

async function open(hash) {
  page = await machine.open({ hash });
  return page;
}

const clear = (id) => machine.ask("PATCH", `/v1/services/${id}`, { send: null });

test("the_past_is_seen_and_saved", async () => {
  await open("/history?service=vod&resource=send");
  const note = page.locator("p.hint[role=status]");
  await until(
    async () => {
      await page.getByRole("button", { name: "10 min" }).click();
      await sleep(500);
      // Fewer than some seconds of it cannot be looked at closer.
      return Number(/(\d+) points/.exec(await note.textContent())?.[1]) > 20;
    },
    "the history has points",
    40,
  );
  const plot = await page.locator(".u-over").boundingBox();
  const wide = await note.textContent();
  await page.mouse.move(plot.x + plot.width * 0.94, plot.y + 40);
  await page.mouse.down();
  await page.mouse.move(plot.x + plot.width * 0.99, plot.y + 60, { steps: 5 });
  await page.mouse.up();
  await until(async () => (await note.textContent()) !== wide, "the zoom shows another time", 5);
  await page.getByRole("button", { name: "Zoom out" }).click();
  for (const [format, start] of [
    ["CSV", null],
    ["Parquet", "PAR1"],
  ]) {
    const saved = page.waitForEvent("download");
    await page.getByRole("button", { name: `Save as ${format}` }).click();
    const stream = await (await saved).createReadStream();
    const pieces = [];
    for await (const piece of stream) pieces.push(piece);
    const bytes = Buffer.concat(pieces);
    assert.ok(bytes.length > 20, format);
    if (start) assert.equal(bytes.subarray(0, 4).toString(), start);
    else assert.match(bytes.toString(), /vod/);
  }
  await page.context().close();
});

test("the_audit_says_who_changed_what_and_why", async () => {
  await machine.ask("PATCH", "/v1/services/vod?reason=a%20%3Cb%3Ereason%3C%2Fb%3E", { send: { weight: 7 } });
  await open("/audit?service=vod");
  const entry = page.locator(".audit-list > li").first();
  await entry.waitFor();
  const told = await entry.textContent();
  assert.match(told, /services\.vod\.send\.weight.*7/);
  // Markup from elsewhere is text here.
  assert.match(told, /a <b>reason<\/b>/);
  // What happens while one looks is added on top.
  await clear("vod");
  await until(async () => /nothing/.test(await entry.textContent()), "the new entry is on top", 5);
  await page.context().close();
});

test("clients_targets_reports_and_admission", async () => {
  await machine.ask("PATCH", "/v1/services/vod", { mode: "qos", qos: { loss: "0.1%" } });
  await machine.ask("POST", "/v1/reports", { service: "vod", source: "test", loss: 0.02 });
  await open("/qos");
  const card = page.getByRole("article", { name: "vod" });
  await card.waitFor();
  await until(async () => /does not hold/.test(await card.textContent()), "the report is judged", 10);
  assert.match(await card.textContent(), /2 %/);
  await page.getByLabel("For").selectOption("vod");
  await page.getByRole("button", { name: "Ask" }).click();
  await until(async () => /(Yes|No), they/.test(await page.locator(".answer").textContent()), "the answer is told", 5);
  await page.getByLabel("Streams").fill("1000");
  await page.getByRole("button", { name: "Ask" }).click();
  await until(async () => /No, they/.test(await page.locator(".answer").textContent()), "too many are refused", 5);
  await machine.ask("PATCH", "/v1/services/vod", { mode: null, qos: null });
  await page.context().close();
});
