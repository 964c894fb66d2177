"""What a running attempt tells of its inside: the collectives that it took part in.

In: the frame of the attempt, and what happened. Out: notes, kept in the frame until the attempt ends.
It must not send anything: engines take the notes with the answer.
"""

from __future__ import annotations

from hetero.drive.frame import Frame
from hetero.floor import clock
from hetero.model.notes import CollectiveDone

__all__ = ["KEPT", "tell_collective"]

KEPT = 10_000
"""Collectives of an attempt that are told one by one; what follows is added to the last of them."""


def tell_collective(
    frame: Frame, what: str, algorithm: str, rank: int, world_size: int, nbytes: int, seconds: float
) -> None:
    """Take note of a collective that ends now, and that this member was in for so long."""
    started_s = clock.monotonic_s() - frame.began_s - seconds
    told = CollectiveDone(
        0.0,
        frame.task,
        frame.attempt,
        frame.device.id,
        what,
        algorithm,
        rank,
        world_size,
        nbytes,
        started_s,
        seconds,
        1,
    )
    if len(frame.notes) < KEPT:
        frame.notes.append(told)
        return
    last = frame.notes[-1]
    frame.notes[-1] = last._replace(nbytes=last.nbytes + nbytes, seconds=last.seconds + seconds, calls=last.calls + 1)
