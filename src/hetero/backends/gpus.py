"""Facts of GPUs that several frameworks share: where on the PCI bus they sit, and how they are.

In: the drivers' own libraries and files. Out: PCI addresses and status. It must not import a framework.
"""

from __future__ import annotations

import ctypes

from hetero.backends import host, nvidia
from hetero.model.device import Device, DeviceStatus

__all__ = ["gpu_status", "pci_addresses"]

_LIBRARIES = {
    "cuda": ("libcuda.so.1", "cuInit", "cuDeviceGetCount", "cuDeviceGetPCIBusId"),
    "rocm": ("libamdhip64.so", "hipInit", "hipGetDeviceCount", "hipDeviceGetPCIBusId"),
}


def pci_addresses(kind: str) -> tuple[str, ...]:
    """Return the PCI address of each visible GPU of a kind, in the order in which frameworks count them.

    It loads the driver's library, which may crash: call it in a probe's child process only. Gives () where
    the library is absent or does not answer.

    Examples
    --------
    >>> pci_addresses("cpu")
    ()
    """
    if kind not in _LIBRARIES:
        return ()
    library, init, count, bus_id = _LIBRARIES[kind]
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return ()
    number = ctypes.c_int(0)
    if getattr(driver, init)(0) != 0 or getattr(driver, count)(ctypes.byref(number)) != 0:
        return ()
    found = []
    for index in range(number.value):
        text = ctypes.create_string_buffer(32)
        if getattr(driver, bus_id)(text, len(text), index) != 0:
            return ()
        found.append(text.value.decode())
    return tuple(found)


def gpu_status(device: Device) -> DeviceStatus:
    """Ask the driver for the status of a GPU by its PCI address, without opening it."""
    prefix = "h0/pci:"
    address = next((silicon.removeprefix(prefix) for silicon in device.silicon if silicon.startswith(prefix)), "")
    if not address:
        return DeviceStatus()
    for gpu in nvidia.read():
        if host.pci_silicon(gpu.pci) in device.silicon:
            return nvidia.status_of(gpu)
    return host.amd_status(address)
