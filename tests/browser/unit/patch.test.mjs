import assert from "node:assert/strict";
import { test } from "node:test";
import { diff, equal, isEmpty, merge, tidy } from "../../../web/js/patch.js";

test("merge_patches_are_those_of_rfc_7396", () => {
  // The table of its appendix A, where targets are objects.
  const cases = [
    [{ a: "b" }, { a: "c" }, { a: "c" }],
    [{ a: "b" }, { b: "c" }, { a: "b", b: "c" }],
    [{ a: "b" }, { a: null }, {}],
    [{ a: "b", b: "c" }, { a: null }, { b: "c" }],
    [{ a: ["b"] }, { a: "c" }, { a: "c" }],
    [{ a: "c" }, { a: ["b"] }, { a: ["b"] }],
    [{ a: { b: "c" } }, { a: { b: "d", c: null } }, { a: { b: "d" } }],
    [{ a: [{ b: "c" }] }, { a: [1] }, { a: [1] }],
    [{ e: null }, { a: 1 }, { e: null, a: 1 }],
    [{}, { a: { bb: { ccc: null } } }, { a: { bb: {} } }],
  ];
  for (const [target, patch, wanted] of cases) {
    const before = structuredClone(target);
    assert.deepEqual(merge(target, patch), wanted);
    assert.deepEqual(target, before, "the target is left alone");
  }
});

test("a_difference_leads_from_one_to_the_other", () => {
  let seed = 7;
  const random = (below) => (seed = (seed * 48_271) % 2_147_483_647) % below;
  const make = (depth) => {
    const object = {};
    for (let at = random(4); at > 0; at -= 1) {
      object["abcde"[random(5)]] = depth > 0 && random(2) ? make(depth - 1) : [random(3), "x", true][random(3)];
    }
    return object;
  };
  for (let round = 0; round < 2000; round += 1) {
    const [from, to] = [make(3), make(3)];
    const patch = diff(from, to);
    assert.ok(equal(merge(from, patch), to), JSON.stringify({ from, to, patch }));
    assert.equal(isEmpty(patch), equal(from, to));
  }
});

test("what_is_empty_is_nothing", () => {
  assert.deepEqual(tidy({ a: "", b: undefined, c: { d: "" }, e: 0, f: { g: 1, h: "" }, i: false }), {
    e: 0,
    f: { g: 1 },
    i: false,
  });
});
