// Parallel coordinates: an axis for each option and one for what came of it, a line for each point.

import { h, s, fill, framed } from "./dom.js";
import { powers, ticks } from "./chart.js";

const [TOP, BOTTOM, SIDE, HEIGHT] = [34, 16, 56, 320];
const NEAR = 24; // pixels within which a line is pointed at

// axes: [{ name, low, high, log, get(point) }], the last one that of the result, which colours the lines.
export class Parallel {
  constructor({ label, onpoint, onchoose }) {
    Object.assign(this, { onpoint, onchoose, points: [], axes: [], chosen: new Set(), pointed: null });
    this.element = h("div.plot.parallel", { role: "img", "aria-label": label });
    this.draw = framed(() => this.drawNow());
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.element);
    this.element.addEventListener("pointermove", (event) => this.point(this.nearest(event)));
    this.element.addEventListener("pointerleave", () => this.point(null));
    this.element.addEventListener("click", (event) => {
      const found = this.nearest(event);
      if (found !== null) this.onchoose(found);
    });
  }

  close() { this.resized.disconnect(); }

  show(axes, points, chosen) {
    Object.assign(this, { axes, points, chosen });
    this.draw();
  }

  point(number) {
    if (number === this.pointed) return;
    this.pointed = number;
    this.mark();
    this.onpoint(number);
  }

  place(axis, value) {
    if (!Number.isFinite(value)) return null;
    const scale = axis.log ? Math.log10 : (each) => each;
    const [low, high] = [scale(axis.low), scale(axis.high)];
    const share = high > low ? (scale(value) - low) / (high - low) : 0.5;
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
  }

  drawNow() {
    const width = Math.round(this.element.clientWidth);
    if (!width || !this.axes.length) return;
    const step = (width - 2 * SIDE) / Math.max(1, this.axes.length - 1);
    this.x = this.axes.map((_, k) => SIDE + k * step);
    const svg = s("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, "aria-hidden": "true" });
    this.paths = new Map();
    this.tracks = new Map();
    const result = this.axes.at(-1);
    for (const point of [...this.points].reverse()) {
      const places = this.axes.map((axis) => this.place(axis, axis.get(point)));
      const drawn = places.map((y, k) => (y === null ? "" : `${k ? "L" : "M"}${this.x[k].toFixed(1)} ${y.toFixed(1)}`)).join("");
      const value = result.get(point);
      const share = Number.isFinite(value) ? (result.high > result.low ? (value - result.low) / (result.high - result.low) : 1) : 0;
      const path = s("path", { class: Number.isFinite(value) ? "way" : "way failed", d: drawn, style: { stroke: `color-mix(in oklab, var(--c1) ${Math.round(100 * share)}%, var(--c2))` } });
      this.tracks.set(point.number, places);
      this.paths.set(point.number, path);
      svg.append(path);
    }
    this.axes.forEach((axis, k) => svg.append(this.axis(axis, this.x[k], k)));
    fill(this.element, svg);
    this.mark();
  }

  axis(axis, x, k) {
    const anchor = k === 0 ? "start" : k === this.axes.length - 1 ? "end" : "middle";
    const home = s("g", {}, s("path", { class: "rod", d: `M${x} ${TOP}V${HEIGHT - BOTTOM}` }),
      s("text", { class: "axis name", x: k === 0 ? 4 : k === this.axes.length - 1 ? x + SIDE - 4 : x, y: 14, "text-anchor": anchor }, axis.name + (axis.log ? " (log)" : "")));
    const marks = axis.high === axis.low ? [axis.low] : axis.log ? powers(Math.log10(axis.low), Math.log10(axis.high)) : ticks(axis.low, axis.high, 5);
    for (const value of marks.length > 1 ? marks : [axis.low, axis.high]) {
      const y = this.place(axis, value);
      const beside = k && k === this.axes.length - 1 ? { x: x + 7, "text-anchor": "start" } : { x: x - 7, "text-anchor": "end" }; // behind the last one are no lines
      home.append(s("path", { class: "rod", d: `M${x - 3} ${y}H${x + 3}` }), s("text", { class: "axis", y: y + 4, ...beside }, brief(value)));
    }
    return home;
  }

  // The lines that are pointed at or chosen stand out; all others step back as long as there is one.
  mark() {
    const some = this.chosen.size > 0 || this.pointed !== null;
    for (const [number, path] of this.paths ?? []) {
      const bright = this.chosen.has(number) || number === this.pointed;
      path.classList.toggle("bright", bright);
      path.classList.toggle("dim", some && !bright);
    }
  }

  nearest(event) {
    if (!this.x) return null;
    const box = this.element.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const k = Math.max(0, Math.min(this.x.length - 2, this.x.findIndex((x) => x > px) - 1));
    if (px < this.x[0] - NEAR || px > this.x.at(-1) + NEAR) return null;
    const share = Math.min(1, Math.max(0, (px - this.x[k]) / ((this.x[k + 1] ?? this.x[k] + 1) - this.x[k])));
    let [found, least] = [null, NEAR];
    for (const [number, places] of this.tracks) {
      const [from, to] = [places[k], places[k + 1] ?? places[k]];
      if (from === null || to === null) continue;
      const far = Math.abs(from + share * (to - from) - py);
      if (far < least) [found, least] = [number, far];
    }
    return found;
  }
}

// A number at an axis, in few letters.
const brief = (value) => (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5) ? value.toExponential(0).replace("e+", "e") : String(Number(value.toPrecision(4)))).replaceAll("-", "−");
