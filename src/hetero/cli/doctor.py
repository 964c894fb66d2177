"""`hetero doctor`: what is missing on this host, and how to get it.

In: the findings of `checks`. Out: a table for people, or one JSON document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.output import console, print_json
from hetero.floor.text import single_line

if TYPE_CHECKING:
    from hetero.cli.checks import Finding

__all__ = ["doctor"]

_MARKS = {"ok": ("✓", "green"), "poor": ("!", "yellow"), "missing": ("–", "dim")}


def doctor(json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False) -> None:
    """Show what is missing on this host, and how to get it."""
    from hetero.cli.checks import findings

    found = findings()
    if json:
        print_json({"findings": [finding._asdict() for finding in found]})
    else:
        _print(found)


def _print(found: tuple[Finding, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    out = console()
    for group in dict.fromkeys(finding.group for finding in found):
        table = Table(
            title=group, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False
        )
        table.add_column(width=1)
        table.add_column(width=16)
        table.add_column(overflow="fold")
        for finding in found:
            if finding.group == group:
                remedy = f"\n→ {single_line(finding.remedy)}" if finding.remedy else ""
                told = Text.assemble(single_line(finding.found), (remedy, "dim"))
                table.add_row(Text(*_MARKS[finding.state]), single_line(finding.name), told)
        out.print(table)
        out.print()
    out.print(_summary(found), style="bold")


def _summary(found: tuple[Finding, ...]) -> str:
    missing = sum(finding.state == "missing" for finding in found)
    poor = sum(finding.state == "poor" for finding in found)
    if not missing and not poor:
        return "Nothing is missing."
    return f"{missing} missing, {poor} in need of attention. What your program does not use does not matter."
