"""Values of a search: what was asked for, what a trial was like, what came out.

In: checked arguments, figures. Out: frozen values. It must not import Optuna.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from hetero.floor.errors import BadValueError, HeteroError, did_you_mean
from hetero.tune.space import Range

__all__ = [
    "FORMER_GOALS",
    "GOALS",
    "PRUNERS",
    "SAMPLERS",
    "SearchError",
    "SearchListener",
    "SearchPlan",
    "SearchResult",
    "TrialEnd",
    "TrialReport",
]

SAMPLERS = ("tpe", "random", "grid")
PRUNERS = ("median", "hyperband", "none")
GOALS = ("minimize", "maximize")
FORMER_GOALS = {"minimise": "minimize", "maximise": "maximize"}
"""The goals of today by their words of version 0.1, which studies on disk may have."""
_MOST_TRIALS = 100_000

TrialEnd: TypeAlias = Literal["finished", "pruned", "failed"]


class SearchError(HeteroError):
    """A search found nothing, or cannot go on."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """What was asked of a search.

    Attributes
    ----------
    what
        Names the objective, so that a study is known again.
    space
        Ranges by name.
    trials
        How many in all, those of earlier runs counted.
    sampler, pruner, goal
        One of `SAMPLERS`, `PRUNERS`, `GOALS`.
    seed
        Of the sampler.
    """

    what: str
    space: Mapping[str, Range]
    trials: int
    sampler: str = "tpe"
    pruner: str = "median"
    goal: str = "minimize"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, given, allowed in (
            ("sampler", self.sampler, SAMPLERS),
            ("pruner", self.pruner, PRUNERS),
            ("goal", self.goal, GOALS),
        ):
            if given not in allowed:
                raise BadValueError(
                    f"{name}={given!r} is not known{did_you_mean(given, allowed)}", remedy=f"give {', '.join(allowed)}"
                )
        for name, number, least, most in (("trials", self.trials, 1, _MOST_TRIALS), ("seed", self.seed, 0, 2**32 - 1)):
            if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
                raise BadValueError(
                    f"{name}={number!r} is not allowed", remedy=f"give a whole number from {least} to {most}"
                )


@dataclass(frozen=True, slots=True)
class TrialReport:
    """What one trial was like.

    Attributes
    ----------
    number
        Of the trial in its study.
    state
        'finished', 'pruned' or 'failed'.
    params
        What was tried.
    value
        What the objective gave; the last value that it reported where it was pruned, None where it failed.
    device
        That ran it, '' where none did.
    seconds
        Seconds on that device.
    problem
        Why it failed.
    """

    number: int
    state: TrialEnd
    params: Mapping[str, object]
    value: float | None
    device: str = ""
    seconds: float = 0.0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search came to.

    Attributes
    ----------
    best
        The best finished trial.
    trials
        All that ended, in the order of their numbers.
    goal
        'minimize' or 'maximize'.
    seconds
        Seconds of this run.
    resumed
        Trials that an earlier run had ended.
    storage
        File of the study, None where none is kept.
    """

    best: TrialReport
    trials: tuple[TrialReport, ...]
    goal: str
    seconds: float
    resumed: int = 0
    storage: Path | None = None

    @property
    def by_device(self) -> dict[str, int]:
        """How many trials each device ended."""
        return dict(sorted(Counter(trial.device for trial in self.trials if trial.device).items()))

    def count(self, state: str) -> int:
        """Count the trials that ended so."""
        return sum(trial.state == state for trial in self.trials)

    def as_dict(self) -> dict[str, object]:
        """Return the figures for a program."""
        return {
            "best": asdict(self.best),
            "goal": self.goal,
            "seconds": self.seconds,
            "resumed": self.resumed,
            **{state: self.count(state) for state in ("finished", "pruned", "failed")},
            "by_device": self.by_device,
            "storage": None if self.storage is None else str(self.storage),
            "trials": [asdict(trial) for trial in self.trials],
        }


class SearchListener:
    """Hears of a search; every method may be left as it is."""

    def on_start(self, devices: Mapping[str, str], ended: int, trials: int) -> None:
        """Handle the devices, how many trials had ended before, and how many there will be in all."""

    def on_running(self, running: Mapping[str, tuple[int, Mapping[str, object]]]) -> None:
        """Handle which trial each device works on, and its values."""

    def on_value(self, number: int, step: int, value: float) -> None:
        """Handle a value that a trial reported while it ran."""

    def on_trial(self, trial: TrialReport, best: TrialReport | None) -> None:
        """Handle a trial that ended, and the best so far."""
