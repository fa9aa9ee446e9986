// A policy's network in plain JavaScript: what shoal.bridges.plain_policy computes in numpy, for one view at a time.

const ILLEGAL = -1e9;
const NORM_EPS = 1e-6;
const SMALL_SIDE = 8;

const product = (shape) => shape.reduce((all, size) => all * size, 1);
const sigmoid = (x) => 0.5 * (Math.tanh(0.5 * x) + 1);
const mean = (x) => x.reduce((sum, value) => sum + value, 0) / x.length;

const ACTIVATIONS = {
  tanh: Math.tanh,
  relu: (x) => Math.max(x, 0),
  gelu: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  silu: (x) => x * sigmoid(x),
};

function decode({ shape, data }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  return { shape, values: new Float32Array(bytes.buffer) };
}

// Numbers in nested or flat arrays, as one flat array of the right length.
function numbersIn(value, what, length) {
  const found = [];
  const add = (part) => {
    if (typeof part === "number" || typeof part === "boolean") found.push(Number(part));
    else if (Array.isArray(part) || ArrayBuffer.isView(part)) for (const entry of part) add(entry);
    else throw new TypeError(`${what} must be numbers, got ${JSON.stringify(part)}`);
  };
  add(value);
  if (found.length !== length) throw new RangeError(`${what} must have ${length} numbers, got ${found.length}`);
  if (!found.every(Number.isFinite)) throw new RangeError(`${what} has entries that are NaN or infinite`);
  return found;
}

// Parts of a view by the path to them: {own: {health: 1}} is {"own.health": 1}.
function partsOf(view, prefix = "", found = {}) {
  const isPart = typeof view !== "object" || view === null || Array.isArray(view) || ArrayBuffer.isView(view);
  if (isPart) found[prefix] = view;
  else for (const [key, part] of Object.entries(view)) partsOf(part, prefix ? `${prefix}.${key}` : key, found);
  return found;
}

function multiply(x, { shape: [rows, columns], values }) {
  const out = new Float64Array(columns);
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) out[j] += x[i] * values[i * columns + j];
  return out;
}

// A 3x3 convolution over an image [rows, columns, channels], edges padded with zeros.
function convolve(x, [rows, columns, channels], kernel, bias) {
  const stride = Math.min(rows, columns) <= SMALL_SIDE ? 1 : 2;
  const [down, across] = [rows, columns].map((size) => Math.ceil(size / stride));
  const before = (size, places) => Math.floor(Math.max((places - 1) * stride + 3 - size, 0) / 2);
  const [above, left] = [before(rows, down), before(columns, across)];
  const filters = kernel.shape[3];
  const out = new Float64Array(down * across * filters);
  for (let place = 0; place < down * across; place++) {
    const [top, start] = [Math.floor(place / across) * stride - above, (place % across) * stride - left];
    for (let f = 0; f < filters; f++) out[place * filters + f] = bias.values[f];
    for (let tap = 0; tap < 9; tap++) {
      const [row, column] = [top + Math.floor(tap / 3), start + (tap % 3)];
      if (row < 0 || row >= rows || column < 0 || column >= columns) continue;
      for (let c = 0; c < channels; c++) {
        const pixel = x[(row * columns + column) * channels + c];
        const weights = (tap * channels + c) * filters;
        for (let f = 0; f < filters; f++) out[place * filters + f] += pixel * kernel.values[weights + f];
      }
    }
  }
  return { x: out, shape: [down, across, filters] };
}

function nested(flat, shape) {
  if (shape.length === 0) return flat[0];
  const size = flat.length / shape[0];
  return Array.from({ length: shape[0] }, (_, i) => nested(flat.slice(i * size, (i + 1) * size), shape.slice(1)));
}

