"""Programs that know `concurrent.futures` or joblib run on hetero without a change."""

from __future__ import annotations

import concurrent.futures
import copy
import gc
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from concurrent.futures.thread import BrokenThreadPool
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import psutil
import pytest

import hetero
from hetero.errors import BadValueError, NothingFitsError, SerialisationError
from hetero.model.device import HOST_NODE
from hetero.session.options import ContextOptions
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
    pool = hetero.tasks.Executor(ctx)
    futures = [pool.submit(time.sleep, 0.1) for _ in range(3)]
    pool.shutdown()
    assert all(future.done() for future in futures)
    with pytest.raises(BadValueError, match="shut down"):
        pool.submit(abs, 1)
    assert ctx.run(abs, -1) == 1


def test_an_executor_can_cancel_what_is_left() -> None:
    with hetero.Context(devices="2xcpu", history=False) as own:  # the workers it stops are started again
        pool = hetero.tasks.Executor(own)
        futures = [pool.submit(time.sleep, 0.5) for _ in range(12)]
        pool.shutdown(cancel_futures=True)
        assert all(future.done() for future in futures)
        assert 0 < sum(future.cancelled() for future in futures) < 12


@pytest.mark.usefixtures("no_leaks")
def test_an_executor_without_a_context_opens_and_closes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_DEVICES", "1xcpu")
    with hetero.tasks.Executor() as pool:
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
    with spawn.Manager() as manager, hetero.tasks.Executor(2, mp_context=spawn, max_tasks_per_child=1) as pool:
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
        ({"max_workers": 1.5}, r"max_workers=1.5 is not allowed; give a whole number, 1 or more"),
        ({"max_workers": "2"}, r"max_workers='2' is not allowed"),
        ({"mp_context": multiprocessing.get_context("fork")}, "never forks of the program"),
        ({"mp_context": "spawn"}, r"mp_context='spawn' is not allowed; give multiprocessing.get_context"),
        ({"max_tasks_per_child": 0}, "max_tasks_per_child must be >= 1"),
        ({"ctx": 1.5}, "max_workers=1.5 is not allowed"),
        ({"ctx": "2"}, "max_workers='2' is not allowed"),
        ({"ctx": 2, "max_workers": 3}, "2 is no Context, and max_workers=3 is given beside it"),
    ):
        with pytest.raises(ValueError, match=said):
            hetero.tasks.Executor(**words)


def test_a_call_that_runs_is_spared_by_an_executor_and_says_that_it_runs(ctx: hetero.Context) -> None:
    with hetero.tasks.Executor(ctx, max_workers=1) as pool:
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
    early = hetero.tasks.Executor(1)
    early.submit(late, sys.argv[1])
    early.shutdown(wait=False)
    hetero.tasks.Executor(1).submit(late, sys.argv[2])
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
    with hetero.tasks.Executor(ctx) as pool:
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

    with hetero.tasks.Executor(ctx) as pool, pytest.raises(BrokenProcessPool):
        pool.submit(count_and_die).result(60)
    assert (tmp_path / "runs").read_text() == "x"


def refuse_to_start() -> None:
    raise LookupError("no model here")


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_an_executor_whose_initializer_raises_is_broken_as_a_pool_is(isolation: str) -> None:
    """The call that was handed in, those after it, and those of `map` fail with what users of a pool catch."""
    with (
        hetero.Context(
            devices="1xcpu", isolation=isolation, options=ContextOptions(initializer=refuse_to_start), history=False
        ) as own,
        hetero.tasks.Executor(own) as pool,
    ):
        for kind in (BrokenProcessPool, BrokenThreadPool, NothingFitsError):
            with pytest.raises(kind, match="refuse_to_start raised LookupError: no model here"):
                pool.submit(abs, -1).result(60)
        with pytest.raises(concurrent.futures.BrokenExecutor, match="no model here"):
            list(pool.map(abs, [-1]))


def test_an_executor_is_not_broken_by_a_call_that_fits_no_device(ctx: hetero.Context) -> None:
    with hetero.tasks.Executor(ctx) as pool, pytest.raises(NothingFitsError) as caught:
        pool.submit(hetero.task(abs, on="tpu"), -1)
    assert not isinstance(caught.value, RuntimeError)


def test_an_executor_of_a_closed_context_takes_no_call_as_after_a_shutdown() -> None:
    with hetero.Context(devices="1xcpu", isolation="thread", history=False) as own:
        pool = own.executor()
    with pytest.raises(RuntimeError, match=r"after shutdown: the Context .* is closed"):
        pool.submit(abs, -1)


