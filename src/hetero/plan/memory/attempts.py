"""Attempts of a plan on its way: the first of each task, and those that make a value again that was dropped for room.

In: devices and the order of a plan, and for whom a value is to be made again. Out: attempts as columns that grow.
It must not decide what is dropped.
"""

from __future__ import annotations

from typing import NamedTuple

from hetero.plan.problem import Ints, Problem

__all__ = ["Attempts", "Repeated"]

_REPEATS_A_TASK, _REPEATS_BESIDES = 2, 2000
"""So many repeats for each task of the graph, and so many besides, and no more values are dropped to be made again."""

_JUST_BEFORE, _AND_BEFORE_THAT = 0.5, 1e-6
"""How far the place of a repeat is before the one that it is for: a task's first attempt, or a repeat."""


class Repeated(NamedTuple):
    """A further attempt of a task, from when to when, s."""

    task: int
    device: int
    start_s: float
    finish_s: float


class Attempts:
    """One entry an attempt; the first ones are the tasks themselves, under their own numbers.

    Attributes
    ----------
    task, device, node : of each attempt
    place : when its turn comes; that of a repeat is just before the attempt that it is for
    waiting : the repeat of a task that has not begun yet, by task
    """

    def __init__(self, p: Problem, device: Ints, place: Ints) -> None:
        self._p = p
        self.task = list(range(len(device)))
        self.device: list[int] = device.tolist()
        self.node: list[int] = p.node[device].tolist()
        self.place: list[float] = place.astype(float).tolist()
        self.waiting: dict[int, int] = {}

    @property
    def may_grow(self) -> bool:
        """Return whether there may be further repeats."""
        return len(self.task) < (1 + _REPEATS_A_TASK) * len(self._p.order) + _REPEATS_BESIDES

    def is_repeat(self, attempt: int) -> bool:
        """Return whether an attempt is not the first of its task."""
        return attempt >= len(self._p.order)

    def add(self, task: int, device: int, for_: int) -> int:
        """Take in a further attempt of a task, for an attempt that reads what it makes; returns its number."""
        attempt = len(self.task)
        self.task.append(task)
        self.device.append(device)
        self.node.append(int(self._p.node[device]))
        self.place.append(self.before(for_))
        self.waiting[task] = attempt
        return attempt

    def before(self, attempt: int) -> float:
        """Return the place of a repeat that is for some attempt."""
        return self.place[attempt] - (_AND_BEFORE_THAT if self.is_repeat(attempt) else _JUST_BEFORE)
