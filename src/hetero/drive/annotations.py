"""What a running attempt tells of its inside: collectives that it took part in, checkpoints that it kept.

In: the frame of the attempt, and what happened. Out: notes, kept in the frame until the attempt ends.
It must not send anything: engines take the notes with the answer.
"""

from __future__ import annotations

from hetero.drive.frame import Frame, current
from hetero.floor import clock
from hetero.model.annotations import CheckpointKept, CollectiveDone, NestedRun

__all__ = ["KEPT", "record_checkpoint", "record_collective", "record_loaded", "record_nested"]

KEPT = 10_000
"""Notes of an attempt that are told one by one; what follows is added to the last of its kind."""


def record_collective(
    frame: Frame, what: str, algorithm: str, rank: int, world_size: int, nbytes: int, seconds: float
) -> None:
    """Record a collective that ends now, and that this member was in for so long."""
    which = (frame.task, frame.attempt, frame.device.id)
    started_s = clock.monotonic_s() - frame.began_s - seconds
    _add(frame, CollectiveDone(0.0, *which, what, algorithm, rank, world_size, nbytes, started_s, seconds, 1))


def record_checkpoint(frame: Frame, name: str, nbytes: int, begun_s: float) -> None:
    """Record a checkpoint that is kept now, and that was begun at a time of the host's monotonic clock."""
    which = (frame.task, frame.attempt, frame.device.id)
    seconds = clock.monotonic_s() - begun_s
    _add(frame, CheckpointKept(0.0, *which, name, nbytes, begun_s - frame.began_s, seconds, 1))


def record_loaded() -> None:
    """Count what the task of this thread has done so far as loading: it has read a program, or what it keeps."""
    frame = current()
    if frame is not None and frame.timing is not None and not frame.depth:
        frame.timing.loaded()


def record_nested(frame: Frame, name: str, begun_s: float) -> None:
    """Record that a task which this one submitted has run, from a time of the host's monotonic clock until now."""
    seconds = clock.monotonic_s() - begun_s
    which = (frame.task, frame.attempt, frame.device.id)
    _add(frame, NestedRun(0.0, *which, name, begun_s - frame.began_s, seconds, 1))


def _add(frame: Frame, note: CollectiveDone | CheckpointKept | NestedRun) -> None:
    notes = frame.notes
    if len(notes) >= KEPT:
        for place in range(len(notes) - 1, -1, -1):
            last = notes[place]
            if type(last) is type(note):
                told = last._replace(seconds=last.seconds + note.seconds, calls=last.calls + 1)
                if not isinstance(told, NestedRun) and not isinstance(note, NestedRun):
                    told = told._replace(nbytes=told.nbytes + note.nbytes)
                notes[place] = told
                return
    notes.append(note)
