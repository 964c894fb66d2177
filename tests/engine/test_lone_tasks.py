"""Small tasks that come one by one: sent without a detour through the core, which hears of them before all else."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.drive.loop import LONE_TASKS, EventBatch
from hetero.drive.trace_read import read_trace
from hetero.floor.errors import TaskTimeoutError
from hetero.model.commands import Commit, Run
from hetero.model.events import TaskFinished, TaskSubmitted
from hetero.session.options import ContextOptions
from tests.needs import PROJECT

CALLS = 40
"""Calls of Python that handing in a lone small task and waiting for it may take in the thread that does."""

FILES, FILES_AMONG_OTHERS = 25, 40
"""Files of hetero that a warm small task may go through, in the program and in its worker process together."""

LIFE = PROJECT / "docs" / "life-of-a-task.md"


def nop() -> None:
    pass


def nap(seconds: str) -> str:
    if float(seconds):
        time.sleep(float(seconds))
    return seconds


def fail_if(word: str) -> str:
    if word == "no":
        raise ValueError(word)
    return word


def zeros(number: str) -> Any:
    return np.zeros(int(number))


@pytest.fixture(params=["thread", "process"])
def ctx(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[hetero.Context]:
    monkeypatch.setenv("HETERO_CHECK", "1")
    with hetero.Context(devices="1xcpu", isolation=request.param, history=False) as context:
        yield context


def alone(ctx: hetero.Context, function: Callable[[str], Any], usual: str, word: str) -> hetero.Future:
    """Return the future of a task that the core has not heard of, as soon as its function is known to be quick."""
    for _ in range(2000):
        ctx.submit(function, usual).exception(60)
        future = ctx.submit(function, word) if ctx.driver._core.rows._last else None
        if future is not None and ctx.driver._lone is not None and future.item not in ctx.driver._core.tasks:
            return future
        if future is not None:
            future.cancel()
    raise AssertionError("no task was sent alone")


def eventually(what: Callable[[], object]) -> None:
    until_s = time.monotonic() + 60
    while not what():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def calls_of(work: Callable[[], object]) -> int:
    """Count the calls of Python that some work makes in this thread."""
    count = 0

    def seen(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_a_lone_small_task_takes_few_calls() -> None:
    with hetero.Context(devices="2xcpu", isolation="thread", history=False) as ctx:
        for _ in range(300):
            ctx.submit(nop).result(60)
        assert statistics.median(calls_of(lambda: ctx.submit(nop).result()) for _ in range(60)) <= CALLS


@pytest.mark.servers
@pytest.mark.parametrize("how", [{"isolation": "thread"}, {"isolation": "process"}, {"engine": "inline"}])
def test_a_caller_without_stack_is_refused_and_the_others_go_on(how: dict[str, str]) -> None:
    with hetero.Context(devices="1xcpu", history=False, **how) as ctx:

        def down(hand_in: Callable[[], object]) -> None:
            hand_in()
            down(hand_in)

        for hand_in in (partial(ctx.submit, abs, -1), partial(ctx.put, [1]), partial(ctx.map, abs, [-1])):
            with pytest.raises(RecursionError, match="no room left to hand anything to hetero"):
                down(hand_in)
            assert ctx.run(abs, -3) == 3


def profile_into(files: list[str]) -> Callable[[FrameType, str, object], None]:
    """Return a profiler that notes the files of hetero whose functions are called."""
    root = str(Path(hetero.__file__).parent) + os.sep

    def seen(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(root):
            files.append(frame.f_code.co_filename.removeprefix(root))

    return seen


def profile_worker() -> None:
    files = hetero.tasks.worker_state()["files"] = []
    sys.setprofile(profile_into(files))


def files_of_the_worker() -> list[str]:
    seen = sorted(set(hetero.tasks.worker_state()["files"]))
    hetero.tasks.worker_state()["files"].clear()
    return seen


def one_alone(ctx: hetero.Context) -> None:
    ctx.submit(nop).result()


def among_others(ctx: hetero.Context) -> None:
    for future in [ctx.submit(nop) for _ in range(20)]:
        future.result()


@pytest.mark.parametrize(("hand_in", "most"), [(one_alone, FILES), (among_others, FILES_AMONG_OTHERS)])
def test_a_warm_task_goes_through_few_files_all_of_them_on_its_page(
    hand_in: Callable[[hetero.Context], None], most: int
) -> None:
    """Of 40 tries the most frequent files: now and then one meets the core's look at its estimates."""
    mine: list[str] = []
    found = []
    profile = profile_into(mine)
    threading.setprofile(profile)
    try:
        options = ContextOptions(initializer=profile_worker)
        with hetero.Context(devices="1xcpu", isolation="process", history=False, options=options) as ctx:
            for _ in range(100):
                hand_in(ctx)
            ctx.submit(files_of_the_worker).result(60)
            for _ in range(40):
                hand_in(ctx)
            asking = {"session/task_api.py"}
            checking = {"core/invariants.py"}  # where HETERO_CHECK asks for it
            theirs = set(ctx.submit(files_of_the_worker).result(60)) - asking
            for _ in range(40):
                mine.clear()
                sys.setprofile(profile)
                hand_in(ctx)
                sys.setprofile(None)
                found.append((frozenset(mine) | theirs) - checking)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    usual = max(set(found), key=found.count)
    assert theirs
    page = LIFE.read_text(encoding="utf-8")
    assert len(usual) <= most, sorted(usual)
    assert sorted(file for file in usual if f"`{file}`" not in page) == []
    assert f"{FILES} files when nothing else is open, and {FILES_AMONG_OTHERS} among others" in " ".join(page.split())


