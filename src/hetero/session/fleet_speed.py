"""How fast devices and the links between their memory nodes are, and how the devices are doing.

In: devices. Out: the same with their speeds, a topology, status. Measuring happens in a child process, once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from hetero.backends import host, nvidia, probe, registry
from hetero.backends.base import Speed
from hetero.backends.cpu import CpuLoad
from hetero.backends.gpus import gpu_status
from hetero.floor.clock import sleep
from hetero.model.device import HOST_NODE, Device, DeviceStatus
from hetero.model.topology import Link, MemoryNode, Topology
from hetero.session.disk_cache import DiskCache, digest

__all__ = ["measure", "recall", "status", "status_of", "topology"]

UNKNOWN_LINK_BYTES_PER_S = 12e9
"""Assumed for a link that is neither measured nor told: what PCIe 3 x16 gives in practice. Its kind is 'assumed'."""

UNKNOWN_LINK_LATENCY_S = 20e-6


def _key(device: Device) -> str:
    return digest(device.backend, device.driver, device.name, device.cores, device.kind, device.python, host.cpu_name())


def _speed(values: object) -> Speed | None:
    if not isinstance(values, list) or len(values) != len(Speed._fields):
        return None
    flop, stream, *link = values
    good = all(isinstance(value, float) and value > 0.0 for value in (flop, stream))
    sane = all(value is None or (isinstance(value, float) and value > 0.0) for value in link)
    return Speed(*values) if good and sane else None


def measure(devices: Sequence[Device], refresh: bool = False, notes: list[str] | None = None) -> tuple[Device, ...]:
    """Return the devices with their speeds, from memory where they were measured before.

    Parameters
    ----------
    refresh
        True to measure again.
    notes
        Takes a line for each device that could not be measured, with the reason.

    Returns
    -------
    tuple
        in the same order; a throttled device has its share of the speed, a simulated or broken one has none

    Notes
    -----
    Devices that are alike (back end, driver, name, cores) are measured once, one after the other, each in a
    child process that is bound to the device's CPUs. The results lie in `speeds.json` under HETERO_HOME.
    """
    kept = DiskCache("speeds.json")
    known = {} if refresh else {key: _speed(values) for key, values in kept.read().items()}
    fresh: dict[str, Speed] = {}
    reasons: dict[str, str] = {}
    for device in devices:
        key = _key(device)
        if device.simulated or known.get(key) is not None or key in reasons:
            continue
        speed, reasons[key] = probe.measure(replace(device, throttle_frac=1.0))
        known[key] = speed
        if speed is not None:
            fresh[key] = speed
    if fresh:
        kept.update({key: list(speed) for key, speed in fresh.items()})
    if notes is not None:
        whys = ((device, reasons.get(_key(device))) for device in devices if not device.simulated)
        notes += [f"{device.short} could not be measured: {why}" for device, why in whys if why]
    return tuple(_with_speed(device, None if device.simulated else known.get(_key(device))) for device in devices)


def recall(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Return the devices with the speeds that were measured before, without measuring."""
    kept = DiskCache("speeds.json").read()
    speeds = [None if device.simulated else _speed(kept.get(_key(device))) for device in devices]
    return tuple(_with_speed(device, speed) for device, speed in zip(devices, speeds, strict=True))


