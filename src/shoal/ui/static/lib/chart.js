// Curves with bands, drawn as SVG: they follow the theme by themselves, and can be saved as they are.

import { h, s, fill, framed, say } from "./dom.js";
import { count, duration, number } from "./format.js";
import { menu, save } from "./parts.js";

const LEFT = 8; // between the numbers of the axis and the curves
const TOP = 8;
const BOTTOM = 24;
const RIGHT = 10;
const LETTER = 6.4; // width of a digit of the axes

// Steps of 1, 2 or 5 times a power of ten, about `wanted` of them between low and high; two at least, as one tells no scale.
export function ticks(low, high, wanted) {
  const raw = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const steps = [0.1, 0.2, 0.5, 1, 2, 5, 10].map((each) => each * power);
  const widest = steps.findLast((each) => Math.floor(high / each + 1e-9) > Math.ceil(low / each - 1e-9));
  const step = Math.min(steps.find((each) => each >= raw) ?? raw, widest ?? raw);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  return found;
}

// Values of 1, 2 and 5 times powers of ten between 10^low and 10^high; of a wide range, the powers alone.
export function powers(low, high) {
  const found = [];
  const parts = high - low > 2.5 ? [1] : [1, 2, 5];
  for (let power = Math.floor(low); power <= high; power++) for (const part of parts) found.push(part * 10 ** power);
  return found.filter((value) => Math.log10(value) >= low && Math.log10(value) <= high);
}

function axisNumber(value, step) {
  if (Math.abs(value) >= 1e4) return count(value);
  const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)));
  return value.toFixed(digits).replace("-", "−");
}

// The centred mean over `width` points. Near the ends the window shrinks on both sides, so that no end is bent.
export function smooth(values, width) {
  const half = Math.floor(width / 2);
  if (half < 1) return values;
  const sums = [0];
  const known = [0];
  for (const value of values) {
    const there = Number.isFinite(value);
    sums.push(sums.at(-1) + (there ? value : 0));
    known.push(known.at(-1) + (there ? 1 : 0));
  }
  return values.map((value, i) => {
    const reach = Math.min(half, i, values.length - 1 - i);
    const amount = known[i + reach + 1] - known[i - reach];
    return Number.isFinite(value) && amount ? (sums[i + reach + 1] - sums[i - reach]) / amount : value;
  });
}

