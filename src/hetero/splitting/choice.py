"""Choosing the stages of a model: what was measured becomes a chain, and the plan is held against one device alone.

In: layers, devices, measured costs. Out: the stages to run and those that were left, or the reason why nothing fits.
It must not measure or run anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from hetero.floor.errors import BadValueError, NothingFitsError, did_you_mean
from hetero.floor.units import format_bytes
from hetero.plan.training.stages import LayerChain, StagePlan, best_alone, fixed_stages, pipeline_s, plan_stages
from hetero.splitting.measure import SplitCosts

__all__ = ["StageChoice", "choose", "given_stages"]

_LEAST_GAIN_FRAC = 0.03


@dataclass(frozen=True, slots=True)
class StageChoice:
    """Stages to run, beside the best device alone.

    Attributes
    ----------
    chain
        What was planned for.
    plan
        The stages to run.
    alone
        The whole model on its best device, None where it fits on none.
    call_s
        Seconds that a call takes besides its work, on one device and on all of them.
    reason
        Why one device runs all of it, '' where it is split.
    """

    chain: LayerChain
    plan: StagePlan
    alone: StagePlan | None
    call_s: tuple[float, float]
    reason: str = ""

    def predicted_s(self, count: int) -> float:
        """Predict a call of so many micro-batches."""
        call_s = self.call_s[len(self.plan.stages) > 1]
        return call_s + pipeline_s([stage.period_s for stage in self.plan.stages], max(1, count))

    def alone_s(self, count: int) -> float | None:
        """Predict the same for the best device alone."""
        return None if self.alone is None else self.call_s[0] + count * self.alone.stages[0].period_s


def choose(costs: SplitCosts, micro_batches: int, training: bool) -> StageChoice:
    """Find the fastest stages; one device alone where they are not predicted to be at least 3 % faster than it.

    Raises
    ------
    NothingFitsError
        A layer runs on no device, or the memories together do not hold the model.
    """
    chain = costs.chain(micro_batches, training)
    best = plan_stages(chain)
    if best is None:
        raise _nothing_fits(costs, chain)
    alone = best_alone(chain)
    split = StageChoice(chain, best, alone, costs.call_s)
    split_s, alone_s = split.predicted_s(micro_batches), split.alone_s(micro_batches)
    if alone is None or alone_s is None or (len(best.stages) > 1 and split_s <= alone_s * (1 - _LEAST_GAIN_FRAC)):
        return split
    return replace(split, plan=alone, reason=_reason(costs, split, alone_s / split_s - 1))


def _reason(costs: SplitCosts, split: StageChoice, gain_frac: float) -> str:
    assert split.alone is not None
    name = costs.devices[split.alone.stages[0].device].short
    if len(split.plan.stages) == 1 or gain_frac <= 0:
        return f"no split is predicted to be faster than {name} alone"
    return f"the best split is predicted to be {gain_frac:.1%} faster than {name} alone, too little to be sure of"


def _nothing_fits(costs: SplitCosts, chain: LayerChain) -> NothingFitsError:
    for number, layer in enumerate(costs.layers):
        if not any(isfinite(seconds) for seconds in chain.seconds[number]):
            reasons = (
                f"{device.short}: {cost[number].reason}"
                for device, cost in zip(costs.devices, costs.by_device, strict=True)
            )
            return NothingFitsError(f"layer {layer.name} ({layer.kind}) runs on no device: {'; '.join(reasons)}")
    need = format_bytes(int(chain.need_bytes(0, len(costs.layers))))
    held = ", ".join(
        f"{device.short} holds {format_bytes(int(limit))}" if isfinite(limit) else f"{device.short} has no limit"
        for device, limit in zip(costs.devices, chain.limit_bytes, strict=True)
    )
    largest = max(range(len(costs.layers)), key=lambda number: chain.need_bytes(number, number + 1))
    one = f"{costs.layers[largest].name} alone {format_bytes(int(chain.need_bytes(largest, largest + 1)))}"
    return NothingFitsError(
        f"the model needs {need} ({one}), and no cut fits: {held}",
        remedy="name more devices or larger ones, or make the micro-batch smaller",
    )


def given_stages(
    costs: SplitCosts, place: Sequence[tuple[str, int]], micro_batches: int, training: bool
) -> StageChoice:
    """Take stages that the user chose.

    Parameters
    ----------
    place
        (device, how many layers) of each stage in order.

    Raises
    ------
    BadValueError
        A device is not there or named twice, or the layers do not add up.
    """
    if not all(isinstance(one, tuple | list) and len(one) == 2 and isinstance(one[1], int) for one in place):
        raise BadValueError(f"place={place!r} is not allowed", remedy="give 'auto', or [(device, layers), …]")
    names = [device.short for device in costs.devices]
    chosen = [name for name, _ in place]
    for name in chosen:
        if name not in names or chosen.count(name) > 1:
            word = "is named twice" if name in names else f"is no device of this split{did_you_mean(name, names)}"
            raise BadValueError(f"place: {name!r} {word}", remedy=f"the devices are {', '.join(names)}")
    counts = [count for _, count in place]
    if sum(counts) != len(costs.layers) or min(counts) < 1:
        raise BadValueError(
            f"place: {' + '.join(map(str, counts))} is {sum(counts)}, and the model has {len(costs.layers)} layers",
            remedy="make them add up, each 1 or more",
        )
    chain = costs.chain(micro_batches, training)
    plan = fixed_stages(chain, [(names.index(name), count) for name, count in place])
    for after, stage in enumerate(reversed(plan.stages)):
        need, limit = chain.need_bytes(stage.first, stage.end, after), chain.limit_bytes[stage.device]
        if need > limit:
            raise NothingFitsError(
                f"place: {names[stage.device]} holds {format_bytes(int(limit))}, and its layers need "
                f"{format_bytes(int(need))}",
                remedy="give it fewer layers",
            )
    return StageChoice(chain, plan, best_alone(chain), costs.call_s)
