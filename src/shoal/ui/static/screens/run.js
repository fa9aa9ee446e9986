// One run: live curves, its replay, settings, checkpoints, files, and commands to go on with.

import { h, fill, framed, later } from "../lib/dom.js";
import { ago, best, bytes, count, duration, moment, NONE, number, plural, reached, setting } from "../lib/format.js";
import { address as to, follow, get } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import { icon } from "../lib/icons.js";
import { button, choice, command, empty, field, scroller } from "../lib/parts.js";
import { screenAddress, SPECIAL } from "../lib/screens.js";
import { seedSeries } from "../lib/seeds.js";
import { chosen, differences, flatten } from "../lib/settings.js";
import { TimeTravel } from "../lib/travel.js";

const POINTS = 500;
const MOST_POINTS = 2000; // of a curve that grew while it was looked at; then it is asked for anew
const TABS = [["curves", "Curves"], ["replay", "Replay"], ["settings", "Settings"], ["checkpoints", "Checkpoints"], ["files", "Files"], ["commands", "Commands"]];

// Sections of the curves, in order: words, and which metrics belong there by the first part of their name.
const SECTIONS = [
  ["Return", (stem) => ["return", "eval", "nash_conv", "exploitability", "value", "gain"].includes(stem)],
  ["World", (stem) => stem === "world"],
  ["Losses", (stem) => /loss/.test(stem) || stem === "q"],
  ["Policy", (stem) => ["entropy", "approx_kl", "clip_fraction", "explained_variance", "epsilon", "temperature"].includes(stem)],
  ["Tuning", (stem) => stem === "pbt"],
  ["Other", () => true],
];

export async function show(place, address, shell) {
  const found = await get("/api/run", { run: address.path });
  const screen = new RunScreen(place, address, shell, found);
  return { close: () => screen.close(), keys: screen.keys(), update: (next) => screen.read(next) };
}

class RunScreen {
  constructor(place, address, shell, found) {
    Object.assign(this, { shell, found, name: address.path, entry: found.entry });
    this.charts = new Set();
    this.sections = [];
    this.curves = new Map(); // metric: { env_steps, seconds, values }
    shell.title(this.name);
    this.head = h("div.run-head");
    this.tabs = h("div.tabs", { role: "tablist", "aria-label": "Parts of the run", onkeydown: (event) => this.alongTabs(event) });
    this.body = h("div.tab-body", { role: "tabpanel", tabindex: -1, id: "tab-body" });
    fill(place, this.head, this.tabs, this.body);
    this.redraw = framed(() => this.drawCurves());
    this.drawHead();
    this.read(address);
    const runs = found.entry.status === "unreadable" ? new Map() : new Map([[this.name, found.offset]]);
    this.stop = follow({ version: found.version, runs, entries: (change) => this.changed(change), lines: (lines) => this.grow(lines), gone: ({ problem }) => this.vanish(problem) });
    this.clock = setInterval(() => this.drawHead(), 20_000);
  }

  close() {
    this.stop();
    clearInterval(this.clock);
    clearTimeout(this.looking);
    this.closeCharts();
  }

  closeCharts() {
    for (const chart of [...this.charts]) chart.close();
    this.charts.clear();
    this.travel?.close();
    this.travel = null;
    this.sections = [];
  }

  keys() {
    const keys = { Escape: ["all runs", () => this.shell.go("#/runs")], c: ["compare it with others", () => this.compare()] };
    keys[","] = ["the episode kept before", () => this.travel?.by(-1)];
    keys["."] = ["the episode kept after", () => this.travel?.by(1)];
    TABS.forEach(([tab, words], i) => { keys[String(i + 1)] = [words.toLowerCase(), () => this.ask({ tab })]; });
    return keys;
  }

  read({ query }) {
    const before = this.state?.tab;
    this.state = { tab: "curves", x: "env_steps", smooth: "0", band: "range", against: "", at: "", ...Object.fromEntries(query) };
    if (!TABS.some(([tab]) => tab === this.state.tab)) this.state.tab = "curves";
    fill(this.tabs, TABS.map(([tab, words]) => h("button", {
      type: "button", role: "tab", tabindex: tab === this.state.tab ? 0 : -1, "aria-selected": String(tab === this.state.tab), "aria-controls": "tab-body", onclick: () => this.ask({ tab }),
    }, words, this.amount(tab))));
    if (before === "curves" && this.state.tab === "curves") return this.redraw();
    if (before === "replay" && this.state.tab === "replay" && this.travel) return this.travel.go(this.state.at);
    return this.drawTab();
  }

