"""What holds of tasks on the local engine holds on Ray: the same tests, on one cluster that is started once.

Run by test_ray.py in a process of its own: Ray leaves threads and files in the process that used it.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import psutil
import pytest

import hetero
from hetero.engines.ray.cluster import Cluster
from hetero.engines.ray.engine import RayEngine
from hetero.errors import BadValueError, ConfigError, EngineError, TaskLostError, TaskTimeoutError
from hetero.session.options import ContextOptions
from hetero.testing import check_engine
from tests.engine import (
    test_collectives,
    test_context,
    test_futures,
    test_graph_program,
    test_groups,
    test_map_reduce,
)
from tests.engine import test_train_deaths as training
from tests.engine import test_worker_life as life

STORE_BYTES = 100_000_000
FIXTURES = {"ctx", "processes", "threads", "rng", "monkeypatch", "tmp_path", "caplog", "capsys", "kept"}
kept = life.kept


def found_in(*modules: ModuleType) -> Iterator[tuple[str, Callable[..., None]]]:
    """Yield the tests that run in a Context which they are given."""
    for module in modules:
        for name, function in vars(module).items():
            asked = wanted_by(function) if name.startswith("test_") else set()
            if asked <= FIXTURES and asked & {"ctx", "processes", "threads"}:
                yield name, function


def wanted_by(function: Callable[..., None]) -> set[str]:
    """Return the fixtures that a test asks for, without what its cases give it."""
    given = [mark.args[0] for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
    cases = {name.strip() for names in given for name in (names.split(",") if isinstance(names, str) else names)}
    return set(inspect.signature(function).parameters) - cases


globals().update(found_in(test_context, test_futures, test_groups, test_map_reduce, life))


class TestThreeDevices:
    """Tests that want three devices or a trace."""

    @pytest.fixture(scope="class")
    @classmethod
    def ctx(cls, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[hetero.Context]:
        trace = tmp_path_factory.mktemp("ray") / "run.trace.jsonl.gz"
        with hetero.Context(devices="3xcpu", engine="ray", trace=trace, history=False) as context:
            yield context


for title, function in found_in(test_collectives, test_graph_program):
    setattr(TestThreeDevices, title, staticmethod(function))


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Cluster]:
    held = Cluster.open("local", STORE_BYTES)
    yield held
    held.close()


@pytest.fixture(scope="module")
def ctx(cluster: Cluster) -> Iterator[hetero.Context]:
    with hetero.Context(devices="2xcpu", engine="ray", history=False) as context:
        yield context


@pytest.fixture(scope="module")
def processes(ctx: hetero.Context) -> hetero.Context:
    return ctx


@pytest.fixture(scope="module")
def threads(ctx: hetero.Context) -> hetero.Context:
    return ctx


def test_an_initializer_runs_in_each_actor_and_its_error_is_told(cluster: Cluster) -> None:
    with hetero.Context(
        devices="1xcpu", engine="ray", options=ContextOptions(initializer=life.load_model, initargs=(3,)), history=False
    ) as ctx:
        assert [ctx.run(life.use_model, x) for x in range(3)] == [(0, 1, True), (3, 2, True), (6, 3, True)]
    with (
        hetero.Context(
            devices="1xcpu",
            engine="ray",
            options=ContextOptions(initializer=life.break_down, initargs=("weights",)),
            history=False,
        ) as ctx,
        pytest.raises(hetero.errors.HeteroError, match="initializer break_down raised OSError: no weights"),
    ):
        ctx.submit(life.identity, 1).result(120)


def test_an_actor_has_the_surroundings_of_the_program(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORKER_LIFE", "at opening")
    monkeypatch.chdir(tmp_path)
    with hetero.Context(devices="1xcpu", engine="ray", history=False) as ctx:
        assert ctx.run(life.surroundings)[:2] == ("at opening", str(tmp_path))


@hetero.task
def nothing() -> None:
    return None


@hetero.task(crashes=3)
def dies_once(mark: str) -> int:
    """End the worker at the first attempt; count the attempts in a file."""
    with Path(mark).open("a") as file:
        file.write("x")
    if len(Path(mark).read_text()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def test_the_engine_keeps_what_the_driver_relies_on(cluster: Cluster) -> None:
    check_engine(lambda: RayEngine(memory_pool_bytes=STORE_BYTES), alone=False)


def test_an_array_that_many_tasks_take_is_put_into_the_object_store_once(ctx: hetero.Context) -> None:
    counters = ctx.driver.engine.counters  # type: ignore[attr-defined]
    before = counters["copies"]
    array = np.arange(1_000_000)
    futures = [ctx.submit(np.sum, array) for _ in range(8)]
    assert {int(future.result()) for future in futures} == {int(array.sum())}
    assert counters["copies"] == before + 1


def test_an_array_changed_between_two_calls_gives_each_call_its_own_value(ctx: hetero.Context) -> None:
    array = np.zeros(50_000)
    first = ctx.submit(np.sum, array)
    array[:] = 1.0
    assert (first.result(), ctx.run(np.sum, array)) == (0.0, 50_000.0)


def test_short_tasks_share_calls_of_the_actor(ctx: hetero.Context) -> None:
    counters = ctx.driver.engine.counters  # type: ignore[attr-defined]
    for _ in range(20):
        ctx.run(nothing)
    before = counters["messages"]
    for future in [ctx.submit(nothing) for _ in range(400)]:
        future.result()
    assert counters["messages"] - before < 400


def test_a_killed_worker_costs_one_attempt_and_its_device_works_again(cluster: Cluster, tmp_path: Path) -> None:
    mark = tmp_path / "attempts"
    with hetero.Context(devices="1xcpu", engine="ray", history=False) as own:
        first = own.run(os.getpid)
        assert own.run(dies_once, str(mark)) != first
    assert mark.read_text() == "xx"


def test_a_task_that_kills_every_worker_is_given_up(cluster: Cluster) -> None:
    with (
        hetero.Context(devices="1xcpu", engine="ray", history=False) as own,
        pytest.raises(TaskLostError, match="SIGKILL or a crash"),
    ):
        own.run(hetero.task(crashes=0)(lambda: os.kill(os.getpid(), signal.SIGKILL)))


def test_a_task_in_c_code_is_stopped_when_it_is_cancelled_and_when_its_time_is_over(cluster: Cluster) -> None:
    with hetero.Context(devices="1xcpu", engine="ray", history=False) as own:
        own.run(nothing)
        future = own.submit(time.sleep, 600)
        time.sleep(0.3)
        assert future.cancel()
        with pytest.raises(TaskTimeoutError):
            own.run(hetero.task(timeout=0.5)(time.sleep), 600)


def test_what_a_device_with_memory_of_its_own_holds_is_computed_again_when_it_is_lost(cluster: Cluster) -> None:
    entry = {"type": "CPU", "cores": 1, "link": {"bandwidth": "10GB/s"}}
    with hetero.Context({"devices": [entry]}, engine="ray", history=False) as own:
        held = own.submit(np.full, 50_000, 3.0)
        pid = own.run(os.getpid)
        hetero.wait([held], 60)
        os.kill(pid, signal.SIGKILL)
        assert float(own.submit(np.sum, held).result(60)) == 150_000.0
        assert held.result(60)[0] == 3.0


def test_a_cluster_of_its_own_listens_on_loopback_only_and_asks_for_a_token(cluster: Cluster) -> None:
    listening = set()
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    listening.add(connection.laddr.ip.removeprefix("::ffff:"))
    assert listening == {"127.0.0.1"}
    assert os.environ["RAY_AUTH_MODE"] == "token"


def test_another_cluster_is_refused_while_one_is_used(cluster: Cluster) -> None:
    with pytest.raises(EngineError, match="already uses the Ray cluster 'local'"):
        hetero.Context(devices="1xcpu", engine="ray", address="127.0.0.1:1", history=False)


def test_an_address_is_refused_without_the_engine_and_when_it_is_none() -> None:
    with pytest.raises(ConfigError, match="address: 'auto' is for engine ray"):
        hetero.Context(devices="1xcpu", address="auto", history=False)
    with pytest.raises((BadValueError, ConfigError), match="'nowhere' is no address of a Ray cluster"):
        hetero.Context(devices="1xcpu", engine="ray", address="nowhere", history=False)


def test_training_gives_the_bits_of_the_local_engine_though_a_worker_is_killed_and_comes_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")

    def watch(report: Any) -> bool:
        if report.epoch == 2:
            os.kill(training.pid(own, 1), signal.SIGKILL)
        elif report.epoch > 2:
            time.sleep(0.3)
        return any("is back" in note for note in trainer.notes) and report.shares["cpu:1"] > 0

    with hetero.Context(devices="2xcpu", engine="ray", history=False) as own:
        trainer = training.make(own, callbacks=[watch], sample_log=tmp_path)
        trainer.fit(1000)
    epochs = len(trainer.reports)
    with training.make("1xcpu") as alone:
        alone.fit(epochs)
    assert all(map(torch.equal, trainer.model.parameters(), alone.model.parameters()))
    assert hetero.train.check_sample_log(tmp_path).epochs == epochs
    assert any("cpu:1 is lost" in note for note in trainer.notes)
