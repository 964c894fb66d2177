"""What a worker process hears as a member of groups: values from the others on their way to it.

In: values, whole or in pieces, and news of members that left. Out: messages to the worker. It must not decide
who hears what: the group does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero.engines.local import messages as say
from hetero.engines.local.arena import Payload
from hetero.engines.local.house import House
from hetero.engines.local.pieces import Piece, Whole, cut
from hetero.engines.local.wire import Place

__all__ = ["Talking"]


class Talking:
    """Passes on to one worker what the groups tell it.

    Parameters
    ----------
    house : the engine
    send : sends the worker a message
    announce : called with what lies in shared memory, before the worker hears of it
    """

    def __init__(
        self, house: House, send: Callable[[tuple[Any, ...]], None], announce: Callable[[Payload], None]
    ) -> None:
        self._house = house
        self._send = send
        self._announce = announce
        self._attempts: dict[int, int] = {}
        self._said: dict[Place, tuple[int, Payload]] = {}

    def join(self, task: int, seq: int) -> None:
        """Record that an attempt of the worker is a member of a group task."""
        self._attempts[task] = seq

    def leave(self, task: int, seq: int) -> None:
        """Record that it has ended: what it has not heard yet, it never will."""
        self._attempts.pop(task, None)
        self._said = {place: said for place, said in self._said.items() if said[0] != seq}

    def hear(self, task: int, sender: int, content: Any) -> None:
        """Pass on a value from another member."""
        seq = self._attempts.get(task)
        if seq is None:
            return
        for piece in cut(content.value, self._house.talk.piece_bytes) if isinstance(content, Whole) else (content,):
            self._send((say.SAY, seq, sender, self._placed(seq, piece)))

    def _placed(self, seq: int, piece: Piece) -> tuple[Any, ...]:
        """Return a piece as it travels to the worker: its data in the pool, kept until they were heard, or as bytes."""
        counters, data = self._house.counters, piece.data
        counters["pieces"] += 1
        if isinstance(data, memoryview):
            data = Payload(b"", (self._house.arena.keep(data),)) if self._house.talk.pooled else bytes(data)
        if isinstance(data, Payload):
            counters["pieces_in_pool"] += 1
            place = data.blocks[0].place
            self._said[place] = (seq, data)
            self._announce(data)
            data = tuple(place)
        return tuple(piece._replace(data=data))

    def heard(self, place: Place) -> None:
        """Record that the worker has copied what lay there."""
        self._said.pop(place, None)

    def hear_left(self, task: int, sender: int, reason: str) -> None:
        """Pass on that another member has ended."""
        seq = self._attempts.get(task)
        if seq is not None:
            self._send((say.LEFT, seq, sender, reason))

    def clear(self) -> None:
        """Release everything: the worker is gone."""
        self._said.clear()
