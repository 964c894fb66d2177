"""`hetero batch`: one function or model over a mountain of records, as a job file says.

In: options. Out: what each device did, in words or as one JSON document. The work is in `hetero.batch`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.options import AsJson, Devices, Output, Settings
from hetero.cli.output import console, is_quiet, print_json, styled

if TYPE_CHECKING:
    from hetero.batch.outcome import BatchOutcome

__all__ = ["batch"]

_SHOWN = 5


def batch(
    recipe: Annotated[Path, typer.Argument(help="Recipe, a YAML file like examples/embed_folder.yaml.")],
    devices: Devices = None,
    output: Output = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that the folder holds.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin anew in the folder.")] = False,
    set_: Settings = None,
    json: AsJson = False,
) -> None:
    """Run a function or a model over many records, every device at its own batch size.

    --output names the folder of the results, in place of the recipe's.
    """
    from hetero.batch.api import map_batches
    from hetero.batch.recipe import read_batch_recipe
    from hetero.session.context import Context

    job = read_batch_recipe(recipe, set_ or [], progress=not json and not is_quiet())
    keywords = (
        dict(job.keywords) | ({} if output is None else {"output": output}) | ({"resume": True} if resume else {})
    )
    options = replace(job.options, overwrite=True) if overwrite else job.options
    with Context(job.context, devices=devices) as ctx:
        outcome = map_batches(job.function, job.source, ctx=ctx, options=options, limits=job.limits, **keywords)
    if json:
        print_json({"value": _plain(outcome.value), **outcome.as_dict()})
    else:
        _print(outcome)


def _plain(value: object) -> object:
    return value.tolist() if hasattr(value, "tolist") else value


def _print(outcome: BatchOutcome) -> None:
    from rich.table import Table

    say = console()
    fresh = outcome.items - outcome.resumed
    resumed = f", {outcome.resumed:,} done before" if outcome.resumed else ""
    say.print(f"{fresh:,} records in {outcome.seconds:.2f} s{resumed}", soft_wrap=True)
    table = Table()
    for heading in ("device", "records", "records/s", "batch", "calls", "left out"):
        table.add_column(heading, justify="left" if heading in ("device", "left out") else "right")
    for stats in outcome.devices:
        rate, size = f"{stats.rate:,.0f}" if stats.items else "", str(stats.batch or "")
        table.add_row(stats.device.short, f"{stats.items:,}", rate, size, str(stats.calls), stats.left_out)
    say.print(table)
    if outcome.usd:
        say.print(f"cost: ${outcome.usd:.4f}", soft_wrap=True)
    if outcome.energy_j:
        say.print(f"energy: {outcome.energy_j / 3600.0:.3g} Wh", soft_wrap=True)
    for record in outcome.bad[:_SHOWN]:
        told = f" record {record.item} ({record.place}): {record.reason}"
        say.print(styled(("set aside:", "yellow"), told), soft_wrap=True)
    if len(outcome.bad) > _SHOWN:
        say.print(f"and {len(outcome.bad) - _SHOWN} more", soft_wrap=True)
    if isinstance(outcome.value, Path):
        say.print(f"results: {outcome.value}", soft_wrap=True)
    elif outcome.value is not None and not isinstance(outcome.value, list):
        say.print(f"value: {outcome.value}", soft_wrap=True, markup=False)
