"""`hetero plan llm`: how to start a language model on unequal devices.

In: a model and a fleet by words. Out: command lines with their reasons, or one JSON document.
"""

from __future__ import annotations

from typing import Annotated

import typer

from hetero.cli.options import AsJson, BatchSize, CatalogDevices, ContextTokens, KvFormat
from hetero.cli.output import print_json, say
from hetero.floor.errors import ExitCode

__all__ = ["llm"]


def llm(
    model: Annotated[str, typer.Argument(help="A model of the catalog, a weight file, or a folder with some.")],
    devices: CatalogDevices = "here",
    framework: Annotated[list[str] | None, typer.Option(help="llama.cpp, vllm or accelerate; default: each.")] = None,
    aim: Annotated[str, typer.Option(help="latency of one request, or throughput of many.")] = "latency",
    weights: Annotated[str | None, typer.Option(help="Number format; default: of the files, Q4_K_M or bf16.")] = None,
    kv: KvFormat = "fp16",
    batch: BatchSize = 1,
    prompt: Annotated[int | None, typer.Option(help="Tokens of the prompt; default: 512, or half of few.")] = None,
    context: ContextTokens = 2048,
    json: AsJson = False,
) -> None:
    """Print how to start a model on these devices, from their speed and their memory."""
    from hetero.advise.fleet import read_fleet
    from hetero.advise.llm import ENGINES, place_layers, read_target
    from hetero.floor.errors import BadValueError, NothingFitsError, did_you_mean

    if aim not in ("latency", "throughput"):
        hint = did_you_mean(aim, ("latency", "throughput")).removeprefix("; ")
        raise BadValueError(f"{aim!r} is no aim", remedy=hint or "allowed: latency, throughput")
    target, kinds = read_target(model, weights), read_fleet(devices)
    found, refused = [], {}
    for name in framework or ENGINES:
        read = min(512, (context + 1) // 2) if prompt is None else prompt
        how = {"aim": aim, "kv": kv, "batch": batch, "prompt": read, "context": context}
        try:
            found.append(place_layers(target, kinds, name, **how))  # type: ignore[arg-type]
        except NothingFitsError as error:
            refused[name] = str(error)
    if json:
        print_json({"settings": [{**one.as_dict(), **one.settings()} for one in found], "refused": refused})
    else:
        said = [*(one.explain() for one in found), *(f"{name}: {reason}" for name, reason in refused.items())]
        say("\n\n".join(said))
    if not found:
        raise typer.Exit(ExitCode.NOTHING_FITS)
