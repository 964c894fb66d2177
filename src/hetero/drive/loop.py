"""The loop of a live run: feeds events to the core as they happen and carries out its commands.

In: events from the session, the engine and the timer. Out: commands to the engine, results and failures to sinks.
It must not decide anything, and calls no code of the user's while it holds the core.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import NamedTuple, Protocol, TypeVar

from hetero.core.machine import Machine
from hetero.core.state import STARTED
from hetero.drive.plan_recorder import PlanRecorder
from hetero.drive.utilisation import UtilisationWatch
from hetero.engines.base import Call, Engine
from hetero.floor import settings
from hetero.floor.clock import JOIN_S, Clock, Times, TraceSink, sleep
from hetero.floor.errors import DeviceLostError
from hetero.floor.logs import Replayer
from hetero.model.annotations import TaskNote, TaskParts
from hetero.model.commands import (
    Command,
    Commit,
    Fail,
    Free,
    Launch,
    LeaseChanged,
    Recommit,
    Run,
    RunGroup,
    SetTimer,
    Split,
    Warn,
)
from hetero.model.device import HOST_NODE
from hetero.model.events import (
    CancelRequested,
    DeviceLost,
    Event,
    ItemReleased,
    LoneTasks,
    TaskFinished,
    TaskSubmitted,
    TimerFired,
)
from hetero.model.leases import LeasePhase
from hetero.model.tasks import Failure, Request, Task
from hetero.plan.performance.cost_model import TimeEstimate

__all__ = ["EventBatch", "Explanation", "Loop", "OutcomeSink", "Timer"]

T = TypeVar("T")

Record = tuple[object, ...]


class Recorder:
    """Hands records on.

    Parameters
    ----------
    machine, clock
        Of the run.
    sink
        Takes every record, None for nobody yet.

    Attributes
    ----------
    write
        Takes a record; None while nobody listens.
    """

    def __init__(self, machine: Machine, clock: Clock, sink: TraceSink | None) -> None:
        self.write: Callable[[Record], None] | None = None if sink is None else sink.write
        self._clock = clock
        self._plans = PlanRecorder(machine)

    def listen(self, sink: TraceSink) -> None:
        """Hand every record from now on to one more sink."""
        before = self.write
        self.write = sink.write if before is None else partial(_both, before, sink.write)

    def record(self, record: Record) -> None:
        """Write down a fact that the core need not know."""
        if self.write is not None:
            self.write(record)

    def annotate(self, annotations: Sequence[TaskNote]) -> None:
        """Write down what attempts told of their inside."""
        for each in annotations:
            self.record(each._replace(at_s=self._clock.now_s()))

    def parts(self, task: int, attempt: int, device: str, started_s: float, times: Times) -> None:
        """Write down of what the time of an attempt consists."""
        if self.write is not None:
            self.write(TaskParts(self._clock.now_s(), task, attempt, device, started_s, *times))

    def decided(self) -> None:
        """Write down what is new in the plan, after the core took an event."""
        if self._plans.is_new and (planned := self._plans.pop_plan(self._clock.now_s())) is not None:
            self.record(planned)


def _both(one: Callable[[Record], None], other: Callable[[Record], None], record: Record) -> None:
    one(record)
    other(record)


class OutcomeSink(Protocol):
    """Where the outcome of one task goes."""

    def _committed(self, load: Callable[[], object]) -> None:
        """Take the result; `load()` gives the value. Called once, from any thread."""
        ...

    def _failed(self, failure: Failure) -> None:
        """Take the failure; its payload may be the user's exception. Called once, from any thread."""
        ...


class EventBatch(tuple[TaskSubmitted, ...]):
    """Tasks that are handed in at once."""

    __slots__ = ()


class Explanation(NamedTuple):
    """What is expected of one device for one task.

    Attributes
    ----------
    device
        Id.
    estimate
        The estimate, None where the device cannot run the task.
    reason
        Why it cannot, '' where it can.
    """

    device: str
    estimate: TimeEstimate | None
    reason: str


LOGS_S = 1.0
"""How long a result waits for the handlers of the log records that came before it."""

_FRAMES_NEEDED = 100
"""Frames of the stack that handing in and deciding may take, with room to spare."""

LONE_TASKS = 32
"""The core hears of tasks that were sent alone when so many have ended …"""

LONE_S = 2e-3
"""… or one that took longer than this; and twice a second, and before it takes any other event."""

Delivery = Callable[[], object]


def _counts_on(item: int, machine: Machine) -> bool:
    """Return whether the core expects an item to be there, or to come."""
    replicas = machine.replicas
    return item in machine.tasks or (item in replicas.items and item not in replicas.lost)


