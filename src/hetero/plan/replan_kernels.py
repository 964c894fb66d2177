"""The inner loops of re-planning: list schedules of what is left of a graph, from the state in which devices are.

In: a `Graph` and arrays. Out: device, start and finish of each task that waits, or ranks. Compiled where numba is
installed; import it inside functions. It must not draw chance.
"""

from __future__ import annotations

import numpy as np

from hetero.plan.compiled import njit
from hetero.plan.outlook import Graph
from hetero.plan.problem import Floats, Ints

__all__ = ["place_rest", "raised", "ranks"]

_FINISHED = 2


@njit
def _arrivals(g: Graph, task: int, now_s: float, device: Ints, finish_s: Floats, arrive_s: Floats) -> None:
    """Write when what a task needs is on each memory node."""
    arrive_s[:] = now_s
    for e in range(g.pred_first[task], g.pred_first[task + 1]):
        before = g.pred[e]
        here = g.node[device[before]]
        over = g.phase[before] == _FINISHED
        end_s = now_s if over else finish_s[before]
        nbytes = g.nbytes[before] if over else g.kind_bytes[g.kind[before]]
        travels = g.pred_data[e] == 1 and nbytes > 0.0
        for there in range(len(arrive_s)):
            at_s = end_s
            if travels and there != here and not (over and g.has[before, there] == 1):
                at_s += g.latency_s[here, there] + nbytes * g.s_per_byte[here, there]
            if at_s > arrive_s[there]:
                arrive_s[there] = at_s


@njit
def _gap(begin_s: Floats, end_s: Floats, count: int, ready_s: float, seconds: float) -> int:
    """Give the first idle gap of a device in which a task fits; the last has no end."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        if end_s[middle] < ready_s:
            low = middle + 1
        else:
            high = middle
    while max(begin_s[low], ready_s) + seconds > end_s[low]:
        low += 1
    return low


@njit
def _take(begin_s: Floats, end_s: Floats, count: int, gap: int, start_s: float, finish_s: float) -> int:
    """Take [start, finish] out of an idle gap; gives the new number of gaps."""
    if start_s > begin_s[gap]:
        if finish_s < end_s[gap]:
            for i in range(count, gap, -1):
                begin_s[i] = begin_s[i - 1]
                end_s[i] = end_s[i - 1]
            begin_s[gap + 1] = finish_s
            count += 1
        end_s[gap] = start_s
    elif finish_s < end_s[gap]:
        begin_s[gap] = finish_s
    else:
        for i in range(gap, count - 1):
            begin_s[i] = begin_s[i + 1]
            end_s[i] = end_s[i + 1]
        count -= 1
    return count


@njit
def place_rest(
    g: Graph,
    order: Ints,
    pinned: Ints,
    ahead_s: Floats,
    free_s: Floats,
    now_s: float,
    device: Ints,
    start_s: Floats,
    finish_s: Floats,
) -> tuple[float, float]:
    """Place tasks that wait, each where EFT + ahead is least, into idle gaps; gives makespan and sum of finishes.

    `free_s` is when each device has ended what it runs, inf for one that takes nothing. `device` and `finish_s`
    hold those of the tasks that run. `pinned` names a device for each entry of `order`, or -1; `ahead_s` has a row
    a slot, or no rows.
    """
    m = g.seconds.shape[1]
    begin_s = np.empty((m, len(order) + 1))
    end_s = np.empty((m, len(order) + 1))
    begin_s[:, 0] = free_s
    end_s[:, 0] = np.inf
    count = np.ones(m, dtype=np.int64)
    arrive_s = np.empty(g.latency_s.shape[0])
    looks = ahead_s.shape[0] > 0
    last_s, total_s = now_s, 0.0
    for at in range(len(order)):
        task = order[at]
        _arrivals(g, task, now_s, device, finish_s, arrive_s)
        seconds = g.seconds[g.kind[task]]
        least, chosen, chosen_gap = np.inf, -1, 0
        for attempt in range(2):
            for d in range(m):
                if attempt == 0 and pinned[at] >= 0 and d != pinned[at]:
                    continue
                value = max(arrive_s[g.node[d]], begin_s[d, 0]) + seconds[d]
                if looks and attempt == 0:
                    value += ahead_s[task, d]
                if value >= least:
                    continue
                gap = _gap(begin_s[d], end_s[d], count[d], arrive_s[g.node[d]], seconds[d])
                value = max(begin_s[d, gap], arrive_s[g.node[d]]) + seconds[d]
                if looks and attempt == 0:
                    value += ahead_s[task, d]
                if value < least:
                    least, chosen, chosen_gap = value, d, gap
            if chosen >= 0:
                break
        if chosen < 0:
            device[task], start_s[task], finish_s[task] = 0, np.inf, np.inf
            continue
        start = max(begin_s[chosen, chosen_gap], arrive_s[g.node[chosen]])
        finish = start + seconds[chosen]
        count[chosen] = _take(begin_s[chosen], end_s[chosen], count[chosen], chosen_gap, start, finish)
        device[task], start_s[task], finish_s[task] = chosen, start, finish
        last_s = max(last_s, finish)
        total_s += finish - now_s
    return last_s, total_s


@njit
def ranks(g: Graph, fastest: Floats, mean: Floats, optimistic: Floats) -> None:
    """Write upward ranks of the tasks that are not over, over the fastest device and the mean, and the
    optimistic cost table; tasks come after what they need, so one pass from the last to the first does it."""
    n, m = len(g.phase), g.seconds.shape[1]
    nodes = g.latency_s.shape[0]
    latency, per_byte = 0.0, 0.0
    for a in range(m):
        for b in range(m):
            latency += g.latency_s[g.node[a], g.node[b]]
            per_byte += g.s_per_byte[g.node[a], g.node[b]]
    latency /= max(1, m * (m - 1))
    per_byte /= max(1, m * (m - 1))
    fastest[:] = 0.0
    mean[:] = 0.0
    optimistic[:] = 0.0
    by_node = np.empty(nodes)
    for task in range(n - 1, -1, -1):
        if g.phase[task] == _FINISHED:
            continue
        least, total, able = np.inf, 0.0, 0
        by_node[:] = np.inf
        overall = np.inf
        for d in range(m):
            seconds = g.seconds[g.kind[task], d]
            if seconds == np.inf:
                continue
            least = min(least, seconds)
            total += seconds
            able += 1
            value = seconds + optimistic[task, d]
            overall = min(overall, value)
            by_node[g.node[d]] = min(by_node[g.node[d]], value)
        if able == 0:
            continue
        fastest[task] += least
        mean[task] += total / able
        for e in range(g.pred_first[task], g.pred_first[task + 1]):
            before = g.pred[e]
            if g.phase[before] == _FINISHED:
                continue
            nbytes = g.kind_bytes[g.kind[before]] if g.pred_data[e] == 1 else 0.0
            travel = latency + nbytes * per_byte if nbytes > 0.0 else 0.0
            fastest[before] = max(fastest[before], travel + fastest[task])
            mean[before] = max(mean[before], travel + mean[task])
            for d in range(m):
                value = min(by_node[g.node[d]], overall + travel)
                if value > optimistic[before, d]:
                    optimistic[before, d] = value


@njit
def raised(g: Graph, keys: Floats) -> None:
    """Raise keys to those of what needs the task, so that no task goes before what it needs."""
    for task in range(len(keys) - 1, -1, -1):
        for e in range(g.pred_first[task], g.pred_first[task + 1]):
            if keys[g.pred[e]] < keys[task]:
                keys[g.pred[e]] = keys[task]
