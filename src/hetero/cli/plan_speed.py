"""`hetero plan speed`, `hetero plan training` and `hetero plan accuracy`: how fast, how long, and how sure that is.

In: words of a workload, speeds of nodes, or tables of measured speeds. Out: figures with their intervals.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetero.cli.options import (
    AsJson,
    BatchSize,
    CatalogDevices,
    Checkpointing,
    ContextTokens,
    Framework,
    Network,
    Weights,
    WorkloadJob,
)
from hetero.cli.output import console, print_json, say
from hetero.floor.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hetero.advise.accuracy import Judged, Merit

__all__ = ["accuracy", "speed", "training"]


def speed(
    model: Annotated[str, typer.Argument(help="A model of the catalog, or the path of a config.json.")],
    devices: CatalogDevices,
    job: WorkloadJob = "inference",
    weights: Weights = "bf16",
    batch: BatchSize = 1,
    prompt: Annotated[int, typer.Option(help="Tokens of each prompt, 0 for half of the context.")] = 0,
    context: ContextTokens = 2048,
    framework: Framework = "torch",
    checkpointing: Checkpointing = False,
    json: AsJson = False,
) -> None:
    """Report how fast devices do a workload: latency, tokens a second, memory, each with its 80 % interval."""
    from hetero.advise.estimate import Workload, compare_speeds, estimate
    from hetero.advise.fleet import read_fleet

    how: dict[str, Any] = {"job": job, "weights": weights, "batch": batch, "prompt": prompt, "context": context}
    work = Workload(model, **how, framework=framework, checkpointing=checkpointing)
    found = [estimate(work, kind.spec, kind.count or 1) for kind in read_fleet(devices)]
    if json:
        print_json([one.as_dict() for one in found])
    else:
        say("\n\n".join(one.explain() for one in found))
        if len(found) > 1:
            say("\n" + compare_speeds(found))
    if all(one.memory.answer == "does not fit" for one in found):
        raise typer.Exit(ExitCode.NOTHING_FITS)


def training(
    samples: Annotated[int, typer.Option(help="Samples of one epoch.")],
    samples_per_s: Annotated[list[float], typer.Option(help="Speed of one host alone; repeat it for each host.")],
    global_batch: Annotated[int, typer.Option(help="Samples of a step over all hosts.")],
    epochs: Annotated[int, typer.Option(help="Epochs.")] = 1,
    gradients: Annotated[str, typer.Option(help="Size of the gradients that are exchanged, as in 500MB.")] = "0B",
    network: Network = "",
    json: AsJson = False,
) -> None:
    """Report how long a training takes on hosts of unequal speed, who computes how much, and who is left out."""
    from math import inf

    from hetero.floor.units import parse_bandwidth, parse_bytes
    from hetero.plan.training.speed import training_time

    bandwidth = parse_bandwidth(network) if network else inf
    told = training_time(samples, samples_per_s, global_batch, epochs, parse_bytes(gradients), bandwidth)
    if json:
        document = {"total_s": told.total_s, "alone_s": told.alone_s, "steps": told.steps, "speedup": told.speedup}
        print_json({**document, "shares": told.plan.shares, "left_out": told.plan.reasons})
        return
    say(told.explain())


def accuracy(
    tables: Annotated[list[Path], typer.Argument(help="CSV files of measured speeds.")],
    json: AsJson = False,
) -> None:
    """Report how far estimates lie from tables of measured speeds, as priors give them and after own measurements."""
    from hetero.advise.accuracy import leave_one_model_out, uncalibrated
    from hetero.advise.measurements import read_known_rows

    read = [read_known_rows(path) for path in tables]
    rows = [row for found, _ in read for row in found]
    unread = [line for _, lines in read for line in lines]
    parts = {"uncalibrated": uncalibrated(rows)}
    if whole := [row for row in rows if row.kind == "e2e"]:
        parts["after 12 own measurements of other models"] = leave_one_model_out(whole)
    report = {name: _report(items) for name, items in parts.items() if items}
    if json:
        print_json({"report": report, "unread": unread})
        return
    for name, part in report.items():
        _print(name, part)
    say("\n".join(f"not read, {line}" for line in unread), end="\n" if unread else "")


def _report(items: Sequence[Judged]) -> dict[str, object]:
    from hetero.advise.accuracy import Merit, merits, ordered

    groups = {**merits(items, lambda item: f"{item.row.framework}, {item.row.kind}"), "all": Merit.of(items)}
    pairs = {name: ordered(items, single) for name, single in (("pairs", False), ("pairs of single devices", True))}
    return {
        "groups": {name: _figures(merit) for name, merit in groups.items()},
        **{name: {"right": right, "of": asked} for name, (right, asked) in pairs.items()},
    }


def _figures(merit: Merit) -> dict[str, float]:
    return {
        "rows": merit.rows,
        "median_error_frac": merit.error_frac,
        "held_frac": merit.held_frac,
        "width": merit.width,
    }


def _print(name: str, part: Mapping[str, Any]) -> None:
    from rich.table import Table

    table = Table(title=name, title_justify="left")
    for heading in ("engine, kind", "rows", "median error", "80 % intervals hold", "upper / lower"):
        table.add_column(heading, justify="left" if heading.startswith("engine") else "right")
    for group, merit in part["groups"].items():
        error, held = f"{merit['median_error_frac']:.1%}", f"{merit['held_frac']:.0%}"
        table.add_row(group, str(merit["rows"]), error, held, f"{merit['width']:.2f}")
    console().print(table)
    for pairs in ("pairs", "pairs of single devices"):
        if part[pairs]["of"]:
            say(f"{pairs} ordered right: {part[pairs]['right']} of {part[pairs]['of']}")
