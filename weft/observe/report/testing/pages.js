// Runs the script of a page (*.inc) in Node.js, with as much of a browser's document as it uses.
"use strict";
const fs = require("node:fs");
const path = require("node:path");

const ROOT = path.resolve(__dirname, "../../../..");

class Element {
  constructor(name) {
    this.name = name;
    this.attributes = {};
    this.children = [];
    this.style = {};
    this.listeners = {};
    this.classList = { add() {} };
  }
  setAttribute(key, value) { this.attributes[key] = String(value); }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  addEventListener(kind, listener) { this.listeners[kind] = listener; }
  getBoundingClientRect() { return { left: 0, width: 520 }; }
  set textContent(text) { this.children = [text]; }
  get textContent() { return this.children.map((child) => child.textContent ?? String(child)).join(""); }
  // The elements of this name in it.
  all(name) {
    const inside = this.children.filter((child) => child instanceof Element);
    return inside.flatMap((child) => [...(child.name === name ? [child] : []), ...child.all(name)]);
  }
  querySelectorAll() { return this.all("tbody").flatMap((body) => body.all("tr")); }
}

class Document {
  constructor() { this.byId = {}; }
  createElement(name) { return new Element(name); }
  createElementNS(space, name) { return new Element(name); }
  getElementById(id) { return (this.byId[id] ??= new Element(id)); }
  querySelector() { return null; }
}

function textOf(file) {
  return fs.readFileSync(path.join(ROOT, file), "utf8").replace(/^R"html\(/, "").replace(/\)html"\s*$/, "");
}

// The document after the script of the page in `file` has run on `data`. `fetch`: answers requests.
exports.show = (file, data, fetch) => {
  const page = textOf(file), begin = page.lastIndexOf("<script>") + "<script>".length;
  const script = page.slice(begin, page.indexOf("</script>", begin))
    .replace("@CHARTS@", () => textOf("weft/observe/report/internal/charts.inc"));
  const document = new Document();
  document.getElementById("data").textContent = JSON.stringify(data);
  new Function("document", "fetch", "setTimeout", script)(document, fetch, () => {});
  return document;
};

// The texts beside the vertical axis of a chart.
exports.yLabels = (figure) => figure.all("text").filter((text) => text.attributes["text-anchor"] === "end").map((text) => text.textContent);

// The chart of this title.
exports.chartOf = (document, title) => document.getElementById("charts").all("figure").find((figure) => figure.all("figcaption")[0].textContent.startsWith(title));

// Moves the pointer over a chart, and gives the texts of its legend.
exports.pointAt = (figure, x) => {
  figure.all("svg")[0].listeners.pointermove({ clientX: x });
  return figure.all("span").map((span) => span.textContent).slice(1);
};
