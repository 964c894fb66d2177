"""Where the devices of this host stand: the fabric that the kernel tells, its devices under the ids that hetero uses.

In: devices. Out: a `Fabric` with a part for each of them. It must not measure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hetero.backends import nvidia
from hetero.backends.host import ROOT, pci_silicon
from hetero.backends.topology_system import from_system
from hetero.model.device import Device
from hetero.model.fabric import Fabric, FabricPart, Wire

__all__ = ["fabric_here"]


def fabric_here(
    devices: Sequence[Device], root: Path = ROOT, gpus: Sequence[nvidia.GpuReading] | None = None
) -> Fabric:
    """Return the fabric of this host in which each device is one part, under its own id.

    Parameters
    ----------
    devices : those of other hosts are left out
    root : folder that stands for '/'
    gpus : what NVML told; None asks it, where a device has a PCI address

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
