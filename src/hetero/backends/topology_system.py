"""How the parts of this host hang together, as the kernel tells it under /sys and NVML of NVLinks.

In: a root folder, and readings of GPUs. Out: a `Fabric`. It must not measure; what is not told is declared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from hetero.backends.host import ROOT, pci_accelerators, pci_silicon
from hetero.backends.nvidia import (
    NVLINK_BYTES_PER_S,
    NVLINK_LATENCY_S,
    PCIE_LANE_BYTES_PER_S,
    PCIE_LATENCY_S,
    GpuReading,
)
from hetero.backends.topology import Rates
from hetero.model.fabric import Fabric, FabricPart, Origin, Wire

__all__ = ["from_system"]

_LABELS = {0x10DE: "cuda", 0x1002: "rocm", 0x8086: "xpu", 0x1DA3: "hpu"}
_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_TRANSFERS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_MEMORY_BYTES_PER_S = 40e9


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _node(folder: Path) -> int:
    """Return the NUMA node; the kernel writes -1 where there is but one."""
    text = _text(folder / "numa_node")
    return max(0, int(text)) if text.lstrip("-").isdigit() else 0


def _slot(folder: Path) -> tuple[float, Origin]:
    """Return the bandwidth of a PCIe slot by its transfers a second and its lanes."""
    speed = re.match(r"[\d.]+", _text(folder / "max_link_speed"))
    width = _text(folder / "max_link_width")
    generation = _TRANSFERS.get(float(speed[0])) if speed else None
    if generation is None or not width.isdigit() or not 0 < int(width) <= 32:
        return Rates().pcie, "declared"
    return PCIE_LANE_BYTES_PER_S[generation] * int(width), "read"


def _rate(folder: Path) -> float | None:
    """Return the bytes/s of an InfiniBand adapter: that of its ports together, as in '400 Gb/sec (4X NDR)'."""
    rates = (re.match(r"([\d.]+) Gb", _text(port / "rate")) for port in sorted(folder.glob("ports/*")))
    return sum(float(rate[1]) for rate in rates if rate) * 1e9 / 8 or None


def from_system(root: Path = ROOT, gpus: Sequence[GpuReading] = (), host: str = "h0") -> Fabric:
    """Build the fabric of a host from its /sys.

    Parameters
    ----------
    root : folder that stands for '/'
    gpus : what NVML told, for NVLinks
    host : what ids begin with

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
