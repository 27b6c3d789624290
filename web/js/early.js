// What is done before anything is drawn: not a module, because those run later. Chooses dark or light,
// and loads the page again if a part of it could not be had: a browser on the same machine drops what it
// loads when an interface comes or goes (Chromium's ERR_NETWORK_CHANGED).
(function () {
  var chosen = null;
  try {
    chosen = window.localStorage.getItem("bonsai-theme");
  } catch (_) {
    // No storage: what the system prefers.
  }
  var dark = chosen === "dark" || (chosen !== "light" && window.matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  var again = "bonsai-again";
  function tries() {
    return Number(window.sessionStorage.getItem(again)) || 0;
  }
  var whole = true;
  function missed(event) {
    var part = event.target;
    if (!whole || !part || (part.tagName !== "SCRIPT" && part.tagName !== "LINK")) return;
    whole = false;
    try {
      if (tries() >= 5) return;
      window.sessionStorage.setItem(again, String(tries() + 1));
    } catch (_) {
      // Without storage nobody could tell how often.
      return;
    }
    window.setTimeout(function () {
      window.location.reload();
    }, 500);
  }
  window.addEventListener("error", missed, true);
  window.addEventListener("load", function () {
    window.removeEventListener("error", missed, true);
    try {
      if (whole) window.sessionStorage.removeItem(again);
    } catch (_) {
      // Then nothing was counted.
    }
  });
})();
