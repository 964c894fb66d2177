"""Nested tasks on several devices: they spread, who waits gives the device up, and faults stay with their tasks."""

from __future__ import annotations

import concurrent.futures
import decimal
import os
import random
import signal
import threading
import time
from collections import UserDict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.drive.frame import MOST_DEEP, Frame, enter
from hetero.drive.trace import read_trace
from hetero.engines.base import Asked, Call, Nest
from hetero.engines.local.child_process import SILENCE_S
from hetero.engines.local.nested_tasks import Nested
from hetero.engines.shared.memory_pool import Payload
from hetero.engines.shared.messages import NestedSubmitted
from hetero.errors import BadValueError, HeteroError, NothingFitsError, TaskLostError
from hetero.model.commands import Launch
from hetero.model.device import Device, DeviceType
from hetero.model.events import DeviceLost, TaskFinished, TaskResumed, TaskSuspended
from hetero.model.tasks import Failure, Request
from hetero.report.account import account
from hetero.report.findings import find
from hetero.report.trace_reader import read_run

LONG_S = 120.0


@pytest.fixture(scope="module")
def ctx() -> Iterator[hetero.Context]:
    with hetero.Context(devices="2xcpu", history=False) as made:
        yield made


def here() -> str:
    return str(hetero.get_current_device().short)


def inner() -> Any:
    return hetero.current_context()


def work(seconds: float) -> str:
    end_s = time.process_time() + seconds
    while time.process_time() < end_s:
        pass
    return here()


def fork(width: int, seconds: float) -> list[str]:
    return [here(), *inner().gather([inner().submit(work, seconds) for _ in range(width)])]


def fib(n: int) -> int:
    if n < 2:
        return n
    left, right = inner().submit(fib, n - 1), inner().submit(fib, n - 2)
    return int(left.result() + right.result())


def deep(depth: int) -> set[str]:
    return {here()} if not depth else {here(), *inner().run(deep, depth - 1)}


class _HeldAlone(UserDict[int, Any]):
    """The open tasks of a core, which notes whether anybody reads them without the driver's token."""

    def __init__(self, tasks: dict[int, Any], token: Any) -> None:
        self.data, self._token, self.unheld = tasks, token, 0

    def get(self, key: int, default: Any = None) -> Any:
        self.unheld += not self._token.locked()
        return self.data.get(key, default)


def test_what_running_tasks_submit_does_not_read_the_core_without_its_token() -> None:
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        core = ctx.driver._core
        core.tasks = watched = _HeldAlone(core.tasks, ctx.driver._token)  # type: ignore[assignment]
        assert ctx.gather([ctx.submit(deep, 3) for _ in range(3)]) == [{"cpu:0"}] * 3
        assert watched.unheld == 0


def test_children_run_on_all_devices(ctx: hetero.Context) -> None:
    assert set(ctx.run(fork, 12, 0.02)[1:]) == {"cpu:0", "cpu:1"}


def test_ten_thousand_tasks_fork_and_join_on_two_devices(ctx: hetero.Context) -> None:
    before = ctx.driver.ask(lambda core: core).counts.submitted
    assert ctx.run(fib, 19) == 4181  # 13,529 tasks
    assert ctx.driver.ask(lambda core: core).counts.submitted - before > 10


def test_parents_and_children_pinned_crosswise_do_not_wait_for_each_other(ctx: hetero.Context) -> None:
    def crosswise(at: int, depth: int) -> list[str]:
        mine = [here()]
        return mine + (inner().run(hetero.task(crosswise, on=f"cpu:{1 - at}"), 1 - at, depth - 1) if depth else [])

    roots = [ctx.submit(hetero.task(crosswise, on=f"cpu:{at % 2}"), at % 2, 12) for at in range(6)]
    for at, root in enumerate(roots):
        assert root.result(LONG_S) == [f"cpu:{(at + step) % 2}" for step in range(13)]


def test_a_chain_over_devices_may_be_deep_and_too_deep_is_named(ctx: hetero.Context) -> None:
    assert ctx.submit(deep, 300).result(LONG_S) <= {"cpu:0", "cpu:1"}
    with pytest.raises(BadValueError, match=f"nested {MOST_DEEP} deep"):
        ctx.submit(deep, 1000).result(LONG_S)
    assert ctx.run(here)


