"""Stages: which device computes which consecutive layers of a model, so that the pipelined step ends soonest.

In: seconds, bytes and limits of a chain of layers on devices. Out: the best stages, or None where nothing fits.
It must not measure, and it knows layers and devices by their numbers only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LayerChain",
    "LayerStage",
    "StagePlan",
    "best_alone",
    "fixed_stages",
    "one_forward_one_backward",
    "pipeline_s",
    "plan_stages",
]

_LEAST_GAIN = 1e-9


@dataclass(frozen=True, slots=True)
class LayerChain:
    """Layers one after the other, as they were measured on every device.

    Attributes
    ----------
    seconds
        Shape (layers, devices), s of one micro-batch, backward pass included where there is one; inf where the layer
        cannot run.
    crossing_s
        Shape (layers, devices, devices), s that the output of a layer takes from one device to another, and its
        gradient back where there is one.
    weight_bytes
        By layer, bytes kept all the time: parameters, gradients, state of the optimizer.
    kept_bytes
        By layer, bytes kept of every micro-batch in flight, for its backward pass.
    working_bytes
        By layer, bytes needed while it computes.
    limit_bytes
        By device, inf where there is no limit.
    micro_batches
        Of a step, ≥ 1.
    """

    seconds: Sequence[Sequence[float]]
    crossing_s: Sequence[Sequence[Sequence[float]]]
    weight_bytes: Sequence[float]
    kept_bytes: Sequence[float]
    working_bytes: Sequence[float]
    limit_bytes: Sequence[float]
    micro_batches: int

    def need_bytes(self, first: int, end: int, after: int = 0) -> float:
        """Return the bytes that layers first … end − 1 need on one device with `after` stages behind them."""
        in_flight = min(self.micro_batches, after + 1)
        held = sum(self.weight_bytes[first:end]) + in_flight * sum(self.kept_bytes[first:end])
        return held + max(self.working_bytes[first:end])


@dataclass(frozen=True, slots=True)
class LayerStage:
    """Consecutive layers on one device.

    Attributes
    ----------
    device
        Its number.
    first, end
        Layers first … end − 1.
    period_s
        Seconds of one micro-batch: its computation, and half of every crossing, since both ends work on one.
    """

    device: int
    first: int
    end: int
    period_s: float


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The stages of a model in order.

    Attributes
    ----------
    stages
        Cover every layer once, each on a device of its own.
    step_s
        Predicted s of a step, see `pipeline_s`.
    """

    stages: tuple[LayerStage, ...]
    step_s: float


def pipeline_s(periods_s: Sequence[float], micro_batches: int) -> float:
    """Return the seconds of a step through a pipeline: Σ t + (m − 1) · max t.

    Notes
    -----
    Exact for a forward pass of equal micro-batches. With a backward pass, t is that of both passes, and one forward,
    one backward keeps every stage as busy: n − s micro-batches in flight at stage s hide a round trip of Σⱼ₌ₛ tⱼ.

    Examples
    --------
    >>> pipeline_s([1.0, 3.0], 4)
    13.0
    """
    return sum(periods_s, start=(micro_batches - 1) * max(periods_s) if micro_batches > 1 else 0.0)


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> Iterator[tuple[bool, int]]:
    """Yield the order in which a stage computes in training: (True for forward, micro-batch).

    Notes
    -----
    Stage s of n runs n − 1 − s forward passes ahead, and then one of each in turn; so at most n − s micro-batches
    are in flight there, however many the step has.

    References
    ----------
    Narayanan and others 2019, PipeDream: generalized pipeline parallelism for DNN training, section 3.2; here the
    pipeline is drained before the optimizer moves, so that the gradients are those of the whole model.

    Examples
    --------
    >>> "".join(f"{'F' if forward else 'B'}{number} " for forward, number in one_forward_one_backward(0, 2, 3))
    'F0 F1 B0 F2 B1 B2 '
    """
    ahead = min(micro_batches, stages - 1 - stage)
    for number in range(ahead):
        yield True, number
    for number in range(micro_batches):
        if number + ahead < micro_batches:
            yield True, number + ahead
        yield False, number


