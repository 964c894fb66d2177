"""Starts of the search where transfers are dear: clusters of tasks on one device each, and parts of the fleet alone.

In: a `Problem`. Out: devices of tasks, and groups of devices that are worth a schedule of their own. It must not
search.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hetero.plan.planners.ranks import by_rank, mean_transfer, upward_rank, work
from hetero.plan.problem import Floats, Ints, Problem

__all__ = ["clusterings", "held_to", "parts_of_fleet"]

Bools = NDArray[np.bool_]

_ZEROING_STEPS = 2_000_000
"""Edge zeroing looks at all tasks and edges for each edge; it takes so many steps at most, for the dearest edges."""

_PATH_STEPS = 20_000_000
_WEIGHTS = (1.0, 0.25)
_OVER = ("fastest", "mean")


def clusterings(p: Problem, parts: list[Bools]) -> Iterator[tuple[str, Ints]]:
    """Yield the name of a clustering, and a device for each task.

    Parameters
    ----------
    parts
        Groups of devices; each mapping is made for all devices, and for each group.

    Notes
    -----
    Clusters are made as if there were a device for each: by linear clustering, edge zeroing and dominant sequences.
    Then they are mapped, the one with the most work first, to the device on which its load and the transfers to the
    clusters that are mapped already are least.

    References
    ----------
    S. J. Kim, J. C. Browne, "A general approach to mapping of parallel computations upon multiprocessor
    architectures", ICPP 1988; V. Sarkar, "Partitioning and scheduling parallel programs for multiprocessors", 1989;
    T. Yang, A. Gerasoulis, "DSC: scheduling parallel tasks on an unbounded number of processors", IEEE TPDS 5 (1994),
    951-967, of which the order is kept fixed here.
    """
    from hetero.plan.graph_search.contended_kernels import mapped

    source = np.repeat(np.arange(len(p.order)), np.diff(p.succ_first))
    everywhere = np.ones(len(p.node), dtype=np.bool_)
    for name, cluster in _clusters(p, source):
        for part in (everywhere, *parts):
            for weight in _WEIGHTS:
                yield name, mapped(p, cluster, source, weight, part.astype(np.int64))


def _clusters(p: Problem, source: Ints) -> Iterator[tuple[str, Ints]]:
    from hetero.plan.graph_search.contended_kernels import by_dominant_sequence, by_edge_zeroing, by_paths

    latency_s, s_per_byte = mean_transfer(p)
    travel_s = np.where(p.succ_bytes > 0.0, latency_s + p.succ_bytes * s_per_byte, 0.0)
    n, edges = len(p.order), len(p.succ)
    for over in _OVER:
        work_s = work(p, over)
        order = by_rank(p, upward_rank(p, over))
        yield "dominant sequences", by_dominant_sequence(p, order, work_s, travel_s, source)
        if n * (n + edges) <= _PATH_STEPS:
            yield "linear clustering", by_paths(p, work_s, travel_s)
        dearest = np.argsort(-travel_s, kind="stable")[: _ZEROING_STEPS // (n + edges)]
        yield "edge zeroing", by_edge_zeroing(p, order, work_s, travel_s, dearest, source)


def parts_of_fleet(p: Problem, hosts: Ints) -> tuple[list[Bools], list[Bools]]:
    """Return the devices of each host, and other groups: of the fastest memory nodes, and of those near one another.

    Parameters
    ----------
    hosts
        Shape (n_nodes,); the number of the host of each memory node.

    Notes
    -----
    Memory nodes are near when a transfer of the mean size takes little: nodes are joined, the nearest first, and each
    group that comes about is one. A group that holds all devices, or one memory node alone, is left out.
    """
    seen: set[bytes] = {np.ones(len(p.node), dtype=np.bool_).tobytes()}
    seen |= {(p.node == node).tobytes() for node in range(len(p.latency_s))}

    def new(groups: Iterator[Bools]) -> list[Bools]:
        found = []
        for group in groups:
            if group.any() and group.tobytes() not in seen:
                seen.add(group.tobytes())
                found.append(group)
        return found

    own = new(hosts[p.node] == host for host in np.unique(hosts))
    return own, new(_near(p)) + new(_fastest(p))


def _near(p: Problem) -> Iterator[Bools]:
    sizes = p.pred_bytes[p.pred_bytes > 0.0]
    travel_s = p.latency_s + (float(sizes.mean()) if len(sizes) else 0.0) * p.s_per_byte
    apart_s = np.maximum(travel_s, travel_s.T)
    group = np.arange(len(apart_s))
    rows, columns = np.triu_indices(len(apart_s), 1)
    for at in np.argsort(apart_s[rows, columns], kind="stable"):
        one, other = group[rows[at]], group[columns[at]]
        if one != other:
            group[group == other] = one
            yield (group == one)[p.node]


def _fastest(p: Problem) -> Iterator[Bools]:
    """Yield the fastest devices and memory nodes: two, three, four, six, and so on."""
    speed = np.where(np.isfinite(p.seconds), 1.0 / np.maximum(p.seconds, 1e-300), 0.0).sum(axis=0)
    of_node = np.bincount(p.node, weights=speed, minlength=len(p.latency_s))
    devices, nodes = np.argsort(-speed, kind="stable"), np.argsort(-of_node, kind="stable")
    for many in (2, 3, 4, 6, 8, 12, 16):
        if many < len(devices):
            yield np.isin(np.arange(len(devices)), devices[:many])
        if many < len(nodes):
            yield np.isin(p.node, nodes[:many])


def held_to(p: Problem, part: Bools) -> Floats:
    """Return the seconds of the tasks with only some devices; a task that none of them can run keeps what it has."""
    runs = np.isfinite(p.seconds[:, part]).any(axis=1, keepdims=True)
    held: Floats = np.where(runs & ~part[None, :], np.inf, p.seconds)
    return held
