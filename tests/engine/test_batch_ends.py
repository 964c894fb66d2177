"""Devices that work from both ends of what is left, on real workers."""

from __future__ import annotations

import threading
import time

import hetero
from hetero.batch.options import BatchOptions
from hetero.batch.reader import Reader
from hetero.batch.sources import SequenceSource
from hetero.plan.batch.planner import Span

PATIENCE_S = 120.0


def read(records: list[int], part_items: int = 1000, cost: bool = False) -> Reader:
    """Return a reader that has read all of its source."""
    ended = threading.Event()
    reader = Reader(SequenceSource(records), part_items, (), 1 << 20, float if cost else None, ended.set)
    until_s = time.monotonic() + PATIENCE_S
    while not reader._ended and time.monotonic() < until_s:
        ended.wait(0.1)
    return reader


def test_the_first_batch_of_a_device_that_is_dead_slow_is_done_with_the_last_one_of_the_other() -> None:
    def work(batch: list[int]) -> list[tuple[int, int]]:
        device = hetero.get_current_device().index
        time.sleep(PATIENCE_S if device else 0.05)
        return [(device, len(batch))] * len(batch)

    with hetero.Context(devices="2xcpu", history=False) as ctx:
        outcome = ctx.map_batches(work, range(60), options=BatchOptions(learn=False))
    assert {device for device, _ in outcome.value} == {0}
    assert outcome.value[-1] == outcome.value[-2]
    assert outcome.value[-1][1] > 1
    assert outcome.devices[1].items == 0


def test_batches_from_both_ends_and_one_that_is_given_back_hold_each_record_once() -> None:
    reader = read(list(range(10)))
    front, back = reader.take(2, hungry=True), reader.take(3, hungry=True, back=True)
    assert front is not None
    assert back is not None
    assert (front.begin, front.end, back.begin, back.end) == (0, 2, 7, 10)
    assert back.records == [7, 8, 9]
    assert reader.span == Span(2, 7)
    reader.give_back(back)
    assert (reader.span, reader.left) == (Span(2, 10), 8)
    rest = reader.take(100, hungry=True)
    assert rest is not None
    assert rest.records == list(range(2, 10))
    assert reader.exhausted
    reader.close()


def test_a_batch_is_given_back_to_the_front_as_well() -> None:
    reader = read(list(range(10)))
    front = reader.take(4, hungry=True)
    assert front is not None
    reader.give_back(front)
    again = reader.take(10, hungry=True)
    assert again is not None
    assert again.records == list(range(10))
    reader.close()


def test_the_last_records_are_packed_by_their_cost() -> None:
    reader = read([1, 1, 1, 5, 2, 2], cost=True)
    batch = reader.take(4.0, hungry=True, back=True)
    assert batch is not None
    assert (batch.records, batch.cost) == ([2, 2], 4.0)
    single = reader.take(4.0, hungry=True, back=True)
    assert single is not None
    assert (single.records, single.cost) == ([5], 5.0)
    reader.give_back(single)
    assert reader.left == 8.0
    reader.close()


def test_nobody_works_from_the_back_while_what_is_left_has_two_parts() -> None:
    reader = read(list(range(10)), part_items=5)
    batch = reader.take(3, hungry=True, back=True)
    assert batch is not None
    assert (reader.span, batch.records) == (None, [0, 1, 2])
    reader.close()
