"""What the core remembers of each task and each device, the phases of both, and the queue of ready tasks.

In: changes by the parts of the core. Out: plain attributes. It must not decide anything.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from math import inf

import numpy as np
from numpy.typing import NDArray

from hetero.model.commands import Command, SetTimer
from hetero.model.device import Device
from hetero.model.events import TaskFinished
from hetero.model.tasks import Request, Task

__all__ = [
    "NEXT_PHASES",
    "STARTED",
    "Batch",
    "CoreTimer",
    "Counts",
    "DevicePhase",
    "DeviceState",
    "Phase",
    "ReadyQueue",
    "Row",
    "Rules",
    "TaskState",
]


class Phase(IntEnum):
    """Where a task stands; the usual path first.

    HELD waits in quarantine, in no queue. SUSPENDED waits in its worker for tasks that it submitted.
    """

    SUBMITTED = 0
    READY = 1
    PLACED = 2
    RUNNING = 3
    FINISHED = 4
    FAILED = 5
    HELD = 6
    SUSPENDED = 7


STARTED = (Phase.RUNNING, Phase.SUSPENDED)
"""Phases in which an attempt is with a worker."""

NEXT_PHASES: dict[Phase, tuple[Phase, ...]] = {
    Phase.SUBMITTED: (Phase.RUNNING, Phase.READY, Phase.FAILED, Phase.HELD, Phase.SUBMITTED),
    Phase.READY: (Phase.PLACED, Phase.RUNNING, Phase.SUBMITTED, Phase.FAILED),
    Phase.PLACED: (Phase.RUNNING, Phase.READY, Phase.SUBMITTED, Phase.FAILED, Phase.HELD),
    Phase.RUNNING: (Phase.FINISHED, Phase.READY, Phase.SUSPENDED, Phase.SUBMITTED, Phase.FAILED, Phase.HELD),
    Phase.FINISHED: (Phase.SUBMITTED,),
    Phase.FAILED: (),
    Phase.HELD: (Phase.READY, Phase.SUBMITTED, Phase.FAILED, Phase.HELD),
    Phase.SUSPENDED: (Phase.RUNNING, Phase.READY, Phase.SUBMITTED, Phase.FAILED, Phase.HELD),
}
"""The phases that may follow each phase, the usual one first. A finished task is submitted again where
its result was lost with a device; one that failed stays so."""

_NEXT = tuple(NEXT_PHASES[phase] for phase in Phase)


@dataclass(frozen=True, slots=True)
class Rules:
    """The bounds on waiting.

    Attributes
    ----------
    restarts
        Times that a worker which died is started again at once, having finished no task meanwhile ….
    restart_s, restart_max_s
        … and s to wait then, twice as long each time, up to the second.
    steady_s
        A worker that was up for this long has not died in a row with those before it.
    stall_s, stall_factor
        An attempt that has run longer than stall_s + stall_factor × its pessimistic estimate is given up and tried
        again; without a measured estimate it is never given up.
    sweep_s
        Seconds between two looks for such attempts.
    recheck_s
        Seconds after which an idle device is considered again although the policy left it idle.
    stuck_s
        Seconds after which nested tasks that find no room are given up, where nothing runs any more.
    """

    restarts: int = 4
    restart_s: float = 0.5
    restart_max_s: float = 10.0
    steady_s: float = 30.0
    stall_s: float = 60.0
    stall_factor: float = 20.0
    sweep_s: float = 5.0
    recheck_s: float = 0.05
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


class CoreTimer:
    """The core's time, and the one timer that the driver keeps for it.

    Attributes
    ----------
    now_s
        Time of the event that is being handled.
    due_s
        When the core is to be woken, inf for never.
    """

    __slots__ = ("due_s", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self.due_s = inf

    def wake(self, at_s: float, commands: list[Command]) -> None:
        """Ask to be woken at a time, unless that is to happen sooner anyway."""
        if at_s < self.due_s:
            self.due_s = at_s
            commands.append(SetTimer(at_s))


class DevicePhase(IntEnum):
    """Where a device stands."""

    STARTING = 0
    READY = 1
    LOST = 2
    GONE = 3


COMING = (DevicePhase.STARTING, DevicePhase.LOST)
"""The phases of a device whose worker is being started, or will be."""


class Batch:
    """How many launches of one `Run` are still out."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = 0


