"""Shared memory as a worker sees it: parts are lent to it, and looked at privately.

In: places. Out: buffers and values. It takes no part for itself: the program gives it places.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hetero.engines.local.arena import POOL, Segment
from hetero.engines.local.wire import LARGE_BYTES, Place, Wire, dump, load
from hetero.floor import own_memory
from hetero.floor.errors import HeteroError
from hetero.floor.platform import SharedMemory, make_private

__all__ = ["Lender", "MemoryLimit", "store"]

_ANNOUNCED_S = 60.0
"""How long a segment that was announced on the other socket is waited for."""


class MemoryLimit:
    """Holds this process to what it uses now and so many bytes more; views of shared memory do not count.

    Notes
    -----
    The system counts a copy-on-write view as memory of the process, although nothing is copied until it is
    written to: so the limit is raised by the size of each view, for as long as that lives.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._own_bytes = own_memory.data_bytes() + limit_bytes
        self._views: dict[int, int] = {}
        self._set()

    def spare(self, nbytes: int) -> object:
        """Raise the limit by so many bytes as long as the object that this gives lives."""
        spared = _Spared()
        self._views[id(spared)] = nbytes
        weakref.finalize(spared, self._end, id(spared)).atexit = False
        self._set()
        return spared

    def _end(self, key: int) -> None:
        self._views.pop(key, None)
        self._set()

    def _set(self) -> None:
        own_memory.limit_data(self._own_bytes + sum(list(self._views.values())))


class _Spared:
    __slots__ = ("__weakref__",)


class Lender:
    """The segments that a worker has mapped."""

    def __init__(self, pool_fd: int, pool_bytes: int) -> None:
        self._segments = {POOL: Segment(POOL, SharedMemory(pool_fd, pool_bytes))}
        self._changed = threading.Condition()
        self._limit: MemoryLimit | None = None

    def running_slot(self, offset: int) -> memoryview:
        """Return the number at this offset of the pool, as an array of one."""
        return memoryview(self._segments[POOL].map)[offset : offset + 8].cast("Q")

    def limit_memory(self, limit_bytes: int) -> None:
        """Hold this process to what it uses now and so many bytes more."""
        self._limit = MemoryLimit(limit_bytes)

    def add(self, number: int, fd: int, nbytes: int) -> None:
        """Map a further segment."""
        with self._changed:
            self._segments[number] = Segment(number, SharedMemory(fd, nbytes))
            self._changed.notify_all()

    def close(self, number: int) -> None:
        """Unmap a segment that the program has given up."""
        with self._changed:
            segment = self._segments.pop(number, None)
        if segment is not None:
            segment.close()

    def segment(self, number: int) -> Segment:
        """Return a segment; one that was announced on the other socket is waited for."""
        with self._changed:
            if not self._changed.wait_for(lambda: number in self._segments, _ANNOUNCED_S):
                raise HeteroError(f"segment {number} of the memory pool did not reach this worker")
            return self._segments[number]

    def value(self, wire: Wire, views: list[Any], items: Mapping[int, Any] | None = None) -> Any:
        """Read a value; weak references to the buffers that it looks at are added to `views`."""
        body, places = wire
        buffers = [self._view(*place) for place in places]
        views.extend(map(weakref.ref, buffers))
        return load(buffers.pop(0), buffers, items) if body is None else load(body, buffers, items)

    def _view(self, number: int, offset: int, nbytes: int) -> Any:
        spared = None if self._limit is None else self._limit.spare(nbytes)
        return self.segment(number).view(offset, nbytes, spared)

    def release(self, views: list[Any]) -> None:
        """Copy what is still looked at, because its place will be used again."""
        for view in views:
            alive = view()
            if alive is not None:
                make_private(alive)

    def write(self, place: Place, buffer: memoryview) -> None:
        """Copy bytes to a place that was lent."""
        self.segment(place.segment).part(place.offset, place.nbytes)[:] = np.frombuffer(buffer, np.uint8)


def store(value: Any, lender: Lender, room: Callable[[list[int]], list[Place]]) -> Wire:
    """Turn a value into what travels, its large buffers into shared memory.

    Raises
    ------
    NoRoomError
        There is no room for them.
    Exception
        Whatever the value's pickling raises.
    """
    body, buffers = dump(value)
    large = len(body) >= LARGE_BYTES
    if large:
        buffers.insert(0, memoryview(body))
    if not buffers:
        return Wire(body)
    granted = room([buffer.nbytes for buffer in buffers])
    for place, buffer in zip(granted, buffers, strict=True):
        lender.write(place, buffer)
    return Wire(None if large else body, tuple(granted))
