// The worlds that ship with Shoal: a gallery in motion and, of each world, its groups, options and presets.

import { h, fill, later } from "../lib/dom.js";
import { count, number, plural, setting } from "../lib/format.js";
import { address as to, get } from "../lib/api.js";
import { icon } from "../lib/icons.js";
import { choice, command, empty, scroller } from "../lib/parts.js";

const KINDS = ["cooperative", "competitive", "mixed"];
const AGENTS = [["1", "one agent", (n) => n === 1], ["2", "two agents", (n) => n === 2], ["few", "3 to 9 agents", (n) => n > 2 && n < 10], ["many", "10 agents or more", (n) => n >= 10]];
const ACTIONS = [["choices", "one of several choices"], ["both", "several choices at once"], ["numbers", "numbers"]];

export async function show(place, address, shell) {
  const { worlds } = await get("/api/environments");
  if (!address.path) return showGallery(place, address, shell, worlds);
  const world = worlds.find(({ id }) => id === address.path);
  if (!world) {
    fill(place, empty("There is no such environment", `${address.path} does not ship with Shoal. Your own are listed by shoal envs.`, h("a.button", { href: "#/environments" }, "All environments")));
    return {};
  }
  shell.title(world.id);
  fill(place, details(world));
  return { keys: { Escape: ["all environments", () => shell.go("#/environments")] } };
}

const agentsOf = ({ groups }) => Object.values(groups).reduce((sum, { size }) => sum + size, 0);
const actionKind = (action) => (!action.includes("choices") ? "numbers" : action.includes(" x ") ? "both" : "choices");

function showGallery(place, address, shell, worlds) {
  const state = { q: "", kind: "", agents: "", actions: "", ...Object.fromEntries(address.query) };
  const search = h("input#search", { type: "search", placeholder: "Search environments", "aria-label": "Search environments", value: state.q, oninput: later(() => ask({ q: search.value }), 120) });
  const found = h("p.sub", { role: "status" });
  const gallery = h("ul.gallery");
  const ask = (change) => {
    Object.assign(state, change);
    shell.replace(new URLSearchParams(Object.entries(state).filter(([, value]) => value)));
    draw();
  };
  const draw = () => {
    const shown = worlds.filter((world) => fits(world, state));
    found.textContent = shown.length === worlds.length ? plural(shown.length, "environment") : `${shown.length} of ${plural(worlds.length, "environment")}`;
    fill(gallery, shown.map(card));
    nothing.hidden = shown.length > 0;
  };
  const nothing = empty("No environment is like that", "Leave out a filter or a word.");
  fill(place, h("div.head", {}, h("h1", {}, "Environments"), found),
    h("div.head.filters", {}, h("div.searching", {}, icon("search"), search, h("kbd", {}, "/")),
      choice("Kind", [["", "all kinds"], ...KINDS], state.kind, (kind) => ask({ kind })),
      choice("Agents", [["", "any number of agents"], ...AGENTS], state.agents, (agents) => ask({ agents })),
      choice("Actions", [["", "all actions"], ...ACTIONS], state.actions, (actions) => ask({ actions }))),
    gallery, nothing);
  draw();
  return { keys: { "/": ["search", () => search.focus()] } };
}

function fits(world, { q, kind, agents, actions }) {
  const text = `${world.id} ${world.description}`.toLowerCase();
  return text.includes(q.toLowerCase()) && (!kind || world.kind === kind)
    && (!agents || (AGENTS.find(([key]) => key === agents)?.[2](agentsOf(world)) ?? false))
    && (!actions || Object.values(world.groups).some(({ action }) => actionKind(action) === actions));
}

function card(world) {
  return h("li", {}, h("a.card.world", { href: `#/environments/${world.id}`, dataset: { id: world.id } }, film(world),
    h("h2", {}, world.id), h("p", {}, world.description),
    h("p.muted", {}, [world.kind, plural(agentsOf(world), "agent"), plural(world.presets.length, "preset")].join(" · "))));
}

// The film, or its first picture for whoever wants no motion; a plain place if there is none.
function film({ film: source }) {
  if (!source) return h("div.film", {}, icon("environments"));
  const picture = h("img.film", { src: source, alt: "", loading: "lazy", width: 224, height: 168 });
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) return picture;
  const still = h("canvas.film", { width: 224, height: 168, "aria-hidden": "true" });
  picture.loading = "eager";
  picture.addEventListener("load", () => still.getContext("2d").drawImage(picture, 0, 0));
  return still;
}

function details(world) {
  const groups = Object.entries(world.groups).map(([name, { size, view, action }]) => [name || "agent", String(size), Object.entries(view).map(([part, shape]) => `${part ? `${part} ` : ""}${shape.join(" × ") || "1"}`).join(", "), action]);
  return [
    h("div.head", {}, h("a.sign", { href: "#/environments", "aria-label": "All environments", title: "All environments (Esc)" }, icon("back")), h("h1", {}, world.id), h("span.chip", {}, world.kind), h("span.chip", {}, plural(agentsOf(world), "agent"))),
    h("div.world-head", {}, film(world), h("div", {}, h("p", {}, world.description), command(`shoal train ${world.id}`), h("p", {}, h("a.button.main", { href: to("#/new", { target: world.id }) }, icon("play"), "Train it")))),
    part("Groups", table("Groups", ["Group", "Agents", "View", "Action"], groups, [1])),
    part("Options", world.options.length ? table("Options", ["Option", "Default", "What it is"], world.options.map(({ name, default: usual, text }) => [h("code", {}, `--env.${name.replaceAll("_", "-")}`), h("span.value", {}, setting(usual)), text]))
      : h("p.muted", {}, "This environment has no options.")),
    part("Presets", world.presets.length ? table("Presets", ["Preset", "Trains", "Steps", "Known to reach", "By chance"], world.presets.map(preset), [2])
      : h("p.muted", {}, "There is no preset for it.")),
  ];
}

const part = (title, ...children) => h("section.part", {}, h("h2", {}, title), children);

function table(label, heads, rows, right = []) {
  const look = (i) => ({ class: right.includes(i) ? "right" : "" });
  return scroller(label, ".card", h("table.table", {}, h("thead", {}, h("tr", {}, heads.map((words, i) => h("th", { scope: "col", ...look(i) }, words)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) => h("td", look(i), cell)))))));
}

function preset({ name, description, total_env_steps, known }) {
  const reached = Object.entries(known?.returns ?? {}).map(([group, { mean, low, high }]) =>
    h("div", {}, `${group} `, h("b", {}, number(mean)), low === undefined ? "" : h("span.muted", {}, ` ${number(low)} to ${number(high)}`)));
  const chance = Object.entries(known?.random ?? {}).map(([group, mean]) => h("div.muted", {}, `${group} ${number(mean)}`));
  return [h("a", { href: to("#/new", { target: name }), title: `New run of ${name}` }, h("code", {}, name)), description, count(total_env_steps), reached.length ? reached : h("span.muted", {}, "not measured"), chance];
}
