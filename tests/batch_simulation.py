"""A run of batches in virtual time: the planner of live runs, against devices whose times are given.

In: a planner, how long a batch really takes on each device, a number of records. Out: when the last one is done.
It must not decide anything that the planner decides.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from hetero.plan.batch.planner import BatchPlanner, Span, beside

__all__ = ["Simulated", "simulate"]


class Simulated(NamedTuple):
    """What a run in virtual time came to.

    Attributes
    ----------
    makespan_s : s
    records : done by each device; a batch that ran twice counts where it was done first
    repeated : records of batches that ran twice, or that another device took over
    """

    makespan_s: float
    records: dict[str, int]
    repeated: int


class _World:
    """The devices of one simulated run: the first one works from the front, all others from the back."""

    def __init__(self, planner: BatchPlanner, truths: Mapping[str, Callable[[int], float]], count: int) -> None:
        self.planner = planner
        self.truths = truths
        self.left = Span(0, count)
        self.now_s = 0.0
        self.queues: dict[str, deque[int]] = {name: deque() for name in truths}
        self.open: dict[int, Span] = {}
        self.tickets = 0
        self.ends: list[tuple[float, str, int]] = []
        self.result = Simulated(0.0, dict.fromkeys(truths, 0), 0)

    def hand_out(self) -> None:
        """Hand work to the devices that ask until none takes any."""
        for number, name in enumerate(self.truths):
            while (batch := self.next_for(name, back=number > 0)) is not None:
                self.tickets += 1
                self.open[self.tickets] = batch
                self.assign(name, self.tickets)
            if (late := self.planner.rescue(name, self.now_s)) is not None:
                self.repeat(late)
                self.assign(name, late)

    def next_for(self, name: str, back: bool) -> Span | None:
        """Cut the next batch of a device off what is left, with what it takes over from others that are late."""
        late = self.planner.late(name, beside(self.left, self.open), len(self.left), self.now_s)
        more = sum(len(self.open[ticket]) for ticket in late)
        size = self.planner.ask(name, len(self.left) + more, self.now_s, insured=True) if self.left else 0
        if late and size >= len(self.left):
            for ticket in late:
                self.take_over(ticket)
        size = min(size, len(self.left))
        if size == 0:
            return None
        begin, end = self.left
        cut = end - size if back else begin + size
        self.left = Span(begin, cut) if back else Span(cut, end)
        return Span(cut, end) if back else Span(begin, cut)

    def take_over(self, ticket: int) -> None:
        """Put the records of a batch that is late back to what is left."""
        self.repeat(ticket)
        span = self.open.pop(ticket)
        self.left = Span(min(span.begin, self.left.begin), max(span.end, self.left.end))
        self.stop("", ticket, self.planner.taken_over)

    def repeat(self, ticket: int) -> None:
        """Count records that are worked on twice."""
        self.result = self.result._replace(repeated=self.result.repeated + len(self.open[ticket]))

    def seconds(self, name: str, ticket: int) -> float:
        """Return how long a batch really takes on a device."""
        return self.truths[name](len(self.open[ticket]))

    def assign(self, name: str, ticket: int) -> None:
        """Put a batch into a device's queue."""
        self.planner.assign(name, ticket, len(self.open[ticket]), self.now_s)
        self.queues[name].append(ticket)
        if len(self.queues[name]) == 1:
            self.start(name)

    def start(self, name: str) -> None:
        """Let a device begin with the next batch of its queue."""
        ticket = self.queues[name][0]
        heapq.heappush(self.ends, (self.now_s + self.seconds(name, ticket), name, ticket))

    def step(self) -> None:
        """Go on to the next end of a batch."""
        self.now_s, name, ticket = heapq.heappop(self.ends)
        if not self.queues[name] or self.queues[name][0] != ticket:
            return
        self.queues[name].popleft()
        self.planner.done(name, ticket, self.now_s, self.seconds(name, ticket))
        self.result.records[name] += len(self.open[ticket])
        self.stop(name, ticket, self.planner.done)
        del self.open[ticket]
        if self.queues[name]:
            self.start(name)

    def stop(self, but: str, ticket: int, tell: Callable[[str, int, float], None]) -> None:
        """Stop a batch wherever it is in a queue, but on one device."""
        for other, queue in self.queues.items():
            if other != but and ticket in queue:
                running = queue[0] == ticket
                queue.remove(ticket)
                tell(other, ticket, self.now_s)
                if running and queue:
                    self.start(other)


def simulate(planner: BatchPlanner, truths: Mapping[str, Callable[[int], float]], count: int) -> Simulated:
    """Run records through a planner in virtual time.

    Parameters
    ----------
    truths : seconds of a batch of a size, by device
    count : records

    Examples
    --------
    >>> from hetero.plan.batch.size_tuning import Sizes
    >>> planner = BatchPlanner({"a": Sizes(fixed=10), "b": Sizes(fixed=10)})
    >>> simulate(planner, {"a": lambda size: size / 10, "b": lambda size: size / 5}, 90)
    Simulated(makespan_s=6.0, records={'a': 60, 'b': 30}, repeated=0)
    """
    world = _World(planner, truths, count)
    world.hand_out()
    while world.open:
        world.step()
        world.hand_out()
    assert not world.left, "every record is given to a device"
    return world.result._replace(makespan_s=world.now_s)
