"""Which nested tasks run at once in the worker of their parent: what is learned of their classes, and from what."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from math import frexp
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import hetero
from hetero.backends.registry import backend_of
from hetero.drive.frame import Frame, enter
from hetero.drive.worker import DeviceRunner
from hetero.engines.base import Asked
from hetero.model.device import Device, DeviceType
from hetero.session import task_context
from hetero.session.signature import describe
from hetero.session.tasks import as_task


class Spreads:
    """Takes what a task submits, as a worker does that has another device beside it."""

    out = waits = mark = 0
    deadly: frozenset[int] = frozenset()

    def __init__(self) -> None:
        cpu = DeviceType("CPU")
        self.devices = tuple(Device(f"h0/cpu:{at}", "cpu", cpu, "cpu", at) for at in range(2))
        self.asked: list[Asked] = []

    def poll(self) -> None:
        """Take nothing in."""

    def is_deadly(self, mark: int) -> bool:
        return mark in self.deadly

    def at_once(self, mark: int) -> int:
        before, self.mark = self.mark, mark
        return before

    def submit(self, function: Any, asked: Asked, *_: Any) -> int:
        self.asked.append(asked)
        return 0


def fib(n: int) -> int:
    if n < 2:
        return n
    left, right = hetero.current_context().submit(fib, n - 1), hetero.current_context().submit(fib, n - 2)
    return int(left.result() + right.result())


@pytest.fixture
def alone() -> Iterator[Any]:
    """Have this thread run a task, whose nested tasks another device may take."""
    spreads: Any = Spreads()
    backend = SimpleNamespace(run=lambda function, args, kwargs: function(*args, **kwargs))
    runner = DeviceRunner(spreads.devices[0], backend_of(spreads.devices[0]))
    runner.backend = backend  # type: ignore[assignment]
    before = enter(Frame(spreads.devices[0], backend, spread=spreads, inside=runner._run_inside))
    yield spreads
    enter(before)


def took(seconds: float, function: Any, *args: object) -> None:
    task = as_task(function)
    task.source.current()
    signature, size = describe(task.source.model_key, args, {})
    mantissa, exponent = frexp(size)
    task_context._note_time((signature, round(mantissa, 1), exponent), seconds, task.source.nests)


def test_a_class_of_short_tasks_that_the_system_held_up_once_runs_at_once_still(alone: Any) -> None:
    took(1e-5, len, "a")
    took(4e-3, len, "a")
    assert hetero.current_context().submit(len, "a").number == 0
    assert not alone.asked
    for _ in range(4):
        took(4e-3, len, "a")
    hetero.current_context().submit(len, "a")
    assert len(alone.asked) == 1


def test_functions_that_submit_tasks_themselves_go_elsewhere_only_where_they_are_longer(alone: Any) -> None:
    for seconds, goes in ((1e-3, False), (19e-3, False), (21e-3, True)):
        task_context._expected_s.clear()
        source = as_task(fib).source
        source.nests = False
        took(1e-5, fib, 0)
        took(1e-5, fib, 1)
        took(1e-5, fib, 2)
        assert hetero.current_context().submit(fib, 2).result() == 1
        assert source.nests
        for each in (1.0, seconds):  # the first had to wait for others
            took(each, fib, 40)
        with mock.patch.object(task_context, "_ran") as ran:
            hetero.current_context().submit(fib, 40)
        assert (len(alone.asked), ran.called) == ((1, False) if goes else (0, True))


def test_a_frame_made_again_is_like_the_first_but_for_what_happened_in_it() -> None:
    fresh = {"channel", "loops", "talk", "used_namespace", "throttled_cpu_s", "children", "found", "own"}
    frame = Frame(*[object() for _ in dataclasses.fields(Frame)])
    again, new = frame.again(), Frame(None, None)  # type: ignore[arg-type]
    for each in dataclasses.fields(Frame):
        assert getattr(again, each.name) is getattr(new if each.name in fresh else frame, each.name), each.name


def test_a_worker_tells_which_class_it_runs_at_once_and_none_that_has_ended_one_is_run_so(alone: Any) -> None:
    def look() -> int:
        return int(alone.mark)

    def deeper() -> tuple[int, int, int]:
        return alone.mark, hetero.current_context().run(look), alone.mark

    for function in (look, deeper):
        took(1e-5, function)
    outer, within, after = hetero.current_context().run(deeper)
    assert 0 not in (outer, within)
    assert outer == after != within
    assert alone.mark == 0
    assert not alone.asked
    alone.deadly = frozenset({within})
    hetero.current_context().submit(look)
    assert len(alone.asked) == 1
