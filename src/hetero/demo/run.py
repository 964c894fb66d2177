"""The demonstration: each job on each device alone, then on all of them together, checked and measured.

In: a fleet and a size. Out: a `DemoResult`, and lines for people while it runs.
It uses what every user has: a Context, tasks, submit, put, gather.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import hetero
from hetero.backends import registry
from hetero.demo.jobs import Checked, Cholesky, DemoJob, Diffusion, Submit
from hetero.drive.trace import TraceSummary, summary
from hetero.floor import settings, terminal
from hetero.floor.clock import monotonic_s
from hetero.floor.documents import read_array
from hetero.floor.errors import BadValueError, NothingFitsError
from hetero.floor.terminal import styled
from hetero.floor.text import exception_line
from hetero.floor.units import format_bytes, format_rate, format_seconds
from hetero.model.device import Device
from hetero.session.config import Config, load

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status
    from rich.table import Table
    from rich.text import Text

    from hetero.session.tasks import TaskFunction

__all__ = [
    "THROTTLE_FRAC",
    "DemoPrinter",
    "DemoResult",
    "DeviceResult",
    "JobResult",
    "made_unequal",
    "precision",
    "read_field",
    "run",
    "spread",
    "synthetic_field",
    "usable",
]

_PARTS = 12
_STRIPS = 16
_STEPS = 8
_ROUNDS = 4
_UNIT = 192

THROTTLE_FRAC = 0.25

_FORMS = "give a .npy file, or a NetCDF-3 file (.nc), which needs SciPy"


def run(
    config: str | Path | Mapping[str, object] | None = None,
    *,
    devices: str | None = None,
    size: int = 4608,
    field: Path | str | None = None,
    trace: Path | str | None = None,
    quiet: bool = False,
    **options: Any,
) -> DemoResult:
    """Run the demonstration.

    Parameters
    ----------
    config, devices
        The fleet, as `hetero.Context` takes it; this host's devices where neither is given, one of them throttled where
        all are equal.
    size
        Rows of the matrix, a multiple of 192 from 384 to 24,576; the field has a third as many.
    field
        File with a field to let diffuse, a synthetic one where none is given.
    trace
        File of the trace; below HETERO_HOME where none is given, in a temporary folder where that cannot be written.
    quiet
        True prints nothing.
    **options
        Further options of `hetero.Context`.

    Returns
    -------
    DemoResult
        times, speeds, shares and the comparison with SciPy

    Raises
    ------
    BadValueError
        The size is not allowed, or the field cannot be read.
    NothingFitsError
        No device can run Python tasks.
    """
    tell = DemoPrinter(quiet)
    sizes = _sizes(size)
    grid = synthetic_field(sizes["field"]) if field is None else read_field(Path(field), sizes["field"])
    origin = "a synthetic field" if field is None else f"the field in {Path(field).name}"
    keys = {"devices": devices, "trace": None if trace is None else str(trace)}
    keys |= {key: options.get(key) for key in ("engine", "address")}
    wanted = load(config, set=options.get("set", ()), **keys)
    devices, notes = _fleet(wanted, devices)
    path = _trace_path(wanted.trace)
    try:
        with hetero.Context(config, devices=devices, trace=path, **options) as ctx:
            able, left_out = usable(ctx.devices)
            tell.start(able, (*notes, *left_out))
            dtype = precision(able)
            tell.step("starting the devices")
            grid = grid.astype(dtype)
            _warm_up(ctx, able, sizes["tile"], grid[: len(grid) // _STRIPS])
            todo: list[DemoJob] = [
                Cholesky(size, sizes["tile"], dtype),
                Diffusion(grid, _STRIPS, _STEPS, _ROUNDS, origin),
            ]
            timings = [_measure(ctx, job, able, tell) for job in todo]
        tell.step("checking the results")
        results = [_result(able, timing, summary(path, names=timing.job.functions)) for timing in timings]
    finally:
        tell.stop()
    found = DemoResult(tuple(results), (*notes, *left_out), path)
    tell.results(found)
    return found


class _Timing(NamedTuple):
    """The seconds of a job on one device of each model, and on all together, with the parts of the result."""

    job: DemoJob
    alone_s: dict[str, float]
    together_s: float
    parts: list[object]


def _sizes(size: int) -> dict[str, int]:
    if isinstance(size, bool) or not isinstance(size, int) or size % _UNIT or not 2 * _UNIT <= size <= 128 * _UNIT:
        problem = f"size={size!r} is not a multiple of {_UNIT} from {2 * _UNIT} to {128 * _UNIT}"
        raise BadValueError(problem, remedy="use 4608, or less for a quicker run")
    return {"tile": size // _PARTS, "field": size // 3}


def _fleet(wanted: Config, devices: str | None) -> tuple[str | None, tuple[str, ...]]:
    if wanted.devices is not None or wanted.spec or wanted.address not in (None, "local"):
        return devices, ()
    from hetero.session.fleet import choose, survey

    return made_unequal(choose(survey())[0])


def _trace_path(wanted: Path | None) -> Path:
    if wanted is not None:
        return wanted
    folder = settings.home() / "traces"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="hetero-traces-"))
    return folder / "demo.trace.jsonl.gz"


def _measure(ctx: hetero.Context, job: DemoJob, devices: tuple[Device, ...], tell: DemoPrinter) -> _Timing:
    inputs = job.place(ctx.put)
    alone_s = {}
    for key, (device, *_) in spread(devices).items():
        tell.step(f"{job.name}: {device.short} alone")
        alone_s[key], _ = _timed(ctx, job, inputs, [device], f" on {device.short} alone")
    tell.step(f"{job.name}: {len(devices)} devices together")
    together_s, parts = _timed(ctx, job, inputs, devices, "")
    best = min(alone_s, key=lambda key: (alone_s[key], key))
    device = spread(devices)[best][0]
    tell.step(f"{job.name}: {device.short} alone, once more")
    again_s, _ = _timed(ctx, job, inputs, [device], f" on {device.short} alone, again")
    return _Timing(job, {**alone_s, best: (alone_s[best] + again_s) / 2}, together_s, parts)


def _warm_up(ctx: hetero.Context, devices: tuple[Device, ...], tile: int, strip: NDArray[np.float64]) -> None:
    """Run every task on every device, so that nobody's start-up or compilation is taken for its speed."""
    few: tuple[DemoJob, ...] = (Cholesky(3 * tile, tile, str(strip.dtype)), Diffusion(strip, 1, _STEPS, 1))
    for device in devices:
        for job in few:
            _timed(ctx, job, job.place(ctx.put), [device], " to warm up")


