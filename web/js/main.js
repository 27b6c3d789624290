// The page: one store, one stream, one view at a time.

import { Api, keepToken, takeToken } from "./api.js";
import { whileUnseen } from "./awake.js";
import { Changes } from "./changes.js";
import { askToken } from "./dialogs.js";
import { add, el, setAttr, setText } from "./dom.js";
import { keys } from "./keys.js";
import { announce, toast } from "./notices.js";
import { Stream } from "./sse.js";
import { Store } from "./store.js";
import { nextTheme, theme } from "./theme.js";
import { duration, size } from "./units.js";
import { auditView } from "./views/audit.js";
import { exportsView } from "./views/exports.js";
import { historyView } from "./views/history.js";
import { linksView } from "./views/links.js";
import { overview } from "./views/overview.js";
import { policyView } from "./views/policy.js";
import { qosView } from "./views/qos.js";
import { serviceView } from "./views/service.js";

const VIEWS = [
  ["", "Overview", overview],
  ["policy", "Policy", policyView],
  ["links", "Interfaces", linksView],
  ["exports", "Exports", exportsView],
  ["history", "History", historyView],
  ["audit", "Audit", auditView],
  ["qos", "QoS", qosView],
];

const store = new Store();
const api = new Api(takeToken());
const app = { api, store, changes: new Changes(api, store), toast, announce, resource: null, reloadConfig: null };

/** Of so many services a picture is large: fewer of them a second. */
const interval = () => (store.services.size > 500 ? "2s" : store.services.size > 150 ? "1s" : "500ms");

let asking = false;
async function wantToken(error) {
  if (asking) return;
  asking = true;
  store.connect("refused", error.message);
  const token = await askToken(
    api.token
      ? `It refused the present one: ${error.message}`
      : "Nobody without one may look or change anything over this address.",
  );
  asking = false;
  if (!token) return;
  api.token = token;
  keepToken(token);
  stream.retry();
}
api.onRefused = wantToken;

let asked = "";
const stream = new Stream(
  (signal) => {
    asked = interval();
    return api.fetch("/events", { query: { interval: asked }, signal });
  },
  {
    event(name, data) {
      if (name === "services") {
        store.takeServices(data);
        if (interval() !== asked) stream.retry();
      } else if (name === "status") {
        if (store.takeStatus(data)) {
          toast("The daemon was started anew, and is connected again.");
          app.reloadConfig?.();
        }
      } else if (name === "audit") {
        store.takeAudit(data);
        tellOthers(data);
      }
    },
    live() {
      if (store.connection.state !== "live") store.connect("live");
    },
    lost(error, retryAt) {
      store.connect("lost", error.message, retryAt);
    },
    refused() {
      // The dialog is on its way by `onRefused`.
    },
  },
);

/** Changes by others are told; own ones were already. */
function tellOthers(entry) {
  if (entry.revision === store.changed.revision || entry.differences.length === 0) return;
  const what = entry.differences
    .map(({ path }) => path.replace(/^services\./, ""))
    .slice(0, 2)
    .join(", ");
  announce(`${entry.actor} changed ${what}`);
}

// The banner

const banner = document.getElementById("banner");
const bannerText = el("span");
const bannerButton = el("button", {
  type: "button",
  class: "small",
  text: "Try now",
  on: {
    click: () => (store.connection.state === "refused" ? wantToken({ message: store.connection.why }) : stream.retry()),
  },
});
add(banner, bannerText, bannerButton);
let countdown = 0;
let wasLost = false;
let lostAt = null;
/** After so long it may well be that the page was one of `bonsai page`, whose address has ended. */
const LONG_MS = 15_000;

function showConnection() {
  clearInterval(countdown);
  const { state, why, retryAt } = store.connection;
  document.body.dataset.connection = state;
  if (state === "live") {
    banner.hidden = true;
    if (wasLost) announce("Connected again.");
    wasLost = false;
    lostAt = null;
    return;
  }
  if (state === "connecting") return;
  wasLost = true;
  banner.hidden = false;
  setText(bannerButton, state === "refused" ? "Enter a token" : "Try now");
  lostAt ??= Date.now();
  const tell = () => {
    const anew =
      Date.now() - lostAt > LONG_MS ? " If it was started anew, `bonsai page` gives the new address." : "";
    const seconds = Math.max(0, Math.ceil((retryAt - Date.now()) / 1000));
    setText(
      bannerText,
      state === "refused"
        ? `The daemon wants a token. ${why}`
        : `Connection lost: ${why}. What you see is old; limits hold as they are.${anew} ${seconds > 0 ? `Next try in ${seconds} s.` : "Trying …"}`,
    );
  };
  tell();
  // Each second of it is for the eye only.
  setAttr(banner, "aria-live", "off");
  if (state === "lost") countdown = setInterval(tell, 1000);
}
let told = "";
store.on("connection", () => {
  showConnection();
  if (store.connection.state !== told && store.connection.state === "lost")
    announce("Connection to the daemon lost. It is tried again by itself.");
  told = store.connection.state;
});
window.addEventListener("online", () => stream.retry());
/** A tab that is left for less than this goes on. */
const UNSEEN_MS = 10_000;
whileUnseen(UNSEEN_MS, {
  asleep() {
    stream.stop();
    store.rest();
  },
  awake: () => stream.start(),
});

