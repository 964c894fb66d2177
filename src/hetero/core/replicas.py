"""Replicas: which data item lies on which memory node, what must travel, what it costs, what may be dropped.

In: items, placements, finished transfers. Out: transfers and frees as commands. It knows bytes, never values.
Small values travel inside messages and are not items here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

import numpy as np

from hetero.core.state import TaskState
from hetero.model.commands import Command, Free, Transfer
from hetero.model.device import HOST_NODE
from hetero.model.topology import Topology
from hetero.plan.policies.base import Floats

__all__ = ["Item", "Replicas", "TransferCosts"]


class Item:
    """One data item: its bytes and its replicas.

    Attributes
    ----------
    valid
        Nodes with a finished replica, in the order of their arrival.
    arriving
        Nodes to which a transfer is under way, with the node that it comes from.
    failed
        Nodes to which a transfer failed; nothing is sent there ahead of its task any more.
    pins
        Per node, how many placed tasks need the replica there.
    producer
        The task that can compute it again, None where it came from outside.
    heirs
        Items that would need this one to be computed again.
    claims
        Tasks that run again and need it for that.
    awaited
        True while it is computed again.
    released
        True when nobody outside holds it; without a replica only its task is remembered, for its heirs.
    """

    __slots__ = (
        "arriving",
        "awaited",
        "claims",
        "failed",
        "heirs",
        "id",
        "nbytes",
        "parents",
        "pins",
        "producer",
        "released",
        "travel",
        "valid",
        "waiters",
    )

    def __init__(self, item: int, nbytes: int, producer: TaskState | None) -> None:
        self.id = item
        self.nbytes = nbytes
        self.valid: list[str] = []
        self.arriving: dict[str, str] = {}
        self.failed: tuple[str, ...] = ()
        self.pins: dict[str, int] = {}
        self.waiters: dict[str, list[TaskState]] = {}
        self.producer = producer
        self.parents: tuple[int, ...] = ()
        self.heirs = 0
        self.claims = 0
        self.awaited = False
        self.released = False
        self.travel: Floats | None = None


class TransferCosts:
    """Seconds between memory nodes.

    Parameters
    ----------
    topology
        The links.
    items
        Every data item by its id; others add to it.
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


AHEAD_FRAC = 0.75
"""Data travel ahead of their tasks only up to this use of a memory node."""