def _timed(
    ctx: hetero.Context, job: DemoJob, inputs: list[object], devices: Iterable[Device], suffix: str
) -> tuple[float, list[object]]:
    submit = _submitter(ctx, tuple(device.id for device in devices), suffix)
    begin_s = monotonic_s()
    futures = job.start(inputs, submit)
    hetero.wait(futures)
    took_s = monotonic_s() - begin_s
    return took_s, ctx.gather(futures)


def _submitter(ctx: hetero.Context, on: tuple[str, ...], suffix: str) -> Submit:
    pinned: dict[str, TaskFunction[..., object]] = {}

    def submit(task: TaskFunction[..., object], *args: object) -> hetero.Future:
        if task.name not in pinned:
            pinned[task.name] = task.options(on=on, name=f"{task.name}{suffix}")
        return ctx.submit(pinned[task.name], *args)

    return submit


def _result(devices: tuple[Device, ...], timing: _Timing, found: TraceSummary) -> JobResult:
    job = timing.job
    rows = [
        DeviceResult(
            device=device.short,
            name=f"{device.name}, throttled to {device.throttle_frac:g}" if device.throttle_frac < 1 else device.name,
            alone_s=timing.alone_s[device.model_key],
            speed=job.work / timing.alone_s[device.model_key],
            tasks=found.attempts.get(device.id, 0),
            busy_s=found.busy_s.get(device.id, 0.0),
        )
        for device in devices
    ]
    return JobResult(
        name=job.name,
        title=job.title,
        unit=job.unit,
        work=job.work,
        tasks=found.tasks,
        makespan_s=timing.together_s,
        bytes_moved=found.bytes_moved,
        devices=tuple(rows),
        checked=job.check(timing.parts),
        functions=job.functions,
    )