  alongTabs(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const now = TABS.findIndex(([tab]) => tab === this.state.tab);
    this.ask({ tab: TABS[(now + by + TABS.length) % TABS.length][0] });
    this.tabs.querySelector("[aria-selected=true]").focus();
  }

  amount(tab) {
    const amounts = { checkpoints: this.found.checkpoints.length, files: this.found.files.length };
    return tab in amounts ? h("span.amount", {}, String(amounts[tab])) : null;
  }

  ask(change) {
    this.read({ query: this.keep(change) });
  }

  // Puts what is chosen into the address.
  keep(change = {}) {
    const state = { ...this.state, ...change };
    const usual = { tab: "curves", x: "env_steps", smooth: "0", band: "range", against: "", at: "" };
    const query = new URLSearchParams(Object.entries(state).filter(([key, value]) => key in usual && value !== usual[key]));
    this.shell.replace(query);
    return query;
  }

  compare() { this.shell.go(to("#/compare", { run: this.name })); }

  // What changes while one looks
  changed({ changed, gone }) {
    const entry = changed.find(({ name }) => name === this.name);
    if (entry) {
      this.entry = entry;
      this.drawHead();
    }
    if (gone.includes(this.name)) this.vanish("Its folder was removed.");
  }

  vanish(problem) {
    if (this.gone) return;
    this.gone = true;
    this.head.after(h("p.notice.bad", { role: "status" }, icon("bad"), `This run is gone: ${problem} What is shown here is the last that was read.`));
  }

  grow({ lines, offset }) {
    const anew = offset < (this.offset ?? 0);
    this.offset = offset;
    this.looking ??= setTimeout(() => this.readScenes(), 1000);
    if (anew) return this.reload();
    for (const line of lines) for (const [metric, curve] of this.curves) append(curve, line, metric);
    if ([...this.curves.values()].some((curve) => curve.env_steps.length > MOST_POINTS)) return this.reload();
    return this.redraw();
  }

  async reload() {
    const metrics = [...this.curves.keys()];
    this.curves.clear();
    await this.load(metrics);
    this.redraw();
  }

  drawHead() {
    const run = this.entry;
    const left = run.total_env_steps - run.env_steps;
    const facts = [
      ["Environment", run.env || NONE], ["Algorithm", run.algorithm || NONE], ["Seeds", String(run.num_seeds)],
      run.env_steps ? ["Steps", run.total_env_steps > run.env_steps ? `${count(run.env_steps)} of ${count(run.total_env_steps)}` : count(run.env_steps)]
        : ["Iterations", `${run.update} of ${run.num_updates}`],
      [Number.isFinite(run.nash_conv) ? "Reached" : "Return", reached(run)], ["Best", best(run)],
      ["Speed", run.speed ? `${count(run.speed)} steps/s` : NONE],
      run.status === "running" && run.speed && left > 0 ? ["Left", duration((left * run.num_seeds) / run.speed)] : ["Updated", ago(run.updated)],
      ["Started", ago(run.started)], ["Size", bytes(run.size)], ...deviceOf(this.found.config),
    ];
    fill(this.head,
      h("div.head", {}, h("a.sign", { href: "#/runs", "aria-label": "All runs", title: "All runs (Esc)" }, icon("back")),
        h("h1", {}, this.name), h(`span.status.${run.status}`, {}, run.status),
        (run.tags ?? []).map((tag) => h("span.chip", {}, tag)), h("span.grow"),
        (run.screens ?? []).filter((screen) => screen in SPECIAL).map((screen) => h("a.button", { href: screenAddress(screen, run.name) }, SPECIAL[screen])),
        button("Compare", () => this.compare(), { icon: "compare" })),
      run.note ? h("p.run-note", {}, run.note) : null,
      run.problem ? h("p.notice.bad", {}, icon("bad"), run.problem) : null,
      run.status !== "unreadable" ? h("dl.facts", {}, facts.map(([words, value]) => h("div", {}, h("dt", {}, words), h("dd", {}, value)))) : null,
      run.status === "running" && run.progress !== null ? h("span.bar.wide", { role: "progressbar", "aria-label": "Progress", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(100 * run.progress) }, h("i", { style: { width: `${(100 * run.progress).toFixed(1)}%` } })) : null);
  }

  drawTab() {
    this.closeCharts();
    const draw = { curves: () => this.curvesTab(), replay: () => this.replayTab(), settings: () => this.settingsTab(), checkpoints: () => this.checkpointsTab(), files: () => this.filesTab(), commands: () => this.commandsTab() };
    fill(this.body, draw[this.state.tab]());
  }

