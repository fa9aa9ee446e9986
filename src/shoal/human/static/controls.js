// Buttons, sliders, a stick and keys for the parts of an action. An action is a list with one entry per part.

const WAYS = ["up-left", "up", "up-right", "left", "stay", "right", "down-left", "down", "down-right"];
const SYNONYMS = { faster: "up", slower: "down", clockwise: "right", counterclockwise: "left", nothing: "stay", none: "stay" };
const SIGNS = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" };
const VERBS = ["move", "attack"];
const MOST_BUTTONS = 9;  // more choices, if they are degrees of something, are a slider
const isOrdered = (part) => part.choices.length > MOST_BUTTONS && part.choices.some((name) => name.endsWith(" %"));

export const keySign = (key) => SIGNS[key] ?? (key.length === 1 ? key.toUpperCase() : key);

export function element(tag, options = {}, ...children) {
  const made = Object.assign(document.createElement(tag), options);
  made.append(...children);
  return made;
}

// `held`: the world goes on by itself, and keys and buttons act while they are down. Otherwise a press is the action,
// once every part has been chosen. `send(action)` gets every new action.
export class Controls {
  constructor(form, description, held, send) {
    Object.assign(this, { form, held, send, parts: description.parts, kind: description.kind });
    this.down = this.parts.map(() => []);                  // by part, what is pressed: the newest last
    this.values = this.parts.map((part) => part.neutral ?? 0);
    this.chosen = this.parts.map((part) => part.neutral);  // where the world waits: null is not chosen yet
    this.buttons = this.parts.map(() => []);
    this.sliders = [];
    this.enabled = false;
    this.keys = this.findKeys();
    form.replaceChildren(...this.build());
    form.onsubmit = (event) => event.preventDefault();
  }

  findKeys() {
    const found = new Map();
    this.parts.forEach((part, p) => part.keys.forEach((keys, choice) => keys.forEach((key) => found.set(key, [p, choice]))));
    return found;
  }

  // The names and keys of all choices, for the help.
  *described() {
    for (const part of this.parts) {
      const names = part.choices.length ? part.choices : [`${part.name} −`, `${part.name} +`];
      for (const [i, keys] of part.keys.entries()) if (keys.length) yield [names[i], keys];
    }
  }

  build() {
    if (this.kind === "numbers") return this.buildNumbers();
    return this.parts.map((part, p) => {
      const inside = isOrdered(part) ? [this.buildSlider(part, p)] : this.buildChoices(part, p);
      return element("fieldset", {}, element("legend", { textContent: part.name }), ...inside);
    });
  }

  // Directions lie where they lead, those of each verb in a cross of their own; the rest is in rows.
  buildChoices(part, p) {
    const crosses = new Map();
    const rest = [];
    part.choices.forEach((name, choice) => {
      const words = name.split(" ");
      const verb = VERBS.includes(words[0]) ? words.shift() : "";
      const way = (SYNONYMS[words.join(" ")] ?? words.join(" ")).replace(" ", "-");
      const home = way === "stay" && !verb ? VERBS.find((one) => part.choices.some((other) => other.startsWith(`${one} `))) ?? "" : verb;
      const cross = crosses.get(home) ?? element("div", { className: "cross" });
      const fits = WAYS.includes(way) && !cross.querySelector(`.${way}`);
      const button = this.button(part, p, choice, name, fits && verb ? words.join(" ") : name);
      if (!fits) return rest.push(button);
      button.classList.add(way);
      cross.append(button);
      crosses.set(home, cross);
    });
    const made = [];
    for (const [verb, cross] of crosses) {
      if (cross.querySelectorAll(".left, .right, .up, .down").length < 2) { rest.unshift(...cross.children); continue; }
      cross.classList.toggle("plain", !cross.querySelector(".up, .down"));
      made.push(...(verb ? [element("p", { className: "verb", textContent: verb })] : []), cross);
    }
    if (rest.length) made.push(element("div", { className: "choices" }, ...rest));
    return made;
  }

