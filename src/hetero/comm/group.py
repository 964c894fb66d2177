"""A group of processes that exchange rows of numbers: the library's way or along rings and trees of our own.

In: a rendezvous, arrays in host memory. Out: sums and parts on every member, or GroupBrokenError within the deadline.
It must not know what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from hetero.comm.errors import GroupBrokenError
from hetero.comm.gloo import KINDS, Gloo
from hetero.comm.link_speed import links_of
from hetero.comm.mesh import Mesh, run_steps
from hetero.comm.rendezvous import (
    FORM_S,
    LOOPBACK,
    Meeting,
    Rendezvous,
    StoreMeeting,
    check_address,
    open_rendezvous,
)
from hetero.comm.rows import Op, TensorRow, as_tensor, check_op, row_of
from hetero.comm.shared_memory import SharedRow, SharedSums
from hetero.floor import clock
from hetero.floor.errors import BadValueError, HeteroError
from hetero.plan.collectives.choose import SMALL_BYTES, Algorithm, AlgorithmChoice, Links, check_algorithm, choose
from hetero.plan.collectives.steps import Collective, Word, plan_steps

if TYPE_CHECKING:
    import torch

__all__ = ["Group", "Rendezvous", "Work", "open_rendezvous", "shared_row"]

_LOCAL_BYTES_PER_S = 1e9
_LOCAL_LATENCY_S = 5e-5


class Group:
    """The members of one generation.

    Rows are contiguous NumPy arrays or torch tensors in host memory. All members call the same collectives in the
    same order, with equal shapes and dtypes. `algorithm` is one of

    * ``library``: Gloo's ring;
    * ``ring``: a ring of our own;
    * ``tree``: up and down a binary tree, the whole row at once;
    * ``pipelined_tree``: in chunks, up and down at the same time, along a tree that spares slow links;
    * ``auto``: what is soonest over the links, which are measured once; between processes of one host, sums are made
      in memory that they share.

    Parameters
    ----------
    rank, world_size
        This member's number, and how many there are.
    rendezvous
        Where they find each other; None for a group of one.
    store
        What `open_rendezvous` gave, on the first member.
    deadline_s
        Longest wait for the others, s.
    address
        Of this member, on which the others reach it.
    beyond_loopback
        Whether the address may be one that other hosts reach.

    Attributes
    ----------
    waited_s
        Time spent in collectives, s.
    carried_by
        What the last of them went by: 'shared_memory' or an algorithm; '' before the first.

    Raises
    ------
    GroupBrokenError
        Not all members came.
    BadValueError
        The address is not allowed.

    Examples
    --------
    >>> import hetero, numpy as np
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> store, meeting = hetero.collectives.open_rendezvous("sums", 2)
    >>> def member(rank):  # each in a process, or on a host, of its own
    ...     group = hetero.collectives.Group(rank, 2, meeting, store if rank == 0 else None)
    ...     row = np.full(2, rank + 1.0)
    ...     group.all_reduce(row)
    ...     group.close()
    ...     return row.tolist()
    >>> with ThreadPoolExecutor(2) as threads:
    ...     list(threads.map(member, range(2)))
    [[3.0, 3.0], [3.0, 3.0]]
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        rendezvous: Rendezvous | Meeting | None = None,
        store: object = None,
        deadline_s: float = FORM_S,
        *,
        address: str = LOOPBACK,
        beyond_loopback: bool = False,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.deadline_s = deadline_s
        self.waited_s = 0.0
        self.carried_by = ""
        self._address = check_address(address, beyond_loopback)
        self._meeting: Meeting | None = None
        self._library: Gloo | None = None
        self._mesh: Mesh | None = None
        self._shared: SharedSums | None = None
        self._may_share = self._is_local
        self._links: Links | None = None
        self._background: ThreadPoolExecutor | None = None
        if rendezvous is None or world_size == 1:
            return
        with self._forming():
            if isinstance(rendezvous, tuple):
                self._meeting = StoreMeeting(rank, world_size, rendezvous, store)
                self._open_library()
            else:
                self._meeting = rendezvous

    # --- collectives ---------------------------------------------------------------------------------------

    def all_reduce(self, tensor: object, op: str = "sum", algorithm: str = "auto") -> None:
        """Replace a row by the sum ('sum'), maximum ('max') or minimum ('min') of all, the same bits on each member.

        Raises
        ------
        GroupBrokenError
            A member died, or did not come within the deadline.

        Examples
        --------
        >>> import hetero, numpy as np
        >>> group = hetero.collectives.Group(0, 1)  # of one member; see `Group` for two
        >>> row = np.ones(2)
        >>> group.all_reduce(row, "max")
        >>> row.tolist()
        [1.0, 1.0]
        """
        self._all_reduce(tensor, op, algorithm, now=True).wait()

    def start_all_reduce(self, tensor: object, op: str = "sum", algorithm: str = "auto") -> Work:
        """Start `all_reduce` and go on; the row belongs to the group until `wait` returns.

        Several may be under way at once. All members start them in the same order; the deadline of each begins here.

        Raises
        ------
        GroupBrokenError
            The group is broken already.

        Examples
        --------
        >>> import hetero, numpy as np
        >>> group = hetero.collectives.Group(0, 1)  # of one member; see `Group` for two
        >>> row = np.ones(2)
        >>> work = group.start_all_reduce(row)
        >>> work.wait()
        >>> row.tolist()
        [1.0, 1.0]
        """
        return self._all_reduce(tensor, op, algorithm, now=False)

    def _all_reduce(self, tensor: object, op: str, algorithm: str, *, now: bool) -> Work:
        checked = check_op(op)
        row = row_of(tensor)
        if self.world_size > 1 and check_algorithm(algorithm) == "auto" and self._shares(row):
            return self._in_shared_memory(row, checked)
        return self._start(
            "all_reduce",
            row,
            algorithm,
            lambda library: library.all_reduce(as_tensor(tensor), checked, self.deadline_s),
            op=checked,
            now=now,
        )

    def _shares(self, row: TensorRow) -> bool:
        """Return whether there is shared memory for a sum, the same on every member; made when first asked for."""
        if self._may_share and self._shared is None:
            assert self._meeting is not None
            with self._breaking():
                mesh = self._form_mesh("shared mesh")
                self._shared = SharedSums.form(mesh, self._meeting.exchange, self._form_deadline_s)
            self._may_share = self._shared is not None
        return row.count > 0 and self._shared is not None and self._shared.has_room(len(row.data))

    def _in_shared_memory(self, row: TensorRow, op: Op) -> Work:
        assert self._shared is not None
        self.carried_by = "shared_memory"
        with self._breaking():
            words = f"all_reduce of {row.count} {row.kind}, {op}"
            return Work(self, self._shared.start(row, words, op, self.deadline_s))

    def broadcast(self, tensor: object, src: int, algorithm: str = "auto") -> None:
        """Replace a row by that of the member `src`; raises GroupBrokenError as `all_reduce` does.

        Examples
        --------
        >>> import hetero, numpy as np
        >>> group = hetero.collectives.Group(0, 1)  # of one member; see `Group` for two
        >>> row = np.ones(2)
        >>> group.broadcast(row, src=0)
        >>> row.tolist()
        [1.0, 1.0]
        """
        if not 0 <= src < self.world_size:
            raise BadValueError(f"src: there is no rank {src!r}", remedy=f"ranks go from 0 to {self.world_size - 1}")
        self._start(
            "broadcast",
            row_of(tensor),
            algorithm,
            lambda library: library.broadcast(as_tensor(tensor), src, max(FORM_S, self.deadline_s)),
            src=src,
        ).wait()

    def all_gather(self, parts: object, algorithm: str = "auto") -> None:
        """Fill `parts`, of which this member's row `parts[rank]` is given, with the rows of all members.

        Parameters
        ----------
        parts
            Shape (world_size, ...).

        Examples
        --------
        >>> import hetero, numpy as np
        >>> group = hetero.collectives.Group(0, 1)  # of one member; see `Group` for two
        >>> parts = np.array([[1.0, 2.0]])  # a row for each member, of which this member fills its own
        >>> group.all_gather(parts)
        >>> parts.tolist()
        [[1.0, 2.0]]
        """
        self._check_parts("all_gather", parts)
        self._start(
            "all_gather",
            row_of(parts),
            algorithm,
            lambda library: library.all_gather(as_tensor(parts), self.rank, self.deadline_s),
        ).wait()

    def reduce_scatter(self, parts: object, op: str = "sum", algorithm: str = "auto") -> None:
        """Replace this member's row `parts[rank]` by the reduction over all; what the others become is not said.

        Parameters
        ----------
        parts
            Shape (world_size, ...).
        op
            'sum', 'max' or 'min'.

        Examples
        --------
        >>> import hetero, numpy as np
        >>> group = hetero.collectives.Group(0, 1)  # of one member; see `Group` for two
        >>> parts = np.array([[1.0, 2.0]])  # a row for each member
        >>> group.reduce_scatter(parts)
        >>> parts[group.rank].tolist()
        [1.0, 2.0]
        """
        checked = check_op(op)
        self._check_parts("reduce_scatter", parts)
        self._start(
            "reduce_scatter",
            row_of(parts),
            algorithm,
            lambda library: library.reduce_scatter(as_tensor(parts), self.rank, checked, self.deadline_s),
            op=checked,
        ).wait()

    def _check_parts(self, word: str, parts: torch.Tensor) -> None:
        if not parts.ndim or len(parts) != self.world_size:
            raise BadValueError(
                f"{word}: parts has the shape {tuple(parts.shape)}",
                remedy=f"it needs {self.world_size} rows, one a member",
            )

    # --- how they are carried out --------------------------------------------------------------------------

    def _start(
        self,
        word: Word,
        row: TensorRow,
        algorithm: str,
        by_library: Callable[[Gloo], _Waitable],
        *,
        op: Op = "sum",
        src: int = 0,
        now: bool = True,
    ) -> Work:
        asked = check_algorithm(algorithm)
        if self.world_size == 1 or not row.count:
            return Work(self, None)
        with self._breaking():
            choice = self._choose(word, row, asked)
            self.carried_by = choice.algorithm
            if choice.algorithm == "library":
                return Work(self, by_library(self._open_library()))
            mesh = self._open_mesh()
            what = Collective(word, self.world_size, row.count, row.itemsize, src)
            words = f"{word} of {row.count} {row.kind} by {choice.algorithm}"
            words += {"broadcast": f" from {src}", "all_gather": ""}.get(word, f", {op}")
            deadline_s = self.deadline_s

            def run() -> None:
                run_steps(mesh, plan_steps(what, self.rank, choice), row, words, op, deadline_s)

            if not now and self._background is None:
                self._background = ThreadPoolExecutor(1, "hetero-collective")
            if self._background is None:
                run()
                return Work(self, None)
            return Work(self, _Queued(self._background.submit(run)))

    def _choose(self, word: Word, row: TensorRow, asked: Algorithm) -> AlgorithmChoice:
        """Return the same choice on every member: it rests on what all of them know alike."""
        assert self._meeting is not None
        nbytes = row.count * row.itemsize
        known = word in ("broadcast", "all_gather") or row.kind in KINDS
        if asked == "library" and (not known or self._meeting.library == "none"):
            raise BadValueError(
                f"algorithm: the library has no {word} of {row.kind} for these members", remedy="take 'auto' or 'ring'"
            )
        library = known and self._meeting.library == "auto"
        small = nbytes < SMALL_BYTES
        if asked == "auto" and (word in ("all_gather", "reduce_scatter") or small or self._is_local):
            asked = "library" if library else "ring"
        if asked in ("library", "ring", "tree"):
            return choose(self._alike(), nbytes, asked)
        links = self._alike() if small or self._is_local else self._measured()
        if word == "broadcast":
            asked = "pipelined_tree"
        return choose(links, nbytes, asked, library=library)

    @property
    def _is_local(self) -> bool:
        return self._address.startswith("127.")

    def _alike(self) -> Links:
        return Links((_LOCAL_BYTES_PER_S,) * self.world_size, _LOCAL_LATENCY_S)

    def _measured(self) -> Links:
        if self._links is None:
            self._links = links_of(self._open_mesh(), self.deadline_s)
        return self._links

    def _open_library(self) -> Gloo:
        if self._library is None:
            assert self._meeting is not None
            self._library = Gloo(self.rank, self.world_size, self._meeting, self._address)
        return self._library

    def _open_mesh(self) -> Mesh:
        if self._mesh is None:
            self._mesh = self._form_mesh("mesh")
        return self._mesh

    def _form_mesh(self, word: str) -> Mesh:
        assert self._meeting is not None
        return Mesh.form(self.rank, self._address, self._meeting.exchange, self._form_deadline_s, word)

    @property
    def _form_deadline_s(self) -> float:
        return min(FORM_S, self.deadline_s)

    # --- its end -------------------------------------------------------------------------------------------

    @contextmanager
    def _forming(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise GroupBrokenError(f"the group of {self.world_size} did not come about: {_line(error)}") from error

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """Free everybody when something fails in here, and count the time as waited."""
        begun_s = clock.monotonic_s()
        try:
            yield
        except HeteroError:
            self.abort()
            raise
        except RuntimeError as error:
            self.abort()
            raise GroupBrokenError(f"a member of the group is gone: {_line(error)}") from error
        finally:
            self.waited_s += clock.monotonic_s() - begun_s

    def abort(self) -> None:
        """Shut down the group's connections, so that every member that waits in it is freed.

        Examples
        --------
        >>> import hetero, numpy as np
        >>> group = hetero.collectives.Group(0, 1)  # of one member; see `Group` for two
        >>> group.abort()
        """
        if self._library is not None:
            self._library.abort()
        if self._mesh is not None:
            self._mesh.abort()
        if self._shared is not None:
            self._shared.abort()

    def close(self) -> None:
        """Leave the group; its collectives do nothing from here on.

        Examples
        --------
        >>> import hetero, numpy as np
        >>> group = hetero.collectives.Group(0, 1)  # of one member; see `Group` for two
        >>> group.close()
        """
        if self._library is not None:
            self._library.abort()
        if self._background is not None:
            self._background.shutdown(wait=False, cancel_futures=True)
        if self._mesh is not None:
            self._mesh.leave()
        if self._shared is not None:
            self._shared.leave()
        self.world_size = 1
        self._library = self._mesh = self._shared = self._meeting = self._background = None


class Work:
    """An exchange that is under way; made by `Group.start_all_reduce`."""

    def __init__(self, group: Group, work: _Waitable | None) -> None:
        self._group = group
        self._work = work

    def wait(self) -> None:
        """Return when the row holds its result; a second call returns at once.

        Raises
        ------
        GroupBrokenError
            A member died, or did not come within the deadline.
        """
        work, self._work = self._work, None
        if work is not None:
            with self._group._breaking():
                work.wait()


def shared_row(group: Group, like: object) -> SharedRow | None:
    """Return a row in the memory that a group's members on one host share, None where there is none or no room in it.

    Parameters
    ----------
    like
        An array of the length and the type of the row.

    Raises
    ------
    GroupBrokenError
        A member died, or did not come within the deadline.
    """
    row = row_of(like)
    if group.world_size == 1 or group._meeting is None or not group._shares(row):
        return None
    assert group._shared is not None
    group.carried_by = "shared_memory"
    with group._breaking():
        words = f"rows of {row.count} {row.kind}"
        one = group._shared.reserve(row, words, "sum", group.deadline_s)
    return SharedRow(group._shared, one, group.rank, group.world_size, group._breaking)


class _Waitable(Protocol):
    def wait(self) -> object: ...


class _Queued:
    """A collective in the background thread."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        self._future.result()


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
