// The machine's policy: targets of a class, one proposal alone, a capacity that is measured.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { cutCells, Machine, PHONE, until } from "./machine.mjs";

const CONFIG = `
[capacity]
send = "160Mbit/s"
[classes.media]
mode = "qos"
send = { min = "40Mbit/s" }
[services.vod]
class = "media"
`;

let machine;
before(async () => {
  // 8 MB/s are 64 Mbit/s.
  machine = await Machine.start({
    config: CONFIG,
    services: [
      { name: "vod", rate: 8e6 },
      { name: "backup", rate: 1e6 },
    ],
  });
});
after(async () => machine?.stop());

const config = () => machine.ask("GET", "/v1/config");

test("targets_of_a_class_are_edited_with_a_preview", async () => {
  const page = await machine.open({ hash: "/policy" });
  const classes = page.getByRole("region", { name: "Classes" });
  await classes.getByRole("button", { name: "Edit media" }).click();
  const form = classes.getByRole("form", { name: "media" });
  await form.getByLabel("Stalls in a report, at most").fill("some");
  await form.getByRole("button", { name: "Preview" }).click();
  await form.getByText("Stalls are a whole number.").waitFor();
  await form.getByLabel("Stalls in a report, at most").fill("2");
  await form.getByLabel("Loss, at most").fill("0.5%");
  await form.getByLabel("Delay, at most").fill("400ms");
  await form.locator(".preview").waitFor();
  assert.equal((await config()).classes.media.qos ?? null, null, "a preview changes nothing");
  await form.getByRole("button", { name: "Apply" }).click();
  await until(async () => (await config()).classes.media.qos?.loss === "0.5%", "the targets are set", 5);
  const { media } = (await config()).classes;
  assert.deepEqual(media.qos, { loss: "0.5%", delay: "400ms", stalls: 2 });
  assert.deepEqual([media.mode, media.send.min], ["qos", (await config()).classes.media.send.min]);
  await classes.getByText("clients see at most loss 0.5%, delay 400ms, stalls 2").waitFor();
  // What the daemon refuses is said in the form.
  await classes.getByRole("button", { name: "Edit media" }).click();
  await form.getByLabel("Loss, at most").fill("500%");
  await form.getByText(/is no percentage/).waitFor();
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("one_proposal_is_applied_alone", async () => {
  await machine.ask("PATCH", "/v1/services/vod", { qos: { loss: "0.1%" } });
  const page = await machine.open({ hash: "/policy" });
  const proposals = page.getByRole("region", { name: "What the policy proposes" });
  const preview = proposals.getByRole("button", { name: "Preview the proposal for vod, Send" });
  const reported = async () => {
    await machine.ask("POST", "/v1/reports", { service: "vod", source: "test", loss: 0.02 });
    return preview.isVisible();
  };
  await until(reported, "the policy proposes more", 20);
  const [{ from, to }] = (await machine.service("vod")).proposals;
  assert.ok(to > from);
  const phone = await machine.open({ hash: "/policy", ...PHONE });
  const line = phone.getByRole("region", { name: "What the policy proposes" }).locator("tbody tr").first();
  await line.waitFor();
  assert.deepEqual(await cutCells(line), [], "on a phone all of a proposal is seen");
  await phone.context().close();
  await preview.click();
  await proposals.getByText("vod: a guarantee of").waitFor();
  assert.equal((await machine.service("vod")).settings.send ?? null, null, "a preview changes nothing");
  await proposals.getByRole("button", { name: "Apply this one" }).click();
  await until(async () => (await machine.use("vod", "send")).min > from, "it is guaranteed", 5);
  const min = (await machine.use("vod", "send")).min;
  assert.ok(Math.abs(min - to) < 0.01 * to, `${min} instead of ${to}`);
  assert.equal((await config()).policy.automatic, "dry-run", "nothing else is switched on");
  const [entry] = (await machine.ask("GET", "/v1/audit?limit=20")).entries.filter((of) => of.service === "vod");
  assert.match(entry.reason, /^proposed by the policy: /);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("a_capacity_is_measured_previewed_and_applied", async (t) => {
  const page = await machine.open({ hash: "/policy" });
  const capacity = page.getByRole("region", { name: "Capacity" });
  await capacity.getByText("not configured: not shared out").first().waitFor();
  assert.equal(await capacity.getByText("not configured: not shared out").count(), 4);
  await capacity.getByText("Measure a disk or a link").click();
  // What has no speed of its own says so.
  await capacity.getByLabel("Of", { exact: true }).selectOption("recv");
  await capacity.getByLabel("Interface").fill("lo");
  await capacity.getByRole("button", { name: "Measure" }).click();
  await capacity.getByText(/no speed of its own/).waitFor();
  await capacity.getByLabel("Of", { exact: true }).selectOption("read");
  await capacity.getByLabel("Folder on the disk").fill(machine.folder);
  await capacity.getByLabel("Time").selectOption("1s");
  await capacity.getByRole("button", { name: "Measure" }).click();
  const answer = capacity.locator(".answer");
  await until(async () => /The median of|direct reads/.test(await answer.textContent()), "it is measured", 30);
  if (/no direct reads/.test(await answer.textContent())) {
    t.skip("the temporary folder is on no disk that can be measured");
    await page.context().close();
    return;
  }
  assert.match(await capacity.getByLabel("Read").inputValue(), /^[\d.]+[kMG]B\/s$/);
  assert.equal((await config()).capacity.read ?? null, null, "a measurement changes nothing");
  await capacity.locator(".preview").waitFor();
  await capacity.getByRole("button", { name: "Apply" }).click();
  await until(async () => (await config()).capacity.read, "it is configured", 5);
  await capacity.getByText(/^measured on \d{4}-\d\d-\d\d: median/).waitFor();
  const [entry] = (await machine.ask("GET", "/v1/audit?limit=1")).entries;
  assert.match(entry.reason, /^measured on .*median .*spread /);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});
