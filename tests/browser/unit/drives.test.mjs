import assert from "node:assert/strict";
import { test } from "node:test";
import { cacheText, groupText, keyOf, mapText, Meter, savedText, whyText } from "../../../web/js/drives.js";

const sharing = {
  reads_saved: 30,
  not_redirected: { not_known: 5, leads: 0, cold: 7, split: 0, raced: 0, wrong: 0 },
  known_blocks: 3000,
  dedup_factor: 1.5,
  metadata_bytes: 60_000,
  metadata_limit: 1e6,
};

test("what_grows_is_told_per_second_and_a_server_started_anew_is_no_loss", () => {
  const meter = new Meter();
  assert.equal(meter.take(1000, 10), null);
  assert.equal(meter.take(1500, 20), 20);
  assert.equal(meter.take(1500, 30), null);
  assert.equal(meter.take(2000, 5), null);
  assert.equal(meter.take(3000, 6), 1);
});

test("reasons_are_told_by_their_number", () => {
  assert.equal(whyText(sharing), "7 cold, 5 not known");
  assert.equal(whyText({ ...sharing, not_redirected: {} }), "–");
  assert.equal(whyText(null), "learns nothing");
  assert.equal(savedText({ reads: 60, sharing }), "30 (50 %)");
  assert.equal(savedText({ reads: 0, sharing }), "30");
  assert.equal(savedText({ reads: 60, sharing: null }), "–");
  assert.equal(mapText(sharing), "12.3 MB known, each content 1.50 times; 60 kB of 1 MB of metadata");
  assert.equal(keyOf({ server: 7, name: "web" }), "7/web");
});

test("estimates_are_told_as_such", () => {
  const cache = { resident_blocks: 300, contents: 200, dedup_factor: 1.5, error: 0.04, one_in: 1 };
  assert.match(cacheText(cache), /1\.23 MB, 819 kB different: each content 1\.50 times\.$/);
  assert.match(cacheText({ ...cache, one_in: 9 }), /each content 1\.50 ± 0\.04 times\.$/);
  assert.equal(cacheText({ ...cache, dedup_factor: null }), "The page cache has none of it.");
  assert.match(cacheText(null), /does not say/);
  const group = { known_blocks: [1000, 500], contents: 900, one_in: 3, cache: null };
  assert.match(groupText(group), /^6\.14 MB known, 3\.69 MB different, by one content in 3\. /);
});
