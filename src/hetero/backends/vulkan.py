"""Devices through WebGPU on Vulkan (Metal and DirectX 12 elsewhere): any GPU, and CPUs by lavapipe.

In: NumPy arrays, numbers and kernels in WGSL. Out: `DeviceArray`s. It must not import wgpu at the top.
"""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetero.backends import host
from hetero.backends.array import ByteBudget, DeviceArray, outputs, sort_arguments, work_items
from hetero.backends.base import Backend, Found, Kernel
from hetero.backends.gpus import gpu_status
from hetero.floor.errors import BadValueError, DeviceError
from hetero.floor.settings import lent
from hetero.model.device import Device, DeviceStatus, DeviceType

if TYPE_CHECKING:
    from wgpu import GPUAdapter, GPUBindGroupLayout, GPUBuffer

__all__ = ["VulkanBackend"]

_DRIVER = "apt-get install mesa-vulkan-drivers, or the vendor's Vulkan driver"
_TYPES = {"CPU": "CPU", "DiscreteGPU": "GPU", "IntegratedGPU": "GPU", "VirtualGPU": "GPU"}
_BINDING = re.compile(r"@group\(0\)\s*@binding\((\d+)\)\s*var\s*<\s*(storage|uniform)\s*(?:,\s*(\w+)\s*)?>")
_GROUP = re.compile(r"@workgroup_size\(([^)]*)\)[^{]*?fn\s+(\w+)\s*\(")
_UNIFORM = re.compile(r"var\s*<\s*uniform\s*>\s*\w+\s*:\s*(\w+)")
_WORDS = {"f32": "<f4", "i32": "<i4", "u32": "<u4"}
_WIDE = {"f8": "float32", "i8": "int32", "u8": "uint32", "c16": "complex64"}
_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroup-size-y",
    "max-compute-workgroups-per-dimension",
)
_TINY = Kernel(
    """@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(4) fn tiny(@builtin(global_invocation_id) id: vec3<u32>) { y[id.x] = x[id.x] + 1.0; }""",
    "tiny",
    out=lambda x: (x.shape, x.dtype),
    global_size=lambda x: x.shape,
)
_PRODUCT = """
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> c: array<f32>;
@group(0) @binding(2) var<uniform> n: u32;
var<workgroup> x: array<array<f32, 8>, 8>;
var<workgroup> y: array<array<f32, 8>, 8>;
@compute @workgroup_size(8, 8) fn product(@builtin(global_invocation_id) id: vec3<u32>,
                                          @builtin(local_invocation_id) at: vec3<u32>) {
  var sum = 0.0;
  for (var t = 0u; t < n; t += 8u) {
    x[at.y][at.x] = a[id.y * n + t + at.x];
    y[at.y][at.x] = a[(t + at.y) * n + id.x];
    workgroupBarrier();
    for (var k = 0u; k < 8u; k += 1u) { sum += x[at.y][k] * y[k][at.x]; }
    workgroupBarrier();
  }
  c[id.y * n + id.x] = sum;
}
"""


class _Built(NamedTuple):
    """A compiled kernel: its pipeline, its layout, its work-group, its binding numbers, the types of its numbers."""

    pipeline: object
    layout: GPUBindGroupLayout
    group: tuple[int, int, int]
    bindings: tuple[int, ...]
    scalars: tuple[str, ...]


