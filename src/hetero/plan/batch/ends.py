"""What is left in the middle, when devices work on it from both ends, and which batches stand beside it.

In: the items that nobody has yet, the batches that devices work on. Out: tickets, in the order of the items.
It must not know who works on a batch, nor decide which is late.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Span", "beside"]


class Span(NamedTuple):
    """Items that follow one another.

    Attributes
    ----------
    begin, end : number of the first one, and of the one after the last
    """

    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


def beside(left: Span, works: Mapping[int, Span]) -> tuple[int, ...]:
    """Return the tickets of the batches that touch what is left, or one another, on either side; the nearest first.

    Parameters
    ----------
    works : items of the batches that are not done, by ticket

    Examples
    --------
    >>> beside(Span(10, 20), {1: Span(8, 10), 2: Span(20, 24), 3: Span(24, 30), 4: Span(0, 7)})
    (2, 3, 1)
    """
    after = {span.begin: ticket for ticket, span in works.items()}
    before = {span.end: ticket for ticket, span in works.items()}
    found = []
    at = left.end
    while at in after:
        found.append(after[at])
        at = works[after[at]].end
    at = left.begin
    while at in before:
        found.append(before[at])
        at = works[before[at]].begin
    return tuple(found)
