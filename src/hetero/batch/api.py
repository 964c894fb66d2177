"""`map_batches`: one function or model over all records of a source, every device at its own batch size.

In: a function, a source, where the results go. Out: an `BatchOutcome`. The work is in `hetero.batch.run`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero.batch import size_history
from hetero.batch.base import Job, Sink, Source
from hetero.batch.budget import RunSpending
from hetero.batch.committing import Committer, Journal, MergeSink
from hetero.batch.functions import function_identity, function_key, prepared
from hetero.batch.merges import Fold, check_associative
from hetero.batch.options import BatchOptions, options_of
from hetero.batch.outcome import BatchOutcome
from hetero.batch.precision import Wish, wish_of
from hetero.batch.progress import BatchProgress
from hetero.batch.records import count, cut, size_bytes
from hetero.batch.registry import sink_of, source_of
from hetero.batch.run import BatchRun, StagedRun
from hetero.batch.stages import Pipeline, chained
from hetero.batch.worker import BatchProgram, packed_work, run_batch
from hetero.floor import settings
from hetero.floor.errors import BadValueError, NothingFitsError
from hetero.floor.files import local_path
from hetero.model.device import Device
from hetero.plan.batch.size_tuning import Sizes
from hetero.plan.batch.stages import StagePlanner
from hetero.session.identity import value_identity
from hetero.session.kept import digest
from hetero.session.tasks import task

if TYPE_CHECKING:
    from hetero.session.context import Context

__all__ = ["map_batches"]

_numbers = itertools.count(1)
_TRIED = 3


def map_batches(
    fn: Any,
    source: Any,
    *,
    batch: str | int | Mapping[str, int] = "auto",
    merge: Any = None,
    out: Any = None,
    form: str | None = None,
    ordered: bool = True,
    name: str | None = None,
    errors: float | str = 0,
    resume: bool = False,
    overwrite: bool = False,
    timeout: float | str | None = None,
    time_limit: float | str | None = None,
    memory: int | str = "1GiB",
    hours: str | None = None,
    share: float | str = 1.0,
    price: float | None = None,
    usd_per_hour: Mapping[str, float] | None = None,
    energy: str | None = None,
    watts: Mapping[str, float] | None = None,
    part: int | None = None,
    cost: Callable[[Any], float] | None = None,
    same_count: bool = True,
    check_finite: bool = False,
    check_merge: bool = False,
    spill: bool = False,
    precision: str = "float32",
    tolerance: float = 0.01,
    progress: bool = False,
    learn: bool = True,
    ctx: Context | None = None,
    devices: Any = None,
) -> BatchOutcome:
    """Run a function or a model over all records of a source, every device at its own batch size.

    Parameters
    ----------
    fn : a function of a batch; a class with `setup(device)` and `__call__(batch)`, made once a worker; a torch
        module; an ONNX model or file; or a `pipeline` of these. It gives one result for each record
    source : a list, an array, a dict of arrays, a generator or a function that makes one, a path, or a `Source`
    batch : 'auto' finds each device's best size; a number; or numbers by device word, as in {'cuda': 256}
    merge : None or 'concatenate' keeps the results; 'sum', 'mean', 'count', `TopK(k)`, `Histogram(edges)` or an
        associative function of two values gives one value, combined on the devices first
    out : where the results go: None gives them back, a function gets them run by run, a folder gets files
    form : of the files, 'jsonl', 'npy' or 'parquet'
    ordered : False lets a function have the results as they come
    name : of the run; a merge without a folder is resumed under it
    errors : how many bad records may be set aside, or which share, as in '1%'; one more stops the run
    resume, overwrite : what to do where `out` holds something; without either it is refused
    timeout, time_limit : of a batch, and of the whole, as in '30s'
    memory : bound on the records and results that are held at a time
    hours : of the local day in which batches may begin, as in '22:00-06:00'
    share : of each device's time that the run may take, as in '50%'; it rests after each batch. 'free' follows what
        others leave of the host
    price : dollars that the whole may cost
    usd_per_hour : dollars an hour by device word, as in {'cuda': 2.5}
    energy : that the whole may take, as in '500Wh'
    watts : that devices draw, by device word, where they cannot be measured and the catalog does not know them
    part : items that make one file or one call
    cost : of a record, where records differ much: batches are then of equal cost, not of equal number
    same_count : False allows more or fewer results than records
    check_finite : True sets records aside whose results hold NaN or an infinity
    check_merge : True tries on the first records whether the merge is associative, and refuses one that is not
    spill : True keeps results that wait for their turn on disk
    precision : of a torch module: 'float32', 'bfloat16', 'float16', or 'any' for each device's quickest; of an ONNX
        model 'float32' (as in its file), 'float16' or 'any'
    tolerance : how far results of 'any' may be off, as a share of the largest one
    progress : True shows the records done, the rate of each device and the time left, on standard error
    learn : False neither uses nor keeps the batch sizes of other runs
    ctx : the Context whose devices do the work; one is opened where none is given
    devices : the fleet of the Context that is opened

    Raises
    ------
    BadRecordsError
        There are more bad records than allowed; the message names one and its place.
    BadValueError
        An option is wrong, the source cannot be read, or `out` holds something.
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
    others = {"ordered": ordered, "name": name or "", "cost": cost, "same_count": same_count, "learn": learn}
    others |= {"progress": progress, "check_merge": check_merge}
    options = options_of(
        batch=batch, merge=merge, errors=errors, resume=resume, overwrite=overwrite, timeout=timeout,
        time_limit=time_limit, memory=memory, hours=hours, share=share, part=part,
        price=price, usd_per_hour=usd_per_hour, energy=energy, watts=watts,
        check_finite=check_finite, spill=spill, **others,
    )  # fmt: skip
    pipeline = fn if isinstance(fn, Pipeline) else None
    records = source_of(source)
    wish = wish_of(precision, tolerance)
    function = prepared(fn, wish) if pipeline is None else chained(pipeline.stages, wish)
    key = digest(function_key(fn) if pipeline is None else pipeline.key, precision)
    program = BatchProgram(
        function, records.load, options.merge, same_count, check_finite, options.share_frac, options.follow
    )
    sink = _sink(options, out, form)
    if spill and sink.journal is None:
        raise BadValueError("spill=True needs a folder to spill to", remedy="give out='FOLDER'")
    if ctx is not None and devices is not None:
        raise BadValueError(
            "ctx and devices exclude one another", remedy="give the Context, or the devices of a new one"
        )
    kept = sink.durable or sink.journal is not None
    identity = "" if not kept else function_identity(fn) if pipeline is None else pipeline.identity
    with nullcontext(ctx) if ctx is not None else _opened(devices) as context:
        return _run(context, program, key, identity, name or _name(fn), records, sink, options, pipeline, wish)


