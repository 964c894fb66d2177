"""What the answers of an actor mean: events, and results that are kept where they lie.

In: rows of a seat. Out: events; items that wait for being committed. It must not send anything.
"""

from __future__ import annotations

from typing import Any

from hetero.engines.local import messages as say
from hetero.engines.local.house import failure_of
from hetero.engines.local.items import Holder, Item, Replica
from hetero.engines.ray.flights import Flight
from hetero.engines.ray.lodge import Lodge
from hetero.engines.ray.vault import Stored
from hetero.model.events import Event, TaskFailed, TaskFinished, TaskWithdrawn
from hetero.model.notes import Times
from hetero.model.tasks import Failure

__all__ = ["Answers"]


class Answers:
    """The answers of one actor.

    Parameters
    ----------
    holder : whose results these are

    Attributes
    ----------
    shift_s : the clock of the actor's host minus the run's, s
    """

    def __init__(self, lodge: Lodge, holder: Holder) -> None:
        self.shift_s = 0.0
        self._lodge = lodge
        self._holder = holder

    def event(
        self, flight: Flight, data: Any, started_s: float, parts: tuple[float, ...], how: int, *rest: Any
    ) -> Event:
        """Return the event of a row, and keep its result; `data` stands for the large buffers of the whole call."""
        task, attempt, device = flight.launch.task, flight.launch.attempt, self._holder.device
        now_s = self._lodge.clock.now_s()
        started_s, times = started_s - self.shift_s if parts else now_s, Times(*parts)
        seconds = times.seconds
        if parts:
            self._lodge.tell_parts(task, attempt, device.id, started_s, times)
        if how == say.VALUE:
            nbytes = self._keep(flight, data, *rest)
            node = f"{device.host}/ram" if nbytes else ""
            return TaskFinished(now_s, task, attempt, device.id, started_s, seconds, nbytes, node)
        if how == say.RESIDENT:
            nbytes = self._resident(flight, rest[0])
            return TaskFinished(now_s, task, attempt, device.id, started_s, seconds, nbytes, device.memory_node)
        if how == say.WITHDRAWN:
            return TaskWithdrawn(now_s, task, attempt, device.id)
        failure = failure_of(*rest) if how == say.FAILED else Failure("cancelled", "cancelled before it started")
        return TaskFailed(now_s, task, attempt, device.id, started_s, seconds, failure)

    def _keep(self, flight: Flight, data: Any, body: bytes | None, first: int, sizes: tuple[int, ...]) -> int:
        if flight.rank:
            return 0
        vault, launch = self._lodge.vault, flight.launch
        parts = [vault.part(data, first + place, size) for place, size in enumerate(sizes)]
        self._lodge.items.finished(launch.task, launch.attempt, Item(Stored(body, parts)))
        return sum(sizes)

    def _resident(self, flight: Flight, nbytes: int) -> int:
        key = (flight.launch.task, flight.launch.attempt)
        if flight.rank:
            self._holder.drop(key)
            return 0
        self._lodge.items.finished(*key, Item(replica=Replica(self._holder, key, nbytes)))
        return nbytes
