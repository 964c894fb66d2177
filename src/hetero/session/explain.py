"""What `ctx.explain` gives: a table of devices with their estimates.

In: the driver's explanations. Out: text and HTML. It must not estimate anything itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from hetero.floor.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from hetero.drive.live import Explanation
    from hetero.model.device import Device
    from hetero.session.context import Context

__all__ = ["Explained", "context_html", "table_html"]

_HEAD = ("device", "estimate", "10th to 90th percentile", "known from", "samples", "why")


class Explained:
    """How long one call would take on each device, how that is known, and which device is the best.

    Attributes
    ----------
    name
        Of the function.
    devices
        One explanation a device, in the order of the fleet.
    best
        Id of the device with the least estimate, '' where none can run it.
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


# --- notebooks ----------------------------------------------------------------------------------------------

_HEAD_notebook = ("device", "type", "name", "cores", "memory", "")


def context_html(ctx: Context) -> str:
    """Return the fleet of a Context as an HTML table."""
    state = "closed" if ctx.closed else "open"
    title = f"hetero.Context {ctx.name}".strip()
    return f"<p><b>{escape(title)}</b>: {len(ctx.devices)} devices, {state}</p>" + table_html(
        _HEAD_notebook, map(_row, ctx.devices)
    )


def table_html(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table.

    Examples
    --------
    >>> table_html(("a",), [("<1>",)])
    '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;1&gt;</td></tr></tbody></table>'
    """
    header = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"


def _row(device: Device) -> tuple[str, ...]:
    remarks = [f"throttled to {device.throttle_frac:g}"] if device.throttle_frac < 1.0 else []
    remarks += ["simulated"] if device.simulated else []
    memory = "" if device.memory_bytes is None else format_bytes(device.memory_bytes)
    return device.id, str(device.type), device.name, str(device.cores), memory, ", ".join(remarks)
