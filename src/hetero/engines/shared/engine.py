"""What the engines have in common whose workers are handed bytes: calls and values as payloads, orders, copies told.

In: calls, values, orders. Out: payloads, events of copies. It must not know where bytes lie or what a worker is.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypedDict, TypeVar

from hetero.engines.base import Annotate, Call, Engine, EngineOrder, Log, Report, ReportParts, WorkerEntry
from hetero.engines.shared.exceptions import one_line
from hetero.engines.shared.hub import Hub
from hetero.engines.shared.in_flight import pack_function
from hetero.engines.shared.items import HeldItem, Items, NodeMeter, Packer, Replica
from hetero.engines.shared.memory_pool import Payload
from hetero.floor.clock import Clock
from hetero.floor.errors import DeviceLostError, EngineError, HeteroError, SerialisationError
from hetero.model.commands import Cancel, Discard, Free, Launch, StartWorker, Transfer, Withdraw
from hetero.model.device import HOST_NODE, Device
from hetero.model.events import TaskFailed, TransferFailed, TransferFinished
from hetero.model.tasks import Failure

__all__ = ["Done", "EngineContext", "PayloadEngine", "WorkerProxy"]

Done = Callable[[str, float, float, HeldItem | None], None]
"""Told of a copy: what went wrong or '', when it began, s that it took, what it gave."""


class WorkerProxy(Protocol):
    """A worker as its engine sees it."""

    device: Device

    def withdraw(self, task: int, attempt: int) -> None:
        """Ask for an attempt back."""
        ...

    def cancel(self, task: int, attempt: int) -> None:
        """Stop an attempt."""
        ...

    def stop(self) -> None:
        """End the worker, or see to it that it has ended; called after the hub has stopped."""
        ...


Proxy = TypeVar("Proxy", bound=WorkerProxy)


class SharedParts(TypedDict):
    """The fields of `EngineContext` that an engine fills in."""

    hub: Hub
    items: Items
    meter: NodeMeter
    clock: Clock
    counters: Counter[str]
    entry: WorkerEntry
    report: Report
    start_s: float
    annotate: Annotate
    log: Log
    report_parts: ReportParts


@dataclass(slots=True, kw_only=True)
class EngineContext:
    """What all parts of one running engine share.

    Attributes
    ----------
    start_s
        Time that a worker may take to start, s.
    annotate, report_parts
        Take the notes of attempts, and of what their time consists.
    log
        Takes the log records of tasks.
    failed_starts
        How often in a row the worker of a device did not start.
    worked
        The devices whose worker was ready once.
    """

    hub: Hub
    items: Items
    meter: NodeMeter
    clock: Clock
    counters: Counter[str]
    entry: WorkerEntry
    report: Report
    start_s: float
    annotate: Annotate
    log: Log
    report_parts: ReportParts
    failed_starts: Counter[str] = field(default_factory=Counter)
    worked: set[str] = field(default_factory=set)

    def refuse(self, device: str, launch: Launch, failure: Failure) -> None:
        """Report that an attempt could not be sent."""
        now_s = self.clock.now_s()
        event = TaskFailed(now_s, launch.task, launch.attempt, device, now_s, 0.0, failure)
        self.hub.call(lambda: self.hub.emit(event))


class PayloadEngine(Engine, Generic[Proxy]):
    """An engine whose workers are handed bytes.

    Parameters
    ----------
    memory_pool_bytes
        Bytes of the memory through which arrays travel.
    start_s
        Time that a worker may take to start, s.
    note
        Called with what the user should know, in one line each.

    Attributes
    ----------
    other_remedy
        What else helps where something cannot travel, for the end of a message.
    counters
        How often things happened, by name.
    """

    other_remedy: ClassVar[str] = ""

    def __init__(self, memory_pool_bytes: int, start_s: float, note: Callable[[str], None]) -> None:
        self.counters: Counter[str] = Counter()
        self._pool_bytes = memory_pool_bytes
        self._start_s = start_s
        self._note = note
        self._context: EngineContext
        self._devices: dict[str, Device] = {}
        self._workers: dict[str, Proxy] = {}
        self._pid = 0
        self._stop_lock = threading.Lock()

    def _shared(self, store: Packer, worker: WorkerEntry, clock: Clock, report: Report) -> SharedParts:
        """Return the parts of the context that every engine has."""
        meter = NodeMeter()
        return SharedParts(
            hub=Hub(report),
            items=Items(store, meter),
            meter=meter,
            clock=clock,
            counters=self.counters,
            entry=worker,
            report=report,
            start_s=self._start_s,
            annotate=self.annotate,
            log=self.log,
            report_parts=self.report_parts,
        )

    def _start_workers(self, devices: Sequence[Device]) -> None:
        """Start the hub, and a worker for each device."""
        self._pid = os.getpid()
        self._devices = {device.id: device for device in devices}
        self._context.hub.start()
        atexit.register(_stop_at_exit, weakref.ref(self))
        for device in devices:
            self._start_worker(device.id)

    def _note_unlimited(self, devices: Sequence[Device], why: str) -> None:
        """Warn of CPUs whose memory limit their worker cannot be held to."""
        if devices:
            self._note(
                f"the memory_limit of {', '.join([device.short for device in devices])} keeps out tasks that ask for "
                f"more, but does not stop one that takes more: its worker {why}"
            )

    def stop(self) -> None:
        """End every worker and give back every resource; safe to call twice."""
        if self._pid != os.getpid():  # in a forked process nobody would ever release the lock
            return
        with self._stop_lock:
            if not self._pid:
                return
            self._pid = 0
        self._ask_to_stop()
        self._context.hub.stop()
        for worker in self._workers.values():
            worker.stop()
        self._release()

    def _ask_to_stop(self) -> None:
        """Ask the workers to end by themselves, while the hub still runs."""

    def _release(self) -> None:
        """Return what is left when all workers have ended."""
        self._context.items.clear()

    @abstractmethod
    def _stored(self, value: object) -> Payload:
        """Return a value as bytes; raises whatever its pickling raises."""

    def encode(self, call: Call) -> None:
        """Capture the arguments as they are now, as bytes; large arrays are copied once each."""
        function = call.function
        pack_function(function, self.other_remedy)
        call.encoded = self._payload((call.args, dict(call.kwargs)), f"an argument of {function.name!r}")

    def _payload(self, value: object, what: str) -> Payload:
        try:
            return self._stored(value)
        except EngineError:
            raise
        except Exception as error:
            raise SerialisationError(
                f"{what} cannot travel to a worker: {one_line(error)}",
                remedy=f"give arrays, numbers, strings or plain containers{self.other_remedy}",
            ) from error

    def submit(self, order: EngineOrder) -> None:
        """Carry out a command that has no call."""
        if isinstance(order, Withdraw):
            self._workers[order.device].withdraw(order.task, order.attempt)
        elif isinstance(order, Cancel):
            self._workers[order.device].cancel(order.task, order.attempt)
        elif isinstance(order, Discard):
            self._context.items.discard(order.task, order.attempt)
        elif isinstance(order, Free):
            self._context.items.free(order.item, order.node, order.node == HOST_NODE)
        elif isinstance(order, StartWorker):
            self._start_worker(order.device)
        else:
            self._context.hub.call(lambda: self._transfer(order))

    @abstractmethod
    def _start_worker(self, device: str) -> None:
        """Start a new worker for a device."""

    # -- data -------------------------------------------------------------------------------------------------

    def put(self, item: int, value: object) -> int:
        """Keep a value as a data item on the host; return its bytes there, 0 where it travels in messages."""
        payload = self._payload(value, "the value")
        self._context.items.put(item, HeldItem(payload))
        return payload.nbytes

    def holds(self, item: int, value: object) -> bool:
        """Return whether a data item is this very array, unchanged since it was put."""
        try:
            known = self._context.items.find(item).payload
        except DeviceLostError:
            return False
        again = self._payload(value, "the value")
        return known is not None and (again.body, again.places) == (known.body, known.places)

    def commit(self, task: int, attempt: int) -> None:
        """Make the result of this attempt the data item `task`; later results of the task are dropped."""
        self._context.items.commit(task, attempt)

    def forget(self, item: int) -> None:
        """Drop a data item everywhere."""
        self._context.items.forget(item)

    def _read(self, item: int, payload: Payload) -> object:
        try:
            return payload.value()
        except DeviceLostError:
            raise
        except Exception as error:
            raise SerialisationError(f"the result of task {item} cannot be read here: {one_line(error)}") from error

    def _wait_for_export(self, item: int, replica: Replica) -> HeldItem:
        """Wait for a copy of a value that only a device has."""
        done = threading.Event()
        answers: list[tuple[str, HeldItem | None]] = []

        def arrived(problem: str, started_s: float, seconds: float, answer: HeldItem | None) -> None:
            answers.append((problem, answer))
            done.set()

        self._export(replica, arrived)
        self._context.hub.wait(done)
        problem, answer = answers[0]
        if answer is None:
            raise DeviceLostError(f"the result of task {item} cannot be had: {problem}")
        return answer

    # -- transfers, in the hub's thread -----------------------------------------------------------------------

    def _transfer(self, order: Transfer) -> None:
        """Start a copy: from a device's memory node by way of the host, or from the host."""
        try:
            item = self._context.items.find(order.item)
            if self._can_bring(order, item):
                self._bring(order, item, self._context.clock.now_s(), 0.0)
            else:
                replica = next(each for each in item.replicas if each.holder.device.memory_node == order.src)
                self._export(replica, lambda *answer: self._on_export(order, *answer))
        except StopIteration:
            self._transfer_failed(order, f"data item {order.item} is not on {order.src}")
        except HeteroError as error:
            self._transfer_failed(order, str(error))

    @abstractmethod
    def _can_bring(self, order: Transfer, item: HeldItem) -> bool:
        """Return whether an item is sent from the host."""

    @abstractmethod
    def _export(self, replica: Replica, done: Done) -> None:
        """Copy a kept value to the host."""

    @abstractmethod
    def _bring(self, order: Transfer, item: HeldItem, started_s: float, so_far_s: float) -> None:
        """Copy an item from the host to where it is wanted."""

    @abstractmethod
    def _exported(self, order: Transfer, item: HeldItem, answer: HeldItem) -> None:
        """Keep the copy that an item has on the host now, where others may use it."""

    def _on_export(
        self, order: Transfer, problem: str, started_s: float, seconds: float, answer: HeldItem | None
    ) -> None:
        if answer is None:
            self._transfer_failed(order, problem)
            return
        with suppress(DeviceLostError):
            self._exported(order, self._context.items.find(order.item), answer)
        self._bring(order, answer, started_s, seconds)

    def _arrived(self, order: Transfer, started_s: float, seconds: float) -> None:
        now_s = self._context.clock.now_s()
        self._context.hub.emit(
            TransferFinished(now_s, order.item, order.src, order.dst, order.nbytes, started_s, seconds)
        )

    def _transfer_failed(self, order: Transfer, reason: str) -> None:
        self._context.hub.emit(TransferFailed(self._context.clock.now_s(), order.item, order.src, order.dst, reason))


def _stop_at_exit(reference: weakref.ref[PayloadEngine[Proxy]]) -> None:
    """Stop an engine when the program ends without having done so."""
    engine = reference()
    if engine is not None:
        engine.stop()
