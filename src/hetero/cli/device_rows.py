"""The devices of a host as rows: one for each that was found, and one for each that was not.

In: what the back ends found, and the choice made among it. Out: rows, and the same as plain values.
It must not print.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from hetero.backends.base import Found
from hetero.model.device import Device, DeviceStatus
from hetero.session.fleet_speed import status

__all__ = ["DeviceRow", "rows_of"]

_FIELDS = ("id", "name", "kind", "type", "backend", "cores", "memory_bytes", "memory_limit_bytes", "driver")
_MORE_FIELDS = ("flop_per_s", "bytes_per_s", "throttle_frac", "simulated", "silicon")


class DeviceRow(NamedTuple):
    """One line of the list.

    Attributes
    ----------
    device : what is known of the device, None when nothing enumerated
    backend : name of the back end
    status : 'ready', 'left out', 'broken' or 'missing'
    reason : why it is not ready, '' when it is
    remedy : how to get it, '' when nothing helps
    now : what the device reports of itself
    """

    device: Device | None
    backend: str
    status: str
    reason: str = ""
    remedy: str = ""
    now: DeviceStatus = DeviceStatus()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; what is unknown is None."""
        facts = {field: getattr(self.device, field, None) for field in (*_FIELDS, *_MORE_FIELDS)}
        said = {"backend": self.backend, "status": self.status, "reason": self.reason, "remedy": self.remedy}
        return {**facts, **said, "now": self.now.as_dict()}


def rows_of(
    found: Iterable[Found], chosen: Sequence[Device], left_out: Sequence[tuple[Device, str]], watch_s: float = 0.0
) -> tuple[DeviceRow, ...]:
    """Return the devices in use, those left out, the broken and the missing, in this order.

    Parameters
    ----------
    found, chosen, left_out : of a survey, and of the choice made among it
    watch_s : s to watch the devices for, to tell how busy they are; 0 tells nothing of it
    """
    states = zip(chosen, status(chosen, watch_s), strict=True)
    unsound = [each for each in found if each.reason]
    return (
        *(DeviceRow(device, device.backend, "ready", now=now) for device, now in states),
        *(DeviceRow(device, device.backend, "left out", reason, _by_name(device)) for device, reason in left_out),
        *(DeviceRow(each.device, each.backend, "broken", each.reason, each.remedy) for each in unsound if each.device),
        *(
            DeviceRow(None, each.backend, "missing", each.reason, each.remedy)
            for each in unsound
            if each.device is None
        ),
    )


def _by_name(device: Device) -> str:
    return f"to use it, name it, as in: --devices {device.label}"
