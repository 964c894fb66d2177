"""What can go wrong in bulk work, worded once.

In: the value or the record. Out: one line for people. It must not import anything but the tree of exceptions.
"""

from __future__ import annotations

from hetero.floor.errors import HeteroError

__all__ = ["BadRecordsError", "EnergyLimitError", "PriceLimitError", "TimeLimitError", "WrongResultError"]


class BadRecordsError(HeteroError):
    """More records have no result than the error budget allows."""


class TimeLimitError(HeteroError, TimeoutError):
    """The whole took longer than its limit; what is done is kept where the sink keeps it."""


class PriceLimitError(HeteroError):
    """The whole cost more than its limit; what is done is kept where the sink keeps it."""


class EnergyLimitError(HeteroError):
    """The whole took more energy than its limit; what is done is kept where the sink keeps it."""


class WrongResultError(HeteroError, ValueError):
    """The function gave back something else than one result for each record."""
