"""Lower bounds of the makespan of a task graph: what no schedule can beat.

In: a `Problem`. Out: seconds. It must not use a schedule: a bound holds for every one of them.
"""

from __future__ import annotations

import math

import numpy as np

from hetero.floor.extras import is_there
from hetero.plan.problem import Floats, Problem

__all__ = [
    "area_bound",
    "critical_path_bound",
    "device_classes",
    "grain",
    "in_whole_grains",
    "least_heads",
    "least_tails",
    "left_out",
    "priced_seconds",
]

_ROUNDS, _CUTS = 150, 25
_THRESHOLDS = 48
_GRAINS_A_SECOND = (1, 4, 64, 1024, 10, 100, 1000, 10**6)
_GRAINS_AT_MOST = 10**6
"""A grain must be no less than a millionth of the longest task: smaller ones say nothing."""

_PRICE_ROUNDS = 150


def device_classes(p: Problem) -> list[list[int]]:
    """Return the devices in groups that are alike: the same memory node, the same seconds for every task."""
    groups: dict[tuple[int, bytes], list[int]] = {}
    for device in range(len(p.node)):
        groups.setdefault((int(p.node[device]), p.seconds[:, device].tobytes()), []).append(device)
    return list(groups.values())


def priced_seconds(p: Problem) -> Floats:
    """Return l_d * w(i, d), shape (n_tasks, n_devices): the seconds of each task, at the price of each device.

    Notes
    -----
    The prices l >= 0, the sum of which is 1, are near the maximum of the sum over tasks of min over d of
    l_d * w(i, d): the dual of the relaxation in which tasks may be split over devices. A fast device that all want
    is dear. They are found by multiplicative weights: each round makes a class of devices dearer that gets more
    than the mean of the work.

    References
    ----------
    S. Arora, E. Hazan, S. Kale, "The multiplicative weights update method", Theory of Computing 8 (2012), 121-164.
    """
    from hetero.plan.bounds.area_kernels import class_prices

    classes = device_classes(p)
    counts = np.array([len(group) for group in classes], dtype=np.float64)
    prices = class_prices(np.ascontiguousarray(p.seconds[:, [group[0] for group in classes]]), counts, _PRICE_ROUNDS)
    each = np.empty(len(p.node))
    for group, price in zip(classes, prices, strict=True):
        each[group] = price
    return p.seconds * each


def left_out(priced: Floats, within: float) -> Floats:
    """Return inf where a device is dearer for a task than `within` times its cheapest, 0 elsewhere.

    Examples
    --------
    >>> left_out(np.array([[1.0, 1.4, 3.0]]), 1.5)
    array([[ 0.,  0., inf]])
    """
    return np.where(priced <= within * priced.min(axis=1, keepdims=True), 0.0, np.inf)


def least_tails(p: Problem) -> Floats:
    """Return the least seconds from each task's finish on each memory node to the end, shape (n_tasks, n_nodes).

    Notes
    -----
    tail(i, a) = max over successors j of min over devices d of (transfer_ij(a, node(d)) + w(j, d) + tail(j, node(d))).
    """
    from hetero.plan.planners.list_kernels import tails

    found: Floats = tails(p)
    return found


def least_heads(p: Problem) -> Floats:
    """Return the least seconds from the start until each task's inputs are on each memory node."""
    from hetero.plan.planners.list_kernels import heads

    found: Floats = heads(p)
    return found


def critical_path_bound(p: Problem) -> float:
    """Return the longest path through the graph, each task on the device that suits the path, unavoidable transfers in.

    Notes
    -----
    max over tasks i of min over devices d of (head(i, node(d)) + w(i, d) + tail(i, node(d))): a path may change
    devices only by paying for the transfer, and never waits for a device.
    """
    if not len(p.order):
        return 0.0
    through = least_heads(p)[:, p.node] + p.seconds + least_tails(p)[:, p.node]
    return float(through.min(axis=1).max())


def grain(p: Problem) -> float:
    """Return the s of which all times of a problem are whole multiples, so that every makespan is one; 0 for none.

    Notes
    -----
    Each task of a shortest schedule starts at 0 or when another task or a transfer ends. So a makespan is a sum of
    seconds of tasks and transfers, and a multiple of whatever they all are multiples of.
    """
    own_s = p.seconds[np.isfinite(p.seconds)]
    sizes = np.unique(p.pred_bytes[p.pred_bytes > 0.0])
    between = ~np.eye(len(p.latency_s), dtype=np.bool_)
    travel_s = np.add.outer(sizes * 0.0, p.latency_s[between]) + np.outer(sizes, p.s_per_byte[between])
    times = np.unique(np.concatenate([own_s, travel_s.ravel()]))
    for each in _GRAINS_A_SECOND:
        grains = np.rint(times * each)
        if grains.max(initial=0.0) > _GRAINS_AT_MOST:
            return 0.0
        if np.abs(times * each - grains).max(initial=0.0) <= 1e-9 * grains.max(initial=0.0):
            return float(np.gcd.reduce(grains.astype(np.int64))) / each
    return 0.0


