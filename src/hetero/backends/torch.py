"""Devices through torch: CUDA, ROCm, XPU, MPS and whatever else `torch.accelerator` knows; a CPU when asked.

In: NumPy arrays. Out: tensors of the device. On a CPU both share their bytes. It must not import torch at the
top, nor change which device is torch's current one outside of `activate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hetero.backends import host, nvidia
from hetero.backends.base import Backend, Found, is_memory_error
from hetero.backends.cpu import CpuLoad, cpu_device, hold_threads, release_threads
from hetero.backends.gpus import gpu_status, pci_addresses
from hetero.floor.contexts import transparent
from hetero.floor.text import exception_line
from hetero.model.device import KINDS, Device, DeviceStatus, DeviceType
from hetero.model.topology import Link

if TYPE_CHECKING:
    import torch

__all__ = ["TorchBackend", "is_out_of_memory"]


class TorchBackend(Backend):
    """One device of torch."""

    name: ClassVar[str] = "torch"
    kinds: ClassVar[tuple[str, ...]] = ("cuda", "rocm", "xpu", "mps", "npu", "hpu", "cpu")
    labels: ClassVar[tuple[str, ...]] = ("cuda", "rocm", "xpu", "mps", "npu", "hpu", "torch-cpu")
    requires: ClassVar[tuple[str, ...]] = ("torch",)
    remedy: ClassVar[str] = "pip install 'hetero-core[torch]'"
    runs_torch: ClassVar[bool] = True

    @classmethod
    def _probe(cls) -> list[Found]:
        torch = import_module("torch")
        found = [cls._try(torch, cpu_device("torch-cpu", cls.name, 0, host.cpus(), f"torch {torch.__version__}"))]
        kind = _accelerator_kind(torch)
        if kind is None:
            return found + _unused_gpus(torch)
        addresses = pci_addresses(kind)
        for index in range(torch.accelerator.device_count()):
            device = _describe(torch, kind, index, addresses[index] if index < len(addresses) else "")
            found.append(cls._try(torch, device))
        return found

    @classmethod
    def _try(cls, torch: ModuleType, device: Device) -> Found:
        try:
            ones = torch.ones((8, 8), device=_place(torch, device))
            total = float((ones @ ones).sum().cpu())
        except Exception as error:  # noqa: BLE001  a broken driver raises anything
            return Found(device, cls.name, f"it enumerates and cannot compute: {exception_line(error)}", cls.remedy)
        reason = "" if total == 512.0 else f"it computes wrongly: 8 x 8 ones gave {total} and not 512"
        return Found(device, cls.name, reason)

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._load = CpuLoad(device.cpus)

    def _open(self) -> None:
        self._torch = import_module("torch")
        self._place = _place(self._torch, self.device)
        if self._on_cpu:
            hold_threads(self.device.cores, self._torch.get_num_threads, self._torch.set_num_threads)
        elif (
            self.device.memory_limit_bytes and self.device.memory_bytes and self._has("set_per_process_memory_fraction")
        ):
            self._cap(min(1.0, self.device.memory_limit_bytes / self.device.memory_bytes))
        (self._torch.ones(4, device=self._place) + 1).cpu()

    def _close(self) -> None:
        if self._on_cpu:
            release_threads(self.device.cores, self._torch.set_num_threads)
            return
        if self.device.memory_limit_bytes and self._has("set_per_process_memory_fraction"):
            self._cap(1.0)
        if self._has("empty_cache"):
            self._module.empty_cache()

    def _cap(self, share: float) -> None:
        index = () if self._place.index is None else (self.device.index,)
        self._module.set_per_process_memory_fraction(share, *index)

    @property
    def _on_cpu(self) -> bool:
        return self.device.is_host

    @property
    def _module(self) -> Any:
        """torch.cuda, torch.xpu, torch.mps: what torch has for this kind of device."""
        return getattr(self._torch, self._place.type, None)

    def _has(self, function: str) -> bool:
        return hasattr(self._module, function)

    def _status(self) -> DeviceStatus:
        if self.device.is_host:
            return host.cpu_status(self._load.busy_frac())
        status = gpu_status(self.device)
        if self.is_open and status.used_bytes is None and self._has("mem_get_info"):
            free, total = self._module.mem_get_info(self.device.index)
            status = DeviceStatus(total - free, free, status.utilisation_frac, status.temperature_c, status.power_w)
        return status

    def _links(self) -> Sequence[Link]:
        nodes = dict.fromkeys(self.device.silicon, self.device.memory_node)
        return nvidia.links_of(nvidia.read(), nodes) if self.device.kind == "cuda" else ()

    def namespace(self) -> ModuleType:
        """Return torch as an array-API module; inside `activate` it makes its arrays on this device."""
        return import_module("array_api_compat.torch")

    def activate(self) -> AbstractContextManager[object]:
        """Make this device torch's current one, and the place of new tensors."""
        return nullcontext() if self._on_cpu else self._current()

    @transparent
    def _current(self) -> Iterator[None]:
        several = self._has("set_device")
        before = self._module.current_device() if several else 0
        if several:
            self._module.set_device(self.device.index)
        try:
            with _new_tensors()(self._place):
                yield
        finally:
            if several:
                self._module.set_device(before)

    def owns(self, value: object) -> bool:
        """Return whether a value is a tensor on this device."""
        if not self.is_open or not isinstance(value, self._torch.Tensor):
            return False
        return bool(value.device.type == self._place.type and value.device.index == self._place.index)

    def _dtype_ok(self, dtype: np.dtype[np.generic]) -> bool:
        if self._place.type == "mps" and dtype in (np.float64, np.complex128):
            return False
        return dtype.kind in "biufc" and dtype.itemsize <= 16 and dtype.isnative and dtype != np.longdouble

    def _copy_in(self, array: NDArray[np.generic]) -> object:
        dense = np.ascontiguousarray(array).reshape(array.shape)  # torch ends the process on negative strides
        tensor = self._torch.from_dlpack(dense)
        return tensor if self._on_cpu else tensor.to(self._place)

    def _copy_out(self, array: torch.Tensor) -> NDArray[np.generic]:
        plain = array.detach().resolve_conj().resolve_neg().cpu()
        return np.asarray(plain.numpy())

    def _as_buffer(self, array: torch.Tensor) -> NDArray[np.generic] | None:
        plain = self._on_cpu and not (array.is_conj() or array.is_neg() or array.layout != self._torch.strided)
        return np.asarray(array.detach().numpy()) if plain else None

    def _alloc(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> object:
        like = self._torch.from_dlpack(np.empty(0, dtype))
        return self._torch.empty(shape, dtype=like.dtype, device=self._place)

    def _transfer(self, array: torch.Tensor, peer: Backend) -> object:
        return array.to(peer._place) if isinstance(peer, TorchBackend) and not peer._on_cpu else None

    def _synchronize(self) -> None:
        if not self._on_cpu:
            self._torch.accelerator.synchronize(self.device.index)

    def _is_out_of_memory(self, error: BaseException) -> bool:
        return is_out_of_memory(error)

    def _product(self, n: int) -> Callable[[], object]:
        one = self._torch.ones((n, n), device=self._place)
        out = self._torch.empty_like(one)
        return lambda: self._torch.matmul(one, one, out=out)

    def _stream(self, nbytes: int) -> Callable[[], object]:
        src = self._torch.ones(nbytes // 4, device=self._place)
        dst = self._torch.empty_like(src)
        return lambda: dst.copy_(src)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception of torch's or Python's own means that memory ran out."""
    if not isinstance(error, RuntimeError):
        return is_memory_error(error)
    text = str(error).lower()
    words = ("can't allocate memory", "out of memory", "std::bad_alloc")
    return type(error).__name__ == "OutOfMemoryError" or any(word in text for word in words)


@cache
def _new_tensors() -> Callable[[torch.device], AbstractContextManager[object]]:
    """Return the class of modes in which new tensors are made on a device, unless a generator of the host fills them.

    So the sampler of a DataLoader works in a task, as it does where torch has no default device.
    """
    torch = import_module("torch")
    filled = frozenset((torch.rand, torch.randn, torch.randint, torch.randperm))

    class NewTensors(import_module("torch.utils._device").DeviceContext):  # type: ignore[misc]
        """torch's mode of a default device, which heeds generators."""

        def __torch_function__(self, func: object, types: object, args: object = (), kwargs: Any = None) -> object:
            if kwargs and kwargs.get("generator") is not None and func in filled and kwargs.get("device") is None:
                kwargs = {**kwargs, "device": kwargs["generator"].device}
            return super().__torch_function__(func, types, args, kwargs)

    return NewTensors


def _place(torch: ModuleType, device: Device) -> torch.device:
    return torch.device(KINDS[device.kind].torch_place(device.index))


def _accelerator_kind(torch: ModuleType) -> str | None:
    if not torch.accelerator.is_available():
        return None
    kind = torch.accelerator.current_accelerator().type
    kind = "rocm" if kind == "cuda" and torch.version.hip else kind
    return kind if kind in TorchBackend.kinds else None


def _describe(torch: ModuleType, kind: str, index: int, address: str) -> Device:
    module: object = getattr(torch, torch.device(KINDS[kind].torch_place(index)).type, None)
    facts = module.get_device_properties(index) if hasattr(module, "get_device_properties") else None
    memory = getattr(facts, "total_memory", None)
    if memory is None and hasattr(module, "recommended_max_memory"):
        memory = module.recommended_max_memory()
    units = getattr(facts, "multi_processor_count", None) or getattr(facts, "gpu_subslice_count", None)
    return Device(
        id=f"h0/{kind}:{index}",
        kind=kind,
        type=DeviceType(KINDS[kind].type),
        backend=TorchBackend.name,
        index=index,
        name=str(getattr(facts, "name", f"{kind} device {index}")),
        memory_node=f"h0/{kind}:{index}",
        memory_bytes=memory,
        cores=units or 1,
        silicon=(host.pci_silicon(address) if address else f"h0/{kind}{index}",),
        driver=f"torch {torch.__version__}",
    )


def _unused_gpus(torch: ModuleType) -> list[Found]:
    """List GPUs that NVIDIA's driver knows and this build of torch cannot use."""
    return [
        Found(
            Device(
                f"h0/cuda:{index}",
                "cuda",
                DeviceType("GPU"),
                TorchBackend.name,
                index,
                gpu.name,
                f"h0/cuda:{index}",
                gpu.total_bytes,
                silicon=(host.pci_silicon(gpu.pci),),
                driver=gpu.driver,
            ),
            TorchBackend.name,
            f"torch {torch.__version__} was built without CUDA, or cannot use driver {gpu.driver}",
            "install a torch with CUDA: https://pytorch.org/get-started/locally",
        )
        for index, gpu in enumerate(nvidia.read())
    ]
