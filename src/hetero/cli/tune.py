"""`hetero tune`: trials over this host's devices, and the best of them.

In: options. Out: a line a trial, a live table on a terminal, or one JSON document. The work is in `hetero.train`.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.options import AsJson, Devices, Settings
from hetero.cli.output import console, is_quiet, print_json, say, styled
from hetero.floor.errors import ExitCode

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from hetero.recipes.tune import SearchOutcome
    from hetero.tune.values import SearchListener, TrialReport

__all__ = ["tune"]

_SHOWN = 12


def tune(
    recipe: Annotated[Path, typer.Argument(help="Recipe with ranges, like examples/tune.yaml.")],
    devices: Devices = None,
    set_: Settings = None,
    json: AsJson = False,
) -> None:
    """Search for the best values of a recipe or a function; run anew, it goes on with what was stopped."""
    from hetero.recipes.tune import carry_out_search, read_search
    from hetero.tune.values import SearchListener

    wanted = read_search(recipe, set_ or [])
    teller = SearchListener() if json or is_quiet() else _make_teller()
    try:
        outcome = carry_out_search(wanted, teller, devices=devices)
    except KeyboardInterrupt:
        study = wanted.output / "study.sqlite3"
        say(f"hetero: interrupted; the trials that ended are in {study}, the same command goes on", to=sys.stderr)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    finally:
        getattr(teller, "stop", lambda: None)()
    if json:
        print_json(outcome.as_dict())
    else:
        _tell_results(outcome)


def _make_teller() -> SearchListener:
    """Make what tells people: a line a trial, and on a terminal a live table of what runs."""
    from hetero.tune.values import SearchListener

    class SearchPrinter(SearchListener):
        def __init__(self) -> None:
            self.out = console()
            self.live: Live | None = None
            self.ended = self.trials = 0
            self.last: deque[TrialReport] = deque(maxlen=_SHOWN)
            self.best: TrialReport | None = None
            self.running: Mapping[str, tuple[int, Mapping[str, object]]] = {}
            self.values: dict[int, tuple[int, float]] = {}

        def on_start(self, devices: Mapping[str, str], ended: int, trials: int) -> None:
            self.ended, self.trials = ended, trials
            before = f", {ended} of them from before" if ended else ""
            fleet = ", ".join(f"{device} ({name})" for device, name in devices.items())
            self.out.print(f"{trials} trials{before}, over {fleet}", soft_wrap=True)
            if sys.stdout.isatty():
                from rich.live import Live

                self.live = Live(console=self.out, refresh_per_second=4, transient=True)
                self.live.start()

        def on_running(self, running: Mapping[str, tuple[int, Mapping[str, object]]]) -> None:
            self.running = running
            self.draw()

        def on_value(self, number: int, step: int, value: float) -> None:
            self.values[number] = (step, value)
            self.draw()

        def on_trial(self, trial: TrialReport, best: TrialReport | None) -> None:
            self.ended += 1
            self.last.append(trial)
            self.best = best
            if self.live is None:
                word = "  (best so far)" if best is trial else ""
                text = (
                    f"{self.ended}/{self.trials} trial {trial.number}: {_outcome(trial)}{word}  {_listed(trial.params)}"
                )
                self.out.print(text, soft_wrap=True)
            self.draw()

        def draw(self) -> None:
            if self.live is not None:
                self.live.update(self._table())

        def _table(self) -> Table:
            from rich.table import Table

            table = Table(title=f"{self.ended} of {self.trials} trials", title_justify="left", box=None)
            for heading in ("trial", "device", "value", "tried"):
                table.add_column(heading)
            for trial in self.last:
                word = " (best)" if self.best is trial else ""
                table.add_row(str(trial.number), trial.device, _value(trial) + word, _listed(trial.params))
            for device, (number, params) in self.running.items():
                step, value = self.values.get(number, (0, None))
                so_far = "running" if value is None else f"{value:.4g} at {step}"
                table.add_row(str(number), device, so_far, _listed(params))
            return table

        def stop(self) -> None:
            if self.live is not None:
                self.live.stop()
                self.live = None

    return SearchPrinter()


def _value(trial: TrialReport) -> str:
    if trial.state == "failed":
        return "failed"
    value = "" if trial.value is None else f"{trial.value:.4g}"
    return f"{value} (pruned)" if trial.state == "pruned" else value


def _outcome(trial: TrialReport) -> str:
    if trial.state == "failed":
        return f"failed: {trial.problem}"
    return f"{_value(trial)}, {trial.device}, {trial.seconds:.1f} s"


def _listed(params: Mapping[str, object]) -> str:
    words = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in params.items()}
    return ", ".join(f"{name.rpartition('.')[2]} {word}" for name, word in words.items())


def _tell_results(outcome: SearchOutcome) -> None:
    out, found = console(), outcome.found
    best = found.best
    head = (f"best of {len(found.trials)} trials: {best.value:.4g}", "bold")
    out.print(styled(head, f", trial {best.number}"), soft_wrap=True)
    for name, value in best.params.items():
        out.print(f"    {name}: {value}", soft_wrap=True)
    devices = ", ".join(f"{device} {count}" for device, count in found.by_device.items())
    out.print(f"trials by device: {devices}; {found.count('pruned')} pruned, {found.count('failed')} failed")
    out.print(f"trials: {outcome.results}, {found.storage}", soft_wrap=True)
    if outcome.recipe is not None:
        out.print(f"next: hetero train {outcome.recipe}", soft_wrap=True)
