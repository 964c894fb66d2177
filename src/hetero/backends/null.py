"""A device that computes nothing, so that schedulers, engines and reports can be tried with any fleet.

In: arrays and calls. Out: the same arrays, and None for every call. It must not call what it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hetero.backends.base import Backend, Found
from hetero.model.device import HOST_NODE, Device, DeviceType

__all__ = ["NullBackend", "null_device"]


def null_device(index: int) -> Device:
    """Describe the null device of this number; there are as many as are asked for."""
    return Device(
        id=f"h0/null:{index}",
        kind="null",
        type=DeviceType("NULL"),
        backend="null",
        index=index,
        name="null device, computes nothing",
        memory_node=HOST_NODE,
        silicon=(f"h0/null{index}",),
        simulated=True,
        isolation="thread",
    )


class NullBackend(Backend):
    """Takes everything and computes nothing."""

    name: ClassVar[str] = "null"
    kinds: ClassVar[tuple[str, ...]] = ("null",)
    heavy: ClassVar[bool] = False

    @classmethod
    def _probe(cls) -> list[Found]:
        return [Found(null_device(0), cls.name)]

    def _open(self) -> None:
        pass

    def _close(self) -> None:
        pass

    def owns(self, value: object) -> bool:
        """Return whether a value is a NumPy array: that is all that it holds."""
        return isinstance(value, np.ndarray)

    def _copy_in(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        return array

    def _copy_out(self, array: object) -> NDArray[np.generic]:
        return np.asarray(array)

    def _as_buffer(self, array: object) -> NDArray[np.generic]:
        return np.asarray(array)

    def _run(self, implementation: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        return None

    def _synchronize(self) -> None:
        pass
