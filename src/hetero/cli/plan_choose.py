"""`hetero plan choose`: which devices, how many, in which mix, with reasons.

In: a workload and a fleet by words or files, limits, prices. Out: a table and reasons for people, or one JSON document.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetero.cli.old_names import warn
from hetero.cli.options import AsJson, CatalogDevices, Prices
from hetero.cli.output import console, fitted, print_json, say
from hetero.floor.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hetero.advise.fleet import Kind
    from hetero.advise.match import DeviceChoice, MatchLimits
    from hetero.advise.prices import Prices as KnownPrices
    from hetero.model.workload import WorkloadSpec

__all__ = ["choose", "read_workload"]

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


def _document(file: Path) -> dict[str, Any]:
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


def _refused(out: Any, found: DeviceChoice) -> None:
    shown = found.refused if not found.matches or len(found.refused) <= _SHOWN else found.refused[:_SHOWN]
    for one in shown:
        out.print(one.explain(), markup=False, soft_wrap=True)
    if len(shown) < len(found.refused):
        out.print(f"and {len(found.refused) - len(shown)} more refused: --json lists all", markup=False)
