"""What lies ahead of a running program: its open task graph as arrays, the form in which a policy re-plans it.

In: columns that the core keeps up to date. Out: one frozen view of them. It must not choose anything.
"""

from __future__ import annotations

from math import erfc, exp, log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetero.plan.problem import Floats, Ints

__all__ = ["FINISHED", "RUNNING", "WAITING", "Ahead", "Bytes", "Foreseen", "OpenGraph", "remaining_s"]

Bytes = NDArray[np.uint8]

WAITING, RUNNING, FINISHED = 0, 1, 2
"""Phases of a task here: it may still be placed anywhere; it is bound to a device; it is over."""


class OpenGraph(NamedTuple):
    """The tasks that a program has handed in, an entry a slot, in the order in which they were.

    Attributes
    ----------
    phase
        Shape (n,); WAITING, RUNNING or FINISHED.
    kind
        Shape (n,); row of `seconds` and `kind_bytes`.
    seconds
        Shape (n_kinds, n_devices), s; inf where such a task cannot run.
    kind_bytes
        Shape (n_kinds,); bytes of the result of such a task, as far as known.
    pred_first, pred
        What task t needs is at pred_first[t] .. pred_first[t + 1] - 1; every pred is before t.
    pred_data
        Shape as pred; 1 where the result is read, 0 for an order alone.
    device
        Shape (n,); where a task runs or ran, -1 before.
    nbytes
        Shape (n,); bytes of a result that is there.
    has
        Shape (n, n_nodes); 1 where a replica of the result is.
    node
        Shape (n_devices,); number of each device's memory node.
    latency_s, s_per_byte
        Shape (n_nodes, n_nodes), s and s/byte; 0 on the diagonal.
    """

    phase: Bytes
    kind: Ints
    seconds: Floats
    kind_bytes: Floats
    pred_first: Ints
    pred: Ints
    pred_data: Bytes
    device: Ints
    nbytes: Floats
    has: Bytes
    node: Ints
    latency_s: Floats
    s_per_byte: Floats


class Ahead(NamedTuple):
    """The open part of a task graph, read-only for policies.

    Attributes
    ----------
    graph
        Every slot, those of finished tasks that others read included.
    slot_of
        The slot of a task by its id.
    ids
        Shape (n,); id of the task of each slot.
    open
        Number of tasks that are not over.
    version
        Grows with whatever changes what is open, where it runs or how long it takes.
    table
        Grows when tasks came or an estimate moved, so that ranks have to be taken anew.
    running
        (slot, device index, started_s, predicted_s) of each attempt that was sent, the first of each device first;
        started_s is -1 for one that waits behind another.
    error
        Spread of the logarithm of (measured / estimated seconds) so far.
    upset
        Grows with what no plan foresees: a device that came or went, a task that failed or has to run again.
    """

    graph: OpenGraph
    slot_of: dict[int, int]
    ids: Ints
    open: int
    version: int
    table: int
    running: tuple[tuple[int, int, float, float], ...]
    error: float
    upset: int = 0


class Foreseen(NamedTuple):
    """Where and when a policy means to run what waits: what the core needs to send data ahead and to make room.

    Attributes
    ----------
    device
        Shape (known,), by slot; -1 where it does not say.
    start_s
        Shape (known,), s.
    """

    device: Ints
    start_s: Floats


def remaining_s(predicted_s: float, elapsed_s: float, error: float) -> float:
    """Return how much longer a task is expected to run that has not ended yet.

    Parameters
    ----------
    predicted_s
        > 0, s; the median.
    elapsed_s
        >= 0, s.
    error
        Standard deviation of the logarithm of run times.

    Notes
    -----
    With X lognormal of median w and spread σ, and z = ln(e / w) / σ:
    E[X - e | X > e] = w exp(σ² / 2) Q(z - σ) / Q(z) - e, with Q the upper tail of the normal distribution.
    So a task that is late is expected to stay late, the more so the wilder the times are.

    Examples
    --------
    >>> remaining_s(1.0, 0.25, 0.0), round(remaining_s(1.0, 1.5, 0.3), 2), round(remaining_s(1.0, 1.5, 0.6), 2)
    (0.75, 0.24, 0.75)
    """
    left_s = predicted_s - elapsed_s
    if predicted_s <= 0.0 or elapsed_s <= 0.0:
        return max(left_s, 0.0)
    if error < 0.01:
        return max(left_s, 0.02 * elapsed_s)
    z = log(elapsed_s / predicted_s) / error
    if z > 6.0:
        return elapsed_s * error / z
    upper = erfc((z - error) / sqrt(2.0)) / erfc(z / sqrt(2.0))
    return max(predicted_s * exp(0.5 * error**2) * upper - elapsed_s, 0.0)
