"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
const shades = Object.fromEntries(Object.entries(data.shades[dark ? "dark" : "light"]).map(([name, hex]) => [name, [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16))]));
const colour = (p) => `var(--c${data.colours[p]})`;
const number = (value, digits = 4) => value === null || value === undefined ? "–" : Number(value.toPrecision(digits)).toString().replace("-", "−");
const percent = (value) => `${(100 * value).toFixed(1)} %`;

function make(tag, parent, attributes = {}, text = "") {
  const svg = ["svg", "g", "path", "circle", "line", "text"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text) node.textContent = text;
  parent?.append(node);
  return node;
}

function tip(text, event) {
  const box = $("tip");
  box.style.visibility = text ? "visible" : "hidden";
  if (!text) return;
  box.textContent = text;
  box.style.left = `${Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8)}px`;
  box.style.top = `${Math.min(event.clientY + 14, innerHeight - box.offsetHeight - 8)}px`;
}

function mixed(from, to, share) {
  return from.map((part, k) => Math.round(part + (to[k] - part) * Math.min(1, Math.max(0, share))));
}

const bent = (share) => Math.min(1, Math.max(0, share)) ** data.bend;

// A bar of colours from `low` to `high` below a map, with the numbers at some of its places.
function bar(parent, low, high, shade, ticks, write) {
  const place = (value) => 100 * (value - low) / (high - low);
  const stops = Array.from({ length: 41 }, (_, k) => low + (high - low) * k / 40);
  const box = make("div", parent, { class: "bar", role: "img", "aria-label": `colours from ${write(low)} to ${write(high)}` });
  box.style.background = `linear-gradient(to right, ${stops.map((value) => `rgb(${shade(value)}) ${place(value)}%`).join(",")})`;
  for (const value of ticks) make("span", box, { style: `left: ${place(value)}%` }, write(value));
}

// Every one, two, five, ten ... of `count` places, at most about eight.
function places(count) {
  const step = nice(0, Math.max(count - 1, 1), 8).filter(Number.isInteger);
  return step.filter((at) => at < count);
}

// A map of rows x columns numbers, one pixel an entry, stretched; `say` describes an entry that is pointed at or reached by arrow keys.
// `names` are what its columns and rows are called beside it; `write`, for small maps, what is written into an entry.
function map(parent, rows, columns, shade, say, chosen = () => {}, labels = ["", ""], names = [String, String], write = null) {
  parent.replaceChildren();
  const box = make("div", parent, { class: "map" });
  const canvas = make("canvas", box, { width: columns, height: rows, tabindex: 0, role: "img", "aria-label": `${labels[1]} by ${labels[0]}` });
  canvas.style.aspectRatio = `${Math.max(columns, rows)} / ${rows < columns / 2 ? columns / 2 : Math.max(columns, rows)}`;
  const frame = make("i", box);
  make("span", box, { class: "up" }, labels[1]);
  make("div", parent, { class: "across" }, labels[0]);
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(columns, rows);
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) image.data.set([...shade(i, j), 255], 4 * (i * columns + j));
  pen.putImageData(image, 0, 0);
  for (const j of places(columns)) make("span", box, { class: "tick x", style: `left: ${100 * (j + 0.5) / columns}%` }, names[0](j));
  for (const i of places(rows)) make("span", box, { class: "tick y", style: `top: ${100 * (i + 0.5) / rows}%` }, names[1](i));
  for (let i = 0; write && i < rows; i++) for (let j = 0; j < columns; j++) {
    const [r, g, b] = shade(i, j), ink = 0.3 * r + 0.59 * g + 0.11 * b > 140 ? "#1b1f26" : "#ffffff";
    make("span", box, { class: "cell", style: `left: ${100 * (j + 0.5) / columns}%; top: ${100 * (i + 0.5) / rows}%; color: ${ink}` }, write(i, j));
  }
  let at = [0, 0];
  function go(i, j) {
    at = [Math.min(rows - 1, Math.max(0, i)), Math.min(columns - 1, Math.max(0, j))];
    const wide = canvas.clientWidth / columns, tall = canvas.clientHeight / rows;
    frame.style.cssText = `display:block;left:${at[1] * wide}px;top:${at[0] * tall}px;width:${wide + 2}px;height:${tall + 2}px`;
    return say(...at);
  }
  canvas.addEventListener("pointermove", (event) => {
    const edge = canvas.getBoundingClientRect();
    tip(go(Math.floor((event.clientY - edge.top) / edge.height * rows), Math.floor((event.clientX - edge.left) / edge.width * columns)), event);
  });
  canvas.addEventListener("pointerleave", () => { tip(""); frame.style.display = "none"; });
  canvas.addEventListener("click", () => chosen(...at));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Enter") chosen(...at);
    if (!step) return;
    event.preventDefault();
    go(at[0] + step[0], at[1] + step[1]);
  });
}