  button(part, p, choice, name, text = name) {
    const keys = part.keys[choice].slice(0, 1).map((key) => element("kbd", { textContent: keySign(key) }));
    const button = element("button", { type: "button", title: name }, element("span", { textContent: text }), ...keys);
    button.setAttribute("aria-label", name);
    button.setAttribute("aria-pressed", "false");
    this.buttons[p][choice] = button;
    if (this.held) {
      button.onpointerdown = (event) => { button.setPointerCapture(event.pointerId); this.press(p, choice, button); };
      button.onpointerup = button.onpointercancel = button.onlostpointercapture = () => this.release(p, button);
      button.onkeydown = (event) => { if (event.key === " " && !event.repeat) this.press(p, choice, button); };
      button.onkeyup = (event) => { if (event.key === " ") this.release(p, button); };
    } else {
      button.onclick = () => this.choose(p, choice);
    }
    return button;
  }

  // Ordered choices, the first of which is none of them: a slider, least to most.
  buildSlider(part, p) {
    const output = element("output", { textContent: part.choices[part.neutral ?? 0] });
    const range = element("input", { type: "range", min: 0, max: part.choices.length - 1, step: 1, value: part.neutral ?? 0 });
    range.setAttribute("aria-label", part.name);
    range.oninput = () => {
      output.textContent = part.choices[range.value];
      if (this.held) { this.values[p] = Number(range.value); this.emit(); } else this.choose(p, Number(range.value));
    };
    this.sliders[p] = { range, output };
    const wide = [...new Set([part.neutral ?? 0, 1, part.choices.length - 1])];
    const quick = wide.map((choice) => this.button(part, p, choice, part.choices[choice]));
    const label = element("label", { className: "slide wide" }, range, output);
    return element("div", {}, element("div", { className: "choices" }, ...quick), label);
  }

  buildNumbers() {
    const box = element("fieldset");
    const at = (name) => this.parts.findIndex((part) => part.name === name);
    const [x, y] = [at("x"), at("y")];
    const pulls = ["left", "right", "down", "up"].map(at);
    if (x >= 0 && y >= 0) box.append(this.buildStick((dx, dy) => { this.set(x, this.part(x, dx)); this.set(y, this.part(y, dy)); }));
    else if (pulls.every((p) => p >= 0)) {
      box.append(this.buildStick((dx, dy) => [-dx, dx, -dy, dy].forEach((pull, i) => this.set(pulls[i], this.part(pulls[i], Math.max(0, pull))))));
    }
    this.parts.forEach((part, p) => {
      const output = element("output", { textContent: part.neutral.toFixed(2) });
      const range = element("input", { type: "range", min: part.low, max: part.high, step: "any", value: part.neutral });
      range.oninput = () => { this.set(p, Number(range.value)); this.emit(); };
      // In a world that goes on, a slider of its own stays where it is put; a stick springs back.
      this.sliders[p] = { range, output };
      box.append(element("label", { className: "slide" }, part.name, range, output));
    });
    if (!this.held) {
      const done = element("button", { type: "button", className: "main", textContent: "Do it" });
      done.onclick = () => this.enabled && this.send([...this.values]);
      this.done = done;
      box.append(done);
    }
    return [box];
  }

  // A share from -1 to 1 of what a number may be, 0 being neutral.
  part(p, share) {
    const { low, high, neutral } = this.parts[p];
    return neutral + (share < 0 ? (neutral - low) * share : (high - neutral) * share);
  }

