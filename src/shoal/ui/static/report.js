// The page that `shoal ui --export` writes: chosen runs as curves, tables and replays, without a server.

import { h, fill } from "./lib/dom.js";
import { best, bytes, count, moment, plural, reached } from "./lib/format.js";
import { Chart } from "./lib/chart.js";
import { choice, scroller } from "./lib/parts.js";
import { comparisonPanel, coloursOf, settingsDiffering } from "./lib/comparison.js";
import { seedSeries } from "./lib/seeds.js";

const report = JSON.parse(document.getElementById("data").textContent);
const charts = new Set();

function runTable() {
  const heads = ["Run", "Environment", "Algorithm", "Seeds", "Steps", "Return", "Best", "Started"];
  return scroller("Runs", ".card", h("table.table", {},
    h("thead", {}, h("tr", {}, heads.map((words, i) => h("th", { scope: "col", class: i > 2 ? "right" : "" }, words)))),
    h("tbody", {}, report.runs.map(({ entry }) => h("tr", {}, h("th.ink", { scope: "row" }, entry.name), h("td", {}, entry.env), h("td", {}, entry.algorithm),
      h("td.right", {}, String(entry.num_seeds)), h("td.right", {}, count(entry.env_steps)), h("td.right", {}, reached(entry)), h("td.right", {}, best(entry)),
      h("td.right", { title: bytes(entry.size) }, moment(entry.started)))))));
}

function runCurves() {
  const colours = coloursOf(report.runs.map(({ entry }) => entry.name));
  return h("div.charts", {}, report.metrics.map((metric) => {
    const chart = new Chart({ title: metric, label: `${metric} of each run`, group: charts, height: 220 });
    chart.show(report.runs.filter(({ curves }) => curves[metric]).flatMap(({ entry, curves }) =>
      seedSeries(curves[metric], entry.name, colours.get(entry.name), { x: "env_steps", width: 1, band: "range" })));
    return h("div.card", {}, chart.element);
  }));
}

function replays() {
  const found = report.runs.filter(({ replay, scenes }) => replay || scenes.length);
  if (!found.length) return null;
  return h("section.panel-home", { "aria-label": "Replays" }, h("h2", {}, "Replays"), h("div.frames", {}, found.map(replayFrame)));
}

// The replay of a run and, if they were kept, the episodes along its curve: one frame, and a choice of what it plays.
function replayFrame({ entry, replay, scenes }) {
  const shown = [...scenes.map(({ update, env_steps, page }) => [`after ${update} updates, ${count(env_steps)} env steps`, page]), ...(replay ? [["replay", replay]] : [])];
  const home = h("div");
  const play = (at) => fill(home, h("iframe.replay", { srcdoc: shown[at][1], title: `Replay of ${entry.name}`, sandbox: "allow-scripts", loading: "lazy" }));
  play(shown.length - 1);
  const chosen = choice(`Episode of ${entry.name}`, shown.map(([words], i) => [String(i), words]), String(shown.length - 1), (at) => play(Number(at)));
  return h("figure.card.frame-home", {}, h("figcaption", {}, entry.name, shown.length > 1 ? [" ", chosen] : null), home);
}

const { comparison } = report;
fill(document.getElementById("main"), h("div.screen", {},
  h("div.head", {}, h("h1", {}, report.title), h("p.sub", {}, `${plural(report.runs.length, "run")}, written ${moment(report.written)} by Shoal ${report.version}`)),
  report.notes.map((note) => h("p.notice", {}, note)),
  runTable(),
  comparison ? comparison.panels.map((panel) => comparisonPanel(panel, { found: comparison, colours: coloursOf(comparison.groups), charts })) : null,
  comparison ? settingsDiffering(comparison) : null,
  h("section.panel-home", { "aria-label": "Every run" }, h("div.head", {}, h("h2", {}, "Every run"), h("span.muted", {}, `Runs of more than ${report.points} lines: means of neighbouring ones`)), runCurves()),
  replays()));
window.shoalReady = true;
