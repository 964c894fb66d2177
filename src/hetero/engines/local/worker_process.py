"""The worker's side of the local engine: reads messages, runs calls in the main thread, answers.

In: frames from the program. Out: frames back, arrays in shared memory. It must not import the user's main module,
and it imports nothing heavy before a task needs it.
"""

from __future__ import annotations

import ctypes
import io
import logging
import multiprocessing.process
import os
import platform as python_platform
import select
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from hetero.engines.base import Nest, Outcome, Runner, WorkerEntry
from hetero.engines.local.control_thread import Control
from hetero.engines.local.worker_nested_tasks import Spreading
from hetero.engines.shared import messages as msg
from hetero.engines.shared.exceptions import UNREAD, add_note, one_line
from hetero.engines.shared.groups import Chunk, GroupChannel, cut
from hetero.engines.shared.in_flight import Outbox
from hetero.engines.shared.memory_pool import ResultRoom, SharedMappings, Views, address_of, lengths, store
from hetero.engines.shared.messages import AttemptCall, Cancelled
from hetero.engines.shared.wire import NONE, READ_BYTES, Frames, frame, load
from hetero.engines.shared.worker import WorkerFunctions, failed_row, is_importing, unserialisable, wait_for_link
from hetero.floor import clock, logs, platform
from hetero.floor.clock import TaskClock
from hetero.floor.errors import HeteroError
from hetero.model.device import Device

if TYPE_CHECKING:
    from hetero.engines.shared.wire import BufferPlace

__all__ = ["WorkerProcess", "serve"]

_IMPORT_POLL_S = 0.05

Suspended = tuple[int, int | None, TaskClock, float, int]
"""Of an attempt that gave its device up: its number, its task, its clock, since when, what waited below it."""


