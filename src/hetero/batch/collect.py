"""Sinks that end with the process: results collected in memory, or handed to a function.

In: parts. Out: the joined results, or calls. It must not write files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero.batch.base import Found, Job, Part, Sink
from hetero.batch.records import joined

__all__ = ["CallSink", "CollectSink"]


class CollectSink(Sink):
    """Keeps all results and gives them joined: a list of lists, an array of arrays, a table of tables."""

    def __init__(self) -> None:
        self._parts: dict[int, list[Any]] = {}

    def open(self, job: Job, found: Found) -> dict[int, int]:
        """Prepare; nothing is there before."""
        return {}

    def write(self, part: Part) -> None:
        """Keep a part."""
        self._parts[part.number] = list(part.results)

    def close(self) -> Any:
        """Return the results in the order of the items; an empty list where there are none."""
        results = [result for number in sorted(self._parts) for result in self._parts[number]]
        return joined(results) if results else []


class CallSink(Sink):
    """Hands the results of each part to a function.

    Parameters
    ----------
    function : of the results of some consecutive items, joined
    part_bytes : how much of the source one call is about
    """

    def __init__(self, function: Callable[[Any], object], part_bytes: int = 1 << 20) -> None:
        self._function = function
        self.part_bytes = part_bytes

    def open(self, job: Job, found: Found) -> dict[int, int]:
        """Prepare; what the function did in an earlier run is not known."""
        return {}

    def write(self, part: Part) -> None:
        """Call the function."""
        if part.results:
            self._function(joined(list(part.results)))

    def close(self) -> None:
        """Finish; there is nothing to give."""
