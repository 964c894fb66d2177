function drawShares() {
  const most = Math.min(D.devices.length, 64), high = D.devices.length > 12 ? 14 : 22;
  let [g, w] = sheet("shares", 1), x = LEFT, y = 10;
  const keys = D.categories.map(name => { const wide = g.measureText(name).width + 30; if (x + wide > w) { x = LEFT; y += 18; } x += wide; return [name, x - wide, y]; });
  const under = y + 18;
  [g, w] = sheet("shares", under + 6 + most * (high + 3));
  for (const [name, x, y] of keys) { box(g, x, y - 6, 12, 12, KINDS[name]); text(g, name, x + 17, y); }
  for (let r = 0; r < most; r++) {
    const top = under + r * (high + 3);
    text(g, fit(g, D.devices[r], LEFT - 8), 0, top + high / 2);
    let left = LEFT;
    D.categories.forEach((name, k) => {
      const share = D.span ? D.seconds[r][k] / D.span : 0, wide = share * (w - LEFT);
      box(g, left, top, wide, high, KINDS[name]);
      if (wide > 44 && high > 16) text(g, Math.round(100 * share) + " %", left + wide / 2, top + high / 2 + 1, wordsOn.get(KINDS[name]), "center");
      left += wide;
    });
  }
}

function drawGraph() {
  const n = D.start.length, depth = new Int32Array(n), order = Array.from({ length: n }, (_, i) => i).sort((a, b) => D.start[a] - D.start[b] || a - b);
  let deepest = 0;
  for (const i of order) { for (let k = D.from[i]; k < D.from[i + 1]; k++) depth[i] = Math.max(depth[i], depth[i - D.parent[k]] + 1); deepest = Math.max(deepest, depth[i]); }
  if (!deepest) { $("graph").style.display = "none"; return; }
  const size = new Int32Array(deepest + 1), rank = new Int32Array(n), high = 240;
  for (const i of order) rank[i] = size[depth[i]]++;
  const [g, w] = sheet("graph", high + 22), x = i => 8 + depth[i] / deepest * (w - 16), y = i => 24 + (rank[i] + 0.5) / size[depth[i]] * (high - 8);
  text(g, fit(g, `task graph: ${n.toLocaleString("en")} attempts in ${(deepest + 1).toLocaleString("en")} steps, left to right; the line is its longest chain`, w), 0, 8, theme.soft);
  const cells = new Set(), line = (a, b) => { g.beginPath(); g.moveTo(x(a), y(a)); g.lineTo(x(b), y(b)); g.stroke(); };
  g.strokeStyle = theme.line;
  if (D.parent.length < 4000) for (let i = 0; i < n; i++) for (let k = D.from[i]; k < D.from[i + 1]; k++) line(i - D.parent[k], i);
  const dot = n > 2000 ? 1.5 : n > 200 ? 3 : 5;
  for (let i = 0; i < n; i++) { const key = Math.round(x(i)) * 1000 + Math.round(y(i)); if (!cells.has(key)) { cells.add(key); box(g, x(i) - dot, y(i) - dot, 2 * dot, 2 * dot, colour(i)); } }
  const home = new Map(); for (let i = 0; i < n; i++) if (!D.outcome[i]) home.set(D.task[i], i);
  const path = D.path.map(t => home.get(t)).filter(i => i !== undefined);
  g.strokeStyle = theme.ink; g.lineWidth = 2; g.beginPath(); for (const i of path) g.lineTo(x(i), y(i)); g.stroke();
}

function drawScatter() {
  const some = []; for (let i = 0; i < D.start.length; i++) if (D.ratio[i] !== -32768 && !D.outcome[i] && D.took[i] > 0) some.push(i);
  if (!some.length) { $("scatter").style.display = "none"; return; }
  const took = i => Math.log10(D.took[i] * D.tick), told = i => took(i) + D.ratio[i] / 512 * Math.LOG10E * Math.LN2;
  let a = Infinity, b = -Infinity; for (const i of some) { a = Math.min(a, took(i), told(i)); b = Math.max(b, took(i), told(i)); }
  a = Math.floor(a); b = Math.max(a + 1, Math.ceil(b));
  const high = 280, [g, w] = sheet("scatter", high + 30), wide = Math.min(420, w - 150), x = v => 70 + (v - a) / (b - a) * wide, y = v => high - (v - a) / (b - a) * (high - 20);
  for (let v = a; v <= b; v++) { box(g, x(v), 20, 1, high - 20, theme.line); box(g, 70, y(v), wide, 1, theme.line); const words = v > 1 ? 10 ** v + " s" : seconds(10 ** v); text(g, words, x(v), high + 12, theme.soft, "center"); if (v > a) text(g, words, 64, y(v), theme.soft, "right"); }
  g.strokeStyle = theme.soft; g.beginPath(); g.moveTo(x(a), y(a)); g.lineTo(x(b), y(b)); g.stroke();
  text(g, "predicted", 70, 9, theme.soft); text(g, "measured", 70 + wide + 10, high - 6, theme.soft);
  const cells = new Set(), dot = some.length < 200 ? 3 : 1.5;
  g.globalAlpha = 0.75;
  for (const i of some) { const px = Math.round(x(took(i))), py = Math.round(y(told(i))), key = px * 10000 + py; if (!cells.has(key)) { cells.add(key); box(g, px - dot, py - dot, 2 * dot, 2 * dot, colour(i)); } }
  g.globalAlpha = 1;
  if (w > 560) text(g, "on the line: as predicted; above it: sooner done than predicted", 160, 9, theme.soft);
  if (w < wide + 300) return;
  D.names.slice(0, 7).forEach((name, k) => { box(g, wide + 150, 24 + 20 * k, 12, 12, PALETTE[k]); text(g, name.slice(0, 60), wide + 168, 31 + 20 * k); });
  if (D.names.length > 7) { box(g, wide + 150, 164, 12, 12, OTHER); text(g, `${D.names.length - 7} others`, wide + 168, 171); }
}

