"use strict";
// The report's page: unpacks its own data, draws on canvases, sends nothing anywhere.
const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#b8a800", "#8068c0"];
const OTHER = "#8a9199", WASTED = "#9b2226";
const KINDS = { "compute": "#0072b2", "transfer in": "#e69f00", "transfer out": "#f0c45c", "collective": "#cc79a7",
  "waiting for data": "#56b4e9", "waiting for work": "#c9ced4", "retry": "#9b2226", "overhead": "#6b5b95", "idle": "#8a9199" };
const OUTCOMES = ["done", "failed", "its worker was lost", "done, but not wanted"];
const LEFT = 116, GAP = 4, AXIS = 22, MOST = 720;
let ROW = 26;
const $ = id => document.getElementById(id);
const stats = window.heteroStats = { frames: 0, draws: 0, ready: false, rows: 0, slices: 0 };
let D, view, top0 = 0, picked = -1, hits = [], hit = -1, match = null, theme;

async function unpack() {
  const text = atob($("data").textContent), bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const raw = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(raw.buffer).getUint32(0, true);
  const doc = JSON.parse(new TextDecoder().decode(raw.subarray(4, 4 + length)));
  let at = 4 + length;
  for (const [name, n] of doc.columns) {
    const column = new Int32Array(n);
    for (let i = 0; i < n; i++) column[i] = raw[at + i] | raw[at + n + i] << 8 | raw[at + 2 * n + i] << 16 | raw[at + 3 * n + i] << 24;
    doc[name] = column;
    at += 4 * n;
  }
  return doc;
}

function prepare(d) {
  const n = d.took.length;
  d.start = new Float64Array(n); d.end = new Float64Array(n); d.from = new Int32Array(n + 1); d.row = new Int32Array(n);
  let at = 0, task = 0;
  for (let i = 0; i < n; i++) {
    at += d.gap[i]; d.start[i] = at * d.tick; at += d.took[i]; d.end[i] = at * d.tick;
    task += d.task[i]; d.task[i] = task;
    d.from[i + 1] = d.from[i] + d.parents[i];
  }
  d.rows = [];
  let first = 0;
  d.devices.forEach((name, r) => { d.rows.push(row(name, first, first + d.counts[r], d.start, d.end)); d.row.fill(r, first, first += d.counts[r]); });
  d.copyFrom = Float64Array.from(d.copyStart, t => t * d.tick);
  d.copyTo = d.copyFrom.map((t, i) => t + d.copyTook[i] * d.tick);
  d.bytes = new Float32Array(d.copyBytes.buffer);
  first = 0;
  d.links.forEach((name, r) => d.rows.push({ ...row(name, first, first += d.linkCounts[r], d.copyFrom, d.copyTo), link: true }));
  plan(d);
  d.critical = new Set(d.chain);
  ROW = d.rows.length > 20 ? 16 : 26;
  stats.rows = d.rows.length; stats.slices = n;
  return d;
}

// A row knows its slices in the order of their starts, the seconds covered before each, and the latest end so far.
function row(name, a, b, start, end) {
  const sum = new Float64Array(b - a + 1), reach = new Float64Array(b - a);
  for (let i = a, top = -Infinity; i < b; i++) { sum[i - a + 1] = sum[i - a] + end[i] - start[i]; reach[i - a] = top = Math.max(top, end[i]); }
  return { name, a, b, start, end, sum, reach };
}

// When each attempt was expected to run: after what was sent to its device before it, for as long as predicted.
function plan(d) {
  d.planStart = new Float64Array(d.start.length); d.planEnd = new Float64Array(d.start.length).fill(NaN);
  for (const r of d.rows.filter(r => !r.link)) {
    for (let i = r.a, free = 0; i < r.b; i++) {
      if (d.ratio[i] === -32768) { free = d.end[i]; continue; }
      const sent = d.start[i] - d.queued[i] * d.tick;
      d.planStart[i] = Math.max(sent, Math.min(free, d.start[i]));
      d.planEnd[i] = free = d.planStart[i] + (d.end[i] - d.start[i]) * 2 ** (d.ratio[i] / 512);
      free = Math.max(free, d.end[i]);
    }
  }
}

