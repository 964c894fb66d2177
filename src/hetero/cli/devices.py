"""`hetero devices`: every device of this host, sound or not, and why.

In: what the back ends found, or a configuration. Out: a table for people, or one JSON document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from hetero.backends.base import Found
from hetero.cli.options import Address, AsJson, Config, Devices, Engine, Settings
from hetero.cli.output import console, print_json
from hetero.floor.text import single_line
from hetero.floor.units import format_bytes
from hetero.model.device import Device, DeviceStatus
from hetero.session.fleet_speed import status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from hetero.model.device import Device
    from hetero.model.topology import Link

__all__ = ["DeviceRow", "devices", "notes", "rows_of", "table"]

_FIELDS = ("id", "name", "kind", "type", "backend", "cores", "memory_bytes", "memory_limit_bytes", "driver")
_MORE_FIELDS = ("flop_per_s", "bytes_per_s", "throttle_frac", "simulated", "silicon")


class DeviceRow(NamedTuple):
    """One line of the list.

    Attributes
    ----------
    device
        What is known of the device, None when nothing enumerated.
    backend
        Name of the back end.
    status
        'ready', 'left out', 'broken' or 'missing'.
    reason
        Why it is not ready, '' when it is.
    remedy
        How to get it, '' when nothing helps.
    now
        What the device reports of itself.
    """

    device: Device | None
    backend: str
    status: str
    reason: str = ""
    remedy: str = ""
    now: DeviceStatus = DeviceStatus()

    def as_dict(self) -> dict[str, object]:
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
    found, chosen, left_out
        Of a survey, and of the choice made among it.
    watch_s
        Seconds to watch the devices for, to tell how busy they are; 0 tells nothing of it.
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


def devices(
    probe: Annotated[bool, typer.Option("--probe", help="Run a kernel on each device and measure its speed.")] = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Look again; with --probe, also measure again.")] = False,
    fleet: Devices = None,
    engine: Engine = None,
    address: Address = None,
    config: Config = None,
    set_: Settings = None,
    json: AsJson = False,
) -> None:
    """List this host's devices, and why one is not used."""
    from hetero.cli.options import as_setting
    from hetero.session.fleet import choose, remarks, survey

    notes: list[str] = []
    named = [as_setting(key, word) for key, word in (("engine", engine), ("address", address)) if word is not None]
    set_ = [*(set_ or []), *named]
    if fleet is None and config is None and not set_:
        found = survey(refresh=refresh)
        chosen, left_out = choose(found)
    else:
        found, left_out = (), ()
        if refresh:
            survey(refresh=True)
        chosen = _configured(fleet, config, set_, notes)
    speeds = _speeds([*chosen, *(device for device, _ in left_out)], probe, refresh, notes)
    chosen = speeds[: len(chosen)]
    left_out = tuple(zip(speeds[len(chosen) :], (reason for _, reason in left_out), strict=True))
    rows = rows_of(found, chosen, left_out, watch_s=0.1 if probe else 0.0)
    notes += remarks(chosen)
    if json:
        print_json({"devices": [row.as_dict() for row in rows], "notes": notes})
    else:
        _print(rows, notes, probed=probe)


def _configured(line: str | None, config: Path | None, set_: list[str], notes: list[str]) -> tuple[Device, ...]:
    from hetero.cli.options import as_setting
    from hetero.session.config import load
    from hetero.session.hosts import devices_of, network_links, reached

    wanted = load(config, set=[*set_, *([] if line is None else [as_setting("devices", line)])])
    with reached(wanted) as cluster:
        found = devices_of(cluster, wanted, notes)
        notes += [_link_line(link) for link in network_links(cluster)]
    return found


def _link_line(link: Link) -> str:
    return (
        f"{link.src.partition('/')[0]} to {link.dst.partition('/')[0]}: "
        f"{link.bandwidth_bytes_per_s / 1e6:.0f} MB/s, {link.latency_s * 1e3:.1f} ms"
    )


def _speeds(devices: Sequence[Device], probe: bool, refresh: bool, notes: list[str]) -> tuple[Device, ...]:
    from hetero.session.fleet_speed import measure, recall

    return measure(devices, refresh=refresh, notes=notes) if probe else recall(devices)


def _print(rows: Sequence[DeviceRow], remarks: Sequence[str], probed: bool) -> None:

    out = console()
    out.print(table(rows, out.width))
    for line in notes(rows, remarks, probed):
        out.print(line)


# --- the table of devices -----------------------------------------------------------------------------------

_STYLES = {"ready": "green", "left out": "yellow", "broken": "red"}
_UNKNOWN = "–"


