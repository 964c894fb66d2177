"""What Ray sees of a device's worker: an actor that hands everything on to its seat.

In: calls of the actor. Out: the answers of the seat. It has nothing of its own: Ray wraps each method of an actor's
class, also those that only the class itself calls, which costs time and shows in tracebacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hetero.engines.base import WorkerEntry
from hetero.engines.ray.seat import COPIES, TALK, Greeting, Seat
from hetero.model.device import Device

__all__ = ["THREADS", "Worker"]

THREADS = {TALK: 1, COPIES: 1}
"""Beside the one that runs tasks: for orders and messages, and for copies."""

Answer = tuple[bytes, tuple[Any, ...] | None]


class Worker:
    """The actor of one device; its methods are those of `Seat`."""

    def __init__(self, entry: WorkerEntry, device: Device, path: Sequence[str], address: str) -> None:
        self._seat = Seat(entry, device, path, address)

    def greet(self) -> Greeting:
        """Return who this is, and on which of Ray's nodes."""
        import ray

        return self._seat.greet(ray.get_runtime_context().get_node_id())

    def now(self) -> float:
        """Return the time on this host's clock."""
        return self._seat.now_s()

    def run(self, batch: bytes, *parts: Any) -> Answer:
        """Run attempts one after the other."""
        return self._seat.run(batch, (), parts)

    def run_group(self, batch: bytes, peers: Sequence[Any], *parts: Any) -> Answer:
        """Run an attempt together with others."""
        return self._seat.run(batch, peers, parts)

    def hear(self, which: tuple[int, int], sender: int, body: bytes | None, *buffers: Any) -> None:
        """Take a value from another member of a group."""
        self._seat.hear(which, sender, body, *buffers)

    def hear_left(self, which: tuple[int, int], sender: int, reason: str) -> None:
        """Learn that another member of a group has ended."""
        self._seat.hear_left(which, sender, reason)

    def withdraw(self, seqs: Sequence[int]) -> None:
        """Return attempts that have not started to the scheduler."""
        self._seat.withdraw(seqs)

    def cancel(self, seq: int) -> None:
        """Stop an attempt."""
        self._seat.cancel(seq)

    def take_in(self, key: Any, wire: Any, *parts: Any) -> tuple[float, float]:
        """Copy a value to the device's memory node."""
        return self._seat.take_in(key, wire, parts)

    def give_out(self, key: Any) -> Answer:
        """Copy a kept value to the host."""
        return self._seat.give_out(key)

    def drop(self, key: Any) -> None:
        """Forget a kept value."""
        self._seat.drop(key)

    def touch(self, *parts: Any) -> None:
        """Do nothing: the parts are on this host now."""
