from __future__ import annotations

import time
from pathlib import Path

import pytest

from hetero.engines.local.engine import LocalEngine
from hetero.floor.platform import FEATURES
from hetero.model.commands import Withdraw
from hetero.model.events import TaskFinished, TaskWithdrawn
from hetero.testing import check_engine
from hetero.testing.engine import Bench

pytestmark = pytest.mark.timeout(100)


def test_worker_processes_keep_what_the_driver_relies_on(no_leaks: None) -> None:
    check_engine(lambda: LocalEngine(64_000_000))


def test_worker_threads_keep_what_the_driver_relies_on(no_leaks: None) -> None:
    check_engine(lambda: LocalEngine(64_000_000, isolation="thread"), processes=False)


def test_worker_processes_need_none_of_the_features_of_linux(no_leaks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("memfd", "parent_death_signal", "affinity", "private_mapping", "dir_fsync", "pidfd"):
        monkeypatch.setattr(FEATURES, name, False)
    monkeypatch.setattr(FEATURES, "shm_dir", "")
    notes: list[str] = []
    check_engine(lambda: LocalEngine(64_000_000, note=notes.append))
    assert any("lies in a file under" in note for note in notes)


def test_a_pool_that_is_much_too_small_loses_nothing(no_leaks: None) -> None:
    notes: list[str] = []
    check_engine(lambda: LocalEngine(65_536, note=notes.append))
    assert len([note for note in notes if "the memory pool is full" in note]) == 1


def test_without_passing_of_files_devices_get_threads(no_leaks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FEATURES, "fd_passing", False)
    notes: list[str] = []
    check_engine(lambda: LocalEngine(1_000_000, note=notes.append), processes=False)
    assert any("every device gets a thread" in note for note in notes)


def wait_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.01)


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_what_has_not_started_is_given_back_at_once_whatever_runs(
    no_leaks: None, tmp_path: Path, isolation: str
) -> None:
    go_on = tmp_path / "go on"
    engine = LocalEngine(1_000_000, isolation=isolation)
    try:
        bench = Bench(engine)
        bench.ready()
        running, waiting, last = bench.launch(bench.call(wait_for, str(go_on)), bench.call(abs, 1), bench.call(abs, 2))
        engine.submit(Withdraw(bench.devices[0].id, waiting, 1))
        bench.expect(TaskWithdrawn, lambda event: event.task == waiting)
        assert not [event for event in bench.events if isinstance(event, TaskFinished)]
        go_on.touch()
        for task in (running, last):
            bench.finish(task)
        assert len([event for event in bench.events if isinstance(event, TaskWithdrawn)]) == 1
        bench.check_answers()
    finally:
        engine.stop()
