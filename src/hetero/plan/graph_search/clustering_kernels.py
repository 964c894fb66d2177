"""The inner loops of clustering: which tasks of a graph belong on one device, and which device that is.

In: a `Problem`, seconds a task and an edge. Out: the number of a cluster for each task, or devices. Compiled where
numba is installed; import it inside functions.
"""

from __future__ import annotations

import numpy as np

from hetero.plan.compiled import njit
from hetero.plan.problem import Floats, Ints, Problem

__all__ = ["by_dominant_sequence", "by_edge_zeroing", "by_paths", "mapped"]


@njit
def by_paths(p: Problem, work_s: Floats, travel_s: Floats) -> Ints:
    """Cut the graph into paths: time after time the longest path of what is left is one (linear clustering)."""
    n = len(work_s)
    cluster = np.full(n, -1, dtype=np.int64)
    rank = np.empty(n)
    behind = np.empty(n, dtype=np.int64)
    left, number = n, 0
    while left > 0:
        head, longest = -1, -1.0
        for at in range(n - 1, -1, -1):
            i = p.order[at]
            if cluster[i] >= 0:
                continue
            rank[i], behind[i] = 0.0, -1
            for e in range(p.succ_first[i], p.succ_first[i + 1]):
                j = p.succ[e]
                if cluster[j] < 0 and travel_s[e] + rank[j] > rank[i]:
                    rank[i], behind[i] = travel_s[e] + rank[j], j
            rank[i] += work_s[i]
            if rank[i] > longest:
                head, longest = i, rank[i]
        while head >= 0:
            cluster[head] = number
            left -= 1
            head = behind[head]
        number += 1
    return cluster


@njit
def _span(p: Problem, order: Ints, work_s: Floats, travel_s: Floats, cluster: Ints, finish_s: Floats) -> float:
    """Return the makespan with a device for each cluster, on which its tasks follow one another in an order."""
    n = len(work_s)
    free_s, ready_s = np.zeros(n), np.zeros(n)
    span_s = 0.0
    for i in order:
        finish_s[i] = max(free_s[cluster[i]], ready_s[i]) + work_s[i]
        free_s[cluster[i]] = finish_s[i]
        span_s = max(span_s, finish_s[i])
        for e in range(p.succ_first[i], p.succ_first[i + 1]):
            j = p.succ[e]
            ready_s[j] = max(ready_s[j], finish_s[i] + (travel_s[e] if cluster[i] != cluster[j] else 0.0))
    return span_s


@njit
def by_edge_zeroing(p: Problem, order: Ints, work_s: Floats, travel_s: Floats, edges: Ints, source: Ints) -> Ints:
    """Join the clusters of two ends of an edge, the dearest edges first, wherever the makespan grows no longer."""
    n = len(work_s)
    cluster = np.arange(n)
    tried = cluster.copy()
    finish_s = np.empty(n)
    span_s = _span(p, order, work_s, travel_s, cluster, finish_s)
    for e in edges:
        one, other = cluster[source[e]], cluster[p.succ[e]]
        if one == other:
            continue
        for i in range(n):
            tried[i] = one if cluster[i] == other else cluster[i]
        joined_s = _span(p, order, work_s, travel_s, tried, finish_s)
        if joined_s <= span_s:
            span_s = joined_s
            cluster[:] = tried
    return cluster


@njit
def by_dominant_sequence(p: Problem, order: Ints, work_s: Floats, travel_s: Floats, source: Ints) -> Ints:
    """Join each task to the cluster of that predecessor behind which it would start first, if it gains by that."""
    n = len(work_s)
    cluster = np.arange(n)
    free_s, finish_s = np.zeros(n), np.zeros(n)
    first = np.zeros(n + 1, dtype=np.int64)
    into = np.empty(len(p.succ), dtype=np.int64)
    for e in range(len(p.succ)):
        first[p.succ[e] + 1] += 1
    for i in range(n):
        first[i + 1] += first[i]
    filled = first[:-1].copy()
    for e in range(len(p.succ)):
        into[filled[p.succ[e]]] = e
        filled[p.succ[e]] += 1
    for i in order:
        least, chosen = 0.0, i
        for at in range(first[i], first[i + 1]):
            least = max(least, finish_s[source[into[at]]] + travel_s[into[at]])
        for at in range(first[i], first[i + 1]):
            own = cluster[source[into[at]]]
            start = free_s[own]
            for other in range(first[i], first[i + 1]):
                e = into[other]
                start = max(start, finish_s[source[e]] + (travel_s[e] if cluster[source[e]] != own else 0.0))
            if start < least:
                least, chosen = start, own
        cluster[i] = chosen
        finish_s[i] = least + work_s[i]
        free_s[chosen] = finish_s[i]
    return cluster


@njit
def mapped(p: Problem, cluster: Ints, source: Ints, weight: float, allowed: Ints) -> Ints:
    """Return a device for each task: clusters go, the one with the most work first, where load + transfers are least.

    `weight` says how much a second of a transfer counts; `allowed` is 0 for a device that stays empty. A task that
    cannot run on its cluster's device goes where it is fastest.
    """
    n, m = p.seconds.shape
    work = np.zeros((n, m))
    lacks = np.zeros((n, m))
    size = np.zeros(n)
    fastest = np.empty(n, dtype=np.int64)
    for i in range(n):
        fastest[i] = np.argmin(p.seconds[i])
        for d in range(m):
            if p.seconds[i, d] < np.inf:
                work[cluster[i], d] += p.seconds[i, d]
            else:
                lacks[cluster[i], d] += 1.0
        size[cluster[i]] += p.seconds[i, fastest[i]]
    load = np.zeros(m)
    device = np.full(n, -1, dtype=np.int64)
    home = np.full(n, -1, dtype=np.int64)
    price = np.empty(m)
    for own in np.argsort(-size):
        if size[own] <= 0.0:
            break
        price[:] = load + work[own] + 1e6 * lacks[own] * size.max()
        for e in range(len(p.succ)):
            a, b = cluster[source[e]], cluster[p.succ[e]]
            if a == b or p.succ_bytes[e] <= 0.0 or (a != own and b != own):
                continue
            other = home[b if a == own else a]
            if other >= 0:
                for d in range(m):
                    here, there = (p.node[d], p.node[other]) if a == own else (p.node[other], p.node[d])
                    if here != there:
                        price[d] += weight * (p.latency_s[here, there] + p.succ_bytes[e] * p.s_per_byte[here, there])
        chosen = -1
        for d in range(m):
            if allowed[d] > 0 and (chosen < 0 or price[d] < price[chosen]):
                chosen = d
        home[own] = chosen
        load[chosen] += work[own, chosen]
    for i in range(n):
        device[i] = home[cluster[i]]
        if device[i] < 0 or p.seconds[i, device[i]] == np.inf:
            device[i] = fastest[i]
    return device
