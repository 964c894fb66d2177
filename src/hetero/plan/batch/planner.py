"""Which device gets how many records next, so that all end together and none holds the others up.

In: the news of a run of batches: who asks, what is done, how long it took. Out: sizes, and batches to run again.
It must not know a clock, a record or a worker: the same code plans a live run and a simulated one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hetero.plan.batch.size_tuning import Sizes
from hetero.plan.batch.time_model import Law, finish_s, guided_size, soonest_s

__all__ = ["AssignedBatch", "BatchPlanner", "Span", "beside"]

_QUEUED = 2
_LATE_S = 0.02
_AHEAD = 3.0
_WORTH = 1.1
_STRETCH = 1.2
_PAYS = 1.03
_TINY_S = 5e-3
_PAUSE_FRAC = 0.1
_PATIENCE = 1.5
_TRY_FRAC = 0.5
_UNSURE_FRAC = 0.6


@dataclass(slots=True)
class AssignedBatch:
    """A batch that a device was given.

    Attributes
    ----------
    ticket
        Of the batch; a batch that runs a second time has the same one.
    size
        Records, or their cost in records of the mean cost.
    expected_s
        How long it should take, infinite where nobody knows.
    """

    ticket: int
    size: float
    expected_s: float


@dataclass(slots=True)
class _DeviceState:
    """One device: what is known of it, and what it was given."""

    sizes: Sizes
    queue: list[AssignedBatch] = field(default_factory=list)
    since_s: float = 0.0
    records: float = 0.0
    busy_s: float = 0.0
    why_idle: str = ""
    ask_again_s: float = 0.0
    in_vain: bool = False

    def free_s(self, now_s: float) -> float:
        """Return when everything that it was given should be done."""
        if not self.queue:
            return now_s
        first, *rest = self.queue
        end_s = self.since_s + first.expected_s
        if end_s < now_s:
            end_s = now_s + 0.5 * (now_s - end_s)
        return end_s + sum(given.expected_s for given in rest)


class BatchPlanner:
    """Plans the batches of one run.

    Parameters
    ----------
    sizes
        What is known of each device, by its name.

    Examples
    --------
    >>> planner = BatchPlanner({"cpu:0": Sizes(known=[(8, 1.0)], fixed=8), "cpu:1": Sizes(known=[(8, 9.0)], fixed=8)})
    >>> planner.ask("cpu:0", 1000, 0.0), planner.ask("cpu:1", 8, 0.0)
    (8, 0)
    >>> planner.why_idle("cpu:1")
    'one record would take it 1.12 s, and the others are done in 1 s'
    """

    def __init__(self, sizes: Mapping[str, Sizes]) -> None:
        self._states = {name: _DeviceState(each) for name, each in sizes.items()}
        self._twice: set[int] = set()

    @property
    def names(self) -> tuple[str, ...]:
        """The devices that still take part."""
        return tuple(self._states)

    def sizes(self, name: str) -> Sizes:
        """Return what is known of a device."""
        return self._states[name].sizes

    def rate(self, name: str) -> float:
        """Return the records a second of a device while it worked, 0 before its first batch."""
        state = self._states[name]
        return state.records / state.busy_s if state.busy_s else 0.0

    def given(self, name: str) -> tuple[AssignedBatch, ...]:
        """Return the batches that a device has not done yet, the one it works on first."""
        return tuple(self._states[name].queue)

    def why_idle(self, name: str) -> str:
        """Return why a device received nothing when it last asked, '' where it received something."""
        return self._states[name].why_idle

    def end_s(self, left: float, now_s: float) -> float:
        """Return when everything should be done, infinite where nobody knows."""
        known = {name: state.sizes.law for name, state in self._states.items() if state.sizes.law is not None}
        if not known or math.isinf(left):
            return math.inf
        free = [self._states[name].free_s(now_s) for name in known]
        return max(max(free), finish_s([law for law in known.values() if law], free, left))

    def ask(self, name: str, left: float, now_s: float, insured: bool = False) -> int:
        """Return the size of the next batch of a device, 0 where it should wait.

        Parameters
        ----------
        left
            Records that nobody was given yet, infinite where unknown.
        insured
            Whether another device can take the batch over with what is left, where it turns out late.
        """
        state = self._states[name]
        wanted, law = state.sizes.wanted(), state.sizes.law
        if left <= 0 or len(state.queue) >= (1 if law is None or state.sizes.probing else _QUEUED):
            return 0
        if law is None and state.in_vain:
            return 0
        if law is None:
            return wanted if math.isinf(left) else min(wanted, math.ceil(left))
        known = [(other, each.sizes.law) for other, each in self._states.items() if each.sizes.law is not None]
        laws = [found for _, found in known if found is not None]
        free = [self._states[other].free_s(now_s) for other, _ in known]
        at = [other for other, _ in known].index(name)
        if soonest_s(laws, free, left) - free[at] > _AHEAD * max(law.best_s, law.seconds(wanted)):
            state.why_idle = ""
            return wanted
        size = self._near_the_end(state, wanted, laws, free, left, at, now_s)
        if size == 0 and insured and self._may_try(state, finish_s(laws, free, left) - now_s):
            return int(min(wanted, left // 2))
        return size

    def _may_try(self, state: _DeviceState, end_s: float) -> bool:
        """Return whether a device that seems too slow tries a larger batch: the next size may take no longer."""
        law = state.sizes.law
        idle = not state.in_vain and not state.queue and state.sizes.probing
        return idle and law is not None and law.points[-1][1] <= _TRY_FRAC * end_s

    def _near_the_end(
        self, state: _DeviceState, wanted: int, laws: list[Law], free: list[float], left: float, at: int, now_s: float
    ) -> int:
        law = laws[at]
        if state.queue and state.queue[0].expected_s > _LATE_S:
            return 0
        if now_s < state.ask_again_s:
            return 0
        size, state.why_idle = _part(laws, free, left, at, now_s)
        if size == 0:
            state.ask_again_s = now_s + _PAUSE_FRAC * (finish_s(laws, free, left) - now_s)
            return 0
        if size < law.points[0][0]:
            size = max(size, law.size_within(_TINY_S))
        if state.sizes.probing:
            own = law.capacity(finish_s(laws, free, left) - free[at])
            size = min(wanted, max(size, own))
        return int(min(size, left))

    def assign(self, name: str, ticket: int, size: float, now_s: float) -> None:
        """Record that a device was given a batch."""
        state = self._states[name]
        law = state.sizes.law
        if not state.queue:
            state.since_s = now_s
        state.queue.append(AssignedBatch(ticket, size, math.inf if law is None else law.seconds(size)))

    def done(self, name: str, ticket: int, now_s: float, seconds: float = 0.0, cold: bool = False) -> None:
        """Record that a device is through with a batch.

        Parameters
        ----------
        seconds
            Seconds, that the function took; 0 where it failed or was stopped, and nothing is learned.
        cold
            True for the first one of a worker.
        """
        state = self._states[name]
        size = next(given.size for given in state.queue if given.ticket == ticket)
        state.queue = [given for given in state.queue if given.ticket != ticket]
        state.since_s = now_s
        if seconds > 0.0:
            state.sizes.add(size, seconds, cold)
            state.records += size
            state.busy_s += seconds
            self._expect(state)

    def _expect(self, state: _DeviceState) -> None:
        """Report how long the batches take that were given before anything was known of the device."""
        law = state.sizes.law
        for given in state.queue:
            if math.isinf(given.expected_s) and law is not None:
                given.expected_s = law.seconds(given.size)

    def drop(self, name: str) -> tuple[int, ...]:
        """Leave a device out from now on; returns the tickets that it had."""
        for state in self._states.values():
            state.ask_again_s, state.in_vain = 0.0, False
        return tuple(given.ticket for given in self._states.pop(name).queue)

    def late(self, name: str, tickets: Sequence[int], left: float, now_s: float) -> tuple[int, ...]:
        """Return which batches of others a device takes over with what is left, where that is its last batch.

        Parameters
        ----------
        tickets
            Of batches that stand beside what is left, in the order in which they may be taken over.
        left
            Records that nobody was given yet.

        Notes
        -----
        A batch is late where its device would end it after this one has done it and all that is left. Where nothing
        is known of its device, it is late once it took 1.5 times as long as it would here. So a device that nobody
        knows costs the others nothing: they end as if it was not there. A device from which something was taken
        takes nothing in return, else two that are as fast would take one batch from each other without end.
        """
        law = self._states[name].sizes.law
        found: list[int] = []
        if law is None or left <= 0 or self._states[name].in_vain:
            return ()
        others = [(state, given) for other, state in self._states.items() if other != name for given in state.queue]
        held = {given.ticket: (state, given) for state, given in others}
        for ticket in tickets:
            if ticket not in held or ticket in self._twice:
                break
            state, given = held[ticket]
            left += given.size
            if not self._is_late(state, given, law, left, now_s):
                break
            found.append(ticket)
        return tuple(found)

    def _is_late(self, state: _DeviceState, given: AssignedBatch, mine: Law, left: float, now_s: float) -> bool:
        law = state.sizes.law
        if law is None or math.isinf(given.expected_s):
            return now_s - state.since_s > _PATIENCE * mine.seconds(given.size)
        end_s = next(end_s for each, end_s in self._ends(state, now_s, mine) if each is given)
        if given.size > _STRETCH * law.points[-1][0]:
            end_s += _UNSURE_FRAC * given.expected_s
        return end_s > now_s + mine.seconds(left)

    def taken_over(self, name: str, ticket: int, now_s: float) -> None:
        """Record that a batch was late, and that its records are given to another device."""
        self.done(name, ticket, now_s)
        self._states[name].in_vain = True

    def rescue(self, name: str, now_s: float) -> int | None:
        """Return the ticket of a batch that an idle device would end sooner than the one that has it.

        Notes
        -----
        A batch is run again once at most, where 1.1 times its time here ends well before its expected end there; or,
        where nobody knows that, once it has taken longer than it would here.
        """
        law = self._states[name].sizes.law
        if law is None or self._states[name].queue:
            return None
        late = [
            (end_s, given.ticket)
            for other, state in self._states.items()
            if other != name
            for given, end_s in self._ends(state, now_s, law)
            if given.ticket not in self._twice and end_s > now_s + _WORTH * law.seconds(given.size) + _LATE_S
        ]
        if not late:
            return None
        ticket = max(late)[1]
        self._twice.add(ticket)
        return ticket

    def _ends(self, state: _DeviceState, now_s: float, mine: Law) -> list[tuple[AssignedBatch, float]]:
        found, at_s = [], state.since_s
        for given in state.queue:
            at_s += given.expected_s
            overdue_s = max(0.0, now_s - at_s)
            known = not math.isinf(at_s) or now_s - state.since_s > mine.seconds(given.size)
            found.append((given, max(at_s, now_s + 0.5 * overdue_s) if known else now_s))
        return found


def _part(laws: list[Law], free: list[float], left: float, at: int, now_s: float) -> tuple[int, str]:
    """Return the size of a device's next batch, and where it is 0, why.

    Notes
    -----
    The device that would end first alone never refuses, so that somebody goes on. Any other one does where it
    would make the end sooner by less than 3 %: so much the measured curves may be off.
    """
    law = laws[at]
    end_s = finish_s(laws, free, left) - now_s
    alone = [finish_s([each], [begin], left) - now_s for each, begin in zip(laws, free, strict=True)]
    first = min(range(len(laws)), key=lambda number: (alone[number], number))
    size = guided_size(laws, free, left, at)
    if at == first:
        enough = size == 0 or alone[at] < _PAYS * end_s
        return guided_size([law], [free[at]], left, 0) if enough else size, ""
    if size == 0:
        return 0, f"one record would take it {law.seconds(1):.3g} s, and the others are done in {end_s:.3g} s"
    others = [number for number in range(len(laws)) if number != at]
    without_s = finish_s([laws[each] for each in others], [free[each] for each in others], left) - now_s
    if without_s < _PAYS * end_s:
        return 0, f"the others end in {without_s:.3g} s without it, in {end_s:.3g} s with it"
    return size, ""


class Span(NamedTuple):
    """Items that follow one another.

    Attributes
    ----------
    begin, end
        Number of the first one, and of the one after the last.
    """

    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


def beside(left: Span, works: Mapping[int, Span]) -> tuple[int, ...]:
    """Return the tickets of the batches that touch what is left, or one another, on either side; the nearest first.

    Parameters
    ----------
    works
        Items of the batches that are not done, by ticket.

    Examples
    --------
    >>> beside(Span(10, 20), {1: Span(8, 10), 2: Span(20, 24), 3: Span(24, 30), 4: Span(0, 7)})
    (2, 3, 1)
    """
    after = {span.begin: ticket for ticket, span in works.items()}
    before = {span.end: ticket for ticket, span in works.items()}
    found = []
    at = left.end
    while at in after:
        found.append(after[at])
        at = works[after[at]].end
    at = left.begin
    while at in before:
        found.append(before[at])
        at = works[before[at]].begin
    return tuple(found)
