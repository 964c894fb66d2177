"""Attempts on their way to a worker, the functions that it already has, and results batched on their way back.

In: calls, functions and results. Out: what travels together. It sends nothing by itself but through the function that
an outbox was given.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from hetero.engines.base import Call, Function
from hetero.engines.shared.exceptions import one_line
from hetero.engines.shared.groups import GroupTask
from hetero.engines.shared.hub import Hub
from hetero.engines.shared.memory_pool import Payload
from hetero.engines.shared.wire import as_bytes
from hetero.floor.errors import SerialisationError
from hetero.model.commands import Launch
from hetero.model.device import Device

__all__ = [
    "FUNCTIONS_KEPT",
    "InFlight",
    "InFlightProxy",
    "Outbox",
    "Shipped",
    "next_batch",
    "pack_function",
]

FUNCTIONS_KEPT = 512
"""How many functions a worker keeps; the one that was not used for the longest time goes first."""


class InFlight(NamedTuple):
    """An attempt that a worker has not answered for.

    Attributes
    ----------
    seq
        Its number at that worker.
    group, rank
        The group task that it belongs to, None outside of groups, and its rank there.
    holds
        What must stay alive until it is answered for.
    peers
        The actors of all members of its group, by rank, in the Ray engine.
    """

    seq: int
    launch: Launch
    call: Call
    group: GroupTask | None
    rank: int
    holds: tuple[Payload, ...] = ()
    peers: tuple[object, ...] = ()


CANCEL_S = 0.2
"""How long an attempt has to end by itself once it was told to, and how often it is looked at again."""


class InFlightProxy(ABC):
    """A worker that attempts are sent to, as the program sees it.

    Attributes
    ----------
    device
        The device that it works for.
    """

    def __init__(self, hub: Hub, device: Device) -> None:
        self.device = device
        self._hub = hub
        self._in_flight: dict[int, InFlight] = {}
        self._ended = False

    @abstractmethod
    def _is_first(self, seq: int) -> bool:
        """Return whether an attempt runs, as far as is known."""

    @abstractmethod
    def _kill(self, why: str) -> None:
        """End the worker by force."""

    def _insist_later(self, seq: int) -> None:
        """End the worker in a while if it still runs an attempt that was told to stop then."""
        self._hub.at(CANCEL_S, lambda: self._insist(seq))

    def _insist(self, seq: int) -> None:
        if self._ended or seq not in self._in_flight:
            return
        if self._is_first(seq):
            self._kill(f"it was ended to stop task {self._in_flight[seq].launch.task}")
        else:
            self._insist_later(seq)


class Shipped:
    """The functions that one worker has."""

    def __init__(self, counters: Counter[str]) -> None:
        self._keys: OrderedDict[str, None] = OrderedDict()
        self._counters = counters

    def use(self, function: Function, travelling: list[tuple[str, bytes]]) -> str:
        """Note a use; a function that the worker lacks is added to what travels. Gives its key."""
        key = function.key
        if key in self._keys:
            self._keys.move_to_end(key)
        else:
            self._keys[key] = None
            travelling.append((key, function.blob))
            self._counters["functions"] += 1
        return key

    def retire(self, travelling: list[tuple[str, bytes]], needed: set[str]) -> None:
        """Drop the worker's oldest functions beyond `FUNCTIONS_KEPT`, but none that this batch needs."""
        for key in list(self._keys)[: max(0, len(self._keys) - FUNCTIONS_KEPT)]:
            if key not in needed:
                del self._keys[key]
                travelling.append((key, b""))


def pack_function(function: Function, other_remedy: str = "") -> bytes:
    """Return a function as bytes, which it keeps.

    Raises
    ------
    SerialisationError
        It cannot be pickled.
    """
    if not function.blob:
        try:
            function.blob = as_bytes((function.name, function.default, dict(function.implementations)))
        except Exception as error:
            raise SerialisationError(
                f"the function {function.name!r} cannot travel to a worker: {one_line(error)}",
                remedy=f"create what cannot be pickled inside the function{other_remedy}",
            ) from error
    return function.blob


SHORT_S = 2e-3
"""Attempts that are expected to be shorter than this share a call."""
BATCH_S = 10e-3
BATCH = 500

Row = TypeVar("Row")


def next_batch(waiting: deque[InFlight]) -> list[InFlight]:
    """Take one attempt, or several that are short: the first to finish waits for the last."""
    batch = [waiting.popleft()]
    total_s = batch[0].launch.predicted_s
    while waiting and len(batch) < BATCH and _short(batch[-1]) and _short(waiting[0]):
        total_s += waiting[0].launch.predicted_s
        if total_s > BATCH_S:
            break
        batch.append(waiting.popleft())
    return batch


def _short(request: InFlight) -> bool:
    return request.group is None and 0.0 < request.launch.predicted_s <= SHORT_S


class Outbox(Generic[Row]):
    """Gathers answers so that many small tasks need few messages, and none waits behind a long task.

    Parameters
    ----------
    send
        Called with the answers, from the thread that adds them or from the outbox's own.
    sleep, now_s
        The clock's.

    Notes
    -----
    An answer leaves at once when no task follows, or when the next one is expected to take longer than
    `WINDOW_S` or an unknown time; else with others, `WINDOW_S` after the first of them at the latest. Only a
    task that was expected to be short, and holds the interpreter's lock all the time, holds them up.
    """

    WINDOW_S = 1e-3

    def __init__(
        self, send: Callable[[list[Row]], None], sleep: Callable[[float], None], now_s: Callable[[], float]
    ) -> None:
        self._send = send
        self._sleep = sleep
        self._now_s = now_s
        self._rows: list[Row] = []
        self._lock = threading.Lock()
        self._waiting = threading.Event()
        self._thread: threading.Thread | None = None
        self._flushed_s = 0.0
        self._open = True

    def add(self, row: Row, next_s: float | None) -> None:
        """Take an answer; `next_s` is the expected time of the task that follows, None when none does."""
        if next_s is None and not self._rows:
            self._send([row])
            return
        with self._lock:
            self._rows.append(row)
        long = next_s is None or not 0.0 < next_s <= self.WINDOW_S
        if long or self._now_s() - self._flushed_s > self.WINDOW_S:
            self.flush()
        elif not self._waiting.is_set():
            self._arm()

    def flush(self) -> None:
        """Send what was gathered."""
        with self._lock:
            rows, self._rows = self._rows, []
        if rows:
            self._flushed_s = self._now_s()
            self._send(rows)

    def _arm(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._late, name="hetero-outbox", daemon=True)
            self._thread.start()
        self._waiting.set()

    def close(self) -> None:
        """Send what was gathered and end the thread."""
        self.flush()
        if self._thread is not None:
            self._open = False
            self._waiting.set()
            self._thread.join(1.0)

    def _late(self) -> None:
        while self._open:
            self._waiting.wait()
            self._sleep(self.WINDOW_S)
            self._waiting.clear()
            self.flush()
