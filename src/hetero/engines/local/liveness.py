"""Whether a process that was started is alive or frozen: the signs that it gives, looked at now and then.

In: its state, its processor time, whether it was heard. Out: a verdict. It must not end a process.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LOOKS", "LOOK_S", "SILENCE_S", "Pulse"]

LOOK_S = 1.25
"""How often a process is looked at."""

LOOKS = 8
"""So many looks in a row without a sign of life make a process frozen."""

SILENCE_S = LOOKS * LOOK_S

_STOPPED = ("T", "t")
_AT_WORK = ("R", "D")


@dataclass(slots=True)
class Pulse:
    """The signs of life of one process.

    Attributes
    ----------
    quiet
        Looks in a row without a sign of life.
    cpu_s
        Processor time at the last look.

    Notes
    -----
    A sign of life is any of: a message since the last look (a thread beside the task answers when it is asked),
    processor time taken since then, or a state of running or of waiting for a disk. The last two need no
    interpreter, so a task that computes in C code and holds Python's lock all the while is alive. So is one that
    waits there with the lock held: the thread that would answer asks for the lock two hundred times a second, and
    each time takes a little processor time.

    Looks are counted, not seconds: a program that was itself stopped, with its workers or alone, finds one look
    without a sign when it goes on, and not a worker that was silent for an hour.
    """

    quiet: int = 0
    cpu_s: float = 0.0

    def frozen(self, state: str, cpu_s: float, *, heard: bool, answers: bool) -> bool:
        """Take in the signs since the last look; True once there were none for `LOOKS` looks.

        Parameters
        ----------
        state
            Letter of the process's state, '' where it is unknown.
        cpu_s
            Processor time that the process has taken so far.
        heard
            Whether a message came since the last look.
        answers
            Whether it would answer now: it has started, and the thread that does is not busy with a copy, which may
            wait for the device without taking processor time. Where it would not, only one that is stopped is frozen.
        """
        took_s, self.cpu_s = cpu_s - self.cpu_s, cpu_s
        if heard or took_s > 0.0 or state in _AT_WORK:
            self.quiet = 0
        else:
            self.quiet += 1
        return self.quiet >= LOOKS and (answers or state in _STOPPED)