def fixed_stages(chain: LayerChain, placed: Sequence[tuple[int, int]]) -> StagePlan:
    """Create a plan of stages that somebody else chose.

    Parameters
    ----------
    placed
        (device, how many layers) of each stage in order; the layers add up to those of the chain.
    """
    ends = list(accumulate(count for _, count in placed))
    firsts = [0, *ends[:-1]]
    devices = [device for device, _ in placed]
    crossings = [chain.crossing_s[end - 1][a][b] for end, (a, b) in zip(ends, pairwise(devices), strict=False)]
    halves = [0.0, *(crossing / 2 for crossing in crossings), 0.0]
    stages = tuple(
        LayerStage(device, first, end, sum(row[device] for row in chain.seconds[first:end]) + halves[i] + halves[i + 1])
        for i, (device, first, end) in enumerate(zip(devices, firsts, ends, strict=True))
    )
    return StagePlan(stages, pipeline_s([stage.period_s for stage in stages], chain.micro_batches))


def plan_stages(chain: LayerChain) -> StagePlan | None:
    """Place consecutive layers on devices so that the pipelined step is shortest; None where nothing fits.

    Notes
    -----
    Exact: of all ways to cut the chain and to give the parts to different devices in any order, the one with the
    least Σ t + (m − 1) · max t that fits into the memories. For a limit T, a dynamic program over the first layer
    that is placed, the devices in use, the first of them and the one before it gives the least Σ t with no stage
    above T. A plan of it with the longest stage t* ≤ T is the best of all whose longest stage is in [t*, T]; what is
    left below t* is halved, and a half whose bound, the Σ t of the limit above it plus (m − 1) times its lower end,
    does not beat the best plan known is dropped. One device alone wins every tie.

    The work grows with 2 to the number of devices: up to eight are meant.
    """
    search = _StageSearch(chain)
    best = best_alone(chain)
    best_s = inf if best is None else best.step_s * (1 - _LEAST_GAIN)
    above = [(0.0, inf, 0.0)]
    while above:
        low_s, high_s, least_sum_s = above.pop()
        if least_sum_s + (chain.micro_batches - 1) * low_s >= best_s:
            continue
        placed = search.least_sum(high_s)
        if placed is None:
            continue
        plan = fixed_stages(chain, placed)
        longest_s = max(stage.period_s for stage in plan.stages)
        sum_s = sum(stage.period_s for stage in plan.stages)
        if plan.step_s < best_s:
            best, best_s = plan, plan.step_s * (1 - _LEAST_GAIN)
        middle_s = (low_s + longest_s) / 2
        if longest_s - low_s > _LEAST_GAIN * longest_s:
            above += [(middle_s, longest_s * (1 - _LEAST_GAIN), sum_s), (low_s, middle_s, sum_s)]
    return best


def best_alone(chain: LayerChain) -> StagePlan | None:
    """Return the whole model on the device that is fastest with all of it; None where it fits on none."""
    layers = len(chain.seconds)
    plans = [
        fixed_stages(chain, [(device, layers)])
        for device, limit_bytes in enumerate(chain.limit_bytes)
        if chain.need_bytes(0, layers) <= limit_bytes
    ]
    possible = [plan for plan in plans if isfinite(plan.step_s)]
    return min(possible, key=lambda plan: plan.step_s, default=None)


