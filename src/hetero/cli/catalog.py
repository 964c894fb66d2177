"""`hetero catalog`: the facts about devices and models, with their sources.

In: names. Out: tables for people, or one JSON document. A figure that nothing confirms is shown as 'no source'.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.options import AsJson, Output, refuse_unused
from hetero.cli.output import console, fitted, print_json, styled

if TYPE_CHECKING:
    from rich.table import Table

    from hetero.advise.compare import ComparisonRow
    from hetero.catalog.values import DeviceSpec
    from hetero.model.architecture import ModelSpec

__all__ = ["compare_", "list_", "show"]

_NONE = "no source"


def list_(
    context: typer.Context,
    kind: Annotated[str | None, typer.Option(help="Only devices of this kind, as in 'cuda' or 'tpu'.")] = None,
    vendor: Annotated[str | None, typer.Option(help="Only devices of this vendor.")] = None,
    models: Annotated[bool, typer.Option("--models", help="List models instead of devices.")] = False,
    json: AsJson = False,
) -> None:
    """List the devices or models that the catalog knows."""
    from hetero.catalog import load

    if models:
        refuse_unused(context, ("models", "json"), "with --models")
        _list_models(load.models().values(), json)
        return
    rows = [
        spec
        for spec in load.devices().values()
        if (kind is None or spec.kind == kind) and (vendor is None or spec.vendor.casefold() == vendor.casefold())
    ]
    full = load.completeness()
    if json:
        print_json({"devices": [_device(spec) for spec in rows], "completeness": full})
        return
    out = console()
    out.print(fitted(_device_table(rows), out, "year", "kind", "power"))
    out.print(f"{full['empty']} of {full['cells']} figures have no source ({full['empty_frac']:.0%}).", style="dim")


def show(name: Annotated[str, typer.Argument(help="A device or a model.")], json: AsJson = False) -> None:
    """Show one device or model: each figure, where it was read and how it is printed there."""
    from hetero.catalog import load
    from hetero.floor.errors import BadValueError

    try:
        spec = load.find(name)
    except BadValueError as error:
        try:
            _show_model(load.find_model(name), json)
        except BadValueError:
            raise error from None
        return
    if json:
        print_json(_device(spec))
    else:
        _show_device(spec)


def compare_(
    names: Annotated[list[str], typer.Argument(help="Two or more devices.")],
    precision: Annotated[str, typer.Option(help="Of the rate: bf16, fp16, fp8, int8, fp32, …")] = "bf16",
    output: Output = None,
    json: AsJson = False,
) -> None:
    """Compare devices: speed, memory, per dollar, per watt, and what each is best for.

    --output also draws a chart into a file.
    """
    from hetero.advise.compare import best_for, compare
    from hetero.catalog.load import find

    rows = compare([find(name) for name in dict.fromkeys(names)], precision)
    best = best_for(rows)
    if output is not None:
        from hetero.advise.compare import chart

        chart(rows, output)
    if json:
        print_json({"devices": [row.as_dict() | {"best_for": best[row.name]} for row in rows]})
        return
    out = console()
    out.print(_comparison(rows, best))
    if output is not None:
        out.print(f"chart: {output}", style="dim")


def _number(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _quantity(value: float | None, unit: str) -> str:
    from hetero.floor.units import format_rate

    return _NONE if value is None else format_rate(value, unit)


def _table(*headings: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place == 0 else "right", overflow="fold")
    return table


def _device_table(rows: Iterable[DeviceSpec]) -> Table:
    table = _table("device", "kind", "year", "memory", "bandwidth", "16 bits", "power")
    for spec in rows:
        table.add_row(
            spec.name,
            spec.kind,
            str(spec.year or "") or _NONE,
            _quantity(spec.memory_bytes, "B"),
            _quantity(spec.bandwidth_bytes_per_s, "B/s"),
            _quantity(spec.rate("bf16", "fp16"), "FLOP/s"),
            _NONE if spec.power_w is None else f"{spec.power_w:g} W",
        )
    return table


def _list_models(rows: Iterable[ModelSpec], json: bool) -> None:
    if json:
        print_json({"models": [_model(spec) for spec in rows]})
        return
    table = _table("model", "parameters", "active", "layers", "KV a token", "context")
    for spec in rows:
        count = spec.parameters()
        kv = _quantity(2 * spec.kv_values(1), "B") if spec.kind == "decoder" else ""
        sizes = (f"{count.total / 1e9:.2f} G", f"{count.active / 1e9:.2f} G")
        table.add_row(spec.name, *sizes, str(spec.layers), kv, str(spec.context or ""))
    out = console()
    out.print(fitted(table, out, "KV a token", "layers", "active"))


def _model(spec: ModelSpec) -> dict[str, object]:
    from dataclasses import asdict

    count = spec.parameters()
    return asdict(spec) | {"parameters": count.total, "active_parameters": count.active}


def _device(spec: DeviceSpec) -> dict[str, object]:
    from dataclasses import asdict

    facts = asdict(spec)
    facts["flop_per_s"] = dict(spec.flop_per_s)
    return facts | {"usable_bytes": spec.usable_bytes, "cells": spec.cells(), "sources": dict(spec.sources)}


def _show_device(spec: DeviceSpec) -> None:
    from hetero.catalog.load import sources

    out = console()
    out.print(styled((spec.name, "bold"), f"  {spec.vendor}, {spec.kind}, {spec.form or spec.unit}"))
    table = _table("figure", "value", "source", "printed there as")
    table.columns[2].justify = table.columns[3].justify = "left"
    prices = {f"price.{'usd_per_hour' if price.per_hour else 'usd'}": price.usd for price in spec.prices}
    for key, value in {**spec.cells(), **prices}.items():
        source = spec.sources.get(key, "")
        printed = sources()[source].printed[f"{spec.name}.{key}"] if source else ""
        table.add_row(key, _NONE if value is None else _shown(key, value), source, printed)
    out.print(table)
    _print("accumulate", ", ".join(f"{name} in {how}" for name, how in spec.accumulate.items()))
    _print("capabilities", ", ".join(spec.capabilities))
    _print("used for", ", ".join(spec.uses))
    _print("price hints of", ", ".join(price.month or "no stated month" for price in spec.prices))
    _print("note", spec.note)
    _print("differs", spec.explains)
    _show_pod(spec)
    for source in dict.fromkeys(spec.sources.values()):
        row = sources()[source]
        out.print(f"{source}: {row.title}, {row.address} (opened {row.opened})", style="dim", soft_wrap=True)


def _shown(key: str, value: float) -> str:
    if key.startswith("flop_per_s."):
        return _quantity(value, "FLOP/s")
    if key.endswith("_bytes"):
        return f"{value:,} B"
    if key.endswith("_bytes_per_s"):
        return _quantity(value, "B/s")
    return str(value)


def _print(what: str, words: str) -> None:
    if words:
        console().print(f"{what}: {words}")


def _show_pod(spec: DeviceSpec) -> None:
    if spec.pod is None:
        return
    pod, out = spec.pod, console()
    out.print(f"pod: {pod.chips} chips, {pod.shape or 'shape without a source'} {pod.connection}")
    if not pod.slices:
        return
    table = _table("slice", "chips", "hosts", "memory", "16 bits")
    for part in pod.slices:
        memory = spec.memory_bytes * part.chips if spec.memory_bytes else None
        rate = spec.rate("bf16")
        speed = rate * part.chips if rate else None
        table.add_row(part.shape, str(part.chips), str(part.hosts), _quantity(memory, "B"), _quantity(speed, "FLOP/s"))
    out.print(table)


def _show_model(spec: ModelSpec, json: bool) -> None:
    from hetero.catalog.load import sources

    if json:
        print_json(_model(spec))
        return
    count, out = spec.parameters(), console()
    told = f"  {count.total:,} parameters, {count.active:,} of them for one token"
    out.print(styled((spec.name, "bold"), told))
    table = _table("fact", "value")
    for key, value in _model(spec).items():
        if value and key not in ("name", "source", "published_source", "parameters", "active_parameters"):
            table.add_row(key, str(value))
    out.print(table)
    for key, word in ((spec.source, spec.name), (spec.published_source, f"{spec.name}.published")):
        if key:
            row = sources()[key]
            told = f"{key}: {row.address} (opened {row.opened}): {row.printed[word]}"
            out.print(told, style="dim", soft_wrap=True)


def _comparison(rows: list[ComparisonRow], best: dict[str, list[str]]) -> Table:
    table = _table("", *(row.name for row in rows))
    lines: tuple[tuple[str, str], ...] = (
        ("TFLOP/s, dense", "tflop_per_s"),
        ("memory, GiB", "memory_gib"),
        ("memory bandwidth, GB/s", "bandwidth_gb_per_s"),
        ("power, W", "power_w"),
        ("price, $", "usd"),
        ("price, $/hour", "usd_per_hour"),
        ("TFLOP/s per $/hour", "tflop_per_s_per_usd_hour"),
        ("TFLOP/s per $1000", "tflop_per_s_per_1000_usd"),
        ("TFLOP/s per W", "tflop_per_s_per_w"),
        ("GiB per TFLOP/s", "memory_gib_per_tflop_per_s"),
    )
    table.add_row("precision", *(row.precision for row in rows))
    for words, key in lines:
        table.add_row(words, *(_number(getattr(row, key)) for row in rows))
    table.add_row("prices of", *(", ".join(row.price_months) or _NONE for row in rows))
    table.add_row("best of these for", *("; ".join(best[row.name]) or "–" for row in rows))
    table.add_row("sold for", *(", ".join(row.uses) for row in rows))
    return table
