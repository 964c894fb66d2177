"""Values of a training run: what was asked for, what an epoch was like, what came out.

In: checked arguments, figures. Out: frozen values that travel between processes. It must not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hetero.floor import settings
from hetero.floor.errors import BadValueError, HeteroError, did_you_mean
from hetero.floor.options import check_fields
from hetero.stores.urls import is_url

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

__all__ = [
    "CHECKPOINT_KEYS",
    "COMPRESSIONS",
    "EXACT",
    "FIGURES",
    "LAYOUTS",
    "NANS",
    "OVERLAPS",
    "PRECISIONS",
    "SCHEDULE_STEPS",
    "SHARES",
    "CheckpointOptions",
    "DataOptions",
    "EpochReport",
    "Evaluation",
    "NotANumberError",
    "OptimizerMaker",
    "StepReport",
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
SCHEDULE_STEPS = ("step", "epoch")
_PARTS = 16
_MOST_PARTS = 256
_MOST_BATCH = 2**24
_MOST_RANK = 1024

OptimizerMaker: TypeAlias = "Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]"
"""Makes the optimizer of some parameters."""


class TrainingError(HeteroError):
    """A training run cannot start or go on."""


class NotANumberError(TrainingError):
    """The loss is not a number; the message names the step and the samples."""


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How steps are computed; each field is a key of `train` in a recipe, too.

    Attributes
    ----------
    global_batch
        Samples of a step over all devices.
    shares
        'auto', 'equal', 'proportional', or samples by device, as in {'cpu:0': 96, 'cpu:1': 32}.
    precision
        'fp32' computes in the model's own precision, 'bf16' and 'fp16' in half of it where that is safe; weights and
        their sums stay as the model has them.
    exact
        'sum' for exact weighting, or 'bitwise' for the same bits however the batch is shared.
    accumulate
        Passes that a device makes at least for its share of a step.
    micro_batch
        Most samples of a pass, 0 for as many as a device's memory holds.
    on_nan
        'stop' or 'skip' where a loss is not a number.
    seed
        Of the order of samples, of dropout and of augmentation; HETERO_SEED where None is given.
    shuffle
        True for a new order every epoch, as where nothing is said; None for a DataLoader's own way where one is given.
    overlap
        'auto', 'always' or 'never': whether gradients travel while others are still being computed.
    compression
        'none', 'fp16', 'bf16' or 'powersgd', of gradients as they travel.
    compression_rank
        Columns of the factors of 'powersgd'.
    sum_on
        The device of the fleet that adds up gradients, '' where the members do.
    recompute
        'none'; 'blocks', or names of modules, to compute what is inside them again in the backward pass instead of
        keeping it.
    layout
        Of what convolutions work on in memory: 'channels_last', 'channels_first' as the model has it, or 'auto' for
        what each device is found to be sooner with.
    clip_norm
        Largest norm of the summed gradients of a step, all parameters taken together; longer ones are scaled down.
    clip_value
        Largest magnitude of an entry of the summed gradients of a step.
    schedule
        Of the learning rate: a function of the optimizer that makes a scheduler of torch's, or the name of such a class
        with its arguments, as in {'CosineAnnealingLR': {'T_max': 100}}.
    schedule_each
        'step' or 'epoch', after which the schedule makes its step.
    ema_decay
        Of an exponential moving average of the weights, which follows every step.

    Raises
    ------
    BadValueError
        A value is not allowed, or two of them exclude one another.

    Examples
    --------
    >>> TrainOptions(128, precision="bf16", shares={"cpu:0": 96, "cpu:1": 32}).precision
    'bf16'
    """

    global_batch: int
    shares: str | Mapping[str, int] = "auto"
    precision: str = "fp32"
    exact: str = "sum"
    accumulate: int = 1
    micro_batch: int = 0
    on_nan: str = "stop"
    seed: int = field(default_factory=settings.seed)
    shuffle: bool | None = None
    overlap: str = "auto"
    compression: str = "none"
    compression_rank: int = 4
    sum_on: str = ""
    recompute: str | Sequence[str] = "none"
    layout: str = "auto"
    clip_norm: float | None = None
    clip_value: float | None = None
    schedule: Callable[[Optimizer], LRScheduler] | Mapping[str, Mapping[str, object]] | None = None
    schedule_each: str = "step"
    ema_decay: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)
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
        if not isinstance(self.recompute, str):
            object.__setattr__(self, "recompute", tuple(self.recompute))
        self._check_bitwise()
        self._check_update()

    def _check_update(self) -> None:
        for name in ("clip_norm", "clip_value"):
            given = getattr(self, name)
            if given is not None and not 0 < given < float("inf"):
                raise BadValueError(f"{name}={given!r} is not allowed", remedy="give a number above 0, or None")
        if self.clip_norm is not None and self.clip_value is not None:
            raise BadValueError(
                f"clip_norm={self.clip_norm:g} and clip_value={self.clip_value:g} clip the same gradients",
                remedy="leave one of the two out",
            )
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise BadValueError(
                f"ema_decay={self.ema_decay!r} is not allowed", remedy="give a number from 0 to below 1, as 0.999"
            )
        _word("schedule_each", self.schedule_each, SCHEDULE_STEPS)
        if self.schedule is None and self.schedule_each != "step":
            raise BadValueError(
                f"schedule_each={self.schedule_each!r} has no effect without a schedule", remedy="give schedule=, too"
            )
        if isinstance(self.schedule, Mapping) and len(self.schedule) != 1:
            raise BadValueError(
                f"schedule={dict(self.schedule)!r} names {len(self.schedule)} schedulers",
                remedy="give one, as {'CosineAnnealingLR': {'T_max': 100}}, or several as parts of a SequentialLR",
            )

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
        """Return whether a step is computed in several passes over so many devices.

        Examples
        --------
        >>> TrainOptions(128).cuts(1), TrainOptions(128).cuts(2)
        (False, True)
        """
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


