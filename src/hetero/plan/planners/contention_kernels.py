"""The inner loop of list scheduling with transfers that share channels.

In: a `Problem`, `Routes` and arrays. Out: device, start and finish of each task, and the transfers. Compiled where
numba is installed; import it inside functions. It must not draw chance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetero.plan.compiled import njit
from hetero.plan.planners.contention import Moves, Routes
from hetero.plan.planners.list_kernels import fill, fit
from hetero.plan.problem import Floats, Ints, Problem

__all__ = ["contended"]

_GAPS = 64
"""So many idle gaps of a channel are known; when there are more, the earliest is forgotten."""


class Gaps(NamedTuple):
    """The idle gaps of devices or channels, a row each: where each begins and ends, s, and how many there are."""

    begin_s: Floats
    end_s: Floats
    many: Ints


@njit
def _by_finish(p: Problem, task: int, finish_s: Floats, edges: Ints) -> int:
    """Write the edges into a task, the one whose task finished first at first; returns their number."""
    first = p.pred_first[task]
    count: int = p.pred_first[task + 1] - first
    for i in range(count):
        e = first + i
        at = i
        while at > 0 and finish_s[p.pred[edges[at - 1]]] > finish_s[p.pred[e]]:
            edges[at] = edges[at - 1]
            at -= 1
        edges[at] = e
    return count


@njit
def _arrival(c: Routes, item: int, path: int, ready_s: float, gaps: Gaps) -> float:
    """Return when an item would be at the end of a path, nothing else being sent."""
    for hop in range(c.hop_first[path], c.hop_first[path + 1]):
        channel = c.hop_channel[hop]
        seconds = c.hop_latency_s[hop] + c.item_bytes[item] * c.hop_s_per_byte[hop]
        gap = fit(gaps.begin_s[channel], gaps.end_s[channel], gaps.many[channel], ready_s, seconds)
        ready_s = max(ready_s, gaps.begin_s[channel, gap]) + seconds
    return ready_s


@njit
def _send(c: Routes, item: int, path: int, ready_s: float, gaps: Gaps, sent: int, moves: Moves) -> int:
    """Take the time of an item's transfer out of the channels of its path; returns the new number of transfers."""
    for hop in range(c.hop_first[path], c.hop_first[path + 1]):
        channel = c.hop_channel[hop]
        begin_s, end_s = gaps.begin_s[channel], gaps.end_s[channel]
        seconds = c.hop_latency_s[hop] + c.item_bytes[item] * c.hop_s_per_byte[hop]
        gap = fit(begin_s, end_s, gaps.many[channel], ready_s, seconds)
        start = max(ready_s, begin_s[gap])
        ready_s = start + seconds
        gaps.many[channel] = fill(begin_s, end_s, gaps.many[channel], gap, start, ready_s)
        if gaps.many[channel] == _GAPS:
            for i in range(_GAPS - 1):
                begin_s[i], end_s[i] = begin_s[i + 1], end_s[i + 1]
            gaps.many[channel] -= 1
        moves.item[sent], moves.hop[sent], moves.start_s[sent], moves.finish_s[sent] = item, hop, start, ready_s
        sent += 1
    return sent


@njit
def _estimate(
    p: Problem, c: Routes, edges: Ints, there: int, device: Ints, finish_s: Floats, at_s: Floats, gaps: Gaps
) -> float:
    """Return when the inputs of a task would be on a memory node if they did not wait for one another."""
    ready_s = 0.0
    for e in edges:
        before, item = p.pred[e], c.pred_item[e]
        own_s, here = finish_s[before], p.node[device[before]]
        if item >= 0 and here != there:
            own_s = at_s[item, there]
            if own_s == np.inf:
                own_s = _arrival(c, item, here * c.n_nodes + there, finish_s[before], gaps)
        ready_s = max(ready_s, own_s)
    return ready_s


@njit
def contended(
    p: Problem,
    c: Routes,
    order: Ints,
    pinned: Ints,
    ahead_s: Floats,
    device: Ints,
    start_s: Floats,
    finish_s: Floats,
    moves: Moves,
) -> int:
    """Place the tasks in an order, and their transfers into idle gaps of channels; returns the number of transfers.

    `pinned` names a device or -1; `ahead_s` has a row a task, or no rows for EFT alone.
    """
    n, m = p.seconds.shape
    idle = Gaps(np.zeros((m, n + 1)), np.full((m, n + 1), np.inf), np.ones(m, dtype=np.int64))
    shape = (c.n_channels, _GAPS + 1)
    gaps = Gaps(np.zeros(shape), np.full(shape, np.inf), np.ones(c.n_channels, dtype=np.int64))
    at_s = np.full((len(c.item_task), c.n_nodes), np.inf)
    arrive_s = np.empty(c.n_nodes)
    edges = np.empty(max(1, len(p.pred)), dtype=np.int64)
    looks = ahead_s.shape[0] > 0
    sent = 0
    for task in order:
        inputs = edges[: _by_finish(p, task, finish_s, edges)]
        arrive_s[:] = -1.0
        least, chosen = np.inf, -1
        for d in range(m):
            seconds = p.seconds[task, d]
            if (pinned[task] >= 0 and pinned[task] != d) or seconds == np.inf:
                continue
            there = p.node[d]
            if arrive_s[there] < 0.0:
                arrive_s[there] = _estimate(p, c, inputs, there, device, finish_s, at_s, gaps)
            gap = fit(idle.begin_s[d], idle.end_s[d], idle.many[d], arrive_s[there], seconds)
            value = max(idle.begin_s[d, gap], arrive_s[there]) + seconds
            if looks:
                value += ahead_s[task, d]
            if value < least:
                least, chosen = value, d
        there = p.node[chosen]
        for e in inputs:
            before, item = p.pred[e], c.pred_item[e]
            here = p.node[device[before]]
            if item >= 0 and here != there and at_s[item, there] == np.inf:
                sent = _send(c, item, here * c.n_nodes + there, finish_s[before], gaps, sent, moves)
                at_s[item, there] = moves.finish_s[sent - 1]
        ready_s = _estimate(p, c, inputs, there, device, finish_s, at_s, gaps)
        begin_s, end_s, count = idle.begin_s[chosen], idle.end_s[chosen], idle.many[chosen]
        gap = fit(begin_s, end_s, count, ready_s, p.seconds[task, chosen])
        start = max(begin_s[gap], ready_s)
        finish = start + p.seconds[task, chosen]
        idle.many[chosen] = fill(begin_s, end_s, count, gap, start, finish)
        device[task], start_s[task], finish_s[task] = chosen, start, finish
    return sent
