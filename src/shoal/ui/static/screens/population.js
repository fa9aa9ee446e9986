// A population that grows: who earns what against whom, mixtures, distance from equilibrium, ratings and lineage.

import { h, s, fill } from "../lib/dom.js";
import { NONE, number, plural } from "../lib/format.js";
import { post } from "../lib/api.js";
import { Chart, ticks } from "../lib/chart.js";
import { NumberMap } from "../lib/maps.js";
import { icon } from "../lib/icons.js";
import { button, choice, command, scroller } from "../lib/parts.js";
import { drawnWidth, headOf, liveScreen } from "../lib/screens.js";

const HOW = "Populations are grown by `shoal psro`; start one, and it is shown here while it grows.";
const LOG_RATIO = 10; // NashConv is drawn on a logarithmic axis if it has fallen by this factor
const MOST_MEMBERS = 60; // rows of the table of policies

export const show = (place, address, shell) =>
  liveScreen(place, address, shell, "population", "/api/population", HOW, (body) => new Population(body));

const percent = (share) => `${(100 * share).toFixed(1)} %`;
const signed = (value) => (Number.isFinite(value) ? `${value > 0 ? "+" : ""}${Number(value.toPrecision(3))}`.replace("-", "−") : NONE);

class Population {
  constructor(body) {
    this.body = body;
    this.whose = 0;
    this.head = h("div.run-head");
    this.maps = h("div.charts.large");
    this.lines = h("div.card.lines");
    this.descent = h("div.whole");
    this.table = h("div.tables");
    this.match = h("div.match");
    this.stage = h("div.match");
    this.distance = new Chart({ title: "Distance from equilibrium", unit: "iteration", height: 360, file: "nash_conv" });
    fill(this.lines, h("h2.unseen", {}, "Over the iterations"), this.distance.element);
    fill(body, this.head, this.maps, this.table);
    this.open = [];
  }

  close() {
    this.distance.close();
    for (const map of this.open) map.close();
  }

  draw(data) {
    this.data = data;
    this.found = data.found;
    const last = data.history.at(-1) ?? {};
    const facts = [
      ["Environment", data.entry.env || NONE], ["Meta-solver", String(data.meta_solver ?? NONE)], ["Responses", data.exact ? "exact" : data.entry.algorithm || NONE],
      ["Policies", this.found ? this.found.players.map((player) => this.found.members[player].length).join(" × ") : String(last.population ?? NONE)],
      ["Iterations", `${last.iteration ?? 0} of ${data.entry.num_updates}`],
      ["NashConv", number(last.nash_conv)], ["Exploitability", number(last.exploitability)], ["Value", number(last.value)],
    ];
    fill(this.head, headOf("population", data.entry, facts), data.problem ? h("p.notice", { role: "status" }, icon("bad"), data.problem) : null);
    this.drawMaps();
    this.drawDistance();
    fill(this.descent, this.found ? this.lineage() : null);
    fill(this.table, this.found ? this.found.players.map((player) => this.members(player)) : null);
  }

  // Maps stay as they are while their players do: what is pointed at is not lost when an iteration is added.
  drawMaps() {
    const players = this.found?.players ?? this.data.history.at(-1)?.mixtures?.map((_, p) => `player ${p}`) ?? [];
    const shape = JSON.stringify([players, Boolean(this.found?.table)]);
    if (shape !== this.shape) {
      this.shape = shape;
      for (const map of this.open) map.close();
      this.payoffs = this.found?.table ? this.payoffMap(players) : null;
      this.mixtures = players.map((player) => this.mixtureMap(player));
      this.open = [this.payoffs, ...this.mixtures].filter(Boolean);
      fill(this.maps, this.payoffs ? this.payoffCard(players) : null, this.mixtures.map((map, p) => h("div.card.map-card", {}, h("h2", {}, `Mixture of ${players[p]}`), h("p.muted", {}, "Weights of its policies, iteration by iteration."), map.element)), this.lines, this.descent);
    }
    this.fillPayoffs();
    this.mixtures.forEach((map, p) => {
      const lines = this.data.history.filter((line) => line.mixtures?.[p]?.length);
      const policies = Math.max(1, ...lines.map((line) => line.mixtures[p].length));
      map.lines = lines;
      map.element.hidden = !lines.length;
      if (lines.length) map.show(Array.from({ length: policies }, (_, i) => lines.map((line) => line.mixtures[p][i] ?? 0)), 1);
    });
  }

