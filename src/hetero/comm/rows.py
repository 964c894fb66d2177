"""Rows of numbers as bytes that travel: NumPy arrays and torch tensors in host memory, and how two ranges combine.

In: an array. Out: its bytes, and sums or maxima written into it. It must not copy the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hetero.floor.errors import BadValueError, did_you_mean

if TYPE_CHECKING:
    import torch

__all__ = ["OPS", "Op", "TensorRow", "as_tensor", "check_op", "row_of"]

Op = Literal["sum", "max", "min"]
OPS: tuple[Op, ...] = ("sum", "max", "min")


class TensorRow(Protocol):
    """Numbers one after the other in host memory.

    Attributes
    ----------
    count, itemsize
        Elements, and bytes of each.
    data
        All of them as bytes, writable.
    kind
        Name of the dtype, the same for a NumPy array and a tensor.
    """

    count: int
    itemsize: int
    data: memoryview
    kind: str

    def combine(self, begin: int, end: int, received: memoryview, op: Op) -> None:
        """Put the sum, maximum or minimum of a range and of received bytes into the range."""
        ...

    def over(self, data: memoryview) -> TensorRow:
        """Return a row of the same kind whose numbers lie in other bytes."""
        ...


class _NumpyRow:
    def __init__(self, array: NDArray[np.generic]) -> None:
        self._flat = array.reshape(-1)
        self.count = self._flat.size
        self.itemsize = self._flat.itemsize
        self.kind = str(self._flat.dtype)
        self.data = memoryview(self._flat.view(np.uint8).data)

    def combine(self, begin: int, end: int, received: memoryview, op: Op) -> None:
        mine = self._flat[begin:end]
        _NUMPY[op](mine, np.frombuffer(received, dtype=mine.dtype), out=mine)

    def over(self, data: memoryview) -> TensorRow:
        return _NumpyRow(np.frombuffer(data, dtype=self._flat.dtype))


_NUMPY: dict[Op, Callable[..., object]] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class _TorchRow:
    def __init__(self, tensor: torch.Tensor) -> None:
        self._torch = import_module("torch")
        self._flat = tensor.detach().view(-1)
        self.count = self._flat.numel()
        self.itemsize = self._flat.element_size()
        self.kind = str(self._flat.dtype).removeprefix("torch.")
        self.data = memoryview(self._flat.view(self._torch.uint8).numpy())
        self._combine = {"sum": self._torch.add, "max": self._torch.maximum, "min": self._torch.minimum}

    def combine(self, begin: int, end: int, received: memoryview, op: Op) -> None:
        mine = self._flat[begin:end]
        self._combine[op](mine, self._torch.frombuffer(received, dtype=mine.dtype), out=mine)

    def over(self, data: memoryview) -> TensorRow:
        return _TorchRow(self._torch.frombuffer(data, dtype=self._flat.dtype))


def row_of(array: NDArray[np.generic] | torch.Tensor) -> TensorRow:
    """Return the row of an array; what is written into the row is written into the array.

    Raises
    ------
    BadValueError
        It is no writable, contiguous NumPy array or torch tensor of numbers in host memory.
    """
    if isinstance(array, np.ndarray):
        if array.flags.c_contiguous and array.flags.writeable and not array.dtype.hasobject:
            return _NumpyRow(array)
    elif hasattr(array, "data_ptr") and array.device.type == "cpu" and array.is_contiguous():
        return _TorchRow(array)
    raise BadValueError(
        f"a {type(array).__name__} cannot travel as it is",
        remedy="give a writable, contiguous NumPy array or torch tensor of numbers in host memory",
    )


def as_tensor(array: NDArray[np.generic] | torch.Tensor) -> torch.Tensor:
    """Return a torch tensor that shares the memory of an array."""
    return import_module("torch").from_numpy(array) if isinstance(array, np.ndarray) else array.detach()


def check_op(op: str) -> Op:
    """Return the operation of that name.

    Raises
    ------
    BadValueError
        There is none.

    Examples
    --------
    >>> check_op("max")
    'max'
    """
    for known in OPS:
        if op == known:
            return known
    raise BadValueError(f"op: {op!r} is no reduction{did_you_mean(str(op), OPS)}", remedy=f"allowed: {', '.join(OPS)}")
