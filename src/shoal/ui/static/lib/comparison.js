// The parts of a comparison: learning curves, final performance, profile, probabilities, settings that differ.

import { h, s } from "./dom.js";
import { NONE, number, setting } from "./format.js";
import { Chart, fileName, ticks, toPng } from "./chart.js";
import { menu, save, scroller } from "./parts.js";

const COLOURS = [1, 2, 3, 4, 5, 6, 7, 0];

// A colour for each group, the same in all environments.
export const coloursOf = (groups) => new Map(groups.map((group, i) => [group, COLOURS[i % COLOURS.length]]));

// One environment, or all together. look: { found, colours, charts, saveTable }; without saveTable, no table is offered.
export function comparisonPanel(panel, look) {
  const { found, colours, charts } = look;
  const groups = Object.keys(panel.final);
  const curves = new Chart({ title: found.metric, height: 300, file: `${panel.name}-curves`, label: `${found.metric} in ${panel.name}: interquartile mean and 95 % interval`, group: charts });
  curves.show(groups.filter((group) => panel.curves[group]).map((group) => {
    const { env_steps: x, iqm: y, low, high } = panel.curves[group];
    return { name: group, colour: colours.get(group), x, y, low, high };
  }));
  const profile = new Chart({ title: "Performance profile", height: 240, unit: "score", range: [0, 1.02], label: `Performance profile in ${panel.name}: part of the seeds above a score`, file: `${panel.name}-profile` });
  charts.add(profile);
  profile.show(groups.map((group) => {
    const { thresholds: x, part: y, low, high } = panel.profiles[group];
    return { name: group, colour: colours.get(group), x, y, low, high };
  }));
  return h("section.panel-home", { "aria-label": panel.name },
    h("div.head", {}, h("h2", {}, panel.name), h("span.muted", {}, "interquartile means over seeds, with 95 % intervals by stratified bootstrap")),
    panel.no_curves ? h("p.notice", {}, panel.no_curves) : h("div.card", {}, curves.element),
    finals(panel, groups, look),
    h("div.pair", {}, h("div.card", {}, profile.element), groups.length > 1 ? improvement(panel.improvement, look) : null));
}

function finals(panel, groups, { found, colours, saveTable }) {
  const rows = groups.map((group) => [group, panel.final[group]]).sort(([, a], [, b]) => b.iqm - a.iqm);
  const ends = rows.flatMap(([, one]) => [one.worst, one.best, one.low ?? one.iqm, one.high ?? one.iqm]);
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const place = (value) => `${(100 * ((value - low) / (high - low || 1))).toFixed(2)}%`;
  const body = rows.map(([group, one]) => {
    const colour = `var(--c${colours.get(group)})`;
    const strip = h("div.strip", { role: "img", style: { color: colour }, "aria-label": `${group}: ${number(one.iqm)}` },
      h("i.reach", { style: { left: place(one.worst), right: `calc(100% - ${place(one.best)})` } }),
      one.low === null ? null : h("i.interval", { style: { left: place(one.low), right: `calc(100% - ${place(one.high)})` } }),
      h("i.dot", { style: { left: place(one.iqm) } }));
    const name = h("span", { title: (found.members[group] ?? []).join("\n") }, group);
    return h("tr", {}, h("th", { scope: "row" }, h("span.group-name", {}, h("i.swatch", { style: { color: colour } }), name)),
      h("td.right.strong", {}, number(one.iqm)), h("td.right", {}, one.low === null ? NONE : `${number(one.low)} to ${number(one.high)}`), h("td.strip-cell", {}, strip),
      ["mean", "median", "worst", "best"].map((key) => h("td.right.more", {}, number(one[key]))),
      h("td.right.few", {}, String(one.seeds)), h("td.right.more", {}, String(one.runs)));
  });
  const heads = [["Group"], ["IQM", "right"], ["95 % interval", "right"], ["Worst to best seed", "strip-cell"], ["Mean", "right more"], ["Median", "right more"],
    ["Worst", "right more"], ["Best", "right more"], ["Seeds", "right few"], ["Runs", "right more"]];
  const pictures = ["SVG", "PNG"].map((kind) => [kind, () => saveFinals(panel, rows, colours, found.metric, kind.toLowerCase())]);
  const tables = saveTable ? [["CSV", () => saveTable("final.csv")], ["LaTeX", () => saveTable("final.tex")]] : [];
  return h("div.card", {},
    h("div.card-head", {}, h("h3", {}, "Final performance"), h("span.muted", {}, found.judged), menu("save", `Save final performance in ${panel.name}`, [...pictures, ...tables])),
    scroller(`Final performance in ${panel.name}`, "", h("table.table.final", {}, h("thead", {}, h("tr", {}, heads.map(([text, look = ""]) => h("th", { scope: "col", class: look }, text)))), h("tbody", {}, body))));
}

