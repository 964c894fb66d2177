from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hetero.drive.trace import TraceWriter
from hetero.floor.errors import BadValueError, TraceError
from hetero.model.commands import Commit, Fail, Launch, Run, RunGroup, Transfer
from hetero.model.device import Device, DeviceType
from hetero.model.events import (
    DeviceAdded,
    DeviceLost,
    DeviceReady,
    TaskFailed,
    TaskFinished,
    TaskSubmitted,
    TransferFinished,
)
from hetero.model.tasks import Failure, Request, Task
from hetero.plan.bounds.makespan import lower_bound
from hetero.report.account import CATEGORIES, account
from hetero.report.best_possible import best_possible
from hetero.report.chrome import chrome_trace
from hetero.report.compare import compare
from hetero.report.findings import critical_chain, find, longest_path
from hetero.report.html import page
from hetero.report.intervals import common, length_s, pairs, union, without
from hetero.report.prices import prices
from hetero.report.record import RunRecord
from hetero.report.tables import loss_table
from hetero.report.timeline import gantt
from hetero.report.trace_reader import collect, only, read_run

CPU = Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu")
GPU = Device("h0/cuda:0", "cuda", DeviceType("GPU"), "null", memory_node="h0/cuda:0")
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>@data@"


def submitted(at_s: float, number: int, name: str = "f", after: tuple[int, ...] = (), **asked: object) -> TaskSubmitted:
    return TaskSubmitted(at_s, Task(number, name, f"{name}|", 1.0, after, after, Request(**asked)))  # type: ignore[arg-type]


def ran(
    number: int, device: str, launch_s: float, start_s: float, end_s: float, nbytes: int = 0
) -> list[tuple[float, object]]:
    node = "h0/ram" if "cpu" in device else device
    return [
        (launch_s, Run(device, (Launch(number, 1, 1.0),))),
        (end_s, TaskFinished(end_s, number, 1, device, start_s, end_s - start_s, nbytes, node)),
        (end_s, Commit(number, 1, device)),
    ]


def ready(*devices: Device) -> list[tuple[float, object]]:
    return [(0.0, each) for device in devices for each in (DeviceAdded(0.0, device), DeviceReady(0.0, device.id))]


def two_devices() -> RunRecord:
    """Make a run in which every second has a known use.

    The GPU waits for the CPU's result (0 to 4), for its copy (4 to 5) and for the start (5 to 6), and computes.
    The CPU computes (0 to 4), waits while its result is copied away (4 to 5), is left idle (5 to 6), finds no work.
    """
    records = [
        *ready(CPU, GPU),
        (0.0, submitted(0.0, 1)),
        (0.0, submitted(0.0, 2, "g", (1,))),
        *ran(1, CPU.id, 0.0, 0.0, 4.0, 1000),
        (4.0, Transfer(1, "h0/ram", "h0/cuda:0", 1000)),
        (5.0, TransferFinished(5.0, 1, "h0/ram", "h0/cuda:0", 1000, 4.0, 1.0)),
        *ran(2, GPU.id, 5.0, 6.0, 9.0),
    ]
    return collect(records, (CPU, GPU))


def test_each_second_of_a_small_run_is_in_its_category() -> None:
    found = account(two_devices())
    assert found.problems == ()
    cpu, gpu = ({name: took for name, took in each.items() if took} for each in found.seconds)
    assert cpu == {"compute": 4.0, "transfer out": 1.0, "idle": 1.0, "waiting for work": 3.0}
    assert gpu == {"waiting for data": 4.0, "transfer in": 1.0, "overhead": 1.0, "compute": 3.0}


def test_a_lost_worker_costs_the_attempt_and_the_time_until_it_is_back() -> None:
    records = [
        *ready(CPU),
        (0.0, submitted(0.0, 1)),
        (0.0, Run(CPU.id, (Launch(1, 1, 1.0),))),
        (2.0, DeviceLost(2.0, CPU.id, "its worker died", False)),
        (3.0, DeviceReady(3.0, CPU.id)),
        (3.0, Run(CPU.id, (Launch(1, 2, 1.0),))),
        (5.0, TaskFinished(5.0, 1, 2, CPU.id, 3.0, 2.0, 0, "h0/ram")),
        (5.0, Commit(1, 2, CPU.id)),
    ]
    run = collect(records, (CPU,))
    (seconds,) = account(run).seconds
    assert (seconds["retry"], seconds["compute"]) == (3.0, 2.0)
    assert [each.outcome for each in run.attempts] == ["lost", "done"]


