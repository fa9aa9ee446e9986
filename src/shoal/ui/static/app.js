// The shell: navigation, the address, keys, the theme. Each screen is a module of its own, loaded when it is opened.

import { h, fill } from "./lib/dom.js";
import { icon } from "./lib/icons.js";
import { dialog, empty, signButton, toast } from "./lib/parts.js";

// Screens in the order of the navigation; those without words are opened from elsewhere. key: opens it, after a g.
const SCREENS = [
  { name: "runs", words: "Runs", key: "r", icon: "runs" },
  { name: "run", words: "" },
  { name: "compare", words: "Compare", key: "c", icon: "compare" },
  { name: "population", words: "Population", key: "p", icon: "population" },
  { name: "tuning", words: "Sweep and PBT", key: "s", icon: "sweep" },
  { name: "cluster", words: "Cluster", key: "l", icon: "cluster" },
  { name: "environments", words: "Environments", key: "e", icon: "environments" },
  { name: "new", words: "New run", key: "n", icon: "new" },
];

const KEYS = {
  "?": ["this help", showKeys], t: ["light or dark", turnTheme],
  ...Object.fromEntries(SCREENS.filter(({ key }) => key).map(({ name, words, key }) => [`g ${key}`, [words, () => go(`#/${name}`)]])),
};

const main = document.getElementById("main");
let current = null; // { name, path, close, keys, update }
let opening = 0;
let pending = ""; // the first key of a pair such as "g r"

// The address as { name, path, query }: #/run/a%2Fb?x=1 is { name: "run", path: "a/b", query }.
function readAddress() {
  const [where, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...path] = where.split("/");
  return { name: name || "runs", path: path.map(unescapePart).join("/"), query: new URLSearchParams(query) };
}

function unescapePart(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const shell = {
  title: (text) => { document.title = text ? `${text} · Shoal` : "Shoal"; },
  go,
  // Changes the query of the address without a new entry in the history.
  replace(query) {
    const text = query.toString();
    history.replaceState(null, "", location.hash.split("?")[0] + (text ? `?${text}` : ""));
  },
  toast,
};

function go(address) { location.hash = address; }

async function openScreen() {
  const address = readAddress();
  if (current && current.name === address.name && current.path === address.path && current.update) {
    current.update(address);
    return;
  }
  const turn = ++opening;
  const screen = SCREENS.find(({ name }) => name === address.name);
  current?.close?.();
  current = null;
  markCurrent(address.name);
  if (!screen) {
    fill(main, empty("There is no such page", "The address may be from another version of Shoal.", h("a", { href: "#/runs" }, "All runs")));
    return;
  }
  const place = h("div.screen", { id: `screen-${screen.name}` }, h("p.muted.reading", { role: "status" }, "Reading …"));
  fill(main, place);
  main.scrollTop = 0;
  shell.title(screen.words);
  try {
    const module = await import(`./screens/${screen.name}.js`);
    const shown = (await module.show(place, address, shell)) ?? {};
    if (turn !== opening) shown.close?.();
    else current = { ...shown, name: address.name, path: address.path };
  } catch (error) {
    if (turn !== opening) return;
    fill(place, empty("This cannot be shown", error.message, h("a.button", { href: "#/runs" }, "All runs")));
    if (error.status === undefined) throw error;
  }
}

function markCurrent(name) {
  for (const link of document.querySelectorAll("#screens a")) {
    const here = link.dataset.screen === name || (name === "run" && link.dataset.screen === "runs");
    here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
}

function buildRail() {
  const links = SCREENS.filter(({ words }) => words).map(({ name, words, key, icon: sign }) =>
    h("li", {}, h("a", { href: `#/${name}`, title: `${words} (g ${key})`, dataset: { screen: name } }, icon(sign), h("span", {}, words))));
  fill(document.getElementById("screens"), links);
  fill(document.getElementById("tools"),
    signButton("sun", "Light or dark (t)", turnTheme, { id: "theme" }),
    signButton("help", "Keys (?)", showKeys, { id: "help" }));
}

function turnTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("shoal-theme", root.dataset.theme); } catch { /* then it holds for this visit */ }
  dispatchEvent(new Event("themechange"));
}

function showKeys() {
  if (document.querySelector("dialog[open]")) return;
  const rows = Object.entries({ ...(current?.keys ?? {}), ...KEYS }).map(([key, [words]]) =>
    [h("dt", {}, key.split(" ").map((each) => h("kbd", {}, NAMES[each] ?? each))), h("dd", {}, words)]);
  dialog("Keys", () => h("dl.keys", {}, rows));
}

const NAMES = { Enter: "↵", Escape: "Esc", ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" };

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (document.querySelector("dialog[open]")) return;
  const typing = event.target.closest?.("input:not([type=checkbox]):not([type=range]), textarea, select");
  if (typing && event.key !== "Escape") return;
  if (event.key === "Enter" && event.target.closest?.("a, button, summary")) return;
  const keys = { ...KEYS, ...(current?.keys ?? {}) };
  const name = pending ? `${pending} ${event.key}` : event.key;
  pending = "";
  if (keys[name]) {
    event.preventDefault();
    keys[name][1](event);
  } else if (Object.keys(keys).some((key) => key.startsWith(`${name} `))) {
    pending = name;
    setTimeout(() => { pending = ""; }, 1000);
  }
}

buildRail();
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", openScreen);
addEventListener("keydown", pressed);
await openScreen();
window.shoalReady = true;
