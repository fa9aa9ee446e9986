// Time travel: dots on the learning curve, and the episode that was kept at the chosen one. Each episode is a page of
// its own in a frame without an origin.

import { h, fill, later, say } from "./dom.js";
import { address as to, get } from "./api.js";
import { Chart } from "./chart.js";
import { count, number } from "./format.js";

export class TimeTravel {
  // points: [{ update, env_steps }], oldest first. at: the update to begin with, or "" for the newest, which is then
  // followed. onchosen(at): told of what is chosen, in the same words.
  constructor(run, points, at, onchosen) {
    Object.assign(this, { run, points, onchosen });
    this.chart = new Chart({
      title: "Episodes along the learning curve", label: `Episodes along the learning curve of ${run}`, file: `${run}-episodes`, height: 150,
      pick: (steps) => this.choose(this.nearest(steps)), step: (by) => this.by(by),
    });
    this.slider = h("input#episode", { type: "range", min: 0, step: 1, "aria-label": "Point along the learning curve", oninput: () => this.choose(Number(this.slider.value)) });
    this.said = h("output.figures.muted", { role: "status" });
    this.stage = h("div.card.stage");
    this.element = h("section.travel", { "aria-label": "Episodes along the learning curve" },
      h("div.card", {}, this.chart.element), h("div.card.transport", {}, this.slider, this.said), this.stage);
    this.play = later(() => this.playNow(), 60);
    this.go(at);
  }

  close() {
    this.closed = true;
    this.chart.close();
  }

  get point() { return this.points[this.index]; }

  nearest(steps) {
    return this.points.reduce((best, { env_steps }, i) => (Math.abs(env_steps - steps) < Math.abs(this.points[best].env_steps - steps) ? i : best), 0);
  }

  draw(metric, series) {
    this.chart.title.textContent = `${metric}, with the episodes that were kept`;
    this.chart.show(series);
  }

  // To the point of an update, or to the newest.
  go(at) {
    const found = at === "" ? -1 : this.points.findIndex(({ update }) => String(update) === at);
    this.follows = found < 0;
    this.show(found < 0 ? this.points.length - 1 : found);
  }

  by(steps) { this.choose(this.index + steps); }

  choose(index) {
    const next = Math.min(Math.max(index, 0), this.points.length - 1);
    if (next === this.index) return;
    this.follows = next === this.points.length - 1;
    this.show(next);
    this.onchosen(this.follows ? "" : String(this.point.update));
  }

  // Other points are there: who looks at the newest goes on with it, who looks at another stays there.
  renew(points) {
    const before = this.point;
    if (!points.length || JSON.stringify(points) === JSON.stringify(this.points)) return;
    this.points = points;
    this.index = undefined;
    if (this.follows) this.go("");
    else this.show(this.nearest(before.env_steps));
  }

  show(index) {
    this.index = index;
    this.slider.max = this.points.length - 1;
    this.slider.value = index;
    this.slider.setAttribute("aria-valuetext", this.words());
    this.tell();
    this.chart.mark(this.points.map(({ env_steps }) => env_steps), this.point.env_steps);
    this.play();
  }

  tell() {
    const told = this.told?.update === this.point.update ? this.told.words : [];
    say(this.said, [this.words(), ...told].join(" · "));
  }

  words() {
    const { update, env_steps } = this.point;
    const place = this.index === this.points.length - 1 ? "newest" : `${this.index + 1} of ${this.points.length}`;
    return `${place} · after ${update.toLocaleString("en")} updates, ${count(env_steps)} env steps`;
  }

  async playNow() {
    const point = this.point;
    if (this.closed || point.update === this.played) return;
    this.played = point.update;
    try {
      const { label, returns } = await get("/api/scene", { run: this.run, update: point.update });
      if (this.closed || point.update !== this.point.update) return;
      const words = Object.entries(returns).map(([group, value]) => `return of ${group} ${number(value)}`);
      this.told = { update: point.update, words: label ? [label, ...words] : words };
      this.tell();
      this.bring(point);
    } catch (error) {
      if (!this.closed) fill(this.stage, h("p.notice.bad", {}, error.message));
    }
  }

  // The frame before stays until the next one is there: nothing flickers along the way.
  bring(point) {
    const frame = h("iframe.replay.behind", { src: to("/scene", { run: this.run, update: point.update }), title: `Episode after ${point.update} updates`, sandbox: "allow-scripts" });
    frame.addEventListener("load", () => {
      if (point.update !== this.point.update) return frame.remove();
      frame.classList.remove("behind");
      for (const other of [...this.stage.children]) if (other !== frame) other.remove(); // a frame that moves loads anew
      return undefined;
    });
    if (!this.stage.querySelector("iframe")) frame.classList.remove("behind");
    this.stage.append(frame);
  }
}
