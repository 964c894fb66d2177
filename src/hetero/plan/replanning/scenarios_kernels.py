"""The inner loop of scenarios: when a schedule ends if its tasks take other times than was thought.

In: a `OpenGraph`, a schedule, times. Out: an end a scenario. Compiled where numba is installed; import it inside
functions. It must not place anything.
"""

from __future__ import annotations

import numpy as np

from hetero.plan.compiled import njit, njit_in_place
from hetero.plan.problem import Floats, Ints
from hetero.plan.replanning.lookahead import OpenGraph

__all__ = ["ends"]

_FINISHED = 2


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
