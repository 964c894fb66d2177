"""Attempts on their way to an actor, and which of them travel together.

In: attempts that wait. Out: the next call's. It must not send anything.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from hetero.engines.base import Call
from hetero.engines.local.groups import Group
from hetero.model.commands import Launch

__all__ = ["Flight", "next_batch"]

SHORT_S = 2e-3
"""Attempts that are expected to be shorter than this share a call."""
BATCH_S = 10e-3
BATCH = 500


class Flight(NamedTuple):
    """An attempt that has not been answered for."""

    seq: int
    launch: Launch
    call: Call
    group: Group | None
    rank: int
    peers: tuple[Any, ...]


def next_batch(waiting: deque[Flight]) -> list[Flight]:
    """Take one attempt, or several that are short: the first to finish waits for the last."""
    batch = [waiting.popleft()]
    total_s = batch[0].launch.predicted_s
    while waiting and len(batch) < BATCH and _short(batch[-1]) and _short(waiting[0]):
        total_s += waiting[0].launch.predicted_s
        if total_s > BATCH_S:
            break
        batch.append(waiting.popleft())
    return batch


def _short(flight: Flight) -> bool:
    return flight.group is None and 0.0 < flight.launch.predicted_s <= SHORT_S
