"""Plans in which transfers share links and memory is finite: on random graphs, against the independent checker."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.floor.errors import BadValueError, NothingFitsError
from hetero.graphs.check import violations
from hetero.graphs.gantt import gantt
from hetero.graphs.plan_files import plan_document, plan_of
from hetero.graphs.planning import PLANNER_NAMES, Budget, plan_graph
from hetero.graphs.whatif import without
from hetero.model.graph import UNLIMITED_BYTES, GraphDevice, GraphEdge, GraphTask, TaskGraph
from hetero.model.schedule import Evicted, Placed, Schedule, Sent
from hetero.model.topology import Link, MemoryNode, Topology
from hetero.plan.graph_search.portfolio import portfolio
from hetero.plan.problem import problem_of

pytestmark = pytest.mark.slow

NODES = ("host", "near", "far")


REFUSED = re.compile(
    r"no room is left for task 't\d+' on '\w+': it needs \d+ B more, \d+ B of \d+ B are in use"
    r"|task 't\d+' needs \d+ B at once for what it reads and makes; '\w+' has \d+ B"
    r"|sent to and fro, or made again, without end: '\w+' has \d+ B"
)
"""Every refusal names a memory node, the bytes that it has, and the bytes that are needed."""


@st.composite
def graphs(draw: st.DrawFn, most: int = 8, capacities: bool = False) -> TaskGraph:
    """Draw a graph over three memory nodes: a bus, a path of two hops, shared items; finite memory where asked."""
    count = draw(st.integers(1, most))
    m = draw(st.integers(1, 3))
    homes = [draw(st.sampled_from(NODES)) for _ in range(m)]
    seconds = [draw(st.lists(st.integers(0, 9), min_size=m, max_size=m)) for _ in range(count)]
    pairs = list(itertools.combinations(range(count), 2))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=2 * count)) if pairs else []
    bus = draw(st.sampled_from(["", "pcie"]))
    links = [Link("host", "near", 0.5, 1.0, bus), Link("near", "host", 0.25, 2.0, bus)]
    links += [Link("host", "far", 0.0, 4.0, bus), Link("far", "host", 0.0, 0.5)]
    if draw(st.booleans()):
        links += [Link("near", "far", 3.0, 1.0), Link("far", "near", 0.0, 1.0, bus)]
    limits = st.one_of(st.integers(4, 16), st.just(UNLIMITED_BYTES)) if capacities else st.just(UNLIMITED_BYTES)
    nodes = [MemoryNode(name, draw(limits)) for name in NODES]
    return TaskGraph(
        tuple(GraphDevice(f"d{index}", home) for index, home in enumerate(homes)),
        Topology(tuple(nodes), tuple(links)),
        tuple(GraphTask(f"t{index}", tuple(map(float, row))) for index, row in enumerate(seconds)),
        tuple(GraphEdge(f"t{a}", f"t{b}", draw(st.integers(0, 4))) for a, b in chosen),
    )


def planned(graph: TaskGraph, policy: str = "search", **more: Any) -> Schedule:
    return plan_graph(graph, policy, Budget(iterations=34), **more).schedule


def kept(graph: TaskGraph, policy: str) -> tuple[list[str], str]:
    """Return the faults of a plan, or why there is none."""
    try:
        return violations(graph, planned(graph, policy)), ""
    except NothingFitsError as error:
        return [], str(error)


@given(graphs())
@settings(max_examples=20, deadline=None)
def test_every_plan_under_contention_is_confirmed_by_the_checker(graph: TaskGraph) -> None:
    for policy in PLANNER_NAMES:
        schedule = planned(graph, policy)
        assert schedule.model == "contention"
        assert violations(graph, schedule) == []


@given(graphs())
@settings(max_examples=8, deadline=None)
def test_no_plan_under_contention_is_shorter_than_the_bound_without(graph: TaskGraph) -> None:
    assert planned(graph).makespan_s >= planned(graph, transfer_model="free").lower_bound_s * (1 - 1e-9)


@given(graphs(most=14, capacities=True))
@settings(max_examples=120, deadline=None)
def test_a_plan_keeps_to_every_capacity_or_is_refused_in_words(graph: TaskGraph) -> None:
    wrong, said = kept(graph, "heft")
    assert wrong == []
    assert not said or REFUSED.search(said)


@given(graphs(capacities=True))
@settings(max_examples=8, deadline=None)
def test_a_search_with_capacities_is_confirmed_by_the_checker(graph: TaskGraph) -> None:
    assert kept(graph, "search")[0] == []


def in_the_order_given(graph: TaskGraph, node: str) -> float:
    """Return the makespan on one memory node when each task goes, in the order given, where it ends first."""
    free_s = {n: 0.0 for n, device in enumerate(graph.devices) if device.memory_node == node}
    end_s: dict[str, float] = {}
    for task in graph.tasks:
        ready_s = max([end_s[edge.src] for edge in graph.edges if edge.dst == task.id], default=0.0)
        end_s[task.id], device = min((max(free_s[n], ready_s) + task.seconds[n], n) for n in free_s)
        if end_s[task.id] == math.inf:
            return math.inf
        free_s[device] = end_s[task.id]
    return max(end_s.values())


def spread(seed: int) -> TaskGraph:
    """Return a graph of one to three memory nodes: seconds related to devices or not, data dear or cheap."""
    rng = np.random.default_rng(seed)
    count, many = (6, 30)[seed // 3 % 2], 1 + seed % 3
    devices = tuple(GraphDevice(f"d{n}", f"m{n % many}") for n in range(4))
    nodes = tuple(MemoryNode(f"m{n}", UNLIMITED_BYTES) for n in range(many))
    links = tuple(Link(a.id, b.id, 0.01, 1e6) for a, b in itertools.permutations(nodes, 2))
    factors = (0.5, 1.0, 1.0, 3.0, 20.0) if seed % 2 else (1.0,)
    seconds = rng.choice([0.01, 1.0, 10.0], (count, 1)) * rng.choice(factors, (count, 4)) * rng.uniform(0.5, 2.0, 4)
    tasks = tuple(GraphTask(f"t{n}", tuple(map(float, row))) for n, row in enumerate(seconds))
    sizes = rng.choice([0, 10, 20_000_000], (count, count))
    pairs = {(min(pair), max(pair)) for pair in rng.integers(0, count, (count, 2)).tolist() if pair[0] != pair[1]}
    edges = tuple(GraphEdge(f"t{src}", f"t{dst}", int(sizes[src, dst])) for src, dst in sorted(pairs))
    return TaskGraph(devices, Topology(nodes, links), tasks, edges)


@pytest.mark.parametrize("budget", [Budget(iterations=1), Budget(1e-9)], ids=["1", "1ns"])
@pytest.mark.parametrize("model", ["contention", "free"])
def test_no_plan_is_longer_than_one_device_or_one_memory_node_or_a_planner_by_name(model: str, budget: Budget) -> None:
    for seed in range(12):
        graph = spread(seed)
        found = plan_graph(graph, budget=budget, transfer_model=model).schedule
        assert violations(graph, found) == []
        others = [
            plan_graph(graph, name, transfer_model=model).schedule.makespan_s
            for name in PLANNER_NAMES
            if name != "search"
        ]
        others += [sum(task.seconds[n] for task in graph.tasks) for n in range(len(graph.devices))]
        for node in graph.topology.nodes:
            alone = without(graph, [d.id for d in graph.devices if d.memory_node != node.id])
            others += [
                plan_graph(alone, "heft", transfer_model=model).schedule.makespan_s,
                in_the_order_given(graph, node.id),
            ]
        assert found.makespan_s <= min(others) * (1 + 1e-9), (seed, found.makespan_s, others)


def test_of_a_graph_so_large_that_the_starts_take_long_the_first_three_are_looked_at() -> None:
    rows = tuple(GraphTask(f"t{n}", (1.0, 2.0)) for n in range(6))
    p = problem_of(
        TaskGraph((GraphDevice("d0", "m"), GraphDevice("d1", "m")), Topology((MemoryNode("m", 9),)), rows, ())
    )
    few = [member.name for member in portfolio(p, most_steps=0) if member.is_start]
    assert few == ["one device", "one memory node", "mean"]
    assert sum(member.is_start for member in portfolio(p)) > len(few)


def tight(seed: int, host: int = UNLIMITED_BYTES) -> TaskGraph:
    """Return a graph whose two devices hold little more than the largest task needs at once."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(10, 40))
    pairs = {(int(a), int(b)) for a, b in rng.integers(count, size=(2 * count, 2)) if a < b}
    made = rng.integers(1, 9, size=count)
    edges = tuple(GraphEdge(f"t{a}", f"t{b}", int(made[a])) for a, b in sorted(pairs))
    needs = [sum(made[a] for a, b in pairs if b == task) + made[task] for task in range(count)]
    room = int(max(needs)) + int(rng.integers(0, 6))
    nodes = (MemoryNode("host", host), MemoryNode("near", room), MemoryNode("far", room))
    links = tuple(Link(a, b, 0.1, 4.0) for a, b in itertools.permutations(NODES, 2) if "host" in (a, b))
    seconds = rng.uniform(1.0, 5.0, (count, 2))
    return TaskGraph(
        (GraphDevice("d0", "near"), GraphDevice("d1", "far")),
        Topology(nodes, links),
        tuple(GraphTask(f"t{index}", (float(a), float(b))) for index, (a, b) in enumerate(seconds)),
        edges,
    )


