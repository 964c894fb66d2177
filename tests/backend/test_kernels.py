"""Devices that take kernels: building, binding, limits and what is said when something is wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from hetero.backends import registry
from hetero.backends.array import DeviceArray
from hetero.backends.base import Backend, Kernel
from hetero.floor.errors import BadValueError, DeviceError, OutOfDeviceMemoryError
from hetero.testing.backend import saxpy
from tests.needs import need


@pytest.fixture(params=["opencl", "vulkan"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    need(request.param)
    found = registry.load(request.param).probe()
    device = next(one.device for one in found if one.device and not one.reason)
    opened = registry.backend_of(replace(device, memory_limit_bytes=1_000_000))
    opened.open()
    yield opened
    opened.close()


def test_a_kernel_gives_what_numpy_gives_and_its_result_stays_on_the_device(backend: Backend) -> None:
    x, y = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)
    result = backend.run(saxpy(backend.device.kind), (np.float32(0.5), x, y))
    assert isinstance(result, DeviceArray)
    assert (result.shape, result.nbytes, len(result)) == ((1000,), 4000, 1000)
    assert np.array_equal(np.asarray(result), np.float32(0.5) * x + y)
    assert np.array_equal(backend.run(saxpy(backend.device.kind), (2, result, y)).copy_out(), 2 * result.copy_out() + y)


def test_a_kernel_with_two_outputs_gives_a_tuple(backend: Backend) -> None:
    kernel = Kernel(
        """__kernel void both(__global const int *x, __global int *up, __global int *down) {
             int i = get_global_id(0); up[i] = x[i] + 1; down[i] = x[i] - 1; }"""
        if backend.device.kind == "opencl"
        else """@group(0) @binding(0) var<storage, read> x: array<i32>;
            @group(0) @binding(1) var<storage, read_write> up: array<i32>;
            @group(0) @binding(2) var<storage, read_write> down: array<i32>;
            @compute @workgroup_size(1) fn both(@builtin(global_invocation_id) id: vec3<u32>) {
              up[id.x] = x[id.x] + 1; down[id.x] = x[id.x] - 1; }""",
        "both",
        out=lambda x: [(x.shape, x.dtype), (x.shape, x.dtype)],
        global_size=lambda x: x.shape,
    )
    up, down = backend.run(kernel, (np.arange(3, dtype=np.int32),))
    assert up.copy_out().tolist() == [1, 2, 3]
    assert down.copy_out().tolist() == [-1, 0, 1]


def test_a_source_with_a_mistake_gives_the_compilers_words(backend: Backend) -> None:
    good = saxpy(backend.device.kind)
    bad = replace(good, source=good.source.replace("a * x", "a * nonsense"))
    with pytest.raises(DeviceError, match="nonsense"):
        backend.run(bad, (1.0, np.ones(3, np.float32), np.ones(3, np.float32)))


def test_a_kernel_is_built_once(backend: Backend) -> None:
    x = np.ones(3, np.float32)
    for _ in range(3):
        backend.run(saxpy(backend.device.kind), (1.0, x, x))
    assert len(backend._kernels) == 2  # type: ignore[attr-defined]  the probe's own, and this one


def test_a_device_that_computes_wrongly_does_not_open(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[type(backend).__module__]
    tiny = module._TINY  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "_TINY", replace(tiny, source=tiny.source.replace("+ 1", "+ 2")))
    with pytest.raises(DeviceError, match=r"computes wrongly: adding 1 to 0, 1, 2, 3 gave \[2\.0, 3\.0, 4\.0, 5\.0\]"):
        registry.backend_of(backend.device).open()


def test_a_wrong_number_of_arguments_is_refused_with_the_numbers(backend: Backend) -> None:
    kernel = replace(saxpy(backend.device.kind), out=lambda x: (x.shape, x.dtype), global_size=lambda x: x.shape)
    with pytest.raises(BadValueError, match="4"):
        backend.run(kernel, (np.ones(3, np.float32),))


def test_an_argument_that_is_neither_array_nor_number_is_refused(backend: Backend) -> None:
    with pytest.raises(BadValueError, match="argument 0 of kernel 'saxpy' is a 'str'"):
        backend.run(saxpy(backend.device.kind), ("2.5",))


def test_bytes_are_counted_while_arrays_live_and_the_limit_holds(backend: Backend) -> None:
    kept = backend.copy_in(np.zeros(150_000, np.float32))
    with pytest.raises(OutOfDeviceMemoryError, match="400000 bytes left of its limit of 1000000") as caught:
        backend.copy_in(np.zeros(150_000, np.float32))
    assert backend.is_out_of_memory(caught.value)
    del kept
    backend.copy_in(np.zeros(150_000, np.float32))


def test_an_array_of_a_closed_device_says_so(backend: Backend) -> None:
    there = backend.copy_in(np.zeros(3, np.float32))
    backend.close()
    with pytest.raises(DeviceError, match="not open"):
        there.copy_out()


def test_wgsl_refuses_float64_in_one_line_with_the_remedy() -> None:
    need("vulkan")
    device = next(one.device for one in registry.load("vulkan").probe() if one.device and not one.reason)
    backend = registry.backend_of(device)
    backend.open()
    with pytest.raises(
        BadValueError, match=r"float64, and WGSL has no 64-bit numbers; convert with astype\('float32'\)"
    ):
        backend.run(saxpy("vulkan"), (1.0, np.ones(3), np.ones(3)))
    backend.close()


def test_numbers_take_the_types_that_wgsl_declares() -> None:
    need("vulkan")
    device = next(one.device for one in registry.load("vulkan").probe() if one.device and not one.reason)
    backend = registry.backend_of(device)
    backend.open()
    source = """struct Numbers { a: f32, n: u32, b: i32 }
        @group(0) @binding(0) var<storage, read_write> y: array<f32>;
        @group(0) @binding(1) var<uniform> given: Numbers;
        @compute @workgroup_size(1) fn sum(@builtin(global_invocation_id) id: vec3<u32>) {
          y[id.x] = given.a + f32(given.n) + f32(given.b); }"""
    kernel = Kernel(source, "sum", out=lambda a, n, b: ((2,), np.float32), global_size=lambda a, n, b: (2,))
    assert backend.run(kernel, (2, np.int64(3), -1)).copy_out().tolist() == [4.0, 4.0]
    with pytest.raises(BadValueError, match="declares 3 numbers in its uniform block and got 1"):
        backend.run(replace(kernel, out=lambda a: ((2,), np.float32), global_size=lambda a: (2,)), (2,))
    with pytest.raises(BadValueError, match="-3 does not fit 'u32'"):
        backend.run(kernel, (2, -3, -1))
    backend.close()
