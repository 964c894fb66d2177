"""Leases for programs: devices handed out together for a time, of a pool or of a Context.

In: wishes in words, from any thread. Out: leases, given back by a `with` block, on which a Context runs functions. It
does not decide who gets what: the pool of the core does.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

from hetero.backends.registry import refuse_unknown
from hetero.catalog.load import find
from hetero.catalog.values import DeviceSpec
from hetero.core.leases import LeasePool
from hetero.floor.clock import monotonic_s
from hetero.floor.errors import BadValueError, DeviceError, NothingFitsError, TaskTimeoutError
from hetero.model.device import Device, DeviceStatus
from hetero.model.leases import LeasePhase
from hetero.model.leases import LeaseState as LeaseValue
from hetero.model.tasks import Request
from hetero.session.lease_backend import LeaseBackend, OwnLeases
from hetero.session.options import LeaseOptions, lease_request, shows_lease_options
from hetero.session.tasks import TaskFunction, as_task

if TYPE_CHECKING:
    from hetero.model.fabric import Fabric
    from hetero.model.topology import Topology
    from hetero.session.context import Context
    from hetero.session.futures import Future, R

__all__ = [
    "ContextLease",
    "ContextLeases",
    "Lease",
    "LeasingPool",
    "Pool",
    "PooledDevice",
]


class PooledDevice:
    """A device of a pool: what it is, how it does, and a part of it for oneself.

    Attributes
    ----------
    device
        The value behind it.
    """

    def __init__(self, pool: LeasingPool, device: Device) -> None:
        self._pool, self.device = pool, device
        self._own: list[Lease] = []

    @property
    def id(self) -> str:
        """As in 'h0/cuda:0'."""
        return self.device.id

    @property
    def type(self) -> str:
        """'CPU', 'GPU', …; compares without regard to case."""
        return self.device.type

    @property
    def spec(self) -> DeviceSpec | None:
        """What the catalog knows of it, None where it knows no device of that name."""
        try:
            return find(self.device.name)
        except BadValueError:
            return None

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What the catalog says that it can do, as in 'fp8'; empty where nothing is known."""
        return self.spec.capabilities if self.spec else ()

    @property
    def status(self) -> DeviceStatus:
        """Memory, load, temperature and power now; None where unknown."""
        from hetero.session.fleet_speed import status

        return status([self.device], sample_s=0.0)[0]

    @property
    def free(self) -> bool:
        """Return whether no lease holds a part of it."""
        return all(self.id not in lease.devices for lease in self._pool.leases)

    @shows_lease_options
    def allocate(self, **options: Unpack[LeaseOptions]) -> Lease:
        """Lease a part of this device, by the options of `Pool.lease`; waits until it is free."""
        options["on"] = self.id
        lease = self._pool.lease(**options)
        self._own.append(lease)
        return lease

    def release(self) -> None:
        """Release all that was allocated through this object."""
        while self._own:
            self._own.pop().release()

    def __repr__(self) -> str:
        return f"<{self.type} {self.id} {'free' if self.free else 'leased'}>"


class Lease:
    """Devices held together; a `with` block gives them back.

    Attributes
    ----------
    number
        In its pool.
    """

    def __init__(self, pool: LeasingPool, number: int) -> None:
        self._pool, self.number = pool, number

    @property
    def value(self) -> LeaseValue:
        """The lease as it stands now."""
        return self._pool.get(self.number)

    @property
    def phase(self) -> LeasePhase:
        """'pending', 'active', 'releasing', 'released' or 'failed'."""
        return self.value.phase

    @property
    def devices(self) -> tuple[PooledDevice, ...]:
        """The devices that it holds."""
        return tuple(self._pool.device(name) for name in self.value.devices)

    def wait(self, timeout: float | None = None) -> Lease:
        """Wait until the devices are there.

        Raises
        ------
        NothingFitsError
            They never can be, or were not within the timeout that was asked for.
        TaskTimeoutError
            They were not within `timeout` seconds.
        """
        self._pool.wait(self.number, timeout)
        return self

    def renew(self) -> None:
        """Restart its time from now.

        Raises
        ------
        BadValueError
            It is over.
        """
        self._pool.renew(self.number)

    def release(self) -> None:
        """Release the devices; safe to call twice."""
        self._pool.release(self.number)

    def __enter__(self) -> Self:
        self.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<lease {self.number} {self.phase}: {', '.join(self.value.devices) or self.value.reason or 'waits'}>"