const colour = i => D.outcome[i] ? WASTED : PALETTE[D.name[i]] || OTHER;
const rgb = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16)), LINK = [230, 159, 0], UNFOUND = "#b9bfc6";
const RGB = new Map([...PALETTE, OTHER, WASTED, UNFOUND].map(hex => [hex, rgb(hex)]));
function seconds(s) {
  for (const [size, unit] of [[3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"]]) if (Math.abs(s) >= size) return +(s / size).toPrecision(4) + " " + unit;
  return +(s * 1e6).toPrecision(4) + " µs";
}
function amount(x, unit) {
  for (const [size, p] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "K"]]) if (x >= size) return +(x / size).toPrecision(3) + " " + p + unit;
  return +x.toPrecision(3) + " " + unit;
}
// The same, for a place that is probably near: looks 1, 2, 4, … ahead first.
function ahead(column, a, b, x) { let step = 1, to = a; while (to < b && column[to] < x) { a = to + 1; to += step; step *= 2; } return lower(column, a, Math.min(to, b), x); }
function lower(column, a, b, x) { while (a < b) { const m = a + b >> 1; column[m] < x ? a = m + 1 : b = m; } return a; }

function sheet(id, height) {
  const canvas = $(id), scale = devicePixelRatio || 1, width = canvas.clientWidth || 1200;
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

function ticks(a, b, width) {
  const rough = (b - a) / Math.max(2, width / 110), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(k => k * power).find(s => s >= rough), found = [];
  for (let t = Math.ceil(a / step) * step; t <= b; t += step) found.push(t);
  return [found, step];
}
function label(t, step) {
  const [size, unit] = step >= 60 ? [60, "min"] : step >= 0.1 ? [1, "s"] : step >= 1e-4 ? [1e-3, "ms"] : [1e-6, "µs"];
  return (t / size).toFixed(Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9))) + " " + unit;
}
const X = (t, w) => LEFT + (t - view[0]) / (view[1] - view[0]) * (w - LEFT);
const T = (x, w) => view[0] + (x - LEFT) / (w - LEFT) * (view[1] - view[0]);
const shown = () => Math.max(1, Math.min(D.rows.length, Math.floor((MOST - AXIS) / (ROW + GAP))));

function drawTimeline() {
  const rows = shown();
  const [g, w] = sheet("timeline", AXIS + rows * (ROW + GAP));
  stats.draws = 0; stats.frames++;
  const [marks, step] = ticks(view[0], view[1], w - LEFT);
  for (const t of marks) {
    const x = X(t, w);
    box(g, x, AXIS - 4, 1, rows * (ROW + GAP) + 4, theme.line);
    if (x < w - 50) text(g, label(t, step), x + 3, 9, theme.soft);
  }
  g.save(); g.beginPath(); g.rect(LEFT, AXIS, w - LEFT, rows * (ROW + GAP)); g.clip();
  for (let r = 0; r < rows; r++) drawRow(g, D.rows[r + top0], w, AXIS + r * (ROW + GAP));
  if (picked >= 0) arrows(g, w);
  g.restore();
  for (let r = 0; r < rows; r++) text(g, fit(g, D.rows[r + top0].name, LEFT - 8), 0, AXIS + r * (ROW + GAP) + ROW / 2, theme.ink);
  if (D.rows.length > rows) text(g, `${top0 + 1}–${top0 + rows} of ${D.rows.length}`, 0, 9, theme.soft);
}

