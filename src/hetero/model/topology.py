"""Topology: memory nodes and the directed links between them.

In: probed or configured facts. Out: seconds for a transfer. It must not measure anything itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING

from hetero.floor.errors import BadValueError
from hetero.model.device import HOST_NODE

if TYPE_CHECKING:
    from hetero.model.fabric import Fabric

__all__ = ["LINK_KINDS", "Link", "MemoryNode", "Topology"]

LINK_KINDS = ("memory", "pcie", "nvlink", "network", "emulated", "assumed")
"""Kinds of links between memory nodes; 'assumed' where nothing is known of it."""


def _check(what: str, value: object, allowed: str) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not value >= 0 or (not value and "above" in allowed):  # type: ignore[operator]
        raise BadValueError(f"{what} is {value!r}, which is not allowed", remedy=f"give {allowed}")


@dataclass(frozen=True, slots=True)
class MemoryNode:
    """An address space that holds data.

    Attributes
    ----------
    id
        As in 'h0/ram', 'h0/cuda:0'.
    capacity_bytes
        Bytes that hetero may use there.

    Examples
    --------
    >>> import hetero
    >>> hetero.graphs.MemoryNode("h0/ram", 10**9).capacity_bytes
    1000000000
    """

    id: str
    capacity_bytes: int

    def __post_init__(self) -> None:
        _check(f"capacity_bytes of memory node {self.id!r}", self.capacity_bytes, "bytes, 0 or more")


@dataclass(frozen=True, slots=True)
class Link:
    """One directed connection of two memory nodes.

    Attributes
    ----------
    src, dst
        Ids of memory nodes.
    latency_s
        S.
    bandwidth_bytes_per_s
        Bytes/s, one direction.
    bus
        Links with the same bus share its bandwidth; '' for a link of its own.
    kind
        One of `LINK_KINDS`.

    Examples
    --------
    >>> import hetero
    >>> hetero.graphs.Link("ram", "vram", 1e-5, 12e9).kind
    'memory'
    """

    src: str
    dst: str
    latency_s: float
    bandwidth_bytes_per_s: float
    bus: str = ""
    kind: str = "memory"

    def __post_init__(self) -> None:
        of = f"of the link from {self.src!r} to {self.dst!r}"
        _check(f"latency_s {of}", self.latency_s, "seconds, 0 or more")
        _check(f"bandwidth_bytes_per_s {of}", self.bandwidth_bytes_per_s, "bytes/s, above 0")

    def seconds(self, nbytes: int) -> float:
        """Return latency + bytes / bandwidth.

        Examples
        --------
        >>> Link("a", "b", 0.001, 1e9).seconds(1_000_000)
        0.002
        """
        return self.latency_s + nbytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True)
class Topology:
    """All memory nodes and links of a fleet.

    Attributes
    ----------
    nodes, links
        What transfers go between, and over.
    fabric
        Where the devices stand and how they are wired, None where that is unknown.
    elsewhere
        What a hop to or from a node that is not among `nodes` counts as: a host that joined later.

    Notes
    -----
    Between two nodes without a link of their own a transfer goes through the host's memory, and costs
    the sum of both hops.

    Examples
    --------
    >>> import hetero
    >>> topology = hetero.graphs.Topology(links=(hetero.graphs.Link("ram", "vram", 1e-5, 12e9),))
    >>> topology.link("ram", "vram").latency_s
    1e-05
    """

    nodes: tuple[MemoryNode, ...] = ()
    links: tuple[Link, ...] = ()
    fabric: Fabric | None = field(default=None, repr=False, compare=False)
    elsewhere: Link | None = None
    _by_pair: dict[tuple[str, str], Link] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._by_pair.update({(link.src, link.dst): link for link in self.links})

    def link(self, src: str, dst: str) -> Link | None:
        """Return the direct link, or None.

        Examples
        --------
        >>> Topology(links=(Link("a", "b", 1e-5, 1e9),)).link("b", "a") is None
        True
        """
        return self._by_pair.get((src, dst))

    def route(self, src: str, dst: str) -> tuple[Link, ...]:
        """Return the links that a transfer crosses: none, one, or two through the host's memory.

        Examples
        --------
        >>> Topology(links=(Link("a", "h0/ram", 0.0, 1e9), Link("h0/ram", "b", 0.0, 2e9))).route("a", "b")[1].dst
        'b'
        """
        if src == dst:
            return ()
        direct = self._by_pair.get((src, dst))
        if direct is not None:
            return (direct,)
        hops = (self._hop(src, HOST_NODE), self._hop(HOST_NODE, dst))
        return tuple(hop for hop in hops if hop is not None)

    def _hop(self, src: str, dst: str) -> Link | None:
        known = self._by_pair.get((src, dst))
        if known is None and self.elsewhere is not None and src != dst:
            named = {HOST_NODE, *[node.id for node in self.nodes]}
            return None if {src, dst} <= named else self.elsewhere
        return known

    def seconds(self, nbytes: int, src: str, dst: str) -> float:
        """Return the seconds that a transfer takes on idle links.

        Examples
        --------
        >>> Topology((), (Link("a", "b", 0.0, 1e6),)).seconds(500_000, "a", "b")
        0.5
        """
        return sum(link.seconds(nbytes) for link in self.route(src, dst))

    def extended(self, nodes: Iterable[MemoryNode], links: Iterable[Link]) -> Topology:
        """Return a topology with further nodes and links.

        Examples
        --------
        >>> Topology().extended([MemoryNode("h1/ram", 10**9)], []).nodes[0].id
        'h1/ram'
        """
        return Topology((*self.nodes, *nodes), (*self.links, *links), self.fabric, self.elsewhere)
