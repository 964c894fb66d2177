"""The commands of `hetero plan`: what fits, how fast it would be, which devices to take, how to start a model there.

In: a workload and a fleet by words or files, limits, prices. Out: tables and reasons for people, or one JSON document.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetero.cli.old_names import warn
from hetero.cli.options import (
    AsJson,
    BatchSize,
    CatalogDevices,
    Checkpointing,
    ContextTokens,
    Framework,
    KvFormat,
    Network,
    Noise,
    Prices,
    Seed,
    Weights,
    WorkloadJob,
)
from hetero.cli.output import console, fitted, print_json, say
from hetero.floor.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from hetero.advise.accuracy import Judged, Merit
    from hetero.advise.fleet import Kind
    from hetero.advise.match import DeviceChoice, MatchLimits
    from hetero.advise.prices import Prices as KnownPrices
    from hetero.floor.documents import JsonObject
    from hetero.graphs.fleet_simulation import Scaled
    from hetero.model.workload import WorkloadSpec

__all__ = ["accuracy", "choose", "fit", "llm", "read_workload", "speed", "tasks", "training"]

_SHOWN = 8


def read_workload(word: str, options: Mapping[str, Any]) -> tuple[WorkloadSpec, tuple[str, ...], tuple[str, ...]]:
    """Read a workload: a model's name or config.json, or a YAML file with the fields of a workload.

    Returns
    -------
    tuple
        The workload, the capabilities that it needs, its streams of requests. Options that are given go before the
        file's.
    """
    from hetero.advise.estimate import Workload
    from hetero.floor.documents import blamed_on

    given = {key: value for key, value in options.items() if value is not None}
    if Path(word).suffix not in (".yaml", ".yml"):
        return Workload(word, **given), (), ()
    with blamed_on(word):
        return _from_file(word, given)


def _from_file(word: str, given: Mapping[str, object]) -> tuple[WorkloadSpec, tuple[str, ...], tuple[str, ...]]:
    from hetero.advise.estimate import Workload
    from hetero.floor.errors import BadValueError, did_you_mean
    from hetero.floor.units import shown

    document = _document(Path(word))
    known = ("model", "job", "weights", "kv", "batch", "context", "prompt", "framework", "optimizer", "checkpointing")
    for old, new in (("engine", "framework"), ("optimiser", "optimizer")):
        if old in document and new not in document:
            warn((f"{word}: {old}", f"{word}: {new}"))
            document[new] = document.pop(old)
    for key in document:
        if key not in (*known, "needs", "streams"):
            hint = did_you_mean(key, known).removeprefix("; ")
            remedy = hint or f"allowed: {', '.join(known)}, needs, streams"
            raise BadValueError(f"{word}: the key {shown(key)} is not known", remedy=remedy)
    for key in ("needs", "streams"):
        listed = document.setdefault(key, None)
        if listed is not None and not (isinstance(listed, list) and all(isinstance(each, str) for each in listed)):
            raise BadValueError(f"{word}: {key} is {shown(listed)}", remedy="write a list of texts")
    needs, streams = (tuple(document.pop(key) or ()) for key in ("needs", "streams"))
    return Workload(**{**document, **given}), needs, streams


def _document(file: Path) -> JsonObject:
    from hetero.floor.errors import FileError
    from hetero.floor.yaml_tree import read_document

    document = read_document(file)
    if not isinstance(document, dict) or not isinstance(document.get("model"), str):
        raise FileError(f"{file} names no model", remedy="write 'model: NAME', as in 'model: Llama-3.1-8B'")
    return document


def choose(
    workload: Annotated[str, typer.Argument(help="A model, its config.json, or a YAML file with a workload.")],
    devices: CatalogDevices = "catalog",
    slo_latency_ms: Annotated[float, typer.Option(help="Most milliseconds for the batch, 0 for any.")] = 0.0,
    slo_throughput: Annotated[float, typer.Option(help="Least tokens a second in all, 0 for any.")] = 0.0,
    max_cost: Annotated[float, typer.Option(help="Most dollars an hour, 0 for any.")] = 0.0,
    needs: Annotated[list[str] | None, typer.Option(help="A capability, as in fp8; may be repeated.")] = None,
    together: Annotated[
        str, typer.Option(help="What devices of a copy share: host, rack, numa, pcie, nvlink or link:KIND.")
    ] = "",
    apart: Annotated[
        list[str] | None, typer.Option(help="WORKLOAD@SCOPE of the fleet's leases to keep away from; may be repeated.")
    ] = None,
    stream: Annotated[list[str] | None, typer.Option(help="Requests: PROMPT/ANSWER@PER_SECOND; repeatable.")] = None,
    prices: Prices = None,
    live_prices: Annotated[bool, typer.Option("--live-prices", help="Ask gpuhunt, over the network.")] = False,
    job: Annotated[str | None, typer.Option(help="inference, finetune, lora, pretrain or embedding.")] = None,
    weights: Annotated[str | None, typer.Option(help="Number format: bf16, nf4-dq, Q4_K_M, …")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences at once on a copy.")] = None,
    prompt: Annotated[int | None, typer.Option(help="Tokens of the prompt.")] = None,
    context: Annotated[int | None, typer.Option(help="Tokens of a sequence, prompt and answer together.")] = None,
    framework: Annotated[str | None, typer.Option(help="torch, litgpt, llama.cpp, vllm or tensorrt-llm.")] = None,
    json: AsJson = False,
) -> None:
    """Choose devices for a workload: which, how many, in which mix, at what price, and why."""
    from hetero.advise.fleet import read_fleet
    from hetero.advise.match import MatchLimits
    from hetero.advise.match import choose as judged

    options = {
        **{"job": job, "weights": weights, "batch": batch, "prompt": prompt},
        **{"context": context, "framework": framework},
    }
    work, needed, streams = read_workload(workload, options)
    kinds = read_fleet(devices)
    limit = MatchLimits(
        latency_s=slo_latency_ms / 1000,
        throughput_per_s=slo_throughput,
        usd_per_hour=max_cost,
        needs=(*(needs or ()), *needed),
        together=together,
        **_apart(apart or ()),
    )
    paid = _prices(kinds, prices or (), live_prices)
    if wanted := stream or streams:
        _mix(work, wanted, kinds, limit, paid, json)
        return
    found = judged(work, kinds, limit, paid)
    if json:
        print_json({"model": work.model.name, **found.as_dict()})
    else:
        _show(work, found)
    if not found.matches:
        raise typer.Exit(ExitCode.NOTHING_FITS)


def _apart(words: Sequence[str]) -> dict[str, Any]:
    """Return what to keep away from and how far, by 'WORKLOAD@SCOPE'; a word without a scope means the host."""
    from hetero.floor.errors import BadValueError

    pairs = [word.rpartition("@") if "@" in word else (word, "@", "host") for word in words]
    scopes = sorted({scope for _, _, scope in pairs})
    if len(scopes) > 1:
        raise BadValueError(f"--apart names the scopes {' and '.join(scopes)}", remedy="give one scope for all")
    return {"apart": tuple(name for name, _, _ in pairs), **({"apart_by": scopes[0]} if scopes else {})}


def _prices(kinds: Sequence[Kind], words: Sequence[str], live: bool) -> KnownPrices:
    from hetero.advise.prices import Prices, live_prices, named_prices

    own = named_prices(words)
    found, note = live_prices([kind.spec for kind in kinds]) if live else ({}, "")
    return Prices(own, found, (note,) if note else ())


def _mix(
    work: WorkloadSpec,
    words: Sequence[str],
    kinds: Sequence[Kind],
    limit: MatchLimits,
    paid: KnownPrices,
    json: bool,
) -> None:
    from hetero.advise.replica_mix import mix, read_stream

    found = mix(work, [read_stream(word) for word in words], kinds, limit, paid)
    print_json({"model": work.model.name, **found.as_dict()}) if json else say(found.explain())


def _show(work: WorkloadSpec, found: DeviceChoice) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from hetero.floor.units import format_seconds

    out = console()
    if found.matches:
        title = f"{work.model.name}, {work.job} in {work.weights} by {work.framework}"
        table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
        for heading in ("", "devices", "score", "latency", "tokens/s", "$/h", "$/Mtok", "W", ""):
            table.add_column(heading, justify="left" if heading == "devices" else "right", no_wrap=True)
        for one in found.matches[:_SHOWN]:
            table.add_row(
                f"{one.rank}.",
                one.name,
                f"{one.score:.2f}",
                format_seconds(one.latency_s or 0.0),
                f"{one.throughput_per_s or 0.0:,.0f}",
                "" if one.usd_per_hour is None else f"{one.usd_per_hour:.2f}",
                "" if one.usd_per_million is None else f"{one.usd_per_million:.2f}",
                "" if one.power_w is None else f"{one.power_w:,.0f}",
                "*" if one.best else "",
            )
        out.print(fitted(table, out, "W", "$/Mtok", "score", "latency"))
        out.print("* no other is better in latency, throughput, cost and power; equal ranks: no certain difference")
        out.print()
        out.print(found.matches[0].explain(), markup=False, soft_wrap=True)
    if len(found.matches) > _SHOWN:
        out.print(f"and {len(found.matches) - _SHOWN} more: --json lists all", markup=False)
    _refused(out, found)
    for note in found.notes:
        out.print(f"note: {note}", markup=False, soft_wrap=True)


def _refused(out: Console, found: DeviceChoice) -> None:
    shown = found.refused if not found.matches or len(found.refused) <= _SHOWN else found.refused[:_SHOWN]
    for one in shown:
        out.print(one.explain(), markup=False, soft_wrap=True)
    if len(shown) < len(found.refused):
        out.print(f"and {len(found.refused) - len(shown)} more refused: --json lists all", markup=False)


# --- fit ----------------------------------------------------------------------------------------------------


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


# --- speed, training, accuracy ------------------------------------------------------------------------------


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


def _print(name: str, part: JsonObject) -> None:
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


# --- tasks --------------------------------------------------------------------------------------------------


def tasks(
    hosts: Annotated[
        list[str], typer.Option(help="HOSTS x DEVICES x NAME of the catalog, as in '10 x 8 x H100-SXM'; repeated.")
    ],
    tasks: Annotated[int, typer.Option(min=1, help="Number of independent tasks.")] = 100_000,
    flop: Annotated[list[float] | None, typer.Option(help="Operations of a task; repeated.")] = None,
    input_bytes: Annotated[str, typer.Option(help="What tasks of one size read, as in 100MB.")] = "0B",
    precision: Annotated[str, typer.Option(help="Number format of the operations.")] = "fp32",
    network: Network = "10Gb/s",
    tick: Annotated[str, typer.Option(help="Time between two decisions, as in 50ms.")] = "50ms",
    noise: Noise = 0.0,
    policy: Annotated[str, typer.Option(help="Policy by name.")] = "eft",
    seed: Seed = None,
    json: AsJson = False,
) -> None:
    """Report how long many independent tasks take on many hosts, by the code that runs programs, in virtual time."""
    from dataclasses import asdict

    from hetero.floor import settings
    from hetero.floor.units import parse_bandwidth, parse_bytes, parse_seconds
    from hetero.graphs.fleet_simulation import SimulatedLoad, read_hosts, run_at_scale

    found, _ = run_at_scale(
        read_hosts(hosts),
        SimulatedLoad(tasks, tuple(flop or (1e12,)), precision, parse_bytes(input_bytes)),
        link_bytes_per_s=parse_bandwidth(network),
        noise=noise,
        policy=policy,
        seed=settings.seed() if seed is None else seed,
        tick_s=parse_seconds(tick),
    )
    print_json(asdict(found)) if json else _print_tasks(found)


def _print_tasks(found: Scaled) -> None:
    from hetero.floor.units import format_bytes, format_seconds

    fleet = f"{found.devices:,} devices of {found.hosts:,} hosts"
    say(f"{found.tasks:,} tasks on {fleet}: {format_seconds(found.makespan_s)}")
    say(f"  all devices together, without a task's length or a link in the way: {format_seconds(found.best_s)}")
    say(f"  over links: {format_bytes(found.moved_bytes)}")
    for name, share in found.busy_frac.items():
        say(f"  {name}: busy {share:.0%}")


# --- llm ----------------------------------------------------------------------------------------------------


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
        try:
            placed = place_layers(target, kinds, name, aim, batch=batch, context=context, prompt=read, kv=kv)  # type: ignore[arg-type]
            found.append(placed)
        except NothingFitsError as error:
            refused[name] = str(error)
    if json:
        print_json({"settings": [{**one.as_dict(), **one.settings()} for one in found], "refused": refused})
    else:
        said = [*(one.explain() for one in found), *(f"{name}: {reason}" for name, reason in refused.items())]
        say("\n\n".join(said))
    if not found:
        raise typer.Exit(ExitCode.NOTHING_FITS)
