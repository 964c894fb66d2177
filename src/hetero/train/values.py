"""Values of a training run: what was asked for, what an epoch was like, what came out.

In: checked arguments, figures. Out: frozen values that travel between processes. It must not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hetero.floor.errors import BadValueError, HeteroError, did_you_mean

__all__ = [
    "COMPRESSIONS",
    "EXACT",
    "LAYOUTS",
    "NANS",
    "OVERLAPS",
    "PRECISIONS",
    "SHARES",
    "EpochReport",
    "Evaluation",
    "NotANumberError",
    "Totals",
    "TrainOptions",
    "TrainingError",
]

PRECISIONS = ("fp32", "bf16", "fp16")
SHARES = ("auto", "equal", "proportional")
EXACT = ("sum", "bitwise")
NANS = ("stop", "skip")
LAYOUTS = ("auto", "channels_first", "channels_last")
OVERLAPS = ("auto", "always", "never")
COMPRESSIONS = ("none", "fp16", "bf16", "powersgd")
_PARTS = 16
_MOST_PARTS = 256
_MOST_BATCH = 2**24
_MOST_RANK = 1024


class TrainingError(HeteroError):
    """A training run cannot start or go on."""


class NotANumberError(TrainingError):
    """The loss is not a number; the message names the step and the samples."""


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """What was asked of a run.

    Attributes
    ----------
    global_batch : samples of a step over all devices
    shares : 'auto', 'equal', 'proportional', or samples by device
    precision : 'fp32', 'bf16' or 'fp16'; weights and their sums stay as the model has them
    exact : 'sum' for exact weighting, 'bitwise' for the same bits however the batch is shared
    accumulate : passes that a device makes at least for its share of a step
    micro_batch : most samples of a pass, 0 for no limit
    on_nan : 'stop' or 'skip' where a loss is not a number
    seed : of the order of samples and of every keyed random number
    shuffle : True for a new order every epoch
    overlap : whether gradients travel while others are still being computed: 'auto', 'always' or 'never'
    compression : 'none', 'fp16', 'bf16' or 'powersgd', of gradients as they travel
    compression_rank : columns of the factors of 'powersgd'
    sum_on : id of the device that adds up the gradients, '' for the group's own way
    recompute : 'none', 'blocks' or names of modules whose insides are computed again in the backward pass
    layout : of what convolutions work on: 'auto' for what is sooner, 'channels_first' or 'channels_last'
    """

    global_batch: int
    shares: str | Mapping[str, int] = "auto"
    precision: str = "fp32"
    exact: str = "sum"
    accumulate: int = 1
    micro_batch: int = 0
    on_nan: str = "stop"
    seed: int = 0
    shuffle: bool = True
    overlap: str = "auto"
    compression: str = "none"
    compression_rank: int = 4
    sum_on: str = ""
    recompute: str | tuple[str, ...] = "none"
    layout: str = "auto"

    def __post_init__(self) -> None:
        _whole("global_batch", self.global_batch, 1, _MOST_BATCH)
        _whole("accumulate", self.accumulate, 1, _MOST_BATCH)
        _whole("micro_batch", self.micro_batch, 0, _MOST_BATCH)
        _whole("seed", self.seed, 0, 2**63 - 1)
        if not isinstance(self.shares, Mapping):
            _word("shares", self.shares, SHARES, ", or a table of samples by device")
        _word("precision", self.precision, PRECISIONS)
        _word("exact", self.exact, EXACT)
        _word("on_nan", self.on_nan, NANS)
        _word("overlap", self.overlap, OVERLAPS)
        _word("layout", self.layout, LAYOUTS)
        _word("compression", self.compression, COMPRESSIONS)
        _whole("compression_rank", self.compression_rank, 1, _MOST_RANK)
        self._check_bitwise()

    def _check_bitwise(self) -> None:
        if self.exact != "bitwise":
            return
        if self.compression != "none" or self.sum_on:
            given = f"sum_on={self.sum_on!r}" if self.sum_on else f"compression={self.compression!r}"
            raise BadValueError(f"{given} rounds what exact='bitwise' keeps", remedy="leave one of the two out")
        if self.global_batch > _MOST_PARTS * self.unit:
            raise BadValueError(
                f"micro_batch={self.micro_batch} cuts {self.global_batch} samples into more than {_MOST_PARTS} parts",
                remedy="make it larger, so that the integer sums cannot overflow",
            )

    def cuts(self, devices: int) -> bool:
        """Return whether a step is computed in several passes over so many devices."""
        return devices > 1 or self.accumulate > 1 or self.micro_batch > 0 or self.exact == "bitwise"

    @property
    def unit(self) -> int:
        """Samples that stay together: 1, or the fixed micro-batch of `exact: bitwise`.

        Examples
        --------
        >>> TrainOptions(128).unit, TrainOptions(128, exact="bitwise").unit, TrainOptions(10, exact="bitwise").unit
        (1, 8, 1)
        """
        if self.exact != "bitwise":
            return 1
        fixed = -(-self.global_batch // _PARTS)
        return min(fixed, self.micro_batch) if self.micro_batch else fixed


def _whole(name: str, given: object, least: int, most: int) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
        raise BadValueError(f"{name}={given!r} is not allowed", remedy=f"give a whole number from {least} to {most}")


def _word(name: str, given: object, allowed: tuple[str, ...], more: str = "") -> None:
    if given not in allowed:
        raise BadValueError(
            f"{name}={given!r} is not allowed{did_you_mean(given, allowed)}",
            remedy=f"give {', '.join(allowed)}{more}",
        )


@dataclass(frozen=True, slots=True)
class EpochReport:
    """What one epoch was like.

    Attributes
    ----------
    epoch : counted from 1
    step : steps done since the start of training
    loss : mean over the epoch's samples
    accuracy : share of right answers in training, None where targets are no classes
    seconds : s of its training steps
    samples_per_s : samples/s
    shares : samples of the last whole step by device; 0 for one that is left out
    speeds : samples/s that each device would reach alone with the whole batch
    test_loss, test_accuracy : on the data that `fit` was given to test on, None without
    """

    epoch: int
    step: int
    loss: float
    accuracy: float | None
    seconds: float
    samples_per_s: float
    shares: dict[str, int]
    speeds: dict[str, float]
    test_loss: float | None = None
    test_accuracy: float | None = None

    @property
    def efficiency(self) -> float:
        """Achieved speed over the sum of the devices' own speeds."""
        return self.samples_per_s / sum(self.speeds.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the figures by name."""
        return {**asdict(self), "efficiency": self.efficiency}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a test found.

    Attributes
    ----------
    samples : how many were tested
    loss : mean
    accuracy : share of right answers, None where targets are no classes
    """

    samples: int
    loss: float
    accuracy: float | None


@dataclass(slots=True)
class Totals:
    """Sums since the beginning of an epoch, the same on every member.

    Attributes
    ----------
    samples, weight, loss, right, classes : counts and sums over the samples
    seconds : s of the steps
    steps : how many there were
    speeds : by device, the sum over the steps of what it would reach alone, samples/s
    """

    samples: float = 0.0
    weight: float = 0.0
    loss: float = 0.0
    right: float = 0.0
    classes: float = 0.0
    seconds: float = 0.0
    steps: int = 0
    speeds: dict[str, float] = field(default_factory=dict)