class WorkerProcess:
    """One worker process: the state of its main thread."""

    def __init__(self, data: socket.socket, control: socket.socket, hello: msg.Hello, frames: Frames) -> None:
        self.data = data
        self.hello = hello
        self.device: Device = hello.device
        self.clock = clock.WallClock(hello.origin_s)
        self.segments = SharedMappings(hello.pool_fd, hello.pool_bytes)
        self.slot = self.segments.running_slot(hello.running_slot)
        self.control = Control(control, self)
        self.outbox = Outbox(self._send_rows, clock.sleep, clock.monotonic_s)
        self.runner: Runner
        self.running = 0
        self.task: int | None = None
        self.spreading = Spreading(self) if hello.fleet else None
        self.doomed: set[int] = set()
        self._levels = hello.setup.levels
        self._frames = frames
        self._pending: list[msg.WorkerMessage] = []
        self._waiting = 0
        self._jobs: deque[AttemptCall] = deque()
        self._functions = WorkerFunctions()
        self._leases: dict[int, list[BufferPlace]] = {}
        self.timing = TaskClock(self.clock.now_s)
        self._send_lock = threading.RLock()  # a finaliser may log while a message is sent
        self._shielded = 0
        self._cancel_wanted = False
        self._forks = platform.FORKS.count
        self._broken = ""

    # -- the socket -------------------------------------------------------------------------------------------

    def _refuse_fork(self) -> None:
        """Keep a process that a task forks from the connection, which belongs to its parent."""
        if platform.FORKS.count != self._forks:
            raise HeteroError(
                f"process {os.getpid()} was forked by a task and has no connection to the program",
                remedy="send and receive in the task's own process",
            )

    def send(self, message: msg.WorkerMessage) -> None:
        """Send one message to the program."""
        self._refuse_fork()
        data = frame(msg.packed(message))
        with self._send_lock:
            self.data.sendall(data)

    def where(self) -> tuple[int | None, str]:
        """Return the task that runs, and the device."""
        return self.task, self.device.id

    def log(self, record: dict[str, object]) -> None:
        """Send a log record; one of the running task is not cut in two by its cancellation."""
        if threading.current_thread() is threading.main_thread():
            with self.shield():
                self.send(msg.LogRecord(record))
        else:
            self.send(msg.LogRecord(record))

    def _send_rows(self, rows: list[msg.AttemptEnd]) -> None:
        self.send(msg.AttemptsEnded([tuple(row) for row in rows]))

    def _group_message(self, seq: int) -> tuple[int, int, object]:
        """Return the next message for the running member of a group; later runs keep their turn.

        A cancellation takes effect only while nothing has been half read.
        """
        self._refuse_fork()
        self._unpack()
        while True:
            for position, message in enumerate(self._pending):
                if isinstance(message, msg.PieceSent) and message.seq == seq:
                    del self._pending[position]
                    return msg.SEND, message.rank, Chunk(*message.piece)
                if isinstance(message, msg.MemberLeft) and message.seq == seq:
                    del self._pending[position]
                    return msg.LEFT, message.rank, message.reason
            select.select([self.data], [], [])
            with self.shield():
                self._read()

    def _read(self) -> None:
        chunk = self.data.recv(READ_BYTES)
        if not chunk:
            raise EOFError
        self._frames.feed(chunk)
        self._unpack()

    def _unpack(self) -> None:
        while (message := self._frames.next()) is not None:
            self._pending.append(msg.unpacked(message))

    def _next(self) -> msg.WorkerMessage:
        while not self._pending:
            message = self._frames.next()
            if message is not None:
                return msg.unpacked(message)
            chunk = self.data.recv(READ_BYTES)
            if not chunk:
                raise EOFError
            self._frames.feed(chunk)
        return self._pending.pop(0)

    # -- cancelling -------------------------------------------------------------------------------------------

    def shield(self) -> _Shield:
        """Hold a cancellation back while a message is half read or half written."""
        return _Shield(self)

    def on_cancel_signal(self, _: int, where: FrameType | None) -> None:
        """Stop the running call, in the main thread, where the control thread asked for it.

        An import is not stopped: half a module would stay behind, for every later task.
        """
        if self.running and self.running == self.control.cancelling:
            if self._shielded:
                self._cancel_wanted = True
            elif is_importing(where):
                self.control.cancel_later(_IMPORT_POLL_S)
            else:
                raise Cancelled

    def enter_shield(self) -> None:
        """Start a part that must not be interrupted."""
        self._shielded += 1

    def leave_shield(self) -> None:
        """Stop; what was held back comes now."""
        self._shielded -= 1
        if self._cancel_wanted and not self._shielded:
            self._cancel_wanted = False
            raise Cancelled

    # -- running ----------------------------------------------------------------------------------------------

    def loop(self) -> None:
        """Run what comes until the program closes the connection."""
        jobs = self._jobs
        while True:
            self.take(self._next())
            while jobs:
                job = jobs.popleft()
                row = self._attempt(job)
                self.outbox.add(row, jobs[0].predicted_s if jobs else None)
                if self._broken:
                    self._end_broken(job.task)

    def take(self, message: msg.WorkerMessage) -> None:
        """Take one message that nobody waits for in particular."""
        if isinstance(message, msg.RunAttempts):
            if self.control.values.drops < message.drops:
                self.control.values.wait_for_drops(message.drops)
            self._leases.update(message.leases)
            if message.functions:
                self._functions.take(message.functions)
            self._jobs.extend(map(AttemptCall._make, message.attempts))
        elif isinstance(message, msg.LogLevels):
            logs.follow(message.levels, self._levels)
            self._levels = message.levels
        elif isinstance(message, msg.NestedEnded) and self.spreading is not None:
            self.spreading.answer(message)

    def poll(self) -> None:
        """Take in the results that have come, without waiting."""
        with self.shield():
            self._unpack()
            while select.select([self.data], [], [], 0.0)[0]:
                self._read()
            results = [message for message in self._pending if isinstance(message, msg.NestedEnded)]
            if results:
                self._pending = [message for message in self._pending if not isinstance(message, msg.NestedEnded)]
        for message in results:
            self.take(message)

    def step(self, wait_s: float | None) -> None:
        """Run the next attempt on top of one that waits, or else take what comes within a time.

        What may not run on top of that one is handed back.
        """
        while self._jobs:
            job = self._jobs.popleft()
            if job.group or Nest._make(job.nest).above == self._waiting:
                self.outbox.add(self._attempt(job), None)
                if self._broken:
                    self._end_broken(job.task)
                return
            told = self._begin(job.seq) or msg.WITHDRAWN
            self.outbox.add(msg.AttemptEnd(job.seq, 0.0, (), (told,)), None)
        self._unpack()
        if not self._pending and select.select([self.data], [], [], wait_s)[0]:
            self._read()
        if self._pending:
            self.take(self._pending.pop(0))

    def suspend(self, awaits: int) -> Suspended:
        """Release the device for others, and tell so; returns what `resume` needs."""
        left_s = self.clock.now_s()
        before = (self.running, self.task, self.timing, left_s, self._waiting)
        self._waiting = self.task or 0
        self.running, self.task, self.slot[0] = 0, None, 0
        self.timing = self.runner.timing = TaskClock(self.clock.now_s)
        self.send(msg.AttemptSuspended(before[0], left_s, awaits))
        return before

    def resume(self, before: Suspended) -> None:
        """Take the device again for the attempt that gave it up, and stop that where it was cancelled meanwhile."""
        seq, self.task, self.timing, left_s, self._waiting = before
        self.runner.timing = self.timing
        now_s = self.clock.now_s()
        self.timing.away_s += now_s - left_s
        self.slot[0] = seq
        self.send(msg.AttemptResumed(seq, now_s))
        self.running = seq
        if seq in self.doomed:
            raise Cancelled

    def _begin(self, seq: int) -> int:
        """Record that an attempt is taken from the queue; return WITHDRAWN or CANCELLED where it must not start."""
        control = self.control
        control.started = seq
        return control.unwanted.pop(seq, 0) if control.unwanted else 0

    def _attempt(self, job: AttemptCall) -> msg.AttemptEnd:
        told = self._begin(job.seq)
        if told:
            return msg.AttemptEnd(job.seq, 0.0, (), (told,))
        timing = self.timing
        timing.start()
        self.slot[0] = job.seq
        views: Views = []
        leased = self._leases.get(job.seq)
        room = ResultRoom(self.segments, leased) if leased else None
        try:
            outcome = self._call(job, views, room)
            answer = self._result(job, outcome, views, room)
            del outcome
        except BaseException as error:  # noqa: BLE001  whatever a task raises is its own
            answer = self._failure(error)
        finally:
            self.running = 0
            self.task = None
            self._cancel_wanted = False
            self._shielded = 0
            self._leases.pop(job.seq, None)
            self.doomed.discard(job.seq)
        if room is not None and room.views:
            self.segments.withdraw(room.views)
        if views:
            self.segments.release(views)
        if notes := self.runner.notes(timing.called_s):
            self.send(msg.NotesTaken(list(notes)))
        self.slot[0] = 0
        return msg.AttemptEnd(job.seq, timing.started_s, tuple(timing.times()), answer)

    def _call(self, job: AttemptCall, views: Views, room: ResultRoom | None) -> Outcome:
        function = self._functions.read.get(job.key) or self._functions.get(job.key)
        self.running = job.seq
        self.task = job.task
        try:
            try:
                if job.wire[1] or job.items:
                    args, kwargs = self._arguments(job, views)
                else:
                    args, kwargs = load(job.wire[0])
            except BaseException as error:
                add_note(error, UNREAD)
                raise
            channel = self._channel(job) if job.group else None
            self.runner.own = None if room is None or not self._functions.in_place.get(job.key) else room.own
            self.timing.call()
            try:
                outcome = self.runner.run(
                    function, args, kwargs, task=job.task, attempt=job.attempt, task_key=job.task_key, channel=channel,
                    nest=Nest._make(job.nest),
                )  # fmt: skip
                if self.spreading is not None:
                    self.spreading.finish(job.seq)
                return outcome
            finally:
                self.timing.ran()
                if self.spreading is not None:
                    self.spreading.drop(job.seq)
        finally:
            self.running = 0

    def _channel(self, job: AttemptCall) -> GroupChannel:
        assert job.group is not None

        def send(rank: int, value: object) -> None:
            for piece in cut(value, self.hello.transport.piece_bytes):
                with self.shield():
                    self.send(msg.PieceSent(job.seq, rank, self._placed(job.seq, piece)))

        return GroupChannel(*job.group, send, lambda: self._group_message(job.seq), self._recv_piece)

    def _placed(self, seq: int, piece: Chunk) -> tuple[object, ...]:
        """Return a piece as it travels: its data in the pool, or as bytes."""
        data = piece.data
        if self.hello.transport.pooled and data:
            (place,) = self.lease(seq, [data.nbytes])
            self.segments.write(place, data)
            return tuple(piece._replace(data=tuple(place)))
        return tuple(piece._replace(data=bytes(data)))

    def _recv_piece(self, data: Any, buffer: memoryview) -> None:
        """Copy what another member sent, and give its place in the pool back."""
        if isinstance(data, bytes):
            buffer[: len(data)] = data
            return
        with self.shield():
            number, offset, nbytes = data
            buffer[:nbytes] = self.segments.segment(number).part(offset, nbytes).data
            self.send(msg.PieceRead(data))

    def _arguments(self, job: AttemptCall, views: Views) -> Any:
        items = {}
        travelled = sum([place[2] for place in job.wire[1]])
        for item, (wire, key) in job.items.items():
            if wire is None:
                items[item] = self.control.kept(key)
            else:
                items[item] = self.segments.value(wire, views)
                travelled += sum([place[2] for place in wire[1]])
        self.timing.link_in_s = wait_for_link(self.device, travelled)
        return self.segments.value(job.wire, views, items)

    def _result(self, job: AttemptCall, outcome: Outcome, views: Views, room: ResultRoom | None) -> tuple[object, ...]:
        """Return what becomes of the value."""
        if outcome.value is None:
            return msg.VALUE, (NONE, ())
        if outcome.resident:
            self.control.keep((job.task, job.attempt), outcome.value)
            return msg.RESIDENT, outcome.nbytes
        try:
            wire = store(outcome.value, self.segments, lambda buffers: self._own_lease(job, buffers, views, room))
        except msg.NoRoomError as error:
            return msg.FAILED, "out_of_memory", str(error), None, ""
        except MemoryError as error:
            return self._failure(error)
        except Exception as error:  # noqa: BLE001  a value's pickling may raise anything
            raise unserialisable(self._functions.get(job.key), job.task, error) from None
        if wire.places:
            self.timing.link_out_s = wait_for_link(self.device, sum([place.nbytes for place in wire.places]))
        return msg.VALUE, tuple(wire)

    def _own_lease(
        self, job: AttemptCall, buffers: list[memoryview], views: Views, room: ResultRoom | None
    ) -> list[BufferPlace]:
        """Return the room that came with an attempt where it is as large as its result, else ask for some."""
        in_place = self._functions.in_place
        if room is not None and room.views:
            in_place[job.key] = room.has(buffers)
        elif views and job.key not in in_place and platform.FEATURES.private_mapping:
            given = {ctypes.addressof(view) for each in views if (view := each()) is not None}
            in_place[job.key] = any(address_of(buffer) in given for buffer in buffers)
        places = None if room is None else room.places(buffers)
        if places is not None:
            return places
        asked_s = self.clock.now_s()
        try:
            return self.lease(job.seq, lengths(buffers))
        finally:
            self.timing.wait_s = self.clock.now_s() - asked_s

    def lease(self, number: int, sizes: list[int], result: bool = True) -> list[BufferPlace]:
        """Ask for room in shared memory: for the result of an attempt, or for something else that it sends."""
        self.send(msg.LeaseWanted(number, sizes, result))
        while True:
            for position, message in enumerate(self._pending):
                if isinstance(message, msg.LeaseGranted):
                    del self._pending[position]
                    return msg.granted(message.answer)
            self._read()

    def _end_broken(self, task: int) -> None:
        """End this process, whose device answers nothing any more since a task failed; another takes its place."""
        self.outbox.flush()
        self.send(msg.WorkerUnusable(task, self._broken))
        os._exit(1)

    def _failure(self, error: BaseException) -> tuple[object, ...]:
        if not issubclass(type(error), Cancelled | msg.UnserialisableError):
            self._broken = self.runner.broken()
        return failed_row(self.runner, error)


