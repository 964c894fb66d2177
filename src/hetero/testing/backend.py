"""The conformance kit of back ends.

In: a back end's class or name. Out: nothing, or an AssertionError that says what is wrong in one sentence.
It must not know any back end by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero.backends import registry
from hetero.backends.base import Backend, Found, Kernel
from hetero.floor.errors import BadValueError, DeviceError, HeteroError
from hetero.model.device import Device, DeviceStatus
from hetero.testing import guide_step

__all__ = ["check_backend", "sample_arrays", "saxpy"]

_TYPE = re.compile(r"[A-Z][A-Z0-9_]*")
_DTYPES = ("float32", "float64", "float16", "int32", "int64", "uint8", "bool", "complex64")

_OPENCL_SAXPY = """
__kernel void saxpy(float a, __global const float *x, __global const float *y, __global float *out) {
  int i = get_global_id(0);
  out[i] = a * x[i] + y[i];
}
"""
_WGSL_SAXPY = """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> y: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<uniform> a: f32;
@compute @workgroup_size(64) fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < arrayLength(&out)) { out[id.x] = a * x[id.x] + y[id.x]; }
}
"""


def saxpy(kind: str) -> Kernel:
    """Return a kernel `saxpy(a, x, y) = a x + y` for 'opencl' or 'vulkan' devices.

    Examples
    --------
    >>> saxpy("vulkan").entry
    'saxpy'
    """
    source = _WGSL_SAXPY if kind == "vulkan" else _OPENCL_SAXPY
    return Kernel(source, "saxpy", out=lambda a, x, y: (x.shape, x.dtype), global_size=lambda a, x, y: (x.size,))


def check_backend(
    backend: type[Backend] | str,
    device: Device | None = None,
    kernel: Kernel | None = None,
    allow_absent: bool = False,
) -> None:
    """Check that a back end keeps the promises of its interface, on its sound devices.

    Parameters
    ----------
    backend
        The class, or the name under which it is registered.
    device
        The device to try, None for every sound one that the probe finds.
    kernel
        For devices that take kernels in a language of their own: `saxpy(a, x, y) = a x + y`, float32.
    allow_absent
        True to pass also where the probe finds no sound device, so that only names, kinds and the probe are checked.

    Raises
    ------
    AssertionError
        A promise is broken. The message says which, and the step of "Add a device" in CONTRIBUTING.md where it is made.

    Examples
    --------
    >>> check_backend("null")
    """
    with guide_step("4 (register it)"):
        kind = _registered(backend) if isinstance(backend, str) else backend
    with guide_step("3 (name, kinds, labels)"):
        _check_words(kind)
    with guide_step("2 (_probe)"):
        if not kind.missing():
            kind._probe()  # what it raises, `probe` would report as a reason
        found = kind.probe()
        _check_found(kind, found)
        devices = [one.device for one in found if one.device is not None and not one.reason]
        _true(devices or device or allow_absent, _nothing_checked(kind, found))
    with guide_step("3 (the underscore methods)"):
        for one in devices if device is None else [device]:
            _check_device(kind, one, kernel)


def _registered(name: str) -> type[Backend]:
    """Return the back end of a name; where its entry point cannot be loaded the reason is wrong."""
    reasons = [found.reason for found in registry.broken() if found.backend == name]
    _true(name in registry.names() or not reasons, f"{name}: {'; '.join(reasons)}")
    return registry.load(name)


def _check_words(kind: type[Backend]) -> None:
    why = registry.why_unusable(kind, registry.loaded().classes.values())
    _true(not why, why)


def _nothing_checked(kind: type[Backend], found: list[Found]) -> str:
    reasons = "; ".join(dict.fromkeys(one.reason for one in found if one.reason))
    return f"{kind.name}: nothing was checked, no sound device was found: {reasons}; give allow_absent=True to allow it"


def _check_found(kind: type[Backend], found: object) -> None:
    _true(isinstance(found, list) and found, f"{kind.name}: a probe gives at least one Found, with a reason if need be")
    assert isinstance(found, list)
    for one in found:
        _true(isinstance(one, Found), f"{kind.name}: a probe gives Found values, not {one!r}")
        _true(one.backend == kind.name, f"{kind.name}: a Found names back end {one.backend!r}")
        _true(one.device is not None or one.reason, f"{kind.name}: a Found without a device has a reason")
        _true("\n" not in one.reason + one.remedy, f"{kind.name}: reason and remedy are one line each")
        if one.device is not None:
            _check_description(kind, one.device)
    ids = [one.device.id for one in found if one.device is not None]
    _true(len(ids) == len(set(ids)), f"{kind.name}: ids of devices are unique, not {ids}")


def _check_description(kind: type[Backend], device: Device) -> None:
    _true(device.backend == kind.name, f"{device.id}: its back end is {kind.name!r}, not {device.backend!r}")
    declared = kind.declared_kinds()
    _true(
        device.kind in declared, f"{device.id}: {device.kind!r} is not in kinds of {kind.name}: {', '.join(declared)}"
    )
    _true(device.label in kind.labels, f"{device.id}: {device.label!r} is not a label of {kind.name}")
    _true(_TYPE.fullmatch(device.type), f"{device.id}: its type {device.type!r} is no word in capitals, as 'GPU'")
    _true(device.id == f"{device.host}/{device.label}:{device.index}", f"{device.id}: its id is host/label:index")
    _true(bool(device.name), f"{device.id}: a device has a name")
    _true(bool(device.silicon), f"{device.id}: a device names the silicon that it uses")
    _true(device.memory_bytes is None or device.memory_bytes > 0, f"{device.id}: unknown memory is None, not 0")


def _check_device(kind: type[Backend], device: Device, kernel: Kernel | None) -> None:
    one = kind(device)
    _raises(DeviceError, lambda: one.copy_in(np.zeros(1)), f"{device.id}: a closed device refuses copy_in")
    _check_status(one, "closed")
    for _ in range(2):
        one.open()
        one.open()
        try:
            _true(one.is_open, f"{device.id}: it is open after open()")
            _check_copies(one)
            _check_mistakes(one)
            _check_computing(one, kernel)
            _check_status(one, "open")
            _true(isinstance(one.links(), tuple), f"{device.id}: links() gives a tuple")
        finally:
            one.close()
            one.close()
        _true(not one.is_open, f"{device.id}: it is closed after close()")
        _raises(DeviceError, lambda: one.run(len, ((),)), f"{device.id}: a closed device runs nothing")


def sample_arrays() -> Iterable[NDArray[np.generic]]:
    """Yield arrays that copy badly where something is wrong: many dtypes, empty, scalar, reversed, transposed, odd."""
    for dtype in _DTYPES:
        yield (np.arange(24) % 7).astype(dtype).reshape(2, 3, 4)
    base: NDArray[np.generic] = np.arange(60, dtype=np.float32).reshape(6, 10)
    yield from (base.T, base[::-1, ::3], base[1:4, 2:5], np.asfortranarray(base), np.broadcast_to(base[0], (3, 10)))
    yield from (np.zeros((0, 3), np.float32), np.array(3.5, np.float32), np.arange(7, dtype=np.uint8))
    yield np.array([np.nan, -0.0, np.inf, np.finfo(np.float32).tiny / 2], np.float32)
    locked = np.arange(5.0)
    locked.flags.writeable = False
    yield locked


def _check_copies(one: Backend) -> None:
    for array in sample_arrays():
        what = f"{one.device.id}: {array.dtype} {array.shape} with strides {array.strides}"
        try:
            there = one.copy_in(array)
        except BadValueError:
            continue
        _true(one.owns(there), f"{what} is not owned after copy_in")
        back = one.copy_out(there)
        _true(isinstance(back, np.ndarray), f"{what} comes back as a {type(back).__name__}")
        _true(
            back.dtype == array.dtype and back.shape == array.shape, f"{what} comes back as {back.dtype} {back.shape}"
        )
        _true(back.tobytes() == array.tobytes(), f"{what} comes back with other bytes")
        shared = one.as_buffer(there)
        _true(shared is None or shared.tobytes() == array.tobytes(), f"{what} is not what as_buffer shows")
    mine = np.zeros(4, np.float32)
    there = one.copy_in(mine)  # float32 is never refused
    mine += 1.0
    kept = one.kind.shares_memory or not one.copy_out(there).any()
    _true(kept, f"{one.device.id}: a copy changes with the host's array: copy it, or declare shares_memory")
    fresh = one.alloc((2, 3), np.float32)
    _true(one.copy_out(fresh).shape == (2, 3), f"{one.device.id}: alloc gives another shape")
    one.free(fresh)
    _check_transfer(one)


def _check_transfer(one: Backend) -> None:
    there = one.copy_in(np.arange(5, dtype=np.float32))
    again = one.transfer(there, one)
    _true(one.copy_out(again).tolist() == [0, 1, 2, 3, 4], f"{one.device.id}: a transfer to itself changes the array")


def _check_mistakes(one: Backend) -> None:
    name = one.device.id
    list_of_numbers: Any = [1.0, 2.0]
    _raises(BadValueError, lambda: one.copy_in(list_of_numbers), f"{name}: copy_in refuses a list")
    _raises(BadValueError, lambda: one.copy_out("text"), f"{name}: copy_out refuses what is no array of its own")
    _raises(BadValueError, lambda: one.alloc((-1,), np.float32), f"{name}: alloc refuses a negative length")
    if one.runs_python:
        kernel = saxpy("opencl")
        _raises(BadValueError, lambda: one.run(kernel, ()), f"{name}: it runs functions and refuses a kernel")
    else:
        _raises(BadValueError, lambda: one.run(len, ((),)), f"{name}: it runs kernels and refuses a function")
    _true(one.is_out_of_memory(MemoryError()), f"{name}: MemoryError means out of memory")
    _true(not one.is_out_of_memory(ValueError("no")), f"{name}: ValueError does not mean out of memory")


def _check_computing(one: Backend, kernel: Kernel | None) -> None:
    if one.device.simulated:
        _raises(DeviceError, one.measure, f"{one.device.id}: what computes nothing has no speed")
        return
    x, y = np.linspace(-1, 1, 1000, dtype=np.float32), np.linspace(5, 7, 1000, dtype=np.float32)
    expected = np.float32(2.5) * x + y
    if one.runs_python:
        _check_functions(one)
    got = _namespace_saxpy(one, x, y) if one.runs_python else _kernel_saxpy(one, x, y, kernel)
    one.synchronize()
    _true(got.dtype == np.float32, f"{one.device.id}: float32 arithmetic gives {got.dtype}")
    _true(bool(np.allclose(got, expected, rtol=1e-6, atol=1e-6)), f"{one.device.id}: 2.5 x + y differs from NumPy's")
    try:
        speed = one.measure()
    except DeviceError as error:
        why = f"{error.problem}: write _product and _stream, or arrays with @ and +"
        raise AssertionError(why) from error
    for rate in speed:
        _true(rate is None or (math.isfinite(rate) and rate > 0.0), f"{one.device.id}: measured {speed}")


def _check_functions(one: Backend) -> None:
    _true(one.run(divmod, (7, 2)) == (3, 1), f"{one.device.id}: a function's result is another one here")
    _raises(ZeroDivisionError, lambda: one.run(lambda: 1 // 0), f"{one.device.id}: an exception of a task is itself")


def _namespace_saxpy(one: Backend, x: NDArray[np.generic], y: NDArray[np.generic]) -> NDArray[np.generic]:
    """Compute by the array namespace; a device without one need not compute with arrays of its own."""
    xp = one.namespace()
    if xp is None:
        with one.activate():
            return np.asarray(one.run(lambda left, right: np.float32(2.5) * left + right, (x, y)))

    def task(left: Any, right: Any) -> object:
        return xp.asarray(np.float32(2.5)) * left + right + xp.zeros(left.shape, dtype=xp.float32)

    with one.activate():
        result = one.run(task, (one.copy_in(x), one.copy_in(y)))
        _true(one.owns(xp.ones(3)), f"{one.device.id}: inside activate() new arrays belong to the device")
    _true(one.owns(result), f"{one.device.id}: a result of its namespace belongs to the device")
    return one.copy_out(result)


def _kernel_saxpy(
    one: Backend, x: NDArray[np.generic], y: NDArray[np.generic], given: Kernel | None
) -> NDArray[np.generic]:
    kernel = given or saxpy(one.device.kind)
    result = one.run(kernel, (2.5, one.copy_in(x), one.copy_in(y)))
    _true(one.owns(result), f"{one.device.id}: a kernel's result belongs to the device")
    broken = Kernel("this is no program", "saxpy", out=kernel.out, global_size=kernel.global_size)
    _raises(HeteroError, lambda: one.run(broken, (2.5, x, y)), f"{one.device.id}: a kernel that cannot be built raises")
    nothing = one.run(kernel, (2.5, x[:0], y[:0]))
    _true(nothing.shape == (0,), f"{one.device.id}: a kernel over no elements gives an empty array")
    _true(bool(np.array_equal(one.run(kernel, (2.5, x, y)), one.copy_out(result))), f"{one.device.id}: results vary")
    return one.copy_out(result)


def _check_status(one: Backend, when: str) -> None:
    status = one.status()
    what = f"{one.device.id}, {when}: status"
    _true(isinstance(status, DeviceStatus), f"{what} is a {type(status).__name__}")
    for name in ("used_bytes", "free_bytes"):
        value = getattr(status, name)
        _true(value is None or (isinstance(value, int) and value >= 0), f"{what}.{name} is {value!r}")
    use = status.utilisation_frac
    _true(use is None or 0.0 <= use <= 1.0, f"{what}.utilisation_frac is {use!r}")
    heat, power = status.temperature_c, status.power_w
    _true(heat is None or 0.0 < heat < 150.0, f"{what}.temperature_c is {heat!r}: unknown is None, not 0")
    _true(power is None or 0.0 < power < 5000.0, f"{what}.power_w is {power!r}: unknown is None, not 0")


def _true(holds: object, sentence: str) -> None:
    if not holds:
        raise AssertionError(sentence)


def _raises(kind: type[BaseException], call: Callable[[], object], sentence: str) -> None:
    try:
        call()
    except kind:
        return
    except Exception as error:
        raise AssertionError(f"{sentence}, with {kind.__name__} and not {type(error).__name__}: {error}") from error
    raise AssertionError(f"{sentence}; it did not")
