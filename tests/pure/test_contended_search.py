"""The search under contention: its walk keeps right times, its starts hold what one place could do alone."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.graphs_contention import drawn, parts
from hetero.graphs.check import violations
from hetero.graphs.planning import Budget, plan_graph
from hetero.model.graph import UNLIMITED_BYTES, GraphDevice, GraphEdge, GraphTask, TaskGraph
from hetero.model.topology import Link, MemoryNode, Topology
from hetero.plan.graph_search.clustering import clusterings, parts_of_fleet
from hetero.plan.graph_search.contended import ContendedAnnealing, contended_search
from hetero.plan.graph_search.contended_kernels import NOW, walk_contended
from hetero.plan.graph_search.exact_search import improve_linked
from hetero.plan.planners.contention import channels_of, contended_schedule, least_transfers
from hetero.plan.planners.heuristics import PLANNERS
from hetero.plan.problem import problem_of

SLACKS_FRAC = (0.0, 0.2)


def annealing(seed: int) -> ContendedAnnealing:
    graph = drawn(seed, most=80).graph
    p = problem_of(graph)
    c = channels_of(graph, p)
    order = p.order
    found = ContendedAnnealing(p, c, lambda order, device: None)
    found.begin(order, contended_schedule(p, c, order)[0].device, 1_000)
    return found


@pytest.mark.parametrize("seed", [0, 4, 5, 10, 14])
def test_after_any_move_the_walk_has_the_times_of_its_order_and_devices_timed_anew(seed: int) -> None:
    made = annealing(seed)
    p, w, rng = made.problem, made.walk, np.random.default_rng(seed)
    moved = 0
    for slack_frac in SLACKS_FRAC:
        slack_s = slack_frac * w.span_s[NOW]
        for _ in range(30):
            before_s = w.span_s[NOW]
            moved += walk_contended(*made.arrays, rng.random((3, 7)), np.full(3, slack_s), made.nothing)
            timed = contended_schedule(p, made.channels, w.order.copy(), w.device.copy())[0]
            assert w.span_s[NOW] == timed.makespan_s <= before_s + 3 * slack_s
            assert (w.place[w.order] == np.arange(len(w.order))).all()
            first = np.repeat(np.arange(len(p.order)), np.diff(p.pred_first))
            assert (w.place[p.pred] < w.place[first]).all()
            assert np.isfinite(p.seconds[np.arange(len(p.order)), w.device]).all()
    assert moved > 1


@pytest.mark.parametrize("seed", [0, 4, 5, 10, 14])
def test_what_the_makespan_waits_for_ends_with_the_last_task_and_goes_back_in_time(seed: int) -> None:
    made = annealing(seed)
    w = made.walk
    walk_contended(*made.arrays, np.random.default_rng(1).random((50, 7)), np.zeros(50), made.nothing)
    timed = contended_schedule(made.problem, made.channels, w.order.copy(), w.device.copy())[0]
    critical = w.critical[: w.counts[0]]
    assert timed.finish_s[critical[0]] == timed.makespan_s
    assert timed.start_s[critical[-1]] <= timed.start_s[critical].max()
    assert len(critical) <= len(w.order)


def chains(bytes_each: int) -> TaskGraph:
    """Return two chains of four tasks whose edges are dear, joined at the end by an edge that is not."""
    devices = tuple(GraphDevice(f"h{n}/cpu:0", f"h{n}/ram") for n in range(3))
    nodes = tuple(MemoryNode(f"h{n}/ram", UNLIMITED_BYTES) for n in range(3))
    links = tuple(Link(a.id, b.id, 0.0, 1.0) for a, b in itertools.permutations(nodes, 2))
    edges = [GraphEdge(f"t{a}", f"t{a + 2}", bytes_each) for a in range(6)]
    return TaskGraph(
        devices, Topology(nodes, links), tuple(GraphTask(f"t{n}", (1.0, 1.0, 1.0)) for n in range(8)), tuple(edges)
    )


def test_every_clustering_puts_a_chain_of_dear_edges_on_one_device() -> None:
    p = problem_of(chains(100))
    found = list(clusterings(p, []))
    assert {name for name, _ in found} == {"linear clustering", "edge zeroing", "dominant sequences"}
    for name, device in found:
        assert len(set(device[::2])) == len(set(device[1::2])) == 1, name
        assert device[0] != device[1], name


def test_a_cluster_goes_together_but_for_what_its_device_cannot_run() -> None:
    graph = chains(100)
    odd = [
        GraphTask(task.id, (1.0, 1.0, 1.0) if n else (math.inf, math.inf, 1.0)) for n, task in enumerate(graph.tasks)
    ]
    p = problem_of(TaskGraph(graph.devices, graph.topology, tuple(odd), graph.edges))
    for _, device in clusterings(p, []):
        assert np.isfinite(p.seconds[np.arange(8), device]).all()


def test_the_parts_of_a_fleet_are_its_hosts_what_is_near_and_what_is_fast() -> None:
    devices = tuple(GraphDevice(f"d{n}", name) for n, name in enumerate(("a/ram", "a/cuda", "b/ram", "b/cuda")))
    nodes = tuple(MemoryNode(device.memory_node, UNLIMITED_BYTES) for device in devices)
    links = tuple(
        Link(a.id, b.id, 0.0, 10.0 if a.id[0] == b.id[0] else 1.0) for a, b in itertools.permutations(nodes, 2)
    )
    tasks = tuple(GraphTask(f"t{n}", (4.0, 1.0, 8.0, 2.0)) for n in range(3))
    p = problem_of(TaskGraph(devices, Topology(nodes, links), tasks, (GraphEdge("t0", "t1", 5),)))
    names = channels_of(TaskGraph(devices, Topology(nodes, links), tasks, ()), p).nodes
    host_of = np.array([sorted({name[0] for name in names}).index(name[0]) for name in names])
    hosts, others = parts_of_fleet(p, host_of)
    assert [set(np.flatnonzero(part)) for part in hosts] == [{0, 1}, {2, 3}]
    assert {1, 3} in [set(np.flatnonzero(part)) for part in others]
    unnamed = parts_of_fleet(p, np.arange(4))
    assert unnamed[0] == []
    assert {0, 1} in [set(np.flatnonzero(part)) for part in unnamed[1]]


def test_no_plan_is_longer_than_one_device_one_memory_node_or_one_host_by_any_planner() -> None:
    for seed in (1, 2, 3, 6, 12, 14):
        graph = drawn(seed, most=40).graph
        found = plan_graph(graph, budget=Budget(iterations=1)).schedule
        assert violations(graph, found) == []
        for what, alone in parts(graph):
            for name in PLANNERS:
                alone_s = plan_graph(alone, name).schedule.makespan_s
                assert found.makespan_s <= alone_s * (1.0 + 1e-9), (seed, what, name)


def test_a_search_under_contention_is_the_same_for_a_seed_and_a_number_of_iterations() -> None:
    graph = drawn(13, most=40).graph
    one, other = (plan_graph(graph, budget=Budget(iterations=90), seed=3).schedule for _ in range(2))
    assert one == other


def test_annealing_goes_on_from_the_starts_and_finds_what_no_start_has() -> None:
    graph = drawn(30, most=80).graph
    p = problem_of(graph)
    search = contended_search(p, channels_of(graph, p), 0)
    found = list(itertools.islice(search, 160))
    assert "annealing" in {each.by for each in found}
    spans_s = [each.timeline.makespan_s for each in found]
    assert spans_s == sorted(spans_s, reverse=True)


KEPT = """
from typing import NamedTuple
import numpy as np
from hetero.plan.compiled import njit
class {name}(NamedTuple):
    x: np.ndarray
