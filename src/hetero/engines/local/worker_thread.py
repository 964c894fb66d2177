"""A worker thread of this process: arguments and results by reference, the shortest way there is.

In: attempts. Out: events, told from the worker's own thread. It cannot be ended by force: a thread that does not
heed a cancellation is left alone, and its answers are dropped.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from hetero.engines.base import Call, Outcome, Runner
from hetero.engines.local.context import LocalContext
from hetero.engines.shared import messages as msg
from hetero.engines.shared.exceptions import kind_here, one_line
from hetero.engines.shared.groups import GroupChannel, GroupTask, Whole
from hetero.engines.shared.in_flight import Outbox
from hetero.engines.shared.items import HeldItem, Replica, resolve, sizeof
from hetero.engines.shared.memory_pool import Payload
from hetero.engines.shared.messages import Cancelled
from hetero.engines.shared.wire import fresh
from hetero.engines.shared.worker import Cancellation, wait_for_link
from hetero.floor import clock
from hetero.floor.clock import TaskClock
from hetero.floor.errors import HeteroError
from hetero.model.commands import Launch
from hetero.model.device import HOST_NODE, Device
from hetero.model.events import DeviceLost, DeviceReady, Event, TaskFailed, TaskFinished, TaskWithdrawn
from hetero.model.tasks import Failure

__all__ = [
    "ThreadWorker",
]

CANCEL_S = 0.2
STOP_S = 1.0

Batch = tuple[Sequence[tuple[Launch, Call]], GroupTask | None, int]


def copy_piece(data: Any, buffer: memoryview) -> None:
    """Copy what a worker process sent, in the pool or in the message itself, into a buffer."""
    if isinstance(data, Payload):
        block = data.blocks[0]
        data = block.segment.part(block.place.offset, block.place.nbytes)
    buffer[: len(data)] = data


class ThreadWorker:
    """One worker thread of one device; a new one is made for each start."""

    def __init__(self, context: LocalContext, device: Device) -> None:
        self.device = device
        self._context = context
        self._queue: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._copies: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._copier: threading.Thread | None = None
        self._cancellation = Cancellation()
        self._waiting: set[tuple[int, int]] = set()
        self._unwanted: dict[tuple[int, int], int] = {}
        self._abandoned = False
        self._inboxes: dict[int, queue.SimpleQueue[msg.Message]] = {}
        self._kept: dict[object, object] = {}
        self._runner: Runner
        self._timing = TaskClock(context.clock.now_s)
        self._outbox = Outbox(self._report, clock.sleep, clock.monotonic_s)
        self._thread = threading.Thread(target=self._serve, name=f"hetero-{device.short}", daemon=True)
        self._thread.start()

    # -- what the engine asks ---------------------------------------------------------------------------------

    def run(self, launches: Sequence[tuple[Launch, Call]], group: GroupTask | None = None, rank: int = 0) -> None:
        """Queue attempts."""
        for launch, _ in launches:
            self._waiting.add((launch.task, launch.attempt))
            if group is not None:
                self._inboxes[launch.task] = queue.SimpleQueue()
        self._queue.put((launches, group, rank))

    def withdraw(self, task: int, attempt: int) -> None:
        """Return an attempt to the program at once where it has not started: what runs before it may take long."""
        with self._cancellation.lock:
            if (task, attempt) not in self._waiting or (task, attempt) in self._unwanted:
                return
            self._unwanted[task, attempt] = msg.WITHDRAWN
        event, hub = TaskWithdrawn(self._context.clock.now_s(), task, attempt, self.device.id), self._context.hub
        hub.call(lambda: hub.emit(event))

    def cancel(self, task: int, attempt: int) -> None:
        """Stop an attempt: by an exception, and by giving the thread up where that does not help."""
        with self._cancellation.lock:
            if self._cancellation.current == (task, attempt):
                self._cancellation.stop_call()
            elif (task, attempt) in self._waiting:
                self._unwanted[task, attempt] = msg.CANCELLED
                return
        self._context.hub.at(CANCEL_S, lambda: self._insist((task, attempt)))

    def _insist(self, which: tuple[int, int]) -> None:
        with self._cancellation.lock:
            if self._cancellation.current != which or self._abandoned:
                return
            self._abandoned = True
        self._queue.put(None)
        self._context.items.lost(self)
        reason = f"its thread was given up to stop task {which[0]}; what it runs goes on unseen"
        self._context.hub.emit(DeviceLost(self._context.clock.now_s(), self.device.id, reason, permanent=False))

    def import_value(self, key: object, value: object, done: Callable[..., None]) -> None:
        """Copy a value to the device's memory node; `done(error, started_s, seconds, answer)` in the hub's thread."""
        self._copy(done, lambda: self._import(key, value))

    def export_value(self, key: object, done: Callable[..., None]) -> None:
        """Copy a kept value to the host; the answer of `done` is an `HeldItem`."""
        self._copy(done, lambda: self._export(key))

    def drop(self, key: object) -> None:
        """Forget a kept value."""
        self._kept.pop(key, None)

    def drop_segment(self, number: int) -> None:
        """Do nothing: the files are this process's own."""

    def recv(self, task: int, sender: int, content: object) -> None:
        """Take a value from another member of a group."""
        self._post(task, (msg.SEND, sender, content))

    def peer_left(self, task: int, sender: int, reason: str) -> None:
        """Learn that another member of a group has ended."""
        self._post(task, (msg.LEFT, sender, reason))

    def _post(self, task: int, message: tuple[int, int, object]) -> None:
        inbox = self._inboxes.get(task)
        if inbox is not None:
            inbox.put(message)

    def ask_to_stop(self) -> None:
        """End the thread after what it runs."""
        self._abandoned = True
        self._queue.put(None)
        self._copies.put(None)

    def stop(self) -> None:
        """Wait a little for the threads."""
        for thread in (self._thread, self._copier):
            if thread is not None and thread is not threading.current_thread():
                thread.join(STOP_S)

    # -- the thread -------------------------------------------------------------------------------------------

    def _report(self, events: list[Event]) -> None:
        if not self._abandoned:
            self._context.report(events)

    def _serve(self) -> None:
        now_s = self._context.clock.now_s
        self._cancellation.thread = threading.get_ident()
        opened = False
        try:
            self._runner = self._context.entry.make(self.device)
            self._runner.timing = self._timing
            opened = True
            self._runner.initialize()
        except BaseException as error:  # noqa: BLE001  back ends and initializers raise anything
            why = str(error) if isinstance(error, HeteroError) else one_line(error)
            passes = opened and self.device.id in self._context.worked
            self._report([DeviceLost(now_s(), self.device.id, why, permanent=not passes, task=0)])
            return
        self._context.worked.add(self.device.id)
        self._report([DeviceReady(now_s(), self.device.id)])
        self._loop()
        self._outbox.close()
        self._runner.close()

    def _loop(self) -> None:
        get, add = self._queue.get, self._outbox.add
        while (batch := get()) is not None:
            launches, group, rank = batch
            last = len(launches) - 1
            for position, (launch, call) in enumerate(launches):
                event = self._attempt(launch, call, group, rank)
                if self._abandoned:
                    return
                if event is None:
                    self._outbox.flush()
                else:
                    add(event, launches[position + 1][0].predicted_s if position < last else None)

    def _attempt(self, launch: Launch, call: Call, group: GroupTask | None, rank: int) -> Event | None:
        """Run an attempt; return what is to be told of it, None for one that was given back."""
        which = (launch.task, launch.attempt)
        with self._cancellation.lock:
            self._waiting.discard(which)
            told = self._unwanted.pop(which, 0) if self._unwanted else 0
            self._cancellation.current = None if told else which
        if told:
            return self._not_started(launch) if told == msg.CANCELLED else None
        timing = self._timing
        timing.start()
        outcome = failure = None
        try:
            outcome = self._call(launch, call, group, rank)
        except BaseException as error:  # noqa: BLE001  whatever a task raises is its own
            failure = self._failure(error)
        if notes := self._runner.notes(timing.called_s):
            self._context.annotate(notes)
        event = self._ended(launch, outcome, failure, rank)
        if group is not None:
            self._inboxes.pop(launch.task, None)
            group.leave(rank, "" if type(event) is TaskFinished else f"rank {rank} failed")
        return event

    def _call(self, launch: Launch, call: Call, group: GroupTask | None, rank: int) -> Outcome:
        try:
            args, kwargs = (call.args, call.kwargs) if not call.refs else self._arguments(call)
            channel = self._channel(launch.task, group, rank) if group is not None else None
            self._timing.call()
            try:
                return self._runner.run(
                    call.function, args, kwargs, task=launch.task, attempt=launch.attempt, task_key=call.task_key,
                    channel=channel,
                )  # fmt: skip
            finally:
                self._timing.ran()
        finally:
            self._cancellation.leave_call()

    def _arguments(self, call: Call) -> tuple[Any, Any]:
        items = self._context.items
        values = {item: items.for_thread(item, lambda key: fresh(self._kept[key]), self) for item in call.refs}
        return resolve(call.args, values), resolve(dict(call.kwargs), values)

    def _channel(self, task: int, group: GroupTask, rank: int) -> GroupChannel:
        def send(to: int, value: object) -> None:
            group.send(rank, to, Whole(fresh(value)))

        return GroupChannel(rank, group.size, send, self._inboxes[task].get, copy_piece)

    def _ended(self, launch: Launch, outcome: Outcome | None, failure: Failure | None, rank: int) -> Event:
        """Return the event of an attempt that ended, after its result was kept."""
        task, attempt, *_ = launch
        nbytes, node = (0, "") if outcome is None or rank else self._kept_result(task, attempt, outcome)
        context, device, timing = self._context, self.device.id, self._timing
        times = timing.times()
        context.report_parts(task, attempt, device, timing.started_s, times)
        ended = (timing.ended_s, task, attempt, device, timing.started_s, times.seconds)
        return TaskFinished(*ended, nbytes, node) if failure is None else TaskFailed(*ended, failure)

    def _kept_result(self, task: int, attempt: int, outcome: Outcome) -> tuple[int, str]:
        """Keep a result; return its bytes, and the memory node where they lie."""
        value = outcome.value
        if outcome.resident:
            nbytes, node = outcome.nbytes, self.device.memory_node
            self._kept[task, attempt] = value
            item = HeldItem(replica=Replica(self, (task, attempt), nbytes))
        else:
            nbytes = 0 if value is None else sizeof(value)
            node = HOST_NODE if nbytes else ""
            item = HeldItem(value=value)
        self._context.items.finished(task, attempt, item)
        return nbytes, node

    def _failure(self, error: BaseException) -> Failure:
        if issubclass(type(error), Cancelled):
            self._cancellation.arrived()
            return Failure("cancelled", "cancelled")
        kind = kind_here(self._runner.classify(error), error)
        return Failure(kind, one_line(error), error)

    def _not_started(self, launch: Launch) -> Event:
        now_s = self._context.clock.now_s()
        failure = Failure("cancelled", "cancelled before it started")
        return TaskFailed(now_s, launch.task, launch.attempt, self.device.id, now_s, 0.0, failure)

    # -- copies -----------------------------------------------------------------------------------------------

    def _copy(self, done: Callable[..., None], work: Callable[[], object]) -> None:
        if self._copier is None:
            self._copier = threading.Thread(target=self._copy_loop, name="hetero-copies", daemon=True)
            self._copier.start()
        self._copies.put(lambda: self._timed(done, work))

    def _copy_loop(self) -> None:
        while (work := self._copies.get()) is not None:
            work()

    def _timed(self, done: Callable[..., None], work: Callable[[], object]) -> None:
        started_s = self._context.clock.now_s()
        problem, answer = "", None
        try:
            answer = work()
            self._context.counters["transfers"] += 1
        except BaseException as error:  # noqa: BLE001  back ends and values raise anything
            problem = one_line(error)
        seconds = self._context.clock.now_s() - started_s
        self._context.hub.call(lambda: done(problem, started_s, seconds, answer))

    def _import(self, key: object, value: object) -> None:
        plain = value.value() if isinstance(value, Payload) else fresh(value)
        wait_for_link(self.device, sizeof(plain))
        self._kept[key] = self._runner.to_device(plain)

    def _export(self, key: object) -> HeldItem:
        value = fresh(self._runner.to_host(self._kept[key]))
        wait_for_link(self.device, sizeof(value))
        return HeldItem(value=value)