  buildStick(move) {
    const knob = element("i");
    const stick = element("div", { className: "stick" }, knob);
    stick.setAttribute("role", "img");
    stick.setAttribute("aria-label", "Stick: drag to steer, or use the arrow keys");
    const put = (dx, dy) => {
      knob.style.transform = `translate(${(36 * dx).toFixed(1)}%, ${(-36 * dy).toFixed(1)}%)`;
      knob.style.translate = `${(dx * stick.clientWidth * 0.3).toFixed(1)}px ${(-dy * stick.clientWidth * 0.3).toFixed(1)}px`;
      move(dx, dy);
      this.emit();
    };
    const drag = (event) => {
      const box = stick.getBoundingClientRect();
      let dx = (2 * (event.clientX - box.left)) / box.width - 1;
      let dy = 1 - (2 * (event.clientY - box.top)) / box.height;
      const far = Math.max(1, Math.hypot(dx, dy));
      put(dx / far, dy / far);
    };
    stick.onpointerdown = (event) => { stick.setPointerCapture(event.pointerId); drag(event); };
    stick.onpointermove = (event) => { if (stick.hasPointerCapture(event.pointerId)) drag(event); };
    stick.onpointerup = stick.onpointercancel = () => { if (this.held) put(0, 0); };
    return stick;
  }

  set(p, value) {
    this.values[p] = value;
    const slider = this.sliders[p];
    if (!slider) return;
    slider.range.value = value;
    slider.output.textContent = this.kind === "numbers" ? value.toFixed(2) : this.parts[p].choices[value];
  }

  // A key or a button goes down, comes up: the newest that is down counts.
  press(p, choice, by) {
    if (!this.enabled || this.buttons[p]?.[choice]?.disabled) return;
    if (!this.held && this.kind === "choices") return this.choose(p, choice);
    this.down[p] = [...this.down[p].filter((one) => one.by !== by), { by, choice }];
    this.update(p);
  }

  release(p, by) {
    if (!this.down[p].some((one) => one.by === by)) return;
    this.down[p] = this.down[p].filter((one) => one.by !== by);
    this.update(p);
  }

  releaseAll() {
    this.parts.forEach((_, p) => { if (this.down[p].length) { this.down[p] = []; this.update(p); } });
  }

  update(p) {
    const part = this.parts[p];
    const newest = this.down[p].at(-1);
    if (this.kind === "numbers") this.set(p, newest ? (newest.choice ? part.high : part.low) : part.neutral);
    else this.set(p, newest ? newest.choice : part.neutral ?? this.values[p]);
    this.mark();
    this.emit();
  }

  emit() { if (this.held && this.enabled) this.send([...this.values]); }

  // Where the world waits: an action is sent as soon as every part has been chosen.
  choose(p, choice) {
    if (!this.enabled || this.buttons[p]?.[choice]?.disabled) return;
    this.chosen[p] = choice;
    const missing = this.parts.some((part, i) => this.chosen[i] === null && part.choices.length > 1);
    if (missing) return this.mark();
    const action = this.chosen.map((entry) => entry ?? 0);
    this.chosen = this.parts.map((part) => part.neutral);
    this.mark();
    this.send(action);
  }

  mark() {
    this.buttons.forEach((row, p) => row.forEach((button, choice) => {
      const on = this.held ? this.values[p] === choice && (this.down[p].length > 0 || this.parts[p].neutral === null)
        : this.parts.length > 1 && this.chosen[p] === choice;
      button.setAttribute("aria-pressed", String(Boolean(on)));
    }));
  }

  // What may be done now. Where the world goes on, illegal choices stay pressable: they count as nothing.
  allow(enabled, legal) {
    if (this.enabled && !enabled) this.releaseAll();
    this.enabled = enabled;
    this.buttons.forEach((row, p) => row.forEach((button, choice) => {
      const illegal = enabled && !(legal[p]?.[choice] ?? true);
      button.disabled = !enabled || illegal;
      button.classList.toggle("illegal", illegal);
    }));
    for (const slider of this.sliders) if (slider) slider.range.disabled = !enabled;
    if (this.done) this.done.disabled = !enabled;
    this.mark();
  }

  // Whether the key is one of these controls'.
  keydown(event) {
    const found = this.keys.get(event.key) ?? this.keys.get(event.key.toLowerCase());
    if (!found) return false;
    if (!event.repeat) this.press(...found, event.code || event.key);
    return true;
  }

  keyup(event) {
    const found = this.keys.get(event.key) ?? this.keys.get(event.key.toLowerCase());
    if (found) this.release(found[0], event.code || event.key);
    this.parts.forEach((_, p) => this.release(p, event.code || event.key));
  }
}
