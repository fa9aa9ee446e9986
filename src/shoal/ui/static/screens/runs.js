// All runs: a table to search, filter, group and choose from. It follows what happens on the disk.

import { arrange, h, fill, later, say } from "../lib/dom.js";
import { ago, best, bytes, count, moment, NONE, plural, reached } from "../lib/format.js";
import { follow, get, post } from "../lib/api.js";
import { icon } from "../lib/icons.js";
import { button, choice, command, copy, dialog, empty, signButton } from "../lib/parts.js";
import { screenLinks } from "../lib/screens.js";
import { spark } from "../lib/spark.js";

const FIRST = 300; // rows that are drawn at once; a button draws the rest
const TAIL = 15; // letters at the end of a name that are always shown: there, runs of a kind differ
const GROUPS = [["", "Not grouped"], ["env", "By environment"], ["algorithm", "By algorithm"], ["status", "By status"], ["tag", "By tag"], ["kind", "By kind"]];

// Columns: key, words, how it is shown, what it is sorted by, classes.
const COLUMNS = [
  { key: "status", words: "Status", show: statusCell, order: (run) => ["running", "failed", "stopped", "finished", "unreadable"].indexOf(run.status) },
  { key: "name", words: "Run", show: nameCell, order: (run) => run.name.toLowerCase() },
  { key: "env", words: "Environment", show: (run) => text(run.env), order: (run) => run.env ?? "", wide: 1 },
  { key: "algorithm", words: "Algorithm", show: (run) => text(run.algorithm), order: (run) => run.algorithm ?? "", wide: 1 },
  { key: "num_seeds", words: "Seeds", show: (run) => (run.kind ? text(run.num_seeds) : NONE), order: (run) => run.num_seeds, right: true, wide: 2 },
  { key: "env_steps", words: "Steps", show: stepsCell, order: (run) => run.env_steps, right: true, wide: 1 },
  { key: "last_return", words: "Return", show: (run) => reached(run), order: (run) => run.last_return, right: true },
  { key: "best_return", words: "Best", show: (run) => best(run), order: (run) => run.best_return, right: true, wide: 2 },
  { key: "spark", words: "Curve", show: sparkCell, still: true },
  { key: "speed", words: "Steps/s", show: (run) => count(run.speed), order: (run) => run.speed, right: true, wide: 3 },
  { key: "started", words: "Started", show: startedCell, order: (run) => run.started, right: true, wide: 2 },
  { key: "tags", words: "Tags and note", show: tagsCell, order: (run) => (run.tags ?? []).join(), wide: 3 },
];

export async function show(place, address, shell) {
  const list = await get("/api/runs");
  const screen = new RunsScreen(place, address, shell, list);
  return { close: () => screen.close(), keys: screen.keys(), update: (next) => screen.read(next) };
}

class RunsScreen {
  constructor(place, address, shell, { root, version, entries }) {
    this.shell = shell;
    this.root = root;
    this.runs = new Map(entries.map((entry) => [entry.name, entry]));
    this.rows = new Map(); // name: { row, shown }: the row, and what it shows
    this.chosen = new Set();
    this.cursor = "";
    this.limit = FIRST;
    this.build(place);
    this.read(address);
    this.stop = follow({ version, entries: (change) => this.change(change), state: (connected) => this.connection(connected) });
    this.clock = setInterval(() => this.tick(), 30_000);
  }

  close() {
    this.stop();
    clearInterval(this.clock);
  }

