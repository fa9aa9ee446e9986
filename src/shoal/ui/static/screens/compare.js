// Runs side by side: learning curves with intervals, final performance, profiles, probabilities, settings, replays.
// Everything that is chosen is in the address, so that a link shows the same comparison.

import { h, fill } from "../lib/dom.js";
import { plural } from "../lib/format.js";
import { address as to, get } from "../lib/api.js";
import { comparisonPanel, coloursOf, settingsDiffering } from "../lib/comparison.js";
import { icon } from "../lib/icons.js";
import { button, choice, command, copy, empty, field, menu, save } from "../lib/parts.js";
import { InStep } from "../lib/replays.js";

const FILES = [
  ["Final performance (CSV)", "final.csv"], ["Final performance (LaTeX)", "final.tex"], ["Final performance (Markdown)", "final.md"], ["Every seed (CSV)", "scores.csv"],
  ["Learning curves (CSV)", "curves.csv"], ["Profiles (CSV)", "profile.csv"], ["Probabilities (CSV)", "improvement.csv"], ["marl-eval (JSON)", "marl_eval.json"],
];
const WORDS = { algorithm: "algorithm", env: "environment", run: "run", seed: "seed" };

export async function show(place, address, shell) {
  const screen = new CompareScreen(place, shell);
  await screen.read(address);
  return { close: () => screen.close(), keys: screen.keys(), update: (next) => screen.read(next) };
}

class CompareScreen {
  constructor(place, shell) {
    this.shell = shell;
    this.charts = new Set();
    this.replays = null;
    this.asked = 0;
    this.summary = h("p.sub", { role: "status" });
    this.controls = h("div.head.controls");
    this.chips = h("div.run-chips");
    this.results = h("div.results");
    fill(place, h("div.head", {}, h("h1", {}, "Compare"), this.summary), this.controls, this.chips, this.results);
  }

  close() {
    this.asked = -1;
    this.clear();
  }

  clear() {
    for (const chart of [...this.charts]) chart.close();
    this.charts.clear();
    this.replays?.close();
    this.replays = null;
  }

  keys() { return { Escape: ["all runs", () => this.shell.go("#/runs")], m: ["add runs", () => this.shell.go("#/runs")] }; }

  async read({ query }) {
    this.query = new URLSearchParams(query);
    this.runs = [...new Set(query.getAll("run"))];
    const turn = ++this.asked;
    if (!this.runs.length) return this.offer();
    if (!this.results.firstChild) fill(this.results, h("p.muted.reading", { role: "status" }, `Reading ${plural(this.runs.length, "run")} …`));
    this.results.classList.add("waiting");
    try {
      const found = await get(`/api/compare?${this.query}`);
      if (turn === this.asked) this.draw(found);
    } catch (error) {
      if (turn !== this.asked) return undefined;
      this.clear();
      this.drawControls();
      this.drawChips();
      fill(this.results, empty("These runs cannot be compared like this", error.message));
    }
    this.results.classList.remove("waiting");
    return undefined;
  }

  ask(change) {
    const query = new URLSearchParams(this.query);
    for (const [key, value] of Object.entries(change)) {
      query.delete(key);
      for (const each of Array.isArray(value) ? value : [value]) if (each) query.append(key, each);
    }
    this.shell.replace(query);
    return this.read({ query });
  }

  // Without runs: what there is to compare.
  async offer() {
    this.clear();
    fill(this.summary);
    fill(this.controls);
    fill(this.chips);
    const { entries } = await get("/api/runs");
    const envs = new Map();
    for (const run of entries) if (run.env && run.curve?.length > 1) envs.set(run.env, [...(envs.get(run.env) ?? []), run]);
    const sets = [...envs].sort(([, a], [, b]) => b.length - a.length).slice(0, 12).map(([env, runs]) => {
      const algorithms = [...new Set(runs.map((run) => run.algorithm))];
      const link = to("#/compare", { run: runs.slice(0, 60).map((run) => run.name), by: algorithms.length > 1 ? undefined : "run" });
      return h("li", {}, h("a.card.set", { href: link }, h("b", {}, env), h("span", {}, `${plural(runs.length, "run")}: ${algorithms.join(", ")}`)));
    });
    if (!sets.length) fill(this.results, empty("Nothing to compare yet", "Train two runs, for instance of different algorithms:", command("shoal train ippo/simple_spread --num-seeds 5"), command("shoal train mappo/simple_spread --num-seeds 5")));
    else fill(this.results, h("div.offer", {}, h("p", {}, "Choose runs in the ", h("a", { href: "#/runs" }, "list"), " and press ", h("kbd", {}, "c"), ", or take all of an environment:"), h("ul.sets", {}, sets)));
  }