def test_the_core_hears_of_every_lone_task(ctx: hetero.Context) -> None:
    most = 0
    for _ in range(300):
        ctx.submit(nop).result(60)
        most = max(most, len(ctx.driver._lone_ended))
    assert 0 < most <= LONE_TASKS
    machine = ctx.driver.ask(lambda core: core)
    assert (machine.counts.submitted, machine.counts.committed, machine.tasks) == (300, 300, {})
    assert machine.fleet.states[0].finished == 300
    assert not ctx.driver._lone_ended


def test_a_trace_of_lone_tasks_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "lone.jsonl"
    with hetero.Context(devices="2xcpu", isolation="thread", history=False, trace=str(path)) as ctx:
        for _ in range(100):
            ctx.submit(nop).result(60)
    records = [record for _, record in read_trace(path)]
    for kind in (TaskSubmitted, Run, TaskFinished, Commit):
        assert sum(type(record) is kind for record in records) == 100, kind
    for ended in (record for record in records if type(record) is TaskFinished):
        assert 0.0 <= ended.started_s <= ended.started_s + ended.seconds <= ended.at_s + 1e-6


def test_a_listener_that_comes_later_is_told_of_each_task_from_then_on(ctx: hetero.Context) -> None:
    for _ in range(100):
        ctx.submit(nop).result(60)

    class Listener:
        def __init__(self) -> None:
            self.kinds: list[type] = []

        def write(self, record: tuple[object, ...]) -> None:
            self.kinds.append(type(record))

    listener = Listener()
    ctx.driver.listen(listener)
    for _ in range(10):
        ctx.submit(nop).result(60)
    assert [listener.kinds.count(kind) for kind in (TaskSubmitted, Run, TaskFinished, Commit)] == [10] * 4


def test_a_lone_task_is_cancelled_while_it_runs(ctx: hetero.Context) -> None:
    future = alone(ctx, nap, "0000", "3000")
    assert future.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(60)
    assert ctx.submit(nap, "0000").result(60) == "0000"
    eventually(lambda: not ctx.driver.ask(lambda core: core).tasks)
    counts = ctx.driver.ask(lambda core: core).counts
    assert counts.submitted == counts.committed + counts.failed
    assert counts.failed > 0