class Replicas:
    """All data items of a run.

    The host's memory node has no hard limit here: the engine falls back to a file mapping when its pool is
    full. Every other node has the capacity that the topology states; a placement reserves what it needs,
    replicas that exist elsewhere too are dropped first, oldest use first, and the last replica of an item is
    copied to the host before it is dropped. Where `next_reads` says when the plan reads an item next, the one
    that is read the latest goes first instead.

    Attributes
    ----------
    costs
        Seconds that items take from node to node.
    next_reads
        Returns, for a node, when which items are read there next; None where nobody plans.
    settled
        Transfers that are over, well or not.
    used, peak
        Bytes by node.
    moved
        Transfers that finished and their bytes, by (from, to).
    """

    def __init__(self, topology: Topology) -> None:
        self._capacity: dict[str, float] = {node.id: float(node.capacity_bytes) for node in topology.nodes}
        self._capacity[HOST_NODE] = inf
        self.least_bytes = min(self._capacity.values())
        self.lost: set[int] = set()
        self.items: dict[int, Item] = {}
        self.costs = TransferCosts(topology, self.items)
        self.used: dict[str, int] = dict.fromkeys(self._capacity, 0)
        self.peak: dict[str, int] = dict.fromkeys(self._capacity, 0)
        self.moved: dict[tuple[str, str], tuple[int, int]] = {}
        self.next_reads: Callable[[str], Mapping[int, float]] | None = None
        self.settled = 0
        self._coming: Counter[str] = Counter()
        self._on: dict[str, dict[int, Item]] = {node: {} for node in self._capacity}

    def capacity(self, node: str) -> float:
        """Return the bytes that a node may hold, inf for the host."""
        return self._capacity.get(node, inf)

    def add(self, item: int, nbytes: int, node: str, producer: TaskState | None) -> list[Command]:
        """Record an item that came to be on a node; returns what must be dropped for it."""
        entry = self.items.get(item)
        if entry is None:
            entry = self.items[item] = Item(item, nbytes, producer)
            if producer is not None and node != HOST_NODE:
                entry.parents = tuple(parent for parent in dict.fromkeys(producer.task.inputs) if parent in self.items)
                for parent in entry.parents:
                    self.items[parent].heirs += 1
        if producer is not None:
            self._unreserve(producer)
        entry.awaited = False
        commands: list[Command] = []
        if node not in entry.valid and node not in entry.arriving:
            if not entry.valid:
                entry.nbytes = nbytes
            if self._lacks(node, entry.nbytes):
                commands = self._make_room(node, entry.nbytes, ())[1]
            self._take(node, entry.nbytes)
            self._keep(entry, node)
        if node == HOST_NODE and entry.parents:
            commands.extend(self._let_go(entry))
        if entry.released:
            commands.extend(self._collect(entry))
        return commands

    def _keep(self, entry: Item, node: str) -> None:
        entry.valid.append(node)
        entry.travel = None
        self._on.setdefault(node, {})[entry.id] = entry

    def _unreserve(self, state: TaskState) -> None:
        """Release what was reserved for a task's own use."""
        if state.reserved_bytes:
            self.used[state.node] -= state.reserved_bytes
            state.reserved_bytes = 0

    def _take(self, node: str, nbytes: int) -> None:
        used = self.used.get(node, 0) + nbytes
        self.used[node] = used
        if used > self.peak.get(node, 0):
            self.peak[node] = used

    def _lacks(self, node: str, nbytes: int) -> bool:
        return self.used.get(node, 0) + nbytes > self.capacity(node)

    def nbytes(self, inputs: Iterable[int]) -> int:
        """Return the bytes of all inputs together."""
        return sum(self.items[item].nbytes for item in dict.fromkeys(inputs) if item in self.items)

    def place(self, state: TaskState, node: str, extra_bytes: int) -> tuple[bool, list[Command]]:
        """Pin a task's inputs on a node and order what must travel.

        Parameters
        ----------
        extra_bytes
            Bytes reserved for the task itself.

        Returns
        -------
        tuple
            False when there is no room for it now, and what to do. `state.missing` counts the inputs under way.
        """
        entries = [self.items[item] for item in dict.fromkeys(state.task.inputs) if item in self.items]
        absent = [entry for entry in entries if node not in entry.valid and node not in entry.arriving]
        needed = extra_bytes + sum(entry.nbytes for entry in absent)
        commands: list[Command] = []
        if self._lacks(node, needed):
            fits, commands = self._make_room(node, needed, state.task.inputs)
            if not fits:
                return False, commands
        commands.extend(self._order(entry, self.costs.cheapest(entry, node)[1], node) for entry in absent)
        state.missing = 0
        for entry in entries:
            entry.pins[node] = entry.pins.get(node, 0) + 1
            if node not in entry.valid:
                state.missing += 1
                entry.waiters.setdefault(node, []).append(state)
        state.reserved_bytes = extra_bytes
        self._take(node, extra_bytes)
        state.node = node
        return True, commands

    def _order(self, entry: Item, src: str, dst: str) -> Transfer:
        """Reserve room for a copy of an item and hold what it is copied from."""
        entry.arriving[dst] = src
        entry.pins[src] = entry.pins.get(src, 0) + 1
        self._coming[dst] += 1
        self._take(dst, entry.nbytes)
        return Transfer(entry.id, src, dst, entry.nbytes)

    def _over(self, entry: Item, dst: str) -> None:
        del entry.arriving[dst]
        self._coming[dst] -= 1
        self.settled += 1

    def fetch(self, inputs: Iterable[int], node: str) -> Transfer | None:
        """Order the first copy that a node lacks of some items; None where none is lacking, or it would be in the way.

        Nothing is dropped for it, a quarter of the node stays free for what running tasks take, and nothing else is on
        its way there: a task that is placed has the right of way.
        """
        if self._coming[node]:
            return None
        entries = (self.items[item] for item in dict.fromkeys(inputs) if item in self.items)
        absent = next((entry for entry in entries if entry.valid and node not in entry.valid), None)
        if absent is None or node in absent.failed:
            return None
        if self.used.get(node, 0) + absent.nbytes > AHEAD_FRAC * self.capacity(node):
            return None
        return self._order(absent, self.costs.cheapest(absent, node)[1], node)

    def _leaving(self, node: str) -> list[Item]:
        """Return what lies on a node, first what is the first to go."""
        held = list(self._on.setdefault(node, {}).values())
        if self.next_reads is None or len(held) < 2:
            return held
        read_s = self.next_reads(node)
        return sorted(held, key=lambda entry: -read_s.get(entry.id, inf))

    def _make_room(self, node: str, needed: int, keep: tuple[int, ...]) -> tuple[bool, list[Command]]:
        commands: list[Command] = []
        held = self._leaving(node)
        for entry in held:
            if not self._lacks(node, needed):
                break
            if entry.pins.get(node) or entry.id in keep or len(entry.valid) < 2:
                continue
            commands.extend(self._drop(entry, node))
        if not self._lacks(node, needed):
            return True, commands
        left = [entry for entry in held if entry.id in self._on[node]]
        return False, commands + self._write_back(left, node, needed, keep)

    def _write_back(self, held: list[Item], node: str, needed: int, keep: tuple[int, ...]) -> list[Command]:
        """Copy as many last replicas to the host as must be dropped, those under way included."""
        commands: list[Command] = []
        short = self.used.get(node, 0) + needed - self.capacity(node)
        for entry in held:
            if short <= 0:
                break
            if entry.arriving.get(HOST_NODE) == node and entry.pins.get(node) == 1:
                short -= entry.nbytes
            elif not entry.pins.get(node) and entry.id not in keep and HOST_NODE not in entry.arriving:
                commands.append(self._order(entry, node, HOST_NODE))
                short -= entry.nbytes
        return commands

    def _drop(self, entry: Item, node: str) -> list[Command]:
        self._strike(entry, node)
        return [Free(entry.id, node)]

    def _strike(self, entry: Item, node: str) -> None:
        entry.valid.remove(node)
        entry.travel = None
        self.used[node] -= entry.nbytes
        del self._on[node][entry.id]

    def unplace(self, state: TaskState) -> list[Command]:
        """Undo a placement: unpin the inputs and give back the reservation."""
        if not state.node:
            return []
        self._unreserve(state)
        node, state.node, state.missing = state.node, "", 0
        commands: list[Command] = []
        for item in dict.fromkeys(state.task.inputs):
            entry = self.items.get(item)
            if entry is None:
                continue
            waiters = entry.waiters.get(node)
            if waiters and state in waiters:
                waiters.remove(state)
            commands.extend(self._unpin(entry, node))
        return commands

    def _unpin(self, entry: Item, node: str) -> list[Command]:
        left = entry.pins.get(node, 0) - 1
        if left > 0:
            entry.pins[node] = left
            return []
        entry.pins.pop(node, None)
        held = self._on.get(node)
        if held is not None and entry.id in held:
            held[entry.id] = held.pop(entry.id)
        return self._collect(entry)

    def arrived(self, item: int, src: str, dst: str) -> tuple[list[TaskState], list[Command]]:
        """Record a finished transfer: who waited for it, and what can be dropped now."""
        entry = self.items.get(item)
        if entry is None or entry.arriving.get(dst) != src:
            return [], [Free(item, dst)] if entry is None else []
        self._over(entry, dst)
        self._keep(entry, dst)
        waiters = entry.waiters.pop(dst, [])
        for state in waiters:
            state.missing -= 1
        commands = self._let_go(entry) if dst == HOST_NODE else []
        return waiters, commands + self._unpin(entry, src)

    def failed(self, item: int, src: str, dst: str) -> tuple[list[TaskState], list[Command]]:
        """Record a transfer that did not happen: who waited for it, and what can be dropped now."""
        entry = self.items.get(item)
        if entry is None or entry.arriving.get(dst) != src:
            return [], []
        self._over(entry, dst)
        entry.failed += (dst,)
        self.used[dst] -= entry.nbytes
        return entry.waiters.pop(dst, []), self._unpin(entry, src)

    def release(self, item: int) -> list[Command]:
        """Record that nobody outside holds an item."""
        entry = self.items.get(item)
        if entry is None:
            return []
        entry.released = True
        return self._collect(entry)

    def _collect(self, entry: Item) -> list[Command]:
        """Drop what nobody needs any more; for the heirs of an item its task is remembered, not its bytes."""
        commands: list[Command] = []
        idle = [entry]
        while idle:
            entry = idle.pop()
            if not entry.released or entry.claims or entry.awaited or entry.pins or entry.arriving:
                continue
            if entry.heirs and entry.producer is None:
                continue
            nodes = list(entry.valid)
            for node in nodes:
                commands.extend(self._drop(entry, node))
            if entry.heirs or self.items.pop(entry.id, None) is None:
                continue
            self.lost.discard(entry.id)
            if not nodes:
                commands.append(Free(entry.id, HOST_NODE))
            idle.extend(self._disown(entry))
        return commands

    def _disown(self, entry: Item) -> list[Item]:
        """Cut an item off its parents; returns them."""
        parents = [self.items[parent] for parent in entry.parents]
        entry.parents = ()
        for parent in parents:
            parent.heirs -= 1
        return parents

    def _let_go(self, entry: Item) -> list[Command]:
        """Record that an item is on the host, and never has to be computed again."""
        return [command for parent in self._disown(entry) for command in self._collect(parent)]

    def holds_more(self, node: str, inputs: tuple[int, ...]) -> bool:
        """Return whether a device's node holds items besides these inputs."""
        return node != HOST_NODE and any(item not in inputs for item in self._on.get(node, ()))

    def evict(self, node: str) -> list[Command]:
        """Drop every replica on a node that nothing pins and that exists elsewhere too."""
        commands: list[Command] = []
        for entry in list(self._on.get(node, {}).values()):
            if node != HOST_NODE and not entry.pins.get(node) and len(entry.valid) > 1:
                commands.extend(self._drop(entry, node))
        return commands

    def claim(self, inputs: Iterable[int]) -> list[Item]:
        """Keep the inputs of a task that runs again; returns those that have no replica left."""
        entries = [self.items[item] for item in dict.fromkeys(inputs) if item in self.items]
        for entry in entries:
            entry.claims += 1
        return [entry for entry in entries if not entry.valid]

    def unclaim(self, inputs: Iterable[int]) -> list[Command]:
        """Record that a task that ran again needs its inputs no more."""
        commands: list[Command] = []
        for item in dict.fromkeys(inputs):
            entry = self.items.get(item)
            if entry is not None:
                entry.claims -= 1
                commands.extend(self._collect(entry))
        return commands

    def give_up(self, item: int) -> list[Command]:
        """Record that a lost item cannot be computed again."""
        entry = self.items.get(item)
        if entry is None:
            return []
        entry.awaited, entry.producer = False, None
        self.lost.add(item)
        return self._let_go(entry) + self._collect(entry)

    def lose(self, node: str) -> tuple[list[Item], list[tuple[int, str, str]]]:
        """Record that a node's content is gone.

        Returns
        -------
        tuple
            Items that have no replica left, and the (item, src, dst) of transfers that broke off.
        """
        broken = [
            (entry.id, src, dst)
            for entry in self.items.values()
            for dst, src in entry.arriving.items()
            if node in (src, dst)
        ]
        orphans: list[Item] = []
        for entry in list(self._on.get(node, {}).values()):
            self._strike(entry, node)
            if not entry.valid:
                orphans.append(entry)
        return orphans, broken
