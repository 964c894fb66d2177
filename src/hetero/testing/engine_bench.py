"""A bench on which one engine is driven by hand.

In: calls to make and events to wait for. Out: orders to the engine, as the driver gives them.
It must not decide anything, nor look inside the engine.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hetero.drive.worker import WorkerFactory
from hetero.engines.base import Call, Engine, Function, WorkerEntry
from hetero.floor.clock import WallClock, monotonic_s
from hetero.model.commands import Launch, StartWorker, Transfer
from hetero.model.device import Device, DeviceType
from hetero.model.events import DeviceReady, Event, TaskFailed, TaskFinished, TaskWithdrawn, TransferFinished

__all__ = ["PATIENCE_S", "Bench", "two_devices"]

E = TypeVar("E")
PATIENCE_S = 60.0


def two_devices() -> tuple[Device, Device]:
    """Return two CPU devices; the second has a memory node of its own."""
    cpu = DeviceType("CPU")
    return (
        Device("h0/cpu:0", "cpu", cpu, "cpu", 0, "first"),
        Device("h0/cpu:1", "cpu", cpu, "cpu", 1, "second", memory_node="h0/cpu:1"),
    )


class Bench:
    """Drives one engine by hand, and keeps every event that it told.

    Parameters
    ----------
    engine : not started yet
    devices : the fleet
    worker : the workers' entry point
    """

    def __init__(self, engine: Engine, devices: Sequence[Device] = (), worker: WorkerEntry | None = None) -> None:
        self.engine = engine
        self.devices = tuple(devices) or two_devices()
        self.events: list[Event] = []
        self._changed = threading.Condition()
        self._seen = 0
        self._tasks = itertools.count(1)
        self._functions: dict[Any, Function] = {}
        engine.start(self.devices, worker or WorkerFactory(), WallClock(), self._report)

    def _report(self, events: Sequence[Event]) -> None:
        with self._changed:
            self.events.extend(events)
            self._changed.notify_all()

    def expect(self, kind: type[E], wanted: Callable[[E], bool] = lambda event: True, after: int = 0) -> E:
        """Wait for an event of a kind; AssertionError when none comes in `PATIENCE_S`."""
        deadline_s = monotonic_s() + PATIENCE_S
        while monotonic_s() < deadline_s:
            self.engine.pump()
            with self._changed:
                for event in self.events[after:]:
                    if isinstance(event, kind) and wanted(event):
                        return event
                self._changed.wait(0.05)
        raise AssertionError(f"no {kind.__name__} was told; told: {self.events[-10:]}")

    def ready(self) -> None:
        """Wait until every device is ready."""
        for device in self.devices:
            self.expect(DeviceReady, lambda event, name=device.id: event.device == name)  # type: ignore[misc]

    def call(self, function: Callable[..., Any], *args: Any, refs: tuple[int, ...] = (), **kwargs: Any) -> Call:
        """Make a call, its arguments captured."""
        known = self._functions.setdefault(
            function, Function(f"{function.__qualname__}/{len(self._functions)}", function.__name__, function)
        )
        call = Call(known, args, kwargs, refs)
        self.engine.encode(call)
        return call

    def launch(self, *calls: Call, on: int = 0, predicted_s: float = 0.0) -> list[int]:
        """Send attempts to a device in one `run`; return their task ids."""
        launches = [(Launch(next(self._tasks), 1, predicted_s), call) for call in calls]
        self.engine.run(self.devices[on].id, launches)
        return [launch.task for launch, _ in launches]

    def launch_group(self, call: Call) -> int:
        """Send one attempt to all devices together."""
        launch = Launch(next(self._tasks), 1, 0.0)
        self.engine.run_group([device.id for device in self.devices], launch, call)
        return launch.task

    def finish(self, task: int) -> TaskFinished:
        """Wait for a task's result and commit it."""
        answered: Any = (TaskFinished, TaskFailed, TaskWithdrawn)
        event: Any = self.expect(object, lambda event: isinstance(event, answered) and event.task == task)
        assert isinstance(event, TaskFinished), f"a task that should finish did not: {event}"
        self.engine.commit(task, event.attempt)
        return event

    def run(self, function: Callable[..., Any], *args: Any, on: int = 0, refs: tuple[int, ...] = ()) -> int:
        """Run one task and commit its result; return its id."""
        (task,) = self.launch(self.call(function, *args, refs=refs), on=on)
        self.finish(task)
        return task

    def value(self, function: Callable[..., Any], *args: Any, on: int = 0, refs: tuple[int, ...] = ()) -> Any:
        """Run one task and give its value."""
        return self.engine.load(self.run(function, *args, on=on, refs=refs))

    def failure(self, function: Callable[..., Any], *args: Any) -> TaskFailed:
        """Run one task that fails."""
        (task,) = self.launch(self.call(function, *args))
        return self.expect(TaskFailed, lambda event: event.task == task)

    def restart(self, device: str) -> None:
        """Start a device's worker again, and wait for it."""
        before = len(self.events)
        self.engine.submit(StartWorker(device))
        self.expect(DeviceReady, lambda event: event.device == device, after=before)

    def transfer(self, item: int, src: str, dst: str, nbytes: int) -> TransferFinished:
        """Copy an item, and wait for it."""
        self.engine.submit(Transfer(item, src, dst, nbytes))
        return self.expect(TransferFinished, lambda event: (event.item, event.dst) == (item, dst))

    def check_answers(self) -> None:
        """Check that no attempt was answered twice by one device."""
        kinds = (TaskFinished, TaskFailed, TaskWithdrawn)
        answers = [(e.task, e.attempt, e.device) for e in self.events if isinstance(e, kinds)]
        assert len(answers) == len(set(answers)), "an attempt was answered twice"