function drawRow(g, r, w, y) {
  const wide = Math.floor(w - LEFT), i0 = r.a + lower(r.reach, 0, r.b - r.a, view[0]), i1 = lower(r.start, i0, r.b, view[1]);
  if (i1 - i0 > wide / 12) return drawDense(g, r, i0, i1, wide, w, y);
  const planned = $("planned").checked && !r.link, h = planned ? ROW - 5 : ROW;
  for (let i = i0; i < i1; i++) {
    const x = X(r.start[i], w), x2 = X(r.end[i], w), width = Math.max(x2 - x, 1);
    g.globalAlpha = !r.link && match && !match(i) ? 0.2 : 1;
    box(g, x, y, width > 3 ? width - 0.5 : width, h, r.link ? (D.copyOk[i] ? "#e69f00" : WASTED) : colour(i));
    if (width > 34 && h > 10) {
      const from = Math.max(x, LEFT), words = r.link ? amount(D.bytes[i], "B") : D.names[D.name[i]];
      text(g, fit(g, words, Math.min(x2, w) - from - 6), from + 3, y + h / 2, "#fff");
    }
    if (planned && D.planEnd[i] === D.planEnd[i]) {
      const p = X(D.planStart[i], w);
      box(g, p, y + ROW - 3, Math.max(1, X(D.planEnd[i], w) - p), 2, theme.soft);
    }
    if (!r.link && i === picked) { g.strokeStyle = theme.ink; g.lineWidth = 2; g.strokeRect(x - 1, y - 1, width + 2, h + 2); stats.draws++; }
  }
  g.globalAlpha = 1;
}

// More slices than pixels: one line of pixels, each as full as the time that it stands for, stretched over the row.
const strip = document.createElement("canvas");
function drawDense(g, r, i0, i1, wide, w, y) {
  strip.width = wide; strip.height = 1;
  const s = strip.getContext("2d"), image = s.createImageData(wide, 1), per = (view[1] - view[0]) / wide;
  let i = i0;
  const covered = t => { const k = ahead(r.start, i, i1, t); const c = r.sum[k - r.a] - (k > r.a ? Math.max(0, r.end[k - 1] - t) : 0); return [k, c]; };
  let [k, c] = covered(view[0]);
  for (let x = 0; x < wide; x++) {
    const [k2, c2] = covered(view[0] + (x + 1) * per), busy = Math.min(1, (c2 - c) / per);
    if (busy > 0) {
      const at = Math.max(i0, Math.min(k2 - 1, i1 - 1));
      const paint = r.link ? LINK : RGB.get(shade(at, k, k2)), o = 4 * x;
      image.data[o] = paint[0]; image.data[o + 1] = paint[1]; image.data[o + 2] = paint[2]; image.data[o + 3] = 55 + 200 * busy;
    }
    i = Math.max(i0, k2 - 1); k = k2; c = c2;
  }
  s.putImageData(image, 0, 0);
  g.imageSmoothingEnabled = false;
  g.drawImage(strip, LEFT, y, w - LEFT, ROW);
  stats.draws += 2;
}
// Of up to eight slices in a pixel: one that did not count, or that the search found, goes before the others.
function shade(at, k, k2) {
  const step = Math.max(1, (k2 - k) / 8);
  let found = at;
  for (let q = k; q < k2; q += step) { const i = Math.floor(q); if (D.outcome[i]) return WASTED; if (match && match(i)) found = i; }
  return match && !match(found) ? UNFOUND : colour(found);
}

function place(i, w) {
  const r = D.row[i] - top0;
  return [X(D.start[i], w), X(D.end[i], w), AXIS + r * (ROW + GAP) + ROW / 2];
}
function relatives(i) {
  const before = [], after = [];
  for (let k = D.from[i]; k < D.from[i + 1]; k++) before.push(i - D.parent[k]);
  for (let j = 0; j < D.start.length && after.length < 200; j++) for (let k = D.from[j]; k < D.from[j + 1]; k++) if (j - D.parent[k] === i) { after.push(j); break; }
  return [before, after];
}
function arrows(g, w) {
  const [before, after] = picked === arrows.of ? arrows.found : (arrows.of = picked, arrows.found = relatives(picked));
  for (const [from, to] of [...before.map(i => [i, picked]), ...after.map(i => [picked, i])]) {
    const [, x1, y1] = place(from, w), [x2, , y2] = place(to, w), bend = Math.max(20, Math.abs(x2 - x1) / 3);
    g.strokeStyle = theme.ink; g.lineWidth = 1.3; g.beginPath(); g.moveTo(x1, y1); g.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2); g.stroke();
    g.fillStyle = theme.ink; g.beginPath(); g.moveTo(x2, y2); g.lineTo(x2 - 7, y2 - 4); g.lineTo(x2 - 7, y2 + 4); g.fill();
    stats.draws += 2;
  }
}

