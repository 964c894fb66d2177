"""How the parts of this host hang together, as the kernel tells it under /sys and NVML of NVLinks.

In: a root folder, readings of GPUs, devices. Out: a `Fabric`, its devices under the ids that hetero uses. It must not
measure; what is not told is declared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from hetero.backends import nvidia
from hetero.backends.host import ROOT, file_text, pci_accelerators, pci_silicon
from hetero.backends.nvidia import (
    NVLINK_BYTES_PER_S,
    NVLINK_LATENCY_S,
    PCIE_LANE_BYTES_PER_S,
    PCIE_LATENCY_S,
    GpuReading,
)
from hetero.backends.topology import Rates
from hetero.model.device import Device
from hetero.model.fabric import Fabric, FabricPart, Origin, Wire

__all__ = ["fabric_here", "from_system"]

_LABELS = {0x10DE: "cuda", 0x1002: "rocm", 0x8086: "xpu", 0x1DA3: "hpu"}
_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_TRANSFERS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_MEMORY_BYTES_PER_S = 40e9


def _node(folder: Path) -> int:
    """Return the NUMA node; the kernel writes -1 where there is but one."""
    text = file_text(folder / "numa_node")
    return max(0, int(text)) if text.lstrip("-").isdigit() else 0


def _slot(folder: Path) -> tuple[float, Origin]:
    """Return the bandwidth of a PCIe slot by its transfers a second and its lanes."""
    speed = re.match(r"[\d.]+", file_text(folder / "max_link_speed"))
    width = file_text(folder / "max_link_width")
    generation = _TRANSFERS.get(float(speed[0])) if speed else None
    if generation is None or not width.isdigit() or not 0 < int(width) <= 32:
        return Rates().pcie, "declared"
    return PCIE_LANE_BYTES_PER_S[generation] * int(width), "read"


def _rate(folder: Path) -> float | None:
    """Return the bytes/s of an InfiniBand adapter: that of its ports together, as in '400 Gb/sec (4X NDR)'."""
    rates = (re.match(r"([\d.]+) Gb", file_text(port / "rate")) for port in sorted(folder.glob("ports/*")))
    return sum(float(rate[1]) for rate in rates if rate) * 1e9 / 8 or None


def from_system(root: Path = ROOT, gpus: Sequence[GpuReading] = (), host: str = "h0") -> Fabric:
    """Build the fabric of a host from its /sys.

    Parameters
    ----------
    root
        Folder that stands for '/'.
    gpus
        What NVML told, for NVLinks.
    host
        What ids begin with.

    Notes
    -----
    PCIe bridges that only one part hangs on are passed over. Slots and InfiniBand ports have the rate that the kernel
    tells; between NUMA nodes, and between a CPU and its memory, it tells none.
    """
    parts = [*_cards(root, host), *_adapters(root, host)]
    nodes = sorted({0, *_numa(root), *(part.numa or 0 for part in parts)})
    parts += [FabricPart(f"{host}/cpu:{node}", "device", "CPU", host, numa=node) for node in nodes]
    wires = [*_tree(root, host, parts), *_nvlinks(parts, gpus, host)]
    wires += [
        Wire(f"{host}/cpu:{node}", f"{host}/numa:{node}", "memory", _MEMORY_BYTES_PER_S, 0.0, "declared")
        for node in nodes
    ]
    parts += [FabricPart(f"{host}/numa:{node}", "numa", host=host, numa=node) for node in nodes]
    if len(nodes) > 1:
        parts.append(FabricPart(f"{host}/sockets", "host", host=host))
        wires += [Wire(f"{host}/numa:{node}", f"{host}/sockets", "smp", Rates().smp, 0.0, "declared") for node in nodes]
    known = {part.id for part in parts}
    inner = dict.fromkeys(end for wire in wires for end in (wire.one, wire.other) if end not in known)
    return Fabric((*parts, *(FabricPart(identity, "switch", host=host) for identity in inner)), tuple(wires))


def _numa(root: Path) -> list[int]:
    found = sorted((root / "sys/devices/system/node").glob("node[0-9]*"))
    return [int(path.name[4:]) for path in found]


def _cards(root: Path, host: str) -> Iterator[FabricPart]:
    counts: Counter[str] = Counter()
    for card in pci_accelerators(root):
        label = _LABELS.get(card.vendor_id)
        if label is not None:
            folder = root / "sys/bus/pci/devices" / card.address
            name = f"{card.vendor_id:04x}:{card.device_id:04x}"
            yield FabricPart(
                f"{host}/{label}:{counts[label]}", "device", name, host, numa=_node(folder), pci=card.address
            )
            counts[label] += 1


def _adapters(root: Path, host: str) -> Iterator[FabricPart]:
    for folder in sorted((root / "sys/class/infiniband").glob("*")):
        device = (folder / "device").resolve()
        rate = _rate(folder)
        name = f"{rate * 8 / 1e9:g} Gb/s" if rate else ""
        yield FabricPart(f"{host}/{folder.name}", "nic", name, host, numa=_node(device), pci=device.name)


def _chain(root: Path, part: FabricPart) -> list[Path]:
    """Return the folders of the bridges above a part, the nearest first."""
    folder = (root / "sys/bus/pci/devices" / part.pci).resolve()
    return [above for above in folder.parents if _ADDRESS.fullmatch(above.name)]


def _tree(root: Path, host: str, parts: Sequence[FabricPart]) -> Iterator[Wire]:
    chains = {part.id: _chain(root, part) for part in parts if part.pci}
    under = Counter(bridge for chain in chains.values() for bridge in chain)
    made: dict[tuple[str, str], Wire] = {}
    for part in parts:
        if not part.pci:
            continue
        shared = [bridge for bridge in chains[part.id] if under[bridge] > 1]
        kept = [bridge for place, bridge in enumerate(shared) if place == 0 or under[bridge] > under[shared[place - 1]]]
        folders = [root / "sys/bus/pci/devices" / part.pci, *kept]
        ids = [part.id, *(f"{host}/pci:{bridge.name}" for bridge in kept), f"{host}/numa:{part.numa or 0}"]
        for (low, high), folder in zip(pairwise(ids), folders, strict=True):
            rate, origin = _slot(folder)
            made[low, high] = Wire(low, high, "pcie", rate, PCIE_LATENCY_S / 2, origin)
    yield from made.values()


def _nvlinks(parts: Sequence[FabricPart], gpus: Sequence[GpuReading], host: str) -> Iterator[Wire]:
    by_pci = {pci_silicon(part.pci): part.id for part in parts if part.pci}
    for gpu in gpus:
        one = by_pci.get(pci_silicon(gpu.pci))
        speeds: Counter[str] = Counter()
        for link in gpu.nvlinks:
            far = by_pci.get(pci_silicon(link.remote_pci), "") if link.remote_pci else f"{host}/nvswitch"
            speeds[far] += int(NVLINK_BYTES_PER_S.get(link.version, 0.0))
        for far, speed in speeds.items():
            if one and far and speed and (far > one or far.endswith("/nvswitch")):
                yield Wire(one, far, "nvlink", float(speed), NVLINK_LATENCY_S)


def fabric_here(
    devices: Sequence[Device], root: Path = ROOT, gpus: Sequence[nvidia.GpuReading] | None = None
) -> Fabric:
    """Return the fabric of this host in which each device is one part, under its own id.

    Parameters
    ----------
    devices
        Those of other hosts are left out.
    root
        Folder that stands for '/'.
    gpus
        What NVML told; None asks it, where a device has a PCI address.

    Notes
    -----
    Accelerators are found by their PCI address, since runtimes number them in an order of their own. CPU devices stand
    at the NUMA node of their first core.
    """
    own = [device for device in devices if device.host == "h0"]
    chips = {chip: device for device in own for chip in device.silicon if chip.startswith("h0/pci:")}
    if gpus is None:
        gpus = nvidia.read() if chips else ()
    found = from_system(root, gpus)
    names = {part.id: chips[pci_silicon(part.pci)].id for part in found.parts if _is_one(part, chips)}
    cpus = {part.id: part for part in found.devices if part.id.startswith("h0/cpu:")}
    kept = [part for part in found.parts if part.id not in cpus]
    parts = [replace(part, id=names.get(part.id, _apart(part, names)), rack=_rack(own)) for part in kept]
    renamed = {part.id: new.id for part, new in zip(kept, parts, strict=True)}
    wires = [
        replace(wire, one=renamed[wire.one], other=renamed[wire.other])
        for wire in found.wires
        if wire.one in renamed and wire.other in renamed
    ]
    memory = next(wire for wire in found.wires if wire.kind == "memory")
    for part in _processors(own, root, max(1, len(cpus))):
        parts.append(part)
        wires.append(Wire(part.id, f"h0/numa:{part.numa}", "memory", memory.bytes_per_s, 0.0, memory.origin))
    return Fabric(tuple(parts), tuple(wires))


def _is_one(part: FabricPart, chips: dict[str, Device]) -> bool:
    return bool(part.pci) and pci_silicon(part.pci) in chips


def _apart(part: FabricPart, names: dict[str, str]) -> str:
    """Return the id of a part that is none of the devices: another one where a device has taken its own."""
    return f"{part.id}@{part.pci}" if part.id in names.values() else part.id


def _rack(devices: Iterable[Device]) -> str:
    return next((device.rack for device in devices if device.rack), "")


def _processors(devices: Sequence[Device], root: Path, nodes: int) -> Iterator[FabricPart]:
    homes = _homes(root)
    for device in devices:
        if device.is_host:
            numa = homes.get(device.cpus[0], 0) if device.cpus else 0
            yield FabricPart(device.id, "device", device.name, "h0", device.rack, numa if numa < nodes else 0)


def _homes(root: Path) -> dict[int, int]:
    """Return the NUMA node of each CPU."""
    found = {}
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        for cpu in folder.glob("cpu[0-9]*"):
            found[int(cpu.name[3:])] = int(folder.name[4:])
    return found
