"""The interface of a store: named bytes that survive a crash.

In: a key and bytes. Out: the same bytes, or a clear error. Writes are atomic and checksummed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

__all__ = ["Store"]


class Store(ABC):
    """Named bytes, written all or not at all.

    A key is one or more parts of letters, digits, '.', '_' and '-', joined by '/'.
    """

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Write durably, in place of what was there."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """Return the bytes, or None when there are none; raises HeteroError when they are damaged."""

    @abstractmethod
    def list(self, prefix: str = "") -> tuple[str, ...]:
        """Return all keys that begin with the prefix, sorted."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove; a missing key is fine."""

    @abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write unless something is there; True when written. Exactly one of several writers wins."""