def made_unequal(devices: Sequence[Device]) -> tuple[str | None, tuple[str, ...]]:
    """Return a fleet of unequal devices in one line, None where the devices are so already; and notes.

    Examples
    --------
    >>> from hetero.model.device import DeviceType
    >>> cores = [Device(f"h0/cpu:{index}", "cpu", DeviceType("CPU"), "cpu") for index in range(2)]
    >>> made_unequal(cores)[0]
    '1xcpu,1xcpu*0.25'
    """
    if len({device.model_key for device in devices}) != 1 or devices[0].throttle_frac < 1.0:
        return None, ()
    if len(devices) == 1:
        return None, (f"{devices[0].short} is the only device of this host: there is nothing to share",)
    words = [f"1x{device.label}{_cores(device)}" for device in devices]
    words[-1] += f"*{THROTTLE_FRAC:g}"
    last = devices[-1].short
    note = f"all devices of this host are equal, so {last} is slowed down on purpose, to {THROTTLE_FRAC:g} of its speed"
    return ",".join(words), (note,)


def _cores(device: Device) -> str:
    return f"/{device.cores}cores" if device.is_host and device.cores > 1 else ""


def usable(devices: Sequence[Device]) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Return the devices that can run the tasks, and a note for each that cannot.

    Raises
    ------
    NothingFitsError
        No device can.
    """
    why = {device.id: _obstacle(device) for device in devices}
    able = tuple(device for device in devices if not why[device.id])
    notes = tuple(f"{device.short} is left out: {why[device.id]}" for device in devices if why[device.id])
    if not able:
        raise NothingFitsError("no device can run the demonstration: " + "; ".join(notes), remedy="name a cpu")
    return able, notes


def _obstacle(device: Device) -> str:
    if device.simulated:
        return "it computes nothing"
    if not device.runs_python:
        return "it takes kernels only"
    return "" if registry.load(device.backend).has_namespace() else "it has no array namespace"


def precision(devices: Sequence[Device]) -> str:
    """Return the type of numbers that every device computes with: 'float64', or 'float32' where one has no other."""
    double = all(registry.kind_of(device).float64 and device.backend != "jax" for device in devices)
    return "float64" if double else "float32"


def spread(devices: Sequence[Device]) -> dict[str, list[Device]]:
    """Return the devices by what they have in common, so that equal ones need to be measured once only."""
    found: dict[str, list[Device]] = {}
    for device in devices:
        found.setdefault(device.model_key, []).append(device)
    return found


def synthetic_field(size: int, seed: int = 0) -> NDArray[np.float64]:
    """Make a square field of waves and hot spots that repeats at its edges.

    Examples
    --------
    >>> synthetic_field(64).shape
    (64, 64)
    """
    x = np.arange(size) * (2.0 * np.pi / size)
    field: NDArray[np.float64] = 0.2 * np.sin(3 * x)[:, None] * np.cos(5 * x)[None, :]
    for row, column, width in np.random.default_rng(seed).random((12, 3)):
        sharpness = 4.0 + 40.0 * width
        north = np.exp(sharpness * (np.cos(x - 2 * np.pi * row) - 1.0))
        field += north[:, None] * np.exp(sharpness * (np.cos(x - 2 * np.pi * column) - 1.0))[None, :]
    return field


def read_field(path: Path, size: int) -> NDArray[np.float64]:
    """Read a field, and enlarge it to a square by repeating its cells.

    Parameters
    ----------
    path
        A NumPy file, or a NetCDF-3 file, of which the largest variable's first layer is taken.
    size
        Rows and columns of the result; a larger field is cut.

    Raises
    ------
    BadValueError
        The file cannot be read, or holds no field of finite numbers.
    """
    try:
        layer = read_array(path, BadValueError) if path.suffix == ".npy" else _netcdf(path)
        while layer.ndim > 2:
            layer = layer[0]
        field = np.asarray(layer, dtype=np.float64)
    except BadValueError:
        raise
    except Exception as error:  # a damaged NetCDF file raises anything
        raise BadValueError(f"the field {path} cannot be read: {exception_line(error)}", remedy=_FORMS) from error
    if field.ndim != 2 or not field.size or not np.isfinite(field).all():
        raise BadValueError(f"{path} holds no two-dimensional field of finite numbers", remedy=_FORMS)
    rows, columns = ((np.arange(size) * min(length, size)) // size for length in field.shape)
    return np.ascontiguousarray(field[np.ix_(rows, columns)])


def _netcdf(path: Path) -> NDArray[np.float64]:
    if path.suffix != ".nc":
        raise ValueError(f"its name ends in {path.suffix!r}")
    try:
        from scipy.io import netcdf_file
    except ImportError as error:
        raise ValueError("SciPy is not installed") from error
    with netcdf_file(path, mmap=False) as file:
        variables = [each for each in file.variables.values() if len(each.shape) >= 2]
        if not variables:
            raise ValueError("no variable has two dimensions")
        largest = max(variables, key=lambda each: int(np.prod(each.shape)))
        scale, offset = getattr(largest, "scale_factor", 1.0), getattr(largest, "add_offset", 0.0)
        return np.asarray(largest[:], dtype=np.float64) * scale + offset


# --- how results are shown ----------------------------------------------------------------------------------


class DemoPrinter:
    """Tells what happens, or nothing at all.

    Parameters
    ----------
    quiet
        True for nothing at all.
    console
        Where to; standard output where none is given.
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


