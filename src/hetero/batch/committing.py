"""Each item once: results become parts, parts go to the sink, and what is no whole part yet survives a crash.

In: results of batches, in whatever order they end. Out: calls of a sink, in a thread of their own.
It must not take a second result for an item.
"""

from __future__ import annotations

import pickle
import threading
from bisect import insort
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hetero.batch.base import BadRecord, Found, Job, Part, Sink
from hetero.batch.merges import Merge
from hetero.batch.records import size_bytes
from hetero.floor.clock import monotonic_s
from hetero.floor.errors import HeteroError
from hetero.stores.files import FileStore, ForeignFileError

__all__ = ["Committer", "Entry", "Journal", "MergeSink"]

_WORTH_WRITING = 4.0
_FIRST_GUESS_BYTES_PER_S = 100e6
_SYNC_S = 5e-3


class Entry(NamedTuple):
    """What some consecutive items gave.

    Attributes
    ----------
    begin, end
        The items.
    results
        Theirs, None where all are bad.
    bad
        Records without a result.
    """

    begin: int
    end: int
    results: object
    bad: tuple[BadRecord, ...]


class Journal:
    """Batches on disk until their part is written.

    Parameters
    ----------
    folder
        Of this run alone.

    Notes
    -----
    A batch that took less than four times as long as writing it would is not written: it is done again.
    """

    def __init__(self, folder: Path) -> None:
        self._store = FileStore(folder, own_only=True)
        self._bytes_per_s = _FIRST_GUESS_BYTES_PER_S

    def worth(self, seconds: float, nbytes: int) -> bool:
        """Return whether a batch is dearer to compute than to write."""
        return seconds > _WORTH_WRITING * (_SYNC_S + nbytes / self._bytes_per_s)

    def put(self, entry: Entry) -> None:
        """Write a batch."""
        data = pickle.dumps(entry, protocol=5)
        begin_s = monotonic_s()
        self._store.put(_key(entry.begin), data)
        fresh = len(data) / max(1e-6, monotonic_s() - begin_s - _SYNC_S)
        self._bytes_per_s = 0.5 * (self._bytes_per_s + min(fresh, 10 * _FIRST_GUESS_BYTES_PER_S))

    def entries(self) -> list[Entry]:
        """Return all batches that are there and sound, in order; raises ForeignFileError for another user's."""
        found = []
        for key in self._store.list():
            try:
                data = self._store.get(key)
            except ForeignFileError:
                raise
            except HeteroError:
                self._store.delete(key)
                continue
            if data is not None:
                found.append(pickle.loads(data))
        return found

    def get(self, begin: int) -> object:
        """Return the results of the batch that begins with an item."""
        data = self._store.get(_key(begin))
        assert data is not None, "a batch is dropped only after its part was written"
        return pickle.loads(data).results

    def drop(self, begins: list[int]) -> None:
        """Remove batches whose part is written."""
        for begin in begins:
            self._store.delete(_key(begin))


def _key(begin: int) -> str:
    return f"{begin:015d}"


class MergeSink(Sink):
    """Combines the states of parts into one value; each part's state is kept where there is a folder.

    Parameters
    ----------
    folder
        For runs that resume, None to keep nothing.
    """

    def __init__(self, merge: Merge, folder: Path | None) -> None:
        self._merge = merge
        self._folder = folder
        self._states: dict[int, object] = {}
        self._bad: list[BadRecord] = []

    @property
    def journal(self) -> Path | None:
        """Beside the states of the parts."""
        return None if self._folder is None else self._folder / "batches"

    def open(self, job: Job, found: Found) -> dict[int, int]:
        """Read the states of an earlier run of the same job; those of another one are dropped."""
        if self._folder is None:
            return {}
        store = FileStore(self._folder / "states", own_only=True)
        head = store.get("job")
        if head != job.key.encode() or found == "overwrite":
            for key in (*store.list(), *FileStore(self._folder / "batches").list()):
                store.delete(key)
                FileStore(self._folder / "batches").delete(key)
            store.put("job", job.key.encode())
        ends: dict[int, int] = {}
        for key in store.list("part"):
            data = store.get(key)
            if data is not None:
                number, ends[number], state, bad = pickle.loads(data)
                self._states[number] = state
                self._bad += bad
        return ends

    def bad(self) -> tuple[BadRecord, ...]:
        """Return the bad records of the states that were there."""
        return tuple(self._bad)

    def write(self, part: Part) -> None:
        """Combine the states of a part."""
        state = part.results[0]
        for other in part.results[1:]:
            state = self._merge.combine(state, other)
        self._states[part.number] = state
        if self._folder is not None:
            data = pickle.dumps((part.number, part.end, state, part.bad))
            FileStore(self._folder / "states").put(f"part-{part.number}", data)

    def close(self) -> object:
        """Return the value of all parts; what was kept for resuming goes."""
        import shutil

        state: object = None
        for number in sorted(self._states):
            state = self._states[number] if state is None else self._merge.combine(state, self._states[number])
        if state is None:
            state = self._merge.start(None, 0, 0)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        return self._merge.finish(state)


