// The page of a game: draws what the server shows, and sends what the person does.

import { Controls, element, keySign } from "./controls.js";
import { drawArena, drawBodyAt, drawPlaceAt, NOSE, paintArea, paintLine, themeOf, writeAt } from "./scene.js";

const $ = (id) => document.getElementById(id);
const EASE = 90;       // milliseconds at most from one position to the next
const JUMP = 0.25;     // of the world: who moves farther in a step has jumped
const person = sessionStorage.getItem("person") ?? crypto.randomUUID();
sessionStorage.setItem("person", person);

let table = null;
let state = null;
let controls = null;
let sent = -1;         // the step that an action was sent for

// The server.

async function post(where, message) {
  const answer = await fetch(where, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ person, ...message }) })
    .catch(() => null);
  if (answer === null) return complain("The server does not answer.");
  if (answer.ok) return complain("");
  complain((await answer.json().catch(() => ({}))).refused ?? `The server refused: ${answer.status}`);
}

const command = (name) => post("command", { name });

function sendAction(action) {
  if (!table.fps) {
    if (sent === state.step) return;
    sent = state.step;
  }
  post("act", { action, step: state.step });
}

function connect() {
  const events = new EventSource(`events?person=${encodeURIComponent(person)}`);
  events.addEventListener("table", (event) => sit(JSON.parse(event.data)));
  events.addEventListener("state", (event) => show(JSON.parse(event.data)));
  events.addEventListener("refused", (event) => {
    events.close();
    curtain(JSON.parse(event.data), "", false);
    controls?.allow(false, []);
  });
  events.onerror = () => { if (events.readyState !== EventSource.CLOSED) curtain("Connection lost", "Trying again …", false); };
}

function complain(text) { $("trouble").textContent = text; }

// What is shown besides the picture.

function sit(found) {
  table = found;
  sent = -1;
  const { iterations, updates } = table.opponents;
  const played = iterations === undefined ? `after ${updates} updates, ${table.policies}` : `mixtures after ${iterations} iterations`;
  const others = table.opponents.run === "random" ? "random play" : `${table.opponents.run} (${played})`;
  $("world").textContent = table.world;
  $("who").textContent = `You play ${table.seat} against ${others}`;
  document.title = `Play ${table.world}`;
  controls = new Controls($("controls"), table.controls, table.fps > 0, sendAction);
  $("key-list").replaceChildren(...[...controls.described(), ["start", ["Enter"]], ["pause, go on", ["Escape"]], ["this help", ["?"]]]
    .flatMap(([name, keys]) => [element("dt", { textContent: name }), element("dd", {}, ...keys.map((key) => element("kbd", { textContent: keySign(key) })))]));
}

const figure = (value) => {
  const digits = Math.abs(value) >= 100 || Number.isInteger(value) ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace("-", "−");
};

function show(found) {
  const fresh = state === null || found.episode !== state.episode || found.step < state.step;
  const moved = state === null || found.step !== state.step || fresh;
  state = found;
  if (fresh) sent = -1;
  if (moved) painter.move(found.scene, fresh);
  const playing = state.phase === "playing";
  controls.allow(playing && state.active, state.legal);
  $("pause").hidden = !["playing", "paused"].includes(state.phase);
  $("pause").firstElementChild.textContent = playing ? "Pause" : "Go on";
  $("restart").hidden = state.phase === "ready";
  showScore();
  showTurn(playing);
  if (state.error) complain(state.error);
  showCurtain();
}

