"""Ranks: how urgent each task of a graph is.

In: a `Problem`. Out: one number a task, higher first, or the optimistic cost table. It must not place anything.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hetero.plan.problem import Floats, Ints, Problem

__all__ = ["RANKS", "by_rank", "downward_rank", "mean_transfer", "optimistic_costs", "rank", "upward_rank", "work"]


Bools = NDArray[np.bool_]


def _mean(seconds: Floats, allowed: Bools) -> Floats:
    found: Floats = np.where(allowed, seconds, 0.0).sum(axis=1) / allowed.sum(axis=1)
    return found


def _fastest(seconds: Floats, allowed: Bools) -> Floats:
    found: Floats = np.where(allowed, seconds, np.inf).min(axis=1)
    return found


def _geometric(seconds: Floats, allowed: Bools) -> Floats:
    logs = np.log(np.maximum(np.where(allowed, seconds, 1.0), 1e-300))
    found: Floats = np.exp(logs.sum(axis=1) / allowed.sum(axis=1))
    return found


def _harmonic(seconds: Floats, allowed: Bools) -> Floats:
    inverse = np.where(allowed, 1.0 / np.maximum(np.where(allowed, seconds, 1.0), 1e-300), 0.0)
    found: Floats = allowed.sum(axis=1) / inverse.sum(axis=1)
    return found


def _median(seconds: Floats, allowed: Bools) -> Floats:
    found: Floats = np.nanmedian(np.where(allowed, seconds, np.nan), axis=1)
    return found


_WORK: dict[str, Callable[[Floats, Bools], Floats]] = {
    "mean": _mean,
    "fastest": _fastest,
    "geometric": _geometric,
    "harmonic": _harmonic,
    "median": _median,
}

RANKS = (*_WORK, "optimistic")
"""The ranks by name: upward ranks over a mean of each task's seconds, and the mean of the optimistic cost table."""


def work(p: Problem, over: str) -> Floats:
    """Return one number of seconds a task out of its seconds on the devices that can run it.

    Parameters
    ----------
    over
        'mean', 'fastest', 'geometric', 'harmonic' or 'median'.
    """
    return _WORK[over](p.seconds, np.isfinite(p.seconds))


def mean_transfer(p: Problem) -> tuple[float, float]:
    """Return the mean latency and the mean seconds a byte over all ordered pairs of different devices.

    Notes
    -----
    Two devices of one memory node count with 0.
    """
    m = len(p.node)
    if m < 2:
        return 0.0, 0.0
    pairs = np.ix_(p.node, p.node)
    return float(p.latency_s[pairs].sum() / (m * (m - 1))), float(p.s_per_byte[pairs].sum() / (m * (m - 1)))


def upward_rank(p: Problem, over: str = "mean") -> Floats:
    """Return the upward rank of each task, s.

    Notes
    -----
    rank_u(n_i) = w_i + max over n_j in succ(n_i) of (c_ij + rank_u(n_j)), with w_i a mean of the seconds of n_i
    over the devices and c_ij the mean cost of the transfer.

    References
    ----------
    H. Topcuoglu, S. Hariri, M.-Y. Wu, "Performance-effective and low-complexity task scheduling for
    heterogeneous computing", IEEE TPDS 13 (2002), 260-274, equation 5. The other means than the arithmetic
    one are from H. Zhao, R. Sakellariou, "An experimental investigation into the rank function of the
    heterogeneous earliest finish time scheduling algorithm", Euro-Par 2003.
    """
    from hetero.plan.planners.list_kernels import upward

    ranked: Floats = upward(p, work(p, over), *mean_transfer(p))
    return ranked


def downward_rank(p: Problem) -> Floats:
    """Return the downward rank of each task, s: the longest mean path from a start to the task, without itself.

    References
    ----------
    Topcuoglu, Hariri, Wu 2002, equation 6.
    """
    from hetero.plan.planners.list_kernels import downward

    ranked: Floats = downward(p, work(p, "mean"), *mean_transfer(p))
    return ranked


def optimistic_costs(p: Problem) -> Floats:
    """Return the optimistic cost table, shape (n_tasks, n_devices), s.

    Notes
    -----
    OCT(t_i, p_k) = max over t_j in succ(t_i) of min over p_w of (OCT(t_j, p_w) + w(t_j, p_w) + c_ij), where
    c_ij is the mean cost of the transfer, 0 where p_w and p_k share a memory node.

    References
    ----------
    H. Arabnejad, J. G. Barbosa, "List scheduling algorithm for heterogeneous systems by an optimistic cost
    table", IEEE TPDS 25 (2014), 682-694, equation 3.
    """
    from hetero.plan.planners.list_kernels import optimistic

    table: Floats = optimistic(p, *mean_transfer(p))
    return table


def rank(p: Problem, name: str) -> Floats:
    """Return the rank of that name, one of `RANKS`; higher goes first."""
    if name == "optimistic":
        return _mean(optimistic_costs(p), np.isfinite(p.seconds))
    return upward_rank(p, name)


def by_rank(p: Problem, keys: Floats) -> Ints:
    """Return the order in which always the ready task of the highest key is next; ties go to the lower index."""
    from hetero.plan.planners.list_kernels import by_keys

    order = np.empty(len(keys), dtype=np.int64)
    by_keys(p, keys, order)
    return order
