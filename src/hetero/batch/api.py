"""`map_batches`: one function or model over all records of a source, every device at its own batch size.

In: a function, a source, where the results go. Out: an `BatchOutcome`. The work is in `hetero.batch.run`.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hetero.batch import size_history
from hetero.batch.base import Job, Sink, Source
from hetero.batch.budget import RunSpending
from hetero.batch.committing import Committer, Journal, MergeSink
from hetero.batch.functions import function_identity, function_key, prepared
from hetero.batch.merges import Fold, check_associative
from hetero.batch.options import BatchLimits, BatchOptions, BatchRequest, request_of
from hetero.batch.outcome import BatchOutcome
from hetero.batch.records import count, cut, size_bytes
from hetero.batch.registry import sink_of, source_of
from hetero.batch.run import BatchRun, RunSetup, StagedRun
from hetero.batch.stages import Pipeline, chained
from hetero.batch.worker import BatchProgram, packed_work, run_batch
from hetero.floor import settings
from hetero.floor.clock import JOIN_S
from hetero.floor.deprecation import Moved, moved_keywords, renamed_keywords
from hetero.floor.errors import BadValueError, NothingFitsError
from hetero.floor.files import local_path
from hetero.floor.units import format_seconds
from hetero.model.device import Device
from hetero.plan.batch.next_stage import StagePlanner
from hetero.plan.batch.size_tuning import Sizes
from hetero.session.disk_cache import digest
from hetero.session.identity import value_identity
from hetero.session.options import Fleet, lent_or_opened
from hetero.session.tasks import task

if TYPE_CHECKING:
    from hetero.batch.run import BatchRun
    from hetero.session.context import Context

__all__ = ["OF_LIMITS", "OF_OPTIONS", "BatchProgress", "map_batches", "progress_line"]

OF_OPTIONS = {each.name: each.name for each in fields(BatchOptions)}
OF_LIMITS = {each.name: each.name for each in fields(BatchLimits)}

_numbers = itertools.count(1)
_TRIED = 3


@renamed_keywords(out="output")
@moved_keywords(Moved("options", BatchOptions, OF_OPTIONS), Moved("limits", BatchLimits, OF_LIMITS))
def map_batches(
    fn: object,
    source: object,
    *,
    batch: str | int | Mapping[str, int] = "auto",
    merge: object = None,
    output: object = None,
    form: str | None = None,
    errors: float | str = 0,
    resume: bool = False,
    options: BatchOptions | None = None,
    limits: BatchLimits | None = None,
    ctx: Context | None = None,
    devices: Fleet = None,
) -> BatchOutcome:
    """Run a function or a model over all records of a source, every device at its own batch size.

    Parameters
    ----------
    fn
        A function of a batch; a class with `setup(device)` and `__call__(batch)`, made once a worker; a torch module;
        an ONNX model or file; or a `pipeline` of these. It gives one result for each record.
    source
        A list, an array, a dict of arrays, a generator or a function that makes one, a path, or a `Source`.
    batch
        'auto' finds each device's best size; a number; or numbers by device word, as in {'cuda': 256}.
    merge
        None or 'concatenate' keeps the results; 'sum', 'mean', 'count', `TopK(k)`, `Histogram(edges)` or an
        associative function of two values gives one value, combined on the devices first.
    output
        Where the results go: None gives them back, a function gets them run by run, a folder gets files.
    form
        Of the files, 'jsonl', 'npy' or 'parquet'.
    errors
        How many bad records may be set aside, or which share, as in '1%'; one more stops the run.
    resume
        True goes on where `output` holds a part of this run; what else it holds is refused.
    options
        How it is done: the parts of files, the cost of a record, the precision, checks of results.
    limits
        What it may take: time, memory, hours of the day, a share of each device, dollars, energy.
    ctx
        The Context whose devices do the work; one is opened where none is given.
    devices
        The fleet of the Context that is opened.

    Raises
    ------
    BadRecordsError
        There are more bad records than allowed; the message names one and its place.
    BadValueError
        An option is wrong, the source cannot be read, or `output` holds something.
    TimeLimitError, PriceLimitError, EnergyLimitError
        It took longer, cost more or took more energy than allowed.
    NothingFitsError
        No device can do it.

    Examples
    --------
    >>> import hetero
    >>> hetero.batch.map_batches(lambda batch: [2 * x for x in batch], range(5), devices="1xcpu").value
    [0, 2, 4, 6, 8]
    """
    request = request_of(options, limits, batch=batch, merge=merge, errors=errors, resume=resume)
    program = _Program.of(fn, request)
    records = source_of(source)
    sink = _sink(request, output, form)
    if request.options.spill and sink.journal is None:
        raise BadValueError("spill=True needs a folder to spill to", remedy="give output='FOLDER'")
    if ctx is not None and devices is not None:
        raise BadValueError(
            "ctx and devices exclude one another", remedy="give the Context, or the devices of a new one"
        )
    job = _job(program.identity_for(sink), records, sink, request)
    with lent_or_opened(devices if ctx is None else ctx) as context:
        return _run(context, program, request, job, records, sink)


@dataclass(frozen=True, slots=True)
class _Program:
    """A function or a pipeline, ready to travel.

    Attributes
    ----------
    key
        Names it in the history of batch sizes.
    name
        For people.
    """

    given: object
    whole: BatchProgram
    key: str
    name: str

    @classmethod
    def of(cls, fn: object, request: BatchRequest) -> _Program:
        options, limits, wish = request.options, request.limits, request.options.wish
        function = chained(fn.stages, wish) if isinstance(fn, Pipeline) else prepared(fn, wish)
        key = digest(fn.key if isinstance(fn, Pipeline) else function_key(fn), options.precision)
        whole = BatchProgram(
            function,
            None,
            request.merge,
            options.same_count,
            options.check_finite,
            limits.share_frac,
            limits.follow,
        )
        return cls(fn, whole, key, options.name or _name(fn))

    @property
    def pipeline(self) -> Pipeline | None:
        return self.given if isinstance(self.given, Pipeline) else None

    def identity_for(self, sink: Sink) -> str:
        """Return the digest by which another run knows this function again, '' where no results outlive the run."""
        if not sink.durable and sink.journal is None:
            return ""
        return function_identity(self.given) if self.pipeline is None else self.pipeline.identity


def _run(ctx: Context, program: _Program, request: BatchRequest, job: Job, source: Source, sink: Sink) -> BatchOutcome:
    options, pipeline = request.options, program.pipeline
    whole = replace(program.whole, load=source.load)
    taking_part = _devices(ctx)
    spending = RunSpending(request.limits, taking_part)
    parts = sink.open(job, request.found)
    journal = None if sink.journal is None else Journal(sink.journal)
    committer = Committer(sink, job, journal, options.ordered, options.spill)
    done = committer.resume(parts)
    if options.check_merge and isinstance(request.merge, Fold):
        _try_merge(ctx, taking_part[0], whole, request.merge, source)
    sizes = {device.id: _sizes(program.key, device, request) for device in taking_part}
    number = f"{program.key}-{next(_numbers)}"
    setup = RunSetup(
        ctx=ctx,
        devices=taking_part,
        sizes=sizes,
        source=source,
        committer=committer,
        request=request,
        done=done,
        part_items=job.part_items,
        name=program.name,
        spending=spending,
    )
    run = (
        BatchRun(setup, packed_work(number, number, whole))
        if pipeline is None
        else _staged(pipeline, whole, number, setup)
    )
    view = BatchProgress(run) if options.progress else None
    try:
        return run.go()
    finally:
        if view is not None:
            view.close()
        if options.learn and pipeline is None:
            size_history.keep(program.key, {device: sizes[device.id] for device in taking_part})


def _job(function: str, source: Source, sink: Sink, request: BatchRequest) -> Job:
    """Name what is computed, by digests; nothing where no results outlive the run, since that reads every record."""
    options = request.options
    part_items = options.part or _part_items(source, sink)
    if not function:
        return Job("", part_items, source.length)
    identity = source.identity()
    wishes = [options.part, options.same_count, options.check_finite, *options.wish]
    merged = "" if request.merge is None else value_identity(request.merge)
    return Job(digest(function, identity, wishes, merged, type(sink).__name__), part_items, source.length, identity)


def _try_merge(ctx: Context, device: Device, program: BatchProgram, merge: Fold, source: Source) -> None:
    """Combine the results of the first three records in both ways."""
    first = source.peek()
    if first is None or count(first.records) < _TRIED:
        return
    number = f"try-{next(_numbers)}"
    work = packed_work(number, number, replace(program, merge=None))
    one = task(run_batch, on=(device.id,))
    done = ctx.run(one, work, cut(first.records, 0, _TRIED), 0)
    check_associative(merge.function, *(done.results[place] for place in range(_TRIED)))


def _staged(pipeline: Pipeline, whole: BatchProgram, number: str, setup: RunSetup) -> StagedRun:
    """Make the run of a pipeline: a program for each stage, and one for all of them in one piece."""
    last = len(pipeline.stages) - 1
    works = {}
    for begin, end in sorted({*((stage, stage) for stage in range(last + 1)), (0, last)}):
        ends = end == last
        part = replace(
            whole,
            function=chained(pipeline.stages[begin : end + 1], setup.request.options.wish),
            load=whole.load if begin == 0 else None,
            merge=whole.merge if ends else None,
            same_count=True,
            check_finite=whole.check_finite and ends,
        )
        works[begin, end] = packed_work(number, f"{number}/{begin}-{end}", part)
    allowed = {device.id: tuple(stage.may_run_on(device) for stage in pipeline.stages) for device in setup.devices}
    for place, stage in enumerate(pipeline.stages):
        if not any(row[place] for row in allowed.values()):
            raise NothingFitsError(
                f"no device may run stage {place} of the pipeline: it asks for {' or '.join(stage.on)}",
                remedy=f"there are {', '.join(device.short for device in setup.devices)}",
            )
    by_id = {device.id: device for device in setup.devices}
    planner = StagePlanner(allowed, lambda name, _: Sizes(setup.request.size_for(by_id[name])))
    return StagedRun(setup, planner, works)


def _sizes(key: str, device: Device, request: BatchRequest) -> Sizes:
    fixed = request.size_for(device)
    return size_history.known_sizes(key, device, fixed) if request.options.learn else Sizes(fixed)


def _devices(ctx: Context) -> list[Device]:
    """Return the devices that can run Python."""
    found = [device for device in ctx.devices if device.runs_python and not device.simulated]
    if not found:
        names = ", ".join(device.short for device in ctx.devices)
        raise NothingFitsError(f"none of {names} runs Python functions", remedy="add a CPU or a GPU")
    return found


def _sink(request: BatchRequest, out: object, form: str | None) -> Sink:
    if request.merge is None:
        return sink_of(out, form)
    if out is not None and not isinstance(out, str | Path):
        raise BadValueError("a merge gives one value and no results for out", remedy="read it from .value")
    if out is not None:
        return MergeSink(request.merge, local_path(out, "out"))
    name = request.options.name
    return MergeSink(request.merge, settings.home() / "batches" / name if name else None)


def _name(fn: object) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _part_items(source: Source, sink: Sink) -> int:
    """Return how many items make a part of about the sink's size, told from the first piece."""
    first = source.peek()
    if first is None:
        raise BadValueError("the source is empty", remedy="give at least one record")
    item_bytes = max(1.0, size_bytes(first.records) / count(first.records))
    return max(1, int(sink.part_bytes / item_bytes))


