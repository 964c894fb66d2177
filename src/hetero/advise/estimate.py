"""How fast, how long, with how much memory: the estimate for people, each figure with its interval and origin.

In: a workload and a device, by name or as values. Out: an `Estimate` that explains itself. It must not fill a gap of
the catalog: a device whose speed has no source is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetero.advise.fit import read_model, room_of
from hetero.advise.known_efficiency import known_of
from hetero.advise.rates import rates_of
from hetero.catalog.load import find
from hetero.catalog.values import DeviceSpec
from hetero.floor.deprecation import renamed_keywords
from hetero.floor.errors import BadValueError
from hetero.floor.options import shows_fields
from hetero.floor.units import format_bytes, format_seconds, shown
from hetero.model import workload as values
from hetero.model.architecture import ModelSpec
from hetero.model.figure import Figure
from hetero.model.workload import Sharding
from hetero.plan.sizing.efficiency import Efficiency
from hetero.plan.sizing.footprint import Fit, Room, fit
from hetero.plan.sizing.footprint_search import shardings
from hetero.plan.sizing.ideal_work import (
    DeviceRates,
    answers_amounts,
    in_turns,
    place_of,
    prompt_amounts,
    run_amounts,
    sequences_at_once,
    step_amounts,
)
from hetero.plan.training.speed import model_flop, training_amounts

__all__ = ["Estimate", "Workload", "compare_speeds", "estimate"]

_MOST_DEVICES = 1_000_000
"""More devices than any installation has."""

_MEANING = {
    "prompt": "arithmetic of long passes",
    "arithmetic": "arithmetic of short passes",
    "weights": "reading weights",
    "attention": "attention",
    "cache": "reading the KV cache",
    "layer": "starting kernels",
    "pass": "starting passes",
    "reduce": "messages between devices",
    "link": "bytes between devices",
    "hop": "hops between devices",
    "request": "handling requests",
}


class Workload(values.WorkloadSpec):
    """A model, by its name in the catalog, its config.json or its architecture, and what it is to do.

    The fields are those of `hetero.model.workload.WorkloadSpec`.

    Examples
    --------
    >>> Workload("Llama-3.1-8B", batch=8, prompt=512, context=1024).answer_tokens
    512
    """

    __slots__ = ()

    @renamed_keywords(engine="framework", optimiser="optimizer")
    @shows_fields(values.WorkloadSpec)
    def __init__(self, model: str | Path | ModelSpec, job: values.Job = "inference", **how: Any) -> None:
        super().__init__(read_model(model), job, **how)


@dataclass(frozen=True, slots=True)
class Estimate:
    """How fast devices of one sort do a workload; None where a figure means nothing for the job.

    Attributes
    ----------
    work, device, spread
        What was asked.
    memory
        Whether it fits, and the bytes.
    prefill_s
        Until the prompts of the batch are read.
    step_s
        Of one decode step, a token for each sequence.
    decode_tokens_per_s
        Of one sequence, while `batch` are answered.
    latency_s
        From the prompts to the last token of the batch, in turns where not all fit at once; of training one step of
        all replicas.
    throughput_tokens_per_s
        Answer tokens, or read or learned ones where nothing is answered, of the batch / latency.
    most_tokens_per_s
        The same with as many sequences as the memory holds, coming and going.
    mfu_frac
        Of training, the operations that learning needs over the data sheet's rate.
    at_once
        Sequences that the memory holds.
    shares
        What the time is made of.
    said
        Where the efficiency comes from.

    Examples
    --------
    >>> found = estimate(Workload("Llama-3.1-8B", prompt=512, context=1024), "RTX-4090")
    >>> found.latency_s.low < found.latency_s.value < found.latency_s.high
    True
    """

    work: values.WorkloadSpec
    device: DeviceSpec
    spread: Sharding
    memory: Fit
    latency_s: Figure
    throughput_tokens_per_s: Figure
    prefill_s: Figure | None = None
    step_s: Figure | None = None
    decode_tokens_per_s: Figure | None = None
    most_tokens_per_s: Figure | None = None
    mfu_frac: Figure | None = None
    at_once: int = 0
    shares: tuple[tuple[str, float], ...] = ()
    said: str = ""

    @property
    def figures(self) -> dict[str, Figure]:
        """The figures that are there, by name."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {name: figure for name, figure in found.items() if isinstance(figure, Figure)}

    def as_dict(self) -> dict[str, object]:
        """Return what a program would read.

        Examples
        --------
        >>> found = estimate("Llama-3.1-8B", "RTX-4090").as_dict()
        >>> found["device"], found["memory"]
        ('RTX-4090', 'fits')
        """
        return {
            "model": self.work.model.name,
            "device": self.device.name,
            "devices": self.spread.devices,
            "memory": self.memory.answer,
            "memory_bytes": self.memory.footprint.total,
            "at_once": self.at_once,
            **{name: figure.as_dict() for name, figure in self.figures.items()},
        }

    def explain(self) -> str:
        """Return the answer in words.

        Examples
        --------
        >>> print(estimate("Llama-3.1-8B", "RTX-4090").explain().splitlines()[0])
        Llama-3.1-8B in bf16 by torch on 1 × RTX-4090: fits, ... a device
        """
        work = self.work
        lines = [
            f"{work.model.name} in {work.weights} by {work.framework} on {self.spread.devices} × {self.device.name}:"
            f" {self.memory.answer}, {format_bytes(self.memory.footprint.total)} a device"
        ]
        if self.memory.answer == "does not fit":
            lines.append("  the figures are those of devices with more memory and the same speed")
        lines += [f"  {name:24} {_shown(name, figure)}" for name, figure in self.figures.items()]
        if self.shares:
            parts = [f"{share:.0%} {_MEANING[name]}" for name, share in self.shares if share >= 0.01]
            lines.append(f"the time goes into {', '.join(parts)}")
        lines += [f"from: {self.said}"] if self.said else []
        return "\n".join(lines)