def remembered(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Return the devices with the speeds that were measured before; nothing is measured."""
    kept = DiskCache("speeds.json").read()
    return tuple(_with_speed(each, None if each.simulated else _speed(kept.get(_key(each)))) for each in devices)


def _with_speed(device: Device, speed: Speed | None) -> Device:
    if speed is None:
        return device
    share = device.throttle_frac
    return replace(device, flop_per_s=speed.flop_per_s * share, bytes_per_s=speed.bytes_per_s * share)


def topology(devices: Sequence[Device]) -> Topology:
    """Return the memory nodes of a fleet and the directed links between them.

    Notes
    -----
    The link of a node and the host is, the first that applies: 'emulated' as configured; as measured
    ('memory' for runtimes on the CPU, else 'pcie'); 'pcie' from the generation and width that NVML tells;
    'assumed', 12 GB/s. NVLinks come from NVML. A node whose size is unknown has no limit. Where devices stand comes
    from /sys.
    """
    from hetero.backends.topology_system import fabric_here

    own: dict[str, Device] = {}
    for device in devices:
        if device.memory_node != HOST_NODE:
            own.setdefault(device.memory_node, device)
    nodes = [MemoryNode(HOST_NODE, host.ram_bytes()), *(_node(name, device) for name, device in own.items())]
    told = _reported_links(own)
    measured = DiskCache("speeds.json").read() if own else {}
    links = [
        link for name, device in own.items() for link in _host_links(name, device, told, measured.get(_key(device)))
    ]
    between = (link for link in told if HOST_NODE not in (link.src, link.dst))
    return Topology(tuple(nodes), (*links, *between), fabric_here(devices))


def _node(name: str, device: Device) -> MemoryNode:
    sizes = [size for size in (device.memory_limit_bytes, device.memory_bytes) if size is not None]
    return MemoryNode(name, min(sizes, default=sys.maxsize))


def _reported_links(own: dict[str, Device]) -> tuple[Link, ...]:
    """Return the links that NVIDIA's driver tells, and those that the back ends of other devices do."""
    nodes = {chip: name for name, device in own.items() for chip in device.silicon if chip.startswith("h0/pci:")}
    others = [device for device in own.values() if nodes.keys().isdisjoint(device.silicon)]
    links = [link for one in others if one.backend in registry.names() for link in registry.backend_of(one).links()]
    known = {HOST_NODE, *own}
    told = (link for link in links if link.src in known and link.dst in known)
    return (*(nvidia.links_of(nvidia.read(), nodes) if nodes else ()), *told)


def _host_links(name: str, device: Device, told: Sequence[Link], values: object) -> tuple[Link, ...]:
    pairs = ((HOST_NODE, name), (name, HOST_NODE))
    if device.link_bytes_per_s > 0.0 or device.link_latency_s > 0.0:
        speed = device.link_bytes_per_s or UNKNOWN_LINK_BYTES_PER_S
        return tuple(Link(src, dst, device.link_latency_s, speed, kind="emulated") for src, dst in pairs)
    known = _speed(values)
    if known is not None and known.in_bytes_per_s and known.out_bytes_per_s:
        kind = "memory" if device.type == "CPU" else "pcie"
        rates = (known.in_bytes_per_s, known.out_bytes_per_s)
        return tuple(
            Link(src, dst, UNKNOWN_LINK_LATENCY_S, rate, kind=kind)
            for (src, dst), rate in zip(pairs, rates, strict=True)
        )
    listed = tuple(link for link in told if (link.src, link.dst) in pairs)
    return listed or tuple(
        Link(src, dst, UNKNOWN_LINK_LATENCY_S, UNKNOWN_LINK_BYTES_PER_S, kind="assumed") for src, dst in pairs
    )


def status(devices: Sequence[Device], sample_s: float = 0.1) -> tuple[DeviceStatus, ...]:
    """Return each device's status without opening it; what is unknown is None.

    Parameters
    ----------
    sample_s
        Seconds to watch the CPUs for; below 0.05 their utilisation stays unknown.
    """
    loads = [CpuLoad(device.cpus) if device.is_host and not device.simulated else None for device in devices]
    for load in loads:
        if load is not None:
            load.busy_frac()
    if sample_s > 0.0 and any(loads):
        sleep(sample_s)
    return tuple(
        status_of(device) if load is None else host.cpu_status(load.busy_frac())
        for device, load in zip(devices, loads, strict=True)
    )


def status_of(device: Device) -> DeviceStatus:
    """Return a device's status as its back end tells it, without opening the device."""
    if device.simulated:
        return DeviceStatus()
    return registry.backend_of(device).status() if device.backend in registry.names() else gpu_status(device)
