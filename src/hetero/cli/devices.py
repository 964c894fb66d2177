"""`hetero devices`: every device of this host, sound or not, and why.

In: what the back ends found. Out: a table for people, or one JSON document.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hetero.cli.output import console, print_json

__all__ = ["devices"]


def devices(
    probe: Annotated[bool, typer.Option("--probe", help="Run a kernel on each device and measure its speed.")] = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure again what was measured before.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List the devices of this host, and why one is not used."""
    from hetero.cli.device_rows import rows_of
    from hetero.session import fleet

    found = fleet.survey(probe=probe or refresh, refresh=refresh)
    rows = rows_of(found, *fleet.choose(found))
    if json:
        print_json({"devices": [row.as_dict() for row in rows]})
    else:
        _print(rows)


def _print(rows: Any) -> None:
    from hetero.cli.device_table import notes, table

    out = console()
    out.print(table(rows, out.width))
    for line in notes(rows):
        out.print(line)
