// Chooses dark or light before anything is drawn: not a module, because those run later.
(function () {
  var chosen = null;
  try {
    chosen = window.localStorage.getItem("bonsai-theme");
  } catch (_) {
    // No storage: what the system prefers.
  }
  var dark = chosen === "dark" || (chosen !== "light" && window.matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
