"""`hetero plan fit`: whether a model fits into devices, before anything is run.

In: the names of a model and of a device. Out: an answer with its reasons, or one JSON document.
"""

from __future__ import annotations

from typing import Annotated

import typer

from hetero.cli.output import print_json, say

__all__ = ["fit"]


def fit(
    model: Annotated[str, typer.Argument(help="A model of the catalog, or the path of a config.json.")],
    device: Annotated[str, typer.Option(help="A device of the catalog.")],
    count: Annotated[int, typer.Option(help="Devices of that sort.")] = 1,
    job: Annotated[str, typer.Option(help="inference, finetune, lora, pretrain or embedding.")] = "inference",
    weights: Annotated[str, typer.Option(help="Number format: bf16, nf4-dq, Q4_K_M, …")] = "bf16",
    kv: Annotated[str, typer.Option(help="Number format of the KV cache.")] = "fp16",
    batch: Annotated[int, typer.Option(help="Sequences at once on a replica.")] = 1,
    context: Annotated[int, typer.Option(help="Tokens a sequence.")] = 2048,
    engine: Annotated[str, typer.Option(help="torch, litgpt, llama.cpp, vllm or tensorrt-llm.")] = "torch",
    optimiser: Annotated[str, typer.Option(help="adamw, adamw-8bit, sgd, …")] = "adamw",
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Compute activations again.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Report whether a model fits, what takes the memory, and what would make it fit."""
    from hetero.advise.fit import does_it_fit

    report = does_it_fit(
        model,
        device,
        count,
        job=job,
        weights=weights,
        kv=kv,
        batch=batch,
        context=context,
        engine=engine,
        optimiser=optimiser,
        checkpointing=checkpointing,
    )
    if json:
        print_json(report.as_dict())
    else:
        say(report.explain())
    if report.answer == "does not fit":
        raise typer.Exit(4)
