"""Planners, ranks, bounds and the search: on the papers' own examples, on random graphs, against brute force."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.floor.errors import BadValueError
from hetero.graphs.check import violations
from hetero.graphs.planning import Budget, plan_graph, pull, schedule_of
from hetero.model.graph import GraphDevice, GraphEdge, GraphTask, TaskGraph
from hetero.model.topology import Link, MemoryNode, Topology
from hetero.plan.bounds.graph import area_bound, critical_path_bound, grain, least_heads, least_tails, priced_seconds
from hetero.plan.graph_search.annealing import Annealing, Hopping, Recreation
from hetero.plan.graph_search.combined import BestSchedule, search
from hetero.plan.graph_search.evolution import Evolution
from hetero.plan.graph_search.exact_search import ExactLimits, improve
from hetero.plan.graph_search.justification import Justification
from hetero.plan.graph_search.portfolio import portfolio
from hetero.plan.planners.heuristics import PLANNERS, planner
from hetero.plan.planners.list_scheduling import list_schedule, order_of, timed_schedule
from hetero.plan.planners.ranks import RANKS, by_rank, downward_rank, optimistic_costs, rank, upward_rank
from hetero.plan.problem import Problem, problem_of

TOPCUOGLU_SECONDS = (
    (14, 16, 9), (13, 19, 18), (11, 13, 19), (13, 8, 17), (12, 13, 10),
    (13, 16, 9), (7, 15, 11), (5, 11, 14), (18, 12, 20), (21, 7, 16),
)  # fmt: skip
TOPCUOGLU_EDGES = (
    (1, 2, 18), (1, 3, 12), (1, 4, 9), (1, 5, 11), (1, 6, 14), (2, 8, 19), (2, 9, 16), (3, 7, 23), (4, 8, 27),
    (4, 9, 23), (5, 9, 13), (6, 8, 15), (7, 10, 17), (8, 10, 11), (9, 10, 13),
)  # fmt: skip


def fleet(count: int, bandwidth: float = 1.0, latency_s: float = 0.0) -> tuple[tuple[GraphDevice, ...], Topology]:
    nodes = tuple(MemoryNode(f"n{index}", 10**12) for index in range(count))
    links = tuple(Link(a.id, b.id, latency_s, bandwidth) for a in nodes for b in nodes if a != b)
    return tuple(GraphDevice(f"p{index + 1}", f"n{index}") for index in range(count)), Topology(nodes, links)


def graph(seconds: object, edges: object, **more: float) -> TaskGraph:
    rows = [[math.inf if value is None else float(value) for value in row] for row in seconds]  # type: ignore[attr-defined]
    tasks = tuple(GraphTask(f"n{index + 1}", tuple(row)) for index, row in enumerate(rows))
    made = tuple(GraphEdge(f"n{src}", f"n{dst}", nbytes) for src, dst, nbytes in edges)  # type: ignore[attr-defined]
    return TaskGraph(*fleet(len(rows[0]), **more), tasks, made)


TOPCUOGLU = graph(TOPCUOGLU_SECONDS, TOPCUOGLU_EDGES)


@st.composite
def graphs(draw: st.DrawFn, most: int = 9, devices: int = 3) -> TaskGraph:
    """Draw a graph: unrelated seconds, forbidden pairs, two devices on one memory node, edges of 0 bytes."""
    count = draw(st.integers(1, most))
    m = draw(st.integers(1, devices))
    seconds = []
    for _ in range(count):
        row = draw(st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=m, max_size=m))
        row[draw(st.integers(0, m - 1))] = draw(st.integers(0, 9))
        seconds.append(tuple(math.inf if value is None else float(value) for value in row))
    pairs = list(itertools.combinations(range(count), 2))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=2 * count)) if pairs else []
    names = draw(st.permutations([f"t{index}" for index in range(count)]))
    sizes = [draw(st.integers(0, 5)) for _ in chosen]
    nodes = [f"m{draw(st.integers(0, 1))}" for _ in range(m)]
    links = (Link("m0", "m1", 0.5, 1.0), Link("m1", "m0", 0.25, 2.0))
    return TaskGraph(
        tuple(GraphDevice(f"d{index}", node) for index, node in enumerate(nodes)),
        Topology((MemoryNode("m0", 10**9), MemoryNode("m1", 10**9)), links),
        tuple(GraphTask(name, row) for name, row in zip(names, seconds, strict=True)),
        tuple(GraphEdge(names[a], names[b], size) for (a, b), size in zip(chosen, sizes, strict=True)),
    )


def random_problem(count: int, m: int, seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    seconds = rng.uniform(1.0, 9.0, (count, m)).round(3)
    edges = {
        (int(a), int(b))
        for a, b in zip(rng.integers(count, size=2 * count), rng.integers(count, size=2 * count), strict=True)
        if a < b
    }
    made = [(a + 1, b + 1, int(rng.integers(0, 6))) for a, b in sorted(edges)]
    return problem_of(graph(seconds.tolist(), made))


def best_possible(p: Problem) -> float:
    """Return the least makespan over every topological order and every choice of devices."""
    n, m = p.seconds.shape
    least = math.inf
    before = [set(p.pred[p.pred_first[t] : p.pred_first[t + 1]].tolist()) for t in range(n)]
    orders = [
        order
        for order in itertools.permutations(range(n))
        if all(before[task] <= set(order[:at]) for at, task in enumerate(order))
    ]
    for devices in itertools.product(range(m), repeat=n):
        if np.isfinite(p.seconds[np.arange(n), list(devices)]).all():
            for order in orders:
                found = timed_schedule(p, np.array(order, dtype=np.int64), np.array(devices, dtype=np.int64))
                least = min(least, found.makespan_s)
    return least


def test_upward_ranks_of_the_papers_graph_are_the_papers() -> None:
    found = upward_rank(problem_of(TOPCUOGLU))
    paper = [108.0, 77.0, 80.0, 80.0, 69.0, 63.333, 42.667, 35.667, 44.333, 14.667]
    assert np.allclose(found, paper, atol=0.01)


def test_downward_ranks_of_the_papers_graph_are_the_papers() -> None:
    found = downward_rank(problem_of(TOPCUOGLU))
    assert np.allclose(found, [0.0, 31.0, 25.0, 22.0, 24.0, 27.0, 62.333, 66.667, 63.667, 93.333], atol=0.01)


@pytest.mark.parametrize(("name", "makespan_s"), [("heft", 80.0), ("cpop", 86.0)])
def test_the_papers_schedules_are_as_long_as_in_the_paper(name: str, makespan_s: float) -> None:
    assert planner(name)(problem_of(TOPCUOGLU)).makespan_s == makespan_s


def test_the_optimistic_cost_table_is_that_of_its_definition() -> None:
    p = problem_of(TOPCUOGLU)
    table = np.zeros_like(p.seconds)
    mean_transfer_per_byte = 1.0
    for task in p.order[::-1]:
        for device in range(3):
            for e in range(p.succ_first[task], p.succ_first[task + 1]):
                child, c = p.succ[e], p.succ_bytes[e] * mean_transfer_per_byte
                costs = [table[child, w] + p.seconds[child, w] + (c if w != device else 0.0) for w in range(3)]
                table[task, device] = max(table[task, device], min(costs))
    assert np.allclose(optimistic_costs(p), table)


@given(graphs())
@pytest.mark.slow
def test_every_planner_gives_a_schedule_that_the_checker_confirms(drawn: TaskGraph) -> None:
    p = problem_of(drawn)
    for name in PLANNERS:
        schedule = schedule_of(drawn, p, planner(name)(p), max(critical_path_bound(p), area_bound(p)), name)
        assert violations(drawn, schedule) == []


@given(graphs())
@settings(max_examples=25)
def test_every_part_of_the_search_gives_schedules_that_the_checker_confirms(drawn: TaskGraph) -> None:
    p = problem_of(drawn)
    members = [member.timeline for member in portfolio(p)]
    rng = np.random.default_rng(0)
    annealing = Annealing(p, least_tails(p))
    annealing.begin(members[0], 200, 0.1, 0.01)
    annealing.batch(200, rng)
    evolution = Evolution(p, members)
    children = [evolution.child(rng) for _ in range(5)]
    justification = Justification(p)
    packed = list(itertools.islice(justification.of(members), 20))
    perturbed = [Recreation(p, justification).perturbed(members[0], rng) for _ in range(5)]
    for timeline in (*members, annealing.best(), *children, *packed, *perturbed):
        assert violations(drawn, schedule_of(drawn, p, timeline, 0.0, "")) == []
    assert annealing.makespan_s == annealing.best().makespan_s <= members[0].makespan_s + 1e-9


@given(graphs(most=4, devices=2))
@settings(max_examples=40)
def test_no_bound_is_above_the_best_possible(drawn: TaskGraph) -> None:
    p = problem_of(drawn)
    least = best_possible(p)
    assert critical_path_bound(p) <= least * (1 + 1e-12)
    assert area_bound(p) <= least * (1 + 1e-12)


@given(graphs(most=4, devices=2))
@settings(max_examples=20)
def test_the_exact_search_finds_and_proves_the_best_possible(drawn: TaskGraph) -> None:
    p = problem_of(drawn)
    found, bound_s = improve(p, planner("minmin")(p), 0, len(p.order), ExactLimits(1.0, math.inf, 0))
    assert math.isclose(found.makespan_s, best_possible(p), rel_tol=1e-6, abs_tol=1e-9)
    assert math.isclose(bound_s, found.makespan_s, rel_tol=1e-6, abs_tol=1e-9)


def test_a_window_leaves_what_is_before_it_where_it_is_and_never_makes_it_longer() -> None:
    p = random_problem(40, 3, seed=2)
    timeline = planner("maxmin")(p)
    order = order_of(p, timeline)
    for first in (0, 10, 25):
        found, bound_s = improve(p, timeline, first, first + 15, ExactLimits(0.05, math.inf, 0))
        assert bound_s <= found.makespan_s <= timeline.makespan_s
        before = order[:first]
        assert (found.device[before] == timeline.device[before]).all()
        assert (found.finish_s[before] <= timeline.finish_s[before]).all()


def test_a_window_over_a_bad_schedule_betters_it() -> None:
    p = random_problem(30, 3, seed=1)
    timeline = planner("maxmin")(p)
    assert improve(p, timeline, 5, 25, ExactLimits(0.05, math.inf, 0))[0].makespan_s < timeline.makespan_s


def test_the_search_is_never_worse_than_any_planner_and_never_gets_worse() -> None:
    p = random_problem(80, 4, seed=3)
    spans = [found.timeline.makespan_s for found in itertools.islice(search(p, 0), 60)]
    assert spans == sorted(spans, reverse=True)
    assert spans[-1] <= min(planner(name)(p).makespan_s for name in PLANNERS)


def test_justification_makes_a_schedule_with_needless_waits_shorter() -> None:
    p = random_problem(60, 3, seed=4)
    timeline = planner("maxmin")(p)
    packed = Justification(p).once(timeline)
    assert (packed.device == timeline.device).all()
    assert packed.makespan_s < 0.98 * timeline.makespan_s


@given(graphs())
@settings(max_examples=25)
def test_critical_tasks_reach_from_the_beginning_of_a_schedule_to_its_end(drawn: TaskGraph) -> None:
    p = problem_of(drawn)
    timeline = planner("heft")(p)
    critical = Justification(p).critical(timed_schedule(p, order_of(p, timeline), timeline.device))
    assert timeline.start_s[critical].min() <= 1e-9 * timeline.makespan_s
    assert timeline.finish_s[critical].max() >= timeline.makespan_s * (1.0 - 1e-9)


def test_a_search_begins_again_from_perturbed_schedules_until_no_moves_are_left() -> None:
    p = random_problem(60, 3, seed=4)
    timeline = planner("maxmin")(p)
    hopping = Hopping(p, least_tails(p), timeline, Justification(p))
    rng, spans = np.random.default_rng(0), []
    for rest in range(2_000_000, 0, -20_000):
        hopping.batch(20_000, rng, float(rest))
        spans.append(hopping.makespan_s)
    assert min(spans) < 0.9 * timeline.makespan_s
    assert any(later > earlier for earlier, later in itertools.pairwise(spans))


def test_a_search_of_few_moves_is_one_cycle_however_many_they_turn_out_to_be() -> None:
    p = random_problem(60, 3, seed=4)
    timeline = planner("maxmin")(p)
    hopping = Hopping(p, least_tails(p), timeline, Justification(p))
    rng, spans = np.random.default_rng(0), []
    for rest in (*itertools.repeat(40_000, 30), *range(40_000, 0, -2_000)):
        hopping.batch(2_000, rng, float(rest))
        spans.append(hopping.makespan_s)
    one_cycle = spans[2:]
    assert one_cycle == sorted(one_cycle, reverse=True)
    assert spans[-1] < 0.9 * timeline.makespan_s


def test_annealing_improves_a_bad_schedule() -> None:
    p = random_problem(60, 3, seed=4)
    timeline = planner("maxmin")(p)
    annealing = Annealing(p, least_tails(p))
    annealing.begin(timeline, 3_000, 0.1, 0.01)
    annealing.batch(3_000, np.random.default_rng(0))
    assert annealing.makespan_s < 0.95 * timeline.makespan_s


def test_heads_and_tails_are_what_no_schedule_can_beat() -> None:
    p = random_problem(30, 3, seed=5)
    found = planner("heft")(p)
    node = p.node[found.device]
    rows = np.arange(len(p.order))
    assert (least_heads(p)[rows, node] <= found.start_s + 1e-9).all()
    assert (least_tails(p)[rows, node] <= found.makespan_s - found.finish_s + 1e-9).all()


@pytest.mark.parametrize("name", RANKS)
def test_a_predecessor_is_ranked_no_lower_than_its_successor(name: str) -> None:
    p = random_problem(40, 3, seed=6)
    keys = rank(p, name)
    for task in range(len(p.order)):
        for e in range(p.pred_first[task], p.pred_first[task + 1]):
            assert name == "optimistic" or keys[p.pred[e]] >= keys[task]


def test_ties_of_a_rank_go_to_the_first_task() -> None:
    p = problem_of(graph([(1, 1)] * 5, [(5, 1, 0)]))
    assert by_rank(p, np.zeros(5)).tolist() == [1, 2, 3, 4, 0]


def test_a_task_fills_an_idle_gap_that_it_fits() -> None:
    p = problem_of(graph([(4, 9), (9, 2), (2, 9)], [(2, 1, 0)]))
    found = list_schedule(p, np.array([1, 0, 2]))
    assert (found.start_s[0], found.start_s[2]) == (2.0, 0.0)


def test_a_pinned_task_takes_its_device_however_slow() -> None:
    p = problem_of(graph([(1, 50), (1, 50)], []))
    found = list_schedule(p, np.array([0, 1]), np.array([1, -1]))
    assert found.device.tolist() == [1, 0]


def test_an_edge_costs_nothing_on_one_memory_node_and_nothing_without_bytes() -> None:
    tasks = (GraphTask("a", (1.0, 9.0)), GraphTask("b", (9.0, 1.0)))
    links = (Link("m", "n", 5.0, 1.0), Link("n", "m", 5.0, 1.0))
    nodes = (MemoryNode("m", 1), MemoryNode("n", 1))
    for there, nbytes, makespan_s in (("m", 7, 2.0), ("n", 0, 2.0), ("n", 1, 8.0)):
        devices = (GraphDevice("x", "m"), GraphDevice("y", there))
        made = TaskGraph(devices, Topology(nodes, links), tasks, (GraphEdge("a", "b", nbytes),))
        assert planner("heft")(problem_of(made)).makespan_s == makespan_s


def test_a_transfer_without_a_link_takes_the_path_of_the_fewest_links() -> None:
    devices = (GraphDevice("x", "a"), GraphDevice("y", "c"))
    links = (Link("a", "b", 1.0, 1.0), Link("b", "c", 1.0, 2.0), Link("a", "d", 0.0, 9e9), Link("c", "a", 0.0, 1.0))
    nodes = tuple(MemoryNode(name, 1) for name in "abcd")
    tasks = (GraphTask("s", (1.0, math.inf)), GraphTask("t", (math.inf, 1.0)))
    p = problem_of(TaskGraph(devices, Topology(nodes, links), tasks, (GraphEdge("s", "t", 4),)))
    assert planner("heft")(p).start_s[1] == 1.0 + (1.0 + 4.0) + (1.0 + 2.0)


def test_memory_nodes_without_a_path_are_refused_when_something_must_travel() -> None:
    devices = (GraphDevice("x", "a"), GraphDevice("y", "b"))
    nodes = (MemoryNode("a", 1), MemoryNode("b", 1))
    tasks = (GraphTask("s", (1.0, 1.0)), GraphTask("t", (1.0, 1.0)))
    with pytest.raises(BadValueError, match="no path of links leads from memory node 'a' to 'b'"):
        problem_of(TaskGraph(devices, Topology(nodes, ()), tasks, (GraphEdge("s", "t", 4),)))
    assert problem_of(TaskGraph(devices, Topology(nodes, ()), tasks, (GraphEdge("s", "t", 0),)))


@pytest.mark.parametrize("model", ["contention", "free"])
def test_a_link_is_needed_only_where_data_may_have_to_go(model: str) -> None:
    """Data go from a to b alone: what c makes is read on c, and b makes nothing that a could read."""
    devices = tuple(GraphDevice(name, name) for name in "abc")
    nodes, links = tuple(MemoryNode(name, 10**9) for name in "abc"), (Link("a", "b", 1.0, 1.0),)
    only = {name: tuple(1.0 if name == each else math.inf for each in "abc") for name in "abc"}
    tasks = tuple(GraphTask(name, only[name[0]]) for name in ("a1", "b1", "c1", "c2"))
    edges = (GraphEdge("a1", "b1", 4), GraphEdge("c1", "c2", 4), GraphEdge("b1", "c1", 0))
    made = TaskGraph(devices, Topology(nodes, links), tasks, edges)
    found = plan_graph(made, budget=Budget(iterations=30), transfer_model=model).schedule
    assert violations(made, found) == []
    assert found.makespan_s == 1.0 + 5.0 + 1.0 + 2.0
    with pytest.raises(BadValueError, match="no path of links leads from memory node 'b' to 'c'"):
        problem_of(replace(made, edges=(*edges[:2], GraphEdge("b1", "c1", 1))))


def test_a_cycle_is_named() -> None:
    with pytest.raises(BadValueError, match="cycle: n2 → n3 → n2"):
        problem_of(graph([(1,)] * 4, [(1, 2, 0), (2, 3, 0), (3, 2, 0), (3, 4, 0)]))


def test_a_task_that_no_device_can_run_is_named() -> None:
    with pytest.raises(BadValueError, match="task 'n2' can run on no device"):
        problem_of(graph([(1, 2), (None, None)], []))


def test_an_unknown_planner_is_named_with_its_likeness() -> None:
    with pytest.raises(BadValueError, match="did you mean 'heft'"):
        planner("hefft")


def test_a_device_that_all_want_is_dear() -> None:
    priced = priced_seconds(problem_of(graph([(9, 3)] * 12, [])))
    assert np.allclose(priced[:, 0], priced[:, 1], rtol=0.05)


def test_a_graph_without_tasks_has_a_schedule() -> None:
    planned = plan_graph(TaskGraph(*fleet(1), (), ()))
    assert planned.schedule.placements == ()
    assert planned.schedule.is_optimal


@pytest.mark.parametrize("tasks", [1, 2, 33])
def test_tasks_that_take_no_time_can_be_searched(tasks: int) -> None:
    drawn = graph([(0, 0)] * tasks, [(1, 2, 5)] if tasks > 1 else [])
    planned = plan_graph(drawn, budget=Budget(iterations=40))
    assert planned.schedule.makespan_s == 0.0
    assert violations(drawn, planned.schedule) == []


class Ticking:
    """A clock that goes on by a fixed amount each time it is read."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self.step_s, self.reads = 0.0, step_s, 0

    def __call__(self) -> float:
        self.now_s += self.step_s
        self.reads += 1
        return self.now_s


