"""What the worker's side of every engine shares: the functions it has, dropped values, emulated links, cancelling.

In: functions as bytes, keys of values, a call that runs. Out: functions, waits with a bound, an exception in the thread
that runs the call. It sends nothing.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
import threading
from collections.abc import Iterable
from types import FrameType

from hetero.engines.base import Function, Runner
from hetero.engines.shared import messages as msg
from hetero.engines.shared.exceptions import dump_error, one_line, write_field
from hetero.floor import clock
from hetero.floor.errors import HeteroError
from hetero.model.device import Device

__all__ = [
    "Cancellation",
    "KeptValues",
    "WorkerFunctions",
    "failed_row",
    "is_importing",
    "raise_in_thread",
    "unserialisable",
    "wait_for_link",
]

DROPS_S = 10.0
"""How long a task that is tried again waits for values to be dropped; it then runs with what memory there is."""

_IMPORTER = "<frozen importlib._bootstrap>"
_ON_ITS_WAY_S = 0.02
_LOOK_S = 1e-3


class WorkerFunctions:
    """The functions that travelled to a worker, read when they are first called.

    Attributes
    ----------
    read
        Those that were called, by key.
    in_place
        By key, whether the result of a function has a large array among its arguments, which it may have changed.
    """

    def __init__(self) -> None:
        self.read: dict[str, Function] = {}
        self.in_place: dict[str, bool] = {}
        self._blobs: dict[str, bytes] = {}

    def take(self, functions: Iterable[tuple[str, bytes]]) -> None:
        """Take functions as bytes; one without bytes is forgotten."""
        for key, blob in functions:
            self.read.pop(key, None)
            self.in_place.pop(key, None)
            if blob:
                self._blobs[key] = blob
            else:
                self._blobs.pop(key, None)

    def get(self, key: str) -> Function:
        """Return a function."""
        known = self.read.get(key)
        if known is None:
            blob = self._blobs.pop(key, None)
            if blob is None:
                raise HeteroError(f"the function {key!r} did not reach this worker")
            try:
                known = self.read[key] = Function(key, *pickle.loads(blob))
            except BaseException:
                self._blobs[key] = blob
                raise
        return known


class KeptValues(dict[object, object]):
    """Values on the device's memory node, by key, and how many of them were dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.drops = 0
        self._dropped = threading.Condition()

    def drop(self, key: object) -> None:
        """Forget a value."""
        self.pop(key, None)
        with self._dropped:
            self.drops += 1
            self._dropped.notify()

    def wait_for_drops(self, count: int) -> None:
        """Wait until so many values were dropped: a task that ran out of memory finds that which they leave."""
        with self._dropped:
            self._dropped.wait_for(lambda: self.drops >= count, DROPS_S)


class Cancellation:
    """Stops the call that one thread runs, by an exception raised there.

    Attributes
    ----------
    lock
        Held while `current` is looked at or changed.
    current
        What names the attempt whose call runs, None while none does.
    thread
        Id of the thread that runs calls.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.current: object = None
        self.thread = 0
        self._on_its_way = False

    def stop_call(self) -> None:
        """Raise `Cancelled` in the running call, while the lock is held."""
        self._on_its_way = True
        raise_in_thread(self.thread, msg.Cancelled)

    def arrived(self) -> None:
        """Mark that the exception has come."""
        self._on_its_way = False

    def leave_call(self) -> None:
        """End the call, in a `finally` of the thread that ran it; an exception that comes too late is awaited here."""
        with self.lock:
            self.current = None
        if self._on_its_way:
            kind = sys.exc_info()[0]
            if kind is not None and issubclass(kind, msg.Cancelled):
                self._on_its_way = False
            else:
                self._await_arrival()

    def _await_arrival(self) -> None:
        """Receive a pending asynchronous exception here, where it does no harm."""
        for _ in range(round(_ON_ITS_WAY_S / _LOOK_S)):
            clock.sleep(_LOOK_S)
        raise_in_thread(threading.get_ident(), None)
        self._on_its_way = False


def raise_in_thread(ident: int, exception: type[BaseException] | None) -> None:
    """Raise an exception in a thread as soon as it runs Python code; None takes back one that has not come yet."""
    given = None if exception is None else ctypes.py_object(exception)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), given)


def is_importing(frame: FrameType | None) -> bool:
    """Return whether a module is being imported at this frame: stopping that would leave half a module behind."""
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTER:
            return True
        frame = frame.f_back
    return False


def wait_for_link(device: Device, nbytes: int) -> float:
    """Take the time of the emulated link to a device, where there is one; return it, s."""
    if device.link_bytes_per_s <= 0 or not nbytes:
        return 0.0
    begin_s = clock.monotonic_s()
    clock.sleep(device.link_latency_s + nbytes / device.link_bytes_per_s)
    return clock.monotonic_s() - begin_s


def failed_row(runner: Runner, error: BaseException) -> tuple[object, ...]:
    """Return how an attempt ended that raised an exception, as it is sent to the program."""
    if issubclass(type(error), msg.Cancelled):
        return msg.FAILED, "cancelled", "cancelled", None, ""
    if issubclass(type(error), msg.UnserialisableError):
        return msg.FAILED, "unserialisable", str(error), None, ""
    blob, text = dump_error(error)
    row = msg.FAILED, runner.classify(error), one_line(error), blob, text
    write_field(error, "__traceback__", None)  # once it was classified, which needs it
    return row


def unserialisable(function: Function, task: int, error: BaseException) -> msg.UnserialisableError:
    """Return the error of a result that cannot be pickled."""
    return msg.UnserialisableError(f"the result of {function.name} (task {task}) cannot travel back: {one_line(error)}")
