"""The core: one pure state machine. `handle(event)` is the only door through which its state changes.

In: events. Out: commands. It knows no clock, no chance and no input or output: time arrives inside the events.
What placing, memory and estimates need is in the rooms beside; here are the lives of tasks and devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop
from math import inf, isfinite
from typing import Any

from hetero.core.faults import Losses
from hetero.core.questions import Counts, Rules
from hetero.core.state import STARTED, DevicePhase
from hetero.model.commands import (
    Cancel,
    Command,
    Warn,
    Withdraw,
)
from hetero.model.events import (
    CancelRequested,
    DeviceAdded,
    DeviceLost,
    DeviceReady,
    Event,
    ItemPut,
    ItemReleased,
    LeaseAsked,
    LeaseRefused,
    LeaseReleased,
    LeaseRenewed,
    LoneTasks,
    TaskFailed,
    TaskFinished,
    TaskResumed,
    TaskSubmitted,
    TaskSuspended,
    TaskWithdrawn,
    TimerFired,
    TransferFailed,
    TransferFinished,
    UtilisationReported,
)
from hetero.model.tasks import Failure
from hetero.model.topology import Topology
from hetero.plan.performance.cost_model import CostModel
from hetero.plan.policies.base import Policy

__all__ = ["Counts", "Machine", "Rules"]


class Machine(Losses):
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
    >>> from hetero.model.tasks import Request, Task
    >>> from hetero.plan.policies.registry import get
    >>> machine = Machine(get("eft"), CostModel(), Topology())
    >>> _ = machine.handle(DeviceAdded(0.0, Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu")))
    >>> _ = machine.handle(DeviceReady(0.0, "h0/cpu:0"))
    >>> machine.handle(TaskSubmitted(0.0, Task(1, "f", "f|", 0.0, (), (), Request())))[0].device
    'h0/cpu:0'
    """

    def __init__(self, policy: Policy, cost: CostModel, topology: Topology, rules: Rules | None = None) -> None:
        super().__init__(policy, cost, topology, rules)
        self._handlers: dict[type, Callable[[Any], list[Command]]] = {
            TaskSubmitted: self._submitted,
            CancelRequested: self._cancel_requested,
            TaskFinished: self._finished,
            TaskFailed: self._failed,
            TaskWithdrawn: self._withdrawn,
            TaskSuspended: self._suspended,
            TaskResumed: self._resumed,
            DeviceAdded: self._device_added,
            DeviceReady: self._device_ready,
            DeviceLost: self._device_lost,
            UtilisationReported: self._utilisation_reported,
            ItemPut: self._item_put,
            ItemReleased: self._item_released,
            TransferFinished: self._transfer_finished,
            TransferFailed: self._transfer_failed,
            LeaseAsked: self._lease_asked,
            LeaseRenewed: self._lease_renewed,
            LeaseRefused: self._lease_refused,
            LeaseReleased: self._lease_released,
            TimerFired: self._timer_fired,
            LoneTasks: self._lone_tasks,
        }

    def handle(self, event: Event) -> list[Command]:
        """Take one fact; return the orders that follow from it, in the order in which they must be carried out."""
        now_s = self.now_s = event.at_s
        commands = self._handlers[type(event)](event)
        if self.quarantine.due:
            self._try_suspects(commands)
        if self.pool.lends:
            self._lend(now_s, commands)
        placer = self.placer
        if placer.ready.count or placer.groups or placer.parked:
            commands.extend(placer.dispatch(now_s))
            if placer.starved:
                self._wake(now_s + self.rules.retry_s, commands)
        if placer.prefetch is not None:
            commands.extend(placer.prefetch.fetches())
        if self.fleet.stacked and not placer.ready.count and placer.is_lazy:
            placer.recall(now_s, commands)
        if placer.deadlines:
            self._wake(placer.deadlines[0][0], commands)
        if placer.crowded and self.fleet.live > 1:
            self._wake(now_s + self.rules.retry_s, commands)
        if self.restarts:
            self._wake(min(self.restarts.values()), commands)
        if self.fleet.suspended:
            self._watch_stacks(commands)
        if self.tasks:
            if self.sweep_at_s == inf:
                self.sweep_at_s = now_s + self.rules.sweep_s
            self._wake(self.sweep_at_s, commands)
        return commands

    def handle_all(self, events: Sequence[Event]) -> list[Command]:
        """Take several facts at once; nothing is placed before the last of them is known."""
        commands: list[Command] = []
        for event in events[:-1]:
            self.now_s = event.at_s
            commands.extend(self._handlers[type(event)](event))
        return [*commands, *self.handle(events[-1])] if events else commands

    def _timer_fired(self, event: TimerFired) -> list[Command]:
        self.timer_s = inf
        commands: list[Command] = []
        if self.restarts:
            self._start_again(event.at_s, commands)
        self.pool.advance(event.at_s)
        self.placer.offer_all()
        self.placer.crowded = False
        while self.placer.deadlines and self.placer.deadlines[0][0] <= event.at_s:
            _, task, attempt = heappop(self.placer.deadlines)
            state = self.tasks.get(task)
            if state is not None and state.attempt == attempt and state.phase in STARTED:
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
        idle = any(not (device.sent or device.placed) for device in self.fleet.states)
        for device in self.fleet.states:
            parked = device.sent and device.placed and not self.fleet.own_nodes
            if len(device.sent) < 2 and not parked:
                continue
            self.placer.crowded = True
            head, *others = [state for state, _ in device.sent.values()]
            if now_s - device.started_s > max(10 * head.predicted_s, self.rules.retry_s / 2):
                if parked and idle:
                    self.placer.clear(device, now_s, commands)
                commands.extend(Withdraw(device.name, state.task.id, state.attempt) for state in others)

    def _sweep(self, now_s: float, commands: list[Command]) -> None:
        """Abandon attempts that have run absurdly long for what is known of them."""
        if self.quarantine.suspects and any(d.phase is DevicePhase.READY and not d.sent for d in self.fleet.states):
            self.quarantine.stuck()
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