def _shown(name: str, figure: Figure) -> str:
    if name.endswith("_frac"):
        return f"{figure.value:.0%} (80 %: {figure.low:.0%} to {figure.high:.0%}; {figure.origin})"
    if name.endswith("_per_s"):
        return f"{figure.value:,.1f} (80 %: {figure.low:,.1f} to {figure.high:,.1f}; {figure.origin})"
    shown = [format_seconds(amount) for amount in (figure.value, figure.low, figure.high)]
    return f"{shown[0]} (80 %: {shown[1]} to {shown[2]}; {figure.origin})"


def estimate(
    workload: values.WorkloadSpec | str,
    device: DeviceSpec | str,
    count: int = 1,
    spread: Sharding | None = None,
    efficiency: Efficiency | None = None,
) -> Estimate:
    """Return how fast devices of one sort do a workload.

    Parameters
    ----------
    workload
        A model's name stands for its inference as `Workload` has it by default.
    device
        Name in the catalog, or a device.
    count
        Devices of that sort.
    spread
        How to spread over them; default: the first of the usual ways that fits.
    efficiency
        How much of the data sheet is reached; default: what is known of this device and engine.

    Examples
    --------
    >>> estimate(Workload("Llama-3.1-8B", prompt=512, context=1024), "RTX-4090").memory.answer
    'fits'
    """
    work = Workload(workload) if isinstance(workload, str) else workload
    spec = device if isinstance(device, DeviceSpec) else find(device)
    if not 1 <= count <= _MOST_DEVICES:
        raise BadValueError(f"count is {shown(count)}", remedy=f"it must be from 1 to {_MOST_DEVICES:,}")
    room, rates = room_of(spec), rates_of(spec, work)
    known = efficiency or known_of(spec, work.framework)
    how = spread or _usual(work, room, count)
    if work.training:
        return _training(work, spec, how, known)
    most = sequences_at_once(work, room, how)
    turns, batch = in_turns(work, most)
    whole = run_amounts(work, how, rates, most)
    latency = known.figure(whole, place_of(work, how))
    step = step_amounts(work, how, rates, batch, work.prompt_tokens + work.answer_tokens / 2)
    step_s = known.figure(step) if work.answer_tokens else None
    return Estimate(
        work=work,
        device=spec,
        spread=how,
        memory=fit(work, room, how),
        latency_s=latency,
        throughput_tokens_per_s=latency.over(work.batch * (work.answer_tokens or work.context)),
        prefill_s=known.figure(prompt_amounts(work, how, rates, batch)).times(turns),
        step_s=step_s,
        decode_tokens_per_s=step_s.over(1.0) if step_s else None,
        most_tokens_per_s=_most(work, spec, how, rates, known),
        at_once=most,
        shares=tuple(known.shares(whole).items()),
        said=known.said,
    )


def compare_speeds(found: Sequence[Estimate]) -> str:
    """Return a ranking by latency in words, the fastest first; those whose intervals overlap the leader's are ties.

    Examples
    --------
    >>> work = Workload("Llama-3.1-8B", framework="llama.cpp", weights="Q4_K_M")
    >>> print(compare_speeds([estimate(work, name) for name in ("RTX-4080", "RTX-4090")]))
    1. RTX-4090, RTX-4080: a tie, their intervals overlap
    """
    left = sorted(found, key=lambda one: one.latency_s.value)
    lines, place = [], 1
    while left:
        tied = [one for one in left if one.latency_s.overlaps(left[0].latency_s)]
        names = ", ".join(one.device.name for one in tied)
        lines.append(f"{place}. {names}" + (": a tie, their intervals overlap" if len(tied) > 1 else ""))
        place += len(tied)
        left = [one for one in left if one not in tied]
    return "\n".join(lines)


def _training(work: values.WorkloadSpec, spec: DeviceSpec, how: Sharding, known: Efficiency) -> Estimate:
    rates = rates_of(spec, work)
    amounts = training_amounts(work, how, rates)
    step = known.figure(amounts)
    reached = model_flop(work) / (rates.flop_per_s * how.tensor * how.pipeline)
    return Estimate(
        work=work,
        device=spec,
        spread=how,
        memory=fit(work, room_of(spec), how),
        latency_s=step,
        throughput_tokens_per_s=step.over(work.batch * how.data * work.context),
        mfu_frac=step.over(reached),
        at_once=work.batch,
        shares=tuple(known.shares(amounts).items()),
        said=known.said,
    )


def _usual(work: values.WorkloadSpec, room: Room, count: int) -> Sharding:
    """Return the first of the usual ways that fits, else the first: the simplest come first."""
    if count == 1:
        return Sharding()
    ways = list(shardings(work, count))
    if not ways:
        raise BadValueError(
            f"{work.model.name} cannot be spread over {count} devices", remedy=f"at most {work.model.layers} layers"
        )
    return next((way for way in ways if fit(work, room, way).answer != "does not fit"), ways[0])


def _most(
    work: values.WorkloadSpec, spec: DeviceSpec, how: Sharding, rates: DeviceRates, known: Efficiency
) -> Figure | None:
    batch = sequences_at_once(work, room_of(spec), how, steady=True)
    if not batch:
        return None
    amounts = prompt_amounts(work, how, rates, batch) + answers_amounts(work, how, rates, batch)
    return known.figure(amounts).over(batch * (work.answer_tokens or work.context))
