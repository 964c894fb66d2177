"""Records in bulk, merges, reading ahead: values in, values out."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.batch.availability import HostLoad, OtherUsers, host_load
from hetero.batch.base import Place
from hetero.batch.merges import Fold, Mean, Merge, Sum, check_associative
from hetero.batch.outcome import BatchOutcome
from hetero.batch.reader import ItemBatch, Reader
from hetero.batch.records import count, cut, is_records, joined, size_bytes, without
from hetero.batch.sources import ArraySource, GeneratorSource, SequenceSource
from hetero.errors import BadValueError, HeteroError

FORMS: list[Callable[[int], Any]] = [
    lambda n: list(range(n)),
    lambda n: np.arange(3 * n).reshape(n, 3),
    lambda n: {"a": np.arange(n), "b": [str(x) for x in range(n)]},
]


@pytest.mark.parametrize("make", FORMS)
@given(edges=st.lists(st.integers(0, 20), max_size=4))
def test_records_that_are_cut_and_joined_are_the_same_records(make: Callable[[int], Any], edges: list[int]) -> None:
    whole = make(20)
    places = [0, *sorted(edges), 20]
    pieces = [cut(whole, low, high) for low, high in itertools.pairwise(places)]
    assert sum(map(count, pieces)) == 20
    assert repr(joined(pieces)) == repr(whole)


def test_records_without_some_keep_the_others_in_order() -> None:
    assert without([0, 1, 2, 3], [0, 3]) == [1, 2]
    assert without([0, 1], [0, 1]) == []
    np.testing.assert_array_equal(without(np.arange(5), [2]), [0, 1, 3, 4])


@pytest.mark.parametrize("value", [7, "text", None, {}, {"a": 1}, np.float64(3.0)])
def test_what_cannot_be_counted_is_no_run_of_records(value: Any) -> None:
    assert not is_records(value)
    with pytest.raises(BadValueError, match="is no batch of records"):
        count(value)


@pytest.mark.parametrize("runs", [[[1], np.ones(1)], [np.ones((1, 2)), np.ones((1, 3))], [{"a": [1]}, {"b": [1]}], []])
def test_records_of_several_forms_do_not_go_together(runs: list[Any]) -> None:
    with pytest.raises(BadValueError):
        joined(runs)


def test_the_size_of_a_list_is_told_from_some_of_its_records() -> None:
    assert size_bytes([np.zeros(1000)] * 1000) == pytest.approx(8e6, rel=0.01)


def splits(end: int, edges: list[int]) -> list[tuple[int, int]]:
    places = [0, *sorted({edge for edge in edges if 0 < edge < end}), end]
    return list(itertools.pairwise(places))


@pytest.mark.parametrize("merge", [Sum(), Mean(), Fold(lambda a, b: a + b)])
@given(edges=st.lists(st.integers(1, 99), max_size=9), swapped=st.booleans())
def test_a_merge_gives_the_same_bits_however_the_items_are_cut(merge: Merge, edges: list[int], swapped: bool) -> None:
    values = np.random.default_rng(3).standard_normal(100) * 10.0 ** np.arange(-50, 50)
    whole = merge.finish(merge.start(values, 0, 100))
    states = [merge.start(values[low:high], low, high) for low, high in splits(100, edges)]
    total = None
    for state in reversed(states) if swapped else states:
        total = state if total is None else merge.combine(total, state)
    assert merge.finish(total) == whole


def test_missing_items_are_left_out_of_a_merge() -> None:
    state = Mean().start(np.array([1.0, 3.0]), 0, 4, missing=(1, 2))
    nothing = Mean().start(None, 4, 6)
    assert Mean().finish(Mean().combine(state, nothing)) == 2.0
    assert Mean().finish(nothing) is None
    assert Sum().finish(Sum().start(np.array([[1, 2]]), 0, 1)).tolist() == [1, 2]


def test_a_merge_that_is_not_associative_is_refused() -> None:
    check_associative(lambda a, b: a + b, 0.1, 0.2, 0.3)
    with pytest.raises(BadValueError, match="not associative"):
        check_associative(lambda a, b: a - b, 1.0, 2.0, 3.0)


def read_all(reader: Reader, wanted: float) -> Iterator[ItemBatch]:
    while not reader.exhausted:
        batch = reader.take(wanted, hungry=False)
        if batch is not None:
            yield batch


@given(
    sizes=st.integers(1, 40),
    part=st.integers(1, 50),
    gaps=st.lists(st.tuples(st.integers(0, 99), st.integers(1, 20)), max_size=3),
)
def test_batches_cover_what_is_not_done_and_never_cross_a_part(
    sizes: int, part: int, gaps: list[tuple[int, int]]
) -> None:
    done: list[tuple[int, int]] = []
    for begin, length in sorted(gaps):
        if not done or begin >= done[-1][1]:
            done.append((begin, min(100, begin + length)))
    reader = Reader(SequenceSource(range(100)), part, done, 1 << 20, None, lambda: None)
    found = list(read_all(reader, sizes))
    reader.close()
    items = [item for batch in found for item in batch.records]
    assert items == [item for item in range(100) if not any(low <= item < high for low, high in done)]
    assert all(batch.begin // part == (batch.end - 1) // part and len(batch) <= sizes for batch in found)


def test_a_reader_reads_no_further_than_its_bound() -> None:
    made = []

    def numbers() -> Iterator[bytes]:
        for number in range(1000):
            made.append(number)
            yield bytes(10_000)

    reader = Reader(GeneratorSource(numbers), 1000, [], 200_000, None, lambda: None)
    for _ in range(3):
        assert threading.Event().wait(0.05) is False
        assert len(made) < 300
    reader.close()
    assert reader.trouble is None


def test_a_record_is_told_by_its_place_also_in_half_a_batch() -> None:
    reader = Reader(ArraySource(np.arange(100), "some.npy"), 1000, [(0, 10)], 1 << 20, None, lambda: None)
    batch = next(read_all(reader, 16))
    reader.close()
    assert batch.place(batch.begin + 3) == Place("some.npy", 13)
    assert batch.halves()[1].place(18) == Place("some.npy", 18)
    assert str(batch.place(12)) == "some.npy[12]"


def test_a_plain_generator_cannot_be_read_twice() -> None:
    source = GeneratorSource(x for x in range(3))
    assert source.peek() is not None
    assert [record for piece in source.read() for record in piece.records] == [0, 1, 2]
    with pytest.raises(HeteroError, match="cannot begin again"):
        list(source.read())


@pytest.mark.parametrize(("length", "words"), [(5, "ended after 3 of 5"), (2, "gave more than the 2")])
def test_a_generator_that_gives_another_number_than_it_said_is_told(length: int, words: str) -> None:
    with pytest.raises(HeteroError, match=words):
        list(GeneratorSource(lambda: range(3), length).read())


@pytest.mark.parametrize(
    ("busy_s", "own_s", "left"), [(8.0, 8.0, 1.0), (8.0, 2.0, 0.25), (8.0, 0.0, 0.1), (2.0, 3.0, 1.0), (3.0, 1.0, 0.75)]
)
def test_the_share_that_others_leave_is_what_they_did_not_use(busy_s: float, own_s: float, left: float) -> None:
    loads, times = (
        iter([HostLoad(10.0, 5.0, 1.0, 4), HostLoad(12.0, 5.0 + busy_s, 1.0 + own_s, 4)]),
        iter([10.0, 10.1, 12.0]),
    )
    neighbours = OtherUsers(lambda: next(loads), lambda: next(times))
    assert [neighbours.left_frac() for _ in range(3)] == pytest.approx([1.0, 1.0, left])


def test_the_load_of_this_host_grows() -> None:
    first, second = host_load(), host_load()
    assert second.at_s >= first.at_s
    assert second.busy_s >= first.busy_s
    assert first.cores >= 1


def test_the_former_name_of_an_outcomes_devices_still_works_and_warns() -> None:
    outcome = BatchOutcome(None, 0, 0, (), 0.0, ())
    with pytest.warns(DeprecationWarning, match="BatchOutcome.devices"):
        assert outcome.lanes == outcome.devices
