// Replays side by side in step: one bar plays them all. Each is a page of its own in a frame without an origin, and is
// steered by messages.

import { h, say } from "./dom.js";
import { address as to } from "./api.js";
import { signButton } from "./parts.js";
import { icon } from "./icons.js";

export class InStep {
  constructor(runs) {
    this.frames = runs.map((name) => ({ name, time: 0, length: 1, frame: h("iframe.replay", { src: to("/page", { run: name, name: "replay.html" }), title: `Replay of ${name}`, sandbox: "allow-scripts" }) }));
    this.playing = false;
    this.time = 0;
    this.toggle = signButton("play", "Play all", () => this.play(!this.playing));
    this.scrub = h("input", { type: "range", min: 0, max: 1, step: 1, value: 0, "aria-label": "Frame of all replays", oninput: () => { this.play(false); this.seek(Number(this.scrub.value)); } });
    this.at = h("output.figures.muted", {}, "1 / 1");
    this.element = h("div.in-step", {},
      h("div.frames", {}, this.frames.map(({ name, frame }) => h("figure.card.frame-home", {}, h("figcaption", {}, name), frame))),
      h("div.card.transport", {}, this.toggle, this.scrub, this.at));
    this.hear = (event) => this.heard(event);
    addEventListener("message", this.hear);
  }

  close() {
    this.play(false);
    removeEventListener("message", this.hear);
  }

  get length() { return Math.max(...this.frames.map(({ length }) => length)); }

  heard({ source, data }) {
    const one = this.frames.find(({ frame }) => frame.contentWindow === source);
    if (!one || data?.shoal !== "at" || !Number.isFinite(data.time) || !Number.isFinite(data.length)) return;
    const first = !one.ready;
    one.ready = true;
    one.length = data.length;
    this.scrub.max = this.length - 1;
    if (first) this.begin();
    else if (data.playing) one.frame.contentWindow.postMessage({ shoal: "pause" }, "*"); // it is led from here
  }

  // Frames begin to play by themselves; once all are there, they are led together.
  begin() {
    if (!this.frames.every(({ ready }) => ready)) return;
    this.tell({ shoal: "pause" });
    this.seek(0);
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) this.play(true);
  }

  tell(message) { for (const { frame } of this.frames) frame.contentWindow?.postMessage(message, "*"); }

  seek(time) {
    this.time = time;
    this.tell({ shoal: "seek", time });
    this.scrub.value = Math.round(time);
    say(this.at, `${Math.floor(time) + 1} / ${this.length}`);
  }

  play(yes) {
    if (yes === this.playing) return;
    this.playing = yes;
    this.toggle.replaceChildren(icon(yes ? "pause" : "play"));
    this.toggle.setAttribute("aria-label", yes ? "Pause all" : "Play all");
    let before = performance.now();
    const step = (now) => {
      if (!this.playing || !this.element.isConnected) return;
      this.seek((this.time + ((now - before) / 1000) * 15) % Math.max(1, this.length - 1));
      before = now;
      requestAnimationFrame(step);
    };
    if (yes) requestAnimationFrame(step);
  }
}
