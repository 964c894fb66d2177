"""Training in the trace: steps, epochs, checkpoints and news of a run as notes beside its tasks.

In: what a listener hears. Out: notes, handed to the driver of the run's Context. It must not train.
"""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

from hetero.model.notes import CheckpointWritten, TrainingEpoch, TrainingNews, TrainingStep
from hetero.train.listener import Listener

if TYPE_CHECKING:
    from hetero.drive.live import Driver
    from hetero.train.values import EpochReport

__all__ = ["Recorded"]


class Recorded(Listener):
    """Writes what it hears into the trace, and passes all on.

    Parameters
    ----------
    driver : of the Context that trains
    further : hears all of it too
    """

    def __init__(self, driver: Driver, further: Listener) -> None:
        self.driver = driver
        self.further = further

    def on_step(self, step: int, loss: float) -> None:
        """Pass a step on."""
        self.further.on_step(step, loss)

    def on_step_report(self, report: TrainingStep) -> None:
        """Write a step down."""
        self.driver.note(report._replace(at_s=self.driver.now_s()))
        self.further.on_step_report(report)

    def on_checkpoint(self, step: int, nbytes: int, seconds: float) -> None:
        """Write down that a checkpoint was written."""
        self.driver.note(CheckpointWritten(self.driver.now_s(), step, nbytes, seconds))
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
        self.driver.note(note)
        return self.further.on_epoch(report)

    def on_note(self, text: str) -> None:
        """Write down what became of a device."""
        self.driver.note(TrainingNews(self.driver.now_s(), text))
        self.further.on_note(text)


def _known(value: float | None) -> float:
    return nan if value is None else value