def test_a_plan_that_overflows_is_repaired_by_evictions_that_the_checker_confirms() -> None:
    evicted = 0
    for seed in range(20):
        graph = tight(seed)
        schedule = planned(graph, "heft")
        assert violations(graph, schedule) == []
        evicted += bool(schedule.evictions)
    assert evicted > 3


def test_a_plan_with_nowhere_to_put_what_it_evicts_is_refused_with_task_and_memory() -> None:
    def apart(graph: TaskGraph) -> TaskGraph:
        """Restrict each task to one of the two devices."""
        rows = [
            [s if device == at % 2 else math.inf for device, s in enumerate(task.seconds)]
            for at, task in enumerate(graph.tasks)
        ]
        tasks = tuple(task._replace(seconds=tuple(row)) for task, row in zip(graph.tasks, rows, strict=True))
        return dataclasses.replace(graph, tasks=tasks)

    found = [kept(apart(tight(seed, host=0)), "heft") for seed in range(20)]
    assert all(wrong == [] for wrong, _ in found)
    refused = [said for _, said in found if said]
    assert len(refused) > 3
    assert all(REFUSED.search(said) for said in refused)


ALONE = TaskGraph(
    (GraphDevice("cpu", "ram"),),
    Topology((MemoryNode("ram", 12),), ()),
    tuple(GraphTask(name, (seconds,)) for name, seconds in (("a", 1.0), ("b", 5.0), ("c", 5.0), ("d", 1.0))),
    (GraphEdge("a", "b", 8), GraphEdge("b", "c", 4), GraphEdge("c", "d", 4), GraphEdge("a", "d", 8)),
)
"""What a cheap task made is read at the start and at the end, and leaves no room between; there is no other memory."""


