"""The rates of a data sheet that count for a workload: which precision is multiplied in, which link is crossed.

In: a device of the catalog and a workload. Out: `Rates`. It must not fill a gap of the catalog.
"""

from __future__ import annotations

from hetero.catalog.values import DeviceSpec
from hetero.floor.errors import BadValueError
from hetero.model.quantisation import number_format
from hetero.model.workload import Workload
from hetero.plan.speed import Rates

__all__ = ["rates_of"]

_PRECISIONS = {
    "fp8": ("fp8", "int8", "bf16", "fp16"),
    "int8": ("int8", "bf16", "fp16"),
    "fp32": ("fp32",),
    "tf32": ("tf32", "fp32"),
    "nvfp4": ("fp4", "fp8", "bf16", "fp16"),
}
_HALF = ("bf16", "fp16", "fp16_acc16", "fp32")
_LLAMA_CPP = ("fp16_acc16", "fp16", "bf16", "fp32")
"""llama.cpp adds up in 16 bits where a device has that rate; GGUF formats are multiplied in 16 bits."""

_LINK_BYTES_PER_S = 16e9
"""What is taken of a link that no source prints: half of PCIe 4.0, declared."""

_PCIE_CROSSINGS = 2
"""Without direct access to its neighbour's memory a device sends through the host: each byte crosses twice."""


def rates_of(device: DeviceSpec, work: Workload) -> Rates:
    """Give what a device's data sheet promises for a workload.

    Raises
    ------
    BadValueError
        The catalog knows no source for its arithmetic or its bandwidth.
    """
    form = number_format(work.weights)
    half = _LLAMA_CPP if work.engine == "llama.cpp" else _HALF
    flop = device.rate(*_PRECISIONS.get(form.name, half))
    speed = device.bandwidth_bytes_per_s
    if flop is None or speed is None:
        lacking = "arithmetic" if flop is None else "memory bandwidth"
        raise BadValueError(
            f"the catalog has no source for the {lacking} of {device.name}",
            remedy="give a DeviceSpec with flop_per_s and bandwidth_bytes_per_s",
        )
    link = device.link_bytes_per_s or device.host_bytes_per_s or _LINK_BYTES_PER_S
    return Rates(flop, speed, link / (_PCIE_CROSSINGS if device.link == "pcie" else 1))