function showScore() {
  const rows = [["you", figure(state.return)]];
  for (const [name, value] of Object.entries(state.returns)) if (name !== table.alone) rows.push([name, figure(value)]);
  rows.push(["step", figure(state.step)]);
  const played = state.scores.length;
  if (played) rows.push([`mean of ${played} episode${played > 1 ? "s" : ""}`, figure(state.scores.reduce((a, b) => a + b, 0) / played)]);
  $("numbers").replaceChildren(...rows.flatMap(([name, value]) => [element("dt", { textContent: name }), element("dd", { textContent: value })]));
  const most = Math.max(...state.scores.map(Math.abs), 1e-9);
  const svg = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const picture = svg("svg", { viewBox: `0 0 ${Math.max(played, 12)} 2`, preserveAspectRatio: "none" });
  state.scores.forEach((score, i) => {
    const height = Math.max(Math.abs(score) / most, 0.04);
    picture.append(svg("rect", { x: i + 0.1, y: score >= 0 ? 1 - height : 1, width: 0.8, height, class: score >= 0 ? "up" : "down" }));
  });
  $("bars").replaceChildren(...(played ? [picture] : []));
}

function showTurn(playing) {
  const others = state.said.filter(([who]) => who !== table.seat).map(([who, what]) => `${who}: ${what}`);
  const own = state.said.filter(([who]) => who === table.seat).map(([, what]) => `you: ${what}`);
  $("said").textContent = [...own, ...others].join(" · ");
  if (!playing) return void ($("turn").textContent = "");
  if (!state.present) $("turn").textContent = "You are out: watch the others";
  else if (table.fps) $("turn").textContent = "";
  else $("turn").textContent = state.active ? "Your turn" : "The others move …";
}

function showCurtain() {
  const words = { ready: ["Ready?", "Start", keysInWords()], paused: ["Paused", "Go on", ""], over: [verdict(), "Next episode", ""] };
  const [headline, button, detail] = words[state.phase] ?? [];
  if (!headline) return void ($("curtain").hidden = true);
  curtain(headline, detail, true, button);
  $("curtain").classList.toggle("low", state.phase === "over");
  $("curtain").classList.toggle("solid", state.phase !== "over");
}

function curtain(headline, detail, can, button = "") {
  $("curtain").hidden = false;
  $("curtain").classList.toggle("solid", true);
  $("headline").textContent = headline;
  $("detail").textContent = detail;
  $("start").hidden = !can;
  $("start-word").textContent = button;
}

const verdict = () => `Episode over: your return is ${figure(state.return)}`;

function keysInWords() {
  const keys = [...controls.described()].slice(0, 6).map(([name, own]) => `${keySign(own[0])} ${name}`);
  const pace = table.fps ? `The world makes ${figure(table.fps)} steps a second.` : "The world waits for you.";
  return `${pace}${keys.length ? ` Keys: ${keys.join(", ")}.` : ""}`;
}

function goOn() {
  if (!state) return;
  if (state.phase === "paused") command("resume");
  else if (state.phase !== "playing") command("start");
}

function togglePause() {
  if (state?.phase === "playing") command("pause");
  else if (state?.phase === "paused") command("resume");
}

// The picture: shapes glide from where they were to where they are.

