"""Programs that know `concurrent.futures` or joblib run on hetero without a change."""

from __future__ import annotations

import concurrent.futures
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import psutil
import pytest

import hetero
from hetero.errors import BadValueError
from tests.needs import PROJECT, foreign_tests, need


@pytest.fixture(scope="module")
def ctx() -> Iterator[hetero.Context]:
    with hetero.Context(devices="2xcpu", history=False) as context:
        yield context


def where() -> str:
    return hetero.get_current_device().id


def test_an_executor_is_one_of_concurrent_futures(ctx: hetero.Context) -> None:
    with ctx.executor() as pool:
        assert isinstance(pool, concurrent.futures.Executor)
        assert pool.submit(pow, 2, 5).result(30) == 32
        assert list(pool.map(abs, [-1, -2, 3], chunksize=2)) == [1, 2, 3]


def test_a_shut_executor_takes_no_more_calls_and_leaves_the_context_open(ctx: hetero.Context) -> None:
    pool = hetero.Executor(ctx)
    futures = [pool.submit(time.sleep, 0.1) for _ in range(3)]
    pool.shutdown()
    assert all(future.done() for future in futures)
    with pytest.raises(BadValueError, match="shut down"):
        pool.submit(abs, 1)
    assert ctx.run(abs, -1) == 1


def test_an_executor_can_cancel_what_is_left() -> None:
    with hetero.Context(devices="2xcpu", history=False) as own:  # the workers it stops are started again
        pool = hetero.Executor(own)
        futures = [pool.submit(time.sleep, 0.5) for _ in range(12)]
        pool.shutdown(cancel_futures=True)
        assert all(future.done() for future in futures)
        assert 0 < sum(future.cancelled() for future in futures) < 12


@pytest.mark.usefixtures("no_leaks")
def test_an_executor_without_a_context_opens_and_closes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_DEVICES", "1xcpu")
    with hetero.Executor() as pool:
        assert pool.submit(abs, -3).result(60) == 3
    assert pool.ctx.closed
    gc.collect()


def add_to(value: Any, more: int) -> int:
    value.value += more
    return int(value.value)


def test_an_executor_of_its_own_keeps_the_contract_of_a_process_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager's objects work in workers, children are replaced, workers can be limited, wrong words are refused."""
    monkeypatch.delenv("HETERO_DEVICES", raising=False)
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as manager, hetero.Executor(2, mp_context=spawn, max_tasks_per_child=1) as pool:
        assert len(pool.ctx.devices) == 2
        shared = manager.Value("i", 1)
        assert pool.submit(add_to, shared, 2).result(60) == 3
        assert pool.submit(os.getpid).result(60) != pool.submit(os.getpid).result(60)
        assert list(pool.map(pow, range(5), range(5), chunksize=2)) == [1, 1, 4, 27, 256]
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result(60)
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        pool.submit(abs, 1)
    for words, said in (
        ({"max_workers": 0}, "max_workers must be greater than 0"),
        ({"mp_context": multiprocessing.get_context("fork")}, "never forks of the program"),
        ({"max_tasks_per_child": 0}, "max_tasks_per_child must be >= 1"),
    ):
        with pytest.raises(ValueError, match=said):
            hetero.Executor(**words)


def test_a_call_that_runs_is_spared_by_an_executor_and_says_that_it_runs(ctx: hetero.Context) -> None:
    with hetero.Executor(ctx, max_workers=1) as pool:
        first, *others = [pool.submit(time.sleep, 0.5) for _ in range(6)]
        while not first.running():
            time.sleep(0.01)
        assert not first.cancel()
        assert others[-1].cancel()
        pool.shutdown(cancel_futures=True)
        assert (first.result(0), first.cancelled(), others[-1].cancelled()) == (None, False, True)
        assert all(future.done() for future in others)


LEFT_BEHIND = """
import hetero, pathlib, sys
def late(path):
    import time
    time.sleep(0.3)
    pathlib.Path(path).touch()
if __name__ == "__main__":
    early = hetero.Executor(1)
    early.submit(late, sys.argv[1])
    early.shutdown(wait=False)
    hetero.Executor(1).submit(late, sys.argv[2])
"""


def test_calls_that_were_handed_in_are_done_before_the_program_ends(tmp_path: Path) -> None:
    script = tmp_path / "left.py"
    script.write_text(LEFT_BEHIND)
    paths = [tmp_path / "early", tmp_path / "late"]
    subprocess.run([sys.executable, str(script), *map(str, paths)], timeout=250, check=True)
    assert [path.exists() for path in paths] == [True, True]


def kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Unreadable:
    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


class Unwritable:
    def __reduce__(self) -> tuple[Any, ...]:
        raise ValueError("not this one")


@pytest.mark.parametrize(
    ("call", "given", "expected"),
    [
        (kill_oneself, (), BrokenProcessPool),
        (type, (Unreadable(),), BrokenProcessPool),
        (Unreadable, (), BrokenProcessPool),
        (type, (Unwritable(),), pickle.PicklingError),
        (Unwritable, (), pickle.PicklingError),
        (int, ("no number",), ValueError),
    ],
)
def test_a_call_of_an_executor_fails_as_in_a_process_pool(
    ctx: hetero.Context, call: Any, given: tuple[Any, ...], expected: type[Exception]
) -> None:
    with hetero.Executor(ctx) as pool:
        future = pool.submit(call, *given)
        with pytest.raises(expected) as caught:
            future.result(60)
        assert isinstance(caught.value, BrokenProcessPool) == (expected is BrokenProcessPool)
        assert pool.submit(abs, -1).result(60) == 1


