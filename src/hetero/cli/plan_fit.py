"""`hetero plan fit`: whether a model fits into devices, before anything is run.

In: the names of a model and of a device. Out: an answer with its reasons, or one JSON document.
"""

from __future__ import annotations

from typing import Annotated

import typer

from hetero.cli.options import (
    AsJson,
    BatchSize,
    CatalogDevices,
    Checkpointing,
    ContextTokens,
    Framework,
    KvFormat,
    Weights,
    WorkloadJob,
)
from hetero.cli.output import print_json, say
from hetero.floor.errors import ExitCode

__all__ = ["fit"]


def fit(
    model: Annotated[str, typer.Argument(help="A model of the catalog, or the path of a config.json.")],
    devices: CatalogDevices,
    job: WorkloadJob = "inference",
    weights: Weights = "bf16",
    kv: KvFormat = "fp16",
    batch: BatchSize = 1,
    context: ContextTokens = 2048,
    framework: Framework = "torch",
    optimizer: Annotated[str, typer.Option(help="adamw, adamw-8bit, sgd, …")] = "adamw",
    checkpointing: Checkpointing = False,
    json: AsJson = False,
) -> None:
    """Report whether a model fits, what takes the memory, and what would make it fit."""
    from hetero.advise.fit import does_it_fit
    from hetero.advise.fleet import read_fleet
    from hetero.floor.errors import BadValueError

    kinds = read_fleet(devices)
    if len(kinds) != 1:
        raise BadValueError(f"--devices {devices} names {len(kinds)} sorts", remedy="name one, as in 2xH100-SXM")
    report = does_it_fit(
        model,
        kinds[0].spec,
        kinds[0].count or 1,
        job=job,
        weights=weights,
        kv=kv,
        batch=batch,
        context=context,
        framework=framework,
        optimizer=optimizer,
        checkpointing=checkpointing,
    )
    if json:
        print_json(report.as_dict())
    else:
        say(report.explain())
    if report.answer == "does not fit":
        raise typer.Exit(ExitCode.NOTHING_FITS)
