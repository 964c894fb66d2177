"""The inner loops of list scheduling: ranks of tasks; place them in a given order, or choose among the ready ones.

In: a `Problem` and arrays. Out: ranks, or device, start and finish of each task. Compiled where numba is installed;
import it inside functions. It must not draw chance: what is random comes in as an array.
"""

from __future__ import annotations

import numpy as np

from hetero.plan.compiled import njit
from hetero.plan.problem import Floats, Ints, Problem

__all__ = [
    "by_completion",
    "by_keys",
    "downward",
    "fill",
    "fit",
    "heads",
    "in_order",
    "optimistic",
    "tails",
    "timed",
    "upward",
]


@njit
def _arrivals(p: Problem, task: int, device: Ints, finish_s: Floats, arrive_s: Floats) -> None:
    """Write when the inputs of a task are on each memory node: the latest finish + transfer."""
    arrive_s[:] = 0.0
    for e in range(p.pred_first[task], p.pred_first[task + 1]):
        before = p.pred[e]
        end_s = finish_s[before]
        nbytes = p.pred_bytes[e]
        here = p.node[device[before]]
        for there in range(len(arrive_s)):
            at_s = end_s
            if nbytes > 0.0 and there != here:
                at_s = end_s + (p.latency_s[here, there] + nbytes * p.s_per_byte[here, there])
            if at_s > arrive_s[there]:
                arrive_s[there] = at_s


@njit
def fit(begin_s: Floats, end_s: Floats, count: int, ready_s: float, seconds: float) -> int:
    """Return the first idle gap of a device in which a task fits."""
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
def fill(begin_s: Floats, end_s: Floats, count: int, gap: int, start_s: float, finish_s: float) -> int:
    """Take [start, finish] out of an idle gap; returns the new number of gaps."""
    before = start_s > begin_s[gap]
    after = finish_s < end_s[gap]
    if before and after:
        for i in range(count, gap, -1):
            begin_s[i] = begin_s[i - 1]
            end_s[i] = end_s[i - 1]
        end_s[gap] = start_s
        begin_s[gap + 1] = finish_s
        return count + 1
    if before:
        end_s[gap] = start_s
    elif after:
        begin_s[gap] = finish_s
    else:
        for i in range(gap, count - 1):
            begin_s[i] = begin_s[i + 1]
            end_s[i] = end_s[i + 1]
        return count - 1
    return count


@njit
def in_order(
    p: Problem, order: Ints, pinned: Ints, ahead_s: Floats, device: Ints, start_s: Floats, finish_s: Floats
) -> float:
    """Place the tasks in an order, each where EFT + ahead is least, into idle gaps; returns the makespan.

    `pinned` names a device or -1; `ahead_s` has a row a task, or no rows for EFT alone.
    """
    n, m = p.seconds.shape
    begin_s = np.empty((m, n + 1))
    end_s = np.empty((m, n + 1))
    begin_s[:, 0] = 0.0
    end_s[:, 0] = np.inf
    count = np.ones(m, dtype=np.int64)
    arrive_s = np.empty(p.latency_s.shape[0])
    looks = ahead_s.shape[0] > 0
    makespan_s = 0.0
    for task in order:
        _arrivals(p, task, device, finish_s, arrive_s)
        first, last = 0, m
        if pinned[task] >= 0:
            first, last = pinned[task], pinned[task] + 1
        least, chosen, chosen_gap = np.inf, -1, 0
        for d in range(first, last):
            seconds = p.seconds[task, d]
            value = arrive_s[p.node[d]] + seconds
            if looks:
                value += ahead_s[task, d]
            if value >= least:
                continue
            gap = fit(begin_s[d], end_s[d], count[d], arrive_s[p.node[d]], seconds)
            value = max(begin_s[d, gap], arrive_s[p.node[d]]) + seconds
            if looks:
                value += ahead_s[task, d]
            if value < least:
                least, chosen, chosen_gap = value, d, gap
        start = max(begin_s[chosen, chosen_gap], arrive_s[p.node[chosen]])
        finish = start + p.seconds[task, chosen]
        count[chosen] = fill(begin_s[chosen], end_s[chosen], count[chosen], chosen_gap, start, finish)
        device[task], start_s[task], finish_s[task] = chosen, start, finish
        makespan_s = max(makespan_s, finish)
    return makespan_s


@njit
def _sift_up(heap: Ints, at: int, keys: Floats) -> None:
    task = heap[at]
    while at > 0:
        above = (at - 1) // 2
        other = heap[above]
        if keys[other] > keys[task] or (keys[other] == keys[task] and other < task):
            break
        heap[at] = other
        at = above
    heap[at] = task