class _StageSearch:
    """The dynamic program for one chain; its arrays are indexed by layers k, i of a stage k … i − 1."""

    def __init__(self, chain: LayerChain) -> None:
        self.layers, self.devices = len(chain.seconds), len(chain.limit_bytes)
        self.compute_s = [self._compute(chain, stages) for stages in range(self.devices)]
        crossing_s = np.zeros((self.devices + 1, self.devices + 1, self.layers + 1))
        crossing_s[:-1, :-1, 1:] = np.moveaxis(np.asarray(chain.crossing_s, dtype=float), 0, 2)
        self.half_s = crossing_s / 2

    def _compute(self, chain: LayerChain, after: int) -> NDArray[np.float64]:
        """Return s by (device, k, i), inf where a stage with so many behind it is empty, impossible or does not fit."""
        seconds = np.asarray(chain.seconds, dtype=float).T
        able = np.isfinite(seconds)
        sums = _spans(np.where(able, seconds, 0.0))
        in_flight = min(chain.micro_batches, after + 1)
        held = _spans(np.asarray([chain.weight_bytes]) + in_flight * np.asarray([chain.kept_bytes]))[0]
        need = held + self._most(chain.working_bytes)
        fits = need[None] <= np.asarray(chain.limit_bytes, dtype=float)[:, None, None]
        order = np.arange(self.layers + 1)
        possible = fits & (_spans(~able) == 0) & (order[:, None] < order[None, :])
        return np.where(possible, sums, inf)

    def _most(self, working_bytes: Sequence[float]) -> NDArray[np.float64]:
        most = np.zeros((self.layers + 1, self.layers + 1))
        for first in range(self.layers):
            most[first, first + 1 :] = np.maximum.accumulate(np.asarray(working_bytes[first:], dtype=float))
        return most

    def least_sum(self, limit_s: float) -> list[tuple[int, int]] | None:
        """Return the stages of least Σ t of which none is longer than a limit; None where there are none.

        Notes
        -----
        rest[used][d, e, i] is the least Σ t of the layers from i on over the devices `used`, the first of which is e
        and gets its input from d; where the number of devices stands for d, the input comes from the program.
        """
        none = self.devices
        start = np.full((none + 1, none + 1, self.layers + 1), inf)
        start[:, none, self.layers] = 0.0
        rest, chosen = {0: start}, {}
        best: tuple[float, int, int] | None = None
        for used in range(1 << none):
            if used not in rest:
                continue
            for device in [device for device in range(none) if not used >> device & 1]:
                values, choice = self._in_front(rest[used], used, device, limit_s)
                now = used | 1 << device
                table = rest.setdefault(now, np.full_like(start, inf))
                table[:, device] = values
                chosen[now, device] = choice
                if values[none, 0] < (inf if best is None else best[0]):
                    best = float(values[none, 0]), now, device
        return None if best is None else self._follow(chosen, *best[1:])

    def _in_front(
        self, rest: NDArray[np.float64], used: int, device: int, limit_s: float
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Put every stage of a device in front; returns the least Σ t by (d, k), and which (e, i) that has."""
        own = self.compute_s[used.bit_count()][device][None, :, :] + self.half_s[device][:, None, :]
        sums = own + rest[device][:, None, :]
        arriving = self.half_s[:, device, :]
        fits = own[None] <= (limit_s - arriving)[:, None, :, None]
        candidates = np.where(fits, sums[None], inf).transpose(0, 2, 1, 3)
        flat = candidates.reshape(*candidates.shape[:2], -1)
        choice = flat.argmin(axis=2)
        return np.take_along_axis(flat, choice[..., None], axis=2)[..., 0] + arriving, choice

    def _follow(
        self, chosen: dict[tuple[int, int], NDArray[np.int64]], used: int, device: int
    ) -> list[tuple[int, int]]:
        placed, before, first = [], self.devices, 0
        while first < self.layers:
            after, end = divmod(int(chosen[used, device][before, first]), self.layers + 1)
            placed.append((device, end - first))
            used, before, device, first = used & ~(1 << device), device, after, end
        return placed


def _spans(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sums of all spans k … i − 1 of rows, by (row, k, i)."""
    sums = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(rows, axis=1)], axis=1)
    return np.asarray(sums[:, None, :] - sums[:, :, None])
