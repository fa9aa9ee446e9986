// A new run: a form made from the options of the command of its kind, the command that it stands for, and what was started here.

import { h, fill, later } from "../lib/dom.js";
import { ago } from "../lib/format.js";
import { get, post } from "../lib/api.js";
import { icon } from "../lib/icons.js";
import { button, choice, command, empty } from "../lib/parts.js";
import { screenAddress } from "../lib/screens.js";

const SECONDS = 2; // between two looks at what was started

export async function show(place, address, shell) {
  const screen = new NewScreen(place, shell, await get("/api/targets"));
  await screen.read(address);
  return { close: () => screen.close(), update: (next) => screen.read(next), keys: { Escape: ["all runs", () => shell.go("#/runs")] } };
}

class NewScreen {
  constructor(place, shell, { kinds, targets }) {
    Object.assign(this, { shell, kinds, targets });
    this.form = h("form.new-form", { onsubmit: (event) => { event.preventDefault(); this.start(); } });
    this.shown = h("div.shown", { role: "status" });
    this.go = button("Start", () => this.start(), { look: "main", icon: "play" });
    this.list = h("ul.started");
    fill(place, h("div.head", {}, h("h1", {}, "New run")),
      h("div.new-home", {}, this.form,
        h("div.new-side", {}, h("section.card", {}, h("h2", {}, "The command"), this.shown, h("div.head", {}, this.go)), h("section.part", {}, h("h2", {}, "Started here"), this.list))));
    this.preview = later(() => this.previewNow(), 150);
    this.clock = setInterval(() => { if (!document.hidden) this.look(); }, SECONDS * 1000);
    this.look();
  }

  close() {
    this.closed = true;
    clearInterval(this.clock);
  }

  // The address has all that was chosen: ?kind=sweep&target=demo&--seed=3&name=mine
  async read({ query }) {
    this.state = Object.fromEntries(query);
    this.state.kind ||= "train";
    this.state.target ||= "demo";
    await this.draw();
  }

  get body() {
    const { kind, target, name = "", ...rest } = this.state;
    const known = new Map(this.options.flatMap((one) => [[one.flag, one], ...(one.off ? [[one.off, one]] : [])]));
    const options = Object.entries(rest).map(([flag, value]) => [flag, known.get(flag)?.is_switch ? true : value]);
    return { kind, target, name, options: Object.fromEntries(options) };
  }

  set(key, value) {
    if (value === "") delete this.state[key];
    else this.state[key] = value;
    this.shell.replace(new URLSearchParams(this.state));
    this.preview();
  }

  async draw() {
    const turn = this.turn = {};
    let found;
    try {
      found = await get("/api/form", this.state);
    } catch (error) {
      found = { problem: error.message };
    }
    if (this.turn !== turn) return; // something else was chosen meanwhile
    this.options = found.options ?? [];
    if (found.problem) {
      fill(this.form, this.kindField(), this.targetField(), h("p.notice.bad", {}, icon("bad"), found.problem));
      return this.previewNow();
    }
    const flags = new Set(this.options.flatMap(({ flag, off }) => [flag, off]));
    const others = Object.keys(this.state).filter((key) => key.startsWith("--") && !flags.has(key)); // of another kind or target
    for (const key of others) delete this.state[key];
    if (others.length) this.shell.replace(new URLSearchParams(this.state));
    const sections = new Map();
    for (const one of this.options) sections.set(one.section, [...(sections.get(one.section) ?? []), one]);
    const [[, common], ...rest] = sections;
    fill(this.form, this.kindField(), this.targetField(), h("p.muted", {}, this.targets.find(({ name }) => name === this.state.target)?.description ?? ""),
      this.field("name", "the folder of the run; made of the target and the time if left empty", this.text("name", "Name")),
      common.map((one) => this.option(one)),
      rest.map(([words, own]) => h("details.section", { open: own.some(({ flag, off }) => flag in this.state || off in this.state) },
        h("summary", {}, h("h2", {}, words), h("span.muted", {}, String(own.length))), h("div.new-fields", {}, own.map((one) => this.option(one))))));
    return this.previewNow();
  }

