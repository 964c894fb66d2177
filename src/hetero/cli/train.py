"""`hetero train` and `hetero infer`: a recipe carried out, and the model that it saved put to use.

In: options. Out: the five steps in words, or one JSON document. The work is in `hetero.train`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetero.cli.options import Address, AsJson, Devices, Engine, Settings, as_setting
from hetero.cli.output import console, is_quiet, print_json, say, styled
from hetero.floor.text import single_line

if TYPE_CHECKING:
    from rich.progress import Progress

    from hetero.recipes.run import TrainingOutcome
    from hetero.train.values import EpochReport

__all__ = ["infer", "train"]


def train(
    recipe: Annotated[Path, typer.Argument(help="Recipe, a YAML file like examples/mnist.yaml.")],
    devices: Devices = None,
    engine: Engine = None,
    address: Address = None,
    set_: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint.")] = False,
    json: AsJson = False,
) -> None:
    """Train one model over this host's devices, or with Ray over those of many, as a recipe says."""
    from hetero.recipes.training import read_recipe

    settings = [*(set_ or []), *_as_settings(engine, address), *(["train.resume=true"] if resume else [])]
    wanted = read_recipe(recipe, settings)
    need_torch()
    from hetero.recipes.run import Watcher, carry_out

    if json:
        print_json(carry_out(wanted, Watcher(), devices=devices).as_dict())
        return
    if is_quiet():
        _tell_results(carry_out(wanted, Watcher(), devices=devices))
        return
    teller = _make_teller()
    try:
        outcome = carry_out(wanted, teller, devices=devices)
    finally:
        teller.stop()
    _tell_results(outcome)


def infer(
    model: Annotated[Path, typer.Argument(help="Model that `hetero train` saved.")],
    images: Annotated[list[Path], typer.Argument(help="Pictures: PNG and the like, .npy, or MNIST's idx files.")],
    devices: Devices = None,
    engine: Engine = None,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Run a saved model on pictures, over this host's devices, or with Ray over those of many."""
    need_torch()
    from hetero.recipes.saved_models import infer as run

    answers = run(model, images, devices=devices, set=_as_settings(engine, address))
    if json:
        print_json({"model": str(model), "answers": [answer._asdict() for answer in answers]})
        return
    for answer in answers:
        say(f"{single_line(answer.image)}: {answer.label} ({answer.confidence:.1%})")


def _as_settings(engine: str | None, address: str | None) -> list[str]:
    named = {"engine": engine, "address": address}
    return [as_setting(key, word) for key, word in named.items() if word is not None]


def need_torch() -> None:
    """Check that torch and safetensors are there."""
    from hetero.floor.errors import MissingPackageError
    from hetero.floor.extras import is_there

    absent = [name for name in ("torch", "safetensors") if not is_there(name)]
    if absent:
        problem = f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed"
        raise MissingPackageError(problem, remedy="pip install 'hetero-core[train]'")


def _make_teller() -> Any:
    """Make what tells people: lines, and a live bar on a terminal."""
    from hetero.recipes.run import Watcher

    class TrainPrinter(Watcher):
        needs_model = False

        def __init__(self) -> None:
            self.out = console()
            self.bar: Progress | None = None
            self.steps = 0
            self.shared = False

        def on_stage(self, number: int, title: str, facts: list[str]) -> None:
            self.stop()
            self.out.print(f"{number}/5 {title}", style="bold")
            for fact in facts:
                self.out.print(f"    {single_line(fact)}", soft_wrap=True)
            if number == 3 and sys.stdout.isatty():
                self._start_bar()

        def on_size(self, steps: int) -> None:
            self.steps = steps

        def _start_bar(self) -> None:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = TextColumn("    step"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]}")
            self.bar = Progress(*columns, TimeRemainingColumn(), console=self.out, transient=True)
            self.bar.add_task("steps", total=self.steps, loss="–")
            self.bar.start()

        def on_step(self, step: int, loss: float) -> None:
            if self.bar is not None:
                self.bar.update(self.bar.task_ids[0], completed=step, loss=f"{loss:.3f}")

        def on_plan(self, shares: dict[str, int]) -> None:
            if not self.shared:
                self.out.print(f"    first shares: {_listed(shares)}", soft_wrap=True)
            self.shared = True

        def on_epoch(self, report: EpochReport) -> bool:
            self.out.print(f"    {_epoch_line(report)}", soft_wrap=True)
            return False

        def on_note(self, text: str) -> None:
            self.out.print(styled(("    note:", "yellow"), f" {text}"), soft_wrap=True)

        def stop(self) -> None:
            if self.bar is not None:
                self.bar.stop()
                self.bar = None

    return TrainPrinter()


def _listed(shares: dict[str, int]) -> str:
    return ", ".join(f"{device} {share}" for device, share in shares.items())


def _epoch_line(report: EpochReport) -> str:
    accuracy = report.test_accuracy if report.test_accuracy is not None else report.accuracy
    percent = "" if accuracy is None else f", accuracy {accuracy:.2%}"
    speed = f"{report.samples_per_s:,.0f} samples/s"
    reached = f"{report.efficiency:.0%} of the sum of the devices' speeds"
    return f"epoch {report.epoch}: loss {report.loss:.4f}{percent}, {speed}, {_listed(report.shares)}, {reached}"


def _tell_results(outcome: TrainingOutcome) -> None:
    out = console()
    if outcome.tested.accuracy is not None:
        out.print(f"    {outcome.tested.accuracy:.2%} of the pictures held back are told right")
    if outcome.reports:
        speed = f"{outcome.samples_per_s:,.0f} samples/s"
        out.print(f"    {speed}, {outcome.efficiency:.0%} of the sum of the devices' own speeds")
    else:
        out.print(f"    all {outcome.before} epochs were done before")
    out.print("5/5 save the model", style="bold")
    for what, path in (("model", outcome.model), ("metrics", outcome.metrics), ("trace", outcome.trace)):
        out.print(f"    {what}: {path}", soft_wrap=True)
