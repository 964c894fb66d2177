"""Devices and where they stand: what a pool or a Context knows of hosts, racks, NUMA nodes, buses and wires.

In: devices, or a topology that names some. Out: both, fitting each other. It must not measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hetero.backends.registry import kinds
from hetero.floor.errors import BadValueError
from hetero.model.device import KINDS, Device, DeviceType
from hetero.model.topology import Topology

if TYPE_CHECKING:
    from hetero.model.fabric import Fabric, FabricPart

__all__ = ["devices_of", "placed"]


def placed(
    devices: str | Sequence[Device] | None, topology: Topology | Fabric | str | Path | None
) -> tuple[tuple[Device, ...], Topology]:
    """Return devices with the topology that they stand in.

    Parameters
    ----------
    devices : a fleet in one line, devices, or None for those that the topology names, else those that a Context takes
    topology : links between memories, a fabric, a file of either kind that `hetero.cluster.topology` reads, or None for
        what this host tells

    Raises
    ------
    BadValueError
        The topology names none of the devices.
    """
    from hetero.session.config import load
    from hetero.session.config_here import find_devices
    from hetero.session.fleet import from_spec

    fabric = _fabric(topology)
    if devices is None and fabric is not None:
        found = devices_of(fabric)
    elif isinstance(devices, str):
        found = from_spec(devices)
    else:
        found = find_devices(load()) if devices is None else tuple(devices)
    if isinstance(topology, Topology):
        return found, topology
    if fabric is None:
        from hetero.backends.topology_system import fabric_here

        return found, Topology(fabric=fabric_here(found))
    if not any(fabric.has(device.id) for device in found):
        names = ", ".join(part.id for part in fabric.devices[:4])
        raise BadValueError(
            f"the topology names {names}, and no device of the pool", remedy="name devices in both alike"
        )
    return found, Topology(fabric=fabric)


def _fabric(given: Topology | Fabric | str | Path | None) -> Fabric | None:
    if isinstance(given, str | Path):
        from hetero.backends.topology_files import read_topology

        return read_topology([Path(given)])
    return given.fabric if isinstance(given, Topology) else given


def devices_of(fabric: Fabric) -> tuple[Device, ...]:
    """Return the devices of a fabric, as a pool takes them.

    Examples
    --------
    >>> from hetero.model.fabric import Fabric, FabricPart
    >>> [device.kind for device in devices_of(Fabric((FabricPart("h0/cuda:0", "device", host="h0"),)))]
    ['cuda']
    """
    return tuple(_device(part) for part in fabric.devices)


def _device(part: FabricPart) -> Device:
    label = part.id.rpartition("/")[2].partition(":")[0]
    kind = kinds().get(label, KINDS["null"])
    return Device(
        part.id,
        kind.name,
        DeviceType(kind.type),
        kind.name,
        name=part.name,
        memory_node=part.id,
        rack=part.rack,
        simulated=True,
    )
