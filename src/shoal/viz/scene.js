// How the shapes of a scene are drawn on a canvas, in pixels: shared by replays and by games with people.

export const NOSE = 1.75;  // radii from the middle of a body with a heading to its tip

// The colours of the page's style, which follow the light or dark scheme.
export function themeOf(page) {
  const style = getComputedStyle(page.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  const theme = { palette: Array.from({ length: 8 }, (_, i) => read(`c${i}`)) };
  for (const name of ["page", "arena", "edge", "grid", "ink", "muted", "accent"]) theme[name] = read(name);
  theme.font = `12px ${getComputedStyle(page.body).fontFamily}`;
  return theme;
}

// The ground between two corners, with lines at round numbers, 45 to 110 pixels apart.
export function drawArena(pen, theme, [left, bottom, right, top], toScreen, scale) {
  const [x0, y0] = toScreen([left, top]);
  const [x1, y1] = toScreen([right, bottom]);
  const arena = new Path2D();
  arena.roundRect(x0, y0, x1 - x0, y1 - y0, 10);
  pen.fillStyle = theme.arena;
  pen.fill(arena);
  pen.save();
  pen.clip(arena);
  const rough = 45 / scale;
  const power = 10 ** Math.floor(Math.log10(rough));
  const spacing = power * [1, 2, 5, 10].find((n) => n * power >= rough);
  pen.beginPath();
  for (let x = Math.ceil(left / spacing) * spacing; x < right; x += spacing) {
    const sx = toScreen([x, 0])[0];
    pen.moveTo(sx, y0);
    pen.lineTo(sx, y1);
  }
  for (let y = Math.ceil(bottom / spacing) * spacing; y < top; y += spacing) {
    const sy = toScreen([0, y])[1];
    pen.moveTo(x0, sy);
    pen.lineTo(x1, sy);
  }
  pen.strokeStyle = theme.grid;
  pen.lineWidth = 1;
  pen.stroke();
  pen.restore();
  pen.strokeStyle = theme.edge;
  pen.lineWidth = 1;
  pen.stroke(arena);
}

// The path that was begun, filled as an area with a rim.
export function paintArea(pen, colour, alpha) {
  pen.lineJoin = "round";
  pen.lineWidth = 1.5;
  pen.fillStyle = pen.strokeStyle = colour;
  pen.globalAlpha = 0.16 * alpha;
  pen.fill();
  pen.globalAlpha = 0.7 * alpha;
  pen.stroke();
  pen.globalAlpha = 1;
}

// The path that was begun, as a line.
export function paintLine(pen, colour, alpha) {
  pen.lineCap = "round";
  pen.lineWidth = 1.6;
  pen.globalAlpha = 0.75 * alpha;
  pen.strokeStyle = colour;
  pen.stroke();
  pen.globalAlpha = 1;
}

// A circle without a name is a place, not somebody: a pale disc.
export function drawPlaceAt(pen, theme, x, y, radius, colour, alpha) {
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.strokeStyle = colour;
  pen.lineWidth = 1.75;
  pen.globalAlpha = alpha;
  pen.fillStyle = theme.arena;
  pen.fill();
  pen.fillStyle = colour;
  pen.globalAlpha = 0.28 * alpha;
  pen.fill();
  pen.globalAlpha = alpha;
  pen.stroke();
  pen.globalAlpha = 1;
}

// Somebody: a disc or, with a heading, half a disc whose sides bend together into a nose.
export function drawBodyAt(pen, theme, x, y, radius, heading, colour, alpha) {
  pen.beginPath();
  if (Number.isFinite(heading)) {
    const [ahead, up] = [radius * Math.cos(heading), -radius * Math.sin(heading)];
    const at = (forward, aside) => [x + forward * ahead - aside * up, y + forward * up + aside * ahead];
    pen.arc(x, y, radius, Math.PI / 2 - heading, -Math.PI / 2 - heading);
    pen.quadraticCurveTo(...at(0.75, -1), ...at(NOSE, 0));
    pen.quadraticCurveTo(...at(0.75, 1), ...at(0, 1));
    pen.closePath();
  } else {
    pen.arc(x, y, radius, 0, 2 * Math.PI);
  }
  pen.globalAlpha = alpha;
  pen.fillStyle = colour;
  pen.fill();
  pen.strokeStyle = theme.arena;
  pen.lineWidth = Math.min(Math.max(radius * 0.16, 0.75), 2);
  pen.stroke();
  pen.globalAlpha = 1;
}

export function writeAt(pen, theme, text, x, y, weight) {
  pen.font = `${weight} ${theme.font}`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.lineJoin = "round";
  pen.lineWidth = 4;
  pen.strokeStyle = theme.arena;
  pen.strokeText(text, x, y);
  pen.fillStyle = theme.ink;
  pen.fillText(text, x, y);
}
