"""The inner loops of list scheduling with transfers that share channels.

In: a `Problem`, `Routes` and arrays. Out: device, start and finish of each task, and the transfers. Compiled where
numba is installed; import it inside functions. It must not draw chance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetero.plan.compiled import njit, njit_in_place
from hetero.plan.problem import Floats, Ints, Moves, Problem, Routes

__all__ = ["Bookmarks", "LinkState", "bookmarks_of", "contended", "place_all", "state_of"]

_GAPS = 64
"""So many idle gaps of a channel are known; when there are more, the earliest is forgotten."""

USED, ARRIVED = range(2)


class Gaps(NamedTuple):
    """The idle gaps of devices or channels, a row each.

    Attributes
    ----------
    begin_s, end_s
        Where each gap begins and ends, s.
    owner
        What ends where the gap begins, a task of a device or an edge of a channel, -1 for nothing.
    many
        How many gaps there are; 0 where nothing is known yet, which is one gap without end.
    """

    begin_s: Floats
    end_s: Floats
    owner: Ints
    many: Ints


class LinkState(NamedTuple):
    """A list schedule under contention that is being made.

    Attributes
    ----------
    idle, gaps
        Of devices, and of channels.
    at_s
        Shape (n_items * n_nodes,), s; when each item is on each memory node, inf where it is not.
    behind
        As `at_s`; the edge whose transfer an item's transfer had to wait for, -1 for none.
    used, arrived
        The channels whose gaps are known, and the entries of `at_s` that are written.
    counts
        How many of both there are.
    edges
        Room for the edges into a task.
    device, start_s, finish_s
        Of each task that is placed.
    cause
        Shape (n_tasks,); the task or edge that a task had to wait for: a task of its device t as t, an edge e as -2 -
        e, nothing as -1.
    """

    idle: Gaps
    gaps: Gaps
    at_s: Floats
    behind: Ints
    used: Ints
    arrived: Ints
    counts: Ints
    edges: Ints
    device: Ints
    start_s: Floats
    finish_s: Floats
    cause: Ints


class Bookmarks(NamedTuple):
    """What a list schedule was at some of its turns, so that it need not be made again from the beginning.

    Attributes
    ----------
    idle, gaps
        Of devices and channels, those of the first bookmark first.
    counts
        Shape (n_bookmarks, 2); how many channels and items were known.
    turn
        At which turn each stands; the first is 0.
    known
        Shape (1,); how many are right.
    device, finish_s, cause
        Of each task in the schedule that the bookmarks are of.
    used, arrived
        Its channels and items, in the order in which they came.
    at_s, behind
        Of each of these items.
    """

    idle: Gaps
    gaps: Gaps
    counts: Ints
    turn: Ints
    known: Ints
    device: Ints
    finish_s: Floats
    cause: Ints
    used: Ints
    arrived: Ints
    at_s: Floats
    behind: Ints


@njit
def _gaps(rows: int, most: int) -> Gaps:
    shape = (rows, most)
    return Gaps(np.empty(shape), np.empty(shape), np.empty(shape, dtype=np.int64), np.zeros(rows, dtype=np.int64))


@njit
def state_of(p: Problem, c: Routes) -> LinkState:
    """Return the state before any task is placed."""
    n, m = p.seconds.shape
    entries = max(1, len(c.item_task) * c.n_nodes)
    return LinkState(
        _gaps(m, n + 2),
        _gaps(max(1, c.n_channels), _GAPS + 1),
        np.full(entries, np.inf),
        np.full(entries, -1, dtype=np.int64),
        np.empty(max(1, c.n_channels), dtype=np.int64),
        np.empty(entries, dtype=np.int64),
        np.zeros(2, dtype=np.int64),
        np.empty(max(1, len(p.pred)), dtype=np.int64),
        np.full(n, -1, dtype=np.int64),
        np.zeros(n),
        np.zeros(n),
        np.full(n, -1, dtype=np.int64),
    )


@njit
def bookmarks_of(p: Problem, c: Routes, many: int) -> Bookmarks:
    """Return so many bookmarks at equal distances, of which none is right yet."""
    n, m = p.seconds.shape
    many = max(1, min(many, n))
    turn = (np.arange(many) * n) // many
    known = np.zeros(1, dtype=np.int64)
    channels = max(1, c.n_channels)
    count = np.zeros((many, 2), dtype=np.int64)
    entries = max(1, len(c.item_task) * c.n_nodes)
    return Bookmarks(
        _gaps(many * m, n + 2),
        _gaps(many * channels, _GAPS + 1),
        count,
        turn,
        known,
        np.empty(n, dtype=np.int64),
        np.empty(n),
        np.empty(n, dtype=np.int64),
        np.empty(channels, dtype=np.int64),
        np.empty(entries, dtype=np.int64),
        np.empty(entries),
        np.empty(entries, dtype=np.int64),
    )


@njit_in_place
def _open(gaps: Gaps, row: int) -> None:
    gaps.begin_s[row, 0], gaps.end_s[row, 0], gaps.owner[row, 0], gaps.many[row] = 0.0, np.inf, -1, 1


@njit_in_place
def _open_channel(s: LinkState, channel: int) -> None:
    if s.gaps.many[channel] == 0:
        _open(s.gaps, channel)
        s.used[s.counts[USED]] = channel
        s.counts[USED] += 1


@njit_in_place
def _copy(src: Gaps, dst: Gaps, row: int, to: int) -> None:
    for i in range(src.many[row]):
        dst.begin_s[to, i], dst.end_s[to, i], dst.owner[to, i] = (
            src.begin_s[row, i],
            src.end_s[row, i],
            src.owner[row, i],
        )
    dst.many[to] = src.many[row]


@njit_in_place
def _save(s: LinkState, b: Bookmarks, number: int) -> None:
    """Write down the gaps of devices and channels, and how many items are where."""
    m, channels = len(s.idle.many), len(s.gaps.many)
    for d in range(m):
        _copy(s.idle, b.idle, d, number * m + d)
    for i in range(s.counts[USED]):
        _copy(s.gaps, b.gaps, s.used[i], number * channels + s.used[i])
    b.counts[number, USED], b.counts[number, ARRIVED] = s.counts[USED], s.counts[ARRIVED]


@njit_in_place
def _go_back(s: LinkState, b: Bookmarks, number: int) -> None:
    """Take all tasks and transfers out that came after a bookmark."""
    m, channels = len(s.idle.many), len(s.gaps.many)
    for d in range(m):
        _copy(b.idle, s.idle, number * m + d, d)
    for i in range(b.counts[number, USED], s.counts[USED]):
        s.gaps.many[s.used[i]] = 0
    for i in range(b.counts[number, USED]):
        _copy(b.gaps, s.gaps, number * channels + s.used[i], s.used[i])
    for i in range(b.counts[number, ARRIVED], s.counts[ARRIVED]):
        s.at_s[s.arrived[i]] = np.inf
    s.counts[USED], s.counts[ARRIVED] = b.counts[number, USED], b.counts[number, ARRIVED]


@njit_in_place
def _fit(gaps: Gaps, row: int, ready_s: float, seconds: float) -> int:
    """Return the first idle gap of a row that something fits."""
    low, high = 0, gaps.many[row] - 1
    while low < high:
        middle = (low + high) // 2
        if gaps.end_s[row, middle] < ready_s:
            low = middle + 1
        else:
            high = middle
    while max(gaps.begin_s[row, low], ready_s) + seconds > gaps.end_s[row, low]:
        low += 1
    return low


@njit_in_place
def _fill(gaps: Gaps, row: int, gap: int, start_s: float, finish_s: float, owner: int) -> None:
    """Take [start, finish] out of an idle gap."""
    begin_s, end_s, owners, count = gaps.begin_s, gaps.end_s, gaps.owner, gaps.many[row]
    before, after = start_s > begin_s[row, gap], finish_s < end_s[row, gap]
    if before and after:
        for i in range(count, gap, -1):
            begin_s[row, i], end_s[row, i], owners[row, i] = begin_s[row, i - 1], end_s[row, i - 1], owners[row, i - 1]
        end_s[row, gap] = start_s
        begin_s[row, gap + 1], owners[row, gap + 1] = finish_s, owner
        gaps.many[row] = count + 1
    elif before:
        end_s[row, gap] = start_s
    elif after:
        begin_s[row, gap], owners[row, gap] = finish_s, owner
    else:
        for i in range(gap, count - 1):
            begin_s[row, i], end_s[row, i], owners[row, i] = begin_s[row, i + 1], end_s[row, i + 1], owners[row, i + 1]
        gaps.many[row] = count - 1


@njit_in_place
def _by_finish(p: Problem, s: LinkState, task: int) -> int:
    """Write the edges into a task, the one whose task finished first at first; returns their number."""
    first = p.pred_first[task]
    count: int = p.pred_first[task + 1] - first
    for i in range(count):
        e = first + i
        at = i
        while at > 0 and s.finish_s[p.pred[s.edges[at - 1]]] > s.finish_s[p.pred[e]]:
            s.edges[at] = s.edges[at - 1]
            at -= 1
        s.edges[at] = e
    return count


@njit_in_place
def _arrival(c: Routes, s: LinkState, item: int, path: int, ready_s: float) -> float:
    """Return when an item would be at the end of a path, nothing else being sent."""
    for hop in range(c.hop_first[path], c.hop_first[path + 1]):
        channel = c.hop_channel[hop]
        _open_channel(s, channel)
        seconds = c.hop_latency_s[hop] + c.item_bytes[item] * c.hop_s_per_byte[hop]
        gap = _fit(s.gaps, channel, ready_s, seconds)
        ready_s = max(ready_s, s.gaps.begin_s[channel, gap]) + seconds
    return ready_s


@njit_in_place
def _estimate(p: Problem, c: Routes, s: LinkState, count: int, there: int) -> float:
    """Return when the first `count` edges' items would be on a memory node if they did not wait for one another."""
    ready_s = 0.0
    for i in range(count):
        e = s.edges[i]
        before, item = p.pred[e], c.pred_item[e]
        own_s, here = s.finish_s[before], p.node[s.device[before]]
        if item >= 0 and here != there:
            own_s = s.at_s[item * c.n_nodes + there]
            if own_s == np.inf:
                own_s = _arrival(c, s, item, here * c.n_nodes + there, s.finish_s[before])
        ready_s = max(ready_s, own_s)
    return ready_s


