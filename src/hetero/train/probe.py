"""The probe before the first step: how long a device takes for few and for many samples, and what it cannot key.

In: a job, samples, a device. Out: a speed model and the better layout, or a refusal by name.
It must not change the model that is trained.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from hetero.backends.registry import torch_place
from hetero.comm.group import Group
from hetero.model.device import Device
from hetero.plan.training.shares import StepModel, fit_step
from hetero.train.job import TrainingJob
from hetero.train.memory import PassLimit, room_bytes

if TYPE_CHECKING:
    from hetero.drive.throttle import Throttle
    from hetero.train.data import Samples
    from hetero.train.replica import ModelReplica

__all__ = ["ProbeResult", "probe"]

_BUDGET_S = 0.25
_WORTH_FRAC = 0.03


class ProbeResult(NamedTuple):
    """What a probe found.

    Attributes
    ----------
    model
        Seconds of a step over the units of samples.
    channels_last
        Whether convolutions are to work with channels last.
    """

    model: StepModel
    channels_last: bool


def probe(
    job: TrainingJob,
    device: Device,
    samples: Samples,
    throttle: Throttle,
    passes: PassLimit,
    glimpse: Callable[[StepModel], None] = lambda model: None,
) -> ProbeResult:
    """Measure two points of t = a + b·n on a copy of the model.

    Parameters
    ----------
    throttle
        Slows the device down and measures.
    passes
        Learns here how many samples fit into a pass.
    glimpse
        Told early how fast the device can be at most.

    Raises
    ------
    RandomRefusedError
        The model draws random numbers that cannot be keyed.
    OutOfDeviceMemoryError
        Not even one sample fits into the device's memory.
    """
    from hetero.train.keyed_random import refuse_unkeyed, states
    from hetero.train.replica import ModelReplica

    gc.collect()
    options = replace(job.options, schedule=None, schedule_each="step")  # which may have no more steps than the run
    copy = ModelReplica(job.parts, options, torch_place(device), 0, passes)
    if job.need is not None:
        passes.expect(job.need, room_bytes(device))
    throttle.restart()
    unit, units = job.options.unit, -(-job.options.global_batch // job.options.unit)
    there = len(samples) // unit

    def timed(count: int) -> float:
        ids = list(range(min(len(samples), count * unit)))
        with throttle:
            done = copy.compute(samples, ids, job.options.global_batch)
            copy.reduce(Group(0, 1), done, [])
            if not done.bad:
                copy.apply(done, len(ids))
        seconds: float = throttle.seconds
        return seconds

    stays_whole = bool(copy.passes.whole) and not job.options.cuts(len(job.names))
    few = max(1, min(units, there) if stays_whole else min(units // 16, there // 2))
    before = states(copy.place)
    timed(few)
    few_s = timed(few)
    glimpse(StepModel(0.0, max(few_s, 1e-12) / few))
    few_s = min(few_s, timed(few))
    many = max(1, min(units // 2, int(few * _BUDGET_S / max(few_s, 1e-9)), there))
    many = few if stays_whole else many if many > few else min(2 * few, max(1, there))
    many_s = min(timed(many) for _ in range(2))
    if _may_choose(copy):
        last_s = _with_channels_last(copy, lambda: timed(many))
        if last_s < (1 - _WORTH_FRAC) * many_s:
            few_s, many_s = min(timed(few) for _ in range(2)), last_s
        else:
            copy.layout.channels_last = False
    refuse_unkeyed(before, "the model", copy.place)
    model = fit_step(few, few_s, many, many_s) if many > few else StepModel(0.0, few_s / few)
    return ProbeResult(model, copy.layout.channels_last)


def _may_choose(copy: ModelReplica) -> bool:
    """Return whether the layout is open: equal bits want equal layouts everywhere."""
    return copy.layout.applies and copy.options.layout == "auto" and copy.options.exact != "bitwise"


def _with_channels_last(copy: ModelReplica, timed: Callable[[], float]) -> float:
    """Return the seconds of a step with channels last, infinite where the model cannot be run so."""
    copy.layout.channels_last = True
    found_s = min(timed() for _ in range(2))
    return found_s if copy.layout.channels_last else float("inf")
