// Curves, drawn by uPlot: those over time share the timeline's view, those of training one of their own.
const LINES = ["#4455ee", "#ff7711", "#00aa77", "#cc0022", "#bb88ee", "#994488"];
const HIGH = 118, NAMED = LINES.length, FEW = 60;
const over = { time: { name: "time", charts: [] }, steps: { name: "steps", charts: [], whole: [0, 1], view: [0, 1] } };
const AMOUNTS = { "s": seconds, "%": v => +(100 * v).toPrecision(3) + " %", "°C": v => Math.round(v) + " °C", "": v => +v.toPrecision(3) + "" };
const told = (v, unit) => v === 0 ? "0" : v == null ? "–" : AMOUNTS[unit] ? AMOUNTS[unit](v) : amount(v, unit);
const peak = values => values.reduce((top, v) => v > top ? v : top, 0);

// One chart: a title, a legend whose buttons hide and show a line, and below them uPlot's picture.
// A line is { name, values }; of many lines the highest are named and coloured, the others are thin and grey.
function chart(home, axis, title, unit, xs, lines) {
  lines = lines.map(line => ({ ...line, top: peak(line.values) }));
  if (lines.length > NAMED) lines.sort((a, b) => b.top - a.top);
  const named = Math.min(lines.length, NAMED);
  const legend = document.createElement("p"), strong = document.createElement("b");
  legend.className = "legend"; strong.textContent = title; legend.append(strong);
  const plot = new uPlot(options(axis, unit, lines, named, home.clientWidth || 1200), [xs, ...lines.map(line => line.values)]);
  const buttons = lines.slice(0, named).map((line, k) => legend.appendChild(key(plot, line, k)));
  if (named < lines.length) legend.append(`and ${lines.length - named} lower ones, grey`);
  plot.axis = axis;
  plot.name = i => lines.slice(0, named).forEach((line, k) => {
    buttons[k].textContent = `${line.name}: ${i == null ? "up to " + told(line.top, unit) : told(line.values[i], unit)}`;
  });
  plot.name(null);
  home.append(legend, plot.root);
  axis.charts.push(plot);
}
const paint = (k, named) => () => k < named ? LINES[k] : theme.line;
function key(plot, line, k) {
  const button = document.createElement("button");
  button.style.setProperty("--key", LINES[k]);
  button.setAttribute("aria-pressed", "true");
  button.onclick = () => { const on = !plot.series[k + 1].show; plot.setSeries(k + 1, { show: on }); button.setAttribute("aria-pressed", on); };
  return button;
}
function options(axis, unit, lines, named, width) {
  const font = "12px system-ui, sans-serif";
  const line = { stroke: () => theme.soft, grid: { stroke: () => theme.line, width: 1 }, ticks: { show: false }, font };
  return {
    width, height: HIGH, padding: [8, axis === over.time ? 0 : 6, 0, 0], legend: { show: false },
    scales: { x: { time: false, range: (u, a, b) => [a, b > a ? b : a + 1] }, y: { range: (u, low, high) => [Math.min(0, low || 0), high > 0 ? 1.06 * high : 1] } },
    series: [{}, ...lines.map((each, k) => ({
      stroke: paint(k, named), width: k < named ? 1.5 : 1, dash: each.dash, spanGaps: false,
      points: { show: each.values.length < FEW, size: 5, fill: paint(k, named) },
    }))],
    axes: [
      { ...line, size: 22, gap: 4, align: 1, splits: (u, i, a, b) => marks(u, a, b)[0], values: (u, all) => markNames(u, all) },
      { ...line, size: LEFT, gap: 6, space: 28, values: (u, all) => all.map(v => told(v, unit)) },
    ],
    cursor: {
      y: false, points: { show: false }, drag: { x: true, y: false, setScale: false },
      sync: { key: axis.name, setSeries: false, filters: { pub: what => what === "mousemove" || what === "mouseleave" } },
      bind: { dblclick: () => () => { see(axis, ...whole(axis)); return null; } },
    },
    hooks: {
      setCursor: [u => u.name && u.name(u.cursor.idx)],
      setSelect: [u => { if (u.select.width > 2) { see(axis, u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")); u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false); } }],
    },
  };
}
const marks = (u, a, b) => ticks(a, b, u.bbox.width / devicePixelRatio, u.axis === over.time);
function markNames(u, all) {
  const { min, max } = u.scales.x, [, step] = marks(u, min, max), last = max - (max - min) * 56 * devicePixelRatio / u.bbox.width;
  return all.map(t => t > last ? null : u.axis === over.time ? label(t, step) : t % 1 ? null : "step " + t.toLocaleString("en"));
}

// What an axis shows: a change of it goes to all its charts, and of the time to the timeline as well.
const whole = axis => axis === over.time ? [0, D.span] : axis.whole;
const seen = axis => axis === over.time ? view : axis.view;
function see(axis, a, b) {
  if (axis === over.time) { look(a, b); draw(); return; }
  const [first, last] = axis.whole, size = Math.min(Math.max(b - a, 2), last - first);
  a = Math.max(first, Math.min(a, last - size));
  axis.view = [a, a + size];
  drawCurves(axis);
}
const nearer = (axis, factor) => { const [a, b] = seen(axis), d = (b - a) * (1 - factor) / 2; see(axis, a + d, b - d); };
const aside = (axis, share) => { const [a, b] = seen(axis), d = share * (b - a); see(axis, a + d, b + d); };
function drawCurves(axis = over.time) {
  const [min, max] = seen(axis);
  for (const plot of axis.charts) if (plot.scales.x.min !== min || plot.scales.x.max !== max) plot.setScale("x", { min, max });
}
// After a change of width or of colours.
function redrawCurves(width) {
  for (const axis of Object.values(over)) for (const plot of axis.charts) {
    plot.axes[1].size = () => LEFT;
    plot.setSize({ width: width || plot.root.parentNode.clientWidth, height: HIGH });
    plot.redraw(false, true);
  }
}

const TITLES = { "memory": "memory held by the run's data", "links": "bytes a second over links", "busy": "busy, as devices tell", "in use": "memory in use, as devices tell" };
function makeCurves() {
  const groups = [...new Set(D.curves.map(c => c[0]))];
  for (const group of groups) {
    const lines = D.curves.filter(c => c[0] === group), n = lines[0][3].length;
    const xs = Array.from({ length: n }, (_, i) => (i + 0.5) / n * D.span);
    chart($("curves"), over.time, TITLES[group] || group, lines[0][2], xs, lines.map(c => ({ name: c[1], values: c[3] })));
  }
  drawCurves();
}
// Training over its steps: loss, what each device had of a step, and what it took for it.
function makeTraining() {
  const t = D.training, home = $("training");
  if (!t) return;
  const axis = over.steps, ends = [...t.steps, ...t.epochs.map(e => e[0])], each = rows => rows.map((values, k) => ({ name: t.devices[k], values }));
  axis.whole = axis.view = [Math.min(...ends), Math.max(...ends, Math.min(...ends) + 1)];
  const add = (title, unit, xs, lines) => { lines = lines.filter(line => line.values.some(v => v != null)); if (lines.length) chart(home, axis, title, unit, xs, lines); };
  const [xs, loss, tests] = uPlot.join([[t.steps, t.loss], [t.epochs.map(e => e[0]), t.epochs.map(e => e[2])]]);
  add("loss", "", xs, [{ name: "of a step", values: loss }, { name: "held back, after an epoch", values: tests, dash: [6, 4] }]);
  add("samples of a step", "", t.steps, each(t.samples));
  add("time of a step", "s", t.steps, [...each(t.busy), { name: "whole step", values: t.seconds, dash: [6, 4] }]);
  drawCurves(axis);
}
