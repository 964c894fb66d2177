"""The core: one pure state machine. `handle(event)` is the only method through which its state changes.

In: events. Out: commands. It knows no clock, no chance and no input or output: time arrives inside the events.
What an event does to a task follows from one table of (phase, event); the parts that do it are in files beside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from hetero.core.eligibility import Eligibility
from hetero.core.estimates import EstimateRows
from hetero.core.faults import DataFaults, DeviceFaults, HangDetector
from hetero.core.fleet import Fleet
from hetero.core.lease_lifecycle import LeaseLifecycle
from hetero.core.leases import LeasePool
from hetero.core.lifecycle import CoreState, TaskLifecycle
from hetero.core.nesting import Nesting
from hetero.core.placement import Placer
from hetero.core.replicas import Replicas
from hetero.core.state import Counts, DevicePhase, Phase, Rules
from hetero.model.commands import Command
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
from hetero.model.topology import Topology
from hetero.plan.performance.cost_model import CostModel, TimeEstimate
from hetero.plan.policies.base import Policy

__all__ = ["Counts", "Machine", "Rules"]

_Transition = Callable[..., list[Command]]
_Table = dict[tuple[Phase, type], _Transition]


_OfAttempt = TaskFinished | TaskFailed | TaskWithdrawn | TaskSuspended | TaskResumed


class Machine:
    """Decides what runs where, and remembers what happened.

    Parameters
    ----------
    policy
        Proposes placements.
    cost
        Learns and estimates run times.
    topology
        Memory nodes and links.
    rules
        Bounds on waiting.

    Attributes
    ----------
    tasks, counts
        Open tasks by id, and what became of the others.
    fleet, rows, replicas, pool, placer, quarantine
        The parts of `CoreState`; to be read between two events.

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
        self.rules = rules or Rules()
        self.cost = cost
        self.fleet = fleet = Fleet()
        self.rows = rows = EstimateRows(cost, fleet.states, topology)
        self.replicas = replicas = Replicas(topology)
        self.pool = pool = LeasePool((), topology)
        self.placer = placer = Placer(fleet, rows, replicas, topology, policy, pool)
        eligibility = Eligibility(fleet, rows, replicas, pool, placer.affinities)
        core = CoreState(self.rules, cost, fleet, rows, replicas, pool, placer, eligibility)
        self.tasks, self.leased, self.counts = core.tasks, core.leased, core.counts
        self.quarantine, self._timer, self._eligibility = core.quarantine, core.timer, eligibility
        self._lifecycle = lifecycle = TaskLifecycle(core)
        self._nesting = Nesting(core, lifecycle)
        self._leases = LeaseLifecycle(core, lifecycle)
        self._data = DataFaults(core, lifecycle)
        self._devices = DeviceFaults(core, lifecycle, self._data.lose_node)
        self._hangs = HangDetector(core, lifecycle)
        self._due, self._restarts = core.quarantine.due, self._devices.restarts
        self._handlers = self._event_table()
        self.lone = lifecycle.lone
        self.refuse = eligibility.refuse
        self.obstacles = eligibility.obstacles

    def _transitions(self) -> _Table:
        """Return what an event does to a task in a phase; what stands nowhere comes too late."""
        tasks, nesting = self._lifecycle, self._nesting
        return {
            (Phase.SUBMITTED, TaskSubmitted): tasks.resubmitted,
            (Phase.SUBMITTED, CancelRequested): tasks.cancelled,
            (Phase.READY, CancelRequested): tasks.cancelled,
            (Phase.PLACED, CancelRequested): tasks.cancelled,
            (Phase.HELD, CancelRequested): tasks.cancelled,
            (Phase.RUNNING, CancelRequested): tasks.cancelled_running,
            (Phase.RUNNING, TaskFinished): tasks.finished,
            (Phase.RUNNING, TaskFailed): tasks.failed,
            (Phase.RUNNING, TaskWithdrawn): tasks.withdrawn,
            (Phase.RUNNING, TaskSuspended): nesting.suspended,
            (Phase.SUSPENDED, TaskResumed): nesting.resumed,
            (Phase.SUSPENDED, CancelRequested): tasks.cancelled_running,
        }

    def _event_table(self) -> dict[type, Callable[..., list[Command]]]:
        """Return what handles each kind of event."""
        tasks, nesting = self._lifecycle, self._nesting
        devices, data, leases = self._devices, self._data, self._leases
        table = self._transitions()
        return {
            TaskSubmitted: self._of_task(TaskSubmitted, table, tasks.submitted),
            CancelRequested: self._of_task(CancelRequested, table, lambda event: []),
            TaskFinished: self._of_attempt(TaskFinished, table, tasks.finished_late),
            TaskFailed: self._of_attempt(TaskFailed, table, tasks.late),
            TaskWithdrawn: self._of_attempt(TaskWithdrawn, table, tasks.late),
            TaskSuspended: self._of_attempt(TaskSuspended, table, nesting.late),
            TaskResumed: self._of_attempt(TaskResumed, table, nesting.late),
            LoneTasks: tasks.lone_tasks,
            DeviceAdded: devices.added,
            DeviceReady: devices.ready,
            DeviceLost: devices.lost,
            UtilisationReported: devices.used,
            ItemPut: data.put,
            ItemReleased: data.released,
            TransferFinished: data.transferred,
            TransferFailed: data.transfer_failed,
            LeaseAsked: leases.asked,
            LeaseRenewed: leases.renewed,
            LeaseRefused: leases.refused,
            LeaseReleased: leases.released,
            TimerFired: self._timer_fired,
        }

    def _of_attempt(
        self, kind: type, table: _Table, late: Callable[..., list[Command]]
    ) -> Callable[..., list[Command]]:
        """Return what handles a kind of event that tells of an attempt.

        An attempt that is not the last one of its task, or is not with that device, was given up: such an event is late
        in every phase.
        """
        tasks, by_id = self.tasks, self.fleet.by_id
        transitions = tuple(table.get((phase, kind)) for phase in Phase)
        waits = kind is TaskResumed

        def handle(event: _OfAttempt) -> list[Command]:
            state = tasks.get(event.task)
            if state is not None and state.attempt == event.attempt:
                transition = transitions[state.phase]
                device = by_id[event.device]
                if transition is not None and (waits or event.task in device.sent):
                    return transition(state, device, event)
            return late(event)

        return handle

    def _of_task(
        self, kind: type, table: _Table, unknown: Callable[..., list[Command]]
    ) -> Callable[..., list[Command]]:
        """Return what handles a kind of event that comes from the program, of a task that may not be open."""
        tasks = self.tasks
        transitions = tuple(table.get((phase, kind)) for phase in Phase)

        def handle(event: TaskSubmitted | CancelRequested) -> list[Command]:
            state = tasks.get(event.task if isinstance(event, CancelRequested) else event.task.id)
            if state is None:
                return unknown(event)
            transition = transitions[state.phase]
            assert transition is not None, f"{kind.__name__} of task {state.task.id}, which is {state.phase.name}"
            return transition(state, event)

        return handle

    @property
    def now_s(self) -> float:
        """Time of the last event, s."""
        return self._timer.now_s

    @property
    def timer_s(self) -> float:
        """When the core has asked to be woken, s; inf for never."""
        return self._timer.due_s

    def handle(self, event: Event) -> list[Command]:
        """Take one fact; return the orders that follow from it, in the order in which they must be carried out."""
        timer, placer, fleet = self._timer, self.placer, self.fleet
        now_s = timer.now_s = event.at_s
        commands = self._handlers[type(event)](event)
        if self._due:
            self._lifecycle.try_suspects(commands)
        if self.pool.lends:
            self._leases.advance(now_s, commands)
        if placer.ready.count or placer.groups or placer.parked:
            commands.extend(placer.dispatch(now_s))
            if placer.starved:
                timer.wake(now_s + self.rules.recheck_s, commands)
        if placer.prefetch is not None:
            commands.extend(placer.prefetch.fetches())
        if fleet.stacked and not placer.ready.count and placer.is_lazy:
            placer.recall(now_s, commands)
        if placer.deadlines:
            timer.wake(placer.deadlines[0][0], commands)
        if placer.crowded and fleet.live > 1:
            timer.wake(now_s + self.rules.recheck_s, commands)
        if self._restarts:
            timer.wake(min(self._restarts.values()), commands)
        if fleet.suspended:
            self._nesting.watch(commands)
        if self.tasks:
            hangs = self._hangs
            if hangs.sweep_at_s == inf:
                hangs.sweep_at_s = now_s + self.rules.sweep_s
            if hangs.sweep_at_s < timer.due_s:
                timer.wake(hangs.sweep_at_s, commands)
        return commands

    def handle_all(self, events: Sequence[Event]) -> list[Command]:
        """Take several facts at once; nothing is placed before the last of them is known."""
        commands: list[Command] = []
        for event in events[:-1]:
            self._timer.now_s = event.at_s
            commands.extend(self._handlers[type(event)](event))
        return [*commands, *self.handle(events[-1])] if events else commands

    def _timer_fired(self, event: TimerFired) -> list[Command]:
        self._timer.due_s = inf
        commands: list[Command] = []
        if self._devices.restarts:
            self._devices.start_again(event.at_s, commands)
        self.pool.advance(event.at_s)
        self.placer.offer_all()
        self.placer.crowded = False
        self._hangs.stop_late(event.at_s, commands)
        self._lifecycle.refuse_ruled_out(commands)
        return commands

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