class _Shield:
    __slots__ = ("_worker",)

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker

    def __enter__(self) -> None:
        self._worker.enter_shield()

    def __exit__(self, *_: object) -> None:
        self._worker.leave_shield()


def _hello(data: socket.socket, frames: Frames) -> msg.Hello:
    while (message := frames.next()) is None:
        chunk = data.recv(READ_BYTES)
        if not chunk:
            sys.exit(0)
        frames.feed(chunk)
    hello = msg.unpacked(message)
    assert isinstance(hello, msg.Hello)
    return hello


def _settle(hello: msg.Hello) -> None:
    """Make this process a worker: its flags, its end, and where modules are found."""
    platform.FEATURES.adopt(hello.features)
    if not platform.die_with_parent(hello.parent):
        sys.exit(0)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    sys.argv[:] = hello.setup.arguments
    platform.restore_hash_seed(hello.setup.environment)
    known = set(sys.path)
    sys.path[:] = hello.path if hello.whole_path else [*sys.path, *(p for p in hello.path if p not in known)]


def _restore_standard_error(fd: int) -> None:
    """Forward what is written to standard error to the program's, from now on."""
    if fd >= 0:
        sys.stderr.flush()
        os.dup2(fd, 2)
        os.close(fd)


def _listen_to_logs(worker: WorkerProcess) -> None:
    setup = worker.hello.setup
    logs.follow(setup.levels)
    logs.mark_records(worker.where)
    logging.getLogger().addHandler(logs.Forwarder(worker.log))
    if setup.tag_output:
        logs.tag_output(worker.where)


