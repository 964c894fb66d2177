"""The fabric: devices, switches, NUMA nodes, network cards, and the wires between them.

In: what a tool, the kernel or a file tells of them. Out: paths, hops and bandwidths between any two. It must not read
anything itself, and a bandwidth that was not read says so in its origin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal, NamedTuple

from hetero.floor.errors import BadValueError, did_you_mean
from hetero.model.device import HOST_NODE
from hetero.model.topology import Link

__all__ = ["PART_KINDS", "SCOPES", "WIRE_KINDS", "Fabric", "FabricPart", "Origin", "Path", "Wire"]

PART_KINDS = ("device", "switch", "numa", "host", "nic", "network")
"""What a part can be; 'host' joins the NUMA nodes of one machine, 'network' the cards of several."""

WIRE_KINDS = ("nvlink", "pcie", "smp", "memory", "network", "other")
"""What a wire can be; 'smp' joins the sockets of one machine, 'memory' a CPU and its NUMA node."""

SCOPES = ("rack", "host", "numa", "pcie", "nvlink")
"""By what devices may have to be together, or apart."""

Origin = Literal["read", "catalog", "declared"]
_RELAYS = ("switch", "numa", "host", "nic", "network")


@dataclass(frozen=True, slots=True)
class FabricPart:
    """One thing that wires end at.

    Attributes
    ----------
    id
        Unique, as in 'h0/cuda:1'.
    kind
        One of `PART_KINDS`.
    name
        What people call it.
    host, rack
        Where it stands, '' where unknown.
    numa
        Its NUMA node, None where unknown.
    pci
        Its PCI address, '' where unknown.
    """

    id: str
    kind: str
    name: str = ""
    host: str = ""
    rack: str = ""
    numa: int | None = None
    pci: str = ""


@dataclass(frozen=True, slots=True)
class Wire:
    """One connection of two parts, the same both ways.

    Attributes
    ----------
    one, other
        Ids of parts.
    kind
        One of `WIRE_KINDS`.
    bytes_per_s
        > 0, one direction, all lanes together.
    latency_s
        Seconds.
    origin
        'read' from the hardware or a file, 'catalog', or 'declared' where it is only the usual figure.
    """

    one: str
    other: str
    kind: str
    bytes_per_s: float
    latency_s: float = 0.0
    origin: Origin = "read"


class Path(NamedTuple):
    """How bytes go from one part to another.

    Attributes
    ----------
    parts
        Ids, both ends among them.
    wires
        One fewer.
    """

    parts: tuple[str, ...]
    wires: tuple[Wire, ...]

    @property
    def hops(self) -> int:
        """The wires that are crossed."""
        return len(self.wires)

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth of the narrowest wire, inf within one part."""
        return min((wire.bytes_per_s for wire in self.wires), default=float("inf"))

    @property
    def latency_s(self) -> float:
        """The latencies of the wires together."""
        return sum(wire.latency_s for wire in self.wires)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of wire that are crossed, each once, in order."""
        return tuple(dict.fromkeys(wire.kind for wire in self.wires))


@dataclass(frozen=True, slots=True)
class Fabric:
    """Parts and wires.

    Notes
    -----
    Bytes take the widest path, and of equally wide ones the one of fewest hops. They pass switches, bridges, NUMA nodes
    and network cards, but no other device.

    Examples
    --------
    >>> gpus = tuple(FabricPart(f"h0/cuda:{n}", "device", host="h0") for n in range(3))
    >>> wires = [Wire("h0/cuda:0", "h0/cuda:1", "nvlink", 50e9)]
    >>> wires += [Wire(gpu.id, "bridge", "pcie", 16e9) for gpu in gpus]
    >>> fabric = Fabric((*gpus, FabricPart("bridge", "switch")), tuple(wires))
    >>> fabric.path("h0/cuda:0", "h0/cuda:1").bytes_per_s, fabric.path("h0/cuda:0", "h0/cuda:2").hops
    (50000000000.0, 2)
    >>> fabric.nvlinked("h0/cuda:0", "h0/cuda:2")
    False
    """

    parts: tuple[FabricPart, ...]
    wires: tuple[Wire, ...] = ()
    _by_id: dict[str, FabricPart] = field(default_factory=dict, repr=False, compare=False)
    _beside: dict[str, list[tuple[str, Wire]]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for part in self.parts:
            if part.id in self._by_id:
                raise BadValueError(f"two parts are called {part.id!r}", remedy="give each its own id")
            self._by_id[part.id] = part
            self._beside[part.id] = []
        for wire in self.wires:
            for end, far in ((wire.one, wire.other), (wire.other, wire.one)):
                self.part(end)
                self._beside[end].append((far, wire))

    @property
    def devices(self) -> tuple[FabricPart, ...]:
        """The parts that compute."""
        return tuple(part for part in self.parts if part.kind == "device")

    def has(self, name: str) -> bool:
        """Return whether a part has that id."""
        return name in self._by_id

    def part(self, name: str) -> FabricPart:
        """Return the part of that id, or of that id without its host where one device alone has it.

        Raises
        ------
        BadValueError
            No part is called so.
        """
        if name in self._by_id:
            return self._by_id[name]
        short = [part for part in self.parts if part.id.partition("/")[2] == name]
        if len(short) == 1:
            return short[0]
        hint = did_you_mean(name, self._by_id).removeprefix("; ")
        remedy = hint or f"known: {', '.join(list(self._by_id)[:12])}"
        raise BadValueError(f"the topology has no part {name!r}", remedy=remedy)

    def path(self, one: str, other: str) -> Path:
        """Return the widest path of fewest hops.

        Raises
        ------
        BadValueError
            A part is unknown, or no wires lead from one to the other.
        """
        start, goal = self.part(one).id, self.part(other).id
        width = self._widths(start).get(goal)
        if width is None:
            raise BadValueError(
                f"no links lead from {start} to {goal}", remedy="name the network between them, or add the links"
            )
        return self._shortest(start, goal, width)

    def _relays(self, name: str, start: str) -> bool:
        return name == start or self._by_id[name].kind in _RELAYS

    def _widths(self, start: str) -> dict[str, float]:
        """Return the bandwidth of the widest path to every part that can be reached."""
        found: dict[str, float] = {}
        heap = [(-float("inf"), start)]
        while heap:
            width, name = heappop(heap)
            if name in found:
                continue
            found[name] = -width
            if self._relays(name, start):
                for far, wire in self._beside[name]:
                    if far not in found:
                        heappush(heap, (max(width, -wire.bytes_per_s), far))
        return found

    def _shortest(self, start: str, goal: str, width: float) -> Path:
        came: dict[str, tuple[str, Wire]] = {}
        queue, seen = deque([start]), {start}
        while queue and goal not in seen:
            name = queue.popleft()
            for far, wire in self._beside[name] if self._relays(name, start) else ():
                if far not in seen and wire.bytes_per_s >= width:
                    seen.add(far)
                    came[far] = (name, wire)
                    queue.append(far)
        parts, wires = [goal], []
        while parts[-1] != start:
            before, wire = came[parts[-1]]
            parts.append(before)
            wires.append(wire)
        return Path(tuple(reversed(parts)), tuple(reversed(wires)))

    def nvlinked(self, one: str, other: str) -> bool:
        """Return whether NVLink alone leads from one to the other, directly or through a switch."""
        start, goal = self.part(one).id, self.part(other).id
        queue, seen = deque([start]), {start}
        while queue:
            name = queue.popleft()
            for far, wire in self._beside[name] if self._relays(name, start) else ():
                if wire.kind == "nvlink" and far not in seen:
                    seen.add(far)
                    queue.append(far)
        return goal in seen

    def bandwidths(self, names: Iterable[str]) -> list[list[float]]:
        """Return bytes/s between any two of these parts, 0 where nothing leads there, and on the diagonal."""
        ids = [self.part(name).id for name in names]
        return [
            [0.0 if one == other else widths.get(other, 0.0) for other in ids]
            for one, widths in ((one, self._widths(one)) for one in ids)
        ]

    def place(self, name: str, scope: str) -> str:
        """Return the rack, host, NUMA node, PCIe bus or NVLink island of a device; '' where it is unknown.

        Parameters
        ----------
        scope
            One of `SCOPES`.

        Examples
        --------
        >>> Fabric((FabricPart("h1/cuda:0", "device", host="h1", numa=1),)).place("h1/cuda:0", "numa")
        'h1/numa:1'
        """
        if scope not in SCOPES:
            hint = did_you_mean(scope, SCOPES).removeprefix("; ")
            raise BadValueError(f"{scope!r} is no scope", remedy=hint or f"allowed: {', '.join(SCOPES)}")
        part = self.part(name)
        if scope in ("rack", "host"):
            return part.rack if scope == "rack" else part.host
        if scope == "numa":
            return "" if part.numa is None else f"{part.host}/numa:{part.numa}"
        if scope == "pcie":
            beside = (far for far, wire in self._beside[part.id] if wire.kind == "pcie")
            return next(beside, "")
        return min((device.id for device in self.devices if self.nvlinked(part.id, device.id)), default="")

    def links(self, node_of: Mapping[str, str] | None = None) -> tuple[Link, ...]:
        """Return directed links between the memories of devices, and to the host's, as the scheduler takes them.

        Parameters
        ----------
        node_of
            Memory node by id of a device; default: the device's own id.
        """
        names = [part.id for part in self.devices]
        nodes = {name: (node_of or {}).get(name, name) for name in names}
        found = []
        for one in names:
            reached = self._widths(one)
            for other in names:
                if one != other and other in reached and nodes[one] != nodes[other]:
                    way = self._shortest(one, other, reached[other])
                    kind = way.kinds[0] if len(way.kinds) == 1 else way.kinds[-1]
                    found.append(Link(nodes[one], nodes[other], way.latency_s, way.bytes_per_s, kind=kind))
        return tuple(link for link in found if HOST_NODE not in (link.src, link.dst))
