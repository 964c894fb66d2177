"""One trial where it runs: what the objective gets, and how it tells values while it runs.

In: the values to try, a line to the program. Out: the objective's value, or the word that the trial was pruned.
It must not choose anything: the program samples and prunes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from hetero.comm.lines import Address, Line
from hetero.drive.frame import running_frame
from hetero.drive.throttle import Stopwatch
from hetero.floor.errors import BadValueError, HeteroError

__all__ = ["Trial", "TrialCall", "TrialPrunedError", "TrialResult", "run_trial"]


class TrialPrunedError(HeteroError):
    """The trial is not worth going on with; it is raised by `Trial.report`, and the objective need not catch it."""


class TrialResult(NamedTuple):
    """What a trial came to, as it travels back."""

    value: float | None
    pruned: bool
    device: str
    seconds: float


@dataclass(frozen=True, slots=True)
class TrialCall:
    """What travels to the worker besides the objective.

    Attributes
    ----------
    number
        Of the trial.
    params
        What to try.
    address
        Of the program's hub.
    """

    number: int
    params: Mapping[str, object]
    address: Address


class Trial:
    """What an objective gets: the values to try, and `report`.

    Attributes
    ----------
    number
        Of the trial in its study.
    params
        The values to try, by name.

    Examples
    --------
    >>> trial = Trial(TrialCall(3, {"x": 2.0}, ("127.0.0.1", 0, "")))
    >>> trial.number, trial["x"], trial.params
    (3, 2.0, {'x': 2.0})
    """

    def __init__(self, call: TrialCall) -> None:
        self.number = call.number
        self.params = dict(call.params)
        self.pruned = False
        self.last: float | None = None
        self._address = call.address
        self._line: Line | None = None

    def __getitem__(self, name: str) -> Any:
        return self.params[name]

    def report(self, step: int, value: float) -> None:
        """Report how good the trial is so far; a bad one ends here.

        Parameters
        ----------
        step
            Counts up, as epochs do.
        value
            What the objective would give if it ended now.

        Raises
        ------
        TrialPrunedError
            The trial is pruned.
        BadValueError
            The value is no number.
        """
        self.last = as_number(value, f"trial {self.number} reported")
        if self._line is None:
            self._line = Line.dial(self._address)
        self._line.send("report", self.number, int(step), self.last)
        answer = self._line.receive()
        if answer is not None and answer[0] == "prune":
            self.pruned = True
            raise TrialPrunedError(f"trial {self.number} was pruned at step {step}")

    def close(self) -> None:
        """Hang up."""
        if self._line is not None:
            self._line.close()


def as_number(value: Any, said: str) -> float:
    """Return a value as a finite number.

    Raises
    ------
    BadValueError
        It is none.
    """
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise BadValueError(
            f"{said} {value!r}, which is no number", remedy="let the objective give a number"
        ) from error
    if not math.isfinite(number):
        raise BadValueError(f"{said} {number}", remedy="let the objective give a finite number")
    return number


def run_trial(call: TrialCall, objective: Callable[[Trial], object]) -> TrialResult:
    """Run one trial; runs as a task. The sleep of a throttled device belongs to the trial's seconds."""
    frame = running_frame()
    trial, watch = Trial(call), Stopwatch(frame.device.throttle_frac)
    value: float | None = None
    try:
        value = as_number(objective(trial), f"trial {call.number} gave")
    except TrialPrunedError:
        value = trial.last
    finally:
        trial.close()
    return TrialResult(trial.last if trial.pruned else value, trial.pruned, frame.device.short, watch.seconds())
