// For everybody: by keys alone, with a screen reader, dark or light, on a phone.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { AXE, goByKeys, Machine, read, until } from "./machine.mjs";

const CONFIG = `
[capacity]
send = "160Mbit/s"
read = "40MB/s"
[groups.media]
send = { weight = 2 }
[classes.batch]
send = { weight = 1 }
[services.vod]
group = "media"
qos = { loss = "0.1%" }
`;
const VIEWS = ["/", "/service/vod?resource=send", "/policy", "/links", "/exports", "/history", "/audit", "/qos"];

let machine;
let axe;
before(async () => {
  axe = await readFile(AXE, "utf8");
  machine = await Machine.start({
    config: CONFIG,
    services: [
      { name: "vod", rate: 4e6 },
      { name: "a-service-with-quite-a-long-name-for-a-phone", rate: 2e6 },
    ],
  });
});
after(async () => machine?.stop());

async function go(page, hash) {
  await page.evaluate((to) => (window.location.hash = `#${to}`), hash);
  await page.locator("main h1").first().waitFor({ state: "attached" });
  await page.waitForTimeout(400);
}

async function violations(page) {
  // As the developer tools do it: a script element would be refused by the page's policy.
  await page.evaluate(axe);
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  return found.violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target.join(" ")).join(", ")}`);
}

for (const scheme of ["light", "dark"]) {
  test(`no_serious_finding_of_axe_in_${scheme}`, async () => {
    const page = await machine.open({ colorScheme: scheme });
    await page.locator('tr[data-id="vod"]').waitFor();
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), scheme);
    for (const view of VIEWS) {
      await go(page, view);
      assert.deepEqual(await violations(page), [], `${scheme} ${view}`);
    }
    // With a preview, and with a dialog.
    await go(page, "/service/vod?resource=send");
    await page.getByLabel("Limit", { exact: true }).first().fill("16Mbit/s");
    await page.locator(".preview").waitFor();
    assert.deepEqual(await violations(page), [], "preview");
    await page.getByRole("button", { name: "Shortcuts" }).click();
    await page.locator("dialog").waitFor();
    assert.deepEqual(await violations(page), [], "dialog");
    assert.deepEqual(page.complaints, []);
    await page.context().close();
  });
}

test("colours_follow_the_system_until_somebody_chooses", async () => {
  const page = await machine.open({ colorScheme: "light" });
  const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
  assert.equal(await theme(), "light");
  await page.emulateMedia({ colorScheme: "dark" });
  await until(async () => (await theme()) === "dark", "it follows", 5);
  await page.getByRole("button", { name: "Colours: auto" }).click();
  assert.equal(await theme(), "light");
  await page.reload();
  assert.equal(await theme(), "light", "the choice is kept");
  await page.context().close();
});

test("everything_is_reached_by_keys_alone", async () => {
  const page = await machine.open();
  await page.locator('tr[data-id="vod"]').waitFor();
  // The first stop leads past the header, and to no other view.
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.className), "skip");
  const address = await page.evaluate(() => window.location.hash);
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  assert.equal(await page.evaluate(() => window.location.hash), address);
  // Resources by number, a service by the filter and Tab.
  await page.keyboard.press("3");
  await until(
    async () => (await page.locator("#tab-send").getAttribute("aria-selected")) === "true",
    "the resource is chosen",
  );
  await page.keyboard.press("/");
  await page.keyboard.type("vod");
  await until(async () => (await page.locator(".count").textContent()) === "1 of 2 services", "the filter acts");
  const reach = async (selector, most = 40) => {
    for (let at = 0; at < most; at += 1) {
      await page.keyboard.press("Tab");
      if (await page.evaluate((of) => document.activeElement.matches(of), selector)) return;
    }
    assert.fail(`${selector} is not reached by Tab`);
  };
  await reach('tr[data-id="vod"] a');
  const ring = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.notEqual(ring, "none", "the focus is seen");
  await page.keyboard.press("Enter");
  await page.locator(".handle").waitFor();
  await until(async () => read(await page.locator(".legend li:nth-child(2)").textContent()) > 0, "there is data");
  await reach(".handle");
  const slider = page.locator(".handle");
  assert.equal(await slider.getAttribute("aria-valuetext"), "no limit");
  // One key: of two, with a pause between them, each would be a change to be undone.
  await page.keyboard.press("PageDown");
  const wanted = await slider.getAttribute("aria-valuetext");
  await until(
    async () => Math.abs((await machine.use("vod", "send")).max - read(wanted)) < 1,
    "the limit is in force",
  );
  // Said once to a screen reader, in the region for changes.
  await until(
    async () => (await page.locator("#live").textContent()).includes("vod.send.max"),
    "the change is told",
  );
  await page.locator("h1").click();
  await page.keyboard.press("u");
  // The actor of that change is named before anything is done.
  const asked = page.locator("dialog");
  await asked.waitFor();
  assert.match(await asked.textContent(), /token test made it.*vod\.send\.max/s);
  assert.notEqual((await machine.use("vod", "send")).max, null, "nothing is undone yet");
  // Leaving it comes first.
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await until(async () => (await machine.use("vod", "send")).max === null, "it is undone");
  await goByKeys(page, "h", "History");
  await page.keyboard.press("?");
  await page.locator("dialog").waitFor();
  await page.keyboard.press("Escape");
  // A dialog tells of its end in a task of its own.
  await until(async () => (await page.locator("dialog").count()) === 0, "the dialog is gone");
  await page.context().close();
});

test("ticks_are_not_read_aloud", async () => {
  const page = await machine.open();
  await page.locator('tr[data-id="vod"]').waitFor();
  await page.evaluate(() => {
    window.spoken = 0;
    const live = document.querySelectorAll("[aria-live]:not([aria-live=off]), [role=status], [role=alert]");
    for (const region of live)
      new MutationObserver(() => (window.spoken += 1)).observe(region, {
        childList: true,
        characterData: true,
        subtree: true,
      });
  });
  const before = await page.locator('tr[data-id="vod"]').textContent();
  await until(async () => (await page.locator('tr[data-id="vod"]').textContent()) !== before, "numbers move", 20);
  await page.waitForTimeout(2000);
  assert.equal(await page.evaluate(() => window.spoken), 0);
  await page.context().close();
});

test("a_phone_of_360_pixels_needs_no_sideways_scrolling", async () => {
  const page = await machine.open({ viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true });
  await page.locator('tr[data-id="vod"]').waitFor();
  for (const view of VIEWS) {
    await go(page, view);
    const wide = await page.evaluate(() => {
      const most = document.documentElement.clientWidth;
      if (document.documentElement.scrollWidth <= most) return [];
      return [...document.querySelectorAll("main *")]
        .filter((node) => node.getBoundingClientRect().right > most + 1)
        .map((node) => `${node.tagName}.${node.className}`);
    });
    assert.deepEqual(wide, [], view);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= 360), view);
  }
  // What a finger has to hit is large enough.
  await go(page, "/");
  const box = await page.locator('tr[data-id="vod"] .edit').boundingBox();
  assert.ok(box.height >= 24 && box.width >= 24);
  await page.context().close();
});

test("motion_is_left_out_where_it_is_not_wanted", async () => {
  const page = await machine.open({ reducedMotion: "reduce" });
  await page.locator('tr[data-id="vod"]').waitFor();
  const moving = await page.evaluate(
    () =>
      [...document.querySelectorAll("*")].filter((node) => getComputedStyle(node).transitionDuration !== "0s").length,
  );
  assert.equal(moving, 0);
  await page.context().close();
});

test("plots_have_a_text_and_a_table", async () => {
  const page = await machine.open({ hash: "/service/vod?resource=send" });
  await until(
    async () =>
      /vod in the last two minutes\. Now it gets [\d.]+ .?bit\/s/.test(
        await page.locator(".plot canvas").getAttribute("aria-label"),
      ),
    "the sentence is there",
    10,
  );
  await page.getByText("The same in numbers").click();
  await until(async () => (await page.locator(".numbers tbody tr").count()) > 0, "the table is there", 5);
  assert.equal(await page.locator(".numbers thead th").count(), 7);
  await page.context().close();
});
