"""The driver of planning: pulls schedules from a planner or the search until its budget ends.

In: a graph, a policy, a budget in seconds or iterations, a clock. Out: a `Schedule` with its lower bound.
It must not change what the search finds: a budget only says when to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cache
from typing import NamedTuple, TypeVar

from hetero.floor.clock import monotonic_s
from hetero.floor.errors import BadValueError, did_you_mean
from hetero.graphs.contention import Search, contended_plan
from hetero.graphs.plan_files import MODELS
from hetero.model.graph import TaskGraph
from hetero.model.schedule import Placed, Schedule
from hetero.plan.bounds.graph import area_bound, critical_path_bound
from hetero.plan.graph_search.combined import BestSchedule, rehearse, search
from hetero.plan.graph_search.contended import ContendedFound
from hetero.plan.planners.contention import channels_of, contended_schedule
from hetero.plan.planners.heuristics import PLANNERS, planner
from hetero.plan.planners.list_scheduling import compiler, order_of
from hetero.plan.problem import Problem, Timeline, problem_of

__all__ = ["POLICIES", "Budget", "PlannedGraph", "plan_graph", "pull", "warm_up"]

Best = TypeVar("Best")

POLICIES = ("search", *PLANNERS)
"""What plans a graph: the search, or one planner by name."""


class Budget(NamedTuple):
    """When the search ends: after so many seconds, or after so many iterations where they are given.

    Attributes
    ----------
    seconds : s
    iterations : >= 1, or None; with them a plan is the same on every machine
    """

    seconds: float = 1.0
    iterations: int | None = None


class PlannedGraph(NamedTuple):
    """A schedule and how it came about.

    Attributes
    ----------
    schedule : with its lower bound
    iterations : of the search, 1 for a planner
    search_s : s that the search took, without the warm-up and the bound
    warm_up_s : s that loading and compiling took
    notes : what stood in the way, for people
    """

    schedule: Schedule
    iterations: int
    search_s: float
    warm_up_s: float
    notes: tuple[str, ...]


def plan_graph(
    graph: TaskGraph,
    policy: str = "search",
    budget: Budget = Budget(),  # noqa: B008  a value
    seed: int = 0,
    clock: Callable[[], float] = monotonic_s,
    model: str = "contention",
) -> PlannedGraph:
    """Plan a task graph.

    Parameters
    ----------
    policy : one of `POLICIES`
    budget : kept by the search; a planner by name takes what it takes
    seed : of every random choice
    clock : gives s; tests hand in their own
    model : 'contention', where transfers share links and memory nodes have capacities, or 'free', where neither holds

    Raises
    ------
    BadValueError
        The policy or model is not known, or the graph cannot be planned: a cycle, memory nodes without a path.
    NothingFitsError
        Under contention a memory node is too small, whatever is put elsewhere.
    """
    if policy not in POLICIES:
        raise BadValueError(
            f"{policy!r} is not a policy for graphs{did_you_mean(policy, POLICIES)}",
            remedy=f"allowed: {', '.join(POLICIES)}",
        )
    if model not in MODELS:
        raise BadValueError(
            f"{model!r} is not a model of transfers{did_you_mean(model, MODELS)}",
            remedy=f"allowed: {', '.join(MODELS)}",
        )
    p = problem_of(graph)
    if not len(p.order):
        return PlannedGraph(Schedule((), 0.0, 0.0, policy, model), 0, 0.0, 0.0, ())
    begin_s = clock()
    warm_up(searches=policy == "search")
    warm_s = clock() - begin_s
    begin_s = clock()
    if model == "contention":
        return _contended(graph, policy, budget, seed, clock)._replace(warm_up_s=warm_s)
    if policy == "search":
        found, iterations = pull(search(p, seed), budget, clock)
    else:
        timeline = planner(policy)(p)
        found, iterations = BestSchedule(timeline, critical_path_bound(p), policy), 1
    search_s = clock() - begin_s
    schedule = schedule_of(graph, p, found.timeline, max(found.lower_bound_s, area_bound(p)), policy)
    return PlannedGraph(schedule, iterations, search_s, warm_s, _notes())


def _contended(graph: TaskGraph, policy: str, budget: Budget, seed: int, clock: Callable[[], float]) -> PlannedGraph:
    spent_s = 0.0

    def timed(found: Search) -> tuple[ContendedFound, int]:
        nonlocal spent_s
        begin_s = clock()
        pulled = pull(found, budget, clock)
        spent_s = clock() - begin_s
        return pulled

    begin_s = clock()
    made = contended_plan(graph, policy, seed, timed)
    notes = (made.note, *_notes()) if made.note else _notes()
    return PlannedGraph(made.schedule, made.iterations, spent_s or clock() - begin_s, 0.0, notes)


def pull(
    found: Generator[Best, float | None, None], budget: Budget, clock: Callable[[], float] = monotonic_s
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
        planner(name)(p)
    area_bound(p)
    contended_schedule(p, channels_of(graph, p), p.order)
    if searches:
        rehearse(p)


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