function nice(low, high, count) {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough);
  const ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high + 1e-9 * step; at += step) ticks.push(Number(at.toPrecision(12)));
  return ticks;
}

function powers(low, high) {
  const ticks = [];
  for (let power = Math.floor(low); power <= high; power++) for (const k of [1, 2, 5]) ticks.push(k * 10 ** power);
  return ticks.filter((at) => Math.log10(at) >= low && Math.log10(at) <= high);
}

// Series of points {x, y, size, text}, joined by lines or not, and links [[x, y], [x, y]].
function plot(parent, series, across, { wide = 560, log = false } = {}) {
  const points = series.flatMap((one) => one.points);
  if (!points.length) return make("p", parent, {}, "Nothing was measured yet.");
  const tall = 300, edge = { left: 48, right: 10, top: 26, bottom: 34 };
  const scale = log ? Math.log10 : (value) => value;
  const range = (values) => { const low = Math.min(...values), high = Math.max(...values); return low === high ? [low - 0.5, high + 0.5] : [low, high]; };
  const [left, right] = range(points.map((point) => point.x));
  let [low, high] = range(points.map((point) => scale(point.y)));
  const room = 0.06 * (high - low);
  [low, high] = [!log && low >= 0 && low < high / 3 ? 0 : low - room, high + room];
  const x = (value) => edge.left + (value - left) / (right - left) * (wide - edge.left - edge.right);
  const y = (value) => tall - edge.bottom - (scale(value) - low) / (high - low) * (tall - edge.top - edge.bottom);
  const svg = make("svg", parent, { viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": series.map((one) => one.name).join(", ") });
  for (const at of log ? powers(low, high) : nice(low, high, 5)) {
    make("line", svg, { x1: edge.left, x2: wide - edge.right, y1: y(at), y2: y(at), stroke: "var(--grid)" });
    make("text", svg, { x: edge.left - 6, y: y(at) + 4, "text-anchor": "end" }, number(at, 3));
  }
  for (const at of nice(left, right, 8).filter(Number.isInteger)) make("text", svg, { x: x(at), y: tall - 18, "text-anchor": "middle" }, number(at));
  make("text", svg, { x: wide / 2, y: tall - 3, "text-anchor": "middle" }, across);
  series.forEach((one, k) => {
    const ink = colour(k);
    for (const [from, to] of one.links ?? []) make("line", svg, { x1: x(from[0]), y1: y(from[1]), x2: x(to[0]), y2: y(to[1]), stroke: ink, opacity: 0.5 });
    if (one.joined) make("path", svg, { d: one.points.map((point, i) => `${i ? "L" : "M"}${x(point.x)} ${y(point.y)}`).join(""), fill: "none", stroke: ink, "stroke-width": 2 });
    for (const point of one.points) {
      const dot = make("circle", svg, { cx: x(point.x), cy: y(point.y), r: point.size ?? 2.5, fill: ink, opacity: one.joined ? 1 : 0.65 });
      dot.addEventListener("pointermove", (event) => tip(point.text, event));
      dot.addEventListener("pointerleave", () => tip(""));
    }
    make("text", svg, { x: edge.left + 120 * k, y: 12, style: `fill: ${ink}` }, `● ${one.name}`);
  });
}
