// A run on a cluster: rates and staleness over time, what waits in queues, workers, restarts.

import { h, fill } from "../lib/dom.js";
import { count, duration, NONE, number, plural, setting } from "../lib/format.js";
import { Chart } from "../lib/chart.js";
import { command, scroller } from "../lib/parts.js";
import { headOf, liveScreen } from "../lib/screens.js";

const HOW = "Runs on a cluster are started with `--cluster auto`, and keep what their workers do in `cluster.json`.";
const EVERY = 2000; // the driver writes once a second

export const show = (place, address, shell) =>
  liveScreen(place, address, shell, "cluster", "/api/cluster", HOW, (body) => new Cluster(body));

class Cluster {
  constructor(body) {
    this.every = EVERY;
    this.charts = new Set();
    const make = (title) => new Chart({ title, unit: "seconds", height: 210, file: title });
    this.rate = make("Env steps per second");
    this.staleness = make("Staleness, in updates");
    this.tasks = make("Tasks per second");
    this.restarts = make("Restarts");
    this.queues = make("Waiting in queues");
    for (const chart of [this.rate, this.staleness, this.tasks, this.restarts, this.queues]) this.charts.add(chart);
    this.head = h("div.run-head");
    this.told = h("p.muted");
    this.grid = h("div.charts.large");
    this.tables = h("div.tables");
    this.commands = h("div.match");
    fill(body, this.head, h("div", {}, h("h2", {}, "Over time"), this.told), this.grid, this.tables, this.commands);
  }

  close() { for (const chart of this.charts) chart.close(); }

  moves() { return this.data.status.running; }

  draw(data) {
    this.data = data;
    const { status, history, noted, entry } = data;
    const learner = status.learner ?? {};
    const facts = [
      ["Environment", entry.env || NONE], ...Object.entries(status.plan).map(([name, value]) => [name.replaceAll("_", " "), setting(value)]),
      ...(status.grown ? [] : [["Updates", `${learner.update ?? 0} of ${status.total ?? entry.num_updates}`], ["Staleness", `${number(status.staleness?.mean)}, at most ${setting(status.staleness?.largest)}`]]),
      ["Restarts", String(status.restarts)], ["Driver", status.running ? "running" : "not running"],
    ];
    fill(this.head, headOf("cluster", entry, facts));
    this.drawCharts(status, history, noted);
    fill(this.tables, this.workers(status), this.services(status), status.grown ? null : spent(learner), events(status));
    fill(this.commands, data.commands.map(command));
  }

  // Rates and staleness are those of the lines of metrics; the driver notes what these do not tell.
  drawCharts({ grown, queues: present }, { seconds, rate, staleness, staleness_max: most }, noted) {
    const known = (values) => values.some(Number.isFinite);
    const curve = (name, colour, y, x = seconds) => ({ name, colour, x, y: y.map((value) => value ?? NaN) });
    const waiting = Object.entries(noted.queues);
    this.rate.show([curve("rate", 1, rate)]);
    this.staleness.show([curve("mean", 1, staleness), curve("largest", 2, most)]);
    this.tasks.show([curve("tasks", 1, noted.rate, noted.seconds)]);
    this.restarts.show([curve("restarts so far", 4, noted.restarts, noted.seconds)]);
    this.queues.range = [0, Math.max(1, ...present.map(({ length, capacity }) => capacity ?? length), ...waiting.map(([, y]) => Math.max(...y)))];
    this.queues.show(waiting.map(([name, y], i) => curve(name, 1 + (i % 7), y, noted.seconds)));
    const over = [
      [known(rate), this.rate, "rates"], [known(staleness), this.staleness, "staleness"], [grown && known(noted.rate), this.tasks, "tasks"],
      [noted.seconds.length, this.restarts, "restarts"], [waiting.length, this.queues, "queues"],
    ].filter(([is]) => is);
    fill(this.grid, over.map(([, chart]) => h("div.card", {}, chart.element)));
    this.told.textContent = over.length ? "" : "The folder keeps nothing over time yet: this is the present state.";
  }

  workers({ workers, grown }) {
    return table("Workers", ["Worker", grown ? "Tasks done" : "Rollouts", ...(grown ? [] : ["Env steps/s"]), "Restarts", "Task", "Notes"], workers.map((worker) =>
      [worker.name, setting(worker.done), ...(grown ? [] : [count(worker.rate ?? NaN)]), setting(worker.restarts), worker.task || NONE, worker.notes || NONE]), grown ? [1, 2] : [1, 2, 3]);
  }

  services({ queues }) {
    if (!queues.length) return null;
    return table("Queues", ["Queue", "Waiting", "Room for", "Dropped", "Being worked on"], queues.map((queue) =>
      [queue.name, String(queue.length), setting(queue.capacity), setting(queue.dropped), setting(queue.leased)]), [1, 2, 3, 4]);
  }
}

function spent({ spent: parts }) {
  if (!parts) return null;
  const all = Object.values(parts).reduce((a, b) => a + b, 0) || 1;
  return table("What the learner spends its time on", ["Doing", "Seconds", "Share"], Object.entries(parts).map(([name, seconds]) => [name, number(seconds), `${((100 * seconds) / all).toFixed(0)} %`]), [1, 2]);
}

function events({ events: all }) {
  if (!all.length) return null;
  return table(`The last ${plural(all.length, "event")}`, ["After", "Worker", "What happened"], [...all].reverse().map(({ seconds, worker, what }) => [duration(seconds), worker, what]), []);
}

function table(title, columns, rows, right) {
  const look = (k) => (right.includes(k) ? ".right" : "");
  return h("div.card.map-card", {}, h("h2", {}, title), scroller(title, "", h("table.table", {},
    h("thead", {}, h("tr", {}, columns.map((words, k) => h(`th${look(k)}`, { scope: "col" }, words)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((text, k) => h(`td${look(k)}`, {}, text))))))));
}
