"""The members of one group task: passes their messages on, and tells them when one of them is gone.

In: what a member says, or that it left. Out: the same to the others. It must not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["Group", "Member"]


class Member(Protocol):
    """A worker that takes part."""

    def hear(self, task: int, sender: int, content: Any) -> None:
        """Take a value from another member."""
        ...

    def hear_left(self, task: int, sender: int, reason: str) -> None:
        """Learn that another member left; the reason is '' when it finished."""
        ...


class Group:
    """One attempt of one group task. Nothing is passed on before every member was told to run."""

    def __init__(self, task: int, members: Sequence[Member]) -> None:
        self.task = task
        self._members = list(members)
        self._left: set[int] = set()
        self.lock = threading.RLock()

    @property
    def size(self) -> int:
        """Return the number of members."""
        return len(self._members)

    def say(self, sender: int, rank: int, content: Any) -> None:
        """Pass a value on."""
        with self.lock:
            if rank not in self._left:
                self._members[rank].hear(self.task, sender, content)

    def leave(self, rank: int, reason: str) -> None:
        """Tell the others that a member has ended; the reason is '' when it finished."""
        with self.lock:
            self._left.add(rank)
            for other, member in enumerate(self._members):
                if other not in self._left:
                    member.hear_left(self.task, rank, reason)
