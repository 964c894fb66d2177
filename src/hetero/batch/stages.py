"""Pipelines: several functions one after the other, each where it runs best.

In: functions, and what each asks of its device. Out: a value that `map_batches` takes for its function.
It must not start anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hetero.batch.functions import Prepared, function_identity, function_key, prepared
from hetero.batch.precision import Wish
from hetero.floor.errors import BadValueError
from hetero.model.device import Device
from hetero.session.requests import check_word

__all__ = ["Pipeline", "Stage", "StageChain", "chained", "pipeline"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One function of a pipeline.

    Attributes
    ----------
    function
        As `map_batches` takes it.
    on
        Device words that may run it, as in ('gpu',); empty for all.
    """

    function: object
    on: tuple[str, ...] = ()

    def may_run_on(self, device: Device) -> bool:
        """Return whether a device may run it."""
        return not self.on or not device.words.isdisjoint(self.on)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Functions one after the other; give it to `map_batches` as its function.

    Attributes
    ----------
    stages
        In the order in which records go through them.
    """

    stages: tuple[Stage, ...]

    @property
    def identity(self) -> str:
        """Digests of what its functions compute."""
        return " | ".join(f"{function_identity(stage.function)} on {','.join(stage.on)}" for stage in self.stages)

    @property
    def key(self) -> str:
        """Name its functions, the same in every run for the same code."""
        return " | ".join(function_key(stage.function) for stage in self.stages)


class StageChain:
    """Some stages in one call, each made ready once a worker.

    Parameters
    ----------
    parts
        Of the stages.
    """

    def __init__(self, parts: Sequence[Prepared]) -> None:
        self._parts = parts
        self._ready: list[Callable[[object], object]] = []

    @property
    def computed_in(self) -> str:
        """Precision in which the models compute on this device."""
        words = (getattr(stage, "computed_in", "") for stage in self._ready)
        return "; ".join(word for word in words if word)

    def setup(self, device: Device) -> None:
        """Make every stage ready for a device."""
        self._ready = [part.for_device(device) for part in self._parts]

    def __call__(self, batch: object) -> object:
        """Run the stages over a batch."""
        for stage in self._ready:
            batch = stage(batch)
        return batch


def chained(stages: Sequence[Stage], wish: Wish) -> Prepared:
    """Return what a worker calls for some stages."""
    return Prepared(StageChain([prepared(stage.function, wish) for stage in stages]))


def pipeline(*stages: object) -> Pipeline:
    """Create a pipeline of functions, which `map_batches` divides among the devices.

    Parameters
    ----------
    *stages
        Functions of a batch as `map_batches` takes them; with a device word, (function, 'gpu') or (function, ['cpu',
        'npu']), only such devices run it. Each gives one result for each record.

    Raises
    ------
    BadValueError
        There is no stage, or a word names no kind of device.

    Examples
    --------
    >>> import hetero
    >>> def double(batch):
    ...     return [2 * x for x in batch]
    >>> steps = hetero.batch.pipeline(lambda batch: [x + 1 for x in batch], (double, "cpu"))
    >>> hetero.batch.map_batches(steps, [1, 2, 3], devices="1xcpu").value
    [4, 6, 8]
    """
    if not stages:
        raise BadValueError("a pipeline needs a stage", remedy="write hetero.batch.pipeline(decode, model)")
    return Pipeline(tuple(_stage(given) for given in stages))


def _stage(given: object) -> Stage:
    if isinstance(given, Stage):
        return given
    if isinstance(given, tuple):
        if len(given) != 2:
            raise BadValueError(f"a stage of {len(given)} parts is not allowed", remedy="write (function, 'gpu')")
        words = (given[1],) if isinstance(given[1], str) else tuple(given[1])
        return Stage(given[0], tuple(check_word("on", word) for word in words))
    return Stage(given)