  payoffCard([first, second, ...others]) {
    const precision = this.data.exact ? "Exact." : "Choose an entry to see its match, and to play it.";
    return h("div.card.map-card", {},
      h("div.head", {}, h("h2", {}, "Payoffs"), choice("Payoff of", this.found.players.map((player, p) => [String(p), `of ${player}`]), String(this.whose), (whose) => { this.whose = Number(whose); this.fillPayoffs(); })),
      h("p.muted", {}, `${others.length ? `${first} against ${second}; the others play their mixtures. ` : ""}Blue earns, red loses. ${precision}`),
      this.payoffs.element, this.match, this.stage);
  }

  payoffMap([first, second]) {
    const error = (i, j) => this.found.table.error[this.whose]?.[i]?.[j];
    return new NumberMap({
      label: `Payoffs: policies of ${first} by policies of ${second}`, across: `policy of ${second}`, up: `policy of ${first}`,
      write: (value, i, j) => (i === undefined || this.data.exact || !Number.isFinite(error(i, j)) ? signed(value) : `${signed(value)}\n±${Number(error(i, j).toPrecision(2))}`),
      say: (i, j) => this.sayMatch(i, j), choose: (i, j) => this.showMatch(i, j),
    });
  }

  fillPayoffs() {
    if (!this.payoffs) return;
    const rows = this.found.table.mean[this.whose];
    this.payoffs.show(rows, Math.max(...rows.flat().map((value) => Math.abs(value ?? 0))) || 1);
    if (this.chosen) this.showMatch(...this.chosen);
  }

  sayMatch(i, j) {
    const [first, second] = this.found.players;
    const { mean, error, episodes } = this.found.table;
    const value = mean[this.whose][i][j];
    const earned = value === null ? "not played yet" : this.data.exact ? `${number(value)}, exactly` : `${number(value)} ± ${number(error[this.whose][i][j])} in ${plural(episodes[i][j].toLocaleString("en"), "episode")}`;
    const weight = (player, k) => percent(this.found.mixtures[player][k]);
    return `${first} ${i} (weight ${weight(first, i)}) against ${second} ${j} (weight ${weight(second, j)}): ${this.found.players[this.whose]} earns ${earned}`.replace("earns not played", "has not played");
  }

  showMatch(i, j) {
    const { table, players } = this.found;
    if (i >= table.mean[0].length || j >= table.mean[0][0].length) return;
    if (String(this.chosen) !== String([i, j])) {
      this.playing = null; // what is still played belongs to another match
      fill(this.stage);
    }
    this.chosen = [i, j];
    const lineup = [i, j, ...players.slice(2).map((player) => argmax(this.found.mixtures[player]))];
    const commands = this.data.commands;
    const earned = players.map((player, p) => `${player} ${lineup[p]}${table.mean[p] ? ` earns ${number(table.mean[p][i][j])}` : ""}`).join(", ");
    fill(this.match, h("h3", {}, `Match ${lineup.join(" – ")}`), h("p", {}, `${earned}.`),
      commands ? [h("div.head", {}, button("Play it", () => this.play(lineup, 0), { look: "main", icon: "play", disabled: Boolean(this.playing) })),
        command(`${commands.watch} ${lineup.join(",")}`), command(`${commands.match} ${commands.seats.map((seat, p) => `${seat}${lineup[p]}`).join(" ")}`)]
        : h("p.muted", {}, this.data.exact ? "Its policies are tables of probabilities, not networks: the payoff is exact, and there is nothing to watch." : "There is no command for this match: a name in it cannot be typed."));
  }