@pytest.mark.parametrize("workers", [None, 1])
def test_an_executor_prepares_a_function_once_however_often_it_is_called(
    ctx: hetero.Context, workers: int | None
) -> None:
    """A request that were made anew for each call would be checked anew, and no call would be sent alone."""
    with hetero.tasks.Executor(ctx, max_workers=workers) as pool:
        first, second, again = pool._task(square), pool._task(square), ctx.executor()._task(square)
        assert first is second
        assert again.request.on == ()
        assert pool._task(square).request.on == first.request.on == tuple(d.id for d in ctx.devices[: workers or 0])
        assert [pool.submit(square, 2).result(60) for _ in range(3)] == [4, 4, 4]
        own = hetero.task(square, priority=3)
        assert pool._task(own).request.priority == 3
        assert (first.request.crashes, pool._task(own).request.crashes) == (0, 3)


class Counted:
    def nothing(self) -> None:
        pass


def test_an_executor_keeps_no_object_whose_method_it_has_called(ctx: hetero.Context) -> None:
    counted = Counted()
    gone = weakref.ref(counted)
    with hetero.tasks.Executor(ctx) as pool:
        gc.disable()
        try:
            pool.submit(counted.nothing).result(60)
            del counted
            until_s = time.monotonic() + 60
            while gone() is not None and time.monotonic() < until_s:
                time.sleep(0.01)
            assert gone() is None
        finally:
            gc.enable()


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


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_joblibs_own_tests_of_loops_pass_but_those_of_loky_itself(tmp_path: Path) -> None:
    need("joblib-tests")
    command, log = [sys.executable, "-m", "tests.engine.foreign_joblib"], tmp_path / "log"
    with log.open("w") as said:  # a file: some of those tests leave processes behind, which would hold a pipe
        done = subprocess.run(command, stdout=said, stderr=said, timeout=550, check=False, cwd=PROJECT)
    text = log.read_text()
    assert done.returncode == 0, text[-8000:]
    found = re.search(r"(\d+) tests, 16 left out by name, \d+ of other back ends", text)
    assert found is not None, text[-2000:]
    assert int(found[1]) >= 200


def test_joblib_runs_its_calls_on_the_devices(ctx: hetero.Context) -> None:
    hetero.tasks.register_joblib(ctx)
    with joblib.parallel_backend("hetero"):
        places = joblib.Parallel()(joblib.delayed(where)() for _ in range(20))
    assert set(places) <= {device.id for device in ctx.devices}
    assert len(places) == 20


class Fails:
    def __reduce__(self) -> tuple[Any, ...]:
        raise RuntimeError("cannot be pickled")


def test_a_joblib_call_that_cannot_travel_fails_its_loop_also_late(ctx: hetero.Context) -> None:
    """The last of many batches is handed in by a thread of the Context, where nobody would catch what it raises."""
    hetero.tasks.register_joblib(ctx)
    loop = joblib.Parallel(n_jobs=2, backend="hetero", batch_size=1, pre_dispatch=2)
    for number in (0, 30):
        with pytest.raises((pickle.PicklingError, RuntimeError), match="cannot be pickled"):
            loop(joblib.delayed(type)(Fails() if i == number else i) for i in range(40))


def counted_up(count: int) -> Iterator[int]:
    return (number for number in range(count))


def test_the_joblib_call_whose_result_cannot_travel_is_named(ctx: hetero.Context) -> None:
    hetero.tasks.register_joblib(ctx)
    loop = joblib.Parallel(n_jobs=2, backend="hetero")
    assert loop(joblib.delayed(abs)(number) for number in range(4)) == [0, 1, 2, 3]
    with pytest.raises(SerialisationError, match=r"the result of counted_up .* cannot travel back"):
        loop(joblib.delayed(counted_up)(number) for number in range(4))
    with ctx.executor() as pool, pytest.raises(SerialisationError, match=r"the result of counted_up .* cannot"):
        list(pool.map(counted_up, [1, 2], chunksize=2))


def test_joblib_counts_jobs_as_it_does_elsewhere(ctx: hetero.Context) -> None:
    hetero.tasks.register_joblib(ctx)
    with joblib.parallel_config("hetero"):
        assert [joblib.effective_n_jobs(n) for n in (None, 1, 2, 9, -1, -2, -9)] == [2, 1, 2, 2, 2, 1, 1]
    with pytest.warns(UserWarning, match="does not support timeout"):
        assert joblib.Parallel(n_jobs=1, backend="hetero", timeout=5)([joblib.delayed(os.getpid)()]) == [os.getpid()]
    with pytest.raises(ValueError, match="n_jobs == 0"):
        joblib.Parallel(n_jobs=0, backend="hetero")([joblib.delayed(abs)(1)])


