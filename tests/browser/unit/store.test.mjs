import assert from "node:assert/strict";
import { test } from "node:test";
import { backOff, parser } from "../../../web/js/sse.js";
import { Store } from "../../../web/js/store.js";
import { ALL, Tape } from "../../../web/js/tape.js";

const use = (got, more = {}) => ({
  resource: "send",
  got,
  asked: got,
  share: null,
  max: null,
  min: 0,
  waited: 0,
  waiting: false,
  borrowed: 0,
  weight: 1,
  reason: "",
  enforced: "none",
  ...more,
});
const service = (id, got, settings = {}) => ({
  id,
  settings,
  mode: "dynamic",
  limits: {},
  resources: [use(got)],
  proposals: [],
  problems: [],
});
const picture = (revision, ms, ...services) => ({ revision, unix_ms: ms, services, groups: [] });

test("rings_turn_together", () => {
  const tape = new Tape(3);
  for (let at = 1; at <= 5; at += 1) {
    tape.turn(at * 1000);
    if (at !== 4) tape.write("a", use(at));
    tape.total([{ resources: [use(at)] }, { resources: [use(10)] }]);
  }
  assert.deepEqual(tape.moments(), [3, 4, 5]);
  // What was not told is unknown, and no zero.
  assert.deepEqual(tape.series("a", "send", "got"), [3, null, 5]);
  assert.deepEqual(tape.series(ALL, "send", "got"), [13, 14, 15]);
  assert.deepEqual(tape.series("b", "send", "got"), [null, null, null]);
  assert.equal(tape.first(), 3);
  tape.forget(new Set());
  assert.deepEqual(tape.series("a", "send", "got"), [null, null, null]);
  assert.deepEqual(tape.series(ALL, "send", "got"), [13, 14, 15]);
});

test("what_was_never_used_needs_no_memory", () => {
  const tape = new Tape(4);
  tape.turn(1000);
  tape.write("a", use(0));
  assert.equal(tape.rings.get("a").size, 0);
  tape.write("a", use(0, { max: 5 }));
  assert.equal(tape.rings.get("a").size, 1);
});

test("a_picture_from_before_an_own_change_is_left_out", () => {
  const store = new Store();
  store.takeServices(picture(4, 1000, service("a", 1)));
  const told = [];
  store.on("services", () => told.push(store.services.get("a").settings.send?.max));
  const changed = service("a", 1, { send: { max: "1kB/s" } });
  store.takeChanged({ revision: 5, services: [changed] });
  store.takeServices(picture(4, 1500, service("a", 1)));
  assert.deepEqual(told, ["1kB/s"]);
  assert.equal(store.revision, 5);
  store.takeServices(picture(5, 2000, changed));
  assert.deepEqual(told, ["1kB/s", "1kB/s"]);
});

test("a_daemon_started_anew_is_noticed", () => {
  const store = new Store();
  assert.equal(store.takeStatus({ started_unix_ms: 1, may_write: true }), false);
  assert.equal(store.takeStatus({ started_unix_ms: 1, may_write: true }), false);
  assert.equal(store.takeStatus({ started_unix_ms: 2, may_write: true }), true);
});

test("nothing_is_changed_without_connection_or_right", () => {
  const store = new Store();
  assert.equal(store.mayWrite(), false);
  store.connect("live");
  store.takeStatus({ started_unix_ms: 1, may_write: false });
  assert.equal(store.mayWrite(), false);
  assert.match(store.whyNot(), /may look/);
  store.takeStatus({ started_unix_ms: 1, may_write: true });
  assert.equal(store.mayWrite(), true);
  store.connect("lost", "gone");
  assert.equal(store.mayWrite(), false);
});

test("a_lost_connection_leaves_a_gap", () => {
  const store = new Store();
  store.takeServices(picture(1, 1000, service("a", 5)));
  store.connect("lost");
  store.connect("live");
  store.takeServices(picture(1, Date.now() + 1000, service("a", 5)));
  assert.deepEqual(store.tape.series("a", "send", "got"), [5, null, 5]);
});

test("events_are_read_however_they_are_cut", () => {
  const stream =
    'id: 1\nevent: services\ndata: {"a":\ndata: 1}\n\n: kept alive\n\nevent: status\r\ndata: x\r\n\r\ndata:y\n\nevent: none\n\n';
  const wanted = [
    ["services", '{"a":\n1}', "1"],
    ["status", "x", "1"],
    ["message", "y", "1"],
  ];
  for (let cut = 1; cut <= stream.length; cut += 1) {
    const seen = [];
    const feed = parser((...event) => seen.push(event));
    for (let at = 0; at < stream.length; at += cut) feed(stream.slice(at, at + cut));
    assert.deepEqual(seen, wanted, `pieces of ${cut}`);
  }
});

test("attempts_become_rarer_up_to_a_bound", () => {
  const waits = [1, 2, 3, 4, 5, 6, 20].map((failures) => backOff(failures, 0.5));
  assert.deepEqual(waits, [500, 1000, 2000, 4000, 8000, 8000, 8000]);
  assert.ok(backOff(9, 1) <= 9600);
});
