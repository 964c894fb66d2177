"""The two interfaces of bulk work: where records come from, and where results go.

In: nothing. Out: `Source` with its pieces and places, `Sink` with its parts.
It must not know a device, a file format or how batches are cut.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from hetero.batch.records import Records
from hetero.floor.errors import HeteroError

__all__ = [
    "BadRecord",
    "BadRecordsError",
    "EnergyLimitError",
    "Found",
    "Job",
    "Part",
    "Piece",
    "Place",
    "PriceLimitError",
    "Sink",
    "Source",
    "TimeLimitError",
    "WrongResultError",
]

Found = Literal["refuse", "resume", "overwrite"]
"""What to do where a sink holds something already."""


class Place(NamedTuple):
    """Where a record stands in its source, for people.

    Attributes
    ----------
    file
        Name of the file, path or URL; 'items' where there is no file.
    row
        Number of the record in it, from 0.
    """

    file: str
    row: int

    def __str__(self) -> str:
        return f"{self.file}[{self.row}]"


class Piece(NamedTuple):
    """A run of consecutive records, as a source reads them: neighbours in one file, so that one place tells all.

    Attributes
    ----------
    records
        At least one; a list, an array, a dict of arrays of one length, or an Arrow table Whatever
        `hetero.batch.records` can count, cut and join. The function gets a cut of it as its batch.
    file
        That they come from, as in `Place`.
    row
        Of the first one in that file, from 0.
    """

    records: object
    file: str
    row: int


class Source(ABC):
    """Numbered records in a fixed order: item 0, item 1, … the same ones each time that it is read.

    A source is made without reading records: a missing file, an empty folder or mixed schemas are refused when
    it is made, as a `BadValueError` that names the file. It is read by one thread at a time, in that thread, and
    may be read several times, each time from another item on.

    Attributes
    ----------
    load
        None, or a function of a cut of `Piece.records` that gives the records which the user's function gets It runs
        on the device's worker, so that opening and decoding files is shared among the devices; it must travel (a
        module-level function, or a frozen value with `__call__`). What it raises blames its records as what the
        function raises does: they are found one by one and set aside with their places.
    """

    load: Callable[..., object] | None = None

    @property
    @abstractmethod
    def length(self) -> int | None:
        """How many records there are, None where only reading to the end would tell."""

    @abstractmethod
    def identity(self) -> str:
        """Name what is read, so that a run which is resumed can see that it is the same.

        Files by path (as given), size and time of change, a bucket's objects by their tags, an array by its
        shape and type; whatever changes when the records could be others. The same in every process.
        """

    @abstractmethod
    def read(self, begin: int = 0) -> Iterator[Piece]:
        """Return the records from item `begin` on, in order, as pieces of whatever size is cheap.

        Parameters
        ----------
        begin
            >= 0; records before it must be skipped as cheaply as the format allows (a file's footer tells its rows, an
            array is sliced, a generator is drained); from `length` on there are none.

        Notes
        -----
        A piece is a view of what was read where the format allows it; cutting it must not copy. Between two
        pieces a source holds no more than it needs to make the next: who reads bounds the memory by reading no
        further. The iterator may be closed before its end, and then lets go of its files. A file that changed,
        ended early or cannot be read raises a HeteroError with its name and the row that was reached.
        """

    def peek(self) -> Piece | None:
        """Return the first piece, or the beginning of it, without using it up; None where the source is empty.

        Examples
        --------
        >>> from hetero.batch.registry import source_of
        >>> source_of([1, 2, 3]).peek().records
        [1, 2, 3]
        """
        return next(iter(self.read(0)), None)


class BadRecord(NamedTuple):
    """A record that has no result.

    Attributes
    ----------
    item
        Its number in the source.
    place
        Where it stands there.
    reason
        Why, in one line: the exception's type and message, or what is wrong with the result.
    """

    item: int
    place: Place
    reason: str

    def as_dict(self) -> dict[str, object]:
        """Return one line of the quarantine file."""
        return {"item": self.item, "file": self.place.file, "row": self.place.row, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Job:
    """What a sink is opened for.

    Attributes
    ----------
    key
        Names function, source and options: parts of another key were written by another job.
    part_items
        How many items of the source make a part; the last one may have fewer.
    length
        Items of the source, None where unknown.
    source
        Its identity, so that a message can say that it changed.
    """

    key: str
    part_items: int
    length: int | None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """The results of a fixed run of items: part n is of the items from n · part_items on.

    Attributes
    ----------
    number
        From 0.
    begin, end
        The items it is of, end excluded.
    results
        What the function gave for the part's batches, in the order of the items Where batches were cut differs from
        run to run: a sink writes the same bytes for the same records, however they are cut. Bad records are absent
        from them. May be empty.
    bad
        The records of these items that have no result, in the order of the items.
    """

    number: int
    begin: int
    end: int
    results: Records
    bad: tuple[BadRecord, ...] = ()


class Sink(ABC):
    """Where results go, part by part: each part is there whole or not at all, and once.

    Its methods are called by one thread at a time: `open`, then `write` once for each part that `open` did not
    give, then `close`, or `abort` where the run ends early.

    Attributes
    ----------
    durable
        True where parts outlive the process, so that `open` finds them again.
    part_bytes
        How large a part should be, in bytes of the source's records; `Job.part_items` follows from it.
    """

    durable: ClassVar[bool] = False
    part_bytes: int = 64 << 20

    @abstractmethod
    def open(self, job: Job, found: Found) -> dict[int, int]:
        """Prepare, and give the parts that are there from an earlier run of the same job.

        Returns
        -------
        dict
            By number of the part the item after its last one, which is less than (number + 1) · part_items only
            for the last part of a source.

        Raises
        ------
        BadValueError
            Something is there and `found` is 'refuse', or it is 'resume' and what is there is of another job:
            the message says what was found and names resume and overwrite.
        """

    @abstractmethod
    def write(self, part: Part) -> None:
        """Take a part, all or nothing; parts come in the order of their numbers unless `ordered` was False.

        Raises
        ------
        HeteroError
            It cannot be written: the disk is full, or results have another schema than those before. What was
            written before stays sound.
        """

    @abstractmethod
    def close(self) -> object:
        """Finish after the last part, and give what the caller gets: the values, or the path written to."""

    def abort(self) -> None:
        """End early: keep what is durable, and let go of the rest."""
        return

    @property
    def journal(self) -> Path | None:
        """The folder where batches may be kept that make no whole part yet, None where they die with the process."""
        return None

    def bad(self) -> tuple[BadRecord, ...]:
        """Return the bad records of the parts that `open` named."""
        return ()


# --- errors -------------------------------------------------------------------------------------------------


class BadRecordsError(HeteroError):
    """More records have no result than the error budget allows."""


class TimeLimitError(HeteroError, TimeoutError):
    """The whole took longer than its limit; what is done is kept where the sink keeps it."""


class PriceLimitError(HeteroError):
    """The whole cost more than its limit; what is done is kept where the sink keeps it."""


class EnergyLimitError(HeteroError):
    """The whole took more energy than its limit; what is done is kept where the sink keeps it."""


class WrongResultError(HeteroError, ValueError):
    """The function gave back something else than one result for each record."""
