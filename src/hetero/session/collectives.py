"""Collectives inside a group task: sums, copies and parts of arrays, as the arrays that they were.

In: an array of NumPy, torch or the device, or a number. Out: a new one of the same kind on every member.
It must not disturb what members send each other besides.
"""

from __future__ import annotations

import json
import os
import socket
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from hetero.comm.errors import GroupBrokenError
from hetero.comm.group import Group
from hetero.comm.rendezvous import LOOPBACK, Library, StoreMeeting, open_rendezvous
from hetero.drive.annotations import record_collective
from hetero.drive.frame import Frame, current
from hetero.engines.base import Channel
from hetero.floor import clock
from hetero.floor.errors import BadValueError

if TYPE_CHECKING:
    import torch

__all__ = ["all_gather", "all_reduce", "broadcast", "reduce_scatter"]

_DEADLINE_S = 86_400.0
"""A task's own time limit ends it sooner; a member that ends or dies is told at once."""


def all_reduce(array: object, op: str = "sum", algorithm: str = "auto") -> Any:
    """Return the sum of the arrays of all members of this group task, the same bits on each of them.

    Outside of a group task, and in one of a single member, it is that of the one array.

    Parameters
    ----------
    array
        NumPy array, torch tensor, array of the device, or number; the same shape and dtype on all members.
    op
        'sum', 'max' or 'min'.
    algorithm
        'auto', 'library' (torch's), 'ring', 'tree' or 'pipelined_tree'.

    Raises
    ------
    BadValueError
        There is no such operation or algorithm, or members give arrays that do not match.
    GroupError
        Another member failed.

    Examples
    --------
    >>> import hetero
    >>> @hetero.task(devices=2)
    ... def total():
    ...     return hetero.collectives.all_reduce(hetero.collectives.rank() + 1.0)
    >>> with hetero.Context(devices="2xcpu", isolation="thread", history=False) as ctx:
    ...     ctx.run(total)
    3.0
    """
    row, back = _copied(array)
    with _group("all_reduce", row) as group:
        group.all_reduce(row, op, algorithm)
    return back(row)


def broadcast(array: object, src: int = 0, algorithm: str = "auto") -> Any:
    """Return the array of one member to all members of this group task.

    Parameters
    ----------
    array
        Of the same shape and dtype on all members.
    src
        Rank whose array it is.
    algorithm
        As for `all_reduce`.

    Raises
    ------
    BadValueError
        There is no such member or algorithm, or members give arrays that do not match.
    GroupError
        Another member failed.

    Examples
    --------
    >>> import hetero
    >>> @hetero.task(devices=2)
    ... def same():
    ...     return hetero.collectives.broadcast(hetero.collectives.rank() + 1.0, src=1)
    >>> with hetero.Context(devices="2xcpu", isolation="thread", history=False) as ctx:
    ...     ctx.run(same)
    2.0
    """
    row, back = _copied(array)
    with _group("broadcast", row) as group:
        group.broadcast(row, src, algorithm)
    return back(row)


def all_gather(array: object, algorithm: str = "auto") -> Any:
    """Return the arrays of all members of this group task, one after the other along a new first axis.

    Parameters
    ----------
    array
        Of the same shape and dtype on all members.
    algorithm
        As for `all_reduce`.

    Raises
    ------
    BadValueError
        There is no such algorithm, or members give arrays that do not match.
    GroupError
        Another member failed.

    Examples
    --------
    >>> import hetero
    >>> @hetero.task(devices=2)
    ... def ranks():
    ...     return hetero.collectives.all_gather(hetero.collectives.rank()).tolist()
    >>> with hetero.Context(devices="2xcpu", isolation="thread", history=False) as ctx:
    ...     ctx.run(ranks)
    [0, 1]
    """
    row, back = _copied(array, is_whole=True)
    with _group("all_gather", row) as group:
        parts = _repeated(row, group.world_size)
        group.all_gather(parts, algorithm)
    return back(parts)


