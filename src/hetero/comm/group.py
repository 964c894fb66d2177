"""A group of processes that add up tensors: Gloo inside, and a way out when a member dies.

In: a rendezvous, tensors. Out: their sums on every member, or GroupBrokenError within the deadline.
It must not use torch's default process group: several groups live one after the other in one process.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib import import_module
from typing import Any

from hetero.comm.errors import GroupBrokenError
from hetero.floor import clock

__all__ = ["Group", "Rendezvous", "Work", "open_rendezvous"]

_LOOPBACK = "127.0.0.1"
_FORM_S = 30.0

Rendezvous = tuple[str, int, str]
"""Host and port of the store of keys, and the prefix of this group's keys."""


def open_rendezvous(prefix: str, world_size: int) -> tuple[Any, Rendezvous]:
    """Start the store of keys through which members find each other, on loopback; the first member does.

    Returns
    -------
    tuple
        The store, to be kept until the group is there; and how the others reach it.
    """
    dist = import_module("torch.distributed")
    listener = socket.create_server((_LOOPBACK, 0))
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        _LOOPBACK,
        port,
        world_size,
        True,
        timedelta(seconds=_FORM_S),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return store, (_LOOPBACK, port, prefix)


class Group:
    """The members of one generation.

    Parameters
    ----------
    rank, world_size : this member's number, and how many there are
    rendezvous : where they find each other; None for a group of one
    store : what `open_rendezvous` gave, on the first member
    deadline_s : longest wait for the others, s

    Attributes
    ----------
    places : torch's device types whose tensors are added up where they lie; others go by the host

    Raises
    ------
    GroupBrokenError
        Not all members came.
    """

    places: tuple[str, ...] = ("cpu",)

    def __init__(
        self,
        rank: int,
        world_size: int,
        rendezvous: Rendezvous | None = None,
        store: Any = None,
        deadline_s: float = _FORM_S,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.deadline_s = deadline_s
        self.waited_s = 0.0
        self._group: Any = None
        self._sockets: tuple[int, ...] = ()
        if rendezvous is not None and world_size > 1:
            before = _sockets()
            try:
                self._form(rendezvous, store)
            except RuntimeError as error:
                raise GroupBrokenError(f"the group of {world_size} did not come about: {_line(error)}") from error
            finally:
                self._sockets = tuple(sorted(_sockets() - before))

    def _form(self, rendezvous: Rendezvous, store: Any) -> None:
        dist = import_module("torch.distributed")
        host, port, prefix = rendezvous
        wait = timedelta(seconds=_FORM_S)
        self._store = store or dist.TCPStore(host, port, self.world_size, False, wait, wait_for_workers=False)
        gloo = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=_LOOPBACK)]
        options._timeout = wait
        options._threads = 2
        self._group = gloo(dist.PrefixStore(prefix, self._store), self.rank, self.world_size, options)

    def all_reduce(self, tensor: Any, op: str = "sum") -> None:
        """Replace a tensor by the sum ('sum') or maximum ('max') over the members, the same bits on each.

        Raises
        ------
        GroupBrokenError
            A member died, or did not come within the deadline.
        """
        self.start_all_reduce(tensor, op).wait()

    def start_all_reduce(self, tensor: Any, op: str = "sum") -> Work:
        """Begin `all_reduce` and go on; the tensor belongs to the group until `wait` returns.

        Several may be under way at once. All members start them in the same order; the deadline of each begins here.

        Raises
        ------
        GroupBrokenError
            The group is broken already.
        """
        if self._group is None:
            return Work(self, None)
        dist = import_module("torch.distributed")
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX
        options.timeout = timedelta(seconds=self.deadline_s)
        return self._start(lambda: self._group.allreduce([tensor], options))

    def broadcast(self, tensor: Any, src: int) -> None:
        """Replace a tensor by that of the member `src`; raises GroupBrokenError as `all_reduce` does."""
        if self._group is None:
            return
        dist = import_module("torch.distributed")
        options = dist.BroadcastOptions()
        options.rootRank = src
        options.rootTensor = 0
        options.timeout = timedelta(seconds=_FORM_S)
        self._start(lambda: self._group.broadcast([tensor], options)).wait()

    def _start(self, begin: Callable[[], Any]) -> Work:
        with self._breaking():
            return Work(self, begin())

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """Free everybody when something fails in here, and count the time as waited."""
        begun_s = clock.monotonic_s()
        try:
            yield
        except RuntimeError as error:
            self.abort()
            raise GroupBrokenError(f"a member of the group is gone: {_line(error)}") from error
        finally:
            self.waited_s += clock.monotonic_s() - begun_s

    def abort(self) -> None:
        """Shut down the group's connections, so that every member that waits in it is freed."""
        for descriptor in self._sockets:
            with suppress(OSError):
                copy = socket.socket(fileno=os.dup(descriptor))
                with copy:
                    copy.shutdown(socket.SHUT_RDWR)
        self._sockets = ()

    def close(self) -> None:
        """Leave the group."""
        self.abort()
        self._group = None
        self._store = None


class Work:
    """An exchange that is under way; made by `Group.start_all_reduce`."""

    def __init__(self, group: Group, work: Any) -> None:
        self._group = group
        self._work = work

    def wait(self) -> None:
        """Return when the tensor holds its result; a second call returns at once.

        Raises
        ------
        GroupBrokenError
            A member died, or did not come within the deadline.
        """
        work, self._work = self._work, None
        if work is not None:
            with self._group._breaking():
                work.wait()


def _sockets() -> set[int]:
    """Give the descriptors of this process that are TCP connections to another process."""
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


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
