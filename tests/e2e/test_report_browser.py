from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hetero.report.chrome import chrome_trace
from hetero.report.html import page
from hetero.report.trace_reader import collect
from tests.big_runs import big_run, devices, very_big_run
from tests.browser import Browser
from tests.needs import chromium
from tests.perfetto import folder, perfetto
from tests.pure.test_report import EVIL, failed_run
from tests.pure.test_report_training import trained
from tests.sim.report_runs import run as simulated
from tests.sim.report_runs import with_collectives

pytestmark = pytest.mark.servers

READY = "window.heteroStats && heteroStats.done"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser(chromium()) as opened:
        yield opened


def show(browser: Browser, folder: Path, text: str) -> Path:
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    browser.requests.clear()
    browser.errors.clear()
    browser.open(path, READY)
    return path


def made(tasks: int, count: int) -> str:
    fleet = devices(count)
    return page(collect(big_run(tasks, fleet), fleet))


def test_a_report_of_ten_thousand_tasks_is_small_asks_for_nothing_and_complains_of_nothing(
    browser: Browser, tmp_path: Path
) -> None:
    path = show(browser, tmp_path, made(10_000, 32))
    assert path.stat().st_size <= 500_000
    assert browser.value("document.querySelectorAll('*').length") <= 1_500, "the tables' rows are bounded"
    assert browser.value("heteroStats.slices") == 10_000
    assert browser.requests == []
    assert browser.errors == []


def test_what_is_drawn_a_frame_is_bounded_by_pixels_and_not_by_tasks(browser: Browser, tmp_path: Path) -> None:
    for tasks in (5_000, 60_000):
        show(browser, tmp_path, made(tasks, 32))
        pixels = browser.value("$('timeline').clientWidth * shown()")
        for share in (1.0, 0.1, 0.01):
            draws = browser.value(
                f"(look(D.span / 2, D.span * (0.5 + {share / 2})), drawTimeline(), heteroStats.draws)"
            )
            assert 0 < draws <= pixels
    assert browser.errors == []


def test_a_table_sorts_by_the_column_whose_head_is_pressed(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, made(2_000, 12))
    table = "[...document.querySelectorAll('table')].find(t => t.tHead.rows[0].cells[0].textContent === 'function')"
    column = f"[...{table}.tBodies[0].rows].map(row => row.cells[4].textContent).filter(Boolean)"
    before = browser.value(column)
    for times in (1, 2):
        browser.value(f"{table}.tHead.rows[0].cells[4].querySelector('button').click()")
        seconds = browser.value(f"{column}.map(figure)")
        assert seconds == sorted(seconds, reverse=times == 1)
    assert sorted(browser.value(column)) == sorted(before)
    assert browser.value("['1.5 ms', '2 min', '1,200', '-3 %', '$0.50', '–'].map(figure).map(String)") == [
        "0.0015", "120", "1200", "-3", "0.5", "NaN",
    ]  # fmt: skip
    assert browser.errors == []


def test_nothing_of_a_trace_runs_as_a_script(browser: Browser, tmp_path: Path) -> None:
    run = failed_run(EVIL, EVIL)
    run.head = {"run": EVIL, "host": EVIL}
    show(browser, tmp_path, page(run).replace("</body>", "<script>window.hacked = 1</script></body>"))
    assert browser.value("window.hacked === undefined")
    assert browser.value("document.querySelectorAll('img').length") == 0
    assert browser.value("document.querySelectorAll('h1')[0].textContent").endswith(EVIL)
    assert browser.requests == []


def test_a_search_finds_tasks_and_enter_shows_one_with_what_it_needed(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, made(300, 4))
    browser.value("(s => { s.focus(); s.value = '#250'; s.dispatchEvent(new Event('input')) })($('search'))")
    assert browser.value("$('hits').textContent").startswith("1 found")
    browser.press("Enter")
    browser.value("document.getElementById('search').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}))")
    assert "#250 on " in browser.value("$('detail').textContent")
    assert "needed by" in browser.value("$('detail').textContent")


def test_a_click_on_did_not_count_finds_the_attempts_that_failed(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, page(failed_run("load", "no such file")))
    names = browser.value("Array.from(document.querySelectorAll('#names button'), each => each.textContent)")
    assert names == ["load", "did not count"]
    browser.value("document.querySelectorAll('#names button')[1].click()")
    assert browser.value("$('hits').textContent").startswith("1 found")


def test_a_click_shows_the_task_under_it(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, made(40, 2))
    place = browser.value(
        "(() => { $('timeline').scrollIntoView(); const b = $('timeline').getBoundingClientRect();"
        " return [b.left + X((D.start[0] + D.end[0]) / 2, b.width), b.top + AXIS + 8] })()"
    )
    browser.click(*place)
    assert browser.value("picked") == 0
    assert "took" in browser.value("$('detail').textContent")


def test_keys_zoom_move_and_go_from_task_to_task(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, made(300, 4))
    browser.value("$('timeline').focus()")
    whole = browser.value("view[1] - view[0]")
    browser.press("+")
    assert browser.value("view[1] - view[0]") == pytest.approx(0.7 * whole)
    left = browser.value("view[0]")
    browser.press("ArrowRight")
    assert browser.value("view[0]") > left
    browser.press("]")
    browser.press("]")
    assert browser.value("picked") == 1
    browser.press("0")
    assert browser.value("view[1] - view[0]") == pytest.approx(browser.value("D.span"))


