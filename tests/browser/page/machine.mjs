// A daemon with services of its own, and a browser that looks at it. Everything is below one
// temporary folder and ends with the tests.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, mkdir, rm, writeFile } from "node:fs/promises";
import http from "node:http";
import { createRequire } from "node:module";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const required = createRequire(path.join(process.env.BONSAI_BROWSER_MODULES, "package.json"));
export const { chromium } = required("playwright-core");
export const AXE = required.resolve("axe-core/axe.min.js");
export const BONSAI = path.join(process.env.BONSAI_BIN_DIR, "bonsai");

/** Sends what it is told to per second, in 8 kB pieces, to itself; and reads as much from /dev/zero. */
const PROGRAM = `
import socket, sys, threading, time
rate = float(sys.argv[1])
a, b = socket.socketpair()
def drain():
    while b.recv(65536):
        pass
threading.Thread(target=drain, daemon=True).start()
zero = open("/dev/zero", "rb", buffering=0)
piece = b"x" * 8192
due = time.monotonic()
while True:
    a.sendall(piece)
    zero.read(8192)
    # Whoever was held back does not catch up: what is asked for stays what it is.
    due = max(due + len(piece) / rate, time.monotonic() - 0.05)
    time.sleep(max(0, due - time.monotonic()))
`;

async function freePort() {
  const server = net.createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  return port;
}

/** Waits until `what` gives something; says what it waited for if it does not. A busy machine is given time. */
export async function until(what, about, seconds = 60) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const found = await Promise.resolve()
      .then(what)
      .catch(() => null);
    if (found) return found;
    if (Date.now() > end) throw new Error(`waited ${seconds} s in vain: ${about}`);
    await sleep(50);
  }
}

/** Goes to a view by `g` and its letter, again if a busy machine let too long pass between the two. */
export async function goByKeys(page, letter, heading) {
  await until(async () => {
    await page.keyboard.press("g");
    await page.keyboard.press(letter);
    await page.getByRole("heading", { name: heading }).waitFor({ timeout: 3000 });
    return true;
  }, `the view ${heading} is there`);
}

export class Machine {
  /** `config` is a bonsai.toml; `services` are `{ name, rate }` (bytes/s; 0 sleeps). */
  static async start({ config = "", services = [] }) {
    const machine = new Machine();
    machine.folder = await mkdtemp(path.join(tmpdir(), "bonsai-page-"));
    machine.children = new Set();
    await mkdir(path.join(machine.folder, "run"), { mode: 0o700 });
    await mkdir(path.join(machine.folder, "state"), { mode: 0o700 });
    machine.env = {
      ...process.env,
      BONSAI_RUNTIME_DIR: path.join(machine.folder, "run"),
      XDG_STATE_HOME: path.join(machine.folder, "state"),
      XDG_CONFIG_HOME: path.join(machine.folder, "config"),
    };
    machine.port = await freePort();
    machine.socket = path.join(machine.folder, "run", "daemon.sock");
    await writeFile(
      path.join(machine.folder, "bonsai.toml"),
      `[daemon]\nstate = ${JSON.stringify(path.join(machine.folder, "state"))}\n${config}`,
    );
    await writeFile(path.join(machine.folder, "program.py"), PROGRAM);
    try {
      await machine.startDaemon();
      machine.token = (await machine.ask("POST", "/v1/tokens", { name: "test", scope: "write" })).token;
      machine.reader = (await machine.ask("POST", "/v1/tokens", { name: "reader", scope: "read" })).token;
      for (const service of services) machine.run(service);
      const running = async () =>
        (await machine.ask("GET", "/v1/services")).services.filter((one) => one.running).length >= services.length;
      await until(running, "all services run", 60);
      machine.browser = await chromium.launch({
        executablePath: process.env.BONSAI_CHROMIUM,
        args: process.getuid() === 0 ? ["--no-sandbox"] : [],
      });
    } catch (error) {
      await machine.stop();
      throw error;
    }
    return machine;
  }