export function makePolicy(about) {
  const arrays = Object.fromEntries(Object.entries(about.arrays).map(([name, array]) => [name, decode(array)]));
  const { actions, inputs } = about;
  const isBox = actions.kind === "box";
  const width = isBox ? product(actions.shape) : actions.sizes.reduce((sum, size) => sum + size, 0);
  const activate = (x) => x.map(ACTIVATIONS[about.activation]);

  function dense(name, x) {
    const bias = arrays[`${name}/bias`].values;
    return multiply(x, arrays[`${name}/kernel`]).map((value, i) => value + bias[i]);
  }

  // The entries of numbers that belong to each part of an action.
  function split(numbers) {
    let end = 0;
    return actions.sizes.map((size) => Array.from(numbers.slice(end, (end += size))));
  }

  function encoded(observation) {
    const parts = partsOf(observation);
    const wanted = inputs.map(({ name }) => name);
    if (Object.keys(parts).length !== wanted.length || !wanted.every((name) => Object.hasOwn(parts, name))) {
      const names = (list) => list.map((name) => name || "one array").join(", ");
      throw new TypeError(`an observation must have: ${names(wanted)}; got: ${names(Object.keys(parts))}`);
    }
    return inputs.flatMap(({ name, shape, dtype }, i) => {
      const what = name ? `observation.${name}` : "observation";
      let x = numbersIn(parts[name], what, product(shape));
      const bytes = dtype === "uint8";
      if (bytes && !x.every((value) => Number.isInteger(value) && value >= 0 && value <= 255)) {
        throw new RangeError(`${what} must be whole numbers from 0 to 255`);
      }
      const [centre, spread] = [arrays[`mean${i}`]?.values, arrays[`std${i}`]?.values];
      if (centre) x = x.map((value, j) => (value - centre[j]) / spread[j]);
      if (shape.length !== 3) return x;
      let image = { x: bytes && !centre ? x.map((value) => value / 255) : x, shape };
      for (let layer = 0; `conv${i}.${layer}/kernel` in arrays; layer++) {
        const [kernel, bias] = ["kernel", "bias"].map((part) => arrays[`conv${i}.${layer}/${part}`]);
        image = convolve(image.x, image.shape, kernel, bias);
        image.x = activate(image.x);
      }
      return Array.from(image.x);
    });
  }

  function normed(layer, x) {
    if (!about.layer_norm) return x;
    const [scale, bias] = ["scale", "bias"].map((part) => arrays[`norm${layer}/${part}`].values);
    const middle = mean(x);
    const spread = Math.sqrt(mean(x.map((value) => (value - middle) ** 2)) + NORM_EPS);
    return x.map((value, i) => ((value - middle) / spread) * scale[i] + bias[i]);
  }

  function gru(x, [h]) {
    const [size, given, held] = [h.length, dense("cell/inputs", x), multiply(h, arrays["cell/kernel"])];
    const bias = arrays["cell/bias"].values;
    const next = h.map((old, i) => {
      const reset = sigmoid(given[i] + held[i]);
      const update = sigmoid(given[size + i] + held[size + i]);
      const fresh = Math.tanh(given[2 * size + i] + reset * (held[2 * size + i] + bias[i]));
      return fresh + update * (old - fresh);
    });
    return [next, [next]];
  }

  function lstm(x, [c, h]) {
    const [size, held] = [h.length, multiply(h, arrays["cell/kernel"])];
    const gates = dense("cell/inputs", x).map((value, i) => value + held[i]);
    const gate = (number, i) => sigmoid(gates[number * size + i]);
    const kept = c.map((old, i) => gate(1, i) * old + gate(0, i) * Math.tanh(gates[2 * size + i]));
    const next = kept.map((value, i) => gate(3, i) * Math.tanh(value));
    return [next, [kept, next]];
  }

  function minGru(x, [h]) {
    const [size, given] = [h.length, dense("cell/inputs", x)];
    const next = h.map((old, i) => old + sigmoid(given[i]) * (given[size + i] - old));
    return [next, [next]];
  }

  function head(x) {
    const out = Array.from(dense("head", x));
    if ("log_std" in arrays) out.push(...arrays.log_std.values);
    if (isBox || !("base/kernel" in arrays)) return out;
    const base = dense("base", x);
    const centred = split(out).flatMap((part) => part.map((value) => value - mean(part)));
    return centred.map((value, i) => value + base[base.length === 1 ? 0 : i]);
  }

  function point(numbers) {
    const { low, high, shape, dtype } = actions;
    let found = numbers.slice(0, width);
    if (low !== null && high !== null) {
      found = found.map((x) => Math.min(Math.max(low + 0.5 * (high - low) * (Math.tanh(x) + 1), low), high));
    }
    return nested(dtype.includes("int") ? found.map(Math.trunc) : found, shape);
  }

  function masked(numbers, legal) {
    if (legal === undefined || legal === null) return numbers;
    const mask = numbersIn(legal, "legal", width);
    if (!split(mask).every((part) => part.some(Boolean))) throw new RangeError("legal allows no action");
    return numbers.map((value, i) => (mask[i] ? value : ILLEGAL));
  }

  function initialMemory() {
    if (about.recurrent === "none") return [];
    const [count, gates] = { gru: [1, 3], lstm: [2, 4], min_gru: [1, 2] }[about.recurrent];
    return Array.from({ length: count }, () => Array(arrays["cell/inputs/bias"].values.length / gates).fill(0));
  }

  function checked(memory) {
    const start = initialMemory();
    if (!memory || memory.length === 0) return start;
    if (memory.length !== start.length) throw new RangeError(`memory must have ${start.length} parts, got ${memory.length}`);
    return start.map((part, i) => numbersIn(memory[i], `memory[${i}]`, part.length));
  }

  // The chances of the choices, part by part; null where the policy has none: its best action is always taken.
  function chances(numbers) {
    if (isBox || !about.sampled) return null;
    const parts = split(numbers).map((part) => {
      const most = Math.max(...part);
      const weights = part.map((value) => Math.exp(value - most));
      const sum = weights.reduce((all, weight) => all + weight, 0);
      return weights.map((weight) => weight / sum);
    });
    return actions.kind === "discrete" ? parts[0] : parts;
  }

  function act(observation, legal, memory) {
    let x = encoded(observation);
    let kept = checked(memory);
    for (let layer = 0; `layer${layer}/kernel` in arrays; layer++) x = activate(normed(layer, dense(`layer${layer}`, x)));
    if (kept.length) [x, kept] = { gru, lstm, min_gru: minGru }[about.recurrent](x, kept);
    const numbers = isBox ? head(x) : masked(head(x), legal);
    kept = kept.map((part) => Array.from(part));
    if (isBox) return { action: point(numbers), numbers, probabilities: null, memory: kept };
    const best = split(numbers).map((part) => part.indexOf(Math.max(...part)));
    const action = actions.kind === "discrete" ? best[0] : best;
    return { action, numbers, probabilities: chances(numbers), memory: kept };
  }

  return Object.freeze({ act, initialMemory, inputs, actions });
}