  build(place) {
    this.search = h("input#search", { type: "search", placeholder: "Search names, tags, notes", "aria-label": "Search runs", oninput: later(() => this.ask({ q: this.search.value }), 60) });
    this.counted = h("p.sub", { role: "status" });
    this.filters = {
      status: choice("Status", [["", "Any status"]], "", (value) => this.ask({ status: value })),
      env: choice("Environment", [["", "Any environment"]], "", (value) => this.ask({ env: value })),
      algorithm: choice("Algorithm", [["", "Any algorithm"]], "", (value) => this.ask({ algorithm: value })),
    };
    this.group = choice("Group by", GROUPS, "", (value) => this.ask({ group: value }));
    this.all = h("input", { type: "checkbox", "aria-label": "Choose all runs shown", onchange: () => this.chooseAll(this.all.checked) });
    this.header = h("tr", {}, h("th.pick", { scope: "col" }, this.all), COLUMNS.map((column) => this.head(column)));
    this.body = h("tbody");
    this.table = h("table.table.runs", {}, h("caption.unseen", {}, "Runs"), h("thead", {}, this.header), this.body);
    this.home = h("div");
    this.bar = h("div.chosen", { role: "region", "aria-label": "Chosen runs" });
    fill(place,
      h("div.head", {}, h("h1", {}, "Runs"), this.counted),
      h("div.head.filters", {}, h("div.searching", {}, icon("search"), this.search, h("kbd", { "aria-hidden": "true" }, "/")),
        Object.values(this.filters), this.group),
      this.home, this.bar);
  }

  head(column) {
    const classes = `${column.right ? ".right" : ""}${column.wide ? `.wide${column.wide}` : ""}.col-${column.key}`;
    if (column.still) return h(`th${classes}`, { scope: "col" }, column.words);
    return h(`th${classes}`, { scope: "col", dataset: { key: column.key } },
      h("button.sort", { type: "button", onclick: () => this.sortBy(column.key) }, column.words));
  }

  keys() {
    return {
      "/": ["search", () => this.search.focus()],
      j: ["next run", () => this.move(1)],
      k: ["previous run", () => this.move(-1)],
      Enter: ["open the run", () => this.cursor && this.shell.go(runAddress(this.cursor))],
      x: ["choose the run", () => this.cursor && this.choose(this.cursor, !this.chosen.has(this.cursor))],
      e: ["edit its tags and note", () => this.cursor && this.edit(this.cursor)],
      c: ["compare the chosen runs", () => this.compare()],
      Escape: ["leave the search, choose none", () => this.escape()],
    };
  }

  // The state of the screen is in its address, so that a reload or a link shows the same.
  read({ query }) {
    this.query = query;
    this.state = { q: "", status: "", env: "", algorithm: "", group: "", sort: "-started", ...Object.fromEntries(query) };
    if (document.activeElement !== this.search) this.search.value = this.state.q;
    this.group.value = this.state.group;
    this.limit = FIRST;
    this.draw();
  }

  ask(change) {
    const state = { ...this.state, ...change };
    const query = new URLSearchParams();
    for (const key of ["q", "status", "env", "algorithm", "group", "sort"]) {
      if (state[key] && !(key === "sort" && state[key] === "-started")) query.set(key, state[key]);
    }
    this.shell.replace(query);
    this.read({ query });
  }

  sortBy(key) {
    const down = this.state.sort === `-${key}` || (this.state.sort !== key && ["name", "env", "algorithm", "status", "tags"].includes(key));
    this.ask({ sort: down ? key : `-${key}` });
  }

  change({ changed, gone }) {
    for (const entry of changed) this.runs.set(entry.name, entry);
    for (const name of gone) this.forget(name);
    this.draw();
  }

  forget(name) {
    this.runs.delete(name);
    this.rows.delete(name);
    this.chosen.delete(name);
    if (this.cursor === name) this.cursor = "";
  }

  connection(connected) {
    this.home.classList.toggle("stale", !connected);
    if (!connected) say(this.counted, "The server does not answer: what you see may be old.");
    else this.tell();
  }

  tick() {
    for (const [name, { row }] of this.rows) say(row.querySelector(".col-started"), ago(this.runs.get(name)?.started));
  }

  // Drawing: rows are kept and moved, cells are replaced where their text changed.
  draw() {
    this.offer();
    this.shown = this.sorted([...this.runs.values()].filter((run) => this.matches(run)));
    for (const each of this.header.querySelectorAll("[data-key]")) {
      const down = this.state.sort === `-${each.dataset.key}`;
      down || this.state.sort === each.dataset.key
        ? each.setAttribute("aria-sort", down ? "descending" : "ascending") : each.removeAttribute("aria-sort");
    }
    if (!this.shown.length) fill(this.home, this.nothing());
    else {
      if (!this.home.contains(this.table)) fill(this.home, h("div.card.table-home", {}, this.table));
      arrange(this.body, this.state.group ? this.grouped() : this.limited(this.shown));
    }
    this.tell();
    this.drawBar();
  }

