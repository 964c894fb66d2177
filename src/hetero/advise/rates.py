"""The rates of a data sheet that count for a workload: which precision is multiplied in, which link is crossed.

In: a device of the catalog and a workload. Out: `DeviceRates`. It must not fill a gap of the catalog.
"""

from __future__ import annotations

from hetero.catalog.values import DeviceSpec
from hetero.floor.errors import BadValueError
from hetero.model.quantisation import number_format
from hetero.model.workload import WorkloadSpec
from hetero.plan.sizing.ideal_work import DeviceRates

__all__ = ["rates_of"]

_HALF = ("bf16", "fp16", "fp16_acc16", "fp16_vector", "fp32")
_PRECISIONS = {
    "fp8": ("fp8", "fp8_acc16", *_HALF),
    "int8": ("int8", *_HALF),
    "fp32": ("fp32",),
    "tf32": ("tf32", "fp32"),
    "nvfp4": ("fp4", *_HALF),
}
"""In what an engine can multiply weights of a format: as they are stored, or unpacked to 16 or 32 bits."""

_SUMS_FRAC = 0.5
"""What is left of a rate with sums of 16 bits where engines add up in 32: half, on every device that has both rates."""

_MATRIX_UNITS = {"tensor_cores", "matrix_cores"}
_WITHOUT_MATRIX = ("fp16_vector", "fp32")
"""Rates outside of the matrix units: where a device has such units they are several times too low for a product."""

_LINK_BYTES_PER_S = 16e9
"""What is taken of a link that no source prints: half of PCIe 4.0, declared."""

_PCIE_CROSSINGS = 2
"""Without direct access to its neighbour's memory a device sends through the host: each byte crosses twice."""


def rates_of(device: DeviceSpec, work: WorkloadSpec) -> DeviceRates:
    """Return what a device's data sheet promises for a workload.

    Raises
    ------
    BadValueError
        The catalog knows no source for its arithmetic or its bandwidth.
    """
    flop = _flop_per_s(device, work)
    speed = device.bandwidth_bytes_per_s
    if flop is None or speed is None:
        units = "matrix units" if _has_matrix_units(device) else "arithmetic"
        lacking = units if flop is None else "memory bandwidth"
        raise BadValueError(
            f"the catalog has no source for the {lacking} of {device.name}",
            remedy="give a DeviceSpec with flop_per_s and bandwidth_bytes_per_s",
        )
    link = device.link_bytes_per_s or device.host_bytes_per_s or _LINK_BYTES_PER_S
    return DeviceRates(flop, speed, link / (_PCIE_CROSSINGS if device.link == "pcie" else 1))


def _flop_per_s(device: DeviceSpec, work: WorkloadSpec) -> float | None:
    """Return the best rate at which an engine can multiply the workload's weights, None where none is known.

    Notes
    -----
    A slow native rate is no limit: 16-bit weights are multiplied in 32 bits where that is quicker, as on Pascal cards.
    llama.cpp adds up in 16 bits where a device has that rate, and multiplies GGUF formats in 16 bits. A device that
    multiplies 4 bits at a rate that nobody prints does so at least as fast as 8 bits. Where a device has matrix units
    and nobody prints their rate, none is known: that of its vector units is several times lower.
    """
    name = number_format(work.weights).name
    names = _PRECISIONS.get(name, _HALF)
    if name == "nvfp4" and "fp4" in device.capabilities:
        names = (*names, "fp8")
    sums_frac = 1.0 if work.framework == "llama.cpp" else _SUMS_FRAC
    if names != _PRECISIONS["fp32"] and _has_matrix_units(device):
        names = tuple(key for key in names if key not in _WITHOUT_MATRIX)
    known = [(key, device.rate(key)) for key in names]
    return max((rate * (sums_frac if key.endswith("_acc16") else 1.0) for key, rate in known if rate), default=None)


def _has_matrix_units(device: DeviceSpec) -> bool:
    """Return whether products run on units of their own: so the row says, or it tells a vector rate from another."""
    return bool(_MATRIX_UNITS & set(device.capabilities)) or "fp16_vector" in device.flop_per_s
