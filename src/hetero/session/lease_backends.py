"""Where the leases of a pool are kept: the program itself, or the core that schedules a Context.

In: requests, and what is done with leases. Out: leases as they stand. It must not choose devices: in both cases
`hetero.core.leases.LeasePool` does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from threading import Condition
from typing import Protocol

from hetero.core.leases import REMEMBERED, LeasePool
from hetero.core.state import DevicePhase
from hetero.drive.live import Driver
from hetero.floor.clock import monotonic_s
from hetero.floor.errors import BadValueError
from hetero.model.commands import LeaseChanged
from hetero.model.device import Device
from hetero.model.events import LeaseAsked, LeaseRefused, LeaseReleased, LeaseRenewed
from hetero.model.leases import Lease, LeasePhase, LeaseRequest
from hetero.model.topology import Topology

__all__ = ["Driven", "LeaseBackend", "Own"]


class LeaseBackend(Protocol):
    """What a pool asks of whoever keeps its leases; each call is made while `changed` is held."""

    changed: Condition

    def devices(self) -> tuple[Device, ...]:
        """Return the devices that are not lost."""
        ...

    def leases(self) -> tuple[Lease, ...]:
        """Return the leases that are not over."""
        ...

    def look(self, number: int) -> Lease:
        """Return a lease as it stands now."""
        ...

    def ask(self, request: LeaseRequest) -> int:
        """Ask for a lease and give its number."""
        ...

    def renew(self, number: int) -> None:
        """Let the time of a lease run again from now."""
        ...

    def refuse(self, number: int, device: str, reason: str) -> None:
        """Record that a device of a lease could not be had after all."""
        ...

    def release(self, number: int) -> None:
        """Release a lease."""
        ...

    def next_s(self) -> float | None:
        """Return the seconds until time alone changes something, None where it does not or a `notify_all` will tell."""
        ...


class Own:
    """Keeps leases by a pool of its own, on the program's clock."""

    def __init__(self, devices: Sequence[Device], topology: Topology | None) -> None:
        self.changed = Condition()
        self.pool = LeasePool(devices, topology)

    def devices(self) -> tuple[Device, ...]:
        """Return the devices that are not lost."""
        return self.pool.devices

    def leases(self) -> tuple[Lease, ...]:
        """Return the leases that are not over."""
        self.pool.advance(monotonic_s())
        return self.pool.leases

    def look(self, number: int) -> Lease:
        """Return a lease as it stands now."""
        self.pool.advance(monotonic_s())
        return self.pool.lease(number)

    def ask(self, request: LeaseRequest) -> int:
        """Ask for a lease and give its number."""
        return self.pool.ask(request, monotonic_s())

    def renew(self, number: int) -> None:
        """Let the time of a lease run again from now."""
        self.pool.renew(number, monotonic_s())

    def refuse(self, number: int, device: str, reason: str) -> None:
        """Record that a device of a lease could not be had after all."""
        self.pool.refuse(number, device, monotonic_s(), reason)
        self.changed.notify_all()

    def release(self, number: int) -> None:
        """Release a lease."""
        self.pool.release(number, monotonic_s())
        self.changed.notify_all()

    def next_s(self) -> float | None:
        """Return the seconds until time alone changes something."""
        next_s = self.pool.next_s()
        return None if next_s is None else max(0.001, next_s - monotonic_s())


class Driven:
    """Keeps what the core that schedules a Context tells of its leases."""

    def __init__(self, driver: Driver) -> None:
        self.changed = Condition()
        self._driver = driver
        self._numbers = count(1)
        self._leases: dict[int, Lease] = {}
        self._over: OrderedDict[int, Lease] = OrderedDict()
        driver.on_leases(self._told)

    def devices(self) -> tuple[Device, ...]:
        """Return the devices that are not lost."""
        states = tuple(self._driver.machine.fleet.states)
        return tuple(state.device for state in states if state.phase is not DevicePhase.GONE)

    def leases(self) -> tuple[Lease, ...]:
        """Return the leases that are not over."""
        return tuple(self._leases.values())

    def look(self, number: int) -> Lease:
        """Return a lease as it stands now."""
        lease = self._leases.get(number) or self._over.get(number)
        if lease is None:
            raise BadValueError(f"there is no lease {number}", remedy="use the number that 'ask' gave")
        return lease

    def ask(self, request: LeaseRequest) -> int:
        """Ask for a lease and give its number."""
        number, now_s = next(self._numbers), self._driver.now_s()
        self._leases[number] = Lease(number, request, asked_s=now_s)
        self._driver.lend(LeaseAsked(now_s, number, request))
        return number

    def renew(self, number: int) -> None:
        """Let the time of a lease run again from now."""
        lease = self.look(number)
        if lease.phase is not LeasePhase.ACTIVE:
            raise BadValueError(f"lease {number} is {lease.phase}", remedy="ask for a new one")
        self._driver.lend(LeaseRenewed(self._driver.now_s(), number))

    def refuse(self, number: int, device: str, reason: str) -> None:
        """Record that a device of a lease could not be had after all."""
        lease = self.look(number)
        if lease.phase is LeasePhase.ACTIVE:
            self._leases[number] = replace(lease, phase=LeasePhase.PENDING, devices=())
            self._driver.lend(LeaseRefused(self._driver.now_s(), number, device, reason))

    def release(self, number: int) -> None:
        """Release a lease; it ends once its tasks have."""
        lease = self.look(number)
        if lease.phase is LeasePhase.ACTIVE:
            self._leases[number] = replace(lease, phase=LeasePhase.RELEASING)
        if not lease.over:
            self._driver.lend(LeaseReleased(self._driver.now_s(), number))

    def next_s(self) -> float | None:
        """Return None: the core tells what time changes, as long as it is there."""
        self._driver.now_s()
        return None

    def _told(self, news: LeaseChanged) -> None:
        with self.changed:
            known = self._leases.pop(news.lease, None)
            if known is None:
                return
            number, phase, devices, granted_s, expires_s, reason = news
            lease = replace(known, phase=LeasePhase(phase), devices=devices, reason=reason)
            lease = replace(lease, granted_s=granted_s, expires_s=expires_s)
            (self._over if lease.over else self._leases)[number] = lease
            if len(self._over) > REMEMBERED:
                self._over.popitem(last=False)
            self.changed.notify_all()
