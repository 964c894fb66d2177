"""Placement: from ready tasks to `Run` commands, through the policy; gangs, and how tasks leave their devices.

In: the ready queue, the fleet, the rows, the replicas. Out: commands. The policy proposes; what is accepted,
and how many small tasks travel together, is decided here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappush
from itertools import chain, islice
from math import ceil, inf, isfinite

import numpy as np

from hetero.core.eligibility import Affinities
from hetero.core.estimates import EstimateRows
from hetero.core.fleet import AHEAD_S, LOOKAHEAD_S, Fleet
from hetero.core.leases import LeasePool
from hetero.core.lookahead import Lookahead, Prefetch
from hetero.core.policy_view import BestDevice, PolicyView, ReadyTasks
from hetero.core.replicas import Replicas
from hetero.core.state import COMING, Batch, DevicePhase, DeviceState, Phase, ReadyQueue, Row, TaskState
from hetero.model.commands import Command, Launch, Run, RunGroup, Withdraw
from hetero.model.device import HOST_NODE
from hetero.model.tasks import Task
from hetero.model.topology import Topology
from hetero.plan.policies.base import Policy, Waiting, plan_of, traits

__all__ = ["Placer"]

WINDOW = 128
"""Ready tasks that a policy is shown at once."""

CHUNK_S = 2e-3
"""Small tasks travel together until they are worth this many seconds …"""

RECALLS = 16
"""Tasks that are looked at, at once, for being taken back."""

CHUNK_TASKS = 256
"""… or there are this many of them."""

NOTICE_S = 0.05
"""A task that waits for any of several is expected to go on within this after one of them has ended, if it does."""


class Placer:
    """Accepts proposals and sends work.

    A device that the policy left without work is not offered again until the backlog has grown by a
    quarter, a task of another class became ready, the fleet or the estimates have changed, or its turn comes
    by the clock: so a useless device costs nothing per event.

    Attributes
    ----------
    ready, groups
        Tasks that wait for a device, and those that wait for several at once.
    parked
        Number of tasks that are placed and not sent.
    deadlines
        A heap of (time in s, task id, attempt).
    """

    def __init__(
        self, fleet: Fleet, rows: EstimateRows, replicas: Replicas, topology: Topology, policy: Policy, pool: LeasePool
    ) -> None:
        self.ready = ReadyQueue()
        self.groups: deque[TaskState] = deque()
        self.parked = 0
        self.deadlines: list[tuple[float, int, int]] = []
        self.affinities = Affinities(fleet, topology)
        self.best_device = BestDevice(fleet, rows, replicas)
        self.view = PolicyView(fleet, rows, replicas, pool, self.affinities, self.best_device)
        self._fleet = fleet
        self._rows = rows
        self._replicas = replicas
        self.policy = policy
        self.memory: object = None
        self._pool = pool
        self._declined_at = 0
        self._weighed: set[Row] = set()
        self._unfit: set[int] = set()
        self.crowded = False
        self.look_again = False
        declared = traits(policy)
        self.is_lazy = declared.lazy_sends
        self._lone_to_fastest = declared.lone_to_fastest
        self.lookahead = Lookahead(fleet, rows, replicas) if declared.looks_ahead else None
        foresee = plan_of(policy)
        self.prefetch: Prefetch | None = None
        if self.lookahead is not None and foresee is not None:
            self.prefetch = Prefetch(fleet, replicas, self.lookahead, lambda: foresee(self.memory))

    # what changed

    def offer_all(self) -> None:
        """Record that every device with room is to be considered anew."""
        self._fleet.offer_all()
        self._declined_at = 0

    def fleet_changed(self) -> None:
        """Record that a device came or went."""
        if self.lookahead is not None:
            self.lookahead.changed()

    @property
    def starved(self) -> bool:
        """True when tasks were left waiting although a device may be idle: by the policy, or as a group."""
        return len(self.groups) > 0 or (self._declined_at > 0 and self.ready.count > 0)

    def picky(self) -> list[TaskState]:
        """Return the ready tasks, of those next in order, that have affinities."""
        near = (*islice(iter(self.ready), WINDOW), *self.groups)
        return [state for state in near if state.task.request.near or state.task.request.apart]

    # the loop

    def dispatch(self, now_s: float) -> list[Command]:
        """Place what the policy proposes, as long as it proposes."""
        commands: list[Command] = []
        self._place(now_s, commands)
        fleet = self._fleet
        if fleet.suspended and (self.ready.count or self.groups) and fleet.stalled and not self.is_moving():
            self.view.stalled = True
            self.offer_all()
            self._place(now_s, commands)
            self.view.stalled = False
            self._unfit.clear()
        return commands

    def is_moving(self) -> bool:
        """Return whether a device starts, a task that waited is about to go on, or bytes travel that somebody awaits.

        What is written back to the host makes room; what travels ahead of its task does not count: nobody waits for it.
        """
        for device in self._fleet.states:
            if device.phase in COMING and not device.told:
                return True
            top = device.suspended[-1] if device.suspended else None
            if top is not None and (top.resumes or not top.children or self.view.now_s - top.woken_s < NOTICE_S):
                return True
        return any(entry.waiters or HOST_NODE in entry.arriving for entry in self._replicas.items.values())

    def _place(self, now_s: float, commands: list[Command]) -> None:
        self.view.now_s = now_s
        if self.groups:
            self._gather_next(now_s, commands)
        ready = self.ready
        if not ready.count and (self.is_lazy or not self.parked):
            self._declined_at = 0
            return
        if self._declined_at and (ready.count > 1.25 * self._declined_at + 1 or any(map(self._is_new, ready.fresh))):
            self.offer_all()
        ready.fresh.clear()
        if self.look_again and self.parked and not self.is_lazy:
            self._round(now_s, commands)
        self.look_again = False
        while self._fleet.open and (ready.count or (self.parked and not self.is_lazy)):
            unfit = len(self._unfit)
            if not self._round(now_s, commands) and (len(self._unfit) == unfit or unfit > WINDOW):
                self._declined_at = max(1, ready.count)
                self._weighed = {self._rows.of(state) for state in ready.window(WINDOW).values()}
                self._fleet.close_all()

    def _is_new(self, state: TaskState) -> bool:
        """Return whether a task that became ready may suit a device that was left without work."""
        request = state.task.request
        special = state.excluded or state.avoided or request.near or request.apart or request.lease
        travels = state.task.inputs and self._fleet.own_nodes
        nested = state.task.depth and self._fleet.suspended
        return bool(special or travels or nested) or self._rows.of(state) not in self._weighed

    def express(self, state: TaskState, now_s: float) -> Run | None:
        """Send a lone task to the fastest device when that one is idle, where the policy declares that it would.

        Gives None, and changes nothing, whenever anything else has to be weighed.
        """
        request = state.task.request
        fleet = self._fleet
        if self.ready.count or self.groups or not self._lone_to_fastest or fleet.own_nodes or not request.is_plain:
            return None
        if self._pool.lends:
            return None
        row = self._rows.of(state)
        device = self._idle(row)
        return None if device is None else self.send_lone(state, row, device, now_s)

    def _idle(self, row: Row) -> DeviceState | None:
        """Return the fastest device for a class of tasks where that is idle."""
        device = self._fleet.states[row.best]
        if row.best < 0 or device.sent or device.placed or device.suspended or not self._fleet.rooms.item(device.index):
            return None
        return device

    def lone(self, task: Task) -> tuple[str, float] | None:
        """Return the device that a small task of a known class would be sent to by `express`, and the expected seconds.

        It may be asked only while no task is open.
        """
        if not self._lone_to_fastest or self._fleet.own_nodes or self._pool.lends:
            return None
        row = self._rows.latest(task)
        if row is None or not row.known or not row.plain or row.best_s > CHUNK_S:
            return None
        device = self._idle(row)
        return None if device is None else (device.name, row.best_s)

    def send_lone(self, state: TaskState, row: Row, device: DeviceState, now_s: float) -> Run:
        """Send a task, whose first attempt it is, to an idle device."""
        state.enter(Phase.RUNNING)
        state.attempt = 1
        state.device = device.index
        state.predicted_s = predicted_s = row.best_s
        state.sure = row.known
        self._fleet.send_lone(device, state, now_s)
        if not row.known:
            row.started(now_s, predicted_s)
        self.affinities.came(state.task.id, "", device.index)
        return Run(device.name, (Launch(state.task.id, 1, predicted_s),))

    def _round(self, now_s: float, commands: list[Command]) -> bool:
        """Ask the policy once; True when a task was accepted from the ready queue or something was sent."""
        window = self._window()
        waiting = self._waiting()
        at = {entry.task.id: entry.device for entry in waiting}
        view = self._fleet.view(now_s, self.ready.count, waiting)
        if self._fleet.own_nodes:
            view.best_device = self.best_device.start_round()
        if self.lookahead is not None:
            view.ahead = self.lookahead.ahead()
        shown = ReadyTasks(self.view.show, list(window.values()))
        proposals, self.memory = self.policy.propose(view, shown, self.memory)
        before, sent = self.ready.count, len(commands)
        touched: dict[int, DeviceState] = {}
        for task_id, index in proposals:
            state, device = window.get(task_id), self._fleet.states[index]
            if device.phase is not DevicePhase.READY or device.held_by:
                continue
            if state is None and at.get(task_id, index) != index:
                state = self._take_back(task_id, at[task_id], now_s, commands)
            if state is None or state.phase is not Phase.READY:
                continue
            row = self._rows.of(state)
            if not isfinite(self.view.seconds(state, row)[index]):
                continue
            if self._accept(state, device, row, now_s, commands):
                touched[index] = device
            elif self.view.stalled:
                self._unfit.add(task_id)
        for device in touched.values():
            self.flush(device, now_s, commands)
        return self.ready.count < before or any(type(command) is Run for command in commands[sent:])

    def _window(self) -> dict[int, TaskState]:
        """Return the ready tasks that the policy is shown: the first, and for each device where one waits, its own.

        Where tasks only wait for others, those are not shown that have just found no room, and others than nested ones
        only when none of these that has a place is left.
        """
        shown = self.ready.window(WINDOW)
        if self._fleet.suspended and self.ready.count > WINDOW:
            fleet = self._fleet
            tops = [device.suspended[-1] for device in fleet.states if device.suspended and fleet.room(device)]
            own = chain.from_iterable(map(_ready_below, tops))
            shown = {state.task.id: state for state in sorted({*shown.values(), *own}, key=ReadyQueue.rank)}
        if self.view.stalled:
            shown = {number: state for number, state in shown.items() if number not in self._unfit}
            nested = {number: state for number, state in shown.items() if state.task.parent and self._has_place(state)}
            shown = nested or shown
        return shown

    def _has_place(self, state: TaskState) -> bool:
        """Return whether a ready task may run on some device now, as far as others are concerned."""
        return bool(np.isfinite(self.view.seconds(state, self._rows.of(state))).any())

    def _waiting(self) -> tuple[Waiting, ...]:
        if self.is_lazy or not self.parked:
            return ()
        return tuple(
            Waiting(self.view.show(task), state.index)
            for state in self._fleet.states
            for task in state.placed
            if not task.missing
        )

    # taking off

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

    # accepting and sending

    def _take_back(self, task_id: int, index: int, now_s: float, commands: list[Command]) -> TaskState | None:
        for state in self._fleet.states[index].placed:
            if state.task.id == task_id:
                self.unplace(state, now_s, commands)
                self.ready.push(state, first=True)
                return state
        return None

    def _accept(self, state: TaskState, device: DeviceState, row: Row, now_s: float, commands: list[Command]) -> bool:
        request = state.task.request
        if self._fleet.own_nodes:
            node = device.device.memory_node
            extra = request.memory_bytes or (0 if self.view.stalled else self._spare(row.out_bytes, state, node))
            if state.out_of_memory and not self.view.stalled:
                extra = max(extra, self._spare(self._replicas.capacity(node), state, node))
            fits, orders = self._replicas.place(state, node, extra)
            commands.extend(orders)
            if not fits:
                return False
        self.ready.remove(state, Phase.PLACED)
        state.device = device.index
        state.predicted_s = row.seconds.item(device.index)
        state.sure = row.known
        self._fleet.accept(device, state, now_s)
        device.placed.append(state)
        self.parked += 1
        self.affinities.came(state.task.id, request.workload, device.index)
        return True

    def _spare(self, out_bytes: float, state: TaskState, node: str) -> int:
        """Return the bytes to reserve for a result of estimated size."""
        if node == HOST_NODE or out_bytes <= 0 or out_bytes == inf:
            return 0
        return int(min(out_bytes, max(0, self._replicas.capacity(node) - self._replicas.nbytes(state.task.inputs))))

    def flush(self, device: DeviceState, now_s: float, commands: list[Command]) -> None:
        """Send what waits at a device, as one command, with further small tasks of the same class."""
        if not device.placed:
            self.offer(device)
            return
        busy = device.batches
        pending = self._fleet.pending_s.item(device.index)
        launches: list[Launch] = []
        if device.phase is DevicePhase.READY and not device.held_by and not device.stopping and busy < 2:
            batch, worth = Batch(), 0.0
            while device.placed and len(launches) < CHUNK_TASKS:
                state = next((task for task in device.placed if not task.missing), None)
                small = state is not None and self._small(state)
                if state is None or (launches and worth + state.predicted_s > CHUNK_S):
                    break
                if not small and (launches or (busy and not self._goes_ahead(state, pending))):
                    break
                if small and busy and pending - state.predicted_s > LOOKAHEAD_S:
                    break
                worth += state.predicted_s
                self._launch(state, device, batch, launches, now_s)
                if not small:
                    break
                if not device.placed:
                    self._fill(state, device, batch, launches, worth, now_s, commands)
        if launches:
            commands.append(Run(device.name, tuple(launches)))
            if len(device.sent) > 1:
                self.crowded = True
        if device.placed and not self._fleet.own_nodes:
            self.crowded = True
        self.offer(device)

    def _goes_ahead(self, state: TaskState, pending_s: float) -> bool:
        """Return whether a task is sent although another still runs there."""
        return pending_s - state.predicted_s < AHEAD_S > state.predicted_s and self._rows.of(state).known

    def recall(self, now_s: float, commands: list[Command]) -> None:
        """Take back tasks that were sent ahead, where an idle device would end them sooner."""
        fleet = self._fleet
        n = len(fleet.states)
        idle = [int(index) for index in np.flatnonzero((fleet.rooms[:n] > 0) & (fleet.queued[:n] == 0))]
        if fleet.suspended:
            idle = [index for index in idle if not fleet.states[index].suspended]
        if not idle or fleet.own_nodes or self._pool.lends:
            return
        available_s = fleet.available_s(now_s)
        for device in list(fleet.stacked.values())[:RECALLS]:
            state = next(reversed(device.sent.values()))[0]
            if state.recalled or state.predicted_s < CHUNK_S or not state.task.request.is_plain or not idle:
                continue
            if state.excluded or state.avoided or state.is_deadly:  # it may not go there, and would come back at once
                continue
            seconds = self._rows.of(state).seconds
            best = min(idle, key=lambda index: (seconds[index], index))
            if now_s + seconds[best] < available_s[device.index]:
                state.recalled = True
                idle.remove(best)
                commands.append(Withdraw(device.name, state.task.id, state.attempt))

    def _small(self, state: TaskState) -> bool:
        row = self._rows.of(state)
        known = state.predicted_s < CHUNK_S and row.known and not row.waits
        return known and not (state.task.request.timeout_s or state.alone)

    def _fill(
        self,
        like: TaskState,
        device: DeviceState,
        batch: Batch,
        launches: list[Launch],
        worth: float,
        now_s: float,
        commands: list[Command],
    ) -> None:
        """Add ready tasks of the same class while they are worth less than a chunk, up to an equal share."""
        row = self._rows.of(like)
        if row.request.near or row.request.apart or self._fleet.own_nodes or device.suspended:
            return
        limit = min(CHUNK_TASKS, ceil((self.ready.count + len(launches)) / max(1, self._fleet.live)))
        while len(launches) < limit and worth + like.predicted_s <= CHUNK_S:
            state = self.ready.first(row.request.lease)
            if state is None or self._rows.of(state) is not row or state.excluded or state.avoided or state.alone:
                return
            self._accept(state, device, row, now_s, commands)
            worth += state.predicted_s
            self._launch(state, device, batch, launches, now_s)

    def _launch(
        self, state: TaskState, device: DeviceState, batch: Batch, launches: list[Launch], now_s: float
    ) -> None:
        state.enter(Phase.RUNNING)
        state.attempt += 1
        state.recalled = False
        self.parked -= 1
        self._fleet.send(device, state, batch, now_s)
        self.limit(state, now_s)
        row = self._rows.of(state)
        if not row.known:
            row.started(now_s, state.predicted_s)
        over = device.suspended[-1].task.id if device.suspended else 0
        launches.append(Launch(state.task.id, state.attempt, 0.0 if state.alone else state.predicted_s, over))

    # gangs: several devices at once

    def _gather_next(self, now_s: float, commands: list[Command]) -> None:
        """Hold devices for the oldest group that may have them, until all of them are idle; then run it there.

        Notes
        -----
        One that may not have devices now, since others have leased them or wait there, does not hold up those behind
        it: they may be what these others wait for. One for which other groups have to end first does.
        """
        group = next((group for group in self.groups if group.devices), None)
        tried = set[tuple[object, ...]]()
        for each in self.groups if group is None else ():
            inputs = each.task.inputs if self._fleet.own_nodes else ()
            kind = (self._rows.of(each), each.task.parent, inputs, each.excluded, each.is_deadly)
            if kind in tried:
                continue
            if self._hold(each, now_s, commands):
                group = each
                break
            if self._waits_for_groups(each):
                break
            tried.add(kind)
        if group is not None:
            self._gather(group, now_s, commands)

    def _waits_for_groups(self, state: TaskState) -> bool:
        """Return whether there are enough devices for a group, were they not held for others."""
        states = self._fleet.states
        seconds = self.view.seconds(state, self._rows.of(state))
        able = sum(isfinite(seconds[device.index]) and device.phase is DevicePhase.READY for device in states)
        return able >= state.task.request.devices and any(device.held_by for device in states)

    def _gather(self, state: TaskState, now_s: float, commands: list[Command]) -> None:
        held = [device for device in self._fleet.states if device.held_by == state.task.id]
        if state.missing or any(device.sent or device.stopping for device in held):
            return
        self.groups.remove(state)
        state.enter(Phase.RUNNING)
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
        first = self._fleet.states[state.device]
        over = first.suspended[-1].task.id if first.suspended and request.devices == 1 else 0
        launch = Launch(state.task.id, state.attempt, state.predicted_s, over)
        names = tuple(self._fleet.states[index].name for index in state.devices)
        commands.append(RunGroup(names, launch) if request.devices > 1 else Run(names[0], (launch,)))

    def _hold(self, state: TaskState, now_s: float, commands: list[Command]) -> bool:
        row = self._rows.of(state)
        free = np.array([not device.held_by for device in self._fleet.states])
        seconds = np.where(free, self.view.seconds(state, row), inf)
        finish = seconds + self._fleet.available_s(now_s)
        order = np.lexsort((np.arange(len(finish)), finish))
        wanted = state.task.request.devices
        if len(order) < wanted or not isfinite(finish[order[wanted - 1]]):
            return False
        if not all(self._fleet.ready[index] for index in order[:wanted]):
            return False
        whole = state.task.request.exclusive
        hosts = {self._fleet.devices[index].host for index in order[:wanted]} if whole else set()
        if any(device.held_by and device.device.host in hosts for device in self._fleet.states):
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
        for device in self._fleet.states:
            if device.index in state.devices or device.device.host in hosts:
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


def _ready_below(state: TaskState) -> Iterator[TaskState]:
    """Yield the first ready ones of what a task has submitted, and of what that has."""
    waiting, met = deque((state.children or {}).values()), 0
    while waiting and met < 2 * WINDOW:
        found = waiting.popleft()
        met += 1
        if found.phase is Phase.READY and not found.is_group:
            yield found
        waiting.extend(islice((found.children or {}).values(), WINDOW))
