"""Other fleets for a task graph: copied devices, catalogued ones, devices taken away."""

from __future__ import annotations

import math

import pytest

from hetero.catalog.load import find
from hetero.floor.errors import HeteroError
from hetero.graphs.whatif import Measured, changed, named_devices, speed_of
from hetero.model.graph import GraphDevice, GraphTask, TaskGraph
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
