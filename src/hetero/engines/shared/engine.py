"""What the engines have in common whose workers are handed bytes: calls and values as payloads, orders, copies told.

In: calls, values, orders. Out: payloads, events of copies. It must not know where bytes lie or what a worker is.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

from hetero.engines.base import Call, Engine, EngineOrder
from hetero.engines.shared.exceptions import one_line
from hetero.engines.shared.hub import Hub
from hetero.engines.shared.in_flight import pack_function
from hetero.engines.shared.items import Item, Items
from hetero.engines.shared.memory_pool import Payload
from hetero.floor.clock import Clock
from hetero.floor.errors import DeviceLostError, EngineError, SerialisationError
from hetero.model.commands import Cancel, Discard, Free, StartWorker, Transfer, Withdraw
from hetero.model.device import HOST_NODE
from hetero.model.events import TransferFailed, TransferFinished

__all__ = ["Done", "PayloadEngine", "Site"]

Done = Callable[[str, float, float, Item | None], None]
"""Told of a copy: what went wrong or '', when it began, s that it took, what it gave."""


class Site(Protocol):
    """What a running engine has."""

    hub: Hub
    items: Items
    clock: Clock


class _Asked(Protocol):
    def withdraw(self, task: int, attempt: int) -> None: ...

    def cancel(self, task: int, attempt: int) -> None: ...


class PayloadEngine(Engine):
    """An engine whose workers are handed bytes.

    Attributes
    ----------
    other_remedy : what else helps where something cannot travel, for the end of a message
    """

    other_remedy: ClassVar[str] = ""
    _workers: Mapping[str, _Asked]

    @property
    @abstractmethod
    def _site(self) -> Site:
        """What this engine has while it runs."""

    @abstractmethod
    def _stored(self, value: Any) -> Payload:
        """Return a value as bytes; raises whatever its pickling raises."""

    def encode(self, call: Call) -> None:
        """Capture the arguments as they are now, as bytes; large arrays are copied once each."""
        function = call.function
        pack_function(function, self.other_remedy)
        call.encoded = self._payload((call.args, dict(call.kwargs)), f"an argument of {function.name!r}")

    def _payload(self, value: Any, what: str) -> Payload:
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
            self._site.items.discard(order.task, order.attempt)
        elif isinstance(order, Free):
            self._site.items.free(order.item, order.node, order.node == HOST_NODE)
        elif isinstance(order, StartWorker):
            self._start_worker(order.device)
        else:
            self._site.hub.call(lambda: self._transfer(order))

    @abstractmethod
    def _start_worker(self, device: str) -> None:
        """Start a new worker for a device."""

    @abstractmethod
    def _transfer(self, order: Transfer) -> None:
        """Start a copy, in the hub's thread."""

    # -- data -------------------------------------------------------------------------------------------------

    def put(self, item: int, value: Any) -> int:
        """Keep a value as a data item on the host; return its bytes there, 0 where it travels in messages."""
        payload = self._payload(value, "the value")
        self._site.items.put(item, Item(payload))
        return payload.nbytes

    def holds(self, item: int, value: Any) -> bool:
        """Return whether a data item is this very array, unchanged since it was put."""
        try:
            known = self._site.items.find(item).payload
        except DeviceLostError:
            return False
        again = self._payload(value, "the value")
        return known is not None and (again.body, again.places) == (known.body, known.places)

    def commit(self, task: int, attempt: int) -> None:
        """Make the result of this attempt the data item `task`."""
        self._site.items.commit(task, attempt)

    def forget(self, item: int) -> None:
        """Drop a data item everywhere."""
        self._site.items.forget(item)

    def _read(self, item: int, payload: Payload) -> Any:
        try:
            return payload.value()
        except DeviceLostError:
            raise
        except Exception as error:
            raise SerialisationError(f"the result of task {item} cannot be read here: {one_line(error)}") from error

    def _exported(self, item: int, ask: Callable[[Done], None]) -> Item:
        """Wait for a copy of a value that only a device has."""
        done = threading.Event()
        answers: list[tuple[str, Item | None]] = []

        def arrived(problem: str, started_s: float, seconds: float, answer: Item | None) -> None:
            answers.append((problem, answer))
            done.set()

        ask(arrived)
        self._site.hub.wait(done)
        problem, answer = answers[0]
        if answer is None:
            raise DeviceLostError(f"the result of task {item} cannot be had: {problem}")
        return answer

    def _arrived(self, order: Transfer, started_s: float, seconds: float) -> None:
        now_s = self._site.clock.now_s()
        self._site.hub.emit(TransferFinished(now_s, order.item, order.src, order.dst, order.nbytes, started_s, seconds))

    def _transfer_failed(self, order: Transfer, reason: str) -> None:
        self._site.hub.emit(TransferFailed(self._site.clock.now_s(), order.item, order.src, order.dst, reason))

    def _end_with_program(self) -> None:
        """Stop when the program ends without having done so."""
        atexit.register(_stop_at_exit, weakref.ref(self))


def _stop_at_exit(reference: weakref.ref[PayloadEngine]) -> None:
    engine = reference()
    if engine is not None:
        engine.stop()
