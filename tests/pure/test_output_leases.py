"""Room in shared memory that a worker is leased before it asks."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hetero.engines.shared.memory_pool import AHEAD, MemoryPool, OutputLeases
from hetero.engines.shared.wire import Frames, WireValue, dump, frame

POOL_BYTES = 1 << 20
SIZE = 100_000


@pytest.fixture
def pool() -> Iterator[MemoryPool]:
    pool = MemoryPool(POOL_BYTES, lambda text: None, Counter())
    yield pool
    pool.close()


@pytest.fixture
def leases(pool: MemoryPool) -> OutputLeases:
    """Return the leases of a worker that has returned one result of `f`."""
    leases = OutputLeases(pool, lambda payload: None)
    places = leases.grant(1, [SIZE], "f")
    assert isinstance(places, list)
    leases.close(1, WireValue(b"", tuple(places)), "f")
    return leases


def test_an_attempt_is_lent_room_for_a_result_like_the_last_one_of_its_function(leases: OutputLeases) -> None:
    assert [place.nbytes for place in leases.grant_ahead(2, "f")] == [SIZE]
    assert leases.grant_ahead(3, "another") == []


def test_no_more_attempts_have_room_ahead_than_run_and_wait(leases: OutputLeases) -> None:
    assert [bool(leases.grant_ahead(lease, "f")) for lease in range(2, 5)] == [True] * AHEAD + [False]


def test_room_that_an_attempt_did_not_use_goes_back_and_is_not_lent_again(
    pool: MemoryPool, leases: OutputLeases
) -> None:
    leases.grant_ahead(2, "f")
    assert leases.close(2, WireValue(b"small"), "f") is not None
    assert pool.usage().used_bytes == 0
    assert leases.grant_ahead(3, "f") == []


def test_room_of_an_attempt_that_failed_goes_back_and_is_lent_to_the_next(
    pool: MemoryPool, leases: OutputLeases
) -> None:
    leases.grant_ahead(2, "f")
    assert leases.close(2) is None
    assert pool.usage().used_bytes == 0
    assert leases.grant_ahead(3, "f")


def test_no_room_is_lent_ahead_where_less_than_half_of_the_pool_would_stay_free(
    pool: MemoryPool, leases: OutputLeases
) -> None:
    block = pool.take(POOL_BYTES // 2 - SIZE // 2)
    assert leases.grant_ahead(2, "f") == []
    del block
    assert leases.grant_ahead(2, "f")


def test_what_two_buffers_need_is_lent_whole_or_not_at_all(pool: MemoryPool) -> None:
    leases = OutputLeases(pool, lambda payload: None)
    places = leases.grant(1, [SIZE, POOL_BYTES // 2], "f")
    assert isinstance(places, list)
    leases.close(1, WireValue(b"", tuple(places)), "f")
    assert leases.grant_ahead(2, "f") == []
    assert pool.usage().used_bytes == 0


@pytest.mark.parametrize("size", [1, 7, 8, 9, 50, 10_000])
def test_messages_come_out_of_a_stream_however_it_is_cut(size: int) -> None:
    messages = [(number, "x" * number * 10) for number in range(6)]
    stream = [frame(message) for message in messages]
    whole = b"".join(stream)
    frames, found = Frames(), []
    for chunk in [*stream, *(whole[start : start + size] for start in range(0, len(whole), size)), *stream]:
        frames.feed(chunk)
        while (message := frames.next()) is not None:
            found.append(message)
    assert found == messages * 3


@pytest.mark.parametrize(
    "values",
    [np.array([1.5, 2.5]), np.arange(6).reshape(2, 3), np.arange(12.0)[::2], np.array(3.0), np.zeros(0), b"abc"],
)
def test_a_view_of_bytes_arrives_with_its_format_and_shape(values: Any) -> None:
    view = memoryview(values)
    body, buffers = dump(view)
    assert body is not None
    found = pickle.loads(body, buffers=buffers)
    assert (found.format, found.shape, found.readonly) == (view.format, view.shape, view.readonly)
    assert found == view


def test_a_view_of_records_is_refused() -> None:
    with pytest.raises(TypeError, match="memoryview of format 'T"):
        dump(memoryview(np.zeros(2, dtype=[("a", "f8"), ("b", "i4")])))