def test_a_budget_in_seconds_is_not_overdrawn() -> None:
    p = random_problem(70, 3, seed=7)
    for step_s in (0.001, 0.03):
        clock = Ticking(step_s)
        pull(search(p, 0), Budget(0.3), clock)
        assert clock.now_s <= 0.3 + 3 * step_s


def test_the_driver_tells_the_search_what_is_left() -> None:
    told: list[float | None] = []

    def listening() -> object:
        while True:
            told.append((yield BestSchedule(planner("heft")(p), 0.0, "heft")))

    p = random_problem(5, 2, seed=8)
    pull(listening(), Budget(iterations=3))  # type: ignore[arg-type]
    assert told == [None, None]
    pull(listening(), Budget(1.0), Ticking(0.1))  # type: ignore[arg-type]
    left_s = [left for left in told[2:] if left is not None]
    assert len(left_s) == len(told) - 2
    assert left_s == sorted(left_s, reverse=True)
    assert all(0.0 < left < 1.0 for left in left_s)


def test_a_bound_between_two_possible_makespans_is_raised_to_the_upper() -> None:
    p = problem_of(graph([(0.75, 0.75), (0.5, 0.5), (0.5, 0.5)], []))
    assert grain(p) == 0.25
    assert p.seconds[:, 0].sum() / 2 == 0.875
    assert math.isclose(area_bound(p), 1.0, rel_tol=1e-6)


def test_times_that_share_no_grain_raise_no_bound() -> None:
    assert grain(problem_of(graph([(math.pi, 1.0), (1.0, math.sqrt(2.0))], []))) == 0.0
    assert grain(problem_of(graph([(1.0, 1.0), (1.0, 1.0)], [(1, 2, 1)], latency_s=math.pi))) == 0.0
