"""The plan of a task graph in the trace: each task once, what re-plans changed, and what a report makes of it."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from hetero.drive.sim import FIRST_PART, Costs, Program, SimHooks, SimTask, simulate
from hetero.drive.trace import TraceWriter
from hetero.model.annotations import PlanMade
from hetero.model.device import Device
from hetero.plan.policies.planned import Planned
from hetero.report.findings import find
from hetero.report.html import curves, packed
from hetero.report.planning import places_by_device
from hetero.report.record import RunRecord
from hetero.report.trace_reader import read_run
from tests.sim.report_runs import fleet, tasks, topology, truth
from tests.sim.worlds import cpus, task

COUNT = 300


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Device]]:
    rng = np.random.default_rng(5)
    devices = fleet(rng)
    graph = [each._replace(at_s=0.0) for each in tasks(rng, COUNT, groups=False)]
    path = tmp_path_factory.mktemp("plans") / "run.trace.jsonl"
    writer = TraceWriter(path, devices=devices, policy="planned")
    simulate(
        Program(graph), devices, truth, policy=Planned(), topology=topology(devices), seed=5,
        hooks=SimHooks(writer.write), costs=Costs(noise=0.3), check_every=10**9,
    )  # fmt: skip
    writer.close()
    return path, devices


@pytest.fixture(scope="module")
def run(traced: tuple[Path, list[Device]]) -> RunRecord:
    return read_run(traced[0])


def test_each_task_is_told_once_with_a_device_and_a_time(run: RunRecord) -> None:
    plans = [each for each in run.notes if isinstance(each, PlanMade)]
    told = [task for each in plans for task in each.tasks]
    assert len(told) == len(set(told)) > 0.9 * COUNT
    ids = {device.id for device in run.devices}
    for each in plans:
        assert set(each.devices) <= ids
        assert all(start_s < end_s for start_s, end_s in zip(each.starts_s, each.finishes_s, strict=True))
    assert max(len(each.tasks) for each in plans) > 0.5 * COUNT


def test_ids_of_nested_tasks_however_large_are_told_as_they_are() -> None:
    given = [
        SimTask(task(number, name="outer"), nested=(SimTask(task(1, name="inner")),) * 3) for number in range(1, 9)
    ]
    records: list[object] = []
    simulate(Program(given, together=True), cpus(2), lambda *_: 0.01, policy=Planned(), hooks=SimHooks(records.append))
    told = [number for each in records if isinstance(each, PlanMade) for number in each.tasks]
    assert max(told) > FIRST_PART
    assert len(told) == len(set(told))


def test_plans_take_less_than_a_hundred_bytes_a_task_when_compressed(traced: tuple[Path, list[Device]]) -> None:
    lines = [line for line in traced[0].read_bytes().splitlines(keepends=True) if line.startswith(b'["plan"')]
    assert len(zlib.compress(b"".join(lines), 1)) < 100 * COUNT


def test_a_report_tells_what_became_of_the_plan(run: RunRecord) -> None:
    found = find(run)
    assert found.planning is not None
    assert found.planning.as_dict()["tasks"] == len(found.planning.places)
    assert found.as_dict()["plan"]["replans"] > 0
    assert any(each.startswith("The plan at the start was to end after") for each in found.sentences)
    (curve,) = [each for each in curves(run) if each.group == "expected end"]
    assert abs(curve.values[-1] - run.span_s) < 0.2 * run.span_s
    counts, starts_s, ends_s = places_by_device(found.planning, len(run.devices))
    assert sum(counts) == len(starts_s) == len(found.planning.places)
    assert (ends_s > starts_s).all()
    assert packed(run, found)


def test_a_run_without_a_plan_tells_of_none() -> None:
    found = find(RunRecord())
    assert found.planning is None
    assert found.as_dict()["plan"] is None
    assert places_by_device(None, 2)[0] == [0, 0]
