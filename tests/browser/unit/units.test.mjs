// The same roundings and refusals as the command line has them (crates/bonsai-units).
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  duration,
  forInput,
  parseShare,
  percent,
  rate,
  resolve,
  size,
  step,
  waits,
  written,
} from "../../../web/js/units.js";

test("rates_are_read_in_three_digits", () => {
  const cases = [
    [10e6, "read", "10 MB/s"],
    [1448, "read", "1.45 kB/s"],
    [999_600, "write", "1 MB/s"],
    [0, "read", "0 B/s"],
    [0.5, "read", "0.5 B/s"],
    [10e6, "send", "80 Mbit/s"],
    [125, "recv", "1 kbit/s"],
    [5_562_500, "send", "44.5 Mbit/s"],
    [100, "calls", "100/s"],
    [12_345.6, "calls", "12346/s"],
    [100e9, "read", "100 GB/s"],
  ];
  for (const [value, resource, text] of cases) assert.equal(rate(value, resource), text);
  assert.equal(rate(null, "read"), "–");
});

test("times_sizes_and_parts", () => {
  assert.equal(duration(1_234_000), "1.23 ms");
  assert.equal(duration(90e9), "90 s");
  assert.equal(duration(120e9), "2 min");
  assert.equal(duration(48 * 3600e9), "2 d");
  assert.equal(waits(0.35), "350 ms/s");
  assert.equal(waits(0), "0");
  assert.equal(size(12_345_678), "12.3 MB");
  assert.equal(percent(0.0004), "0.04 %");
  assert.equal(percent(1), "100 %");
});

test("what_is_written_is_read", () => {
  const cases = [
    ["40Mbit/s", "send", { rate: 5e6 }],
    ["40 Mbit/s", "recv", { rate: 5e6 }],
    ["10MB/s", "read", { rate: 10e6 }],
    ["64KiB/s", "write", { rate: 65_536 }],
    ["100/s", "calls", { rate: 100 }],
    ["100calls/s", "calls", { rate: 100 }],
    ["90%", "send", { percent: 90 }],
    ["99.5 %", "calls", { percent: 99.5 }],
    ["none", "read", { none: true }],
    ["  ", "read", { none: true }],
  ];
  for (const [text, resource, wanted] of cases) assert.deepEqual(parseShare(text, resource), wanted, text);
});

test("each_slip_has_its_sentence", () => {
  const cases = [
    ["40", "send", "no unit"],
    ["40Mbit", "send", "no rate"],
    ["1e6B/s", "read", "no rate"],
    ["-4MB/s", "read", "no rate"],
    ["10MB/s", "calls", "this is about calls"],
    ["10/s", "send", "this is about bytes"],
    ["0%", "send", "no percentage"],
    ["101%", "send", "no percentage"],
    ["200GB/s", "read", "highest rate"],
    ["0B/s", "read", "least rate"],
    ["<b>4MB/s</b>", "read", "no rate"],
  ];
  for (const [text, resource, part] of cases) {
    const { error } = parseShare(text, resource);
    assert.ok(error?.includes(part) && error.includes("write "), `${text}: ${error}`);
  }
});

test("what_is_shown_is_what_is_sent", () => {
  // Whatever a handle is dragged to is written with three digits, and means the same when read.
  for (let exponent = 0; exponent < 11; exponent += 0.013) {
    for (const resource of ["read", "send", "calls"]) {
      const text = written(10 ** exponent, resource);
      const back = parseShare(text, resource);
      assert.ok(back.rate > 0, text);
      assert.equal(written(back.rate, resource), text);
    }
  }
});

test("settings_are_shown_in_the_unit_of_their_resource", () => {
  assert.equal(forInput("5MB/s", "send"), "40Mbit/s");
  assert.equal(forInput("40Mbit/s", "read"), "40Mbit/s");
  assert.equal(forInput("5MB/s", "read"), "5MB/s");
  // What three digits cannot say stays as it was written.
  assert.equal(forInput("5123457B/s", "send"), "5123457B/s");
  assert.equal(forInput("90%", "send"), "90%");
  assert.equal(forInput(undefined, "send"), "");
});

test("percentages_are_of_the_capacity", () => {
  assert.equal(resolve("40%", "send", 1000), 400);
  assert.equal(resolve("40%", "send", null), null);
  assert.equal(resolve("8kbit/s", "send", null), 1000);
});

test("a_step_is_always_seen", () => {
  for (const value of [1, 8, 125, 1e6, 1.25e9]) {
    for (const factor of [1.02, 1 / 1.02]) {
      assert.notEqual(written(step(value, factor, "send"), "send"), written(value, "send"), `${value} ${factor}`);
    }
  }
});