@njit
def _sift_down(heap: Ints, size: int, keys: Floats) -> None:
    task = heap[0]
    at = 0
    while 2 * at + 1 < size:
        below = 2 * at + 1
        if below + 1 < size:
            left, right = heap[below], heap[below + 1]
            if keys[right] > keys[left] or (keys[right] == keys[left] and right < left):
                below += 1
        other = heap[below]
        if keys[task] > keys[other] or (keys[task] == keys[other] and task < other):
            break
        heap[at] = other
        at = below
    heap[at] = task


@njit
def by_keys(p: Problem, keys: Floats, order: Ints) -> None:
    """Write the order in which always the ready task of the highest key is next; ties go to the lower index."""
    n = len(keys)
    waits = np.empty(n, dtype=np.int64)
    heap = np.empty(n, dtype=np.int64)
    size = 0
    for task in range(n):
        waits[task] = p.pred_first[task + 1] - p.pred_first[task]
        if waits[task] == 0:
            heap[size] = task
            _sift_up(heap, size, keys)
            size += 1
    for at in range(n):
        task = heap[0]
        order[at] = task
        size -= 1
        heap[0] = heap[size]
        if size > 0:
            _sift_down(heap, size, keys)
        for e in range(p.succ_first[task], p.succ_first[task + 1]):
            child = p.succ[e]
            waits[child] -= 1
            if waits[child] == 0:
                heap[size] = child
                _sift_up(heap, size, keys)
                size += 1


@njit
def _completion(p: Problem, free_s: Floats, arrive_s: Floats, task: int, least: Floats, second: Floats) -> int:
    """Write the two earliest finish times of a task behind what the devices hold; returns the device of the first."""
    first_s, second_s, chosen = np.inf, np.inf, -1
    for d in range(len(free_s)):
        value = max(free_s[d], arrive_s[p.node[d]]) + p.seconds[task, d]
        if value < first_s:
            first_s, second_s, chosen = value, first_s, d
        elif value < second_s:
            second_s = value
    least[task], second[task] = first_s, second_s
    return chosen


@njit
def _chosen(ready: Ints, size: int, rule: int, least: Floats, second: Floats) -> int:
    """Return the place in `ready` of the task that the rule takes next; ties go to the lower task index."""
    at, best = 0, -np.inf
    for i in range(size):
        task = ready[i]
        value = -least[task] if rule == 0 else least[task]
        if rule == 2:
            value = second[task] - least[task]
        if value > best or (value == best and task < ready[at]):
            at, best = i, value
    return at


@njit
def by_completion(p: Problem, rule: int, device: Ints, start_s: Floats, finish_s: Floats) -> float:
    """Place ready tasks one by one behind what a device holds; returns the makespan.

    Rule 0 takes the task of the least completion time, 1 that of the greatest, 2 that which would suffer most.
    """
    n, m = p.seconds.shape
    free_s = np.zeros(m)
    arrive_s = np.zeros((n, p.latency_s.shape[0]))
    waits = p.pred_first[1:] - p.pred_first[:-1]
    ready = np.empty(n, dtype=np.int64)
    best = np.empty(n, dtype=np.int64)
    least, second = np.empty(n), np.empty(n)
    size = 0
    for task in range(n):
        if waits[task] == 0:
            ready[size] = task
            size += 1
            best[task] = _completion(p, free_s, arrive_s[task], task, least, second)
    for _ in range(n):
        at = _chosen(ready, size, rule, least, second)
        task = ready[at]
        size -= 1
        ready[at] = ready[size]
        d = best[task]
        device[task], finish_s[task] = d, least[task]
        start_s[task] = max(free_s[d], arrive_s[task, p.node[d]])
        free_s[d] = least[task]
        for i in range(size):
            other = ready[i]
            if p.seconds[other, d] < np.inf:
                best[other] = _completion(p, free_s, arrive_s[other], other, least, second)
        for e in range(p.succ_first[task], p.succ_first[task + 1]):
            child = p.succ[e]
            waits[child] -= 1
            if waits[child] == 0:
                _arrivals(p, child, device, finish_s, arrive_s[child])
                best[child] = _completion(p, free_s, arrive_s[child], child, least, second)
                ready[size] = child
                size += 1
    last_s = 0.0
    for d in range(m):
        last_s = max(last_s, free_s[d])
    return last_s


@njit
def timed(p: Problem, order: Ints, device: Ints, start_s: Floats, finish_s: Floats) -> float:
    """Start each task as early as its inputs and the tasks before it on its device allow; returns the makespan."""
    free_s = np.zeros(p.seconds.shape[1])
    arrive_s = np.empty(p.latency_s.shape[0])
    makespan_s = 0.0
    for task in order:
        d = device[task]
        _arrivals(p, task, device, finish_s, arrive_s)
        start_s[task] = max(free_s[d], arrive_s[p.node[d]])
        finish_s[task] = start_s[task] + p.seconds[task, d]
        free_s[d] = finish_s[task]
        makespan_s = max(makespan_s, finish_s[task])
    return makespan_s


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
