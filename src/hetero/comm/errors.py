"""What can go wrong between processes that work together.

In: a reason. Out: an exception that says whether the group is to be built anew. It imports no framework.
"""

from __future__ import annotations

from hetero.floor.errors import HeteroError

__all__ = ["GroupBrokenError", "LineClosedError"]


class GroupBrokenError(HeteroError):
    """A member of the group died, froze or left; the others are free again and can form a new group."""


class LineClosedError(HeteroError):
    """The other end of a line is gone."""
