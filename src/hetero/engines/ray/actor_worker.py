"""The worker's side of the Ray engine: what runs in the actor of one device.

In: batches of attempts as bytes, with the large buffers that Ray brought. Out: rows, and the large buffers of results.
Of Ray it knows only the actors of a group's other members, to which it talks.
"""

from __future__ import annotations

import logging
import os
import pickle
import platform as python_platform
import queue
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hetero.engines.base import Outcome, Runner, WorkerEntry
from hetero.engines.shared import messages as msg
from hetero.engines.shared.exceptions import one_line
from hetero.engines.shared.groups import GroupChannel, Whole
from hetero.engines.shared.messages import Cancelled
from hetero.engines.shared.wire import NONE, Message, dump, fresh, load
from hetero.engines.shared.worker import (
    Cancellation,
    KeptValues,
    WorkerFunctions,
    failed_row,
    is_importing,
    unserialisable,
    wait_for_link,
)
from hetero.engines.shared.worker_setup import WorkerSetup
from hetero.floor import clock, logs, platform
from hetero.floor.clock import TaskClock
from hetero.floor.errors import HeteroError, SerialisationError
from hetero.model.annotations import TaskNote
from hetero.model.device import Device

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from ray.actor import ActorHandle

    from hetero.engines.ray.object_store import ActorWire

__all__ = ["MESSAGES", "TRANSFERS", "ActorCall", "ActorWorker", "Greeting"]

MESSAGES = "messages"
TRANSFERS = "transfers"
_POLL_S = 0.05
_IMPORT_S = 0.15
_ENDED_KEPT = 1000

Which = tuple[int, int]
Row = tuple[object, ...]


class ActorCall(NamedTuple):
    """One attempt on its way to an actor.

    Attributes
    ----------
    wire
        The pickle of the arguments, and the (part, index) of each of their large buffers.
    items
        Item id to its wire and None, or to None and the key under which the actor keeps it.
    group
        Rank and world size, None outside of groups.
    """

    seq: int
    task: int
    attempt: int
    key: str
    task_key: str
    wire: ActorWire
    items: dict[int, tuple[ActorWire | None, object]]
    group: tuple[int, int] | None


class Greeting(NamedTuple):
    """The first reply of an actor.

    Attributes
    ----------
    trouble
        Why the device cannot be used, '' when it can.
    opened
        True when the device itself was opened.
    node_id
        Of this host, as Ray names it.
    """

    trouble: str
    opened: bool
    python: str
    pid: int
    node_id: str


