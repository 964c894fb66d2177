"""What can go wrong between processes that work together.

In: a reason. Out: an exception that says whether the group is to be built anew. It imports no framework.
"""

from __future__ import annotations

from hetero.floor.errors import BadValueError, GroupError, HeteroError

__all__ = ["DisagreementError", "GroupBrokenError", "LineClosedError"]


class GroupBrokenError(GroupError):
    """A member of the group died, froze or left; the others are free again and can form a new group.

    Attributes
    ----------
    rank
        Of that member, None where it is not known.
    """

    def __init__(self, problem: str, *, remedy: str = "", rank: int | None = None) -> None:
        super().__init__(problem, remedy=remedy)
        self.rank = rank


class DisagreementError(BadValueError):
    """Members of a group call different collectives, or with arrays that do not match."""


class LineClosedError(HeteroError):
    """The other end of a line is gone."""
