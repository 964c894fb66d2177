"""The report of a run: its size, paint and making, beside Bokeh, Plotly, Dask's performance report and Ray's timeline.

In: runs made for this. Out: one table, and pictures of the pages beside it.
Pages are opened in one browser with the network off, in turn; a rival's own script is put into its page.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from hetero.drive.trace import TraceWriter
from hetero.report.chrome import chrome_trace
from hetero.report.html import page
from hetero.report.record import RunRecord
from hetero.report.trace_reader import collect
from tests.big_runs import big_run, devices
from tests.browser import Browser
from tests.needs import chromium
from tests.perfetto import folder, perfetto

PICTURES = Path(__file__).resolve().parent / "pictures"

READY = {
    "hetero": "window.heteroStats && heteroStats.ready",
    "Bokeh": "window.Bokeh && Bokeh.documents.length > 0 && Bokeh.documents[0].is_idle",
    "Plotly": "document.querySelectorAll('.plotly .main-svg, .plotly canvas').length > 0 && window.painted === true",
}
PAN = {
    "hetero": "new Promise(d => { move(0.01); requestAnimationFrame(() => setTimeout(d)) })",
    "Bokeh": (
        "new Promise(d => { const r = Bokeh.documents[0].roots()[0].x_range, w = (r.end - r.start) / 100;"
        " r.setv({start: r.start + w, end: r.end + w}); const wait = () => Bokeh.documents[0].is_idle ?"
        " requestAnimationFrame(() => setTimeout(d)) : setTimeout(wait, 1); wait() })"
    ),
    "Plotly": (
        "(async () => { const g = document.querySelector('.plotly-graph-div'), r = g._fullLayout.xaxis.range,"
        " w = (r[1] - r[0]) / 100; await Plotly.relayout(g, {'xaxis.range': [r[0] + w, r[1] + w]});"
        " await new Promise(d => requestAnimationFrame(() => setTimeout(d))); return 1 })()"
    ),
}
_PAGE = """
import sys
from pathlib import Path
from hetero.report.html import page
from tests.big_runs import devices, very_big_run
Path(sys.argv[2]).write_text(page(very_big_run(int(sys.argv[1]), devices(32))), encoding="utf-8")
"""
_RAY_FLUSH_S = 3.0
"""Ray's workers tell of their tasks each second."""
_MAKE = """
import resource, sys, time
from hetero.report.chrome import chrome_trace
from hetero.report.html import page
from hetero.report.trace_reader import read_run
begin = time.process_time()
text = page(read_run(sys.argv[1]))
print(time.process_time() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, len(text.encode()))
"""


def bokeh_page(run: RunRecord) -> str:
    """Draw the same boxes with Bokeh."""
    from bokeh.embed import file_html
    from bokeh.models import HoverTool
    from bokeh.plotting import figure
    from bokeh.resources import INLINE

    columns = _columns(run)
    plot = figure(width=1200, height=700, y_range=[device.short for device in run.devices], output_backend="canvas")
    plot.hbar(y="device", left="left", right="right", height=0.8, fill_color="colour", line_width=0, source=columns)
    plot.add_tools(HoverTool(tooltips=[("task", "@task"), ("function", "@name")]))
    return str(file_html(plot, INLINE, "run"))


def plotly_page(run: RunRecord) -> str:
    """Draw the same boxes with Plotly."""
    import plotly.graph_objects as go

    columns = _columns(run)
    took = [right - left for left, right in zip(columns["left"], columns["right"], strict=True)]
    bars = go.Bar(
        base=columns["left"], x=took, y=columns["device"], orientation="h", text=columns["name"], textposition="none",
        marker={"color": columns["colour"]},
    )  # fmt: skip
    figure = go.Figure(bars, {"width": 1200, "height": 700, "barmode": "overlay"})
    text = figure.to_html(include_plotlyjs=True)
    return text.replace("</body>", "<script>requestAnimationFrame(() => window.painted = true)</script></body>")


def _columns(run: RunRecord) -> dict[str, list[Any]]:
    from bokeh.palettes import Category10

    names = sorted({task.name for task in run.tasks.values()})
    colours = dict(zip(names, Category10[10], strict=False))
    done = [(each, run.tasks[each.task].name) for each in run.attempts]
    return {
        "device": [run.devices[each.device].short for each, _ in done],
        "left": [each.start_s for each, _ in done],
        "right": [each.end_s for each, _ in done],
        "task": [each.task for each, _ in done],
        "name": [name for _, name in done],
        "colour": [colours[name] for _, name in done],
    }


