"""What lies on which memory node when: whether a plan overflows one, and a plan that does not.

In: a `Problem`, its `Channels`, capacities, an order and devices. Out: a schedule with transfers and evictions, or why
there is none. It must not choose devices.
"""

from __future__ import annotations

import heapq
from bisect import insort
from typing import NamedTuple

import numpy as np

from hetero.floor.errors import NothingFitsError
from hetero.floor.units import format_bytes
from hetero.plan.memory.node_state import Residence
from hetero.plan.memory.replicas import Attempts, Dropped, Repeated
from hetero.plan.planners.contention import Channels
from hetero.plan.problem import Floats, Ints, Moves, Problem, Timeline

__all__ = ["Resident", "only_where_it_fits", "overflows", "within_capacity"]

_LOOK_AHEAD = 4
"""So many tasks of each device have their inputs fetched before their turn."""


_TRANSFERS_EACH, _TRANSFERS_BESIDES = 6, 1000
"""So many transfers for each task and each edge, and so many besides, and a plan is given up."""


class Resident(NamedTuple):
    """A schedule that keeps to every capacity.

    Attributes
    ----------
    timeline, moves
        The schedule and its transfers.
    dropped
        Items that left a memory node and came back later.
    repeats
        Further attempts of tasks, which make again what was dropped.
    """

    timeline: Timeline
    moves: Moves
    dropped: tuple[Dropped, ...] = ()
    repeats: tuple[Repeated, ...] = ()


def only_where_it_fits(p: Problem, c: Channels, capacity_bytes: Floats, names: tuple[str, ...]) -> Problem:
    """Leave out devices whose memory node cannot hold a task's inputs and outputs at once.

    Parameters
    ----------
    capacity_bytes
        Shape (n_nodes,), in the order of `Channels.nodes`.
    names
        Task ids, for the message.

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
    """Return the bytes of each task's inputs and outputs together."""
    needs = np.bincount(c.item_task, weights=c.item_bytes, minlength=len(p.order)).astype(np.float64)
    for task in range(len(needs)):
        items = np.unique(c.pred_item[p.pred_first[task] : p.pred_first[task + 1]])
        needs[task] += c.item_bytes[items[items >= 0]].sum()
    return needs


def overflows(p: Problem, c: Channels, capacity_bytes: Floats, timeline: Timeline, moves: Moves) -> bool:
    """Return whether a schedule without evictions ever holds more on a memory node than it can."""
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
    p: Problem,
    c: Channels,
    capacity_bytes: Floats,
    order: Ints,
    device: Ints,
    names: tuple[str, ...],
    *,
    repeats: bool = True,
) -> Resident:
    """Run a plan forward in time and keep every memory node within its capacity.

    Parameters
    ----------
    order
        A topological order; the earlier task has the right of way.
    device
        Shape (n_tasks,).
    names
        Task ids, for the message.
    repeats
        Whether tasks may run again to make values that were dropped for room.

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
    An item that can go nowhere, or whose way there and back takes longer than making it again, is dropped, and its
    task runs again on the device where that costs least, just before what reads the item next. Its inputs are kept
    until then where that takes fewer bytes than it frees; else they are made again as well, as deep as needed, up to
    64 tasks for one value, and two repeats for each task of the graph and 2,000 besides.

    References
    ----------
    T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training deep nets with sublinear memory cost" (2016), arXiv:1604.06174:
    values are dropped and computed again. It is applied here to any task; nothing says which values are best kept.
    L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5 (1966),
    78-101: what is needed the latest leaves first.
    """
    run = _PlanRun(p, c, capacity_bytes, order, device, repeats=repeats)
    while run.left:
        run.go_on()
        if not run.events or run.goes_in_circles:
            raise NothingFitsError(run.lack(names), remedy="raise the capacity, or plan with '--transfer-model free'")
        run.next_event()
    return run.resident()