// A chart. series: [{ name, colour, x, y, low, high, thin }], arrays of one length; low and high make a band.
// options: title, format of y, unit of x ("steps", "seconds" or words), height, group (charts that point together),
// log (a logarithmic axis of y, for values above 0).
// With `pick(x)`, dragging chooses a place along the chart instead of zooming, and `step(by)` answers the arrow keys;
// `mark(places, chosen)` puts dots on the first curve.
export class Chart {
  constructor({ title = "", unit = "steps", height = 210, group = null, range = null, log = false, label = title, file = title, pick = null, step = null } = {}) {
    Object.assign(this, { unit, height, group, range, log, label, file, pick, step });
    this.series = [];
    this.dots = { places: [], chosen: null };
    this.hidden = new Set();
    this.zoom = null;
    this.title = h("h3", {}, title);
    this.legend = h("div.legend");
    this.plot = h("div.plot", { tabindex: 0, role: "img", "aria-label": label });
    this.tip = h("div.tip", { hidden: true });
    this.element = h("figure.chart", {},
      h("figcaption", {}, this.title, this.legend, menu("save", `Save ${label}`, [
        ["SVG", () => this.saveSvg()], ["PNG", () => this.savePng()], ["CSV", () => this.saveCsv()]])),
      h("div.plot-home", {}, this.plot, this.tip));
    this.draw = framed(() => this.drawNow());
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.plot);
    this.listen();
    group?.add(this);
  }

  close() {
    this.resized.disconnect();
    this.group?.delete(this);
  }

  show(series, unit = this.unit) {
    this.series = series;
    this.unit = unit;
    this.drawLegend();
    this.draw();
  }

  mark(places, chosen) {
    this.dots = { places, chosen };
    this.draw();
  }

  drawLegend() {
    const several = this.series.filter((one) => !one.thin && one.name);
    if (several.length < 2) return fill(this.legend);
    return fill(this.legend, several.map((one) =>
      h("button.key", { type: "button", "aria-pressed": String(!this.hidden.has(one.name)), style: { color: `var(--c${one.colour})` }, onclick: () => this.toggle(one.name) },
        h("i.swatch"), h("span", {}, one.name))));
  }

  toggle(name) {
    this.hidden.has(name) ? this.hidden.delete(name) : this.hidden.add(name);
    this.drawLegend();
    this.draw();
  }

  get visible() { return this.series.filter((one) => !this.hidden.has(one.name)); }

  measure(width) {
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { x, y, low, high } of this.visible) {
      for (let i = 0; i < x.length; i++) {
        if (this.zoom && (x[i] < this.zoom[0] || x[i] > this.zoom[1])) continue;
        x0 = Math.min(x0, x[i]);
        x1 = Math.max(x1, x[i]);
        for (const value of [y[i], low?.[i], high?.[i]]) {
          if (!Number.isFinite(value) || (this.log && value <= 0)) continue;
          y0 = Math.min(y0, value);
          y1 = Math.max(y1, value);
        }
      }
    }
    if (!(x1 >= x0) || !(y1 >= y0)) return null;
    for (const x of this.dots.places) [x0, x1] = [Math.min(x0, x), Math.max(x1, x)];
    if (this.zoom) [x0, x1] = this.zoom;
    const scale = this.log ? Math.log10 : (value) => value;
    [y0, y1] = [scale(y0), scale(y1)];
    if (this.range) [y0, y1] = this.range.map(scale);
    else {
      const room = y1 > y0 ? 0.06 * (y1 - y0) : Math.abs(y0) * 0.1 || 0.5;
      [y0, y1] = [y0 - room, y1 + room];
    }
    if (x1 === x0) x1 = x0 + 1;
    const rows = this.log ? powers(y0, y1) : ticks(y0, y1, this.height / 42);
    const step = rows.length > 1 ? rows[1] - rows[0] : 1;
    const words = rows.map((value) => (this.log ? String(Number(value.toPrecision(3))).replace("-", "−") : axisNumber(value, step)));
    const left = Math.max(...words.map((word) => word.length), 2) * LETTER + LEFT;
    const inner = { left, right: width - RIGHT, top: TOP, bottom: this.height - BOTTOM };
    const toX = (value) => inner.left + ((value - x0) / (x1 - x0)) * (inner.right - inner.left);
    const toY = (value) => inner.bottom - (((this.log && value <= 0 ? y0 : scale(value)) - y0) / (y1 - y0)) * (inner.bottom - inner.top);
    return { x0, x1, y0, y1, rows, words, inner, toX, toY };
  }

  drawNow() {
    const width = Math.round(this.plot.clientWidth);
    if (!width) return;
    const frame = this.frame = this.measure(width);
    if (!frame) {
      fill(this.plot, h("p.nothing", {}, "No values yet"));
      return;
    }
    const { inner, rows, words, toX, toY, x0, x1 } = frame;
    const svg = s("svg", { width, height: this.height, viewBox: `0 0 ${width} ${this.height}`, "aria-hidden": "true" });
    rows.forEach((value, i) => {
      const y = Math.round(toY(value)) + 0.5;
      svg.append(s("path", { class: value === 0 ? "zero" : "grid", d: `M${inner.left} ${y}H${inner.right}` }),
        s("text", { class: "axis", x: inner.left - LEFT + 2, y: y + 3.5, "text-anchor": "end" }, words[i]));
    });
    for (const value of ticks(x0, x1, (inner.right - inner.left) / 72)) {
      const x = toX(value);
      if (x > inner.right + 1) continue;
      const anchor = x > inner.right - 16 ? "end" : x < inner.left + 8 ? "start" : "middle";
      svg.append(s("text", { class: "axis", x, y: this.height - 7, "text-anchor": anchor }, this.xWords(value, (x1 - x0) / 5)));
    }
    const clip = `clip-${Math.random().toString(36).slice(2)}`;
    svg.append(s("clipPath", { id: clip }, s("rect", { x: inner.left, y: 0, width: Math.max(0, inner.right - inner.left + 2), height: inner.bottom + 4 })));
    const home = s("g", { "clip-path": `url(#${clip})` });
    for (const one of this.visible) if (one.low) home.append(s("path", { class: "band", d: area(one, toX, toY), style: { fill: `var(--c${one.colour})` } }));
    for (const one of this.visible) {
      home.append(s("path", { class: one.thin ? "curve thin" : "curve", d: line(one.x, one.y, toX, toY), style: { stroke: `var(--c${one.colour})` } }));
    }
    this.marks = s("g", { class: "marks" });
    svg.append(home, this.drawDots(frame), this.marks);
    fill(this.plot, svg);
    if (this.at !== undefined) this.point(this.at, this.pointed);
  }

  drawDots({ toX, toY, inner }) {
    const { places, chosen } = this.dots;
    const first = this.visible.find((one) => !one.thin && one.x.length);
    const home = s("g", { class: "dots" });
    if (!first) return home;
    if (chosen !== null) home.append(s("path", { class: "now", d: `M${toX(chosen).toFixed(1)} ${inner.top}V${inner.bottom}` }));
    for (const place of places) {
      const value = first.y[nearest(first.x, place)];
      if (Number.isFinite(value)) home.append(s("circle", { class: place === chosen ? "here" : "", cx: toX(place).toFixed(1), cy: toY(value).toFixed(1), r: place === chosen ? 6 : 3.5, style: { fill: `var(--c${first.colour})` } }));
    }
    return home;
  }

  xWords(value, step) {
    if (this.unit === "seconds") return step < 1 ? `${axisNumber(value, step)} s` : duration(value);
    return Math.abs(value) >= 1e3 ? count(value) : axisNumber(value, step || 1);
  }

  // Pointing: a line through all charts of the group, with the values there in this one.
  listen() {
    const position = (event) => {
      const box = this.plot.getBoundingClientRect();
      const { inner, x0, x1 } = this.frame;
      const share = (event.clientX - box.left - inner.left) / (inner.right - inner.left);
      return x0 + Math.min(1, Math.max(0, share)) * (x1 - x0);
    };
    let from = null;
    this.plot.addEventListener("pointermove", (event) => {
      if (!this.frame) return;
      const value = position(event);
      if (from !== null && this.pick) this.pick(value);
      else if (from !== null) this.drag = [from, value];
      this.tell(value);
    });
    this.plot.addEventListener("pointerleave", () => { if (from === null) this.tell(undefined); });
    this.plot.addEventListener("pointerdown", (event) => {
      if (!this.frame || event.button) return;
      from = position(event);
      this.plot.setPointerCapture(event.pointerId);
      this.pick?.(from);
    });
    this.plot.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const [low, high] = [Math.min(from, position(event)), Math.max(from, position(event))];
      from = this.drag = null;
      const least = (this.frame.x1 - this.frame.x0) * 0.02;
      if (high - low > least && !this.pick) this.zoomAll([low, high]);
    });
    this.plot.addEventListener("dblclick", () => this.zoomAll(null));
    this.plot.addEventListener("blur", () => this.tell(undefined));
    this.plot.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const first = this.visible.find((one) => !one.thin);
      if (event.key === "Escape" && this.zoom) this.zoomAll(null);
      if (!by || !first) return undefined;
      event.preventDefault();
      if (this.step) return this.step(by);
      const now = this.at === undefined ? first.x.length - 1 + (by < 0 ? 1 : -1) : nearest(first.x, this.at);
      return this.tell(first.x[Math.min(Math.max(now + by, 0), first.x.length - 1)]);
    });
  }

  tell(value) {
    for (const chart of this.group ?? [this]) if (chart.unit === this.unit) chart.point(value, chart === this);
  }

  zoomAll(range) {
    for (const chart of this.group ?? [this]) {
      chart.zoom = range;
      chart.draw();
    }
  }

  point(value, own) {
    this.at = value;
    this.pointed = own;
    if (!this.marks || !this.frame) return;
    if (value === undefined || value < this.frame.x0 || value > this.frame.x1) {
      fill(this.marks);
      this.tip.hidden = true;
      return;
    }
    const { inner, toX, toY } = this.frame;
    const x = toX(value);
    const marks = [s("path", { class: "cursor", d: `M${x.toFixed(1)} ${inner.top}V${inner.bottom}` })];
    if (this.drag) {
      const [a, b] = this.drag.map(toX);
      marks.push(s("rect", { class: "drag", x: Math.min(a, b), y: inner.top, width: Math.abs(b - a), height: inner.bottom - inner.top }));
    }
    const rows = [];
    for (const one of this.visible) {
      if (one.thin || !one.x.length || value > one.x.at(-1) + (this.frame.x1 - this.frame.x0) * 0.01) continue;
      const i = nearest(one.x, value);
      if (!Number.isFinite(one.y[i])) continue;
      marks.push(s("circle", { cx: toX(one.x[i]).toFixed(1), cy: toY(one.y[i]).toFixed(1), r: 3.2, style: { fill: `var(--c${one.colour})` } }));
      rows.push([one, i]);
    }
    fill(this.marks, marks);
    this.tip.hidden = !own || !rows.length;
    if (!this.tip.hidden) this.drawTip(rows, value, x);
  }

  drawTip(rows, value, x) {
    const unit = this.unit === "steps" ? `${Math.round(value).toLocaleString("en")} steps` : this.unit === "seconds" ? duration(value) : `${this.unit} ${number(value)}`;
    const shown = [...rows].sort(([a, i], [b, j]) => b.y[j] - a.y[i]).slice(0, 14);
    fill(this.tip, h("b", {}, unit), shown.map(([one, i]) => [
      h("i.swatch", { style: { color: `var(--c${one.colour})` } }), h("span", {}, one.name || "value"),
      h("span.right", {}, number(one.y[i])),
      h("span.muted", {}, one.low && Number.isFinite(one.low[i]) ? `${number(one.low[i])} to ${number(one.high[i])}` : "")]));
    const width = this.plot.clientWidth;
    const left = x + 14 + this.tip.offsetWidth > width ? Math.max(0, x - 14 - this.tip.offsetWidth) : x + 14;
    this.tip.style.setProperty("translate", `${left}px 0`);
  }

  // Saving
  svgText() {
    this.point(undefined, false);
    const drawn = this.plot.querySelector("svg");
    const copy = drawn.cloneNode(true);
    const from = [...drawn.querySelectorAll("*")];
    [...copy.querySelectorAll("*")].forEach((each, i) => {
      const look = getComputedStyle(from[i]);
      each.removeAttribute("class");
      each.removeAttribute("style");
      for (const name of ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-size", "font-family"]) {
        const value = look.getPropertyValue(name);
        if (value && (name !== "font-family" && name !== "font-size" || each.tagName === "text")) each.setAttribute(name, value);
      }
    });
    const background = getComputedStyle(document.documentElement).getPropertyValue("--arena");
    const shade = h("i", { style: { color: background || "white" } });
    document.body.append(shade);
    copy.prepend(s("rect", { width: "100%", height: "100%", fill: getComputedStyle(shade).color }));
    shade.remove();
    return new XMLSerializer().serializeToString(copy);
  }

  saveSvg() { save(`${fileName(this.file)}.svg`, this.svgText(), "image/svg+xml"); }

  async savePng() { save(`${fileName(this.file)}.png`, await toPng(this.svgText(), this.plot.clientWidth, this.height)); }

  csvText() {
    const rows = [["name", this.unit, "value", "low", "high"]];
    for (const { name, x, y, low, high } of this.series) x.forEach((at, i) => rows.push([name, at, y[i], low?.[i], high?.[i]]));
    return rows.map((row) => row.map(csvCell).join(",")).join("\n") + "\n";
  }

  saveCsv() { save(`${fileName(this.file)}.csv`, this.csvText(), "text/csv"); }
}

