"""The driver of planning: pulls schedules from a planner or the search until its budget ends.

In: a graph, a policy, a budget in seconds or iterations, a clock. Out: a `Schedule` with its lower bound.
It must not change what the search finds: a budget only says when to stop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np

from hetero.floor.clock import cpu_seconds
from hetero.floor.deprecation import renamed_keywords
from hetero.floor.errors import BadValueError, NothingFitsError, did_you_mean
from hetero.graphs.check import violations
from hetero.graphs.plan_files import MODELS
from hetero.model.graph import UNLIMITED_BYTES, GraphTask, TaskGraph
from hetero.model.schedule import Evicted, Placed, Schedule, Sent
from hetero.plan.bounds.graph import area_bound, critical_path_bound
from hetero.plan.graph_search.combined import BestSchedule, rehearse, search
from hetero.plan.graph_search.contended import ContendedFound, contended_search, least_s
from hetero.plan.graph_search.contended import rehearse as rehearse_contended
from hetero.plan.graph_search.portfolio import portfolio
from hetero.plan.memory.capacity import Resident, only_where_it_fits, overflows, within_capacity
from hetero.plan.planners.contention import Channels, channels_of, contended_schedule, least_transfers
from hetero.plan.planners.heuristics import PLANNERS
from hetero.plan.planners.heuristics import planner as planner_named
from hetero.plan.planners.list_scheduling import compiler, order_of
from hetero.plan.problem import Floats, Ints, Moves, Problem, Timeline, problem_of

__all__ = [
    "PLANNER_NAMES",
    "Budget",
    "Contended",
    "PlannedGraph",
    "Search",
    "check_transfer_model",
    "contended_plan",
    "plan_graph",
    "pull",
    "warm_up",
]

Best = TypeVar("Best")

PLANNER_NAMES = ("search", *PLANNERS)
"""What plans a graph: the search, or one planner by name."""

_REPAIRED = 6
"""So many orders of the portfolio are tried, besides its starts and the plan's own, when a memory node overflows."""

_SHOWN = 5
"""So many of the tasks that run again are named."""

Search = Generator[ContendedFound, float | None, None]
"""A search under contention, which may be sent the seconds that are left."""


class Budget(NamedTuple):
    """When the search ends: after so many seconds, or after so many iterations where they are given.

    Attributes
    ----------
    seconds
        S.
    iterations
        >= 1, or None; with them a plan is the same on every machine.

    Examples
    --------
    >>> import hetero
    >>> hetero.graphs.Budget(iterations=30)
    Budget(seconds=1.0, iterations=30)
    """

    seconds: float = 1.0
    iterations: int | None = None


class PlannedGraph(NamedTuple):
    """A schedule and how it came about.

    Attributes
    ----------
    schedule
        With its lower bound.
    iterations
        Of the search, 1 for a planner.
    search_s
        Seconds that the search took, without the warm-up and the bound.
    warm_up_s
        Seconds that loading and compiling took.
    notes
        What stood in the way, for people.
    """

    schedule: Schedule
    iterations: int
    search_s: float
    warm_up_s: float
    notes: tuple[str, ...]


def check_transfer_model(model: str) -> None:
    """Refuse a model of transfers that is not known.

    Raises
    ------
    BadValueError
        It is none of `MODELS`.
    """
    if model not in MODELS:
        raise BadValueError(
            f"{model!r} is not a model of transfers{did_you_mean(model, MODELS)}",
            remedy=f"allowed: {', '.join(MODELS)}",
        )


