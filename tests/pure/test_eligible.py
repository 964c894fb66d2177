"""Which device may run which request, and the words of a refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hetero.core.machine import Machine
from hetero.core.obstacles import obstacle
from hetero.model.device import Device, DeviceType
from hetero.model.events import DeviceAdded, DeviceReady
from hetero.model.tasks import Request
from hetero.model.topology import MemoryNode, Topology
from hetero.plan.performance.cost_model import CostModel
from hetero.plan.policies.registry import get

CPU = Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu", memory_bytes=8_000_000_000)
ROOMY = Topology((MemoryNode("h0/ram", 8_000_000_000),))


def machine_of(*devices: Device, topology: Topology = ROOMY) -> Machine:
    machine = Machine(get("eft"), CostModel(), topology)
    for device in devices:
        machine.handle(DeviceAdded(0.0, device))
        machine.handle(DeviceReady(0.0, device.id))
    return machine


def test_one_core_is_told_in_the_singular_and_more_in_the_plural() -> None:
    assert obstacle(CPU, Request(min_cores=3), None) == "it has 1 core of the 3 asked for"
    assert obstacle(replace(CPU, cores=2), Request(min_cores=3), None) == "it has 2 cores of the 3 asked for"


def test_a_limit_below_the_nodes_memory_counts_and_the_refusal_names_it() -> None:
    machine = machine_of(replace(CPU, memory_limit_bytes=1_000_000_000))
    refused = machine.refuse("train", "train|", Request(memory_bytes=2_000_000_000))
    assert refused == "no device can run train: h0/cpu:0: its memory_limit allows 1 GB of the 2 GB asked for"
    assert machine.refuse("train", "train|", Request(memory_bytes=1_000_000_000)) == ""


def test_a_limit_above_the_nodes_memory_gives_none_of_it() -> None:
    machine = machine_of(replace(CPU, memory_limit_bytes=64_000_000_000))
    refused = machine.refuse("train", "train|", Request(memory_bytes=9_000_000_000))
    assert refused == "no device can run train: h0/cpu:0: it has 8 GB of the 9 GB asked for"


@pytest.mark.parametrize("kind", ["opencl", "vulkan", "fpga"])
def test_a_plain_function_is_refused_where_all_devices_take_kernels(kind: str) -> None:
    machine = machine_of(Device(f"h0/{kind}:0", kind, DeviceType("GPU"), kind))
    refused = machine.refuse("f", "f|", Request())
    assert refused == f"no device can run f: h0/{kind}:0: the task has no kernel for it"
    assert machine.refuse("f", "f|", Request(implemented=(kind,))) == ""
