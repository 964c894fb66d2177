"""`hetero plan speed`, `hetero plan training` and `hetero plan accuracy`: how fast, how long, and how sure that is.

In: words of a workload, speeds of nodes, or tables of measured speeds. Out: figures with their intervals.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetero.cli.output import console, print_json, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hetero.advise.accuracy import Judged, Merit

__all__ = ["accuracy", "speed", "training"]


def speed(
    model: Annotated[str, typer.Argument(help="A model of the catalog, or the path of a config.json.")],
    device: Annotated[list[str], typer.Option(help="A device of the catalog; may be repeated to compare.")],
    count: Annotated[int, typer.Option(help="Devices of that sort.")] = 1,
    job: Annotated[str, typer.Option(help="inference, finetune, lora, pretrain or embedding.")] = "inference",
    weights: Annotated[str, typer.Option(help="Number format: bf16, fp8, Q4_K_M, …")] = "bf16",
    batch: Annotated[int, typer.Option(help="Sequences at once on a replica.")] = 1,
    prompt: Annotated[int, typer.Option(help="Tokens of each prompt, 0 for half of the context.")] = 0,
    context: Annotated[int, typer.Option(help="Tokens a sequence, prompt and answer.")] = 2048,
    engine: Annotated[str, typer.Option(help="torch, litgpt, llama.cpp, vllm, tensorrt-llm or deepspeed.")] = "torch",
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Compute activations again.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Report how fast devices do a workload: latency, tokens a second, memory, each with its 80 % interval."""
    from hetero.advise.estimate import Workload, compare_speeds, estimate

    how: dict[str, Any] = {"job": job, "weights": weights, "batch": batch, "prompt": prompt, "context": context}
    work = Workload(model, **how, engine=engine, checkpointing=checkpointing)
    found = [estimate(work, name, count) for name in device]
    if json:
        print_json([one.as_dict() for one in found])
    else:
        say("\n\n".join(one.explain() for one in found))
        if len(found) > 1:
            say("\n" + compare_speeds(found))
    if all(one.memory.answer == "does not fit" for one in found):
        raise typer.Exit(4)


def training(
    samples: Annotated[int, typer.Option(help="Samples of one epoch.")],
    node: Annotated[list[float], typer.Option(help="Samples a second of one node alone; repeat it for each node.")],
    batch: Annotated[int, typer.Option(help="Samples of a step over all nodes.")],
    epochs: Annotated[int, typer.Option(help="Epochs.")] = 1,
    gradients: Annotated[str, typer.Option(help="Size of the gradients that are exchanged, as in 500MB.")] = "0B",
    link: Annotated[str, typer.Option(help="Bandwidth between nodes, as in 10Gb/s.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Report how long a training takes on nodes of unequal speed, who computes how much, and who is left out."""
    from math import inf

    from hetero.floor.units import parse_bandwidth, parse_bytes
    from hetero.plan.training.speed import training_time

    told = training_time(samples, node, batch, epochs, parse_bytes(gradients), parse_bandwidth(link) if link else inf)
    if json:
        document = {"total_s": told.total_s, "alone_s": told.alone_s, "steps": told.steps, "speedup": told.speedup}
        print_json({**document, "shares": told.plan.shares, "left_out": told.plan.reasons})
        return
    say(told.explain())


def accuracy(
    tables: Annotated[list[Path], typer.Argument(help="CSV files of measured speeds.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
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


def _report(items: Sequence[Judged]) -> dict[str, Any]:
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
