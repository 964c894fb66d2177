"""Lower bounds: what no placement can beat, whatever it does.

In: a table of seconds, task × device, and what waits for what. Out: seconds that every schedule needs at least.
It must not need a solver: each figure is a bound by weak duality, so a search that stops early is only less sharp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["LowerBound", "lower_bound"]

Floats: TypeAlias = NDArray[np.float64]
BoundCause: TypeAlias = Literal["path", "load", "window", "search"]

_ROUNDS = 120
_SEARCH_ROUNDS = 30
_SAMPLE = 2048
_SMALL = 20_000
_STEPS = 12
_PASSES = 5
_WINDOWS = 24


@dataclass(frozen=True, slots=True)
class LowerBound:
    """A lower bound of the makespan, and which argument gave it.

    Attributes
    ----------
    seconds
        Seconds.
    path_s
        Seconds, the longest chain of tasks, each on its fastest device.
    load_s
        Seconds, all work spread over all devices as if it could be cut at will.
    cause
        'path', 'load', 'window' (a part of the tasks, with the chains before and behind it) or 'search' (these again
        without the devices on which a task would end too late).
    """

    seconds: float
    path_s: float
    load_s: float
    cause: BoundCause


def lower_bound(
    seconds: Floats,
    after: Sequence[Sequence[int]] = (),
    width: Sequence[int] | None = None,
    *,
    rounds: int = _ROUNDS,
) -> LowerBound:
    """Return a time that no schedule can beat.

    Parameters
    ----------
    seconds
        Shape (n_tasks, n_devices), s; inf where a task cannot run.
    after
        For each task the rows that must finish before it begins, each smaller than its own.
    width
        For each task how many devices it takes together, 1 where not given.
    rounds
        How long to look for good weights; with fewer than 30 no search follows.

    Returns
    -------
    Bound
        transfers and waiting are left out, so it holds for every network

    Notes
    -----
    For any weights w >= 0 with sum 1 every schedule needs at least sum_t min_d w_d p_td: multiply each device's
    load by its weight and add. The best weights are looked for by a multiplicative subgradient. The bound is
    sharpened by leaving out pairs that cannot be in a schedule that ends by T (p_td with the chains around it, or the
    weighted load with t on d, exceeds T): when the rest needs more than T, no schedule ends by T. Chains
    give max over thresholds (h, q) of h + load(tasks that cannot begin before h nor end later than q before the
    end) + q.

    References
    ----------
    J. K. Lenstra, D. B. Shmoys, E. Tardos, "Approximation algorithms for scheduling unrelated parallel machines",
    Math. Programming 46, 1990: the pruned relaxation. E. B. Fernandez, B. Bussell, "Bounds on the number of
    processors and time for multiprocessor optimal schedules", IEEE Trans. Computers C-22, 1973: the windows.

    Examples
    --------
    >>> table = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]])
    >>> round(lower_bound(table).seconds, 3)
    2.0
    >>> lower_bound(table, [(), (0,), (1,)]).cause
    'path'
    """
    table = np.asarray(seconds, dtype=float)
    if not table.size:
        return LowerBound(0.0, 0.0, 0.0, "load")
    many = np.ones(len(table), dtype=np.int64) if width is None else np.asarray(width, dtype=np.int64)
    fastest = table.min(axis=1)
    heads, tails = _chains(fastest, after)
    path_s = float((heads + fastest + tails).max())
    costs = _costs(table, _best_weights(table, many, rounds), many)
    load_s = float(costs.sum())
    window_s = _windows(costs, heads, tails) if after else 0.0
    found: dict[BoundCause, float] = {"path": path_s, "load": load_s, "window": window_s}
    if table.size <= _SMALL and rounds >= _SEARCH_ROUNDS:
        found["search"] = _searched(table, after, many, max(found.values()))
    cause = max(found, key=lambda name: found[name])
    return LowerBound(found[cause], path_s, load_s, cause)


def _chains(fastest: Floats, after: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
    """Return for each task the longest chain before it and behind it, each on its fastest devices."""
    count = len(fastest)
    heads, tails, own = [0.0] * count, [0.0] * count, fastest.tolist()
    for task, parents in enumerate(after):
        for parent in parents:
            heads[task] = max(heads[task], heads[parent] + own[parent])
    for task in range(len(after) - 1, -1, -1):
        reach = tails[task] + own[task]
        for parent in after[task]:
            tails[parent] = max(tails[parent], reach)
    return np.array(heads), np.array(tails)


def _costs(table: Floats, weights: Floats, width: NDArray[np.int64]) -> Floats:
    """Return for each task the least weighted seconds that it takes of the fleet."""
    weighted = np.where(np.isfinite(table), table * weights, np.inf)
    costs: Floats = weighted.min(axis=1)
    for row in np.flatnonzero(width > 1):
        least = np.sort(weighted[row])[: width[row]]
        costs[row] = least[np.isfinite(least)].sum()
    return costs


def _best_weights(table: Floats, width: NDArray[np.int64], rounds: int) -> Floats:
    """Search the weights of devices that give the largest bound, on an even sample of the tasks."""
    rows = slice(None, None, max(1, len(table) // _SAMPLE))
    table, width = table[rows], width[rows]
    able = np.isfinite(table)
    fastest = np.maximum(table.min(axis=1, keepdims=True), 1e-12)
    ratios = np.log(np.maximum(np.where(able, table, 1.0), 1e-12) / fastest)
    counts = able.sum(axis=0)
    weights = np.exp(-np.where(counts > 0, (ratios * able).sum(axis=0) / np.maximum(counts, 1), 50.0))
    weights /= weights.sum()
    seconds = np.where(able, table, 0.0)
    best, best_s = weights, -1.0
    for step in range(rounds):
        costs = _costs(table, weights, width)
        if costs.sum() > best_s:
            best, best_s = weights, float(costs.sum())
        chosen = np.where(able, table * weights, np.inf).argmin(axis=1)
        spent = seconds[np.arange(len(table)), chosen] * width
        loads = np.bincount(chosen, weights=spent, minlength=table.shape[1])
        mean_s = float(loads @ weights)
        if mean_s <= 0.0:
            break
        weights = weights * np.exp(np.clip(loads / mean_s - 1.0, -2.0, 2.0) * (0.5 / (1.0 + 0.1 * step)))
        weights = np.maximum(weights / weights.sum(), 1e-12)
        weights /= weights.sum()
    return best


def _searched(table: Floats, after: Sequence[Sequence[int]], width: NDArray[np.int64], low_s: float) -> float:
    """Raise a bound by bisection: the largest time by which provably no schedule ends."""
    least_s, most_s = low_s, 2.0 * low_s + float(table.min(axis=1).max())
    for _ in range(_STEPS):
        middle_s = (least_s + most_s) / 2.0
        if _is_impossible(table, after, width, middle_s):
            least_s = middle_s
        else:
            most_s = middle_s
    return least_s


def _is_impossible(table: Floats, after: Sequence[Sequence[int]], width: NDArray[np.int64], by_s: float) -> bool:
    """Return whether provably no schedule ends by a time; a device on which a task would end too late is left out."""
    kept = table
    for _ in range(_PASSES):
        heads, tails = _chains(kept.min(axis=1), after)
        weights = _best_weights(kept, width, _SEARCH_ROUNDS)
        costs = _costs(kept, weights, width)
        if costs.sum() > by_s or _windows(costs, heads, tails) > by_s:
            return True
        heads, tails = _crowded(costs, after, heads, tails)
        needed = kept + (heads + tails)[:, None]
        instead = np.where(width[:, None] > 1, 0.0, costs.sum() - costs[:, None] + kept * weights)
        fewer = np.where(np.maximum(needed, instead) <= by_s, kept, np.inf)
        if np.isinf(fewer.min(axis=1)).any():
            return True
        if np.array_equal(fewer, kept):
            return False
        kept = fewer
    return False


def _crowded(costs: Floats, after: Sequence[Sequence[int]], heads: Floats, tails: Floats) -> tuple[Floats, Floats]:
    """Raise what comes before and behind each task to the work of all that must."""
    count = len(costs)
    before = np.zeros((count, count), dtype=bool)
    for task, parents in enumerate(after):
        for parent in parents:
            before[task] |= before[parent]
            before[task, parent] = True
    return np.maximum(heads, before @ costs), np.maximum(tails, before.T @ costs)


def _windows(costs: Floats, heads: Floats, tails: Floats) -> float:
    """Return the best of: the tasks that begin after h and end before q, with h and q around them."""
    steps = np.linspace(0.0, 1.0, _WINDOWS)
    after = np.unique(np.quantile(heads, steps, method="lower"))
    before = np.unique(np.quantile(tails, steps, method="lower"))
    rows = np.searchsorted(after, heads, side="right") - 1
    columns = np.searchsorted(before, tails, side="right") - 1
    work = np.bincount(rows * len(before) + columns, weights=costs, minlength=len(after) * len(before))
    inside = work.reshape(len(after), -1)[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
    found = np.where(inside > 0.0, after[:, None] + inside + before, 0.0)
    return float(found.max())
