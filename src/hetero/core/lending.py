"""The leases of a core: devices held together for a time, by whoever asked, for the tasks of the lease alone.

In: wishes for devices, and what becomes of them. Out: commands. It must not choose devices: the pool does.
"""

from __future__ import annotations

from hetero.core.nesting import Nesting
from hetero.core.state import Phase
from hetero.model.commands import Command, LeaseChanged
from hetero.model.events import LeaseAsked, LeaseRefused, LeaseReleased, LeaseRenewed
from hetero.model.leases import Lease, LeasePhase
from hetero.model.tasks import Failure

__all__ = ["Lending"]


class Lending(Nesting):
    """What becomes of leases.

    Notes
    -----
    A lease is granted although a task of others still runs on one of its devices: that one runs to its end, nothing
    more of others begins there. What waited there is placed anew.
    """

    def _lease_asked(self, event: LeaseAsked) -> list[Command]:
        if not self.pool.knows(event.lease):
            self.pool.ask(event.wish, event.at_s, event.lease)
        return []

    def _lease_renewed(self, event: LeaseRenewed) -> list[Command]:
        self.pool.advance(event.at_s)
        if not self.pool.ended(event.lease) and self.pool.lease(event.lease).phase is LeasePhase.ACTIVE:
            self.pool.renew(event.lease, event.at_s)
        return []

    def _lease_refused(self, event: LeaseRefused) -> list[Command]:
        if not self.pool.ended(event.lease):
            self.pool.refuse(event.lease, event.device, event.at_s, event.reason)
        return []

    def _lease_released(self, event: LeaseReleased) -> list[Command]:
        if not self.pool.ended(event.lease):
            self.pool.begin_release(event.lease)
            if self.pool.lease(event.lease).phase is LeasePhase.PENDING:
                self.pool.release(event.lease, event.at_s)
        return []

    def _lend(self, now_s: float, commands: list[Command]) -> None:
        """End what is given back and has no open tasks, tell the news, and ask to be woken when time changes more."""
        for lease in self.pool.leases:
            if lease.phase is LeasePhase.RELEASING and not self.leased[lease.id]:
                self.pool.release(lease.id, now_s)
        for lease in self.pool.news():
            facts = (str(lease.phase), lease.devices, lease.granted_s, lease.expires_s, lease.reason)
            commands.append(LeaseChanged(lease.id, *facts))
            if lease.over:
                self._end_tasks(lease, now_s, commands)
            elif lease.phase is LeasePhase.ACTIVE:
                self._clear(lease, now_s, commands)
            self.placer.offer_all()
        next_s = self.pool.next_s()
        if next_s is not None:
            self._wake(next_s, commands)

    def _clear(self, lease: Lease, now_s: float, commands: list[Command]) -> None:
        """Place anew what waits at the devices of a lease and is not of it."""
        for name in lease.devices:
            device = self.fleet.by_id[name]
            if any(not self.pool.admits(name, state.task.request.lease) for state in device.placed):
                self.placer.clear(device, now_s, commands)

    def _end_tasks(self, lease: Lease, now_s: float, commands: list[Command]) -> None:
        """Fail the tasks of a lease that is over which have not begun."""
        for state in list(self.tasks.values()) if self.leased[lease.id] else ():
            waits = state.phase in (Phase.READY, Phase.PLACED, Phase.HELD) and not state.recomputed
            if waits and state.task.request.lease == lease.id:
                self._take_off(state, now_s, commands)
                self._fail(state, Failure("nothing_fits", self._stranded(state)), commands)
