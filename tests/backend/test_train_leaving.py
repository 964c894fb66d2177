"""Which batch of a script is in use, and whether a device may go, by the order of calls alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hetero.train.leaving import BatchOrder, call_site  # noqa: E402
from hetero.train.whole_draws import Rows  # noqa: E402

HALF, MORE, LESS = Rows(0, 4, 8), Rows(0, 6, 8), Rows(0, 2, 8)


def fed(order: BatchOrder, source: object, rows: Rows) -> torch.Tensor:
    order.handed(source, rows)
    batch = torch.zeros(rows.count)
    order.holds([batch])
    return batch


def passed(order: BatchOrder, *batches: torch.Tensor) -> None:
    if batches:
        order.given(list(batches))
    order.used()
    order.computed()


def test_a_plain_loop_is_done_with_a_batch_when_it_has_the_next() -> None:
    order = BatchOrder()
    for _ in range(3):
        assert order.is_done("loader") == (not order.sources or order.ahead == 0)
        passed(order, fed(order, "loader", HALF))
    order.ended("loader")
    assert order.sources == []
    assert order.is_done("another")


def test_a_loop_that_skips_batches_fetches_none_ahead() -> None:
    order = BatchOrder()
    kept = [fed(order, "loader", HALF) for _ in range(3)]
    passed(order, kept[-1])
    assert (order.ahead, order.is_seen) == (0, True)


@pytest.mark.parametrize("fetches_first", [False, True])
def test_the_rows_of_a_backward_pass_are_those_of_the_batch_that_the_model_was_given(fetches_first: bool) -> None:
    order = BatchOrder()
    rows, batch = HALF, fed(order, "split", HALF)
    for its_rows in (MORE, LESS, MORE):
        if fetches_first:
            following = fed(order, "split", its_rows)
        order.given([batch])
        if not fetches_first:
            following = fed(order, "split", its_rows)
        order.used()
        assert order.in_use == rows
        order.computed()
        rows, batch = its_rows, following
    assert (order.ahead, order.is_seen) == (1, True)


def test_batches_that_a_model_is_not_given_as_they_are_leave_it_open_which_is_in_use() -> None:
    order = BatchOrder()
    fed(order, "loader", HALF)
    fed(order, "loader", HALF)
    passed(order)
    assert (order.ahead, order.is_seen) == (1, False)


def test_the_last_batch_of_an_epoch_is_known_after_its_end() -> None:
    order = BatchOrder()
    batch = fed(order, "loader", LESS)
    order.ended("loader")
    assert order.given([batch]) == LESS
    passed(order, batch)
    fed(order, "loader", HALF)
    assert order.given([batch]) is None


def test_two_loaders_at_once_are_never_done() -> None:
    order = BatchOrder()
    for _ in range(3):
        passed(order, fed(order, "one", HALF), fed(order, "two", HALF))
        assert not order.is_done("one")
        assert not order.is_done("two")


def test_batches_of_unequal_parts_in_one_pass_are_noticed() -> None:
    order = BatchOrder()
    batches = fed(order, "one", MORE), fed(order, "two", HALF)
    for each in batches:
        order.given([each])
    assert order.are_several
    order.computed()
    assert not order.are_several
    for each in (fed(order, "one", HALF), fed(order, "two", HALF)):
        order.given([each])
    assert not order.are_several


def test_a_place_in_a_script_is_told_by_who_called() -> None:
    def sites() -> list[str]:
        return [call_site() for _ in range(2)]

    first = sites()
    assert first[0] == first[1]
    assert sites() != first
