"""What `ctx.explain` gives: a table of devices with their estimates.

In: the driver's explanations. Out: text and HTML. It must not estimate anything itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hetero.floor.units import format_seconds
from hetero.session.notebook import table_html

if TYPE_CHECKING:
    from hetero.drive.live import Explanation

__all__ = ["Explained"]

_HEAD = ("device", "estimate", "10th to 90th percentile", "known from", "samples", "why")


class Explained:
    """How long one call would take on each device, how that is known, and which device is the best.

    Attributes
    ----------
    name : of the function
    devices : one explanation a device, in the order of the fleet
    best : id of the device with the least estimate, '' where none can run it
    """

    def __init__(self, name: str, devices: tuple[Explanation, ...]) -> None:
        self.name = name
        self.devices = devices
        able = [(each.estimate.seconds, each.device) for each in devices if each.estimate is not None]
        self.best = min(able, default=(0.0, ""))[1]

    def __iter__(self) -> Iterator[Explanation]:
        """Return the explanations."""
        return iter(self.devices)

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table's rows as text."""
        return [self._row(each) for each in self.devices]

    def _row(self, each: Explanation) -> tuple[str, ...]:
        estimate = each.estimate
        if estimate is None:
            return each.device, "", "", "", "", each.reason
        spread = f"{format_seconds(estimate.low_s)} to {format_seconds(estimate.high_s)}"
        why = "least estimate: chosen on an idle fleet" if each.device == self.best else ""
        if estimate.origin == "unknown":
            why = "never run here: tried once"
        return each.device, format_seconds(estimate.seconds), spread, estimate.origin, str(estimate.samples), why

    def __repr__(self) -> str:
        table = [_HEAD, *self.rows()]
        widths = [max(len(row[column]) for row in table) for column in range(len(_HEAD))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
        ]
        return "\n".join([f"{self.name} on {len(self.devices)} device{'s' if len(self.devices) != 1 else ''}", *lines])

    def _repr_html_(self) -> str:
        return table_html(_HEAD, self.rows())
