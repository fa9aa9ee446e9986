// Sweeps: what was tried, and what came of it. Population-based training: schedules, scores, and who became whose copy.

import { h, s, fill } from "../lib/dom.js";
import { count, NONE, number, plural, setting } from "../lib/format.js";
import { get } from "../lib/api.js";
import { Chart, ticks } from "../lib/chart.js";
import { Parallel } from "../lib/parallel.js";
import { icon } from "../lib/icons.js";
import { choice, field, scroller } from "../lib/parts.js";
import { drawnWidth, headOf, liveScreen } from "../lib/screens.js";

const HOW = "Sweeps are made by `shoal sweep`, population-based training by `shoal pbt`; both are shown here while they train.";
const MOST_ROWS = 100;
const COLOURS = [1, 2, 3, 5, 6, 7, 0]; // red is for the ancestors of the best

export const show = (place, address, shell) =>
  liveScreen(place, address, shell, "tuning", "/api/tuning", HOW, (body, found) => (found.schedules ? new Training(body, found) : new Sweep(body, shell, address)));

class Sweep {
  constructor(body, shell, { query, path }) {
    Object.assign(this, { shell, name: path, rows: new Map() });
    this.heed(query);
    this.head = h("div.run-head");
    this.controls = h("div.head.controls");
    this.table = h("div");
    this.lines = new Parallel({ label: "Points of the sweep: a line each, through its values to its return", onpoint: (point) => this.pointAt(point), onchoose: (point) => this.choose(point) });
    fill(body, this.head, this.controls, h("div.card.map-card", {}, h("h2", {}, "Parallel coordinates"), h("p.muted", {}, "A line is a point: from its values to what it reached, the best in blue. Choose lines to hold them."), this.lines.element), this.table);
  }

  close() { this.lines.close(); }

  heed(query) {
    this.chosen = new Set(query.getAll("point").map(Number).filter(Number.isInteger));
    this.measure = query.get("measure");
  }

  read({ query }) {
    this.heed(query);
    this.ask();
  }

  // Asks for the chosen measure; `otherwise` is shown if there is none of that name.
  async ask(otherwise) {
    try {
      this.draw(await get("/api/tuning", { run: this.name, measure: this.measure }));
    } catch (error) {
      this.shell.toast(error.message, "bad");
      this.measure = null;
      if (otherwise) this.draw(otherwise);
    }
  }

  draw(data) {
    if (this.measure && data.measure !== this.measure) return this.ask(data); // the run has changed: the same measure again
    this.data = data;
    const best = data.points.find(({ mean }) => Number.isFinite(mean));
    const facts = [
      ["Environment", data.entry.env || NONE], ["Algorithm", data.entry.algorithm || NONE], ["Points", String(data.amount)], ["Seeds each", String(data.seeds)],
      ["Steps each", data.entry.total_env_steps > data.entry.env_steps ? `${count(data.entry.env_steps)} of ${count(data.entry.total_env_steps)}` : count(data.entry.env_steps)],
      [`Best ${data.measure}`, number(best?.mean)], ...(best ? data.options.map(({ name }) => [name, setting(best.values[name])]) : []),
    ];
    fill(this.head, headOf("tuning", data.entry, facts), data.problem ? h("p.notice", { role: "status" }, icon("bad"), data.problem) : null);
    fill(this.controls, data.measures.length > 1 ? field("Compared by", choice("Measure", data.measures, data.measure, (measure) => { this.measure = measure; this.keep(); this.ask(); })) : null,
      data.amount > data.points.length ? h("span.muted", {}, `The best ${data.points.length} of ${data.amount} points are shown.`) : null);
    this.drawLines();
    this.drawTable();
    return undefined;
  }

