"""The lifecycle of leases: asked for, granted, given back, and what their tasks become.

In: what happened to a lease. Out: commands. Which devices a lease gets is decided by the pool in `leases`.
"""

from __future__ import annotations

from hetero.core.lifecycle import CoreState, TaskLifecycle
from hetero.core.state import Phase
from hetero.model.commands import Command, LeaseChanged
from hetero.model.events import LeaseAsked, LeaseRefused, LeaseReleased, LeaseRenewed
from hetero.model.leases import LeasePhase, LeaseState
from hetero.model.tasks import Failure

__all__ = ["LeaseLifecycle"]


class LeaseLifecycle:
    """What becomes of leases.

    Notes
    -----
    A lease is granted although a task of others still runs on one of its devices: that one runs to its end, nothing
    more of others begins there. What waited there is placed anew.
    """

    def __init__(self, core: CoreState, tasks: TaskLifecycle) -> None:
        self._lifecycle = tasks
        self._tasks = core.tasks
        self._leased = core.leased
        self._timer = core.timer
        self._fleet = core.fleet
        self._pool = core.pool
        self._placer = core.placer

    def asked(self, event: LeaseAsked) -> list[Command]:
        """Ask the pool for a lease."""
        if not self._pool.knows(event.lease):
            self._pool.ask(event.wish, event.at_s, event.lease)
        return []

    def renewed(self, event: LeaseRenewed) -> list[Command]:
        """Restart the time of an active lease."""
        self._pool.advance(event.at_s)
        if not self._pool.ended(event.lease) and self._pool.lease(event.lease).phase is LeasePhase.ACTIVE:
            self._pool.renew(event.lease, event.at_s)
        return []

    def refused(self, event: LeaseRefused) -> list[Command]:
        """Roll a lease back of which a device could not be had."""
        if not self._pool.ended(event.lease):
            self._pool.refuse(event.lease, event.device, event.at_s, event.reason)
        return []

    def released(self, event: LeaseReleased) -> list[Command]:
        """Start giving a lease back; one that still waits is over at once."""
        if not self._pool.ended(event.lease):
            self._pool.begin_release(event.lease)
            if self._pool.lease(event.lease).phase is LeasePhase.PENDING:
                self._pool.release(event.lease, event.at_s)
        return []

    def advance(self, now_s: float, commands: list[Command]) -> None:
        """End what is given back and has no open tasks, tell the news, and ask to be woken when time changes more."""
        for lease in self._pool.leases:
            if lease.phase is LeasePhase.RELEASING and not self._leased[lease.id]:
                self._pool.release(lease.id, now_s)
        for lease in self._pool.pop_changes():
            facts = (str(lease.phase), lease.devices, lease.granted_s, lease.expires_s, lease.reason)
            commands.append(LeaseChanged(lease.id, *facts))
            if lease.over:
                self._end_tasks(lease, now_s, commands)
            elif lease.phase is LeasePhase.ACTIVE:
                self._clear(lease, now_s, commands)
            self._placer.offer_all()
        next_s = self._pool.next_s()
        if next_s is not None:
            self._timer.wake(next_s, commands)

    def _clear(self, lease: LeaseState, now_s: float, commands: list[Command]) -> None:
        """Place anew what waits at the devices of a lease and is not of it."""
        for name in lease.devices:
            device = self._fleet.by_id[name]
            if any(not self._pool.admits(name, state.task.request.lease) for state in device.placed):
                self._placer.clear(device, now_s, commands)

    def _end_tasks(self, lease: LeaseState, now_s: float, commands: list[Command]) -> None:
        """Fail the tasks of a lease that is over which have not begun."""
        for state in list(self._tasks.values()) if self._leased[lease.id] else ():
            waits = state.phase in (Phase.READY, Phase.PLACED, Phase.HELD)
            if waits and state.task.request.lease == lease.id and not state.is_again:
                self._lifecycle.take_off(state, now_s, commands)
                self._lifecycle.fail(state, Failure("nothing_fits", self._lifecycle.why_stranded(state)), commands)