@dataclass(slots=True)
class _OpenPart:
    """A part of which not every item has its result."""

    entries: list[Entry] = field(default_factory=list)
    items: int = 0
    journaled: list[int] = field(default_factory=list)


class Committer:
    """Takes each item's result once, makes parts of them, and hands the parts to the sink.

    Parameters
    ----------
    ordered
        True gives the sink part after part where it does not keep them by number itself.
    spill
        True keeps results on disk rather than in memory until their part is whole.

    Attributes
    ----------
    bad
        Records without a result, of this run and of the one that it resumes.
    held_bytes
        Of results that no part took yet.
    """

    def __init__(self, sink: Sink, job: Job, journal: Journal | None, ordered: bool, spill: bool) -> None:
        self._sink, self._job, self._journal, self._spill = sink, job, journal, spill
        self._in_order = ordered and not sink.durable
        self._open: dict[int, _OpenPart] = {}
        self._whole: dict[int, Part] = {}
        self._next = 0
        self._skipped: set[int] = set()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="hetero-writer")
        self._writes: list[Future[None]] = []
        self._lock = threading.Lock()
        self.bad: list[BadRecord] = []
        self.held_bytes = 0

    def resume(self, parts: Mapping[int, int]) -> list[tuple[int, int]]:
        """Take over what an earlier run did; returns (begin, end) of the items that are done, ascending."""
        size = self._job.part_items
        self._skipped = set(parts)
        self.bad += self._sink.bad()
        done = [(number * size, parts[number]) for number in sorted(parts)]
        for entry in self._journal.entries() if self._journal is not None else ():
            if entry.begin // size in parts:
                continue
            insort(done, (entry.begin, entry.end))
            self._add(entry, journaled=True)
        return done

    def take(self, entry: Entry, seconds: float) -> None:
        """Take the results of some items; `seconds` is what they took."""
        nbytes = 0 if entry.results is None else size_bytes(entry.results)
        journaled = self._journal is not None and (self._spill or self._journal.worth(seconds, nbytes))
        if journaled:
            assert self._journal is not None
            self._later(self._journal.put, entry)
        self._add(entry, journaled)

    def _add(self, entry: Entry, journaled: bool) -> None:
        number = entry.begin // self._job.part_items
        part = self._open.setdefault(number, _OpenPart())
        part.items += entry.end - entry.begin
        self.bad += entry.bad
        if journaled:
            part.journaled.append(entry.begin)
        if self._spill and journaled and entry.results is not None:
            entry = entry._replace(results=_SPILLED)
        elif entry.results is not None:
            self._hold(size_bytes(entry.results))
        insort(part.entries, entry, key=lambda each: each.begin)
        if part.items == self._size(number):
            self._finish(number)

    def _size(self, number: int) -> int:
        whole = self._job.part_items
        return whole if self._job.length is None else min(whole, self._job.length - number * whole)

    def _finish(self, number: int) -> None:
        part = self._open[number]
        bad = tuple(record for entry in part.entries for record in entry.bad)
        results = [entry for entry in part.entries if entry.results is not None]
        whole = Part(number, part.entries[0].begin, part.entries[-1].end, results, bad)
        if not self._in_order:
            self._hand_over(whole)
            return
        self._whole[number] = whole
        while self._next in self._whole or self._next in self._skipped:
            if self._next in self._whole:
                self._hand_over(self._whole.pop(self._next))
            self._next += 1

    def _hand_over(self, part: Part) -> None:
        journaled = self._open.pop(part.number).journaled
        self._later(self._write, part, journaled)

    def _write(self, part: Part, journaled: list[int]) -> None:
        results = [self._loaded(entry) for entry in part.results]
        self._sink.write(Part(part.number, part.begin, part.end, results, part.bad))
        self._hold(-sum(size_bytes(entry.results) for entry in part.results if entry.results is not _SPILLED))
        if self._journal is not None:
            self._journal.drop(journaled)

    def _hold(self, nbytes: int) -> None:
        with self._lock:
            self.held_bytes += nbytes

    def _loaded(self, entry: Entry) -> object:
        if entry.results is not _SPILLED:
            return entry.results
        assert self._journal is not None, "only a journal holds what was spilled"
        return self._journal.get(entry.begin)

    def _later(self, function: Callable[..., None], *args: object) -> None:
        self.check()
        self._writes.append(self._writer.submit(function, *args))

    def check(self) -> None:
        """Raise what a write raised."""
        while self._writes and self._writes[0].done():
            self._writes.pop(0).result()

    @property
    def writing(self) -> int:
        """How many writes are waiting."""
        return sum(not write.done() for write in self._writes)

    def finish(self) -> object:
        """Write the last part of a source of unknown length, wait for the writer, and close the sink."""
        for number in sorted(self._open):
            if number not in self._whole and self._open[number].entries:
                self._finish(number)
        for write in self._writes:
            write.result()
        self._writer.shutdown()
        return self._sink.close()

    def abort(self) -> None:
        """End early: what was handed over is still written."""
        self._writer.shutdown(wait=True)
        self._sink.abort()


_SPILLED = "spilled"