class Row:
    """Estimated seconds of one class of tasks on every device; inf where it cannot run.

    Attributes
    ----------
    seconds
        Shape (n_devices,), s.
    best
        Index of the fastest device, -1 when there is none.
    best_s
        Seconds, the estimate there.
    known
        True when the estimate on the fastest device rests on measurements.
    measured
        True when that on any device does.
    high_s
        Seconds, a pessimistic run time on the slowest device that is estimated.
    out_bytes
        Bytes of the largest result seen, -1 before the first.
    plain
        Whether the request is.
    count
        Tasks of this class that were handed in.
    ended_well
        True when a task of this class was finished in this run.
    waits
        True when a task of this class was suspended in this run.
    deadly
        True when a task of about this class, whatever it asked for, ended its worker in this run.
    back
        Transfer time of a result to the best device, shape (n_devices,), s, and the round in which it was worked out.
    """

    __slots__ = (
        "_guess_s",
        "_since_s",
        "back",
        "best",
        "best_s",
        "count",
        "deadly",
        "dirty",
        "ended_well",
        "high_s",
        "key",
        "known",
        "measured",
        "out_bytes",
        "plain",
        "request",
        "seconds",
        "size",
        "stale",
        "waits",
    )

    def __init__(self, key: str, size: float, request: Request) -> None:
        self.key = key
        self.size = size
        self.request = request
        self.plain = request.is_plain
        self.seconds: NDArray[np.float64] = np.empty(0)
        self.best = -1
        self.best_s = inf
        self.known = False
        self.measured = False
        self.high_s = inf
        self.out_bytes = -1
        self._since_s = inf
        self._guess_s = inf
        self.count = 0
        self.ended_well = False
        self.waits = self.deadly = False
        self.back: tuple[int, NDArray[np.float64] | None] = (-1, None)
        self.dirty = 0
        self.stale = True

    def started(self, now_s: float, guess_s: float) -> None:
        """Record that a run began, as long as none has finished."""
        if self._since_s == inf:
            self._since_s, self._guess_s = now_s, guess_s

    def by_now(self, now_s: float) -> NDArray[np.float64]:
        """Return the seconds as they must be by now.

        Notes
        -----
        While nothing is measured, the first run tells by not ending: once it has taken k times what was guessed,
        every guess of its class is taken k times as long, so that a slow device is not tried for a task that
        only looked short.
        """
        if self.measured or self._since_s == inf:
            return self.seconds
        late = (now_s - self._since_s) / self._guess_s
        return self.seconds * late if late > 1.0 else self.seconds


class TaskState:
    """One unfinished task (or one whose lost result is computed again).

    Attributes
    ----------
    above
        The task that submitted it, None for the program.
    stray
        True when it may run on top of a task that it is not nested in, since nothing else would let one go on.
    awaits, resumes
        Of a suspended task, the one whose end lets it go on, 0 for any of several; whether it has ended.
    woken_s
        When one that it submitted ended last while it waited for any of several.
    children
        The open tasks that its attempt submitted, None before the first.
    born, place
        How many tasks its attempt submitted, and which of its parent's it is itself, from 1.
    endangered
        Workers that died under it of a task that it submitted, or one of those.
    alone
        True when it is sent in a message of its own, so that a death of its worker shows whose fault it was.
    crashes
        Workers that died of it, and hangs.
    died_on
        Index of the device on which it last killed a worker, -1 for none.
    avoided
        Indices of the devices on which its worker died twice running: it goes elsewhere where it may.
    unexplained
        Workers that died between tasks with it at the head of what was sent to them.
    recomputed, lost
        Whether it runs again for a result that was lost, and how often that happened.
    """

    __slots__ = (
        "above",
        "alone",
        "attempt",
        "avoided",
        "awaits",
        "born",
        "children",
        "crashes",
        "deadline_s",
        "dependents",
        "device",
        "devices",
        "died_on",
        "endangered",
        "excluded",
        "group_left",
        "lost",
        "missing",
        "node",
        "out_of_memory",
        "phase",
        "place",
        "predicted_s",
        "recalled",
        "recomputed",
        "released",
        "reserved_bytes",
        "result",
        "resumes",
        "retries",
        "row",
        "stray",
        "sure",
        "task",
        "unexplained",
        "waits_for",
        "woken_s",
    )

    def __init__(self, task: Task) -> None:
        self.task = task
        self.phase = Phase.SUBMITTED
        self.alone = False
        self.above: TaskState | None = None
        self.stray = False
        self.attempt = 0
        self.awaits = 0
        self.born = 0
        self.place = 0
        self.resumes = False
        self.children: dict[int, TaskState] | None = None
        self.endangered = 0
        self.device = -1
        self.devices: tuple[int, ...] = ()
        self.group_left = 0
        self.row: Row | None = None
        self.predicted_s = 0.0
        self.sure = False
        self.deadline_s = 0.0
        self.waits_for = 0
        self.woken_s = -inf
        self.dependents: list[TaskState] | None = None
        self.missing = 0
        self.node = ""
        self.reserved_bytes = 0
        self.crashes = 0
        self.died_on = -1
        self.unexplained = 0
        self.lost = 0
        self.retries = 0
        self.out_of_memory = 0
        self.avoided: frozenset[int] = frozenset()
        self.excluded: frozenset[int] = frozenset()
        self.recalled = False
        self.recomputed = False
        self.released = False
        self.result: TaskFinished | None = None

    def enter(self, phase: Phase) -> None:
        """Move to another phase: the only place where the phase of a task is written."""
        assert phase in _NEXT[self.phase], f"task {self.task.id}: {self.phase.name} to {phase.name}"
        self.phase = phase

    def is_below(self, other: TaskState) -> bool:
        """Return whether the task is nested in another one, perhaps with others between."""
        above = self.above
        while above is not None and above.task.depth > other.task.depth:
            above = above.above
        return above is other

    @property
    def is_again(self) -> bool:
        """True when it runs again for a result that was lost, or is nested in a task that does."""
        state: TaskState | None = self
        while state is not None and not state.recomputed:
            state = state.above
        return state is not None

    @property
    def is_deadly(self) -> bool:
        """True when it, or another task of its class, may have ended its worker."""
        return bool(self.crashes or self.alone or (self.row is not None and self.row.deadly))

    @property
    def is_group(self) -> bool:
        """True when the task holds devices before it runs: a group, or one that wants a host for itself."""
        return self.task.request.devices > 1 or self.task.request.exclusive


