"""Groups that sum in another way: by kind of device with leaders between the kinds, or on a device of the fleet.

In: a team, a rendezvous. Out: a `Group` whose sums are made so. It must not know gradients.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from hetero.backends.base import Kernel
from hetero.backends.registry import backend_of, kinds
from hetero.comm.errors import GroupBrokenError
from hetero.comm.group import Group, Rendezvous, Work
from hetero.comm.rendezvous import LOOPBACK, Meeting
from hetero.floor import clock
from hetero.floor.errors import BadValueError, HeteroError, did_you_mean
from hetero.model.device import Device

if TYPE_CHECKING:
    pass

__all__ = ["ByHost", "ByKind", "DeviceSum", "SummedOn", "join", "kinds_of", "summer"]

_FORM_S = 30.0
_NEVER_S = 3600.0
_LOOK_S = 1e-4

_OPENCL = Kernel(
    "__kernel void add(__global const float *a, __global const float *b, __global float *c)"
    "{ size_t i = get_global_id(0); c[i] = a[i] + b[i]; }",
    "add",
    out=lambda a, _: (a.shape, a.dtype),
    global_size=lambda a, _: a.shape,
)
_WIDTH = 1 << 16
_VULKAN = Kernel(
    "@group(0) @binding(0) var<storage, read> a: array<f32>;"
    "@group(0) @binding(1) var<storage, read> b: array<f32>;"
    "@group(0) @binding(2) var<storage, read_write> c: array<f32>;"
    "@compute @workgroup_size(64) fn add(@builtin(global_invocation_id) at: vec3<u32>)"
    f"{{ let i = at.x + at.y * {_WIDTH}u; if (i < arrayLength(&c)) {{ c[i] = a[i] + b[i]; }} }}",
    "add",
    out=lambda a, _: (a.shape, a.dtype),
    global_size=lambda a, _: (min(len(a), _WIDTH), -(-len(a) // _WIDTH)),
)
_KERNELS = {"opencl": _OPENCL, "vulkan": _VULKAN}
_NARROW = (torch.float16, torch.bfloat16, torch.float32)


def join(
    rank: int,
    team: Sequence[str],
    rendezvous: Rendezvous | None,
    store: object,
    deadline_s: float,
    sum_on: Device | None = None,
    address: str = LOOPBACK,
) -> Group:
    """Form the group of a team in the way that suits its devices.

    Parameters
    ----------
    team
        The members' devices, in the order of ranks.
    rendezvous, store, deadline_s
        As for `Group`.
    sum_on
        The device that adds up, None where the members do.
    address
        Of this member's host, on which the others reach it.

    Raises
    ------
    GroupBrokenError
        Not all members came.
    DeviceError
        The device that is to add up cannot be opened.
    """
    if sum_on is not None and len(team) > 1:
        return SummedOn(rank, len(team), rendezvous, store, deadline_s, sum_on, address)
    if len(kinds_of(team)) < len(team):
        return ByKind(rank, team, rendezvous, store, deadline_s, address=address)
    return Group(rank, len(team), rendezvous, store, deadline_s, address=address, beyond_loopback=True)


def kinds_of(team: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Cut the ranks of a team into those that sum among themselves, the leader of each first.

    Examples
    --------
    >>> kinds_of(["cuda:0", "cuda:1", "cpu:0", "cpu:1", "xpu:0"])
    ((0, 1), (2,), (3,), (4,))
    """
    parts: dict[str, list[int]] = {}
    for rank, device in enumerate(team):
        kind = _kind(device)
        parts.setdefault(kind if _library(kind) else device, []).append(rank)
    return tuple(tuple(part) for part in parts.values())


def _kind(device: str) -> str:
    return device.rpartition("/")[2].partition(":")[0]


def _library(kind: str) -> str:
    """Return the library in which devices of a kind sum among themselves, '' where they have none."""
    return kinds()[kind].collectives if kind in kinds() else ""


