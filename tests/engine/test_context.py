"""A Context runs functions on its devices, says what is wrong in one line, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.errors import (
    BadValueError,
    ConfigError,
    HeteroError,
    NothingFitsError,
    OutOfDeviceMemoryError,
    RemoteTracebackError,
    SerialisationError,
    TaskTimeoutError,
)


@pytest.fixture(params=["thread", "process", "inline"], scope="module")
def ctx(request: pytest.FixtureRequest) -> Iterator[hetero.Context]:
    way = {"engine": "inline"} if request.param == "inline" else {"isolation": request.param}
    with hetero.Context(devices="2xcpu", history=False, **way) as context:
        yield context


@pytest.fixture(scope="module")
def processes() -> Iterator[hetero.Context]:
    with hetero.Context(devices="2xcpu", isolation="process", history=False) as context:
        yield context


def add(a: Any, b: Any) -> Any:
    return a + b


def test_run_gives_the_result(ctx: hetero.Context) -> None:
    assert ctx.run(add, 1, b=2) == 3


def test_arrays_come_back_equal(ctx: hetero.Context, rng: np.random.Generator) -> None:
    a, b = rng.random((50, 40)), rng.random((40, 30))
    np.testing.assert_allclose(ctx.run(np.dot, a, b), a @ b)


def test_a_future_as_an_argument_is_an_edge_at_any_depth(ctx: hetero.Context) -> None:
    one, two = ctx.submit(add, 1, 0), ctx.submit(add, 2, 0)

    def total(items: list[Any], *, more: dict[str, tuple[int, ...]]) -> int:
        return sum(items[0]) + items[1] + sum(more["x"])

    assert ctx.run(total, [[one, 10], two], more={"x": (one, two)}) == 1 + 10 + 2 + 3


def test_a_tasks_exception_comes_as_itself_with_its_remote_traceback(processes: hetero.Context) -> None:
    def fail() -> None:
        raise KeyError("missing")

    with pytest.raises(KeyError, match="missing") as caught:
        processes.run(fail)
    assert isinstance(caught.value.__cause__, RemoteTracebackError)
    assert "in fail" in str(caught.value.__cause__)
    assert "hetero/engines" not in str(caught.value.__cause__)


def test_a_failed_task_fails_its_dependants_with_the_same_exception_and_says_which_task(ctx: hetero.Context) -> None:
    def fail() -> None:
        raise ValueError("broken")

    first = ctx.submit(fail)
    last = ctx.submit(add, ctx.submit(add, first, 1), 1)
    with pytest.raises(ValueError, match="broken") as caught:
        last.result(120)
    assert f"raised by task {first.task_id} (fail)" in caught.value.__notes__


def test_a_dependant_of_a_task_that_failed_long_ago_fails_at_once(ctx: hetero.Context) -> None:
    def fail() -> None:
        raise ValueError("broken")

    first = ctx.submit(fail)
    assert first.exception(120) is not None
    with pytest.raises(ValueError, match="broken"):
        ctx.submit(add, first, 1).result(0)


def test_put_travels_by_reference_and_can_be_read_back(ctx: hetero.Context) -> None:
    handle = ctx.put(np.arange(1000.0))
    assert [ctx.run(np.sum, handle) for _ in range(3)] == [499500.0] * 3
    assert handle.result()[-1] == 999.0


def test_an_argument_is_taken_as_it_was_at_submission(processes: hetero.Context) -> None:
    array = np.zeros(100_000)
    future = processes.submit(np.sum, array)
    array[:] = 1.0
    assert future.result(120) == 0.0


def test_a_future_of_another_context_is_passed_by_value(ctx: hetero.Context) -> None:
    with hetero.Context(devices="1xcpu", engine="inline", history=False) as other:
        foreign = other.submit(add, 20, 1)
        assert ctx.run(add, foreign, [foreign][0]) == 42


def test_a_generator_as_an_argument_is_refused_with_the_remedy(ctx: hetero.Context) -> None:
    with pytest.raises(BadValueError, match=r"argument 1 of add is a generator.*list\("):
        ctx.submit(add, (i for i in range(3)), 1)


def test_a_list_that_contains_itself_beside_a_future_is_refused(ctx: hetero.Context) -> None:
    circle: list[Any] = [ctx.submit(add, 1, 1)]
    circle.append(circle)
    with pytest.raises(BadValueError, match="contains itself"):
        ctx.submit(add, circle, 1)


def test_an_argument_that_cannot_travel_is_named(processes: hetero.Context) -> None:
    with pytest.raises(SerialisationError) as caught:
        processes.submit(add, 1, threading.Lock())
    assert "argument 2 of add (a lock) cannot travel" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_function_that_cannot_travel_is_named(processes: hetero.Context) -> None:
    lock = threading.Lock()

    def locked() -> None:
        lock.acquire()

    with pytest.raises(SerialisationError, match="the function locked cannot travel"):
        processes.submit(locked)


def test_a_context_used_inside_a_task_is_told_in_one_line(processes: hetero.Context) -> None:
    with pytest.raises(SerialisationError, match="a Context cannot travel to a worker"):
        processes.submit(lambda: processes.run(add, 1, 2))


def test_waiting_for_a_task_inside_a_task_is_refused_instead_of_hanging() -> None:
    with hetero.Context(devices="1xcpu", isolation="thread", history=False) as ctx:
        later: list[hetero.Future] = []
        handed_in = threading.Event()

        def wait() -> None:
            handed_in.wait(120)
            later[0].result()

        waiting = ctx.submit(wait)
        later.append(ctx.submit(add, 1, 2))
        handed_in.set()
        with pytest.raises(BadValueError, match="keep its device from running it"):
            waiting.result(120)


def test_a_request_that_no_device_meets_is_refused_at_submission(ctx: hetero.Context) -> None:
    with pytest.raises(NothingFitsError, match="not one of: cuda"):
        ctx.submit(hetero.task(add, on="cuda"), 1, 2)


def test_something_that_is_no_function_is_refused(ctx: hetero.Context) -> None:
    with pytest.raises(SerialisationError, match="no function"):
        ctx.submit(3)  # type: ignore[arg-type]


def test_a_task_longer_than_its_timeout_fails(processes: hetero.Context) -> None:
    with pytest.raises(TaskTimeoutError):
        processes.run(hetero.task(time.sleep, timeout="0.3s"), 20)


def test_the_timeout_of_the_configuration_is_that_of_tasks_without_one() -> None:
    with (
        hetero.Context({"timeout": "0.3s"}, devices="1xcpu", history=False) as ctx,
        pytest.raises(TaskTimeoutError),
    ):
        ctx.run(time.sleep, 20)


def test_an_exception_is_retried_as_often_as_asked(tmp_path: Any, ctx: hetero.Context) -> None:
    def flaky(folder: Any) -> int:
        count = len(os.listdir(folder))
        (folder / str(count)).touch()
        if count < 2:
            raise ValueError("not yet")
        return count

    assert ctx.run(hetero.task(flaky, retries=2), tmp_path) == 2


def test_a_worker_tells_its_device_and_the_program_its_cpu(processes: hetero.Context) -> None:
    assert processes.run(lambda: hetero.get_current_device().id) in {d.id for d in processes.devices}
    assert hetero.get_current_device().type == "cpu"


def test_a_task_can_be_called_directly_and_submitted(ctx: hetero.Context) -> None:
    double = hetero.task(lambda x: 2 * x, name="double")
    assert double(4) == ctx.run(double, 4) == 8


def test_a_task_pinned_to_a_device_runs_there(processes: hetero.Context) -> None:
    for device in processes.devices:
        where = hetero.task(lambda: hetero.get_current_device().id, on=device.id)
        assert processes.run(where) == device.id


def test_namespace_gives_arrays_of_the_device(ctx: hetero.Context) -> None:
    def normed(x: Any) -> Any:
        xp = hetero.tasks.namespace()
        return xp.sum(xp.asarray(x) ** 2)

    assert float(ctx.run(normed, np.ones(4))) == 4.0


def test_explain_has_a_line_for_each_device(ctx: hetero.Context) -> None:
    explained = ctx.explain(add, 1, 2)
    assert [each.device for each in explained] == [device.id for device in ctx.devices]
    assert explained.best in str(explained)
    assert "<table>" in explained._repr_html_()


def test_explain_says_why_a_device_cannot_run_a_task(ctx: hetero.Context) -> None:
    explained = ctx.explain(hetero.task(add, on="cpu:0"), 1, 2)
    assert "it is not one of: cpu:0" in str(explained)


def test_memory_usage_names_the_hosts_memory(processes: hetero.Context) -> None:
    held = processes.put(np.ones(1_000_000))
    usage = hetero.inspect.get_memory_usage()["h0/ram"]
    assert 8_000_000 <= usage.used_bytes <= usage.peak_bytes <= usage.capacity_bytes
    assert held.result()[0] == 1.0


def test_a_closed_context_says_so_and_closes_twice() -> None:
    ctx = hetero.Context(devices="1xcpu", engine="inline", history=False)
    ctx.close()
    ctx.close()
    for use in (lambda: ctx.run(add, 1, 2), lambda: ctx.put(1), lambda: ctx.submit(add, 1, 2)):
        with pytest.raises(BadValueError, match="this Context is closed"):
            use()
    assert "closed" in repr(ctx)


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_with_block_waits_for_its_tasks_and_brings_their_results_home(isolation: str) -> None:
    with hetero.Context(devices="2xcpu", isolation=isolation, history=False) as ctx:
        futures = [ctx.submit(lambda i: time.sleep(0.05) or np.full(50_000, i), i) for i in range(4)]
    assert [float(future.result(0)[0]) for future in futures] == [0.0, 1.0, 2.0, 3.0]
    del futures
    gc.collect()


@pytest.mark.usefixtures("no_leaks")
def test_a_with_block_left_by_an_exception_stops_its_tasks() -> None:
    start = time.monotonic()
    futures: list[hetero.Future] = []
    with contextlib.suppress(ZeroDivisionError), hetero.Context(devices="1xcpu", history=False) as ctx:
        futures.append(ctx.submit(time.sleep, 60))
        raise ZeroDivisionError
    assert time.monotonic() - start < 30
    with pytest.raises(HeteroError):
        futures[0].result(0)


def test_a_dropped_context_closes_itself() -> None:
    ctx = hetero.Context(devices="1xcpu", isolation="thread", history=False)
    driver = ctx.driver
    del ctx
    gc.collect()
    assert driver._closed


def test_keywords_win_over_settings_and_those_over_the_mapping(tmp_path: Any) -> None:
    config = {"name": "a", "policy": "eft", "trace": str(tmp_path / "a")}
    with hetero.Context(config, set={"policy": "round_robin"}, name="b", devices="1xcpu", engine="inline") as ctx:
        assert (ctx.config.name, ctx.config.policy, ctx.name) == ("b", "round_robin", "b")
    assert (tmp_path / "a").stat().st_size > 0


def test_wrong_settings_are_told_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="did you mean 'round_robin'"):
        hetero.Context(policy="round_robbin")


def test_the_fleet_is_shown_as_text_and_as_html(ctx: hetero.Context) -> None:
    assert "cpu:0, cpu:1" in repr(ctx)
    assert "h0/cpu:1" in ctx._repr_html_()


def test_measured_times_are_kept_for_the_next_run() -> None:
    for samples in (False, True):
        with hetero.Context(devices="1xcpu", engine="inline") as ctx:
            assert any(each.estimate and each.estimate.samples for each in ctx.explain(add, 1.5, 2.5)) is samples
            for _ in range(5):
                ctx.run(add, 1.5, 2.5)


def test_a_task_without_memory_is_cut_into_parts_whose_results_are_merged() -> None:
    def total(items: list[int]) -> int:
        if len(items) > 2:
            raise MemoryError("too much at once")
        return sum(items)

    task = hetero.task(total, split=lambda items: [(items[: len(items) // 2],), (items[len(items) // 2 :],)], merge=sum)
    with hetero.Context(devices="1xcpu", isolation="thread", history=False) as ctx:
        assert ctx.submit(task, list(range(8))).result(120) == 28


def test_a_task_that_cannot_be_cut_further_fails_with_the_reason() -> None:
    def greedy(items: list[int]) -> int:
        raise MemoryError("too much at once")

    task = hetero.task(greedy, split=lambda items: [(items,)], merge=sum)
    with (
        hetero.Context(devices="1xcpu", isolation="thread", history=False) as ctx,
        pytest.raises(HeteroError, match="its split gave 1 part"),
    ):
        ctx.submit(task, [1, 2]).result(120)


class QuotaError(MemoryError):
    def __init__(self, user: str, limit: int) -> None:
        super().__init__(f"{user} is over {limit}")
        self.user = user


class LoadError(Exception):
    pass


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_memory_error_of_the_programs_own_and_one_raised_from_a_memory_error_arrive_as_themselves(
    isolation: str,
) -> None:
    def over() -> None:
        raise QuotaError("ann", 5)

    def wrapped() -> None:
        try:
            raise MemoryError("full")
        except MemoryError as error:
            raise LoadError("no model") from error

    with hetero.Context(devices="1xcpu", isolation=isolation, history=False) as ctx:
        with pytest.raises(QuotaError, match="ann is over 5") as caught:
            ctx.run(over)
        assert caught.value.user == "ann"
        with pytest.raises(LoadError, match="no model"):
            ctx.run(wrapped)
        with pytest.raises(OutOfDeviceMemoryError):
            ctx.run(exhaust)


def exhaust() -> None:
    raise MemoryError


def test_a_named_run_clears_the_checkpoints_of_finished_tasks_and_finds_those_of_failed_ones() -> None:
    def step(_: int) -> Any:
        before = hetero.restore()
        hetero.checkpoint("half", 21)
        if before is None:
            raise ValueError("interrupted")
        return before

    def run_again() -> Any:
        with hetero.Context(devices="1xcpu", isolation="thread", name="named", history=False) as ctx:
            return ctx.submit(step, 1).exception() or ctx.run(add, 21, 0)

    assert isinstance(run_again(), ValueError)
    assert run_again() == 21
    assert isinstance(run_again(), ValueError)


def test_a_retried_task_finds_its_checkpoint_also_in_a_run_without_a_name() -> None:
    def step() -> Any:
        before = hetero.restore()
        hetero.checkpoint("half", 21)
        if before is None:
            raise ValueError("interrupted")
        return before

    with hetero.Context(devices="1xcpu", isolation="thread", history=False) as ctx:
        assert ctx.run(hetero.task(step, retries=1)) == 21


def test_the_next_context_knows_the_bytes_of_a_function_s_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HETERO_HOME", str(tmp_path))
    far = {"type": "CPU", "cores": 1, "link": {"bandwidth": "1GB/s", "latency": "1ms"}}
    for known in ([], [8 * 100_000]):
        with hetero.Context({"devices": [{"type": "CPU", "cores": 1}, far]}) as ctx:
            assert list(ctx.driver.ask(lambda core: core).cost.result_bytes.values()) == known
            assert len(ctx.run(np.zeros, 100_000)) == 100_000