def table(rows: Sequence[DeviceRow], width: int) -> Table:
    """Make the table of all devices that enumerated; a wide terminal shows more columns, a narrow one cuts names."""
    listed = [row for row in rows if row.device is not None]
    columns = [
        column for column in _COLUMNS if width >= column.needs_width and (column.always or _says(column, listed))
    ]
    texts = {column.title: [str(column.cell(row)) for row in listed] for column in columns}
    widths = {title: max(map(len, [title, *cells])) for title, cells in texts.items()}
    room = width - sum(widths.values()) + widths["Name"] - 2 * (len(columns) - 1)
    widths["Name"] = max(8, min(room, widths["Name"]))
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    for column in columns:
        size = widths[column.title]
        shown.add_column(column.title, justify=column.justify, no_wrap=True, width=size, overflow="ellipsis")
    for row in listed:
        shown.add_row(*(column.cell(row) for column in columns), style="" if row.status == "ready" else "dim")
    return shown


def _says(column: _Column, rows: Sequence[DeviceRow]) -> bool:
    return any(str(column.cell(row)) != _UNKNOWN for row in rows)


def _of(row: DeviceRow) -> Device:
    assert row.device is not None
    return row.device


def _name(row: DeviceRow) -> Text:
    return Text(" ".join(_of(row).name.split()) or _UNKNOWN)


def _memory(row: DeviceRow) -> str:
    size_bytes = _of(row).memory_limit_bytes or _of(row).memory_bytes
    return format_bytes(size_bytes) if size_bytes else _UNKNOWN


def _busy(row: DeviceRow) -> str:
    busy_frac = row.now.utilisation_frac
    return _UNKNOWN if busy_frac is None else f"{busy_frac:.0%}"


def _warmth(row: DeviceRow) -> str:
    return _UNKNOWN if row.now.temperature_c is None else f"{row.now.temperature_c:.0f}"


def _billions(per_s: float | None) -> str:
    if per_s is None:
        return _UNKNOWN
    return f"{per_s / 1e9:.0f}" if per_s >= 1e11 else f"{per_s / 1e9:.3g}"


def _status(row: DeviceRow) -> Text:
    device, text = _of(row), row.status
    if row.status == "ready" and device.simulated:
        text = "simulated"
    elif row.status == "ready" and device.throttle_frac < 1:
        text = f"× {device.throttle_frac:g}"
    return Text(text, style=_STYLES[row.status])


class _Column(NamedTuple):
    """One column: what it shows, from which width of the terminal on, and whether also when nothing is known."""

    title: str
    cell: Callable[[DeviceRow], Text | str]
    justify: Literal["left", "right"] = "left"
    needs_width: int = 0
    always: bool = True


_COLUMNS = (
    _Column("Device", lambda row: _of(row).short),
    _Column("Name", _name),
    _Column("Kind", lambda row: _of(row).kind, needs_width=100),
    _Column("Memory", _memory, "right"),
    _Column("Cores", lambda row: str(_of(row).cores), "right", 70),
    _Column("GFLOP/s", lambda row: _billions(_of(row).flop_per_s), "right"),
    _Column("GB/s", lambda row: _billions(_of(row).bytes_per_s), "right"),
    _Column("Busy", _busy, "right", 100, False),
    _Column("°C", _warmth, "right", 100, False),
    _Column("Status", _status),
)


def notes(rows: Sequence[DeviceRow], remarks: Sequence[str] = (), probed: bool = False) -> Iterator[RenderableType]:
    """Yield what stands below the table: remarks, who is not in use, why, and what would change it."""
    if remarks:
        yield Text("\n" + "\n".join(map(single_line, remarks)))
    for word, title in (("left out", "Left out"), ("broken", "Broken"), ("missing", "Not here")):
        here = [row for row in rows if row.status == word]
        if here:
            yield Text(f"\n{title}", style="bold")
            yield _reasons(here)
    if not probed and any(row.status == "ready" and row.device and _unmeasured(row.device) for row in rows):
        yield Text("\nSpeeds are measured by: hetero devices --probe", style="dim")


def _unmeasured(device: Device) -> bool:
    return device.flop_per_s is None and not device.simulated


def _reasons(rows: Sequence[DeviceRow]) -> Table:
    """List who is not in use, with one line for all that share a reason."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(overflow="fold", max_width=24)
    grid.add_column(overflow="fold")
    for reason in dict.fromkeys(row.reason for row in rows):
        alike = [row for row in rows if row.reason == reason]
        names = "\n".join(row.device.short if row.device else row.backend for row in alike)
        remedy = f"\n→ {single_line(alike[0].remedy)}" if alike[0].remedy else ""
        grid.add_row(names, Text.assemble(single_line(reason), (remedy, "dim")))
    return grid