def test_the_first_to_end_in_a_group_waits_for_the_others() -> None:
    records = [
        *ready(CPU, GPU),
        (0.0, submitted(0.0, 1, devices=2)),
        (0.0, RunGroup((CPU.id, GPU.id), Launch(1, 1, 1.0))),
        (1.0, TaskFinished(1.0, 1, 1, GPU.id, 0.0, 1.0, 0, "h0/ram")),
        (4.0, TaskFinished(4.0, 1, 1, CPU.id, 0.0, 4.0, 0, "h0/ram")),
        (4.0, Commit(1, 1, CPU.id)),
    ]
    cpu, gpu = account(collect(records, (CPU, GPU))).seconds
    assert (cpu["compute"], gpu["compute"], gpu["collective"]) == (4.0, 1.0, 3.0)


def test_what_held_the_run_up_is_a_chain_of_reasons() -> None:
    run = two_devices()
    assert [(run.attempts[each.attempt].task, each.waited_s, each.cause) for each in critical_chain(run)] == [
        (1, 0.0, "submission"),
        (2, 2.0, "data"),
    ]
    assert longest_path(run) == ([1, 2], 7.0)


def test_the_bound_of_a_chain_is_its_length() -> None:
    best = best_possible(two_devices())
    assert best.seconds == pytest.approx(7.0)
    assert best.saving_s == pytest.approx(2.0)
    assert (best.estimated, best.pairs) == (2, 4)


def test_time_in_which_the_program_handed_in_nothing_is_no_placements_fault() -> None:
    records = [*ready(CPU), (0.0, submitted(0.0, 1)), *ran(1, CPU.id, 0.0, 0.0, 1.0)]
    records += [(5.0, submitted(5.0, 2)), *ran(2, CPU.id, 5.0, 5.0, 6.0)]
    best = best_possible(collect(records, (CPU,)))
    assert (best.quiet_s, best.seconds, best.saving_s) == (4.0, 6.0, 0.0)


def test_sentences_name_devices_shares_and_the_bound() -> None:
    text = " ".join(find(two_devices()).sentences)
    assert "2 tasks ran on 2 of 2 devices in 9 s." in text
    assert "cpu:0 worked 44 % of the time" in text
    assert "at most 2 s sooner" in text
    assert "2 of 4 times behind it are estimates" in text


def test_an_empty_run_has_a_report() -> None:
    empty = collect([], ())
    assert find(empty).sentences == ("No task ran.",)
    assert "No task ran." in page(empty)
    assert gantt(empty)[0].plain == "no task ran"
    assert chrome_trace(empty)["traceEvents"]


def failed_run(name: str = "f", message: str = "it broke") -> RunRecord:
    failure = Failure("exception", message)
    records = [
        *ready(replace(CPU, name=name)),
        (0.0, submitted(0.0, 1, name)),
        (0.0, Run(CPU.id, (Launch(1, 1, 1.0),))),
        (1.0, TaskFailed(1.0, 1, 1, CPU.id, 0.0, 1.0, failure)),
        (1.0, Fail(1, failure)),
    ]
    return collect(records, (replace(CPU, name=name),))


def test_a_failed_task_is_told_with_its_reason() -> None:
    found = find(failed_run())
    assert (found.tasks, found.failed, found.retried) == (0, 1, 1)
    assert any("1 task failed; the reason (1 ×): it broke" in each for each in found.sentences)
    assert account(failed_run()).seconds[0]["retry"] == 1.0


def test_the_page_names_each_task_that_failed_with_its_reason_on_one_line() -> None:
    assert "1 s: load #1 failed: no such file: a.csv" in page(failed_run("load", "no such file:\n  a.csv"))


def test_nothing_of_a_trace_becomes_markup() -> None:
    run = failed_run(EVIL, EVIL)
    run.head = {"run": EVIL, "host": EVIL, "policy": EVIL, "started": EVIL, "hetero": EVIL}
    run.warnings.append((0.5, EVIL))
    text = page(run)
    assert text.count("<script") == text.count("</script>") == 2
    assert "<img" not in text
    assert re.findall(r"@\w+@", text) == ["@data@"] * text.count("&lt;img src=x onerror=alert(1)&gt;@data@")


def test_a_page_names_no_address() -> None:
    text = page(two_devices())
    assert not re.search(r"(https?:|src=|url\(|@import|<link)", text)
    assert "default-src 'none'" in text


def test_a_page_carries_the_licence_of_what_it_carries_of_others() -> None:
    text = page(two_devices())
    assert "uPlot 1.6" in text
    assert "Copyright (c) 2022 Leon Sorokin" in text
    assert 'THE SOFTWARE IS PROVIDED "AS IS"' in text