@pytest.mark.parametrize("how", ["wait", "as_completed", "map", "timeout"])
def test_every_way_to_wait_gives_the_device_up(ctx: hetero.Context, how: str) -> None:
    def parent(how: str) -> list[str]:
        here_only = hetero.task(work, on="cpu:0", timeout="60s")  # with a limit of time it does not run at once
        if how == "map":
            return list(inner().map(here_only, [0.001, 0.002]))
        futures = [inner().submit(here_only, 0.001), inner().submit(here_only, 0.002)]
        if how == "wait":
            return [each.result() for each in concurrent.futures.wait(futures, 60.0).done]
        if how == "as_completed":
            return [each.result() for each in concurrent.futures.as_completed(futures, 60.0)]
        long = inner().submit(hetero.task(time.sleep, on="cpu:1"), 30.0)
        with pytest.raises(TimeoutError, match="has not ended within"):
            long.result(0.01)
        assert long.cancel()
        assert long.cancelled()
        return [each.result() for each in futures]

    assert ctx.submit(hetero.task(parent, on="cpu:0"), how).result(LONG_S) == ["cpu:0", "cpu:0"]


def wait_for_a_file(path: str) -> None:
    until_s = time.monotonic() + LONG_S
    while not os.path.exists(path) and time.monotonic() < until_s:
        time.sleep(0.01)


def state_of_its_own(path: str) -> tuple[float, float, str | None]:
    first = random.random()
    with decimal.localcontext() as made, LOCK:
        made.prec = 3
        inner().run(hetero.task(wait_for_a_file, on="cpu:1"), path)
    return first, random.random(), os.environ.get("HETERO_NEST_TEST")


def seen_here() -> tuple[int, str | None, bool]:
    came = LOCK.acquire(timeout=0.0)
    LOCK.release() if came else None
    return decimal.getcontext().prec, os.environ.get("HETERO_NEST_TEST"), came


LOCK = threading.Lock()
NAMES = {"HETERO_NEST_TEST": "of the parent"}


def lock_here(path: str) -> Any:
    from tests.engine import test_nested_tasks as module

    return module.state_of_its_own(path)


def look_here() -> Any:
    from tests.engine import test_nested_tasks as module

    return module.seen_here()


def test_other_tasks_do_not_run_on_top_of_one_that_waits_nor_see_its_state(ctx: hetero.Context, tmp_path: Path) -> None:
    go = tmp_path / "go"
    parent = ctx.submit(hetero.task(lock_here, on="cpu:0", env=NAMES), str(go))
    other = ctx.submit(hetero.task(look_here, on="cpu:0"))
    ctx.submit(hetero.task(here, on="cpu:1"))  # waits behind the child
    time.sleep(0.3)
    assert not other.done()
    go.touch()
    assert other.result(LONG_S) == (28, None, True)
    assert parent.result(LONG_S)[2] == "of the parent"


def draws_with_children(count: int) -> tuple[list[float], list[tuple[float, str | None]]]:
    own = [random.random()]
    nested = [inner().submit(hetero.task(draw, on=at), 0) for at in ("cpu:0", "cpu:1") for _ in range(count)]
    nested += [inner().submit(draw, number) for number in range(count)]
    own.append(random.random())
    found = inner().gather(nested)
    return [*own, random.random()], found


def draw(_: int) -> tuple[float, str | None]:
    return random.random(), os.environ.get("HETERO_NEST_TEST")


def test_variables_and_seeds_stay_with_the_task_that_has_them(ctx: hetero.Context) -> None:
    seeded = hetero.task(draws_with_children, seed=7, env=NAMES)
    own, found = ctx.run(seeded, 4)
    with hetero.Context(devices="1xcpu", history=False) as alone:
        plain = hetero.task(lambda: [random.random() for _ in range(3)], seed=7, name="draws_with_children")
        expected = alone.run(plain)
    assert own == expected
    assert {name for _, name in found} == {None}
    assert len({number for number, _ in found}) == len(found)


def end_worker() -> None:
    os._exit(5)


