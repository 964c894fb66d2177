"""The ways of data: how long items take from where they are to where they would be read.

In: a topology, the memory node of each device, items. Out: seconds, as columns with an entry a device.
It must not change an item, but for the column that it keeps there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

import numpy as np

from hetero.core.items import Item
from hetero.model.device import HOST_NODE
from hetero.model.topology import Topology
from hetero.plan.policies.base import Floats

__all__ = ["Ways"]


class Ways:
    """Seconds between memory nodes.

    Parameters
    ----------
    topology : the links
    items : every data item by its id; others add to it
    """

    def __init__(self, topology: Topology, items: Mapping[int, Item]) -> None:
        self._topology = topology
        self._items = items
        self._columns: Sequence[str] = ()
        self._links: dict[tuple[str, str], tuple[Floats, Floats]] = {}

    def spread(self, nodes: Sequence[str]) -> None:
        """Record that the memory node of each device is one of these now, in the order of the columns."""
        self._columns = nodes
        self._links.clear()

    def arrivals(self, inputs: Iterable[int]) -> Floats | None:
        """Return the seconds until all inputs would be at each device, one after the other; None without inputs.

        The array is shared: it must not be changed.
        """
        total: Floats | None = None
        for item in dict.fromkeys(inputs):
            entry = self._items.get(item)
            if entry is not None:
                travel = entry.travel
                if travel is None or len(travel) != len(self._columns):
                    travel = entry.travel = self._travel(entry)
                total = travel if total is None else total + travel
        return total

    def _travel(self, entry: Item) -> Floats:
        """Return the seconds from the nearest replica to each device."""
        best: Floats = np.full(len(self._columns), inf if entry.valid else 0.0)
        for src in entry.valid:
            latency_s, per_byte_s = self.links_from(src)
            np.minimum(best, latency_s + entry.nbytes * per_byte_s, out=best)
        return best

    def links(self, nodes: Sequence[str]) -> tuple[Floats, Floats]:
        """Return latency and seconds per byte from each of some nodes to each: shape (n_nodes, n_nodes)."""
        latency_s, per_byte_s = self._measured([(src, dst) for src in nodes for dst in nodes])
        return latency_s.reshape(len(nodes), -1), per_byte_s.reshape(len(nodes), -1)

    def links_from(self, src: str) -> tuple[Floats, Floats]:
        """Return latency and seconds per byte from a node to each device."""
        links = self._links.get(("from", src))
        if links is None:
            links = self._links["from", src] = self._measured([(src, node) for node in self._columns])
        return links

    def links_to(self, dst: str) -> tuple[Floats, Floats]:
        """Return latency and seconds per byte from each device to a node."""
        links = self._links.get(("to", dst))
        if links is None:
            links = self._links["to", dst] = self._measured([(node, dst) for node in self._columns])
        return links

    def _measured(self, pairs: list[tuple[str, str]]) -> tuple[Floats, Floats]:
        much = 1 << 30
        seconds = self._topology.seconds
        known = {pair: (seconds(0, *pair), seconds(much, *pair)) for pair in dict.fromkeys(pairs)}
        latency_s, total_s = np.array([known[pair] for pair in pairs]).reshape(-1, 2).T
        return latency_s, (total_s - latency_s) / much

    def cheapest(self, entry: Item, node: str) -> tuple[float, str]:
        """Return the seconds from the nearest replica of an item to a node, and where that replica is."""
        seconds = self._topology.seconds
        return min(((seconds(entry.nbytes, src, node), src) for src in entry.valid), default=(0.0, HOST_NODE))
