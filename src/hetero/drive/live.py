"""The live driver: what a session asks of a fleet, and what running tasks submit to it.

In: tasks with their calls, values, questions. Out: events for the loop, results and failures to sinks.
It must not decide anything, nor carry out a command: the loop does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from math import inf
from typing import TYPE_CHECKING, NoReturn

from hetero.backends.registry import refuse_unknown
from hetero.core.machine import Machine
from hetero.core.state import DevicePhase
from hetero.drive.loop import LOGS_S, Delivery, EventBatch, Explanation, Loop, OutcomeSink
from hetero.drive.utilisation import UtilisationWatch
from hetero.engines.base import Asked, Call, Engine, NodeUsage, WorkerEntry
from hetero.floor.clock import Clock, TraceSink
from hetero.floor.errors import EngineError, HeteroError, NothingFitsError
from hetero.model.commands import Launch, LeaseChanged
from hetero.model.device import HOST_NODE, Device
from hetero.model.events import (
    CancelRequested,
    DeviceAdded,
    Event,
    ItemPut,
    LeaseAsked,
    LeaseRefused,
    LeaseReleased,
    LeaseRenewed,
    TaskSubmitted,
)
from hetero.model.tasks import Failure, Request, Task
from hetero.model.topology import Topology
from hetero.plan.performance.cost_model import CostModel
from hetero.plan.policies.base import Policy

if TYPE_CHECKING:
    from hetero.drive.loop import OutcomeSink

__all__ = ["Driver", "Explanation", "NestedTasks", "OutcomeSink"]


class Driver(Loop):
    """Runs a core against an engine, for a session.

    Parameters
    ----------
    devices
        The fleet.
    topology
        Memory nodes and links.
    engine
        Executes; started by `start`.
    worker
        The workers' entry point, handed to the engine.
    policy
        Proposes placements.
    cost
        Learns run times.
    clock
        Time of the events.
    trace
        Takes every event and command, None for no trace.
    warn
        Takes one line for the user.
    split
        Cuts a task that ran out of memory, given its id; False when it cannot be cut.
    watch
        True reports twice a second how much of each device others use.

    Attributes
    ----------
    new_id
        Returns an id for a task or a data item.
    """

    def __init__(
        self,
        *,
        devices: Sequence[Device],
        worker: WorkerEntry,
        topology: Topology,
        policy: Policy,
        cost: CostModel,
        engine: Engine,
        clock: Clock,
        trace: TraceSink | None = None,
        warn: Callable[[str], None] = lambda text: None,
        split: Callable[[int], bool] = lambda task: False,
        watch: bool = False,
    ) -> None:
        self.devices = tuple(devices)
        self._worker = worker
        self.new_id: Callable[[], int] = count(1).__next__
        self._held: list[TaskSubmitted] = []
        self._holder = 0
        self._one_holder = threading.Lock()
        self.nested = NestedTasks(self)
        watched = UtilisationWatch(self.devices, engine.pids, clock) if watch else None
        super().__init__(Machine(policy, cost, topology), engine, clock, trace, warn, split, watched)

    def start(self) -> None:
        """Start a worker for each device, without waiting for them."""
        now_s = self._clock.now_s()
        self._post([DeviceAdded(now_s, device) for device in self.devices])
        self.engine.annotate = self._recorder.annotate
        self.engine.log = self.logs.add
        self.engine.report_parts = self._recorder.parts
        self.engine.submitter = self.nested
        self.engine.start(self.devices, self._worker, self._clock, self._report)
        self._timer.start()

    def join(self, devices: Sequence[Device]) -> None:
        """Take more devices into the fleet, and start their workers."""
        if self._closed:
            return
        self.devices = (*self.devices, *devices)
        now_s = self._clock.now_s()
        self._post([DeviceAdded(now_s, device) for device in devices])
        self.ask(lambda machine: self.engine.add(devices))

    def submit(self, task: Task, call: Call, sink: OutcomeSink | None = None) -> None:
        """Submit a task.

        Parameters
        ----------
        task, call
            What the core sees of it, and what a worker needs.
        sink
            Takes the outcome; None keeps the sink of a task of the same id that is being cut into parts.

        Raises
        ------
        BadValueError
            The request names devices by a word that nothing here knows.
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
        self._refuse_deep_stack()
        key = (task.signature.partition("|")[0], id(task.request))
        if key not in self._able:
            self._refuse(task, key)
        self.engine.encode(call)
        call.task = task
        self._calls[task.id] = call
        if sink is not None:
            self._sinks[task.id] = sink
        if self._holder == threading.get_ident():
            self._held.append(TaskSubmitted(self._clock.now_s(), task))
            return
        if sink is not None and not self._inbox and self._lone is None and self._send_alone(task, call):
            return
        self._inbox.append(TaskSubmitted(self._clock.now_s(), task))
        self._drain()

    def task_of(self, task: int) -> Task | None:
        """Return an open task as it was handed in, None where its call is not needed any more; from any thread."""
        call = self._calls.get(task)
        return None if call is None else call.task

    def adopt(self, task: Task, call: Call, sink: OutcomeSink) -> None:
        """Take the call of a task that a running one submits, whose event the engine tells; raises as `submit`."""
        if self._closed or self._broken is not None:
            raise EngineError(self._broken.message if self._broken else "the context is closed")
        key = (task.signature.partition("|")[0], id(task.request))
        if key not in self._able:
            self._refuse(task, key)
        call.task = task
        self._calls[task.id] = call
        self._sinks[task.id] = sink

    @contextmanager
    def together(self) -> Iterator[None]:
        """Submit at once, at the end, what this thread submits inside; nothing of it when that raises."""
        with self._one_holder:
            self._holder = threading.get_ident()
            try:
                yield
            except BaseException:
                for event in self._held:
                    self._calls.pop(event.task.id, None)
                    sink = self._sinks.pop(event.task.id, None)
                    if sink is not None:
                        sink._failed(Failure("cancelled", f"{event.task.name} was not handed in: another one failed"))
                self._held.clear()
                raise
            finally:
                self._holder = 0
                held, self._held = self._held, []
        if held:
            self._inbox.append(EventBatch(held))
            self._drain()

    def has(self, task: int) -> bool:
        """Return whether a task is open."""
        return task in self._sinks

    def _refuse(self, task: Task, key: tuple[str, int]) -> None:
        devices, reason = self.ask(
            lambda machine: (tuple(machine.fleet.devices), machine.refuse(task.name, task.signature, task.request))
        )
        refuse_unknown("on", task.request.on, devices)
        refuse_unknown("not_on", task.request.not_on, devices)
        if reason:
            raise NothingFitsError(reason, remedy="run 'hetero devices' to see what is here")
        if len(self._able) > 4096:
            self._able.clear()
        self._able[key] = task.request

    def put(self, value: object) -> int:
        """Copy a value to the host's memory node; return its item id.

        Raises
        ------
        SerialisationError
            The value cannot travel.
        """
        self._refuse_deep_stack()
        item = self.new_id()
        nbytes = self.engine.put(item, value)
        if nbytes:
            self._tracked.add(item)
            self._post([ItemPut(self._clock.now_s(), item, nbytes, HOST_NODE)])
        return item

    def where(self, item: int) -> str:
        """Return the memory node that an item came to be on; '' for a small value, which travels in messages."""
        return self.ask(partial(_node_of, item))

    def present(self) -> tuple[Device, ...]:
        """Return the devices that are not lost for good."""
        return self.ask(_present)

    def explain(self, signature: str, size: float, request: Request) -> list[Explanation]:
        """Return for each device what is expected of it for a task, or why it cannot run it."""
        obstacles, estimates = self.ask(
            lambda machine: (machine.obstacles(signature, request), machine.estimates(signature, size))
        )
        return [
            Explanation(device, None if reason else estimate, reason)
            for (device, reason), (_, estimate) in zip(obstacles, estimates, strict=True)
        ]

    def on_leases(self, sink: Callable[[LeaseChanged], Delivery]) -> None:
        """Hand news of leases to a sink, in their order; it is called while the core is held, and must not wait.

        What it returns is called when the core is free again, and may wait.
        """
        self._lease_sink = sink

    def lend(self, event: LeaseAsked | LeaseRenewed | LeaseRefused | LeaseReleased) -> None:
        """Pass a lease's request to the core; its outcome goes to the sink."""
        self._post([event])

    def now_s(self) -> float:
        """Return the seconds since the run began."""
        return self._clock.now_s()

    def record(self, record: tuple[object, ...]) -> None:
        """Put a fact that the core need not know into the trace."""
        self._recorder.record(record)

    def listen(self, sink: TraceSink) -> None:
        """Hand every event, command and note from now on to one more sink."""
        self.ask(lambda machine: self._recorder.listen(sink))

    def usage(self) -> Mapping[str, NodeUsage]:
        """Return how full each memory node is: the engine's figures, and the core's for the devices' own nodes."""
        usage = dict(self.engine.usage())
        return usage | {node: use for node, use in self.ask(_usage).items() if node not in usage}

    def leave(self, error: HeteroError) -> None:
        """Become a driver that raises `error` whatever it is asked: this process was forked from the one it works in.

        Its engine's sockets and locks are shared with the other process or held for ever, so nothing is kept.
        """
        vars(self).clear()
        self.__class__ = _Left  # type: ignore[assignment]
        vars(self)["_error"] = error

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
        self._post([LeaseReleased(now_s, lease.id) for lease in self.ask(lambda machine: machine.pool.leases)])
        self._timer.stop()
        self.engine.stop()
        self._drop_released()
        for task in list(self._sinks):
            sink = self._sinks.pop(task, None)
            if sink is not None:
                sink._failed(Failure("cancelled", "the Context was closed before the task ended"))
        self.logs.close(LOGS_S)


