"""What a live run writes down: events and commands as they come, notes, and the plan that a policy follows.

In: records from the driver, from workers and from applications. Out: the same, to every sink.
It must not wait, and costs nothing while nobody listens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hetero.core.machine import Machine
from hetero.drive.planning import PlanTeller
from hetero.floor.clock import Clock, TraceSink
from hetero.model.notes import TaskNote, TaskParts, Times

__all__ = ["Recorder"]

Record = tuple[object, ...]


class Recorder:
    """Hands records on.

    Parameters
    ----------
    machine, clock : of the run
    sink : takes every record, None for nobody yet

    Attributes
    ----------
    write : takes a record; None while nobody listens
    """

    def __init__(self, machine: Machine, clock: Clock, sink: TraceSink | None) -> None:
        self.write: Callable[[Record], None] | None = None if sink is None else sink.write
        self._clock = clock
        self._plans = PlanTeller(machine)

    def listen(self, sink: TraceSink) -> None:
        """Hand every record from now on to one more sink."""
        before = self.write
        self.write = sink.write if before is None else partial(_both, before, sink.write)

    def note(self, record: Record) -> None:
        """Write down a fact that the core need not know."""
        if self.write is not None:
            self.write(record)

    def tell(self, notes: Sequence[TaskNote]) -> None:
        """Write down what attempts told of their inside."""
        for note in notes:
            self.note(note._replace(at_s=self._clock.now_s()))

    def parts(self, task: int, attempt: int, device: str, started_s: float, times: Times) -> None:
        """Write down of what the time of an attempt consists."""
        if self.write is not None:
            self.write(TaskParts(self._clock.now_s(), task, attempt, device, started_s, *times))

    def decided(self) -> None:
        """Write down what is new in the plan, after the core took an event."""
        if self._plans.is_new and (planned := self._plans.look(self._clock.now_s())) is not None:
            self.note(planned)


def _both(one: Callable[[Record], None], other: Callable[[Record], None], record: Record) -> None:
    one(record)
    other(record)