def running_beside(folder: str) -> int:
    own = Path(folder, f"{os.getpid()}-{time.monotonic_ns()}")
    own.touch()
    time.sleep(0.05)
    running = len(list(Path(folder).iterdir()))
    own.unlink()
    return running


def test_no_more_joblib_calls_run_at_a_time_than_jobs(tmp_path: Path) -> None:
    with hetero.Context(devices="4xcpu", history=False) as own:
        hetero.tasks.register_joblib(own, "four")
        loop = joblib.Parallel(n_jobs=2, backend="four", batch_size=1, pre_dispatch="all")
        assert max(loop(joblib.delayed(running_beside)(str(tmp_path)) for _ in range(12))) <= 2


@pytest.mark.parametrize(
    ("options", "said"),
    [({"idle_worker_timeout": 3}, "no option idle_worker_timeout"), ({"mmap_mode": "r+"}, "arrays of others")],
)
def test_an_option_of_joblib_that_would_have_no_effect_is_refused(
    ctx: hetero.Context, options: dict[str, Any], said: str
) -> None:
    hetero.tasks.register_joblib(ctx)
    with pytest.raises(BadValueError, match=said):
        joblib.Parallel(n_jobs=2, backend="hetero", **options)([joblib.delayed(abs)(1)])


def test_two_joblib_loops_in_one_configuration_do_not_stop_each_other(ctx: hetero.Context) -> None:
    hetero.tasks.register_joblib(ctx)
    with joblib.parallel_config("hetero", n_jobs=2):
        first = joblib.Parallel(return_as="generator")(joblib.delayed(square)(i) for i in range(50))
        with pytest.raises(ZeroDivisionError):
            joblib.Parallel()(joblib.delayed(divmod)(1, i) for i in (1, 0, 1))
        assert list(first) == [i * i for i in range(50)]


ARRAYS: dict[str, Any] = {
    "plain": lambda: np.arange(200_000.0),
    "fortran": lambda: np.asfortranarray(np.arange(200_000.0).reshape(400, 500)),
    "strided": lambda: np.arange(800_000.0)[::4],
    "big-endian": lambda: np.arange(200_000, dtype=">i8"),
    "dates": lambda: np.arange(200_000).astype("datetime64[s]"),
    "records": lambda: np.zeros(100_000, [("a", "f8"), ("b", "i8")]),
    "masked": lambda: np.ma.masked_array(np.arange(200_000.0), np.arange(200_000) % 2 == 0),
    "read-only": lambda: np.frombuffer(bytes(2_000_000), np.uint8),
    "in a list": lambda: [{"x": np.arange(200_000.0)}, 3],
    "frame": lambda: pd.DataFrame({"a": np.arange(200_000.0), "b": np.arange(200_000.0)}),
}


def described(value: Any) -> tuple[str, bytes, bytes]:
    return repr(value), pickle.dumps(value), pickle.dumps(isinstance(value, np.ndarray) and value.flags.f_contiguous)


@pytest.mark.parametrize("kind", ARRAYS)
def test_a_large_array_arrives_in_joblib_calls_as_it_is_and_is_copied_once_a_loop(
    ctx: hetero.Context, kind: str
) -> None:
    hetero.tasks.register_joblib(ctx)
    value, counters = ARRAYS[kind](), ctx.driver.engine.counters
    before = counters["copies"]
    loop = joblib.Parallel(n_jobs=2, backend="hetero", batch_size=1)
    for got in loop(joblib.delayed(np_copy)(value, i) for i in range(6)):
        assert described(got) == described(np_copy(value, 0))
    assert counters["copies"] - before <= (1 if kind != "masked" else 6)  # which NumPy pickles with everything inside


def np_copy(value: Any, _: int) -> Any:
    return copy.deepcopy(value)


def total(array: Any, number: int) -> float:
    return float(array.sum()) + number


def test_arrays_of_a_joblib_loop_are_looked_at_anew_by_the_next_and_freed_at_its_end() -> None:
    with hetero.Context(devices="2xcpu", history=False) as own:
        hetero.tasks.register_joblib(own, "own")
        array, counters = np.ones(1_000_000), own.driver.engine.counters
        with joblib.Parallel(n_jobs=2, backend="own", batch_size=1) as loop:
            for expected, copies in ((1_000_000.0, 1), (1_000_000.0, 1), (1_000_001.0, 2)):
                if copies == 2:
                    array[5] = 2.0
                assert loop(joblib.delayed(total)(array, i) for i in range(8)) == [expected + i for i in range(8)]
                assert counters["copies"] == copies
        for size in range(4):  # arrays that nobody keeps
            loop(joblib.delayed(total)(np.full(1_000_000, size), i) for i in range(6))
        del array
        gc.collect()
        assert_comes_true(lambda: own.usage[HOST_NODE].used_bytes == 0)