def repeated() -> Schedule:
    schedule = planned(ALONE)
    assert violations(ALONE, schedule) == []
    return schedule


def test_a_value_that_can_go_nowhere_is_made_again_where_the_plan_says() -> None:
    graph = dataclasses.replace(ALONE, topology=Topology((MemoryNode("ram", 16),), ()))
    schedule = planned(graph)
    assert violations(graph, schedule) == []
    assert schedule.repeats == ()
    assert repeated().repeats == (Placed("a", "cpu", 11.0, 12.0),)
    assert repeated().makespan_s == 13.0


def test_a_value_is_made_again_only_where_that_costs_less_than_its_way_there_and_back() -> None:
    def fleet(bytes_per_s: float) -> Schedule:
        links = (Link("ram", "disk", 0.0, bytes_per_s), Link("disk", "ram", 0.0, bytes_per_s))
        nodes = (MemoryNode("ram", 12), MemoryNode("disk", UNLIMITED_BYTES))
        graph = dataclasses.replace(ALONE, topology=Topology(nodes, links))
        schedule = planned(graph)
        assert violations(graph, schedule) == []
        return schedule

    slow, fast = fleet(1.0), fleet(100.0)
    assert (len(slow.repeats), len(slow.transfers)) == (1, 0)
    assert (len(fast.repeats), len(fast.transfers)) == (0, 2)