# --- results ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceResult:
    """One device in one job.

    Attributes
    ----------
    device
        Id without the host, as in 'cpu:0'.
    name
        What the maker calls it, with its throttle.
    alone_s
        Seconds of the whole job on this device, or on one that is equal to it; for the fastest the mean of two runs,
        one before and one after all devices worked together.
    speed
        Units of work a second, alone.
    tasks
        Number of tasks that it ran when all devices worked together.
    busy_s
        Seconds in these tasks.
    """

    device: str
    name: str
    alone_s: float
    speed: float
    tasks: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class JobResult:
    """One job on all devices together.

    Attributes
    ----------
    name, title, unit
        Of the job.
    work
        In units.
    tasks
        Number of tasks.
    makespan_s
        Seconds from the first submission to the last result.
    bytes_moved
        Bytes that travelled between memory nodes.
    devices
        The devices that took part.
    checked
        The comparison with another library.
    functions
        Names of its tasks in the trace.
    """

    name: str
    title: str
    unit: str
    work: float
    tasks: int
    makespan_s: float
    bytes_moved: int
    devices: tuple[DeviceResult, ...]
    checked: Checked
    functions: tuple[str, ...] = ()

    @property
    def speed(self) -> float:
        """Units of work a second."""
        return self.work / self.makespan_s

    @property
    def share_frac(self) -> float:
        """Achieved share of the sum of the devices' own speeds."""
        return self.speed / sum(each.speed for each in self.devices)

    @property
    def best(self) -> DeviceResult:
        """The device that is fastest alone."""
        return max(self.devices, key=lambda each: (each.speed, each.device))

    @property
    def gain(self) -> float:
        """How many times as fast as the best device alone."""
        return self.best.alone_s / self.makespan_s

    def as_dict(self) -> dict[str, object]:
        """Return all figures by name."""
        names = ("name", "title", "unit", "work", "tasks", "makespan_s", "bytes_moved")
        plain = {name: getattr(self, name) for name in names}
        devices = [{name: getattr(each, name) for name in each.__slots__} for each in self.devices]
        checked = {name: getattr(self.checked, name) for name in (*self.checked.__slots__, "ok")}
        figures = {"speed_per_s": self.speed, "share_frac": self.share_frac, "best_alone": self.best.device}
        return {**plain, **figures, "gain": self.gain, "devices": devices, "checked": checked}


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demonstration found.

    Attributes
    ----------
    jobs
        The jobs, in the order in which they ran.
    notes
        What a reader must know of the devices, a line each.
    trace
        Where the trace lies.
    """

    jobs: tuple[JobResult, ...]
    notes: tuple[str, ...]
    trace: Path

    @property
    def ok(self) -> bool:
        """True when every result was right."""
        return all(job.checked.ok for job in self.jobs)

    def as_dict(self) -> dict[str, object]:
        """Return everything by name, for JSON."""
        jobs = [job.as_dict() for job in self.jobs]
        return {"ok": self.ok, "jobs": jobs, "notes": list(self.notes), "trace": str(self.trace)}
