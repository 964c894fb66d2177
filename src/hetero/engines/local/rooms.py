"""Room in shared memory that one worker was lent for what it sends: asked for, or given along with an attempt.

In: sizes. Out: places, and payloads once the worker has filled them. It must not talk to the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hetero.engines.local.arena import Arena, Block, Payload, claim
from hetero.engines.local.wire import Place, Wire
from hetero.floor.errors import EngineError

__all__ = ["Rooms"]

AHEAD = 2
"""Attempts that have room at a time before they ask: the one that runs, and the one that waits behind it."""

FUNCTIONS = 512
"""Functions whose results are remembered."""


class Rooms:
    """What one worker was lent, by the number of an attempt or of a copy.

    Parameters
    ----------
    arena : where the room is taken from
    announce : called with what was lent, before the worker hears of it

    Notes
    -----
    An attempt is given room for a result like the last one of its function, so that it need not ask and wait when
    it has ended. Such room is taken only while half of the pool stays free; what it does not use goes back with it.
    """

    def __init__(self, arena: Arena, announce: Callable[[Payload], None]) -> None:
        self._arena = arena
        self._announce = announce
        self._lent: dict[int, dict[Place, Block]] = {}
        self._took: dict[str, Sequence[int]] = {}

    def lend(self, lease: int, sizes: Sequence[int], function: str = "") -> list[Place] | str:
        """Lend room for buffers of these sizes; returns what stands in the way where there is none.

        Parameters
        ----------
        function : key of the function whose result it is for, '' for something else
        """
        try:
            blocks = [self._arena.take(nbytes) for nbytes in sizes]
        except EngineError as error:
            return str(error)
        if function:
            if len(self._took) >= FUNCTIONS:
                self._took.clear()
            self._took[function] = sizes
        return self._note(lease, blocks)

    def lend_ahead(self, lease: int, function: str) -> list[Place]:
        """Lend an attempt room for a result like the last one; returns no places where there was none, or no room."""
        sizes = self._took.get(function, ())
        if not sizes or len(self._lent) >= AHEAD:
            return []
        blocks = [self._arena.spare(nbytes) for nbytes in sizes]
        granted = [block for block in blocks if block is not None]
        return self._note(lease, granted) if len(granted) == len(sizes) else []

    def _note(self, lease: int, blocks: Sequence[Block]) -> list[Place]:
        self._announce(Payload(b"", tuple(blocks)))
        self._lent.setdefault(lease, {}).update({block.place: block for block in blocks})
        return [block.place for block in blocks]

    def filled(self, lease: int, wire: Wire) -> Payload:
        """Return what a worker sent while it goes on: the room that it filled is lent no more."""
        return claim(wire, self._lent[lease]) if wire.places else Payload(wire.body)

    def close(self, lease: int, wire: Wire | None = None, function: str = "") -> Payload | None:
        """Take back what was lent; returns what the worker sent at the end, if it did."""
        lent = self._lent.pop(lease, {})
        if wire is None:
            return None
        payload = claim(wire, lent) if lent else Payload(wire.body)
        if lent:
            self._took.pop(function, None)
        return payload

    def clear(self) -> None:
        """Take back everything."""
        self._lent.clear()
