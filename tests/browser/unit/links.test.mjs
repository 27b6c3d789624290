import assert from "node:assert/strict";
import { test } from "node:test";
import { keyOf, limitText, linkPath, settingOf, shareText } from "../../../web/js/links.js";

const link = (more) => ({
  target: "v1",
  swapped: false,
  namespace: null,
  name: "v1",
  index: 7,
  tx_limit: null,
  rx_limit: null,
  share: null,
  settings: null,
  ...more,
});

test("what_the_other_end_sends_is_limited_where_it_is_received", () => {
  assert.equal(settingOf(link(), "tx"), "tx");
  assert.equal(settingOf(link({ swapped: true }), "tx"), "rx");
  const swapped = link({ swapped: true, settings: { tx: "20Mbit/s" }, rx_limit: 2_500_000 });
  assert.equal(limitText(swapped, "rx"), "20Mbit/s");
  assert.equal(limitText(swapped, "tx"), "");
});

test("limits_are_shown_as_they_would_be_written", () => {
  assert.equal(limitText(link({ tx_limit: 1_000_000 }), "tx"), "8Mbit/s");
  assert.equal(limitText(link({ settings: { tx: "1MB/s" } }), "tx"), "8Mbit/s");
  assert.equal(linkPath("container:web/eth0"), "/links/container%3Aweb%2Feth0");
  assert.equal(shareText({ uplink: "eth0", guarantee: 5e6, ceiling: null, weight: 2 }), "40 Mbit/s weight 2 of eth0");
  assert.equal(shareText(null), "–");
});

test("what_waits_is_not_taken_for_an_interface", () => {
  assert.notEqual(keyOf(link({ index: 0, target: "later" })), keyOf(link({ index: 0, target: "another" })));
  assert.notEqual(keyOf(link({ namespace: "web" })), keyOf(link()));
});