class LeasingPool:
    """What can be done with a pool, whoever keeps its leases."""

    def __init__(self, backend: LeaseBackend) -> None:
        self._backend, self._changed = backend, backend.changed
        self._devices: dict[str, PooledDevice] = {}

    @property
    def devices(self) -> tuple[PooledDevice, ...]:
        """The devices that are not lost."""
        there = self._backend.devices()
        with self._changed:
            return tuple(self._pooled(device) for device in there)

    @property
    def leases(self) -> tuple[LeaseValue, ...]:
        """The leases that are not over, as they stand."""
        with self._changed:
            return self._backend.leases()

    def device(self, name: str) -> PooledDevice:
        """Return the device of that id.

        Examples
        --------
        >>> import hetero
        >>> pool = hetero.cluster.Pool("2xnull")
        >>> pool.device("h0/null:1").free
        True
        """
        if name not in self._devices and name not in {device.id for device in self.devices}:
            raise BadValueError(f"the pool has no device {name!r}", remedy=f"it has: {', '.join(self._devices)}")
        return self._devices[name]

    @shows_lease_options
    def ask(self, **options: Unpack[LeaseOptions]) -> Lease:
        """Ask for a lease without waiting for it; options as for `lease`.

        Examples
        --------
        >>> import hetero
        >>> pool = hetero.cluster.Pool("2xnull")
        >>> first, second = pool.ask(count=2), pool.ask(count=1)
        >>> str(first.phase), str(second.phase)
        ('active', 'pending')
        """
        request = lease_request(options)
        for option in ("on", "not_on"):
            refuse_unknown(option, getattr(request, option), [each.device for each in self._devices.values()])
        with self._changed:
            return Lease(self, self._backend.ask(request))

    @shows_lease_options
    def lease(self, prepare: Callable[[PooledDevice], object] | None = None, **options: Unpack[LeaseOptions]) -> Lease:
        """Lease devices, and wait until all of them are there.

        Parameters
        ----------
        prepare
            Called for each device; where it raises, the whole lease is rolled back and tried without that device.
        options
            `on`, `not_on` words of devices; `count`; `memory` of each, as in '8GB'; `compute`, the share of each
            device's time, 1 by default; `min_cores`; `exclusive`; `together`, 'host', 'rack', 'numa', 'pcie', 'nvlink'
            or 'link:KIND'; `workload`, a name; `apart`, names of workloads to keep away from, and `apart_by` 'device'
            or one of the places; `timeout` of the wait; `expires`, how long it is held without `renew`; `priority`.

        Raises
        ------
        NothingFitsError
            The devices can never meet it, or did not in time; the message gives the reason.
        BadValueError
            An option or its value is not allowed.

        Examples
        --------
        >>> import hetero
        >>> pool = hetero.cluster.Pool("2xnull")
        >>> with pool.lease(count=2) as lease:
        ...     [device.id for device in lease.devices]
        ['h0/null:0', 'h0/null:1']
        """
        found = self.ask(**options)
        try:
            while True:
                found.wait()
                failed = _prepared(found, prepare)
                if failed is None:
                    return found
                with self._changed:
                    self._backend.refuse(found.number, *failed)
        except BaseException:
            found.release()
            raise

    def get(self, number: int) -> LeaseValue:
        """Return a lease as it stands now.

        Examples
        --------
        >>> import hetero
        >>> pool = hetero.cluster.Pool("2xnull")
        >>> lease = pool.ask(count=1)
        >>> pool.get(lease.number).devices
        ('h0/null:0',)
        """
        with self._changed:
            return self._backend.get(number)

    def look(self, number: int) -> LeaseValue:
        """Return a lease as it stands now: `get` under the name of the last version.

        Examples
        --------
        >>> import hetero
        >>> pool = hetero.cluster.Pool("1xnull")
        >>> pool.look(pool.ask(count=1).number) == pool.get(1)
        True
        """
        warnings.warn("Pool.look is now Pool.get; the old name goes in the next version", DeprecationWarning, 2)
        return self.get(number)

    def renew(self, number: int) -> None:
        """Restart a lease's time from now.

        Examples
        --------
        >>> import hetero
        >>> pool = hetero.cluster.Pool("2xnull")
        >>> lease = pool.ask(count=1, expires="1h")
        >>> pool.renew(lease.number)
        >>> str(lease.phase)
        'active'
        """
        with self._changed:
            self._backend.renew(number)

    def release(self, number: int) -> None:
        """Release a lease.

        Examples
        --------
        >>> import hetero
        >>> pool = hetero.cluster.Pool("2xnull")
        >>> lease = pool.ask(count=1)
        >>> pool.release(lease.number)
        >>> str(lease.phase)
        'released'
        """
        with self._changed:
            self._backend.release(number)

    def wait(self, number: int, timeout: float | None = None) -> None:
        """Wait until a lease is active; see `Lease.wait`.

        Examples
        --------
        >>> import hetero
        >>> pool = hetero.cluster.Pool("2xnull")
        >>> lease = pool.ask(count=1)
        >>> pool.wait(lease.number, timeout=10)
        >>> str(lease.phase)
        'active'
        """
        end_s = None if timeout is None else monotonic_s() + timeout
        with self._changed:
            while (lease := self._backend.get(number)).phase is LeasePhase.PENDING:
                left_s = None if end_s is None else end_s - monotonic_s()
                if left_s is not None and left_s <= 0.0:
                    raise TaskTimeoutError(f"lease {number} was not met within {timeout:g} s", remedy="wait longer")
                waits = [wait_s for wait_s in (left_s, self._backend.advance()) if wait_s is not None]
                self._changed.wait(min(waits, default=None))
        if lease.phase is LeasePhase.FAILED:
            raise NothingFitsError(f"no lease: {lease.reason}", remedy="ask for less, or for other devices")
        if lease.over:
            raise DeviceError(f"lease {number} is over", remedy="ask for a new one")

    def _pooled(self, device: Device) -> PooledDevice:
        return self._devices.setdefault(device.id, PooledDevice(self, device))