def test_the_page_holds_exactly_what_the_run_did(browser: Browser, tmp_path: Path) -> None:
    fleet = devices(4)
    run = collect(big_run(500, fleet), fleet)
    show(browser, tmp_path, page(run))
    found = browser.value("Array.from(D.start, (s, i) => [D.row[i], D.task[i], s, D.end[i], D.names[D.name[i]]])")
    expected = sorted((each.device, each.start_s, each.task, each.end_s) for each in run.attempts)
    assert len(found) == len(expected) == 500
    for (row, task, start_s, end_s, name), (device, from_s, number, until_s) in zip(found, expected, strict=True):
        assert (row, task, name) == (device, number, run.tasks[number].name)
        assert start_s == pytest.approx(from_s - run.begin_s, abs=2e-6)
        assert end_s == pytest.approx(until_s - run.begin_s, abs=2e-6)
    parents = browser.value("Array.from(D.start, (_, i) => relatives(i)[0].map(j => D.task[j]))")
    assert [sorted(each) for each in parents] == [list(run.tasks[task].after) for _, task, *_ in found]


def test_the_page_prints_and_has_a_dark_form(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(made(50, 3), encoding="utf-8")
    with Browser(chromium(), dark=True) as dark:
        dark.open(path, READY)
        assert dark.value("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 27)"
        assert dark.print().startswith(b"%PDF")
        dark.value("dispatchEvent(new Event('beforeprint'))")
        widths = "[...document.querySelectorAll('canvas')].map(each => Math.round(each.getBoundingClientRect().width))"
        assert max(dark.value("over.time.charts.map(each => each.width)")) == 700
        assert dark.value("theme.ink") == "#000"
        assert dark.value("document.querySelector('details').open")
        dark.value("dispatchEvent(new Event('afterprint'))")
        assert max(dark.value(widths)) > 1000
        ink = "over.time.charts[0].ctx.canvas.toDataURL()"
        before = dark.value(ink)
        dark.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
        dark.wait("theme.ink === '#1a1d21'")
        assert dark.value(ink) != before
        assert dark.errors == []


def test_perfettos_own_page_imports_a_run_without_an_error_and_shows_each_slice() -> None:
    with perfetto(chromium(), folder()) as imported:
        for seed, (tasks, count) in enumerate(((1, 1), (300, 5))):
            fleet = devices(count)
            run = collect(big_run(tasks, fleet, seed), fleet)
            found = imported(json.dumps(chrome_trace(run)))
            assert found.errors == 0
            assert found.slices == len(run.attempts) + len(run.transfers)
            assert found.rows >= len({each.device for each in run.attempts})
        records, fleet = simulated(4, rough=False)
        run = collect(with_collectives(records, 4), fleet)
        found = imported(json.dumps(chrome_trace(run)))
        assert found.errors == 0
        assert found.slices == len(run.attempts) + len(run.transfers) + len(run.collectives) > len(run.attempts)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_million_tasks_open(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, page(very_big_run(1_000_000, devices(32))))
    assert browser.value("heteroStats.slices") == 1_000_000
    assert browser.value("(drawTimeline(), heteroStats.draws)") < 1000


def test_curves_show_the_moments_that_the_timeline_shows(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, made(300, 4))
    assert browser.value("over.time.charts.length") == 3
    browser.value("(zoom(0.25), 0)")
    browser.wait("over.time.charts.every(each => each.scales.x.min === view[0] && each.scales.x.max === view[1])")
    browser.value("$('curves').focus()")
    browser.press("0")
    browser.wait("over.time.charts.every(each => each.scales.x.max >= D.span)")
    assert browser.value("view[1]") == pytest.approx(browser.value("D.span"))
    assert browser.errors == []


def test_a_stretch_marked_on_a_curve_is_what_the_timeline_shows_next(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, made(300, 4))
    left, top, wide = browser.value(
        "(() => { const o = over.time.charts[0].over; o.scrollIntoView({ block: 'center' });"
        " const b = o.getBoundingClientRect(); return [b.left, b.top, b.width] })()"
    )
    held = {"button": "left", "buttons": 1, "clickCount": 1, "y": top + 20}
    browser.call("Input.dispatchMouseEvent", type="mousePressed", x=left + wide / 4, **held)
    for part in (0.4, 0.5):
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=left + part * wide, **held)
    browser.call("Input.dispatchMouseEvent", type="mouseReleased", x=left + wide / 2, **held)
    browser.wait("view[1] - view[0] < D.span / 3")
    assert browser.value("[view[0] / D.span, view[1] / D.span]") == pytest.approx([0.25, 0.5], abs=0.01)


def test_a_name_of_a_curve_tells_its_height_with_a_unit_and_hides_it(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, made(300, 4))
    words = browser.value("Array.from(document.querySelectorAll('#curves button'), each => each.textContent)")
    assert any(each.startswith("ram → cuda:0: up to ") and each.endswith("B/s") for each in words)
    assert any(each.startswith("cuda:0: up to ") and each.endswith("B") for each in words)
    browser.value("document.querySelector('#curves button').click()")
    assert browser.value("over.time.charts[0].series[1].show") is False
    assert browser.value("document.querySelector('#curves button').getAttribute('aria-pressed')") == "false"


def test_training_is_drawn_over_its_steps_without_a_complaint(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, page(trained(EVIL)))
    charts = browser.value("over.steps.charts.map(each => each.series.slice(1).map(one => one.min !== null))")
    assert charts == [[True, True], [True, True], [True, True, True]]
    canvas = "over.steps.charts[0].ctx.canvas"
    inked = f"new Uint32Array({canvas}.getContext('2d').getImageData(0, 0, {canvas}.width, 100).data.buffer)"
    assert browser.value(f"new Set({inked}).size") > 10
    browser.value("$('training').focus()")
    browser.press("+")
    assert browser.value("over.steps.view[1] - over.steps.view[0]") < browser.value(
        "over.steps.whole[1] - over.steps.whole[0]"
    )
    assert browser.requests == []
    assert browser.errors == []
