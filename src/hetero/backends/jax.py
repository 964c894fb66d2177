"""Devices through JAX: TPUs, GPUs, and a CPU when asked.

In: NumPy arrays. Out: JAX arrays of the device, with the dtype that they came with. It must not import JAX at the
top, nor change JAX's settings outside of `activate`: there 64-bit types are on, since arrays keep their dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from hetero.backends import host
from hetero.backends.base import Backend, Found
from hetero.backends.cpu import CpuLoad, cpu_device, hold_threads, release_threads
from hetero.backends.gpus import gpu_status, pci_addresses
from hetero.floor.contexts import transparent
from hetero.floor.settings import offer
from hetero.floor.text import exception_line
from hetero.model.device import KINDS, Device, DeviceStatus, DeviceType, is_host_kind

if TYPE_CHECKING:
    import jax

__all__ = ["JaxBackend"]


class JaxBackend(Backend):
    """One device of JAX."""

    name: ClassVar[str] = "jax"
    kinds: ClassVar[tuple[str, ...]] = ("tpu", "cuda", "rocm", "mps", "npu", "cpu")
    labels: ClassVar[tuple[str, ...]] = ("tpu", "jax-cuda", "jax-rocm", "jax-mps", "jax-npu", "jax-cpu")
    requires: ClassVar[tuple[str, ...]] = ("jax", "jaxlib")
    remedy: ClassVar[str] = "pip install 'hetero-core[jax]'"

    @classmethod
    def _probe(cls) -> list[Found]:
        offer("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        jax = import_module("jax")
        driver = f"jax {jax.__version__}"
        found = [cls._try(jax, cpu_device("jax-cpu", cls.name, 0, host.cpus(), driver))]
        for native in jax.local_devices():
            kind = _kind(native)
            if kind in cls.kinds and not is_host_kind(kind):
                found.append(cls._try(jax, _describe(native, kind, driver)))
        return found

    @classmethod
    def _try(cls, jax: ModuleType, device: Device) -> Found:
        try:
            native = _native(jax, device)
            ones = jax.device_put(np.ones((8, 8), np.float32), native)
            total = float((ones @ ones).sum())
        except Exception as error:  # noqa: BLE001  a broken driver raises anything
            return Found(device, cls.name, f"it enumerates and cannot compute: {exception_line(error)}", cls.remedy)
        reason = "" if total == 512.0 else f"it computes wrongly: 8 x 8 ones gave {total} and not 512"
        return Found(device, cls.name, reason)

    @property
    def _on_cpu(self) -> bool:
        return self.device.is_host

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._load = CpuLoad(device.cpus)

    def _open(self) -> None:
        if not self._on_cpu:
            self._offer_memory()
        self._jax = import_module("jax")
        self._native = _native(self._jax, self.device)
        (self._jax.device_put(np.ones(4, np.float32), self._native) + 1).block_until_ready()
        if self._on_cpu:
            hold_threads(self.device.cores)

    def _offer_memory(self) -> None:
        offer("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        if self.device.memory_limit_bytes and self.device.memory_bytes:
            share = min(1.0, self.device.memory_limit_bytes / self.device.memory_bytes)
            offer("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{share:.4f}")

    def _close(self) -> None:
        if self._on_cpu:
            release_threads(self.device.cores)

    def _status(self) -> DeviceStatus:
        if self._on_cpu:
            return host.cpu_status(self._load.busy_frac())
        status = gpu_status(self.device)
        stats = (self._native.memory_stats() or {}) if self.is_open else {}
        used, limit = stats.get("bytes_in_use"), stats.get("bytes_limit")
        if status.used_bytes is None and used is not None:
            free = None if limit is None else limit - used
            status = DeviceStatus(used, free, status.utilisation_frac, status.temperature_c, status.power_w)
        return status

    def namespace(self) -> ModuleType:
        """Return `jax.numpy`; inside `activate` it makes its arrays on this device."""
        return import_module("jax.numpy")

    def activate(self) -> AbstractContextManager[object]:
        """Make this device JAX's default one, with 64-bit types on."""
        return self._current()

    @transparent
    def _current(self) -> Iterator[None]:
        with self._wide(), self._jax.default_device(self._native):
            yield

    def _wide(self) -> AbstractContextManager[object]:
        if hasattr(self._jax, "enable_x64"):
            context: AbstractContextManager[object] = self._jax.enable_x64(True)
            return context
        older: AbstractContextManager[object] = import_module("jax.experimental").enable_x64()
        return older

    def owns(self, value: object) -> bool:
        """Return whether a value is a JAX array that lies on this device and no other."""
        return self.is_open and isinstance(value, self._jax.Array) and value.devices() == {self._native}

    def _dtype_ok(self, dtype: np.dtype[np.generic]) -> bool:
        return dtype.kind in "biufc" and dtype.isnative and dtype not in (np.longdouble, np.clongdouble)

    def _copy_in(self, array: NDArray[np.generic]) -> object:
        with self._wide():
            return self._jax.device_put(array, self._native)

    def _copy_out(self, array: object) -> NDArray[np.generic]:
        return np.asarray(array)

    def _as_buffer(self, array: object) -> NDArray[np.generic] | None:
        return np.asarray(array) if self._on_cpu else None

    def _transfer(self, array: object, peer: Backend) -> object:
        return self._jax.device_put(array, peer._native) if isinstance(peer, JaxBackend) else None

    def _synchronize(self) -> None:
        (self._jax.device_put(np.zeros((), np.float32), self._native) + 1).block_until_ready()

    def _is_out_of_memory(self, error: BaseException) -> bool:
        return type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError") and "RESOURCE_EXHAUSTED" in str(error)

    def _product(self, n: int) -> Callable[[], object]:
        one = self._copy_in(np.ones((n, n), np.float32))
        multiply = self._jax.jit(lambda matrix: matrix @ matrix)
        return lambda: multiply(one).block_until_ready()

    def _stream(self, nbytes: int) -> Callable[[], object]:
        src = self._copy_in(np.ones(nbytes // 4, np.float32))
        add = self._jax.jit(lambda vector: vector + 1)
        return lambda: add(src).block_until_ready()


def _kind(native: jax.Device) -> str:
    platform = str(native.platform).lower()
    if platform != "gpu":
        return {"metal": "mps"}.get(platform, platform)
    version = str(getattr(native.client, "platform_version", "")).lower()
    return "rocm" if "rocm" in version else "cuda"


def _native(jax: ModuleType, device: Device) -> jax.Device:
    if device.is_host:
        return jax.local_devices(backend="cpu")[0]
    return next(native for native in jax.local_devices() if native.id == device.index)


def _describe(native: jax.Device, kind: str, driver: str) -> Device:
    stats = native.memory_stats() or {}
    label = kind if kind == "tpu" else f"jax-{kind}"
    addresses = pci_addresses(kind)
    number = getattr(native, "local_hardware_id", None) or 0
    chip = host.pci_silicon(addresses[number]) if number < len(addresses) else f"h0/{kind}{native.id}"
    return Device(
        id=f"h0/{label}:{native.id}",
        kind=kind,
        type=DeviceType(KINDS[kind].type),
        backend=JaxBackend.name,
        index=native.id,
        name=str(native.device_kind),
        memory_node=f"h0/{label}:{native.id}",
        memory_bytes=stats.get("bytes_limit"),
        cores=getattr(native, "core_count", None) or 1,
        silicon=(chip,),
        driver=driver,
    )