def test_the_core_hears_within_a_moment_of_a_lone_task_that_goes_on(ctx: hetero.Context) -> None:
    future = alone(ctx, nap, "0.00", "2.00")
    eventually(lambda: future.item in ctx.driver._core.tasks or future.done())
    assert future.item in ctx.driver._core.tasks or future.result() == "2.00"
    assert future.result(60) == "2.00"
    assert ctx.driver.ask(lambda core: core).tasks == {}


def test_what_comes_after_a_lone_task_waits_for_it(ctx: hetero.Context) -> None:
    first = alone(ctx, nap, "0.00", "0.20")
    others = [ctx.submit(nap, first), *(ctx.submit(nap, "0.00") for _ in range(20))]
    assert [other.result(60) for other in others] == ["0.20", *["0.00"] * 20]


def test_a_lone_task_that_fails_tells_why(ctx: hetero.Context) -> None:
    future = alone(ctx, fail_if, "ok", "no")
    with pytest.raises(ValueError, match="no"):
        future.result(60)
    eventually(lambda: ctx.driver.ask(lambda core: core).counts.failed >= 1)


def test_a_lone_task_whose_worker_is_killed_runs_again() -> None:
    with hetero.Context(devices="1xcpu", isolation="process", history=False) as ctx:
        future = alone(ctx, nap, "0.00", "1.00")
        ctx.driver._core.counts.retried = 0
        os.kill(next(iter(ctx.driver.engine.pids().values())), signal.SIGKILL)
        assert future.result(120) == "1.00"
        assert ctx.driver.ask(lambda core: core).counts.retried == 1


def test_a_large_result_of_a_lone_task_is_known_to_the_core(ctx: hetero.Context) -> None:
    future = alone(ctx, zeros, "0000000", "2000000")
    assert future.result(60).nbytes == 16_000_000
    assert ctx.driver.ask(lambda core: core).replicas.items[future.item].nbytes >= 16_000_000


def test_a_limit_of_time_holds_for_a_function_that_was_quick(ctx: hetero.Context) -> None:
    ctx.submit(nap, "00").result(120)  # from here on the worker has this module
    limited = hetero.task(nap, timeout="2s")
    for _ in range(20):
        ctx.submit(limited, "00").result(60)
    with pytest.raises(TaskTimeoutError):
        ctx.submit(limited, "99").result(60)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_context_that_is_closed_right_after_a_lone_task_ends(isolation: str) -> None:
    ctx = hetero.Context(devices="1xcpu", isolation=isolation, history=False)
    future = alone(ctx, nap, "00", "20")
    begin_s = time.monotonic()
    ctx.close(wait=False)
    assert time.monotonic() - begin_s < 15.0
    assert future.done()
    with hetero.Context(devices="1xcpu", isolation=isolation, history=False) as other:
        future = alone(other, nap, "0.0", "0.3")
    assert future.result(0) == "0.3"


def test_many_threads_hand_in_tasks_one_by_one(ctx: hetero.Context) -> None:
    def one_by_one(thread: int) -> list[str]:
        return [ctx.submit(fail_if, f"{thread}-{n:02}").result(60) for n in range(50)]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert [len(set(words)) for words in pool.map(one_by_one, range(4))] == [50] * 4
    counts = ctx.driver.ask(lambda core: core.counts)
    assert (counts.submitted, counts.committed) == (200, 200)


def test_a_question_is_answered_although_events_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with hetero.Context(devices="1xcpu", engine="inline", history=False) as ctx:
        driver, feeding, answered, enough = ctx.driver, threading.Event(), threading.Event(), threading.Event()
        take = driver._take

        def take_and_bring_another(event: Any, deliveries: list[Any]) -> None:
            take(event, deliveries)
            feeding.set()
            if not enough.is_set():
                driver._inbox.append(EventBatch())

        monkeypatch.setattr(driver, "_take", take_and_bring_another)
        feeder = threading.Thread(target=lambda: driver._post([EventBatch()]))
        asker = threading.Thread(target=lambda: driver.ask(lambda machine: answered.set()))
        feeder.start()
        assert feeding.wait(30.0)
        asker.start()
        was_answered = answered.wait(30.0)
        enough.set()
        feeder.join()
        asker.join()
        assert was_answered