function improvement({ groups, probability, low, high }, { saveTable }) {
  const cell = (i, j) => {
    if (i === j) return h("td.self", {}, "");
    const value = probability[i][j];
    const shade = `color-mix(in srgb, var(--${value >= 0.5 ? "c1" : "c4"}) ${Math.round(Math.abs(value - 0.5) * 64)}%, transparent)`;
    const interval = low[i][j] === null ? "too few seeds for an interval" : `95 % interval: ${low[i][j].toFixed(2)} to ${high[i][j].toFixed(2)}`;
    return h("td", { style: { background: shade }, title: interval }, value.toFixed(2));
  };
  return h("div.card.improvement-home", {},
    h("div.card-head", {}, h("h3", {}, "Probability of improvement"), h("span.muted", {}, "of a seed of the row over one of the column"),
      saveTable ? menu("save", "Save probabilities", [["CSV", () => saveTable("improvement.csv")]]) : null),
    scroller("Probability of improvement", "", h("table.matrix", {},
      h("thead", {}, h("tr", {}, h("td"), groups.map((group) => h("th", { scope: "col", title: group }, group)))),
      h("tbody", {}, groups.map((group, i) => h("tr", {}, h("th", { scope: "row", title: group }, group), groups.map((_, j) => cell(i, j))))))));
}

// Settings that are not the same in all runs; with many runs, the values alone.
export function settingsDiffering({ settings, runs }) {
  const names = Object.keys(settings);
  if (!names.length || runs.length < 2) return null;
  const few = runs.length <= 8;
  const open = few && names.length <= 20;
  const heads = few ? runs.map(({ name }) => h("th", { scope: "col", title: name }, name)) : h("th", { scope: "col" }, "Values");
  const values = (name) => (few ? settings[name].map((value) => h("td", {}, setting(value))) : h("td", {}, [...new Set(settings[name].map(setting))].slice(0, 12).join(", ")));
  return h("details.section", { open }, h("summary", {}, h("h2", {}, "Settings that differ"), h("span.muted", {}, String(names.length))),
    scroller("Settings that differ", ".card", h("table.table.settings.many", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Setting"), heads)),
      h("tbody", {}, names.map((name) => h("tr", {}, h("td", {}, h("code", {}, name)), values(name)))))));
}

// The intervals as a picture of their own, on white.
async function saveFinals(panel, rows, colours, metric, kind) {
  const text = intervalPicture(rows, colours, `${metric} in ${panel.name}`);
  const name = `${fileName(panel.name)}-final.${kind}`;
  if (kind === "svg") save(name, text, "image/svg+xml");
  else save(name, await toPng(text, WIDTH, 60 + ROW * rows.length));
}

const WIDTH = 640;
const ROW = 26;

function intervalPicture(rows, colours, title) {
  const [left, right, top, height] = [170, 70, 40, 60 + ROW * rows.length];
  const ends = rows.flatMap(([, one]) => [one.low ?? one.iqm, one.high ?? one.iqm]);
  const room = 0.05 * (Math.max(...ends) - Math.min(...ends) || 1);
  const [low, high] = [Math.min(...ends) - room, Math.max(...ends) + room];
  const x = (value) => left + ((value - low) / (high - low)) * (WIDTH - left - right);
  const font = { "font-family": "sans-serif", "font-size": 12, fill: "#1b1f26" };
  const svg = s("svg", { width: WIDTH, height, viewBox: `0 0 ${WIDTH} ${height}` },
    s("rect", { width: WIDTH, height, fill: "#ffffff" }), s("text", { x: 12, y: 20, ...font, "font-weight": 600 }, title),
    ticks(low, high, 5).map((value) => [s("path", { d: `M${x(value)} ${top - 8}V${height - 22}`, stroke: "#e7eaef" }),
      s("text", { x: x(value), y: height - 8, ...font, fill: "#667080", "text-anchor": "middle" }, number(value))]),
    rows.map(([group, one], i) => {
      const y = top + 8 + ROW * i;
      const colour = resolved(`--c${colours.get(group)}`);
      return [s("text", { x: left - 12, y: y + 4, ...font, "text-anchor": "end" }, group.slice(0, 24)),
        one.low === null ? null : s("path", { d: `M${x(one.low)} ${y}H${x(one.high)}`, stroke: colour, "stroke-width": 8, "stroke-opacity": 0.35 }),
        s("circle", { cx: x(one.iqm), cy: y, r: 4.5, fill: colour }), s("text", { x: WIDTH - right + 10, y: y + 4, ...font }, number(one.iqm))];
    }));
  return new XMLSerializer().serializeToString(svg);
}

// A colour of the page as numbers.
function resolved(name) {
  const shade = h("i", { style: { color: `var(${name})` } });
  document.body.append(shade);
  const value = getComputedStyle(shade).color;
  shade.remove();
  return value;
}
