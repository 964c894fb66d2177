"""What the core can be asked, and the state that it keeps: rules, counts, rooms.

In: questions about requests and estimates. Out: answers in words or values. It must not change what it is asked of.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf

from hetero.core.eligibility import refusal
from hetero.core.estimates import Rows
from hetero.core.fleet import Fleet
from hetero.core.leases import LeasePool
from hetero.core.placement import Placer
from hetero.core.quarantine import Quarantine
from hetero.core.replicas import Replicas
from hetero.core.state import DevicePhase, TaskState
from hetero.floor.units import format_bytes
from hetero.model.commands import (
    Command,
    SetTimer,
)
from hetero.model.tasks import Request, Task
from hetero.model.topology import Topology
from hetero.plan.performance.cost_model import CostModel, TimeEstimate
from hetero.plan.policies.base import Policy

__all__ = ["Counts", "Questions", "Rules"]


@dataclass(frozen=True, slots=True)
class Rules:
    """The bounds on waiting.

    Attributes
    ----------
    restarts : times that a worker which died is started again at once, having finished no task meanwhile …
    restart_s, restart_max_s : … and s to wait then, twice as long each time, up to the second
    steady_s : a worker that was up for this long has not died in a row with those before it
    stall_s, stall_factor : an attempt that has run longer than stall_s + stall_factor × its pessimistic
        estimate is given up and tried again; without a measured estimate it is never given up
    sweep_s : s between two looks for such attempts
    retry_s : s after which an idle device is considered again although the policy left it idle
    stuck_s : s after which nested tasks that find no room are given up, where nothing runs any more
    """

    restarts: int = 4
    restart_s: float = 0.5
    restart_max_s: float = 10.0
    steady_s: float = 30.0
    stall_s: float = 60.0
    stall_factor: float = 20.0
    sweep_s: float = 5.0
    retry_s: float = 0.05
    stuck_s: float = 5.0


@dataclass(slots=True)
class Counts:
    """What became of the tasks: submitted + again = open + committed + failed, where `again` are open twice."""

    submitted: int = 0
    committed: int = 0
    failed: int = 0
    retried: int = 0
    late: int = 0
    again: int = 0


class Questions:
    """The state of a core, and what it can be asked.

    Attributes
    ----------
    leased : open tasks by the number of their lease
    quarantine : classes of tasks that workers died of
    restarts : s at which the worker of a device, by index, is to be started again
    """

    def __init__(self, policy: Policy, cost: CostModel, topology: Topology, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.cost = cost
        self.counts = Counts()
        self.fleet = Fleet()
        self.rows = Rows(cost, self.fleet.states, topology)
        self.replicas = Replicas(topology)
        self.pool = LeasePool((), topology)
        self.leased: Counter[int] = Counter()
        self.quarantine = Quarantine()
        self.restarts: dict[int, float] = {}
        self.placer = Placer(self.fleet, self.rows, self.replicas, topology, policy, self.pool)
        self.tasks: dict[int, TaskState] = {}
        self._reduced = False
        self.now_s = 0.0
        self.timer_s = inf
        self.sweep_at_s = inf
        self._epoch = 0
        self._able: dict[tuple[str, int], Request] = {}

    def _wake(self, at_s: float, commands: list[Command]) -> None:
        if at_s < self.timer_s:
            self.timer_s = at_s
            commands.append(SetTimer(at_s))

    def obstacles(self, signature: str, request: Request) -> list[tuple[str, str]]:
        """Return for each device why it can never run a request, '' where it can."""
        obstacle, gone = self.rows.obstacle, DevicePhase.GONE
        return [
            (state.name, state.lost if state.phase is gone else obstacle(state.device, signature, request))
            for state in self.fleet.states
        ]

    def refuse(self, name: str, signature: str, request: Request) -> str:
        """Return why the fleet can never meet a request, '' when it can."""
        obstacles = self.obstacles(signature, request)
        able = sum(1 for _, reason in obstacles if not reason)
        return refusal(name, request, obstacles) if able < request.devices or not able else ""

    def _stranded(self, state: TaskState) -> str:
        """Return why no device can ever run a task as things stand, '' when one can."""
        task = state.task
        request = task.request
        if request.lease and not state.recomputed and (ended := self.pool.ended(request.lease)):
            return f"{task.name} did not begin in time: {ended}"
        obstacles = self.obstacles(task.signature, request)
        if self.fleet.own_nodes and request.devices == 1:
            needed = self.replicas.nbytes(task.inputs) + request.memory_bytes
            for index, device in enumerate(self.fleet.devices):
                if needed > self.replicas.capacity(device.memory_node):
                    state.excluded |= {index}
                    text = f"its inputs and its own {format_bytes(needed)} exceed the memory there"
                    obstacles[index] = (device.id, obstacles[index][1] or text)
        for index in state.excluded:
            name, reason = obstacles[index]
            obstacles[index] = (name, reason or "it ran out of memory there")
        if request.lease and not state.recomputed and (held := self.pool.held(request.lease)):
            for index, (name, reason) in enumerate(obstacles):
                if name not in held:
                    obstacles[index] = (name, reason or f"lease {request.lease} does not hold it")
        if request.near or request.apart:
            far = self.placer.affinities.settled(request)
            for index in far:
                name, reason = obstacles[index]
                obstacles[index] = (name, reason or "its affinities rule it out")
        able = sum(1 for _, reason in obstacles if not reason)
        return refusal(task.name, request, obstacles) if able < request.devices or not able else ""

    def estimates(self, signature: str, size: float) -> list[tuple[str, TimeEstimate]]:
        """Return the estimate of one run on each device."""
        return [(state.name, self.cost.estimate(signature, size, state.device)) for state in self.fleet.states]

    def left_out(self) -> list[tuple[str, str]]:
        """Return the sound devices that finished no task while others did, with the reason."""
        total = sum(state.finished for state in self.fleet.states)
        idle = [s for s in self.fleet.states if s.phase is DevicePhase.READY and not s.finished and not s.sent]
        if not total:
            return []
        return [(state.name, self.rows.why_idle(state.index)) for state in idle]

    def _may_be_stranded(self, state: TaskState) -> bool:
        """Return whether it must be looked at if any device can ever run a task; seldom."""
        task = state.task
        request = task.request
        if state.excluded or request.near or request.apart or request.lease:
            return True
        if self.fleet.own_nodes and (task.inputs or request.memory_bytes):
            needed = self.replicas.nbytes(task.inputs) + request.memory_bytes
            return needed > self.replicas.least_bytes or not self._is_able(task)
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
