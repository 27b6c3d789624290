// A hidden tab asks for nothing: the daemon makes no picture for it.

/** Calls `done` once the page is seen, at once where it is. Gives the function that takes that back. */
export function whenSeen(done, page = document) {
  if (!page.hidden) {
    done();
    return () => {};
  }
  const shown = () => {
    if (page.hidden) return;
    page.removeEventListener("visibilitychange", shown);
    done();
  };
  page.addEventListener("visibilitychange", shown);
  return () => page.removeEventListener("visibilitychange", shown);
}

/** As setTimeout; a call that is due in a hidden tab waits until the tab is seen. Gives the function that takes it back. */
export function later(done, ms, page = document) {
  let forget = () => {};
  const timer = setTimeout(() => (forget = whenSeen(done, page)), ms);
  return () => {
    clearTimeout(timer);
    forget();
  };
}

/** Calls `asleep` once the page has not been seen for so long, and `awake` when it is seen again after that. */
export function whileUnseen(ms, { asleep, awake }, page = document) {
  let timer = 0;
  let sleeps = false;
  const changed = () => {
    clearTimeout(timer);
    if (page.hidden && !sleeps) {
      timer = setTimeout(() => {
        sleeps = true;
        asleep();
      }, ms);
    } else if (!page.hidden && sleeps) {
      sleeps = false;
      awake();
    }
  };
  page.addEventListener("visibilitychange", changed);
  changed();
}