  draw(found) {
    this.clear();
    this.found = found;
    const look = { found, colours: coloursOf(found.groups), charts: this.charts, saveTable: (name) => this.saveTable(name) };
    const seeds = found.panels.reduce((sum, panel) => sum + Object.values(panel.final).reduce((all, one) => all + one.seeds, 0), 0);
    fill(this.summary, `${plural(found.runs.length, "run")}, ${plural(found.groups.length, "group")}, ${plural(seeds, "seed")}`);
    this.shell.title("Compare");
    this.drawControls(found);
    this.drawChips();
    fill(this.results,
      found.notes.length ? h("details.notes", { open: found.notes.length === 1 }, h("summary", {}, plural(found.notes.length, "note")), h("ul", {}, found.notes.map((note) => h("li", {}, note)))) : null,
      found.panels.map((panel) => comparisonPanel(panel, look)), settingsDiffering(found), this.replaySection());
  }

  // found: the comparison, or nothing if these runs were refused, of which there is no table and no command.
  drawControls(found) {
    const { metrics, choices, runs, by, metric } = found ?? { metrics: [], choices: ["algorithm", "env", "run", "seed"], runs: [], by: this.query.get("by") ?? "algorithm", metric: this.query.get("metric") ?? "return" };
    const known = metrics.includes(metric) ? metrics : [metric, ...metrics];
    const envs = new Set(runs.map((run) => run.env)).size;
    const at = h("input", { type: "number", min: 1, step: 1, "aria-label": "Judged at, in env steps", placeholder: "their end", value: this.query.get("at") ?? "", onchange: () => this.ask({ at: at.value && String(Math.round(Number(at.value))) }) });
    const together = h("input", { type: "checkbox", checked: this.query.has("normalise"), onchange: () => this.ask({ normalise: together.checked ? "1" : "" }) });
    fill(this.controls,
      field("Metric", choice("Metric", known, metric, (value) => this.ask({ metric: value }))),
      field("Group by", choice("Group by", [...new Set([...choices, by])].map((each) => [each, WORDS[each] ?? shortName(each, choices)]), by, (value) => this.ask({ by: value }))),
      field("Judged at", at),
      envs > 1 || this.query.has("normalise") ? h("label.field", {}, together, "All environments together, normalised") : null,
      h("span.grow"),
      found ? h("div.actions", {},
        menu("save", "Save tables", FILES.map(([words, name]) => [words, () => this.saveTable(name)])),
        button("Export page", () => this.exportPage(), { icon: "save", title: "One page of this comparison, its runs and replays, which needs no server" }),
        found.command ? button("Copy command", () => copy(found.command), { icon: "copy", title: found.command }) : null) : null);
  }

  saveTable(name) { return this.fetchFile(`/api/compare/file?${this.query}&name=${name}`, name); }

  exportPage() {
    this.shell.toast("Writing the page: of long runs, every line is read …");
    return this.fetchFile(`/api/export?${this.query}&scenes=1`, "report.html");
  }

  async fetchFile(address, name) {
    const response = await fetch(address);
    if (response.ok) save(name, await response.blob());
    else this.shell.toast((await response.json()).error, "bad");
  }

  drawChips() {
    const chips = this.runs.map((name) => h("span.chip.removable", { title: name }, h("a", { href: `#/run/${name.split("/").map(encodeURIComponent).join("/")}` }, name),
      h("button", { type: "button", "aria-label": `Leave out ${name}`, onclick: () => this.ask({ run: this.runs.filter((each) => each !== name) }) }, icon("close"))));
    const rest = chips.length > (innerWidth < 700 ? 2 : 8);
    fill(this.chips, rest ? h("details", {}, h("summary", {}, plural(chips.length, "run")), h("div.run-chips", {}, chips)) : chips);
  }

  replaySection() {
    const runs = this.found.runs.filter(({ replay }) => replay).map(({ name }) => name);
    if (!runs.length) return null;
    this.replays = new InStep(runs.slice(0, 4));
    return h("section.panel-home", { "aria-label": "Replays" }, h("h2", {}, "Replays in step"), this.replays.element);
  }
}

// The end of a dotted name, unless another setting has the same.
function shortName(name, all) {
  const end = name.split(".").at(-1);
  return all.filter((each) => each.split(".").at(-1) === end).length > 1 ? name : end;
}
