"""Groups of real processes add up, and none of them hangs when one dies or freezes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pytest

from hetero.comm.errors import GroupBrokenError
from hetero.comm.group import Group, Rendezvous, open_rendezvous

torch = pytest.importorskip("torch")

_JOIN_S = 60.0


def _member(work: Callable[[Group], Any], rank: int, size: int, pipe: Connection, deadline_s: float) -> None:
    torch.set_num_threads(1)
    store = None
    if rank == 0:
        store, rendezvous = open_rendezvous("test", size)
        pipe.send(rendezvous)
    else:
        rendezvous = pipe.recv()
    group = Group(rank, size, rendezvous, store, deadline_s)
    pipe.send("formed")
    try:
        pipe.send(work(group))
    except GroupBrokenError as error:
        pipe.send(error)
    pipe.poll(_JOIN_S)
    group.close()


class Members:
    """Processes that form one group and do the same work."""

    def __init__(self, work: Callable[[Group], Any], size: int, deadline_s: float) -> None:
        spawn = multiprocessing.get_context("spawn")
        pipes = [spawn.Pipe() for _ in range(size)]
        self.pipes = [ours for ours, _ in pipes]
        self.processes = [
            spawn.Process(target=_member, args=(work, rank, size, theirs, deadline_s), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()
        rendezvous: Rendezvous = self.hear(0)
        for pipe in self.pipes[1:]:
            pipe.send(rendezvous)
        assert [self.hear(rank) for rank in range(size)] == ["formed"] * size

    def hear(self, rank: int) -> Any:
        """Give the next word of a member."""
        assert self.pipes[rank].poll(_JOIN_S), f"rank {rank} says nothing"
        return self.pipes[rank].recv()

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a member."""
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def close(self) -> None:
        """Let everybody leave."""
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if process.is_alive():
                pipe.send("leave")
        for process in self.processes:
            process.join(10)
            process.kill()


@contextmanager
def members(work: Callable[[Group], Any], size: int = 3, deadline_s: float = 30.0) -> Iterator[Members]:
    """Run the same work on every member of a group of processes."""
    team = Members(work, size, deadline_s)
    try:
        yield team
    finally:
        team.close()


def _several_at_once(group: Group) -> list[list[float]]:
    rows = [torch.full((50_000,), float(group.rank + 10 * i)) for i in range(5)]
    under_way = [group.start_all_reduce(row) for row in rows]
    for work in reversed(under_way):
        work.wait()
        work.wait()
    return [row[:2].tolist() for row in rows]


def test_several_sums_are_under_way_at_once_and_are_waited_for_in_any_order() -> None:
    with members(_several_at_once) as team:
        expected = [[3.0 + 30.0 * i] * 2 for i in range(5)]
        assert [team.hear(rank) for rank in range(3)] == [expected] * 3


def test_in_a_group_of_one_a_started_sum_is_done() -> None:
    row = torch.ones(3)
    Group(0, 1).start_all_reduce(row).wait()
    assert row.tolist() == [1.0, 1.0, 1.0]


def _started_then_one_is_gone(group: Group) -> float:
    if group.rank == 2:
        time.sleep(_JOIN_S)
    under_way = [group.start_all_reduce(torch.zeros(300_000)) for _ in range(3)]
    begun_s = time.monotonic()
    try:
        for work in under_way:
            work.wait()
    except GroupBrokenError:
        return time.monotonic() - begun_s
    raise AssertionError("a sum without rank 2")


def test_when_a_member_dies_everyone_who_waits_is_told_long_before_the_deadline() -> None:
    with members(_started_then_one_is_gone) as team:
        time.sleep(0.2)
        team.signal(2, signal.SIGKILL)
        assert max(team.hear(0), team.hear(1)) < 15.0


def test_a_frozen_member_is_given_up_at_the_deadline() -> None:
    with members(_started_then_one_is_gone, deadline_s=1.0) as team:
        team.signal(2, signal.SIGSTOP)
        assert 0.5 < max(team.hear(0), team.hear(1)) < 15.0
        team.signal(2, signal.SIGKILL)