def test_random_graphs_in_tight_memories_get_repeats_that_the_checker_confirms() -> None:
    repeats = accepted = 0
    for seed in range(12):
        graph = tight(seed, host=0)
        try:
            schedule = planned(graph, "heft")
        except NothingFitsError:
            continue
        assert violations(graph, schedule) == []
        accepted += 1
        repeats += bool(schedule.repeats)
    assert accepted > repeats > 0


def test_what_takes_no_time_may_be_made_again_at_the_instant_at_which_it_is_dropped() -> None:
    rows = (
        (1, 2, 0), (0, 1, 0.5), (0, 0, 0), (0.5, 1, 1), (0, 0, 0), (0, 1, 0.5),
        (0, 0, 0.5), (0.5, 0, 2), (0, 1, 0), (0, 0, 0), (1, 1, 2), (0, 0, 0), (2, 1, 2), (0, 0.5, 2)
    )  # fmt: skip
    edges = (
        (0, 1, 1), (3, 5, 2), (5, 6, 2), (2, 6, 2), (5, 7, 1), (6, 8, 2), (8, 9, 2), (9, 11, 2), (4, 11, 2), (11, 13, 0)
    )  # fmt: skip
    graph = TaskGraph(
        (GraphDevice("d0", "n"), GraphDevice("d1", "m"), GraphDevice("d2", "n")),
        Topology((MemoryNode("n", 6), MemoryNode("m", 6)), (Link("n", "m", 0.0, 10.0), Link("m", "n", 0.0, 10.0))),
        tuple(GraphTask(f"t{index}", tuple(map(float, row))) for index, row in enumerate(rows)),
        tuple(GraphEdge(f"t{a}", f"t{b}", nbytes) for a, b, nbytes in edges),
    )
    schedule = plan_graph(graph, budget=Budget(iterations=5)).schedule
    assert any(row.start_s == row.finish_s == one.at_s for row in schedule.repeats for one in schedule.evictions)
    assert violations(graph, schedule) == []
    assert violations(graph, dataclasses.replace(schedule, repeats=())) != []


def test_in_tight_memories_no_plan_is_longer_than_one_for_a_device_or_a_memory_node_alone() -> None:
    for seed in (1, 2, 9, 14):
        graph, rng = tight(seed, host=0), np.random.default_rng(seed)
        devices = (*graph.devices, GraphDevice("d2", "near"), GraphDevice("d3", "near"))
        tasks = tuple(each._replace(seconds=(*each.seconds, *rng.uniform(1.0, 5.0, 2))) for each in graph.tasks)
        graph = dataclasses.replace(graph, devices=devices, tasks=tasks)
        for policy in ("heft", "search"):
            spans = [
                plan_graph(part, policy, Budget(iterations=1)).schedule.makespan_s
                for part in (graph, without(graph, ["d1"]))
            ]
            assert spans[0] <= spans[1], (seed, policy)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"repeats": ()}, "task 'd' at 12 s needs what 'a' made (8 bytes) on 'ram', where it is not"),
        ({"repeats": (Placed("a", "cpu", 10.5, 11.5),)}, "'cpu' runs 'c' and 'a' at 10.5 s"),
        ({"repeats": (Placed("a", "cpu", 11.0, 11.5),)}, "takes 0.5 s on 'cpu', the table says 1 s"),
        ({"repeats": (Placed("a", "cpu", 0.5, 1.5),)}, "task 'a' is repeated at 0.5 s, before it has finished"),
        ({"repeats": (Placed("a", "tpu", 11.0, 12.0),)}, "task 'a' is repeated on 'tpu', and the graph has no"),
        ({"repeats": (Placed("b", "cpu", 11.0, 16.0),)}, "task 'b' at 11 s needs what 'a' made (8 bytes) on 'ram'"),
        ({"evictions": ()}, "'ram' holds 16 bytes at 6 s, its capacity is 12"),
        ({"model": "free"}, "task 'a' is repeated, and under the model 'free' nothing is dropped"),
    ],
)
def test_the_checker_finds_a_planted_fault_of_a_repeat(change: dict[str, Any], said: str) -> None:
    found = violations(ALONE, dataclasses.replace(repeated(), **change))
    assert any(said in fault for fault in found), found


