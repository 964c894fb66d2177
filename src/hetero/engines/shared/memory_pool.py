"""Shared memory on one host: the pool and its allocator, blocks leased to workers, and the worker's mappings.

In: buffers and sizes. Out: blocks, which return themselves when nobody holds them, and private views of them. Workers
allocate nothing: the program leases places to them. It knows no tasks.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from hetero.engines.base import NodeUsage
from hetero.engines.shared.wire import BufferPlace, Copies, WireValue, dump, is_one_buffer, load
from hetero.floor import own_memory
from hetero.floor.errors import EngineError, HeteroError
from hetero.floor.platform import (
    PAGE_BYTES,
    SharedMemory,
    make_private,
    make_private_at,
    private_view,
    shared_memory,
    spill_file,
)

__all__ = [
    "POOL",
    "Allocator",
    "Block",
    "MemoryLimit",
    "MemoryPool",
    "OutputLeases",
    "Payload",
    "ResultRoom",
    "Segment",
    "SharedMappings",
    "Views",
    "address_of",
    "claim",
    "lengths",
    "store",
]

Views = list["weakref.ref[ctypes.Array[ctypes.c_char]]"]
"""What refers to the buffers that a task looks at, without keeping them."""

POOL = 0
"""The segment number of the pool; higher numbers are files of one block each."""

RUNNING_BYTES = 1 << 16
"""Bytes behind the pool in which each worker keeps the number of the attempt that it runs, 0 for none.