class Pool(LeasingPool):
    """Devices that threads of a program lease, all that a lease asks for or nothing.

    Parameters
    ----------
    devices
        A fleet in one line, as in '1xcpu,4xnull', or devices; default: those of the topology, where it names devices,
        else those of this host.
    topology
        A topology file or what `hetero.cluster.topology` gives, for leases together on a link or at a place.

    Examples
    --------
    >>> pool = Pool("2xnull")
    >>> with pool.lease(count=2) as lease:
    ...     [device.id for device in lease.devices], pool.device("h0/null:0").free
    (['h0/null:0', 'h0/null:1'], False)
    >>> pool.device("h0/null:0").free
    True
    """

    def __init__(
        self, devices: str | Sequence[Device] | None = None, topology: Topology | Fabric | str | Path | None = None
    ) -> None:
        from hetero.session.fleet import placed

        self._own = OwnLeases(LeasePool(*placed(devices, topology)))
        super().__init__(self._own.backend)

    def lose(self, device: str, reason: str = "") -> None:
        """Record that a device is gone: leases that hold it have failed.

        Examples
        --------
        >>> import hetero
        >>> pool = hetero.cluster.Pool("2xnull")
        >>> lease = pool.ask(on="null:1")
        >>> pool.lose("h0/null:1", "unplugged")
        >>> str(lease.phase), len(pool.devices)
        ('failed', 1)
        """
        with self._changed:
            self._own.pool.lose(device, monotonic_s(), reason)
            self._own.report()

    def restore(self, device: str) -> None:
        """Record that a device is back.

        Examples
        --------
        >>> import hetero
        >>> pool = hetero.cluster.Pool("2xnull")
        >>> pool.lose("h0/null:1")
        >>> pool.restore("h0/null:1")
        >>> len(pool.devices)
        2
        """
        with self._changed:
            self._own.pool.restore(device, monotonic_s())
            self._own.report()


