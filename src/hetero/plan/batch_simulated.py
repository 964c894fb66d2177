"""A run of batches in virtual time: the planner of live runs, against devices whose times are given.

In: a planner, how long a batch really takes on each device, a number of records. Out: when the last one is done.
It must not decide anything that the planner decides.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from hetero.plan.batch_planner import Planner

__all__ = ["Simulated", "simulate"]


class Simulated(NamedTuple):
    """What a run in virtual time came to.

    Attributes
    ----------
    makespan_s : s
    records : done by each device; a batch that ran twice counts where it was done first
    repeated : records of batches that ran twice
    """

    makespan_s: float
    records: dict[str, int]
    repeated: int


class _World:
    """The devices of one simulated run."""

    def __init__(self, planner: Planner, truths: Mapping[str, Callable[[int], float]], count: int) -> None:
        self.planner = planner
        self.truths = truths
        self.left = count
        self.now_s = 0.0
        self.queues: dict[str, deque[int]] = {name: deque() for name in truths}
        self.batches: list[int] = []
        self.open: set[int] = set()
        self.ends: list[tuple[float, str, int]] = []
        self.result = Simulated(0.0, dict.fromkeys(truths, 0), 0)

    def hand_out(self) -> None:
        """Give work to who asks until nobody takes any."""
        for name in self.truths:
            while size := self.planner.ask(name, self.left, self.now_s):
                size = min(size, self.left)
                self.left -= size
                self.open.add(len(self.batches))
                self.batches.append(size)
                self.give(name, len(self.batches) - 1)
            if (late := self.planner.rescue(name, self.now_s)) is not None:
                self.result = self.result._replace(repeated=self.result.repeated + self.batches[late])
                self.give(name, late)

    def give(self, name: str, ticket: int) -> None:
        """Put a batch into a device's queue."""
        self.planner.give(name, ticket, self.batches[ticket], self.now_s)
        self.queues[name].append(ticket)
        if len(self.queues[name]) == 1:
            self.start(name)

    def start(self, name: str) -> None:
        """Let a device begin with the next batch of its queue."""
        ticket = self.queues[name][0]
        heapq.heappush(self.ends, (self.now_s + self.truths[name](self.batches[ticket]), name, ticket))

    def step(self) -> None:
        """Go on to the next end of a batch."""
        self.now_s, name, ticket = heapq.heappop(self.ends)
        if not self.queues[name] or self.queues[name][0] != ticket:
            return
        self.queues[name].popleft()
        size = self.batches[ticket]
        self.planner.done(name, ticket, self.now_s, self.truths[name](size))
        if ticket in self.open:
            self.open.discard(ticket)
            self.result.records[name] += size
            self.stop_twin(name, ticket)
        if self.queues[name]:
            self.start(name)

    def stop_twin(self, name: str, ticket: int) -> None:
        """Stop the other copy of a batch that is done."""
        for other, queue in self.queues.items():
            if other != name and ticket in queue:
                running = queue[0] == ticket
                queue.remove(ticket)
                self.planner.done(other, ticket, self.now_s)
                if running and queue:
                    self.start(other)


def simulate(planner: Planner, truths: Mapping[str, Callable[[int], float]], count: int) -> Simulated:
    """Run records through a planner in virtual time.

    Parameters
    ----------
    truths : seconds of a batch of a size, by device
    count : records

    Examples
    --------
    >>> from hetero.plan.batch_sizes import Sizes
    >>> planner = Planner({"a": Sizes(fixed=10), "b": Sizes(fixed=10)})
    >>> simulate(planner, {"a": lambda size: size / 10, "b": lambda size: size / 5}, 90)
    Simulated(makespan_s=6.0, records={'a': 60, 'b': 30}, repeated=0)
    """
    world = _World(planner, truths, count)
    world.hand_out()
    while world.open:
        world.step()
        world.hand_out()
    assert world.left == 0, "every record is given to a device"
    return world.result._replace(makespan_s=world.now_s)
