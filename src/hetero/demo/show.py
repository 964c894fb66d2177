"""What the demonstration tells people: the devices, what it is doing, and the figures.

In: devices, steps, results. Out: text on standard output, with colour and a spinner on a terminal only.
It must not compute a figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hetero.demo.results import DemoResult, DeviceResult, JobResult
from hetero.floor import terminal
from hetero.floor.terminal import styled
from hetero.floor.units import format_bytes, format_rate, format_seconds
from hetero.model.device import Device

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status
    from rich.table import Table
    from rich.text import Text

__all__ = ["DemoPrinter"]


class DemoPrinter:
    """Tells what happens, or nothing at all.

    Parameters
    ----------
    quiet : True for nothing at all
    console : where to; standard output where none is given
    """

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        self._console = None if quiet else console or terminal.console()
        self._status: Status | None = None

    def start(self, devices: Sequence[Device], notes: Sequence[str]) -> None:
        """Report which devices take part."""
        if self._console is None:
            return
        words = ", ".join(_named(device) for device in devices)
        many = f" on {len(devices)} device{'s' if len(devices) > 1 else ''}: {words}"
        self._console.print(styled(("hetero demo", "bold"), many))
        for note in notes:
            self._console.print(styled(("note:", "yellow"), f" {note}"), soft_wrap=True)

    def step(self, text: str) -> None:
        """Report what is being done now."""
        if self._console is None:
            return
        if not self._console.is_terminal:
            self._console.print(f"… {text}")
        elif self._status is None:
            self._status = self._console.status(text)
            self._status.start()
        else:
            self._status.update(text)

    def stop(self) -> None:
        """End the spinner."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def results(self, found: DemoResult) -> None:
        """Print all figures."""
        if self._console is None:
            return
        for job in found.jobs:
            self._console.print()
            self._console.print(_devices_table(job))
            self._console.print(_figures(job))
        self._console.print()
        self._console.print(f"trace: {found.trace}", soft_wrap=True, highlight=False)


def _named(device: Device) -> str:
    throttle = f" (throttled to {device.throttle_frac:g})" if device.throttle_frac < 1.0 else ""
    return f"{device.short}{throttle}"


def _devices_table(job: JobResult) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=job.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("device", "", "alone", "speed alone", "tasks", "busy"):
        table.add_column(heading, justify="left" if heading in ("device", "") else "right", no_wrap=heading != "")
    for each in job.devices:
        speed, alone, busy = format_rate(each.speed, f"{job.unit}/s"), each.alone_s, each.busy_s
        cells = (format_seconds(alone), speed, str(each.tasks), format_seconds(busy))
        table.add_row(each.device, each.name, *cells)
    return table


def _figures(job: JobResult) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    checked = job.checked
    verdict = ("right", "green") if checked.ok else ("WRONG", "bold red")
    told = f": differs from {checked.against} by {checked.error_frac:.1e} of its largest value"
    rows: tuple[tuple[str, str | Text], ...] = (
        ("tasks", str(job.tasks)),
        ("makespan", format_seconds(job.makespan_s)),
        ("speed", f"{format_rate(job.speed, f'{job.unit}/s')}, {job.share_frac:.0%} of the sum of the devices' speeds"),
        ("best alone", f"{job.best.device} in {format_seconds(job.best.alone_s)}: together {job.gain:.2f} × as fast"),
        ("moved", _moved(job)),
        ("result", styled(verdict, told)),
    )
    idle = [("left out", _idle(each, job)) for each in job.devices if not each.tasks]
    for name, text in (*rows, *idle):
        table.add_row(name, text)
    return table


def _idle(each: DeviceResult, job: JobResult) -> str:
    best, here = format_seconds(job.best.alone_s), format_seconds(each.alone_s)
    return f"{each.device}: it would take {here} alone against {best} on {job.best.device}"


def _moved(job: JobResult) -> str:
    if job.bytes_moved:
        return f"{format_bytes(job.bytes_moved)} between memory nodes"
    on_others = any("/" in each.device for each in job.devices)
    return "0 B" if on_others else "0 B: all devices read and write the host's memory"