  kindField() {
    const turn = (value) => { this.set("kind", value); this.draw(); };
    const made = choice("Kind", this.kinds.map(({ name }) => name), this.state.kind, turn, { id: "kind" });
    made.value = this.state.kind; // none is chosen if the address has an unknown one
    return this.field("kind", this.kinds.find(({ name }) => name === this.state.kind)?.text, made);
  }

  targetField() {
    const groups = new Map();
    for (const one of this.targets) groups.set(one.env, [...(groups.get(one.env) ?? []), one.name]);
    const made = h("select#target", { "aria-label": "Target", onchange: () => { this.set("target", made.value); this.draw(); } },
      [...groups].map(([env, names]) => h("optgroup", { label: env }, names.map((name) => h("option", { value: name, selected: name === this.state.target }, name)))));
    return this.field("target", "what to train: an environment or a preset", made);
  }

  option(one) {
    const { flag, off, text, values, is_switch, unset, form, decides } = one;
    const words = flag.replace(/^--/, "");
    if (is_switch) {
      const now = flag in this.state ? flag : off && off in this.state ? off : "";
      const turn = (value) => {
        for (const each of [flag, off]) if (each) this.set(each, "");
        if (value) this.set(value, "yes");
      };
      return this.field(words, text, choice(words, [["", unset], [flag, "yes"], ...(off ? [[off, "no"]] : [])], now, turn));
    }
    if (values.length) {
      const turn = (value) => { this.set(flag, value); if (decides) this.draw(); };
      return this.field(words, text, choice(words, [["", unset], ...values], this.state[flag] ?? "", turn));
    }
    return this.field(words, text, this.text(flag, words, form.includes("=") ? form : unset));
  }

  text(key, label, placeholder = "") {
    const made = h("input", { type: "text", "aria-label": label, autocomplete: "off", spellcheck: "false", placeholder, value: this.state[key] ?? "", dataset: { key }, oninput: () => this.set(key, made.value.trim()) });
    return made;
  }

  field(words, text, control) { return h("div.new-field", {}, h("span", {}, h("b", {}, words), text ? h("span.muted", {}, text) : null), control); }

  async previewNow() {
    const asked = this.asked = JSON.stringify(this.body);
    let found;
    try {
      found = await post("/api/command", this.body);
    } catch (error) {
      found = { problem: error.message };
    }
    if (this.asked !== asked) return;
    fill(this.shown, found.problem ? h("p.notice.bad", {}, icon("bad"), found.problem) : command(found.command));
    this.go.disabled = Boolean(found.problem);
  }

  async start() {
    try {
      const { name } = await post("/api/start", this.body);
      this.shell.toast(`Started ${name}`);
      this.form.querySelector("[data-key=name]").value = ""; // it is taken now
      this.set("name", "");
    } catch (error) {
      this.shell.toast(error.message, "bad");
    }
    await this.look();
  }

  async stop(name) {
    try {
      await post("/api/stop", { name });
    } catch (error) {
      this.shell.toast(error.message, "bad");
    }
    await this.look();
  }

  async look() {
    let started;
    try {
      ({ started } = await get("/api/started"));
    } catch {
      return; // the server is gone; the next click says so
    }
    const text = JSON.stringify(started);
    if (this.closed || text === this.seen) return;
    this.seen = text;
    const focused = document.activeElement?.dataset?.stop;
    fill(this.list, started.length ? started.map((one) => this.entry(one)) : h("li.none", {}, empty("Nothing yet", "Runs that you start here go on when this page or its server is closed, and can be stopped here later.")));
    if (focused) this.list.querySelector(`[data-stop="${CSS.escape(focused)}"]`)?.focus();
  }

  entry({ name, screen, status, stopping, since, tail, command: typed, log }) {
    const last = tail.split(/[\r\n]+/).filter(Boolean).slice(-6).join("\n");
    return h("li.card", { dataset: { name } },
      h("div.head", {}, h("a", { href: screenAddress(screen, name) }, name), h(`span.status.${status}`, {}, stopping ? "stopping" : status), h("span.muted", {}, ago(since)), h("span.grow"),
        status === "running" ? button(stopping ? "Stop at once" : "Stop", () => this.stop(name), { dataset: { stop: name } }) : null),
      h("code.typed", {}, typed), last ? h("pre", { tabindex: 0, "aria-label": `Last lines of ${log}` }, last) : null);
  }
}
