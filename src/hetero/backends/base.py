"""The interface of a back end. A new device writes underscore methods only; the base checks and words errors.

In: arrays and calls. Out: arrays, status, speeds. A back end knows nothing of tasks, workers or schedules.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetero.floor.clock import monotonic_s
from hetero.floor.errors import BadValueError, DeviceError, HeteroError, OutOfDeviceMemoryError, came_from
from hetero.floor.text import exception_line
from hetero.model.device import HOST_NODE, KINDS, Device, DeviceKind, DeviceStatus
from hetero.model.topology import Link

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

__all__ = ["Backend", "Found", "Kernel", "Speed", "best_s", "grow", "is_memory_error"]

_RAISE_MEMORY_ERRORS = {"builtins", "numpy", "cupy", "jax", "jaxlib", "numba", "pyarrow", "pyopencl", "torch"}
"""Packages whose subclasses of MemoryError mean that memory ran out; a program's own may mean a quota."""


def is_memory_error(error: BaseException) -> bool:
    """Return True for Python's MemoryError and the subclasses of array libraries, False for a program's own.

    Examples
    --------
    >>> class QuotaError(MemoryError): ...
    >>> is_memory_error(MemoryError()), is_memory_error(QuotaError())
    (True, False)
    """
    if not isinstance(error, MemoryError) or isinstance(error, OutOfDeviceMemoryError):
        return isinstance(error, OutOfDeviceMemoryError)
    return type(error).__module__.partition(".")[0] in _RAISE_MEMORY_ERRORS


class Found(NamedTuple):
    """One result of a probe: a sound device, or a broken or missing one with the reason and the remedy.

    Attributes
    ----------
    device
        The device; for a broken one what is known of it, None when nothing enumerated.
    backend
        Name of the back end.
    reason
        '' for a sound device, else one line: why it cannot be used.
    remedy
        How to get it, '' when nothing helps.
    """

    device: Device | None
    backend: str
    reason: str = ""
    remedy: str = ""


class Speed(NamedTuple):
    """What a probe measured.

    Attributes
    ----------
    flop_per_s
        Float32 matrix product, FLOP/s.
    bytes_per_s
        Streaming copy, read plus write, bytes/s.
    in_bytes_per_s, out_bytes_per_s
        Copy from and to the host's memory, bytes/s, None where data is shared.
    """

    flop_per_s: float
    bytes_per_s: float
    in_bytes_per_s: float | None = None
    out_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Kernel:
    """Source code for devices that take kernels and no Python.

    Attributes
    ----------
    source
        OpenCL C for 'opencl' devices, WGSL for 'vulkan' devices.
    entry
        Name of the kernel in the source.
    out
        Gives (shape, dtype) of the result, or a list of them, from the call's arguments.
    global_size
        Gives the number of work items per dimension, from the call's arguments.
    local_size
        Work items of a group, None lets the back end choose (WGSL states it in the source).

    Notes
    -----
    Arguments are bound in the order of the call, then the outputs. Arrays become buffers; Python and NumPy
    scalars become kernel arguments (OpenCL) or fields of one uniform block, in order, as 32-bit words (WGSL).
    In WGSL the arrays of the call have `@group(0) @binding(0)` and up, the outputs follow, and the uniform
    block, where there are scalars, comes last; numbers take the types that the source declares.

    Examples
    --------
    >>> twice = Kernel(
    ...     "__kernel void twice(__global const float *x, __global float *y)"
    ...     "{ int i = get_global_id(0); y[i] = 2 * x[i]; }",
    ...     "twice", out=lambda x: (x.shape, x.dtype), global_size=lambda x: x.shape)
    >>> twice.entry
    'twice'
    """

    source: str
    entry: str
    out: Callable[..., Any]
    global_size: Callable[..., Sequence[int]]
    local_size: tuple[int, ...] | None = None


_NOTHING = nullcontext()


