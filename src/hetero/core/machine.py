"""The core: one pure state machine. `handle(event)` is the only door through which its state changes.

In: events. Out: commands. It knows no clock, no chance and no input or output: time arrives inside the events.
What placing, memory and estimates need is in the rooms beside; here are the lives of tasks and devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop
from math import inf, isfinite
from typing import Any

from hetero.core.eligible import refusal
from hetero.core.estimates import Rows
from hetero.core.fleet import Fleet
from hetero.core.memory import Item, Replicas
from hetero.core.placing import Placer
from hetero.core.state import DevicePhase, DeviceState, Phase, TaskState
from hetero.floor.units import format_bytes
from hetero.model.commands import (
    Cancel,
    Command,
    Commit,
    Discard,
    Fail,
    Recommit,
    SetTimer,
    Split,
    StartWorker,
    Warn,
    Withdraw,
)
from hetero.model.device import HOST_NODE
from hetero.model.events import (
    CancelRequested,
    DeviceAdded,
    DeviceLost,
    DeviceReady,
    Event,
    ItemPut,
    ItemReleased,
    TaskFailed,
    TaskFinished,
    TaskSubmitted,
    TaskWithdrawn,
    TimerFired,
    TransferFailed,
    TransferFinished,
    UtilisationReported,
)
from hetero.model.tasks import Failure, Request, Task
from hetero.model.topology import Topology
from hetero.plan.cost import CostModel, Estimate
from hetero.plan.policies.base import Policy

__all__ = ["Counts", "Machine", "Rules"]


@dataclass(frozen=True, slots=True)
class Rules:
    """The bounds on waiting.

    Attributes
    ----------
    starts : times that a worker is started again without having finished a task
    stall_s, stall_factor : an attempt that has run longer than stall_s + stall_factor × its pessimistic
        estimate is given up and tried again; without a measured estimate it is never given up
    sweep_s : s between two looks for such attempts
    retry_s : s after which an idle device is considered again although the policy left it idle
    """

    starts: int = 5
    stall_s: float = 60.0
    stall_factor: float = 20.0
    sweep_s: float = 5.0
    retry_s: float = 0.05


@dataclass(slots=True)
class Counts:
    """What became of the tasks: submitted + again = open + committed + failed, where `again` are open twice."""

    submitted: int = 0
    committed: int = 0
    failed: int = 0
    retried: int = 0
    late: int = 0
    again: int = 0


class Machine:
    """Decides what runs where, and remembers what happened.

    Parameters
    ----------
    policy : proposes placements
    cost : learns and estimates run times
    topology : memory nodes and links
    rules : bounds on waiting

    Examples
    --------
    >>> from hetero.model.device import Device, DeviceType
    >>> from hetero.model.tasks import Task
    >>> from hetero.plan.policies.registry import get
    >>> machine = Machine(get("eft"), CostModel(), Topology())
    >>> _ = machine.handle(DeviceAdded(0.0, Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu")))
    >>> _ = machine.handle(DeviceReady(0.0, "h0/cpu:0"))
    >>> machine.handle(TaskSubmitted(0.0, Task(1, "f", "f|", 0.0, (), (), Request())))[0].device
    'h0/cpu:0'
    """

    def __init__(self, policy: Policy, cost: CostModel, topology: Topology, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.cost = cost
        self.counts = Counts()
        self.fleet = Fleet()
        self.rows = Rows(cost, self.fleet.states, topology)
        self.replicas = Replicas(topology)
        self.placer = Placer(self.fleet, self.rows, self.replicas, topology, policy)
        self.tasks: dict[int, TaskState] = {}
        self._reduced = False
        self.now_s = 0.0
        self.timer_s = inf
        self.sweep_at_s = inf
        self._epoch = 0
        self._able: dict[tuple[str, int], Request] = {}
        self._handlers: dict[type, Callable[[Any], list[Command]]] = {
            TaskSubmitted: self._submitted,
            CancelRequested: self._cancel_requested,
            TaskFinished: self._finished,
            TaskFailed: self._failed,
            TaskWithdrawn: self._withdrawn,
            DeviceAdded: self._device_added,
            DeviceReady: self._device_ready,
            DeviceLost: self._device_lost,
            UtilisationReported: self._utilisation_reported,
            ItemPut: self._item_put,
            ItemReleased: self._item_released,
            TransferFinished: self._transfer_finished,
            TransferFailed: self._transfer_failed,
            TimerFired: self._timer_fired,
        }

    def handle(self, event: Event) -> list[Command]:
        """Take one fact; give the orders that follow from it, in the order in which they must be carried out."""
        now_s = self.now_s = event.at_s
        commands = self._handlers[type(event)](event)
        placer = self.placer
        if placer.ready.count or placer.groups or placer.parked:
            commands.extend(placer.dispatch(now_s))
            if placer.starved:
                self._wake(now_s + self.rules.retry_s, commands)
        if self.fleet.stacked and not placer.ready.count and placer.is_lazy:
            placer.recall(now_s, commands)
        if placer.deadlines:
            self._wake(placer.deadlines[0][0], commands)
        if placer.crowded and self.fleet.live > 1:
            self._wake(now_s + self.rules.retry_s, commands)
        if self.tasks:
            if self.sweep_at_s == inf:
                self.sweep_at_s = now_s + self.rules.sweep_s
            self._wake(self.sweep_at_s, commands)
        return commands

    def _wake(self, at_s: float, commands: list[Command]) -> None:
        if at_s < self.timer_s:
            self.timer_s = at_s
            commands.append(SetTimer(at_s))

    # questions

    def obstacles(self, signature: str, request: Request) -> list[tuple[str, str]]:
        """Say for each device why it can never run a request, '' where it can."""
        obstacle, gone = self.rows.obstacle, DevicePhase.GONE
        return [
            (state.name, "it was lost" if state.phase is gone else obstacle(state.device, signature, request))
            for state in self.fleet.states
        ]

    def refuse(self, name: str, signature: str, request: Request) -> str:
        """Say why the fleet can never meet a request, '' when it can."""
        obstacles = self.obstacles(signature, request)
        able = sum(1 for _, reason in obstacles if not reason)
        return refusal(name, request, obstacles) if able < request.devices or not able else ""

    def _stranded(self, state: TaskState) -> str:
        """Say why no device can ever run a task as things stand, '' when one can."""
        task = state.task
        request = task.request
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
        if request.near or request.apart:
            far = self.placer.affinities.settled(request)
            for index in far:
                name, reason = obstacles[index]
                obstacles[index] = (name, reason or "its affinities rule it out")
        able = sum(1 for _, reason in obstacles if not reason)
        return refusal(task.name, request, obstacles) if able < request.devices or not able else ""

    def estimates(self, signature: str, size: float) -> list[tuple[str, Estimate]]:
        """Give the estimate of one run on each device."""
        return [(state.name, self.cost.estimate(signature, size, state.device)) for state in self.fleet.states]

    def left_out(self) -> list[tuple[str, str]]:
        """Give the sound devices that finished no task while others did, with the reason."""
        total = sum(state.finished for state in self.fleet.states)
        idle = [s for s in self.fleet.states if s.phase is DevicePhase.READY and not s.finished and not s.sent]
        if not total:
            return []
        return [(state.name, self.rows.why_idle(state.index)) for state in idle]

    # tasks

    def _submitted(self, event: TaskSubmitted) -> list[Command]:
        task = event.task
        commands: list[Command] = []
        state = self.tasks.get(task.id)
        if state is None:
            self.counts.submitted += 1
            state = self.tasks[task.id] = TaskState(task)
        else:
            state.task, state.row, state.waits_for, state.excluded = task, None, 0, frozenset()
        if self.fleet.own_nodes:
            self._count_at_home(state)
        if task.after or task.inputs:
            for parent in dict.fromkeys(task.after + task.inputs):
                waited = self.tasks.get(parent)
                if waited is not None and waited is not state:
                    self._wait(state, waited)
        if not state.waits_for:
            run = None if task.inputs or self._reduced or self.counts.again else self.placer.express(state, event.at_s)
            if run is not None:
                commands.append(run)
            else:
                self._make_ready(state, commands)
        return commands

    def _count_at_home(self, state: TaskState) -> None:
        home, items = self.placer.home, self.replicas.items
        home.came(self.rows.of(state))
        for item in state.task.inputs:
            if item in items:
                home.reads(items[item])

    def _may_be_stranded(self, state: TaskState) -> bool:
        """Tell whether it must be looked at if any device can ever run a task; seldom."""
        task = state.task
        request = task.request
        if state.excluded or request.near or request.apart:
            return True
        if self.fleet.own_nodes and (task.inputs or request.memory_bytes):
            needed = self.replicas.nbytes(task.inputs) + request.memory_bytes
            return needed > self.replicas.least_bytes or not self._is_able(task)
        return not self._is_able(task)

    def _is_able(self, task: Task) -> bool:
        """Tell whether the fleet can meet a request, remembering the answer."""
        key = (task.signature.partition("|")[0], id(task.request))
        if key not in self._able:
            if self.refuse(task.name, task.signature, task.request):
                return False
            if len(self._able) > 4096:
                self._able.clear()
            self._able[key] = task.request
        return True

    def _waits_again(self, state: TaskState) -> bool:
        """Let a task wait for those of its inputs that are computed again; True when there are any."""
        for item in dict.fromkeys(state.task.inputs):
            if item in self.tasks:
                self._wait(state, self.tasks[item])
        if state.waits_for:
            state.phase = Phase.SUBMITTED
        return state.waits_for > 0

    @staticmethod
    def _wait(state: TaskState, waited: TaskState) -> None:
        state.waits_for += 1
        if waited.dependents is None:
            waited.dependents = []
        waited.dependents.append(state)

    def _make_ready(self, state: TaskState, commands: list[Command], *, first: bool = False) -> None:
        if self.counts.again and self._waits_again(state):
            return
        if self.replicas.lost and not self.replicas.lost.isdisjoint(state.task.inputs):
            text = f"an input of {state.task.name} was lost with its device and cannot be computed again"
            self._fail(state, Failure("crash", text), commands)
            return
        reason = self._stranded(state) if self._may_be_stranded(state) else ""
        if reason:
            self._fail(state, Failure("nothing_fits", reason), commands)
        elif state.is_group:
            state.phase = Phase.READY
            (self.placer.groups.appendleft if first else self.placer.groups.append)(state)
        else:
            self.placer.ready.push(state, first=first)

    def _finished(self, event: TaskFinished) -> list[Command]:
        state = self.tasks.get(event.task)
        device = self.fleet.by_id[event.device]
        if state is None or state.attempt != event.attempt or event.task not in device.sent:
            commands = self._late(device, event)
            kept = state is not None and state.result is not None and state.result[1:4] == event[1:4]
            return commands if kept else [*commands, Discard(event.device, event.task, event.attempt)]
        if state.devices:
            return self._member_finished(state, device, event)
        commands = self._keep(state, event)
        self.placer.unplace(state, event.at_s, commands)
        self._learn(state, device, event)
        self._commit(state, event, commands)
        if device.placed:
            self.placer.flush(device, event.at_s, commands)
        return commands

    def _learn(self, state: TaskState, device: DeviceState, event: TaskFinished) -> None:
        device.finished += 1
        device.starts = 0
        task = state.task
        if self.fleet.own_nodes:
            row = self.rows.of(state)
            if event.nbytes > row.out_bytes:
                row.out_bytes = event.nbytes
                self.placer.home.changed()
                self.placer.offer_all()
        if self.cost.observe(task.signature, task.size, device.device, event.seconds):
            self.rows.learned(task.signature, device)
            self.placer.offer_all()
        if self.cost.epoch != self._epoch:
            self._epoch = self.cost.epoch
            self.rows.refresh()

    def _keep(self, state: TaskState, event: TaskFinished) -> list[Command]:
        """Take note of the data item that a result is; one computed again may come to the host in a message."""
        if not event.nbytes:
            known = self.replicas.items.get(event.task) if state.recomputed else None
            return self.replicas.add(known.id, known.nbytes, HOST_NODE, state) if known is not None else []
        readers = sum(event.task in dependent.task.inputs for dependent in state.dependents or ())
        self.placer.home.kept(event.task, self.fleet.by_id[event.device].index, event.nbytes, readers)
        return self.replicas.add(event.task, event.nbytes, event.node, state)

    def _commit(self, state: TaskState, event: TaskFinished, commands: list[Command]) -> None:
        task = state.task
        state.phase = Phase.FINISHED
        del self.tasks[task.id]
        if state.recomputed:
            commands.append(Recommit(task.id, event.attempt, event.device))
            commands.extend(self.replicas.unclaim(task.inputs))
            self.counts.again -= 1
        else:
            self.counts.committed += 1
            commands.append(Commit(task.id, event.attempt, event.device))
        if state.released:
            commands.extend(self.replicas.release(task.id))
        if task.inputs:
            self.placer.home.read(task.inputs)
        state.result = None
        dependents, state.dependents = state.dependents, None
        for dependent in dependents or ():
            dependent.waits_for -= 1
            if not dependent.waits_for and dependent.phase is Phase.SUBMITTED:
                self._make_ready(dependent, commands)

    def _member_finished(self, state: TaskState, device: DeviceState, event: TaskFinished) -> list[Command]:
        commands: list[Command] = []
        rank = state.devices.index(device.index)
        state.group_left -= 1
        self.fleet.drop(device, state, event.at_s)
        if rank == 0:
            state.result = event
        elif event.nbytes:
            commands.append(Discard(event.device, event.task, event.attempt))
        if state.group_left:
            return commands
        first, result = self.fleet.states[state.devices[0]], state.result
        assert result is not None
        commands.extend(self._keep(state, result))
        self.placer.unplace(state, event.at_s, commands)
        self._learn(state, first, result)
        self._commit(state, result, commands)
        return commands

    def _failed(self, event: TaskFailed) -> list[Command]:
        state = self.tasks.get(event.task)
        device = self.fleet.by_id[event.device]
        if state is None or state.attempt != event.attempt or event.task not in device.sent:
            return self._late(device, event)
        commands: list[Command] = []
        self._cancel_others(state, device, commands)
        self.placer.unplace(state, event.at_s, commands)
        self._after_failure(state, device, event.failure, commands)
        self.placer.flush(device, event.at_s, commands)
        return commands

    def _late(self, device: DeviceState, event: TaskFinished | TaskFailed | TaskWithdrawn) -> list[Command]:
        """Count news of an attempt that was given up; if it was being stopped, its device is free now."""
        self.counts.late += 1
        commands: list[Command] = []
        if device.stopping.get(event.task) == event.attempt:
            del device.stopping[event.task]
            self.placer.flush(device, event.at_s, commands)
        return commands

    def _cancel_others(self, state: TaskState, failed: DeviceState, commands: list[Command]) -> None:
        """Stop the other members of a group, and drop the result that one of them may have given."""
        for index in state.devices:
            member = self.fleet.states[index]
            if member is not failed and state.task.id in member.sent:
                commands.append(Cancel(member.name, state.task.id, state.attempt))
                member.stopping[state.task.id] = state.attempt
        if state.result is not None:
            commands.append(Discard(state.result.device, state.task.id, state.attempt))
            state.result = None

    def _after_failure(
        self, state: TaskState, device: DeviceState, failure: Failure, commands: list[Command]
    ) -> None:
        request = state.task.request
        if failure.kind == "exception" and state.retries < request.retries:
            state.retries += 1
            self._again(state, commands)
        elif failure.kind == "missing_package":
            self.rows.leave_out(state.task.signature, device.device.label)
            commands.append(Warn(f"{state.task.name} is not run on {device.device.label} devices: {failure.message}"))
            self._elsewhere(state, failure, commands)
            self._refuse_stranded(commands)
        elif failure.kind == "out_of_memory":
            self._out_of_memory(state, device, failure, commands)
        else:
            self._fail(state, failure, commands)

    def _again(self, state: TaskState, commands: list[Command]) -> None:
        self.counts.retried += 1
        self._make_ready(state, commands, first=True)

    def _elsewhere(self, state: TaskState, failure: Failure, commands: list[Command]) -> None:
        """Try on another device; where none is left, the failure is the task's."""
        obstacles = self.obstacles(state.task.signature, state.task.request)
        able = [i for i, (_, reason) in enumerate(obstacles) if not reason and i not in state.excluded]
        if len(able) >= state.task.request.devices:
            self._again(state, commands)
        elif failure.kind == "out_of_memory" and state.task.request.splittable:
            state.phase, state.waits_for = Phase.SUBMITTED, 1
            commands.append(Split(state.task.id))
        else:
            self._fail(state, failure, commands)

    def _out_of_memory(
        self, state: TaskState, device: DeviceState, failure: Failure, commands: list[Command]
    ) -> None:
        """Drop what can be dropped and try there once more; then elsewhere, then smaller."""
        freed = self.replicas.evict(device.device.memory_node)
        commands.extend(freed)
        if freed and not state.out_of_memory:
            state.out_of_memory += 1
            self._again(state, commands)
            return
        state.excluded |= {device.index}
        self._elsewhere(state, failure, commands)

    def _fail(self, state: TaskState, failure: Failure, commands: list[Command]) -> None:
        """Fail a task that is in no queue, and every task that waits for its result."""
        doomed = [state]
        while doomed:
            state = doomed.pop()
            if self.tasks.pop(state.task.id, None) is None:
                continue
            state.phase = Phase.FAILED
            self.placer.home.read(state.task.inputs)
            self.counts.failed += not state.recomputed
            commands.append(Fail(state.task.id, failure))
            if state.recomputed:
                self.counts.again -= 1
                commands.extend(self.replicas.unclaim(state.task.inputs))
                commands.extend(self.replicas.give_up(state.task.id))
            doomed.extend(state.dependents or ())
            state.dependents = None

    def _withdrawn(self, event: TaskWithdrawn) -> list[Command]:
        state = self.tasks.get(event.task)
        device = self.fleet.by_id[event.device]
        if state is None or state.attempt != event.attempt or event.task not in device.sent:
            return self._late(device, event)
        commands: list[Command] = []
        self.placer.unplace(state, event.at_s, commands)
        self._make_ready(state, commands, first=True)
        self.placer.flush(device, event.at_s, commands)
        return commands

    def _cancel_requested(self, event: CancelRequested) -> list[Command]:
        state = self.tasks.get(event.task)
        if state is None:
            return []
        return self._stop(state, event.at_s, Failure("cancelled", f"{state.task.name} was cancelled"))

    def _stop(self, state: TaskState, now_s: float, failure: Failure) -> list[Command]:
        """Fail a task wherever it stands, and stop its attempt."""
        commands: list[Command] = []
        if state.phase is Phase.RUNNING:
            names = [self.fleet.states[i].name for i in state.devices or (state.device,)]
            commands.extend(Cancel(name, state.task.id, state.attempt) for name in names)
            self._keep_busy(state, now_s, commands)
        else:
            self._take_off(state, now_s, commands)
        self._fail(state, failure, commands)
        return commands

    def _unqueue(self, state: TaskState, commands: list[Command]) -> None:
        if state.is_group:
            self.placer.groups.remove(state)
            self.placer.let_go(state)
            commands.extend(self.replicas.unplace(state))
        else:
            self.placer.ready.remove(state, Phase.SUBMITTED)

    def _keep_busy(self, state: TaskState, now_s: float, commands: list[Command]) -> None:
        """Count a stopped attempt's device as busy until the engine has answered for it."""
        for index in state.devices or (state.device,):
            device = self.fleet.states[index]
            if state.task.id in device.sent:
                device.stopping[state.task.id] = state.attempt
        self.placer.unplace(state, now_s, commands)

    # devices

    def _device_added(self, event: DeviceAdded) -> list[Command]:
        known = self.fleet.by_id.get(event.device.id)
        if known is None or known.phase is DevicePhase.GONE:
            self.fleet.add(event.device, event.at_s)
            self.replicas.spread(tuple(device.memory_node for device in self.fleet.devices))
            self._able.clear()
            self.rows.refresh()
            self.placer.home.changed()
        return []

    def _device_ready(self, event: DeviceReady) -> list[Command]:
        state = self.fleet.by_id.get(event.device)
        if state is None or state.phase in (DevicePhase.READY, DevicePhase.GONE):
            return []
        self.fleet.set_phase(state, DevicePhase.READY, event.at_s)
        self.placer.offer_all()
        return []

    def _device_lost(self, event: DeviceLost) -> list[Command]:
        device = self.fleet.by_id.get(event.device)
        if device is None or device.phase is DevicePhase.GONE:
            return []
        commands: list[Command] = []
        wanted = bool(device.stopping)
        device.stopping.clear()
        device.starts += not wanted
        gone = event.permanent or device.starts > self.rules.starts
        self.fleet.set_phase(device, DevicePhase.GONE if gone else DevicePhase.LOST, event.at_s)
        victims = [state for state, _ in device.sent.values()]
        for position, state in enumerate(victims):
            self._lose_attempt(state, device, event, commands, running=position == 0 and not wanted)
        for state in list(device.placed)[::-1]:
            self.placer.unplace(state, event.at_s, commands)
            self._make_ready(state, commands, first=True)
        for group in list(self.placer.groups):
            if device.index in group.devices:
                self.placer.let_go(group)
                commands.extend(self.replicas.unplace(group))
        if device.device.memory_node != HOST_NODE:
            self._lose_node(device.device.memory_node, event.at_s, commands)
        self.placer.offer(device)
        if gone:
            self._device_gone(device, event, commands)
        else:
            commands.append(StartWorker(device.name))
        return commands

    def _lose_attempt(
        self, state: TaskState, device: DeviceState, event: DeviceLost, commands: list[Command], *, running: bool
    ) -> None:
        self._cancel_others(state, device, commands)
        self.placer.unplace(state, event.at_s, commands)
        state.crashes += running
        if state.crashes > state.task.request.crashes:
            deaths = f"its worker died {state.crashes} times, last on {device.name}: {event.reason}"
            text = f"{state.task.name} was given up: {deaths}"
            self._fail(state, Failure("crash", text), commands)
        else:
            self._again(state, commands)

    def _device_gone(self, device: DeviceState, event: DeviceLost, commands: list[Command]) -> None:
        commands.append(Warn(f"{device.name} is not used any more: {event.reason}"))
        self.rows.refresh()
        self.placer.home.changed()
        self._refuse_stranded(commands)

    def _refuse_stranded(self, commands: list[Command]) -> None:
        """Fail the ready tasks that no device can run any more; later ones fail when they become ready."""
        self._reduced = True
        self._able.clear()
        for state in [s for s in self.tasks.values() if s.phase is Phase.READY]:
            reason = self._stranded(state) if self._may_be_stranded(state) else ""
            if reason and state.phase is Phase.READY:
                self._unqueue(state, commands)
                self._fail(state, Failure("nothing_fits", reason), commands)

    def _refuse_ruled_out(self, commands: list[Command]) -> None:
        """Fail the ready tasks that wait for a place which their affinities leave nowhere."""
        for state in self.placer.picky():
            reason = self._stranded(state)
            if reason:
                self._unqueue(state, commands)
                self._fail(state, Failure("nothing_fits", reason), commands)

    def _lose_node(self, node: str, now_s: float, commands: list[Command]) -> None:
        orphans, broken = self.replicas.lose(node)
        for entry in orphans:
            self.placer.home.paid(entry.id)
        for item, src, dst in broken:
            waiters, orders = self.replicas.failed(item, src, dst)
            commands.extend(orders)
            for state in waiters:
                self._take_off(state, now_s, commands)
                self._make_ready(state, commands, first=True)
        needed = {item for state in self.tasks.values() for item in state.task.inputs} if orphans else set()
        wanted = [entry for entry in orphans if not entry.released or entry.id in needed]
        again = self._begin_again([entry for entry in wanted if entry.id in self.replicas.items])
        gone = self.replicas.lost.union(again)
        for state in list(self.tasks.values()) if gone else ():
            waits = state.phase in (Phase.READY, Phase.PLACED) and state.task.id not in again
            if waits and not gone.isdisjoint(state.task.inputs):
                self._take_off(state, now_s, commands)
                self._make_ready(state, commands, first=True)
        for producer in again.values():
            self._make_ready(producer, commands, first=True)

    def _begin_again(self, orphans: list[Item]) -> dict[int, TaskState]:
        """Open the tasks of lost results again, and of those that their inputs need."""
        again: dict[int, TaskState] = {}
        while orphans:
            entry = orphans.pop()
            producer = entry.producer
            if producer is None:
                self.replicas.lost.add(entry.id)
            if producer is None or entry.awaited:
                continue
            entry.awaited = True
            self.counts.again += 1
            producer.recomputed, producer.excluded, producer.dependents = True, frozenset(), None
            producer.phase, producer.waits_for = Phase.SUBMITTED, 0
            self.tasks[entry.id] = again[entry.id] = producer
            orphans.extend(self.replicas.claim(producer.task.inputs))
        return again

    def _utilisation_reported(self, event: UtilisationReported) -> list[Command]:
        state = self.fleet.by_id.get(event.device)
        if state is not None:
            self.fleet.busy_frac[state.index] = event.busy_frac
            self.placer.offer_all()
            self.placer.look_again = True
        return []

    # data

    def _item_put(self, event: ItemPut) -> list[Command]:
        return self.replicas.add(event.item, event.nbytes, event.node, None)

    def _item_released(self, event: ItemReleased) -> list[Command]:
        state = self.tasks.get(event.item)
        if state is not None and not state.recomputed:
            state.released = True
            return []
        item = self.replicas.items.get(event.item)
        if item is not None and item.producer is not None:
            self.placer.home.released(item.nbytes)
        return self.replicas.release(event.item)

    def _transfer_finished(self, event: TransferFinished) -> list[Command]:
        waiters, commands = self.replicas.arrived(event.item, event.src, event.dst)
        self.placer.home.paid(event.item)
        for state in waiters:
            if not state.missing and state.phase is Phase.PLACED:
                self.placer.flush(self.fleet.states[state.device], event.at_s, commands)
        if self.placer.starved:
            self.placer.offer_all()
        return commands

    def _transfer_failed(self, event: TransferFailed) -> list[Command]:
        waiters, commands = self.replicas.failed(event.item, event.src, event.dst)
        for state in waiters:
            self._take_off(state, event.at_s, commands)
            state.crashes += 1
            if state.crashes > state.task.request.crashes:
                text = f"{state.task.name} was given up: its input {event.item} could not be copied: {event.reason}"
                self._fail(state, Failure("crash", text), commands)
            else:
                self._make_ready(state, commands, first=True)
        return commands

    def _take_off(self, state: TaskState, now_s: float, commands: list[Command]) -> None:
        """Take a task that does not run yet out of whatever queue it is in."""
        if state.phase is Phase.PLACED:
            self.placer.unplace(state, now_s, commands)
        elif state.phase is Phase.READY:
            self._unqueue(state, commands)

    # time

    def _timer_fired(self, event: TimerFired) -> list[Command]:
        self.timer_s = inf
        commands: list[Command] = []
        self.placer.offer_all()
        self.placer.crowded = False
        while self.placer.deadlines and self.placer.deadlines[0][0] <= event.at_s:
            _, task, attempt = heappop(self.placer.deadlines)
            state = self.tasks.get(task)
            if state is not None and state.attempt == attempt and state.phase is Phase.RUNNING:
                limit = state.task.request.timeout_s
                failure = Failure("timeout", f"{state.task.name} ran longer than its limit of {limit:g} s")
                commands.extend(self._stop(state, event.at_s, failure))
        if self.fleet.live > 1:
            self._rescue(event.at_s, commands)
        if event.at_s >= self.sweep_at_s:
            self.sweep_at_s = inf
            self._sweep(event.at_s, commands)
        self._refuse_ruled_out(commands)
        return commands

    def _rescue(self, now_s: float, commands: list[Command]) -> None:
        """Take back the small tasks that are stuck behind one which turned out long."""
        for device in self.fleet.states:
            if len(device.sent) < 2:
                continue
            self.placer.crowded = True
            head, *others = [state for state, _ in device.sent.values()]
            if now_s - device.started_s > max(10 * head.predicted_s, self.rules.retry_s / 2):
                commands.extend(Withdraw(device.name, state.task.id, state.attempt) for state in others)

    def _sweep(self, now_s: float, commands: list[Command]) -> None:
        """Give up attempts that have run absurdly long against what is known of them."""
        for device in self.fleet.states:
            if not device.sent:
                continue
            state = next(iter(device.sent.values()))[0]
            limit = self.rules.stall_s + self.rules.stall_factor * self.rows.of(state).high_s
            if isfinite(limit) and now_s - device.started_s > limit:
                commands.append(Warn(f"{state.task.name} hangs on {device.name} and is tried again"))
                commands.append(Cancel(device.name, state.task.id, state.attempt))
                self._cancel_others(state, device, commands)
                self._keep_busy(state, now_s, commands)
                state.crashes += 1
                if state.crashes > state.task.request.crashes:
                    self._fail(state, Failure("crash", f"{state.task.name} hung {state.crashes} times"), commands)
                else:
                    self._again(state, commands)
