"""Room in shared memory that a worker is lent before it asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from hetero.engines.shared.memory_pool import AHEAD, Arena, Rooms
from hetero.engines.shared.wire import Frames, Wire, frame

POOL_BYTES = 1 << 20
SIZE = 100_000


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(POOL_BYTES, lambda text: None, Counter())
    yield arena
    arena.close()


@pytest.fixture
def rooms(arena: Arena) -> Rooms:
    """Return the rooms of a worker that has returned one result of `f`."""
    rooms = Rooms(arena, lambda payload: None)
    places = rooms.lend(1, [SIZE], "f")
    assert isinstance(places, list)
    rooms.close(1, Wire(b"", tuple(places)), "f")
    return rooms


def test_an_attempt_is_lent_room_for_a_result_like_the_last_one_of_its_function(rooms: Rooms) -> None:
    assert [place.nbytes for place in rooms.lend_ahead(2, "f")] == [SIZE]
    assert rooms.lend_ahead(3, "another") == []


def test_no_more_attempts_have_room_ahead_than_run_and_wait(rooms: Rooms) -> None:
    assert [bool(rooms.lend_ahead(lease, "f")) for lease in range(2, 5)] == [True] * AHEAD + [False]


def test_room_that_an_attempt_did_not_use_goes_back_and_is_not_lent_again(arena: Arena, rooms: Rooms) -> None:
    rooms.lend_ahead(2, "f")
    assert rooms.close(2, Wire(b"small"), "f") is not None
    assert arena.usage().used_bytes == 0
    assert rooms.lend_ahead(3, "f") == []


def test_room_of_an_attempt_that_failed_goes_back_and_is_lent_to_the_next(arena: Arena, rooms: Rooms) -> None:
    rooms.lend_ahead(2, "f")
    assert rooms.close(2) is None
    assert arena.usage().used_bytes == 0
    assert rooms.lend_ahead(3, "f")


def test_no_room_is_lent_ahead_where_less_than_half_of_the_pool_would_stay_free(arena: Arena, rooms: Rooms) -> None:
    block = arena.take(POOL_BYTES // 2 - SIZE // 2)
    assert rooms.lend_ahead(2, "f") == []
    del block
    assert rooms.lend_ahead(2, "f")


def test_what_two_buffers_need_is_lent_whole_or_not_at_all(arena: Arena) -> None:
    rooms = Rooms(arena, lambda payload: None)
    places = rooms.lend(1, [SIZE, POOL_BYTES // 2], "f")
    assert isinstance(places, list)
    rooms.close(1, Wire(b"", tuple(places)), "f")
    assert rooms.lend_ahead(2, "f") == []
    assert arena.usage().used_bytes == 0


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