@renamed_keywords(policy="planner", model="transfer_model")
def plan_graph(
    graph: TaskGraph,
    planner: str = "search",
    budget: Budget = Budget(),  # noqa: B008  a value
    seed: int = 0,
    clock: Callable[[], float] = cpu_seconds,
    transfer_model: str = "contention",
    starts: Sequence[Schedule] = (),
) -> PlannedGraph:
    """Plan a task graph.

    Parameters
    ----------
    planner
        One of `PLANNER_NAMES`.
    budget
        Kept by the search; a planner by name takes what it takes.
    seed
        Of every random choice.
    clock
        Gives s, of processor time by default; tests hand in their own.
    transfer_model
        'contention', where transfers share links and memory nodes have capacities, or 'free', where
        neither holds
    starts
        Schedules of the same tasks to begin a search under contention with; one that has a device that this graph has
        not is left out.

    Raises
    ------
    BadValueError
        The planner or model is not known, or the graph cannot be planned: a cycle, memory nodes without a path.
    NothingFitsError
        Under contention a memory node is too small, whatever is put elsewhere.

    Examples
    --------
    >>> from hetero.graphs import GraphDevice, GraphTask, MemoryNode, TaskGraph, Topology, plan_graph
    >>> topology = Topology((MemoryNode("ram", 10**9),))
    >>> devices = GraphDevice("slow", "ram"), GraphDevice("fast", "ram")
    >>> graph = TaskGraph(devices, topology, (GraphTask("fft", (8.0, 0.5)),), ())
    >>> [placed.device for placed in plan_graph(graph, "heft").schedule.placements]
    ['fast']
    """
    if planner not in PLANNER_NAMES:
        raise BadValueError(
            f"{planner!r} is not a planner of graphs{did_you_mean(planner, PLANNER_NAMES)}",
            remedy=f"allowed: {', '.join(PLANNER_NAMES)}",
        )
    check_transfer_model(transfer_model)
    p = problem_of(graph)
    if not len(p.order):
        return PlannedGraph(Schedule((), 0.0, 0.0, planner, transfer_model), 0, 0.0, 0.0, ())
    begin_s = clock()
    warm_up(searches=planner == "search")
    warm_s = clock() - begin_s
    begin_s = clock()
    if transfer_model == "contention":
        return _contended(graph, planner, budget, seed, clock, starts)._replace(warm_up_s=warm_s)
    if planner == "search":
        found, iterations = pull(search(p, seed), budget, clock)
    else:
        timeline = planner_named(planner)(p)
        found, iterations = BestSchedule(timeline, critical_path_bound(p), planner), 1
    search_s = clock() - begin_s
    schedule = schedule_of(graph, p, found.timeline, max(found.lower_bound_s, area_bound(p)), planner)
    return PlannedGraph(schedule, iterations, search_s, warm_s, _notes())


def _contended(
    graph: TaskGraph, policy: str, budget: Budget, seed: int, clock: Callable[[], float], starts: Sequence[Schedule]
) -> PlannedGraph:
    spent_s = 0.0

    def timed(found: Search) -> tuple[ContendedFound, int]:
        nonlocal spent_s
        begin_s = clock()
        pulled = pull(found, budget, clock)
        spent_s = clock() - begin_s
        return pulled

    begin_s = clock()
    made = contended_plan(graph, policy, seed, timed, starts)
    notes = (made.note, *_notes()) if made.note else _notes()
    return PlannedGraph(made.schedule, made.iterations, spent_s or clock() - begin_s, 0.0, notes)


def pull(
    found: Generator[Best, float | None, None], budget: Budget, clock: Callable[[], float] = cpu_seconds
) -> tuple[Best, int]:
    """Take from a search until the budget ends or nothing better can be; returns the last found and the iterations.

    Notes
    -----
    In seconds: no iteration is begun that would end too late if it took as long as the longest of the last two. The
    first does not count among these: it takes all starts, the others one schedule.
    """
    begin_s = clock()
    best, count = next(found), 1
    before_s, last_s, ended_s = 0.0, 0.0, clock()
    try:
        while budget.iterations is None or count < budget.iterations:
            left_s = budget.seconds - (ended_s - begin_s)
            if budget.iterations is None and left_s <= max(before_s, last_s):
                break
            best = found.send(None if budget.iterations is not None else left_s)
            count += 1
            now_s = clock()
            before_s, last_s, ended_s = last_s, min(now_s - ended_s, 0.5 * budget.seconds), now_s
    except StopIteration:
        pass
    return best, count