def reduce_scatter(array: object, op: str = "sum", algorithm: str = "auto") -> Any:
    """Return this member's part of the sum of all members' arrays: of n equal parts of the first axis, one each.

    Parameters
    ----------
    array
        Of the same shape and dtype on all members; the number of members divides its first axis.
    op
        'sum', 'max' or 'min'.
    algorithm
        As for `all_reduce`.

    Raises
    ------
    BadValueError
        The first axis cannot be shared out, or as for `all_reduce`.
    GroupError
        Another member failed.

    Examples
    --------
    >>> import hetero, numpy as np
    >>> @hetero.task(devices=2)
    ... def part():
    ...     return hetero.collectives.reduce_scatter(np.arange(4.0)).tolist()
    >>> with hetero.Context(devices="2xcpu", isolation="thread", history=False) as ctx:
    ...     ctx.run(part)
    [0.0, 2.0]
    """
    row, back = _copied(array, is_whole=True)
    with _group("reduce_scatter", row) as group:
        size = group.world_size
        if not row.ndim or len(row) % size:
            raise BadValueError(
                f"reduce_scatter: an array of shape {tuple(row.shape)} has no {size} equal parts",
                remedy=f"its first axis must be a multiple of {size}",
            )
        parts = row.reshape(size, len(row) // size, *row.shape[1:])
        group.reduce_scatter(parts, op, algorithm)
    return back(parts[group.rank])


# --- arrays --------------------------------------------------------------------------------------------------


def _copied(array: object, *, is_whole: bool = False) -> tuple[Any, Callable[[Any], object]]:
    """Return a copy in host memory, and how to make of such a one what the array was."""
    if isinstance(array, np.ndarray):
        return np.array(array, order="C"), lambda row: row
    if isinstance(array, bool | int | float | complex | np.generic):
        return np.array(array), lambda row: row if is_whole else row[()].item()
    if hasattr(array, "data_ptr"):
        return _copied_tensor(array)
    frame = current()
    if frame is not None and frame.backend.owns(array):
        return np.array(frame.backend.copy_out(array), order="C"), frame.backend.copy_in
    if hasattr(array, "__array_namespace__"):
        return np.array(array, order="C"), array.__array_namespace__().asarray
    raise BadValueError(
        f"a {type(array).__name__} has no sum over members", remedy="give a NumPy array, a torch tensor or a number"
    )


def _copied_tensor(tensor: torch.Tensor) -> tuple[object, Callable[[object], object]]:
    import torch

    host = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    return host, lambda row: row.to(tensor.device)


def _repeated(row: NDArray[np.generic], size: int) -> object:
    """Return an array with a new first axis, every part of it a copy of the row."""
    if isinstance(row, np.ndarray):
        return np.repeat(row[None], size, axis=0)
    return row.unsqueeze(0).repeat(size, *[1] * row.ndim)


# --- members -------------------------------------------------------------------------------------------------


class _Told(NamedTuple):
    """What members tell each other to form a group, apart from what the task sends."""

    word: str
    value: object


class _Where(TypedDict):
    address: str
    beyond_loopback: bool


class _MemberChannel:
    """How a member of a group task takes part in collectives: see `hetero.comm.rendezvous.Meeting`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._kept: defaultdict[tuple[int, bool], deque[object]] = defaultdict(deque)
        self._store: StoreMeeting | None = None
        here = [channel.address, socket.gethostname(), os.getpid(), find_spec("torch") is not None]
        places = [tuple(json.loads(each)) for each in self.exchange("where", json.dumps(here).encode())]
        own_processes = len({place[:3] for place in places}) == len(places)
        self.library: Library = "asked" if own_processes and all(place[3] for place in places) else "none"
        apart = len({place[0] for place in places}) > 1
        self._where: _Where = {"address": channel.address if apart else LOOPBACK, "beyond_loopback": apart}
        self.group = Group(channel.rank, channel.world_size, self, deadline_s=_DEADLINE_S, **self._where)

    def exchange(self, word: str, mine: bytes, deadline_s: float = _DEADLINE_S) -> list[bytes]:
        """Publish a value under a key; return what each member published under it, by rank."""
        channel = self._channel
        if channel.rank:
            channel.send(_Told(word, mine), 0)
            gathered: list[bytes] = self._next(0, told=True).value
            return gathered
        gathered = [mine, *(self._next(rank, told=True).value for rank in range(1, channel.world_size))]
        for rank in range(1, channel.world_size):
            channel.send(_Told(word, gathered), rank)
        return gathered

    def store(self) -> object:
        """Return torch's store of keys that all members share."""
        if self._store is None:
            rank, size = self._channel.rank, self._channel.world_size
            kept, mine = (None, None) if rank else open_rendezvous("task", size, **self._where)
            rendezvous = tuple(json.loads(self.exchange("store", json.dumps(mine).encode())[0]))
            self._store = StoreMeeting(rank, size, rendezvous, kept)
        return self._store.store()

    def recv(self, rank: int) -> object:
        """Wait for the next value that the task of another member sent."""
        return self._next(rank, told=False)

    def _next(self, rank: int, *, told: bool) -> Any:
        kept = self._kept[rank, told]
        while not kept:
            value = self._channel.recv(rank)
            self._kept[rank, isinstance(value, _Told)].append(value)
        return kept.popleft()

    def learn_why(self, rank: int) -> None:
        """Wait until the program tells what became of a member; raises GroupError with that."""
        while True:
            self._channel.recv(rank)

    def close(self) -> None:
        """Leave the group."""
        self.group.close()


@contextmanager
def _group(what: str, row: NDArray[np.generic]) -> Iterator[Group]:
    """Have the group of this task's members, or one of a single member; the trace is told of what goes on in it."""
    frame = current()
    if frame is None or frame.channel is None or frame.channel.world_size == 1:
        yield Group(0, 1)
        return
    begun_s = clock.monotonic_s()
    talk = _talk(frame, frame.channel)
    group = talk.group
    try:
        yield group
    except GroupBrokenError as error:
        if error.rank is not None:
            talk.learn_why(error.rank)
        raise
    finally:
        seconds = clock.monotonic_s() - begun_s
        record_collective(frame, what, group.carried_by, group.rank, group.world_size, int(row.nbytes), seconds)


def _talk(frame: Frame, channel: Channel) -> _MemberChannel:
    if frame.talk is None:
        frame.talk = _MemberChannel(channel)
    talk: _MemberChannel = frame.talk
    return talk
