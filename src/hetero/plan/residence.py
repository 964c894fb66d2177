"""What lies on which memory node when: whether a plan overflows one, and a plan that does not.

In: a `Problem`, its `Channels`, capacities, an order and devices. Out: a schedule with transfers and evictions, or why
there is none. It must not choose devices.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from hetero.floor.errors import NothingFitsError
from hetero.floor.units import format_bytes
from hetero.plan.channels import Channels, Moves
from hetero.plan.problem import Floats, Ints, Problem, Timeline
from hetero.plan.residence_state import Dropped, Residence

__all__ = ["Resident", "only_where_it_fits", "overflows", "within_capacity"]

_LOOK_AHEAD = 4
"""So many tasks of each device have their inputs fetched before their turn."""


_TRANSFERS_AT_MOST = 20
"""So many transfers for each task and each edge, and a plan is given up."""


class Resident(NamedTuple):
    """A schedule that keeps to every capacity.

    Attributes
    ----------
    timeline, moves : the schedule and its transfers
    dropped : items that left a memory node and came back later
    """

    timeline: Timeline
    moves: Moves
    dropped: tuple[Dropped, ...]


def only_where_it_fits(p: Problem, c: Channels, capacity_bytes: Floats, names: tuple[str, ...]) -> Problem:
    """Leave out devices whose memory node cannot hold a task's inputs and outputs at once.

    Parameters
    ----------
    capacity_bytes : shape (n_nodes,), in the order of `Channels.nodes`
    names : task ids, for the message

    Raises
    ------
    NothingFitsError
        A task fits nowhere; the message gives what it needs and what there is.
    """
    needs = held_by_task(p, c)
    seconds = np.where(needs[:, None] <= capacity_bytes[p.node][None, :], p.seconds, np.inf)
    for task in np.flatnonzero(~np.isfinite(seconds).any(axis=1)):
        able = sorted({int(p.node[d]) for d in np.flatnonzero(np.isfinite(p.seconds[task]))})
        there = ", ".join(f"{c.nodes[node]!r} has {format_bytes(int(capacity_bytes[node]))}" for node in able)
        raise NothingFitsError(
            f"task {names[task]!r} needs {format_bytes(int(needs[task]))} at once for what it reads and makes; {there}",
            remedy="cut the task up, or give it a device with more memory",
        )
    return p._replace(seconds=seconds)


def held_by_task(p: Problem, c: Channels) -> Floats:
    """Give the bytes of each task's inputs and outputs together."""
    needs = np.bincount(c.item_task, weights=c.item_bytes, minlength=len(p.order)).astype(np.float64)
    for task in range(len(needs)):
        items = np.unique(c.pred_item[p.pred_first[task] : p.pred_first[task + 1]])
        needs[task] += c.item_bytes[items[items >= 0]].sum()
    return needs


def overflows(p: Problem, c: Channels, capacity_bytes: Floats, timeline: Timeline, moves: Moves) -> bool:
    """Tell whether a schedule without evictions ever holds more on a memory node than it can."""
    shape = (len(c.item_task), len(c.nodes))
    begin_s, end_s = np.full(shape, np.inf), np.full(shape, -np.inf)
    home = p.node[timeline.device[c.item_task]]
    rows = np.arange(shape[0])
    begin_s[rows, home] = timeline.start_s[c.item_task]
    end_s[rows, home] = timeline.finish_s[c.item_task]
    for ends, times in ((c.hop_dst, moves.start_s), (c.hop_src, moves.start_s)):
        np.minimum.at(begin_s, (moves.item, ends[moves.hop]), times)
        np.maximum.at(end_s, (moves.item, ends[moves.hop]), moves.finish_s)
    reads = c.pred_item >= 0
    reader = np.repeat(np.arange(len(p.order)), np.diff(p.pred_first))[reads]
    np.maximum.at(end_s, (c.pred_item[reads], p.node[timeline.device[reader]]), timeline.finish_s[reader])
    for node in np.flatnonzero(np.isfinite(capacity_bytes)):
        held = np.flatnonzero(np.isfinite(begin_s[:, node]))
        times = np.concatenate([end_s[held, node], begin_s[held, node]])
        change = np.concatenate([-c.item_bytes[held], c.item_bytes[held]])
        by = np.lexsort((change, times))
        if np.cumsum(change[by]).max(initial=0.0) > capacity_bytes[node]:
            return True
    return False


