"""A recipe carried out: the five steps from devices to a saved model.

In: a recipe. Out: the trained model, its figures and its trace in one folder; lines for people meanwhile.
It must not decide what is trained or how: the recipe does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hetero.floor.errors import BadValueError
from hetero.floor.files import atomic_write, output_folder
from hetero.recipes.mnist import Digits, download, load_digits, load_mnist, network
from hetero.recipes.training import Recipe
from hetero.session.options import ContextOptions
from hetero.train.callbacks import BestWeights
from hetero.train.listener import Listener
from hetero.train.values import EpochReport, Evaluation

if TYPE_CHECKING:
    import torch

    from hetero.train.trainer import Trainer

__all__ = ["TrainingOutcome", "Watcher", "carry_out", "load", "make_model", "make_optimizer"]


class Watcher(Listener):
    """Hears of the five steps besides what a `Listener` hears."""

    def on_stage(self, number: int, title: str, facts: list[str]) -> None:
        """Handle the event that one of the five steps begins."""

    def on_size(self, steps: int) -> None:
        """Handle the number of steps that there will be."""


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """What a run came to.

    Attributes
    ----------
    reports
        Of every epoch of this run.
    before
        Epochs that an earlier run had done.
    tested
        The model that was saved, on the data held back.
    devices
        Names and what they are.
    notes
        Devices left out, lost or joined.
    model, metrics, trace
        Files.
    origin
        What was trained on.
    """

    reports: tuple[EpochReport, ...]
    before: int
    tested: Evaluation
    devices: dict[str, str]
    notes: tuple[str, ...]
    model: Path
    metrics: Path
    trace: Path
    origin: str

    @property
    def samples_per_s(self) -> float:
        """Samples/s over all epochs, 0 where an earlier run had done all of them."""
        seconds = sum(report.seconds for report in self.reports)
        return sum(r.samples_per_s * r.seconds for r in self.reports) / seconds if seconds else 0.0

    @property
    def efficiency(self) -> float:
        """Achieved speed over the sum of the devices' own speeds, 0 where an earlier run had done all epochs."""
        return self.samples_per_s / sum(self.reports[-1].speeds.values()) if self.reports else 0.0

    def as_dict(self) -> dict[str, object]:
        """Return the figures for a program."""
        last = self.reports[-1] if self.reports else None
        return {
            "test_accuracy": self.tested.accuracy,
            "test_loss": self.tested.loss,
            "epochs": self.before + len(self.reports),
            "resumed_after": self.before,
            "loss": None if last is None else last.loss,
            "shares": {} if last is None else last.shares,
            "speeds": {} if last is None else last.speeds,
            "efficiency": self.efficiency,
            "samples_per_s": self.samples_per_s,
            "model": str(self.model),
            "metrics": str(self.metrics),
            "trace": str(self.trace),
            "data": self.origin,
            "devices": self.devices,
            "notes": list(self.notes),
            "history": [report.as_dict() for report in self.reports],
        }


