"""Devices and findings as plain JSON values.

In: values. Out: dictionaries and back. It must not read or write anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hetero.backends.base import Found
from hetero.model.device import Device, DeviceType

__all__ = ["device_from", "device_to", "found_from", "found_to"]

_TUPLES = ("cpus", "silicon")
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "DeviceType": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (float, int),
    "int | None": (int, type(None)),
    "float | None": (float, int, type(None)),
}


def device_to(device: Device) -> dict[str, object]:
    """Return a device as plain values.

    Examples
    --------
    >>> gpu = Device("h0/cuda:0", "cuda", DeviceType("GPU"), "torch", silicon=("h0/cuda0",))
    >>> device_from(device_to(gpu)) == gpu
    True
    """
    plain = {field.name: getattr(device, field.name) for field in fields(device)}
    return plain | {name: list(plain[name]) for name in _TUPLES} | {"type": str(device.type)}


def device_from(plain: Mapping[str, Any]) -> Device:
    """Create a device of plain values; raises KeyError, TypeError or ValueError when they do not describe one."""
    given = dict(plain)
    for name in _TUPLES:
        given[name] = tuple(given[name])
    for field in fields(Device):
        kinds = _KINDS.get(str(field.type))
        if kinds is not None and field.name in given and type(given[field.name]) not in kinds:
            raise TypeError(f"{field.name} of a device is {given[field.name]!r}")
    if not all(isinstance(chip, str) for chip in given["silicon"]):
        raise TypeError("the silicon of a device is named by texts")
    given["type"] = DeviceType(given["type"])
    return Device(**given)


def found_to(found: Found) -> dict[str, object]:
    """Return a finding as plain values."""
    return found._asdict() | {"device": None if found.device is None else device_to(found.device)}


def found_from(plain: Mapping[str, Any]) -> Found:
    """Create a finding of plain values; raises as `device_from` does."""
    device = plain["device"]
    texts = [plain["backend"], plain["reason"], plain["remedy"]]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a finding's words are text")
    return Found(None if device is None else device_from(device), *texts)