@njit_in_place
def _send(c: Routes, s: LinkState, e: int, path: int, ready_s: float, sent: int, moves: Moves) -> int:
    """Take the time of an edge's transfer out of the channels of its path; returns the new number of transfers.

    The transfers are written down where there is room for them.
    """
    item, waited = c.pred_item[e], -1
    for hop in range(c.hop_first[path], c.hop_first[path + 1]):
        channel = c.hop_channel[hop]
        _open_channel(s, channel)
        seconds = c.hop_latency_s[hop] + c.item_bytes[item] * c.hop_s_per_byte[hop]
        gap = _fit(s.gaps, channel, ready_s, seconds)
        start = max(ready_s, s.gaps.begin_s[channel, gap])
        if start > ready_s:
            waited = s.gaps.owner[channel, gap]
        ready_s = start + seconds
        _fill(s.gaps, channel, gap, start, ready_s, e)
        if s.gaps.many[channel] == _GAPS:
            for i in range(_GAPS - 1):
                s.gaps.begin_s[channel, i], s.gaps.end_s[channel, i] = (
                    s.gaps.begin_s[channel, i + 1],
                    s.gaps.end_s[channel, i + 1],
                )
                s.gaps.owner[channel, i] = s.gaps.owner[channel, i + 1]
            s.gaps.many[channel] -= 1
        if sent < len(moves.item):
            moves.item[sent], moves.hop[sent], moves.start_s[sent], moves.finish_s[sent] = item, hop, start, ready_s
        sent += 1
    entry = item * c.n_nodes + path % c.n_nodes
    s.at_s[entry], s.behind[entry] = ready_s, waited
    s.arrived[s.counts[ARRIVED]] = entry
    s.counts[ARRIVED] += 1
    return sent


