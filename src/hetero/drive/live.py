"""The live driver: feeds events to the core as they happen and carries out its commands.

In: tasks with their calls from the session, events from the engine and the timer. Out: commands to the engine,
results and failures to sinks. It must not decide anything, and calls no code of the user's while it holds the core.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from math import inf
from typing import Any, TypeVar

from hetero.core.machine import Machine
from hetero.drive.live_values import Explanation, Sink, Together
from hetero.drive.recorder import Recorder
from hetero.drive.timer import Timer
from hetero.drive.utilisation import UtilisationWatch
from hetero.engines.base import Call, Engine, NodeUsage, WorkerEntry
from hetero.floor import settings
from hetero.floor.clock import Clock, TraceSink, sleep
from hetero.floor.errors import DeviceLostError, EngineError, NothingFitsError
from hetero.model.commands import Commit, Fail, Free, LeaseChanged, Recommit, Run, RunGroup, SetTimer, Split, Warn
from hetero.model.device import HOST_NODE, Device
from hetero.model.events import (
    CancelRequested,
    DeviceAdded,
    DeviceLost,
    Event,
    ItemPut,
    ItemReleased,
    LeaseAsked,
    LeaseRefused,
    LeaseReleased,
    LeaseRenewed,
    TaskFinished,
    TaskSubmitted,
    TimerFired,
)
from hetero.model.leases import LeasePhase
from hetero.model.tasks import Failure, Request, Task
from hetero.model.topology import Topology
from hetero.plan.cost import CostModel
from hetero.plan.policies.base import Policy

__all__ = ["Driver", "Explanation", "Sink"]

Delivery = Callable[[], object]
T = TypeVar("T")


class Driver:
    """Runs a core against an engine.

    Whoever brings an event puts it into the inbox; one thread at a time takes the token and empties the
    inbox, the others go on. So the core is never entered twice, no thread waits for another, and a reader
    of worker sockets is never held up.

    Parameters
    ----------
    devices : the fleet
    topology : memory nodes and links
    engine : executes; started by `start`
    worker : the workers' entry point, handed to the engine
    policy : proposes placements
    cost : learns run times
    clock : time of the events
    trace : takes every event and command, None for no trace
    warn : takes one line for the user
    split : cuts a task that ran out of memory, given its id; False when it cannot be cut
    watch : True reports twice a second how much of each device others use
    """

    def __init__(
        self,
        *,
        devices: Sequence[Device],
        topology: Topology,
        engine: Engine,
        worker: WorkerEntry,
        policy: Policy,
        cost: CostModel,
        clock: Clock,
        trace: TraceSink | None = None,
        warn: Callable[[str], None] = lambda text: None,
        split: Callable[[int], bool] = lambda task: False,
        watch: bool = False,
    ) -> None:
        self.devices = tuple(devices)
        self.engine = engine
        self.machine = Machine(policy, cost, topology)
        self._worker = worker
        self._clock = clock
        self._recorder = Recorder(self.machine, clock, trace)
        self._warn = warn
        self._split = split
        self._ids = count(1)
        self._calls: dict[int, Call] = {}
        self._sinks: dict[int, Sink] = {}
        self._tracked: set[int] = set()
        self._able: dict[tuple[str, int], Request] = {}
        self._inbox: deque[Event | Together] = deque()
        self._held: list[TaskSubmitted] = []
        self._holder = 0
        self._one_holder = threading.Lock()
        self._released: deque[int] = deque()
        self._token = threading.Lock()
        self._idle = threading.Condition()
        self._waiters = 0
        self._broken: Failure | None = None
        self._check = self._checker() if settings.check_level() else None
        self._timer = Timer(clock, self._tick)
        self._watch = UtilisationWatch(self.devices, engine.pids, clock) if watch else None
        self._lease_sink: Callable[[LeaseChanged], None] | None = None
        self._closed = False
        self._carry: dict[type, Callable[[Any, list[Delivery]], None]] = {
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

    @staticmethod
    def _checker() -> Callable[[Machine], None]:
        from hetero.core.checks import check

        return check

    # the session's side

    def start(self) -> None:
        """Start a worker for each device, without waiting for them."""
        now_s = self._clock.now_s()
        self._post([DeviceAdded(now_s, device) for device in self.devices])
        self.engine.tell = self._recorder.tell
        self.engine.start(self.devices, self._worker, self._clock, self._post)
        self._timer.start()

    def join(self, devices: Sequence[Device]) -> None:
        """Take more devices into the fleet, and start their workers."""
        if self._closed:
            return
        self.devices = (*self.devices, *devices)
        now_s = self._clock.now_s()
        self._post([DeviceAdded(now_s, device) for device in devices])
        self.look(lambda machine: self.engine.add(devices))

    def new_id(self) -> int:
        """Give an id for a task or a data item."""
        return next(self._ids)

    def submit(self, task: Task, call: Call, sink: Sink | None = None) -> None:
        """Hand in a task.

        Parameters
        ----------
        task, call : what the core sees of it, and what a worker needs
        sink : takes the outcome; None keeps the sink of a task of the same id that is being cut into parts

        Raises
        ------
        NothingFitsError
            No device of the fleet can ever meet the request.
        SerialisationError
            The function or an argument cannot travel.
        EngineError
            The driver is closed, or broke.
        """
        if self._closed or self._broken is not None:
            problem = self._broken.message if self._broken else "the context is closed"
            raise EngineError(problem, remedy="make a new one")
        key = (task.signature.partition("|")[0], id(task.request))
        if key not in self._able:
            self._refuse(task, key)
        self.engine.encode(call)
        self._calls[task.id] = call
        if sink is not None:
            self._sinks[task.id] = sink
        submitted = TaskSubmitted(self._clock.now_s(), task)
        if self._holder == threading.get_ident():
            self._held.append(submitted)
            return
        self._inbox.append(submitted)
        self._drain()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Hand in at once, at the end, what this thread submits inside; nothing of it when that raises."""
        with self._one_holder:
            self._holder = threading.get_ident()
            try:
                yield
            except BaseException:
                for event in self._held:
                    self._calls.pop(event.task.id, None)
                    self._sinks.pop(event.task.id, None)
                self._held.clear()
                raise
            finally:
                self._holder = 0
                held, self._held = self._held, []
        if held:
            self._inbox.append(Together(held))
            self._drain()

    def _refuse(self, task: Task, key: tuple[str, int]) -> None:
        reason = self.machine.refuse(task.name, task.signature, task.request)
        if reason:
            raise NothingFitsError(reason, remedy="run 'hetero devices' to see what is here")
        if len(self._able) > 4096:
            self._able.clear()
        self._able[key] = task.request

    def cancel(self, task: int) -> None:
        """Ask for a task to be stopped; its sink is told once it is."""
        self._post([CancelRequested(self._clock.now_s(), task)])

    def put(self, value: Any) -> int:
        """Copy a value to the host's memory node; give its item id.

        Raises
        ------
        SerialisationError
            The value cannot travel.
        """
        item = self.new_id()
        nbytes = self.engine.put(item, value)
        if nbytes:
            self._tracked.add(item)
            self._post([ItemPut(self._clock.now_s(), item, nbytes, HOST_NODE)])
        return item

    def release(self, item: int) -> None:
        """Take note that nobody holds an item; may be called by the garbage collector at any point."""
        self._released.append(item)

    def load(self, item: int) -> Any:
        """Give the value of an item; one that was lost with its device is waited for while it is computed again.

        Raises
        ------
        DeviceLostError
            The value is lost for good.
        """
        while True:
            try:
                return self.engine.load(item)
            except DeviceLostError:
                if not self._comes_again(item):
                    raise
                sleep(0.01)

    def _comes_again(self, item: int) -> bool:
        """Tell whether the core counts on an item that the engine has lost, or has not heard of the loss yet."""
        replicas = self.machine.replicas
        counted_on = item in self.machine.tasks or (item in replicas.items and item not in replicas.lost)
        return counted_on and not self._closed and self._broken is None

    def where(self, item: int) -> str:
        """Give the memory node that an item came to be on; '' for a small value, which travels in messages."""
        entry = self.machine.replicas.items.get(item)
        return entry.valid[0] if entry is not None and entry.valid else ""

    def explain(self, signature: str, size: float, request: Request) -> list[Explanation]:
        """Say for each device what is expected of it for a task, or why it cannot run it."""
        obstacles = self.machine.obstacles(signature, request)
        estimates = self.machine.estimates(signature, size)
        return [
            Explanation(device, None if reason else estimate, reason)
            for (device, reason), (_, estimate) in zip(obstacles, estimates, strict=True)
        ]

    def on_leases(self, sink: Callable[[LeaseChanged], None]) -> None:
        """Hand news of leases to a sink, in their order; it is called while the core is held, and must not wait."""
        self._lease_sink = sink

    def lend(self, event: LeaseAsked | LeaseRenewed | LeaseRefused | LeaseReleased) -> None:
        """Tell the core what is wanted of a lease; what becomes of it goes to the sink."""
        self._post([event])

    def now_s(self) -> float:
        """Give the seconds since the run began."""
        return self._clock.now_s()

    def note(self, record: tuple[object, ...]) -> None:
        """Put a fact that the core need not know into the trace."""
        self._recorder.note(record)

    def listen(self, sink: TraceSink) -> None:
        """Hand every event, command and note from now on to one more sink."""
        self._recorder.listen(sink)

    def look(self, question: Callable[[Machine], T]) -> T:
        """Ask the core a question between two events."""
        with self._token:
            answer = question(self.machine)
        self._drain()
        return answer

    def usage(self) -> Mapping[str, NodeUsage]:
        """Give how full each memory node is: the engine's figures, and the core's for the devices' own nodes."""
        usage = dict(self.engine.usage())
        replicas = self.machine.replicas
        for node in self.machine.fleet.nodes:
            if node not in usage:
                capacity = replicas.capacity(node)
                bound = 0 if capacity == inf else int(capacity)
                usage[node] = NodeUsage(bound, replicas.used.get(node, 0), replicas.peak.get(node, 0), 0.0)
        return usage

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until no task is open; False when the time was up first."""
        with self._idle:
            self._waiters += 1
            try:
                return self._idle.wait_for(lambda: not self._sinks, timeout_s)
            finally:
                self._waiters -= 1

    def close(self, wait: bool = True) -> None:
        """End the engine; waits for open tasks, or cancels them. Safe to call twice."""
        if self._closed:
            return
        if wait and self._broken is None:
            self.wait()
        self._closed = True
        now_s = self._clock.now_s()
        self._post([CancelRequested(now_s, task) for task in list(self._sinks)])
        self._post([LeaseReleased(now_s, lease.id) for lease in self.machine.pool.leases])
        self._timer.stop()
        self.engine.stop()
        self._drop_released()

    # the loop

    def _post(self, events: Sequence[Event]) -> None:
        self._inbox.extend(events)
        self._drain()

    def _drain(self) -> None:
        """Empty the inbox, unless another thread is at it: that one takes what was put in."""
        inbox = self._inbox
        while inbox:
            if not self._token.acquire(blocking=False):
                return
            deliveries: list[Delivery] = []
            try:
                while inbox:
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
        self.engine.pump()

    def _take(self, event: Event | Together, deliveries: list[Delivery]) -> None:
        record = self._recorder.write
        if record is not None:
            for each in event if isinstance(event, Together) else (event,):
                record(each)
        if type(event) is TaskFinished and event.nbytes:
            self._tracked.add(event.task)
        core = self.machine
        commands = core.handle_all(event) if isinstance(event, Together) else core.handle(event)
        for command in commands:
            if record is not None:
                record(command)
            carry = self._carry.get(type(command))
            if carry is not None:
                carry(command, deliveries)
            else:
                self.engine.submit(command)  # type: ignore[arg-type]
        if record is not None:
            self._recorder.decided()
        if type(event) is DeviceLost:
            self._able.clear()
        if self._check is not None:
            self._check(self.machine)

    def _break(self, error: Exception, deliveries: list[Delivery]) -> None:
        failure = Failure("crash", f"the scheduler failed: {type(error).__name__}: {error}", error)
        self._broken = failure
        self._inbox.clear()
        for sink in self._sinks.values():
            deliveries.append(partial(sink.failed, failure))
        self._sinks.clear()
        for lease in self.machine.pool.leases:
            self._lease_changed(LeaseChanged(lease.id, LeasePhase.FAILED, (), 0.0, 0.0, failure.message), deliveries)

    def _tick(self, now_s: float, due: bool) -> None:
        if self._released:
            self._drop_released()
        if due:
            self._post([TimerFired(now_s)])
        if self._watch is not None:
            self._post(self._watch.sample())

    def _drop_released(self) -> None:
        events: list[Event] = []
        while self._released:
            item = self._released.popleft()
            if item in self._tracked:
                self._tracked.discard(item)
                events.append(ItemReleased(self._clock.now_s(), item))
            else:
                self.engine.forget(item)
        if events:
            self._post(events)

    # commands

    def _run(self, command: Run, deliveries: list[Delivery]) -> None:
        calls = self._calls
        self.engine.run(command.device, [(launch, calls[launch.task]) for launch in command.launches])

    def _run_group(self, command: RunGroup, deliveries: list[Delivery]) -> None:
        self.engine.run_group(command.devices, command.launch, self._calls[command.launch.task])

    def _commit(self, command: Commit, deliveries: list[Delivery]) -> None:
        task = command.task
        self.engine.commit(task, command.attempt)
        entry = self.machine.replicas.items.get(task)
        if entry is None or HOST_NODE in entry.valid:
            del self._calls[task]
        sink = self._sinks.pop(task)
        deliveries.append(partial(sink.committed, partial(self.load, task)))

    def _recommit(self, command: Recommit, deliveries: list[Delivery]) -> None:
        self.engine.commit(command.task, command.attempt)

    def _fail(self, command: Fail, deliveries: list[Delivery]) -> None:
        self._calls.pop(command.task, None)
        sink = self._sinks.pop(command.task, None)
        if sink is not None:
            deliveries.append(partial(sink.failed, command.failure))

    def _free(self, command: Free, deliveries: list[Delivery]) -> None:
        self.engine.submit(command)
        if command.item not in self.machine.replicas.items:
            self._calls.pop(command.item, None)
            self.engine.forget(command.item)

    def _order_split(self, command: Split, deliveries: list[Delivery]) -> None:
        deliveries.append(partial(self._cut, command.task))

    def _cut(self, task: int) -> None:
        if not self._split(task):
            self.cancel(task)

    def _lease_changed(self, command: LeaseChanged, deliveries: list[Delivery]) -> None:
        if self._lease_sink is not None:
            self._lease_sink(command)

    def _set_timer(self, command: SetTimer, deliveries: list[Delivery]) -> None:
        self._timer.set(command.at_s)

    def _order_warning(self, command: Warn, deliveries: list[Delivery]) -> None:
        deliveries.append(partial(self._warn, command.text))
