"""Exact search by constraint programming: over a whole small graph, also one whose transfers share links, or a window.

In: a `Problem`, a schedule to improve, which of its tasks are free. Out: a schedule and, for a whole graph, a bound.
OR-tools is imported inside functions. It must not read a clock: limits are OR-tools' own, handed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hetero.plan.bounds.graph import device_classes, least_heads, least_tails
from hetero.plan.planners.contention import Channels
from hetero.plan.planners.list_scheduling import order_of, timed_schedule
from hetero.plan.problem import Floats, Ints, Problem, Timeline

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["TICKS", "ExactLimits", "LinkedFound", "improve", "improve_linked", "is_small", "whole_ticks"]

TICKS = 2**28
"""The makespan to beat is so many ticks; seconds are rounded down, so that a proven bound holds."""


class ExactLimits(NamedTuple):
    """When an exact search ends.

    Attributes
    ----------
    deterministic
        OR-tools' deterministic time, about a second each, the same on every machine.
    wall_s
        Seconds of wall time, inf for none; a result then depends on the machine.
    seed
        Of OR-tools' own chance.
    """

    deterministic: float
    wall_s: float
    seed: int


class _Window(NamedTuple):
    """What a window's tasks see of the rest, which stays as it is.

    Attributes
    ----------
    tasks
        The free tasks, in the order of the schedule.
    since_s
        Shape (n_free, n_devices), s; the earliest start of each on each device.
    after_s
        Shape (n_free, n_devices), s; the least from its finish there to the end.
    floor_s
        Seconds, the makespan that the rest alone makes.
    """

    tasks: Ints
    since_s: Floats
    after_s: Floats
    floor_s: float


def improve(p: Problem, timeline: Timeline, first: int, last: int, limits: ExactLimits) -> tuple[Timeline, float]:
    """Place the tasks at positions first .. last - 1 of the schedule's order anew, as well as can be.

    Returns
    -------
    tuple
        The better schedule, or the one given; and the lower bound of the makespan, s, that was proven for any
        schedule that leaves the rest as it is: for all of the tasks, the bound of the graph.

    Notes
    -----
    Tasks before the window keep their times; tasks behind it keep device and order and move up with it. So the
    makespan is the maximum, over a free task i on its device d, of end_i + after(i, d), and of what the rest alone
    makes. Devices that look alike to all free tasks are one cumulative resource.

    References
    ----------
    P. Laborie et al., "IBM ILOG CP optimizer for scheduling", Constraints 23 (2018), 210-250: optional intervals;
    OR-tools' CP-SAT, developers.google.com/optimization.
    """
    from ortools.sat.python import cp_model

    order = order_of(p, timeline)
    window = _window(p, timeline, order, first, last)
    tick_s = timeline.makespan_s / TICKS
    if tick_s <= 0.0:
        return timeline, timeline.makespan_s
    model, starts, at = _model(p, timeline, window, tick_s)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = limits.seed % 2**31
    solver.parameters.max_deterministic_time = limits.deterministic
    if limits.wall_s < np.inf:
        solver.parameters.max_time_in_seconds = limits.wall_s
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return timeline, timeline.makespan_s * (1.0 - 1e-9)
    bound_s = max(0.0, solver.best_objective_bound) * tick_s * (1.0 - 1e-9)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return timeline, bound_s
    begins = np.array([solver.value(start) for start in starts])
    groups = [next(group for group, literal in row if solver.value(literal)) for row in at]
    better = _rebuilt(p, timeline, order, window, begins * tick_s, groups)
    return (better if better.makespan_s < timeline.makespan_s else timeline), bound_s


def whole_ticks(seconds: float, tick_s: float) -> int:
    """Return whole ticks, rounded down and a thousandth more, so that no rounding makes a sum of parts too long."""
    return max(0, int(seconds / tick_s - 1e-3))


def _transfer_s(p: Problem, nbytes: float, src: int, dst: int) -> float:
    if src == dst or nbytes <= 0.0:
        return 0.0
    return float(p.latency_s[src, dst] + nbytes * p.s_per_byte[src, dst])


def _window(p: Problem, timeline: Timeline, order: Ints, first: int, last: int) -> _Window:
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    m = len(p.node)
    free_s = np.zeros(m)
    for task in order[:first]:
        free_s[timeline.device[task]] = timeline.finish_s[task]
    rest_s, behind_s, floor_s = _behind(p, timeline, order, place, (first, last), free_s)
    since_s, after_s = np.empty((last - first, m)), np.empty((last - first, m))
    for row, task in enumerate(order[first:last]):
        since_s[row], after_s[row] = free_s, behind_s
        for e in range(p.pred_first[task], p.pred_first[task + 1]):
            before = p.pred[e]
            if place[before] < first:
                for d in range(m):
                    there_s = _transfer_s(p, p.pred_bytes[e], p.node[timeline.device[before]], p.node[d])
                    since_s[row, d] = max(since_s[row, d], timeline.finish_s[before] + there_s)
        for e in range(p.succ_first[task], p.succ_first[task + 1]):
            child = p.succ[e]
            if place[child] >= last:
                for d in range(m):
                    there_s = _transfer_s(p, p.succ_bytes[e], p.node[d], p.node[timeline.device[child]])
                    after_s[row, d] = max(after_s[row, d], there_s + rest_s[child])
    return _Window(order[first:last], since_s, after_s, floor_s)


def _behind(
    p: Problem, timeline: Timeline, order: Ints, place: Ints, span: tuple[int, int], free_s: Floats
) -> tuple[Floats, Floats, float]:
    """Return the time from start to end for each task behind the window, and from its next task for each device."""
    first, last = span
    rest_s = np.zeros(len(order))
    behind_s = np.zeros(len(p.node))
    floor_s = float(timeline.finish_s[order[:first]].max()) if first else 0.0
    for task in order[last:][::-1]:
        d = timeline.device[task]
        tail_s = behind_s[d]
        for e in range(p.succ_first[task], p.succ_first[task + 1]):
            child = p.succ[e]
            travel_s = _transfer_s(p, p.succ_bytes[e], p.node[d], p.node[timeline.device[child]])
            tail_s = max(tail_s, travel_s + rest_s[child])
        rest_s[task] = behind_s[d] = p.seconds[task, d] + tail_s
        ready_s = free_s[d]
        for e in range(p.pred_first[task], p.pred_first[task + 1]):
            before = p.pred[e]
            if place[before] < first:
                travel_s = _transfer_s(p, p.pred_bytes[e], p.node[timeline.device[before]], p.node[d])
                ready_s = max(ready_s, timeline.finish_s[before] + travel_s)
        floor_s = max(floor_s, ready_s + rest_s[task])
    return rest_s, behind_s, floor_s


def _groups(p: Problem, window: _Window) -> list[list[int]]:
    """Return the devices in groups that look alike to all free tasks."""
    groups: dict[tuple[int, bytes], list[int]] = {}
    for d in range(len(p.node)):
        looks = np.concatenate([p.seconds[window.tasks, d], window.since_s[:, d], window.after_s[:, d]])
        groups.setdefault((int(p.node[d]), looks.tobytes()), []).append(d)
    return list(groups.values())


def _model(
    p: Problem, timeline: Timeline, window: _Window, tick_s: float
) -> tuple[cp_model.CpModel, list[cp_model.IntVar], list[list[tuple[int, cp_model.IntVar]]]]:
    """Build the model; returns it, the start of each free task, and its literals, one a group that can run it."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    groups = _groups(p, window)
    span = model.new_int_var(whole_ticks(window.floor_s, tick_s), TICKS, "")
    intervals: list[list[cp_model.IntervalVar]] = [[] for _ in groups]
    starts: list[cp_model.IntVar] = []
    at: list[list[tuple[int, cp_model.IntVar]]] = []
    for row, task in enumerate(window.tasks):
        start = model.new_int_var(0, TICKS, "")
        model.add_hint(start, int(timeline.start_s[task] / tick_s))
        literals: list[tuple[int, cp_model.IntVar]] = []
        for number, group in enumerate(groups):
            d = group[0]
            if not np.isfinite(p.seconds[task, d]):
                continue
            literal = model.new_bool_var("")
            ticks = whole_ticks(p.seconds[task, d], tick_s)
            intervals[number].append(model.new_optional_fixed_size_interval_var(start, ticks, literal, ""))
            model.add(start >= whole_ticks(window.since_s[row, d], tick_s)).only_enforce_if(literal)
            behind = ticks + whole_ticks(window.after_s[row, d], tick_s)
            model.add(start + behind <= span).only_enforce_if(literal)
            model.add_hint(literal, int(timeline.device[task]) in group)
            literals.append((number, literal))
        model.add_exactly_one(literal for _, literal in literals)
        starts.append(start)
        at.append(literals)
    for group, own in zip(groups, intervals, strict=True):
        if len(group) == 1:
            model.add_no_overlap(own)
        else:
            model.add_cumulative(own, [1] * len(own), len(group))
        work = sum(interval.size_expr() * interval.presence_literals()[0] for interval in own)
        least = min(since_s[group[0]] for since_s in window.since_s), min(row[group[0]] for row in window.after_s)
        model.add(work <= len(group) * (span - whole_ticks(least[0], tick_s) - whole_ticks(least[1], tick_s)))
    _precedences(p, model, window, groups, starts, at, tick_s)
    model.minimize(span)
    return model, starts, at


