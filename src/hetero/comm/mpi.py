"""A group over MPI: the members are the ranks that mpiexec started, and MPI's own collectives do the work.

In: a communicator of mpi4py. Out: sums and parts on every member. It must not promise to survive a death: MPI ends
all ranks then.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hetero.comm.rows import check_op, row_of
from hetero.floor import clock
from hetero.floor.errors import BadValueError, MissingPackageError, did_you_mean

if TYPE_CHECKING:
    import torch
    from mpi4py import MPI

__all__ = ["MpiGroup"]

_ALGORITHMS = ("auto", "library")


class MpiGroup:
    """The ranks of a communicator, with the collectives of `hetero.comm.group.Group`.

    MPI chooses how rows travel, so `algorithm` is 'auto' or 'library'. Deaths and deadlines are MPI's affair too.

    Parameters
    ----------
    communicator
        Of mpi4py; None for MPI.COMM_WORLD.

    Attributes
    ----------
    rank, world_size
        This member's number, and how many there are.
    waited_s
        Time spent in collectives, s.

    Raises
    ------
    HeteroError
        mpi4py is not installed, or finds no MPI.

    Examples
    --------
    >>> import hetero, numpy as np
    >>> group = hetero.collectives.MpiGroup()  # mpiexec -n 4 makes it one of four
    >>> group.rank, group.world_size
    (0, 1)
    """

    def __init__(self, communicator: MPI.Comm | None = None) -> None:
        try:
            self._mpi = import_module("mpi4py.MPI")
        except (ImportError, RuntimeError) as error:
            problem = f"MPI cannot be used: {error}"
            raise MissingPackageError(problem, remedy="pip install 'hetero-core[mpi]'") from error
        self._world = communicator or self._mpi.COMM_WORLD
        self.rank: int = self._world.Get_rank()
        self.world_size: int = self._world.Get_size()
        self.waited_s = 0.0

    def all_reduce(self, tensor: object, op: str = "sum", algorithm: str = "auto") -> None:
        """Replace a row by the sum ('sum'), maximum ('max') or minimum ('min') of all.

        Examples
        --------
        >>> import hetero, numpy as np
        >>> group = hetero.collectives.MpiGroup()  # mpiexec -n 4 makes it one of four
        >>> row = np.ones(2)
        >>> group.all_reduce(row)
        >>> row.tolist() == [group.world_size] * 2
        True
        """
        self.start_all_reduce(tensor, op, algorithm).wait()

    def start_all_reduce(self, tensor: torch.Tensor, op: str = "sum", algorithm: str = "auto") -> _MpiWork:
        """Start `all_reduce` and go on; the row belongs to the group until `wait` returns.

        Examples
        --------
        >>> import hetero, numpy as np
        >>> group = hetero.collectives.MpiGroup()  # mpiexec -n 4 makes it one of four
        >>> row = np.ones(2)
        >>> group.start_all_reduce(row).wait()
        >>> row.tolist() == [group.world_size] * 2
        True
        """
        _check(algorithm)
        return _MpiWork(self, self._world.Iallreduce(self._mpi.IN_PLACE, _numbers(tensor), self._op(op)))

    def broadcast(self, tensor: torch.Tensor, src: int, algorithm: str = "auto") -> None:
        """Replace a row by that of the member `src`.

        Examples
        --------
        >>> import hetero, numpy as np
        >>> group = hetero.collectives.MpiGroup()  # mpiexec -n 4 makes it one of four
        >>> row = np.full(2, 1.0 + group.rank)
        >>> group.broadcast(row, src=0)
        >>> row.tolist()
        [1.0, 1.0]
        """
        _check(algorithm)
        if not 0 <= src < self.world_size:
            raise BadValueError(f"src: there is no rank {src!r}", remedy=f"ranks go from 0 to {self.world_size - 1}")
        _MpiWork(self, self._world.Ibcast(_bytes(tensor), src)).wait()

    def all_gather(self, parts: torch.Tensor, algorithm: str = "auto") -> None:
        """Fill `parts`, of which this member's row `parts[rank]` is given, with the rows of all members.

        Examples
        --------
        >>> import hetero, numpy as np
        >>> group = hetero.collectives.MpiGroup()  # mpiexec -n 4 makes it one of four
        >>> parts = np.zeros((group.world_size, 2))
        >>> parts[group.rank] = group.rank
        >>> group.all_gather(parts)
        >>> parts[-1].tolist() == [group.world_size - 1.0] * 2
        True
        """
        _check(algorithm)
        _MpiWork(self, self._world.Iallgather(self._mpi.IN_PLACE, _bytes(parts))).wait()

    def reduce_scatter(self, parts: torch.Tensor, op: str = "sum", algorithm: str = "auto") -> None:
        """Replace this member's row `parts[rank]` by the reduction over all; what the others become is not said.

        Examples
        --------
        >>> import hetero, numpy as np
        >>> group = hetero.collectives.MpiGroup()  # mpiexec -n 4 makes it one of four
        >>> parts = np.ones((group.world_size, 2))
        >>> group.reduce_scatter(parts)
        >>> parts[group.rank].tolist() == [group.world_size] * 2
        True
        """
        _check(algorithm)
        rows = _numbers(parts).reshape(self.world_size, -1)
        reduced = np.empty_like(rows[self.rank])
        _MpiWork(self, self._world.Ireduce_scatter_block(rows, reduced, self._op(op))).wait()
        rows[self.rank] = reduced

    def _op(self, op: str) -> MPI.Op:
        found: MPI.Op = getattr(self._mpi, check_op(op).upper())
        return found

    def abort(self) -> None:
        """End all ranks, as MPI does when one of them fails.

        Examples
        --------
        >>> import hetero, numpy as np
        >>> group = hetero.collectives.MpiGroup()  # mpiexec -n 4 makes it one of four
        >>> if group.world_size > 1:
        ...     group.abort()
        """
        self._world.Abort(1)

    def close(self) -> None:
        """Leave the group; the communicator is not freed.

        Examples
        --------
        >>> import hetero, numpy as np
        >>> group = hetero.collectives.MpiGroup()  # mpiexec -n 4 makes it one of four
        >>> group.close()
        """


class _MpiWork:
    """An exchange that is under way."""

    def __init__(self, group: MpiGroup, request: MPI.Request) -> None:
        self._group = group
        self._request = request

    def wait(self) -> None:
        """Return when the row holds its result; a second call returns at once."""
        begun_s = clock.monotonic_s()
        self._request.Wait()
        self._group.waited_s += clock.monotonic_s() - begun_s


def _check(algorithm: str) -> None:
    if algorithm not in _ALGORITHMS:
        raise BadValueError(
            f"algorithm: {algorithm!r} is none of MPI's{did_you_mean(str(algorithm), _ALGORITHMS)}",
            remedy=f"allowed: {', '.join(_ALGORITHMS)}",
        )


def _bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    return np.frombuffer(row_of(tensor).data, np.uint8)


def _numbers(tensor: torch.Tensor) -> NDArray[np.generic]:
    """Return a NumPy array over the memory of a row."""
    row = row_of(tensor)
    try:
        return np.frombuffer(row.data, np.dtype(row.kind))
    except TypeError:
        raise BadValueError(f"MPI cannot sum {row.kind}", remedy="convert to float32 first") from None
