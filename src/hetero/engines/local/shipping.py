"""What is with a worker process: attempts that it has not answered for, and functions, so that each travels once.

In: the functions of a batch. Out: what must travel with it: new functions, and the keys of those to forget.
It must not send anything.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import NamedTuple

from hetero.engines.base import Call, Function
from hetero.engines.exceptions import one_line
from hetero.engines.local.arena import Payload
from hetero.engines.local.groups import Group
from hetero.engines.local.wire import as_bytes
from hetero.floor.errors import SerialisationError
from hetero.model.commands import Launch

__all__ = ["FUNCTIONS_KEPT", "Flight", "Shipped", "pack_function"]

FUNCTIONS_KEPT = 512
"""How many functions a worker keeps; the one that was not used for the longest time goes first."""


class Flight(NamedTuple):
    """An attempt that the worker has not answered for."""

    launch: Launch
    call: Call
    holds: tuple[Payload, ...]
    group: Group | None
    rank: int


class Shipped:
    """The functions that one worker has."""

    def __init__(self, counters: Counter[str]) -> None:
        self._keys: OrderedDict[str, None] = OrderedDict()
        self._counters = counters

    def use(self, function: Function, travelling: list[tuple[str, bytes]]) -> str:
        """Note a use; a function that the worker lacks is added to what travels. Gives its key."""
        key = function.key
        if key in self._keys:
            self._keys.move_to_end(key)
        else:
            self._keys[key] = None
            travelling.append((key, function.blob))
            self._counters["functions"] += 1
        return key

    def retire(self, travelling: list[tuple[str, bytes]], needed: set[str]) -> None:
        """Let the worker forget the oldest functions beyond `FUNCTIONS_KEPT`, but none that this batch needs."""
        for key in list(self._keys)[: max(0, len(self._keys) - FUNCTIONS_KEPT)]:
            if key not in needed:
                del self._keys[key]
                travelling.append((key, b""))


def pack_function(function: Function, other_remedy: str = "") -> bytes:
    """Return a function as bytes, which it keeps.

    Raises
    ------
    SerialisationError
        It cannot be pickled.
    """
    if not function.blob:
        try:
            function.blob = as_bytes((function.name, function.default, dict(function.implementations)))
        except Exception as error:
            raise SerialisationError(
                f"the function {function.name!r} cannot travel to a worker: {one_line(error)}",
                remedy=f"create what cannot be pickled inside the function{other_remedy}",
            ) from error
    return function.blob