def _precedences(
    p: Problem,
    model: cp_model.CpModel,
    window: _Window,
    groups: list[list[int]],
    starts: list[cp_model.IntVar],
    at: list[list[tuple[int, cp_model.IntVar]]],
    tick_s: float,
) -> None:
    row_of = {int(task): row for row, task in enumerate(window.tasks)}
    for row, task in enumerate(window.tasks):
        for e in range(p.pred_first[task], p.pred_first[task + 1]):
            before = int(p.pred[e])
            if before not in row_of:
                continue
            for number, ran in at[row_of[before]]:
                src = groups[number][0]
                end = starts[row_of[before]] + whole_ticks(p.seconds[before, src], tick_s)
                model.add(starts[row] >= end).only_enforce_if(ran)
                for other, runs in at[row]:
                    travel = whole_ticks(_transfer_s(p, p.pred_bytes[e], p.node[src], p.node[groups[other][0]]), tick_s)
                    if travel > 0:
                        model.add(starts[row] >= end + travel).only_enforce_if([ran, runs])


def _rebuilt(
    p: Problem, timeline: Timeline, order: Ints, window: _Window, begin_s: Floats, groups: list[int]
) -> Timeline:
    """Return the schedule with the free tasks in the order of their new starts, each on a device of its group."""
    device = timeline.device.copy()
    members = _groups(p, window)
    by = np.lexsort((np.arange(len(begin_s)), begin_s))
    free_s = {group: [0.0] * len(members[group]) for group in set(groups)}
    for row in by:
        task, own = window.tasks[row], free_s[groups[row]]
        member = int(np.argmin(own))
        device[task] = members[groups[row]][member]
        own[member] = begin_s[row] + p.seconds[task, device[task]]
    first = int(np.flatnonzero(order == window.tasks[0])[0])
    anew = order.copy()
    anew[first : first + len(by)] = window.tasks[by]
    return timed_schedule(p, anew, device)