// An SVG as a PNG of twice its size.
export async function toPng(text, width, height) {
  const picture = new Image();
  picture.src = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  await picture.decode();
  const canvas = h("canvas", { width: width * 2, height: height * 2 });
  canvas.getContext("2d").drawImage(picture, 0, 0, width * 2, height * 2);
  URL.revokeObjectURL(picture.src);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

export const fileName = (text) => text.replace(/[^\w.-]+/g, "_").slice(0, 80) || "chart";

const csvCell = (value) => (value === null || value === undefined ? "" : /[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));

function line(x, y, toX, toY) {
  let path = "";
  let drawing = false;
  for (let i = 0; i < x.length; i++) {
    const there = Number.isFinite(y[i]);
    if (there) path += `${drawing ? "L" : "M"}${toX(x[i]).toFixed(1)} ${toY(y[i]).toFixed(1)}`;
    drawing = there;
  }
  return path;
}

function area({ x, low, high }, toX, toY) {
  const there = x.map((_, i) => i).filter((i) => Number.isFinite(low[i]) && Number.isFinite(high[i]));
  if (there.length < 2) return "";
  const up = there.map((i) => `${toX(x[i]).toFixed(1)} ${toY(high[i]).toFixed(1)}`);
  const down = there.reverse().map((i) => `${toX(x[i]).toFixed(1)} ${toY(low[i]).toFixed(1)}`);
  return `M${up.join("L")}L${down.join("L")}Z`;
}

export function nearest(sorted, value) {
  let [low, high] = [0, sorted.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    sorted[middle] <= value ? (low = middle) : (high = middle);
  }
  return value - sorted[low] < sorted[high] - value ? low : high;
}