  drawLines() {
    const known = this.data.points.map(({ mean }) => mean).filter(Number.isFinite);
    const axes = this.data.options.map((option) => ({ ...option, get: (point) => point.values[option.name] }));
    const result = { name: this.data.measure, low: Math.min(...known), high: Math.max(...known), log: false, get: ({ mean }) => mean };
    this.lines.show(known.length ? [...axes, result] : axes, this.data.points, this.chosen);
  }

  drawTable() {
    this.rows.clear();
    const { points, options, measure, seeds } = this.data;
    const head = h("tr", {}, h("th", { scope: "col" }, "Point"), options.map(({ name }) => h("th.right", { scope: "col" }, name)), h("th.right", { scope: "col" }, measure), seeds > 1 ? h("th.right", { scope: "col" }, "Least to greatest seed") : null);
    const rows = points.slice(0, MOST_ROWS).map((point) => {
      const known = point.returns.filter(Number.isFinite);
      const row = h("tr", { dataset: { point: point.number }, onpointerenter: () => this.lines.point(point.number), onpointerleave: () => this.lines.point(null) },
        h("td", {}, h("button.hold", { type: "button", "aria-pressed": String(this.chosen.has(point.number)), "aria-label": `Hold point ${point.number}`, onclick: () => this.choose(point.number) }, String(point.number))),
        options.map(({ name }) => h("td.right", {}, setting(point.values[name]))),
        h("td.right.strong", {}, number(point.mean)),
        seeds > 1 ? h("td.right", {}, known.length ? `${number(Math.min(...known))} to ${number(Math.max(...known))}` : NONE) : null);
      this.rows.set(point.number, row);
      return row;
    });
    fill(this.table, scroller("Points, best first", ".card", h("table.table.points", {}, h("thead", {}, head), h("tbody", {}, rows)),
      points.length > MOST_ROWS ? h("p.muted.cut", {}, `and ${plural(points.length - MOST_ROWS, "point")} that reached less`) : null));
    this.mark();
  }

  mark() {
    for (const [point, row] of this.rows) {
      row.classList.toggle("picked", this.chosen.has(point));
      row.querySelector("button").setAttribute("aria-pressed", String(this.chosen.has(point)));
    }
  }

  pointAt(point) { for (const [each, row] of this.rows) row.classList.toggle("pointed", each === point); }

  choose(point) {
    this.chosen.has(point) ? this.chosen.delete(point) : this.chosen.add(point);
    this.lines.mark();
    this.mark();
    this.keep();
  }

  keep() {
    const query = new URLSearchParams([...this.chosen].map((point) => ["point", point]));
    if (this.measure) query.set("measure", this.measure);
    this.shell.replace(query);
  }
}

class Training {
  constructor(body, found) {
    this.body = body;
    this.charts = new Set();
    this.schedules = found.options.map(({ name, log }) => ({ name, chart: new Chart({ title: name + (log ? " (log)" : ""), label: `${name} of every member`, log, height: 230, group: this.charts, file: name }) }));
    this.score = new Chart({ title: "score", label: "Score of every member", height: 230, group: this.charts });
    this.head = h("div.run-head");
    this.lineage = h("div");
    fill(body, this.head, h("h2", {}, "Schedules and scores"), h("div.charts.large", {}, [...this.schedules.map(({ chart }) => chart), this.score].map((chart) => h("div.card", {}, chart.element))), this.lineage);
  }

  close() { for (const chart of [...this.charts]) chart.close(); }

  draw(data) {
    this.data = data;
    const best = data.best;
    const ways = ancestry(data);
    const facts = [
      ["Environment", data.entry.env || NONE], ["Algorithm", data.entry.algorithm || NONE], ["Members", String(data.members)], ["Copies", String(data.all_copies)],
      ["Best member", best === null ? NONE : String(best)], ["Its score", number(data.score.values.at(-1)?.[best])],
      ...(best === null ? [] : data.options.map(({ name }) => [name, setting(data.schedules[name].values.at(-1)?.[best])])),
    ];
    fill(this.head, headOf("tuning", data.entry, facts));
    for (const { name, chart } of this.schedules) chart.show(this.series(data.schedules[name], ways));
    this.score.show(this.series(data.score, ways));
    fill(this.lineage, this.drawLineage(ways));
  }

