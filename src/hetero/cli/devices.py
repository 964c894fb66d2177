"""`hetero devices`: every device of this host, sound or not, and why.

In: what the back ends found, or a configuration. Out: a table for people, or one JSON document.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.options import Address, AsJson, Config, Devices, Engine, Settings
from hetero.cli.output import console, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hetero.cli.device_rows import DeviceRow
    from hetero.model.device import Device
    from hetero.model.topology import Link

__all__ = ["devices"]


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
    from hetero.cli.device_rows import rows_of
    from hetero.cli.words import as_setting
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
    from hetero.cli.words import as_setting
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
    from hetero.cli.device_table import notes, table

    out = console()
    out.print(table(rows, out.width))
    for line in notes(rows, remarks, probed):
        out.print(line)
