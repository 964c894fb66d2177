"""A worker process as the program sees it: starting, sending, reading, and noticing its end.

In: attempts and copies to make. Out: events, through the hub. Reading and ending happen in the hub's thread.
"""

from __future__ import annotations

import errno
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

from hetero.engines.base import Call
from hetero.engines.local.child_process import LOOK_S, SILENCE_S, STOP_S, Child, Pulse
from hetero.engines.local.context import LocalContext
from hetero.engines.local.nested_tasks import Nested
from hetero.engines.shared import messages as msg
from hetero.engines.shared.exceptions import failure_of, one_line
from hetero.engines.shared.groups import Chunk, GroupMessages, GroupTask, Whole
from hetero.engines.shared.hub import Pipe
from hetero.engines.shared.in_flight import InFlight, InFlightProxy, Shipped
from hetero.engines.shared.items import HeldItem, Replica
from hetero.engines.shared.memory_pool import OutputLeases, Payload
from hetero.engines.shared.wire import READ_BYTES, BufferPlace, Frames, WireValue
from hetero.floor import clock, logs, platform
from hetero.floor.clock import Times
from hetero.floor.errors import HeteroError
from hetero.model.commands import Launch
from hetero.model.device import HOST_NODE, Device
from hetero.model.events import (
    DeviceLost,
    DeviceReady,
    TaskFailed,
    TaskFinished,
    TaskResumed,
    TaskSuspended,
    TaskWithdrawn,
)
from hetero.model.tasks import Failure

__all__ = ["ProcessProxy"]

START_S = 120.0
STARTS = 5
"""How often running a worker that was killed while it started, or lacked what it needs, is started once more, where
none has worked on its device before."""
SHORTAGES = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT})
"""What a start may lack that other programs, or other tasks, may give back."""