  tell() {
    const all = this.runs.size;
    const running = [...this.runs.values()].filter((run) => run.status === "running").length;
    const some = this.shown.length < all ? `${this.shown.length} of ${plural(all, "run")}` : plural(all, "run");
    say(this.counted, `${some}${running ? `, ${running} running` : ""} in ${this.root}`);
  }

  nothing() {
    if (this.runs.size) return empty("No run matches", "Nothing here has these words and filters.", button("Show all runs", () => { this.search.value = ""; this.ask({ q: "", status: "", env: "", algorithm: "" }); }));
    return empty("No runs yet", `Runs appear here as soon as they start in ${this.root}. A first one takes a few minutes on a laptop:`, command("shoal train demo"));
  }

  offer() {
    for (const [key, words] of [["status", "Any status"], ["env", "Any environment"], ["algorithm", "Any algorithm"]]) {
      const found = [...new Set([...this.runs.values()].map((run) => run[key]).filter(Boolean))].sort();
      const value = this.state[key];
      if (value && !found.includes(value)) found.unshift(value);
      const select = this.filters[key];
      if ([...select.options].slice(1).map((each) => each.value).join("\n") !== found.join("\n")) {
        fill(select, h("option", { value: "" }, words), found.map((each) => h("option", { value: each }, each)));
      }
      select.value = value;
    }
  }

  matches(run) {
    const { q, status, env, algorithm } = this.state;
    if ((status && run.status !== status) || (env && run.env !== env) || (algorithm && run.algorithm !== algorithm)) return false;
    if (!q) return true;
    const text = [run.name, run.env, run.algorithm, run.kind, run.note, ...(run.tags ?? [])].join(" ").toLowerCase();
    return q.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  }

