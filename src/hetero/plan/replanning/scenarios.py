"""Scenarios: what a schedule is expected to take when run times stray from their estimates.

In: what lies ahead, the spread of times, a schedule of what waits. Out: its expected end.
It must not draw chance: scenarios are fixed points of the distributions of times, every part of them equally often.
"""

from __future__ import annotations

from functools import lru_cache
from math import erfc, sqrt
from typing import NamedTuple

import numpy as np

from hetero.plan.problem import Floats, Ints
from hetero.plan.replanning.lookahead import Ahead, OpenGraph

__all__ = ["Scenarios", "expected_s", "left_s", "scenarios"]

COUNTS = (23, 11, 7, 5, 3)
"""So many scenarios are looked at, the first of these numbers with which …"""

WORK = 1000
"""… tasks times scenarios are no more than this; with more tasks than that, their times even out by themselves."""

_ROWS = 127
_DEVIATIONS = np.linspace(-8.0, 8.0, 1025)
_ABOVE = np.array([0.5 * erfc(z / sqrt(2.0)) for z in _DEVIATIONS])


class Scenarios(NamedTuple):
    """What may happen, an entry a scenario.

    Attributes
    ----------
    running, on : slots of the tasks that run, and their devices; the first of each device first
    more_s : shape (n_running, count), s; how much longer each takes from now on, or from the end of the one before
    free_s : shape (n_devices,), s; when a device that runs nothing takes a task, inf for never
    factors : shape (n_rows, count); run time over its estimate, a row a task, taken in turn
    """

    running: Ints
    on: Ints
    more_s: Floats
    free_s: Floats
    factors: Floats


def scenarios(ahead: Ahead, now_s: float, ready_s: Floats, waiting: int, work: int = WORK) -> Scenarios | None:
    """Return what may happen from now on; None where there are too many tasks for it to matter.

    Parameters
    ----------
    ready_s : shape (n_devices,), s; when a device that runs nothing takes a task, inf for never
    waiting : number of tasks that wait
    work : most tasks times scenarios

    Notes
    -----
    A run time is w exp(σ z). The z of each task are the middles of `count` equally likely parts of the normal
    distribution, each once, in an order of the task's own (a Latin hypercube).

    References
    ----------
    M. D. McKay, R. J. Beckman, W. J. Conover, Technometrics 21 (1979), 239-245: Latin hypercube sampling.
    """
    count = next((count for count in COUNTS if count * waiting <= work), 0)
    if not count:
        return None
    runs = np.array(ahead.running, dtype=np.float64).reshape(-1, 4)
    running, on = runs[:, 0].astype(np.int64), runs[:, 1].astype(np.int64)
    elapsed_s = np.where(runs[:, 2] >= 0.0, np.maximum(now_s - runs[:, 2], 0.0), 0.0)
    above, deviations = _points(count)
    more_s = left_s(runs[:, 3], elapsed_s, ahead.error, above[running % _ROWS])
    return Scenarios(running, on, more_s, ready_s, np.exp(ahead.error * deviations))


@lru_cache(len(COUNTS))
def _points(count: int) -> tuple[Floats, Floats]:
    """Return the middles of equal parts of 0..1, a row a task, each row shuffled; and their deviations."""
    middles = np.tile((np.arange(count) + 0.5) / count, (_ROWS, 1))
    above = np.random.default_rng(0).permuted(middles, axis=1)
    return above, _deviation(above)


def _deviation(above: Floats) -> Floats:
    """Return the deviation from the mean above which such a part of the normal distribution lies."""
    return np.interp(above, _ABOVE[::-1], _DEVIATIONS[::-1])


def left_s(predicted_s: Floats, elapsed_s: Floats, error: float, above: Floats) -> Floats:
    """Return how much longer tasks may run that have not ended yet: in a part `above` of all cases longer than that.

    Parameters
    ----------
    predicted_s : shape (n,), s, the median
    elapsed_s : shape (n,), >= 0, s
    error : > 0, standard deviation of the logarithm of run times
    above : shape (n, count), 0 < above < 1

    Notes
    -----
    With X lognormal of median w and spread σ, Q the upper tail of the normal distribution and z = ln(e / w) / σ:
    P(X > x | X > e) = Q(ln(x / w) / σ) / Q(z); far out it falls off as exp(-(x - e) z / (e σ)).

    Examples
    --------
    >>> above = np.array([[0.9, 0.5, 0.1]])
    >>> left_s(np.ones(1), np.array([1.5]), 0.3, above).round(2)
    array([[0.03, 0.17, 0.54]])
    """
    median_s, e = np.maximum(predicted_s, 1e-12), np.maximum(elapsed_s, 1e-300)
    z = np.log(e / median_s) / error
    upper = np.interp(z, _DEVIATIONS, _ABOVE)[:, None]
    near_s = median_s[:, None] * np.exp(error * _deviation(upper * above)) - elapsed_s[:, None]
    far_s = -np.log(above) * (elapsed_s * error / np.maximum(z, 3.0))[:, None]
    return np.maximum(np.where(z[:, None] > 3.0, far_s, near_s), 0.0)


def expected_s(may: Scenarios, g: OpenGraph, waiting: Ints, device: Ints, start_s: Floats, now_s: float) -> float:
    """Return when all is expected to be over, s, if each device runs its tasks in the order of their planned starts.

    Parameters
    ----------
    waiting : slots of what waits
    device, start_s : by slot, as planned
    """
    from hetero.plan.replanning.scenarios_kernels import ends

    order = waiting[np.lexsort((waiting, start_s[waiting]))]
    found_s = np.empty(may.more_s.shape[1])
    ends(g, order, device, *may, now_s, found_s)
    return float(found_s.mean())
