const colour = i => D.outcome[i] ? WASTED : PALETTE[D.name[i]] || OTHER;
const rgb = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16)), LINK = KINDS["transfer in"], UNFOUND = "#b9bfc6";
const RGB = new Map([...PALETTE, OTHER, WASTED, UNFOUND, LINK].map(hex => [hex, rgb(hex)]));
// White or black, whichever is easier to read on a colour.
const wordsOn = new Map([...RGB].map(([hex, [r, g, b]]) => [hex, 0.3 * r + 0.59 * g + 0.11 * b > 140 ? "#111" : "#fff"]));
function seconds(s) {
  for (const [size, unit] of [[3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"]]) if (Math.abs(s) >= 0.99995 * size) return +(s / size).toPrecision(4) + " " + unit;
  return +(s * 1e6).toPrecision(4) + " µs";
}
function amount(x, unit) {
  for (const [size, p] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "K"]]) if (x >= 0.9995 * size) return +(x / size).toPrecision(3) + " " + p + unit;
  return +x.toPrecision(3) + " " + unit;
}
// The same, for a place that is probably near: looks 1, 2, 4, … ahead first.
function ahead(column, a, b, x) { let step = 1, to = a; while (to < b && column[to] < x) { a = to + 1; to += step; step *= 2; } return lower(column, a, Math.min(to, b), x); }
function lower(column, a, b, x) { while (a < b) { const m = a + b >> 1; column[m] < x ? a = m + 1 : b = m; } return a; }

function sheet(id, height) {
  const canvas = $(id), scale = paper ? 2 : devicePixelRatio || 1, width = paper || canvas.clientWidth || 1200;
  canvas.style.height = height + "px";
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) { canvas.width = Math.round(width * scale); canvas.height = Math.round(height * scale); }
  const g = canvas.getContext("2d");
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, width, height);
  g.font = "12px system-ui, sans-serif"; g.textBaseline = "middle"; g.fillStyle = theme.ink;
  return [g, width];
}
function fit(g, text, width) {
  if (g.measureText(text).width <= width) return text;
  while (text.length > 1 && g.measureText(text + "…").width > width) text = text.slice(0, -1);
  return text + "…";
}
function box(g, x, y, w, h, fill) { g.fillStyle = fill; g.fillRect(x, y, w, h); stats.draws++; }
function text(g, words, x, y, fill, align = "left") { g.fillStyle = fill || theme.ink; g.textAlign = align; g.fillText(words, x, y); stats.draws++; }

const CLOCK = [15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000];
function ticks(a, b, width, clock = true) {
  const rough = (b - a) / Math.max(2, width / 110), power = 10 ** Math.floor(Math.log10(rough));
  const step = [...(clock && rough > 10 ? CLOCK : []), ...[1, 2, 5, 10].map(k => k * power)].find(s => s >= rough), found = [];
  for (let t = Math.ceil(a / step) * step; t <= b; t += step) found.push(t);
  return [found, step];
}
function label(t, step) {
  const [size, unit] = step >= 3600 ? [3600, "h"] : step >= 60 ? [60, "min"] : step >= 0.1 ? [1, "s"] : step >= 1e-4 ? [1e-3, "ms"] : [1e-6, "µs"];
  return (t / size).toFixed(Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9))) + " " + unit;
}
