"""`hetero calibrate`: measure this host's devices, or take in a table of own figures, so that estimates lean on them.

In: nothing, or CSV files. Out: what was measured and kept, for people or as one JSON document.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.options import AsJson
from hetero.cli.output import is_quiet, print_json, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hetero.advise.calibrate import MeasuredExchange
    from hetero.advise.known_efficiency import Timed

__all__ = ["calibrate"]


def calibrate(
    measurements: Annotated[
        list[Path] | None, typer.Option(help="CSV file of measured speeds to keep; may be repeated.")
    ] = None,
    exchange: Annotated[bool, typer.Option(help="Also time an all-reduce between two workers.")] = True,
    json: AsJson = False,
) -> None:
    """Measure the devices of this host, about a minute each, and keep the figures; or keep your own."""
    said = (
        _tables(measurements, quiet=json or is_quiet()) if measurements else _here(exchange, quiet=json or is_quiet())
    )
    if json:
        print_json(said)


def _tables(paths: Sequence[Path], quiet: bool) -> dict[str, object]:
    from hetero.advise.known_efficiency import keep_table

    said: dict[str, object] = {}
    for path in paths:
        found, unread = keep_table(path)
        sorts = sorted({f"{row.engine} on {row.device.name}" for row in found})
        said[str(path)] = {"rows": len(found), "of": sorts, "unread": unread}
        if not quiet:
            say(f"{path}: {len(found)} rows kept, of {', '.join(sorts)}")
            say("\n".join(f"  not read, {line}" for line in unread), end="\n" if unread else "")
    return said


def _here(exchange: bool, quiet: bool) -> dict[str, object]:
    from dataclasses import asdict

    from hetero.advise.calibrate import measure_device, measure_exchange, targets
    from hetero.advise.known_efficiency import keep_timed

    devices: list[dict[str, object]] = []
    said: dict[str, object] = {"devices": devices}
    for device in targets():
        timed = measure_device(device)
        keep_timed(timed)
        devices.append(asdict(timed))
        if not quiet:
            say(_line(timed))
    if exchange:
        summed = measure_exchange(2)
        said["exchange"] = asdict(summed)
        if not quiet:
            say(_told_exchange(summed))
    return said


def _line(timed: Timed) -> str:
    from hetero.floor.units import format_rate, format_seconds

    parts = [
        f"{format_rate(timed.flop_per_s, 'FLOP/s')} of a float32 matrix product",
        f"{format_rate(timed.bytes_per_s, 'B/s')} of a copy",
    ]
    if timed.in_bytes_per_s and timed.out_bytes_per_s:
        parts.append(
            f"{format_rate(timed.in_bytes_per_s, 'B/s')} in and {format_rate(timed.out_bytes_per_s, 'B/s')} out"
        )
    parts += [f"a prompt of {tokens} tokens {format_seconds(each)}" for tokens, each in timed.prompt_s.items()]
    parts += [f"a token after {kept} {format_seconds(each)}" for kept, each in timed.step_s.items()]
    return f"{timed.device}: {', '.join(parts)}"


def _told_exchange(summed: MeasuredExchange) -> str:
    from hetero.floor.units import format_bytes, format_seconds

    parts = [f"{format_bytes(int(size))} in {format_seconds(each)}" for size, each in summed.seconds.items()]
    return f"all-reduce between {' and '.join(summed.devices)}: {', '.join(parts)}"