  // Curves
  curvesTab() {
    if (!this.found.metrics.length) return empty("No curves yet", "They appear with the first line of metrics that the run writes.");
    const slider = h("input#smoothing", { type: "range", min: 0, max: 100, step: 1, value: this.state.smooth, "aria-label": "Smoothing", oninput: () => { this.state.smooth = slider.value; this.redraw(); }, onchange: later(() => this.ask({ smooth: slider.value }), 50) });
    const controls = h("div.head.controls", {},
      field("Along", choice("Horizontal axis", [["env_steps", "env steps"], ["seconds", "seconds"]], this.state.x, (x) => this.ask({ x }))),
      field("Seeds as", choice("Seeds", [["range", "band from least to greatest"], ["seeds", "one line each"], ["none", "interquartile mean alone"]], this.state.band, (band) => this.ask({ band }))),
      field("Smoothing", slider),
      h("span.muted.hint", {}, "Drag to zoom, double-click to see all"));
    return [controls, ...this.buildSections()];
  }

  buildSections() {
    const homes = new Map(SECTIONS.map(([words]) => [words, new Map()]));
    for (const metric of this.found.metrics) {
      const stem = metric.split("/")[0];
      const [words] = SECTIONS.find(([, fits]) => fits(stem));
      const title = chartOf(metric);
      const charts = homes.get(words);
      charts.set(title, [...(charts.get(title) ?? []), metric]);
    }
    this.sections = [...homes].filter(([, charts]) => charts.size).map(([words, charts], i) => this.buildSection(words, charts, i === 0));
    return this.sections.map(({ element }) => element);
  }

  buildSection(words, charts, first) {
    const made = [...charts].map(([title, metrics]) => {
      // The sum over groups says nothing new where there is one group.
      const shown = metrics.length === 2 && title === "return" ? metrics.slice(1) : metrics;
      const chart = new Chart({ title, label: `${title} of ${this.name}`, file: `${this.name}-${title}`, height: first ? 280 : 190, group: this.charts });
      return { chart, metrics: shown };
    });
    const grid = h(`div.charts${first ? ".large" : ""}`, {}, made.map(({ chart }) => h("div.card", {}, chart.element)));
    const section = { charts: made, element: null };
    const open = async () => {
      if (!section.element.open) return;
      await this.load(made.flatMap(({ metrics }) => metrics));
      this.redraw();
    };
    section.element = h("details.section", { open: first || words === "World", ontoggle: open }, h("summary", {}, h("h2", {}, words), h("span.muted", {}, plural(made.length, "chart"))), grid);
    return section;
  }

  async load(metrics) {
    const wanted = metrics.filter((metric) => !this.curves.has(metric));
    if (!wanted.length) return;
    await this.fetchCurves({ metric: wanted, rough: 1 });
    if (wanted.some((metric) => this.curves.get(metric)?.rough)) this.refine(wanted);
  }

  // Of a long run, some lines are shown at once; when all are read, they take their place, and rare metrics appear.
  async refine(metrics) {
    await this.fetchCurves({ metric: metrics });
    this.redraw();
    if (!this.found.rough) return;
    this.found.rough = false;
    const { metrics: known } = await get("/api/run", { run: this.name });
    if (String(known) === String(this.found.metrics)) return;
    this.found.metrics = known;
    if (this.state.tab === "curves") this.drawTab();
  }

  async fetchCurves(query) {
    try {
      for (const [metric, curve] of Object.entries(await get("/api/series", { run: this.name, points: POINTS, ...query }))) this.curves.set(metric, curve);
    } catch (error) {
      if (error.status === 404) this.vanish(error.message);
      else this.shell.toast(error.message, "bad");
    }
  }

  drawCurves() {
    this.drawTravel();
    const { x, smooth, band } = this.state;
    for (const { charts, element } of this.sections) {
      if (!element.open) continue;
      for (const { chart, metrics } of charts) {
        const known = metrics.filter((metric) => this.curves.has(metric));
        const series = known.flatMap((metric, i) => {
          const curve = this.curves.get(metric);
          const width = 1 + 2 * Math.round((Number(smooth) / 100) ** 2 * curve.env_steps.length * 0.15);
          return seedSeries(curve, metric.split("/").slice(1).join("/") || (metrics.length > 1 ? "all together" : metric), COLOURS[i % COLOURS.length], { x, width, band });
        });
        chart.show(series, x === "seconds" ? "seconds" : this.entry.env_steps ? "steps" : "iteration");
      }
    }
  }