def within_capacity(
    p: Problem, c: Channels, capacity_bytes: Floats, order: Ints, device: Ints, names: tuple[str, ...]
) -> Resident:
    """Run a plan forward in time and keep every memory node within its capacity.

    Parameters
    ----------
    order : a topological order; the earlier task has the right of way
    device : shape (n_tasks,)
    names : task ids, for the message

    Raises
    ------
    NothingFitsError
        At some point nothing can go on: the message names the task, the memory node and what is lacking.

    Notes
    -----
    At each moment the next few tasks of every device, the earliest in the order first, have their inputs fetched
    where channel and room allow. Room is made by dropping items that have another copy, then by sending to the
    memory node with the most room those that are needed the latest; a task makes room only at the cost of later
    ones. So the first task of the order can always go on, unless the items in use leave nowhere to put the others.

    References
    ----------
    L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5 (1966),
    78-101: what is needed the latest leaves first.
    """
    run = _Run(p, c, capacity_bytes, order, device)
    while run.left:
        run.go_on()
        if not run.events or run.goes_in_circles:
            raise NothingFitsError(run.lack(names), remedy="raise the capacity, or plan with '--model free'")
        run.next_event()
    return run.resident()


class _Run:
    """A plan on its way: the clock stands at `now_s`, and `events` are due."""

    def __init__(self, p: Problem, c: Channels, capacity_bytes: Floats, order: Ints, device: Ints) -> None:
        self._p, self._c, self._device = p, c, device
        self._place = np.empty(len(order), dtype=np.int64)
        self._place[order] = np.arange(len(order))
        self._queues: list[list[int]] = [[] for _ in p.node]
        for task in order[::-1]:
            self._queues[device[task]].append(int(task))
        self._state = Residence(p, c, capacity_bytes, device, self._place)
        self._done = np.zeros(len(order), dtype=np.bool_)
        self._idle = [True] * len(p.node)
        self._timeline = Timeline(device.copy(), np.zeros(len(order)), np.zeros(len(order)))
        self.left = len(order)
        self.events: list[tuple[float, int]] = []

    def go_on(self) -> None:
        """Begin whatever can begin now, the earliest task in the order first."""
        near = sorted(
            (task for queue in self._queues for task in queue[-_LOOK_AHEAD:]), key=lambda task: int(self._place[task])
        )
        self._state.begin_round()
        for task in near:
            if not self._waits(task):
                self._state.fetch(task)
                if self._queues[self._device[task]][-1] == task and self._idle[self._device[task]]:
                    self._start(task)
        for due_s in self._state.new_dues():
            heapq.heappush(self.events, (due_s, -1))

    @property
    def goes_in_circles(self) -> bool:
        """Whether items are sent to and fro more often than any sensible plan would."""
        return self._state.transfers > _TRANSFERS_AT_MOST * (len(self._done) + len(self._c.pred_item))

    def next_event(self) -> None:
        """Let the next thing happen."""
        now_s = self.events[0][0]
        self._state.now_s = now_s
        while self.events and self.events[0][0] <= now_s:
            _, task = heapq.heappop(self.events)
            if task >= 0:
                self._done[task] = True
                self._idle[self._device[task]] = True
                self.left -= 1
                self._state.finished(task)
        self._state.arrive()

    def lack(self, names: tuple[str, ...]) -> str:
        """Say which task cannot go on, and where room is lacking."""
        task, node = self._state.blocked()
        used, capacity = self._state.used_bytes[node], self._state.capacity_bytes[node]
        return (
            f"no room is left for task {names[task]!r} on {self._c.nodes[node]!r} ({format_bytes(int(used))} of"
            f" {format_bytes(int(capacity))} in use), and what lies there can go nowhere"
        )

    def resident(self) -> Resident:
        """Give the schedule as it went."""
        return Resident(self._timeline, *self._state.history())

    def _waits(self, task: int) -> bool:
        first, last = self._p.pred_first[task], self._p.pred_first[task + 1]
        return not bool(self._done[self._p.pred[first:last]].all())

    def _start(self, task: int) -> None:
        if not self._state.take(task):
            return
        d = self._device[task]
        now_s = self._state.now_s
        self._queues[d].pop()
        self._idle[d] = False
        self._timeline.start_s[task] = now_s
        self._timeline.finish_s[task] = now_s + self._p.seconds[task, d]
        heapq.heappush(self.events, (float(self._timeline.finish_s[task]), task))