class Backend(ABC):
    """One open device of one kind.

    Subclasses give the class attributes and the underscore methods. `probe` is the only thing that is called
    without a device. Public methods check their arguments and turn a failure into `DeviceError`.

    Attributes
    ----------
    name
        The word under which it is registered.
    kinds
        Device kinds that it can find: the names of those in `KINDS`, a `DeviceKind` for each other one.
    labels
        Words before the ':' in the ids of its devices, the names of its kinds unless it says otherwise.
    requires
        Python packages that it needs; absent ones are a reason, found without importing anything.
    remedy
        How to get what it needs.
    heavy
        True when its packages are slow or dangerous to import, so that it is probed in a child process.
    runs_torch
        True when torch computes on its devices without harm to it, at the place that their kind names.
    runs_python
        Of a device: True when tasks without an implementation of their own run on it, else it takes kernels.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str | DeviceKind, ...]]
    labels: ClassVar[tuple[str, ...]] = ()
    requires: ClassVar[tuple[str, ...]] = ()
    remedy: ClassVar[str] = ""
    heavy: ClassVar[bool] = True
    runs_torch: ClassVar[bool] = False

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "kinds" in vars(cls) and "labels" not in vars(cls):
            cls.labels = tuple(cls.declared_kinds())

    def __init__(self, device: Device) -> None:
        self.device = device
        self.is_open = False
        self.runs_python = device.runs_python

    @classmethod
    def declared_kinds(cls) -> dict[str, DeviceKind]:
        """Return its kinds by name."""
        listed = (KINDS.get(kind, DeviceKind(kind)) if isinstance(kind, str) else kind for kind in cls.kinds)
        return {kind.name: kind for kind in listed}

    @classmethod
    def has_namespace(cls) -> bool:
        """Return whether its devices have an array namespace, without importing one."""
        return cls.namespace is not Backend.namespace

    @property
    def kind(self) -> DeviceKind:
        """The kind of its device."""
        name = self.device.kind
        return self.declared_kinds().get(name) or KINDS.get(name) or DeviceKind(name, str(self.device.type))

    @classmethod
    def missing(cls) -> tuple[str, ...]:
        """Return the packages that it needs and that are not installed here."""
        return tuple(package for package in cls.requires if find_spec(package) is None)

    @classmethod
    def probe(cls) -> list[Found]:
        """Find this back end's devices. Never raises: whatever goes wrong is a `Found` with its reason."""
        try:
            missing = cls.missing()
            if missing:
                return [Found(None, cls.name, f"the Python package {missing[0]!r} is not installed", cls.remedy)]
            return [cls._completed(found) for found in cls._probe()]
        except Exception as error:  # noqa: BLE001  vendor packages raise anything
            return [Found(None, cls.name, exception_line(error), cls.remedy)]

    @classmethod
    def _completed(cls, found: Found) -> Found:
        """Return a finding whose device says what its kind is where `KINDS` does not."""
        device = found.device
        kind = None if device is None else cls.declared_kinds().get(device.kind)
        if device is None or kind is None:
            return found
        if device.runs_python != kind.runs_python:
            device = replace(device, takes="python" if kind.runs_python else "kernels")
        if device.is_host != kind.is_host:
            device = replace(device, on_host=kind.is_host)
        return found._replace(device=device)

    def open(self) -> None:
        """Open the device and run a tiny kernel on it; nothing happens when it is open.

        Raises
        ------
        DeviceError
            The device cannot be opened, or cannot compute.
        """
        if self.is_open:
            return
        with self._worded("cannot be opened"):
            self._open()
        self.is_open = True

    def close(self) -> None:
        """Close the device; safe to call twice."""
        if self.is_open:
            self.is_open = False
            self._close()

    def status(self) -> DeviceStatus:
        """Return the device's status; what is unknown is None."""
        try:
            return self._status()
        except Exception:  # noqa: BLE001  a status is never worth a failure
            return DeviceStatus()

    def namespace(self) -> ModuleType | None:
        """Return the array-API module of this device; None where there is none, and for devices that take kernels."""
        return None

    def activate(self) -> AbstractContextManager[object]:
        """Make this device the current one of its framework for the `with` block."""
        return _NOTHING

    def owns(self, value: object) -> bool:
        """Return whether a value is an array of this device."""
        return False

    def copy_in(self, array: NDArray[np.generic]) -> object:
        """Copy a NumPy array to the device's memory node.

        Parameters
        ----------
        array
            Any shape, strides and order; a device that shares the host's memory may share its bytes.

        Raises
        ------
        BadValueError
            It is no array, or its dtype cannot live on this device.
        OutOfDeviceMemoryError
            There is no room for it.
        DeviceError
            The device is closed, or the copy failed.
        """
        self._check_open()
        if not isinstance(array, np.ndarray):
            raise BadValueError(
                f"{self.device.id} was given a {type(array).__name__!r} to copy", remedy="give a NumPy array"
            )
        self._check_dtype(array.dtype)
        with self._worded(f"cannot take an array of {array.nbytes} bytes"):
            return self._copy_in(array)

    def copy_out(self, array: object) -> NDArray[np.generic]:
        """Return an array of this device as a NumPy array; raises as `copy_in` does."""
        self._check_open()
        if not self.owns(array):
            raise BadValueError(
                f"a {type(array).__name__!r} is no array of {self.device.id}",
                remedy="give what its copy_in or run gave",
            )
        with self._worded("cannot copy an array back"):
            return self._copy_out(array)

    def alloc(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """Return a new array of this device with undefined contents; raises as `copy_in` does."""
        self._check_open()
        wanted = np.dtype(dtype)
        self._check_dtype(wanted)
        if any(length < 0 for length in shape):
            raise BadValueError(f"{shape} is no shape", remedy="every length must be zero or more")
        with self._worded(f"cannot allocate {shape} of {wanted}"):
            return self._alloc(tuple(shape), wanted)

    def free(self, array: object) -> None:
        """Release an array's memory at once, where the device can; the array must not be used again."""
        if self.owns(array):
            self._free(array)

    def run(self, implementation: Any, args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None) -> Any:
        """Call a function, or launch a `Kernel`, on this device.

        Raises
        ------
        BadValueError
            This device does not run such an implementation, or the arguments do not suit the kernel.
        DeviceError
            A kernel could not be built or launched. What a function raises passes through as itself.
        """
        if not self.is_open:
            self._check_open()
        if isinstance(implementation, Kernel) == self.runs_python:
            given, takes = ("a kernel", "Python functions") if self.runs_python else ("a Python function", "kernels")
            raise BadValueError(
                f"{self.device.id} takes {takes} and was given {given}",
                remedy=f"register an implementation for {self.device.kind!r} that suits it",
            )
        if self.runs_python:
            return self._run(implementation, tuple(args), kwargs or {})
        with self._worded(f"cannot run kernel {implementation.entry!r}"):
            return self._run(implementation, tuple(args), kwargs or {})

    def synchronize(self) -> None:
        """Wait until everything that was started has ended; raises DeviceError when some of it failed."""
        self._check_open()
        with self._worded("failed in work that was started earlier"):
            self._synchronize()

    def transfer(self, array: object, peer: Backend) -> object:
        """Copy an array of this device to another open device; return the other's array.

        Goes directly where both back ends know how, else through the host's memory.
        """
        self._check_open()
        peer._check_open()
        if not self.owns(array):
            raise BadValueError(f"a {type(array).__name__!r} is no array of {self.device.id}")
        with self._worded(f"cannot copy to {peer.device.id}"):
            direct = self._transfer(array, peer)
        return direct if direct is not None else peer.copy_in(self.copy_out(array))

    def as_buffer(self, array: object) -> NDArray[np.generic] | None:
        """Return a NumPy array that shares the memory of an array of this device, None where a copy is needed."""
        return self._as_buffer(array) if self.owns(array) else None

    def links(self) -> tuple[Link, ...]:
        """Return the links between this device's memory node and others, as far as the device tells them."""
        try:
            return tuple(self._links())
        except Exception:  # noqa: BLE001  an unknown link is measured or assumed by others
            return ()

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Return whether an exception, or what it came from, means that memory ran out."""
        try:
            return any(is_memory_error(each) or self._is_out_of_memory(each) for each in came_from(error))
        except Exception:  # noqa: BLE001  a user's exception may raise anything when it is shown
            return False

    def measure(self) -> Speed:
        """Measure the device in about 50 ms once it is warm.

        Notes
        -----
        flop_per_s = 2 n^3 / s for the product of two n x n float32 matrices; bytes_per_s = 2 b / s for the
        copy of b bytes. n and b double until one call takes 4 ms; the best of the calls counts.

        Raises
        ------
        DeviceError
            The device is closed, or computes nothing.
        """
        self._check_open()
        if self.device.simulated:
            raise DeviceError(f"{self.device.id} computes nothing, so it has no speed")
        with self._worded("cannot be measured"), self.activate():
            n, product_s = grow(self._product, self._synchronize, 256, 4096)
            nbytes, copy_s = grow(self._stream, self._synchronize, 1 << 24, 1 << 28)
        speed = Speed(2.0 * n**3 / product_s, 2.0 * nbytes / copy_s)
        return speed if self.device.memory_node == HOST_NODE else self._with_link(speed)

    def _with_link(self, speed: Speed) -> Speed:
        host = np.zeros(1 << 22, np.float32)
        there = self.copy_in(host)
        in_s = best_s(lambda: self.copy_in(host), self._synchronize)
        out_s = best_s(lambda: self.copy_out(there), self._synchronize)
        return speed._replace(in_bytes_per_s=host.nbytes / in_s, out_bytes_per_s=host.nbytes / out_s)

    def _check_open(self) -> None:
        if not self.is_open:
            raise DeviceError(f"{self.device.id} is not open", remedy="call open() first")

    def _check_dtype(self, dtype: np.dtype[np.generic]) -> None:
        if not self._dtype_ok(dtype):
            raise BadValueError(
                f"an array of dtype {dtype} cannot live on {self.device.id}", remedy="convert it with astype() first"
            )

    @contextmanager
    def _worded(self, doing: str) -> Iterator[None]:
        try:
            yield
        except HeteroError:
            raise
        except Exception as error:
            kind = OutOfDeviceMemoryError if self.is_out_of_memory(error) else DeviceError
            raise kind(f"{self.device.id} {doing}: {exception_line(error)}") from error

    @classmethod
    @abstractmethod
    def _probe(cls) -> list[Found]:
        """Find devices; `probe` reports what this raises as the reason why there is none, the kit refuses it."""

    @abstractmethod
    def _open(self) -> None:
        """Open the device and run a tiny kernel on it; may raise anything."""

    @abstractmethod
    def _close(self) -> None:
        """Release everything, also what is process-wide."""

    def _status(self) -> DeviceStatus:
        return DeviceStatus()

    def _alloc(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> object:
        return self._copy_in(np.empty(shape, dtype))

    def _free(self, array: object) -> None:  # noqa: B027  garbage collection frees what a device does not
        pass

    @abstractmethod
    def _copy_in(self, array: NDArray[np.generic]) -> object:
        """Copy a NumPy array to the device; return the device's array."""

    @abstractmethod
    def _copy_out(self, array: object) -> NDArray[np.generic]:
        """Copy an array of the device to a NumPy array."""

    @abstractmethod
    def _synchronize(self) -> None:
        """Wait until everything that was started has ended."""

    def _run(self, implementation: Any, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        return implementation(*args, **kwargs)

    def _try_kernel(self, adds_one: Kernel) -> None:
        """Run a kernel that adds 1 to each number, while the device opens; raise where it gives anything else."""
        self.is_open = True
        try:
            got = self.copy_out(self.run(adds_one, (np.arange(4, dtype=np.float32),)))
        finally:
            self.is_open = False
        if got.tolist() != [1.0, 2.0, 3.0, 4.0]:
            raise DeviceError(f"{self.device.id} computes wrongly: adding 1 to 0, 1, 2, 3 gave {got.tolist()}")

    def _transfer(self, array: object, peer: Backend) -> object:
        """Copy directly to a peer, or give None."""
        return None

    def _as_buffer(self, array: object) -> NDArray[np.generic] | None:
        return None

    def _links(self) -> Sequence[Link]:
        return ()

    def _dtype_ok(self, dtype: np.dtype[np.generic]) -> bool:
        return dtype.kind in "biufc"

    def _is_out_of_memory(self, error: BaseException) -> bool:
        return False

    def _product(self, n: int) -> Callable[[], object]:
        """Return a call that multiplies two n x n float32 matrices; here by `@` of the device's arrays."""
        matrix = self._copy_in(np.ones((n, n), np.float32))
        return lambda: self._run(operator.matmul, (matrix, matrix), {})

    def _stream(self, nbytes: int) -> Callable[[], object]:
        """Return a call that reads and writes this many bytes on the device; here by `+` of the device's arrays."""
        vector = self._copy_in(np.ones(nbytes // 4, np.float32))
        return lambda: self._run(operator.add, (vector, 1.0), {})


# --- measuring ----------------------------------------------------------------------------------------------

LONG_ENOUGH_S = 0.004
BUDGET_S = 0.020


def best_s(call: Callable[[], object], wait: Callable[[], object]) -> float:
    """Return the shortest of up to ten timed calls, or of as many as fit into 20 ms, after one that warms up.

    Returns
    -------
    float
        s, > 0
    """
    call()
    wait()
    best, begun = float("inf"), monotonic_s()
    for _ in range(10):
        start = monotonic_s()
        call()
        wait()
        end = monotonic_s()
        best = min(best, end - start)
        if end - begun > BUDGET_S:
            break
    return max(best, 1e-9)


def grow(
    prepare: Callable[[int], Callable[[], object]], wait: Callable[[], object], size: int, most: int
) -> tuple[int, float]:
    """Double a size until one call takes 4 ms or the size is the largest allowed.

    Parameters
    ----------
    prepare
        Gives the call for a size.
    wait
        Waits until the call's work has ended.
    size, most
        First and largest size.

    Returns
    -------
    tuple
        the size, and the seconds of its best call
    """
    seconds = best_s(prepare(size), wait)
    while seconds < LONG_ENOUGH_S and size < most:
        size *= 2
        seconds = best_s(prepare(size), wait)
    return size, seconds
