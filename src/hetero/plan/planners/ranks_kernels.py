"""The inner loops of the ranks: longest paths up and down a task graph.

In: a `Problem` and arrays. Out: arrays. Compiled where numba is installed; import it inside functions.
"""

from __future__ import annotations

import numpy as np

from hetero.plan.compiled import njit
from hetero.plan.problem import Floats, Problem

__all__ = ["downward", "heads", "optimistic", "tails", "upward"]


@njit
def upward(p: Problem, work_s: Floats, latency_s: float, s_per_byte: float) -> Floats:
    """Return rank_u(i) = w_i + max over successors j of (c_ij + rank_u(j))."""
    rank = work_s.copy()
    for at in range(len(p.order) - 1, -1, -1):
        i = p.order[at]
        longest = 0.0
        for e in range(p.succ_first[i], p.succ_first[i + 1]):
            c = latency_s + p.succ_bytes[e] * s_per_byte if p.succ_bytes[e] > 0.0 else 0.0
            longest = max(longest, c + rank[p.succ[e]])
        rank[i] += longest
    return rank


@njit
def downward(p: Problem, work_s: Floats, latency_s: float, s_per_byte: float) -> Floats:
    """Return rank_d(i) = max over predecessors j of (rank_d(j) + w_j + c_ji)."""
    rank = np.zeros(len(work_s))
    for i in p.order:
        for e in range(p.pred_first[i], p.pred_first[i + 1]):
            j = p.pred[e]
            c = latency_s + p.pred_bytes[e] * s_per_byte if p.pred_bytes[e] > 0.0 else 0.0
            rank[i] = max(rank[i], rank[j] + work_s[j] + c)
    return rank


@njit
def optimistic(p: Problem, latency_s: float, s_per_byte: float) -> Floats:
    """Return OCT(i, d) = max over successors j of min over e of (OCT(j, e) + w(j, e) + c_ij where nodes differ)."""
    n, m = p.seconds.shape
    k = p.latency_s.shape[0]
    oct_s = np.zeros((n, m))
    at_node = np.empty(k)
    for at in range(n - 1, -1, -1):
        i = p.order[at]
        for edge in range(p.succ_first[i], p.succ_first[i + 1]):
            j = p.succ[edge]
            c = latency_s + p.succ_bytes[edge] * s_per_byte if p.succ_bytes[edge] > 0.0 else 0.0
            at_node[:] = np.inf
            anywhere = np.inf
            for e in range(m):
                value = oct_s[j, e] + p.seconds[j, e]
                at_node[p.node[e]] = min(at_node[p.node[e]], value)
                anywhere = min(anywhere, value)
            for d in range(m):
                oct_s[i, d] = max(oct_s[i, d], min(at_node[p.node[d]], anywhere + c))
    return oct_s


@njit
def tails(p: Problem) -> Floats:
    """Return for each task and memory node the least seconds from the task's finish there to the end of the graph."""
    n, m = p.seconds.shape
    k = p.latency_s.shape[0]
    tail_s = np.zeros((n, k))
    at_node = np.empty(k)
    for at in range(n - 1, -1, -1):
        i = p.order[at]
        for edge in range(p.succ_first[i], p.succ_first[i + 1]):
            j = p.succ[edge]
            at_node[:] = np.inf
            for e in range(m):
                there = p.node[e]
                at_node[there] = min(at_node[there], p.seconds[j, e] + tail_s[j, there])
            for here in range(k):
                least = at_node[here]
                for there in range(k):
                    c = 0.0
                    if here != there and p.succ_bytes[edge] > 0.0:
                        c = p.latency_s[here, there] + p.succ_bytes[edge] * p.s_per_byte[here, there]
                    least = min(least, c + at_node[there])
                tail_s[i, here] = max(tail_s[i, here], least)
    return tail_s


@njit
def heads(p: Problem) -> Floats:
    """Return for each task and memory node the least seconds from the start until its inputs are there."""
    n, m = p.seconds.shape
    k = p.latency_s.shape[0]
    head_s = np.zeros((n, k))
    at_node = np.empty(k)
    for i in p.order:
        for edge in range(p.pred_first[i], p.pred_first[i + 1]):
            j = p.pred[edge]
            at_node[:] = np.inf
            for e in range(m):
                there = p.node[e]
                at_node[there] = min(at_node[there], head_s[j, there] + p.seconds[j, e])
            for here in range(k):
                least = at_node[here]
                for there in range(k):
                    c = 0.0
                    if here != there and p.pred_bytes[edge] > 0.0:
                        c = p.latency_s[there, here] + p.pred_bytes[edge] * p.s_per_byte[there, here]
                    least = min(least, at_node[there] + c)
                head_s[i, here] = max(head_s[i, here], least)
    return head_s