class ProcessProxy(InFlightProxy):
    """One worker process of one device; a new one is made for each start."""

    def __init__(self, context: LocalContext, device: Device) -> None:
        super().__init__(context.hub, device)
        self._context = context
        self._levels = context.entry.setup.levels
        self._node = device.memory_node
        self._lock = threading.Lock()
        self._seqs: dict[tuple[int, int], int] = {}
        self._next = 0
        self._drops = 0
        self._shipped = Shipped(context.counters)
        self._segments: set[int] = set()
        self._leases = OutputLeases(context.pool, self._announce)
        self._suspended: set[int] = set()
        self._nested = Nested(context, self, lambda message: self._data.send(message), self._announce)
        self._group_messages = GroupMessages(
            context.pool, context.transport, context.counters, lambda message: self._data.send(message), self._announce
        )
        self._orders: dict[int, Callable[..., None]] = {}
        self._child: Child | None = None
        self._data: Pipe
        self._control: Pipe
        self._pipes: list[Pipe] = []
        self._passing = False
        self._frames = (Frames(), Frames())
        self._opened = False
        self._unfit = False
        self._broken_by = 0
        self._ready = False
        self._stopping = False
        self._why = ""
        self._pulse = Pulse()
        self._received = False
        context.hub.call(self._start)

    # -- starting ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._stopping:
            return
        try:
            data, child_data = socket.socketpair()
            self._data = self._pipe(data, self._on_data)
            with child_data:
                control, child_control = socket.socketpair()
                self._control = self._pipe(control, self._on_control)
                with child_control:
                    self._child = Child(self._context, self.device, child_data.fileno(), child_control.fileno())
        except OSError as error:
            python = self.device.python or sys.executable
            passes = error.errno in SHORTAGES and self._is_patient()
            self._end(f"its Python {python!r} cannot be started: {error.strerror}", passes)
            return
        hub = self._context.hub
        hub.watch(data.fileno(), self._data.on_ready)
        hub.watch(control.fileno(), self._control.on_ready)
        if self._child.pidfd >= 0:
            hub.watch(self._child.pidfd, lambda mask: self._gone())
        self._data.send(self._child.hello)
        hub.at(self._context.start_s, self._too_late)
        hub.at(LOOK_S, self._check_alive)

    def _pipe(self, end: socket.socket, handler: Callable[[int], None]) -> Pipe:
        self._pipes.append(Pipe(self._context.hub, self._context.counters, end, handler))
        return self._pipes[-1]

    def _too_late(self) -> None:
        if not self._opened and not self._ended:
            self._kill(f"it was not ready after {self._context.start_s:g} s")

    def _check_alive(self) -> None:
        """See whether the worker is alive, ask it where nothing says so, and end it where it is frozen."""
        if self._ended or self._child is None:
            return
        self._context.hub.at(LOOK_S, self._check_alive)
        pid, received, self._received = self._child.pid, self._received, False
        state, cpu_s = platform.process_state(pid), clock.process_cpu_s(pid)
        if self._pulse.frozen(state, cpu_s, received=received, answers=self._opened and not self._orders):
            self._passing = True
            self._kill(f"its worker was frozen: no answer and no processor time for {SILENCE_S:g} s")
        elif self._opened and self._pulse.quiet == 1:
            self._control.send(msg.Ping())

    # -- what the engine asks ---------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process id, 0 before it is there and after its end."""
        return self._child.pid if self._child is not None and not self._ended else 0

    def run(self, launches: Sequence[tuple[Launch, Call]], group: GroupTask | None = None, rank: int = 0) -> None:
        """Send attempts."""
        with self._lock:
            functions: list[tuple[str, bytes]] = []
            jobs = [job for launch, call in launches if (job := self._job(launch, call, functions, group, rank))]
            if jobs and not self._ended:
                if (levels := logs.levels()) is not self._levels:
                    self._levels = levels
                    self._data.send(msg.LogLevels(levels))
                if functions:
                    self._shipped.retire(functions, {job.key for job in jobs})
                again = any(launch.attempt > 1 for launch, _ in launches)
                leases = {
                    job.seq: lease
                    for job in jobs
                    if not job.group and (lease := self._leases.grant_ahead(job.seq, job.key))
                }
                drops = self._drops if again else 0
                self._data.send(msg.RunAttempts(functions, [tuple(job) for job in jobs], drops, leases))

    def _job(
        self, launch: Launch, call: Call, functions: list[tuple[str, bytes]], group: GroupTask | None, rank: int
    ) -> msg.AttemptCall | None:
        encoded: Payload = call.encoded
        holds, items = [encoded], {}
        try:
            for item in call.refs:
                place, payload = self._context.items.for_worker(item, self)
                items[call.names.get(item, item)] = place
                if payload is not None:
                    holds.append(payload)
        except HeteroError as error:
            self._context.refuse(self.device.id, launch, Failure("crash", str(error), error))
            return None
        for hold in holds:
            self._announce(hold)
        key = self._shipped.use(call.function, functions)
        self._next += 1
        self._in_flight[self._next] = InFlight(self._next, launch, call, group, rank, tuple(holds))
        self._seqs[launch.task, launch.attempt] = self._next
        if group is not None:
            self._group_messages.join(launch.task, self._next)
        member = (rank, group.size) if group is not None else None
        nest = call.nest if group is None else call.nest._replace(spreads=False)
        if launch.over:
            nest = nest._replace(above=launch.over)
        wire = cast("WireValue", tuple(encoded.wire()))  # pickle would name its class in each message
        return msg.AttemptCall(self._next, *launch[:3], key, call.task_key, wire, items, member, tuple(nest))

    def _announce(self, payload: Payload) -> None:
        """Hand the worker the files among a payload's segments."""
        for block in payload.blocks:
            number = block.place.segment
            if number and number not in self._segments:
                self._segments.add(number)
                self._control.send(msg.MapSegment(number, block.segment.memory.nbytes), [block.segment.memory.fd])

    def withdraw(self, task: int, attempt: int) -> None:
        """Ask for an attempt back."""
        seq = self._seqs.get((task, attempt))
        if seq is not None and self._ready:
            self._control.send(msg.WithdrawAttempt(seq))

    def cancel(self, task: int, attempt: int) -> None:
        """Stop an attempt: by an exception first, then by ending the worker."""
        seq = self._seqs.get((task, attempt))
        if seq is not None and self._ready:
            self._control.send(msg.CancelAttempt(seq))
            if seq in self._suspended:
                self._data.send(msg.WakeWorker())
            self._insist_later(seq)

    def _is_first(self, seq: int) -> bool:
        """Return whether an attempt runs, as far as is known: one that waits below others is not stopped by force."""
        return next((each for each in self._in_flight if each not in self._suspended), 0) == seq

    def import_value(self, key: object, payload: Payload, done: Callable[..., None]) -> None:
        """Copy a value to the device's memory node; `done(error, started_s, seconds, answer)` in the hub's thread."""
        self._announce(payload)
        self._order(done, lambda order: msg.ImportValue(order, key, tuple(payload.wire())))

    def export_value(self, key: object, done: Callable[..., None]) -> None:
        """Copy a kept value to the host; the answer of `done` is an `HeldItem`."""
        self._order(done, lambda order: msg.ExportValue(order, key))

    def _order(self, done: Callable[..., None], message: Callable[[int], msg.WorkerMessage]) -> None:
        with self._lock:
            self._next += 1
            number = self._next
            self._orders[number] = done
            absent = self._ended or not self._ready
        if absent:
            self._context.hub.call(self._fail_orders)
        else:
            self._control.send(message(number))

    def drop(self, key: object) -> None:
        """Forget a kept value."""
        if self._ready and not self._ended:
            self._drops += 1
            self._control.send(msg.DropValue(key))

    def drop_segment(self, number: int) -> None:
        """Unmap a file that is not used any more."""
        if number in self._segments:
            self._segments.discard(number)
            if not self._ended:
                self._control.send(msg.CloseSegment(number))

    def recv(self, task: int, sender: int, content: Whole | Chunk) -> None:
        """Take a value from another member of a group."""
        self._group_messages.recv(task, sender, content)

    def peer_left(self, task: int, sender: int, reason: str) -> None:
        """Learn that another member of a group has ended."""
        self._group_messages.peer_left(task, sender, reason)

    # -- what the worker says ---------------------------------------------------------------------------------

    def _on_data(self, mask: int) -> None:
        if self._pull(self._data, self._frames[0]) < 0:
            self._closed()

    def _on_control(self, mask: int) -> None:
        if self._pull(self._control, self._frames[1]) < 0:
            self._context.hub.unwatch(self._control.socket.fileno())

    def _pull(self, pipe: Pipe, frames: Frames) -> int:
        """Read what is there: return its bytes, 0 where nothing has come yet, -1 at the end of the stream."""
        try:
            chunk = pipe.socket.recv(READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            return -1
        self._received = True
        try:
            frames.feed(chunk)
            while (message := frames.next()) is not None:
                self._handle(pipe, msg.unpacked(message))
        except Exception as error:  # noqa: BLE001  a task may have written over the worker's memory or its socket
            self._kill(f"its worker sent what cannot be understood ({one_line(error)})")
            return -1
        return len(chunk) or -1

    def _handle(self, pipe: Pipe, message: msg.WorkerMessage) -> None:
        if isinstance(message, msg.AttemptsEnded):
            for row in message.rows:
                self._answered(msg.AttemptEnd._make(row))
        elif isinstance(message, msg.LeaseWanted):
            pipe.send(msg.LeaseGranted(self._grant(message)))
        elif isinstance(message, msg.NestedSubmitted):
            self._submits(message)
        elif isinstance(message, msg.AttemptSuspended | msg.AttemptResumed):
            self._moves(message)
        elif isinstance(message, msg.ValueImported | msg.ValueExported):
            self._copied(message)
        elif isinstance(message, msg.CopyFailed):
            self._leases.close(-message.order)
            self._orders.pop(message.order)(message.why, 0.0, 0.0, None)
        elif isinstance(message, msg.PieceSent):
            self._on_send(message)
        elif isinstance(message, msg.PieceRead):
            self._group_messages.received(BufferPlace(*message.place))
        elif isinstance(message, msg.NotesTaken):
            self._context.annotate(message.notes)
        elif isinstance(message, msg.LogRecord):
            self._context.log([message.record])
        elif isinstance(message, msg.FetchNested):
            self._nested.fetch(message.number)
        elif isinstance(message, msg.ReleaseNested):
            self._nested.release(message.numbers)
        elif isinstance(message, msg.CancelNested):
            if (event := self._nested.unwanted(message.number)) is not None:
                self._context.hub.emit(event)
        elif isinstance(message, msg.DeviceOpened):
            self._opened = True
        elif isinstance(message, msg.WorkerReady):
            self._greeted(message.python)
        elif isinstance(message, msg.WorkerBroken):
            self._why, self._unfit = message.why, not self._opened
        elif isinstance(message, msg.WorkerUnusable):
            self._broken_by = message.task
            self._why = f"a task left the device unusable for its worker ({message.why})"

    def _submits(self, message: msg.NestedSubmitted) -> None:
        request = self._in_flight.get(message.seq)
        if request is not None:
            payload = self._leases.filled(message.seq, WireValue(*message.wire))
            event = self._nested.submit(request.launch, message, payload)
            if event is not None:
                self._context.hub.emit(event)

    def _moves(self, message: msg.AttemptSuspended | msg.AttemptResumed) -> None:
        """Report that an attempt waits for others, or goes on."""
        seq, since_s = message.seq, message.since_s
        request = self._in_flight.get(seq)
        if request is None:
            return
        now_s, (task, attempt, *_) = self._context.clock.now_s(), request.launch
        if isinstance(message, msg.AttemptSuspended):
            self._suspended.add(seq)
            awaits = self._nested.item(message.awaits)
            self._context.hub.emit(TaskSuspended(now_s, task, attempt, self.device.id, since_s, awaits))
        else:
            self._suspended.discard(seq)
            self._context.hub.emit(TaskResumed(now_s, task, attempt, self.device.id, since_s))

    def _on_send(self, message: msg.PieceSent) -> None:
        request, piece = self._in_flight[message.seq], Chunk(*message.piece)
        assert request.group is not None
        if isinstance(piece.data, tuple):
            lease = WireValue(b"", (BufferPlace(*piece.data),))
            piece = piece._replace(data=self._leases.filled(message.seq, lease))
        request.group.send(request.rank, message.rank, piece)

    def _greeted(self, version: str) -> None:
        own = ".".join(map(str, sys.version_info[:2]))
        if version.split(".")[:2] != own.split("."):
            self._kill(f"its Python is {version} and the program's is {own}: functions cannot travel between them")
            return
        self._ready = True
        self._context.worked.add(self.device.id)
        del self._context.failed_starts[self.device.id]
        self._context.hub.emit(DeviceReady(self._context.clock.now_s(), self.device.id))

    def _grant(self, wanted: msg.LeaseWanted) -> list[BufferPlace] | str:
        request = self._in_flight.get(wanted.number)
        key = request.call.function.key if wanted.result and request and not request.group else ""
        return self._leases.grant(wanted.number, wanted.sizes, key)

    def _copied(self, message: msg.ValueImported | msg.ValueExported) -> None:
        wire = WireValue(*message.wire) if isinstance(message, msg.ValueExported) else None
        payload = self._leases.close(-message.order, wire)
        item = None if payload is None else HeldItem(payload)
        self._context.counters["transfers"] += 1
        self._orders.pop(message.order)("", message.started_s, message.seconds, item)

    def _answered(self, end: msg.AttemptEnd) -> None:
        seq, started_s, parts, (how, *rest) = end
        with self._lock:
            request = self._in_flight.pop(seq, None)
            payload = self._leases.close(
                seq, WireValue(*rest[0]) if how == msg.VALUE else None, request.call.function.key if request else ""
            )
            if request is None:
                return
            task, attempt = request.launch.task, request.launch.attempt
            self._seqs.pop((task, attempt), None)
        if seq in self._nested.by_attempt:
            self._nested.over(seq)
        now_s, device, context, times = self._context.clock.now_s(), self.device.id, self._context, Times(*parts)
        seconds = times.seconds
        if not parts:
            started_s = now_s
        else:
            context.report_parts(task, attempt, device, started_s, times)
            if request.call.nest.depth:
                context.below_s[task] = seconds + times.below_s
        if payload is not None:
            nbytes = 0 if request.rank else payload.nbytes
            if not request.rank:
                context.items.finished(task, attempt, HeldItem(payload))
            node = HOST_NODE if nbytes else ""
            context.hub.emit(TaskFinished(now_s, task, attempt, device, started_s, seconds, nbytes, node))
        elif how == msg.RESIDENT:
            self._resident(request, rest[0])
            nbytes = 0 if request.rank else rest[0]
            context.hub.emit(TaskFinished(now_s, task, attempt, device, started_s, seconds, nbytes, self._node))
        elif how == msg.WITHDRAWN:
            context.hub.emit(TaskWithdrawn(now_s, task, attempt, device))
        else:
            failure = failure_of(*rest) if how == msg.FAILED else Failure("cancelled", "cancelled before it started")
            context.hub.emit(TaskFailed(now_s, task, attempt, device, started_s, seconds, failure))
        if request.group is not None:
            self._group_messages.leave(task, seq)
            request.group.leave(request.rank, "" if how in (msg.VALUE, msg.RESIDENT) else f"rank {request.rank} failed")

    def _resident(self, request: InFlight, nbytes: int) -> None:
        key = (request.launch.task, request.launch.attempt)
        if request.rank:
            self.drop(key)
        else:
            self._context.items.finished(*key, HeldItem(replica=Replica(self, key, nbytes)))

    # -- the end ----------------------------------------------------------------------------------------------

    def _kill(self, why: str) -> None:
        self._why = why
        if self._child is not None:
            self._child.kill()

    def _closed(self) -> None:
        assert self._child is not None
        self._context.hub.unwatch(self._data.socket.fileno())
        if self._child.pidfd < 0:
            self._gone()
        else:
            self._context.hub.at(STOP_S, lambda: None if self._ended else self._kill(self._why))

    def _gone(self) -> None:
        """Drain the sockets and report the worker's exit."""
        assert self._child is not None
        code = self._child.wait()
        while self._pull(self._data, self._frames[0]) > 0:
            pass
        worked = self.device.id in self._context.worked
        passes = not self._unfit if worked else code < 0 and (self._passing or not self._why)
        memory = ", as the system does for want of memory" if self._context.memory_kills.one_more(code) else ""
        how = platform.describe_exit(None if code == msg.CUT_OFF else code)
        self._end(self._why or f"its worker {how}{memory}", passes and self._is_patient())

    def _is_patient(self) -> bool:
        """Return whether a worker that did not start is started once more: without end where one worked before."""
        context, device = self._context, self.device.id
        return device in context.worked or context.failed_starts[device] < STARTS

    def _end(self, why: str, again: bool = False) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
            requests, self._in_flight = self._in_flight, {}
        ran = requests.get(self._context.pool.running(self._child.running_slot)) if self._child is not None else None
        if not self._ready:
            self._context.failed_starts[self.device.id] += 1
            why = f"its worker did not start: {why}{self._child.last_words() if self._child else ''}"
        self._close_pipes()
        self._context.items.lost(self)
        if not self._stopping:
            permanent = not self._ready and not again
            task = self._broken_by if ran is None else ran.launch.task
            if ran is not None and not self._why and self._was_of_nested():
                task = 0  # not its own fault: what it ran at once is a task of its own from now on
            self._context.hub.emit(DeviceLost(self._context.clock.now_s(), self.device.id, why, permanent, task))
        for request in requests.values():
            if request.group is not None:
                request.group.leave(request.rank, f"rank {request.rank} was lost")
        self._fail_orders()

    def _was_of_nested(self) -> bool:
        return self._child is not None and self._context.pool.is_of_nested(self._child.running_slot)

    def _fail_orders(self) -> None:
        with self._lock:
            orders, self._orders = self._orders, {}
        for done in orders.values():
            done(f"the worker of {self.device.id} went away", 0.0, 0.0, None)

    def _close_pipes(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        if self._child is not None:
            self._context.hub.unwatch(self._child.pidfd)
            self._child.close()
        self._leases.clear()
        self._nested.clear()
        self._group_messages.clear()
        self._segments.clear()

    def ask_to_stop(self) -> None:
        """End the worker: it reads the end of the stream."""
        self._stopping = True
        if self._child is not None and not self._ended:
            for pipe in self._pipes:
                with suppress(OSError):
                    pipe.socket.shutdown(socket.SHUT_WR)

    def stop(self) -> None:
        """See to it that it has ended; called after the hub has stopped."""
        if self._child is not None and not self._ended:
            self._ended = True
            self._child.wait()
            self._close_pipes()