def _run(
    ctx: Context,
    program: BatchProgram,
    key: str,
    identity: str,
    name: str,
    source: Source,
    sink: Sink,
    options: BatchOptions,
    pipeline: Pipeline | None,
    wish: Wish,
) -> BatchOutcome:
    taking_part = _devices(ctx)
    spending = RunSpending(options, taking_part)
    job = _job(identity, source, sink, options, wish)
    parts = sink.open(job, options.found)
    journal = None if sink.journal is None else Journal(sink.journal)
    committer = Committer(sink, job, journal, options.ordered, options.spill)
    done = committer.resume(parts)
    if options.check_merge and isinstance(options.merge, Fold):
        _try_merge(ctx, taking_part[0], program, options.merge, source)
    sizes = {device.id: _sizes(key, device, options) for device in taking_part}
    number = f"{key}-{next(_numbers)}"
    work = packed_work(number, number, program)
    given = (ctx, taking_part, sizes, work, source, committer, options, done, job.part_items, name, spending)
    run = (
        BatchRun(*given) if pipeline is None else _staged(pipeline, wish, program, number, taking_part, options, given)
    )
    view = BatchProgress(run) if options.progress else None
    try:
        return run.go()
    finally:
        if view is not None:
            view.close()
        if options.learn and pipeline is None:
            size_history.keep(key, {device: sizes[device.id] for device in taking_part})


