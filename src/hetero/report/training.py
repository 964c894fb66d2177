"""What a report says of training: how the loss went, what each device had of a step and took for it.

In: the notes of a run. Out: sentences, figures, and what the page draws. It must not know of tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import median

from hetero.floor.units import format_bytes, format_seconds
from hetero.model.annotations import CheckpointWritten, TrainingEpoch, TrainingNews, TrainingStep
from hetero.report.record import RunRecord

__all__ = ["Training", "TrainingMember", "drawn", "sentences", "training"]

_DRAWN = 1500
_NEWS = 4


@dataclass(frozen=True, slots=True)
class TrainingMember:
    """What one device was to the training.

    Attributes
    ----------
    steps
        Told steps in which it took part.
    samples
        Median of a step.
    busy_s
        Median of s that its passes took in a step.
    alone_per_s
        Samples/s that it would reach alone, 0 where unknown.
    """

    device: str
    steps: int
    samples: float
    busy_s: float
    alone_per_s: float


@dataclass(frozen=True, slots=True)
class Training:
    """All that was told of training; steps that were undone by a death may be there twice.

    Attributes
    ----------
    step_s, exchange_s
        Medians over the told steps, s.
    members
        In the order in which they came.
    """

    steps: tuple[TrainingStep, ...]
    epochs: tuple[TrainingEpoch, ...]
    checkpoints: tuple[CheckpointWritten, ...]
    news: tuple[TrainingNews, ...]
    step_s: float
    exchange_s: float
    members: tuple[TrainingMember, ...]

    @property
    def last_step(self) -> int:
        """The last step that was told."""
        return max([*(each.step for each in self.steps), *(each.step for each in self.epochs)])

    def as_dict(self) -> dict[str, object]:
        """Return the figures by name, for programs."""
        return {
            "steps": self.last_step,
            "step_s": self.step_s,
            "exchange_s": self.exchange_s,
            "epochs": [each._asdict() for each in self.epochs],
            "checkpoints": [each._asdict() for each in self.checkpoints],
            "news": [each.text for each in self.news],
            "devices": [
                {"device": each.device, "samples": each.samples, "busy_s": each.busy_s, "alone_per_s": each.alone_per_s}
                for each in self.members
            ],
        }


def training(run: RunRecord) -> Training | None:
    """Return what a run tells of training, None where it did not train."""
    steps = tuple(each for each in run.notes if isinstance(each, TrainingStep))
    epochs = tuple(each for each in run.notes if isinstance(each, TrainingEpoch))
    if not steps and not epochs:
        return None
    told = [*(each.devices for each in steps), *(each.devices for each in epochs)]
    names = dict.fromkeys(name for devices in told for name in devices)
    return Training(
        steps=steps,
        epochs=epochs,
        checkpoints=tuple(each for each in run.notes if isinstance(each, CheckpointWritten)),
        news=tuple(each for each in run.notes if isinstance(each, TrainingNews)),
        step_s=median(each.seconds for each in steps) if steps else 0.0,
        exchange_s=median(each.exchange_s for each in steps) if steps else 0.0,
        members=tuple(_member(name, steps, epochs) for name in names),
    )


def _member(name: str, steps: Sequence[TrainingStep], epochs: Sequence[TrainingEpoch]) -> TrainingMember:
    rows = [(each.samples[at], each.busy_s[at]) for each in steps for at in _place(name, each.devices)]
    alone = [each.speeds[at] for each in epochs for at in _place(name, each.devices)]
    if not rows:
        return TrainingMember(name, 0, 0.0, 0.0, alone[-1] if alone else 0.0)
    samples, busy_s = (median(column) for column in zip(*rows, strict=True))
    return TrainingMember(name, len(rows), samples, busy_s, alone[-1] if alone else 0.0)


def _place(name: str, names: tuple[str, ...]) -> tuple[int, ...]:
    return (names.index(name),) if name in names else ()


def sentences(found: Training) -> list[str]:
    """Return how training went, most important first."""
    told = [_how_it_went(found)]
    if found.epochs:
        told.append(_how_fast(found.epochs))
    if found.steps:
        told.append(_a_step(found))
    if found.checkpoints:
        took_s = sum(each.seconds for each in found.checkpoints)
        count, nbytes = len(found.checkpoints), format_bytes(found.checkpoints[-1].nbytes)
        words = "1 checkpoint" if count == 1 else f"{count:,} checkpoints"
        told.append(f"{words} of {nbytes} took {format_seconds(took_s)} in all.")
    more = f"; and {len(found.news) - _NEWS} more" if len(found.news) > _NEWS else ""
    if found.news:
        told.append("What became of devices: " + "; ".join(each.text for each in found.news[:_NEWS]) + f"{more}.")
    return told


def _how_it_went(found: Training) -> str:
    epochs = f" in {len(found.epochs)} epoch{'s' if len(found.epochs) != 1 else ''}" if found.epochs else ""
    losses = [each.loss for each in found.steps if isfinite(each.loss)] or [each.loss for each in found.epochs] or [nan]
    end = found.epochs[-1].loss if found.epochs else losses[-1]
    told = f"Training did {found.last_step:,} steps{epochs}"
    told += f"; the loss went from {losses[0]:.4g} to {end:.4g}" if isfinite(losses[0]) and isfinite(end) else ""
    accuracy = found.epochs[-1].test_accuracy if found.epochs else float("nan")
    return told + (f", and {100.0 * accuracy:.1f} % of what was held back is right." if isfinite(accuracy) else ".")


def _how_fast(epochs: Sequence[TrainingEpoch]) -> str:
    seconds = sum(each.seconds for each in epochs)
    speed = sum(each.samples_per_s * each.seconds for each in epochs) / seconds if seconds else 0.0
    alone = sum(epochs[-1].speeds)
    best = max(epochs[-1].speeds, default=0.0)
    if not alone:
        return f"It reached {speed:,.0f} samples/s."
    return (
        f"It reached {speed:,.0f} samples/s: {100.0 * speed / alone:.0f} % of all devices' own speeds together, "
        f"{speed / best:.2f} × the fastest one alone."
    )


def _a_step(found: Training) -> str:
    rows = [each for each in found.members if each.steps]
    whole = sum(each.samples for each in rows) or 1.0
    words = [f"{each.device} {each.samples:,.0f} ({100.0 * each.samples / whole:.0f} %)" for each in rows[:_NEWS]]
    more = f" and {len(rows) - _NEWS} more" if len(rows) > _NEWS else ""
    share = 100.0 * found.exchange_s / found.step_s if found.step_s else 0.0
    talk = f", of which {share:.1f} % was the exchange of gradients" if len(rows) > 1 else ""
    return f"A step took {format_seconds(found.step_s)}{talk}; its samples: {', '.join(words)}{more}."


def drawn(found: Training | None) -> dict[str, object] | None:
    """Return what the page draws: series over ascending steps, of long runs every so manieth step.

    Of a step that was done again after a death the later one is drawn.
    """
    if found is None:
        return None
    told = [each for _, each in sorted({each.step: each for each in found.steps}.items())]
    epochs = [each for _, each in sorted({each.step: each for each in found.epochs}.items())]
    steps = told[:: max(1, len(told) // _DRAWN)]
    names = [each.device for each in found.members if each.steps]
    return {
        "steps": [each.step for each in steps],
        "loss": [_short(each.loss) for each in steps],
        "seconds": [_short(each.seconds) for each in steps],
        "devices": names,
        "samples": [[_of(name, each, each.samples) for each in steps] for name in names],
        "busy": [[_of(name, each, each.busy_s) for each in steps] for name in names],
        "epochs": [[each.step, _short(each.loss), _short(each.test_loss)] for each in epochs[-_DRAWN:]],
    }


def _of(name: str, step: TrainingStep, column: Sequence[float]) -> float | None:
    at = _place(name, step.devices)
    return _short(column[at[0]]) if at else None


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if isfinite(value) else None