@njit_in_place
def place(p: Problem, c: Routes, s: LinkState, task: int, chosen: int, count: int, sent: int, moves: Moves) -> int:
    """Place a task on a device, its inputs sent before it; returns the new number of transfers.

    `count` is the number of its edges, which are written in the order in which they are sent.
    """
    there = p.node[chosen]
    ready_s, cause = 0.0, -1
    for i in range(count):
        e = s.edges[i]
        before, item = p.pred[e], c.pred_item[e]
        here = p.node[s.device[before]]
        own_s = s.finish_s[before]
        if item >= 0 and here != there:
            if s.at_s[item * c.n_nodes + there] == np.inf:
                sent = _send(c, s, e, here * c.n_nodes + there, own_s, sent, moves)
            own_s = s.at_s[item * c.n_nodes + there]
        if own_s > ready_s:
            ready_s, cause = own_s, -2 - e
    seconds = p.seconds[task, chosen]
    gap = _fit(s.idle, chosen, ready_s, seconds)
    start = max(s.idle.begin_s[chosen, gap], ready_s)
    if start > ready_s:
        cause = s.idle.owner[chosen, gap]
    _fill(s.idle, chosen, gap, start, start + seconds, task)
    s.device[task], s.start_s[task], s.finish_s[task], s.cause[task] = chosen, start, start + seconds, cause
    return sent


