// Maps of numbers, one coloured entry each, as on the pages of populations: the first row on top, blue earns, red loses.

import { h, fill } from "./dom.js";
import { ticks } from "./chart.js";

// Ends of the colour scales, as `shoal.viz.palette` has them.
export const SHADES = {
  light: { none: "#f7f8fa", more: "#205cc8", less: "#c83a2c", weight: "#781c6d" },
  dark: { none: "#1b212a", more: "#5c9dff", less: "#ff7a5c", weight: "#ffbe5c" },
};
export const BEND = 0.7; // small numbers can still be told apart
export const WRITTEN = 8; // rows of the largest map whose entries are written out
const UNKNOWN = [128, 128, 128];

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

function shades() {
  const theme = document.documentElement.dataset.theme;
  return SHADES[theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")];
}

// The colour of a value between -limit and limit, or, of a weight, between 0 and limit.
function coloured(value, limit, kind) {
  if (!Number.isFinite(value)) return UNKNOWN;
  const ends = shades();
  const [from, to] = [rgb(ends.none), rgb(ends[kind ?? (value < 0 ? "less" : "more")])];
  const share = Math.min(1, Math.abs(value) / limit) ** BEND;
  return from.map((part, k) => Math.round(part + (to[k] - part) * share));
}

// A map. rows: lists of numbers, null where none is known. options: label; across and up, words at the axes; kind, the
// colour of weights, else payoffs; limit; bar, the numbers at the colour bar; write(value, i, j), what stands in an
// entry and at the bar; say(i, j), what is told of an entry that is pointed at; choose(i, j), what a click does;
// names(j), the words at a column.
export class NumberMap {
  constructor(options) {
    Object.assign(this, { names: String, kind: null, choose: null, ...options });
    this.canvas = h("canvas", { tabindex: 0, role: "img", "aria-label": this.label });
    this.frame = h("i.map-frame", { hidden: true });
    this.box = h("div.map-box", {}, this.canvas);
    this.bar = h("div.map-bar", { role: "img" });
    this.told = h("p.map-told.muted", { role: "status" });
    this.element = h("div.map", {}, h("span.map-up", {}, this.up), this.box, h("span.map-across", {}, this.across), this.bar, this.told);
    this.listen();
    this.redraw = () => this.draw();
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("themechange", this.redraw);
    this.dark.addEventListener("change", this.redraw);
  }

  close() {
    removeEventListener("themechange", this.redraw);
    this.dark.removeEventListener("change", this.redraw);
  }

  show(rows, limit) {
    this.rows = rows;
    this.limit = limit;
    this.at = this.at && this.at[0] < rows.length && this.at[1] < rows[0].length ? this.at : [0, 0];
    this.draw();
  }

  draw() {
    const [height, width] = [this.rows.length, this.rows[0].length];
    Object.assign(this.canvas, { width, height });
    this.box.style.setProperty("--columns", String(width));
    this.canvas.style.setProperty("aspect-ratio", String(Math.max(0.8, Math.min(2.4, width / height))));
    const pen = this.canvas.getContext("2d");
    const image = pen.createImageData(width, height);
    this.rows.forEach((row, i) => row.forEach((value, j) => image.data.set([...coloured(value, this.limit, this.kind), 255], 4 * (i * width + j))));
    pen.putImageData(image, 0, 0);
    fill(this.box, this.canvas, this.frame, this.marks(width, height), this.entries(width, height));
    this.drawBar();
  }

  marks(width, height) {
    const at = (k, size) => `${(100 * (k + 0.5)) / size}%`;
    return [
      places(width).map((j) => h("span.map-x", { style: { left: at(j, width) } }, this.names(j))),
      places(height).map((i) => h("span.map-y", { style: { top: at(i, height) } }, String(i))),
    ];
  }

  entries(width, height) {
    if (Math.max(width, height) > WRITTEN || this.kind) return [];
    return this.rows.flatMap((row, i) => row.map((value, j) => {
      const [r, g, b] = coloured(value, this.limit, this.kind);
      const ink = 0.3 * r + 0.59 * g + 0.11 * b > 140 ? "#1b1f26" : "#ffffff";
      return h("span.map-entry", { "aria-hidden": "true", style: { left: `${(100 * (j + 0.5)) / width}%`, top: `${(100 * (i + 0.5)) / height}%`, color: ink } }, this.write(value, i, j));
    }));
  }

  drawBar() {
    const low = this.kind ? 0 : -this.limit;
    const place = (value) => (100 * (value - low)) / (this.limit - low);
    const stops = Array.from({ length: 41 }, (_, k) => low + ((this.limit - low) * k) / 40);
    this.bar.setAttribute("aria-label", `Colours from ${this.write(low)} to ${this.write(this.limit)}`);
    this.bar.style.setProperty("background", `linear-gradient(to right, ${stops.map((value) => `rgb(${coloured(value, this.limit, this.kind)}) ${place(value)}%`).join(",")})`);
    const shown = this.kind ? [0, 0.1, 0.25, 0.5, 1] : [-1, -0.5, 0, 0.5, 1];
    fill(this.bar, shown.map((share) => h("span", { style: { left: `${place(share * this.limit)}%` } }, this.write(share * this.limit))));
  }

  go(i, j) {
    const [height, width] = [this.rows.length, this.rows[0].length];
    this.at = [Math.min(height - 1, Math.max(0, i)), Math.min(width - 1, Math.max(0, j))];
    this.frame.hidden = false;
    const place = { left: this.at[1] / width, top: this.at[0] / height, width: 1 / width, height: 1 / height };
    for (const [name, share] of Object.entries(place)) this.frame.style.setProperty(name, `${100 * share}%`);
    const told = this.say(...this.at);
    if (this.told.textContent !== told) this.told.textContent = told;
  }

  listen() {
    const entry = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return [Math.floor(((event.clientY - box.top) / box.height) * this.rows.length), Math.floor(((event.clientX - box.left) / box.width) * this.rows[0].length)];
    };
    this.canvas.addEventListener("pointermove", (event) => this.go(...entry(event)));
    this.canvas.addEventListener("pointerleave", () => { this.frame.hidden = true; });
    this.canvas.addEventListener("click", (event) => {
      this.go(...entry(event));
      this.choose?.(...this.at);
    });
    this.canvas.addEventListener("keydown", (event) => {
      const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (event.key === "Enter") this.choose?.(...this.at);
      if (!by) return;
      event.preventDefault();
      this.go(this.at[0] + by[0], this.at[1] + by[1]);
    });
  }
}

// About eight of so many places, at even distances.
const places = (amount) => (amount < 2 ? [0] : ticks(0, amount - 1, 8).filter((at) => Number.isInteger(at) && at < amount));
