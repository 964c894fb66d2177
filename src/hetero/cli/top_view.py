"""The picture that `hetero top` shows of a run: tasks, devices, memory, links.

In: two snapshots, the figures of the time between them. Out: what rich prints. It must not ask anybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from hetero.backends.registry import kind_named
from hetero.floor.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hetero.session.open_runs import OpenRun
    from hetero.session.snapshot import DeviceNow, NodeNow, Snapshot

__all__ = ["SnapshotRates", "picture", "rates", "runs_table"]

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
    tasks_per_s : tasks that ended
    left_s : s until the open tasks end at this rate, None where nothing tells
    busy_frac : by device, share of the time in which it ran tasks
    cores : by device, processors that its worker used, None where unknown
    link_bytes_per_s : by (from, to)
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


def _full(node: NodeNow) -> float:
    return node.used_bytes / node.capacity_bytes if node.capacity_bytes else 0.0


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
