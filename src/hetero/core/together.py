"""Which of the devices that are free a lease gets: such as share a place or a kind of link, and work together best.

In: devices, a number, what they must share, the topology. Out: as many devices, or none. It must not know of leases.
"""

from __future__ import annotations

from collections.abc import Sequence

from hetero.floor.errors import BadValueError, NothingFitsError
from hetero.model.device import Device
from hetero.model.topology import Topology

__all__ = ["chosen_together", "place_of"]


def place_of(device: Device, scope: str, topology: Topology) -> str:
    """Return the host, rack, NUMA node, PCIe bus or NVLink island of a device; '' where it is unknown.

    Examples
    --------
    >>> from hetero.model.device import DeviceType
    >>> place_of(Device("h1/cuda:0", "cuda", DeviceType("GPU"), "torch", rack="r2"), "rack", Topology())
    'r2'
    """
    own = {"host": device.host, "rack": device.rack}.get(scope, "")
    fabric = topology.fabric
    return own or (fabric.place(device.id, scope) if fabric is not None and fabric.has(device.id) else "")


def chosen_together(
    devices: Sequence[Device], count: int, share: str, topology: Topology, *, best: bool = True
) -> tuple[Device, ...]:
    """Return devices that share what they must; () where there are too few.

    Parameters
    ----------
    devices : candidates, the preferred ones first
    share : '' for nothing, a scope as 'host' or 'numa', or 'link:KIND' that joins each two
    best : True takes those with the fastest connections, where these are known; False the first ones

    Notes
    -----
    Of several places that have enough the smallest is taken, so that the larger ones are left for larger requests.
    """
    if share.startswith("link:"):
        return _linked(devices, count, share.removeprefix("link:"), topology)
    places: dict[str, list[Device]] = {}
    for device in devices:
        place = place_of(device, share, topology) if share else "everywhere"
        if place or share in ("host", "rack"):
            places.setdefault(place, []).append(device)
    enough = sorted((group for group in places.values() if len(group) >= count), key=len)
    if not enough:
        return ()
    return (_fastest(enough[0], count, topology) if best else ()) or tuple(enough[0][:count])


def _is_wired(device: Device, topology: Topology) -> bool:
    return topology.fabric is not None and topology.fabric.has(device.id)


def _fastest(devices: Sequence[Device], count: int, topology: Topology) -> tuple[Device, ...]:
    """Return the group whose all-reduce is fastest; () where there is no choice, or the wires are not known."""
    fabric = topology.fabric
    if fabric is None or not 1 < count < len(devices) or not all(_is_wired(device, topology) for device in devices):
        return ()
    from hetero.plan.groups import Terms, best_group

    names = {device.id for device in devices}
    others = tuple(part.id for part in fabric.devices if part.id not in names)
    try:
        group = best_group(fabric, count, terms=Terms(exclude=others)).devices
    except NothingFitsError:
        return ()
    return tuple(device for device in devices if device.id in group)


def _linked(devices: Sequence[Device], count: int, kind: str, topology: Topology) -> tuple[Device, ...]:
    joined = [
        sum(1 << at for at, other in enumerate(devices) if other is not one and _joins(one, other, kind, topology))
        for one in devices
    ]

    def grown(group: list[int], others: int) -> list[int]:
        if len(group) == count:
            return group
        while others and len(group) + others.bit_count() >= count:
            low = others & -others
            others ^= low
            at = low.bit_length() - 1
            if found := grown([*group, at], others & joined[at]):
                return found
        return []

    return tuple(devices[at] for at in grown([], (1 << len(devices)) - 1))


def _joins(one: Device, other: Device, kind: str, topology: Topology) -> bool:
    """Return whether links of that kind, and of no other, lead from one device to another."""
    link = topology.link(one.memory_node, other.memory_node)
    if link is not None and link.kind == kind:
        return True
    fabric = topology.fabric
    if fabric is None or not (_is_wired(one, topology) and _is_wired(other, topology)):
        return False
    if kind == "nvlink":
        return fabric.nvlinked(one.id, other.id)
    try:
        return fabric.path(one.id, other.id).kinds == (kind,)
    except BadValueError:
        return False