@njit_in_place
def _best_device(p: Problem, c: Routes, s: LinkState, task: int, count: int, ahead_s: Floats, arrive_s: Floats) -> int:
    """Return the device of the least EFT + ahead; `ahead_s` has a row a task, or no rows for EFT alone."""
    for node in range(len(arrive_s)):
        arrive_s[node] = -1.0
    least, chosen = np.inf, -1
    for d in range(len(p.node)):
        seconds = p.seconds[task, d]
        if seconds == np.inf:
            continue
        there = p.node[d]
        if arrive_s[there] < 0.0:
            arrive_s[there] = _estimate(p, c, s, count, there)
        gap = _fit(s.idle, d, arrive_s[there], seconds)
        value = max(s.idle.begin_s[d, gap], arrive_s[there]) + seconds
        if ahead_s.shape[0] > 0:
            value += ahead_s[task, d]
        if value < least:
            least, chosen = value, d
    return chosen


@njit
def contended(
    p: Problem, c: Routes, order: Ints, pinned: Ints, cluster: Ints, ahead_s: Floats, s: LinkState, moves: Moves
) -> int:
    """Place the tasks in an order, and their transfers into idle gaps of channels; returns the number of transfers.

    `pinned` names a device or -1, `cluster` a number or -1: tasks of one number follow the first of them.
    """
    arrive_s = np.empty(c.n_nodes)
    home = np.full(len(order), -1, dtype=np.int64)
    sent = 0
    for d in range(len(p.node)):
        _open(s.idle, d)
    for task in order:
        count = _by_finish(p, s, task)
        chosen = pinned[task]
        own = cluster[task]
        if chosen < 0 and own >= 0 and home[own] >= 0 and p.seconds[task, home[own]] < np.inf:
            chosen = home[own]
        if chosen < 0:
            chosen = _best_device(p, c, s, task, count, ahead_s, arrive_s)
        if own >= 0 and home[own] < 0:
            home[own] = chosen
        sent = place(p, c, s, task, chosen, count, sent, moves)
    return sent


