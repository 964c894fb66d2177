"""Devices through OpenCL: GPUs, FPGAs, and CPUs by PoCL.

In: NumPy arrays, numbers and kernels in OpenCL C. Out: `DeviceArray`s. It must not import pyopencl at the top.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hetero.backends import host
from hetero.backends.array import ByteBudget, DeviceArray, outputs, sort_arguments, work_items
from hetero.backends.base import Backend, Found, Kernel
from hetero.backends.gpus import gpu_status
from hetero.floor.errors import BadValueError, DeviceError
from hetero.floor.text import exception_line
from hetero.model.device import Device, DeviceStatus, DeviceType

if TYPE_CHECKING:
    from pyopencl import Device as OpenClDevice
    from pyopencl import Kernel as OpenClKernel
    from pyopencl import Program

__all__ = ["OpenclBackend"]

_NO_PLATFORM = "no OpenCL platform is installed"
_ICD = "apt-get install pocl-opencl-icd, or the vendor's OpenCL driver"
_WORDS = {"int": "i4", "uint": "u4", "float": "f4", "long": "i8", "ulong": "u8", "double": "f8", "short": "i2"}
_WORDS |= {"ushort": "u2", "char": "i1", "uchar": "u1", "half": "f2", "size_t": "u8"}

_TILE = 8
_PRODUCT = """
#define T 8
__kernel void product(__global const float *a, int n, __global float *c) {
  __local float x[T][T], y[T][T];
  int i = get_global_id(1), j = get_global_id(0), u = get_local_id(1), v = get_local_id(0);
  float sum = 0;
  for (int t = 0; t < n; t += T) {
    x[u][v] = a[i * n + t + v];
    y[u][v] = a[(t + u) * n + j];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int k = 0; k < T; k++) sum += x[u][k] * y[k][v];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  c[i * n + j] = sum;
}
"""
_TINY = Kernel(
    "__kernel void tiny(__global const float *x, __global float *y) { int i = get_global_id(0); y[i] = x[i] + 1; }",
    "tiny",
    out=lambda x: (x.shape, x.dtype),
    global_size=lambda x: x.shape,
)


class OpenclBackend(Backend):
    """One OpenCL device."""

    name: ClassVar[str] = "opencl"
    kinds: ClassVar[tuple[str, ...]] = ("opencl",)
    requires: ClassVar[tuple[str, ...]] = ("pyopencl",)
    remedy: ClassVar[str] = "pip install 'hetero-core[opencl]'"

    @classmethod
    def _probe(cls) -> list[Found]:
        cl = import_module("pyopencl")
        natives = _natives(cl)
        if not natives:
            return [Found(None, cls.name, _NO_PLATFORM, _ICD)]
        found = []
        for index, native in enumerate(natives):
            device = _describe(cl, native, index)
            backend = cls(device)
            try:
                backend.open()
                backend.close()
            except DeviceError as error:
                found.append(Found(device, cls.name, f"it enumerates and cannot compute: {error.problem}", _ICD))
            else:
                found.append(Found(device, cls.name))
        return found

    def _open(self) -> None:
        self._cl = import_module("pyopencl")
        native = _natives(self._cl)[self.device.index]
        self._context = self._cl.Context([native])
        self._queue = self._cl.CommandQueue(self._context)
        self._budget = ByteBudget(self.device.id, self.device.memory_limit_bytes)
        self._programs: dict[str, Program] = {}
        self._kernels: dict[tuple[str, str], object] = {}
        self._try_kernel(_TINY)

    def _close(self) -> None:
        self._queue.finish()
        self._kernels.clear()
        self._programs.clear()
        del self._queue, self._context

    def _status(self) -> DeviceStatus:
        if self.device.type == "CPU":
            return host.cpu_status(None)
        status = gpu_status(self.device)
        if status.used_bytes is None and self.is_open:
            status = replace(status, used_bytes=self._budget.used_bytes)
        return status

    def owns(self, value: object) -> bool:
        """Return whether a value is an array of this device."""
        return isinstance(value, DeviceArray) and value.backend is self

    def _alloc(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> DeviceArray:
        array = DeviceArray(self, None, shape, dtype)
        self._budget.take(array.nbytes)
        weakref.finalize(array, self._budget.free, array.nbytes)
        array.handle = self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, max(array.nbytes, 1))
        return array

    def _free(self, array: Any) -> None:
        array.handle.release()

    def _copy_in(self, array: NDArray[np.generic]) -> DeviceArray:
        there = self._alloc(array.shape, array.dtype)
        if array.nbytes:
            self._cl.enqueue_copy(self._queue, there.handle, np.ascontiguousarray(array), is_blocking=True)
        return there

    def _copy_out(self, array: Any) -> NDArray[np.generic]:
        out = np.empty(array.shape, array.dtype)
        if array.nbytes:
            self._cl.enqueue_copy(self._queue, out, array.handle, is_blocking=True)
        return out

    def _synchronize(self) -> None:
        self._queue.finish()

    def _run(self, implementation: Any, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        kernel: Kernel = implementation
        sorted_args = sort_arguments(self, kernel, args, kwargs)
        described, single = outputs(kernel, sorted_args.ordered)
        results = tuple(self.alloc(shape, dtype) for shape, dtype in described)
        built = self._built(kernel)
        bound = [*sorted_args.ordered, *results]
        if built.num_args != len(bound):
            raise BadValueError(
                f"kernel {kernel.entry!r} takes {built.num_args} arguments and got {len(bound)}, outputs included",
                remedy="bind the call's arguments first, then one argument an output",
            )
        built.set_args(*(self._bind(built, position, value) for position, value in enumerate(bound)))
        items = work_items(kernel, sorted_args.ordered)
        if all(items):
            self._cl.enqueue_nd_range_kernel(self._queue, built, items, kernel.local_size)
        return results[0] if single else results

    def _bind(self, built: OpenClKernel, position: int, value: object) -> object:
        if isinstance(value, DeviceArray):
            return value.handle
        if isinstance(value, np.generic):
            return value
        word = built.get_arg_info(position, self._cl.kernel_arg_info.TYPE_NAME)
        usual = "f4" if isinstance(value, float) else "i4"
        try:
            return np.array(value, dtype=_WORDS.get(word, usual))[()]
        except OverflowError as error:
            raise BadValueError(f"{value!r} does not fit argument {position}, a {word!r}") from error

    def _built(self, kernel: Kernel) -> OpenClKernel:
        key = (kernel.source, kernel.entry)
        if key not in self._kernels:
            if kernel.source not in self._programs:
                self._programs[kernel.source] = self._build(kernel)
            try:
                self._kernels[key] = self._cl.Kernel(self._programs[kernel.source], kernel.entry)
            except self._cl.LogicError as error:
                names = self._programs[kernel.source].kernel_names
                raise BadValueError(f"the source has no kernel {kernel.entry!r}", remedy=f"it has {names}") from error
        return self._kernels[key]

    def _build(self, kernel: Kernel) -> object:
        program = self._cl.Program(self._context, kernel.source)
        try:
            return program.build(options=["-cl-kernel-arg-info"], cache_dir=False)
        except self._cl.Error as error:
            raise DeviceError(
                f"kernel {kernel.entry!r} was not built for {self.device.id}: {str(error).strip()}"
            ) from error

    def _dtype_ok(self, dtype: np.dtype[np.generic]) -> bool:
        return dtype.kind in "biufc" and dtype.isnative

    def _is_out_of_memory(self, error: BaseException) -> bool:
        words = ("MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", "INVALID_BUFFER_SIZE")
        return type(error).__module__.startswith("pyopencl") and any(word in str(error) for word in words)

    def _product(self, n: int) -> Callable[[], object]:
        kernel = Kernel(
            _PRODUCT,
            "product",
            out=lambda a, n: (a.shape, a.dtype),
            global_size=lambda a, n: (n, n),
            local_size=(_TILE, _TILE),
        )
        one = self.copy_in(np.ones((n, n), np.float32))
        return lambda: self.run(kernel, (one, n))

    def _stream(self, nbytes: int) -> Callable[[], object]:
        src, dst = self.alloc((nbytes,), np.uint8), self.alloc((nbytes,), np.uint8)
        return lambda: self._cl.enqueue_copy(self._queue, dst.handle, src.handle)


def _natives(cl: ModuleType) -> Sequence[object]:
    try:
        platforms = cl.get_platforms()
    except cl.Error:
        return ()
    found = []
    for platform in platforms:
        try:
            found += platform.get_devices()
        except cl.Error as error:
            if "DEVICE_NOT_FOUND" not in exception_line(error):
                raise
    return found


def _describe(cl: ModuleType, native: OpenClDevice, index: int) -> Device:
    kind = native.type
    on_cpu = bool(kind & cl.device_type.CPU)
    broad = "CPU" if on_cpu else "FPGA" if kind & cl.device_type.ACCELERATOR else "GPU"
    return Device(
        id=f"h0/opencl:{index}",
        kind="opencl",
        type=DeviceType(broad),
        backend=OpenclBackend.name,
        index=index,
        name=" ".join(native.name.split()),
        memory_node=f"h0/opencl:{index}",
        memory_bytes=int(native.global_mem_size),
        cores=int(native.max_compute_units),
        silicon=host.core_ids(host.cpus()) if on_cpu else (_chip(native, index),),
        driver=f"{native.platform.name} {native.driver_version}",
    )


def _chip(native: OpenClDevice, index: int) -> str:
    try:
        if hasattr(native, "pci_bus_id_nv"):
            slot = native.pci_slot_id_nv
            return host.pci_silicon(f"0000:{native.pci_bus_id_nv:02x}:{slot >> 3:02x}.{slot & 7}")
        topology = native.topology_amd
        return host.pci_silicon(f"0000:{topology.bus:02x}:{topology.device:02x}.{topology.function}")
    except Exception:  # noqa: BLE001  each vendor has its own extension, or none
        return host.chip(int(native.vendor_id), None, index)