@dataclass(frozen=True, slots=True)
class DataOptions:
    """How samples are read and drawn.

    Attributes
    ----------
    cost
        What each sample costs, one number a sample, where samples differ; shares are by cost then.
    augment
        Changes the inputs of one sample whenever it is trained on; what it draws is keyed by the sample.
    readers
        Processes beside each device that read and augment ahead; None for those of a DataLoader, or one when reading
        is found to hold the device up.
    sample_log
        Folder of a log of which device computed which samples, for `check_sample_log`; None for none.

    Raises
    ------
    BadValueError
        A value is not allowed.

    Examples
    --------
    >>> DataOptions(readers=2, sample_log="log").readers
    2
    """

    cost: Iterable[float] | None = None
    augment: Callable[[Any], object] | None = None
    readers: int | None = None
    sample_log: str | Path | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.readers is not None and self.readers < 0:
            raise BadValueError(
                f"readers={self.readers!r} is not allowed", remedy="give a whole number, 0 or more, or None"
            )


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """Where a run's checkpoints go, and how often.

    Attributes
    ----------
    folder
        Of the checkpoints, or the URL of one in an object store.
    every
        Steps between them, an epoch where None is given.
    keep
        The newest so many stay.

    Raises
    ------
    BadValueError
        There is no folder, or a number is not allowed.

    Examples
    --------
    >>> CheckpointOptions("runs", every=100).keep
    3
    """

    folder: str | Path = ""
    every: int | None = None
    keep: int = 3

    def __post_init__(self) -> None:
        check_fields(self)
        if not str(self.folder):
            given = {"every": self.every, "keep": None if self.keep == 3 else self.keep}
            words = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
            raise BadValueError(
                f"{words or 'keep=3'} has no effect without a folder of checkpoints",
                remedy="give checkpoint=CheckpointOptions(FOLDER, …), or leave it out",
            )
        if str(self.folder).lower().startswith("memory:"):
            raise BadValueError(f"{self.folder} is gone when a process ends", remedy="give a folder or another URL")
        for name, number in (("every", self.every), ("keep", self.keep)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise BadValueError(f"{name}={number!r} is not allowed", remedy="give a whole number, 1 or more")

    @property
    def path(self) -> str:
        """The folder's absolute path, or its URL."""
        return str(self.folder) if is_url(self.folder) else str(Path(self.folder).expanduser().absolute())


FIGURES = ("loss", "accuracy", "test_loss", "test_accuracy", "seconds", "samples_per_s")
"""Of an `EpochReport`, beside its metrics."""
CHECKPOINT_KEYS = {"checkpoint": "folder", "checkpoint_every": "every", "keep": "keep"}
"""The fields of `CheckpointOptions` by key of a recipe."""


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
    epoch
        Counted from 1.
    step
        Steps done since the start of training.
    loss
        Mean over the epoch's samples.
    accuracy
        Share of right answers in training, None where targets are no classes.
    seconds
        Seconds of its training steps.
    samples_per_s
        Samples/s.
    shares
        Samples of the last whole step by device; 0 for one that is left out.
    speeds
        Samples/s that each device would reach alone with the whole batch.
    test_loss, test_accuracy
        On the data that `fit` was given to test on, None without.
    metrics
        Of the Trainer, on the same data, by name.
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
    metrics: dict[str, float | list[float]] = field(default_factory=dict)

    @property
    def efficiency(self) -> float:
        """Achieved speed over the sum of the devices' own speeds."""
        return self.samples_per_s / sum(self.speeds.values())

    def as_dict(self) -> dict[str, object]:
        """Return the figures by name."""
        return {**asdict(self), "efficiency": self.efficiency}


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step was like.

    Attributes
    ----------
    epoch, step
        Counted from 1.
    loss
        Mean over the step's samples, before its update.
    learning_rates
        That it was made with, one a parameter group.
    seconds
        That it took.
    shares
        Its samples by device.

    Examples
    --------
    >>> StepReport(1, 3, 0.5, (0.1,), 0.01, {"cpu:0": 24, "cpu:1": 8}).step
    3
    """

    epoch: int
    step: int
    loss: float
    learning_rates: tuple[float, ...]
    seconds: float
    shares: dict[str, int]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a test found.

    Attributes
    ----------
    samples
        How many were tested.
    loss
        Mean.
    accuracy
        Share of right answers, None where targets are no classes.
    metrics
        Of the Trainer, by name.
    """

    samples: int
    loss: float
    accuracy: float | None
    metrics: dict[str, float | list[float]] = field(default_factory=dict)


@dataclass(slots=True)
class Totals:
    """Sums since the beginning of an epoch, the same on every member.

    Attributes
    ----------
    samples, weight, loss, right, classes
        Counts and sums over the samples.
    seconds
        Seconds of the steps.
    steps
        How many there were.
    speeds
        By device, the sum over the steps of what it would reach alone, samples/s.
    """

    samples: float = 0.0
    weight: float = 0.0
    loss: float = 0.0
    right: float = 0.0
    classes: float = 0.0
    seconds: float = 0.0
    steps: int = 0
    speeds: dict[str, float] = field(default_factory=dict)
