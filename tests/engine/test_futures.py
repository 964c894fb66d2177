"""Futures are those of `concurrent.futures`, can be awaited, cancelled and interrupted, and let go of their values."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import subprocess
import sys
import textwrap
import threading
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import hetero
from hetero.errors import HeteroError, SerialisationError, TaskCancelledError
from hetero.session.futures import bind


@pytest.fixture(params=["thread", "process"], scope="module")
def ctx(request: pytest.FixtureRequest) -> Iterator[hetero.Context]:
    with hetero.Context(devices="2xcpu", isolation=request.param, history=False) as context:
        yield context


@pytest.fixture(scope="module")
def processes() -> Iterator[hetero.Context]:
    with hetero.Context(devices="2xcpu", history=False) as context:
        yield context


def identity(x: Any) -> Any:
    return x


def fail() -> None:
    raise ValueError("broken")


def test_wait_and_as_completed_of_the_standard_library_work(ctx: hetero.Context) -> None:
    futures = [ctx.submit(identity, i) for i in range(5)]
    done, left = concurrent.futures.wait(futures, 120)
    assert (len(done), len(left)) == (5, 0)
    assert sorted(future.result() for future in hetero.as_completed(futures, 120)) == list(range(5))


class EmptyError(Exception):
    def __len__(self) -> int:
        return 0


class UnsureError(Exception):
    def __bool__(self) -> bool:
        raise RuntimeError("neither")


def fail_as(kind: type[Exception]) -> None:
    raise kind("own")


def fail_below(kind: type[Exception]) -> object:
    return hetero.current_context().submit(fail_as, kind).result()


@pytest.mark.parametrize("kind", [EmptyError, UnsureError])
def test_an_exception_that_counts_as_false_is_raised_wherever_the_result_is_asked_for(
    ctx: hetero.Context, kind: type[Exception]
) -> None:
    with ctx.executor() as pool:
        for ask in (
            lambda: ctx.run(fail_as, kind),
            lambda: ctx.submit(fail_as, kind).result(),
            lambda: list(ctx.map(fail_as, [kind] * 4, chunk=2)),
            lambda: list(ctx.map(fail_as, [kind] * 4)),
            lambda: ctx.gather([ctx.submit(fail_as, kind)]),
            lambda: ctx.run(fail_below, kind),
            lambda: ctx.submit(fail_as, ctx.submit(fail_as, kind)).result(),
            lambda: list(pool.map(fail_as, [kind])),
            lambda: asyncio.run(ctx.arun(fail_as, kind)),
        ):
            with pytest.raises(Exception) as caught:  # noqa: PT011  its kind is compared below
                ask()
            assert caught.type.__name__ == kind.__name__


def fail_in_a_circle(count: int) -> None:
    errors = [ValueError(number) for number in range(count)]
    for number, error in enumerate(errors):
        error.__cause__ = errors[(number + 1) % count]
        error.args = (error,)
    raise errors[0]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_exception_that_came_from_itself_ends_its_task(ctx: hetero.Context, count: int) -> None:
    error = ctx.submit(fail_in_a_circle, count).exception(120)
    assert type(error) is ValueError
    assert error.args[0] is error


def test_wait_returns_at_the_first_exception(ctx: hetero.Context) -> None:
    slow, broken = ctx.submit(time.sleep, 0.5), ctx.submit(fail)
    done, _ = hetero.wait([slow, broken], 120, return_when=concurrent.futures.FIRST_EXCEPTION)
    assert broken in done


def test_futures_of_the_standard_library_can_be_waited_for_together(ctx: hetero.Context) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        both = [pool.submit(identity, 1), ctx.submit(identity, 2)]
        assert sorted(f.result() for f in concurrent.futures.as_completed(both, 120)) == [1, 2]


def test_a_result_that_is_late_raises_and_the_task_goes_on(ctx: hetero.Context) -> None:
    future = ctx.submit(lambda: time.sleep(0.3) or 7)
    with pytest.raises(TimeoutError, match="has not ended within"):
        future.result(0.01)
    assert future.result(120) == 7


def test_a_callback_may_wait_for_the_result_and_for_other_tasks(ctx: hetero.Context) -> None:
    seen: list[Any] = []
    told = threading.Event()

    def callback(future: hetero.Future) -> None:
        seen.append((future.result()[0], ctx.run(identity, 5)))
        told.set()

    ctx.submit(np.full, 100_000, 3.0).add_done_callback(callback)
    assert told.wait(120)
    assert seen == [(3.0, 5)]


def test_a_callback_of_a_future_that_is_cancelled_is_called_once(ctx: hetero.Context) -> None:
    called: list[Any] = []
    futures = [ctx.submit(time.sleep, 0.05) for _ in range(4)]
    for future in futures:
        future.add_done_callback(called.append)
    for future in futures:
        future.cancel()
    ctx.run(identity, 1)
    ctx.gather([ctx.submit(identity, number) for number in range(4)])
    told = threading.Event()
    ctx.submit(identity, 2).add_done_callback(lambda _: told.set())
    assert told.wait(120)
    assert sorted(map(id, called)) == sorted(map(id, futures))


def test_a_callback_that_raises_does_not_stop_the_others(ctx: hetero.Context, capsys: Any) -> None:
    told = threading.Event()
    first = ctx.submit(time.sleep, 0.1)
    first.add_done_callback(lambda _: 1 / 0)
    first.add_done_callback(lambda _: told.set())
    assert told.wait(120)


async def test_a_future_can_be_awaited_under_a_running_loop(ctx: hetero.Context) -> None:
    assert await ctx.submit(identity, 3) == 3
    assert await asyncio.wrap_future(ctx.submit(identity, 4)) == 4
    with pytest.raises(ValueError, match="broken"):
        await ctx.submit(fail)


async def test_the_twins_give_what_their_namesakes_give(ctx: hetero.Context) -> None:
    assert await ctx.arun(identity, 1) == 1
    assert await ctx.agather([ctx.submit(identity, i) for i in range(3)]) == [0, 1, 2]
    assert [x async for x in ctx.amap(abs, [-1, -2, 3])] == [1, 2, 3]
    assert await (await ctx.asubmit(identity, 9)) == 9


async def test_awaiting_does_not_block_the_loop(ctx: hetero.Context) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    ticking = asyncio.create_task(tick())
    await ctx.submit(time.sleep, 0.3)
    ticking.cancel()
    assert ticks > 3


async def test_an_awaited_task_that_is_cancelled_stops(processes: hetero.Context) -> None:
    future = processes.submit(time.sleep, 60)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(future, 0.5)
    assert future.cancelled()


@pytest.mark.usefixtures("no_leaks")
def test_a_running_task_in_c_code_is_stopped_by_cancel() -> None:
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        ctx.run(identity, 0)
        future = ctx.submit(time.sleep, 60)
        time.sleep(0.3)
        assert future.cancel()
        assert future.cancelled()
        with pytest.raises(concurrent.futures.CancelledError):
            future.result()
        start = time.monotonic()
        assert ctx.submit(identity, 1).result(120) == 1
        assert time.monotonic() - start < 30


def test_a_finished_task_cannot_be_cancelled(ctx: hetero.Context) -> None:
    future = ctx.submit(identity, 1)
    assert future.result(120) == 1
    assert not future.cancel()


def test_a_dependant_of_a_cancelled_task_fails_and_says_so(processes: hetero.Context) -> None:
    first = processes.submit(time.sleep, 60)
    last = processes.submit(identity, first)
    first.cancel()
    with pytest.raises(TaskCancelledError):
        last.result(120)
    with pytest.raises(TaskCancelledError, match=r"needs task \d+ \(sleep\), which was cancelled"):
        processes.submit(identity, first).result(120)


def test_a_value_is_loaded_once(ctx: hetero.Context) -> None:
    future = ctx.submit(np.ones, 10)
    assert future.result(120) is future.result(120)


def test_a_result_that_cannot_travel_is_told_in_one_line(processes: hetero.Context) -> None:
    with pytest.raises(SerialisationError) as caught:
        processes.submit(threading.Lock).result(120)
    assert "\n" not in str(caught.value)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True, slots=True)
class Settings:
    rate: Any
    others: Any = ()


@pytest.mark.parametrize("engine", ["process", "thread", "inline"])
def test_futures_are_found_inside_every_kind_of_container(engine: str) -> None:
    words: dict[str, Any] = {"engine": "inline"} if engine == "inline" else {"isolation": engine}
    with hetero.Context(devices="1xcpu", history=False, **words) as ctx:
        one = ctx.submit(identity, 1)
        for given, expected in (
            (Pair(one, [2, one]), Pair(1, [2, 1])),
            (Settings(one, Pair(one, 3)), Settings(1, Pair(1, 3))),
            ({one, 2}, {1, 2}),
            (frozenset([one]), frozenset([1])),
            (deque([one, 4], maxlen=2), deque([1, 4], maxlen=2)),
            (OrderedDict(b=one, a=0), OrderedDict(b=1, a=0)),
            (defaultdict(list, a=one), defaultdict(list, a=1)),
        ):
            found = ctx.submit(identity, given).result(120)
            assert (found, type(found)) == (expected, type(expected))
            assert ctx.gather([given]) == [expected]
        assert one.result() == 1


def test_containers_without_futures_are_passed_as_they_are() -> None:
    given = (Settings(1, Pair([2], {3})), {4, 5}, deque([6]))
    bound = bind("f", given, {}, lambda future: None)
    assert all(one is other for one, other in zip(bound.args, given, strict=True))


def test_a_future_inside_an_object_is_refused_with_the_remedy(processes: hetero.Context) -> None:
    future = processes.submit(identity, 1)
    with pytest.raises(SerialisationError, match="cannot travel inside a function or an object"):
        processes.submit(lambda: future)


def test_values_that_nobody_holds_are_given_back(processes: hetero.Context) -> None:
    def used() -> int:
        return processes.usage["h0/ram"].used_bytes

    before = used()
    futures = [processes.submit(np.ones, 1_000_000) for _ in range(5)]
    hetero.wait(futures, 120)
    assert used() - before >= 5 * 8_000_000
    del futures
    gc.collect()
    deadline = time.monotonic() + 120
    while used() - before > 1_000_000 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert used() - before < 1_000_000


def test_an_input_lives_as_long_as_a_task_needs_it(processes: hetero.Context) -> None:
    slow = processes.submit(lambda: time.sleep(0.5) or 1.0)
    total = processes.submit(lambda a, b: float(a.sum()) + b, processes.submit(np.ones, 100_000), slow)
    gc.collect()
    assert total.result(120) == 100_001.0


def test_a_lone_small_task_goes_through_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_CHECK", "0")
    calls: list[object] = []

    def count(frame: object, event: str, _: object) -> None:
        if event == "call":
            calls.append(frame)

    threading.setprofile(count)
    try:
        with hetero.Context(devices="1xcpu", isolation="thread", history=False) as ctx:
            for _ in range(50):
                ctx.submit(identity, 1).result(120)
            calls.clear()
            sys.setprofile(count)
            for _ in range(200):
                ctx.submit(identity, 1).result(120)
            sys.setprofile(None)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert len(calls) / 200 < 150


INTERRUPTED = """
import os, signal, threading, time
import hetero