// The frame

const nav = document.getElementById("nav");
for (const [path, title] of VIEWS) nav.append(el("a", { href: `#/${path}`, text: title, data: { path } }));

const themeButton = el("button", { type: "button", class: "quiet", on: { click: changeTheme } });
const showTheme = () => {
  setText(themeButton, `◐ ${{ auto: "Auto", light: "Light", dark: "Dark" }[theme()]}`);
  themeButton.setAttribute("aria-label", `Colours: ${theme()}. Change them`);
};
function changeTheme() {
  nextTheme();
  showTheme();
  announce(`Colours: ${theme()}`);
}
showTheme();
const undoButton = el("button", {
  type: "button",
  class: "quiet",
  text: "Undo",
  title: "Undo the last change, whoever made it: it is asked first",
  on: { click: () => app.changes.undo() },
});
add(document.getElementById("tools"), undoButton, themeButton);

const foot = document.getElementById("foot");
const footText = el("span");
const problems = el("ul", { class: "problems", hidden: true });
add(
  foot,
  footText,
  el("button", { type: "button", class: "quiet small", text: "Shortcuts (?)", on: { click: () => shortcuts.help() } }),
);
document.getElementById("main").before(problems);

store.on("status", (status) => {
  document.body.dataset.may = status.may_write ? "write" : "read";
  const kept = status.history.keeping
    ? `history ${size(status.history.bytes)}`
    : `no history${status.history.about ? `: ${status.history.about}` : ""}`;
  setText(
    footText,
    `bonsai ${status.bonsai} · ${status.services} services · ${status.mode} · decides every ${duration(status.period_ms * 1e6)} in ${duration(status.work_ns)} · ${kept}${status.may_write ? "" : " · read only"}`,
  );
  const all = [
    ...status.problems,
    ...(status.history.keeping || !status.history.about ? [] : [`No history is kept: ${status.history.about}`]),
  ];
  problems.hidden = all.length === 0;
  if (problems.dataset.text !== all.join("\n")) {
    problems.dataset.text = all.join("\n");
    problems.replaceChildren(...all.map((text) => el("li", { text })));
  }
});
const showUndo = () => (undoButton.disabled = !store.mayWrite());
for (const topic of ["status", "connection"]) store.on(topic, showUndo);
showUndo();

// Views

const main = document.getElementById("main");
let view = null;

function route() {
  const [path, query = ""] = window.location.hash.replace(/^#\/?/, "").split("?");
  const [head, ...rest] = path.split("/");
  view?.destroy();
  const found = VIEWS.find(([of]) => of === head);
  const parameters = new URLSearchParams(query);
  if (head === "service" && rest.length > 0) {
    let id = rest.join("/");
    try {
      id = decodeURIComponent(id);
    } catch {
      // Typed by hand: it is looked for as it is.
    }
    view = serviceView(app, id);
  } else {
    view = (found ?? VIEWS[0])[2](app, parameters);
  }
  main.replaceChildren(view.element);
  view.shown?.();
  document.title = `${view.title} · Bonsai`;
  for (const link of nav.children)
    setAttr(link, "aria-current", link.dataset.path === (found ? head : "") ? "page" : null);
  // A new view is read from its beginning.
  if (routed) main.focus({ preventScroll: true });
  if (routed) window.scrollTo(0, 0);
  routed = true;
}
let routed = false;
window.addEventListener("hashchange", () => {
  if (/^#token=/.test(window.location.hash)) {
    api.token = takeToken();
    stream.retry();
  }
  route();
});

// The address says which view there is: a jump within the page must not change it.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

const shortcuts = keys({
  // Keys of that time were meant for a cell that does not open, and are not to be done later.
  sleeps: () => store.connection.state !== "live",
  go: (path) => {
    window.location.hash = `#/${path}`;
  },
  filter: () => view.focusFilter?.(),
  choose: (resource) => view.choose?.(resource),
  theme: changeTheme,
  undo: () => !undoButton.disabled && app.changes.undo(),
});

// Whoever leaves the page needs no stream; whoever comes back finds it as it was.
window.addEventListener("pagehide", () => stream.stop());
window.addEventListener("pageshow", (event) => event.persisted && stream.start());

route();
stream.start();
