"""Shares: how many samples of a global batch each device gets, so that the step ends soonest.

In: a speed model per device, limits, the cost of talking. Out: a plan of whole samples, with who is left out and why.
It must not measure: times arrive as numbers, and the new model goes back to the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, inf
from statistics import median

from hetero.floor.errors import BadValueError, did_you_mean

__all__ = [
    "SharePlan",
    "StepModel",
    "apportion",
    "cut",
    "fit_step",
    "fixed_plan",
    "given_shares",
    "make_plan",
    "proportional_plan",
    "replanned",
]

GAIN_FRAC = 0.03
"""A new plan must be faster than this share of the step, or the old one stays."""

CHANGE_FRAC = 0.25
"""A device whose speed moved further than this is believed after two steps, not after a window."""

_WINDOW = 7
_MOVES_TRUSTED = 2
_SCATTERS = 4.0


@dataclass(frozen=True, slots=True)
class StepModel:
    """How long one device computes for n samples: t = a + b·n.

    Attributes
    ----------
    fixed_s
        A, s.
    per_sample_s
        B, s a sample (or a unit of cost), > 0.
    recent
        Measured over predicted seconds of the last steps, newest last.
    factor
        What the prediction is multiplied by, learned from `recent`.
    most
        Samples that fit into the device's memory, inf where it is not known to be short.

    Examples
    --------
    >>> StepModel(0.002, 0.0001).seconds(100)
    0.012
    """

    fixed_s: float
    per_sample_s: float
    recent: tuple[float, ...] = ()
    factor: float = 1.0
    most: float = inf

    def seconds(self, samples: float) -> float:
        """Predict the seconds of a step with this many samples; none take none."""
        return self.factor * (self.fixed_s + self.per_sample_s * samples) if samples else 0.0

    def capacity(self, seconds: float) -> float:
        """Return how many whole samples are done within some seconds."""
        return max(0.0, min(self.most, floor((seconds / self.factor - self.fixed_s) / self.per_sample_s + 1e-9)))

    def speed(self, samples: float) -> float:
        """Return samples/s of the device alone with this many samples a step."""
        return samples / self.seconds(samples)

    def observed(self, samples: float, seconds: float) -> StepModel:
        """Take in one measured step.

        Notes
        -----
        The factor is the median of the last 7 ratios of measured to predicted seconds. When the last two both lie
        more than 25 % from the factor, on the same side, they are the whole window from then on: one slow step
        may be anything, two are a change of speed. On a host whose steps scatter, so much that four times the
        median deviation of the steps before is more than 25 %, that is the limit.
        """
        if not samples:
            return self
        ratio = seconds / (self.fixed_s + self.per_sample_s * samples)
        recent = (*self.recent, ratio)[-_WINDOW:]
        if _moved(recent, self.factor):
            recent = recent[-_MOVES_TRUSTED:]
        factor = self.factor if len(recent) < _MOVES_TRUSTED else median(recent)
        return StepModel(self.fixed_s, self.per_sample_s, recent, factor, self.most)

    def changed(self, before: StepModel) -> bool:
        """Return whether the speed moved by more than 25 % since an earlier model."""
        ratio = self.factor / before.factor
        return not 1 / (1 + CHANGE_FRAC) <= ratio <= 1 + CHANGE_FRAC


def _moved(recent: Sequence[float], factor: float) -> bool:
    """Return whether the last two ratios lie beyond what the ones before scatter, on the same side."""
    before, last = recent[:-_MOVES_TRUSTED], [ratio / factor for ratio in recent[-_MOVES_TRUSTED:]]
    if len(last) < _MOVES_TRUSTED or 1 / (1 + CHANGE_FRAC) <= last[-1] <= 1 + CHANGE_FRAC:
        return False
    scatter = median(abs(ratio / factor - 1) for ratio in before) if len(before) > 1 else 0.0
    limit = 1 + max(CHANGE_FRAC, _SCATTERS * scatter)
    return min(last) > limit or max(last) < 1 / limit


def fit_step(few: int, few_s: float, many: int, many_s: float) -> StepModel:
    """Create a model of two measured points.

    Parameters
    ----------
    few, many
        Samples, few < many.
    few_s, many_s
        Seconds.

    Notes
    -----
    b = (t₂ − t₁) / (n₂ − n₁), a = t₁ − b·n₁. Noise can make either negative: then all time counts as
    proportional to the samples.

    Examples
    --------
    >>> round(fit_step(8, 0.010, 64, 0.066).seconds(128), 6)
    0.13
    """
    per_sample_s = (many_s - few_s) / (many - few)
    fixed_s = few_s - per_sample_s * few
    if per_sample_s <= 0 or fixed_s < 0:
        return StepModel(0.0, max(many_s / many, 1e-12))
    return StepModel(fixed_s, per_sample_s)


@dataclass(frozen=True, slots=True)
class SharePlan:
    """Who computes how much of a global batch.

    Attributes
    ----------
    shares
        Samples (or units) per device, in the order of the devices; 0 for one that is left out.
    step_s
        Predicted seconds of a step, communication included.
    models
        What was known of each device when the plan was made.
    reasons
        Why a device is left out, '' for one that takes part.
    """

    shares: tuple[int, ...]
    step_s: float
    models: tuple[StepModel, ...]
    reasons: tuple[str, ...]

    @property
    def members(self) -> tuple[int, ...]:
        """The devices that take part."""
        return tuple(index for index, share in enumerate(self.shares) if share)


def make_plan(models: Sequence[StepModel], batch: int, comm_s: Sequence[float] = ()) -> SharePlan:
    """Share a global batch so that the step is as short as the models allow.

    Parameters
    ----------
    models
        One per device.
    batch
        Samples (or units) of a step, ≥ 1.
    comm_s
        Shape (n + 1,), s; the seconds that k devices need to exchange gradients; zero where not given.

    Raises
    ------
    BadValueError
        The devices' memories together do not hold the batch.

    Notes
    -----
    Minimises max over the members (a + b·n) + comm(k) over all subsets of the devices and all whole shares.
    For each k and each T the best k devices are those of largest capacity ⌊(T − a)/b⌋, so the least T is found by
    bisection over the finishing times, exactly. Of equal times the plan with fewer devices wins.
    """
    if batch < 1:
        raise BadValueError(f"a global batch of {batch} has no sample", remedy="give 1 or more")
    if sum(model.most for model in models) < batch:
        held = ", ".join(f"{model.most:g}" for model in models)
        raise BadValueError(
            f"a global batch of {batch} does not fit: the devices hold {held} samples",
            remedy="make the global batch smaller, or give micro-batches",
        )
    best: SharePlan | None = None
    for count in range(1, len(models) + 1):
        found = _least(models, batch, count)
        if found is None:
            continue
        compute_s, shares = found
        step_s = compute_s + (comm_s[len(shares)] if comm_s else 0.0)
        if best is None or step_s < best.step_s * (1 - 1e-9):
            best = SharePlan(tuple(shares.get(i, 0) for i in range(len(models))), step_s, tuple(models), ())
    assert best is not None
    return replace(best, reasons=tuple(_reason(best, index, batch) for index in range(len(models))))


def _least(models: Sequence[StepModel], batch: int, count: int) -> tuple[float, dict[int, int]] | None:
    """Find the least compute time with at most `count` devices, and their shares."""
    largest = sorted((model.most for model in models), reverse=True)
    if sum(largest[:count]) < batch:
        return None
    low, high = 0.0, max(model.seconds(min(batch, model.most)) for model in models)
    for _ in range(100):
        middle = (low + high) / 2
        if sum(sorted((model.capacity(middle) for model in models), reverse=True)[:count]) >= batch:
            high = middle
        else:
            low = middle
        if high - low <= 1e-12 * high:
            break
    order = sorted(range(len(models)), key=lambda index: (-models[index].capacity(high), index))[:count]
    shares = {index: int(min(models[index].capacity(high), batch)) for index in order}
    for _ in range(sum(shares.values()) - batch):
        slowest = max(shares, key=lambda index: (models[index].seconds(shares[index]), shares[index], index))
        shares[slowest] -= 1
    shares = {index: share for index, share in shares.items() if share}
    return max(models[index].seconds(share) for index, share in shares.items()), shares


def _reason(plan: SharePlan, index: int, batch: int) -> str:
    if plan.shares[index]:
        return ""
    one_s = plan.models[index].seconds(1)
    if one_s >= plan.step_s:
        whole_ms = plan.step_s * 1e3
        return f"one sample would take it {one_s * 1e3:.3g} ms, and the others do all {batch} in {whole_ms:.3g} ms"
    return f"with it, talking would cost more than the {plan.step_s * 1e3:.3g} ms step gains"


def proportional_plan(models: Sequence[StepModel], batch: int) -> SharePlan:
    """Share by speed alone: each device's samples/s over the sum, in whole samples, nobody left out.

    Examples
    --------
    >>> proportional_plan([StepModel(0.0, 1.0), StepModel(0.0, 3.0)], 8).shares
    (6, 2)
    """
    speeds = [model.speed(batch) for model in models]
    return fixed_plan(models, apportion(speeds, batch))


def apportion(weights: Sequence[float], total: int) -> tuple[int, ...]:
    """Return whole numbers in proportion to weights that add up to a total, by largest remainder.

    Examples
    --------
    >>> apportion([3.0, 1.0], 10), apportion([1.0, 1.0, 1.0], 10)
    ((8, 2), (4, 3, 3))
    """
    scale = total / sum(weights)
    exact = [weight * scale for weight in weights]
    whole = [floor(part + 1e-9) for part in exact]
    order = sorted(range(len(exact)), key=lambda index: (whole[index] - exact[index], index))
    for index in order[: total - sum(whole)]:
        whole[index] += 1
    return tuple(whole)


def fixed_plan(models: Sequence[StepModel], shares: Sequence[int], comm_s: Sequence[float] = ()) -> SharePlan:
    """Create a plan of shares that somebody else chose."""
    taking = [model.seconds(share) for model, share in zip(models, shares, strict=True)]
    members = sum(1 for share in shares if share)
    step_s = max(taking) + (comm_s[members] if comm_s else 0.0)
    reasons = tuple("" if share else "its share is 0" for share in shares)
    return SharePlan(tuple(shares), step_s, tuple(models), reasons)


def given_shares(table: Mapping[str, int], names: Sequence[str], batch: int) -> tuple[int, ...]:
    """Check a share table of the user's.

    Raises
    ------
    BadValueError
        It names a device that is not there, or does not add up to the batch.

    Examples
    --------
    >>> given_shares({"cpu:0": 96, "cpu:1": 32}, ["cpu:0", "cpu:1"], 128)
    (96, 32)
    """
    for name, share in table.items():
        if name not in names:
            raise BadValueError(
                f"shares: {name!r} is no device of this run{did_you_mean(name, names)}",
                remedy=f"the devices are {', '.join(names)}",
            )
        if isinstance(share, bool) or not isinstance(share, int) or share < 0:
            raise BadValueError(f"shares: {name} has {share!r}", remedy="give whole samples, 0 or more")
    shares = tuple(table.get(name, 0) for name in names)
    if sum(shares) != batch:
        raise BadValueError(
            f"shares: {' + '.join(map(str, shares))} is {sum(shares)}, and the global batch is {batch}",
            remedy="make them add up, or write shares: auto",
        )
    return shares


def replanned(
    plan: SharePlan, models: Sequence[StepModel], batch: int, comm_s: Sequence[float] = (), steps: int = _WINDOW
) -> SharePlan | None:
    """Return a better plan where one is worth having, else None.

    Parameters
    ----------
    models
        What is known now.
    steps
        Done under the plan.

    Notes
    -----
    A new plan is taken when the step is predicted to be more than 3 % shorter; when a device's speed has moved by
    more than 25 %, at once on what two steps have shown, otherwise after every 7 steps.
    """
    jumped = any(new.changed(old) for new, old in zip(models, plan.models, strict=True))
    if not jumped and (not steps or steps % _WINDOW):
        return None
    now_s = fixed_plan(models, plan.shares, comm_s).step_s
    better = make_plan(models, batch, comm_s)
    return better if better.step_s < now_s * (1 - GAIN_FRAC) else None


def cut(costs: Sequence[float], shares: Sequence[float]) -> tuple[int, ...]:
    """Cut a row of samples of different cost into parts whose costs are as the shares.

    Parameters
    ----------
    costs
        Of each sample, > 0.
    shares
        Of each part, in any unit; a part whose share is 0 gets nothing.

    Returns
    -------
    tuple of int
        Samples per part, whole and in order; each boundary lies where the cost before it is nearest its aim.

    Examples
    --------
    >>> cut([1, 1, 1, 1], [3, 1]), cut([5, 1, 1, 1, 1, 1], [1, 1])
    ((3, 1), (1, 5))
    """
    total, whole = sum(costs), sum(shares)
    counts, position, done, aim = [], 0, 0.0, 0.0
    last = max(index for index, share in enumerate(shares) if share)
    for index, share in enumerate(shares):
        aim += share * total / whole
        begin = position
        while share and position < len(costs) and (index == last or done + costs[position] / 2 <= aim + 1e-12 * total):
            done += costs[position]
            position += 1
        counts.append(position - begin)
    return tuple(counts)