  // Replay: how the policies played at points along the curve, and the pages of the folder
  replayTab() {
    if (!this.found.pages.length && !this.found.scenes.length) {
      return empty("No replay yet", "A replay is written at the end of a run, or at any time from its newest checkpoint:", command(this.commandOf("watch") ?? `shoal watch ${this.entry.path}`));
    }
    return [this.found.scenes.length ? this.travelPart() : null, ...this.found.pages.map(({ name, title }) => h("div.card.frame-home", {},
      h("iframe.replay", { src: to("/page", { run: this.name, name }), title: `${title} of ${this.name}`, sandbox: "allow-scripts", loading: "lazy" })))];
  }

  travelPart() {
    this.travel = new TimeTravel(this.name, this.found.scenes, this.state.at, (at) => {
      this.state.at = at;
      this.keep();
    });
    this.load(this.travelled).then(() => this.drawTravel());
    return this.travel.element;
  }

  // The metric that the dots are put on, as a list of none or one.
  get travelled() { return this.found.metrics.filter((metric) => SECTIONS[0][1](metric.split("/")[0])).slice(0, 1); }

  drawTravel() {
    const [metric] = this.travelled.filter((each) => this.curves.has(each));
    if (this.travel && metric) this.travel.draw(metric, seedSeries(this.curves.get(metric), metric, COLOURS[0], { x: "env_steps", width: 1, band: "range" }));
  }

  async readScenes() {
    this.looking = undefined;
    if (this.gone || this.state.tab !== "replay") return;
    try {
      this.found.scenes = (await get("/api/scenes", { run: this.name })).scenes;
    } catch {
      return; // the run is gone: the stream says so
    }
    if (this.travel) this.travel.renew(this.found.scenes);
    else if (this.found.scenes.length && this.state.tab === "replay") this.drawTab();
  }

  commandOf(verb) { return this.found.commands.find((each) => each.command.startsWith(`shoal ${verb}`))?.command; }

  // Settings
  settingsTab() {
    const home = h("div.settings-home");
    this.drawSettings(home);
    return home;
  }

  async drawSettings(home) {
    const own = flatten(this.found.config);
    const filter = h("input#filter", { type: "search", placeholder: "Search settings", "aria-label": "Search settings", oninput: () => narrow() });
    const against = h("select", { "aria-label": "Compare with", onchange: () => this.ask({ against: against.value }) }, h("option", { value: "" }, "nothing"));
    const table = h("div");
    const narrow = () => {
      for (const row of table.querySelectorAll("tbody tr")) row.hidden = !row.textContent.toLowerCase().includes(filter.value.toLowerCase());
    };
    fill(home, h("div.head.controls", {}, h("div.searching", {}, icon("search"), filter), field("Difference to", against)), table);
    fill(table, settingsTable(own));
    // Presets are read by another process, which takes seconds: only if someone is about to choose one.
    const offerPresets = async () => {
      against.onfocus = against.onpointerenter = null;
      const presets = await this.presets();
      against.append(h("optgroup", { label: "Presets" }, presets.map(({ name }) => h("option", { value: `preset:${name}` }, name))));
      return presets;
    };
    against.onfocus = against.onpointerenter = offerPresets;
    const [kind, ...rest] = this.state.against.split(":");
    const name = rest.join(":");
    try {
      const { entries } = await get("/api/runs");
      const others = entries.filter((run) => run.name !== this.name && run.status !== "unreadable").slice(0, 300);
      against.append(h("optgroup", { label: "Runs" }, others.map(({ name }) => h("option", { value: `run:${name}` }, name))));
      if (kind === "run") fill(table, differenceTable(flatten(chosen(this.found.config)), flatten(chosen(await get("/api/config", { run: name }))), name));
      if (kind === "preset") {
        const preset = (await offerPresets()).find((each) => each.name === name);
        if (preset) fill(table, differenceTable(flatten({ experiment: this.found.config.experiment }), flatten({ experiment: preset.experiment }), name));
      }
      against.value = this.state.against;
    } catch (error) {
      fill(table, h("p.notice.bad", {}, icon("bad"), error.message), settingsTable(own));
    }
  }

  async presets() {
    this.known ??= get("/api/presets", { run: this.name });
    return (await this.known).presets;
  }

