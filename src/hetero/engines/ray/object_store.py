"""Large buffers in Ray's object store: each array of the program is put there once.

In: values. Out: payloads whose buffers lie in the store, and what one call of an actor needs to see them.
It must not know tasks or devices.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hetero.engines.base import NodeUsage
from hetero.engines.shared.memory_pool import Payload
from hetero.engines.shared.wire import Copies, load
from hetero.floor.errors import DeviceLostError, EngineError

__all__ = ["ActorWire", "CallBundle", "ObjectStore", "StoredBuffer", "StoredPayload"]

ActorWire = tuple[bytes | None, Sequence[tuple[int, int]]]
"""A value on its way: its pickle, and by object and index where each of its large buffers is."""

WHOLE = -1
"""The index of a buffer that is an object of its own, and no element of a tuple."""


class StoredBuffer:
    """A buffer in the object store; the object goes when nobody holds a part of it any more."""

    __slots__ = ("_returned", "index", "nbytes", "ref")

    def __init__(self, ref: object, index: int, nbytes: int, returned: deque[int]) -> None:
        self.ref = ref
        self.index = index
        self.nbytes = nbytes
        self._returned = returned

    def __del__(self) -> None:
        self._returned.append(self.nbytes)


class StoredPayload(Payload):
    """A value as bytes: its pickle, and its large buffers in the object store."""

    __slots__ = ("parts",)

    def __init__(self, body: bytes | None, parts: Sequence[StoredBuffer] = ()) -> None:
        super().__init__(body)
        self.parts = tuple(parts)

    @property
    def nbytes(self) -> int:
        """Bytes that lie in the object store."""
        return sum([part.nbytes for part in self.parts])

    @property
    def places(self) -> tuple[object, ...]:
        """Where its large buffers lie, each in an object of its own."""
        return self.parts

    def value(self) -> object:
        """Read the value; its arrays are writable and shared with nobody.

        Raises
        ------
        DeviceLostError
            A buffer was lost with its host.
        """
        buffers = [_bytes_of(part) for part in self.parts]
        return load(self.body, buffers)


def _bytes_of(part: StoredBuffer) -> object:
    import ray

    try:
        found = ray.get(part.ref)
    except ray.exceptions.RayError as error:
        raise DeviceLostError(f"a value of {part.nbytes} bytes was lost with its host") from error
    return found if part.index == WHOLE else found[part.index]


def _address(part: StoredBuffer) -> int:
    import ray

    found: NDArray[np.uint8] = ray.get(part.ref)
    return found.ctypes.data


class CallBundle:
    """What one call of an actor brings along: each object once, however many values look at it."""

    def __init__(self) -> None:
        self.refs: list[object] = []
        self._places: dict[object, int] = {}

    def wire(self, payload: Payload) -> ActorWire:
        """Return a payload as it travels, and take its objects along."""
        assert isinstance(payload, StoredPayload)
        return payload.body, tuple([(self._place(part.ref), part.index) for part in payload.parts])

    def _place(self, ref: object) -> int:
        place = self._places.get(ref)
        if place is None:
            place = self._places[ref] = len(self.refs)
            self.refs.append(ref)
        return place


class ObjectStore:
    """The object store as the program uses it.

    Parameters
    ----------
    capacity_bytes
        Bytes of the store on this host.
    counters
        Counts copies, copied_bytes and shared (a copy saved).
    """

    def __init__(self, capacity_bytes: int, counters: Counter[str]) -> None:
        self._capacity = capacity_bytes
        self._returned: deque[int] = deque()
        self._used = 0
        self._peak = 0
        self._lock = threading.Lock()
        self._copies = Copies(self._put, _address, counters)

    def payload(self, value: object) -> StoredPayload:
        """Return a value as bytes; raises whatever its pickling raises.

        Raises
        ------
        EngineError
            The object store and its disk are full.
        """
        return StoredPayload(*self._copies.pack(value))

    def part(self, ref: object, index: int, nbytes: int) -> StoredBuffer:
        """Take a buffer into account that an actor left in the store."""
        with self._lock:
            self._drain()
            self._used += nbytes
            self._peak = max(self._peak, self._used)
        return StoredBuffer(ref, index, nbytes, self._returned)

    def usage(self) -> NodeUsage:
        """Return how full the store is with what this program put there."""
        with self._lock:
            self._drain()
            return NodeUsage(self._capacity, self._used, self._peak, 0.0)

    def clear(self) -> None:
        """Forget the copies of arguments that are kept for their next use."""
        self._copies.clear()

    def _put(self, source: NDArray[np.uint8]) -> StoredBuffer:
        import ray

        try:
            ref = ray.put(source)
        except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
            raise EngineError(
                f"Ray's object store has no room for {source.nbytes} bytes, nor has the disk that it spills to",
                remedy="make memory_pool_size larger, or drop futures that nobody needs",
            ) from error
        return self.part(ref, WHOLE, source.nbytes)

    def _drain(self) -> None:
        while self._returned:
            self._used -= self._returned.popleft()