function describe(i) {
  const [before, after] = relatives(i), name = j => `${D.names[D.name[j]]} #${D.task[j]}`, list = all => all.length ? all.slice(0, 8).map(name).join(", ") + (all.length > 8 ? ` … (${all.length})` : "") : "nothing";
  const took = D.end[i] - D.start[i], told = D.ratio[i] === -32768 ? "no prediction" : `predicted ${seconds(took * 2 ** (D.ratio[i] / 512))}`;
  return `${name(i)} on ${D.devices[D.row[i]]}: ${OUTCOMES[D.outcome[i]]}${D.critical.has(i) ? ", part of what held the run up" : ""}\n`
    + `began at ${seconds(D.start[i])}, took ${seconds(took)} (${told}), sent ${seconds(D.queued[i] * D.tick)} before it began\nneeded ${list(before)}; needed by ${list(after)}`;
}
function pick(i) {
  picked = i;
  if (i >= 0) {
    $("detail").textContent = describe(i);
    const r = D.row[i], half = (view[1] - view[0]) / 2, middle = (D.start[i] + D.end[i]) / 2;
    if (r < top0 || r >= top0 + shown()) top0 = Math.max(0, Math.min(D.rows.length - shown(), r - (shown() >> 1)));
    if (D.end[i] < view[0] || D.start[i] > view[1]) look(middle - half, middle + half);
  }
  draw();
}
function at(x, y, w) {
  const r = D.rows[Math.floor((y - AXIS) / (ROW + GAP)) + top0];
  if (!r || r.link || x < LEFT) return -1;
  const t = T(x, w), slack = 3 * (view[1] - view[0]) / w, i = lower(r.start, r.a, r.b, t + slack) - 1;
  return i >= r.a && r.end[i] >= t - slack ? i : -1;
}
function look(a, b) {
  const least = Math.max(D.tick * 20, D.span * 1e-7), size = Math.min(Math.max(b - a, least), D.span * 1.02 || 1);
  a = Math.max(-0.01 * D.span, Math.min(a, D.span * 1.01 - size));
  view = [a, a + size];
}
function zoom(factor, t = (view[0] + view[1]) / 2) { look(t - (t - view[0]) * factor, t + (view[1] - t) * factor); draw(); }
function move(share) { const d = share * (view[1] - view[0]); look(view[0] + d, view[1] + d); draw(); }

function search(words) {
  words = words.trim().toLowerCase(); hits = []; hit = -1; match = null;
  if (words) {
    const number = words[0] === "#" ? parseInt(words.slice(1)) : NaN, names = D.names.map(n => n.toLowerCase().includes(words));
    match = number === number ? i => D.task[i] === number : i => names[D.name[i]];
    for (let i = 0; i < D.start.length; i++) if (match(i)) hits.push(i);
  }
  $("hits").textContent = words ? `${hits.length.toLocaleString("en")} found${hits.length ? ": Enter goes from one to the next" : ""}` : "";
  draw();
}

function drawShares() {
  const most = Math.min(D.devices.length, 64), high = D.devices.length > 12 ? 14 : 22;
  const [g, w] = sheet("shares", 44 + most * (high + 3));
  let x = LEFT, y = 10;
  D.categories.forEach(name => { const wide = g.measureText(name).width + 30; if (x + wide > w) { x = LEFT; y += 18; } box(g, x, y - 6, 12, 12, KINDS[name]); text(g, name, x + 17, y); x += wide; });
  for (let r = 0; r < most; r++) {
    const top = 40 + r * (high + 3);
    text(g, fit(g, D.devices[r], LEFT - 8), 0, top + high / 2);
    let left = LEFT;
    D.categories.forEach((name, k) => {
      const share = D.span ? D.seconds[r][k] / D.span : 0, wide = share * (w - LEFT);
      box(g, left, top, wide, high, KINDS[name]);
      if (wide > 44 && high > 16) text(g, Math.round(100 * share) + " %", left + wide / 2, top + high / 2 + 1, /work|data|out/.test(name) ? "#111" : "#fff", "center");
      left += wide;
    });
  }
}