  // Lists
  checkpointsTab() {
    const newest = this.found.checkpoints.find(({ best }) => !best);
    if (!this.found.checkpoints.length) return empty("No checkpoint yet", "The first one is saved after a minute of training.");
    return scroller("Checkpoints", ".card", h("table.table", {},
      h("thead", {}, h("tr", {}, ["Update", "Kept as", "Size", "Saved", "Watch it"].map((words, i) => h("th", { scope: "col", class: i === 0 || i === 2 ? "right" : "" }, words)))),
      h("tbody", {}, this.found.checkpoints.map((one) => h("tr", {}, h("td.right", {}, one.update.toLocaleString("en")), h("td", {}, one.best ? "best in evaluation" : one === newest ? "newest" : "earlier"),
        h("td.right", {}, bytes(one.size)), h("td", { title: moment(one.updated) }, ago(one.updated)),
        h("td", {}, command(`shoal watch ${quoted(this.entry.path)} --checkpoint ${one.best ? "best" : one.update}`)))))));
  }

  filesTab() {
    if (!this.found.files.length) return empty("The folder is empty", "");
    const pictures = this.found.files.filter(({ name }) => /\.(png|gif|webp)$/i.test(name));
    return [
      pictures.length ? h("div.pictures", {}, pictures.slice(0, 12).map(({ name }) => h("figure.card", {}, h("img", { src: to("/api/file", { run: this.name, name }), alt: name, loading: "lazy" }), h("figcaption", {}, name)))) : null,
      scroller("Files", ".card", h("table.table", {},
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "File"), h("th.right", { scope: "col" }, "Size"), h("th", { scope: "col" }, "Written"), h("th", { scope: "col" }, h("span.unseen", {}, "Save")))),
        h("tbody", {}, this.found.files.map(({ name, size, updated }) => h("tr", {}, h("td", {}, h("code", {}, name)), h("td.right", {}, bytes(size)), h("td", { title: moment(updated) }, ago(updated)),
          h("td", {}, h("a.sign", { href: to("/api/file", { run: this.name, name }), download: name.split("/").at(-1), "aria-label": `Save ${name}`, title: "Save" }, icon("save")))))))),
    ];
  }

  commandsTab() {
    return h("ul.commands", {}, this.found.commands.map(({ what, command: text }) => h("li.card", {}, h("h2", {}, what), command(text))));
  }
}

const COLOURS = [1, 2, 3, 4, 5, 6, 7, 0];

// The device that a run says it was trained on.
function deviceOf({ provenance }) {
  const device = provenance?.device;
  if (typeof device?.kind !== "string") return [];
  return [["Device", device.count > 1 ? `${device.count} × ${device.kind}` : device.kind]];
}

// The chart that a metric is drawn in: those of a world have one each, others share one for all groups.
function chartOf(metric) {
  const [stem, ...rest] = metric.split("/");
  if (stem === "world" || stem === "pbt") return rest.join("/") || stem;
  if (stem === "eval") return `eval/${rest[0] ?? ""}`;
  return stem;
}

// Puts what a line says of a metric at the end of its curve.
function append(curve, line, metric) {
  const at = line.env_steps ?? line.iteration;
  if (!(metric in line) || !(at > (curve.env_steps.at(-1) ?? -Infinity))) return;
  const values = Array.isArray(line[metric]) ? line[metric] : [line[metric]];
  if (values.every((value) => value === null)) return;
  curve.env_steps.push(at);
  curve.seconds.push(line.seconds ?? curve.seconds.at(-1) ?? 0);
  curve.values.push(values);
}

function settingsTable(settings) {
  return scroller("Settings", ".card", h("table.table.settings", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Setting"), h("th", { scope: "col" }, "Value"))),
    h("tbody", {}, Object.entries(settings).map(([name, value]) => h("tr", {}, h("td", {}, h("code", {}, name)), h("td", {}, setting(value)))))));
}

function differenceTable(own, other, name) {
  const found = differences([own, other]);
  if (!found.length) return empty("No difference", `Every setting is the same as in ${name}.`);
  return scroller("Settings that differ", ".card", h("table.table.settings", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Setting"), h("th", { scope: "col" }, "This run"), h("th", { scope: "col" }, name))),
    h("tbody", {}, found.map(([key, [mine, theirs]]) => h("tr", {}, h("td", {}, h("code", {}, key)), h("td.mine", {}, setting(mine)), h("td", {}, setting(theirs)))))));
}

const quoted = (path) => (/^[\w@%+=:,./-]+$/.test(path) ? path : `'${path.replaceAll("'", `'"'"'`)}'`);
