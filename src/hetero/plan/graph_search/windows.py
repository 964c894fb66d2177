"""Exact search by constraint programming: over a whole small graph, or over a window of a large one.

In: a `Problem`, a schedule to improve, which of its tasks are free. Out: a schedule and, for a whole graph, a bound.
OR-tools is imported inside functions. It must not read a clock: limits are OR-tools' own, handed in.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hetero.plan.planners.list_scheduling import order_of, timed_schedule
from hetero.plan.problem import Floats, Ints, Problem, Timeline

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["TICKS", "ExactLimits", "improve", "is_here", "whole_ticks"]

TICKS = 2**28
"""The makespan to beat is so many ticks; seconds are rounded down, so that a proven bound holds."""


class ExactLimits(NamedTuple):
    """When an exact search ends.

    Attributes
    ----------
    deterministic : OR-tools' deterministic time, about a second each, the same on every machine
    wall_s : s of wall time, inf for none; a result then depends on the machine
    seed : of OR-tools' own chance
    """

    deterministic: float
    wall_s: float
    seed: int


class _Window(NamedTuple):
    """What a window's tasks see of the rest, which stays as it is.

    Attributes
    ----------
    tasks : the free tasks, in the order of the schedule
    since_s : shape (n_free, n_devices), s; the earliest start of each on each device
    after_s : shape (n_free, n_devices), s; the least from its finish there to the end
    floor_s : s, the makespan that the rest alone makes
    """

    tasks: Ints
    since_s: Floats
    after_s: Floats
    floor_s: float


def is_here() -> bool:
    """Return whether OR-tools is installed."""
    return importlib.util.find_spec("ortools") is not None


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
