"""Amounts of ideal work of one training step, and the time of a whole training over nodes of unequal speed.

In: a workload and its sharding, or the nodes' speeds and what they exchange. Out: amounts by term; a time and who
takes part. It must not know how fast any software is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

import numpy as np

from hetero.floor.deprecation import renamed_keywords
from hetero.floor.errors import BadValueError
from hetero.model.quantisation import number_format
from hetero.model.workload import Sharding, WorkloadSpec
from hetero.plan.sizing.footprint import footprint, weight_bytes
from hetero.plan.sizing.ideal_work import FEW_TOKENS, TERMS, DeviceRates, Vector, multiplied, pass_amounts
from hetero.plan.training.shares import SharePlan, StepModel, make_plan

__all__ = ["TrainingTime", "model_flop", "training_amounts", "training_time"]


def _factors(work: WorkloadSpec) -> tuple[float, float]:
    """Return how often a forward pass' arithmetic is done in a step: what learning needs, and with recomputing."""
    needed = 2.0 if work.job == "lora" else 3.0
    return needed, needed + (1.0 if work.checkpointing else 0.0)


def model_flop(work: WorkloadSpec) -> float:
    """Return the operations of one step of a replica that learning needs, those of recomputing left out.

    Notes
    -----
    6 · parameters · tokens; 4 where only adapters learn, whose weights alone want gradients.

    References
    ----------
    Kaplan and others 2020, "Scaling Laws for Neural Language Models", section 2.1.
    Chowdhery and others 2022, "PaLM", appendix B (model FLOP utilisation).
    """
    return 2.0 * _factors(work)[0] * sum(multiplied(work.model)) * work.batch * work.context


def _exchanged_bytes(work: WorkloadSpec, spread: Sharding) -> float:
    """Return the bytes that one device sends a step: gradients by a ring, or weights twice and gradients once."""
    if spread.data == 1:
        return 0.0
    need = footprint(work, Sharding(tensor=spread.tensor, pipeline=spread.pipeline))
    frac = (spread.data - 1) / spread.data
    if spread.zero < 3:
        return 2 * frac * need.gradients
    weights = weight_bytes(work.model, number_format(work.weights)) / spread.tensor / spread.pipeline
    return frac * (2 * weights + need.gradients)


def training_amounts(work: WorkloadSpec, spread: Sharding, rates: DeviceRates) -> Vector:
    """Return the amounts of one step: forward, backward, what is computed again, exchange and optimizer.

    Notes
    -----
    The backward pass costs twice the forward one, once where only adapters learn. A pipeline of p stages with as many
    micro-batches idles (p − 1)/p of a step more. Communication counts as if nothing of it was hidden.

    References
    ----------
    Rajbhandari and others 2020, "ZeRO", section 7 (bytes exchanged).
    Narayanan and others 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", section 2.2.
    """
    tokens = work.batch * work.context
    again = _factors(work)[1]
    forward = pass_amounts(work, Sharding(tensor=spread.tensor), rates, tokens, tokens * work.context / 2, 0.0)
    if tokens > FEW_TOKENS:
        outputs = multiplied(work.model)[1]
        forward[TERMS.index("prompt")] += 2.0 * outputs * tokens / rates.flop_per_s / spread.tensor
    found = forward * again * (2 * spread.pipeline - 1) / spread.pipeline**2
    need = footprint(work, spread)
    found[TERMS.index("weights")] += 2 * (need.optimizer + need.gradients) / rates.bytes_per_s
    found[TERMS.index("link")] += _exchanged_bytes(work, spread) / rates.link_bytes_per_s
    if spread.data > 1:
        found[TERMS.index("reduce")] += work.model.layers * np.log2(spread.data)
    found[TERMS.index("request")] = 0.0
    return found


@dataclass(frozen=True, slots=True)
class TrainingTime:
    """How long a training takes on nodes of unequal speed.

    Attributes
    ----------
    total_s
        All steps.
    alone_s
        On the fastest node alone.
    steps
        How many.
    plan
        The share of each node, the seconds of a step, and why a node is left out.
    """

    total_s: float
    alone_s: float
    steps: int
    plan: SharePlan

    @property
    def speedup(self) -> float:
        """How many times as fast as the fastest node alone."""
        return self.alone_s / self.total_s

    def explain(self) -> str:
        """Return the answer in words."""
        minutes = f"{self.total_s / 60:.3g} min in {self.steps} steps, {self.alone_s / 60:.3g} min on the fastest alone"
        lines = [minutes, f"samples a step: {', '.join(map(str, self.plan.shares))}"]
        lines += [f"node {index} is left out: {why}" for index, why in enumerate(self.plan.reasons) if why]
        return "\n".join(lines)


@renamed_keywords(batch="global_batch")
def training_time(
    samples: int,
    samples_per_s: Sequence[float],
    global_batch: int,
    epochs: int = 1,
    exchanged_bytes: float = 0.0,
    link_bytes_per_s: float = inf,
) -> TrainingTime:
    """Return how long a training takes on these nodes, with the shares that end each step soonest.

    Parameters
    ----------
    samples
        Of one epoch.
    samples_per_s
        Of each node, alone.
    global_batch
        Samples of a step over all nodes.
    exchanged_bytes
        Of the gradients, exchanged at each step by a ring.
    link_bytes_per_s
        Between nodes, one direction.

    Notes
    -----
    steps = epochs · ⌈samples / global_batch⌉; a step takes max over the nodes of share / speed, and
    2 · (k − 1)/k · bytes / bandwidth for k nodes; the last one of an epoch takes its part of that. A node that would
    make the step longer is left out.

    Examples
    --------
    A node trains on 100 samples in 30 minutes; with one as fast and two half as fast beside it, in 10:

    >>> node = 100 / (30 * 60)
    >>> round(training_time(100, [node, node, node / 2, node / 2], global_batch=20).total_s / 60, 1)
    10.5
    >>> round(training_time(100, [node, node, node / 2, node / 2], global_batch=100).total_s / 60, 1)
    10.2
    """
    if samples < 1 or epochs < 1:
        raise BadValueError(f"{samples} samples, {epochs} epochs", remedy="both must be at least 1")
    if not samples_per_s or not all(0 < speed < inf for speed in samples_per_s):
        raise BadValueError(f"speeds of {list(samples_per_s)} samples/s", remedy="each must be above 0")
    if exchanged_bytes < 0 or not link_bytes_per_s > 0:
        raise BadValueError(
            f"{exchanged_bytes:g} bytes over {link_bytes_per_s:g} bytes/s", remedy="give bytes ≥ 0 and a bandwidth > 0"
        )
    models = [StepModel(0.0, 1 / speed) for speed in samples_per_s]
    ring = [0.0, *(2 * (count - 1) / count for count in range(1, len(models) + 1))]
    plan = make_plan(models, min(global_batch, samples), [part * exchanged_bytes / link_bytes_per_s for part in ring])
    steps = epochs * ceil(samples / global_batch)
    alone_s = epochs * samples / max(samples_per_s)
    return TrainingTime(epochs * samples / min(global_batch, samples) * plan.step_s, alone_s, steps, plan)