class Loop:
    """Brings events into a core, one at a time, and its commands to an engine.

    Whoever brings an event puts it into the inbox; one thread at a time takes the token and empties the
    inbox, the others go on. So the core is never entered twice, no thread waits for another, and a reader
    of worker sockets is never held up.

    Parameters
    ----------
    machine
        The core.
    engine
        Executes.
    clock
        Time of the events.
    trace
        Takes every event and command, None for no trace.
    warn
        Takes one line for the user.
    split
        Cuts a task that ran out of memory, given its id; False when it cannot be cut.
    watch
        Measures how much of each device others use, None for not at all.

    Attributes
    ----------
    release
        Records that nobody holds an item; may be called by the garbage collector at any point.
    """

    def __init__(
        self,
        machine: Machine,
        engine: Engine,
        clock: Clock,
        trace: TraceSink | None,
        warn: Callable[[str], None],
        split: Callable[[int], bool],
        watch: UtilisationWatch | None,
    ) -> None:
        self._core = machine
        self.engine = engine
        self._clock = clock
        self._recorder = Recorder(machine, clock, trace)
        self.logs = Replayer()
        self._warn = warn
        self._split = split
        self._watch = watch
        self._calls: dict[int, Call] = {}
        self._sinks: dict[int, OutcomeSink] = {}
        self._tracked: set[int] = set()
        self._able: dict[tuple[str, int], Request] = {}
        self._inbox: deque[Event | EventBatch] = deque()
        self._lone: tuple[float, Task, str] | None = None
        self._lone_ended: list[tuple[Task, TaskFinished]] = []
        self._pumps = type(engine).pump is not Engine.pump
        self._released: deque[int] = deque()
        self.release: Callable[[int], None] = self._released.append
        self._token = threading.Lock()
        self._asking = threading.Lock()
        self._asked = False
        self._idle = threading.Condition()
        self._waiters = 0
        self._closed = False
        self._broken: Failure | None = None
        self._lease_sink: Callable[[LeaseChanged], Delivery] | None = None
        self._check = _checker() if settings.check_level() else None
        self._timer = Timer(clock, self._tick)
        self._carry: dict[type, Callable[..., None]] = {
            Run: self._run,
            RunGroup: self._run_group,
            Commit: self._commit,
            Recommit: self._recommit,
            Fail: self._fail,
            Free: self._free,
            Split: self._order_split,
            LeaseChanged: self._lease_changed,
            SetTimer: self._set_timer,
            Warn: self._order_warning,
        }

    def ask(self, question: Callable[[Machine], T]) -> T:
        """Ask the core a question between two events; whoever is at the inbox hands the token over after its event.

        Nothing else lets anybody read the core from outside. It must not be called where the token is held, as by a
        policy, a trace sink or a lease sink.
        """
        deliveries: list[Delivery] = []
        try:
            with self._asking:
                self._asked = True
                with self._token:
                    self._asked = False
                    if self._lone_ended or self._lone is not None:
                        self._take(EventBatch(), deliveries)
                    return question(self._core)
        finally:
            for deliver in deliveries:
                deliver()
            self._drain()

    def cancel(self, task: int, waiting_only: bool = False) -> None:
        """Ask for a task to be stopped, or not to be begun; its sink is told once it is."""
        self._post([CancelRequested(self._clock.now_s(), task, waiting_only)])

    def has_started(self, task: int) -> bool:
        """Return whether a task was given to a device and has not ended."""
        return self.ask(lambda machine: (state := machine.tasks.get(task)) is not None and state.phase in STARTED)

    def load(self, item: int) -> object:
        """Return the value of an item; one that was lost with its device is waited for while it is computed again.

        Raises
        ------
        DeviceLostError
            The value is lost for good.
        """
        self.logs.settle(LOGS_S)
        while True:
            try:
                return self.engine.load(item)
            except DeviceLostError:
                if not self._comes_again(item):
                    raise
                sleep(0.01)

    def _comes_again(self, item: int) -> bool:
        """Return whether the core still expects the item, which the engine has lost."""
        return not self._closed and self._broken is None and self.ask(partial(_counts_on, item))

    def _post(self, events: Sequence[Event | EventBatch]) -> None:
        self._inbox.extend(events)
        self._drain()

    @staticmethod
    def _refuse_deep_stack() -> None:
        """Raise RecursionError in a thread whose stack has no room for the scheduler, which cannot stop half way."""
        try:
            sys._getframe(max(sys.getrecursionlimit() - _FRAMES_NEEDED, _FRAMES_NEEDED // 2))
        except ValueError:
            return
        raise RecursionError("maximum recursion depth exceeded: there is no room left to hand anything to hetero")

    def _drain(self) -> None:
        """Empty the inbox, unless another thread is at it or asks a question: that one takes what was put in."""
        inbox = self._inbox
        if self._released:
            inbox.extend(self._released_events())
        while inbox:
            if self._asked or not self._token.acquire(blocking=False):
                return
            deliveries: list[Delivery] = []
            try:
                while inbox and not self._asked:
                    self._take(inbox.popleft(), deliveries)
            except Exception as error:  # noqa: BLE001  a bug of ours must not leave anyone waiting
                self._break(error, deliveries)
            finally:
                self._token.release()
            for deliver in deliveries:
                deliver()
            if self._waiters and not self._sinks:
                with self._idle:
                    self._idle.notify_all()
        if self._pumps:
            self._drop_released()
            self.engine.pump()

    def _send_alone(self, task: Task, call: Call) -> bool:
        """Send a task where the core says beforehand that it would; False where the core has to take it."""
        if not self._token.acquire(blocking=False):
            return False
        deliveries: list[Delivery] = []
        try:
            if self._inbox or self._lone is not None or self._recorder.write is not None:
                return False
            place = self._core.lone(task)
            if place is None:
                return False
            device, seconds = place
            self._lone = (self._clock.now_s(), task, device)
            self.engine.run(device, ((Launch(task.id, 1, seconds), call),))
        except Exception as error:  # noqa: BLE001  as in _drain
            self._break(error, deliveries)
        finally:
            self._token.release()
        for deliver in deliveries:
            deliver()
        if self._inbox or self._pumps:
            self._drain()
        return True

    def _report(self, events: Sequence[Event]) -> None:
        """Take what the engine tells."""
        if self._lone is None or len(events) != 1 or not self._end_alone(events[0]):
            self._post(events)

    def _end_alone(self, event: Event) -> bool:
        """Deliver the result of a task that was sent alone; False where the core has to take it."""
        if type(event) is not TaskFinished or event.nbytes or not self._token.acquire(blocking=False):
            return False
        deliveries: list[Delivery] = []
        try:
            task = event.task
            if self._inbox or self._lone is None or self._lone[1].id != task or self._recorder.write is not None:
                return False
            self.engine.commit(task, 1)
            del self._calls[task]
            sink = self._sinks.pop(task)
            self._lone_ended.append((self._lone[1], event))
            self._lone = None
            deliveries.append(partial(sink._committed, partial(self.load, task)))
        except Exception as error:  # noqa: BLE001  as in _drain
            self._break(error, deliveries)
        finally:
            self._token.release()
        for deliver in deliveries:
            deliver()
        if self._waiters and not self._sinks:
            with self._idle:
                self._idle.notify_all()
        if len(self._lone_ended) >= LONE_TASKS or event.seconds > LONE_S:
            self._inbox.append(EventBatch())
        if self._inbox:
            self._drain()
        return True

    def _pop_lone(self) -> LoneTasks:
        """Return and clear what the core does not know yet."""
        running, ended = self._lone, tuple(self._lone_ended)
        self._lone, self._lone_ended = None, []
        return LoneTasks(ended[-1][1].at_s if running is None else running[0], ended, running)

    def _take(self, event: Event | EventBatch, deliveries: list[Delivery]) -> None:
        if self._lone_ended or self._lone is not None:
            self._carry_out(self._core.handle(self._pop_lone()), deliveries)
        record = self._recorder.write
        if record is not None:
            for each in event if isinstance(event, EventBatch) else (event,):
                record(each)
        if type(event) is TaskFinished and event.nbytes:
            self._tracked.add(event.task)
        core = self._core
        self._carry_out(core.handle_all(event) if isinstance(event, EventBatch) else core.handle(event), deliveries)
        if record is not None:
            self._recorder.decided()
        if type(event) is DeviceLost:
            self._able.clear()
        if self._check is not None:
            self._check(core)

    def _carry_out(self, commands: Sequence[Command], deliveries: list[Delivery]) -> None:
        record = self._recorder.write
        for command in commands:
            if record is not None:
                record(command)
            carry = self._carry.get(type(command))
            if carry is not None:
                carry(command, deliveries)
            else:
                self.engine.submit(command)  # type: ignore[arg-type]

    def _break(self, error: Exception, deliveries: list[Delivery]) -> None:
        failure = Failure("crash", f"the scheduler failed: {type(error).__name__}: {error}", error)
        self._broken = failure
        self._inbox.clear()
        self._lone, self._lone_ended = None, []
        for sink in self._sinks.values():
            deliveries.append(partial(sink._failed, failure))
        self._sinks.clear()
        for lease in self._core.pool.leases:
            self._lease_changed(LeaseChanged(lease.id, LeasePhase.FAILED, (), 0.0, 0.0, failure.message), deliveries)

    def _tick(self, now_s: float, due: bool) -> None:
        self._drop_released()
        if due:
            self._post([TimerFired(now_s)])
        elif self._lone_ended or self._lone is not None:
            self._post([EventBatch()])
        if self._watch is not None:
            self._post(self._watch.sample())

    def _drop_released(self) -> None:
        if events := self._released_events():
            self._post(events)

    def _released_events(self) -> list[Event]:
        """Drop the items that nobody holds any more; return the events of those that the core knows."""
        events: list[Event] = []
        while True:
            try:
                item = self._released.popleft()
            except IndexError:  # several threads may be at it
                return events
            if item in self._tracked:
                self._tracked.discard(item)
                events.append(ItemReleased(self._clock.now_s(), item))
            else:
                self.engine.forget(item)

    # commands

    def _run(self, command: Run, deliveries: list[Delivery]) -> None:
        calls = self._calls
        self.engine.run(command.device, [(launch, calls[launch.task]) for launch in command.launches])

    def _run_group(self, command: RunGroup, deliveries: list[Delivery]) -> None:
        self.engine.run_group(command.devices, command.launch, self._calls[command.launch.task])

    def _commit(self, command: Commit, deliveries: list[Delivery]) -> None:
        task = command.task
        self.engine.commit(task, command.attempt)
        entry = self._core.replicas.items.get(task)
        if entry is None or HOST_NODE in entry.valid:
            del self._calls[task]
        sink = self._sinks.pop(task)
        deliveries.append(partial(sink._committed, partial(self.load, task)))

    def _recommit(self, command: Recommit, deliveries: list[Delivery]) -> None:
        self.engine.commit(command.task, command.attempt)

    def _fail(self, command: Fail, deliveries: list[Delivery]) -> None:
        self._calls.pop(command.task, None)
        sink = self._sinks.pop(command.task, None)
        if sink is not None:
            deliveries.append(partial(sink._failed, command.failure))

    def _free(self, command: Free, deliveries: list[Delivery]) -> None:
        self.engine.submit(command)
        if command.item not in self._core.replicas.items:
            self._calls.pop(command.item, None)
            self.engine.forget(command.item)

    def _order_split(self, command: Split, deliveries: list[Delivery]) -> None:
        deliveries.append(partial(self._cut, command.task))

    def _cut(self, task: int) -> None:
        if not self._split(task):
            self.cancel(task)

    def _lease_changed(self, command: LeaseChanged, deliveries: list[Delivery]) -> None:
        if self._lease_sink is not None:
            deliveries.append(self._lease_sink(command))

    def _set_timer(self, command: SetTimer, deliveries: list[Delivery]) -> None:
        self._timer.set(command.at_s)

    def _order_warning(self, command: Warn, deliveries: list[Delivery]) -> None:
        deliveries.append(partial(self._warn, command.text))


def _checker() -> Callable[[Machine], None]:
    from hetero.core.invariants import check

    return check


# --- timer --------------------------------------------------------------------------------------------------

BEAT_S = 0.5
"""Chores that nobody asks a time for are done this often."""


class Timer:
    """Calls `tick(now_s, due)`: `due` is True when a time that was asked for has come.

    Parameters
    ----------
    clock
        The time that `set` refers to.
    tick
        Called from the timer's thread; must not raise.
    """

    def __init__(self, clock: Clock, tick: Callable[[float, bool], None]) -> None:
        self._clock = clock
        self._tick = tick
        self._at_s = inf
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._loop, name="hetero-timer", daemon=True)
        self._thread.start()

    def set(self, at_s: float) -> None:
        """Ask for a call at this time, or at an earlier one asked for before."""
        with self._changed:
            if at_s < self._at_s:
                self._at_s = at_s
                self._changed.notify()

    def stop(self) -> None:
        """End the thread, unless it is the caller."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        thread, self._thread = self._thread, None  # what is closed keeps no thread object until it is collected
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_S)

    def _loop(self) -> None:
        while True:
            with self._changed:
                wait_s = min(self._at_s - self._clock.now_s(), BEAT_S)
                if wait_s > 0 and not self._stopping:
                    self._changed.wait(wait_s)
                if self._stopping:
                    return
                now_s = self._clock.now_s()
                due = now_s >= self._at_s
                if due:
                    self._at_s = inf
            self._tick(now_s, due)