function drawCurves() {
  const groups = [...new Set(D.curves.map(c => c[0]))], high = 92;
  const [g, w] = sheet("curves", groups.length * (high + 34) + 4);
  groups.forEach((group, k) => {
    const lines = D.curves.filter(c => c[0] === group), base = k * (high + 34) + 28 + high - 6;
    const most = Math.max(...lines.flatMap(c => c[3])) || 1, unit = lines[0][2];
    text(g, group, 0, base - high + 4); text(g, unit ? amount(most, unit) : +most.toPrecision(3) + "", LEFT - 6, base - high + 22, theme.soft, "right"); text(g, "0", LEFT - 6, base - 4, theme.soft, "right");
    box(g, LEFT, base, w - LEFT, 1, theme.line);
    g.save(); g.beginPath(); g.rect(LEFT, base - high - 4, w - LEFT, high + 8); g.clip();
    let x = LEFT + 4;
    lines.forEach((c, n) => {
      g.strokeStyle = PALETTE[n % PALETTE.length]; g.lineWidth = 1.5; g.setLineDash(n < PALETTE.length ? [] : [5, 3]); g.beginPath();
      c[3].forEach((v, i) => g.lineTo(X((i + 0.5) / c[3].length * D.span, w), base - v / most * (high - 18)));
      g.stroke(); g.setLineDash([]);
      if (lines.length > 1 && n < 7) { text(g, c[1], x + 14, base - high + 4, theme.soft); box(g, x, base - high, 10, 8, PALETTE[n]); x += g.measureText(c[1]).width + 30; }
    });
    g.restore();
  });
}

// Training over its steps: loss, what each device had of a step, and what it took for it.
function drawTraining() {
  const t = D.training;
  if (!t) return;
  const high = 110, panels = [
    ["loss", "", [["of steps", t.loss, PALETTE[0]], ["of epochs, held back", t.epochs.map(e => e[2]), PALETTE[1], t.epochs.map(e => e[0])]]],
    ["samples of a step", "", t.devices.map((name, k) => [name, t.samples[k], PALETTE[k % PALETTE.length]])],
    ["time of a step", "s", [...t.devices.map((name, k) => [name, t.busy[k], PALETTE[k % PALETTE.length]]), ["whole step", t.seconds, theme.soft]]],
  ].map(([name, unit, lines]) => [name, unit, lines.filter(line => line[1].some(v => v !== null))]).filter(panel => panel[2].length);
  const [g, w] = sheet("training", panels.length * (high + 34) + 20), ends = [...t.steps, ...t.epochs.map(e => e[0])];
  const a = Math.min(...ends), b = Math.max(...ends, a + 1), x = step => LEFT + (step - a) / (b - a) * (w - LEFT - 8);
  panels.forEach(([name, unit, lines], k) => {
    const base = k * (high + 34) + high + 22, most = Math.max(...lines.flatMap(line => line[1])) * 1.02 || 1;
    text(g, name, 0, base - high - 8); text(g, unit ? seconds(most) : +most.toPrecision(3) + "", LEFT - 6, base - high + 10, theme.soft, "right"); text(g, "0", LEFT - 6, base - 4, theme.soft, "right");
    box(g, LEFT, base, w - LEFT, 1, theme.line);
    let left = LEFT;
    lines.forEach(([words, values, paint, steps = t.steps], n) => {
      g.strokeStyle = paint; g.lineWidth = 1.5; g.setLineDash(n < PALETTE.length ? [] : [5, 3]); g.beginPath();
      let up = true;
      values.forEach((v, i) => { if (v === null) { up = true; return; } const px = x(steps[i]), py = base - v / most * high; up ? g.moveTo(px, py) : g.lineTo(px, py); up = false; });
      g.stroke(); g.setLineDash([]);
      if (values.length < 60) values.forEach((v, i) => { if (v !== null) box(g, x(steps[i]) - 2, base - v / most * high - 2, 4, 4, paint); });
      if (n < 8) { box(g, left, base - high - 12, 10, 8, paint); text(g, words, left + 14, base - high - 8, theme.soft); left += g.measureText(words).width + 34; }
    });
    if (k === panels.length - 1) { text(g, `step ${a.toLocaleString("en")}`, LEFT, base + 14, theme.soft); text(g, b.toLocaleString("en"), w - 8, base + 14, theme.soft, "right"); }
  });
}

