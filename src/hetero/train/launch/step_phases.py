"""What each step of a launched script takes a process, phase by phase: read, forward, backward, exchange, update, wait.

In: the moments at which a `StepClock` is told of a step. Out: phases that follow each other without a gap, sent to the
launching program. It must not change what a step does, nor write a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from hetero.floor import clock
from hetero.train.launch.process_group import ProcessGroup
from hetero.train.launch.shared_batches import StepClock
from hetero.train.launch.shared_loader import Batch

__all__ = ["StepPhases", "ToldStep"]

_SEND_S = 1.0


class ToldStep(NamedTuple):
    """One step of one process, as it travels.

    Attributes
    ----------
    began_s
        Seconds, of this host's monotonic clock.
    names, seconds
        Of each phase, which follow each other.
    samples
        Rows that the process had.
    loss
        Of the whole batch; nan where it is not known.
    busy_s
        Seconds of own work of each process, by rank; empty where nothing was exchanged.
    """

    began_s: float
    names: tuple[str, ...]
    seconds: tuple[float, ...]
    samples: int
    loss: float
    busy_s: tuple[float, ...]


class StepPhases(StepClock):
    """A clock of steps that keeps what each phase took.

    Parameters
    ----------
    processes, throttle_frac
        As for `StepClock`.
    begun_s
        When the script called `hetero.train.init`, s of the monotonic clock.
    """

    def __init__(self, processes: ProcessGroup, throttle_frac: float, begun_s: float) -> None:
        super().__init__(processes, throttle_frac)
        self._last_s = self._step_s = begun_s
        self._waited_until_now_s = processes.waited_s
        self._names: list[str] = []
        self._seconds: list[float] = []
        self._told: list[ToldStep] = []
        self._sent_s = begun_s
        self._between = "prepare"
        self._has_stepped = self._has_exchanged = False
        self._samples, self._loss, self._busy_s = 0, float("nan"), tuple[float, ...]()
        register_optimizer_step_post_hook(lambda *_: self._stepped())
        processes.when_leaving.append(self.finish)

    def _mark(self, name: str) -> None:
        """End a phase that began where the last one ended; what all waited for in it is one of its own."""
        now_s, waited_s = clock.monotonic_s(), self._processes.waited_s
        wait_s = waited_s - self._waited_until_now_s
        self._add(name, now_s - self._last_s - wait_s)
        if wait_s:
            self._add("wait", wait_s)
            self._waited_until_now_s = waited_s
        self._last_s = now_s

    def _add(self, name: str, seconds: float) -> None:
        if self._names and self._names[-1] == name:
            self._seconds[-1] += seconds
        else:
            self._names.append(name)
            self._seconds.append(seconds)

    def _close(self) -> None:
        """End a step; once a second all that there is to tell is sent."""
        if self._names:
            parts = tuple(self._names), tuple(self._seconds)
            self._told.append(ToldStep(self._step_s, *parts, self._samples, self._loss, self._busy_s))
        self._names, self._seconds, self._step_s = [], [], self._last_s
        self._has_stepped, self._busy_s = False, ()
        if self._last_s - self._sent_s > _SEND_S:
            self._send()

    def _send(self) -> None:
        told, self._told, self._sent_s = self._told, [], self._last_s
        self._processes.tell_phases([tuple(each) for each in told])

    # --- what the clock is told of -------------------------------------------------------------------------

    def script_ends(self) -> None:
        """See `StepClock.script_ends`."""
        self._mark(self._between)
        self._between = "script"
        self._close()

    def handed(self, samples: int) -> None:
        """See `StepClock.handed`."""
        self._mark("read")
        self._samples = samples

    @contextmanager
    def in_backward(self) -> Iterator[None]:
        """See `StepClock.in_backward`."""
        if self._has_stepped:
            self._close()
        self._mark("forward")
        self._has_exchanged, compares = False, self._processes.has_check
        with super().in_backward():
            yield
        self._mark("comparison" if compares else "exchange" if self._has_exchanged else "backward")

    @contextmanager
    def own_work(self) -> Iterator[None]:
        """See `StepClock.own_work`."""
        if self._has_exchanged:  # the first steps try several ways
            self._mark("comparison")
        with super().own_work():
            yield
        self._mark("backward")

    def busy_s(self) -> float:
        """See `StepClock.busy_s`."""
        found = super().busy_s()
        self._mark("backward")
        return found

    def exchanged(self, busy_s: Sequence[float], loss: float | None) -> None:
        """See `StepClock.exchanged`."""
        now_s, members = clock.monotonic_s(), self._processes.members
        spent_s = now_s - self._last_s
        wait_s = min(spent_s, max(busy_s[rank] for rank in members) - busy_s[self._processes.rank])
        self._add("wait", wait_s)
        self._add("exchange", spent_s - wait_s)
        self._last_s, self._waited_until_now_s = now_s, self._processes.waited_s
        self._has_exchanged, self._busy_s = True, tuple(busy_s)
        self._loss = float("nan") if loss is None else loss
        super().exchanged(busy_s, loss)

    def _stepped(self) -> None:
        self._mark("update")
        self._has_stepped = True

    def alone(self) -> None:
        """Go on where this process has all of each batch, and torch's own functions are back."""
        backward = torch.autograd.backward

        def timed(*args: Batch, **options: Batch) -> None:
            if self._has_stepped:
                self._close()
            self._mark("forward")
            backward(*args, **options)
            self._mark("backward")

        torch.autograd.backward = timed

    def finish(self) -> None:
        """Send what was not sent yet: the process ends."""
        if self._processes.is_own:
            self._mark("end")
            self._close()
            self._send()
