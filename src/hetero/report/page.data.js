"use strict";
// The report's page: unpacks its own data, draws on canvases, sends nothing anywhere.
// Files, in this order: data, uplot (not ours), draw, timeline, curves, figures, start.
// Any two of these nine stay apart for people who see two of the three primary colours.
const PALETTE = ["#0072b2", "#ee7766", "#66eebb", "#aa8800", "#663355", "#aaccff", "#dddd55"];
const OTHER = "#8a9199", WASTED = "#9b2226";
const KINDS = { "compute": "#0072b2", "loading": "#56b4e9", "storing": "#9ad0f5", "waiting for memory": "#004488",
  "transfer in": "#aa8800", "transfer out": "#dddd55", "collective": "#ee7766",
  "waiting for data": "#66eebb", "waiting for work": "#aaccff", "retry": "#9b2226", "start-up": "#bb8866", "overhead": "#663355", "idle": "#8a9199" };
const OUTCOMES = ["done", "failed", "its worker was lost", "done, but not wanted"];
const GAP = 4, AXIS = 22, MOST = 720, PAPER = 700;
let ROW = 26, LEFT = 116, paper = 0;
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
  outline(d);
  d.critical = new Set(d.chain);
  ROW = d.rows.length > 20 ? 16 : 26;
  stats.rows = d.rows.length; stats.slices = n;
  return d;
}

// Where a plan of the whole graph had its tasks at first: bars of each device in the order of their starts.
function outline(d) {
  let first = 0, at = 0;
  const from = Float64Array.from(d.planGap || [], gap => (at += gap) * d.tick), to = from.map((t, i) => t + d.planTook[i] * d.tick);
  d.planCounts.forEach((n, r) => { d.rows[r].outline = row("", first, first += n, from, to); });
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