@njit
def total(one):
    return one.x.sum()
print(total({name}(np.ones({size}))), "Kept")
"""


def test_compiled_functions_that_another_version_kept_do_no_harm(tmp_path: Path) -> None:
    """A class of an argument is called otherwise since: numba cannot read its index of what is compiled."""
    printed = []
    for name, size in (("Before", 3), ("Since", 4)):
        (tmp_path / "kept.py").write_text(KEPT.format(name=name, size=size))
        done = subprocess.run(
            [sys.executable, "-c", "import kept"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed == ["3.0 Kept\n", "4.0 Kept\n"]


def shortest_s(graph: TaskGraph) -> float:
    """Return the shortest makespan of all orders and devices whose transfers follow one another."""
    p = problem_of(graph)
    c = channels_of(graph, p)
    n = len(p.order)
    first = np.repeat(np.arange(n), np.diff(p.pred_first))
    orders = [
        np.array(o) for o in itertools.permutations(range(n)) if (np.argsort(o)[p.pred] < np.argsort(o)[first]).all()
    ]
    allowed = [np.flatnonzero(np.isfinite(row)) for row in p.seconds]
    return min(
        contended_schedule(p, c, order, np.array(device))[0].makespan_s
        for order in orders
        for device in itertools.product(*allowed)
    )


def small(seed: int) -> TaskGraph:
    """Return five tasks on three memory nodes, two of them behind one bus; data are dear."""
    rng = np.random.default_rng(seed)
    devices = tuple(GraphDevice(f"d{n}", f"m{n}") for n in range(3))
    nodes = tuple(MemoryNode(f"m{n}", UNLIMITED_BYTES) for n in range(3))
    links = tuple(Link(f"m{a}", f"m{b}", 0.25, 1.0, "bus") for a, b in ((0, 1), (1, 0), (0, 2), (2, 0)))
    tasks = tuple(GraphTask(f"t{n}", tuple(map(float, row))) for n, row in enumerate(rng.integers(1, 9, (5, 3))))
    pairs = [pair for pair in itertools.combinations(range(5), 2) if rng.random() < 0.5]
    edges = tuple(GraphEdge(f"t{a}", f"t{b}", int(rng.integers(0, 6))) for a, b in pairs)
    return TaskGraph(devices, Topology(nodes, links), tasks, edges)


def test_the_exact_search_with_links_proves_no_more_than_there_is_and_finds_it() -> None:
    proven = 0
    for seed in range(12):
        graph = small(seed)
        p = problem_of(graph)
        c = channels_of(graph, p)
        least_s, start = shortest_s(graph), contended_schedule(p, c, p.order)[0]
        found = improve_linked(p, least_transfers(p, c), c, start, 1.0, 0)
        assert found.is_done
        assert found.bound_s <= least_s * (1.0 + 1e-9), seed
        proven += found.bound_s >= least_s * (1.0 - 1e-6)
        schedule = plan_graph(graph, budget=Budget(iterations=80)).schedule
        assert schedule.lower_bound_s <= least_s * (1.0 + 1e-9) <= schedule.makespan_s * (1.0 + 2e-9), seed
    assert proven >= 10


def test_a_bound_under_contention_holds_for_copies_that_are_passed_on() -> None:
    """The link from a to b is slow, and through c there is a way of 2 s: the bound must not count on the slow one."""
    devices = (GraphDevice("a", "a"), GraphDevice("b", "b"))
    nodes = tuple(MemoryNode(name, UNLIMITED_BYTES) for name in "abc")
    links = (Link("a", "b", 0.0, 0.01), Link("a", "c", 0.0, 1.0), Link("c", "b", 0.0, 1.0))
    tasks = (GraphTask("s", (1.0, math.inf)), GraphTask("t", (math.inf, 1.0)))
    graph = TaskGraph(devices, Topology(nodes, links), tasks, (GraphEdge("s", "t", 1),))
    found = plan_graph(graph, budget=Budget(iterations=60)).schedule
    assert found.lower_bound_s <= 4.0
