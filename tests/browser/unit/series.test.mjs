import assert from "node:assert/strict";
import { test } from "node:test";
import { columnsOf, remainder, stack } from "../../../web/js/series.js";
import { inOrder, summary } from "../../../web/js/tree.js";

test("a_stack_rests_on_what_is_known", () => {
  assert.deepEqual(
    stack([
      [1, null, 3],
      [10, 20, null],
      [null, null, null],
    ]),
    [
      [1, null, 3],
      [11, 20, 3],
      [11, 20, 3],
    ],
  );
  assert.deepEqual(
    remainder(
      [10, null, 5],
      [
        [1, null, 2],
        [4, null, 3],
      ],
    ),
    [5, null, 0],
  );
});

test("a_gap_in_the_past_is_a_gap_in_the_line", () => {
  const point = (unix_ms, got) => ({ unix_ms, got, limit: null });
  const { times, columns } = columnsOf({ step_ms: 1000, points: [point(1000, 1), point(2000, 2), point(9000, 3)] }, [
    "got",
    "limit",
  ]);
  assert.deepEqual(times, [1, 2, 3, 9]);
  assert.deepEqual(columns, [
    [1, 2, null, 3],
    [null, null, null, null],
  ]);
});

test("groups_stand_in_the_order_of_their_tree", () => {
  const groups = {
    b: { parent: "a" },
    a: {},
    c: { parent: "b" },
    d: { parent: "gone" },
    x: { parent: "y" },
    y: { parent: "x" },
  };
  const order = inOrder(groups);
  assert.deepEqual(order.slice(0, 4), [
    { name: "a", depth: 0 },
    { name: "b", depth: 1 },
    { name: "c", depth: 2 },
    { name: "d", depth: 0 },
  ]);
  // A loop is refused by the daemon; shown it would be once all the same.
  assert.deepEqual(
    order
      .slice(4)
      .map(({ name }) => name)
      .sort(),
    ["x", "y"],
  );
  assert.equal(
    summary({ send: { min: "5MB/s", weight: 3 }, mode: "static" }),
    "static; send at least 40Mbit/s, weight 3",
  );
  assert.equal(summary({}), "nothing of its own");
});