function drawGraph() {
  const n = D.start.length, depth = new Int32Array(n), order = Array.from({ length: n }, (_, i) => i).sort((a, b) => D.start[a] - D.start[b] || a - b);
  let deepest = 0;
  for (const i of order) { for (let k = D.from[i]; k < D.from[i + 1]; k++) depth[i] = Math.max(depth[i], depth[i - D.parent[k]] + 1); deepest = Math.max(deepest, depth[i]); }
  if (!deepest) { $("graph").style.display = "none"; return; }
  const size = new Int32Array(deepest + 1), rank = new Int32Array(n), high = 240;
  for (const i of order) rank[i] = size[depth[i]]++;
  const [g, w] = sheet("graph", high + 22), x = i => 8 + depth[i] / deepest * (w - 16), y = i => 24 + (rank[i] + 0.5) / size[depth[i]] * (high - 8);
  text(g, `task graph: ${n.toLocaleString("en")} attempts in ${deepest + 1} steps, left to right; the line is its longest chain`, 0, 8, theme.soft);
  const cells = new Set(), line = (a, b) => { g.beginPath(); g.moveTo(x(a), y(a)); g.lineTo(x(b), y(b)); g.stroke(); };
  g.strokeStyle = theme.line;
  if (D.parent.length < 4000) for (let i = 0; i < n; i++) for (let k = D.from[i]; k < D.from[i + 1]; k++) line(i - D.parent[k], i);
  const dot = n > 2000 ? 1.5 : n > 200 ? 3 : 5;
  for (let i = 0; i < n; i++) { const key = Math.round(x(i)) * 1000 + Math.round(y(i)); if (!cells.has(key)) { cells.add(key); box(g, x(i) - dot, y(i) - dot, 2 * dot, 2 * dot, colour(i)); } }
  const home = new Map(); for (let i = 0; i < n; i++) if (!D.outcome[i]) home.set(D.task[i], i);
  const path = D.path.map(t => home.get(t)).filter(i => i !== undefined);
  g.strokeStyle = theme.ink; g.lineWidth = 2; for (let k = 1; k < path.length; k++) line(path[k - 1], path[k]);
}

function drawScatter() {
  const some = []; for (let i = 0; i < D.start.length; i++) if (D.ratio[i] !== -32768 && !D.outcome[i] && D.took[i] > 0) some.push(i);
  if (!some.length) { $("scatter").style.display = "none"; return; }
  const took = i => Math.log10(D.took[i] * D.tick), told = i => took(i) + D.ratio[i] / 512 * Math.LOG10E * Math.LN2;
  let a = Infinity, b = -Infinity; for (const i of some) { a = Math.min(a, took(i), told(i)); b = Math.max(b, took(i), told(i)); }
  a = Math.floor(a); b = Math.max(a + 1, Math.ceil(b));
  const high = 280, [g] = sheet("scatter", high + 30), wide = 420, x = v => 70 + (v - a) / (b - a) * wide, y = v => high - (v - a) / (b - a) * (high - 20);
  for (let v = a; v <= b; v++) { box(g, x(v), 20, 1, high - 20, theme.line); box(g, 70, y(v), wide, 1, theme.line); const words = v > 1 ? 10 ** v + " s" : seconds(10 ** v); text(g, words, x(v), high + 12, theme.soft, "center"); if (v > a) text(g, words, 64, y(v), theme.soft, "right"); }
  g.strokeStyle = theme.soft; g.beginPath(); g.moveTo(x(a), y(a)); g.lineTo(x(b), y(b)); g.stroke();
  text(g, "predicted", 70, 9, theme.soft); text(g, "measured", 70 + wide + 10, high - 6, theme.soft);
  const cells = new Set(), dot = some.length < 200 ? 3 : 1.5;
  g.globalAlpha = 0.75;
  for (const i of some) { const px = Math.round(x(took(i))), py = Math.round(y(told(i))), key = px * 10000 + py; if (!cells.has(key)) { cells.add(key); box(g, px - dot, py - dot, 2 * dot, 2 * dot, colour(i)); } }
  g.globalAlpha = 1;
  D.names.slice(0, 7).forEach((name, k) => { box(g, wide + 150, 24 + 20 * k, 12, 12, PALETTE[k]); text(g, name.slice(0, 60), wide + 168, 31 + 20 * k); });
  if (D.names.length > 7) { box(g, wide + 150, 164, 12, 12, OTHER); text(g, `${D.names.length - 7} others`, wide + 168, 171); }
}

