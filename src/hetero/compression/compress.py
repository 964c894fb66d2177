"""Compression: a trained model made smaller, with what that does to its size, its speed and its accuracy.

In: a model, what to do, data. Out: the compressed model and figures of both. It must not change the model given.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import cloudpickle

from hetero.compression.files import pack
from hetero.compression.quantisation import WORDS, check_word, quantise
from hetero.drive.frame import Frame, running_frame
from hetero.drive.throttle import Stopwatch
from hetero.floor import clock
from hetero.floor.deprecation import moved_keywords, renamed_keywords
from hetero.floor.errors import BadValueError
from hetero.floor.files import atomic_write, output_file
from hetero.session.options import OPENING, ContextOptions, Fleet, lent_or_opened
from hetero.session.tasks import task
from hetero.train.bulk_inference import quietly

if TYPE_CHECKING:
    import torch

    from hetero.session.context import Context
    from hetero.train.trainer import Trainer
    from hetero.train.values import Evaluation, OptimizerMaker

__all__ = ["Compressed", "ModelFigures", "compress", "measure_here", "measure_speeds"]

_RATE = 1e-3

_PASS = 256
_SAMPLES = 1024
_BUDGET_S = 0.5
_LEAST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """What a model is like.

    Attributes
    ----------
    size_bytes
        Of its file.
    parameters
        How many there are, zeros counted.
    zeros_frac
        Share of zeros among the weights of its layers.
    accuracy
        Share of right answers on the test data, None where targets are no classes.
    loss
        Mean on the test data.
    samples_per_s
        Speed of each device.
    """

    size_bytes: int
    parameters: int
    zeros_frac: float
    accuracy: float | None
    loss: float | None
    samples_per_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Compressed:
    """A compressed model, and what became of it.

    Attributes
    ----------
    model
        The compressed one.
    before, after
        Figures of both.
    quantised
        How it was quantised, None where it was not.
    notes
        What was done to which layers.
    """

    model: torch.nn.Module
    before: ModelFigures
    after: ModelFigures
    quantised: str | None
    notes: tuple[str, ...]

    def save(self, path: str | Path, facts: Mapping[str, str] | None = None) -> Path:
        """Write the model as safetensors, whole or not at all.

        Parameters
        ----------
        facts
            Words kept beside it, for `hetero infer` and for people.
        """
        path = output_file(path, "path")
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, pack(self.model, facts or {}, self.quantised))
        return path

    def as_dict(self) -> dict[str, object]:
        """Return the figures for a program."""
        return {
            "before": asdict(self.before),
            "after": asdict(self.after),
            "quantised": self.quantised,
            "notes": list(self.notes),
        }


@renamed_keywords(quantise="quantize")
@moved_keywords(OPENING)
def compress(
    model: object,
    *,
    prune: float = 0.0,
    structured: bool = False,
    quantize: str | None = None,
    test: object = None,
    data: object = None,
    fine_tune: int = 0,
    loss: object = None,
    optimizer: OptimizerMaker | None = None,
    global_batch: int = 128,
    devices: Fleet | Context = None,
    context: ContextOptions | None = None,
) -> Compressed:
    """Prune and quantise a model, and measure it before and after.

    Parameters
    ----------
    model
        A `torch.nn.Module`; it stays as it is.
    prune
        Share of the weights to prune, at least 0 and below 1.
    structured
        True takes out whole channels, which makes the model faster; False makes single weights zero, which makes its
        file smaller.
    quantize
        'int8' or 'int8-weights', None to leave the weights as they are.
    test
        Data as for `hetero.Trainer`, on which accuracy and speed are measured.
    data, fine_tune, loss, optimizer, global_batch
        Train the pruned model further, for so many epochs of this data, as `hetero.Trainer` does; zeros stay zero.
        Cross-entropy and Adam where none is given.
    devices
        The fleet, as `hetero.Context` takes it, or a Context that is open.
    context
        How a Context is opened where `devices` is none.

    Raises
    ------
    BadValueError
        An argument is not allowed, nothing is asked for, or the model has layers that this cannot be done to.
    HeteroError
        torchao is needed and not installed.

    Examples
    --------
    >>> import hetero, torch
    >>> model = torch.nn.Linear(8, 8)
    >>> ctx = hetero.Context(devices="1xcpu", isolation="thread", history=False)
    >>> made = hetero.train.compress(model, prune=0.5, devices=ctx)
    >>> int((made.model.weight == 0).sum()), made.notes
    (32, ('50% of the weights made zero: the file is smaller, the model no faster',))
    >>> ctx.close()
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise BadValueError(f"{type(model).__name__} is no model", remedy="give a torch.nn.Module")
    _check(prune, quantize, fine_tune, data)
    job = _Job(prune, structured, quantize, fine_tune, loss or torch.nn.CrossEntropyLoss(), optimizer, global_batch)
    with lent_or_opened(devices, context, history=False) as ctx:
        made, notes = job.carry_out(model, data, ctx)
        speeds = measure_speeds(ctx, (model, made), test)
        before, after = (
            _figures(each, word, speed, job, test, ctx)
            for each, word, speed in zip((model, made), (None, quantize), speeds, strict=True)
        )
    return Compressed(made, before, after, quantize, tuple(notes))


