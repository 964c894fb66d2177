"""The leases of a simulated program: asked for in time, with the tasks that run on their devices.

In: wishes with their times, and what the core tells of them. Out: events for the core, and tasks to hand in.
It must not choose devices: the core's pool does, as it does for a Context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import NamedTuple

from hetero.drive.sim_values import LeaseNews, SimLease, SimTask
from hetero.floor.errors import BadValueError
from hetero.model.commands import LeaseChanged
from hetero.model.events import Event, LeaseAsked, LeaseReleased
from hetero.model.leases import LeasePhase

__all__ = ["LeaseActions", "SimLeases"]


class LeaseActions(NamedTuple):
    """What the simulation lets its leases do.

    Attributes
    ----------
    at : puts a call into the queue, so many s from now
    handle : hands an event to the core
    submit : hands in a task
    now_s : gives the time
    """

    at: Callable[[float, Callable[[], None]], None]
    handle: Callable[[Event], None]
    submit: Callable[[SimTask], None]
    now_s: Callable[[], float]


class SimLeases:
    """Asks for leases, hands in their tasks once they are granted, and gives them back.

    Attributes
    ----------
    open : leases that are not over, those among them that are not asked for yet
    told : what was told of each, in order

    Raises
    ------
    BadValueError
        A lease would be held for ever.
    """

    def __init__(self, leases: Sequence[SimLease], actions: LeaseActions) -> None:
        self._actions = actions
        self._plans = {lease.number: lease for lease in leases}
        self.open = len(leases)
        self.told: dict[int, list[LeaseNews]] = {}
        for lease in leases:
            if lease.held_s == inf and not lease.wish.lease_s:
                raise BadValueError(
                    f"lease {lease.number} is never given back", remedy="give held_s, or a wish with lease_s"
                )

    def begin(self) -> None:
        """Put the requests into the queue."""
        for lease in self._plans.values():
            self._actions.at(lease.at_s, partial(self._ask, lease))

    def _ask(self, lease: SimLease) -> None:
        self._actions.handle(LeaseAsked(self._actions.now_s(), lease.number, lease.wish))

    def changed(self, news: LeaseChanged) -> None:
        """Record a lease's state; submit its tasks when it is first granted."""
        told = self.told.setdefault(news.lease, [])
        told.append(LeaseNews(self._actions.now_s(), LeasePhase(news.phase), news.devices, news.reason))
        if told[-1].phase in (LeasePhase.RELEASED, LeasePhase.FAILED):
            self.open -= 1
        elif sum(one.phase is LeasePhase.ACTIVE for one in told) == 1 and told[-1].phase is LeasePhase.ACTIVE:
            self._granted(self._plans[news.lease])

    def _granted(self, lease: SimLease) -> None:
        last_s = 0.0
        for entry in lease.tasks:
            request = replace(entry.task.request, lease=lease.number)
            mine = entry._replace(task=entry.task._replace(request=request))
            self._actions.at(entry.at_s, partial(self._actions.submit, mine))
            last_s = max(last_s, entry.at_s)
        if lease.held_s < inf:
            self._actions.at(max(last_s, lease.held_s), partial(self._release, lease.number))

    def _release(self, number: int) -> None:
        self._actions.handle(LeaseReleased(self._actions.now_s(), number))
