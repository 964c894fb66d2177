"""`hetero top`: what a run on this machine is doing now.

In: the name of a run, or none where only one is going on. Out: a live view, one picture, or one JSON document.
It must not slow the run down: it asks once in an interval.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from hetero.backends.registry import kind_named
from hetero.cli.options import AsJson, refuse_unused
from hetero.cli.output import console, print_json, say
from hetero.floor.clock import sleep
from hetero.floor.errors import BadValueError
from hetero.floor.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hetero.session.run_server import OpenRun
    from hetero.session.snapshot import DeviceNow, Snapshot

__all__ = ["SnapshotRates", "picture", "rates", "runs_table", "top"]

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
    from hetero.session.run_server import find, open_runs

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
        console().print(runs_table(runs))


def _print_json(run: OpenRun) -> None:
    from hetero.session.run_server import ask

    now = ask(run)
    flow = rates(now)
    mean = {"tasks_per_s": flow.tasks_per_s, "left_s": flow.left_s, "busy_frac": flow.busy_frac}
    print_json({"run": run.as_dict(), "now": now.as_dict(), "mean": mean})


def _show_once(run: OpenRun) -> None:
    from hetero.session.run_server import ask

    now = ask(run)
    out = console()
    out.print(picture(now, rates(now), run.name, out.width))


def _show_live(run: OpenRun, interval_s: float) -> None:
    """Draw until the run ends, or the user has seen enough; the last picture stays on the terminal."""
    from rich.live import Live

    from hetero.session.run_server import RunGoneError, ask

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


# --- the picture --------------------------------------------------------------------------------------------

_UNKNOWN = "–"
_BAR = 8
_WIDE = 16
_BARS_FROM = 100
_GAP = 2
_OTHER_LINES = 12
_PHASES = {"ready": "green", "starting": "yellow", "lost": "red", "gone": "red"}


class SnapshotRates(NamedTuple):
    """What happened in the seconds between two snapshots.

    Attributes
    ----------
    tasks_per_s
        Tasks that ended.
    left_s
        Seconds until the open tasks end at this rate, None where nothing tells.
    busy_frac
        By device, share of the time in which it ran tasks.
    cores
        By device, processors that its worker used, None where unknown.
    link_bytes_per_s
        By (from, to).
    """

    tasks_per_s: float
    left_s: float | None
    busy_frac: dict[str, float]
    cores: dict[str, float | None]
    link_bytes_per_s: dict[tuple[str, str], float]


def rates(now: Snapshot, before: Snapshot | None = None) -> SnapshotRates:
    """Return the rates since an earlier snapshot, without one since the run began."""
    took_s = max(now.at_s - (before.at_s if before else 0.0), 1e-9)
    ended = now.tasks.finished + now.tasks.failed
    tasks_per_s = (ended - (before.tasks.finished + before.tasks.failed if before else 0)) / took_s
    open_tasks = now.tasks.submitted - ended
    known = {each.id: each for each in before.devices} if before else {}
    moved = {(each.src, each.dst): each.moved_bytes for each in before.links} if before else {}
    return SnapshotRates(
        tasks_per_s,
        open_tasks / tasks_per_s if tasks_per_s and open_tasks else None,
        {each.id: _busy(each, known.get(each.id), took_s) for each in now.devices},
        {each.id: _cores(each, known.get(each.id), took_s) for each in now.devices},
        {(each.src, each.dst): (each.moved_bytes - moved.get((each.src, each.dst), 0)) / took_s for each in now.links},
    )


def _busy(now: DeviceNow, before: DeviceNow | None, took_s: float) -> float:
    worked_s = now.busy_s + now.task_s - (before.busy_s + before.task_s if before else 0.0)
    return min(max(worked_s / took_s, 0.0), 1.0)


def _cores(now: DeviceNow, before: DeviceNow | None, took_s: float) -> float | None:
    if now.cpu_s is None:
        return None
    since_s = before.cpu_s if before and before.pid == now.pid and before.cpu_s is not None else 0.0
    return max(now.cpu_s - since_s, 0.0) / took_s


def runs_table(runs: Sequence[OpenRun]) -> RenderableType:
    """Return the runs that are going on, and how to look at one."""
    rows = [
        (Text(run.name), str(run.pid), run.began.replace("T", " ")[:19] or _UNKNOWN, run.user or "you") for run in runs
    ]
    return Group(
        _table(("Run", "Process", "Began (UTC)", "Of"), rows),
        Text("\nLook at one by its name or process: hetero top NAME", style="dim"),
    )


def picture(now: Snapshot, flow: SnapshotRates, name: str, width: int, height: int = 10_000) -> RenderableType:
    """Return the whole picture, with no more devices than fit the height of a terminal; a narrow one has no bars."""
    room = max(height - _OTHER_LINES - len(now.nodes) - len(now.links), 4)
    return Group(
        *_head(now, flow, name),
        Text(),
        _devices(now, flow, room, width),
        *_memory(now),
        *_links(now, flow),
    )


def _table(
    titles: Sequence[str], rows: Sequence[Sequence[str | Text]], right: Sequence[str] = (), width: int = 10_000
) -> Table:
    """Lay out rows; where the terminal is narrow, the names of tasks are cut and no figure is."""
    widths = [max(len(title), *(len(str(row[at])) for row in rows)) for at, title in enumerate(titles)]
    if "Task" in titles:
        at = titles.index("Task")
        widths[at] = min(widths[at], max(width - sum(widths) + widths[at] - _GAP * (len(titles) - 1), len("Task")))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    for title, wide in zip(titles, widths, strict=True):
        side: Literal["left", "right"] = "right" if title in right else "left"
        table.add_column(title, justify=side, no_wrap=True, overflow="ellipsis", width=wide)
    for row in rows:
        table.add_row(*row)
    return table


def _head(now: Snapshot, flow: SnapshotRates, name: str) -> Iterator[Text]:
    tasks = now.tasks
    policy = f"{now.engine} engine, policy {now.policy}, process {now.pid}"
    yield Text.assemble((name, "bold"), f"  {policy}, for {format_seconds(now.at_s)}")
    ended = tasks.finished + tasks.failed
    share = ended / tasks.submitted if tasks.submitted else 0.0
    left = f", {format_seconds(flow.left_s)} left" if flow.left_s is not None else ""
    pace = f"; {format_rate(flow.tasks_per_s, 'tasks/s')}{left}" if flow.tasks_per_s else ""
    yield Text.assemble("Tasks ", _bar(share, _WIDE), f" {tasks.finished:,} of {tasks.submitted:,} done{pace}")
    waiting = tasks.waiting + tasks.ready + tasks.placed
    words = Text(f"      {tasks.running:,} running, {waiting:,} waiting ({tasks.waiting:,} of them for data)")
    words.append(f", {tasks.failed:,} failed", "red" if tasks.failed else "")
    words.append(f", {tasks.retried:,} tried again", "yellow" if tasks.retried else "")
    yield words


def _bar(share: float, width: int = _BAR) -> Text:
    full = round(min(share, 1.0) * width)
    return Text.assemble(("━" * full, "green" if share <= 1.0 else "red"), ("━" * (width - full), "bright_black"))


def _devices(now: Snapshot, flow: SnapshotRates, room: int, width: int) -> RenderableType:
    figures = [(_figures(each, flow.cores[each.id]), each) for each in now.devices]
    titles = [title for title in _FIGURES if any(cells[title] != _UNKNOWN for cells, _ in figures)]
    shown = figures if len(figures) <= room else figures[: room - 1]
    rows: list[tuple[str | Text, ...]] = [
        (
            Text(each.id.removeprefix("h0/")),
            (_bar(flow.busy_frac[each.id]) if width >= _BARS_FROM else Text())
            + Text(f" {flow.busy_frac[each.id]:4.0%}"),
            Text(f"{format_seconds(each.task_s)} {each.task}" if each.task else _UNKNOWN),
            f"{each.queued:,}",
            f"{each.finished:,}",
            *(cells[title] for title in titles),
            Text(_state(each), _PHASES.get(each.phase, "")),
        )
        for cells, each in shown
    ]
    heads = ("Device", "Busy", "Task", "Queue", "Done", *titles, "State")
    table = _table(heads, rows, ("Queue", "Done", *_FIGURES), width)
    more = len(figures) - len(shown)
    return Group(table, Text(f"… and {more:,} more", style="dim")) if more else table


def _state(device: DeviceNow) -> str:
    return device.remark.replace("throttled to", "×") if device.remark and device.phase == "ready" else device.phase


_FIGURES = ("Cores", "Memory", "Load", "°C", "W")


def _figures(device: DeviceNow, cores: float | None) -> dict[str, str]:
    """Return what the device says of itself; of a processor, what its worker uses."""
    status = device.status
    on_host = kind_named(device.kind).is_host
    held = device.held_bytes if on_host else status.used_bytes
    cells = (
        None if cores is None else f"{cores:.1f}",
        None if held is None else format_bytes(held),
        None if on_host or status.utilisation_frac is None else f"{status.utilisation_frac:.0%}",
        None if status.temperature_c is None else f"{status.temperature_c:.0f}",
        None if status.power_w is None else f"{status.power_w:.0f}",
    )
    return {title: _UNKNOWN if cell is None else cell for title, cell in zip(_FIGURES, cells, strict=True)}


def _memory(now: Snapshot) -> Iterator[RenderableType]:
    if not now.nodes:
        return
    rows = [
        (
            Text(each.id.removeprefix("h0/")),
            _bar(share := each.used_bytes / each.capacity_bytes if each.capacity_bytes else 0.0)
            + Text(f" {share:4.0%}"),
            format_bytes(each.used_bytes),
            format_bytes(each.peak_bytes),
            format_bytes(each.capacity_bytes) if each.capacity_bytes else _UNKNOWN,
        )
        for each in now.nodes
    ]
    yield Text()
    yield _table(("Memory for data", "Full", "Used", "Most", "Of"), rows, right=("Used", "Most", "Of"))


def _links(now: Snapshot, flow: SnapshotRates) -> Iterator[RenderableType]:
    if not now.links:
        return
    rows = [
        (
            Text(f"{each.src.removeprefix('h0/')} → {each.dst.removeprefix('h0/')}"),
            format_rate(flow.link_bytes_per_s[each.src, each.dst], "B/s"),
            format_bytes(each.moved_bytes),
            f"{each.transfers:,}",
        )
        for each in now.links
    ]
    yield Text()
    yield _table(("Link", "Now", "Moved", "Copies"), rows, right=("Now", "Moved", "Copies"))
