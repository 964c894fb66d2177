"""Sums on a device of the fleet: rows of several members added up where somebody wants it, through its back end.

In: a device, rows as tensors on the host. Out: their sum. It must not know why they are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hetero.backends.base import Kernel
from hetero.backends.registry import backend_of, load
from hetero.floor.errors import BadValueError, did_you_mean
from hetero.model.device import Device

__all__ = ["DeviceSum", "summer"]

_OPENCL = Kernel(
    "__kernel void add(__global const float *a, __global const float *b, __global float *c)"
    "{ size_t i = get_global_id(0); c[i] = a[i] + b[i]; }",
    "add",
    out=lambda a, _: (a.shape, a.dtype),
    global_size=lambda a, _: a.shape,
)
_WIDTH = 1 << 16
_VULKAN = Kernel(
    "@group(0) @binding(0) var<storage, read> a: array<f32>;"
    "@group(0) @binding(1) var<storage, read> b: array<f32>;"
    "@group(0) @binding(2) var<storage, read_write> c: array<f32>;"
    "@compute @workgroup_size(64) fn add(@builtin(global_invocation_id) at: vec3<u32>)"
    f"{{ let i = at.x + at.y * {_WIDTH}u; if (i < arrayLength(&c)) {{ c[i] = a[i] + b[i]; }} }}",
    "add",
    out=lambda a, _: (a.shape, a.dtype),
    global_size=lambda a, _: (min(len(a), _WIDTH), -(-len(a) // _WIDTH)),
)
_KERNELS = {"opencl": _OPENCL, "vulkan": _VULKAN}
_NARROW = (torch.float16, torch.bfloat16, torch.float32)


def summer(word: str, devices: Sequence[Device]) -> Device | None:
    """Find the device of a fleet that is to add up gradients; None for ''.

    Raises
    ------
    BadValueError
        The fleet has no such device, or it cannot add up.
    """
    if not word:
        return None
    found = next((device for device in devices if word in (device.id, device.short)), None)
    names = [device.short for device in devices if _can_sum(device)]
    if found is None:
        raise BadValueError(
            f"sum_on={word!r} is no device of this fleet{did_you_mean(word, names)}",
            remedy=f"give one of {', '.join(names)}, or take it into devices=",
        )
    if not _can_sum(found):
        raise BadValueError(f"sum_on={word!r}: rows cannot be added up there", remedy=f"give one of {', '.join(names)}")
    return found


def _can_sum(device: Device) -> bool:
    return not device.simulated and (device.backend in _KERNELS or load(device.backend).runs_python)


class DeviceSum:
    """Adds up rows on one device, which stays open until `close`.

    Attributes
    ----------
    rows : how many rows it has added up there

    Raises
    ------
    DeviceError
        The device cannot be opened.

    Notes
    -----
    16-bit rows are added up as float32 and rounded once. Rows of other types than these (the header of some runs,
    float64) are added up on the host.
    """

    def __init__(self, device: Device) -> None:
        self.backend = backend_of(device)
        self.backend.open()
        self.rows = 0

    def add_up(self, rows: Sequence[Any]) -> Any:
        """Return the sum of rows of one type and length, as a tensor on the host."""
        kind = rows[0].dtype
        if kind not in _NARROW:
            return torch.stack(list(rows)).sum(0)
        with self.backend.activate():
            arrays = [row.to(torch.float32).numpy() for row in rows]
            total = self.backend.copy_in(arrays[0])
            for array in arrays[1:]:
                total = self._added(total, self.backend.copy_in(array))
            found = torch.from_numpy(np.array(self.backend.copy_out(total)))
        self.rows += len(rows)
        return found.to(kind)

    def _added(self, one: Any, other: Any) -> Any:
        if self.backend.runs_python:
            return self.backend.run(lambda: one + other)
        return self.backend.run(_KERNELS[self.backend.device.backend], (one, other))

    def close(self) -> None:
        """Release the device."""
        self.backend.close()
