"""Other fleets for a task graph: copied devices, catalogued ones, devices taken away."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.graphs_contention import changes
from hetero.catalog.load import find
from hetero.cli.graph import answer
from hetero.floor.errors import HeteroError
from hetero.graphs import comparison
from hetero.graphs.check import violations
from hetero.graphs.comparison import FleetComparison, compare, is_part_of, plan_family
from hetero.graphs.planning import Budget, PlannedGraph, plan_graph
from hetero.graphs.whatif import Measured, changed, named_devices, speed_of
from hetero.model.graph import GraphDevice, GraphTask, TaskGraph
from hetero.model.schedule import Schedule
from hetero.model.topology import Link, MemoryNode, Topology
from hetero.plan.performance.cost_model import Sample

GRAPH = TaskGraph(
    (GraphDevice("cpu0", "ram", "cpu"), GraphDevice("gpu0", "vram", "cuda")),
    Topology((MemoryNode("ram", 10**11), MemoryNode("vram", 10**10)), (Link("ram", "vram", 0.0, 1e9),)),
    (GraphTask("a", (4.0, 1.0)), GraphTask("b", (2.0, math.inf))),
    (),
)


def test_a_copy_of_a_device_has_its_seconds_and_says_that_they_are_measured() -> None:
    other = changed(GRAPH, ["2 x gpu0"], [], {})
    assert [task.seconds for task in other.middle.tasks] == [(4.0, 1.0, 1.0, 1.0), (2.0, *[math.inf] * 3)]
    assert not other.extrapolated
    assert "measured" in other.said[0]
    assert other.middle.topology.link("ram", other.middle.devices[-1].memory_node) is not None


def test_a_catalogued_device_is_extrapolated_between_arithmetic_and_bandwidth() -> None:
    known = named_devices(GRAPH, ["gpu0=A100-SXM-80GB"])
    other = changed(GRAPH, ["H100-SXM"], ["gpu0"], known)
    low, middle, high = (each.tasks[0].seconds[-1] for each in (other.low, other.middle, other.high))
    assert other.extrapolated
    assert 0.0 < low <= middle <= high < 1.0
    assert [device.id for device in other.middle.devices] == ["cpu0", "H100-SXM#1"]
    speed = speed_of(find("H100-SXM"), find("A100-SXM-80GB"))
    assert (low, high) == pytest.approx((speed.low, speed.high))


def test_a_device_that_the_graph_has_under_another_name_is_measured() -> None:
    other = changed(GRAPH, ["H100-SXM"], [], named_devices(GRAPH, ["gpu0=H100-SXM"]))
    assert not other.extrapolated
    assert "gpu0 is one" in other.said[0]


H100, A100, OWN = "cuda/NVIDIA H100 80GB HBM3", "cuda/NVIDIA A100-SXM4-80GB", "npu/Own design"


def runs(**ratios: float) -> Measured:
    """Return earlier runs of functions on an A100, and elsewhere so many times as long."""
    rows = []
    for name, ratio in ratios.items():
        for size in (8.0, 9.0):
            rows += [Sample(f"m.{name}@1|x", A100, size, size), Sample(f"m.{name}@1|x", H100, size, ratio * size)]
            rows += [Sample(f"m.{name}@1|x", OWN, size, 2.0 * ratio * size)]
    return Measured(rows)


def test_tasks_that_ran_on_both_kinds_of_devices_are_measured_and_the_others_extrapolated() -> None:
    known = named_devices(GRAPH, ["gpu0=A100-SXM-80GB"], measured := runs(a=0.25))
    other = changed(GRAPH, ["H100-SXM"], [], known, measured)
    assert [each.tasks[0].seconds[-1] for each in (other.low, other.middle, other.high)] == [0.25] * 3
    assert other.extrapolated
    assert "extrapolated for 1 tasks" in other.said[0]
    assert "measured in earlier runs for 1 tasks: 4 times as fast as gpu0 (A100-SXM-80GB)" in other.said[0]


def test_where_every_task_was_measured_nothing_is_extrapolated() -> None:
    known = named_devices(GRAPH, ["gpu0=A100-SXM-80GB"], measured := runs(a=0.25, b=0.5))
    other = changed(GRAPH, ["H100-SXM"], [], known, measured)
    assert not other.extrapolated
    assert "extrapolated" not in other.said[0]


def test_a_kind_of_device_that_no_catalog_has_is_compared_by_what_was_measured() -> None:
    known = named_devices(GRAPH, ["gpu0=A100-SXM-80GB"], measured := runs(a=0.25, b=0.5))
    assert changed(GRAPH, [f"2 x {OWN}"], [], known, measured).middle.tasks[0].seconds == (4.0, 1.0, 0.5, 0.5)
    with pytest.raises(HeteroError, match="'b' was not measured on both npu/Own design and A100-SXM-80GB"):
        changed(GRAPH, [OWN], [], named_devices(GRAPH, ["gpu0=A100-SXM-80GB"], runs(a=0.25)), runs(a=0.25))


@pytest.mark.parametrize("task", ["gemm", "gemm3", "gemm_3.2", "gemm#7", "gemm 1,2"])
def test_a_task_is_of_the_function_whose_name_it_has_but_for_numbers_at_its_end(task: str) -> None:
    assert runs(gemm=0.5).ratio(task, H100, A100) == pytest.approx(0.5)
    assert runs(gemm=0.5, potrf=0.1).ratio("trsm1", H100, A100) is None


@pytest.mark.parametrize(
    ("add", "remove", "known", "told"),
    [
        (["2 x H100-SXM"], [], [], "--is gpu0=NAME"),
        (["0 x gpu0"], [], [], "allowed: 1 to"),
        (["2 x H100-SMX"], [], ["gpu0=A100-SXM-80GB"], "H100-SXM"),
        ([], ["gpu1"], [], "did you mean"),
        ([], ["cpu0"], [], "'b' can run on no device"),
        ([], ["cpu0", "gpu0"], [], "no device is left"),
        ([], [], ["gpu0"], "DEVICE=NAME"),
        ([], [], ["gpu9=H100-SXM"], "no device 'gpu9'"),
        (["npu/Own"], [], [], "no earlier run knows a kind of device 'npu/Own'"),
    ],
)
def test_a_mistake_is_told_with_its_remedy(add: list[str], remove: list[str], known: list[str], told: str) -> None:
    with pytest.raises(HeteroError, match=told.replace("'", "."), check=lambda error: "\n" not in str(error)):
        changed(GRAPH, add, remove, named_devices(GRAPH, known))


def test_a_larger_fleet_is_never_slower_and_its_bound_never_above_that_of_a_smaller_one() -> None:
    made = list(itertools.islice(changes(0, most=20), 10))
    assert {each.adds for each in made} == {True, False}
    for each in made:
        found = compare(each.before, each.after, Budget(iterations=4), 0)
        small, large = (found.now, found.then) if each.adds else (found.then, found.now)
        assert large.makespan_s <= small.makespan_s, each.name
        assert large.lower_bound_s <= small.lower_bound_s, each.name
        assert violations(each.before, found.now) == violations(each.after, found.then) == [], each.name


def wide(devices: int) -> TaskGraph:
    """Return a graph in which a second device helps a little and a third not at all; memory is shared."""
    fleet = tuple(GraphDevice(f"d{n}", "ram") for n in range(devices))
    tasks = tuple(GraphTask(f"t{n}", (1.0,) * devices) for n in range(4))
    return TaskGraph(fleet, Topology((MemoryNode("ram", 10**9),)), tasks, ())


def test_a_plan_is_one_of_a_larger_fleet_but_not_of_one_with_less_memory_or_other_seconds() -> None:
    small, large = wide(2), wide(3)
    assert is_part_of(small, large)
    assert not is_part_of(large, small)
    assert not is_part_of(small, replace(large, topology=Topology((MemoryNode("ram", 10**8),))))
    slower = tuple(GraphTask(task.id, (1.0, 2.0, 1.0)) for task in large.tasks)
    assert not is_part_of(small, replace(large, tasks=slower))
    moved = (large.devices[0], GraphDevice("d1", "elsewhere"), large.devices[2])
    assert not is_part_of(small, replace(large, devices=moved))
    linked = replace(small, topology=replace(small.topology, links=(Link("ram", "ram2", 0.0, 1.0),)))
    assert not is_part_of(linked, large)


def test_plans_and_bounds_are_carried_over_from_fleet_to_fleet_whatever_the_search_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search finds 9 s on the larger fleet and 4 s on the smaller, and a bound of 3 s on the larger alone."""
    small, large = wide(1), wide(2)
    found = {1: plan_graph(small, "heft").schedule, 2: plan_graph(large, "heft").schedule}
    worse = plan_graph(replace(large, devices=large.devices[:1], tasks=wide(1).tasks), "heft").schedule
    late = tuple(row._replace(start_s=row.start_s + 5.0, finish_s=row.finish_s + 5.0) for row in worse.placements)
    given = {
        1: replace(found[1], lower_bound_s=0.0),
        2: replace(worse, placements=late, makespan_s=9.0, lower_bound_s=1.5),
    }
    asked = []

    def planned(graph: TaskGraph, *_: object, starts: Sequence[Schedule], **__: object) -> PlannedGraph:
        asked.append((len(graph.devices), [start.makespan_s for start in starts]))
        return PlannedGraph(given[len(graph.devices)], 1, 0.0, 0.0, ())

    monkeypatch.setattr(comparison, "plan_graph", planned)
    one, other = plan_family((large, small), Budget(iterations=2), 0)
    assert (one.makespan_s, other.makespan_s) == (4.0, 4.0)
    assert (one.lower_bound_s, other.lower_bound_s) == (1.5, 1.5)
    assert asked == [(1, []), (2, [4.0]), (1, [4.0, 4.0]), (2, [4.0, 4.0])]


def test_a_comparison_is_decided_where_the_gaps_do_not_overlap() -> None:
    def made(makespan_s: float, bound_s: float) -> Schedule:
        return Schedule((), makespan_s, bound_s, "search")

    assert FleetComparison(made(4.0, 3.0), made(2.5, 2.0)).is_decided
    assert FleetComparison(made(4.0, 3.0), made(6.0, 5.0)).is_decided
    assert not FleetComparison(made(4.0, 2.0), made(3.0, 1.0)).is_decided
    assert FleetComparison(made(4.0, 4.0), made(4.0, 4.0)).is_decided
    found = FleetComparison(made(4.0, 2.0), made(3.0, 1.0))
    assert (found.at_least, found.at_most) == (pytest.approx(2 / 3), 4.0)
    same = FleetComparison(made(4.0, 2.0), made(4.0, 2.0), is_same=True)
    assert (same.is_decided, same.at_least, same.at_most) == (True, 1.0, 1.0)
    assert compare(wide(2), wide(2), Budget(iterations=1), 0).is_same
    assert answer(same) == "1.00 times as fast"
