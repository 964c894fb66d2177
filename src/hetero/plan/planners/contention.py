"""Who shares which link: the paths of data items over channels, as arrays for the planners' inner loops.

In: a `TaskGraph` and its `Problem`. Out: `Channels`, and list schedules whose transfers wait for one another.
It must not search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hetero.model.graph import TaskGraph
from hetero.model.topology import Link
from hetero.plan.problem import Floats, Ints, Moves, Problem, Routes, Timeline, paths_from

__all__ = ["Channels", "channels_of", "contended_schedule", "least_transfers"]

_NO_TABLE = np.empty((0, 0))


class Channels(NamedTuple):
    """The data items of a graph, and the paths that they take.

    Attributes
    ----------
    nodes
        Ids of the memory nodes, those with devices first, numbered as in `Problem.node`.
    item_task, item_bytes
        Which task makes each item, and its size.
    pred_item
        For each edge of `Problem.pred` the item that it carries, -1 for none.
    hop_first
        The hops from node i to j are at hop_first[i * n_nodes + j] .. hop_first[i * n_nodes + j + 1] - 1.
    hop_src, hop_dst, hop_channel
        Of each hop; links of one bus have one channel.
    hop_latency_s, hop_s_per_byte
        Seconds and s/byte of each hop.

    Notes
    -----
    A data item is what one task makes with one number of bytes: edges out of a task that have as many bytes carry
    the same item, and it is copied to a memory node once. A channel carries one transfer at a time, at full
    bandwidth; the hops of a path follow one another.
    """

    nodes: tuple[str, ...]
    item_task: Ints
    item_bytes: Floats
    pred_item: Ints
    hop_first: Ints
    hop_src: Ints
    hop_dst: Ints
    hop_channel: Ints
    hop_latency_s: Floats
    hop_s_per_byte: Floats

    @property
    def arrays(self) -> Routes:
        """What the inner loop takes."""
        return Routes(len(self.nodes), int(self.hop_channel.max(initial=-1)) + 1, *self[1:])


def channels_of(graph: TaskGraph, p: Problem) -> Channels:
    """Write the data items and paths of a graph as arrays."""
    with_devices = sorted({device.memory_node for device in graph.devices})
    nodes = (*with_devices, *(node.id for node in graph.topology.nodes if node.id not in set(with_devices)))
    hops: list[Link] = []
    first = [0]
    for src in nodes:
        paths = paths_from(graph.topology, src)
        for dst in nodes:
            hops += paths.get(dst, ())
            first.append(len(hops))
    carries = p.pred_bytes > 0.0
    keys = np.stack([p.pred.astype(np.float64), p.pred_bytes], axis=1)[carries]
    found, number = np.unique(keys, axis=0, return_inverse=True)
    pred_item = np.full(len(p.pred), -1, dtype=np.int64)
    pred_item[carries] = number.reshape(-1)
    return Channels(
        nodes,
        found[:, 0].astype(np.int64),
        np.ascontiguousarray(found[:, 1]),
        pred_item,
        np.array(first, dtype=np.int64),
        _whole([nodes.index(link.src) for link in hops]),
        _whole([nodes.index(link.dst) for link in hops]),
        _whole(_numbers([("bus", link.bus) if link.bus else (link.src, link.dst) for link in hops])),
        np.array([link.latency_s for link in hops], dtype=np.float64),
        np.array([1.0 / link.bandwidth_bytes_per_s for link in hops], dtype=np.float64),
    )


def _whole(numbers: Sequence[int]) -> Ints:
    return np.array(numbers, dtype=np.int64)


def _numbers(names: Sequence[tuple[str, str]]) -> list[int]:
    number = {name: index for index, name in enumerate(dict.fromkeys(names))}
    return [number[name] for name in names]


def contended_schedule(
    p: Problem,
    c: Channels,
    order: Ints,
    pinned: Ints | None = None,
    ahead_s: Floats | None = None,
    cluster: Ints | None = None,
) -> tuple[Timeline, Moves]:
    """Place the tasks in an order, each on the device where it ends first, transfers waiting for one another.

    Parameters
    ----------
    order, pinned, ahead_s
        As in `hetero.plan.planners.list_scheduling.list_schedule`.
    cluster
        Shape (n_tasks,); tasks of one number >= 0 take the device of the first of them, where they can run there.

    Notes
    -----
    List scheduling with insertion, in which channels have idle gaps as devices have: when a task is placed, the
    items that its memory node lacks are sent, the one that was made first at first, each hop in the first idle gap
    of its channel. While devices are compared, the inputs of the task itself do not wait for one another.

    References
    ----------
    O. Sinnen, L. A. Sousa, "Communication contention in task scheduling", IEEE TPDS 16 (2005), 503-515: edges are
    scheduled on links as tasks are on processors.
    """
    from hetero.plan.planners.contention_kernels import contended, state_of

    routes = c.arrays
    state = state_of(p, routes)
    most = len(c.pred_item) * int(np.diff(c.hop_first).max(initial=0))
    moves = Moves(np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64), np.empty(most), np.empty(most))
    free = np.full(len(order), -1, dtype=np.int64)
    count = contended(
        p,
        routes,
        order,
        free if pinned is None else pinned,
        free if cluster is None else cluster,
        _NO_TABLE if ahead_s is None else ahead_s,
        state,
        moves,
    )
    item, hop, start_s, finish_s = moves
    sent = Moves(item[:count].copy(), hop[:count].copy(), start_s[:count].copy(), finish_s[:count].copy())
    return Timeline(state.device, state.start_s, state.finish_s), sent


def least_transfers(p: Problem, c: Channels) -> Problem:
    """Return the problem with, between memory nodes, the least latency and seconds a byte that any path could have.

    Notes
    -----
    A copy that was put elsewhere, also on a memory node without devices, may come back faster than over the path of the
    fewest links; a bound must hold for that too. It is the same problem wherever the direct link is the best path.
    """
    size, with_devices = len(c.nodes), len(p.latency_s)
    latency_s, s_per_byte = np.full((size, size), np.inf), np.full((size, size), np.inf)
    latency_s[c.hop_src, c.hop_dst], s_per_byte[c.hop_src, c.hop_dst] = c.hop_latency_s, c.hop_s_per_byte
    np.fill_diagonal(latency_s, 0.0)
    np.fill_diagonal(s_per_byte, 0.0)
    for middle in range(size):
        np.minimum(latency_s, latency_s[:, middle, None] + latency_s[None, middle], out=latency_s)
        np.minimum(s_per_byte, s_per_byte[:, middle, None] + s_per_byte[None, middle], out=s_per_byte)
    latency_s[~np.isfinite(latency_s)] = s_per_byte[~np.isfinite(s_per_byte)] = 0.0
    return p._replace(
        latency_s=np.minimum(latency_s[:with_devices, :with_devices], p.latency_s),
        s_per_byte=np.minimum(s_per_byte[:with_devices, :with_devices], p.s_per_byte),
    )
