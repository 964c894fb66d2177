"""The interface of a back end. A new device writes underscore methods only; the base checks and words errors.

In: arrays and calls. Out: arrays, status, speeds. A back end knows nothing of tasks, workers or schedules.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetero.floor.errors import DeviceError
from hetero.model.device import Device, DeviceStatus
from hetero.model.topology import Link

__all__ = ["Backend", "Found", "Kernel", "Speed"]


class Found(NamedTuple):
    """One result of a probe: a sound device, or a broken or missing one with the reason and the remedy.

    Attributes
    ----------
    device : the device; for a broken one what is known of it, None when nothing enumerated
    backend : name of the back end
    reason : '' for a sound device, else one line: why it cannot be used
    remedy : how to get it, '' when nothing helps
    """

    device: Device | None
    backend: str
    reason: str = ""
    remedy: str = ""


class Speed(NamedTuple):
    """What a probe measured.

    Attributes
    ----------
    flop_per_s : float32 matrix product, FLOP/s
    bytes_per_s : streaming copy, read plus write, bytes/s
    """

    flop_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Kernel:
    """Source code for devices that take kernels and no Python.

    Attributes
    ----------
    source : OpenCL C for 'opencl' devices, WGSL for 'vulkan' devices
    entry : name of the kernel in the source
    out : gives (shape, dtype) of the result, or a list of them, from the call's arguments
    global_size : gives the number of work items per dimension, from the call's arguments
    local_size : work items of a group, None lets the back end choose (WGSL states it in the source)

    Notes
    -----
    Arguments are bound in the order of the call, then the outputs. Arrays become buffers; Python and NumPy
    scalars become kernel arguments (OpenCL) or fields of one uniform block, in order, as 32-bit words (WGSL).

    Examples
    --------
    >>> twice = Kernel(
    ...     "__kernel void twice(__global const float *x, __global float *y) {int i = get_global_id(0); y[i] = 2*x[i];}",
    ...     "twice", out=lambda x: (x.shape, x.dtype), global_size=lambda x: x.shape)
    >>> twice.entry
    'twice'
    """

    source: str
    entry: str
    out: Callable[..., Any]
    global_size: Callable[..., Sequence[int]]
    local_size: tuple[int, ...] | None = None


class Backend(ABC):
    """One open device of one kind.

    Subclasses give `name`, `kinds` and the underscore methods. `probe` is the only thing that is called
    without a device. Public methods check their arguments and turn a failure into `DeviceError`.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    runs_python: ClassVar[bool] = True

    def __init__(self, device: Device) -> None:
        self.device = device
        self.is_open = False

    @classmethod
    def probe(cls) -> list[Found]:
        """Find this back end's devices. Never raises: whatever goes wrong is a `Found` with its reason."""
        try:
            return cls._probe()
        except Exception as error:  # noqa: BLE001  vendor packages raise anything
            return [Found(None, cls.name, f"{type(error).__name__}: {error}".splitlines()[0])]

    def open(self) -> None:
        """Open the device and run a tiny kernel on it; raises DeviceError when that fails."""
        try:
            self._open()
        except DeviceError:
            raise
        except Exception as error:
            raise DeviceError(f"{self.device.id} cannot be opened: {type(error).__name__}: {error}") from error
        self.is_open = True

    def close(self) -> None:
        """Close the device; safe to call twice."""
        if self.is_open:
            self.is_open = False
            self._close()

    def status(self) -> DeviceStatus:
        """Give the device's status; what is unknown is None."""
        try:
            return self._status()
        except Exception:  # noqa: BLE001  a status is never worth a failure
            return DeviceStatus()

    def namespace(self) -> Any:
        """Give the array-API module of this device, or None for devices that take kernels."""
        return None

    def activate(self) -> AbstractContextManager[Any]:
        """Make this device the current one of its framework for the `with` block."""
        return nullcontext()

    def owns(self, value: Any) -> bool:
        """Tell whether a value is an array of this device."""
        return False

    @classmethod
    @abstractmethod
    def _probe(cls) -> list[Found]:
        """Find devices; may raise anything."""

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    def _status(self) -> DeviceStatus:
        return DeviceStatus()

    @abstractmethod
    def _copy_in(self, array: NDArray[Any]) -> Any:
        """Copy a NumPy array to the device; give the device's array."""

    @abstractmethod
    def _copy_out(self, array: Any) -> NDArray[Any]:
        """Copy an array of the device to a NumPy array."""

    @abstractmethod
    def _synchronize(self) -> None:
        """Wait until everything that was started has ended."""

    def _run(self, kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return kernel(*args, **kwargs)

    def _links(self) -> Sequence[Link]:
        return ()

    def _dtype_ok(self, dtype: np.dtype[Any]) -> bool:
        return dtype.kind in "biufc"