class DeviceState:
    """One device of the fleet.

    Attributes
    ----------
    sent
        Attempts at the worker in their order, each with the batch that it travelled in.
    placed
        Tasks that wait in the core, for their inputs or for room.
    batches
        `Run` commands that are not answered in full.
    held_by
        Id of the group that waits for this device, 0 for none.
    suspended
        Attempts that wait at the worker, each on top of the one before: only the last may go on.
    stopping
        Attempts that were ordered to stop and have not answered.
    finished, busy_s
        Tasks that it finished, and the seconds that they took.
    deaths
        Times that its worker died of no task since it last finished one, or was up for long; see `Rules`.
    up_s
        When its worker last became ready.
    started_s
        When the first of `sent` became the first.
    lost
        Why it was given up, for people.
    told
        Why its worker did not start, as the user was told; '' once it did.
    """

    __slots__ = (
        "batches",
        "busy_s",
        "deaths",
        "device",
        "finished",
        "held_by",
        "index",
        "lost",
        "name",
        "phase",
        "placed",
        "sent",
        "started_s",
        "stopping",
        "suspended",
        "told",
        "up_s",
    )

    def __init__(self, device: Device, index: int) -> None:
        self.device = device
        self.name = device.id
        self.index = index
        self.phase = DevicePhase.STARTING
        self.sent: dict[int, tuple[TaskState, Batch]] = {}
        self.placed: deque[TaskState] = deque()
        self.batches = 0
        self.held_by = 0
        self.finished = 0
        self.busy_s = 0.0
        self.deaths = 0
        self.up_s = 0.0
        self.lost = "it was lost"
        self.told = ""
        self.started_s = 0.0
        self.stopping: dict[int, int] = {}
        self.suspended: list[TaskState] = []


class ReadyQueue:
    """Ready tasks by priority (higher first), depth (deeper first), lease and arrival; retried ones go first.

    Every operation takes a constant time, also taking a task from the middle. `fresh` holds what was added
    since the queue was last looked at.
    """

    __slots__ = ("_order", "_queues", "count", "fresh")

    def __init__(self) -> None:
        self.fresh: list[TaskState] = []
        self._queues: dict[tuple[int, int, int], OrderedDict[int, TaskState]] = {}
        self._order: list[tuple[int, int, int]] = []
        self.count = 0

    def push(self, state: TaskState, *, first: bool = False) -> None:
        """Add a task whose phase becomes READY."""
        task = state.task
        request = task.request
        key = (-request.priority, -task.depth, request.lease)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = OrderedDict()
            self._order = sorted(self._queues)
        state.enter(Phase.READY)
        queue[task.id] = state
        self.fresh.append(state)
        if first:
            queue.move_to_end(task.id, last=False)
        self.count += 1

    def remove(self, state: TaskState, phase: Phase) -> None:
        """Take a task out; its phase becomes the one given."""
        task = state.task
        request = task.request
        key = (-request.priority, -task.depth, request.lease)
        queue = self._queues[key]
        del queue[task.id]
        if not queue and len(self._order) > 1:
            del self._queues[key]
            self._order.remove(key)
        state.enter(phase)
        self.count -= 1

    def first(self, lease: int) -> TaskState | None:
        """Return the task of a lease that is next in order, None when none is ready."""
        for key in self._order:
            if key[2] == lease and (queue := self._queues[key]):
                return next(iter(queue.values()))
        return None

    def __iter__(self) -> Iterator[TaskState]:
        """Yield the ready tasks in order; the queue must not change meanwhile."""
        for key in self._order:
            yield from self._queues[key].values()

    @staticmethod
    def rank(state: TaskState) -> tuple[int, int, int, int]:
        """Return what orders ready tasks of one arrival after the other."""
        request = state.task.request
        return -request.priority, -state.task.depth, request.lease, state.task.id

    def window(self, most: int) -> dict[int, TaskState]:
        """Return the first tasks in order, by id: so many of each lease, and so many of those in none."""
        found: dict[int, TaskState] = {}
        shown: dict[int, int] = {}
        for key in self._order:
            before, queue = shown.get(key[2], 0), self._queues[key]
            found.update(islice(queue.items(), max(0, most - before)))
            shown[key[2]] = before + len(queue)
        return found