class _Relayed(Group, ABC):
    """A group whose sums are made on a thread of their own, in the order in which they were started."""

    def __init__(
        self, rank: int, world_size: int, rendezvous: Rendezvous | None, store: object, deadline_s: float, address: str
    ) -> None:
        super().__init__(rank, world_size, rendezvous, store, deadline_s, address=address, beyond_loopback=True)
        self._executor = ThreadPoolExecutor(1, "hetero-sum")

    def all_reduce(self, tensor: object, op: str = "sum", algorithm: str = "auto") -> None:
        """Replace a row by the reduction over the members; raises GroupBrokenError as a `Group` does."""
        self.start_all_reduce(tensor, op, algorithm).wait()

    def start_all_reduce(self, tensor: object, op: str = "sum", algorithm: str = "auto") -> Work:
        """Start `all_reduce` and go on, as a `Group` does."""
        return Work(self, _Later(self._executor.submit(self._add_up, tensor, op, algorithm)))

    @abstractmethod
    def _add_up(self, tensor: object, op: str, algorithm: str) -> None:
        """Replace a row by the reduction over the members."""

    def close(self) -> None:
        """Leave the group."""
        super().close()
        self._executor.shutdown(wait=False, cancel_futures=True)


class _Later:
    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        self._future.result()


class ByKind(_Relayed):
    """A group that sums inside each kind of accelerator with the kind's own library, and by Gloo between leaders.

    Parameters
    ----------
    team
        The members' devices, in the order of ranks.
    open_inside
        Forms the group inside a kind, from (kind, rank, members, rendezvous, store, deadline in s).
    address
        Of this member's host, on which the others reach it.

    Notes
    -----
    A sum goes three ways: over the members of a kind, over the leaders of all kinds through the host's memory, and
    from each leader to its members. All members end with the bits that the leaders have.
    """

    def __init__(
        self,
        rank: int,
        team: Sequence[str],
        rendezvous: Rendezvous | None,
        store: object = None,
        deadline_s: float = 30.0,
        open_inside: Callable[..., object] | None = None,
        address: str = LOOPBACK,
    ) -> None:
        super().__init__(rank, len(team), rendezvous, store, deadline_s, address)
        self._inside: dist.ProcessGroup | None = None
        self._between: Group | None = None
        assert rendezvous is not None
        host, port, prefix = rendezvous
        parts = kinds_of(team)
        mine = next(part for part in parts if rank in part)
        if len(mine) > 1:
            inside = (host, port, f"{prefix}/{mine[0]}")
            opener = open_inside or partial(_open_inside, address=address)
            self._inside = opener(_kind(team[rank]), mine.index(rank), len(mine), inside, store, deadline_s)
        leaders = [part[0] for part in parts]
        self._has_leaders = len(leaders) > 1
        if rank in leaders and self._has_leaders:
            between = (host, port, f"{prefix}/leaders")
            among = (leaders.index(rank), len(leaders), between, store, deadline_s)
            self._between = Group(*among, address=address, beyond_loopback=True)

    def _add_up(self, tensor: torch.Tensor, op: str, algorithm: str) -> None:
        inside, between = self._inside, self._between
        row = tensor.to(getattr(inside, "place", "cpu"))
        if inside is not None:
            inside.deadline_s = self.deadline_s
            inside.all_reduce(row, op)
        if between is not None:
            between.deadline_s = self.deadline_s
            host = row.cpu()
            between.all_reduce(host, op, algorithm)
            if host is not row:
                row.copy_(host)
        if inside is not None and self._has_leaders:
            inside.broadcast(row, 0)
        if row is not tensor:
            tensor.copy_(row)

    def abort(self) -> None:
        """Shut down all connections of this member, so that everybody that waits is freed."""
        super().abort()
        for part in (self._inside, self._between):
            if part is not None:
                part.abort()

    def close(self) -> None:
        """Leave the group."""
        super().close()
        for part in (self._inside, self._between):
            if part is not None:
                part.close()


