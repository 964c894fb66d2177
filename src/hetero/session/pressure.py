"""Asking for more devices: a program is told when its fleet needs long for what is open, and what more would change.

In: an open Context, a function. Out: calls of that function with a `Pressure`. It must not ask anybody for a device:
that is the program's.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hetero.floor.errors import BadValueError, did_you_mean
from hetero.floor.units import parse_seconds
from hetero.plan.bounds.makespan import lower_bound

if TYPE_CHECKING:
    from hetero.core.machine import Machine
    from hetero.model.tasks import Task
    from hetero.session.context import Context

__all__ = ["Pressure", "PressureWatch", "on_pressure", "pressure"]

_SAMPLE = 512
_ROUNDS = 29
"""Of the bound: so many settle the load, without the search that proves a little more."""


class Pressure:
    """How long a fleet needs for what is open; made by `pressure`.

    Attributes
    ----------
    tasks
        That are open.
    seconds
        Seconds that the fleet needs for them at least, as far as times are known.
    devices
        Their ids.

    Examples
    --------
    >>> import hetero, time
    >>> with hetero.Context(devices="1xcpu", isolation="thread", history=False) as ctx:
    ...     _ = ctx.run(time.sleep, 0.01)
    ...     futures = [ctx.submit(time.sleep, 0.01) for _ in range(20)]
    ...     found = hetero.cluster.pressure(ctx)
    >>> found.devices, found.tasks > 0, found.seconds > 0.0
    (('h0/cpu:0',), True, True)
    """

    def __init__(self, tasks: int, devices: tuple[str, ...], table: NDArray[np.float64]) -> None:
        self.tasks = tasks
        self.devices = devices
        self._table = table
        self.seconds = self.what_if({})

    def what_if(self, more: Mapping[str, int]) -> float:
        """Return the seconds with more devices: so many like each of those named.

        Parameters
        ----------
        more
            Number by id, >= 0, as in {'h1/cuda:0': 2}.

        Raises
        ------
        BadValueError
            The fleet has no device of this id, or the number is no whole number from 0.

        Examples
        --------
        >>> import numpy as np
        >>> found = Pressure(100, ("h0/cpu:0",), np.full((100, 1), 0.5))
        >>> found.seconds, found.what_if({"h0/cpu:0": 1})
        (50.0, 25.0)
        """
        columns = list(range(len(self.devices)))
        for device, count in more.items():
            if device not in self.devices:
                raise BadValueError(
                    f"the fleet has no device {device!r}{did_you_mean(device, self.devices)}",
                    remedy=f"it has: {', '.join(self.devices)}",
                )
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise BadValueError(f"{count!r} more of {device} is none", remedy="give a whole number from 0")
            columns += [self.devices.index(device)] * count
        able = self._table[np.isfinite(self._table).any(axis=1)]
        if not len(able):
            return 0.0
        return lower_bound(able[:, columns], rounds=_ROUNDS).load_s * self.tasks / len(self._table)

    def __repr__(self) -> str:
        return f"<{self.tasks:,} tasks open, {self.seconds:.3g} s for {len(self.devices)} devices>"


def pressure(ctx: Context) -> Pressure:
    """Measure how long a Context's fleet needs for what is open.

    Notes
    -----
    The plan's lower bound of independent tasks, from the estimates of up to 512 of them: what waits for others,
    transfers and the lengths of single tasks are left out, so more devices help at most as much as `what_if` says.

    Examples
    --------
    >>> import hetero
    >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
    ...     hetero.cluster.pressure(ctx).tasks
    0
    """
    driver = ctx.driver
    count, sample = driver.ask(_open_tasks)
    rows: dict[object, list[float]] = {}
    table = []
    for task in sample:
        key = (task.signature, task.size, id(task.request))
        if key not in rows:
            told = driver.explain(task.signature, task.size, task.request)
            rows[key] = [inf if each.estimate is None else each.estimate.seconds for each in told]
        table.append(rows[key])
    devices = tuple([device.id for device in driver.ask(lambda machine: machine.fleet.devices)])
    return Pressure(count, devices, np.array(table).reshape(len(table), len(devices)))


def _open_tasks(machine: Machine) -> tuple[int, list[Task]]:
    """Return how many tasks are open, and some of them from everywhere in the queue."""
    states = list(machine.tasks.values())
    step = -(-len(states) // _SAMPLE) or 1
    return len(states), [state.task for state in states[::step]]


class PressureWatch:
    """Looks at the pressure of a Context until it is closed, or the Context is; made by `on_pressure`."""

    def __init__(self, ctx: Context, hook: Callable[[Pressure], object], above_s: float, every_s: float) -> None:
        self._ctx = weakref.ref(ctx)
        self._hook = hook
        self._above_s = above_s
        self._every_s = every_s
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="hetero-pressure", daemon=True).start()

    def close(self) -> None:
        """Stop monitoring."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(self._every_s):
            ctx = self._ctx()
            if ctx is None or ctx.closed:
                return
            found = pressure(ctx)
            if found.seconds > self._above_s:
                ctx._call_soon(partial(self._hook, found))
            del ctx


def on_pressure(
    ctx: Context, hook: Callable[[Pressure], object], *, above: float | str = "10s", every: float | str = "1s"
) -> PressureWatch:
    """Call a function when the fleet needs long for what is open: there a program can ask for more hosts.

    Parameters
    ----------
    hook
        Called from the Context's thread for callbacks, with the pressure; again each time that it is still there.
    above
        Seconds that the fleet may need for what is open.
    every
        Seconds between two looks.

    Returns
    -------
    PressureWatch
        Its `close` ends it; so does the end of the Context.

    Raises
    ------
    BadValueError
        A time is none.

    Examples
    --------
    >>> import hetero, threading, time
    >>> told = threading.Event()
    >>> with hetero.Context(devices="1xcpu", isolation="thread", history=False) as ctx:
    ...     _ = ctx.run(time.sleep, 0.01)
    ...     futures = [ctx.submit(time.sleep, 0.01) for _ in range(100)]
    ...     watch = hetero.cluster.on_pressure(ctx, lambda pressure: told.set(), above=0.0, every=0.01)
    ...     told.wait(60)
    True
    """
    return PressureWatch(ctx, hook, parse_seconds(above), parse_seconds(every))
