"""What runs on a worker: one batch through the user's function, checked, and merged where that is wanted.

In: a program that was sent once, the records of a batch. Out: results, and which records have none.
It must not raise for a single bad record that it can name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from hetero.batch.availability import OtherUsers
from hetero.batch.base import WrongResultError
from hetero.batch.functions import Prepared
from hetero.batch.merges import Merge
from hetero.batch.records import Records, count, is_records, is_table, packed, size_bytes, unpacked, without
from hetero.drive.annotations import record_loaded
from hetero.drive.throttle import idle_s
from hetero.floor.clock import monotonic_s, sleep

__all__ = ["BatchProgram", "Done", "PackedProgram", "packed_work", "run_batch"]


@dataclass(frozen=True, slots=True)
class BatchProgram:
    """What a worker does with each batch.

    Attributes
    ----------
    function
        Made ready once a worker.
    load
        Turns what travelled into records, None where they travel as they are.
    merge
        Combines the results here, None to send them back.
    same_count
        True where each record must have one result.
    check_finite
        True sets records aside whose results are not finite.
    share_frac
        Of the device's time that may be taken; it rests after each batch.
    follow
        True takes no more than others leave of the host.
    """

    function: Prepared
    load: Callable[..., object] | None = None
    merge: Merge | None = None
    same_count: bool = True
    check_finite: bool = False
    share_frac: float = 1.0
    follow: bool = False


class PackedProgram(NamedTuple):
    """A program as it travels: its run, its name, and its bytes as an array, which workers map and do not copy."""

    run: str
    key: str
    payload: NDArray[np.uint8]


class Done(NamedTuple):
    """What a batch gave.

    Attributes
    ----------
    results
        Of the records, or the merge's state; None where every record is bad.
    bad
        Place in the batch and reason of records without a result.
    seconds
        Seconds, that the function took.
    cold
        True for the first batch of this worker.
    raw_bytes, home_bytes
        Of the results before they were merged, and of what is sent.
    computed_in
        In what a model computed, '' where it is a function.
    """

    results: object
    bad: tuple[tuple[int, str], ...]
    seconds: float
    cold: bool
    raw_bytes: int
    home_bytes: int
    computed_in: str = ""


_kept: dict[str, dict[str, tuple[BatchProgram, Callable[..., object]]]] = {}
_neighbours = OtherUsers()
_FLOATS = ("halffloat", "float", "double")


def packed_work(run: str, key: str, program: BatchProgram) -> PackedProgram:
    """Pack a program for its journey."""
    return PackedProgram(run, key, np.frombuffer(cloudpickle.dumps(program), dtype=np.uint8))


def run_batch(work: PackedProgram, records: object, begin: int) -> Done:
    """Run the function over a batch; runs as a task.

    Parameters
    ----------
    begin
        Number of the first item.
    """
    from hetero.session.task_api import get_current_device

    device = get_current_device()
    kept = _kept.setdefault(device.id, {})
    cold = work.key not in kept
    if cold:
        for other in [key for key in kept if not key.startswith(work.run)]:
            del kept[other]
        loaded_program: BatchProgram = cloudpickle.loads(work.payload.tobytes())
        kept[work.key] = loaded_program, loaded_program.function.for_device(device)
        record_loaded()
    program, function = kept[work.key]
    records = unpacked(records)
    begin_s = monotonic_s()
    loaded = records if program.load is None else program.load(records)
    results = _as_records(function(loaded), count(records), program)
    seconds = monotonic_s() - begin_s
    share_frac = min(program.share_frac, _neighbours.left_frac()) if program.follow else program.share_frac
    if share_frac < 1.0:
        sleep(idle_s(share_frac, seconds))
    bad = _not_finite(results) if program.check_finite else ()
    good = without(results, [place for place, _ in bad]) if bad else results
    nbytes = size_bytes(good)
    return _merged(
        program,
        Done(good, bad, seconds, cold, nbytes, nbytes, getattr(function, "computed_in", "")),
        begin,
        count(records),
    )


def _merged(program: BatchProgram, done: Done, begin: int, expected: int) -> Done:
    if program.merge is None:
        return done._replace(results=packed(done.results))
    gone = [begin + place for place, _ in done.bad]
    results = None if len(gone) == expected else done.results
    state = program.merge.start(results, begin, begin + expected, gone)
    return done._replace(results=state, home_bytes=size_bytes(state))


def _as_records(results: object, expected: int, program: BatchProgram) -> object:
    """Return the results in a form that can be counted, cut and sent."""
    found = results.detach().cpu().numpy() if hasattr(results, "detach") else results
    if not is_records(found):
        raise WrongResultError(
            f"the function gave a {type(results).__name__} for a batch of {expected}",
            remedy="return a list, an array, a dict of arrays or a table with one entry a record",
        )
    if program.same_count and count(found) != expected:
        raise WrongResultError(
            f"the function gave {count(found)} results for {expected} records",
            remedy="return one for each, or say same_count=False",
        )
    return found


def _columns(results: Records) -> Iterable[object]:
    """Return what may hold numbers; what is null in a table is absent, not NaN."""
    if isinstance(results, dict):
        return tuple(results.values())
    if not is_table(results):
        return (results,)
    return [np.asarray(column.fill_null(0)) for column in results.columns if str(column.type) in _FLOATS]


def _not_finite(results: object) -> tuple[tuple[int, str], ...]:
    """Return the places of results that hold NaN or an infinity."""
    reasons: dict[int, str] = {}
    for column in _columns(results):
        for place, word in _words(column):
            reasons.setdefault(place, f"the result holds {word}")
    return tuple(sorted(reasons.items()))


def _words(column: object) -> Iterable[tuple[int, str]]:
    """Return place and word of the entries of a column that are not finite."""
    if isinstance(column, list):
        return [(place, word) for place, entry in enumerate(column) if (word := _word(entry))]
    if not isinstance(column, np.ndarray) or not len(column):
        return ()
    if column.dtype.hasobject:
        return _words(column.tolist())
    if column.dtype.kind not in "fc":
        return ()
    wrong = np.flatnonzero(~np.isfinite(column.reshape(len(column), -1)).all(axis=1))
    return [(place, _word(column[place])) for place in wrong.tolist()]


def _word(entry: object) -> str:
    """Return what is wrong with a value, however deep: 'NaN', 'an infinity', or '' where it is finite."""
    if isinstance(entry, float):
        return "" if math.isfinite(entry) else "NaN" if math.isnan(entry) else "an infinity"
    if isinstance(entry, dict):
        return _first_word(entry.values())
    if isinstance(entry, list | tuple):
        return _first_word(entry)
    values = np.asarray(entry) if isinstance(entry, np.ndarray | np.generic | complex) else np.zeros(0)
    if values.dtype.kind not in "fc" or np.isfinite(values).all():
        return ""
    return "NaN" if np.isnan(values).any() else "an infinity"


def _first_word(entries: Iterable[object]) -> str:
    return next((word for entry in entries if (word := _word(entry))), "")