class ByHost(Group):
    """A group that sums on each host in memory that its members share, and between the first members of the hosts.

    Parameters
    ----------
    places
        Address of each member's host, on which the others reach it.
    meet
        Makes where members meet, from (name, rank, members).
    deadline_s
        Longest wait for the others, s.

    Notes
    -----
    A sum goes three ways: over the members of a host in the order of ranks, over the hosts in the order of their first
    members, and from these to their hosts. All members end with the same bits.
    """

    def __init__(
        self, rank: int, places: Sequence[str], meet: Callable[[str, int, int], Meeting], deadline_s: float
    ) -> None:
        super().__init__(rank, len(places), None, deadline_s=deadline_s)
        parts = [[each for each, place in enumerate(places) if place == one] for one in dict.fromkeys(places)]
        mine, leaders = next(part for part in parts if rank in part), [part[0] for part in parts]
        at, count = mine.index(rank), len(mine)
        self._inside = Group(at, count, meet(f", host of {mine[0]}", at, count), None, deadline_s)
        self._between = Group(0, 1)
        self._leads = rank in leaders
        if self._leads:
            at, count, place = leaders.index(rank), len(leaders), places[rank]
            meeting = meet(", between hosts", at, count)
            self._between = Group(at, count, meeting, None, deadline_s, address=place, beyond_loopback=True)

    def all_reduce(self, tensor: object, op: str = "sum", algorithm: str = "auto") -> None:
        """Replace a row by the reduction over the members; raises GroupBrokenError as a `Group` does."""
        try:
            self._inside.all_reduce(tensor, op)
            self._between.all_reduce(tensor, op, algorithm)
            self._hand_out(tensor, has=self._leads)
        except HeteroError:
            self.abort()
            raise

    def _hand_out(self, tensor: object, *, has: bool) -> None:
        """Replace the row of each member of this host by that of the one that has it: all others add zeros."""
        if not has:
            _clear(tensor)
        self._inside.all_reduce(tensor)

    def broadcast(self, tensor: object, src: int, algorithm: str = "auto") -> None:
        """Replace a row by that of the member `src`; raises GroupBrokenError as `all_reduce` does."""
        if self.rank != src:
            _clear(tensor)
        self.all_reduce(tensor, "sum", algorithm)

    def abort(self) -> None:
        """Shut down all connections of this member, so that everybody that waits is freed."""
        for part in (self._inside, self._between):
            part.abort()

    def close(self) -> None:
        """Leave the group."""
        super().close()
        for part in (self._inside, self._between):
            part.close()


def _clear(row: object) -> None:
    if isinstance(row, torch.Tensor):
        row.zero_()
    elif isinstance(row, np.ndarray):
        row.fill(0)


def _open_inside(
    kind: str, rank: int, members: int, rendezvous: Rendezvous, store: object, deadline_s: float, address: str
) -> _Native | Group:
    """Form the group inside a kind: by its own library where torch has it, else by Gloo."""
    there = {"nccl": dist.is_nccl_available, "xccl": dist.is_xccl_available}.get(_library(kind))
    if there is None or not there():
        return Group(rank, members, rendezvous, store, deadline_s, address=address, beyond_loopback=True)
    return _Native(kind, rank, members, rendezvous, store, deadline_s)


