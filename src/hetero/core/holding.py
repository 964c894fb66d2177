"""Which task has which devices: tasks that are taken off again, groups that hold several devices at once, time limits.

In: task states, the fleet, what `Showing` says of seconds. Out: commands. It must not ask the policy.
"""

from __future__ import annotations

from collections import deque
from heapq import heappush
from math import inf, isfinite

import numpy as np

from hetero.core.affinity import Affinities
from hetero.core.estimates import Rows
from hetero.core.fleet import Fleet
from hetero.core.home import Home
from hetero.core.leases import Pool
from hetero.core.policy_view import Showing
from hetero.core.replicas import Replicas
from hetero.core.state import Batch, DeviceState, Phase, ReadyQueue, TaskState
from hetero.model.commands import Command, Launch, Run, RunGroup
from hetero.model.device import HOST_NODE
from hetero.model.topology import Topology

__all__ = ["Holding"]


class Holding:
    """The tasks that are ready or placed, and the devices that they have.

    Attributes
    ----------
    ready, groups : tasks that wait for a device, and those that wait for several at once
    parked : number of tasks that are placed and not sent
    deadlines : a heap of (time in s, task id, attempt)
    """

    def __init__(self, fleet: Fleet, rows: Rows, replicas: Replicas, topology: Topology, pool: Pool) -> None:
        self.ready = ReadyQueue()
        self.groups: deque[TaskState] = deque()
        self.parked = 0
        self.deadlines: list[tuple[float, int, int]] = []
        self.affinities = Affinities(fleet, topology)
        self.home = Home(fleet, rows, replicas)
        self.showing = Showing(fleet, rows, replicas, pool, self.affinities, self.home)
        self._fleet = fleet
        self._rows = rows
        self._replicas = replicas

    def offer(self, state: DeviceState) -> None:
        """Record that a device may take more."""
        self._fleet.offer(state)

    def clear(self, device: DeviceState, now_s: float, commands: list[Command]) -> None:
        """Make what waits at a device ready again, in its order."""
        for parked in list(device.placed)[::-1]:
            self.unplace(parked, now_s, commands)
            self.ready.push(parked, first=True)

    def unplace(self, state: TaskState, now_s: float, commands: list[Command]) -> None:
        """Take a placed or running task off its devices, inputs and all; the caller sets its phase."""
        for index in state.devices or (state.device,):
            device = self._fleet.states[index]
            if state.phase is Phase.SUSPENDED:
                self._fleet.leave(device, state)
            elif state.task.id in device.sent or state.phase is Phase.PLACED:
                self.parked -= state.task.id not in device.sent
                self._fleet.drop(device, state, now_s)
            self.offer(device)
        if state.node:
            commands.extend(self._replicas.unplace(state))
        if state.task.request.workload:
            self.affinities.left(state.task.request.workload, state.device)
        if state.devices:
            self.let_go(state)
        state.device = -1

    def limit(self, state: TaskState, now_s: float) -> None:
        """Record when an attempt has to be over."""
        if state.task.request.timeout_s:
            heappush(self.deadlines, (now_s + state.task.request.timeout_s, state.task.id, state.attempt))

    def gather(self, state: TaskState, now_s: float, commands: list[Command]) -> None:
        """Hold devices for the oldest group until all of them are idle, then run it on all at once."""
        if not state.devices and not self._hold(state, now_s, commands):
            return
        held = [device for device in self._fleet.states if device.held_by == state.task.id]
        if state.missing or any(device.sent or device.stopping for device in held):
            return
        self.groups.remove(state)
        state.phase = Phase.RUNNING
        state.attempt += 1
        state.device = state.devices[0]
        state.group_left = len(state.devices)
        for index in state.devices:
            device = self._fleet.states[index]
            self._fleet.accept(device, state, now_s)
            device.placed.append(state)
            self._fleet.send(device, state, Batch(), now_s)
        request = state.task.request
        self.limit(state, now_s)
        self.affinities.came(state.task.id, request.workload, state.device)
        launch = Launch(state.task.id, state.attempt, state.predicted_s)
        names = tuple(self._fleet.states[index].name for index in state.devices)
        commands.append(RunGroup(names, launch) if request.devices > 1 else Run(names[0], (launch,)))

    def _hold(self, state: TaskState, now_s: float, commands: list[Command]) -> bool:
        row = self._rows.of(state)
        free = np.array([not device.held_by for device in self._fleet.states])
        seconds = np.where(free, self.showing.seconds(state, row), inf)
        finish = seconds + self._fleet.available_s(now_s)
        order = np.lexsort((np.arange(len(finish)), finish))
        wanted = state.task.request.devices
        if len(order) < wanted or not isfinite(finish[order[wanted - 1]]):
            return False
        if not all(self._fleet.ready[index] for index in order[:wanted]):
            return False
        if self._fleet.own_nodes:
            alone = wanted == 1
            node = self._fleet.devices[order[0]].memory_node if alone else HOST_NODE
            fits, orders = self._replicas.place(state, node, state.task.request.memory_bytes if alone else 0)
            commands.extend(orders)
            if not fits:
                return False
        state.devices = tuple(int(index) for index in order[:wanted])
        state.predicted_s = float(max(seconds[index] for index in state.devices))
        hosts = {self._fleet.devices[index].host for index in state.devices}
        for device in self._fleet.states:
            if device.index in state.devices or (state.task.request.exclusive and device.device.host in hosts):
                device.held_by = state.task.id
                self.offer(device)
                self.clear(device, now_s, commands)
        return True

    def let_go(self, state: TaskState) -> None:
        """Release the devices that were held for a group."""
        state.devices = ()
        for device in self._fleet.states:
            if device.held_by == state.task.id:
                device.held_by = 0
                self.offer(device)
