"""Collectives inside group tasks: on threads and processes, on NumPy, torch and numbers, and among other messages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.errors import BadValueError, HeteroError


@pytest.fixture(params=["thread", "process"], scope="module")
def ctx(request: pytest.FixtureRequest) -> Iterator[hetero.Context]:
    devices = "3xcpu"
    with hetero.Context(devices=devices, isolation=request.param, history=False) as context:
        yield context


def _everything(make: Any, algorithm: str) -> tuple[Any, ...]:
    """Do all four collectives; rank 0 gives what every member got."""
    rank = hetero.collectives.rank()
    own = make(rank)
    mine = (
        hetero.collectives.all_reduce(own, algorithm=algorithm),
        hetero.collectives.all_reduce(own, "max", algorithm),
        hetero.collectives.broadcast(own, 2, algorithm),
        hetero.collectives.all_gather(own, algorithm),
        hetero.collectives.reduce_scatter(own, algorithm=algorithm),
    )
    if rank:
        hetero.collectives.send(mine, to=0)
        return ()
    return mine, hetero.collectives.recv(1), hetero.collectives.recv(2)


def _numpy(rank: int) -> Any:
    return np.arange(6.0) + 100 * rank


def _torch(rank: int) -> Any:
    import torch

    return torch.arange(6.0) + 100 * rank


_together = hetero.task(devices=3)(_everything)


@pytest.mark.parametrize("make", [_numpy, _torch])
@pytest.mark.parametrize("algorithm", ["auto", "pipelined_tree"])
def test_each_collective_gives_every_member_what_it_says(ctx: hetero.Context, make: Any, algorithm: str) -> None:
    if make is _torch:
        pytest.importorskip("torch")
    rows = [np.arange(6.0) + 100 * rank for rank in range(3)]
    for rank, (total, most, from_2, gathered, part) in enumerate(ctx.run(_together, make, algorithm)):
        assert {type(each) for each in (total, most, from_2, gathered, part)} == {type(make(0))}
        np.testing.assert_array_equal(np.asarray(total), sum(rows))
        np.testing.assert_array_equal(np.asarray(most), rows[2])
        np.testing.assert_array_equal(np.asarray(from_2), rows[2])
        np.testing.assert_array_equal(np.asarray(gathered), rows)
        np.testing.assert_array_equal(np.asarray(part), np.sum(rows, axis=0)[2 * rank : 2 * rank + 2])


def test_the_library_works_between_processes_and_is_refused_between_threads(ctx: hetero.Context) -> None:
    pytest.importorskip("torch")
    if ctx.run(os.getpid) != os.getpid():
        assert ctx.run(_together, _numpy, "library")[0][0].tolist() == [300.0 + 3 * i for i in range(6)]
    else:
        with pytest.raises(BadValueError, match="the library has no all_reduce of float64 for these members"):
            ctx.run(_together, _numpy, "library")


def test_numbers_are_summed_too(ctx: hetero.Context) -> None:
    @hetero.task(devices=3)
    def ranks() -> Any:
        return (
            hetero.collectives.all_reduce(hetero.collectives.rank()),
            hetero.collectives.all_reduce(0.5),
            hetero.collectives.all_gather(hetero.collectives.rank()).tolist(),
        )

    assert ctx.run(ranks) == (3, 1.5, [0, 1, 2])


def test_messages_on_their_way_are_not_taken_for_those_of_a_collective(ctx: hetero.Context) -> None:
    @hetero.task(devices=3)
    def both() -> Any:
        if hetero.collectives.rank():
            hetero.collectives.send("before", to=0)
        total = hetero.collectives.all_reduce(1)
        if hetero.collectives.rank():
            hetero.collectives.send("after", to=0)
            return None
        return total, [
            hetero.collectives.recv(1),
            hetero.collectives.recv(2),
            hetero.collectives.recv(1),
            hetero.collectives.recv(2),
        ]

    assert ctx.run(both) == (3, ["before", "before", "after", "after"])


def test_the_array_that_was_given_stays_as_it_was(ctx: hetero.Context) -> None:
    @hetero.task(devices=3)
    def kept(x: Any) -> Any:
        hetero.collectives.all_reduce(x)
        return hetero.collectives.all_reduce(x.T).tolist()

    assert ctx.run(kept, np.arange(4.0).reshape(2, 2)) == [[0.0, 6.0], [3.0, 9.0]]


def test_a_member_that_fails_frees_those_who_wait_for_it_with_its_own_error(ctx: hetero.Context) -> None:
    @hetero.task(devices=3)
    def half_broken() -> Any:
        hetero.collectives.all_reduce(np.ones(10))
        if hetero.collectives.rank() == 1:
            raise ValueError("rank 1 is broken")
        return hetero.collectives.all_reduce(np.ones(10))

    for _ in range(5):
        with pytest.raises(ValueError, match="rank 1 is broken"):
            ctx.submit(half_broken).result(60)


def test_a_member_that_ends_early_is_told(ctx: hetero.Context) -> None:
    @hetero.task(devices=3)
    def one_is_missing() -> Any:
        hetero.collectives.all_reduce(1)
        return None if hetero.collectives.rank() == 2 else hetero.collectives.all_reduce(1)

    with pytest.raises(HeteroError, match="rank 2 ended"):
        ctx.submit(one_is_missing).result(60)


def test_arrays_that_do_not_match_are_told(ctx: hetero.Context) -> None:
    @hetero.task(devices=3)
    def unequal() -> Any:
        return hetero.collectives.all_reduce(np.ones(3 + (hetero.collectives.rank() == 2)), algorithm="ring")

    with pytest.raises(HeteroError, match=r"takes part in|is broken|failed"):
        ctx.submit(unequal).result(60)


def test_outside_of_a_group_a_collective_is_that_of_one() -> None:
    row = np.arange(3.0)
    assert hetero.collectives.all_reduce(row).tolist() == hetero.collectives.broadcast(row).tolist() == [0.0, 1.0, 2.0]
    assert hetero.collectives.all_gather(row).shape == (1, 3)
    assert hetero.collectives.reduce_scatter(row).tolist() == [0.0, 1.0, 2.0]
    assert hetero.collectives.all_reduce(2) == 2


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: hetero.collectives.all_reduce("x"), "a str has no sum over members"),
        (lambda: hetero.collectives.all_reduce(np.ones(3), "mean"), "'mean' is no reduction"),
        (lambda: hetero.collectives.all_reduce(np.ones(3), algorithm="piplined_tree"), "did you mean 'pipelined_tree'"),
        (lambda: hetero.collectives.broadcast(np.ones(3), 1), "there is no rank 1"),
        (lambda: hetero.collectives.reduce_scatter(3.0), "has no 1 equal parts"),
    ],
)
def test_bad_arguments_are_told(call: Any, told: str) -> None:
    with pytest.raises(BadValueError, match=told):
        call()