class _Native:
    """A kind's own library of collectives: NCCL for CUDA and ROCm, XCCL for XPU.

    Attributes
    ----------
    place
        Torch's name of where rows must lie.
    """

    def __init__(
        self, kind: str, rank: int, members: int, rendezvous: Rendezvous, store: object, deadline_s: float
    ) -> None:
        self.place = torch.device(kinds()[kind].torch_place(torch.accelerator.current_device_index()))
        self.deadline_s = deadline_s
        host, port, prefix = rendezvous
        wait = timedelta(seconds=_FORM_S)
        self._store = store or dist.TCPStore(host, port, members, False, wait, wait_for_workers=False)
        library = dist.ProcessGroupNCCL if _library(kind) == "nccl" else dist.ProcessGroupXCCL
        options = library.Options()
        options._timeout = timedelta(seconds=_NEVER_S)
        self._group = library(dist.PrefixStore(prefix, self._store), rank, members, options)

    def all_reduce(self, row: object, op: str = "sum") -> None:
        """Replace a row on the device by the reduction over the members."""
        options = dist.AllreduceOptions()
        options.reduceOp = getattr(dist.ReduceOp, op.upper())
        self._finish(self._group.allreduce([row], options))

    def broadcast(self, row: object, src: int) -> None:
        """Replace a row on the device by that of the member `src`."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        self._finish(self._group.broadcast([row], options))

    def _finish(self, work: dist.Work) -> None:
        """Wait by looking, so that a member that is gone costs the deadline and not the process."""
        end_s = clock.monotonic_s() + self.deadline_s
        while not work.is_completed():
            if clock.monotonic_s() > end_s:
                self.abort()
                raise GroupBrokenError("a member of the group is gone: it did not come within the deadline")
            clock.sleep(_LOOK_S)
        work.wait()

    def abort(self) -> None:
        """Free everybody that waits."""
        with suppress(RuntimeError):
            self._group.abort()

    def close(self) -> None:
        """Leave."""
        with suppress(RuntimeError):
            self._group.shutdown()


class SummedOn(_Relayed):
    """A group whose rows are gathered, added up by the first member on a device of its host, and handed out.

    Parameters
    ----------
    device
        That adds up.
    address
        Of this member's host, on which the others reach it.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        rendezvous: Rendezvous | None,
        store: object,
        deadline_s: float,
        device: Device,
        address: str = LOOPBACK,
    ) -> None:
        super().__init__(rank, world_size, rendezvous, store, deadline_s, address)
        self.summer = DeviceSum(device) if rank == 0 else None

    def _add_up(self, tensor: torch.Tensor, op: str, algorithm: str) -> None:
        if op != "sum":
            Group.all_reduce(self, tensor, op, algorithm)
            return
        rows = tensor.new_empty((self.world_size, tensor.numel()))
        rows[self.rank] = tensor.reshape(-1)
        self.all_gather(rows)
        if self.summer is not None:
            tensor.copy_(self.summer.add_up(rows.unbind()).reshape(tensor.shape))
        self.broadcast(tensor, 0)

    def close(self) -> None:
        """Leave the group, and give the device back."""
        super().close()
        self._executor.shutdown(wait=True, cancel_futures=True)
        if self.summer is not None:
            self.summer.close()


def summer(word: str, devices: Sequence[Device]) -> Device | None:
    """Find the device of a fleet that is to add up gradients; None for ''.

    Raises
    ------
    BadValueError
        The fleet has no such device, or it cannot add up.
    """
    if not word:
        return None
    found = next((device for device in devices if word in (device.id, device.short)), None)
    names = [device.short for device in devices if _can_sum(device)]
    if found is None:
        raise BadValueError(
            f"sum_on={word!r} is no device of this fleet{did_you_mean(word, names)}",
            remedy=f"give one of {', '.join(names)}, or take it into devices=",
        )
    if not _can_sum(found):
        raise BadValueError(f"sum_on={word!r}: rows cannot be added up there", remedy=f"give one of {', '.join(names)}")
    return found


def _can_sum(device: Device) -> bool:
    return not device.simulated and (device.runs_python or device.backend in _KERNELS)


class DeviceSum:
    """Adds up rows on one device, which stays open until `close`.

    Attributes
    ----------
    rows
        How many rows it has added up there.

    Raises
    ------
    DeviceError
        The device cannot be opened.

    Notes
    -----
    16-bit rows are added up as float32 and rounded once. Rows of other types than these (the header of some runs,
    float64) are added up on the host.
    """

    def __init__(self, device: Device) -> None:
        self.backend = backend_of(device)
        self.backend.open()
        self.rows = 0

    def add_up(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the sum of rows of one type and length, as a tensor on the host."""
        kind = rows[0].dtype
        if kind not in _NARROW:
            return torch.stack(list(rows)).sum(0)
        with self.backend.activate():
            arrays = [row.to(torch.float32).numpy() for row in rows]
            total = self.backend.copy_in(arrays[0])
            for array in arrays[1:]:
                total = self._added(total, self.backend.copy_in(array))
            found = torch.from_numpy(np.array(self.backend.copy_out(total)))
        self.rows += len(rows)
        return found.to(kind)

    def _added(self, one: object, other: object) -> object:
        if self.backend.runs_python:
            return self.backend.run(operator.add, (one, other))
        return self.backend.run(_KERNELS[self.backend.device.backend], (one, other))

    def close(self) -> None:
        """Release the device."""
        self.backend.close()