def parent_of_killers(count: int) -> list[str]:
    killer = hetero.task(end_worker, crashes=0)
    return [type(inner().submit(killer).exception()).__name__ for _ in range(count)]


def test_a_class_that_ended_a_worker_does_not_run_on_top_of_its_parent_while_another_device_may(
    ctx: hetero.Context,
) -> None:
    parent = hetero.task(parent_of_killers, on="cpu:0", crashes=1)  # on top of it, each would end it again
    assert ctx.submit(parent, 3).result(LONG_S) == ["TaskLostError"] * 3


def keep_or_end(letter: str) -> str:
    if letter == "x":
        os.kill(os.getpid(), signal.SIGSEGV)
    return letter


def warm() -> None:
    """Have this worker know that they take no time."""
    inner().gather([inner().submit(keep_or_end, letter) for letter in "abc"])


def parent_of_one_killer(_: int) -> list[str]:
    child, answers = hetero.task(keep_or_end, crashes=1), []
    for letter in "abcdxefg":
        try:
            answers.append(inner().run(child, letter))
        except TaskLostError as error:
            answers.append(str(error))
    return answers


def test_a_quick_task_that_ends_the_worker_of_its_parent_is_to_blame_and_not_the_parent() -> None:
    with hetero.Context(devices="3xcpu", history=False) as program:
        program.gather([program.submit(hetero.task(warm, on=each.id)) for each in program.devices])
        parents = [program.submit(hetero.task(parent_of_one_killer, crashes=1), at) for at in range(2)]
        for parent in parents:
            answers = parent.result(LONG_S)
            assert "keep_or_end was given up: its worker died" in answers.pop(4)
            assert "".join(answers) == "abcdefg"


class Spreads:
    """Takes what a task submits, as a worker does that has another device beside it."""

    out = waits = 0

    def __init__(self) -> None:
        cpu = DeviceType("CPU")
        self.devices = tuple(Device(f"h0/cpu:{at}", "cpu", cpu, "cpu", at) for at in range(2))
        self.asked: list[Asked] = []

    def is_deadly(self, mark: int) -> bool:
        return False

    def at_once(self, mark: int) -> int:
        return 0

    def submit(self, function: Any, asked: Asked, *_: Any) -> int:
        self.asked.append(asked)
        return 0


def test_the_first_task_of_a_class_has_the_signature_of_those_after_it() -> None:
    spreads: Any = Spreads()
    before = enter(Frame(spreads.devices[0], None, spread=spreads, inside=lambda *_: None))
    try:
        for made in (end_worker, end_worker, hetero.task(end_worker), hetero.task(end_worker, crashes=0)):
            inner().submit(made)
        inner().submit(hetero.task(here))
    finally:
        enter(before)
    *killers, other = [each.signature for each in spreads.asked]
    assert len(set(killers)) == 1
    assert killers[0].startswith("tests.engine.test_nested_tasks.end_worker@")
    assert other.startswith("tests.engine.test_nested_tasks.here@")


def long_map(timeout: float, on: str | None) -> tuple[list[Any], str]:
    sleeps, got = hetero.task(time.sleep, on=on) if on else time.sleep, []
    inner().run(sleeps, 0.0)  # from here on its device is there
    try:
        for each in inner().map(sleeps, [0.0, 0.0, LONG_S, LONG_S] if on else [0.0, 1.2, 1.2, 1.2], timeout=timeout):
            got.append(each)
    except TimeoutError as error:
        return got, str(error)
    return got, ""


def test_a_map_in_a_task_ends_when_its_time_is_over_and_stops_what_is_left(ctx: hetero.Context) -> None:
    got, said = ctx.submit(hetero.task(long_map, on="cpu:0"), 2.0, "cpu:1").result(LONG_S / 2)
    assert got == [None, None]
    assert "has not ended within" in said
    with hetero.Context(devices="1xcpu", history=False) as one:
        got, said = one.run(long_map, 1.0, None)
    assert (got, said) == ([None, None], "map: the next result was not there in time")
    with pytest.raises(BadValueError, match="chunk=0 is not allowed"):
        ctx.run(lambda: inner().map(abs, [1], chunk=0))