def carry_out(recipe: Recipe, watcher: Watcher, *, devices: str | None = None) -> TrainingOutcome:
    """Train what a recipe says, over the devices of this host or those named.

    Parameters
    ----------
    devices
        The fleet, before what the recipe says.

    Raises
    ------
    HeteroError
        Whatever is wrong with the data, the devices or the recipe.
    """
    import torch

    from hetero.train.trainer import Trainer

    output = output_folder(recipe.output, "output")
    trace = Path(recipe.context.get("trace") or output / "trace.jsonl.gz").expanduser()
    context = {key: value for key, value in recipe.context.items() if key != "trace"}
    digits = load(recipe)
    torch.manual_seed(recipe.options.seed)
    model = make_model(recipe.model)
    with Trainer(
        model,
        torch.nn.CrossEntropyLoss(),
        make_optimizer(recipe),
        digits.train,
        devices=devices,
        options=recipe.options,
        data_options=recipe.data_options,
        checkpoint=recipe.checkpoint,
        callbacks=recipe.callbacks,
        context=ContextOptions(config=context, trace=trace),
    ) as trainer:
        fleet = {device.short: device for device in trainer.context.devices}
        about = {name: f"{each.name}{_throttled(each.throttle_frac)}" for name, each in fleet.items()}
        watcher.on_stage(1, "initialise the compute resources", [f"{name}: {text}" for name, text in about.items()])
        sizes = f"{len(digits.train[0])} pictures to train on, {len(digits.test[0])} held back: {digits.origin}"
        watcher.on_stage(
            2, "assign tasks", [sizes, f"{recipe.options.global_batch} samples a step, {_sharing(recipe)}"]
        )
        watcher.on_size(recipe.epochs * -(-len(digits.train[0]) // recipe.options.global_batch))
        before = _resume(trainer, watcher) if recipe.resume else 0
        watcher.on_stage(3, "execute", [f"goes on after step {trainer.step}"] if trainer.step else [])
        reports = trainer.fit(max(0, recipe.epochs - before), test=digits.test, listener=watcher)
        ema = recipe.options.ema_decay is not None
        changed = ema or any(isinstance(each, BestWeights) for each in recipe.callbacks)
        last = None if changed else _tested(reports, len(digits.test[0]))
        tested = last or trainer.evaluate(digits.test, ema=ema)
        watcher.on_stage(4, "collect results", [])
        saved = trainer.save(output / "model.safetensors", {"hetero.model": recipe.model}, ema=ema)
        notes = tuple(trainer.notes)
    metrics = output / "metrics.json"
    outcome = TrainingOutcome(tuple(reports), before, tested, about, notes, saved, metrics, trace, digits.origin)
    atomic_write(metrics, json.dumps(outcome.as_dict(), indent=2).encode())
    return outcome


def _resume(trainer: Trainer, watcher: Watcher) -> int:
    """Return to the newest checkpoint and tell what was wrong with newer ones; returns the epochs that were done."""
    done = trainer.resume()
    for note in trainer.notes:
        watcher.on_note(note)
    return done


def _tested(reports: list[EpochReport], samples: int) -> Evaluation | None:
    """Return the test that the last epoch ended with."""
    if not reports or reports[-1].test_loss is None:
        return None
    return Evaluation(samples, reports[-1].test_loss, reports[-1].test_accuracy)


def load(recipe: Recipe) -> Digits:
    """Read the data of a recipe; fetch what is absent where it says so."""
    if recipe.data_path is None:
        return load_digits()
    return load_mnist(download(recipe.data_path) if recipe.download else recipe.data_path)


def make_model(word: str) -> torch.nn.Module:
    """Make the model that a recipe names: 'mnist', or what a function in a file gives.

    Raises
    ------
    BadValueError
        There is no such file or function.
    """
    if word == "mnist":
        return network()
    path, colon, name = word.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise BadValueError(f"model: {word!r} is not known", remedy="write 'mnist', or 'file.py:function'")
    made = _function(Path(path).expanduser(), name)()
    return made


def _function(path: Path, name: str) -> Callable[[], object]:
    import runpy

    if not path.is_file():
        raise BadValueError(f"model: {path}: there is no such file", remedy="give the path from where you are")
    found = runpy.run_path(str(path), run_name="hetero_model").get(name)
    if not callable(found):
        raise BadValueError(f"model: {path} has no function {name!r}", remedy="write 'file.py:function'")
    made: Callable[[], object] = found
    return made


def make_optimizer(recipe: Recipe) -> Callable[[object], object]:
    """Return a function that makes the optimizer of a recipe for some parameters."""
    import torch

    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[recipe.optimizer]
    rate = recipe.learning_rate

    def make(parameters: object) -> object:
        return kind(parameters, lr=rate, fused=True)

    return make


def _throttled(frac: float) -> str:
    return f", throttled to {frac:g} of its speed" if frac < 1.0 else ""


def _sharing(recipe: Recipe) -> str:
    shares = recipe.options.shares
    return "shared by what each device can carry" if shares == "auto" else f"shares: {shares}"