class _PlanRun:
    """A plan on its way: the clock stands at `now_s`, and `events` are due."""

    def __init__(
        self, p: Problem, c: Channels, capacity_bytes: Floats, order: Ints, device: Ints, *, repeats: bool
    ) -> None:
        self._p, self._c = p, c
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        self._attempts = Attempts(p, device, place)
        self._queues: list[list[int]] = [[] for _ in p.node]
        for task in order[::-1]:
            self._queues[device[task]].append(int(task))
        self._state = Residence(p, c, capacity_bytes, self._attempts, repeats=repeats)
        self._done = np.zeros(len(order), dtype=np.bool_)
        self._idle = [True] * len(p.node)
        self._timeline = Timeline(device.copy(), np.zeros(len(order)), np.zeros(len(order)))
        self._repeats: list[Repeated] = []
        self.left = len(order)
        self.events: list[tuple[float, int]] = []

    def go_on(self) -> None:
        """Begin whatever can begin now, the earliest task in the order first."""
        self._begin()
        while self._enqueue():
            self._begin()
        for due_s in self._state.pop_dues():
            heapq.heappush(self.events, (due_s, -1))

    def _begin(self) -> None:
        queues = self._queues
        near = sorted((self._attempts.place[one], one) for queue in queues for one in queue[-_LOOK_AHEAD:])
        self._state.begin_round()
        for _, attempt in near:
            device = self._attempts.device[attempt]
            if not self._waits(self._attempts.task[attempt]):
                self._state.fetch(attempt)
                if queues[device][-1] == attempt and self._idle[device]:
                    self._start(attempt)

    def _enqueue(self) -> bool:
        """Queue the attempts that are to make dropped values again, or sooner than before; False for none."""
        new = self._state.pop_repeats()
        for attempt in new:
            queue = self._queues[self._attempts.device[attempt]]
            if attempt in queue:
                queue.remove(attempt)
            else:
                self.left += 1
            insort(queue, attempt, key=lambda one: -self._attempts.place[one])
        return bool(new)

    @property
    def goes_in_circles(self) -> bool:
        """Return whether items are sent to and fro more often than any sensible plan would."""
        most = _TRANSFERS_EACH * (len(self._done) + len(self._c.pred_item)) + _TRANSFERS_BESIDES
        return self._state.transfers > most

    def next_event(self) -> None:
        """Process the next event."""
        now_s = self.events[0][0]
        self._state.replicas.now_s = now_s
        while self.events and self.events[0][0] <= now_s:
            _, attempt = heapq.heappop(self.events)
            if attempt >= 0:
                self._done[self._attempts.task[attempt]] = True
                self._idle[self._attempts.device[attempt]] = True
                self.left -= 1
                self._state.finished(attempt)
        self._state.replicas.arrive()

    def lack(self, names: tuple[str, ...]) -> str:
        """Return which task cannot go on, and where room is lacking."""
        blocked = self._state.blocked()
        if blocked is None:
            limits = zip(self._c.nodes, self._state.replicas.capacity_bytes.tolist(), strict=True)
            small = ", ".join(f"{name!r} has {format_bytes(int(limit))}" for name, limit in limits if limit < np.inf)
            return f"data items would be sent to and fro, or made again, without end: {small}"
        attempt, node, needs = blocked
        used, capacity = self._state.replicas.used_bytes[node], self._state.replicas.capacity_bytes[node]
        return (
            f"no room is left for task {names[self._attempts.task[attempt]]!r} on {self._c.nodes[node]!r}: it needs"
            f" {format_bytes(int(needs))} more, {format_bytes(int(used))} of {format_bytes(int(capacity))} are in use,"
            " and what lies there can neither go elsewhere nor be made again"
        )

    def resident(self) -> Resident:
        """Return the schedule as it went."""
        return Resident(self._timeline, *self._state.history(), tuple(self._repeats))

    def _waits(self, task: int) -> bool:
        first, last = self._p.pred_first[task], self._p.pred_first[task + 1]
        return not bool(self._done[self._p.pred[first:last]].all())

    def _start(self, attempt: int) -> None:
        if not self._state.take(attempt):
            return
        task, device = self._attempts.task[attempt], self._attempts.device[attempt]
        now_s = self._state.replicas.now_s
        finish_s = now_s + float(self._p.seconds[task, device])
        self._queues[device].pop()
        self._idle[device] = False
        if self._attempts.is_repeat(attempt):
            self._repeats.append(Repeated(task, device, now_s, finish_s))
        else:
            self._timeline.start_s[task], self._timeline.finish_s[task] = now_s, finish_s
        heapq.heappush(self.events, (finish_s, attempt))