  // A thin line for each member, and a strong one along the ancestors of the best.
  series({ env_steps: x, values }, ways) {
    const each = Array.from({ length: this.data.members }, (_, m) => ({ name: `member ${m}`, colour: COLOURS[m % COLOURS.length], x, y: values.map((row) => row[m] ?? NaN), thin: this.data.members > 8 }));
    if (!ways.length) return each;
    const at = (step) => (ways.find(({ until }) => step <= until) ?? ways.at(-1)).member;
    return [...each.map((one) => ({ ...one, thin: true })), { name: "ancestors of the best", colour: 4, x, y: values.map((row, i) => row[at(x[i])] ?? NaN) }];
  }

  drawLineage(ways) {
    const { members, copies, all_copies: all, score, schedules } = this.data;
    const last = Math.max(1, ...[score, ...Object.values(schedules)].map(({ env_steps: x }) => x.at(-1) ?? 0));
    const [width, left, right, row] = [drawnWidth(this.body), 34, 14, Math.max(7, Math.min(26, 420 / members))];
    const height = members * row + 40;
    const toX = (step) => left + (step / last) * (width - left - right);
    const toY = (member) => 10 + (member + 0.5) * row;
    const drawn = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Lineage of ${plural(members, "member")}: ${plural(all, "copy", "copies")}` });
    for (let m = 0; m < members; m++) {
      drawn.append(s("path", { class: "grid", d: `M${left} ${toY(m)}H${width - right}` }));
      if (row >= 11 || m % Math.ceil(11 / row) === 0) drawn.append(s("text", { class: "axis", x: left - 8, y: toY(m) + 4, "text-anchor": "end" }, String(m)));
    }
    for (const step of ticks(0, last, 8)) drawn.append(s("text", { class: "axis", x: toX(step), y: height - 16, "text-anchor": "middle" }, count(step)));
    drawn.append(s("text", { class: "axis", x: width / 2, y: height - 2, "text-anchor": "middle" }, "env steps"));
    for (const { at, member, source } of copies) {
      drawn.append(s("path", { class: "copied", d: `M${toX(at)} ${toY(source)}L${toX(at)} ${toY(member)}`, style: { stroke: `var(--c${COLOURS[source % COLOURS.length]})` } }),
        s("circle", { class: "member", cx: toX(at), cy: toY(member), r: 3.4, style: { fill: `var(--c${COLOURS[source % COLOURS.length]})` } }, s("title", {}, `At ${at.toLocaleString("en")} env steps, member ${member} became a copy of ${source}`)));
    }
    let [from, path] = [0, ""];
    ways.forEach(({ member, until }, i) => {
      path += `${i ? "L" : "M"}${toX(from).toFixed(1)} ${toY(member)}L${toX(Math.min(until, last)).toFixed(1)} ${toY(member)}`;
      from = until;
    });
    if (path) drawn.append(s("path", { class: "ancestors", d: path }));
    return h("div.card.map-card", {}, h("h2", {}, "Lineage"),
      h("p.muted", {}, `A dot is a member that became a copy of the one at the other end of its line, in that one's colour. In red: the way of what is now the best.${all > copies.length ? ` The last ${copies.length} of ${all} copies are shown.` : ""}`),
      scroller("Lineage", ".plot.still", drawn));
  }
}

// The members that the best one's weights have lived in: [{ member, until }], in env steps, the last one for ever.
function ancestry({ best, copies }) {
  if (best === null) return [];
  const ways = [{ member: best, until: Infinity }];
  for (const { at, member, source } of [...copies].reverse()) if (member === ways[0].member) ways.unshift({ member: source, until: at });
  return ways;
}
