"""The bytes of data items on this host: one pool of shared memory, and files for what does not fit.

In: buffers. Out: blocks, which give themselves back when nobody holds them. It must not know tasks or workers.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero.engines.base import NodeUsage
from hetero.engines.local.pool import Allocator
from hetero.engines.local.wire import LARGE_BYTES, Place, Wire, dump, load
from hetero.floor.platform import PAGE_BYTES, SharedMemory, private_view, same_bytes, shared_memory, spill_file

__all__ = ["POOL", "Arena", "Block", "Payload", "Segment", "claim"]

POOL = 0
"""The segment number of the pool; higher numbers are files of one block each."""

RUNNING_BYTES = 1 << 16
"""Bytes behind the pool in which each worker keeps the number of the attempt that it runs, 0 for none."""


class Segment:
    """One mapped piece of shared memory."""

    __slots__ = ("bytes", "map", "memory", "number")

    def __init__(self, number: int, memory: SharedMemory) -> None:
        self.number = number
        self.memory = memory
        self.map = memory.map()
        self.bytes: NDArray[np.uint8] | None = np.frombuffer(self.map, np.uint8)

    def part(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return a part of it, shared."""
        assert self.bytes is not None
        return self.bytes[offset : offset + nbytes]

    def view(self, offset: int, nbytes: int, keep: object = None) -> Any:
        """Return a part of it, private and writable."""
        return private_view(self.memory, offset, nbytes, keep)

    def close(self) -> None:
        """Unmap and close; views stay valid."""
        self.bytes = None
        with suppress(BufferError):
            self.map.close()
        self.memory.close()


class Block:
    """A part of a segment that belongs to whoever holds this object."""

    __slots__ = ("__weakref__", "_returned", "place", "segment")

    def __init__(self, segment: Segment, place: Place, returned: deque[Place]) -> None:
        self.segment = segment
        self.place = place
        self._returned = returned

    def __del__(self) -> None:
        self._returned.append(self.place)


class Payload:
    """A value as bytes: its pickle, and the blocks with its large buffers."""

    __slots__ = ("blocks", "body")

    def __init__(self, body: bytes | None, blocks: tuple[Block, ...] = ()) -> None:
        self.body = body
        self.blocks = blocks

    @property
    def nbytes(self) -> int:
        """Bytes that lie in shared memory."""
        return sum([block.place.nbytes for block in self.blocks]) if self.blocks else 0

    @property
    def places(self) -> tuple[object, ...]:
        """Where its large buffers lie, each in an object of its own."""
        return self.blocks

    def wire(self) -> Wire:
        """Return the form in which it is sent."""
        return Wire(self.body, tuple([block.place for block in self.blocks])) if self.blocks else Wire(self.body)

    def value(self) -> Any:
        """Read the value; its arrays are writable, shared with nobody, and hold their blocks."""
        if not self.blocks:
            return load(self.body)
        views = [block.segment.view(block.place.offset, block.place.nbytes, block) for block in self.blocks]
        return load(views.pop(0), views) if self.body is None else load(self.body, views)