@contextmanager
def _ending_with_connection(worker: WorkerProcess) -> Iterator[None]:
    """End quietly with the connection.

    Where it was not the program that closed it, the last task is shown as running, for it is to blame.
    """
    try:
        with suppress(EOFError, ConnectionError):
            yield
    except OSError:
        worker.slot[0] = worker.control.started
        os._exit(msg.CUT_OFF)


def serve(entry: WorkerEntry, data_fd: int, control_fd: int) -> None:
    """Be a worker process until the program closes the connection."""
    signal.signal(signal.SIGINT, lambda *_: None)
    platform.hold_interrupt(False)
    data, control = socket.socket(fileno=data_fd), socket.socket(fileno=control_fd)
    frames = Frames()
    hello = _hello(data, frames)
    for fd in (data_fd, control_fd, hello.pool_fd):
        os.set_inheritable(fd, False)
    _settle(hello)
    worker = WorkerProcess(data, control, hello, frames)
    worker.control.cancel_by_signal(worker.on_cancel_signal)
    _listen_to_logs(worker)
    entry.setup = hello.setup
    if hello.authkey:  # so that managers of the program let its workers in
        multiprocessing.process.current_process().authkey = hello.authkey
    try:
        worker.runner = entry.make(hello.device)
        worker.runner.timing = worker.timing
        worker.runner.spread = worker.spreading
    except Exception as error:  # noqa: BLE001  the program words it
        worker.send(msg.WorkerBroken(one_line(error) if not isinstance(error, HeteroError) else str(error)))
        return
    worker.control.start()
    if hello.device.is_host and hello.device.memory_limit_bytes:
        worker.segments.limit_memory(hello.device.memory_limit_bytes)
    with _ending_with_connection(worker):
        worker.send(msg.DeviceOpened())
        _restore_standard_error(hello.stderr_fd)
        try:
            worker.runner.initialize()
        except HeteroError as error:
            worker.send(msg.WorkerBroken(str(error)))
        else:
            worker.send(msg.WorkerReady(python_platform.python_version()))
            worker.loop()
    worker.runner.close()
