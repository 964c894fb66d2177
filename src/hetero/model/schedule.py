"""Schedules: which task runs on which device, from when to when, and how far from the best possible that is.

In: what a planner found, or a file. Out: frozen values. It must not judge whether a schedule is sound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Evicted", "Placed", "Schedule", "Sent"]


class Placed(NamedTuple):
    """One task's place in a schedule.

    Attributes
    ----------
    task, device
        Ids.
    start_s, finish_s
        Seconds since the start of the schedule.
    """

    task: str
    device: str
    start_s: float
    finish_s: float


class Sent(NamedTuple):
    """One transfer of a data item over one link.

    Attributes
    ----------
    task
        Id of the task that made the item.
    nbytes
        > 0.
    src, dst
        Ids of memory nodes that a link joins.
    start_s, finish_s
        Seconds since the start of the schedule.
    """

    task: str
    nbytes: int
    src: str
    dst: str
    start_s: float
    finish_s: float


class Evicted(NamedTuple):
    """A data item that leaves a memory node before its last use there; a later transfer or repeat brings it back.

    Attributes
    ----------
    task
        Id of the task that made the item.
    nbytes
        > 0.
    node
        Id of the memory node.
    at_s
        Seconds since the start of the schedule.
    """

    task: str
    nbytes: int
    node: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """The placements of a graph's tasks with start and finish.

    Attributes
    ----------
    placements
        By start, then in the order of the graph's tasks.
    makespan_s
        Seconds, the last finish.
    lower_bound_s
        Seconds, below which no schedule of this graph can be.
    policy
        By which rule it was found.
    model
        'contention', where transfers share links and memory nodes have capacities, or 'free'.
    transfers
        By start; none under the model 'free', where each edge has its own.
    evictions
        By time.
    repeats
        Further attempts of tasks, by start: they make again what was dropped to make room.
    """

    placements: tuple[Placed, ...]
    makespan_s: float
    lower_bound_s: float
    policy: str
    model: str = "free"
    transfers: tuple[Sent, ...] = ()
    evictions: tuple[Evicted, ...] = ()
    repeats: tuple[Placed, ...] = ()

    @property
    def gap_frac(self) -> float:
        """The most by which the makespan can be above the best possible, as a share of the best possible.

        Examples
        --------
        >>> Schedule((), 1.5, 1.2, "heft").gap_frac
        0.25
        """
        if self.makespan_s <= self.lower_bound_s:
            return 0.0
        return self.makespan_s / self.lower_bound_s - 1.0 if self.lower_bound_s > 0.0 else float("inf")

    @property
    def is_optimal(self) -> bool:
        """Return whether the bound proves that no schedule is shorter by more than a millionth."""
        return self.gap_frac <= 1e-6