def _prepared(lease: Lease, prepare: Callable[[PooledDevice], object] | None) -> tuple[str, str] | None:
    if prepare is None:
        return None
    for device in lease.devices:
        try:
            prepare(device)
        except Exception as error:  # noqa: BLE001  whatever the user's function raises
            return device.id, f"{device.id} could not be prepared: {type(error).__name__}: {error}"
    return None


class ContextLeases:
    """The leases of a Context."""

    def __init__(self, context: Context) -> None:
        self._context, self._driver = weakref.ref(context), context.driver
        self._pool = LeasingPool(LeaseBackend.of_driver(context.driver))

    def lease(self, prepare: Callable[[PooledDevice], object] | None, options: LeaseOptions) -> ContextLease:
        """Lease devices of the fleet, and wait for them."""
        found = self._pool.lease(prepare, **options)
        return ContextLease(self._pool, found.number, self._context)

    def around(self, name: str, signature: str, request: Request) -> Request:
        """Return the request of a task: one that names devices of a lease belongs to it.

        Raises
        ------
        NothingFitsError
            Every device that can run it is leased: it could wait for ever for who hands it in.
        """
        held = {lease.id: lease.devices for lease in self._pool.leases if lease.phase is LeasePhase.ACTIVE}
        if not held or request.lease:
            return request
        for number, devices in held.items():
            if request.on and set(request.on) <= set(devices):
                return _leased(request, number)
        taken = {device for devices in held.values() for device in devices}
        obstacles = self._driver.ask(lambda machine: machine.obstacles(signature, request))
        able = [device for device, reason in obstacles if not reason]
        if able and len(set(able) - taken) < request.devices:
            raise NothingFitsError(
                f"no device is left for {name}: {', '.join(able)} {'are' if len(able) > 1 else 'is'} leased",
                remedy="run it by the lease, as in lease.run(f, x), or give the lease back first",
            )
        return request


@lru_cache(maxsize=4096)
def _leased(request: Request, number: int) -> Request:
    """Return a request that belongs to a lease; the same object each time, since measured times hang on it."""
    return replace(request, lease=number)


class ContextLease(Lease):
    """A lease of a Context's devices, on which it runs functions; it ends once its tasks have."""

    def __init__(self, pool: LeasingPool, number: int, context: weakref.ref[Context]) -> None:
        super().__init__(pool, number)
        self._context = context
        self._tasks: dict[TaskFunction[..., object], TaskFunction[..., object]] = {}

    def submit(self, function: Callable[..., R], /, *args: object, **kwargs: object) -> Future[R]:
        """Submit one call that runs on a device of the lease.

        Raises
        ------
        DeviceError
            The lease is over, or is being given back.
        """
        value, context = self.value, self._context()
        if value.phase is not LeasePhase.ACTIVE or context is None:
            why = f": {value.reason}" if value.reason else ""
            raise DeviceError(f"lease {self.number} is {value.phase}{why}", remedy="ask for a new one")
        task = as_task(function)
        if task not in self._tasks:
            mine = self._tasks[task] = task.options(on=value.devices)
            mine.request = _leased(mine.request, self.number)
        return context._submit_call(self._tasks[task], args, kwargs)

    def run(self, function: Callable[..., R], /, *args: object, **kwargs: object) -> R:
        """Run one call on a device of the lease, and give its result."""
        return self.submit(function, *args, **kwargs).result()
