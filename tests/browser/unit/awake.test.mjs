import assert from "node:assert/strict";
import { setTimeout as pause } from "node:timers/promises";
import { test } from "node:test";
import { later, whenSeen, whileUnseen } from "../../../web/js/awake.js";

class Page extends EventTarget {
  hidden = false;

  show(seen) {
    this.hidden = !seen;
    this.dispatchEvent(new Event("visibilitychange"));
  }
}

test("what_is_due_in_a_hidden_tab_waits_until_it_is_seen", async () => {
  const page = new Page();
  const done = [];
  later(() => done.push("seen"), 1, page);
  await pause(30);
  assert.deepEqual(done, ["seen"]);
  page.show(false);
  later(() => done.push("hidden"), 1, page);
  const forget = later(() => done.push("forgotten"), 1, page);
  whenSeen(() => done.push("once"), page);
  await pause(30);
  assert.deepEqual(done, ["seen"]);
  forget();
  page.show(true);
  page.show(true);
  assert.deepEqual(done.slice(1).sort(), ["hidden", "once"]);
});

test("a_hidden_tab_sleeps_after_a_while_and_wakes_at_once", async () => {
  const page = new Page();
  const done = [];
  whileUnseen(40, { asleep: () => done.push("asleep"), awake: () => done.push("awake") }, page);
  // Another tab for a moment is no reason.
  page.show(false);
  page.show(true);
  await pause(80);
  assert.deepEqual(done, []);
  page.show(false);
  await pause(80);
  assert.deepEqual(done, ["asleep"]);
  page.show(true);
  assert.deepEqual(done, ["asleep", "awake"]);
});
