// Pictures of films in their list: the browser takes them from the files, and only of films that are in view.

/** Where in a film its picture is, s: not at the beginning, which is often black. */
const AT = 5;

const seen = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      target.preload = "metadata";
      target.src = `${target.dataset.film}#t=${AT}`;
      target.addEventListener("error", () => target.removeAttribute("src"), { once: true });
      if (target.dataset.facts) tell(target).catch(() => {});
    }
  },
  { rootMargin: "200px" },
);

/** What of a film is not sent, below its name. */
async function tell(picture) {
  const answer = await fetch(picture.dataset.facts);
  const facts = await answer.json();
  const lines = answer.ok
    ? [
        ...facts.not_over_rtsp.map((what) => `${facts.is_over_rtsp ? "Not over RTSP" : "Nothing over RTSP"}: ${what}`),
        ...facts.not_as_hls.map((what) => `Not in the browser: ${what}`),
      ]
    : [`Not in the browser: ${facts.error}`];
  for (const line of lines) {
    const note = document.createElement("div");
    note.className = "hint";
    note.textContent = line;
    picture.closest("tr").cells[1].append(note);
  }
}

for (const picture of document.querySelectorAll("video[data-film]")) seen.observe(picture);