  sorted(runs) {
    const down = this.state.sort.startsWith("-");
    const { order } = COLUMNS.find(({ key }) => key === this.state.sort.replace(/^-/, "")) ?? COLUMNS[1];
    const missing = (value) => value === null || value === undefined || Number.isNaN(value);
    return runs
      .map((run) => [order(run), run])
      .sort(([a, one], [b, other]) => {
        if (missing(a) || missing(b)) return missing(a) - missing(b) || one.name.localeCompare(other.name);
        return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1) || one.name.localeCompare(other.name);
      })
      .map(([, run]) => run);
  }

  limited(runs) {
    const rows = runs.slice(0, this.limit).map((run) => this.row(run));
    if (runs.length > this.limit) {
      const rest = button(`Show ${plural(runs.length - this.limit, "more run")}`, () => { this.limit = Infinity; this.draw(); }, { look: "plain" });
      rows.push(h("tr", {}, h("td.rest", { colspan: COLUMNS.length + 1 }, rest)));
    }
    return rows;
  }

  grouped() {
    const groups = new Map();
    for (const run of this.shown) {
      const keys = this.state.group === "tag" ? (run.tags?.length ? run.tags.slice(0, 1) : ["without a tag"]) : [run[this.state.group] || NONE];
      for (const key of keys) groups.set(key, [...(groups.get(key) ?? []), run]);
    }
    return [...groups].sort(([a], [b]) => String(a).localeCompare(String(b))).flatMap(([key, runs]) => [
      h("tr.group", {}, h("th", { colspan: COLUMNS.length + 1, scope: "colgroup" }, h("b", {}, key), " ", h("span.muted", {}, plural(runs.length, "run")))),
      ...this.limited(runs),
    ]);
  }

  row(run) {
    const before = this.rows.get(run.name);
    const shown = JSON.stringify(run);
    if (before?.shown === shown) return before.row;
    const pick = h("input", { type: "checkbox", "aria-label": `Choose ${run.name}`, checked: this.chosen.has(run.name), onchange: () => this.choose(run.name, pick.checked) });
    const row = h("tr", { dataset: { name: run.name }, onclick: (event) => this.clicked(event, run.name) }, h("td.pick", {}, pick), COLUMNS.map((column) => cell(column, run)));
    row.querySelector(".col-tags").append(signButton("edit", `Edit tags and note of ${run.name}`, () => this.edit(run.name)));
    row.classList.toggle("cursor", run.name === this.cursor);
    row.classList.toggle("picked", this.chosen.has(run.name));
    if (before) takeFocus(before.row, row);
    this.rows.set(run.name, { row, shown });
    return row;
  }

  clicked(event, name) {
    if (event.target.closest("a, button, input, label")) return;
    this.point(name);
    this.choose(name, !this.chosen.has(name));
  }

  // Choosing, and what can be done with those that are chosen.
  point(name) {
    this.rows.get(this.cursor)?.row.classList.remove("cursor");
    this.cursor = name;
    const row = this.rows.get(name)?.row;
    row?.classList.add("cursor");
    row?.scrollIntoView({ block: "nearest" });
  }

  move(by) {
    const names = [...this.body.querySelectorAll("tr[data-name]")].map((row) => row.dataset.name);
    if (!names.length) return;
    const at = names.indexOf(this.cursor);
    this.point(names[Math.min(Math.max(at < 0 ? 0 : at + by, 0), names.length - 1)]);
  }

  choose(name, yes) {
    yes ? this.chosen.add(name) : this.chosen.delete(name);
    const row = this.rows.get(name)?.row;
    if (row) {
      row.classList.toggle("picked", yes);
      row.querySelector(".pick input").checked = yes;
    }
    this.drawBar();
  }

  chooseAll(yes) {
    for (const run of this.shown) this.choose(run.name, yes);
  }

  escape() {
    if (document.activeElement === this.search) this.search.blur();
    else for (const name of [...this.chosen]) this.choose(name, false);
  }

  drawBar() {
    const names = [...this.chosen];
    const inView = this.shown.filter((run) => this.chosen.has(run.name)).length;
    this.all.checked = inView > 0 && inView === this.shown.length;
    this.all.indeterminate = inView > 0 && inView < this.shown.length;
    this.bar.classList.toggle("open", names.length > 0);
    if (!names.length) return fill(this.bar);
    return fill(this.bar,
      h("b", {}, `${names.length} chosen`),
      button("Compare", () => this.compare(), { look: "main", icon: "compare" }),
      button("Copy command", (event) => copy(this.commandFor(names), event.currentTarget), { icon: "copy" }),
      button(names.length > 1 ? "Tags" : "Tags and note", () => (names.length > 1 ? this.editMany(names) : this.edit(names[0])), { icon: "tag" }),
      signButton("close", "Choose none", () => this.escape()));
  }

  compare() {
    const names = [...this.chosen];
    if (!names.length) this.shell.toast("Choose runs first: x, or the boxes on the left");
    else this.shell.go(`#/compare?${new URLSearchParams(names.map((name) => ["run", name]))}`);
  }

  commandFor(names) {
    const paths = names.map((name) => quoted(this.runs.get(name).path));
    return names.length > 1 ? `shoal compare ${paths.join(" ")}` : `shoal ${this.runs.get(names[0]).status === "finished" ? "watch" : "resume"} ${paths[0]}`;
  }

  edit(name) {
    const run = this.runs.get(name);
    const tags = h("input", { type: "text", value: (run.tags ?? []).join(", "), placeholder: "baseline, ablation", maxlength: 400 });
    const note = h("textarea", { rows: 5, value: run.note ?? "", placeholder: "What was tried, and what came of it", maxlength: 8000 });
    dialog(name, (close) => {
      const keep = async (event) => {
        event.preventDefault();
        if (await this.annotate({ run: name, tags: split(tags.value), note: note.value })) close();
      };
      return h("form.form", { onsubmit: keep },
        h("label.field.upright", {}, "Tags, with commas between them", tags), h("label.field.upright", {}, "Note", note),
        h("div.buttons", {}, button("Cancel", close, { look: "plain" }), button("Save", null, { look: "main", type: "submit" })));
    });
    tags.focus();
  }

  editMany(names) {
    const added = h("input", { type: "text", placeholder: "baseline", maxlength: 400 });
    dialog(`Add tags to ${plural(names.length, "run")}`, (close) => {
      const keep = async (event) => {
        event.preventDefault();
        const fresh = split(added.value);
        const done = names.map((run) => this.annotate({ run, tags: [...new Set([...(this.runs.get(run).tags ?? []), ...fresh])] }));
        if ((await Promise.all(done)).every(Boolean)) close();
      };
      return h("form.form", { onsubmit: keep }, h("label.field.upright", {}, "Tags, with commas between them", added),
        h("div.buttons", {}, button("Cancel", close, { look: "plain" }), button("Add", null, { look: "main", type: "submit" })));
    });
    added.focus();
  }

  async annotate(body) {
    try {
      const entry = await post("/api/annotate", body);
      if (entry) this.change({ changed: [entry], gone: [] });
      return true;
    } catch (error) {
      this.shell.toast(error.message, "bad");
      return false;
    }
  }
}

