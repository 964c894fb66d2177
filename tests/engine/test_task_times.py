"""What a task is said to have taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hetero
from hetero.drive.trace_read import read_trace
from hetero.model.annotations import TaskParts
from hetero.model.events import TaskFailed, TaskFinished
from hetero.report.account import account
from hetero.report.trace_reader import read_run
from tests.clocked import LINKED, RUNS, SlowToLoad, missing_s, work


def slow_to_store() -> Any:
    import time

    class Slow:
        def __reduce__(self) -> tuple[Any, ...]:
            time.sleep(0.3)
            return (int, (7,))

    return Slow()


def seven_slowly() -> int:
    import time

    time.sleep(0.3)
    return 7


class SlowToRead:
    def __reduce__(self) -> tuple[Any, ...]:
        return (seven_slowly, ())


def took_s(trace: Path) -> list[float]:
    return [record.seconds for _, record in read_trace(str(trace)) if isinstance(record, TaskFinished)]


def test_the_time_of_a_task_includes_that_of_storing_its_result(tmp_path: Path) -> None:
    trace = tmp_path / "run.trace.jsonl.gz"
    with hetero.Context(devices="1xcpu", trace=str(trace), history=False) as ctx:
        assert ctx.run(slow_to_store) == 7
    assert took_s(trace)[0] >= 0.3


def test_the_time_of_a_task_includes_that_of_reading_its_inputs(tmp_path: Path) -> None:
    trace = tmp_path / "run.trace.jsonl.gz"
    with hetero.Context(devices="1xcpu", trace=str(trace), history=False) as ctx:
        assert ctx.run(abs, SlowToRead()) == 7
    assert took_s(trace)[0] >= 0.3


def checked(kind: str, folder: Path, unit_s: float, **options: Any) -> Path:
    """Run tasks of a kind; the trace must tell of all that the clocks in the workers showed."""
    log, trace = folder / "log", folder / "run.trace.jsonl"
    RUNS[kind](str(log), str(trace), unit_s, **options)
    shown_s, lost_s, wrong_s = missing_s(log, trace)
    assert shown_s > 0.0
    assert lost_s <= 0.02 * shown_s, kind
    assert wrong_s <= 0.02 * shown_s, kind
    assert account(read_run(trace)).problems == ()
    return trace


@pytest.mark.parametrize("kind", ["ordinary", "None", "resident", "failing", "group", "streaming"])
def test_a_trace_tells_of_all_that_clocks_in_the_workers_showed(kind: str, tmp_path: Path) -> None:
    trace = checked(kind, tmp_path, 0.03)
    ends = {record[1:4]: record for _, record in read_trace(trace) if isinstance(record, TaskFinished | TaskFailed)}
    parts = {record[1:4]: record for _, record in read_trace(trace) if isinstance(record, TaskParts)}
    assert ends.keys() == parts.keys()
    for which, end in ends.items():
        each = parts[which]
        assert each.started_s == end.started_s
        assert each.load_s + each.run_s + each.store_s + each.wait_s == pytest.approx(end.seconds, abs=1e-5)
        assert end.started_s + end.seconds <= end.at_s + 1e-5


@pytest.mark.parametrize("kind", ["ordinary", "None", "resident", "failing"])
def test_a_worker_thread_tells_of_all_that_its_clock_showed(kind: str, tmp_path: Path) -> None:
    checked(kind, tmp_path, 0.02, isolation="thread")


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize("kind", ["ordinary", "None", "failing", "group"])
def test_an_actor_tells_of_all_that_its_clock_showed(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    checked(kind, tmp_path, 0.03, engine="ray", memory_pool_size="80MB")


@pytest.mark.slow
def test_a_trace_of_training_tells_of_all_that_clocks_in_the_members_showed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = read_run(checked("training", tmp_path, 0.1))
    assert len(run.attempts) == 2
    assert all(each.load_s > 0.5 for each in run.attempts)


@pytest.mark.parametrize("ends", ["none", "resident"])
def test_what_is_learned_of_a_task_is_the_whole_time_that_its_device_was_taken(ends: str, tmp_path: Path) -> None:
    fleet = {"config": LINKED} if ends == "resident" else {"devices": "1xcpu"}
    with hetero.Context(**fleet, history=False) as ctx:
        given = SlowToLoad(str(tmp_path / "log"), 0.4)
        ctx.submit(work, given, 0.01, ends).result()
        learned = [each.estimate for each in ctx.explain(work, given, 0.01, ends).devices]
    assert any(each is not None and each.origin == "history" and each.seconds >= 0.41 for each in learned)
