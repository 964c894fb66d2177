"""The devices of the demonstration: what the user names, else this host's, made unequal where they are equal.

In: a configuration or nothing. Out: a fleet for the Context, and notes for people.
It must not hide that a device is throttled or left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from hetero.floor.errors import NothingFitsError
from hetero.model.device import Device
from hetero.session.requests import KERNEL_KINDS

__all__ = ["THROTTLE_FRAC", "made_unequal", "precision", "spread", "usable"]

THROTTLE_FRAC = 0.25
_DOUBLE_KINDS = ("cpu", "cuda", "rocm")


def made_unequal(devices: Sequence[Device]) -> tuple[str | None, tuple[str, ...]]:
    """Return a fleet of unequal devices in one line, None where the devices are so already; and notes.

    Examples
    --------
    >>> from hetero.model.device import DeviceType
    >>> cores = [Device(f"h0/cpu:{index}", "cpu", DeviceType("CPU"), "cpu") for index in range(2)]
    >>> made_unequal(cores)[0]
    '1xcpu,1xcpu*0.25'
    """
    if len({device.model_key for device in devices}) != 1 or devices[0].throttle_frac < 1.0:
        return None, ()
    if len(devices) == 1:
        return None, (f"{devices[0].short} is the only device of this host: there is nothing to share",)
    words = [f"1x{device.label}{_cores(device)}" for device in devices]
    words[-1] += f"*{THROTTLE_FRAC:g}"
    last = devices[-1].short
    note = f"all devices of this host are equal, so {last} is slowed down on purpose, to {THROTTLE_FRAC:g} of its speed"
    return ",".join(words), (note,)


def _cores(device: Device) -> str:
    return f"/{device.cores}cores" if device.kind == "cpu" and device.cores > 1 else ""


def usable(devices: Sequence[Device]) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Return the devices that can run the tasks, and a note for each that cannot.

    Raises
    ------
    NothingFitsError
        No device can.
    """
    why = {device.id: _obstacle(device) for device in devices}
    able = tuple(device for device in devices if not why[device.id])
    notes = tuple(f"{device.short} is left out: {why[device.id]}" for device in devices if why[device.id])
    if not able:
        raise NothingFitsError("no device can run the demonstration: " + "; ".join(notes), remedy="name a cpu")
    return able, notes


def _obstacle(device: Device) -> str:
    if device.simulated:
        return "it computes nothing"
    return "it takes kernels only" if device.kind in KERNEL_KINDS else ""


def precision(devices: Sequence[Device]) -> str:
    """Return the type of numbers that every device computes with: 'float64', or 'float32' where one has no other."""
    double = all(device.kind in _DOUBLE_KINDS and device.backend != "jax" for device in devices)
    return "float64" if double else "float32"


def spread(devices: Sequence[Device]) -> dict[str, list[Device]]:
    """Return the devices by what they have in common, so that equal ones need to be measured once only."""
    found: dict[str, list[Device]] = {}
    for device in devices:
        found.setdefault(device.model_key, []).append(device)
    return found