def assert_comes_true(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def write(array: Any, number: int) -> int:
    array[number] = number
    return int(array.sum())


def test_joblib_calls_write_into_no_array_of_others_but_into_files_that_are_mapped(
    ctx: hetero.Context, tmp_path: Path
) -> None:
    hetero.tasks.register_joblib(ctx)
    array = np.zeros(1_000_000, np.int64)
    with pytest.raises(ValueError, match="read-only"):
        joblib.Parallel(n_jobs=2, backend="hetero")(joblib.delayed(write)(array, i) for i in range(4))
    loop = joblib.Parallel(n_jobs=2, backend="hetero", mmap_mode="c", batch_size=1)
    assert loop(joblib.delayed(write)(array, i) for i in range(4)) == [0, 1, 2, 3]
    assert not array.any()
    mapped = np.memmap(tmp_path / "results", np.int64, "w+", shape=4)
    loop(joblib.delayed(write)(mapped, i) for i in range(4))
    assert mapped.tolist() == [0, 1, 2, 3]


ONE_OPEN = """
import hetero, joblib
hetero.tasks.register_joblib()
ctx = hetero.Context(devices="1xcpu", isolation="thread", history=False)
with joblib.parallel_config("hetero"):
    print(joblib.Parallel(n_jobs=-1)(joblib.delayed(abs)(i) for i in (-1, 2)))
ctx.close()
try:
    with joblib.parallel_config("hetero"):
        joblib.Parallel(n_jobs=-1)(joblib.delayed(abs)(i) for i in (-1, 2))
except hetero.errors.HeteroError as error:
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
    hetero.tasks.register_joblib(ctx, "nested-name")
    with joblib.parallel_backend("nested-name"):
        found = joblib.Parallel()(joblib.delayed(inner_loop)(x, backend) for x in range(6))
    assert found == [([(x + i) ** 2 for i in range(4)], 0) for x in range(6)]


def remember(key: str, value: str) -> None:
    os.environ[key] = value


def test_the_initializer_of_a_joblib_loop_is_called_in_each_worker_before_its_calls(ctx: hetero.Context) -> None:
    hetero.tasks.register_joblib(ctx)
    for value in ("first", "second"):
        loop = joblib.Parallel(backend="hetero", initializer=remember, initargs=("HETERO_TEST_LOOP", value))
        assert set(loop(joblib.delayed(os.getenv)("HETERO_TEST_LOOP") for _ in range(20))) == {value}


def test_joblib_uses_the_one_open_context_and_tells_when_there_is_none() -> None:
    done = subprocess.run([sys.executable, "-c", ONE_OPEN], capture_output=True, text=True, timeout=250, check=False)
    first, second = done.stdout.splitlines()
    assert first == "[1, 2]"
    assert second == "joblib's back end 'hetero' finds 0 open Contexts; call hetero.tasks.register_joblib(ctx)"


def test_an_exception_of_a_joblib_call_reaches_the_caller(ctx: hetero.Context) -> None:
    hetero.tasks.register_joblib(ctx)
    with joblib.parallel_backend("hetero"), pytest.raises(ZeroDivisionError):
        joblib.Parallel()(joblib.delayed(divmod)(1, i) for i in (1, 0, 1))
    assert ctx.run(abs, -1) == 1


def test_a_random_forest_of_scikit_learn_is_the_same_as_without_hetero(ctx: hetero.Context) -> None:
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier

    x, y = make_classification(300, 10, random_state=0)
    alone = RandomForestClassifier(20, random_state=0).fit(x, y)
    hetero.tasks.register_joblib(ctx)
    with joblib.parallel_backend("hetero"):
        together = RandomForestClassifier(20, random_state=0, n_jobs=-1).fit(x, y)
    np.testing.assert_array_equal(alone.predict(x), together.predict(x))


def test_a_grid_search_of_scikit_learn_runs_on_the_devices(ctx: hetero.Context) -> None:
    from sklearn.datasets import make_classification
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    x, y = make_classification(200, 8, random_state=1)
    first = ctx.driver.new_id()
    hetero.tasks.register_joblib(ctx)
    search: Any = GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0, 10.0]}, n_jobs=-1, cv=3)
    with joblib.parallel_backend("hetero"):
        search.fit(x, y)
    assert search.best_score_ > 0.7
    assert ctx.driver.new_id() - first > 1