@cache
def warm_up(*, searches: bool) -> None:
    """Load and compile what a plan needs, so that a budget is spent on planning."""
    from hetero.graphs.document import graph_of

    devices = [{"id": name, "memory_node": name} for name in ("a", "b")]
    links = [
        {"src": src, "dst": dst, "bandwidth_bytes_per_s": 1.0, "latency_s": 1.0}
        for src, dst in (("a", "b"), ("b", "a"))
    ]
    tasks = [{"id": str(number), "seconds": {"a": 2.0 + number % 3, "b": 3.0 - number % 2}} for number in range(9)]
    edges = [{"src": str(number), "dst": str(number + 2), "bytes": 1} for number in range(7)]
    nodes = [{"id": "a"}, {"id": "b"}]
    document = {"devices": devices, "memory_nodes": nodes, "links": links, "tasks": tasks, "edges": edges}
    graph = graph_of({"format": "hetero-graph/1", **document}, "warm-up")
    p = problem_of(graph)
    for name in PLANNERS:
        planner_named(name)(p)
    area_bound(p)
    contended_schedule(p, channels_of(graph, p), p.order)
    if searches:
        rehearse(p)
        rehearse_contended(p, channels_of(graph, p))


def schedule_of(graph: TaskGraph, p: Problem, timeline: Timeline, bound_s: float, policy: str) -> Schedule:
    """Return the schedule with ids in place of indices."""
    rows = tuple(
        Placed(
            graph.tasks[task].id,
            graph.devices[int(timeline.device[task])].id,
            float(timeline.start_s[task]),
            float(timeline.finish_s[task]),
        )
        for task in order_of(p, timeline)
    )
    return Schedule(rows, timeline.makespan_s, min(bound_s, timeline.makespan_s), policy)


def _notes() -> tuple[str, ...]:
    import importlib.util

    notes = []
    if compiler():
        notes.append(f"{compiler()}: planning runs about a hundred times slower")
    if importlib.util.find_spec("ortools") is None:
        notes.append("OR-tools is not installed: small graphs are not solved exactly")
    if importlib.util.find_spec("scipy") is None:
        notes.append("SciPy is not installed: the lower bound may be some percent lower")
    return tuple(notes)


class Contended(NamedTuple):
    """A plan under contention, and how it came about.

    Attributes
    ----------
    schedule
        With its transfers.
    iterations
        Of the search, 1 for a planner.
    note
        What was done where the plan had overflowed, '' where it fits as it is.
    """

    schedule: Schedule
    iterations: int
    note: str


def contended_plan(
    graph: TaskGraph,
    policy: str,
    seed: int,
    pull: Callable[[Search], tuple[ContendedFound, int]],
    starts: Sequence[Schedule] = (),
) -> Contended:
    """Plan a graph of at least one task under contention and within capacities.

    Parameters
    ----------
    policy
        'search', or a planner by name, whose order and devices are then timed under contention.
    pull
        Takes from the search until the budget ends.
    starts
        Schedules of the same tasks that the search begins with.

    Raises
    ------
    BadValueError
        The graph cannot be planned: a cycle, memory nodes without a path.
    NothingFitsError
        A memory node is too small, whatever is put elsewhere.
    """
    names = tuple(task.id for task in graph.tasks)
    p = problem_of(graph)
    c = channels_of(graph, p)
    capacity_bytes = _capacities(graph, c)
    p = only_where_it_fits(p, c, capacity_bytes, names)
    if policy == "search":
        found, iterations = pull(contended_search(p, c, seed, _timelines(graph, p, starts)))
    else:
        chosen = planner_named(policy)(p)
        timed = contended_schedule(p, c, order_of(p, chosen), chosen.device)
        found, iterations = ContendedFound(*timed, critical_path_bound(least_transfers(p, c)), policy), 1
    bound_s = max(found.lower_bound_s, area_bound(least_transfers(p, c)))
    if overflows(p, c, capacity_bytes, found.timeline, found.moves):
        schedule, note = _within_memory(graph, found.timeline, bound_s, policy)
        wrong = violations(graph, schedule)
        assert not wrong, wrong[0]
        return Contended(schedule, iterations, note)
    resident = Resident(found.timeline, found.moves)
    return Contended(_schedule(graph, p, c, resident, bound_s, policy), iterations, "")