class Arena:
    """Owns the shared memory of one engine.

    Parameters
    ----------
    capacity_bytes : bytes of the pool
    note : told, once a kind, what the user should know
    counters : counts copies, copied_bytes, shared (a copy saved), spills and spilled_bytes

    Notes
    -----
    Blocks are returned from finalisers, which may run at any place of any thread: they are only queued there,
    and given back to the pool before the next one is taken.
    """

    def __init__(self, capacity_bytes: int, note: Callable[[str], None], counters: Counter[str]) -> None:
        capacity_bytes = max(PAGE_BYTES, capacity_bytes) // PAGE_BYTES * PAGE_BYTES
        memory = shared_memory(capacity_bytes + RUNNING_BYTES)
        if memory.note:
            note(memory.note)
        self.pool = Segment(POOL, memory)
        self.counters = counters
        self.closed_segments: Callable[[int], None] = lambda number: None
        self._note = note
        self._allocator = Allocator(capacity_bytes, PAGE_BYTES)
        self._running_at = capacity_bytes
        self._slots: dict[str, int] = {}
        self._returned: deque[Place] = deque()
        self._spills: dict[int, Segment] = {}
        self._next = POOL + 1
        self._lock = threading.Lock()
        self._copies: OrderedDict[tuple[int, int], tuple[Block, Any]] = OrderedDict()

    def take(self, nbytes: int) -> Block:
        """Take a block from the pool, or a file where the pool is full.

        Raises
        ------
        EngineError
            The disk is full too.
        """
        with self._lock:
            offset = self._take(nbytes)
            if offset is not None:
                return Block(self.pool, Place(POOL, offset, nbytes), self._returned)
            segment = self._spill(nbytes)
        return Block(segment, Place(segment.number, 0, nbytes), self._returned)

    def spare(self, nbytes: int) -> Block | None:
        """Take a block from the pool if half of it stays free; nothing makes way for it."""
        with self._lock:
            self._drain()
            usage = self._allocator.usage()
            offset = None if 2 * (usage.used_bytes + nbytes) > usage.capacity_bytes else self._allocator.take(nbytes)
        return None if offset is None else Block(self.pool, Place(POOL, offset, nbytes), self._returned)

    def keep(self, buffer: memoryview) -> Block:
        """Return a block with these bytes: a new copy, or the one made before when it still holds the same.

        Notes
        -----
        A copy is found by the address of the bytes and believed only after comparing all of them, so an array
        changed between two calls gives each call its own value.
        """
        source = np.frombuffer(buffer, np.uint8)
        key = (source.ctypes.data, source.nbytes)
        known = self._copies.get(key)
        if known is not None:
            place = known[0].place
            held = known[0].segment.part(place.offset, place.nbytes)
            if same_bytes(key[0], held.ctypes.data, place.nbytes):
                self.counters["shared"] += 1
                return known[0]
        block = self.take(source.nbytes)
        block.segment.part(block.place.offset, block.place.nbytes)[:] = source
        self.counters["copies"] += 1
        self.counters["copied_bytes"] += source.nbytes
        self._remember(key, block, buffer.obj)
        return block

    def payload(self, value: Any) -> Payload:
        """Return a value as bytes; raises whatever its pickling raises."""
        body, buffers = dump(value)
        if not buffers and len(body) < LARGE_BYTES:
            return Payload(body)
        blocks = tuple([self.keep(buffer) for buffer in buffers])
        if len(body) < LARGE_BYTES:
            return Payload(body, blocks)
        return Payload(None, (self.keep(memoryview(body)), *blocks))

    def running_slot(self, device: str) -> int:
        """Return the offset at which the worker of a device keeps the number of the attempt that it runs."""
        return self._running_at + 8 * (self._slots.setdefault(device, len(self._slots)) % (RUNNING_BYTES // 8))

    def running(self, slot: int) -> int:
        """Return the number of the attempt that a worker ran when it last wrote, 0 for none."""
        return int(self.pool.part(slot, 8).view(np.uint64)[0])

    def clear_running(self, slot: int) -> None:
        """Let a slot name no attempt."""
        self.pool.part(slot, 8)[:] = 0

    def segment(self, number: int) -> Segment:
        """Return a segment that is in use."""
        return self.pool if number == POOL else self._spills[number]

    def usage(self) -> NodeUsage:
        """Return how full the pool is, files included."""
        with self._lock:
            self._drain()
            pool = self._allocator.usage()
            used = pool.used_bytes + sum([segment.memory.nbytes for segment in self._spills.values()])
        return pool._replace(used_bytes=used, peak_bytes=max(pool.peak_bytes, used))

    def drop_copies(self) -> None:
        """Forget the copies of arguments that are kept for their next use."""
        self._copies.clear()

    def close(self) -> None:
        """Release all shared memory; values that were read stay valid."""
        self.drop_copies()
        with self._lock:
            for segment in (*self._spills.values(), self.pool):
                segment.close()
            self._spills.clear()

    def _remember(self, key: tuple[int, int], block: Block, owner: Any) -> None:
        def forget(_: object, copies: OrderedDict[Any, Any] = self._copies) -> None:
            copies.pop(key, None)

        try:
            self._copies[key] = (block, weakref.ref(owner, forget))
        except TypeError:
            return

    def _take(self, nbytes: int) -> int | None:
        self._drain()
        offset = self._allocator.take(nbytes)
        while offset is None and self._copies:
            self._copies.popitem(last=False)
            self._drain()
            offset = self._allocator.take(nbytes)
        return offset

    def _spill(self, nbytes: int) -> Segment:
        segment = Segment(self._next, spill_file(nbytes))
        self._next += 1
        self._spills[segment.number] = segment
        self.counters["spills"] += 1
        self.counters["spilled_bytes"] += nbytes
        if self.counters["spills"] == 1:
            used = self._allocator.usage()
            self._note(
                f"the memory pool is full ({used.used_bytes} of {used.capacity_bytes} bytes): what does not fit "
                "goes to files in the temporary folder; make memory_pool_size larger"
            )
        return segment

    def _drain(self) -> None:
        while self._returned:
            place = self._returned.popleft()
            if place.segment == POOL:
                self._allocator.give(place.offset)
            elif place.segment in self._spills:
                self._spills.pop(place.segment).close()
                self.closed_segments(place.segment)


def claim(wire: Wire, leased: dict[Place, Block]) -> Payload:
    """Create a payload of what a worker sent, with the blocks that it had been given."""
    return Payload(wire.body, tuple([leased.pop(place) for place in wire.places]))