def in_whole_grains(bound_s: float, grain_s: float) -> float:
    """Raise a bound of the makespan to the next multiple of the grain.

    Examples
    --------
    >>> [round(in_whole_grains(bound_s, 0.25), 3) for bound_s in (32.7501, 32.7499999999)]
    [33.0, 32.75]
    """
    if grain_s <= 0.0:
        return bound_s
    return max(bound_s, math.ceil(bound_s / grain_s - 1e-6) * grain_s * (1.0 - 1e-9))


def area_bound(p: Problem) -> float:
    """Return the area relaxation's bound: tasks may be split over devices, but every device has only so much time.

    Notes
    -----
    For the tasks S whose least head is >= r and whose least tail is >= q, no schedule is shorter than r + q + T(S):
    T(S) = min T with sum over c of x_ic = 1 for i in S, sum over i of x_ic * w_ic <= k_c * T, x >= 0, c over the
    classes of k_c like devices. By duality T(S) = max over l >= 0 with sum of k_c * l_c = 1 of the sum over i in S
    of min over c of l_c * w_ic. The maximum is sought by multiplicative weights, then by cutting planes, each a
    small linear program; any l gives a bound, so the result holds also where the search ends early. q runs over 48
    quantiles, r over all heads.

    Without SciPy there are no cutting planes, and the bound may be some percent lower.

    References
    ----------
    J. E. Kelley, "The cutting-plane method for solving convex programs", J. SIAM 8 (1960), 703-712.
    """
    if not len(p.order):
        return 0.0
    classes = device_classes(p)
    counts = np.array([len(group) for group in classes], dtype=np.float64)
    seconds = p.seconds[:, [group[0] for group in classes]]
    allowed = np.isfinite(p.seconds)
    head_s = np.where(allowed, least_heads(p)[:, p.node], np.inf).min(axis=1)
    tail_s = np.where(allowed, least_tails(p)[:, p.node], np.inf).min(axis=1)
    chosen = np.ones(len(seconds), dtype=np.bool_)
    best = 0.0
    for _ in range(4):
        prices = _best_prices(seconds[chosen], counts)
        bound, r, q = _best_window(_areas(seconds, prices), head_s, tail_s)
        if bound <= best * (1.0 + 1e-6):
            break
        best = bound
        chosen = (head_s >= r) & (tail_s >= q)
    return in_whole_grains(best * (1.0 - 1e-9), grain(p))


def _areas(seconds: Floats, prices: Floats) -> Floats:
    """Return min over c of price_c * w_ic, a class that cannot run the task left out."""
    with np.errstate(invalid="ignore"):
        priced = np.where(np.isfinite(seconds), seconds * prices, np.inf)
    cheapest: Floats = priced.min(axis=1)
    return cheapest


def _best_window(area_s: Floats, head_s: Floats, tail_s: Floats) -> tuple[float, float, float]:
    """Return the greatest r + q + area of the tasks with head >= r and tail >= q, and its r and q."""
    by = np.argsort(-head_s, kind="stable")
    head_s, tail_s, area_s = head_s[by], tail_s[by], area_s[by]
    best = (0.0, 0.0, 0.0)
    for q in np.unique(np.quantile(tail_s, np.linspace(0.0, 1.0, _THRESHOLDS), method="lower")):
        taken = tail_s >= q
        total = head_s + q + np.cumsum(np.where(taken, area_s, 0.0))
        at = int(np.argmax(np.where(taken, total, 0.0)))
        if total[at] > best[0]:
            best = (float(total[at]), float(head_s[at]), float(q))
    return best


def _best_prices(seconds: Floats, counts: Floats) -> Floats:
    """Return the prices l of the area relaxation, sum of k_c * l_c = 1, by cutting planes."""
    from hetero.plan.bounds.area_kernels import class_prices

    prices: Floats = class_prices(np.ascontiguousarray(seconds), counts, _ROUNDS)
    if not is_there("scipy") or len(counts) == 1:
        return prices
    from scipy.optimize import linprog

    best, best_prices = -1.0, prices
    cuts: list[Floats] = []
    for _ in range(_CUTS):
        with np.errstate(invalid="ignore"):
            priced = np.where(np.isfinite(seconds), seconds * prices, np.inf)
        cheapest = priced.argmin(axis=1)
        value = float(priced[np.arange(len(seconds)), cheapest].sum())
        if value > best:
            best, best_prices = value, prices
        own = seconds[np.arange(len(seconds)), cheapest]
        cuts.append(np.bincount(cheapest, weights=own, minlength=len(counts)).astype(np.float64))
        rows = np.hstack([-np.array(cuts), np.ones((len(cuts), 1))])
        cost = np.zeros(len(counts) + 1)
        cost[-1] = -1.0
        found = linprog(cost, rows, np.zeros(len(cuts)), np.append(counts, 0.0)[None, :], [1.0], method="highs")
        if not found.success or -found.fun <= best * (1.0 + 1e-5):
            break
        prices = np.maximum(found.x[:-1], 0.0)
        prices = prices / (prices * counts).sum()
    return best_prices