def _present(machine: Machine) -> tuple[Device, ...]:
    return tuple(state.device for state in machine.fleet.states if state.phase is not DevicePhase.GONE)


def _node_of(item: int, machine: Machine) -> str:
    entry = machine.replicas.items.get(item)
    return entry.valid[0] if entry is not None and entry.valid else ""


def _usage(machine: Machine) -> dict[str, NodeUsage]:
    replicas, found = machine.replicas, {}
    for node in machine.fleet.nodes:
        capacity = replicas.capacity(node)
        bound = 0 if capacity == inf else int(capacity)
        found[node] = NodeUsage(bound, replicas.used.get(node, 0), replicas.peak.get(node, 0), 0.0)
    return found


class _Left:
    """What a driver is in a forked process."""

    def __getattr__(self, name: str) -> NoReturn:
        raise vars(self)["_error"].with_traceback(None)


_MOST_REQUESTS = 4096


class NestedTasks:
    """Makes tasks of what running ones submit; see `hetero.engines.base.Submitter`.

    Attributes
    ----------
    timeout_s
        Of tasks that have no limit of their own, 0 for none.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._requests: dict[tuple[Request, int, int], Request] = {}
        self.timeout_s = 0.0

    def submit(self, parent: Launch, asked: Asked, call: Call, sink: OutcomeSink) -> tuple[int, Event | None]:
        """Prepare a task; return its id and its event, or None where it was refused, which the sink has been told."""
        driver = self._driver
        item = driver.new_id()
        above = driver.task_of(parent.task)
        request = self._request(asked.request, above.request if above is not None else Request())
        depth = 1 if above is None else above.depth + 1
        which = (parent.task, parent.attempt)
        task = Task(item, asked.name, asked.signature, asked.size, call.refs, call.refs, request, which, depth)
        try:
            driver.adopt(task, call, sink)
        except HeteroError as error:
            sink._failed(Failure("nothing_fits", str(error), error))
            return item, None
        return item, TaskSubmitted(driver.now_s(), task)

    def _request(self, asked: Request, above: Request) -> Request:
        """Return the same request for the same wish; it has at least the priority of the parent, and its lease."""
        key = (asked, above.priority, above.lease)
        request = self._requests.get(key)
        if request is None:
            if len(self._requests) >= _MOST_REQUESTS:
                self._requests.clear()
            priority = max(asked.priority, above.priority)
            request = replace(asked, priority=priority, lease=above.lease, timeout_s=asked.timeout_s or self.timeout_s)
            self._requests[key] = request
        return request

    def release(self, item: int) -> None:
        """Record that nobody wants a result any more."""
        self._driver.release(item)