  // Another process plays the match, which takes some seconds; what it wrote is shown like any other replay.
  async play(lineup, seed) {
    const turn = this.playing = {};
    this.match.querySelector(".button")?.setAttribute("disabled", "");
    fill(this.stage, h("p.muted.reading", { role: "status" }, "Playing the match: JAX has to start, and to compile the world …"));
    let shown;
    try {
      const { page } = await post("/api/match", { run: this.data.entry.name, lineup, seed });
      shown = [h("iframe.replay", { src: page, title: `Match ${lineup.join(" – ")}`, sandbox: "allow-scripts" }), h("div.head", {}, button("Another episode", () => this.play(lineup, seed + 1), { icon: "play" }))];
    } catch (error) {
      shown = h("p.notice.bad", { role: "status" }, icon("bad"), error.message);
    }
    if (this.playing !== turn) return;
    this.playing = null;
    this.match.querySelector(".button")?.removeAttribute("disabled");
    fill(this.stage, shown);
  }

  mixtureMap(player) {
    const map = new NumberMap({
      label: `Mixture of ${player}: policies by iterations`, across: "iteration", up: "policy", kind: "weight",
      names: (j) => String(map.lines[j]?.iteration ?? ""), write: (value) => `${Math.round(100 * value)} %`,
      say: (i, j) => `${player} ${i} in iteration ${map.lines[j].iteration}: ${map.rows[i][j] === 0 && i >= map.lines[j].mixtures[this.mixtures.indexOf(map)].length ? "not born yet" : percent(map.rows[i][j])}`,
    });
    return map;
  }

  drawDistance() {
    const exact = this.data.history.filter((line) => Number.isFinite(line.nash_conv));
    const gained = this.data.history.filter((line) => line.gain);
    const curve = (name, colour, lines, value) => ({ name, colour, x: lines.map((line) => line.iteration), y: lines.map((line) => value(line) ?? NaN) });
    if (exact.length) {
      const all = exact.flatMap((line) => [line.nash_conv, line.exploitability]);
      this.distance.log = all.every((value) => value > 0) && exact[0].nash_conv >= LOG_RATIO * exact.at(-1).nash_conv;
      this.distance.title.textContent = "Distance from equilibrium";
      this.distance.show([curve("NashConv", 1, exact, (line) => line.nash_conv), curve("exploitability", 2, exact, (line) => line.exploitability)]);
    } else {
      this.distance.log = false;
      this.distance.title.textContent = "Gains of best responses over the mixture";
      const players = this.found?.players ?? gained[0]?.gain.map((_, p) => `player ${p}`) ?? [];
      this.distance.show(players.map((player, p) => curve(player, colourOf(p), gained, (line) => line.gain[p])));
    }
  }

