from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from hetero.cli.top import picture, rates
from hetero.model.device import DeviceStatus
from hetero.session.snapshot import DeviceNow, LinkNow, NodeNow, Snapshot, TasksNow


def device(index: int, **changes: object) -> DeviceNow:
    status = DeviceStatus(used_bytes=3_000_000_000, utilisation_frac=0.5, temperature_c=61.0, power_w=205.0)
    plain = DeviceNow(
        id=f"h0/cuda:{index}", kind="cuda", name="A", remark="", phase="ready", task="a_function_with_a_long_name",
        task_s=1.0, queued=12_345, finished=123_456, busy_s=4.0, pid=7, cpu_s=2.0, held_bytes=5, status=status,
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def moment(at_s: float, finished: int, moved_bytes: int, *devices: DeviceNow) -> Snapshot:
    tasks = TasksNow(1000, 100, 100, 100, 4, finished, 6, 3)
    nodes = (NodeNow("h0/ram", 2_000, 3_000, 1_000),)
    links = (LinkNow("h0/ram", "h0/cuda:0", 5, moved_bytes),)
    return Snapshot("mine", 42, "local", "eft", at_s, tasks, devices, nodes, links)


def shown(now: Snapshot, before: Snapshot | None = None, height: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(picture(now, rates(now, before), "mine", 80, height))
    return out.getvalue()


def test_rates_are_those_of_the_time_between_two_snapshots() -> None:
    before = moment(10.0, 90, 1_000, device(0))
    now = moment(12.0, 190, 5_000, device(0, busy_s=4.5, task_s=1.5, cpu_s=5.0))
    found = rates(now, before)
    assert found.tasks_per_s == pytest.approx(50.0)
    assert found.left_s == pytest.approx((1000 - 196) / 50.0)
    assert found.busy_frac == {"h0/cuda:0": pytest.approx(0.5)}
    assert found.cores == {"h0/cuda:0": pytest.approx(1.5)}
    assert found.link_bytes_per_s == {("h0/ram", "h0/cuda:0"): pytest.approx(2000.0)}


def test_a_new_worker_begins_its_processor_time_anew() -> None:
    before, now = moment(10.0, 0, 0, device(0, cpu_s=50.0)), moment(12.0, 0, 0, device(0, pid=8, cpu_s=1.0))
    assert rates(now, before).cores == {"h0/cuda:0": pytest.approx(0.5)}


def test_nothing_is_foretold_while_no_task_ends() -> None:
    assert rates(moment(12.0, 90, 0), moment(10.0, 90, 0)).left_s is None


def test_a_narrow_terminal_cuts_names_and_no_figure() -> None:
    text = shown(moment(12.0, 190, 5_000, device(0), device(1)))
    for figure in ("12,345", "123,456", "3 GB", "50%", "61", "205", "200%"):
        assert figure in text, figure
    assert max(map(len, text.splitlines())) <= 80


def test_more_devices_than_fit_are_counted() -> None:
    text = shown(moment(12.0, 190, 5_000, *(device(index) for index in range(40))), height=24)
    assert len(text.splitlines()) <= 24
    assert "more" in text


def test_names_with_markup_are_shown_as_they_are() -> None:
    assert "[red]" in shown(moment(12.0, 190, 5_000, device(0, task="[red]")))


def test_a_snapshot_survives_its_way_through_json() -> None:
    now = moment(12.0, 190, 5_000, device(0))
    assert Snapshot.of_dict(json.loads(json.dumps(now.as_dict()))) == now
