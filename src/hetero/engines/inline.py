"""The inline engine: tasks run in the thread that waits for them, so that a debugger sees everything.

In: commands and calls. Out: events, from `pump`. It must not start a thread or a process.
"""

from __future__ import annotations

import copy
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from types import FrameType

from hetero.engines.base import Call, Engine, EngineOrder, NodeUsage, Report, Runner, WorkerEntry
from hetero.engines.shared.exceptions import kind_here, one_line
from hetero.engines.shared.items import resolve, sizeof
from hetero.engines.shared.wire import fresh
from hetero.floor.clock import Clock, TaskClock
from hetero.floor.errors import BadValueError, DeviceLostError, HeteroError, SerialisationError
from hetero.model.commands import Cancel, Discard, Launch, StartWorker, Transfer, Withdraw
from hetero.model.device import HOST_NODE, Device
from hetero.model.events import (
    DeviceLost,
    DeviceReady,
    Event,
    TaskFailed,
    TaskFinished,
    TaskWithdrawn,
    TransferFinished,
)
from hetero.model.tasks import Failure

__all__ = ["InlineEngine"]


class InlineEngine(Engine):
    """Runs one task after the other in `pump`; what a task changes in its arrays is seen by nobody else.

    Parameters
    ----------
    debug
        True opens the debugger where a task fails; None does when standard input is a terminal.
    """

    name = "inline"

    def __init__(self, debug: bool | None = None) -> None:
        self._debug = sys.stdin is not None and sys.stdin.isatty() if debug is None else debug
        self._devices: dict[str, Device] = {}
        self._runners: dict[str, Runner] = {}
        self._queue: deque[tuple[str, Launch, Call]] = deque()
        self._events: list[Event] = []
        self._values: dict[int, object] = {}
        self._results: dict[tuple[int, int], object] = {}
        self._pumping = False
        self._interrupt = _Interrupt()

    def start(self, devices: Sequence[Device], worker: WorkerEntry, clock: Clock, report: Report) -> None:
        """Open each device; whether that went well is told by the next `pump`."""
        self._worker, self._clock, self._report = worker, clock, report
        for device in devices:
            self._devices[device.id] = device
            self._open(device)

    def _open(self, device: Device) -> None:
        now_s = self._clock.now_s()
        try:
            self._runners[device.id] = self._worker.make(device)
            self._runners[device.id].initialize()
        except Exception as error:  # noqa: BLE001  back ends raise anything
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise error.__cause__ from None
            why = str(error) if isinstance(error, HeteroError) else one_line(error)
            self._events.append(DeviceLost(now_s, device.id, why, permanent=True))
        else:
            self._events.append(DeviceReady(now_s, device.id))

    @property
    def copies_arguments(self) -> bool:
        """Return whether arguments travel as bytes: they are handed over in this process."""
        return False

    def encode(self, call: Call) -> None:
        """Do nothing: arguments are handed over by reference."""

    def run(self, device: str, launches: Sequence[tuple[Launch, Call]]) -> None:
        """Queue attempts for the next `pump`."""
        self._queue.extend([(device, launch, call) for launch, call in launches])

    def run_group(self, devices: Sequence[str], launch: Launch, call: Call) -> None:
        """Queue a group of one; larger groups need members that run at the same time."""
        if len(devices) == 1:
            self._queue.append((devices[0], launch, call))
            return
        now_s = self._clock.now_s()
        error = BadValueError(
            f"task {launch.task} takes {len(devices)} devices together, and the inline engine runs one at a time",
            remedy="use engine: local",
        )
        failure = Failure("exception", str(error), error)
        self._events.extend(
            [TaskFailed(now_s, launch.task, launch.attempt, device, now_s, 0.0, failure) for device in devices]
        )

    def submit(self, order: EngineOrder) -> None:
        """Carry out a command that has no call."""
        now_s = self._clock.now_s()
        if isinstance(order, Withdraw | Cancel):
            self._withdraw(order)
        elif isinstance(order, Discard):
            self._results.pop((order.task, order.attempt), None)
        elif isinstance(order, Transfer):
            self._events.append(TransferFinished(now_s, order.item, order.src, order.dst, order.nbytes, now_s, 0.0))
        elif isinstance(order, StartWorker):
            self._open(self._devices[order.device])

    def _withdraw(self, order: Withdraw | Cancel) -> None:
        now_s = self._clock.now_s()
        for entry in list(self._queue):
            launch = entry[1]
            if (launch.task, launch.attempt) == (order.task, order.attempt):
                self._queue.remove(entry)
                event: Event = TaskWithdrawn(now_s, *launch[:2], order.device)
                if isinstance(order, Cancel):
                    failure = Failure("cancelled", "cancelled before it started")
                    event = TaskFailed(now_s, *launch[:2], order.device, now_s, 0.0, failure)
                self._events.append(event)

    def put(self, item: int, value: object) -> int:
        """Keep a copy of a value as a data item."""
        try:
            self._values[item] = copy.deepcopy(value)
        except Exception as error:
            raise SerialisationError(f"the value cannot be copied: {one_line(error)}") from error
        return sizeof(value)

    def commit(self, task: int, attempt: int) -> None:
        """Make the result of this attempt the data item `task`."""
        if (task, attempt) in self._results:
            self._values[task] = self._results.pop((task, attempt))

    def load(self, item: int) -> object:
        """Return the value of a data item."""
        if item not in self._values:
            raise DeviceLostError(f"data item {item} is not there")
        return fresh(self._values[item])

    def forget(self, item: int) -> None:
        """Drop a data item."""
        self._values.pop(item, None)

    def usage(self) -> Mapping[str, NodeUsage]:
        """Return the bytes of the arrays that are kept."""
        used = sum([sizeof(value) for value in self._values.values()])
        return {HOST_NODE: NodeUsage(0, used, used, 0.0)}

    def pump(self) -> None:
        """Run what is queued, and tell how it went; a task that is run here may not run others."""
        if self._pumping:
            return
        self._pumping = True
        try:
            with self._interrupt:
                while self._events or self._queue:
                    if not self._events:
                        self._events.append(self._attempt(*self._queue.popleft()))
                    events, self._events = self._events, []
                    self._report(events)
                    self._interrupt.pass_on()
        finally:
            self._pumping = False

    def _attempt(self, device: str, launch: Launch, call: Call) -> Event:
        timing, runner = TaskClock(self._clock.now_s), self._runners[device]
        runner.timing = timing
        timing.start()
        value: object = None
        failure: Failure | None = None
        self._interrupt.came = self._interrupt.ended_task = False
        try:
            value = self._called(runner, launch, call, timing)
        except BaseException as error:  # noqa: BLE001  whatever a task raises is its own
            self._interrupt.ended_task = issubclass(type(error), KeyboardInterrupt)
            failure = Failure(kind_here(runner.classify(error), error), one_line(error), error)
        finally:
            self.annotate(runner.notes(timing.called_s))
        times, nbytes = timing.times(), sizeof(value)
        self.report_parts(*launch[:2], device, timing.started_s, times)
        ended = (self._clock.now_s(), *launch[:2], device, timing.started_s, times.seconds)
        if failure is not None:
            if self._debug and isinstance(failure.payload, BaseException):
                _debug(failure.payload)
            return TaskFailed(*ended, failure)
        self._results[launch.task, launch.attempt] = value
        return TaskFinished(*ended, nbytes, HOST_NODE if nbytes else "")

    def _called(self, runner: Runner, launch: Launch, call: Call, timing: TaskClock) -> object:
        """Run the call of an attempt; return its result, on the host."""
        args, kwargs = fresh(resolve(call.args, self._values)), fresh(resolve(dict(call.kwargs), self._values))
        timing.call()
        try:
            outcome = runner.run(
                call.function, args, kwargs, task=launch.task, attempt=launch.attempt, task_key=call.task_key
            )
        finally:
            timing.ran()
        return runner.to_host(outcome.value) if outcome.resident else outcome.value

    def stop(self) -> None:
        """Close every device; safe to call twice."""
        for runner in self._runners.values():
            runner.close()
        self._runners.clear()
        self._queue.clear()
        self._events.clear()
        self._values.clear()
        self._results.clear()


def _debug(error: BaseException) -> None:
    """Open the debugger where a task failed."""
    import pdb

    traceback.print_exception(error)
    pdb.post_mortem(error.__traceback__)


class _Interrupt:
    """Tells Ctrl-C from a KeyboardInterrupt that a task raises by itself: tasks run in the user's own thread here.

    Ctrl-C ends the task that runs, and then comes out of the call that ran it; the other is that task's alone.

    Attributes
    ----------
    came
        Whether Ctrl-C was pressed while tasks ran.
    ended_task
        Whether the last task was ended by a KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.came = self.ended_task = self._watching = False

    def __enter__(self) -> None:
        self.came = self.ended_task = False
        main = threading.current_thread() is threading.main_thread()
        self._watching = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._watching:
            signal.signal(signal.SIGINT, self._press)

    def __exit__(self, *_: object) -> None:
        if self._watching and signal.getsignal(signal.SIGINT) == self._press:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _press(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        signal.default_int_handler(number, frame)

    def pass_on(self) -> None:
        """Raise the interrupt that ended a task, once that has been told."""
        if self.came and self.ended_task:
            self.came = self.ended_task = False
            raise KeyboardInterrupt
