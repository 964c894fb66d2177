"""The library: torch's Gloo between processes, and a way out of it when a member dies.

In: a meeting, tensors. Out: work under way. It must not use torch's default process group: several groups live one
after the other in one process.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING

from hetero.comm.rendezvous import FORM_S, Meeting
from hetero.comm.rows import Op

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

__all__ = ["KINDS", "Gloo"]

KINDS = ("float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8", "bool")
"""The dtypes that it can reduce."""


class Gloo:
    """One member of a Gloo group.

    Parameters
    ----------
    address
        Of this member, on which the others reach it.

    Raises
    ------
    RuntimeError
        Not all members came.
    """

    def __init__(self, rank: int, world_size: int, meeting: Meeting, address: str) -> None:
        self._dist = import_module("torch.distributed.distributed_c10d")
        before = _sockets()
        try:
            gloo = self._dist.ProcessGroupGloo
            options = gloo._Options()
            options._devices = [gloo.create_device(hostname=address)]
            options._timeout = timedelta(seconds=FORM_S)
            options._threads = 2
            self._group = gloo(meeting.store(), rank, world_size, options)
        finally:
            self._sockets = tuple(sorted(_sockets() - before))

    def all_reduce(self, tensor: object, op: Op, deadline_s: float) -> dist.Work:
        """Start to replace a tensor by the reduction over the members."""
        options = self._dist.AllreduceOptions()
        options.reduceOp = self._op(op)
        options.timeout = timedelta(seconds=deadline_s)
        return self._group.allreduce([tensor], options)

    def broadcast(self, tensor: object, src: int, deadline_s: float) -> dist.Work:
        """Start to replace a tensor by that of the member `src`."""
        options = self._dist.BroadcastOptions()
        options.rootRank = src
        options.rootTensor = 0
        options.timeout = timedelta(seconds=deadline_s)
        return self._group.broadcast([self._bytes(tensor)], options)

    def all_gather(self, parts: torch.Tensor, rank: int, deadline_s: float) -> dist.Work:
        """Start to fill `parts`, one row a member, with the rows of all."""
        options = self._dist.AllgatherOptions()
        options.timeout = timedelta(seconds=deadline_s)
        rows = self._bytes(parts).reshape(len(parts), -1)
        return self._group.allgather([list(rows)], [rows[rank].clone()], options)

    def reduce_scatter(self, parts: torch.Tensor, rank: int, op: Op, deadline_s: float) -> _Then:
        """Start to replace one row of `parts`, this member's, by the reduction over the members."""
        options = self._dist.ReduceScatterOptions()
        options.reduceOp = self._op(op)
        options.timeout = timedelta(seconds=deadline_s)
        reduced = parts[rank].clone()
        work = self._group._reduce_scatter_base(reduced.reshape(-1), parts.reshape(-1), options)
        return _Then(work, lambda: parts[rank].copy_(reduced))

    def _bytes(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the memory of a tensor: what is only copied may have a dtype that the library does not know."""
        return tensor.view(-1).view(import_module("torch").uint8)

    def _op(self, op: Op) -> dist.ReduceOp:
        return getattr(self._dist.ReduceOp, op.upper())

    def abort(self) -> None:
        """Shut down the connections, so that every member that waits in them is freed."""
        for descriptor in self._sockets:
            with suppress(OSError):
                copy = socket.socket(fileno=os.dup(descriptor))
                with copy:
                    copy.shutdown(socket.SHUT_RDWR)
        self._sockets = ()


class _Then:
    """Work with something to do when it is done."""

    def __init__(self, work: dist.Work, then: Callable[[], object]) -> None:
        self._work = work
        self._then = then

    def wait(self) -> None:
        self._work.wait()
        self._then()


def _sockets() -> set[int]:
    """Return the descriptors of this process that are TCP connections to another process."""
    found = set()
    for name in _open_descriptors():
        with suppress(OSError):
            descriptor = int(name)
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as copy:
                    if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.getpeername():
                        found.add(descriptor)
    return found


def _open_descriptors() -> list[str]:
    with suppress(OSError):
        return os.listdir("/dev/fd")
    return []
