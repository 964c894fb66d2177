"""The trace of a launched script: the phases of each step of each process, from its start to its end.

In: when processes start and end, what they tell of their phases. Out: a file in the format of every trace. It must not
import torch, nor decide anything about processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hetero.comm.lines import Message
from hetero.drive.trace import TraceWriter
from hetero.floor import clock
from hetero.model.annotations import PhasesRun, TrainingNews, TrainingStep
from hetero.model.device import Device
from hetero.model.events import DeviceLost, DeviceReady

__all__ = ["LaunchTrace"]

_TOLD_EVERY_S = 0.1


class LaunchTrace:
    """Writes what the processes of a run tell.

    Parameters
    ----------
    path
        File to write.
    run
        Name of the run.
    devices
        Of the processes, by rank.

    Raises
    ------
    BadValueError
        The file cannot be written.

    Notes
    -----
    Other hosts have a clock of their own, which is compared with this one's by the time of day.
    """

    def __init__(self, path: Path, run: str, devices: Sequence[Device]) -> None:
        self._origin_s = clock.monotonic_s()
        self._day_s = clock.wall_time_s() - self._origin_s
        self._writer = TraceWriter(path, devices=devices, run=run, clock_origin_s=self._origin_s)
        self._devices = devices
        self._until_s: dict[int, float] = {}
        self._numbers = dict.fromkeys(range(len(devices)), 0)
        self._is_ready: set[int] = set()
        self._open: dict[int, dict[int, Message]] = {}
        self._step_told_s = -_TOLD_EVERY_S
        self._last: TrainingStep | None = None

    @property
    def _now_s(self) -> float:
        return clock.monotonic_s() - self._origin_s

    def started(self, rank: int) -> None:
        """Record that a process was started."""
        self._until_s[rank] = self._now_s

    def told(self, rank: int, day_s: float, steps: Sequence[Message], *, is_here: bool) -> None:
        """Record steps that a process tells of.

        Parameters
        ----------
        day_s
            Time of day less monotonic clock, on its host.
        steps
            Each a `ToldStep`.
        is_here
            Whether it runs on this host, so that its clock is this one's.
        """
        shift_s = (0.0 if is_here else day_s - self._day_s) - self._origin_s
        for began_s, names, seconds, samples, loss, busy_s in steps:
            begin_s = began_s + shift_s
            if rank not in self._is_ready:
                self._start_up(rank, begin_s, _of("prepare", names, seconds))
            self._phases(rank, begin_s, names, seconds)
            if busy_s or "update" in names:
                own_s = _of("forward", names, seconds) + _of("backward", names, seconds)
                busy_s = busy_s or tuple(own_s if each == rank else 0.0 for each in range(len(self._devices)))
                self._numbers[rank] += 1
                step = (self._until_s[rank], sum(seconds), _of("exchange", names, seconds), samples, loss, busy_s)
                self._step(rank, self._numbers[rank], step)

    def _start_up(self, rank: int, begin_s: float, prepare_s: float) -> None:
        """Record what lies before the first step: the imports, and all that the script prepares."""
        self._is_ready.add(rank)
        from_s = min(self._until_s.get(rank, begin_s), begin_s)
        self._phases(rank, from_s, ("import",), (begin_s - from_s,))
        self._writer.write(DeviceReady(begin_s + prepare_s, self._devices[rank].id))

    def _phases(self, rank: int, begin_s: float, names: tuple[str, ...], seconds: tuple[float, ...]) -> None:
        end_s = begin_s + sum(seconds)
        note = PhasesRun(end_s, self._devices[rank].id, self._numbers[rank] + 1, begin_s, names, seconds)
        self._writer.write(note)
        self._until_s[rank] = end_s

    def _step(self, rank: int, number: int, told: Message) -> None:
        """Record a step of training when all processes that took part have told of it; a few a second."""
        rows = self._open.setdefault(number, {})
        rows[rank] = told
        busy_s: tuple[float, ...] = told[5]
        members = [each for each, seconds in enumerate(busy_s) if seconds]
        if not all(each in rows for each in members):
            return
        del self._open[number]
        at_s, seconds, exchange_s, _, loss, _ = rows[members[0]]
        names = tuple(self._devices[each].short for each in members)
        samples = tuple(rows[each][3] for each in members)
        own_s = tuple(busy_s[each] for each in members)
        self._last = TrainingStep(at_s, number, loss, seconds, exchange_s, names, samples, own_s)
        if at_s - self._step_told_s >= _TOLD_EVERY_S:
            self._step_told_s = at_s
            self._writer.write(self._last)
            self._last = None

    def news(self, text: str) -> None:
        """Record what people were told."""
        self._writer.write(TrainingNews(self._now_s, text))

    def ended(self, rank: int, code: int) -> None:
        """Record that a process has ended; what it did not tell of before belongs to its end."""
        now_s = self._now_s
        if rank in self._until_s and rank < len(self._devices):
            until_s = self._until_s[rank]
            if rank not in self._is_ready:
                self._start_up(rank, now_s, 0.0)
            elif now_s > until_s:
                self._phases(rank, until_s, ("end" if code >= 0 else "untold",), (now_s - until_s,))
            if code < 0:
                self._writer.write(DeviceLost(now_s, self._devices[rank].id, "its process was killed", True, 0))

    def close(self) -> None:
        """End the file, with the last step, however soon it came after the one before."""
        if self._last is not None:
            self._writer.write(self._last)
        self._writer.close()


def _of(name: str, names: Sequence[str], seconds: Sequence[float]) -> float:
    return sum((took for each, took in zip(names, seconds, strict=True) if each == name), 0.0)
