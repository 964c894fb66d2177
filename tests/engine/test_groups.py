"""A group task takes its devices together, its members talk, and it fails as one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.errors import BadValueError, HeteroError, NothingFitsError, SerialisationError


@pytest.fixture(params=["thread", "process"], scope="module")
def ctx(request: pytest.FixtureRequest) -> Iterator[hetero.Context]:
    with hetero.Context(devices="2xcpu", isolation=request.param, history=False) as context:
        yield context


@hetero.task(devices=2)
def exchange(x: Any) -> Any:
    """Every member sends its rank and x to the other and gives back what it got."""
    other = 1 - hetero.collectives.rank()
    hetero.collectives.send((hetero.collectives.rank(), x), to=other)
    return hetero.collectives.recv(from_=other)


def test_the_result_of_a_group_is_that_of_rank_0(ctx: hetero.Context) -> None:
    assert ctx.run(exchange, "x") == (1, "x")


def test_arrays_go_from_member_to_member(ctx: hetero.Context) -> None:
    rank, array = ctx.run(exchange, np.arange(200_000.0))
    assert rank == 1
    np.testing.assert_array_equal(array, np.arange(200_000.0))


def test_every_member_runs_on_a_device_of_its_own(ctx: hetero.Context) -> None:
    @hetero.task(devices=2)
    def places() -> list[str]:
        own = hetero.get_current_device().id
        if hetero.collectives.rank() == 1:
            hetero.collectives.send(own, to=0)
            return []
        return [own, hetero.collectives.recv(from_=1)]

    assert sorted(ctx.run(places)) == sorted(device.id for device in ctx.devices)


def test_messages_of_one_member_keep_their_order(ctx: hetero.Context) -> None:
    @hetero.task(devices=2)
    def stream() -> list[int]:
        if hetero.collectives.rank() == 1:
            for i in range(50):
                hetero.collectives.send(i, to=0)
            return []
        return [hetero.collectives.recv(from_=1) for _ in range(50)]

    assert ctx.run(stream) == list(range(50))


def test_a_group_fails_as_one_and_its_other_members_do_not_wait_for_ever(ctx: hetero.Context) -> None:
    @hetero.task(devices=2)
    def half_broken() -> Any:
        if hetero.collectives.rank() == 1:
            raise ValueError("rank 1 is broken")
        return hetero.collectives.recv(from_=1)

    with pytest.raises(ValueError, match="rank 1 is broken"):
        ctx.submit(half_broken).result(60)
    assert ctx.run(exchange, 1) == (1, 1)


def test_what_cannot_be_pickled_is_refused_where_it_is_sent(ctx: hetero.Context) -> None:
    @hetero.task(devices=2)
    def sends_a_lock() -> Any:
        if hetero.collectives.rank() == 1:
            return hetero.collectives.send(threading.Lock(), to=0)
        return hetero.collectives.recv(from_=1)

    if ctx.devices[0].isolation == "thread":
        assert isinstance(ctx.run(sends_a_lock), type(threading.Lock()))
        return
    with pytest.raises(SerialisationError, match="what is sent to another member cannot be pickled"):
        ctx.run(sends_a_lock)


@pytest.mark.usefixtures("no_leaks")
def test_a_member_that_dies_takes_the_group_with_it() -> None:
    @hetero.task(devices=2, crashes=0)
    def killed() -> Any:
        if hetero.collectives.rank() == 1:
            os.kill(os.getpid(), 9)
        return hetero.collectives.recv(from_=1)

    with hetero.Context(devices="2xcpu", history=False) as ctx:
        with pytest.raises(HeteroError):
            ctx.submit(killed).result(60)
        assert ctx.submit(exchange, 1).result(60) == (1, 1)


def test_a_group_larger_than_the_fleet_is_refused(ctx: hetero.Context) -> None:
    with pytest.raises(NothingFitsError, match="no 3 devices can run exchange together"):
        ctx.submit(exchange.options(devices=3), 1)


def test_groups_and_single_tasks_share_the_fleet(ctx: hetero.Context) -> None:
    singles = [ctx.submit(lambda i: time.sleep(0.01) or i, i) for i in range(20)]
    groups = [ctx.submit(exchange, i) for i in range(5)]
    assert ctx.gather(groups) == [(1, i) for i in range(5)]
    assert ctx.gather(singles) == list(range(20))


@pytest.mark.parametrize("to", [0, 2, -1, "1", True])
def test_a_send_to_nobody_is_refused(ctx: hetero.Context, to: Any) -> None:
    @hetero.task(devices=2)
    def wrong(to: Any) -> None:
        if hetero.collectives.rank() == 0:
            hetero.collectives.send(1, to)

    with pytest.raises(BadValueError, match=r"is no other member; the others are 1"):
        ctx.submit(wrong, to).result(60)


def test_send_and_recv_outside_of_a_group_are_told(ctx: hetero.Context) -> None:
    with pytest.raises(BadValueError, match="works only inside a group task"):
        hetero.collectives.send(1, to=0)
    with pytest.raises(BadValueError, match="works only inside a group task"):
        ctx.run(lambda: hetero.collectives.recv(0))
    assert (hetero.collectives.rank(), hetero.collectives.world_size()) == (0, 1)
