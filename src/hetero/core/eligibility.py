"""Which device may run which request, and why not: what a request names, and affinities to other tasks.

In: devices, requests, and where tasks ran. Out: reasons in words, and devices that are ruled out. It must not look
at load or time.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf

import numpy as np
from numpy.typing import NDArray

from hetero.core.estimates import EstimateRows
from hetero.core.fleet import Fleet
from hetero.core.leases import LeasePool
from hetero.core.obstacles import refusal
from hetero.core.replicas import Replicas
from hetero.core.state import DevicePhase, TaskState
from hetero.floor.units import format_bytes
from hetero.model.tasks import Near, Request, Task
from hetero.model.topology import Topology

__all__ = ["Affinities", "Eligibility"]

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
            places = (*self._place(near), *self._occupied(near.workload))
            if places:
                self._rule_out(seconds, places, near, inside=False)
        for near in request.apart:
            self._rule_out(seconds, (*self._place(near), *self._occupied(near.workload)), near, inside=True)

    def settled(self, request: Request) -> frozenset[int]:
        """Return the devices that a request rules out for good, because of where single tasks ran."""
        seconds = np.zeros(len(self._fleet.devices))
        for near in request.near:
            if places := self._place(near):
                self._rule_out(seconds, places, near, inside=False)
        for near in request.apart:
            self._rule_out(seconds, self._place(near), near, inside=True)
        return frozenset(np.flatnonzero(seconds == inf).tolist())

    def _place(self, near: Near) -> tuple[int, ...]:
        """Return where a task runs or ran; a device that is gone binds nobody."""
        place = self._where.get(near.task)
        if place is None or self._fleet.states[place].phase is DevicePhase.GONE:
            return ()
        return (place,)

    def _occupied(self, workload: str) -> tuple[int, ...]:
        return tuple(index for index, count in self._workloads.get(workload, {}).items() if count)

    def _rule_out(self, seconds: NDArray[np.float64], places: tuple[int, ...], near: Near, *, inside: bool) -> None:
        for index in range(len(seconds)):
            if any(self._is_near(index, place, near.scope) for place in places) is inside:
                seconds[index] = inf

    def _is_near(self, index: int, place: int, scope: str) -> bool:
        one, other = self._fleet.devices[index], self._fleet.devices[place]
        if scope == "host":
            return one.host == other.host
        if scope == "rack":
            return one.rack == other.rack
        if scope.startswith("link:"):
            link = self._topology.link(other.memory_node, one.memory_node)
            return index == place or (link is not None and link.kind == scope.removeprefix("link:"))
        return index == place


class Eligibility:
    """Says which devices may run a task, and why the others may not; it changes nothing but what it remembers."""

    def __init__(
        self, fleet: Fleet, rows: EstimateRows, replicas: Replicas, pool: LeasePool, affinities: Affinities
    ) -> None:
        self._fleet = fleet
        self._rows = rows
        self._replicas = replicas
        self._pool = pool
        self._affinities = affinities
        self._able: dict[tuple[str, int], Request] = {}

    def changed(self) -> None:
        """Forget the answers: a device or a package came or went."""
        self._able.clear()

    def obstacles(self, signature: str, request: Request) -> list[tuple[str, str]]:
        """Return for each device why it can never run a request, '' where it can."""
        found, gone = self._rows.obstacle, DevicePhase.GONE
        return [
            (state.name, state.lost if state.phase is gone else found(state.device, signature, request))
            for state in self._fleet.states
        ]

    def refuse(self, name: str, signature: str, request: Request) -> str:
        """Return why the fleet can never meet a request, '' when it can."""
        obstacles = self.obstacles(signature, request)
        able = sum(1 for _, reason in obstacles if not reason)
        return refusal(name, request, obstacles) if able < request.devices or not able else ""

    def too_small(self, state: TaskState) -> dict[int, str]:
        """Return the devices whose memory cannot hold a task's inputs and its own bytes, each with the reason."""
        request = state.task.request
        if not self._fleet.own_nodes or request.devices != 1:
            return {}
        needed = self._replicas.nbytes(state.task.inputs) + request.memory_bytes
        text = f"its inputs and its own {format_bytes(needed)} exceed the memory there"
        capacity = self._replicas.capacity
        return {i: text for i, device in enumerate(self._fleet.devices) if needed > capacity(device.memory_node)}

    def stranded(self, state: TaskState) -> str:
        """Return why no device can ever run a task as things stand, '' when one can."""
        task = state.task
        request = task.request
        if request.lease and (ended := self._pool.ended(request.lease)) and not state.is_again:
            return f"{task.name} did not begin in time: {ended}"
        reasons = self.too_small(state)
        reasons.update({index: "it ran out of memory there" for index in state.excluded if index not in reasons})
        obstacles = [
            (name, reason or reasons.get(index, ""))
            for index, (name, reason) in enumerate(self.obstacles(task.signature, request))
        ]
        if request.lease and (held := self._pool.held(request.lease)):
            for index, (name, reason) in enumerate(obstacles):
                if name not in held:
                    obstacles[index] = (name, reason or f"lease {request.lease} does not hold it")
        if request.near or request.apart:
            for index in self._affinities.settled(request):
                name, reason = obstacles[index]
                obstacles[index] = (name, reason or "its affinities rule it out")
        able = sum(1 for _, reason in obstacles if not reason)
        return refusal(task.name, request, obstacles) if able < request.devices or not able else ""

    def may_be_stranded(self, state: TaskState) -> bool:
        """Return whether it must be looked at if any device can ever run a task; seldom."""
        task = state.task
        request = task.request
        if state.excluded or request.near or request.apart or request.lease:
            return True
        if self._fleet.own_nodes and (task.inputs or request.memory_bytes):
            needed = self._replicas.nbytes(task.inputs) + request.memory_bytes
            return needed > self._replicas.least_bytes or not self._is_able(task)
        return not self._is_able(task)

    def _is_able(self, task: Task) -> bool:
        """Return whether the fleet can meet a request, remembering the answer."""
        key = (task.signature.partition("|")[0], id(task.request))
        if key not in self._able:
            if self.refuse(task.name, task.signature, task.request):
                return False
            if len(self._able) > 4096:
                self._able.clear()
            self._able[key] = task.request
        return True