def test_a_plan_with_repeats_written_is_the_plan_read_and_its_chart_shows_them() -> None:
    assert plan_of(plan_document(repeated()), "p.json") == repeated()
    assert "↻a" in gantt(ALONE, repeated(), 100)[0]


PAIR = TaskGraph(
    (GraphDevice("cpu", "ram"), GraphDevice("gpu", "vram")),
    Topology(
        (MemoryNode("ram", UNLIMITED_BYTES), MemoryNode("vram", 100)),
        (Link("ram", "vram", 1.0, 10.0, "pcie"), Link("vram", "ram", 1.0, 10.0, "pcie")),
    ),
    (GraphTask("a", (1.0, math.inf)), GraphTask("b", (math.inf, 1.0)), GraphTask("c", (math.inf, 1.0))),
    (GraphEdge("a", "b", 20), GraphEdge("a", "c", 20)),
)
"""One item that two tasks of another memory node read: it travels once, for 3 s."""


def sound() -> Schedule:
    schedule = planned(PAIR)
    assert (schedule.makespan_s, len(schedule.transfers)) == (6.0, 1)
    assert violations(PAIR, schedule) == []
    return schedule


def test_an_item_that_two_tasks_read_travels_once() -> None:
    assert sound().transfers == (Sent("a", 20, "ram", "vram", 1.0, 4.0),)


def test_two_items_on_one_bus_follow_one_another() -> None:
    graph = dataclasses.replace(PAIR, edges=(GraphEdge("a", "b", 20), GraphEdge("a", "c", 30)))
    assert [planned(graph, transfer_model=model).makespan_s for model in ("contention", "free")] == [9.0, 6.0]


SENT = Sent("a", 20, "ram", "vram", 1.0, 4.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"transfers": ()}, "task 'b' at 4 s needs what 'a' made (20 bytes) on 'vram', where it is not"),
        ({"transfers": (SENT._replace(start_s=0.5, finish_s=3.5),)}, "the transfer to 'vram' at 0.5 s needs"),
        ({"transfers": (SENT._replace(finish_s=3.0),)}, "takes 2 s from 'ram' to 'vram', the link needs 3 s"),
        ({"transfers": (SENT, SENT)}, "pcie carries what 'a' made (20 bytes) and what 'a' made (20 bytes) at 1 s"),
        ({"transfers": (SENT._replace(nbytes=10, finish_s=3.0),)}, "what 'a' made (10 bytes) is sent, and no edge"),
        ({"transfers": (SENT._replace(dst="ram"),)}, "no link leads from 'ram' to 'ram'"),
        ({"evictions": (Evicted("a", 20, "vram", 4.5),)}, "needs what 'a' made (20 bytes) on 'vram', where it is not"),
    ],
)
def test_the_checker_finds_a_planted_fault_of_a_transfer(change: dict[str, Any], said: str) -> None:
    found = violations(PAIR, dataclasses.replace(sound(), **change))
    assert any(said in fault for fault in found), found


def test_the_checker_finds_a_memory_node_that_overflows() -> None:
    nodes = (MemoryNode("ram", UNLIMITED_BYTES), MemoryNode("vram", 19))
    graph = dataclasses.replace(PAIR, topology=dataclasses.replace(PAIR.topology, nodes=nodes))
    assert violations(graph, sound()) == ["'vram' holds 20 bytes at 1 s, its capacity is 19"]
    with pytest.raises(NothingFitsError, match=r"task 'b' needs 20 B at once .*; 'vram' has 19 B"):
        planned(graph)


def test_a_plan_with_transfers_and_evictions_written_is_the_plan_read() -> None:
    schedule = next(found for seed in range(30) if (found := planned(tight(seed), "heft")).evictions)
    assert plan_of(plan_document(schedule), "p.json") == schedule


def test_a_model_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(BadValueError, match="'contentoin' is not a model of transfers; did you mean 'contention'"):
        planned(PAIR, transfer_model="contentoin")