def test_a_chrome_trace_has_whole_microseconds_and_no_overlap_in_a_row() -> None:
    document = json.loads(json.dumps(chrome_trace(two_devices())))
    slices = [each for each in document["traceEvents"] if each["ph"] == "X"]
    assert len(slices) == 3
    rows: dict[int, int] = {}
    for each in sorted(slices, key=lambda one: (one["tid"], one["ts"])):
        assert each["tid"] >= 1000
        assert isinstance(each["ts"], int)
        assert isinstance(each["dur"], int)
        assert each["ts"] >= rows.get(each["tid"], 0)
        rows[each["tid"]] = each["ts"] + each["dur"]
    flows = [(each["ph"], each["ts"], each["tid"]) for each in document["traceEvents"] if each["ph"] in "sf"]
    assert flows == [("s", 4_000_000, 1002), ("f", 6_000_000, 1001)]


def test_the_gantt_chart_is_as_wide_as_the_terminal() -> None:
    lines = gantt(two_devices(), 60)
    assert [len(line.plain) for line in lines[:3]] == [60, 60, 60]
    assert "█" in lines[0].plain
    assert "9 s" in lines[2].plain


def many(seconds: np.ndarray) -> RunRecord:
    records = [*ready(CPU), *((0.0, submitted(0.0, number + 1)) for number in range(len(seconds)))]
    at_s = 0.0
    for number, took in enumerate(seconds):
        records += ran(number + 1, CPU.id, at_s, at_s, at_s + float(took))
        at_s += float(took)
    return collect(records, (CPU,))


def test_a_slow_down_is_believed_and_noise_is_not(rng: np.random.Generator) -> None:
    base = rng.lognormal(-3.0, 0.2, 100)
    (noise,) = compare(many(base), many(rng.permutation(base) * rng.lognormal(0.0, 0.01, 100))).changes
    assert noise.verdict == "the same as far as can be told"
    (slower,) = compare(many(base), many(base * 1.3)).changes
    assert slower.verdict == "slower"
    assert slower.p < 1e-4
    assert slower.ratio == pytest.approx(1.3)
    assert "slower" in compare(many(base), many(base * 1.3)).as_text()


def test_the_rank_test_is_that_of_scipy(rng: np.random.Generator) -> None:
    from scipy.stats import mannwhitneyu

    for _ in range(20):
        one, other = rng.integers(1, 30, 40) / 10.0, rng.integers(2, 32, 30) / 10.0
        (change,) = compare(many(one), many(other)).changes
        expected = mannwhitneyu(np.round(one, 9), np.round(other, 9), method="asymptotic").pvalue
        assert change.p == pytest.approx(expected, rel=0.2, abs=1e-3)


def test_a_price_for_a_device_that_the_run_did_not_have_is_refused_with_those_it_had() -> None:
    with pytest.raises(BadValueError, match=r"no device of the run goes by 'cudaa'.*did you mean 'cuda'.*there are: "):
        find(two_devices(), {"cudaa": 1.0})


def test_a_device_of_the_catalog_costs_what_the_catalog_says_with_its_source() -> None:
    run = two_devices()
    run.devices = (run.devices[0], replace(run.devices[1], name="NVIDIA H100 80GB HBM3"))
    found = find(run)
    assert found.usd[0] is None
    assert found.usd[1] is not None
    assert found.price_origins[1].startswith("catalog: ")
    assert any("prices: catalog: " in each for each in found.sentences)


def test_a_price_is_shared_out_by_the_hour() -> None:
    found = find(two_devices(), prices(["cuda=3600"]))
    assert found.usd == (None, 9.0)
    assert found.price_origins == ("", "yours")
    assert sum(found.as_dict()["lost_usd"].values()) == pytest.approx(
        9.0 - 9.0 * found.account.seconds[1]["compute"] / 9
    )
    assert any(each.startswith("1 of 2 devices cost 9.00 USD in this time, of which ") for each in found.sentences)
    assert " USD" in loss_table(found)
    with pytest.raises(BadValueError, match=r"'cuda=much' is not a price; write it like 'cuda=2\.5'"):
        prices(["cuda=much"])


def test_only_some_functions_can_be_reported() -> None:
    part = only(two_devices(), ["g"])
    assert (part.begin_s, part.end_s, list(part.tasks)) == (0.0, 9.0, [2])
    with pytest.raises(BadValueError, match="no task of the run is named 'h'; there are: f, g"):
        only(two_devices(), ["h"])


