"""The inner loops of re-planning: list schedules of what is left of a graph, and when a schedule ends in other times.

In: a `OpenGraph` and arrays. Out: device, start and finish of each task that waits, or ranks. Compiled where numba is
installed; import it inside functions. It must not draw chance.
"""

from __future__ import annotations

import numpy as np

from hetero.plan.compiled import njit, njit_in_place
from hetero.plan.problem import Floats, Ints
from hetero.plan.replanning.lookahead import OpenGraph

__all__ = ["ends", "place_rest", "raised", "ranks"]

_FINISHED = 2


@njit_in_place
def _arrivals(
    g: OpenGraph, task: int, now_s: float, device: Ints, finish_s: Floats, arrive_s: Floats, travel_s: Floats
) -> None:
    """Write when what a task needs can be on each memory node, and how long it travels there altogether."""
    arrive_s[:] = now_s
    travel_s[:] = 0.0
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
                way_s = g.latency_s[here, there] + nbytes * g.s_per_byte[here, there]
                at_s += way_s
                travel_s[there] += way_s
            if at_s > arrive_s[there]:
                arrive_s[there] = at_s


@njit_in_place
def _ready(arrive_s: float, travel_s: float, called_s: float) -> float:
    """Return when inputs are there that do not set out before they are called for."""
    if travel_s > 0.0:
        arrive_s = max(arrive_s, called_s + travel_s)
    return arrive_s