class VulkanBackend(Backend):
    """One adapter of wgpu."""

    name: ClassVar[str] = "vulkan"
    kinds: ClassVar[tuple[str, ...]] = ("vulkan",)
    requires: ClassVar[tuple[str, ...]] = ("wgpu",)
    remedy: ClassVar[str] = "pip install 'hetero-core[vulkan]'"

    @classmethod
    def _probe(cls) -> list[Found]:
        adapters = _adapters()
        if not adapters:
            return [Found(None, cls.name, "no Vulkan driver is installed", _DRIVER)]
        found = []
        for device in _describe(adapters):
            backend = cls(device)
            try:
                backend.open()
                backend.close()
            except DeviceError as error:
                reason = f"it enumerates and cannot compute: {error.problem}"
                found.append(Found(device, cls.name, reason, _DRIVER))
            else:
                found.append(Found(device, cls.name))
        return found

    def _open(self) -> None:
        self._wgpu = import_module("wgpu")
        adapter = _adapters()[self.device.index]
        limits = {name: adapter.limits[name] for name in _LIMITS if name in adapter.limits}
        features = [name for name in ("shader-f16",) if name in adapter.features]
        self._gpu = adapter.request_device_sync(required_features=features, required_limits=limits)
        self._most_groups = int(limits.get("max-compute-workgroups-per-dimension", 65535))
        self._half = bool(features)
        self._budget = ByteBudget(self.device.id, self.device.memory_limit_bytes)
        self._kernels: dict[tuple[str, str], _Built] = {}
        self._mark = self._gpu.create_buffer(size=4, usage=self._wgpu.BufferUsage.COPY_SRC)
        self._try_kernel(_TINY)

    def _close(self) -> None:
        self._kernels.clear()
        self._mark.destroy()
        self._gpu.destroy()
        del self._gpu

    def _status(self) -> DeviceStatus:
        return host.cpu_status(None) if self.device.type == "CPU" else gpu_status(self.device)

    def owns(self, value: object) -> bool:
        """Return whether a value is an array of this device."""
        return isinstance(value, DeviceArray) and value.backend is self

    def _alloc(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> DeviceArray:
        array = DeviceArray(self, None, shape, dtype)
        self._budget.take(array.nbytes)
        weakref.finalize(array, self._budget.free, array.nbytes)
        usage = self._wgpu.BufferUsage
        flags = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        array.handle = self._gpu.create_buffer(size=_padded(array.nbytes), usage=flags)
        return array

    def _free(self, array: Any) -> None:
        array.handle.destroy()

    def _copy_in(self, array: NDArray[np.generic]) -> DeviceArray:
        there = self._alloc(array.shape, array.dtype)
        if array.nbytes:
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            if flat.nbytes % 4:
                flat = np.concatenate((flat, np.zeros(4 - flat.nbytes % 4, np.uint8)))
            self._gpu.queue.write_buffer(there.handle, 0, flat)
        return there

    def _copy_out(self, array: Any) -> NDArray[np.generic]:
        if not array.nbytes:
            return np.empty(array.shape, array.dtype)
        data = self._gpu.queue.read_buffer(array.handle, 0, _padded(array.nbytes))
        out = np.frombuffer(data, np.uint8)[: array.nbytes].copy()
        return np.asarray(out.view(array.dtype).reshape(array.shape))

    def _synchronize(self) -> None:
        self._gpu.queue.read_buffer(self._mark)  # the queue works in order; wgpu's own wait fails in version 0.32

    def _run(self, implementation: Any, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        kernel: Kernel = implementation
        given = sort_arguments(self, kernel, args, kwargs)
        described, single = outputs(kernel, given.ordered)
        for dtype in (*(array.dtype for array in given.arrays), *(dtype for _, dtype in described)):
            self._check_wgsl(kernel, dtype)
        results = tuple(self.alloc(shape, dtype) for shape, dtype in described)
        buffers = [array.handle for array in (*given.arrays, *results)]
        built = self._built(kernel)
        if given.scalars:
            buffers.append(self._uniform(kernel, built.scalars, given.scalars))
        if len(built.bindings) != len(buffers):
            raise BadValueError(
                f"kernel {kernel.entry!r} declares {len(built.bindings)} bindings and the call gives {len(buffers)}",
                remedy="declare the arrays of the call, then the outputs, then one uniform block if there are numbers",
            )
        groups = self._groups(kernel, built, work_items(kernel, given.ordered))
        if all(groups):
            self._dispatch(built, buffers, groups)
        return results[0] if single else results

    def _dispatch(self, built: _Built, buffers: Sequence[GPUBuffer], groups: tuple[int, int, int]) -> None:
        entries = [
            {"binding": number, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
            for number, buffer in zip(built.bindings, buffers, strict=True)
        ]
        bound = self._gpu.create_bind_group(layout=built.layout, entries=entries)
        encoder = self._gpu.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(built.pipeline)
        compute.set_bind_group(0, bound)
        compute.dispatch_workgroups(*groups)
        compute.end()
        self._gpu.queue.submit([encoder.finish()])

    def _check_wgsl(self, kernel: Kernel, dtype: np.dtype[np.generic]) -> None:
        narrower = _WIDE.get(dtype.str[1:])
        if narrower is not None:
            raise BadValueError(
                f"kernel {kernel.entry!r} was given {dtype}, and WGSL has no 64-bit numbers",
                remedy=f"convert with astype({narrower!r}) first, or run this task on another kind of device",
            )
        if dtype.itemsize < 4 and not (dtype == np.float16 and self._half):
            raise BadValueError(
                f"kernel {kernel.entry!r} was given {dtype}, which WGSL does not store on {self.device.id}",
                remedy="convert to a 32-bit type first",
            )

    def _uniform(self, kernel: Kernel, types: Sequence[str], scalars: Sequence[object]) -> object:
        if len(types) != len(scalars):
            raise BadValueError(
                f"kernel {kernel.entry!r} declares {len(types)} numbers in its uniform block and got {len(scalars)}",
                remedy="declare one f32, i32 or u32 for each, in the order of the call",
            )
        words = b"".join(_word(kind, value) for kind, value in zip(types, scalars, strict=True))
        padded = words.ljust(-(-len(words) // 16) * 16, b"\0")
        return self._gpu.create_buffer_with_data(data=padded, usage=self._wgpu.BufferUsage.UNIFORM)

    def _groups(self, kernel: Kernel, built: _Built, items: tuple[int, ...]) -> tuple[int, int, int]:
        x, y, z = (math.ceil(n / size) for n, size in zip((*items, 1, 1)[:3], built.group, strict=True))
        if max(x, y, z) > self._most_groups:
            raise BadValueError(
                f"kernel {kernel.entry!r} needs {x} x {y} x {z} work-groups and {self.device.id} takes at most"
                f" {self._most_groups} a dimension",
                remedy="use a larger @workgroup_size, or a second dimension",
            )
        return x, y, z

    def _built(self, kernel: Kernel) -> _Built:
        key = (kernel.source, kernel.entry)
        if key not in self._kernels:
            self._kernels[key] = self._build(kernel)
        return self._kernels[key]

    def _build(self, kernel: Kernel) -> _Built:
        declared = sorted((int(number), space, access) for number, space, access in _BINDING.findall(kernel.source))
        layout = self._gpu.create_bind_group_layout(entries=[self._entry(*row) for row in declared])
        try:
            module = self._gpu.create_shader_module(code=kernel.source)
            pipeline = self._gpu.create_compute_pipeline(
                layout=self._gpu.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": module, "entry_point": kernel.entry},
            )
        except Exception as error:
            text = str(error).strip()
            raise DeviceError(f"kernel {kernel.entry!r} was not built for {self.device.id}: {text}") from error
        return _Built(
            pipeline,
            layout,
            _group_size(kernel),
            tuple(number for number, _, _ in declared),
            _uniform_types(kernel.source),
        )

    def _entry(self, number: int, space: str, access: str) -> dict[str, object]:
        types = self._wgpu.BufferBindingType
        kind = (
            types.uniform
            if space == "uniform"
            else types.storage
            if access == "read_write"
            else types.read_only_storage
        )
        return {"binding": number, "visibility": self._wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}

    def _dtype_ok(self, dtype: np.dtype[np.generic]) -> bool:
        return dtype.kind in "biufc" and dtype.isnative

    def _is_out_of_memory(self, error: BaseException) -> bool:
        return "out of memory" in str(error).lower() or "not enough memory" in str(error).lower()

    def _product(self, n: int) -> Callable[[], object]:
        kernel = Kernel(
            _PRODUCT, "product", out=lambda a, n: (a.shape, a.dtype), global_size=lambda a, n: (int(n), int(n))
        )
        one = self.copy_in(np.ones((n, n), np.float32))
        return lambda: self.run(kernel, (one, np.uint32(n)))

    def _stream(self, nbytes: int) -> Callable[[], object]:
        src, dst = self.alloc((nbytes,), np.uint8), self.alloc((nbytes,), np.uint8)

        def copy() -> None:
            encoder = self._gpu.create_command_encoder()
            encoder.copy_buffer_to_buffer(src.handle, 0, dst.handle, 0, nbytes)
            self._gpu.queue.submit([encoder.finish()])

        return copy


def _padded(nbytes: int) -> int:
    return max(4, -(-nbytes // 4) * 4)


def _uniform_types(source: str) -> tuple[str, ...]:
    """Return the types of the numbers that the uniform block declares, in order."""
    block = _UNIFORM.search(source)
    if block is None:
        return ()
    if block[1] in _WORDS:
        return (block[1],)
    fields = re.search(rf"struct\s+{block[1]}\s*\{{([^}}]*)\}}", source)
    return tuple(re.findall(r":\s*(\w+)", fields[1])) if fields else ()


def _word(kind: str, value: object) -> bytes:
    if kind not in _WORDS:
        raise BadValueError(f"a uniform block of {kind!r} cannot be filled", remedy="declare f32, i32 or u32")
    try:
        return np.array(value, dtype=_WORDS[kind]).tobytes()
    except OverflowError as error:
        raise BadValueError(f"{value!r} does not fit {kind!r}, a 32-bit word of the uniform block") from error


def _group_size(kernel: Kernel) -> tuple[int, int, int]:
    for sizes, entry in _GROUP.findall(kernel.source):
        if entry == kernel.entry:
            given = [word.strip().rstrip("u") for word in sizes.split(",") if word.strip()]
            if all(word.isdigit() for word in given):
                x, y, z = (*(int(word) for word in given), 1, 1)[:3]
                return x, y, z
    raise BadValueError(
        f"kernel {kernel.entry!r} states no work-group size in numbers", remedy="write @compute @workgroup_size(64)"
    )


def _adapters() -> list[GPUAdapter]:
    wgpu = import_module("wgpu")
    with lent("XDG_RUNTIME_DIR", gettempdir()):  # without it Mesa complains on standard error of hosts without a screen
        adapters = wgpu.gpu.enumerate_adapters_sync()
    return [adapter for adapter in adapters if adapter.info["backend_type"] != "OpenGL"]


def _describe(adapters: Sequence[GPUAdapter]) -> list[Device]:
    devices: list[Device] = []
    seen: dict[tuple[int, int], int] = {}
    for index, adapter in enumerate(adapters):
        info = adapter.info
        model = (int(info["vendor_id"]), int(info["device_id"]))
        ordinal = seen[model] = seen.get(model, -1) + 1
        on_cpu = info["adapter_type"] == "CPU"
        devices.append(
            Device(
                id=f"h0/vulkan:{index}",
                kind="vulkan",
                type=DeviceType(_TYPES.get(info["adapter_type"], "GPU")),
                backend=VulkanBackend.name,
                index=index,
                name=str(info["device"]),
                memory_node=f"h0/vulkan:{index}",
                memory_bytes=host.ram_bytes() if on_cpu else None,
                cores=len(host.cpus()) if on_cpu else 1,
                silicon=host.core_ids(host.cpus()) if on_cpu else (host.chip(*model, ordinal),),
                driver=str(info["description"]),
            )
        )
    return devices
