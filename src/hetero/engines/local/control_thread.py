"""The second thread of a worker process: cancels, withdraws, and copies between the host and the device.

In: frames on the control socket. Out: answers on it. What it copies travels while the main thread computes.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from hetero.engines.shared import messages as msg
from hetero.engines.shared.exceptions import one_line
from hetero.engines.shared.memory_pool import Views, lengths, store
from hetero.engines.shared.wire import Frames, WireValue, frame, fresh
from hetero.engines.shared.worker import KeptValues, wait_for_link
from hetero.floor import clock, platform

if TYPE_CHECKING:
    from hetero.engines.local.worker_process import WorkerProcess
    from hetero.engines.shared.wire import BufferPlace

__all__ = ["Control"]

GRACE_S = 1.0
"""How long a running task may go on after the program has gone."""


class Control:
    """Listens beside the main thread.

    Attributes
    ----------
    cancelling
        Number of the attempt that is being cancelled.
    started
        Number of the attempt that was started last, set by the main thread.
    unwanted
        By number of an attempt that has not started, WITHDRAWN or CANCELLED; the main thread takes them out.
    values
        What is kept on this device's memory node.
    """

    def __init__(self, connection: socket.socket, worker: WorkerProcess) -> None:
        self.cancelling = 0
        self._socket = connection
        self._worker = worker
        self._frames = Frames()
        self._fds: deque[int] = deque()
        self._aside: deque[msg.WorkerMessage] = deque()
        self.unwanted: dict[int, int] = {}
        self.started = 0
        self.values = KeptValues()

    def start(self) -> None:
        """Start listening."""
        threading.Thread(target=self._listen, name="hetero-control", daemon=True).start()

    def cancel_by_signal(self, handler: Callable[..., None]) -> None:
        """Interrupt the main thread by a signal."""
        signal.signal(platform.CANCEL_SIGNAL, handler)

    def cancel_later(self, wait_s: float) -> None:
        """Interrupt the main thread again after a while."""
        again = threading.Timer(wait_s, platform.interrupt_main_thread)
        again.daemon = True
        again.start()

    def keep(self, key: object, value: object) -> None:
        """Keep a value on this device's memory node."""
        self.values[key] = self._own(value)

    def kept(self, key: object) -> object:
        """Return a kept value, its NumPy arrays copied."""
        assert isinstance(key, tuple | list)
        return fresh(self.values[tuple(key)])

    def _own(self, value: object) -> object:
        """Return a value that shares no bytes with the pool, whose blocks are leased for one task or one copy only."""
        runner = self._worker.runner
        if runner.shares_memory:
            return runner.to_device(fresh(runner.to_host(value)))
        return value

    def _listen(self) -> None:
        try:
            with suppress(OSError):
                while (message := self._next()) is not None:
                    self._handle(message)
        finally:
            clock.sleep(GRACE_S)
            os._exit(1)

    def _next(self) -> msg.WorkerMessage | None:
        return self._aside.popleft() if self._aside else self._receive()

    def _receive(self) -> msg.WorkerMessage | None:
        while (message := self._frames.next()) is None:
            chunk, fds = platform.receive_with_files(self._socket, 1 << 16)
            self._fds.extend(fds)
            if not chunk:
                return None
            self._frames.feed(chunk)
        return msg.unpacked(message)

    def _handle(self, message: msg.WorkerMessage) -> None:
        if isinstance(message, msg.WithdrawAttempt | msg.CancelAttempt):
            self._unwant(message)
        elif isinstance(message, msg.MapSegment):
            self._worker.segments.add(message.number, self._fds.popleft(), message.nbytes)
        elif isinstance(message, msg.CloseSegment):
            self._worker.segments.close(message.number)
        elif isinstance(message, msg.Ping):
            self._send(msg.Pong())
        elif isinstance(message, msg.DropValue):
            self.values.drop(message.key)
        elif isinstance(message, msg.ImportValue | msg.ExportValue):
            self._copy(message)

    def _unwant(self, message: msg.WithdrawAttempt | msg.CancelAttempt) -> None:
        seq, withdrawn = message.seq, isinstance(message, msg.WithdrawAttempt)
        for old in [old for old in self.unwanted if old <= self.started]:
            self.unwanted.pop(old, None)
        if seq > self.started:
            self.unwanted[seq] = msg.WITHDRAWN if withdrawn else msg.CANCELLED
            if withdrawn and seq > self.started:  # answered now, not behind a task that runs for long
                self._worker.send(msg.AttemptsEnded([tuple(msg.AttemptEnd(seq, 0.0, (), (msg.WITHDRAWN,)))]))
        elif not withdrawn:
            self._worker.doomed.add(seq)
            if self._worker.running == seq:
                self.cancelling = seq
                platform.interrupt_main_thread()

    def _copy(self, message: msg.ImportValue | msg.ExportValue) -> None:
        started_s, wire = self._worker.clock.now_s(), None
        try:
            if isinstance(message, msg.ImportValue):
                self._import(message.key, WireValue(*message.wire))
            else:
                wire = self._export(message.order, message.key)
        except Exception as error:  # noqa: BLE001  the program words it
            self._send(msg.CopyFailed(message.order, one_line(error)))
            return
        seconds = self._worker.clock.now_s() - started_s
        if wire is None:
            self._send(msg.ValueImported(message.order, started_s, seconds))
        else:
            self._send(msg.ValueExported(message.order, started_s, seconds, tuple(wire)))

    def _import(self, key: object, travelling: WireValue) -> None:
        views: Views = []
        wait_for_link(self._worker.device, sum([place[2] for place in travelling.places]))
        self.keep(key, self._worker.runner.to_device(self._worker.segments.value(travelling, views)))
        self._worker.segments.release(views)

    def _export(self, order: int, key: object) -> WireValue:
        value = self._worker.runner.to_host(self.values[key])
        wire = store(value, self._worker.segments, lambda buffers: self._lease(order, lengths(buffers)))
        wait_for_link(self._worker.device, sum([place.nbytes for place in wire.places]))
        return wire

    def _lease(self, order: int, sizes: list[int]) -> list[BufferPlace]:
        self._send(msg.LeaseWanted(-order, sizes, False))
        while (message := self._receive()) is not None:
            if isinstance(message, msg.LeaseGranted):
                return msg.granted(message.answer)
            if isinstance(message, msg.MapSegment | msg.Ping):
                self._handle(message)
            else:
                self._aside.append(message)
        raise EOFError

    def _send(self, message: msg.WorkerMessage) -> None:
        self._socket.sendall(frame(msg.packed(message)))
