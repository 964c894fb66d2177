"""What a live run writes down: events and commands as they come, notes, and the plan that a policy follows.

In: records from the driver, from workers and from applications; a core whose policy plans ahead, between two events.
Out: the records, to every sink. It must not wait or plan, and costs nothing while nobody listens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hetero.core.machine import Machine
from hetero.floor.clock import Clock, TraceSink
from hetero.model.annotations import PlanMade, TaskNote, TaskParts, Times
from hetero.plan.problem import Ints
from hetero.plan.replanning.lookahead import WAITING
from hetero.plan.replanning.replan import RULES, RemainingPlan

__all__ = ["PlanRecorder", "Recorder"]

_WORTH_FRAC = 0.01
"""A re-plan that moves no task is told when what is left is expected to end by this much earlier or later."""


class PlanRecorder:
    """Looks at the plan of a core after each event.

    Parameters
    ----------
    machine : the core

    Notes
    -----
    A plan reaches a bounded number of tasks ahead. Each task is told once, when it first stands in a plan; of later
    plans the number of tasks that changed their device, and the expected end.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._last: object = None
        self._end_s = -np.inf
        self._device = np.full(1024, -1, dtype=np.int64)

    @property
    def is_new(self) -> bool:
        """True when the policy remembers something else than at the last look."""
        return self._machine.placer.memory is not self._last

    def look(self, now_s: float) -> PlanMade | None:
        """Return what is new in the plan; None where nothing is."""
        placer = self._machine.placer
        plan = placer.memory
        if plan is self._last:
            return None
        self._last = plan
        if not isinstance(plan, RemainingPlan) or placer.lookahead is None:
            return None
        ids, phase = placer.lookahead.tasks()
        if len(ids) < plan.known:
            return None
        slots = np.flatnonzero((phase[: plan.known] == WAITING) & (plan.device >= 0) & (plan.finish_s > 0.0))
        before = self._known(ids[slots])
        self._device[ids[slots]] = plan.device[slots]
        new = slots[before < 0]
        moved = int(((before >= 0) & (before != plan.device[slots])).sum())
        worth = abs(plan.makespan_s - self._end_s) > _WORTH_FRAC * max(plan.makespan_s - now_s, 0.0)
        if not len(new) and not moved and not worth:
            return None
        self._end_s = plan.makespan_s
        return self._note(plan, now_s, new, ids[new], moved)

    def _known(self, ids: Ints) -> Ints:
        """Return the devices on which tasks were to run so far, -1 for a new one."""
        most = int(ids.max(initial=0))
        if most >= len(self._device):
            longer = np.full(2 * most, -1, dtype=np.int64)
            longer[: len(self._device)] = self._device
            self._device = longer
        return self._device[ids]

    def _note(self, plan: RemainingPlan, now_s: float, slots: Ints, ids: Ints, moved: int) -> PlanMade:
        names = [device.id for device in self._machine.fleet.devices]
        rank, looks = RULES[plan.rule] if plan.rule >= 0 else ("guide", False)
        return PlanMade(
            now_s,
            float(plan.makespan_s),
            f"{rank}, looking ahead" if looks else rank,
            moved,
            tuple(ids.tolist()),
            tuple(names[device] for device in plan.device[slots].tolist()),
            tuple(plan.start_s[slots].tolist()),
            tuple(plan.finish_s[slots].tolist()),
        )


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
        self._plans = PlanRecorder(machine)

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