def _job(function: str, source: Source, sink: Sink, options: BatchOptions, wish: Wish) -> Job:
    """Name what is computed, by digests; nothing where no results outlive the run, since that reads every record."""
    part_items = options.part_items or _part_items(source, sink)
    if not function:
        return Job("", part_items, source.length)
    identity = source.identity()
    wishes = [options.part_items, options.same_count, options.check_finite, *wish]
    merged = "" if options.merge is None else value_identity(options.merge)
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


def _staged(
    pipeline: Pipeline,
    wish: Wish,
    whole: BatchProgram,
    number: str,
    devices: Sequence[Device],
    options: BatchOptions,
    given: tuple[Any, ...],
) -> StagedRun:
    """Make the run of a pipeline: a program for each stage, and one for all of them in one piece."""
    last = len(pipeline.stages) - 1
    works = {}
    for begin, end in sorted({*((stage, stage) for stage in range(last + 1)), (0, last)}):
        load, ends = whole.load if begin == 0 else None, end == last
        function = chained(pipeline.stages[begin : end + 1], wish)
        part = BatchProgram(
            function,
            load,
            whole.merge if ends else None,
            True,
            whole.check_finite and ends,
            whole.share_frac,
            whole.follow,
        )
        works[begin, end] = packed_work(number, f"{number}/{begin}-{end}", part)
    allowed = {device.id: tuple(stage.may_run_on(device) for stage in pipeline.stages) for device in devices}
    for place, stage in enumerate(pipeline.stages):
        if not any(row[place] for row in allowed.values()):
            raise NothingFitsError(
                f"no device may run stage {place} of the pipeline: it asks for {' or '.join(stage.on)}",
                remedy=f"there are {', '.join(device.short for device in devices)}",
            )
    by_id = {device.id: device for device in devices}
    planner = StagePlanner(allowed, lambda name, _: Sizes(options.size_for(by_id[name])))
    return StagedRun(planner, works, *given)


def _sizes(key: str, device: Device, options: BatchOptions) -> Sizes:
    fixed = options.size_for(device)
    return size_history.known_sizes(key, device, fixed) if options.learn else Sizes(fixed)


def _devices(ctx: Context) -> list[Device]:
    """Return the devices that can run Python."""
    found = [device for device in ctx.devices if device.runs_python and not device.simulated]
    if not found:
        names = ", ".join(device.short for device in ctx.devices)
        raise NothingFitsError(f"none of {names} runs Python functions", remedy="add a CPU or a GPU")
    return found


def _opened(devices: Any) -> Context:
    from hetero.session.context import Context

    return Context(devices=devices)


def _sink(options: BatchOptions, out: Any, form: str | None) -> Sink:
    if options.merge is None:
        return sink_of(out, form)
    if out is not None and not isinstance(out, str | Path):
        raise BadValueError("a merge gives one value and no results for out", remedy="read it from .value")
    if out is not None:
        return MergeSink(options.merge, local_path(out, "out"))
    return MergeSink(options.merge, settings.home() / "batches" / options.name if options.name else None)


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _part_items(source: Source, sink: Sink) -> int:
    """Return how many items make a part of about the sink's size, told from the first piece."""
    first = source.peek()
    if first is None:
        raise BadValueError("the source is empty", remedy="give at least one record")
    item_bytes = max(1.0, size_bytes(first.records) / count(first.records))
    return max(1, int(sink.part_bytes / item_bytes))
