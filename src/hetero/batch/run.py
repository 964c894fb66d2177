"""The run: devices ask, batches go out, results come back, failing ones are halved until the bad records are found.

In: a source, a program, a sink, a Context. Out: an `BatchOutcome`. It must not decide sizes: the planner does.
"""

from __future__ import annotations

import math
import queue
from bisect import insort
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hetero.batch.availability import local_now
from hetero.batch.base import BadRecord, BadRecordsError, Piece, Source
from hetero.batch.budget import RunSpending
from hetero.batch.committing import Committer, Entry
from hetero.batch.options import BatchRequest
from hetero.batch.outcome import BatchOutcome, DeviceStatistics
from hetero.batch.reader import ItemBatch, Reader
from hetero.batch.records import count, cut, packed, unpacked
from hetero.batch.worker import Done, PackedProgram, run_batch
from hetero.engines.shared.exceptions import kind_here
from hetero.floor.clock import monotonic_s
from hetero.floor.errors import (
    DeviceError,
    HeteroError,
    NothingFitsError,
    OutOfDeviceMemoryError,
    TaskLostError,
)
from hetero.model.device import Device
from hetero.plan.batch.next_stage import StagePlanner, Step
from hetero.plan.batch.planner import BatchPlanner, Span, beside
from hetero.plan.batch.size_tuning import Sizes
from hetero.session.tasks import judged_by_caller, task

if TYPE_CHECKING:
    from hetero.session.context import Context
    from hetero.session.futures import Future

__all__ = ["BatchRun", "InFlightBatch", "RunSetup", "StagedRun"]

_LOOK_S = 0.05
_PATIENCE_S = 1.0
_WRITES = 8
_CRASHES = 2

_SMALLEST = 8


