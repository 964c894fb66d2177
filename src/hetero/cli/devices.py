"""`hetero devices`: every device of this host, sound or not, and why.

In: what the back ends found, or a configuration. Out: a table for people, or one JSON document.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.output import console, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hetero.cli.device_rows import Row
    from hetero.model.device import Device

__all__ = ["devices"]


def devices(
    probe: Annotated[bool, typer.Option("--probe", help="Run a kernel on each device and measure its speed.")] = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Look again; with --probe, also measure again.")] = False,
    fleet: Annotated[str | None, typer.Option("--devices", help="Show this fleet, as in 'cpu:1,cpu:1*0.25'.")] = None,
    config: Annotated[Path | None, typer.Option(help="Show the fleet of this configuration file.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Setting, key.path=value; may be repeated.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List this host's devices, and why one is not used."""
    from hetero.session.fleet import remarks

    notes: list[str] = []
    rows = (
        _of_the_host(probe, refresh)
        if (fleet, config, set_) == (None, None, None)
        else _named(fleet, config, set_, probe, notes)
    )
    notes += remarks([row.device for row in rows if row.device and row.status == "ready"])
    if json:
        print_json({"devices": [row.as_dict() for row in rows], "notes": notes})
    else:
        _print(rows, notes)


def _of_the_host(probe: bool, refresh: bool) -> tuple[Row, ...]:
    from hetero.cli.device_rows import rows_of
    from hetero.session.fleet import choose, survey

    found = survey(refresh=refresh)
    chosen, left_out = choose(found)
    known = _with_speeds([*chosen, *(device for device, _ in left_out)], probe, refresh)
    names = [reason for _, reason in left_out]
    return rows_of(found, known[: len(chosen)], list(zip(known[len(chosen) :], names, strict=True)))


def _named(
    line: str | None, config: Path | None, set_: list[str] | None, probe: bool, notes: list[str]
) -> tuple[Row, ...]:
    from hetero.cli.device_rows import rows_of
    from hetero.session.config import load
    from hetero.session.config_here import find_devices

    return rows_of((), _with_speeds(find_devices(load(config, set=set_ or (), devices=line), notes), probe, False), ())


def _with_speeds(found: Sequence[Device], probe: bool, refresh: bool) -> Sequence[Device]:
    from hetero.session.fleet_speed import measure, recall

    return measure(found, refresh=refresh) if probe else recall(found)


def _print(rows: Sequence[Row], remarks: Sequence[str]) -> None:
    from hetero.cli.device_table import notes, table

    out = console()
    out.print(table(rows, out.width))
    for line in notes(rows, remarks):
        out.print(line)