def test_a_call_of_an_executor_that_ended_its_worker_is_not_run_again(ctx: hetero.Context, tmp_path: Path) -> None:
    def count_and_die() -> None:
        with (tmp_path / "runs").open("a") as runs:
            runs.write("x")
        kill_oneself()

    with hetero.Executor(ctx) as pool, pytest.raises(BrokenProcessPool):
        pool.submit(count_and_die).result(60)
    assert (tmp_path / "runs").read_text() == "x"


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_cpythons_own_tests_of_a_process_pool_pass_but_those_of_private_attributes(tmp_path: Path) -> None:
    need("cpython-tests")
    (tmp_path / "test").symlink_to(Path(str(foreign_tests("test_concurrent_futures"))) / "test")
    command = [sys.executable, "-m", "tests.engine.foreign_futures", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850, check=False, cwd=PROJECT)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "46 tests, 13 left out for a private attribute" in done.stdout


def test_joblib_runs_its_calls_on_the_devices(ctx: hetero.Context) -> None:
    hetero.register_joblib(ctx)
    with joblib.parallel_backend("hetero"):
        places = joblib.Parallel()(joblib.delayed(where)() for _ in range(20))
    assert set(places) <= {device.id for device in ctx.devices}
    assert len(places) == 20


ONE_OPEN = """
import hetero, joblib
hetero.register_joblib()
ctx = hetero.Context(devices="1xcpu", isolation="thread", history=False)
with joblib.parallel_config("hetero"):
    print(joblib.Parallel(n_jobs=-1)(joblib.delayed(abs)(i) for i in (-1, 2)))
ctx.close()
try:
    with joblib.parallel_config("hetero"):
        joblib.Parallel(n_jobs=-1)(joblib.delayed(abs)(i) for i in (-1, 2))
except hetero.HeteroError as error:
    print(error)
"""


def square(x: int) -> int:
    return x * x


def inner_loop(x: int, backend: str | None) -> tuple[list[int], int]:
    before = len(psutil.Process().children(recursive=True))
    values = joblib.Parallel(n_jobs=4, backend=backend)(joblib.delayed(square)(x + i) for i in range(4))
    return values, len(psutil.Process().children(recursive=True)) - before


@pytest.mark.parametrize("backend", [None, "nested-name"])
def test_a_joblib_loop_inside_one_runs_in_the_worker_and_starts_no_process(
    ctx: hetero.Context, backend: str | None
) -> None:
    hetero.register_joblib(ctx, "nested-name")
    with joblib.parallel_backend("nested-name"):
        found = joblib.Parallel()(joblib.delayed(inner_loop)(x, backend) for x in range(6))
    assert found == [([(x + i) ** 2 for i in range(4)], 0) for x in range(6)]


def remember(key: str, value: str) -> None:
    os.environ[key] = value


def test_the_initializer_of_a_joblib_loop_is_called_in_each_worker_before_its_calls(ctx: hetero.Context) -> None:
    hetero.register_joblib(ctx)
    for value in ("first", "second"):
        loop = joblib.Parallel(backend="hetero", initializer=remember, initargs=("HETERO_TEST_LOOP", value))
        assert set(loop(joblib.delayed(os.getenv)("HETERO_TEST_LOOP") for _ in range(20))) == {value}


def test_joblib_uses_the_one_open_context_and_tells_when_there_is_none() -> None:
    done = subprocess.run([sys.executable, "-c", ONE_OPEN], capture_output=True, text=True, timeout=250, check=False)
    first, second = done.stdout.splitlines()
    assert first == "[1, 2]"
    assert second == "joblib's back end 'hetero' finds 0 open Contexts; call hetero.register_joblib(ctx)"


def test_an_exception_of_a_joblib_call_reaches_the_caller(ctx: hetero.Context) -> None:
    hetero.register_joblib(ctx)
    with joblib.parallel_backend("hetero"), pytest.raises(ZeroDivisionError):
        joblib.Parallel()(joblib.delayed(divmod)(1, i) for i in (1, 0, 1))
    assert ctx.run(abs, -1) == 1


def test_a_random_forest_of_scikit_learn_is_the_same_as_without_hetero(ctx: hetero.Context) -> None:
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier

    x, y = make_classification(300, 10, random_state=0)
    alone = RandomForestClassifier(20, random_state=0).fit(x, y)
    hetero.register_joblib(ctx)
    with joblib.parallel_backend("hetero"):
        together = RandomForestClassifier(20, random_state=0, n_jobs=-1).fit(x, y)
    np.testing.assert_array_equal(alone.predict(x), together.predict(x))


def test_a_grid_search_of_scikit_learn_runs_on_the_devices(ctx: hetero.Context) -> None:
    from sklearn.datasets import make_classification
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    x, y = make_classification(200, 8, random_state=1)
    first = ctx.driver.new_id()
    hetero.register_joblib(ctx)
    search: Any = GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0, 10.0]}, n_jobs=-1, cv=3)
    with joblib.parallel_backend("hetero"):
        search.fit(x, y)
    assert search.best_score_ > 0.7
    assert ctx.driver.new_id() - first > 1
