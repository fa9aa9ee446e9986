// Numbers, times and names as people read them.

const MINUS = "−";
export const NONE = "–";

// A large number in few letters: 950, 12.3k, 4.56M.
export function count(value) {
  if (!Number.isFinite(value)) return NONE;
  for (const [size, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return trim((value / size).toPrecision(3)) + letter;
  }
  return trim(Number.isInteger(value) ? String(value) : value.toPrecision(3)).replace("-", MINUS);
}

const trim = (text) => (text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text);

// A measured value with as many digits as it deserves, always as many for values of one size: −12.40, 0.031.
export function number(value) {
  if (!Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2).replace("e+", "e").replace(/-/g, MINUS);
  const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 || size === 0 ? 2 : size >= 0.1 ? 3 : 4;
  return value.toFixed(digits).replace("-", MINUS);
}

// Seconds as 0:42, 12:03 or 3:01:15.
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return NONE;
  const whole = Math.round(seconds);
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (each) => String(each).padStart(2, "0");
  return parts[0] ? `${parts[0]}:${two(parts[1])}:${two(parts[2])}` : `${parts[1]}:${two(parts[2])}`;
}

// How long ago a moment was, in seconds since 1970: just now, 5 min ago, 3 h ago, 12 Mar, 12 Mar 2024.
export function ago(moment, now = Date.now() / 1000) {
  if (!Number.isFinite(moment)) return NONE;
  const past = now - moment;
  if (past < 45) return "just now";
  if (past < 3600) return `${Math.max(1, Math.round(past / 60))} min ago`;
  if (past < 86400) return `${Math.round(past / 3600)} h ago`;
  if (past < 7 * 86400) return `${Math.round(past / 86400)} d ago`;
  const date = new Date(moment * 1000);
  const year = date.getFullYear() === new Date(now * 1000).getFullYear() ? undefined : "numeric";
  return date.toLocaleDateString("en-GB", { day: "numeric", month: "short", year });
}

export const moment = (seconds) =>
  Number.isFinite(seconds) ? new Date(seconds * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" }) : NONE;

// Bytes as 900 B, 12 kB, 3.4 MB, 1.2 GB.
export function bytes(size) {
  if (!Number.isFinite(size)) return NONE;
  for (const [unit, name] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (size >= unit) return `${(size / unit).toFixed(size / unit < 10 ? 1 : 0)} ${name}`;
  }
  return `${size} B`;
}

export const plural = (amount, one, many = `${one}s`) => `${amount} ${amount === 1 ? one : many}`;

// A setting's value: numbers as they are, lists short, nested things as JSON.
export function setting(value) {
  if (value === null || value === undefined) return NONE;
  if (typeof value === "number") return Math.abs(value) >= 1e4 && Number.isInteger(value) ? value.toLocaleString("en") : String(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}

// What a run has come to: its return; those of sides that win what others lose; or the NashConv of a population.
export function reached(run) {
  if (Number.isFinite(run.nash_conv)) return `NashConv ${Math.max(run.nash_conv, 0).toFixed(4)}`;
  const sides = Object.entries(run.sides ?? {});
  return sides.length ? sides.map(([name, value]) => `${name} ${number(value)}`).join(", ") : number(run.last_return);
}

// The best return, or the best so far of a long run of which not all lines are searched yet.
export const best = (run) => `${run.best_is_known === false ? "≥ " : ""}${number(run.best_return)}`;
