// The timeline each frame, the curves up to sixteen times a second.
let waiting = false, following = 0;
function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; drawTimeline(); });
  following = following || setTimeout(() => { following = 0; drawCurves(); }, 60);
}
function setTheme() {
  const style = getComputedStyle(document.documentElement), value = name => style.getPropertyValue("--" + name).trim();
  theme = paper ? { ink: "#000", soft: "#444", line: "#ccc" } : { ink: value("ink"), soft: value("soft"), line: value("line") };
  LEFT = (paper || document.body.clientWidth) < 600 ? 76 : 116;
}
function drawAll() { setTheme(); drawShares(); drawTimeline(); redrawCurves(paper); drawGraph(); drawScatter(); }
// The timeline first; when it is seen, the others in turns of their own, so that the page answers meanwhile.
function drawFirst() {
  setTheme(); drawShares(); drawTimeline();
  const others = [makeTraining, makeCurves, drawGraph, drawScatter, () => { stats.done = true; }];
  requestAnimationFrame(() => others.forEach(each => setTimeout(each)));
}
// On paper everything is as wide as a page, black on white, and the figures are unfolded.
function print(on) {
  const folds = document.querySelectorAll("details");
  if (on) folds.forEach(each => { each.was = each.open; each.open = true; });
  else folds.forEach(each => { each.open = each.was; });
  paper = on ? PAPER : 0;
  drawAll();
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
  const only = (c, keys) => c.addEventListener("keydown", e => { if (keys[e.key] && !e.ctrlKey && !e.metaKey && e.target === c) { e.preventDefault(); keys[e.key](); } });
  const keys = { "ArrowLeft": () => move(-0.2), "ArrowRight": () => move(0.2), "ArrowUp": () => scroll(-1), "ArrowDown": () => scroll(1), "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1.4),
    "0": () => { look(0, D.span); draw(); }, "Home": () => { look(0, D.span); draw(); }, "Escape": () => pick(-1),
    "[": () => pick(Math.max(0, picked - 1)), "]": () => pick(Math.min(D.start.length - 1, picked + 1)) };
  only(c, keys);
  for (const [id, axis] of [["curves", over.time], ["training", over.steps]]) if ($(id)) only($(id), {
    "ArrowLeft": () => aside(axis, -0.2), "ArrowRight": () => aside(axis, 0.2), "+": () => nearer(axis, 0.7), "=": () => nearer(axis, 0.7), "-": () => nearer(axis, 1.4), "0": () => see(axis, ...whole(axis)) });
  $("search").addEventListener("input", e => search(e.target.value));
  $("search").addEventListener("keydown", e => { if (e.key === "Enter" && hits.length) pick(hits[hit = (hit + 1) % hits.length]); });
  $("in").onclick = keys["+"]; $("out").onclick = keys["-"]; $("all").onclick = keys["0"]; $("planned").onchange = draw;
  document.addEventListener("keydown", e => { if (e.key === "/" && document.activeElement.tagName !== "INPUT") { e.preventDefault(); $("search").focus(); } });
  addEventListener("resize", () => drawAll());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll());
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
}

// Tables sort by the column whose head is pressed: figures by what they say with their unit, words by letters.
const UNITS = { "×": 100, "µs": 1e-6, "ms": 1e-3, s: 1, min: 60, h: 3600, d: 86400, KB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, KiB: 1024, MiB: 1048576, GiB: 1073741824 };
function figure(cell) {
  const [, sign, number, unit] = /^(-|−)?[^0-9A-Za-z-]*([0-9][0-9,.]*(?:e[+-]?\d+)?)\s*(\S*)/.exec(cell) || [];
  return number === undefined ? NaN : (sign ? -1 : 1) * parseFloat(number.replaceAll(",", "")) * (UNITS[unit] || 1);
}
function sortTable(table, column, down) {
  const words = table.tHead.rows[0].cells[column].className === "text", body = table.tBodies[0];
  const value = row => { const cell = row.cells[column].textContent; return words ? cell : figure(cell); };
  const rows = [...body.rows].map(row => [value(row), row]), turn = down ? -1 : 1;
  const order = (a, b) => words ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  const last = row => row.cells[0].textContent.startsWith("…") || !words && isNaN(value(row));
  rows.sort(([a, x], [b, y]) => last(x) - last(y) || (last(x) ? 0 : turn * order(a, b)));
  body.append(...rows.map(each => each[1]));
  [...table.tHead.rows[0].cells].forEach((cell, at) => at === column ? cell.setAttribute("aria-sort", down ? "descending" : "ascending") : cell.removeAttribute("aria-sort"));
}
function makeSortable(table) {
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    const button = document.createElement("button");
    button.textContent = cell.textContent; button.title = "Sort by this column";
    button.onclick = () => sortTable(table, column, cell.getAttribute("aria-sort") ? cell.getAttribute("aria-sort") !== "descending" : cell.className !== "text");
    cell.replaceChildren(button);
  });
}
document.querySelectorAll("table").forEach(makeSortable);

unpack().then(d => {
  D = prepare(d);
  look(0, D.span);
  nameColours(); listen(); drawFirst();
  stats.ready = true;
}).catch(error => { $("detail").textContent = "The timeline cannot be drawn: " + error.message; throw error; });
