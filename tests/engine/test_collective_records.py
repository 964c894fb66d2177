"""Collectives in the trace: who took part in what, for how long, and where that stands in reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hetero
from hetero.drive.annotations import KEPT, record_collective
from hetero.drive.frame import Frame
from hetero.model.annotations import CheckpointKept
from hetero.model.device import Device, DeviceType
from hetero.report.account import account
from hetero.report.chrome import chrome_trace
from hetero.report.findings import find
from hetero.report.html import page
from hetero.report.record import RunRecord
from hetero.report.tables import collective_table
from hetero.report.trace_reader import only, read_run


@hetero.task(devices=2)
def _sums() -> float:
    total = hetero.collectives.all_reduce(np.ones(1000))
    return float(hetero.collectives.broadcast(total, 1, algorithm="tree")[0])


@hetero.task(devices=2, retries=0)
def _fails() -> None:
    hetero.collectives.all_reduce(1.0)
    raise ValueError("after the sum")


@pytest.fixture(params=["thread", "process"], scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    trace = tmp_path_factory.mktemp("collectives") / "run.trace.jsonl.gz"
    with hetero.Context(devices="2xcpu", isolation=request.param, trace=trace, history=False) as ctx:
        assert ctx.run(_sums) == 2.0
    return read_run(trace)


def test_every_member_tells_of_every_collective(run: RunRecord) -> None:
    told = sorted(
        (each.task, each.rank, each.what, each.nbytes, each.world_size, each.calls) for each in run.collectives
    )
    assert told == [(1, rank, what, 8000, 2, 1) for rank in (0, 1) for what in ("all_reduce", "broadcast")]
    assert {each.algorithm for each in run.collectives if each.what == "broadcast"} == {"tree"}


def test_time_in_collectives_is_no_compute_and_the_account_adds_up(run: RunRecord) -> None:
    found = account(run)
    assert not found.problems
    inside_s = sum(each.seconds for each in run.collectives if each.task == 1)
    assert found.total_s("collective") >= inside_s * 0.999
    assert sum(found.seconds[0].values()) == pytest.approx(found.span_s)


def test_the_report_sums_up_collectives_by_algorithm(run: RunRecord) -> None:
    found = find(run)
    assert sorted((each.what, each.members, each.calls, each.nbytes) for each in found.collectives) == [
        ("all_reduce", 2, 2, 16_000),
        ("broadcast", 2, 2, 16_000),
    ]
    assert {"tree"} == {each["algorithm"] for each in found.as_dict()["collectives"] if each["what"] == "broadcast"}
    assert "broadcast" in collective_table(found)
    assert "<h2>Collectives</h2>" in page(run)
    assert collective_table(find(RunRecord())) == ""


def test_collectives_lie_within_the_slice_of_their_task(run: RunRecord) -> None:
    slices = [each for each in chrome_trace(run)["traceEvents"] if each["ph"] == "X"]
    tasks = [each for each in slices if each["cat"] == "done"]
    inner = [each for each in slices if each["cat"] == "collective"]
    assert len(inner) == 4
    for each in inner:
        around = [one for one in slices if one["cat"] != "collective" and one["tid"] == each["tid"]]
        assert any(one["ts"] <= each["ts"] <= each["ts"] + each["dur"] <= one["ts"] + one["dur"] for one in around)
    assert len(tasks) == 2


def test_a_member_that_fails_tells_of_the_collectives_before(tmp_path: Path) -> None:
    trace = tmp_path / "run.trace.jsonl"
    with hetero.Context(devices="2xcpu", isolation="thread", trace=trace, history=False) as ctx:
        assert ctx.run(_sums) == 2.0
        with pytest.raises(ValueError, match="after the sum"):
            ctx.run(_fails)
    run = read_run(trace)
    assert {each.what for each in run.collectives if each.task == 2} == {"all_reduce"}
    assert {each.task for each in only(run, ["_sums"]).collectives} == {1}


def test_what_follows_ten_thousand_collectives_is_added_to_the_last() -> None:
    frame = Frame(Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu"), None, 1, 1)
    for _ in range(KEPT + 5):
        record_collective(frame, "all_reduce", "ring", 0, 2, 8, 0.5)
    assert len(frame.notes) == KEPT
    assert (frame.notes[-1].calls, frame.notes[-1].nbytes, frame.notes[-1].seconds) == (6, 48, 3.0)


@pytest.mark.slow
@pytest.mark.servers
def test_a_trace_tells_of_collectives_on_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    trace = tmp_path / "run.trace.jsonl.gz"
    with hetero.Context(devices="2xcpu", engine="ray", address="local", trace=trace, history=False) as ctx:
        assert ctx.run(_sums) == 2.0
    found = read_run(trace)
    assert [each.what for each in found.collectives] in (
        ["all_reduce", "broadcast"] * 2,
        ["all_reduce"] * 2 + ["broadcast"] * 2,
    )
    assert not account(found).problems


@hetero.task
def _keeps() -> int:
    hetero.checkpoint("half", np.zeros(100))
    return sum(hetero.tasks.resumable([1, 2, 3], every=2))


def test_checkpoints_of_tasks_are_told_with_their_bytes_and_lie_within_the_task(tmp_path: Path) -> None:
    trace = tmp_path / "run.trace.jsonl"
    with hetero.Context(devices="1xcpu", isolation="thread", trace=trace, history=False) as ctx:
        assert ctx.run(_keeps) == 6
    run = read_run(trace)
    told = [each for each in run.notes if isinstance(each, CheckpointKept)]
    assert [each.name for each in told] == ["half", "", ""]
    assert told[0].nbytes > 800
    (attempt,) = run.attempts
    assert all(attempt.start_s <= each.started_s <= each.started_s + each.seconds <= attempt.end_s for each in told)
    kinds = [each["cat"] for each in chrome_trace(run)["traceEvents"] if each["ph"] == "X"]
    assert kinds == ["done", *["checkpoint"] * 3]