_TASKS_AT_MOST, _TRANSFERS_AT_MOST = 60, 2_500
"""Graphs of up to so many tasks, and with so many pairs of an item and a link, are given to the exact search."""


class LinkedFound(NamedTuple):
    """What the exact search found.

    Attributes
    ----------
    order, device
        Of a schedule, None where none was found.
    bound_s
        Seconds; no schedule is shorter.
    spent
        Of OR-tools' deterministic time.
    is_done
        Whether nothing is left to be found.
    """

    order: Ints | None
    device: Ints | None
    bound_s: float
    spent: float
    is_done: bool = True


class _Link(NamedTuple):
    src: int
    dst: int
    channel: int
    latency_s: float
    s_per_byte: float


def _links(c: Channels) -> list[_Link]:
    rows = zip(c.hop_src, c.hop_dst, c.hop_channel, c.hop_latency_s, c.hop_s_per_byte, strict=True)
    return [
        _Link(int(src), int(dst), int(channel), float(latency_s), float(s_per_byte))
        for src, dst, channel, latency_s, s_per_byte in dict.fromkeys(rows)
    ]


def is_small(p: Problem, c: Channels) -> bool:
    """Return whether a graph is small enough to be searched exactly with its links."""
    return len(p.order) <= _TASKS_AT_MOST and len(c.item_task) * len(_links(c)) <= _TRANSFERS_AT_MOST


