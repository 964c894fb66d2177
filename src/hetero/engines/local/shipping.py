"""Which functions a worker process has, so that each travels once.

In: the functions of a batch. Out: what must travel with it: new functions, and the keys of those to forget.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from hetero.engines.base import Function

__all__ = ["FUNCTIONS_KEPT", "Shipped"]

FUNCTIONS_KEPT = 512
"""How many functions a worker keeps; the one that was not used for the longest time goes first."""


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
