"""Reading ahead: a source's pieces, read in a thread of their own and cut into batches as devices ask.

In: a source, what is done already. Out: batches of consecutive items, none across the edge of a part.
It must not hold more than its bound: who reads stops until somebody takes.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hetero.batch.base import Piece, Place, Source
from hetero.batch.records import Records, count, cut, joined, size_bytes
from hetero.floor.clock import JOIN_S
from hetero.plan.batch.planner import Span
from hetero.plan.batch.time_model import packed

__all__ = ["ItemBatch", "Reader"]

_PIECE_BYTES = 4 << 20
_PIECE_ITEMS = 16_384


@dataclass(slots=True)
class ItemBatch:
    """A run of consecutive items with their records.

    Attributes
    ----------
    begin
        Number of the first item.
    pieces
        What their records were cut from, in order.
    cost
        Of all records; how many they are where no cost was given.
    nbytes
        That they take.
    """

    begin: int
    pieces: tuple[Piece, ...]
    cost: float
    nbytes: int
    end: int = field(init=False)

    def __post_init__(self) -> None:
        self.end = self.begin + sum(count(piece.records) for piece in self.pieces)

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def records(self) -> object:
        """The records in one run."""
        return joined([piece.records for piece in self.pieces])

    def place(self, item: int) -> Place:
        """Return where an item stands in its source."""
        at = item - self.begin
        for piece in self.pieces:
            if at < count(piece.records):
                return Place(piece.file, piece.row + at)
            at -= count(piece.records)
        raise IndexError(f"item {item} is not in {self.begin}…{self.end}")

    def halves(self) -> tuple[ItemBatch, ItemBatch]:
        """Return both halves of the items."""
        return self.split(len(self) // 2)

    def split(self, size: int) -> tuple[ItemBatch, ItemBatch]:
        """Return the first items, so many, and the others."""
        return self._slice(0, size), self._slice(size, len(self))

    def _slice(self, begin: int, end: int) -> ItemBatch:
        share = (end - begin) / len(self)
        return ItemBatch(
            self.begin + begin, tuple(_cut(self.pieces, begin, end)), self.cost * share, int(self.nbytes * share)
        )


def _cut(pieces: Sequence[Piece], begin: int, end: int) -> Iterator[Piece]:
    at = 0
    for piece in pieces:
        size = count(piece.records)
        low, high = max(begin - at, 0), min(end - at, size)
        if low < high:
            yield Piece(cut(piece.records, low, high), piece.file, piece.row + low)
        at += size


@dataclass(slots=True)
class _Read:
    """A piece that was read: its items, and the cost of each where one was given."""

    begin: int
    piece: Piece
    size: int
    item_bytes: float
    costs: list[float] | None


class Reader:
    """Reads a source ahead, in a thread of its own, and cuts batches.

    Parameters
    ----------
    source
        Read once, from the first item that is not done.
    part_items
        No batch has items of two parts.
    done
        (begin, end) of items that have results already, ascending.
    bound_bytes
        How much may be read ahead.
    cost
        Of a record, None where all cost the same.
    woken
        Called from the thread when there is something new.
    """

    def __init__(
        self,
        source: Source,
        part_items: int,
        done: Sequence[tuple[int, int]],
        bound_bytes: int,
        cost: Callable[..., float] | None,
        woken: Callable[[], None],
    ) -> None:
        self._source, self._part_items, self._bound_bytes = source, part_items, bound_bytes
        self._done, self._cost, self._woken = list(done), cost, woken
        self._ready: deque[_Read] = deque()
        self._more = threading.Condition()
        self._held_bytes = 0.0
        self._buffered = 0
        self._taken = sum(end - begin for begin, end in done)
        self._costs_read = [0, 0.0]
        self._ended = self._closed = False
        self.trouble: BaseException | None = None
        self.items = 0
        self._thread = threading.Thread(target=self._read, name="hetero-reader", daemon=True)
        self._thread.start()

    @property
    def exhausted(self) -> bool:
        """Return whether every item was taken."""
        with self._more:
            return self._ended and not self._ready

    @property
    def left(self) -> float:
        """What is not taken yet, in costs; infinite where nobody knows."""
        with self._more:
            mean = self._costs_read[1] / self._costs_read[0] if self._costs_read[0] else 1.0
            if self._ended:
                return self._buffered * mean
            length = self._source.length
            return math.inf if length is None else max(0, length - self._taken) * mean

    @property
    def span(self) -> Span | None:
        """The items that are left, where all of them were read and lie in one run and in one part; None elsewhere."""
        with self._more:
            return self._span()

    def _span(self) -> Span | None:
        if not self._ended or not self._ready:
            return None
        span = Span(self._ready[0].begin, self._ready[-1].begin + self._ready[-1].size)
        one_part = span.begin // self._part_items == (span.end - 1) // self._part_items
        return span if one_part and len(span) == self._buffered else None

    def take(self, wanted: float, hungry: bool, back: bool = False) -> ItemBatch | None:
        """Return the next batch of about this cost, None where it is not read yet.

        Parameters
        ----------
        hungry
            True takes what is there rather than nothing.
        back
            True takes the last items, where `span` gives something.
        """
        with self._more:
            if not self._ready:
                return None
            if back and self._span() is not None:
                return self._last(wanted)
            room = self._room()
            pieces, cost, nbytes, size = self._gathered(min(wanted, room) if self._cost is None else wanted, room)
            if size < room and cost < wanted and not (hungry or self._ended):
                return None
            begin = self._ready[0].begin
            self._drop(size)
            self._note(-size, -nbytes)
            return ItemBatch(begin, tuple(pieces), cost, int(nbytes))

    def _note(self, items: int, nbytes: float) -> None:
        """Record items that came, or that went where they are below 0."""
        self._held_bytes += nbytes
        self._buffered += items
        self._taken -= items
        self._more.notify_all()

    def _last(self, wanted: float) -> ItemBatch:
        """Take the last items, of about this cost."""
        pieces: deque[Piece] = deque()
        cost, nbytes, size = 0.0, 0.0, 0
        while self._ready and (cost < wanted or not pieces):
            read = self._ready.pop()
            here, found = _fitting(read, wanted - cost)
            if pieces and found > wanted - cost:
                self._ready.append(read)
                break
            rest = read.size - here
            pieces.appendleft(_between(read.piece, rest, read.size))
            cost, nbytes, size = cost + found, nbytes + here * read.item_bytes, size + here
            if rest:
                costs = None if read.costs is None else read.costs[:rest]
                self._ready.append(_Read(read.begin, _first(read.piece, rest, read.size), rest, read.item_bytes, costs))
                break
        self._note(-size, -nbytes)
        begin = self._ready[-1].begin + self._ready[-1].size if self._ready else read.begin
        return ItemBatch(begin, tuple(pieces), cost, int(nbytes))

    def give_back(self, batch: ItemBatch) -> None:
        """Put the items of a batch back, which stands beside what is left."""
        with self._more:
            reads, at = [], batch.begin
            for piece in batch.pieces:
                size = count(piece.records)
                costs = None if self._cost is None else [batch.cost / len(batch)] * size
                reads.append(_Read(at, piece, size, batch.nbytes / len(batch), costs))
                at += size
            if self._ready and self._ready[-1].begin < batch.begin:
                self._ready.extend(reads)
            else:
                self._ready.extendleft(reversed(reads))
            self._note(len(batch), batch.nbytes)

    def close(self) -> None:
        """Read no further."""
        with self._more:
            self._closed = True
            self._more.notify_all()
        self._thread.join(JOIN_S)

    def _room(self) -> int:
        """Return how many items may be in the next batch: up to the edge of its part, or of what is done."""
        first = self._ready[0]
        edge = (first.begin // self._part_items + 1) * self._part_items
        end, closed = first.begin, self._ended
        for read in self._ready:
            closed = closed or read.begin != end
            if read.begin != end or end >= edge:
                break
            end = read.begin + read.size
        return (min(edge, end) if closed else edge) - first.begin

    def _gathered(self, wanted: float, room: int) -> tuple[list[Piece], float, float, int]:
        """Inspect the pieces of the next batch without taking them."""
        pieces: list[Piece] = []
        cost = nbytes = 0.0
        size, at = 0, self._ready[0].begin
        for read in self._ready:
            if read.begin != at or cost >= wanted or size >= room:
                break
            here = min(read.size, room - size)
            if read.costs is None:
                here = min(here, max(1, math.ceil(wanted - cost)))
                found = float(here)
            else:
                fits = packed(read.costs[:here], wanted - cost)
                if pieces and sum(read.costs[:1]) > wanted - cost:
                    break
                here, found = fits, sum(read.costs[:fits])
            pieces.append(_first(read.piece, here, read.size))
            cost, nbytes, size, at = cost + found, nbytes + here * read.item_bytes, size + here, at + here
            if here < read.size:
                break
        return pieces, cost, nbytes, size

    def _drop(self, size: int) -> None:
        while size:
            read = self._ready[0]
            here = min(size, read.size)
            size -= here
            if here == read.size:
                self._ready.popleft()
                continue
            piece = Piece(cut(read.piece.records, here, read.size), read.piece.file, read.piece.row + here)
            costs = None if read.costs is None else read.costs[here:]
            self._ready[0] = _Read(read.begin + here, piece, read.size - here, read.item_bytes, costs)

    def _read(self) -> None:
        try:
            begin = self._first_open()
            for piece in self._source.read(begin):
                size = count(piece.records)
                for low, high in self._open_runs(begin, begin + size):
                    if not self._put(low, _between(piece, low - begin, high - begin)):
                        return
                begin += size
            self.items = begin
        except BaseException as error:  # noqa: BLE001  told by who takes
            self.trouble = error
        finally:
            with self._more:
                self._ended = True
            self._woken()

    def _put(self, begin: int, piece: Piece) -> bool:
        """Add a piece in cuts of a bounded size; False once closed."""
        size = count(piece.records)
        item_bytes = size_bytes(piece.records) / size
        step = max(1, min(_PIECE_ITEMS, int(_PIECE_BYTES / max(item_bytes, 1.0)))) if self._cost else size
        for low in range(0, size, step):
            part = _between(piece, low, min(size, low + step))
            found = count(part.records)
            costs = None if self._cost is None else [max(1e-9, float(self._cost(one))) for one in _each(part.records)]
            with self._more:
                self._more.wait_for(lambda: self._closed or self._held_bytes < self._bound_bytes)
                if self._closed:
                    return False
                self._ready.append(_Read(begin + low, part, found, item_bytes, costs))
                self._held_bytes += found * item_bytes
                self._buffered += found
                self._costs_read[0] += found
                self._costs_read[1] += found if costs is None else sum(costs)
            self._woken()
        return True

    def _first_open(self) -> int:
        begin = 0
        for low, high in self._done:
            if low > begin:
                break
            begin = max(begin, high)
        return begin

    def _open_runs(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of items from begin to end that are not done."""
        at = max(0, bisect_right(self._done, (begin, math.inf)) - 1)
        for low, high in self._done[at:]:
            if low >= end:
                break
            if low > begin:
                yield begin, low
            begin = max(begin, high)
        if begin < end:
            yield begin, end


def _fitting(read: _Read, wanted: float) -> tuple[int, float]:
    """Return how many of the last items of a piece make a batch of about this cost, and their cost; at least one."""
    if read.costs is None:
        here = min(read.size, max(1, math.ceil(wanted)))
        return here, float(here)
    here = packed(read.costs[::-1], wanted)
    return here, sum(read.costs[read.size - here :])


def _between(piece: Piece, begin: int, end: int) -> Piece:
    if begin == 0 and end == count(piece.records):
        return piece
    return Piece(cut(piece.records, begin, end), piece.file, piece.row + begin)


def _first(piece: Piece, size: int, of: int) -> Piece:
    return piece if size == of else Piece(cut(piece.records, 0, size), piece.file, piece.row)


def _each(records: Records) -> Iterator[object]:
    if isinstance(records, dict):
        return (cut(records, place, place + 1) for place in range(count(records)))
    if hasattr(records, "to_pylist"):
        return iter(records.to_pylist())
    return iter(records)
