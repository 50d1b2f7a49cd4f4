// Tests what the scripts of the report page and of the live page draw.
"use strict";
const assert = require("node:assert");
const test = require("node:test");
const { chartOf, pointAt, show, yLabels } = require("./testing/pages.js");

const PAGE = "weft/observe/report/internal/page.inc";

function run(series, more) {
  return { name: "a", config: {}, environment: {}, series, median: {}, last: {}, steps: 3, ...more };
}

function report(...runs) {
  return show(PAGE, { runs });
}

function lossesOf(...values) {
  return chartOf(report(run({ loss: values.map((value, i) => [i + 1, value]) })), "Loss");
}

test("a loss that is NaN is shown as NaN and is a gap of its line", () => {
  const series = { loss: [[1, 2], [2, 3], [3, null], [4, 2.5], [5, null]] };
  const page = report(run(series, { last: { loss: null, accuracy: 0.5 } }));
  const cells = page.getElementById("summary").all("td").map((cell) => cell.textContent);
  assert.deepEqual(cells.slice(0, 5), ["a", "–", "3", "NaN", "0.5"]);
  const chart = chartOf(page, "Loss"), [line] = chart.all("path");
  assert.match(line.attributes.d, /^M[^ML]+L[^ML]+M[^ML]+$/);
  assert.equal(chart.all("circle").length, 1, "the point between two gaps");
  assert.ok(yLabels(chart).every((label) => Number(label) >= 2), yLabels(chart).join());
  assert.deepEqual(pointAt(chart, 510), ["loss: NaN (step 5)"]);
});

test("a metric that has only been NaN has no chart", () => {
  assert.equal(lossesOf(null, null), undefined);
});

test("no two lines of several runs look the same", () => {
  const runs = Array.from({ length: 20 }, (_, i) => run({ sent_mb: [[1, 1], [2, i]], shared_mb: [[1, 2], [2, i]] }, { name: `run${i}` }));
  const looks = chartOf(report(...runs), "Communication").all("path").map(({ attributes }) => `${attributes.stroke} ${attributes["stroke-dasharray"]}`);
  assert.equal(looks.length, 40);
  assert.equal(new Set(looks).size, 40, looks.join("\n"));
});

test("the legend has the dash of each line", () => {
  const chart = chartOf(report(run({ loss: [[1, 2]], test_loss: [[1, 3]] })), "Loss");
  const drawn = chart.all("path").map((line) => line.attributes["stroke-dasharray"]);
  assert.equal(new Set(drawn).size, 2);
  const legend = chart.all("line").filter((line) => line.attributes["stroke-dasharray"]);
  assert.deepEqual(legend.map((line) => line.attributes["stroke-dasharray"]), drawn);
});

test("a logarithmic axis without a power of ten has labels", () => {
  const chart = lossesOf(2.1, 4.9);
  chart.replaceWith = (other) => (chart.other = other);
  chart.all("button")[0].listeners.click();
  assert.equal(chart.other.all("button")[0].attributes["aria-pressed"], "true");
  assert.deepEqual(yLabels(chart.other), ["3", "4"]);
});

test("the labels of an axis are exact where its values differ by little", () => {
  assert.deepEqual(yLabels(lossesOf(0.9999, 0.99996, 1)), ["0.9999", "0.99992", "0.99994", "0.99996", "0.99998", "1"]);
  assert.deepEqual(yLabels(lossesOf(12345.1, 12345.5)), ["12,345.1", "12,345.2", "12,345.3", "12,345.4", "12,345.5"]);
  assert.deepEqual(yLabels(lossesOf(1e-5, 3e-5)), ["1.0e-5", "1.5e-5", "2.0e-5", "2.5e-5", "3.0e-5"]);
});

test("values that differ in their last bit are drawn as one", () => {
  assert.ok(yLabels(lossesOf(0.9, 0.9000000000000001)).length < 10);
});

test("the table shows an accuracy below 1 as such", () => {
  const page = report(run({}, { last: { accuracy: 0.99996 } }));
  assert.equal(page.getElementById("summary").all("td")[4].textContent, "0.99996");
});

test("the live page says that there is no run yet, and that there is no answer", async () => {
  const answer = (status, text) => async () => ({ status, ok: status === 200, text: async () => text });
  const states = [];
  for (const fetch of [answer(503, "there is no run yet\n"), answer(500, ""), answer(200, JSON.stringify({ runs: [run({})], running: true }))]) {
    const page = show(PAGE, { live: true }, fetch);
    await new Promise(setImmediate);
    const state = page.getElementById("state");
    states.push([state.className.trim(), state.textContent]);
  }
  assert.deepEqual(states, [["state", "there is no run yet"],
    ["state lost", "no answer: the run has ended, or its launcher"], ["state running", "running, step 3"]]);
});
