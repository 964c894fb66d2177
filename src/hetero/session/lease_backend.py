"""The leases of a pool or of a Context, as whoever grants them tells of them.

In: requests, from any thread; what becomes of leases. Out: events for who grants them, and the leases as they stand. It
does not decide who gets what: the pool of the core does.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from threading import Condition
from typing import TYPE_CHECKING

from hetero.core.leases import REMEMBERED, LeasePool
from hetero.floor.clock import monotonic_s
from hetero.floor.errors import BadValueError
from hetero.model.commands import LeaseChanged
from hetero.model.device import Device
from hetero.model.events import LeaseAsked, LeaseRefused, LeaseReleased, LeaseRenewed
from hetero.model.leases import LeasePhase, LeaseRequest
from hetero.model.leases import LeaseState as LeaseValue

if TYPE_CHECKING:
    from hetero.drive.live import Driver

__all__ = ["LeaseBackend", "OwnLeases"]

LeaseEvent = LeaseAsked | LeaseRenewed | LeaseRefused | LeaseReleased


class LeaseBackend:
    """The leases of a pool or of a Context, as whoever grants them has told so far.

    All methods but `on_change` are called while `changed` is held, and `devices` while it is not.

    Parameters
    ----------
    post
        Takes the events by which leases are asked for, renewed, refused and released.
    now_s
        Clock of those events, s.
    devices
        Returns the devices that are not lost.
    advance
        Lets time pass, and returns in how many s time alone changes something next: None where it does not, or where
        news of it come by themselves.

    Attributes
    ----------
    changed
        Notified when a lease has changed.
    """

    def __init__(
        self,
        post: Callable[[LeaseEvent], None],
        now_s: Callable[[], float],
        devices: Callable[[], tuple[Device, ...]],
        advance: Callable[[], float | None],
    ) -> None:
        self.changed = Condition()
        self.devices = devices
        self.advance = advance
        self._post = post
        self._now_s = now_s
        self._numbers = count(1)
        self._leases: dict[int, LeaseValue] = {}
        self._over: OrderedDict[int, LeaseValue] = OrderedDict()
        self._news: deque[LeaseChanged] = deque()

    @classmethod
    def of_driver(cls, driver: Driver) -> LeaseBackend:
        """Return the backend of the core that schedules a Context."""

        def advance() -> None:
            driver.now_s()  # raises where the driver has been left, as in a forked process

        backend = cls(driver.lend, driver.now_s, driver.present, advance)
        driver.on_leases(backend.on_change)
        return backend

    def leases(self) -> tuple[LeaseValue, ...]:
        """Return the leases that are not over, in the order of arrival."""
        self.advance()
        self._settle()
        return tuple(self._leases.values())

    def get(self, number: int) -> LeaseValue:
        """Return a lease as it stands now."""
        self.advance()
        self._settle()
        lease = self._leases.get(number) or self._over.get(number)
        if lease is None:
            raise BadValueError(f"there is no lease {number}", remedy="use the number that 'ask' gave")
        return lease

    def ask(self, request: LeaseRequest) -> int:
        """Ask for a lease and return its number."""
        number, now_s = next(self._numbers), self._now_s()
        self._leases[number] = LeaseValue(number, request, asked_s=now_s)
        try:
            self._post(LeaseAsked(now_s, number, request))
        except BaseException:
            self._leases.pop(number, None)
            raise
        return number

    def renew(self, number: int) -> None:
        """Restart the time of a lease from now."""
        lease = self.get(number)
        if lease.phase is not LeasePhase.ACTIVE:
            raise BadValueError(f"lease {number} is {lease.phase}", remedy="ask for a new one")
        self._post(LeaseRenewed(self._now_s(), number))

    def refuse(self, number: int, device: str, reason: str) -> None:
        """Report that a device of a lease could not be had after all: the lease waits for others."""
        lease = self.get(number)
        if lease.phase is LeasePhase.ACTIVE:
            self._leases[number] = replace(lease, phase=LeasePhase.PENDING, devices=())
            self._post(LeaseRefused(self._now_s(), number, device, reason))

    def release(self, number: int) -> None:
        """Release a lease; one of a Context ends once its tasks have."""
        lease = self.get(number)
        if lease.phase is LeasePhase.ACTIVE:
            self._leases[number] = replace(lease, phase=LeasePhase.RELEASING)
        if not lease.over:
            self._post(LeaseReleased(self._now_s(), number))

    def on_change(self, news: LeaseChanged) -> Callable[[], None]:
        """Note what became of a lease, from any thread, without waiting; return what tells whoever waits for it."""
        self._news.append(news)
        return self._settle

    def _settle(self) -> None:
        """Take in what was noted, in its order; this may wait for `changed`."""
        with self.changed:
            while self._news:
                self._take_in(self._news.popleft())

    def _take_in(self, news: LeaseChanged) -> None:
        known = self._leases.get(news.lease)
        if known is None:
            return
        number, phase, devices, granted_s, expires_s, reason = news
        lease = replace(known, phase=LeasePhase(phase), devices=devices, reason=reason)
        lease = replace(lease, granted_s=granted_s, expires_s=expires_s)
        if lease.over:
            del self._leases[number]
            self._over[number] = lease
        else:
            self._leases[number] = lease
        if len(self._over) > REMEMBERED:
            self._over.popitem(last=False)
        self.changed.notify_all()


class OwnLeases:
    """Grants the leases of a pool without a Context, on the program's clock; all calls come while `changed` is held."""

    def __init__(self, pool: LeasePool) -> None:
        self.pool = pool
        self.backend = LeaseBackend(self._take, monotonic_s, self._devices, self._advance)

    def _devices(self) -> tuple[Device, ...]:
        with self.backend.changed:
            return tuple(self.pool.devices)

    def _take(self, event: LeaseEvent) -> None:
        at_s, number = event[:2]
        if isinstance(event, LeaseAsked):
            self.pool.ask(event.wish, at_s, number)
        elif isinstance(event, LeaseRenewed):
            self.pool.renew(number, at_s)
        elif isinstance(event, LeaseRefused):
            self.pool.refuse(number, event.device, at_s, event.reason)
        else:
            self.pool.release(number, at_s)
        self.report()

    def _advance(self) -> float | None:
        self.pool.advance(monotonic_s())
        self.report()
        next_s = self.pool.next_s()
        return None if next_s is None else max(0.001, next_s - monotonic_s())

    def report(self) -> None:
        """Report to the backend what has changed."""
        for lease in self.pool.pop_changes():
            facts = (str(lease.phase), lease.devices, lease.granted_s, lease.expires_s, lease.reason)
            self.backend.on_change(LeaseChanged(lease.id, *facts))()