def interrupted(call):
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        call()
    except KeyboardInterrupt:
        return "interrupted"

with hetero.Context(devices="2xcpu", history=False) as ctx:
    ctx.gather([ctx.submit(time.sleep, 0.01) for _ in range(4)])
"""
"""Programs of their own: an interrupt that comes late must not reach the test runner."""


def printed_by(program: str) -> list[str]:
    command = [sys.executable, "-c", INTERRUPTED + textwrap.indent(textwrap.dedent(program), "    ")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_an_interrupt_while_waiting_leaves_tasks_and_context_in_use() -> None:
    program = """
        future = ctx.submit(lambda: time.sleep(3.0) or 5)
        print(interrupted(future.result), future.result(60))
    """
    assert printed_by(program) == ["interrupted", "5"]


def test_an_interrupted_run_stops_its_task() -> None:
    program = """
        print(interrupted(lambda: ctx.run(time.sleep, 10_000)), *ctx.gather([ctx.submit(abs, -n) for n in (1, 2)]))
    """
    assert printed_by(program) == ["interrupted", "1", "2"]


def test_a_value_that_was_not_read_before_an_early_close_is_told() -> None:
    ctx = hetero.Context(devices="1xcpu", isolation="thread", history=False)
    future = ctx.submit(identity, 1)
    hetero.wait([future], 120)
    ctx.close(wait=False)
    with pytest.raises(HeteroError, match="closed before the value of task"):
        future.result()


def test_a_future_shows_its_state(ctx: hetero.Context) -> None:
    future = ctx.submit(identity, 1)
    future.result(120)
    broken = ctx.submit(fail)
    broken.exception(120)
    assert repr(future).endswith("identity: finished>")
    assert repr(broken).endswith("fail: failed, ValueError>")
    assert "identity" in future._repr_html_()