def improve_linked(p: Problem, least: Problem, c: Channels, best: Timeline, limit: float, seed: int) -> LinkedFound:
    """Place all tasks and transfers as well as can be.

    Parameters
    ----------
    least
        The problem with the least transfers, see `hetero.plan.planners.contention.least_transfers`.
    limit
        Of OR-tools' deterministic time.

    Notes
    -----
    An item may go over any link from any memory node where it is, so the bound holds also for schedules in which copies
    are passed on. Links of one bus carry one transfer at a time. Like devices of one memory node are one cumulative
    resource, and a task on a memory node starts no earlier than its least head there and leaves its least tail.
    """
    from ortools.sat.python import cp_model

    tick_s = best.makespan_s / TICKS
    if tick_s <= 0.0:
        return LinkedFound(None, None, best.makespan_s, 0.0)
    model = _LinkedModel(p, least, c, best, tick_s)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.max_deterministic_time = limit
    status = solver.solve(model.model)
    spent = float(solver.response_proto.deterministic_time)
    if status == cp_model.INFEASIBLE:
        return LinkedFound(None, None, best.makespan_s * (1.0 - 1e-9), spent)
    bound_s = max(0.0, solver.best_objective_bound) * tick_s * (1.0 - 1e-9)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return LinkedFound(None, None, bound_s, spent, is_done=False)
    begins = np.array([solver.value(start) for start in model.starts])
    depth = np.empty(len(begins), dtype=np.int64)
    depth[p.order] = np.arange(len(depth))
    order = np.lexsort((depth, begins)).astype(np.int64)
    groups = [next(group for group, literal in row if solver.value(literal)) for row in model.at]
    is_done = status == cp_model.OPTIMAL
    return LinkedFound(order, model.devices(order, begins, groups), bound_s, spent, is_done)


