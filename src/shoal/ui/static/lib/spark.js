// A small curve without axes.

import { s } from "./dom.js";

const WIDTH = 96;
const HEIGHT = 24;

export function spark(values, label = "") {
  const known = values.filter(Number.isFinite);
  const svg = s("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  if (known.length < 2) return svg;
  let low = Infinity;
  let high = -Infinity;
  for (const each of known) {
    low = Math.min(low, each);
    high = Math.max(high, each);
  }
  const span = high - low || 1;
  const x = (index) => ((index / (values.length - 1)) * WIDTH).toFixed(1);
  const y = (value) => (high > low ? HEIGHT - 2 - ((value - low) / span) * (HEIGHT - 4) : HEIGHT / 2).toFixed(1);
  let path = "";
  let drawing = false;
  values.forEach((value, index) => {
    if (Number.isFinite(value)) path += `${drawing ? "L" : "M"}${x(index)} ${y(value)}`;
    drawing = Number.isFinite(value);
  });
  svg.append(s("path", { d: path }));
  return svg;
}
