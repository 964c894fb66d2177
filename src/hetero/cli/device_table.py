"""The table that `hetero devices` shows to people, and the notes below it.

In: rows. Out: what rich prints, fitted to the width of the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hetero.floor.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hetero.cli.device_rows import Row
    from hetero.model.device import Device

__all__ = ["notes", "table"]

_STYLES = {"ready": "green", "left out": "yellow", "broken": "red"}
_UNKNOWN = "–"


def table(rows: Sequence[Row], width: int) -> Table:
    """Make the table of all devices that enumerated."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    shown.add_column("Device", no_wrap=True)
    shown.add_column("Name", no_wrap=True, overflow="ellipsis", min_width=8, max_width=max(10, width - 62))
    for title in ("Memory", "Cores", "GFLOP/s", "GB/s"):
        shown.add_column(title, justify="right", no_wrap=True)
    shown.add_column("Status", no_wrap=True)
    for row in rows:
        if row.device is not None:
            shown.add_row(*_cells(row, row.device), style="" if row.status == "ready" else "dim")
    return shown


def _cells(row: Row, device: Device) -> tuple[RenderableType, ...]:
    memory_bytes = device.memory_limit_bytes or device.memory_bytes
    return (
        device.short,
        Text(" ".join(device.name.split()) or device.kind),
        format_bytes(memory_bytes) if memory_bytes else _UNKNOWN,
        str(device.cores),
        _billions(device.flop_per_s),
        _billions(device.bytes_per_s),
        Text(_status(row, device), style=_STYLES[row.status]),
    )


def _billions(per_s: float | None) -> str:
    if per_s is None:
        return _UNKNOWN
    return f"{per_s / 1e9:.0f}" if per_s >= 1e11 else f"{per_s / 1e9:.3g}"


def _status(row: Row, device: Device) -> str:
    if row.status != "ready":
        return row.status
    if device.simulated:
        return "simulated"
    return f"throttled × {device.throttle_frac:g}" if device.throttle_frac < 1 else "ready"


def notes(rows: Sequence[Row]) -> Iterator[RenderableType]:
    """Give what stands below the table: who is not in use, why, and what would change it."""
    for status, title in (("left out", "Left out"), ("broken", "Broken"), ("missing", "Not here")):
        here = [row for row in rows if row.status == status]
        if here:
            yield Text(title, style="bold")
            yield _reasons(here)
    if any(row.status == "ready" and row.device and row.device.flop_per_s is None for row in rows):
        yield Text("Speeds are measured by: hetero devices --probe", style="dim")


def _reasons(rows: Sequence[Row]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        remedy = f"\n[dim]→ {escape(row.remedy)}[/]" if row.remedy else ""
        grid.add_row(f"  {row.device.short if row.device else row.backend}", escape(row.reason) + remedy)
    return grid