@dataclass(slots=True)
class InFlightBatch:
    """A batch that one device works on, or two.

    Attributes
    ----------
    batch
        The items.
    avoid
        The device where it failed, '' where it did not.
    suspected
        True where it is part of a batch that failed.
    crashes
        Workers that died of it.
    step
        First and last of the stages of a pipeline that it goes through.
    runs
        Future and time of handing in, by device.
    """

    batch: ItemBatch
    avoid: str = ""
    suspected: bool = False
    crashes: int = 0
    step: tuple[int, int] = (0, 0)
    runs: dict[str, tuple[Future, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunSetup:
    """What a run is made of.

    Attributes
    ----------
    ctx, devices
        The Context, and the devices of it that take part.
    sizes
        Of batches, by device id.
    source, committer, request
        What is read, who takes the results, what was asked for.
    done
        (begin, end) of items that have results already.
    part_items
        Items of a part.
    name
        Of the run.
    spending
        Counts its time, dollars and joules.
    """

    ctx: Context
    devices: Sequence[Device]
    sizes: dict[str, Sizes]
    source: Source
    committer: Committer
    request: BatchRequest
    done: Sequence[tuple[int, int]]
    part_items: int
    name: str
    spending: RunSpending


class BatchRun:
    """One run over a source.

    Parameters
    ----------
    setup
        What is run, on what.
    work
        The program as it travels.
    """

    def __init__(self, setup: RunSetup, work: PackedProgram) -> None:
        ctx, devices, request = setup.ctx, setup.devices, setup.request
        self.ctx, self.request, self.committer, self.source = ctx, request, setup.committer, setup.source
        self.planner = BatchPlanner(setup.sizes)
        self.statistics = {device.id: DeviceStatistics(device) for device in devices}
        self._works: dict[tuple[int, int], object] = {(0, 0): ctx.put(work)}
        self.part_items = setup.part_items
        self._tasks = {
            device.id: judged_by_caller(
                task(run_batch, on=(device.id,), name=setup.name, timeout=request.limits.timeout_s)
            )
            for device in devices
        }
        self._pending: dict[int, InFlightBatch] = {}
        self._again: deque[InFlightBatch] = deque()
        self._inbox: queue.SimpleQueue[tuple[int, str, float] | None] = queue.SimpleQueue()
        self._last_s: dict[str, float] = {}
        self._tickets = 0
        self.spending = setup.spending
        self._resumed = sum(end - begin for begin, end in setup.done)
        self.reader = Reader(
            setup.source,
            setup.part_items,
            setup.done,
            request.limits.memory_bytes // 2,
            request.options.cost,
            lambda: self._inbox.put(None),
        )

    def go(self) -> BatchOutcome:
        """Run to the end.

        Raises
        ------
        BadRecordsError
            There are more bad records than allowed.
        TimeLimitError
            It took too long.
        HeteroError
            The source cannot be read, the sink cannot be written, or no device is left.
        """
        try:
            while not self._over():
                self._hand_out()
                self._take_news()
            value = self._finished()
        except BaseException:
            self._stop()
            raise
        finally:
            self.reader.close()
        return self._outcome(value)

    def _over(self) -> bool:
        if self.reader.trouble is not None:
            raise self.reader.trouble
        self.committer.check()
        self.spending.check(self.statistics.values(), self.items())
        return self.reader.exhausted and not self._pending and not self._again

    def _finished(self) -> object:
        length = self.source.length
        if length is not None and self.reader.items < length:
            raise HeteroError(
                f"the source ended after {self.reader.items} of {length} records", remedy="see whether it changed"
            )
        return self.committer.finish()

    def _stop(self) -> None:
        for pending in self._pending.values():
            for future, _ in pending.runs.values():
                future.cancel()
        self.committer.abort()

    # --- handing out ---------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        for name in self.planner.names:
            while name in self.planner.names and (pending := self._next_for(name)) is not None:
                self._tickets += 1
                self._pending[self._tickets] = pending
                self._submit(name, self._tickets)
            if name in self.planner.names and (late := self._rescue(name)) is not None:
                self._submit(name, late)

    def _rescue(self, name: str) -> int | None:
        """Return the ticket of a batch that is late; a part of one that failed is never run twice at a time."""
        late = self.planner.rescue(name, monotonic_s())
        return None if late is None or self._pending[late].suspected else late

    def _next_for(self, name: str) -> InFlightBatch | None:
        if len(self.planner.given(name)) > 1:
            return None
        for pending in self._again:
            others = [other for other in self.planner.names if other != name and self._allowed(other, pending)]
            if self._allowed(name, pending) and (pending.avoid != name or not others):
                self._again.remove(pending)
                return pending
        return self._fresh(name)

    def _allowed(self, name: str, pending: InFlightBatch) -> bool:
        return True

    def _fresh(self, name: str) -> InFlightBatch | None:
        """Return records that nobody was given yet, None where the device should wait."""
        if not self._has_room():
            return None
        now_s, left, span = monotonic_s(), self.reader.left, self.reader.span
        late = () if span is None else self.planner.late(name, self._beside(span), left, now_s)
        more = sum(self._pending[ticket].batch.cost for ticket in late)
        size = self.planner.ask(name, left + more, now_s, insured=span is not None)
        if late and size >= left:
            for ticket in late:
                self._take_over(ticket)
        back = name != self.planner.names[0]
        batch = self.reader.take(size, hungry=not self.planner.given(name), back=back) if size else None
        return None if batch is None else InFlightBatch(batch)

    def _beside(self, left: Span) -> tuple[int, ...]:
        """Return the batches that stand beside what is left, in its part, and that one device alone works on."""
        part = left.begin // self.part_items
        pending_batches = {ticket: each for ticket, each in self._pending.items() if len(each.runs) == 1}
        sound = (
            (ticket, each.batch) for ticket, each in pending_batches.items() if not each.suspected and not each.avoid
        )
        spans = {ticket: Span(batch.begin, batch.end) for ticket, batch in sound}
        return beside(left, {ticket: span for ticket, span in spans.items() if span.begin // self.part_items == part})

    def _take_over(self, ticket: int) -> None:
        """Put the records of a batch that is late back to what is left."""
        pending = self._pending.pop(ticket)
        for name, (future, _) in pending.runs.items():
            future.cancel()
            self.planner.taken_over(name, ticket, monotonic_s())
        self.reader.give_back(pending.batch)

    def _has_room(self) -> bool:
        """Return whether more may be in flight: results that wait for a slow batch, or for the sink, hold it back."""
        hours = self.request.limits.hours
        if self.committer.writing > _WRITES or (hours is not None and not hours.allow(local_now())):
            return False
        return not self._pending or self.committer.held_bytes < self.request.limits.memory_bytes // 2

    def _submit(self, name: str, ticket: int) -> None:
        pending = self._pending[ticket]
        now_s = monotonic_s()
        self._assign(name, ticket, pending, now_s)
        try:
            records = packed(pending.batch.records)
            future = self.ctx.submit(self._tasks[name], self._works[pending.step], records, pending.batch.begin)
        except NothingFitsError as error:
            self._leave_out(name, str(error))
            return
        pending.runs[name] = future, now_s
        self.statistics[name].calls += 1
        self.statistics[name].again += pending.suspected
        future.add_done_callback(lambda _: self._inbox.put((ticket, name, monotonic_s())))

    def _assign(self, name: str, ticket: int, pending: InFlightBatch, now_s: float) -> None:
        self.planner.assign(name, ticket, pending.batch.cost, now_s)

    # --- taking news ---------------------------------------------------------------------------------------

    def _take_news(self) -> None:
        if self._over():
            return
        idle = any(not self.planner.given(name) for name in self.planner.names)
        try:
            news = self._inbox.get(timeout=_LOOK_S if idle else _PATIENCE_S)
            while True:
                if news is not None:
                    self._ended(*news)
                news = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _ended(self, ticket: int, name: str, at_s: float) -> None:
        pending = self._pending.get(ticket)
        if pending is None or name not in pending.runs:
            return
        future, given_s = pending.runs.pop(name)
        waited_s = at_s - max(given_s, self._last_s.get(name, 0.0))
        self._last_s[name] = at_s
        try:
            done: Done = future.result()
            done = done._replace(results=unpacked(done.results))
        except (Exception, CancelledError) as error:  # noqa: BLE001  whatever the function raised is looked into
            if name in self.planner.names:
                self.planner.done(name, ticket, at_s)
            self._failed(ticket, pending, name, error)
            return
        seconds = done.seconds if done.cold else max(waited_s, done.seconds)
        if name in self.planner.names:
            self.planner.done(name, ticket, at_s, seconds, done.cold)
        self._commit(ticket, pending, name, done, seconds)

    def _commit(self, ticket: int, pending: InFlightBatch, name: str, done: Done, seconds: float) -> None:
        del self._pending[ticket]
        for other, (future, _) in pending.runs.items():
            future.cancel()
            self.planner.done(other, ticket, monotonic_s())
        self.statistics[name].note(len(pending.batch), seconds, done.raw_bytes, done.home_bytes)
        self.statistics[name].precision = done.computed_in
        self._deliver(pending, done)

    def _deliver(self, pending: InFlightBatch, done: Done) -> None:
        batch = pending.batch
        bad = tuple(BadRecord(batch.begin + at, batch.place(batch.begin + at), why) for at, why in done.bad)
        self.committer.take(Entry(batch.begin, batch.end, done.results, bad), done.seconds)
        self._refuse_beyond_budget(bad, None)

    # --- trouble -------------------------------------------------------------------------------------------

    def _failed(self, ticket: int, pending: InFlightBatch, name: str, error: BaseException) -> None:
        self.statistics[name].failed += 1
        if pending.runs:
            return
        del self._pending[ticket]
        if kind_here("missing_package", error) == "missing_package" and isinstance(error, ModuleNotFoundError):
            self._leave_out(name, f"its worker lacks a package: {error}", error)
            self._again.append(pending)
        elif isinstance(error, DeviceError | NothingFitsError) and not isinstance(error, OutOfDeviceMemoryError):
            self._leave_out(name, str(error), error)
            self._again.append(pending)
        elif isinstance(error, MemoryError) and len(pending.batch) > 1:
            self._too_large(name, pending)
            self._again.extend(replace(pending, batch=half, runs={}) for half in pending.batch.halves())
        elif isinstance(error, TaskLostError) and pending.crashes + 1 < _CRASHES:
            self._again.append(replace(pending, avoid=name, crashes=pending.crashes + 1, runs={}))
        elif len(pending.batch) > 1:
            halves = pending.batch.halves()
            self._again.extend(replace(pending, batch=half, avoid=name, suspected=True, runs={}) for half in halves)
        elif not pending.suspected:
            self._again.append(replace(pending, avoid=name, suspected=True, runs={}))
        else:
            self._set_aside(pending.batch, error)

    def _too_large(self, name: str, pending: InFlightBatch) -> None:
        self.planner.sizes(name).too_large(pending.batch.cost)

    def _set_aside(self, batch: ItemBatch, error: BaseException) -> None:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        bad = (BadRecord(batch.begin, batch.place(batch.begin), reason),)
        merge = self.request.merge
        state = None if merge is None else merge.start(None, batch.begin, batch.end)
        self._refuse_beyond_budget(bad, error)
        self.committer.take(Entry(batch.begin, batch.end, state, bad), 0.0)

    def _refuse_beyond_budget(self, bad: Sequence[BadRecord], cause: BaseException | None) -> None:
        total = len({record.item for record in (*self.committer.bad, *bad)})
        if not bad or self.request.allows(total, self.source.length or self.items()):
            return
        record = bad[0]
        words = "record" if total == 1 else f"{total} records have no result; the last one, record"
        raise BadRecordsError(
            f"{words} {record.item} ({record.place}): {record.reason}",
            remedy="mend it, or allow some to be set aside: errors=10 or errors='1%'",
        ) from cause

    def _leave_out(self, name: str, why: str, error: BaseException | None = None) -> None:
        if name not in self.planner.names:
            return
        self.statistics[name].left_out = why
        for ticket in self.planner.drop(name):
            pending = self._pending.get(ticket)
            if pending is not None:
                pending.runs.pop(name, None)
                if not pending.runs:
                    self._again.append(self._pending.pop(ticket))
        if not self.planner.names:
            reasons = "; ".join(f"{stats.device.short}: {stats.left_out}" for stats in self.statistics.values())
            raise NothingFitsError(f"no device is left: {reasons}") from error

    # --- reports -------------------------------------------------------------------------------------------

    def items(self) -> int:
        """Return how many records have results."""
        return self._resumed + sum(stats.items for stats in self.statistics.values())

    def rates(self) -> dict[str, float]:
        """Return the records a second of each device while it worked."""
        return {stats.device.short: stats.rate for stats in self.statistics.values()}

    def end_s(self) -> float:
        """Return the expected seconds until everything is done, infinite where unknown."""
        now_s = monotonic_s()
        left = self.reader.left
        return math.inf if math.isinf(left) else self.planner.end_s(left, now_s) - now_s

    def _batch_items(self, name: str, stats: DeviceStatistics) -> int:
        """Return the best batch of a device in records: as they came where a batch is measured by another cost."""
        if self.request.options.cost is not None:
            return round(stats.items / max(1, stats.calls - stats.failed))
        law = self.planner.sizes(name).law
        return 0 if law is None else int(law.best)

    def _outcome(self, value: object) -> BatchOutcome:
        usd, energy_j = self.spending.usd(self.statistics.values()), self.spending.energy_j(self.statistics.values())
        idle = "the others were done before it could help" if self.reader.items > self._resumed else "all was done"
        for name, stats in self.statistics.items():
            if name not in self.planner.names:
                continue
            stats.batch = self._batch_items(name, stats)
            if not stats.items and not stats.left_out:
                stats.left_out = self.planner.why_idle(name) or idle
        return BatchOutcome(
            value=value,
            items=self.reader.items,
            resumed=self._resumed,
            bad=tuple(sorted(self.committer.bad)),
            seconds=self.spending.seconds,
            devices=tuple(self.statistics.values()),
            usd=usd,
            energy_j=energy_j,
        )


class StagedRun(BatchRun):
    """One run of a pipeline over a source.

    Parameters
    ----------
    setup
        As of a `BatchRun`.
    planner
        Gives devices to stages.
    works
        The programs as they travel, by step; the first is of the first stage.
    """

    planner: StagePlanner  # type: ignore[assignment]

    def __init__(self, setup: RunSetup, planner: StagePlanner, works: Mapping[Step, PackedProgram]) -> None:
        super().__init__(setup, works[0, 0])
        self.planner = planner
        self._works = {step: self.ctx.put(work) for step, work in works.items()}
        self._last = max(last for _, last in works)
        self._waiting: list[list[ItemBatch]] = [[] for _ in range(self._last + 1)]

    def _over(self) -> bool:
        return super()._over() and not any(self._waiting)

    def _queues(self) -> list[float]:
        source = 0.0 if self.reader.exhausted or not self._has_room() else min(self.reader.left, self.planner.bound)
        return [source, *(float(sum(map(len, waiting))) for waiting in self._waiting[1:])]

    def _fresh(self, name: str) -> InFlightBatch | None:
        step = self.planner.choose(name, self._queues())
        if step is None:
            return None
        wanted = self.planner.sizes_at(name, step).wanted()
        if step[0] == 0:
            size = min(wanted, max(1.0, wanted / _SMALLEST, self.reader.left / len(self.planner.names)))
            batch = self.reader.take(int(size), hungry=True)
        else:
            batch = self._taken(step[0], wanted)
        return None if batch is None else InFlightBatch(batch, step=step)

    def _taken(self, stage: int, wanted: int) -> ItemBatch:
        """Take the first records that wait before a stage: neighbours of one part, as many as wanted."""
        waiting = self._waiting[stage]
        batch = waiting.pop(0)
        while len(batch) < wanted and waiting and self._follows(batch, waiting[0]):
            other = waiting.pop(0)
            batch = ItemBatch(
                batch.begin, batch.pieces + other.pieces, batch.cost + other.cost, batch.nbytes + other.nbytes
            )
        if len(batch) > wanted:
            batch, rest = batch.split(wanted)
            waiting.insert(0, rest)
        return batch

    def _follows(self, batch: ItemBatch, other: ItemBatch) -> bool:
        return other.begin == batch.end and other.begin % self.part_items != 0

    def _allowed(self, name: str, pending: InFlightBatch) -> bool:
        return self.planner.may(name, pending.step)

    def _assign(self, name: str, ticket: int, pending: InFlightBatch, now_s: float) -> None:
        self.planner.assign(name, ticket, pending.step, pending.batch.cost)

    def _too_large(self, name: str, pending: InFlightBatch) -> None:
        self.planner.sizes_at(name, pending.step).too_large(pending.batch.cost)

    def _rescue(self, name: str) -> int | None:
        return None

    def end_s(self) -> float:
        """Return infinity: which stage is the bottleneck may change."""
        return float("inf")

    def _deliver(self, pending: InFlightBatch, done: Done) -> None:
        if pending.step[1] == self._last:
            super()._deliver(pending, done)
            return
        stage, batch = pending.step[1] + 1, pending.batch
        pieces, at = [], 0
        for piece in batch.pieces:
            size = count(piece.records)
            pieces.append(Piece(cut(done.results, at, at + size), piece.file, piece.row))
            at += size
        after = ItemBatch(batch.begin, tuple(pieces), batch.cost, done.home_bytes)
        insort(self._waiting[stage], after, key=lambda each: each.begin)
