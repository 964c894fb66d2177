"""Exact search of a small graph whose transfers share links, by constraint programming.

In: a `Problem`, its `Channels`, a schedule to improve. Out: an order with devices, and a bound of the makespan.
OR-tools is imported inside functions. It must not read a clock: its limit is OR-tools' deterministic time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hetero.plan.bounds.graph import device_classes, least_heads, least_tails
from hetero.plan.graph_search.windows import TICKS, whole_ticks
from hetero.plan.planners.contention import Channels
from hetero.plan.problem import Ints, Problem, Timeline

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["LinkedFound", "improve_linked", "is_small"]

_TASKS_AT_MOST, _TRANSFERS_AT_MOST = 60, 2_500
"""Graphs of up to so many tasks, and with so many pairs of an item and a link, are given to the exact search."""


class LinkedFound(NamedTuple):
    """What the exact search found.

    Attributes
    ----------
    order, device : of a schedule, None where none was found
    bound_s : s; no schedule is shorter
    spent : of OR-tools' deterministic time
    is_done : whether nothing is left to be found
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
    least : the problem with the least transfers, see `hetero.plan.planners.contention.least_transfers`
    limit : of OR-tools' deterministic time

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