def test_a_trace_that_is_cut_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "a", devices=(CPU,))
    for each in [*ready(CPU), (0.0, submitted(0.0, 1)), *ran(1, CPU.id, 0.0, 0.0, 2.0), (2.0, submitted(2.0, 2))]:
        writer.write(each)  # type: ignore[arg-type]
    writer.close()
    whole = (tmp_path / "a").read_bytes()
    assert read_run(tmp_path / "a").problems == ["task 2 was submitted but never answered"]
    for length in range(whole.index(b"\n") + 1, len(whole)):
        (tmp_path / "cut").write_bytes(whole[:length])
        run = read_run(tmp_path / "cut")
        assert run.torn
        said = page(run)
        assert not run.tasks or any(words in said for words in ("The trace has no end", "No task ran.", "broke off"))
    damaged = whole.replace(b'["fin"', b'["???"')
    (tmp_path / "damaged").write_bytes(damaged)
    assert "not a record of a trace" in read_run(tmp_path / "damaged").problems[0]
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(TraceError, match="is empty"):
        read_run(tmp_path / "empty")


def test_intervals_are_what_a_set_of_small_steps_says(rng: np.random.Generator) -> None:
    for _ in range(50):
        sets = [
            pairs((int(a), int(a + b)) for a, b in rng.integers(1, 40, (int(rng.integers(0, 6)), 2))) for _ in range(2)
        ]
        one, other = ({n for a, b in zip(*each, strict=True) for n in range(int(a), int(b))} for each in sets)
        first, second = union(sets[0]), union(sets[1])
        assert length_s(union(*sets)) == len(one | other)
        assert length_s(common(first, second)) == len(one & other)
        assert length_s(without(first, second)) == len(one - other)


def test_the_lower_bound_is_near_the_proven_optimum_and_never_above_it(rng: np.random.Generator) -> None:
    ratios = []
    for round_ in range(12):
        tasks, devices = int(rng.integers(8, 16)), int(rng.integers(2, 4))
        table = (
            rng.lognormal(0.0, 0.5, (tasks, 1))
            * rng.uniform(0.3, 1.0, (1, devices))
            * rng.lognormal(0, 0.3, (tasks, devices))
        )
        table = np.ceil(table * 1000.0)
        density = (0.0, 0.1, 0.3)[round_ % 3]
        after = [tuple(each for each in range(task) if rng.random() < density) for task in range(tasks)]
        optimum = optimal(table, after)
        if optimum is not None:
            ratios.append(lower_bound(table, after).seconds / optimum)
    assert len(ratios) >= 10
    assert max(ratios) <= 1.0 + 1e-9
    assert min(ratios) >= 0.88
    assert float(np.median(ratios)) >= 0.95


def optimal(table: np.ndarray, after: list[tuple[int, ...]]) -> float | None:
    """Return the proven shortest makespan, None when it is not proven in time."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    most = int(table.max(axis=1).sum())
    makespan = model.new_int_var(0, most, "")
    starts, ends = [], []
    lanes: list[list[object]] = [[] for _ in range(table.shape[1])]
    for row in table:
        start, end = model.new_int_var(0, most, ""), model.new_int_var(0, most, "")
        chosen = [model.new_bool_var("") for _ in row]
        for lane, took, here in zip(lanes, row, chosen, strict=True):
            lane.append(model.new_optional_interval_var(start, int(took), end, here, ""))
        model.add_exactly_one(chosen)
        model.add(end <= makespan)
        starts.append(start)
        ends.append(end)
    for lane in lanes:
        model.add_no_overlap(lane)
    for task, parents in enumerate(after):
        for parent in parents:
            model.add(starts[task] >= ends[parent])
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = 2.0
    solver.parameters.num_workers = 1
    proven = solver.solve(model) == cp_model.OPTIMAL
    return float(solver.objective_value) if proven else None


def test_every_category_but_computing_is_a_loss() -> None:
    from hetero.report.findings import LOSSES

    assert set(LOSSES) == set(CATEGORIES) - {"compute"}


def test_a_trace_that_is_too_long_is_read_as_far_as_a_report_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hetero.report.trace_reader._TASKS_MAX", 50)
    writer = TraceWriter(tmp_path / "long.jsonl.gz", devices=[CPU])
    for record in ready(CPU):
        writer.write(record)
    for number in range(1, 101):
        for record in (
            (float(number), submitted(float(number), number)),
            *ran(number, CPU.id, number, number, number + 1),
        ):
            writer.write(record)
    writer.close()
    run = read_run(tmp_path / "long.jsonl.gz")
    assert len(run.tasks) == 50
    assert run.problems[0].endswith("is longer than a report can be: this is about its first 50 tasks")
    assert "longer than a report can be" in page(run)