def called_back() -> list[str]:
    import asyncio

    future = inner().submit(hetero.task(time.sleep, on="cpu:1"), 0.2)
    said = []
    for use in (lambda: future.add_done_callback(print), lambda: future.__await__()):
        with pytest.raises(BadValueError) as caught:
            use()
        said.append(str(caught.value))

    async def wrapped() -> None:
        await asyncio.wrap_future(future)

    with pytest.raises(BadValueError):
        asyncio.run(wrapped())
    future.result()
    future.add_done_callback(lambda ended: said.append(str(ended.done())))
    return said


def test_what_would_wait_for_ever_for_a_nested_task_is_refused_by_name(ctx: hetero.Context) -> None:
    called, awaited, ended = ctx.submit(hetero.task(called_back, on="cpu:0")).result(LONG_S)
    assert "has not ended, and a nested task calls nobody back; wait for it: result()" in called
    assert "cannot be awaited" in awaited
    assert ended == "True"


def fail(word: str) -> None:
    raise ValueError(word)


def parent_of_failures() -> list[str]:
    failed, good = inner().submit(fail, "inner"), inner().submit(work, 0.001)
    needs = inner().submit(hetero.task(str, timeout="60s"), {"a": [failed]})
    answers = inner().gather([failed, needs], return_exceptions=True)
    return [*map(repr, answers), good.result()]


def test_exceptions_of_children_arrive_as_themselves(ctx: hetero.Context) -> None:
    *failures, good = ctx.run(parent_of_failures)
    assert failures == ["ValueError('inner')"] * 2
    assert good in ("cpu:0", "cpu:1")
    with pytest.raises(ValueError, match="through"):
        ctx.run(lambda: inner().run(hetero.task(fail, timeout="60s"), "through"))


def parent_of_failing_children(count: int) -> list[str]:
    answers = []
    for number in range(count):
        failed = inner().submit(hetero.task(fail, on="cpu:1"), "before")
        until_s = time.perf_counter() + number % 50 * 1e-4
        while time.perf_counter() < until_s:
            pass
        answers.append(repr(inner().submit(hetero.task(str, timeout="60s"), [failed]).exception()))
    return answers


def test_a_child_whose_argument_fails_just_as_it_is_handed_in_fails_with_that(ctx: hetero.Context) -> None:
    failures = ctx.submit(hetero.task(parent_of_failing_children, on="cpu:0"), 200).result(LONG_S)
    assert failures == ["ValueError('before')"] * 200


def filled(number: int) -> np.ndarray:
    return np.full(200_000, number, dtype=np.int64)


def parent_of_arrays() -> tuple[int, int, bool]:
    limited = {"timeout": "60s"}
    first = inner().submit(hetero.task(filled, **limited), 3)
    changed = np.zeros(100_000)
    total = inner().submit(hetero.task(lambda one, other: int(one.sum() + other[0].sum()), **limited), first, [changed])
    changed += 1.0
    return total.result(), int(first.result()[0]), first.result().flags.writeable


def test_arrays_and_futures_are_arguments_of_children(ctx: hetero.Context) -> None:
    assert ctx.run(parent_of_arrays) == (600_000, 3, True)


def parent_that_drops_a_future() -> list[str]:
    there = {"on": "cpu:1"}
    first = inner().submit(hetero.task(here, **there))
    first.exception()
    slow = inner().submit(hetero.task(work, **there), 1.0)
    both = inner().submit(hetero.task(lambda *given: list(given), **there), first, slow)
    del first
    inner().submit(hetero.task(here, **there))  # the program hears of it with this one
    return both.result()


def test_a_result_whose_future_was_dropped_is_there_for_the_tasks_that_read_it(ctx: hetero.Context) -> None:
    found = ctx.submit(hetero.task(parent_that_drops_a_future, on="cpu:0")).result(LONG_S)
    assert len(found) == 2


