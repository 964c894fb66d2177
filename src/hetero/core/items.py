"""Data items: the bytes, the replicas and the origin of one named value.

In: what the replicas' bookkeeping writes. Out: the same. It must not change itself: `core.memory` does.
"""

from __future__ import annotations

from hetero.core.state import TaskState
from hetero.plan.policies.base import Floats

__all__ = ["Item"]


class Item:
    """One data item: its bytes and its replicas.

    Attributes
    ----------
    valid : nodes with a finished replica, in the order of their arrival
    arriving : nodes to which a transfer is under way, with the node that it comes from
    failed : nodes to which a transfer failed; nothing is sent there ahead of its task any more
    pins : per node, how many placed tasks need the replica there
    producer : the task that can compute it again, None where it came from outside
    heirs : items that would need this one to be computed again
    claims : tasks that run again and need it for that
    awaited : True while it is computed again
    released : True when nobody outside holds it; without a replica only its task is remembered, for its heirs
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