# --- progress -----------------------------------------------------------------------------------------------

_LOOK_S = 0.2
_LINE_S = 5.0


def progress_line(run: BatchRun) -> str:
    """Return one line: records done, of how many, the rate of each device, and what is left."""
    length, left_s = run.source.length, run.end_s()
    total = f" of {length:,}" if length is not None else ""
    each = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in run.rates().items())
    left = f"; {format_seconds(left_s)} left" if 1.0 <= left_s < math.inf else ""
    return f"{run.items():,}{total} records done; {each}{left}"


class BatchProgress:
    """Shows a run from a thread of its own until it is closed: a live line on a terminal, plain lines elsewhere."""

    def __init__(self, run: BatchRun) -> None:
        self._run = run
        self._closing = threading.Event()
        self._live = sys.stderr.isatty()
        self._thread = threading.Thread(target=self._show, name="hetero-batch-progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Show the last line and end."""
        self._closing.set()
        self._thread.join(JOIN_S)

    def _show(self) -> None:
        while not self._closing.wait(_LOOK_S if self._live else _LINE_S):
            self._write("" if self._live else "\n")
        self._write("\n")

    def _write(self, end: str) -> None:
        begin = "\r\x1b[K" if self._live else ""
        sys.stderr.write(f"{begin}hetero: {progress_line(self._run)}{end}")
        sys.stderr.flush()