@njit_in_place
def _commit(s: LinkState, b: Bookmarks, order: Ints, number: int) -> None:
    """Write down what came after a bookmark, now that all tasks are placed."""
    for at in range(b.turn[number], len(order)):
        task = order[at]
        b.device[task], b.finish_s[task], b.cause[task] = s.device[task], s.finish_s[task], s.cause[task]
    for i in range(b.counts[number, USED], s.counts[USED]):
        b.used[i] = s.used[i]
    for i in range(b.counts[number, ARRIVED], s.counts[ARRIVED]):
        b.arrived[i], b.at_s[i], b.behind[i] = s.arrived[i], s.at_s[s.arrived[i]], s.behind[s.arrived[i]]


@njit_in_place
def _take_back(s: LinkState, b: Bookmarks, order: Ints, number: int, at: int) -> None:
    """Take back what was placed from a bookmark up to a turn, and go on to the last bookmark but for its gaps."""
    for turn in range(b.turn[number], at + 1):
        task = order[turn]
        s.device[task], s.finish_s[task], s.cause[task] = b.device[task], b.finish_s[task], b.cause[task]
    for i in range(b.counts[number, USED], s.counts[USED]):
        s.gaps.many[s.used[i]] = 0
    for i in range(b.counts[number, ARRIVED], s.counts[ARRIVED]):
        s.at_s[s.arrived[i]] = np.inf
    last = b.known[0] - 1
    for i in range(b.counts[number, USED], b.counts[last, USED]):
        s.used[i] = b.used[i]
    for i in range(b.counts[number, ARRIVED], b.counts[last, ARRIVED]):
        s.arrived[i], s.at_s[b.arrived[i]], s.behind[b.arrived[i]] = b.arrived[i], b.at_s[i], b.behind[i]
    s.counts[USED], s.counts[ARRIVED] = b.counts[last, USED], b.counts[last, ARRIVED]


@njit_in_place
def _begin(s: LinkState, b: Bookmarks) -> None:
    """Take all tasks and transfers out, and set the first bookmark."""
    for d in range(len(s.idle.many)):
        _open(s.idle, d)
    for i in range(s.counts[USED]):
        s.gaps.many[s.used[i]] = 0
    for i in range(s.counts[ARRIVED]):
        s.at_s[s.arrived[i]] = np.inf
    s.counts[USED] = s.counts[ARRIVED] = 0
    _save(s, b, 0)
    b.known[0] = 1


@njit_in_place
def place_all(
    p: Problem,
    c: Routes,
    s: LinkState,
    b: Bookmarks,
    order: Ints,
    device: Ints,
    since: int,
    tail_s: Floats,
    cutoff_s: float,
    moves: Moves,
) -> float:
    """Place all tasks where they are told; returns the makespan, inf as soon as it is sure to be beyond the cutoff.

    Up to the turn `since` order and devices are those of the bookmarks that are right; `moves` has no room. Where the
    makespan is finite, the bookmarks are of this schedule, else as they were.
    """
    if b.known[0] == 0:
        _begin(s, b)
    number = b.known[0] - 1
    while b.turn[number] > since:
        number -= 1
    _go_back(s, b, number)
    for at in range(b.turn[number], len(order)):
        known = b.known[0]
        if at <= since and known < len(b.turn) and at == b.turn[known]:
            _save(s, b, known)
            b.known[0] = known + 1
        task = order[at]
        d = device[task]
        place(p, c, s, task, d, _by_finish(p, s, task), 0, moves)
        if s.finish_s[task] + tail_s[task, p.node[d]] > cutoff_s:
            _take_back(s, b, order, number, at)
            return np.inf
    _commit(s, b, order, number)
    while b.turn[b.known[0] - 1] > since:
        b.known[0] -= 1
    span_s = 0.0
    for task in range(len(order)):
        span_s = max(span_s, s.finish_s[task])
    return span_s