class Submissions:
    """Takes what tasks submit, and the calls as long as a driver does."""

    def __init__(self) -> None:
        self.calls: dict[int, Any] = {}
        self.sinks: dict[int, Any] = {}
        self.released: list[int] = []

    def submit(self, parent: Launch, asked: Asked, call: Call, sink: Any) -> tuple[int, None]:
        item = 100 + len(self.sinks)
        self.calls[item], self.sinks[item] = call, sink
        return item, None

    def release(self, item: int) -> None:
        self.released.append(item)

    def fail(self, item: int) -> None:
        del self.calls[item]
        self.sinks.pop(item)._failed(Failure("exception", "it failed"))

    def commit(self, item: int) -> None:
        del self.calls[item]
        self.sinks[item]._committed(lambda: None)
        self.sinks[item] = None


@pytest.mark.parametrize("ends", [Submissions.commit, Submissions.fail])
def test_a_result_is_released_once_no_task_reads_it_and_nobody_wants_it(
    ends: Callable[[Submissions, int], None],
) -> None:
    program, payload = Submissions(), Payload(b"")
    items = SimpleNamespace(for_worker=lambda item, worker: ((None, item), None))
    context: Any = SimpleNamespace(submitter=program, below_s={}, items=items)
    nested = Nested(context, worker=None, send=lambda message: None, announce=lambda payload: None)  # type: ignore[arg-type]
    asked = Asked("f", "f|", 0.0, Request())

    def submit(number: int, *refs: int) -> None:
        message = NestedSubmitted(1, number, "f", b"f", asked, (), refs, "", Nest())
        nested.submit(Launch(1, 1, 0.0), message, payload)

    submit(1)
    program.commit(100)
    submit(2, 1)
    submit(3, 1)
    nested.release([1])
    assert not program.released
    ends(program, 101)
    nested.release([2])
    assert program.released == [101]
    ends(program, 102)
    assert program.released == [101, 100]
    nested.over(1)
    assert program.released == [101, 100, 102]


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"on": "cuda"}, NothingFitsError, "it is not one of: cuda"),
        ({"near": ("host", "w")}, BadValueError, "near= cannot be met"),
    ],
)
def test_what_no_device_can_run_is_refused_by_name(
    ctx: hetero.Context, options: dict[str, Any], kind: type[HeteroError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        ctx.run(lambda: inner().submit(hetero.task(work, **options), 1.0))


def member(word: str) -> tuple[int, str]:
    return hetero.collectives.rank(), here()


def test_group_tasks_run_on_top_of_those_that_wait_for_them(ctx: hetero.Context) -> None:
    assert ctx.submit(lambda: inner().run(hetero.task(member, devices=2), "x")).result(LONG_S)[0] == 0


def touch_and_sleep(path: str, seconds: float) -> None:
    Path(path).touch()
    time.sleep(seconds)


def leave_behind(path: str, how: str) -> str:
    inner().submit(hetero.task(touch_and_sleep, on="cpu:1"), f"{path}-1", 60.0)
    while not os.path.exists(f"{path}-1"):
        time.sleep(0.01)
    if how == "raises":
        raise ValueError(how)
    Path(path).touch()
    inner().run(hetero.task(touch_and_sleep, timeout="100s"), f"{path}-2", 60.0)
    return how


@pytest.mark.parametrize("how", ["raises", "cancelled", "timeout", "killed"])
def test_what_a_task_leaves_behind_is_stopped(tmp_path: Path, how: str) -> None:
    path = tmp_path / "seen"
    with hetero.Context(devices="2xcpu", history=False) as ctx:
        options = {"on": "cpu:0", "crashes": 0, **({"timeout": "1s"} if how == "timeout" else {})}
        parent = ctx.submit(hetero.task(leave_behind, **options), str(path), how)
        if how == "cancelled":
            while not Path(f"{path}-2").exists():
                time.sleep(0.01)
            parent.cancel()
        if how == "killed":
            while not path.exists():
                time.sleep(0.01)
            os.kill(ctx.driver.engine.pids()[ctx.devices[0].id], signal.SIGKILL)
            Path(f"{path}-1").unlink()
            parent.cancel()
        assert isinstance(parent.exception(LONG_S) if not parent.cancelled() else ValueError(), Exception)
        free = [ctx.submit(hetero.task(here, on=f"cpu:{at}")) for at in range(2)]
        assert [each.result(30.0) for each in free] == ["cpu:0", "cpu:1"]
        assert not ctx.driver.ask(lambda core: core).tasks


def test_a_task_that_returns_waits_for_what_it_submitted(tmp_path: Path) -> None:
    path = tmp_path / "seen"

    def parent(path: str) -> str:
        inner().submit(hetero.task(touch_and_sleep, on="cpu:1"), path, 0.2)
        return here()

    with hetero.Context(devices="2xcpu", history=False) as ctx:
        assert ctx.run(hetero.task(parent, on="cpu:0"), str(path)) == "cpu:0"
        assert path.exists()


def count_tries(path: str) -> int:
    with open(path, "a") as file:
        file.write("x")
    return os.path.getsize(path)


def stack(depth: int, path: str) -> int:
    if depth:
        return 1 + int(inner().run(hetero.task(stack, on=f"cpu:{depth % 2}", timeout="100s"), depth - 1, path))
    if count_tries(path) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


def test_a_stack_of_tasks_that_wait_runs_again_after_its_worker_was_killed(tmp_path: Path) -> None:
    with hetero.Context(devices="2xcpu", history=False) as ctx:
        assert ctx.submit(stack, 8, str(tmp_path / "tries")).result(LONG_S) == 8
        assert ctx.submit(fib, 8).result(LONG_S) == 21


def poison() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def carer() -> str:
    try:
        inner().run(hetero.task(poison, timeout="100s"))
    except TaskLostError as error:
        return str(error)
    return ""


def carer_beside(path: str) -> str:
    return str(inner().run(hetero.task(touch_and_sleep, on="cpu:1", timeout="100s"), path, 0.3)) + here()


def test_a_killer_among_nested_tasks_is_given_up_and_others_are_not(tmp_path: Path) -> None:
    with hetero.Context(devices="2xcpu", history=False) as ctx:
        beside = [ctx.submit(hetero.task(carer_beside, on="cpu:0"), str(tmp_path / f"{at}")) for at in range(3)]
        assert "poison was given up" in ctx.submit(carer).result(LONG_S)
        assert [each.result(LONG_S) for each in beside] == ["Nonecpu:0"] * 3


def deadly(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    work(0.03)
    return number


def collector() -> list[Any]:
    asked = hetero.task(deadly, crashes=1)
    futures = [inner().submit(asked, number) for number in range(4)]
    return inner().gather(futures, return_exceptions=True)


@pytest.mark.slow
def test_parents_that_wait_on_every_device_outlive_the_killers_that_they_submit() -> None:
    with hetero.Context(devices="2xcpu", history=False) as ctx:
        parents = [ctx.submit(hetero.task(collector, crashes=1)) for _ in range(2)]
        for found in [parent.result(LONG_S) for parent in parents]:
            assert [each for each in found if isinstance(each, int)] == [0, 1, 3]
            assert isinstance(found[2], TaskLostError)
            assert "deadly was given up" in str(found[2])


def test_close_ends_in_the_middle_of_it_all() -> None:
    def endless(depth: int) -> None:
        inner().gather([inner().submit(endless, depth + 1) for _ in range(3)])
        time.sleep(60)

    ctx = hetero.Context(devices="2xcpu", history=False)
    roots = [ctx.submit(endless, 0) for _ in range(4)]
    while len(ctx.driver.ask(lambda core: core).tasks) < 20:
        time.sleep(0.01)
    ctx.close(wait=False)
    assert all(root.done() for root in roots)


def test_a_second_of_a_device_is_told_once(tmp_path: Path) -> None:
    trace = tmp_path / "run.trace.jsonl"

    def parent(depth: int) -> None:
        work(0.05)
        if depth:
            inner().gather([inner().submit(hetero.task(parent, timeout="100s"), depth - 1) for _ in range(2)])
        work(0.05)

    with hetero.Context(devices="2xcpu", history=False, trace=trace) as ctx:
        ctx.submit(parent, 3).result(LONG_S)
        core = ctx.driver.ask(lambda machine: machine)
        rows = {state.name: (state.busy_s, state.finished) for state in core.fleet.states}
        told = ctx.driver.explain(next(iter(core.rows._by_signature)), 3.0, hetero.task(parent).request)
        learned_s = max(each.estimate.seconds for each in told if each.estimate is not None)
    ended = [record for _, record in read_trace(trace) if isinstance(record, TaskFinished)]
    assert len(ended) == 15
    assert sum(count for _, count in rows.values()) == 15
    assert sum(each.seconds for each in ended) == pytest.approx(sum(busy_s for busy_s, _ in rows.values()), rel=1e-3)
    assert learned_s <= 1.5 * max(each.seconds for each in ended)  # a fit, and not the whole time with its waits
    root = ended[-1]
    assert root.seconds < 0.6 * (root.at_s - root.started_s)  # its children had the devices for the rest
    told = account(read_run(trace))
    assert told.problems == ()
    kinds = [type(record) for _, record in read_trace(trace) if isinstance(record, TaskSuspended | TaskResumed)]
    assert kinds.count(TaskSuspended) == kinds.count(TaskResumed) >= 7
    parts = ("compute", "loading", "storing", "waiting for memory")
    assert sum(map(told.total_s, parts)) == pytest.approx(sum(each.seconds for each in ended), rel=0.02)
    found = find(read_run(trace))
    assert found.gains.nested
    assert any("Tasks waited for tasks that they had submitted" in line for line in found.sentences)


def waits_long(seconds: float) -> tuple[list[str], int]:
    slept = inner().submit(hetero.task(time.sleep, on="cpu:1"), seconds)
    found = [here(), *inner().gather([inner().submit(hetero.task(work, on="cpu:0"), 0.05) for _ in range(3)])]
    slept.result()
    return found, fib(14)


@pytest.mark.servers
@pytest.mark.slow
def test_a_task_that_waits_for_longer_than_heartbeats_may_be_silent_goes_on_and_its_time_is_accounted_for(
    tmp_path: Path,
) -> None:
    trace = tmp_path / "run.trace.jsonl"
    with hetero.Context(devices="2xcpu", history=False, trace=trace) as ctx:
        ctx.gather([ctx.submit(hetero.task(abs, on=f"cpu:{index}"), -1) for index in (0, 1)])
        before = dict(ctx.driver.engine.pids())
        parent = ctx.submit(hetero.task(waits_long, on="cpu:0", crashes=0), SILENCE_S + 2.0)
        assert parent.result(LONG_S) == (["cpu:0"] * 4, 377)
        assert dict(ctx.driver.engine.pids()) == before
    records = [record for _, record in read_trace(trace)]
    assert not any(isinstance(record, DeviceLost) for record in records)
    told = account(read_run(trace))
    assert told.problems == ()
    seconds = sum(each.seconds for each in records if isinstance(each, TaskFinished))
    parts = ("compute", "loading", "storing", "waiting for memory")
    assert sum(map(told.total_s, parts)) == pytest.approx(seconds, rel=0.02)


def polls() -> str:
    future = inner().submit(hetero.task(work, on="cpu:1", timeout="60s"), 0.01)
    while not future.done():
        time.sleep(0.001)
    return str(future.result())


def test_a_task_may_ask_whether_another_has_ended(ctx: hetero.Context) -> None:
    assert ctx.submit(hetero.task(polls, on="cpu:0")).result(LONG_S) == "cpu:1"


def leads_others() -> tuple[float, float, float]:
    one, other = hetero.task(np.ones, on="cpu:0", timeout="60s"), hetero.task(np.ones, on="cpu:1", timeout="60s")
    total = hetero.task(lambda *arrays: float(sum(array.sum() for array in arrays)), on="cpu:1", timeout="60s")
    near, far = inner().submit(one, 100_000), inner().submit(other, 100_000)
    both = inner().submit(total, near, far)
    return both.result(), float(near.result().sum()), float(far.result().sum())


def test_results_that_stay_on_devices_go_from_child_to_child_and_to_the_parent() -> None:
    two_nodes = {"devices": [{"type": "cpu", "cores": 1, "link": {"bandwidth": "1GB/s"}}] * 2}
    with hetero.Context(two_nodes, history=False) as ctx:
        leader = hetero.task(leads_others, on=ctx.devices[0].id)
        assert ctx.submit(leader).result(LONG_S) == (200_000.0, 100_000.0, 100_000.0)
        assert ctx.submit(leader).result(LONG_S) == (200_000.0, 100_000.0, 100_000.0)