class _LinkedModel:
    """Tasks on groups of like devices, items on memory nodes, transfers on links."""

    def __init__(self, p: Problem, least: Problem, c: Channels, best: Timeline, tick_s: float) -> None:
        from ortools.sat.python import cp_model

        self._p, self._c, self._best, self._tick_s = p, c, best, tick_s
        self._groups = device_classes(p)
        self._heads, self._tails = least_heads(least), least_tails(least)
        self.model = cp_model.CpModel()
        self._span = self.model.new_int_var(0, TICKS, "")
        self.starts: list[cp_model.IntVar] = []
        self.at: list[list[tuple[int, cp_model.IntVar]]] = []
        self._on: list[dict[int, cp_model.IntVar]] = []
        self._ends: list[cp_model.IntVar] = []
        self._tasks()
        self._items()
        self.model.minimize(self._span)

    def devices(self, order: Ints, begins: Ints, groups: list[int]) -> Ints:
        """Return a device of its group for each task."""
        device = np.empty(len(order), dtype=np.int64)
        free_s = {group: [0.0] * len(self._groups[group]) for group in set(groups)}
        for task in order:
            own = free_s[groups[task]]
            member = int(np.argmin(own))
            device[task] = self._groups[groups[task]][member]
            own[member] = float(begins[task]) * self._tick_s + self._p.seconds[task, device[task]]
        return device

    def _whole(self, seconds: float) -> int:
        return whole_ticks(float(seconds), self._tick_s)

    def _tasks(self) -> None:
        p, model = self._p, self.model
        intervals: list[list[cp_model.IntervalVar]] = [[] for _ in self._groups]
        for task in range(len(p.order)):
            start, end = model.new_int_var(0, TICKS, ""), model.new_int_var(0, TICKS, "")
            model.add_hint(start, int(self._best.start_s[task] / self._tick_s))
            row: list[tuple[int, cp_model.IntVar]] = []
            on: dict[int, list[cp_model.IntVar]] = {}
            for number, group in enumerate(self._groups):
                if not np.isfinite(p.seconds[task, group[0]]):
                    continue
                literal, node = model.new_bool_var(""), int(p.node[group[0]])
                ticks = self._whole(p.seconds[task, group[0]])
                intervals[number].append(model.new_optional_interval_var(start, ticks, end, literal, ""))
                model.add(start >= self._whole(self._heads[task, node])).only_enforce_if(literal)
                model.add(end + self._whole(self._tails[task, node]) <= self._span).only_enforce_if(literal)
                model.add_hint(literal, int(self._best.device[task]) in group)
                row.append((number, literal))
                on.setdefault(node, []).append(literal)
            model.add_exactly_one(literal for _, literal in row)
            self.starts.append(start)
            self._ends.append(end)
            self.at.append(row)
            self._on.append({node: self._any(literals) for node, literals in on.items()})
        for group, own in zip(self._groups, intervals, strict=True):
            if len(group) == 1:
                model.add_no_overlap(own)
            else:
                model.add_cumulative(own, [1] * len(own), len(group))
            work = sum(interval.size_expr() * interval.presence_literals()[0] for interval in own)
            model.add(work <= len(group) * self._span)

    def _any(self, literals: list[cp_model.IntVar]) -> cp_model.IntVar:
        """Return a literal that is true where one of these is, at most one of which is."""
        if len(literals) == 1:
            return literals[0]
        found = self.model.new_bool_var("")
        self.model.add(sum(literals) == found)
        return found

    def _items(self) -> None:
        p, c, model = self._p, self._c, self.model
        links = _links(c)
        channels: dict[int, list[cp_model.IntervalVar]] = {}
        readers: dict[int, list[int]] = {}
        for task in range(len(p.order)):
            for e in range(p.pred_first[task], p.pred_first[task + 1]):
                model.add(self.starts[task] >= self._ends[p.pred[e]])
                if c.pred_item[e] >= 0:
                    readers.setdefault(int(c.pred_item[e]), []).append(task)
        for item, tasks in readers.items():
            self._item(item, tasks, links, channels)
        for own in channels.values():
            model.add_no_overlap(own)
            used = sum(interval.size_expr() * interval.presence_literals()[0] for interval in own)
            model.add(used <= self._span)

    def _item(
        self, item: int, readers: list[int], links: list[_Link], channels: dict[int, list[cp_model.IntervalVar]]
    ) -> None:
        c, model = self._c, self.model
        maker = int(c.item_task[item])
        made = self._on[maker]
        got = [model.new_bool_var("") for _ in c.nodes]
        there = [model.new_int_var(0, TICKS, "") for _ in c.nodes]
        into: list[list[cp_model.IntVar]] = [[] for _ in c.nodes]
        for link in links:
            sent, begin = model.new_bool_var(""), model.new_int_var(0, TICKS, "")
            ticks = self._whole(link.latency_s + c.item_bytes[item] * link.s_per_byte)
            interval = model.new_optional_fixed_size_interval_var(begin, ticks, sent, "")
            channels.setdefault(link.channel, []).append(interval)
            into[link.dst].append(sent)
            model.add(there[link.dst] >= begin + ticks).only_enforce_if(sent)
            model.add(begin >= self._ends[maker]).only_enforce_if(sent)
            home = made.get(link.src)
            if home is None:
                model.add_implication(sent, got[link.src])
                model.add(begin >= there[link.src]).only_enforce_if(sent)
            else:
                model.add_bool_or([sent.Not(), home, got[link.src]])
                model.add(begin >= there[link.src]).only_enforce_if([sent, got[link.src]])
        for node, sents in enumerate(into):
            model.add(sum(sents) == got[node])
            if node in made:
                model.add_implication(made[node], got[node].Not())
        for task in readers:
            for node, here in self._on[task].items():
                own = made.get(node)
                if own is None:
                    model.add_implication(here, got[node])
                else:
                    model.add_bool_or([here.Not(), own, got[node]])
                model.add(self.starts[task] >= there[node]).only_enforce_if([here, got[node]])
