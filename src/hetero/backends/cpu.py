"""CPU cores through NumPy.

In: arrays in the host's memory. Out: the same arrays, never copied. It must not bind threads to cores: the
worker process does that; here the libraries under NumPy are held to the device's number of cores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from hetero.backends import host
from hetero.backends.base import Backend, Found
from hetero.model.device import HOST_NODE, Device, DeviceStatus, DeviceType

if TYPE_CHECKING:
    from threadpoolctl import threadpool_limits

__all__ = ["CpuBackend", "CpuLoad", "cpu_device", "hold_threads", "release_threads"]


class _Held:
    """The process-wide limits on threads: the most cores that any open device has."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.cores: list[int] = []
        self.blas: threadpool_limits | None = None
        self.own: dict[SetThreads, tuple[int, list[int]]] = {}


SetThreads = Callable[[int], object]
_held = _Held()


def _limit_blas() -> None:
    if find_spec("threadpoolctl") is None:  # the Python of a device may have NumPy and no more
        return
    from threadpoolctl import threadpool_limits

    if _held.blas is not None:
        _held.blas.restore_original_limits()
    _held.blas = threadpool_limits(limits=max(_held.cores)) if _held.cores else None


def hold_threads(cores: int, get: Callable[[], int] | None = None, put: SetThreads | None = None) -> None:
    """Limit the threads of BLAS and OpenMP to a device's cores, until `release_threads` is called as often.

    Parameters
    ----------
    cores
        The device's number of cores; of several open devices the largest number counts.
    get, put
        How a framework tells and takes its own number of threads, where it keeps one.
    """
    with _held.lock:
        if get is not None and put is not None:
            _held.own.setdefault(put, (get(), []))[1].append(cores)
        _held.cores.append(cores)
        _limit_blas()
        if put is not None:
            put(max(_held.own[put][1]))


def release_threads(cores: int, put: SetThreads | None = None) -> None:
    """Take back one `hold_threads` of that many cores; after the last one everything is as before the first."""
    with _held.lock:
        _held.cores.remove(cores)
        _limit_blas()
        if put is not None:
            before, own = _held.own[put]
            own.remove(cores)
            put(max(own, default=before))
            if not own:
                del _held.own[put]


SHORTEST_S = 0.05
"""Seconds that a measured utilisation must cover: the kernel counts in hundredths."""


class CpuLoad:
    """How busy some CPUs were since the last question.

    Parameters
    ----------
    cpus
        CPU numbers, () for all.
    """

    def __init__(self, cpus: tuple[int, ...]) -> None:
        self.cpus = cpus
        self.before: tuple[float, float] | None = None

    def _times(self) -> tuple[float, float]:
        import psutil

        rows = psutil.cpu_times(percpu=True)
        mine = [rows[number] for number in self.cpus if number < len(rows)] or rows
        total = sum(sum(row[:8]) for row in mine)
        return total, total - sum(row.idle + getattr(row, "iowait", 0.0) for row in mine)

    def busy_frac(self) -> float | None:
        """Return the share of time in which they were busy; None the first time and when too little time has passed."""
        now, before = self._times(), self.before
        if before is None:
            self.before = now
            return None
        passed = now[0] - before[0]
        if passed < SHORTEST_S * max(1, len(self.cpus)):
            return None
        self.before = now
        return min(1.0, max(0.0, (now[1] - before[1]) / passed))


def cpu_device(label: str, backend: str, index: int, cpus: tuple[int, ...], driver: str) -> Device:
    """Describe a device made of CPU cores whose data lies in the host's memory."""
    return Device(
        id=f"h0/{label}:{index}",
        kind="cpu",
        type=DeviceType("CPU"),
        backend=backend,
        index=index,
        name=host.cpu_name(),
        memory_node=HOST_NODE,
        memory_bytes=host.ram_bytes(),
        cores=len(cpus),
        cpus=cpus,
        silicon=host.core_ids(cpus),
        driver=driver,
    )


class CpuBackend(Backend):
    """NumPy on some of the host's cores."""

    name: ClassVar[str] = "cpu"
    kinds: ClassVar[tuple[str, ...]] = ("cpu",)
    heavy: ClassVar[bool] = False
    runs_torch: ClassVar[bool] = True

    @classmethod
    def _probe(cls) -> list[Found]:
        driver = f"numpy {np.__version__}"
        if not np.array_equal(np.ones((2, 2), np.float32) @ np.ones((2, 2), np.float32), np.full((2, 2), 2.0)):
            return [Found(None, cls.name, "NumPy multiplies wrongly", "reinstall numpy")]
        parts = host.groups(host.cpus())
        return [Found(cpu_device("cpu", cls.name, index, part, driver), cls.name) for index, part in enumerate(parts)]

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._load = CpuLoad(device.cpus)

    def _open(self) -> None:
        hold_threads(self.device.cores)

    def _close(self) -> None:
        release_threads(self.device.cores)

    def _status(self) -> DeviceStatus:
        return host.cpu_status(self._load.busy_frac())

    def namespace(self) -> ModuleType:
        """Return NumPy as an array-API module."""
        import array_api_compat.numpy

        found: ModuleType = array_api_compat.numpy
        return found

    def owns(self, value: object) -> bool:
        """Return whether a value is a NumPy array."""
        return isinstance(value, np.ndarray)

    def _dtype_ok(self, dtype: np.dtype[np.generic]) -> bool:
        return True

    def _alloc(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        return np.empty(shape, dtype)

    def _copy_in(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        return array

    def _copy_out(self, array: object) -> NDArray[np.generic]:
        return np.asarray(array)

    def _as_buffer(self, array: object) -> NDArray[np.generic]:
        return np.asarray(array)

    def _synchronize(self) -> None:
        pass

    def _product(self, n: int) -> Callable[[], object]:
        one, out = np.ones((n, n), np.float32), np.empty((n, n), np.float32)
        return lambda: np.matmul(one, one, out=out)

    def _stream(self, nbytes: int) -> Callable[[], object]:
        src, dst = np.ones(nbytes, np.uint8), np.empty(nbytes, np.uint8)
        return lambda: np.copyto(dst, src)
