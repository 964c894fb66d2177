"""A model over many samples: each device takes batches of its own size from one queue, results come in order.

In: a model that stays as it is, samples. Out: what it gives for each batch, in the order of the samples.
It must not train.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from hetero.backends.registry import torch_place
from hetero.backends.torch import is_out_of_memory
from hetero.floor import clock
from hetero.floor.contexts import transparent
from hetero.model.device import Device
from hetero.session.tasks import task
from hetero.train.compatibility import in_process
from hetero.train.data import Samples
from hetero.train.metrics import Outputs
from hetero.train.replica import Judge
from hetero.train.values import TrainOptions

if TYPE_CHECKING:
    from concurrent.futures import Future

    from hetero.session.context import Context

__all__ = ["PackedModel", "evaluate_part", "predict_part", "quietly", "run_over"]

_FIRST = 16
_AIM_S = 0.1
_GUIDED = 3.0
_QUEUED = 2
_NOISY = ("torchao", "torch.utils._pytree")
_kept: dict[str, tuple[int, object]] = {}


@dataclass(frozen=True, slots=True)
class PackedModel:
    """A model as it travels.

    Attributes
    ----------
    parts
        Pickled (model, loss).
    options
        Of the run.
    number
        Of this model in its program; a worker keeps the last one it had.
    process
        Settings of torch's that hold for the program.
    measures
        True where the program has metrics of the outputs.
    """

    parts: bytes
    options: TrainOptions
    number: int
    process: Mapping[str, object] = field(default_factory=dict)
    measures: bool = False


@transparent
def quietly() -> Iterator[None]:
    """Keep torchao from telling, when it is imported, of kernels that are for other devices."""
    loggers = [logging.getLogger(name) for name in _NOISY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _model(work: PackedModel, place: str) -> Any:
    """Return this worker's copy of the model, unpickled once."""
    if _kept.get(place, (0, None))[0] != work.number:
        with quietly():
            model, loss = cloudpickle.loads(work.parts)
        _kept[place] = work.number, Judge(model, loss, work.options, place)
    return _kept[place][1]


def predict_part(work: PackedModel, samples: Samples, begin: int, end: int) -> object:
    """Return the model's outputs for some samples as one array; runs as a task."""
    judge = _model(work, _place())
    with in_process(work.process):
        return np.concatenate(_in_parts(lambda some: judge.predict(samples, some).numpy(), range(begin, end)))


def evaluate_part(work: PackedModel, samples: Samples, begin: int, end: int) -> tuple[list[float], list[Outputs]]:
    """Return the sums over some samples, and outputs and targets where these are measured; runs as a task."""
    judge = _model(work, _place())

    def evaluate(some: range) -> tuple[list[float], list[Outputs]]:
        passes: list[Outputs] = []
        return judge.evaluate(samples, some, len(some), passes if work.measures else None).header, passes

    with in_process(work.process):
        parts = _in_parts(evaluate, range(begin, end))
    sums = [sum(column) for column in zip(*(header for header, _ in parts), strict=True)]
    return sums, [each for _, passes in parts for each in passes]


def _in_parts(run: Callable[[range], object], ids: range) -> list[Any]:
    """Run a function over samples at once, or over halves of them, in order, as far as memory demands."""
    try:
        return [run(ids)]
    except (MemoryError, RuntimeError) as error:
        if len(ids) == 1 or not is_out_of_memory(error):
            raise
    gc.collect()
    middle = len(ids) // 2
    return [*_in_parts(run, ids[:middle]), *_in_parts(run, ids[middle:])]


def _place() -> str:
    from hetero.drive.frame import current

    frame = current()
    return "cpu" if frame is None else torch_place(frame.device)


@dataclass(slots=True)
class _Pace:
    """How fast one device has been, and what it works on."""

    device: Device
    task: Any
    speed: float = 0.0
    since_s: float = 0.0
    queued: list[tuple[Any, int, int]] = field(default_factory=list)

    def learn(self, samples: int, now_s: float) -> None:
        """Record a batch that is done."""
        took_s = max(now_s - self.since_s, 1e-6)
        fresh = samples / took_s
        self.speed = fresh if not self.speed else 0.5 * (self.speed + fresh)
        self.since_s = now_s


def run_over(
    ctx: Context, devices: Sequence[Device], function: Callable[..., object], work: object, samples: object, count: int
) -> list[object]:
    """Run a function of (work, samples, begin, end) over all samples.

    Parameters
    ----------
    work, samples
        Handed to the function as they are; futures travel once.
    count
        Number of samples.

    Returns
    -------
    list
        What the function gave, in the order of the samples.

    Notes
    -----
    A device's batch aims at 0.1 s and is at most a third of its part of what is left, so that all end together.
    """
    from concurrent.futures import FIRST_COMPLETED, wait

    paces = [_Pace(device, task(function, on=(device.id,), name=function.__name__)) for device in devices]
    found: dict[int, object] = {}
    place = 0
    while place < count or any(pace.queued for pace in paces):
        for pace in paces:
            while place < count and len(pace.queued) < (_QUEUED if pace.speed else 1):
                end = min(count, place + _size(pace, paces, count - place))
                if not pace.queued:
                    pace.since_s = clock.monotonic_s()
                future = ctx.submit(pace.task, work, samples, place, end)
                pace.queued.append((future, place, end))
                place = end
        waiting: list[Future[object]] = [pace.queued[0][0] for pace in paces if pace.queued]
        wait(waiting, return_when=FIRST_COMPLETED)
        for pace in paces:
            while pace.queued and pace.queued[0][0].done():
                future, begin, end = pace.queued.pop(0)
                found[begin] = future.result()
                pace.learn(end - begin, clock.monotonic_s())
    return [found[begin] for begin in sorted(found)]


def _size(pace: _Pace, paces: Sequence[_Pace], left: int) -> int:
    if not pace.speed:
        return _FIRST
    others = sum(other.speed or pace.speed for other in paces)
    return max(1, min(int(pace.speed * _AIM_S), int(left * pace.speed / others / _GUIDED)))
