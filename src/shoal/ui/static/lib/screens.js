// What screens of special kinds of runs share: their head, their list, and how they follow a run.

import { h, fill, later } from "./dom.js";
import { ago } from "./format.js";
import { follow, get } from "./api.js";
import { icon } from "./icons.js";
import { empty } from "./parts.js";

// Screens that show some kinds of runs, by name: words.
export const SPECIAL = { population: "Population", tuning: "Sweep and PBT", cluster: "Cluster" };

export const screenAddress = (screen, run) => `#/${screen}/${run.split("/").map(encodeURIComponent).join("/")}`;

// Links to the further screens of a run, as small signs.
export const screenLinks = (run) => (run.screens ?? []).filter((screen) => screen in SPECIAL).map((screen) =>
  h("a.sign.special", { href: screenAddress(screen, run.name), "aria-label": `${SPECIAL[screen]} of ${run.name}`, title: SPECIAL[screen] }, icon(screen === "tuning" ? "sweep" : screen)));

// The runs that a screen can show, where the address names none.
export async function offerRuns(place, screen, how) {
  const { entries } = await get("/api/runs");
  const fitting = entries.filter((run) => run.screens?.includes(screen)).sort((a, b) => b.updated - a.updated);
  if (!fitting.length) return fill(place, empty("There is no such run here", how, h("a.button", { href: "#/runs" }, "All runs")));
  return fill(place, h("div.head", {}, h("h1", {}, SPECIAL[screen])),
    h("div.sets", {}, fitting.map((run) => h("a.card.set", { href: screenAddress(screen, run.name) },
      h("b", {}, run.name), h("span", {}, [run.env, run.algorithm, run.status, ago(run.updated)].filter(Boolean).join(" · "))))));
}

// The first lines of a screen: which run, what it is, figures.
export function headOf(screen, entry, facts) {
  return [
    h("div.head", {}, h("a.sign", { href: screenAddress("run", entry.name), "aria-label": `The run ${entry.name}`, title: "The run (Esc)" }, icon("back")),
      h("h1", {}, entry.name), h(`span.status.${entry.status}`, {}, entry.status), h("span.chip", {}, SPECIAL[screen])),
    h("dl.facts", {}, facts.map(([words, value]) => h("div", {}, h("dt", {}, words), h("dd", {}, value)))),
  ];
}

// The width of a picture across a screen, so that its letters are as large as all others; narrow screens scroll it.
export const drawnWidth = (body) => Math.max(520, Math.round(body.clientWidth) - 34);

// Calls `again` soon after a run has changed, until the returned function is called; `gone` if its folder went.
export function followRun({ entry, version, offset }, again, gone) {
  const soon = later(again, 400);
  return follow({
    version, runs: new Map([[entry.name, offset]]), lines: soon,
    entries: (change) => {
      if (change.gone.includes(entry.name)) gone("Its folder was removed.");
      else if (change.changed.some(({ name }) => name === entry.name)) soon();
    },
    gone: ({ problem }) => gone(problem),
  });
}

// A screen over one run, asked for at `path` and asked for again whenever the run changes.
// made: `draw(found)` shows what was answered, `close()` lets go of charts, `every`, if there is one, is the time in
// milliseconds after which it is asked again in any case, as long as `moves()` is true.
export async function liveScreen(place, address, shell, screen, path, how, make) {
  shell.title(SPECIAL[screen]);
  const keys = { Escape: ["the run", () => shell.go(address.path ? screenAddress("run", address.path) : "#/runs")] };
  if (!address.path) {
    await offerRuns(place, screen, how);
    return { keys };
  }
  const found = await get(path, { run: address.path });
  shell.title(`${address.path}, ${SPECIAL[screen]}`);
  const notice = h("p.notice.bad", { role: "status", hidden: true });
  const body = h("div.special-body");
  fill(place, notice, body);
  const made = make(body, found);
  const tell = (text) => {
    notice.hidden = !text;
    fill(notice, icon("bad"), text);
  };
  const again = async () => {
    try {
      made.draw(await get(path, { run: address.path }));
      tell("");
    } catch (error) {
      tell(`${error.message} What is shown here is the last that was read.`);
    }
  };
  const stop = followRun(found, again, (problem) => tell(`This run is gone: ${problem} What is shown here is the last that was read.`));
  made.draw(found);
  const clock = made.every ? setInterval(() => { if (!document.hidden && made.moves()) again(); }, made.every) : 0;
  return { close: () => { stop(); clearInterval(clock); made.close(); }, keys: { ...keys, ...(made.keys ?? {}) }, update: (next) => made.read?.(next) };
}