As many follow for the mark of the class of the nested task that it runs at once, on top of that attempt.
"""

DEADLY_BYTES = 1 << 12
"""Bytes at the very end: how many marks of classes follow that ended a worker in which they ran at once."""

WORKERS_BYTES = 2 * RUNNING_BYTES + DEADLY_BYTES
"""Bytes behind the pool in all."""


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

    def view(self, offset: int, nbytes: int, keep: object = None) -> ctypes.Array[ctypes.c_char]:
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

    def __init__(self, segment: Segment, place: BufferPlace, returned: deque[BufferPlace]) -> None:
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

    def wire(self) -> WireValue:
        """Return the form in which it is sent."""
        return (
            WireValue(self.body, tuple([block.place for block in self.blocks])) if self.blocks else WireValue(self.body)
        )

    def value(self) -> object:
        """Read the value; its arrays are writable, shared with nobody, and hold their blocks."""
        if not self.blocks:
            return load(self.body)
        views = [block.segment.view(block.place.offset, block.place.nbytes, block) for block in self.blocks]
        return load(self.body, views)


class MemoryPool:
    """Owns the shared memory of one engine.

    Parameters
    ----------
    capacity_bytes
        Bytes of the pool.
    note
        Told, once a kind, what the user should know.
    counters
        Counts copies, copied_bytes, shared (a copy saved), spills and spilled_bytes.

    Notes
    -----
    Blocks are returned from finalisers, which may run at any place of any thread: they are only queued there,
    and given back to the pool before the next one is taken.
    """

    def __init__(self, capacity_bytes: int, note: Callable[[str], None], counters: Counter[str]) -> None:
        capacity_bytes = max(PAGE_BYTES, capacity_bytes) // PAGE_BYTES * PAGE_BYTES
        memory = shared_memory(capacity_bytes + WORKERS_BYTES)
        if memory.note:
            note(memory.note)
        self.main = Segment(POOL, memory)
        self.counters = counters
        self.closed_segments: Callable[[int], None] = lambda number: None
        self._note = note
        self._allocator = Allocator(capacity_bytes, PAGE_BYTES)
        self._running_at = capacity_bytes
        self._slots: dict[str, int] = {}
        self._returned: deque[BufferPlace] = deque()
        self._spills: dict[int, Segment] = {}
        self._next = POOL + 1
        self._lock = threading.Lock()
        self._copies = Copies(self._copied, _address, counters)

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
                return Block(self.main, BufferPlace(POOL, offset, nbytes), self._returned)
            segment = self._spill(nbytes)
        return Block(segment, BufferPlace(segment.number, 0, nbytes), self._returned)

    def spare(self, nbytes: int) -> Block | None:
        """Take a block from the pool if half of it stays free; nothing makes way for it."""
        with self._lock:
            self._drain()
            usage = self._allocator.usage()
            offset = None if 2 * (usage.used_bytes + nbytes) > usage.capacity_bytes else self._allocator.take(nbytes)
        return None if offset is None else Block(self.main, BufferPlace(POOL, offset, nbytes), self._returned)

    def keep(self, buffer: memoryview) -> Block:
        """Return a block with these bytes: a new copy, or the one made before where it still holds the same."""
        return self._copies.keep(buffer)

    def payload(self, value: object) -> Payload:
        """Return a value as bytes; raises whatever its pickling raises."""
        return Payload(*self._copies.pack(value))

    def _copied(self, source: NDArray[np.uint8]) -> Block:
        block = self.take(source.nbytes)
        block.segment.part(block.place.offset, block.place.nbytes)[:] = source
        return block

    def running_slot(self, device: str) -> int:
        """Return the offset at which the worker of a device keeps the number of the attempt that it runs."""
        return self._running_at + 8 * (self._slots.setdefault(device, len(self._slots)) % (RUNNING_BYTES // 8))

    def running(self, slot: int) -> int:
        """Return the number of the attempt that a worker ran when it last wrote, 0 for none."""
        return int(self.main.part(slot, 8).view(np.uint64)[0])

    def clear_running(self, slot: int) -> None:
        """Clear a slot."""
        self.main.part(slot, 8)[:] = 0
        self.main.part(slot + RUNNING_BYTES, 8)[:] = 0

    def is_of_nested(self, slot: int) -> bool:
        """Return whether a worker died of a nested task that it ran at once, whose class nobody runs so any more."""
        mark = self.running(slot + RUNNING_BYTES)
        table = self.main.part(self._running_at + 2 * RUNNING_BYTES, DEADLY_BYTES).view(np.uint64)
        count = int(table[0])
        if mark and mark not in table[1 : count + 1]:
            if count + 1 == len(table):
                return False
            table[count + 1] = mark
            table[0] = count + 1
        return mark > 0

    def segment(self, number: int) -> Segment:
        """Return a segment that is in use."""
        return self.main if number == POOL else self._spills[number]

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
            for segment in (*self._spills.values(), self.main):
                segment.close()
            self._spills.clear()

    def _take(self, nbytes: int) -> int | None:
        self._drain()
        offset = self._allocator.take(nbytes)
        while offset is None and self._copies.drop_oldest():
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
                self._allocator.release(place.offset)
            elif place.segment in self._spills:
                self._spills.pop(place.segment).close()
                self.closed_segments(place.segment)


def _address(block: Block) -> int:
    return block.segment.part(block.place.offset, block.place.nbytes).ctypes.data


def claim(wire: WireValue, leased: dict[BufferPlace, Block]) -> Payload:
    """Create a payload of what a worker sent, with the blocks that it had been given."""
    return Payload(wire.body, tuple([leased.pop(place) for place in wire.places]))


class Allocator:
    """Best fit with coalescing over one region.

    Parameters
    ----------
    capacity_bytes
        Bytes of the region; what is left of a last page is not used.
    page_bytes
        Every block begins at a multiple of this and takes a multiple of it.

    Notes
    -----
    Free blocks are kept sorted by (size, offset), so the best fit is one bisection, and by both their ends,
    so a returned block finds its neighbours at once.

    Examples
    --------
    >>> pool = Allocator(3 * 4096)
    >>> one, two = pool.take(5000), pool.take(1)
    >>> one, two, pool.take(1)
    (0, 8192, None)
    >>> pool.release(one)
    >>> pool.usage().used_bytes
    4096
    """

    __slots__ = ("_by_end", "_by_size", "_by_start", "_capacity", "_page", "_peak", "_taken", "_used")

    def __init__(self, capacity_bytes: int, page_bytes: int = 4096) -> None:
        self._page = page_bytes
        self._capacity = capacity_bytes // page_bytes * page_bytes
        self._by_size: list[tuple[int, int]] = []
        self._by_start: dict[int, int] = {}
        self._by_end: dict[int, int] = {}
        self._taken: dict[int, int] = {}
        self._used = 0
        self._peak = 0
        if self._capacity:
            self._add(0, self._capacity)

    def take(self, nbytes: int) -> int | None:
        """Take a block; return its offset, or None when no free block is large enough."""
        size = max(1, -(-nbytes // self._page)) * self._page
        position = bisect_left(self._by_size, (size, 0))
        if position == len(self._by_size):
            return None
        found, offset = self._by_size[position]
        self._remove(offset, found)
        if found > size:
            self._add(offset + size, found - size)
        self._taken[offset] = size
        self._used += size
        self._peak = max(self._peak, self._used)
        return offset

    def release(self, offset: int) -> None:
        """Free a block."""
        size = self._taken.pop(offset)
        self._used -= size
        before = self._by_end.get(offset)
        if before is not None:
            length = self._by_start[before]
            self._remove(before, length)
            offset, size = before, length + size
        after = self._by_start.get(offset + size)
        if after is not None:
            self._remove(offset + size, after)
            size += after
        self._add(offset, size)

    def usage(self) -> NodeUsage:
        """Return capacity, use, peak and fragmentation."""
        free = self._capacity - self._used
        largest = self._by_size[-1][0] if self._by_size else 0
        return NodeUsage(self._capacity, self._used, self._peak, 1.0 - largest / free if free else 0.0)

    def taken(self) -> dict[int, int]:
        """Return the taken blocks, offset to bytes."""
        return dict(self._taken)

    def free(self) -> dict[int, int]:
        """Return the free blocks, offset to bytes."""
        return dict(self._by_start)

    def _add(self, offset: int, size: int) -> None:
        insort(self._by_size, (size, offset))
        self._by_start[offset] = size
        self._by_end[offset + size] = offset

    def _remove(self, offset: int, size: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        del self._by_start[offset]
        del self._by_end[offset + size]


AHEAD = 2
"""Attempts that have room at a time before they ask: the one that runs, and the one that waits behind it."""

FUNCTIONS = 512
"""Functions whose results are remembered."""


class OutputLeases:
    """What one worker was leased, by the number of an attempt or of a copy.

    Parameters
    ----------
    pool
        Where the room is taken from.
    announce
        Called with what was leased, before the worker learns of it.

    Notes
    -----
    An attempt is given room for a result like the last one of its function, so that it need not ask and wait when
    it has ended. Such room is taken only while half of the pool stays free; what it does not use goes back with it.
    """

    def __init__(self, pool: MemoryPool, announce: Callable[[Payload], None]) -> None:
        self._pool = pool
        self._announce = announce
        self._leased: dict[int, dict[BufferPlace, Block]] = {}
        self._took: dict[str, Sequence[int]] = {}

    def grant(self, lease: int, sizes: Sequence[int], function: str = "") -> list[BufferPlace] | str:
        """Lease room for buffers of these sizes; returns what stands in the way where there is none.

        Parameters
        ----------
        function
            Key of the function whose result it is for, '' for something else.
        """
        try:
            blocks = [self._pool.take(nbytes) for nbytes in sizes]
        except EngineError as error:
            return str(error)
        if function:
            if len(self._took) >= FUNCTIONS:
                self._took.clear()
            self._took[function] = sizes
        return self._note(lease, blocks)

    def grant_ahead(self, lease: int, function: str) -> list[BufferPlace]:
        """Lease an attempt room for a result like the last one; returns no places where there was none, or no room."""
        sizes = self._took.get(function, ())
        if not sizes or len(self._leased) >= AHEAD:
            return []
        blocks = [self._pool.spare(nbytes) for nbytes in sizes]
        granted = [block for block in blocks if block is not None]
        return self._note(lease, granted) if len(granted) == len(sizes) else []

    def _note(self, lease: int, blocks: Sequence[Block]) -> list[BufferPlace]:
        self._announce(Payload(b"", tuple(blocks)))
        self._leased.setdefault(lease, {}).update({block.place: block for block in blocks})
        return [block.place for block in blocks]

    def filled(self, lease: int, wire: WireValue) -> Payload:
        """Return what a worker sent while it goes on: the room that it filled is leased no more."""
        return claim(wire, self._leased[lease]) if wire.places else Payload(wire.body)

    def close(self, lease: int, wire: WireValue | None = None, function: str = "") -> Payload | None:
        """Take back what was leased; returns what the worker sent at the end, if it did."""
        leased = self._leased.pop(lease, {})
        if wire is None:
            return None
        payload = claim(wire, leased) if leased else Payload(wire.body)
        if leased:
            self._took.pop(function, None)
        return payload

    def clear(self) -> None:
        """Take back everything."""
        self._leased.clear()


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
        """Raise the limit by `nbytes` while the returned object is alive."""
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


class SharedMappings:
    """The segments that a worker has mapped."""

    def __init__(self, pool_fd: int, pool_bytes: int) -> None:
        self._segments = {POOL: Segment(POOL, SharedMemory(pool_fd, pool_bytes))}
        self._changed = threading.Condition()
        self._limit: MemoryLimit | None = None

    def running_slot(self, offset: int) -> memoryview:
        """Return the number at this offset of the pool, as an array of one."""
        return self._numbers(offset, 8)

    def nested_slot(self, offset: int) -> memoryview:
        """Return the mark that belongs to the slot at this offset, as an array of one."""
        return self._numbers(offset + RUNNING_BYTES, 8)

    @property
    def deadly(self) -> memoryview:
        """How many classes ended workers in which they ran at once, and then their marks."""
        return self._numbers(len(self._segments[POOL].map) - DEADLY_BYTES, DEADLY_BYTES)

    def _numbers(self, offset: int, nbytes: int) -> memoryview:
        return memoryview(self._segments[POOL].map)[offset : offset + nbytes].cast("Q")

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

    def value(self, wire: WireValue, views: Views, items: Mapping[int, object] | None = None) -> object:
        """Read a value; weak references to the buffers that it looks at are added to `views`."""
        body, places = wire
        buffers = [self._view(*place) for place in places]
        views.extend(map(weakref.ref, buffers))
        return load(body, buffers, items)

    def _view(self, number: int, offset: int, nbytes: int) -> ctypes.Array[ctypes.c_char]:
        spared = None if self._limit is None else self._limit.spare(nbytes)
        return self.segment(number).view(offset, nbytes, spared)

    def release(self, views: Views) -> None:
        """Copy what is still looked at, because its place will be used again."""
        for view in views:
            alive = view()
            if alive is not None:
                make_private(alive)

    def write(self, place: BufferPlace, buffer: memoryview) -> None:
        """Copy bytes to a place that was leased, where they do not lie there."""
        source = np.frombuffer(buffer, np.uint8)
        part = self.segment(place.segment).part(place.offset, place.nbytes)
        if source.ctypes.data != part.ctypes.data:
            part[:] = source

    def open(self, place: BufferPlace) -> ctypes.Array[ctypes.c_char]:
        """Return a place of the pool that was leased, shared and writable."""
        assert place.segment == POOL
        segment = self._segments[POOL]
        part = segment.part(place.offset, place.nbytes)
        view = (ctypes.c_char * place.nbytes).from_address(part.ctypes.data)
        weakref.finalize(view, id, segment.bytes).atexit = False
        return view

    def withdraw(self, views: Views) -> None:
        """Copy what is still looked at of places that were opened, because others will read those.

        The mapping that they look into stays theirs; a new one takes its turn.
        """
        alive = [view for each in views if (view := each()) is not None]
        if not alive:
            return
        segment = self._segments[POOL]
        for view in alive:
            if self._limit is not None:
                weakref.finalize(view, id, self._limit.spare(ctypes.sizeof(view))).atexit = False
            offset = ctypes.addressof(view) - segment.part(0, 1).ctypes.data
            make_private_at(segment.memory, offset, view)
        with self._changed:
            self._segments[POOL] = Segment(POOL, segment.memory)


class ResultRoom:
    """Where the result of one attempt will lie, as far as it is known beforehand.

    Parameters
    ----------
    mappings
        Of the worker.
    places
        What the attempt was leased.

    Notes
    -----
    An argument that the attempt may change is copied there, changed there, and is the result without another copy. As
    long as the attempt runs, nobody else reads the place, and what the argument was copied from stays as it is: when
    the worker dies in the middle, another one begins with that.
    """

    def __init__(self, mappings: SharedMappings, places: Sequence[BufferPlace]) -> None:
        self._mappings = mappings
        self._free = list(places)
        self._filled: dict[int, BufferPlace] = {}
        self.views: Views = []

    def own(self, value: object) -> object:
        """Return a copy of a large array in a place of its size, or the array itself where there is none."""
        if not is_one_buffer(value):
            return value
        place = next((place for place in self._free if place.nbytes == value.nbytes), None)
        if place is None:
            return value
        self._free.remove(place)
        view = self._mappings.open(place)
        self.views.append(weakref.ref(view))
        self._filled[ctypes.addressof(view)] = place
        made = np.frombuffer(memoryview(view).cast("B"), value.dtype).reshape(
            value.shape, order="C" if value.flags.c_contiguous else "F"
        )
        np.copyto(made, value)
        return made

    def places(self, buffers: Sequence[memoryview]) -> list[BufferPlace] | None:
        """Return where the buffers of the result go, None where there is too little room.

        What lies in its place stays there. No other buffer goes to a place that an argument was copied to: part of that
        may be in the result as well.
        """
        filled, free = dict(self._filled), list(self._free)
        found: list[BufferPlace] = []
        for buffer in buffers:
            place = filled.pop(address_of(buffer), None)
            if place is None or place.nbytes != buffer.nbytes:
                place = next((place for place in free if place.nbytes == buffer.nbytes), None)
                if place is None:
                    return None
                free.remove(place)
            found.append(place)
        return found

    def has(self, buffers: Sequence[memoryview]) -> bool:
        """Return whether an argument that was copied to its place is part of the result."""
        return any(address_of(buffer) in self._filled for buffer in buffers)


def lengths(buffers: Sequence[memoryview]) -> list[int]:
    """Return the bytes of each buffer."""
    return [buffer.nbytes for buffer in buffers]


def address_of(buffer: memoryview) -> int:
    """Return where a buffer lies in this process."""
    return np.frombuffer(buffer, np.uint8).ctypes.data


def store(value: object, mappings: SharedMappings, room: Callable[[list[memoryview]], list[BufferPlace]]) -> WireValue:
    """Turn a value into what travels, its large buffers into shared memory.

    Parameters
    ----------
    room
        Leases places for these buffers, in their order.

    Raises
    ------
    NoRoomError
        There is no room for them.
    Exception
        Whatever the value's pickling raises.
    """
    body, buffers = dump(value)
    if not buffers:
        return WireValue(body)
    granted = room(buffers)
    for place, buffer in zip(granted, buffers, strict=True):
        mappings.write(place, buffer)
    return WireValue(body, tuple(granted))
