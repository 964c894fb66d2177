"""Other fleets for a task graph: copied devices, catalogued ones, devices taken away."""

from __future__ import annotations

import math

import pytest

from hetero.catalog.load import find
from hetero.floor.errors import HeteroError
from hetero.graphs.whatif import changed, named_devices, speed_of
from hetero.model.graph import GraphDevice, GraphTask, TaskGraph
from hetero.model.topology import Link, MemoryNode, Topology

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
    ],
)
def test_a_mistake_is_told_with_its_remedy(add: list[str], remove: list[str], known: list[str], told: str) -> None:
    with pytest.raises(HeteroError, match=told.replace("'", "."), check=lambda error: "\n" not in str(error)):
        changed(GRAPH, add, remove, named_devices(GRAPH, known))
