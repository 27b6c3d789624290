import assert from "node:assert/strict";
import { test } from "node:test";
import { unsetText, whoseLimit } from "../../../web/js/owner.js";

test("a_limit_that_is_not_of_the_services_own_settings_says_of_what", () => {
  const use = (by) => ({ limit: { rate: 1e6, by, name: null } });
  assert.equal(whoseLimit(undefined, {}), "");
  assert.equal(whoseLimit({ limit: null }, { max: "8Mbit/s" }), "");
  assert.equal(whoseLimit(use("daemon"), { max: "8Mbit/s" }), "");
  assert.equal(whoseLimit(use("daemon"), { weight: 2 }), "of its group or class");
  assert.equal(whoseLimit(use("daemon"), undefined), "of its group or class");
  assert.match(whoseLimit(use("service"), { max: "8Mbit/s" }), /bonsai run/);
  assert.match(whoseLimit(use("system"), undefined), /root's daemon/);
});

test("a_guarantee_of_the_class_is_not_called_none", () => {
  assert.equal(unsetText(1.25e6, "send"), "10 Mbit/s, not set here");
  assert.equal(unsetText(0, "send"), "none");
  assert.equal(unsetText(null, "read"), "none");
  assert.equal(unsetText(undefined, "read"), "none");
});
