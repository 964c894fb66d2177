"""Profiling of training: a few steps of each member, once they have settled.

In: the frame of a member. Out: a note of the operators of those steps. It must not profile all of a long training.
"""

from __future__ import annotations

from hetero.drive.frame import Frame
from hetero.drive.profiling import TorchProfile

__all__ = ["PROFILED", "StepProfile"]

SETTLED = 2
"""Steps of a member that are not profiled: the first ones are slow."""
PROFILED = 3
"""Steps that are."""


class StepProfile:
    """Counts the steps of a member and profiles some of them, where its frame asks for that.

    Parameters
    ----------
    frame : of the member's task
    """

    def __init__(self, frame: Frame) -> None:
        self._left = SETTLED + PROFILED if frame.profile else 0
        self._profile = TorchProfile(frame)

    def begin(self) -> None:
        """Record that a step begins."""
        if self._left == PROFILED:
            self._profile.__enter__()

    def end(self) -> None:
        """Record that a step has ended."""
        if self._left:
            self._left -= 1
            if not self._left:
                self.close()

    def close(self) -> None:
        """Stop, also in the middle of the steps."""
        self._left = 0
        self._profile.__exit__()
