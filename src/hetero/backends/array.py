"""Arrays of devices that take kernels, and what a kernel's launch needs to know of its arguments.

In: a device's own buffer handle. Out: shape, dtype, bytes and copies. It must not know which runtime made the handle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hetero.floor.errors import BadValueError, OutOfDeviceMemoryError

if TYPE_CHECKING:
    from hetero.backends.base import Backend, Kernel

__all__ = ["Arguments", "ByteBudget", "DeviceArray", "outputs", "sort_arguments", "work_items"]


class DeviceArray:
    """An array that lives on a device; dense and in C order.

    Attributes
    ----------
    backend
        The open back end that made it.
    handle
        The runtime's own buffer.
    shape, dtype
        As NumPy's.
    """

    __slots__ = ("__weakref__", "backend", "dtype", "handle", "shape")

    def __init__(self, backend: Backend, handle: object, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        self.backend = backend
        self.handle = handle
        self.shape = shape
        self.dtype = dtype

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize

    def copy_out(self) -> NDArray[np.generic]:
        """Return a NumPy array with the same elements."""
        return self.backend.copy_out(self)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[np.generic]:
        if copy is False:
            raise ValueError(f"the data lives on {self.backend.device.id}; NumPy can only have a copy of it")
        out = self.copy_out()
        return out if dtype is None else out.astype(dtype, copy=False)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray({self.backend.device.id}, shape={self.shape}, dtype={self.dtype})"


class ByteBudget:
    """Counts the bytes that a back end has given out, up to a limit.

    Attributes
    ----------
    used_bytes
        Bytes of the arrays that are alive.
    limit_bytes
        Bytes, None for no limit.
    """

    __slots__ = ("limit_bytes", "owner", "used_bytes")

    def __init__(self, owner: str, limit_bytes: int | None) -> None:
        self.owner = owner
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, nbytes: int) -> None:
        """Count an allocation; raises OutOfDeviceMemoryError when the limit does not allow it."""
        if self.limit_bytes is not None and self.used_bytes + nbytes > self.limit_bytes:
            raise OutOfDeviceMemoryError(
                f"{self.owner} has {self.limit_bytes - self.used_bytes} bytes left of its limit of"
                f" {self.limit_bytes} and {nbytes} were asked for",
                remedy="raise memory_limit or use smaller arrays",
            )
        self.used_bytes += nbytes

    def free(self, nbytes: int) -> None:
        """Count an array that went away."""
        self.used_bytes -= nbytes


class Arguments(NamedTuple):
    """A kernel call's arguments, sorted.

    Attributes
    ----------
    arrays
        The arrays in the order of the call.
    scalars
        The numbers in the order of the call.
    ordered
        All of them as they came, NumPy arrays brought to the device.
    """

    arrays: tuple[DeviceArray, ...]
    scalars: tuple[object, ...]
    ordered: tuple[object, ...]


def sort_arguments(backend: Backend, kernel: Kernel, args: Iterable[Any], kwargs: Mapping[str, object]) -> Arguments:
    """Separate a kernel's arrays from its numbers, and copy NumPy arrays to the device.

    Raises
    ------
    BadValueError
        An argument is neither, or was given by name.
    """
    if kwargs:
        raise BadValueError(f"kernel {kernel.entry!r} was given {', '.join(kwargs)} by name", remedy="give it in order")
    arrays: list[DeviceArray] = []
    scalars: list[object] = []
    ordered: list[object] = []
    for position, value in enumerate(args):
        if isinstance(value, bool | int | float | np.generic):
            scalars.append(value)
            ordered.append(value)
            continue
        if isinstance(value, np.ndarray):
            value = backend.copy_in(value)
        if not backend.owns(value):
            raise BadValueError(
                f"argument {position} of kernel {kernel.entry!r} is a {type(value).__name__!r}",
                remedy="a kernel takes arrays and numbers",
            )
        arrays.append(value)
        ordered.append(value)
    return Arguments(tuple(arrays), tuple(scalars), tuple(ordered))


def outputs(
    kernel: Kernel, args: Sequence[object]
) -> tuple[tuple[tuple[tuple[int, ...], np.dtype[np.generic]], ...], bool]:
    """Ask a kernel for the shapes and dtypes of its results.

    Returns
    -------
    tuple
        (shape, dtype) of each result, and True when the call gives one array and not a tuple

    Raises
    ------
    BadValueError
        `kernel.out` gave something else.

    Examples
    --------
    >>> from hetero.backends.base import Kernel
    >>> twice = Kernel("", "twice", out=lambda x: (x.shape, x.dtype), global_size=lambda x: x.shape)
    >>> outputs(twice, (np.zeros(3, np.float32),))
    ((((3,), dtype('float32')),), True)
    """
    given = kernel.out(*args)
    single = isinstance(given, tuple) and len(given) == 2 and not isinstance(given[1], tuple)
    wanted = [given] if single else given
    try:
        described = tuple((tuple(int(length) for length in shape), np.dtype(dtype)) for shape, dtype in wanted)
    except (TypeError, ValueError) as error:
        raise BadValueError(
            f"'out' of kernel {kernel.entry!r} gave {given!r}", remedy="give (shape, dtype), or a list of such pairs"
        ) from error
    return described, single


def work_items(kernel: Kernel, args: Sequence[object]) -> tuple[int, ...]:
    """Ask a kernel for its number of work items in one to three dimensions.

    Raises
    ------
    BadValueError
        `kernel.global_size` gave something else.
    """
    given = kernel.global_size(*args)
    size = (given,) if isinstance(given, int | np.integer) else tuple(given)
    if not 1 <= len(size) <= 3 or any(not isinstance(n, int | np.integer) or n < 0 for n in size):
        raise BadValueError(
            f"'global_size' of kernel {kernel.entry!r} gave {given!r}", remedy="give one to three whole numbers"
        )
    return tuple(int(n) for n in size)
