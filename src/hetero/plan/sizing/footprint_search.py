"""Searches over footprints: the largest batch and context, the fewest devices, the cheapest change that makes it fit.

In: a workload and the room of a device. Out: numbers, or what to change. It must not look at a clock or a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hetero.model.quantisation import number_format
from hetero.model.workload import Sharding, WorkloadSpec
from hetero.plan.sizing.footprint import Fit, Room, fit

__all__ = ["FittingChange", "changes", "devices_needed", "largest_batch", "largest_context", "shardings"]

_MOST_BATCH = 1 << 20
_MOST_CONTEXT = 1 << 24
_MOST_DEVICES = 4096


@dataclass(frozen=True, slots=True)
class FittingChange:
    """One change of a workload or of its spread that makes it fit.

    Attributes
    ----------
    what
        What to do, in words.
    price
        What it costs, in words.
    work, spread
        The changed workload and spread.
    fit
        What then comes out.
    """

    what: str
    price: str
    work: WorkloadSpec
    spread: Sharding
    fit: Fit


def _largest(most: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number for which something holds that stops holding once; 0 if never."""
    if not holds(1):
        return 0
    low = 1
    while low < most and holds(min(2 * low, most)):
        low = min(2 * low, most)
    high = min(2 * low, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def largest_batch(work: WorkloadSpec, room: Room, spread: Sharding | None = None) -> int:
    """Return the largest batch a replica that surely fits, 0 if none does.

    Examples
    --------
    >>> from hetero.model.architecture import ModelSpec
    >>> llama = ModelSpec("l", 32, 4096, 32, 8, 128, 14336, 128256)
    >>> largest_batch(WorkloadSpec(llama, context=8192, framework="vllm"), Room(40 * 2**30))
    23
    """
    return _largest(_MOST_BATCH, lambda batch: fit(replace(work, batch=batch), room, spread).answer == "fits")


def largest_context(work: WorkloadSpec, room: Room, spread: Sharding | None = None) -> int:
    """Return the longest context that surely fits, 0 if none does, no longer than the model was made for."""
    most = min(_MOST_CONTEXT, work.model.context or _MOST_CONTEXT)
    return _largest(most, lambda context: fit(replace(work, context=context), room, spread).answer == "fits")


def shardings(work: WorkloadSpec, count: int) -> Iterator[Sharding]:
    """Yield the usual ways to spread a workload over that many devices, the simplest first.

    llama.cpp splits by layers; other inference splits matrices over devices that divide the heads, and layers beyond;
    training splits weights, gradients and optimizer over replicas, then also matrices over up to eight devices.
    """
    if work.training:
        yield Sharding(data=count, zero=3)
        for tensor in (2, 4, 8):
            if count % tensor == 0 and work.model.heads % tensor == 0:
                yield Sharding(tensor=tensor, data=count // tensor, zero=3)
        return
    if work.framework != "llama.cpp":
        for tensor in range(min(count, work.model.heads), 1, -1):
            if count % tensor == 0 and work.model.heads % tensor == 0:
                yield Sharding(tensor=tensor, pipeline=count // tensor)
    if count <= work.model.layers:
        yield Sharding(pipeline=count)


def devices_needed(work: WorkloadSpec, room: Room) -> tuple[int, Sharding] | None:
    """Return the fewest devices on which a workload surely fits and how to spread it; None if none do.

    Examples
    --------
    >>> from hetero.model.architecture import ModelSpec
    >>> llama = ModelSpec("l", 80, 8192, 64, 8, 128, 28672, 128256)
    >>> devices_needed(WorkloadSpec(llama), Room(80 * 2**30))
    (2, Sharding(tensor=2, pipeline=1, data=1, zero=0, mixed_units=False, synced=True))
    """
    if fit(work, room).answer == "fits":
        return 1, Sharding()
    count = 2
    while count <= _MOST_DEVICES:
        for spread in shardings(work, count):
            if fit(work, room, spread).answer == "fits":
                return count, spread
        count += 1 if count < 16 else count // 8
    return None


def _other_workloads(work: WorkloadSpec) -> Iterator[tuple[str, str, WorkloadSpec]]:
    """Yield changed workloads, those first that cost least."""
    if work.training and not work.checkpointing:
        yield "checkpoint activations", "about a third more arithmetic", replace(work, checkpointing=True)
    if not work.flash:
        yield "use fused attention", "nothing", replace(work, flash=True)
    if not work.training and number_format(work.kv).bits > 9:
        yield "keep the KV cache in 8 bits", "a little accuracy", replace(work, kv="fp8")
    if work.training and work.optimizer.startswith("adam") and work.optimizer != "adamw-8bit" and work.job != "lora":
        yield "keep the optimizer in 8 bits", "a little accuracy", replace(work, optimizer="adamw-8bit")
    if work.batch > 1:
        yield "take one sequence at a time", "throughput", replace(work, batch=1)
    if work.job in ("finetune",):
        yield "train adapters only (LoRA)", "some of what full training learns", replace(work, job="lora")
    if work.training and not work.checkpointing:
        smaller = replace(work, batch=1, checkpointing=True)
        yield "checkpoint activations, one sequence at a time", "time and throughput", smaller
    yield from _smaller_weights(work)


def _smaller_weights(work: WorkloadSpec) -> Iterator[tuple[str, str, WorkloadSpec]]:
    bits = number_format(work.weights).bits
    if work.job in ("finetune", "lora"):
        adapters = replace(work, job="lora", batch=1, checkpointing=True)
        if work.job == "finetune":
            yield "train adapters (LoRA) with checkpointing", "some of what full training learns", adapters
        if bits > 5:
            yield "adapters over weights in nf4-dq (QLoRA)", "accuracy and time", replace(adapters, weights="nf4-dq")
        return
    if work.training:
        return
    names = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_S", "IQ2_M")
    others = ("fp8", "nf4-dq")
    for name in names if work.framework == "llama.cpp" else others:
        if number_format(name).bits < bits:
            yield f"weights in {name}", "accuracy", replace(work, weights=name)


def changes(work: WorkloadSpec, room: Room, spread: Sharding | None = None) -> list[FittingChange]:
    """Return the changes that make a workload fit, the cheapest first; empty where it fits as it is.

    Notes
    -----
    Order: what costs only time, then what costs throughput or a little accuracy, then smaller weights, then a shorter
    context, then more devices. Each is tried alone.
    """
    spread = spread or Sharding()
    if fit(work, room, spread).answer == "fits":
        return []
    found = [
        FittingChange(what, price, other, spread, outcome)
        for what, price, other in _other_workloads(work)
        if (outcome := fit(other, room, spread)).answer == "fits"
    ]
    if context := largest_context(work, room, spread):
        shorter = replace(work, context=context)
        outcome = fit(shorter, room, spread)
        found.append(FittingChange(f"a context of {context} tokens", "longer texts", shorter, spread, outcome))
    found += _with_more_devices(work, room, spread.devices)
    return found


def _with_more_devices(work: WorkloadSpec, room: Room, have: int) -> Iterator[FittingChange]:
    """Yield what more devices do: with everything saved that can be, and with the workload as it is."""
    lean = replace(work, batch=1, flash=True, checkpointing=work.training)
    if lean != work:
        words = "activations checkpointed, " if work.training else ""
        text = f", {words}one sequence at a time each"
        if (more := devices_needed(lean, room)) is None:
            more, lean = _shorter(lean, room)
            text += f", a context of {lean.context} tokens"
        if more and more[0] > have:
            yield FittingChange(
                f"{more[0]} devices{text}", "the devices and time", lean, more[1], fit(lean, room, more[1])
            )
    if (more := devices_needed(work, room)) and more[0] > have:
        yield FittingChange(f"{more[0]} devices", "the devices", work, more[1], fit(work, room, more[1]))


def _shorter(work: WorkloadSpec, room: Room) -> tuple[tuple[int, Sharding] | None, WorkloadSpec]:
    """Halve the context until some number of devices does."""
    while work.context > 1:
        work = replace(work, context=work.context // 2)
        if more := devices_needed(work, room):
            return more, work
    return None, work
