"""Values that are dropped for room and made again, as deep as needed, against the independent checker."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.floor.errors import NothingFitsError
from hetero.graphs import check
from hetero.graphs.check import violations
from hetero.graphs.plan_files import plan_document, plan_of
from hetero.graphs.planning import Budget, plan_graph
from hetero.model.graph import UNLIMITED_BYTES, GraphDevice, GraphEdge, GraphTask, TaskGraph
from hetero.model.schedule import Schedule
from hetero.model.topology import Link, MemoryNode, Topology

REFUSED = re.compile(r"no room is left for task 't\d+'|made again, without end: '(ram|m0)' has \d+ B")


def alone(capacity_bytes: int, tasks: int, edges: list[tuple[int, int]], made: list[int]) -> TaskGraph:
    """Return a graph for one device with one memory; each task takes a second and makes one item."""
    return TaskGraph(
        (GraphDevice("cpu", "ram"),),
        Topology((MemoryNode("ram", capacity_bytes),), ()),
        tuple(GraphTask(f"t{index}", (1.0,)) for index in range(tasks)),
        tuple(GraphEdge(f"t{a}", f"t{b}", made[a]) for a, b in edges),
    )


def there_and_back(count: int, capacity_bytes: int) -> TaskGraph:
    """Return a chain whose values, a byte each, are read again in the opposite order, as in training."""
    forth = [(index, index + 1) for index in range(count - 1)]
    across = [(index, 2 * count - 1 - index) for index in range(count)]
    back = [(index, index + 1) for index in range(count, 2 * count - 1)]
    return alone(capacity_bytes, 2 * count, [*forth, *across, *back], [1] * 2 * count)


def sound(graph: TaskGraph) -> Schedule:
    schedule = plan_graph(graph, "heft", Budget(iterations=1)).schedule
    assert violations(graph, schedule) == []
    return schedule


@pytest.mark.parametrize("count", [2, 5, 9])
def test_where_three_values_fit_each_step_back_begins_with_the_whole_chain(count: int) -> None:
    schedule = sound(there_and_back(count, capacity_bytes=3))
    assert len(schedule.repeats) == (count - 1) * (count - 2) // 2
    assert schedule.makespan_s == 2 * count + len(schedule.repeats)


def test_more_memory_never_takes_more_repeats() -> None:
    repeats = [len(sound(there_and_back(10, room)).repeats) for room in range(3, 12)]
    assert repeats == sorted(repeats, reverse=True)
    assert (repeats[0], repeats[-1]) == (36, 0)


def test_no_repeat_of_a_deep_plan_can_be_left_out() -> None:
    graph = there_and_back(6, capacity_bytes=4)
    schedule = sound(graph)
    assert len(schedule.repeats) > 2
    for left in itertools.combinations(schedule.repeats, len(schedule.repeats) - 1):
        assert violations(graph, dataclasses.replace(schedule, repeats=left))


def test_a_deep_plan_written_is_the_plan_read() -> None:
    schedule = sound(there_and_back(6, capacity_bytes=3))
    assert plan_of(plan_document(schedule), "p.json") == schedule


def test_a_chain_is_made_again_on_the_device_where_that_costs_least() -> None:
    graph = there_and_back(6, capacity_bytes=3)
    links = (Link("ram", "vram", 0.0, 100.0), Link("vram", "ram", 0.0, 100.0))
    nodes = (MemoryNode("ram", 3), MemoryNode("vram", 3))
    devices = (GraphDevice("cpu", "ram"), GraphDevice("gpu", "vram"))
    tasks = tuple(GraphTask(task.id, (1.0, 0.1)) for task in graph.tasks)
    schedule = sound(dataclasses.replace(graph, devices=devices, topology=Topology(nodes, links), tasks=tasks))
    assert {row.device for row in schedule.repeats} <= {"gpu"}


def test_a_chain_of_more_than_64_tasks_is_not_made_again_for_one_value() -> None:
    with pytest.raises(NothingFitsError, match=r"3 B of 3 B are in use, .* can neither go elsewhere nor be made again"):
        sound(there_and_back(80, capacity_bytes=3))


def shared(graph: TaskGraph, bytes_per_s: float) -> TaskGraph:
    """Return the graph for three devices, each with as much memory of its own."""
    names = ("m0", "m1", "m2")
    nodes = tuple(MemoryNode(name, graph.topology.nodes[0].capacity_bytes) for name in names)
    links = tuple(Link(src, dst, 0.1, bytes_per_s) for src, dst in itertools.permutations(names, 2))
    return TaskGraph(
        tuple(GraphDevice(f"d{index}", name) for index, name in enumerate(names)),
        Topology(nodes, links),
        tuple(GraphTask(task.id, (1.0, 0.9, 1.1)) for task in graph.tasks),
        graph.edges,
    )


@pytest.mark.parametrize("seed", [203, 204, 205])
def test_plans_over_three_small_memories_and_slow_links_are_sound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(15, 40))
    made = rng.integers(1, 5, size=count).tolist()
    edges = sorted({(int(a), int(b)) for a, b in rng.integers(count, size=(2 * count, 2)) if a < b})
    needs = [made[task] + sum(made[a] for a, b in edges if b == task) for task in range(count)]
    graph = alone(max(needs) + int(rng.integers(0, 3)), count, edges, made)
    assert len(sound(shared(graph, bytes_per_s=0.2)).placements) == count


@st.composite
def tight(draw: st.DrawFn) -> TaskGraph:
    """Draw a graph in a memory that holds little more than the task that needs the most, with or without a second."""
    count = draw(st.integers(3, 12))
    made = draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    pairs = st.sampled_from(list(itertools.combinations(range(count), 2)))
    edges = draw(st.lists(pairs, unique=True, min_size=count, max_size=2 * count))
    needs = [made[task] + sum(made[a] for a, b in edges if b == task) for task in range(count)]
    graph = alone(max(needs) + draw(st.integers(0, 3)), count, edges, made)
    if draw(st.booleans()):
        return graph
    speed = draw(st.sampled_from([0.1, 1.0, 100.0]))
    if draw(st.booleans()):
        return shared(graph, speed)
    disk = MemoryNode("disk", draw(st.sampled_from([2, 8, UNLIMITED_BYTES])))
    links = (Link("ram", "disk", 0.1, speed), Link("disk", "ram", 0.1, speed))
    return dataclasses.replace(graph, topology=Topology((*graph.topology.nodes, disk), links))


@given(tight())
@settings(max_examples=120, deadline=None)
def test_every_repaired_plan_passes_the_checker_or_is_refused_in_words(graph: TaskGraph) -> None:
    said = ""
    try:
        assert sound(graph).placements
    except NothingFitsError as error:
        said = str(error)
    assert not said or REFUSED.search(said)


def test_the_checker_shares_no_code_with_the_planner() -> None:
    assert "hetero.plan" not in Path(check.__file__).read_text(encoding="utf-8")
