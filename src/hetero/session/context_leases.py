"""The leases of a Context: devices that the tasks of others keep away from, as long as they are held.

In: wishes in words, and calls. Out: leases on which functions run. It must not keep a lease itself: the core that
schedules the Context does.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hetero.floor.errors import DeviceError, NothingFitsError
from hetero.model.leases import LeasePhase
from hetero.model.tasks import Request
from hetero.session.keepers import Driven
from hetero.session.leases import Lease, LeasingPool
from hetero.session.tasks import TaskFunction, as_task

if TYPE_CHECKING:
    from hetero.session.context import Context
    from hetero.session.futures import Future

__all__ = ["ContextLease", "ContextLeases"]


class ContextLeases:
    """The leases of a Context."""

    def __init__(self, context: Context) -> None:
        self._context, self._driver = weakref.ref(context), context.driver
        self._pool = LeasingPool(Driven(context.driver))

    def lease(self, options: dict[str, Any]) -> ContextLease:
        """Lease devices of the fleet, and wait for them."""
        found = self._pool.lease(**options)
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
        able = [device for device, reason in self._driver.machine.obstacles(signature, request) if not reason]
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
        self._tasks: dict[TaskFunction[..., Any], TaskFunction[..., Any]] = {}

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
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
        return context.submit_call(self._tasks[task], args, kwargs)

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run one call on a device of the lease, and give its result."""
        return self.submit(function, *args, **kwargs).result()
