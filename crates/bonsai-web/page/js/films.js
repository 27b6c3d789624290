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
    }
  },
  { rootMargin: "200px" },
);

for (const picture of document.querySelectorAll("video[data-film]")) seen.observe(picture);
