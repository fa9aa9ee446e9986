// Several seeds as one curve with a band.

import { smooth } from "./chart.js";

// The mean of the middle half; of fewer than four values, of all.
export function interquartileMean(values) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  if (!sorted.length) return NaN;
  const cut = sorted.length < 4 ? 0 : Math.floor(sorted.length / 4);
  const middle = sorted.slice(cut, sorted.length - cut);
  return middle.reduce((a, b) => a + b, 0) / middle.length;
}

// A curve of the server ({ env_steps, seconds, values }) as series for a chart.
// look: x ("env_steps" or "seconds"), width (of smoothing, in points), band ("range", "seeds" or "none").
export function seedSeries(curve, name, colour, { x, width, band }) {
  const seeds = curve.values[0]?.length ?? 0;
  const along = curve[x];
  const columns = Array.from({ length: seeds }, (_, k) => smooth(curve.values.map((row) => row[k] ?? NaN), width));
  const middle = along.map((_, i) => interquartileMean(columns.map((column) => column[i])));
  const made = { name, colour, x: along, y: middle };
  if (seeds > 1 && band === "range") {
    const ends = along.map((_, i) => columns.map((column) => column[i]).filter(Number.isFinite));
    made.low = ends.map((values) => (values.length ? Math.min(...values) : NaN));
    made.high = ends.map((values) => (values.length ? Math.max(...values) : NaN));
  }
  const each = seeds > 1 && band === "seeds" ? columns.map((column, k) => ({ name: `${name} ${k}`, colour, x: along, y: column, thin: true })) : [];
  return [...each, made];
}
