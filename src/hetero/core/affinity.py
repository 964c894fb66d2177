"""Affinities: which devices are near to, or apart from, other tasks and workloads.

In: where tasks ran, and requests. Out: devices ruled out for one task. It must not look at load.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf

import numpy as np
from numpy.typing import NDArray

from hetero.core.fleet import Fleet
from hetero.core.state import DevicePhase
from hetero.model.tasks import Near, Request
from hetero.model.topology import Topology

__all__ = ["Affinities"]

REMEMBERED = 65_536
"""Tasks whose device is remembered."""


class Affinities:
    """Where tasks ran, and which workloads occupy which devices."""

    def __init__(self, fleet: Fleet, topology: Topology) -> None:
        self._fleet = fleet
        self._topology = topology
        self._where: OrderedDict[int, int] = OrderedDict()
        self._workloads: dict[str, dict[int, int]] = {}

    def came(self, task: int, workload: str, index: int) -> None:
        """Record that a task was placed on a device."""
        self._where[task] = index
        if len(self._where) > REMEMBERED:
            self._where.popitem(last=False)
        if workload:
            counts = self._workloads.setdefault(workload, {})
            counts[index] = counts.get(index, 0) + 1

    def left(self, workload: str, index: int) -> None:
        """Record that a task of a workload left its device."""
        self._workloads[workload][index] -= 1

    def narrow(self, seconds: NDArray[np.float64], request: Request) -> None:
        """Set the seconds of devices that a request rules out now to inf, in place."""
        for near in request.near:
            homes = (*self._home(near), *self._occupied(near.workload))
            if homes:
                self._rule_out(seconds, homes, near, inside=False)
        for near in request.apart:
            self._rule_out(seconds, (*self._home(near), *self._occupied(near.workload)), near, inside=True)

    def settled(self, request: Request) -> frozenset[int]:
        """Return the devices that a request rules out for good, because of where single tasks ran."""
        seconds = np.zeros(len(self._fleet.devices))
        for near in request.near:
            if homes := self._home(near):
                self._rule_out(seconds, homes, near, inside=False)
        for near in request.apart:
            self._rule_out(seconds, self._home(near), near, inside=True)
        return frozenset(np.flatnonzero(seconds == inf).tolist())

    def _home(self, near: Near) -> tuple[int, ...]:
        """Return where a task runs or ran; a device that is gone binds nobody."""
        home = self._where.get(near.task)
        if home is None or self._fleet.states[home].phase is DevicePhase.GONE:
            return ()
        return (home,)

    def _occupied(self, workload: str) -> tuple[int, ...]:
        return tuple(index for index, count in self._workloads.get(workload, {}).items() if count)

    def _rule_out(self, seconds: NDArray[np.float64], homes: tuple[int, ...], near: Near, *, inside: bool) -> None:
        for index in range(len(seconds)):
            if any(self._is_near(index, home, near.scope) for home in homes) is inside:
                seconds[index] = inf

    def _is_near(self, index: int, home: int, scope: str) -> bool:
        one, other = self._fleet.devices[index], self._fleet.devices[home]
        if scope == "host":
            return one.host == other.host
        if scope == "rack":
            return one.rack == other.rack
        if scope.startswith("link:"):
            link = self._topology.link(other.memory_node, one.memory_node)
            return index == home or (link is not None and link.kind == scope.removeprefix("link:"))
        return index == home
