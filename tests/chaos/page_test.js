// Tests what the script of the page of `weft chaos` draws.
"use strict";
const assert = require("node:assert");
const test = require("node:test");
const { chartOf, pointAt, show } = require("../../weft/observe/report/testing/pages.js");

function fault(next_step_s) {
  return { kind: "kill", victim: 1, at_s: 1, after_step: 5, reached: true, named_s: 0.1, next_step_s, caught_up_s: next_step_s, redone: 0, problem: "" };
}

function page(...faults) {
  const plan = { name: "dp", ranks: 2, steps: 9, faults, redone_steps: 0, goodput: 1, same_digest: true, passed: true, problems: [],
    settings: [], lanes: [], seconds: 4, progress: [[0.5, 1], [1.5, 2]], undisturbed_progress: [] };
  return show("tests/chaos/internal/page.inc", { command: "weft chaos", exit_code: 0, seed: 1, plans: [plan],
    summary: { recovered: 1, faults: faults.length, by_kind: {}, lost_ranks: { next_step_s: { count: 0 } } } });
}

test("the share of a time counts the faults that nobody recovered from", () => {
  const chart = chartOf(page(fault(0.5), fault(null), fault(0.75), fault(null)), "Fault to next finished step");
  assert.deepEqual(pointAt(chart, 510), ["kill: 50 (0.75 s)"]);
});

test("a time is named in seconds", () => {
  const figures = page(fault(0.5)).getElementById("timelines").all("figure");
  const steps = figures.find((figure) => figure.textContent.includes("dp: steps"));
  assert.deepEqual(pointAt(steps, 510), ["with faults: 2 (1.5 s)"]);
});