def _within_memory(graph: TaskGraph, timeline: Timeline, bound_s: float, policy: str) -> tuple[Schedule, str]:
    """Return the shortest of a plan and those of parts of the fleet, all repaired, and what was done for it."""
    best: tuple[Schedule, str] | None = None
    refused: NothingFitsError | None = None
    names = tuple(task.id for task in graph.tasks)
    for part in (graph, *_parts(graph)):
        p = problem_of(part)
        if best is not None and least_s(p) >= best[0].makespan_s:
            continue
        c = channels_of(part, p)
        capacity_bytes = _capacities(part, c)
        try:
            p = only_where_it_fits(p, c, capacity_bytes, names)
            whole = timeline if part is graph else next(contended_search(p, c, 0)).timeline
            resident = _repaired(p, c, capacity_bytes, whole, names)
        except NothingFitsError as error:
            refused = refused or error
            continue
        if best is None or resident.timeline.makespan_s < best[0].makespan_s:
            best = _schedule(part, p, c, resident, bound_s, policy), _eviction_note(resident, names)
    if best is None:
        assert refused is not None
        raise refused
    return best


def _parts(graph: TaskGraph) -> Iterator[TaskGraph]:
    """Yield the graph on each device, each memory node and each host alone, where all of its tasks can run there."""
    places = [(each.id, each.memory_node, each.memory_node.partition("/")[0]) for each in graph.devices]
    seen = {tuple(range(len(places)))}
    for kind in range(3):
        for place in sorted({each[kind] for each in places}):
            keep = tuple(at for at, each in enumerate(places) if each[kind] == place)
            tasks = tuple(GraphTask(task.id, tuple(task.seconds[at] for at in keep)) for task in graph.tasks)
            if keep not in seen and all(any(map(math.isfinite, task.seconds)) for task in tasks):
                yield replace(graph, devices=tuple(graph.devices[at] for at in keep), tasks=tasks)
            seen.add(keep)


def _timelines(graph: TaskGraph, p: Problem, starts: Sequence[Schedule]) -> list[Timeline]:
    """Return schedules as arrays, without those that have a device or a task that the graph has not."""
    task = {each.id: at for at, each in enumerate(graph.tasks)}
    device = {each.id: at for at, each in enumerate(graph.devices)}
    found = []
    for start in starts:
        rows = [row for row in start.placements if row.task in task and row.device in device]
        if len(rows) != len(task):
            continue
        at = np.array([task[row.task] for row in rows])
        timeline = Timeline(np.empty(len(rows), dtype=np.int64), np.empty(len(rows)), np.empty(len(rows)))
        timeline.device[at] = [device[row.device] for row in rows]
        timeline.start_s[at], timeline.finish_s[at] = [row.start_s for row in rows], [row.finish_s for row in rows]
        if np.isfinite(p.seconds[np.arange(len(rows)), timeline.device]).all():
            found.append(timeline)
    return found


def _eviction_note(resident: Resident, names: tuple[str, ...]) -> str:
    """Return what was done so that no memory node overflows."""
    said = f"a memory node would overflow, so transfers wait for room; evictions: {len(resident.dropped):,}"
    again = list(dict.fromkeys(names[row.task] for row in resident.repeats))
    if again:
        shown = ", ".join(again[:_SHOWN]) + (", …" if len(again) > _SHOWN else "")
        said += f"; run again to save room: {len(resident.repeats):,} ({shown})"
    return said


def _capacities(graph: TaskGraph, c: Channels) -> Floats:
    given = {node.id: node.capacity_bytes for node in graph.topology.nodes}
    limits = [given.get(name, UNLIMITED_BYTES) for name in c.nodes]
    return np.array([np.inf if limit == UNLIMITED_BYTES else limit for limit in limits], dtype=np.float64)


