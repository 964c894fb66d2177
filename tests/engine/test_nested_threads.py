"""Threads that tasks start or use, where tasks run in threads of the program's process: refused, and never for ever."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from typing import Any
from unittest import mock

import pytest

import hetero
from hetero.errors import BadValueError

LONG_S = 120.0

POOLS: list[concurrent.futures.ThreadPoolExecutor] = []


def use_the_program(ctx: hetero.Context | None) -> str:
    try:
        return str((hetero.current_context() if ctx is None else ctx).submit(abs, -3).result(5.0))
    except (BadValueError, TimeoutError) as error:
        return str(error)


def use_it_in_threads(given: Callable[[], hetero.Context | None]) -> list[str]:
    said: list[str] = []
    within = threading.Thread(target=lambda: said.append(use_the_program(given())))
    around = threading.Thread(target=lambda: (within.start(), within.join()))
    around.start()
    around.join()
    POOLS.append(concurrent.futures.ThreadPoolExecutor(1))
    said.append(POOLS[-1].submit(use_the_program, given()).result())
    said.append(asyncio.run(asyncio.to_thread(use_the_program, given())))
    return said


@pytest.mark.parametrize("way", [{"engine": "inline"}, {"isolation": "thread"}])
def test_a_thread_that_a_task_starts_may_not_wait_for_the_program_while_the_task_runs(way: dict[str, Any]) -> None:
    with hetero.Context(devices="1xcpu", history=False, **way) as program:
        holder = [program]
        assert all("in its own thread; submit there" in each for each in program.run(use_it_in_threads, lambda: None))
        said = program.run(use_it_in_threads, lambda: holder[0])
        assert all("would wait for task" in each and "keep its device" in each for each in said)
        assert len(said) == 3
        while POOLS:
            with POOLS.pop() as pool:  # its thread was started by a task that has ended
                assert pool.submit(use_the_program, program).result() == "3"
        assert use_it_in_threads(lambda: program) == ["3"] * 3


def ask_a_pool(program: Callable[[], hetero.Context | None]) -> str:
    return str(POOLS[0].submit(use_the_program, program()).result(LONG_S))


@pytest.mark.parametrize("way", [{"engine": "inline"}, {"isolation": "thread"}])
@pytest.mark.parametrize("warmed", [False, True])
def test_a_pool_works_for_the_task_that_uses_it_whoever_has_started_its_threads(
    way: dict[str, Any], warmed: bool
) -> None:
    POOLS.append(concurrent.futures.ThreadPoolExecutor(1))
    with hetero.Context(devices="1xcpu", history=False, **way) as program, POOLS[0] as pool:
        holder = [program]
        if warmed:
            pool.submit(len, "").result()
        for _ in range(2):
            assert "in its own thread; submit there" in program.run(ask_a_pool, lambda: None)
            assert "would wait for task" in program.run(ask_a_pool, lambda: holder[0])
        assert pool.submit(use_the_program, program).result() == "3"
        POOLS.clear()


async def use_it_in_a_loop(program: hetero.Context | None, *, waits: bool) -> str:
    if not waits:
        return use_the_program(program)
    try:
        return str(await (hetero.current_context() if program is None else program).submit(abs, -3))
    except BadValueError as error:
        return str(error)


LOOPS: list[asyncio.AbstractEventLoop] = []


def ask_a_loop(program: Callable[[], hetero.Context | None], waits: bool) -> str:
    asked = asyncio.run_coroutine_threadsafe(use_it_in_a_loop(program(), waits=waits), LOOPS[0])
    return asked.result(LONG_S)


def run_a_loop(program: Callable[[], hetero.Context | None]) -> str:
    return asyncio.run(use_it_in_a_loop(program(), waits=True))


THREADS: list[ThreadPool] = []

WAYS: dict[str, Callable[[ThreadPool, Any], str]] = {
    "apply": lambda pool, given: pool.apply(use_the_program, (given,)),
    "apply_async": lambda pool, given: pool.apply_async(use_the_program, kwds={"ctx": given}).get(LONG_S),
    "map": lambda pool, given: pool.map(use_the_program, [given])[0],
    "starmap_async": lambda pool, given: pool.starmap_async(use_the_program, [(given,)]).get(LONG_S)[0],
    "imap": lambda pool, given: next(pool.imap(use_the_program, [given])),
    "imap_unordered": lambda pool, given: next(pool.imap_unordered(use_the_program, [given], 2)),
}


def ask_threads(program: Callable[[], hetero.Context | None]) -> list[str]:
    return [ask(THREADS[0], program()) for ask in WAYS.values()]


@pytest.mark.parametrize("way", [{"engine": "inline"}, {"isolation": "thread"}])
def test_a_thread_pool_of_multiprocessing_works_for_the_task_that_uses_it(way: dict[str, Any]) -> None:
    with ThreadPool(1) as pool, hetero.Context(devices="1xcpu", history=False, **way) as program:
        THREADS[:] = [pool]
        holder = [program]
        assert all("in its own thread; submit there" in each for each in program.run(ask_threads, lambda: None))
        assert all("keep its device" in each for each in program.run(ask_threads, lambda: holder[0]))
        assert ask_threads(lambda: program) == ["3"] * len(WAYS)
    assert "apply_async" not in vars(ThreadPool)


@pytest.mark.parametrize("way", [{"engine": "inline"}, {"isolation": "thread"}])
def test_a_coroutine_works_for_the_task_that_schedules_it_on_the_loop_of_another_thread(way: dict[str, Any]) -> None:
    LOOPS.append(asyncio.new_event_loop())
    thread = threading.Thread(target=LOOPS[0].run_forever)
    thread.start()
    with hetero.Context(devices="1xcpu", history=False, **way) as program:
        holder = [program]
        for waits in (False, True):
            assert "in its own thread; submit there" in program.run(ask_a_loop, lambda: None, waits)
            assert "would wait for task" in program.run(ask_a_loop, lambda: holder[0], waits)
            assert ask_a_loop(lambda: program, waits) == "3"
        assert "would wait for task" in program.run(run_a_loop, lambda: holder[0])
    LOOPS[0].call_soon_threadsafe(LOOPS[0].stop)
    thread.join()
    LOOPS.pop().close()


def test_what_the_program_hands_to_a_pool_is_not_refused_for_the_task_that_started_its_thread() -> None:
    pool, started, end = concurrent.futures.ThreadPoolExecutor(1), threading.Event(), threading.Event()

    def long() -> bool:
        pool.submit(len, "").result()
        started.set()
        return end.wait(LONG_S)

    with pool, hetero.Context(devices="2xcpu", isolation="thread", history=False) as program:
        running = program.submit(long)
        assert started.wait(LONG_S)
        assert pool.submit(program.run, abs, -3).result(LONG_S) == 3
        end.set()
        assert running.result(LONG_S)


def test_threads_are_followed_while_a_context_needs_that_and_no_longer() -> None:
    start, submit = threading.Thread.start, concurrent.futures.ThreadPoolExecutor.submit
    way: dict[str, Any] = {"devices": "1xcpu", "isolation": "thread", "history": False}
    with hetero.Context(**way), hetero.Context(**way):
        assert threading.Thread.start is not start
    assert threading.Thread.start is start
    assert concurrent.futures.ThreadPoolExecutor.submit is submit
    with hetero.Context(**way) as first:
        with mock.patch.object(threading.Thread, "start", start):
            pass  # takes what was put there, and puts back what it has found
        threading.Thread.start = start  # type: ignore[method-assign]
        with hetero.Context(**way) as second:
            for program in (first, second):
                assert all("own thread; submit there" in each for each in program.run(use_it_in_threads, lambda: None))
                POOLS.pop().shutdown()
    assert threading.Thread.start is start


def test_a_thread_is_followed_whatever_its_name_and_refused_by_python_in_pythons_words() -> None:
    class Unmade(threading.Thread):
        def __init__(self) -> None:
            pass

    def use() -> list[str]:
        said: list[str] = []
        thread = threading.Thread(target=lambda: said.append(use_the_program(None)), name="hetero-users")
        thread.start()
        thread.join()
        try:
            Unmade().start()
        except RuntimeError as error:
            said.append(str(error))
        return said

    with hetero.Context(devices="1xcpu", isolation="thread", history=False) as program:
        refused, unmade = program.run(use)
    assert "in its own thread; submit there" in refused
    assert unmade == "thread.__init__() not called"