class ActorWorker:
    """One device's worker.

    Parameters
    ----------
    entry
        Opens the device.
    device
        Whose main memory, if it has no other, is that of this host.
    path
        Where the program finds its modules.
    address
        Of this host, on which others reach it.
    """

    def __init__(self, entry: WorkerEntry, device: Device, path: Sequence[str], address: str) -> None:
        known = set(sys.path)
        sys.path.extend([folder for folder in path if folder not in known])
        self._device = device
        self._address = address
        self._clock = clock.WallClock(0.0)
        self._timing = TaskClock(self._clock.now_s)
        self._functions = WorkerFunctions()
        self._kept = KeptValues()
        self._unwanted: dict[int, int] = {}
        self._started = 0
        self._cancellation = Cancellation()
        self._inboxes: dict[Which, queue.SimpleQueue[Message]] = {}
        self._over: deque[Which] = deque(maxlen=_ENDED_KEPT)
        self._runner: Runner
        self._trouble = ""
        self._opened = False
        self._task: int | None = None
        self._records: list[dict[str, object]] = []
        self._levels = entry.setup.levels
        self._adopt_setup(entry.setup)
        try:
            self._runner = entry.make(device)
            self._runner.timing = self._timing
            self._opened = True
            self._runner.initialize()
        except Exception as error:  # noqa: BLE001  back ends raise anything
            self._trouble = str(error) if isinstance(error, HeteroError) else one_line(error)

    def _adopt_setup(self, setup: WorkerSetup) -> None:
        """Take over what the program's processes have; log records leave with the answers."""
        platform.restore_hash_seed(setup.environment)
        platform.set_environment(setup.environment)
        if os.path.isdir(setup.folder):  # a submitted program's folder has a path of its own on each host
            os.chdir(setup.folder)
        sys.argv[:] = setup.arguments
        logs.follow(setup.levels)
        logs.mark_records(self._where)
        logging.getLogger().addHandler(logs.Forwarder(lambda record: self._records.append(record)))
        if setup.tag_output:
            logs.tag_output(self._where)

    def _where(self) -> tuple[int | None, str]:
        return self._task, self._device.id

    def greet(self, node_id: str) -> Greeting:
        """Return who this is, and whether the device could be opened."""
        return Greeting(self._trouble, self._opened, python_platform.python_version(), os.getpid(), node_id)

    def now_s(self) -> float:
        """Return the time on this host's clock, s."""
        return self._clock.now_s()

    # -- attempts, in the thread that runs tasks --------------------------------------------------------------

    def run(
        self, batch: bytes, peers: Sequence[object], parts: Sequence[object]
    ) -> tuple[bytes, tuple[object, ...] | None]:
        """Run attempts one after the other; return their rows, and all large buffers of their results.

        Parameters
        ----------
        batch
            Pickled: functions that are new here, `ActorCall`s, and how many values must have been dropped before.
        peers
            The actors of all members, by rank, where the one attempt is run together with others.
        parts
            Large buffers, or tuples of them.
        """
        functions, jobs, drops, levels = pickle.loads(batch)
        if levels is not None:
            logs.follow(levels, self._levels)
            self._levels = levels
        self._functions.take(functions)
        if self._kept.drops < drops:
            self._kept.wait_for_drops(drops)
        if self._cancellation.thread != threading.get_ident():
            self._bind_thread()
        large: list[object] = []
        notes: list[TaskNote] = []
        rows = [self._attempt(ActorCall._make(fields), peers, parts, large, notes, len(jobs) > 1) for fields in jobs]
        records, self._records = self._records, []
        return pickle.dumps((rows, notes, records), 5), tuple(large) or None

    def _bind_thread(self) -> None:
        """Make this thread the one that runs tasks, on the device's CPUs; Ray's own threads stay where they like."""
        self._cancellation.thread = threading.get_ident()
        if self._device.cpus:
            platform.bind_to_cpus(self._device.cpus)

    def _attempt(
        self,
        job: ActorCall,
        peers: Sequence[object],
        parts: Sequence[object],
        large: list[object],
        notes: list[TaskNote],
        copied: bool,
    ) -> Row:
        with self._cancellation.lock:
            self._started = job.seq
            told = self._unwanted.pop(job.seq, 0)
            self._cancellation.current = 0 if told else job.seq
        row = (job.seq, 0.0, (), told) if told else self._timed(job, peers, parts, large, copied, notes)
        if job.group is not None:
            self._leave(job, peers if row[3] in (msg.VALUE, msg.RESIDENT) else ())
        return row

    def _timed(
        self,
        job: ActorCall,
        peers: Sequence[object],
        parts: Sequence[object],
        large: list[object],
        copied: bool,
        notes: list[TaskNote],
    ) -> Row:
        timing = self._timing
        timing.start()
        answer = self._answer(job, peers, parts, large, copied)
        notes += self._runner.notes(timing.called_s)
        return (job.seq, timing.started_s, tuple(timing.times()), *answer)

    def _answer(
        self, job: ActorCall, peers: Sequence[object], parts: Sequence[object], large: list[object], copied: bool
    ) -> Row:
        self._task = job.task
        try:
            return self._result(job, self._call(job, peers, parts), large, copied)
        except BaseException as error:  # noqa: BLE001  whatever a task raises is its own
            if issubclass(type(error), Cancelled):
                self._cancellation.arrived()
            return failed_row(self._runner, error)
        finally:
            self._task = None

    def _call(self, job: ActorCall, peers: Sequence[object], parts: Sequence[object]) -> Outcome:
        try:
            items = {number: self._item(wire, key, parts) for number, (wire, key) in job.items.items()}
            args, kwargs = _value(job.wire, parts, items)
            function = self._functions.get(job.key)
            self._timing.link_in_s = wait_for_link(self._device, _travelled(job, parts))
            channel = self._channel(job, peers) if job.group is not None else None
            self._timing.call()
            try:
                return self._runner.run(
                    function, args, kwargs, task=job.task, attempt=job.attempt, task_key=job.task_key, channel=channel
                )
            finally:
                self._timing.ran()
        finally:
            self._cancellation.leave_call()

    def _item(self, wire: ActorWire | None, key: object, parts: Sequence[object]) -> object:
        return fresh(self._kept[key]) if wire is None else _value(wire, parts)

    def _result(self, job: ActorCall, outcome: Outcome, large: list[object], copied: bool) -> Row:
        if outcome.value is None:
            return msg.VALUE, NONE, 0, ()
        if outcome.resident:
            self._kept[job.task, job.attempt] = outcome.value
            return msg.RESIDENT, outcome.nbytes
        try:
            body, buffers = _packed(outcome.value)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  a value's pickling may raise anything
            raise unserialisable(self._functions.get(job.key), job.task, error) from None
        first, sizes = len(large), tuple([buffer.nbytes for buffer in buffers])
        large.extend([buffer.copy() if copied else buffer for buffer in buffers])
        self._timing.link_out_s = wait_for_link(self._device, sum(sizes))
        return msg.VALUE, body, first, sizes

    # -- groups -----------------------------------------------------------------------------------------------

    def _channel(self, job: ActorCall, peers: Sequence[ActorHandle]) -> GroupChannel:
        assert job.group is not None
        which, rank = (job.task, job.attempt), job.group[0]
        inbox = self._inbox(which)

        def send(to: int, value: object) -> None:
            try:
                body, buffers = _packed(value)
            except Exception as error:
                raise SerialisationError(
                    f"what is sent to another member cannot be pickled: {error}", remedy="send plain values or arrays"
                ) from error
            peers[to].recv.options(concurrency_group=MESSAGES).remote(which, rank, body, *buffers)

        def receive() -> tuple[int, int, object]:
            while True:
                with suppress(queue.Empty):
                    tag, sender, content = inbox.get(timeout=_POLL_S)
                    return tag, sender, Whole(load(*content)) if tag == msg.SEND else content

        return GroupChannel(*job.group, send, receive, lambda data, buffer: None, self._address)

    def _inbox(self, which: Which) -> queue.SimpleQueue[Message]:
        return self._inboxes.setdefault(which, queue.SimpleQueue())

    def _leave(self, job: ActorCall, peers: Sequence[ActorHandle]) -> None:
        """Notify the other members that this one has finished; of a failure they learn after the program has."""
        assert job.group is not None
        which, rank = (job.task, job.attempt), job.group[0]
        self._over.append(which)
        self._inboxes.pop(which, None)
        for other, peer in enumerate(peers):
            if other != rank:
                peer.peer_left.options(concurrency_group=MESSAGES).remote(which, rank, "")

    def recv(self, which: Which, sender: int, body: bytes | None, *buffers: object) -> None:
        """Take a value from another member of a group."""
        self._post(which, (msg.SEND, sender, (body, buffers)))

    def peer_left(self, which: Which, sender: int, reason: str) -> None:
        """Learn that another member of a group has ended."""
        self._post(which, (msg.LEFT, sender, reason))

    def _post(self, which: Which, message: tuple[int, int, object]) -> None:
        if which not in self._over:
            self._inbox(which).put(message)

    # -- orders, beside the tasks -----------------------------------------------------------------------------

    def withdraw(self, seqs: Sequence[int]) -> None:
        """Return attempts that have not started to the scheduler."""
        for seq in seqs:
            self._unwant(seq, msg.WITHDRAWN)

    def cancel(self, seq: int) -> None:
        """Stop an attempt; an import is not stopped: half a module would stay behind."""
        deadline_s = clock.monotonic_s() + _IMPORT_S
        while self._cancellation.current == seq and self._imports() and clock.monotonic_s() < deadline_s:
            clock.sleep(_POLL_S / 5)
        self._unwant(seq, msg.CANCELLED)

    def _unwant(self, seq: int, told: int) -> None:
        with self._cancellation.lock:
            if seq > self._started:
                self._unwanted[seq] = told
            elif told == msg.CANCELLED and self._cancellation.current == seq and not self._imports():
                self._cancellation.stop_call()

    def _imports(self) -> bool:
        return is_importing(sys._current_frames().get(self._cancellation.thread))

    def import_value(self, key: object, wire: ActorWire, parts: Sequence[object]) -> tuple[float, float]:
        """Copy a value to the device's memory node; return when that began, and how long it took, in s."""
        started_s = self._clock.now_s()
        value = _value(wire, parts)
        wait_for_link(self._device, sum([len(buffer) for buffer in _buffers(wire, parts)]))
        self._kept[key] = self._runner.to_device(value)
        return started_s, self._clock.now_s() - started_s

    def export_value(self, key: object) -> tuple[bytes, tuple[object, ...] | None]:
        """Copy a kept value to the host."""
        started_s = self._clock.now_s()
        body, buffers = _packed(self._runner.to_host(self._kept[key]))
        sizes = tuple([buffer.nbytes for buffer in buffers])
        wait_for_link(self._device, sum(sizes))
        row = (started_s, self._clock.now_s() - started_s, body, sizes)
        return pickle.dumps(row, 5), tuple(buffers) or None

    def drop(self, key: object) -> None:
        """Forget a kept value."""
        self._kept.drop(key)


def _packed(value: object) -> tuple[bytes | None, list[NDArray[np.uint8]]]:
    """Pickle a value: return the pickle, None where it is the first buffer, and large buffers as arrays of bytes."""
    body, buffers = dump(value)
    return body, [np.frombuffer(buffer, np.uint8) for buffer in buffers]


def _buffers(wire: ActorWire, parts: Sequence[Any]) -> list[NDArray[np.uint8]]:
    return [parts[part] if index < 0 else parts[part][index] for part, index in wire[1]]


def _value(wire: ActorWire, parts: Sequence[object], items: Mapping[int, object] | None = None) -> Any:
    """Read a value; its arrays are copies, since what Ray brought is shared and cannot be written to."""
    return load(wire[0], _buffers(wire, parts), items)


def _travelled(job: ActorCall, parts: Sequence[object]) -> int:
    wires = [job.wire, *(wire for wire, _ in job.items.values() if wire is not None)]
    return sum([len(buffer) for wire in wires for buffer in _buffers(wire, parts)])