def dask_page(tasks: int, path: Path) -> None:
    """Let Dask write its performance report of as many small tasks; its own page loads scripts from the network."""
    from distributed import Client, performance_report

    workers = Client(processes=False, n_workers=4, threads_per_worker=1, dashboard_address=None)
    with workers as client, performance_report(filename=str(path)):
        client.gather(client.map(lambda each: each + 1, range(tasks)))


def ray_timeline(tasks: int, path: Path) -> int:
    """Have Ray write its timeline of as many small tasks; return how many of them stand in it."""
    import ray

    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        work = ray.remote(lambda each: each + 1)
        ray.get([work.remote(each) for each in range(tasks)])
        told, before = 0, -1
        while told != before:
            time.sleep(_RAY_FLUSH_S)
            ray.timeline(filename=str(path))
            events = json.loads(path.read_text(encoding="utf-8"))
            before, told = told, len({each["args"]["task_id"] for each in events if "task_id" in each.get("args", {})})
        return told
    finally:
        ray.shutdown()


def measure_ray(bench: common.Bench, path: Path, tasks: int, pictures: Path | None) -> None:
    """Open Ray's timeline in Perfetto's page, and hetero's own report of as many tasks in the same browser's kind."""
    timeline, fleet = path / "ray.json", devices(32)
    told = ray_timeline(tasks, timeline)
    run = collect(big_run(tasks, fleet), fleet)
    with perfetto(chromium(), folder()) as imported:
        found = imported(timeline.read_text(encoding="utf-8"), pictures / "report-ray.png" if pictures else None)
        own = imported(json.dumps(chrome_trace(run)))
    bench.note(Ray=f"{timeline.stat().st_size:,} bytes, {told:,} of {tasks:,} tasks, {found.slices:,} slices")
    bench.measure("Ray: its timeline in Perfetto's page", [1e3 * found.seconds], "ms")
    bench.measure("hetero: its Chrome trace in Perfetto's page", [1e3 * own.seconds], "ms")
    size = len(page(run).encode()) / timeline.stat().st_size
    bench.claim(f"report of {tasks:,} tasks, size", size, rival="Ray's timeline", at_most=1.0)


def painted(browser: Browser, name: str, path: Path) -> float:
    """Return the seconds until a page is painted: it is ready, and a frame followed."""
    begin_s = time.perf_counter()
    browser.open(path, READY[name])
    browser.value("new Promise(d => requestAnimationFrame(() => setTimeout(d)))")
    return time.perf_counter() - begin_s


def panned(browser: Browser, name: str, times: int) -> float:
    """Return the seconds that one step to the side takes."""
    script = f"(async () => {{ const t = performance.now(); for (let i = 0; i < {times}; i++) await {PAN[name]};"
    return float(browser.value(f"{script} return (performance.now() - t) / {times} / 1000 }})()"))


