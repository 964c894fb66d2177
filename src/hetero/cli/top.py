"""`hetero top`: what a run on this machine is doing now.

In: the name of a run, or none where only one is going on. Out: a live view, one picture, or one JSON document.
It must not slow the run down: it asks once in an interval.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.options import AsJson
from hetero.cli.output import console, print_json, say
from hetero.cli.words import refuse_unused
from hetero.floor.clock import sleep
from hetero.floor.errors import BadValueError

if TYPE_CHECKING:
    from hetero.session.open_runs import OpenRun
    from hetero.session.snapshot import Snapshot

__all__ = ["top"]

_WINDOW_S = 10.0
_LEAST_S = 0.1


def top(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="A run's name or process id; needed where several go on.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Show one picture, with means since the run began.")] = False,
    json: AsJson = False,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 1.0,
) -> None:
    """Show devices, tasks, memory and links of a run that is going on.

    A run is a program with an open hetero.Context, of the same user on this machine. Ctrl-C ends the view
    and not the run.
    """
    from hetero.session.open_runs import find, open_runs

    if once or json:
        refuse_unused(context, ("name", "once", "json"), f"with {'--once' if once else '--json'}")
    if not interval >= _LEAST_S:
        raise BadValueError(f"--interval {interval:g} is too short", remedy=f"give {_LEAST_S:g} s or more")
    runs = open_runs()
    chosen = find(name, runs) if name is not None else runs
    if len(chosen) != 1 or chosen[0].user:
        _list(chosen, json)
    elif json:
        _print_json(chosen[0])
    elif once or not sys.stdout.isatty():
        _show_once(chosen[0])
    else:
        _show_live(chosen[0], interval)


def _list(runs: tuple[OpenRun, ...], json: bool) -> None:
    if json:
        print_json({"runs": [run.as_dict() for run in runs]})
    elif not runs:
        say("No run is going on. A program can be looked at while it has an open hetero.Context.")
    else:
        from hetero.cli.top_view import runs_table

        console().print(runs_table(runs))


def _print_json(run: OpenRun) -> None:
    from hetero.cli.top_view import rates
    from hetero.session.open_runs import ask

    now = ask(run)
    flow = rates(now)
    mean = {"tasks_per_s": flow.tasks_per_s, "left_s": flow.left_s, "busy_frac": flow.busy_frac}
    print_json({"run": run.as_dict(), "now": now.as_dict(), "mean": mean})


def _show_once(run: OpenRun) -> None:
    from hetero.cli.top_view import picture, rates
    from hetero.session.open_runs import ask

    now = ask(run)
    out = console()
    out.print(picture(now, rates(now), run.name, out.width))


def _show_live(run: OpenRun, interval_s: float) -> None:
    """Draw until the run ends, or the user has seen enough; the last picture stays on the terminal."""
    from rich.live import Live

    from hetero.cli.top_view import picture, rates
    from hetero.session.open_runs import RunGoneError, ask

    out = console()
    seen = [ask(run)]
    ended = False
    with Live(console=out, auto_refresh=False, screen=True) as live:
        try:
            while True:
                before = seen[0] if len(seen) > 1 else None
                live.update(picture(seen[-1], rates(seen[-1], before), run.name, out.width, out.height), refresh=True)
                sleep(interval_s)
                seen = [*_recent(seen), ask(run)]
        except RunGoneError:
            ended = True
        except KeyboardInterrupt:
            pass
    out.print(picture(seen[-1], rates(seen[-1]), run.name, out.width))
    if ended:
        out.print("\nThe run has ended.")


def _recent(seen: list[Snapshot]) -> list[Snapshot]:
    """Leave out what is older than the time that rates are means of."""
    return [each for each in seen if each.at_s >= seen[-1].at_s - _WINDOW_S]