def _check(prune: float, quantise: str | None, fine_tune: int, data: object) -> None:
    if isinstance(prune, bool) or not isinstance(prune, int | float) or not 0 <= prune < 1:
        raise BadValueError(f"prune={prune!r} is not allowed", remedy="give a share of at least 0 and below 1, as 0.5")
    if quantise is not None:
        check_word(quantise)
    if not prune and quantise is None:
        raise BadValueError("nothing to do", remedy="give prune=0.5, or quantize='int8'")
    if isinstance(fine_tune, bool) or not isinstance(fine_tune, int) or fine_tune < 0:
        raise BadValueError(f"fine_tune={fine_tune!r} is not allowed", remedy="give a whole number of epochs")
    if fine_tune and (not prune or data is None):
        raise BadValueError(
            f"fine_tune={fine_tune} trains a pruned model further", remedy="give prune= and data= to train on"
        )


@dataclass(frozen=True, slots=True)
class _Job:
    """What is to be done to a model."""

    prune: float
    structured: bool
    quantise: str | None
    fine_tune: int
    loss: object
    optimizer: OptimizerMaker | None
    global_batch: int

    def carry_out(self, model: torch.nn.Module, data: object, ctx: Context) -> tuple[torch.nn.Module, list[str]]:
        """Return a compressed copy of a model, and what was done."""
        made = copy.deepcopy(model)
        made.eval()
        notes: list[str] = []
        if self.prune:
            notes.append(self._prune(made))
        if self.fine_tune:
            with self.trainer(made, data, ctx) as trainer:
                trainer.fit(self.fine_tune)
            notes.append(f"trained further for {self.fine_tune} epochs")
        if self.prune:
            from hetero.compression.pruning import make_permanent

            make_permanent(made)
        if self.quantise is not None:
            names = quantise(made, self.quantise)
            notes.append(f"{self.quantise}: {', '.join(names)}; {WORDS[self.quantise]}; other layers as before")
        return made, notes

    def _prune(self, model: object) -> str:
        from hetero.compression.pruning import drop_channels, zero_weights

        if self.structured:
            drop_channels(model, self.prune)
            return f"{self.prune:.0%} of the channels taken out of every layer but the last"
        zero_weights(model, self.prune)
        return f"{self.prune:.0%} of the weights made zero: the file is smaller, the model no faster"

    def trainer(self, model: object, data: object, ctx: Context) -> Trainer:
        """Return a Trainer of a model on a fleet."""
        from hetero.train.trainer import Trainer

        return Trainer(
            model,
            self.loss,
            self.optimizer or _adam,
            data,
            global_batch=min(self.global_batch, _length(data)),
            devices=ctx,
        )


def _adam(parameters: object) -> object:
    import torch

    return torch.optim.Adam(parameters, lr=_RATE)


def _length(data: object) -> int:
    from hetero.train.data import as_samples

    return len(as_samples(data))


# --- figures -----------------------------------------------------------------------------------------------


def _figures(
    model: torch.nn.Module, quantised: str | None, speeds: Mapping[str, float], job: _Job, test: object, ctx: Context
) -> ModelFigures:
    from hetero.compression.pruning import zeros_frac

    tested: Evaluation | None = None
    if test is not None:
        with job.trainer(model, test, ctx) as trainer:
            tested = trainer.evaluate(test)
    return ModelFigures(
        size_bytes=len(pack(model, {}, quantised)),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        zeros_frac=zeros_frac(model),
        accuracy=None if tested is None else tested.accuracy,
        loss=None if tested is None else tested.loss,
        samples_per_s=speeds,
    )


def measure_speeds(ctx: Context, models: Sequence[object], test: object) -> list[dict[str, float]]:
    """Measure models on every device that torch knows, one device after the other.

    Returns
    -------
    list of dict
        For each model its samples/s by device; empty where there is no test data.

    Raises
    ------
    BadValueError
        The inputs are no array.
    """
    found: list[dict[str, float]] = [{} for _ in models]
    if test is None:
        return found
    from hetero.train.data import as_samples
    from hetero.train.trainer import can_train

    samples = as_samples(test, "test")
    some = samples.batch(range(min(len(samples), _SAMPLES)), 0, 0)[0]
    if not hasattr(some, "numpy"):
        raise BadValueError(f"test: inputs of {type(some).__name__} cannot be cut", remedy="give inputs as one array")
    inputs = ctx.put(some.numpy())
    parts = ctx.put(tuple(cloudpickle.dumps(model) for model in models))
    for device in filter(can_train, ctx.devices):
        speeds = ctx.submit(task(measure_here, on=(device.id,), name="measure"), parts, inputs).result()
        for known, speed in zip(found, speeds, strict=True):
            known[device.short] = speed
    return found


def measure_here(parts: Sequence[bytes], inputs: object) -> list[float]:
    """Return the samples/s of each model on this device; runs as a task.

    Parameters
    ----------
    parts
        Pickled models.
    inputs
        Array, first dimension the samples.
    """
    import torch

    from hetero.backends.registry import torch_place

    frame = running_frame()
    place = torch_place(frame.device)
    with quietly():
        models = [cloudpickle.loads(part).to(place).eval() for part in parts]
    batch = torch.from_numpy(inputs).to(place)
    took_s: list[list[float]] = [[] for _ in models]
    with torch.no_grad(), frame.backend.activate():
        for model in models:
            _pass_s(model, batch, frame)
        begun_s = clock.monotonic_s()
        while len(took_s[0]) < _LEAST_ROUNDS or clock.monotonic_s() - begun_s < _BUDGET_S:
            for model, known_s in zip(models, took_s, strict=True):
                known_s.append(_pass_s(model, batch, frame))
    return [len(batch) / median(known_s) for known_s in took_s]


def _pass_s(model: torch.nn.Module, batch: torch.Tensor, frame: Frame) -> float:
    """Return the seconds of one pass over a batch; the sleep of a throttled device belongs to its speed."""
    watch = Stopwatch(frame.device.throttle_frac)
    for piece in batch.split(_PASS):
        model(piece)
    frame.backend.synchronize()
    return watch.seconds()