// A row that takes another's place takes its focus too.
function takeFocus(before, row) {
  if (!before.contains(document.activeElement)) return;
  const at = [...before.querySelectorAll("a, button, input")].indexOf(document.activeElement);
  before.replaceWith(row);
  row.querySelectorAll("a, button, input")[at]?.focus();
}

const split = (value) => [...new Set(value.split(",").map((tag) => tag.trim()).filter(Boolean))];

const quoted = (path) => (/^[\w@%+=:,./-]+$/.test(path) ? path : `'${path.replaceAll("'", `'"'"'`)}'`);

export const runAddress = (name) => `#/run/${name.split("/").map(encodeURIComponent).join("/")}`;

const text = (value) => (value === null || value === undefined || value === "" ? NONE : String(value));

function cell(column, run) {
  const classes = `${column.right ? ".right" : ""}${column.wide ? `.wide${column.wide}` : ""}.col-${column.key}`;
  return h(`td${classes}`, {}, column.show(run));
}

function statusCell(run) {
  return h(`span.status.${run.status}`, { title: run.problem || run.status }, h("span.status-words", {}, run.status));
}

function nameCell(run) {
  const facts = [run.env, run.algorithm, stepsText(run)].filter((each) => each && each !== NONE).join(" · ");
  return [
    h("a.name", { href: runAddress(run.name), title: run.path }, h("span", {}, run.name.slice(0, -TAIL)), h("span", {}, run.name.slice(-TAIL))),
    screenLinks(run),
    run.problem ? h("span.problem", { title: run.problem }, run.problem) : h("span.facts", {}, facts),
    run.tags?.length || run.note ? h("span.extra", {}, marks(run)) : null,
  ];
}

// Populations count iterations, everything else env steps.
function stepsText(run) {
  if (!run.env_steps && run.num_updates) return `${count(run.update)} / ${count(run.num_updates)}`;
  return run.total_env_steps && run.env_steps < run.total_env_steps ? `${count(run.env_steps)} / ${count(run.total_env_steps)}` : count(run.env_steps);
}

function stepsCell(run) {
  const done = h("span", { title: stepsText(run) }, run.env_steps ? count(run.env_steps) : run.num_updates ? count(run.update) : NONE);
  if (run.status !== "running" || run.progress === null) return done;
  return [done, h("span.bar", {}, h("i", { style: { width: `${(100 * run.progress).toFixed(1)}%` } }))];
}

function sparkCell(run) {
  return h("span.spark-home", {}, run.curve?.length > 1 ? spark(run.curve, `Return of ${run.name}`) : null);
}

function startedCell(run) {
  return h("time", { title: `${moment(run.started)}, ${bytes(run.size)}` }, ago(run.started));
}

function tagsCell(run) {
  return h("span.tags", {}, marks(run));
}

function marks(run) {
  return [(run.tags ?? []).map((tag) => h("span.chip", {}, tag)), run.note ? h("span.note", { title: run.note }, run.note) : null];
}