def measure_pages(bench: common.Bench, path: Path, pictures: Path | None, rounds: int) -> None:
    """Measure size, nodes, paint and pan of 10,000 tasks on 32 devices."""
    fleet = devices(32)
    run = collect(big_run(10_000, fleet), fleet)
    pages = {"hetero": page(run), "Bokeh": bokeh_page(run), "Plotly": plotly_page(run)}
    paths = {name: path / f"{name}.html" for name in pages}
    for name, text in pages.items():
        paths[name].write_text(text, encoding="utf-8")
    paint: dict[str, list[float]] = {name: [] for name in pages}
    pan: dict[str, list[float]] = {name: [] for name in pages}
    errors: list[str] = []
    with Browser(chromium(), size=(1280, 2400), free=True) as browser:
        for turn in range(rounds):
            for name in list(pages)[:: 1 if turn % 2 == 0 else -1]:
                browser.requests.clear()
                browser.errors.clear()
                paint[name].append(painted(browser, name, paths[name]))
                pan[name].append(panned(browser, name, 10))
                nodes = browser.value("document.querySelectorAll('*').length")
                bench.note(**{f"{name}": f"{len(pages[name].encode()):,} bytes, {nodes:,} nodes"})
                if name == "hetero":
                    errors.extend(browser.errors)
                    outside = [each for each in browser.requests if not each.startswith(("data:", "blob:", "file:"))]
                    bench.note(hetero_errors=len(errors), hetero_requests=len(outside))
                if pictures and turn == 0:
                    pictures.mkdir(exist_ok=True)
                    browser.picture(pictures / f"report-{name.lower()}.png", whole=False)
        dask = path / "dask.html"
        dask_page(10_000, dask)
        browser.requests.clear()
        browser.open(dask)
        bench.note(Dask=f"{dask.stat().st_size:,} bytes, asks for {len(set(browser.requests))} files of the network")
        if pictures:
            browser.picture(pictures / "report-dask.png", whole=False)
    for name in pages:
        bench.measure(f"{name}: first paint", [1e3 * each for each in paint[name]], "ms")
        bench.measure(f"{name}: a pan", [1e3 * each for each in pan[name]], "ms")
    own = {what: sorted(found["hetero"])[rounds // 2] for what, found in (("paint", paint), ("pan", pan))}
    other = {what: sorted(found["Bokeh"])[rounds // 2] for what, found in (("paint", paint), ("pan", pan))}
    bench.claim("report of 10,000 tasks on 32 devices", len(pages["hetero"].encode()) / 1e6, unit="MB", at_most=0.5)
    bench.claim("first paint", own["paint"] / other["paint"], rival="Bokeh", at_most=0.5)
    bench.claim("a pan", own["pan"] / other["pan"], rival="Bokeh", at_most=0.3)


def measure_making(bench: common.Bench, path: Path, tasks: int, rounds: int) -> None:
    """Measure the making of a big report: CPU seconds, memory, size."""
    fleet = devices(32)
    trace = path / "big.trace.jsonl.gz"
    writer = TraceWriter(trace, devices=fleet)
    for record in big_run(tasks, fleet):
        writer.write(record)
    writer.close()
    found = []
    for _ in range(rounds):
        done = subprocess.run([sys.executable, "-c", _MAKE, str(trace)], capture_output=True, text=True, check=True)
        found.append([float(each) for each in done.stdout.split()])
    bench.measure(f"making the report of {tasks:,} tasks, CPU", [each[0] for each in found], "s")
    middle = sorted(each[0] for each in found)[rounds // 2]
    bench.claim(f"making the report of {tasks:,} tasks, CPU", middle, unit="s", at_most=5.0)
    bench.claim("its memory", max(each[1] for each in found) / 1e6, unit="MB", at_most=500.0)
    bench.claim("its size", found[0][2] / 1e6, unit="MB", at_most=3.0)


def measure_many(bench: common.Bench, path: Path, tasks: int) -> None:
    """Open the report of very many tasks, and count what is drawn a frame of all, a tenth and a thousandth of them."""
    report = path / "many.html"
    root = Path(__file__).resolve().parent.parent
    subprocess.run([sys.executable, "-c", _PAGE, str(tasks), str(report)], check=True, cwd=root)
    with Browser(chromium(), size=(1280, 2400), free=True) as browser:
        bench.measure(f"opening the report of {tasks:,} tasks", [painted(browser, "hetero", report)], "s")
        shown = browser.value("heteroStats.slices")
        pixels = browser.value("$('timeline').clientWidth * shown()")
        look = "look(D.span / 2, D.span * (0.5 + {} / 2)), drawTimeline(), heteroStats.draws"
        draws = [browser.value(f"({look.format(share)})") for share in (1.0, 0.1, 0.001)]
        errors = len(browser.errors)
    bench.note(many=f"{report.stat().st_size:,} bytes, {shown:,.0f} tasks, {draws} draw calls a frame, {errors} errors")
    bench.claim(f"{tasks:,} tasks: draw calls a frame over pixels of the rows", max(draws) / pixels, at_most=0.1)
    bench.claim(f"{tasks:,} tasks: tasks that its page holds", shown / tasks, unit="", at_least=1.0)


def measure_perfetto(bench: common.Bench, runs: int) -> None:
    """Open Chrome traces of random runs in Perfetto's own page; count import errors, rows and slices."""
    errors = wrong = 0
    with perfetto(chromium(), folder()) as imported:
        for seed in range(runs):
            fleet = devices(4 + seed)
            run = collect(big_run(200 + 100 * seed, fleet, seed), fleet)
            found = imported(json.dumps(chrome_trace(run)))
            links = {(each.src, each.dst) for each in run.transfers}
            errors += found.errors
            wrong += found.slices != len(run.attempts) + len(run.transfers) or found.rows < len(fleet) + len(links)
    bench.claim(f"Perfetto's import errors in {runs} runs", errors, unit="", at_most=0)
    bench.claim("runs of which it shows other rows or slices", wrong, unit="", at_most=0)


def main() -> None:
    """Measure everything."""
    given = common.arguments(__doc__ or "")
    title = (__doc__ or "").partition("\n")[0]
    bench = common.Bench("report", title, ("bokeh", "plotly", "distributed", "ray", "viztracer"), given.out)
    pictures = None if given.out is None else PICTURES
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        measure_pages(bench, path, pictures, 1 if given.quick else 5)
        measure_making(bench, path, 5_000 if given.quick else 100_000, 1 if given.quick else 3)
        measure_many(bench, path, 20_000 if given.quick else 1_000_000)
        measure_ray(bench, path, 500 if given.quick else 10_000, pictures)
        measure_perfetto(bench, 2 if given.quick else 10)
    bench.finish()


if __name__ == "__main__":
    main()