let waiting = false, resting = 0;
function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; drawTimeline(); });
  clearTimeout(resting);
  resting = setTimeout(drawCurves, 120);
}
function setTheme(light = false) {
  const style = getComputedStyle(document.documentElement), value = name => style.getPropertyValue("--" + name).trim();
  theme = light ? { ink: "#000", soft: "#444", line: "#ccc" } : { ink: value("ink"), soft: value("soft"), line: value("line") };
}
function drawAll(light) { setTheme(light); drawTraining(); drawShares(); drawTimeline(); drawCurves(); drawGraph(); drawScatter(); }
// The timeline first; what lies below it in turns of their own, so that the page answers meanwhile.
function drawFirst() {
  setTheme(); drawTraining(); drawShares(); drawTimeline();
  [drawCurves, drawGraph, drawScatter, () => { stats.done = true; }].forEach(each => setTimeout(each));
}

function listen() {
  const c = $("timeline");
  let drag = null;
  c.addEventListener("wheel", e => { e.preventDefault(); e.shiftKey ? move(Math.sign(e.deltaY) * 0.1) : zoom(e.deltaY > 0 ? 1.25 : 0.8, T(e.offsetX, c.clientWidth)); }, { passive: false });
  c.addEventListener("pointerdown", e => { drag = { x: e.offsetX, y: e.offsetY, view: [...view], moved: false }; c.setPointerCapture(e.pointerId); });
  c.addEventListener("pointermove", e => {
    if (!drag) return;
    if (Math.abs(e.offsetX - drag.x) > 3) drag.moved = true;
    if (drag.moved) { const d = (drag.x - e.offsetX) / (c.clientWidth - LEFT) * (drag.view[1] - drag.view[0]); look(drag.view[0] + d, drag.view[1] + d); draw(); }
  });
  c.addEventListener("pointerup", e => { if (drag && !drag.moved) pick(at(e.offsetX, e.offsetY, c.clientWidth)); drag = null; });
  const scroll = d => { top0 = Math.max(0, Math.min(D.rows.length - shown(), top0 + d)); draw(); };
  const keys = { "ArrowLeft": () => move(-0.2), "ArrowRight": () => move(0.2), "ArrowUp": () => scroll(-1), "ArrowDown": () => scroll(1), "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1.4),
    "0": () => { look(0, D.span); draw(); }, "Home": () => { look(0, D.span); draw(); }, "Escape": () => pick(-1),
    "[": () => pick(Math.max(0, picked - 1)), "]": () => pick(Math.min(D.start.length - 1, picked + 1)) };
  c.addEventListener("keydown", e => { if (keys[e.key] && !e.ctrlKey && !e.metaKey) { e.preventDefault(); keys[e.key](); } });
  $("search").addEventListener("input", e => search(e.target.value));
  $("search").addEventListener("keydown", e => { if (e.key === "Enter" && hits.length) pick(hits[hit = (hit + 1) % hits.length]); });
  $("in").onclick = keys["+"]; $("out").onclick = keys["-"]; $("all").onclick = keys["0"]; $("planned").onchange = draw;
  document.addEventListener("keydown", e => { if (e.key === "/" && document.activeElement.tagName !== "INPUT") { e.preventDefault(); $("search").focus(); } });
  addEventListener("resize", () => drawAll());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll());
  addEventListener("beforeprint", () => drawAll(true));
  addEventListener("afterprint", () => drawAll());
}

unpack().then(d => {
  D = prepare(d);
  look(0, D.span);
  listen(); drawFirst();
  stats.ready = true;
}).catch(error => { $("detail").textContent = "The timeline cannot be drawn: " + error.message; throw error; });
