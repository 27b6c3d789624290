// Takes the pictures of the page for the documentation: node figures.mjs FOLDER
// (scripts/browser-tests.sh --figures). What they show are real programs under real limits.
import path from "node:path";
import { Machine, sleep } from "./machine.mjs";

const FOLDER = process.argv[2];
const CONFIG = `
[capacity]
send = "400Mbit/s"
recv = "400Mbit/s"
read = "80MB/s"
[policy]
mode = "dynamic"
[classes.media]
send = { weight = 4 }
[groups.stream]
send = { min = "40%" }
[services.vod]
class = "media"
group = "stream"
send = { min = "60Mbit/s" }
qos = { loss = "0.1%", delay = "400ms" }
[services.live]
class = "media"
group = "stream"
[services.backup]
send = { max = "160Mbit/s" }
`;
const SERVICES = [
  { name: "vod", rate: 12e6 },
  { name: "live", rate: 5e6 },
  { name: "backup", rate: 24e6 },
  { name: "web", rate: 3e6 },
  { name: "indexer", rate: 6e6 },
  { name: "mail", rate: 1e6 },
];

const machine = await Machine.start({ config: CONFIG, services: SERVICES });
try {
  const size = { width: 1120, height: 720 };
  const pages = {
    light: await machine.open({ viewport: size, colorScheme: "light" }),
    dark: await machine.open({ viewport: size, colorScheme: "dark" }),
    phone: await machine.open({ viewport: { width: 360, height: 720 }, isMobile: true, hasTouch: true }),
  };
  for (const page of Object.values(pages)) await page.click("#tab-send");
  // Something to see: limits that come and go.
  const set = (id, max) => machine.ask("PATCH", `/v1/services/${id}?reason=for%20the%20evening`, { send: { max } });
  await sleep(15_000);
  await set("indexer", "24Mbit/s");
  await sleep(15_000);
  await set("vod", "80Mbit/s");
  await sleep(12_000);
  await set("vod", "110Mbit/s");
  await machine.ask("POST", "/v1/reports", {
    service: "vod",
    source: "rtcp",
    loss: 0.0004,
    "delay-ms": 120,
    "jitter-ms": 9,
  });
  await sleep(12_000);
  const take = (page, name) => page.screenshot({ path: path.join(FOLDER, `page-${name}.png`) });
  const go = async (page, hash) => {
    await page.evaluate((to) => (window.location.hash = `#${to}`), hash);
    await sleep(1500);
  };
  await take(pages.light, "overview");
  await take(pages.phone, "phone");
  await go(pages.dark, "/service/vod?resource=send");
  await take(pages.dark, "dark");
  await go(pages.light, "/service/vod?resource=send");
  await pages.light.getByLabel("Guarantee", { exact: true }).first().fill("100Mbit/s");
  await pages.light.locator(".preview").waitFor();
  await take(pages.light, "service");
} finally {
  await machine.stop();
}
