"""Processes that form groups and do the same work, for tests of groups."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

from hetero.comm.group import Group, Rendezvous, open_rendezvous

__all__ = ["JOIN_S", "Members", "Work", "members"]

JOIN_S = 60.0
Work = Callable[[Group], Any]
"""What every member does: a function of a module, so that it travels."""


def _serve(rank: int, size: int, pipe: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    group = Group(0, 1)
    number = 0
    while (order := pipe.recv()) is not None:
        if isinstance(order, float):
            number += 1
            group.close()
            store = rendezvous = None
            if rank == 0:
                store, rendezvous = open_rendezvous(f"test-{number}", size)
                pipe.send(rendezvous)
            else:
                rendezvous = pipe.recv()
            group = Group(rank, size, rendezvous, store, order)
            pipe.send("formed")
            continue
        try:
            pipe.send(order(group))
        except Exception as error:  # noqa: BLE001  the test looks at it
            pipe.send(error)
    group.close()


class Members:
    """Processes that form one group after the other."""

    def __init__(self, size: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        pipes = [spawn.Pipe() for _ in range(size)]
        self.pipes = [ours for ours, _ in pipes]
        self.processes = [
            spawn.Process(target=_serve, args=(rank, size, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()

    def form(self, deadline_s: float = 30.0) -> None:
        """Let all of them form a new group."""
        for pipe in self.pipes:
            pipe.send(deadline_s)
        rendezvous: Rendezvous = self.hear(0)
        for pipe in self.pipes[1:]:
            pipe.send(rendezvous)
        assert [self.hear(rank) for rank in range(len(self.pipes))] == ["formed"] * len(self.pipes)

    def start(self, work: Work) -> None:
        """Let all of them begin to do something."""
        for pipe in self.pipes:
            pipe.send(work)

    def run(self, work: Work) -> list[Any]:
        """Let all of them do something; returns what each of them came to, errors as values."""
        self.start(work)
        return [self.hear(rank) for rank in range(len(self.pipes))]

    def hear(self, rank: int) -> Any:
        """Return the next word of a member."""
        assert self.pipes[rank].poll(JOIN_S), f"rank {rank} says nothing"
        return self.pipes[rank].recv()

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a member."""
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def close(self) -> None:
        """Let everybody leave; one that was killed reads no more."""
        for pipe in self.pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(10)
            process.kill()


@contextmanager
def members(size: int) -> Iterator[Members]:
    """Have processes for the time of a `with` block."""
    team = Members(size)
    try:
        yield team
    finally:
        team.close()