@njit_in_place
def _gap(
    begin_s: Floats,
    end_s: Floats,
    called_s: Floats,
    d: int,
    count: int,
    arrive_s: float,
    travel_s: float,
    seconds: float,
) -> int:
    """Return the first idle gap of a device in which a task fits; the last has no end."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        if end_s[d, middle] < arrive_s:
            low = middle + 1
        else:
            high = middle
    while max(begin_s[d, low], _ready(arrive_s, travel_s, called_s[d, low])) + seconds > end_s[d, low]:
        low += 1
    return low


@njit_in_place
def _take(
    begin_s: Floats, end_s: Floats, called_s: Floats, d: int, count: int, gap: int, start_s: float, finish_s: float
) -> int:
    """Take [start, finish] out of an idle gap; returns the new number of gaps."""
    if start_s > begin_s[d, gap]:
        if finish_s < end_s[d, gap]:
            for i in range(count, gap, -1):
                begin_s[d, i] = begin_s[d, i - 1]
                end_s[d, i] = end_s[d, i - 1]
                called_s[d, i] = called_s[d, i - 1]
            begin_s[d, gap + 1] = finish_s
            called_s[d, gap + 1] = start_s
            count += 1
        end_s[d, gap] = start_s
    elif finish_s < end_s[d, gap]:
        begin_s[d, gap] = finish_s
        called_s[d, gap] = start_s
    else:
        for i in range(gap, count - 1):
            begin_s[d, i] = begin_s[d, i + 1]
            end_s[d, i] = end_s[d, i + 1]
            called_s[d, i] = called_s[d, i + 1]
        count -= 1
    return count


@njit_in_place
def _end(
    g: OpenGraph, task: int, d: int, arrive_s: Floats, travel_s: Floats, gap_begin_s: float, called_s: float
) -> float:
    """Return when a task would end that begins in a gap of a device."""
    there = g.node[d]
    begin_s = max(gap_begin_s, _ready(arrive_s[there], travel_s[there], called_s))
    return begin_s + float(g.seconds[g.kind[task], d])


@njit
def place_rest(
    g: OpenGraph,
    order: Ints,
    pinned: Ints,
    ahead_s: Floats,
    free_s: Floats,
    now_s: float,
    device: Ints,
    start_s: Floats,
    finish_s: Floats,
) -> float:
    """Place tasks that wait, each where EFT + ahead is least, into idle gaps; returns the makespan.

    `free_s` is when each device has ended what it runs, inf for one that takes nothing. `device` and `finish_s`
    hold those of the tasks that run. `pinned` names a device for each entry of `order`, or -1; where that takes
    nothing, any other may. `ahead_s` has a row a slot, or no rows. The inputs of a task set out when the task before
    it on its device begins, for not before then is it placed.
    """
    m = g.seconds.shape[1]
    begin_s = np.empty((m, len(order) + 1))
    end_s = np.empty((m, len(order) + 1))
    called_s = np.empty((m, len(order) + 1))
    begin_s[:, 0] = free_s
    end_s[:, 0] = np.inf
    called_s[:, 0] = now_s
    count = np.ones(m, dtype=np.int64)
    arrive_s = np.empty(g.latency_s.shape[0])
    travel_s = np.empty(g.latency_s.shape[0])
    looks = ahead_s.shape[0] > 0
    last_s = now_s
    for at in range(len(order)):
        task = order[at]
        _arrivals(g, task, now_s, device, finish_s, arrive_s, travel_s)
        pin = pinned[at]
        if pin >= 0 and free_s[pin] + g.seconds[g.kind[task], pin] == np.inf:
            pin = -1
        least, chosen, chosen_gap = np.inf, -1, 0
        for d in range(m):
            if pin >= 0 and d != pin:
                continue
            more_s = ahead_s[task, d] if looks else 0.0
            seconds, there = g.seconds[g.kind[task], d], g.node[d]
            if max(arrive_s[there], begin_s[d, 0]) + seconds + more_s >= least:
                continue
            gap = _gap(begin_s, end_s, called_s, d, count[d], arrive_s[there], travel_s[there], seconds)
            value = _end(g, task, d, arrive_s, travel_s, begin_s[d, gap], called_s[d, gap]) + more_s
            if value < least:
                least, chosen, chosen_gap = value, d, gap
        if chosen < 0:
            device[task], start_s[task], finish_s[task] = 0, np.inf, np.inf
            continue
        seconds = g.seconds[g.kind[task], chosen]
        finish = _end(g, task, chosen, arrive_s, travel_s, begin_s[chosen, chosen_gap], called_s[chosen, chosen_gap])
        start = finish - seconds
        count[chosen] = _take(begin_s, end_s, called_s, chosen, count[chosen], chosen_gap, start, finish)
        device[task], start_s[task], finish_s[task] = chosen, start, finish
        last_s = max(last_s, finish)
    return last_s


@njit
def ranks(g: OpenGraph, fastest: Floats, mean: Floats, optimistic: Floats) -> None:
    """Write upward ranks over the fastest device and over the mean, and the optimistic cost table, of what is open.

    Tasks come after what they need, so one pass from the last to the first does it.
    """
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
def raised(g: OpenGraph, keys: Floats) -> None:
    """Raise keys to those of what needs the task, so that no task goes before what it needs."""
    for task in range(len(keys) - 1, -1, -1):
        for e in range(g.pred_first[task], g.pred_first[task + 1]):
            if keys[g.pred[e]] < keys[task]:
                keys[g.pred[e]] = keys[task]


@njit_in_place
def _begin(
    g: OpenGraph, task: int, device: Ints, free_s: float, called_s: float, now_s: float, finish_s: Floats
) -> float:
    """Return when a task begins on its device, free from `free_s` on; its inputs do not set out before `called_s`."""
    here = g.node[device[task]]
    begin_s, travel_s = free_s, 0.0
    for e in range(g.pred_first[task], g.pred_first[task + 1]):
        before = g.pred[e]
        over = g.phase[before] == _FINISHED
        there = g.node[device[before]]
        at_s = now_s if over else finish_s[before]
        nbytes = g.nbytes[before] if over else g.kind_bytes[g.kind[before]]
        travels = g.pred_data[e] == 1 and nbytes > 0.0
        if travels and there != here and not (over and g.has[before, here] == 1):
            way_s = g.latency_s[there, here] + nbytes * g.s_per_byte[there, here]
            at_s += way_s
            travel_s += way_s
        begin_s = max(begin_s, at_s)
    return max(begin_s, called_s + travel_s) if travel_s > 0.0 else begin_s


@njit
def ends(
    g: OpenGraph,
    order: Ints,
    device: Ints,
    running: Ints,
    on: Ints,
    more_s: Floats,
    free_s: Floats,
    factors: Floats,
    now_s: float,
    found_s: Floats,
) -> None:
    """Write the last end in each scenario; tasks that can run nowhere, and what needs them, do not count.

    `order` holds what waits by planned start, and so what a task needs before it. `device` is by slot, the other
    arrays are those of `Scenarios`. As in `place_rest`, inputs set out when the task before on the device begins.
    """
    rows = len(factors)
    finish_s = np.zeros(len(g.phase))
    called_s = np.empty(len(free_s))
    busy_s = np.empty(len(free_s))
    for k in range(len(found_s)):
        last_s = now_s
        called_s[:] = now_s
        busy_s[:] = free_s
        for at in range(len(running)):
            busy_s[on[at]] = finish_s[running[at]] = max(busy_s[on[at]], now_s) + more_s[at, k]
            if busy_s[on[at]] < np.inf:
                last_s = max(last_s, busy_s[on[at]])
        for at in range(len(order)):
            task, d = order[at], device[order[at]]
            begin_s = _begin(g, task, device, busy_s[d], called_s[d], now_s, finish_s)
            finish_s[task] = begin_s + g.seconds[g.kind[task], d] * factors[task % rows, k]
            if finish_s[task] < np.inf:
                called_s[d] = begin_s
                busy_s[d] = finish_s[task]
                last_s = max(last_s, finish_s[task])
        found_s[k] = last_s
