const X = (t, w) => LEFT + (t - view[0]) / (view[1] - view[0]) * (w - LEFT);
const T = (x, w) => view[0] + (x - LEFT) / (w - LEFT) * (view[1] - view[0]);
const shown = () => Math.max(1, Math.min(D.rows.length, Math.floor(((paper ? 900 : MOST) - AXIS) / (ROW + GAP))));

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

const UNCOUNTED = "did not count";
// Which colour is which function; a click looks for it.
function nameColours() {
  const named = D.names.slice(0, PALETTE.length).map((name, k) => [name, PALETTE[k]]);
  if (D.names.length > named.length) named.push([`${D.names.length - named.length} others`, OTHER]);
  if (D.outcome.some(Boolean)) named.push([UNCOUNTED, WASTED]);
  for (const [name, key] of named) {
    const button = $("names").appendChild(document.createElement("button"));
    button.textContent = name.length > 40 ? name.slice(0, 39) + "…" : name;
    button.style.setProperty("--key", key);
    if (name === UNCOUNTED || D.names.includes(name)) button.onclick = () => { const same = $("search").value === name; search($("search").value = same ? "" : name); };
  }
}

function drawRow(g, r, w, y) {
  const wide = Math.floor(w - LEFT), i0 = r.a + lower(r.reach, 0, r.b - r.a, view[0]), i1 = lower(r.start, i0, r.b, view[1]);
  const planned = $("planned").checked && !r.link, h = planned ? ROW - 5 : ROW;
  if (planned && r.outline) drawOutline(g, r.outline, wide, w, y);
  if (i1 - i0 > wide / 12) return drawDense(g, r, i0, i1, wide, w, y, planned && r.outline ? h : ROW);
  for (let i = i0; i < i1; i++) {
    const x = X(r.start[i], w), x2 = X(r.end[i], w), width = Math.max(x2 - x, 1);
    const faint = !r.link && match && i !== picked && !match(i);
    g.globalAlpha = faint ? 0.2 : 1;
    const fill = r.link ? (D.copyOk[i] ? LINK : WASTED) : colour(i);
    box(g, x, y, width > 3 ? width - 0.5 : width, h, fill);
    const from = Math.max(x, LEFT), seen = Math.min(x2, w) - from;
    if (seen > 34 && h > 10 && !faint) {
      const words = r.link ? amount(D.bytes[i], "B") : D.names[D.name[i]];
      text(g, fit(g, words, seen - 6), from + 3, y + h / 2, wordsOn.get(fill));
    }
    if (planned && !r.outline && D.planEnd[i] === D.planEnd[i]) {
      const p = X(D.planStart[i], w);
      box(g, p, y + ROW - 3, Math.max(1, X(D.planEnd[i], w) - p), 2, theme.soft);
    }
    if (!r.link && i === picked) { g.strokeStyle = theme.ink; g.lineWidth = 2; g.strokeRect(x - 1, y - 1, width + 2, h + 2); stats.draws++; }
  }
  g.globalAlpha = 1;
}

// The plan that the run began with, as a line below what became of it; a bar for every three pixels at most.
function drawOutline(g, o, wide, w, y) {
  const i0 = o.a + lower(o.reach, 0, o.b - o.a, view[0]), i1 = lower(o.start, i0, o.b, view[1]), per = (view[1] - view[0]) / wide;
  for (let i = i0; i < i1; i++) {
    const from = o.start[i];
    let to = o.end[i];
    while (i + 1 < i1 && to - from < 3 * per && o.start[i + 1] < to + per) to = Math.max(to, o.end[++i]);
    const p = X(from, w);
    box(g, p, y + ROW - 3, Math.max(1, X(to, w) - p - 1), 2, theme.soft);
  }
}

// More slices than pixels: one line of pixels, each as full as the time that it stands for, stretched over the row.
const strip = document.createElement("canvas");
function drawDense(g, r, i0, i1, wide, w, y, h) {
  strip.width = wide; strip.height = 1;
  const s = strip.getContext("2d"), image = s.createImageData(wide, 1), per = (view[1] - view[0]) / wide;
  let i = i0;
  const covered = t => { const k = ahead(r.start, i, i1, t); const c = r.sum[k - r.a] - (k > r.a ? Math.max(0, r.end[k - 1] - t) : 0); return [k, c]; };
  let [k, c] = covered(view[0]);
  for (let x = 0; x < wide; x++) {
    const [k2, c2] = covered(view[0] + (x + 1) * per), busy = Math.min(1, (c2 - c) / per);
    if (busy > 0) {
      const at = Math.max(i0, Math.min(k2 - 1, i1 - 1));
      const paint = RGB.get(r.link ? LINK : shade(at, k, k2)), o = 4 * x;
      image.data[o] = paint[0]; image.data[o + 1] = paint[1]; image.data[o + 2] = paint[2]; image.data[o + 3] = 55 + 200 * busy;
    }
    i = Math.max(i0, k2 - 1); k = k2; c = c2;
  }
  s.putImageData(image, 0, 0);
  g.imageSmoothingEnabled = false;
  g.drawImage(strip, LEFT, y, w - LEFT, h);
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
    match = words === UNCOUNTED ? i => D.outcome[i] > 0 : number === number ? i => D.task[i] === number : i => names[D.name[i]];
    for (let i = 0; i < D.start.length; i++) if (match(i)) hits.push(i);
  }
  $("hits").textContent = words ? `${hits.length.toLocaleString("en")} found${hits.length ? ": Enter goes from one to the next" : ""}` : "";
  draw();
}

