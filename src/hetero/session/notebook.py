"""How a Context shows itself in a notebook.

In: a Context. Out: HTML that needs no script and no style sheet. It must not talk to devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from hetero.floor.units import format_bytes

if TYPE_CHECKING:
    from hetero.model.device import Device
    from hetero.session.context import Context

__all__ = ["context_html", "table_html"]

_HEAD = ("device", "type", "name", "cores", "memory", "")


def context_html(ctx: Context) -> str:
    """Return the fleet of a Context as an HTML table."""
    state = "closed" if ctx.closed else "open"
    title = f"hetero.Context {ctx.name}".strip()
    return f"<p><b>{escape(title)}</b>: {len(ctx.devices)} devices, {state}</p>" + table_html(
        _HEAD, map(_row, ctx.devices)
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
