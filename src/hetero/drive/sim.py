"""The simulated driver: the same core, in virtual time, with a simulated engine and seeded faults.

In: a program, a fleet, and how long things really take. Out: what happened, and when.
It must not decide anything, and it reads no clock: the same seed gives the same events and commands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from hetero.core.invariants import balanced, check, story
from hetero.core.machine import Machine, Rules
from hetero.drive.plan_recorder import PlanRecorder
from hetero.drive.sim_engine import Costs, SimEngine, Truth
from hetero.drive.sim_faults import Dice, FaultInjector, Faults
from hetero.drive.sim_values import Decision, LeaseNews, Program, SimLease, SimResult, SimTask
from hetero.floor.errors import BadValueError
from hetero.model.commands import (
    Command,
    Commit,
    Fail,
    Launch,
    LeaseChanged,
    Recommit,
    Run,
    RunGroup,
    SetTimer,
    Split,
    Warn,
)
from hetero.model.device import HOST_NODE, Device
from hetero.model.events import (
    CancelRequested,
    DeviceAdded,
    Event,
    ItemPut,
    ItemReleased,
    LeaseAsked,
    LeaseReleased,
    TaskSubmitted,
    TimerFired,
)
from hetero.model.leases import LeasePhase
from hetero.model.tasks import Task
from hetero.model.topology import Topology
from hetero.plan.performance.cost_model import CostModel
from hetero.plan.policies.base import Policy
from hetero.plan.policies.registry import DEFAULT, get

__all__ = [
    "Costs",
    "Decision",
    "LeaseActions",
    "LeaseNews",
    "Program",
    "SimHooks",
    "SimLease",
    "SimLeases",
    "SimResult",
    "SimTask",
    "Truth",
    "simulate",
]

STALLED = 2000
"""Timers that may fire in a row while nothing else is under way."""

PARTS = 2
"""A task that ran out of memory is cut into this many …"""

FIRST_PART = 1 << 40
"""… whose ids begin after this one."""


class SimHooks(NamedTuple):
    """What is told of a simulation while it runs.

    Attributes
    ----------
    trace
        Takes every event and command.
    watch
        Is shown the core before each event.
    """

    trace: Callable[[tuple[object, ...]], object] | None = None
    watch: Callable[[Machine, Event], object] | None = None


def simulate(
    program: Program,
    fleet: Sequence[Device],
    truth: Truth,
    *,
    policy: str | Policy = DEFAULT,
    cost: CostModel | None = None,
    topology: Topology | None = None,
    seed: int = 0,
    costs: Costs | None = None,
    faults: Faults | None = None,
    hooks: SimHooks | None = None,
    rules: Rules | None = None,
    check_every: int = 1000,
) -> SimResult:
    """Run a program in virtual time.

    Parameters
    ----------
    program, fleet
        What is run, and on what.
    truth
        How long a task really takes on a device, s.
    policy
        Its name, or the policy itself.
    cost
        What is known of run times and of the bytes of results beforehand; None for nothing.
    topology
        Memory nodes and links, None for one memory.
    seed
        Decides every chance.
    costs, faults
        What things cost, and what goes wrong; None for as little as possible.
    hooks
        Are told what happens.
    rules
        The core's bounds on waiting.
    check_every
        Events between two full checks of the invariants; what can be counted is checked at each.

    Raises
    ------
    AssertionError
        An invariant of the core is broken, or a task is never answered.

    Examples
    --------
    >>> from hetero.model.device import DeviceType
    >>> from hetero.model.tasks import Request
    >>> cpus = [Device(f"h0/cpu:{i}", "cpu", DeviceType("CPU"), "cpu") for i in range(2)]
    >>> tasks = [SimTask(Task(i, "f", "f|", 0.0, (), (), Request())) for i in range(1, 9)]
    >>> simulate(Program(tasks), cpus, lambda task, device: 1.0).makespan_s
    4.0
    """
    chosen = get(policy, fleet) if isinstance(policy, str) else policy
    links = topology or Topology()
    machine = Machine(chosen, cost or CostModel(fleet), links, rules)
    run = _Simulation(machine, program, fleet, truth, links, costs or Costs(), faults or Faults(), seed)
    run.hooks, run.check_every = hooks or SimHooks(), check_every
    return run.run()


class _Simulation:
    """The loop: a queue of calls in the order of (time, serial number)."""

    def __init__(
        self,
        machine: Machine,
        program: Program,
        fleet: Sequence[Device],
        truth: Truth,
        topology: Topology,
        costs: Costs,
        faults: Faults,
        seed: int,
    ) -> None:
        self.machine = machine
        self._plans = PlanRecorder(machine)
        self.result = SimResult(machine=machine)
        self.hooks = SimHooks()
        self.check_every = 1000
        self._now_s = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._chores = 0
        self._timer_s = inf
        self._idle_timers = 0
        self._fleet = {device.id: device for device in fleet}
        self._program = program
        self._arrivals: Iterator[SimTask] = iter(program.tasks)
        self._arriving = True
        self._first_s: float | None = None
        self._tasks: dict[int, tuple[Task, int]] = {}
        self._nested: dict[int, Sequence[SimTask]] = {}
        self._failed_at: dict[int, float] = {}
        self._readers: Counter[int] = Counter()
        self._kept: list[int] = []
        self._parts = FIRST_PART
        self._count = 0
        self._due: list[Event] = []
        self._news: list[Event] = []
        self._tick_s = costs.tick_s
        self._dice = Dice(seed)
        self._faults = faults
        self._engine = SimEngine(
            fleet, truth, topology, costs, faults, self._dice,
            at=self._at, post=self._post, now_s=lambda: self._now_s, task_of=self._tasks.__getitem__,
            nested=self._nested, submit=self._submit_nested,
        )  # fmt: skip
        self._leases = SimLeases(
            program.leases, LeaseActions(self._at, self._handle, self._submit, lambda: self._now_s)
        )
        self.result.leases = self._leases.told
        self._carry: dict[type, Callable[..., None]] = {
            Run: self._run,
            RunGroup: self._run_group,
            Commit: self._commit,
            Recommit: self._recommit,
            Fail: self._fail,
            Split: self._split,
            LeaseChanged: self._leases.changed,
            SetTimer: self._set_timer,
            Warn: self._warn,
        }

    # the queue

    def _at(self, delay_s: float, call: Callable[[], None]) -> None:
        self._serial += 1
        heappush(self._queue, (self._now_s + delay_s, self._serial, call))

    def _post(self, event: Event) -> None:
        """Put an event at the end of what is due now, or of the tick; some are told twice."""
        if self._tick_s:
            if not self._news:
                self._at(self._tick_s, self._tell_news)
            self._news.append(event)
            return
        self._at(0.0, partial(self._handle, event))
        if self._dice.happens(self._faults.duplicate):
            self._engine.happened["duplicate"] += 1
            self._at(0.0, partial(self._handle, event))

    def _tell_news(self) -> None:
        news, self._news = self._news, []
        self._handle_all([event._replace(at_s=self._now_s) for event in news])

    def _chore(self, delay_s: float, call: Callable[[], None]) -> None:
        """Put something into the queue that no task waits for."""
        self._chores += 1
        self._at(delay_s, partial(self._do_chore, call))

    def _do_chore(self, call: Callable[[], None]) -> None:
        self._chores -= 1
        call()

    def run(self) -> SimResult:
        """Run to the end of the program."""
        self._begin()
        queue = self._queue
        while self._arriving or self.machine.tasks or self._leases.open or len(queue) > self._chores:
            assert queue, self._stalled()
            self._now_s, _, call = heappop(queue)
            call()
            if len(queue) > self._chores:
                self._idle_timers = 0
            else:
                assert self._idle_timers < STALLED, self._stalled()
        return self._ended()

    def _stalled(self) -> str:
        waiting = list(self.machine.tasks.values())
        first = story(waiting[0]) if waiting else ""
        return f"nothing is under way at {self._now_s:g} s, and {len(waiting)} tasks wait: {first}"

    def _begin(self) -> None:
        for device in self._fleet.values():
            self._handle(DeviceAdded(0.0, device))
            self._engine.start(device.id)
        for item, nbytes in self._program.items:
            self._engine.put(item)
            self._handle(ItemPut(0.0, item, nbytes, HOST_NODE))
        injector = FaultInjector(
            self._fleet, self.machine, self._engine, self._dice, self._faults,
            chore=self._chore, handle=self._handle, now_s=lambda: self._now_s,
        )  # fmt: skip
        injector.begin()
        self._leases.begin()
        self._at(0.0, partial(self._at, 0.0, self._arrive))

    def _ended(self) -> SimResult:
        result, end_s = self.result, self._now_s
        check(self.machine)
        outcomes = (*result.commits.values(), *self._failed_at.values())
        result.makespan_s = max(outcomes, default=end_s) - (self._first_s or 0.0)
        result.busy_s = {name: worker.busy_s for name, worker in self._engine.workers.items()}
        result.finished = {device.name: device.finished for device in self.machine.fleet.states}
        result.happened = self._engine.happened
        return result

    # events

    def _handle(self, event: Event) -> None:
        self._note(event)
        self._carry_out(self.machine.handle(event))

    def _handle_all(self, events: Sequence[Event]) -> None:
        for event in events:
            self._note(event)
        self._carry_out(self.machine.handle_all(events))

    def _note(self, event: Event) -> None:
        trace, watch = self.hooks.trace, self.hooks.watch
        if watch is not None:
            watch(self.machine, event)
        if trace is not None:
            trace(event)
        self.result.events[type(event).__name__] += 1

    def _carry_out(self, commands: Sequence[Command]) -> None:
        trace = self.hooks.trace
        for command in commands:
            if trace is not None:
                trace(command)
            carry = self._carry.get(type(command))
            if carry is not None:
                carry(command)
            else:
                self._engine.carry_out(command)
        if trace is not None and (planned := self._plans.pop_plan(self._now_s)) is not None:
            trace(planned)
        balanced(self.machine)
        self._count += 1
        if self._count % self.check_every == 0:
            check(self.machine)

    def _arrive(self) -> None:
        """Submit what is due, and come back for the next."""
        for entry in self._arrivals:
            if entry.at_s > self._now_s:
                self._flush_due()
                self._at(entry.at_s - self._now_s, partial(self._arrive_with, entry))
                return
            self._submit(entry)
        self._flush_due()
        self._arriving = False
        self._release(0)

    def _flush_due(self) -> None:
        due, self._due = self._due, []
        if due:
            self._handle_all(due)

    def _arrive_with(self, entry: SimTask) -> None:
        self._submit(entry)
        self._arrive()

    def _submit(self, entry: SimTask) -> None:
        task = entry.task
        if self._first_s is None:
            self._first_s = self._now_s
        self._tasks[task.id] = (task, entry.nbytes)
        if entry.nested:
            self._nested[task.id] = entry.nested
        for item in task.inputs:
            self._readers[item] += 1
        if entry.nbytes and self._program.released_after:
            self._kept.append(task.id)
            self._release(self._program.released_after)
        submitted = TaskSubmitted(self._now_s, task)
        if self._program.together:
            self._due.append(submitted)
        else:
            self._handle(submitted)
        if self._dice.happens(self._faults.cancel):
            self._engine.happened["cancel"] += 1
            self._at(self._dice.wait_s(0.01), partial(self._cancel, task.id))

    def _submit_nested(self, task_id: int, attempt: int) -> tuple[int, ...]:
        """Submit what an attempt submits; returns the ids."""
        depth, found = self._tasks[task_id][0].depth + 1, []
        for entry in self._nested[task_id]:
            self._parts += 1
            found.append(self._parts)
            nested = entry.task._replace(id=self._parts, parent=(task_id, attempt), depth=depth)
            self._submit(entry._replace(task=nested))
        self._flush_due()
        return tuple(found)

    def _cancel(self, task: int) -> None:
        self._handle(CancelRequested(self._now_s, task))

    def _release(self, keep: int) -> None:
        """Release the oldest results beyond the number to keep, those that open tasks read excepted."""
        if not self._program.released_after:
            return
        old = max(0, len(self._kept) - keep)
        read = [item for item in self._kept[:old] if self._readers[item]]
        for item in self._kept[:old]:
            if not self._readers[item]:
                self._handle(ItemReleased(self._now_s, item))
        self._kept = read + self._kept[old:]

    # commands

    def _run(self, command: Run) -> None:
        self.result.runs += 1
        self._launched(command.device, command.launches)
        self._engine.carry_out(command)

    def _run_group(self, command: RunGroup) -> None:
        self.result.runs += 1
        self._launched(command.devices[0], (command.launch,))
        self._engine.carry_out(command)

    def _launched(self, device: str, launches: tuple[Launch, ...]) -> None:
        self.result.launches += len(launches)
        self.result.decisions.extend(Decision(self._now_s, task, attempt, device) for task, attempt, *_ in launches)

    def _commit(self, command: Commit) -> None:
        task = command.task
        assert task not in self.result.commits, f"task {task} is committed twice"
        assert task not in self.result.failures, f"task {task} is committed although it failed"
        self.result.commits[task] = self._now_s
        self._engine.commit(task, command.attempt)
        self._over(task)

    def _recommit(self, command: Recommit) -> None:
        assert command.task in self.result.commits, f"task {command.task} is committed again but never was"
        self._engine.happened["recommit"] += 1
        self._engine.commit(command.task, command.attempt)

    def _fail(self, command: Fail) -> None:
        task = command.task
        if task in self.result.commits:
            self._engine.happened["lost result"] += 1
            return
        assert task not in self.result.failures, f"task {task} failed twice"
        self.result.failures[task] = command.failure
        self._failed_at[task] = self._now_s
        self._over(task)

    def _over(self, task: int) -> None:
        known = self._tasks[task][0]
        for item in known.inputs:
            self._readers[item] -= 1
        if known.parent:
            self._engine.answer(known.parent[0], known.parent[1], task)

    def _split(self, command: Split) -> None:
        self._engine.happened["split"] += 1
        self._at(0.0, partial(self._cut, command.task))

    def _cut(self, task_id: int) -> None:
        """Submit the parts of a task, and the task itself behind them."""
        if task_id not in self.machine.tasks:
            return
        task, nbytes = self._tasks[task_id]
        parts = []
        signature = f"{task.signature}/{PARTS}"
        for _ in range(PARTS):
            self._parts += 1
            parts.append(self._parts)
            part = task._replace(id=self._parts, size=task.size / PARTS, signature=signature, after=())
            self._submit(SimTask(part))
        whole = task._replace(size=0.0, signature=f"{task.signature}+", after=tuple(parts), inputs=())
        self._tasks[task_id] = (whole, nbytes)
        for item in task.inputs:
            self._readers[item] -= 1
        self._handle(TaskSubmitted(self._now_s, whole))

    def _set_timer(self, command: SetTimer) -> None:
        at_s = self._timer_s = min(self._timer_s, command.at_s)
        self._chore(at_s - self._now_s, partial(self._timer_fires, at_s))

    def _timer_fires(self, at_s: float) -> None:
        if at_s != self._timer_s:
            return
        self._timer_s = inf
        self._idle_timers += 1
        self._handle(TimerFired(self._now_s))

    def _warn(self, command: Warn) -> None:
        self.result.warnings.append(command.text)


# --- leases -------------------------------------------------------------------------------------------------


class LeaseActions(NamedTuple):
    """What the simulation lets its leases do.

    Attributes
    ----------
    at
        Puts a call into the queue, so many s from now.
    handle
        Hands an event to the core.
    submit
        Hands in a task.
    now_s
        Gives the time.
    """

    at: Callable[[float, Callable[[], None]], None]
    handle: Callable[[Event], None]
    submit: Callable[[SimTask], None]
    now_s: Callable[[], float]


class SimLeases:
    """Asks for leases, hands in their tasks once they are granted, and gives them back.

    Attributes
    ----------
    open
        Leases that are not over, those among them that are not asked for yet.
    told
        What was told of each, in order.

    Raises
    ------
    BadValueError
        A lease would be held for ever.
    """

    def __init__(self, leases: Sequence[SimLease], actions: LeaseActions) -> None:
        self._actions = actions
        self._plans = {lease.number: lease for lease in leases}
        self.open = len(leases)
        self.told: dict[int, list[LeaseNews]] = {}
        for lease in leases:
            if lease.held_s == inf and not lease.wish.lease_s:
                raise BadValueError(
                    f"lease {lease.number} is never given back", remedy="give held_s, or a wish with lease_s"
                )

    def begin(self) -> None:
        """Put the requests into the queue."""
        for lease in self._plans.values():
            self._actions.at(lease.at_s, partial(self._ask, lease))

    def _ask(self, lease: SimLease) -> None:
        self._actions.handle(LeaseAsked(self._actions.now_s(), lease.number, lease.wish))

    def changed(self, news: LeaseChanged) -> None:
        """Record a lease's state; submit its tasks when it is first granted."""
        told = self.told.setdefault(news.lease, [])
        told.append(LeaseNews(self._actions.now_s(), LeasePhase(news.phase), news.devices, news.reason))
        if told[-1].phase in (LeasePhase.RELEASED, LeasePhase.FAILED):
            self.open -= 1
        elif sum(one.phase is LeasePhase.ACTIVE for one in told) == 1 and told[-1].phase is LeasePhase.ACTIVE:
            self._granted(self._plans[news.lease])

    def _granted(self, lease: SimLease) -> None:
        last_s = 0.0
        for entry in lease.tasks:
            request = replace(entry.task.request, lease=lease.number)
            mine = entry._replace(task=entry.task._replace(request=request))
            self._actions.at(entry.at_s, partial(self._actions.submit, mine))
            last_s = max(last_s, entry.at_s)
        if lease.held_s < inf:
            self._actions.at(max(last_s, lease.held_s), partial(self._release, lease.number))

    def _release(self, number: int) -> None:
        self._actions.handle(LeaseReleased(self._actions.now_s(), number))
