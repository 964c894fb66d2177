"""`hetero plan`: what fits where, before anything is run.

In: the names of a model and of devices. Out: an answer with its reasons, or one JSON document.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hetero.cli import plan_speed
from hetero.cli.output import print_json, say
from hetero.cli.plan_llm import llm
from hetero.cli.words import refuse_unused

__all__ = ["app"]


class _PlanGroup(TyperGroup):
    """The commands of `hetero plan`, where '--accuracy' takes every word after it up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write '--accuracy A B' as '--accuracy A --accuracy B'."""
        spread: list[str] = []
        taking = False
        for word in args:
            if taking and not word.startswith("-") and spread[-1] != "--accuracy":
                spread.append("--accuracy")
            taking = word == "--accuracy" or (taking and not word.startswith("-"))
            spread.append(word)
        return super().parse_args(ctx, spread)


app = typer.Typer(cls=_PlanGroup, help="Know before you run: what fits where, how fast, at what price.")


@app.callback(invoke_without_command=True)
def plan(
    context: typer.Context,
    workload: Annotated[str, typer.Option(help="A model, its config.json, or a YAML file with a workload.")] = "",
    fleet: Annotated[str, typer.Option(help="'here', words as in 2xH100-SXM,4xRTX-4090, or a file.")] = "catalog",
    catalog: Annotated[bool, typer.Option("--catalog", help="Choose from the whole catalog; the default.")] = False,
    slo_latency_ms: Annotated[float, typer.Option(help="Most milliseconds for the batch, 0 for any.")] = 0.0,
    slo_throughput: Annotated[float, typer.Option(help="Least tokens a second in all, 0 for any.")] = 0.0,
    max_cost: Annotated[float, typer.Option(help="Most dollars an hour, 0 for any.")] = 0.0,
    needs: Annotated[list[str] | None, typer.Option(help="A capability, as in fp8; may be repeated.")] = None,
    together: Annotated[
        str, typer.Option(help="What devices of a copy share: host, rack, numa, pcie, nvlink or link:KIND.")
    ] = "",
    apart: Annotated[list[str] | None, typer.Option(help="A workload of the fleet's leases to keep away from.")] = None,
    apart_by: Annotated[str, typer.Option(help="How far: device, host or rack.")] = "host",
    stream: Annotated[list[str] | None, typer.Option(help="Requests: PROMPT/ANSWER@PER_SECOND; repeatable.")] = None,
    prices: Annotated[Path | None, typer.Option(help="Your own prices: lines like 'H100-SXM: 2.90'.")] = None,
    live_prices: Annotated[bool, typer.Option("--live-prices", help="Ask gpuhunt, over the network.")] = False,
    job: Annotated[str | None, typer.Option(help="inference, finetune, lora, pretrain or embedding.")] = None,
    weights: Annotated[str | None, typer.Option(help="Number format: bf16, nf4-dq, Q4_K_M, …")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences at once on a copy.")] = None,
    prompt: Annotated[int | None, typer.Option(help="Tokens of the prompt.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens of prompt and answer together.")] = None,
    engine: Annotated[str | None, typer.Option(help="torch, litgpt, llama.cpp, vllm or tensorrt-llm.")] = None,
    accuracy: Annotated[
        list[Path] | None, typer.Option(help="CSV files of measured speeds: print how far estimates lie from them.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Know before you run: what fits where, how fast, at what price, on which devices."""
    if context.invoked_subcommand is not None:
        refuse_unused(context, (), f"before '{context.invoked_subcommand}', which has options of its own")
        return
    if accuracy:
        refuse_unused(context, ("accuracy", "json"), "with --accuracy")
        plan_speed.accuracy(accuracy, json)
        return
    if catalog:
        given = [each.name or "" for each in context.command.params]
        refuse_unused(context, [name for name in given if name != "fleet"], "with --catalog")
    if not workload:
        refuse_unused(context, (), "without --workload")
        say(context.get_help())
        raise typer.Exit
    from hetero.cli.plan_choose import choose

    choose(
        workload,
        {"job": job, "weights": weights, "batch": batch, "prompt": prompt, "context": tokens, "engine": engine},
        "catalog" if catalog else fleet,
        {
            "latency_s": slo_latency_ms / 1000,
            "throughput_per_s": slo_throughput,
            "usd_per_hour": max_cost,
            "needs": tuple(needs or ()),
            "together": together,
            "apart": tuple(apart or ()),
            "apart_by": apart_by,
        },
        stream or (),
        prices,
        live_prices,
        json,
    )


@app.command("fit")
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


app.command("speed")(plan_speed.speed)
app.command("training")(plan_speed.training)


app.command("llm")(llm)