def _repaired(p: Problem, c: Channels, capacity_bytes: Floats, timeline: Timeline, names: tuple[str, ...]) -> Resident:
    """Return the shortest of the plan and a few others that keeps to the capacities."""
    best: Resident | None = None
    refused: NothingFitsError | None = None
    for order, device, at_least_s in _candidates(p, c, capacity_bytes, timeline):
        if best is not None and at_least_s >= best.timeline.makespan_s:
            continue
        for repeats in (True, False):
            try:
                tried = within_capacity(p, c, capacity_bytes, order, device, names, repeats=repeats)
            except NothingFitsError as error:
                refused = refused or error
                continue
            if best is None or _by_length(tried) < _by_length(best):
                best = tried
    if best is None:
        assert refused is not None
        raise refused
    return best


def _by_length(resident: Resident) -> tuple[float, int]:
    return resident.timeline.makespan_s, len(resident.repeats)


def _candidates(
    p: Problem, c: Channels, capacity_bytes: Floats, timeline: Timeline
) -> Iterator[tuple[Ints, Ints, float]]:
    """Return orders and devices: the plan's, the portfolio's, and depth first, also on the largest memory alone.

    Notes
    -----
    Of a start the third is its makespan where nothing overflows: when it is not shorter than another plan there is
    no need to repair it. Of the others it is 0.
    """
    yield order_of(p, timeline), timeline.device, 0.0
    others = 0
    for member in portfolio(p):
        others += not member.is_start
        if others > _REPAIRED:
            break
        at_least_s = member.timeline.makespan_s if member.is_start else 0.0
        yield order_of(p, member.timeline), member.timeline.device, at_least_s
    deep = depth_first(p)
    yield deep, timeline.device, 0.0
    largest = int(np.argmax(capacity_bytes[: int(p.node.max()) + 1]))
    seconds = np.where(p.node[None, :] == largest, p.seconds, np.inf)
    runs_there = np.isfinite(seconds).any(axis=1, keepdims=True)
    alone = np.where(runs_there, seconds, p.seconds)
    yield deep, contended_schedule(p._replace(seconds=alone), c, deep)[0].device, 0.0


def depth_first(p: Problem) -> Ints:
    """Return the order in which a task is followed by what it was the last to wait for: few items are alive at once."""
    waits = np.diff(p.pred_first)
    stack = [int(task) for task in p.order[::-1] if waits[task] == 0]
    order = []
    while stack:
        task = stack.pop()
        order.append(task)
        for child in p.succ[p.succ_first[task] : p.succ_first[task + 1]][::-1]:
            waits[child] -= 1
            if waits[child] == 0:
                stack.append(int(child))
    return np.array(order, dtype=np.int64)


def _schedule(graph: TaskGraph, p: Problem, c: Channels, resident: Resident, bound_s: float, policy: str) -> Schedule:
    timeline, moves, dropped, repeats = resident
    names = [task.id for task in graph.tasks]
    placements = tuple(
        Placed(
            names[task],
            graph.devices[int(timeline.device[task])].id,
            float(timeline.start_s[task]),
            float(timeline.finish_s[task]),
        )
        for task in order_of(p, timeline)
    )
    evictions = tuple(Evicted(*_item(c, one.item, names), c.nodes[one.node], float(one.at_s)) for one in dropped)
    return Schedule(
        placements,
        timeline.makespan_s,
        min(bound_s, timeline.makespan_s),
        policy,
        "contention",
        _sent(c, moves, names),
        evictions,
        tuple(Placed(names[row.task], graph.devices[row.device].id, row.start_s, row.finish_s) for row in repeats),
    )


def _sent(c: Channels, moves: Moves, names: list[str]) -> tuple[Sent, ...]:
    by = np.lexsort((moves.hop, moves.item, moves.finish_s, moves.start_s))
    return tuple(
        Sent(
            *_item(c, moves.item[at], names),
            c.nodes[c.hop_src[moves.hop[at]]],
            c.nodes[c.hop_dst[moves.hop[at]]],
            float(moves.start_s[at]),
            float(moves.finish_s[at]),
        )
        for at in by
    )


def _item(c: Channels, item: int, names: list[str]) -> tuple[str, int]:
    return names[c.item_task[item]], int(c.item_bytes[item])
