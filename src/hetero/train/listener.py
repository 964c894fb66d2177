"""Listening to a run: what a program hears of its steps, its epochs and what becomes of its devices.

In: news, one call each. Out: reports and notes in order, events in the trace, and the wish to stop. It must not train.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from typing import TYPE_CHECKING

from hetero.model.annotations import CheckpointWritten, TrainingEpoch, TrainingNews, TrainingStep
from hetero.train.values import EpochReport

if TYPE_CHECKING:
    from hetero.drive.live import Driver
    from hetero.train.values import EpochReport

__all__ = ["Listener", "ReportCollector", "TraceRecorder"]


class Listener:
    """What a caller of `Lead.run` hears; every method may be left as it is.

    Attributes
    ----------
    needs_model
        False where `on_epoch` does not look at the model, which spares bringing it up to date.
    """

    needs_model: bool = True

    def on_step(self, step: int, loss: float) -> None:
        """Handle a step, a few times a second."""

    def on_step_report(self, report: TrainingStep) -> None:
        """Handle the figures of a step on each device."""

    def on_checkpoint(self, step: int, nbytes: int, seconds: float) -> None:
        """Handle the event that a checkpoint was written."""

    def on_plan(self, shares: dict[str, int]) -> None:
        """Handle a new share of each device."""

    def on_epoch(self, report: EpochReport) -> bool:
        """Handle the end of an epoch; True ends the training."""
        return False

    def on_note(self, text: str) -> None:
        """Handle the event that a device was left out, died or joined."""


class ReportCollector(Listener):
    """Keeps reports and notes, asks callbacks, and passes all on.

    Parameters
    ----------
    notes
        What is noted is added to.
    callbacks
        Functions of a report; one that gives True ends the training.
    further
        Hears all of it too.

    Attributes
    ----------
    reports
        The last one of each epoch.
    """

    def __init__(
        self, notes: list[str], callbacks: Sequence[Callable[[EpochReport], object]], further: Listener
    ) -> None:
        self.notes = notes
        self.callbacks = callbacks
        self.further = further
        self.reports: list[EpochReport] = []

    def on_step(self, step: int, loss: float) -> None:
        """Pass a step on."""
        self.further.on_step(step, loss)

    def on_step_report(self, report: TrainingStep) -> None:
        """Pass the step's figures on."""
        self.further.on_step_report(report)

    def on_checkpoint(self, step: int, nbytes: int, seconds: float) -> None:
        """Pass it on."""
        self.further.on_checkpoint(step, nbytes, seconds)

    def on_plan(self, shares: dict[str, int]) -> None:
        """Pass the shares on."""
        self.further.on_plan(shares)

    def on_epoch(self, report: EpochReport) -> bool:
        """Keep the report; True when somebody wants to stop."""
        self.reports = [*(known for known in self.reports if known.epoch < report.epoch), report]
        wishes = [self.further.on_epoch(report), *(callback(report) for callback in self.callbacks)]
        return any(wish is True for wish in wishes)

    def on_note(self, text: str) -> None:
        """Keep a note."""
        self.notes.append(text)
        self.further.on_note(text)


class TraceRecorder(Listener):
    """Writes what it hears into the trace, and passes all on.

    Parameters
    ----------
    driver
        Of the Context that trains.
    further
        Hears all of it too.
    """

    def __init__(self, driver: Driver, further: Listener) -> None:
        self.driver = driver
        self.further = further

    def on_step(self, step: int, loss: float) -> None:
        """Pass a step on."""
        self.further.on_step(step, loss)

    def on_step_report(self, report: TrainingStep) -> None:
        """Write a step down."""
        self.driver.record(report._replace(at_s=self.driver.now_s()))
        self.further.on_step_report(report)

    def on_checkpoint(self, step: int, nbytes: int, seconds: float) -> None:
        """Write down that a checkpoint was written."""
        self.driver.record(CheckpointWritten(self.driver.now_s(), step, nbytes, seconds))
        self.further.on_checkpoint(step, nbytes, seconds)

    def on_plan(self, shares: dict[str, int]) -> None:
        """Pass the shares on; every step tells its own."""
        self.further.on_plan(shares)

    def on_epoch(self, report: EpochReport) -> bool:
        """Write an epoch down; True when somebody wants to stop."""
        names = tuple(report.shares)
        note = TrainingEpoch(
            at_s=self.driver.now_s(),
            epoch=report.epoch,
            step=report.step,
            loss=report.loss,
            accuracy=_known(report.accuracy),
            seconds=report.seconds,
            samples_per_s=report.samples_per_s,
            devices=names,
            samples=tuple(report.shares.values()),
            speeds=tuple(report.speeds.get(name, 0.0) for name in names),
            test_loss=_known(report.test_loss),
            test_accuracy=_known(report.test_accuracy),
        )
        self.driver.record(note)
        return self.further.on_epoch(report)

    def on_note(self, text: str) -> None:
        """Write down what became of a device."""
        self.driver.record(TrainingNews(self.driver.now_s(), text))
        self.further.on_note(text)


def _known(value: float | None) -> float:
    return nan if value is None else value