  // Each policy at its birth and rating, joined to the one it started from; large ones have weight.
  lineage() {
    const { players, members, mixtures, elo, elo_margin } = this.found;
    const [width, height, left, right, top, bottom] = [drawnWidth(this.body), 280, 46, 14, 14, 30];
    const level = (player, i) => (elo ? elo[player][i] : i);
    const born = players.flatMap((player) => members[player].map((member) => member.born));
    const margin = (player, i) => elo_margin?.[player][i] ?? 0;
    const levels = players.flatMap((player) => members[player].flatMap((_, i) => [level(player, i) - margin(player, i), level(player, i) + margin(player, i)]));
    const [x1, y0, y1] = [Math.max(1, ...born), Math.min(...levels), Math.max(...levels)];
    const toX = (value) => left + 12 + (value / x1) * (width - left - right - 24);
    const toY = (value) => height - bottom - 12 - ((value - y0) / (y1 - y0 || 1)) * (height - top - bottom - 24);
    const drawn = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${elo ? "Elo ratings and lineage" : "Lineage"} of ${plural(born.length, "policy", "policies")}` });
    for (const value of y1 > y0 ? ticks(y0, y1, 5) : [y0]) drawn.append(s("path", { class: "grid", d: `M${left} ${toY(value)}H${width - right}` }), s("text", { class: "axis", x: left - 6, y: toY(value) + 4, "text-anchor": "end" }, String(Math.round(value))));
    for (const value of ticks(0, x1, 8).filter(Number.isInteger)) drawn.append(s("text", { class: "axis", x: toX(value), y: height - 18, "text-anchor": "middle" }, String(value)));
    drawn.append(s("text", { class: "axis", x: width / 2, y: height - 4, "text-anchor": "middle" }, "born in iteration"));
    players.forEach((player, p) => {
      const place = (i) => [toX(members[player][i].born), toY(level(player, i))];
      const ink = `var(--c${colourOf(p)})`;
      members[player].forEach(({ parent }, i) => { if (parent !== null) drawn.append(s("path", { class: "descent", d: `M${place(parent).join(" ")}L${place(i).join(" ")}`, style: { stroke: ink } })); });
      members[player].forEach((member, i) => {
        const words = `${player} ${i}: ${elo ? `Elo ${rating(elo[player][i], elo_margin?.[player][i])}, ` : ""}weight ${percent(mixtures[player][i])}, born in iteration ${member.born}, ${member.parent === null ? "started afresh" : `started from ${member.parent}`}`;
        if (margin(player, i)) drawn.append(s("path", { class: "interval", d: `M${place(i)[0]} ${toY(level(player, i) - margin(player, i))}V${toY(level(player, i) + margin(player, i))}`, style: { stroke: ink } }));
        drawn.append(s("circle", { class: "member", cx: place(i)[0], cy: place(i)[1], r: 3 + 12 * Math.sqrt(Math.max(0, mixtures[player][i])), style: { fill: ink } }, s("title", {}, words)));
      });
    });
    return h("div.card.map-card", {}, h("h2", {}, elo ? "Elo ratings and lineage" : "Lineage"),
      h("p.muted", {}, `Large ones have weight; lines lead from what a policy started from${elo_margin ? "; upright ones are 95 % intervals" : ""}.`),
      h("div.legend", {}, players.map((player, p) => h("span.key", { style: { color: `var(--c${colourOf(p)})` } }, h("i.swatch"), h("span", {}, player)))),
      scroller("Lineage", ".plot.still", drawn));
  }

  members(player) {
    const { members, mixtures, elo, elo_margin } = this.found;
    const order = mixtures[player].map((_, i) => i).sort((a, b) => mixtures[player][b] - mixtures[player][a] || b - a);
    const words = (member, i) => [i, member.name === String(i) ? "" : member.name, member.info?.role ?? "", member.frozen ? "frozen" : ""].filter((part) => part !== "").join(" · ");
    return scroller(`Policies of ${player}`, ".card", h("table.table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, player), ["Weight", "Elo", "Born", "From", "Earned"].map((each) => h("th.right", { scope: "col", title: each === "Elo" && elo_margin ? "± is half of the 95 % interval" : null }, each)))),
      h("tbody", {}, order.slice(0, MOST_MEMBERS).map((i) => {
        const member = members[player][i];
        return h("tr", {}, h("td", {}, words(member, i)), [percent(mixtures[player][i]), elo ? rating(elo[player][i], elo_margin?.[player][i]) : NONE, String(member.born), member.parent === null ? "afresh" : String(member.parent), number(member.info?.earned)].map((each) => h("td.right", {}, each)));
      }))), order.length > MOST_MEMBERS ? h("p.muted.cut", {}, `and ${order.length - MOST_MEMBERS} more of less weight`) : null);
  }
}

const rating = (value, margin) => `${Math.round(value)}${margin === null ? " ± 400 or more" : margin >= 0.5 ? ` ± ${Math.round(margin)}` : ""}`;
const colourOf = (p) => [1, 2, 3, 4, 5, 6, 7, 0][p % 8];
const argmax = (values) => values.indexOf(Math.max(...values));