  spawn(args) {
    const child = spawn(BONSAI, args, { env: this.env, stdio: ["ignore", "pipe", "pipe"] });
    child.told = "";
    for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (child.told += data));
    this.children.add(child);
    child.once("exit", () => this.children.delete(child));
    return child;
  }

  run({ name, rate }) {
    const program = rate > 0 ? ["python3", path.join(this.folder, "program.py"), String(rate)] : ["sleep", "600"];
    return this.spawn(["run", "--name", name, "--", ...program]);
  }

  async startDaemon() {
    const args = ["daemon", "--config", path.join(this.folder, "bonsai.toml"), "--listen", `127.0.0.1:${this.port}`];
    this.daemon = this.spawn(args);
    const answers = async () => {
      if (this.daemon.exitCode !== null) throw new Error(this.daemon.told);
      return (await this.ask("GET", "/v1/status")).pid === this.daemon.pid;
    };
    await until(answers, `the daemon answers; it said: ${this.daemon.told}`).catch((error) => {
      throw new Error(`${error.message} ${this.daemon.told}`);
    });
  }

  async stopDaemon(signal = "SIGKILL") {
    const { daemon } = this;
    daemon.kill(signal);
    if (daemon.exitCode === null && daemon.signalCode === null) await once(daemon, "exit");
  }

  /** Asks over the Unix socket, as the user. */
  ask(method, where, body) {
    return new Promise((resolve, reject) => {
      const request = http.request(
        { socketPath: this.socket, method, path: where, headers: { "content-type": "application/json" } },
        (answer) => {
          let text = "";
          answer.on("data", (piece) => (text += piece));
          answer.on("end", () => {
            if (answer.statusCode >= 400) reject(new Error(`${method} ${where}: ${answer.statusCode} ${text}`));
            else resolve(text === "" ? null : JSON.parse(text));
          });
        },
      );
      request.setTimeout(10_000, () => request.destroy(new Error("no answer in 10 s")));
      request.on("error", reject);
      request.end(body === undefined ? undefined : JSON.stringify(body));
    });
  }

  async service(id) {
    return this.ask("GET", `/v1/services/${encodeURIComponent(id)}`);
  }

  async use(id, resource) {
    return (await this.service(id)).resources.find((of) => of.resource === resource);
  }

  /** A page of a new visitor. What the browser complains about is kept in `page.complaints`. */
  async open({ token = this.token, hash = "/", ...context } = {}) {
    const visitor = await this.browser.newContext({ viewport: { width: 1280, height: 900 }, ...context });
    const page = await visitor.newPage();
    page.setDefaultTimeout(15_000);
    page.complaints = [];
    page.on("pageerror", (error) => page.complaints.push(String(error.stack)));
    page.on("console", (message) => {
      if (message.type() === "error" && /Content Security Policy|Refused to/.test(message.text()))
        page.complaints.push(message.text());
    });
    if (process.env.BONSAI_PAGE_FILES) await fromTree(page);
    const start = token === null ? `#${hash}` : `#token=${token}&${hash}`;
    await page.goto(`http://127.0.0.1:${this.port}/${start}`);
    return page;
  }

  async stop() {
    await this.browser?.close().catch(() => {});
    // A `bonsai run` ends its program with itself.
    for (const child of this.children) child.kill("SIGTERM");
    await until(() => this.children.size === 0, "all programs end", 5).catch(() => {
      for (const child of this.children) child.kill("SIGKILL");
    });
    await until(() => this.children.size === 0, "all programs are gone", 5).catch(() => {});
    await rm(this.folder, { recursive: true, force: true });
  }
}

/** Answers with the files of a folder instead of those in the program: for work on the page. */
async function fromTree(page) {
  const kinds = { html: "text/html", js: "text/javascript", css: "text/css", svg: "image/svg+xml" };
  await page.route(
    (url) => !url.pathname.startsWith("/v1"),
    async (route) => {
      const name = new URL(route.request().url()).pathname.slice(1) || "index.html";
      try {
        const { "content-security-policy": policy } = (await route.fetch()).headers();
        const headers = {
          "content-type": kinds[name.split(".").pop()] ?? "text/plain",
          ...(policy ? { "content-security-policy": policy } : {}),
        };
        await route.fulfill({ path: path.join(process.env.BONSAI_PAGE_FILES, name), headers });
      } catch (error) {
        // A page that was closed meanwhile wants nothing any more.
        if (!page.isClosed()) throw error;
      }
    },
  );
}

/** Cells of a row that are not seen as a whole; each has room for a word. */
export const cutCells = (row) =>
  row.evaluate((tr) => {
    const most = document.documentElement.clientWidth;
    const cut = (cell) => {
      const box = cell.getBoundingClientRect();
      const shown = getComputedStyle(cell).display !== "none" && cell.textContent !== "";
      return shown && (box.right > most + 1 || box.left < 0 || box.width < 60 || cell.scrollWidth > cell.clientWidth + 1);
    };
    return [...tr.children].filter(cut).map((cell) => cell.textContent);
  });

/** A phone of 360 pixels. */
export const PHONE = { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true };

/** The rate in a text such as `39.8 Mbit/s`, bytes/s or calls/s. */
export function read(text) {
  const found = /([\d.]+)\s*(k|M|G|T)?(bit|B)?\/s/.exec(text);
  if (!found) return NaN;
  const factor = { k: 1e3, M: 1e6, G: 1e9, T: 1e12 }[found[2]] ?? 1;
  return (Number(found[1]) * factor) / (found[3] === "bit" ? 8 : 1);
}

export { sleep };