const painter = {
  canvas: $("picture"),
  pen: $("picture").getContext("2d"),
  theme: {},
  before: null,
  now: null,
  since: 0,
  scheduled: false,

  move(scene, jump) {
    this.before = jump ? null : index(this.now);
    this.now = scene;
    this.since = performance.now();
    this.schedule();
  },

  schedule() {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => this.tick());
  },

  tick() {
    this.scheduled = false;
    const lasting = Math.min(EASE, table?.fps ? 1000 / table.fps : EASE);
    const share = still.matches ? 1 : Math.min(1, (performance.now() - this.since) / lasting);
    this.draw(share);
    if (share < 1) this.schedule();
  },

  draw(share) {
    const { canvas, pen, now } = this;
    const [wide, high] = [canvas.clientWidth, canvas.clientHeight];
    const ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(high * ratio)) {
      canvas.width = Math.round(wide * ratio);
      canvas.height = Math.round(high * ratio);
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, wide, high);
    if (!now) return;
    const [left, bottom, right, top] = now.bounds;
    const scale = Math.min((wide - 4) / (right - left), (high - 4) / (top - bottom));
    const toScreen = ([x, y]) => [wide / 2 + (x - (left + right) / 2) * scale, high / 2 - (y - (bottom + top) / 2) * scale];
    const theme = { ...this.theme, font: `${Math.max(12, Math.min(18, Math.round(wide / 45)))}px ${this.family}` };
    const glide = (kind, shape, k) => {
      const old = this.before?.[kind].get(shape[0]);
      if (!old || old.length !== shape.length) return shape[k];
      const far = Math.abs(shape[k] - old[k]) > JUMP * Math.max(right - left, top - bottom);
      return far ? shape[k] : old[k] + (shape[k] - old[k]) * share;
    };
    const outline = (kind, shape) => {
      pen.beginPath();
      for (let k = 2; k < shape.length; k += 2) pen.lineTo(...toScreen([glide(kind, shape, k), glide(kind, shape, k + 1)]));
    };
    drawArena(pen, theme, now.bounds, toScreen, scale);
    for (const shape of now.polygons) {
      outline("polygons", shape);
      pen.closePath();
      paintArea(pen, theme.palette[shape[1]], 1);
    }
    for (const shape of now.lines) {
      outline("lines", shape);
      paintLine(pen, theme.palette[shape[1]], 1);
    }
    const named = now.circles.filter((shape) => shape[6]).length;
    const least = Math.min(Math.max(22 / Math.sqrt(named || 1), 2.6), 7);
    for (const shape of [...now.circles].sort((a, b) => b[4] - a[4])) {
      const [, colour, , , size, heading, name] = shape;
      const [x, y] = toScreen([glide("circles", shape, 2), glide("circles", shape, 3)]);
      const radius = Math.max(size * scale, name ? least : 2.5);
      if (name) drawBodyAt(pen, theme, x, y, radius, heading ?? NaN, theme.palette[colour], 1);
      else drawPlaceAt(pen, theme, x, y, radius, theme.palette[colour], 1);
      if (name && name === table.name) this.mark(x, y, radius * (heading === null ? 1 : NOSE) + 5);
    }
    for (const [, x, y, text] of now.labels) writeAt(pen, theme, text, ...toScreen([x, y]), 500);
  },

  // A ring around oneself.
  mark(x, y, radius) {
    const { pen, theme } = this;
    pen.beginPath();
    pen.arc(x, y, radius, 0, 2 * Math.PI);
    pen.strokeStyle = theme.ink;
    pen.lineWidth = 2;
    pen.stroke();
  },

  readTheme() {
    this.theme = themeOf(document);
    this.family = getComputedStyle(document.body).fontFamily;
    this.schedule();
  },
};

function index(scene) {
  if (!scene) return null;
  const found = {};
  for (const kind of ["polygons", "lines", "circles"]) found[kind] = new Map(scene[kind].map((shape) => [shape[0], shape]));
  return found;
}

// Keys, buttons, and the window.

const still = matchMedia("(prefers-reduced-motion: reduce)");
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => painter.readTheme());
new ResizeObserver(() => painter.schedule()).observe($("stage"));
$("start").onclick = goOn;
$("pause").onclick = togglePause;
$("restart").onclick = () => command("restart");
$("help").onclick = () => $("keys").showModal();
document.addEventListener("click", (event) => { if (event.detail) event.target.closest?.("nav button, #start")?.blur(); });
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open || !controls) return;
  const typing = event.target.closest?.("input");
  if (event.key === "Enter" && !event.target.closest?.("button")) goOn();
  else if (event.key === "Escape") togglePause();
  else if (event.key === "?") $("keys").showModal();
  else if (typing || !controls.keydown(event)) return;
  event.preventDefault();
});
addEventListener("keyup", (event) => controls?.keyup(event));
addEventListener("blur", () => controls?.releaseAll());

// What a script may ask the page.
window.shoal = Object.freeze({
  get state() { return state; },
  get table() { return table; },
  get action() { return controls ? [...controls.values] : null; },
});

painter.readTheme();
connect();
