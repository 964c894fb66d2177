"""Why a device can never meet a request, in words.

In: a device and a request, reasons of several devices. Out: one line. It knows no state of the core.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hetero.floor.units import format_bytes
from hetero.model.device import Device
from hetero.model.tasks import PLAIN_PYTHON, Request

__all__ = ["obstacle", "refusal"]


def obstacle(device: Device, request: Request, capacity_bytes: int | None) -> str:
    """Return why a device can never meet a request, '' when it can.

    Parameters
    ----------
    capacity_bytes
        Bytes of the device's memory node, or its memory_limit where that is less; None where unknown.

    Examples
    --------
    >>> from hetero.model.device import DeviceType
    >>> cpu = Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu")
    >>> obstacle(cpu, Request(on=("gpu",)), None)
    'it is not one of: gpu'
    >>> obstacle(cpu, Request(), None)
    ''
    """
    words = device.words
    if request.on and words.isdisjoint(request.on):
        return f"it is not one of: {', '.join(request.on)}"
    if request.not_on and not words.isdisjoint(request.not_on):
        return f"the request excludes: {', '.join(request.not_on)}"
    if request.implemented:
        plain = device.runs_python and PLAIN_PYTHON in request.implemented
        if not plain and words.isdisjoint(request.implemented):
            return f"the task has an implementation for {', '.join(request.implemented)} only"
    elif not device.runs_python:
        return "the task has no kernel for it"
    if device.cores < request.min_cores:
        return f"it has {device.cores} core{'s' if device.cores > 1 else ''} of the {request.min_cores} asked for"
    if capacity_bytes is not None and request.memory_bytes > capacity_bytes:
        limited = capacity_bytes == device.memory_limit_bytes
        have = f"{'its memory_limit allows' if limited else 'it has'} {format_bytes(capacity_bytes)}"
        return f"{have} of the {format_bytes(request.memory_bytes)} asked for"
    return ""


def refusal(name: str, request: Request, obstacles: Sequence[tuple[str, str]]) -> str:
    """Word why no device, or too few, can meet a request.

    Examples
    --------
    >>> refusal("train", Request(), [("h0/cpu:0", "it is not one of: gpu")])
    'no device can run train: h0/cpu:0: it is not one of: gpu'
    """
    if not obstacles:
        return f"no device can run {name}: the fleet is empty"
    reasons = "; ".join(f"{device}: {reason}" for device, reason in _grouped(obstacles))
    if request.devices > 1:
        return f"no {request.devices} devices can run {name} together: {reasons or 'the fleet is smaller'}"
    return f"no device can run {name}: {reasons}"


def _grouped(obstacles: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    by_reason: dict[str, list[str]] = {}
    for device, reason in obstacles:
        if reason:
            by_reason.setdefault(reason, []).append(device)
    return [(", ".join(devices), reason) for reason, devices in by_reason.items()]
