"""The run of a pipeline: batches wait before each stage, and devices take the stage where they relieve most.

In: what a run of one function gets, and the stages. Out: an `Outcome`. It must not decide steps: the planner does.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from typing import Any

from hetero.batch.base import Piece
from hetero.batch.flight import Flight
from hetero.batch.reading import Batch
from hetero.batch.records import count, cut
from hetero.batch.run import Run
from hetero.batch.worker import Done, Work
from hetero.plan.batch.stages import StagePlanner, Step

__all__ = ["StagedRun"]

_SMALLEST = 8


class StagedRun(Run):
    """One run of a pipeline over a source.

    Parameters
    ----------
    planner : gives devices to stages
    works : the programs as they travel, by step
    given : what a `Run` gets
    """

    planner: StagePlanner  # type: ignore[assignment]

    def __init__(self, planner: StagePlanner, works: Mapping[Step, Work], *given: Any) -> None:
        super().__init__(*given)
        self.planner = planner
        self._works = {step: self.ctx.put(work) for step, work in works.items()}
        self._last = max(last for _, last in works)
        self._waiting: list[list[Batch]] = [[] for _ in range(self._last + 1)]

    def _over(self) -> bool:
        return super()._over() and not any(self._waiting)

    def _queues(self) -> list[float]:
        source = 0.0 if self.reader.exhausted or not self._has_room() else min(self.reader.left, self.planner.bound)
        return [source, *(float(sum(map(len, waiting))) for waiting in self._waiting[1:])]

    def _fresh(self, name: str) -> Flight | None:
        step = self.planner.choose(name, self._queues())
        if step is None:
            return None
        wanted = self.planner.sizes_at(name, step).wanted()
        if step[0] == 0:
            size = min(wanted, max(1.0, wanted / _SMALLEST, self.reader.left / len(self.planner.names)))
            batch = self.reader.take(int(size), hungry=True)
        else:
            batch = self._taken(step[0], wanted)
        return None if batch is None else Flight(batch, step=step)

    def _taken(self, stage: int, wanted: int) -> Batch:
        """Take the first records that wait before a stage: neighbours of one part, as many as wanted."""
        waiting = self._waiting[stage]
        batch = waiting.pop(0)
        while len(batch) < wanted and waiting and self._follows(batch, waiting[0]):
            other = waiting.pop(0)
            batch = Batch(
                batch.begin, batch.pieces + other.pieces, batch.cost + other.cost, batch.nbytes + other.nbytes
            )
        if len(batch) > wanted:
            batch, rest = batch.split(wanted)
            waiting.insert(0, rest)
        return batch

    def _follows(self, batch: Batch, other: Batch) -> bool:
        return other.begin == batch.end and other.begin % self.part_items != 0

    def _allowed(self, name: str, flight: Flight) -> bool:
        return self.planner.may(name, flight.step)

    def _give(self, name: str, ticket: int, flight: Flight, now_s: float) -> None:
        self.planner.give(name, ticket, flight.step, flight.batch.cost)

    def _too_large(self, name: str, flight: Flight) -> None:
        self.planner.sizes_at(name, flight.step).too_large(flight.batch.cost)

    def _rescue(self, name: str) -> int | None:
        return None

    def end_s(self) -> float:
        """Return infinity: which stage is the bottleneck may change."""
        return float("inf")

    def _deliver(self, flight: Flight, done: Done) -> None:
        if flight.step[1] == self._last:
            super()._deliver(flight, done)
            return
        stage, batch = flight.step[1] + 1, flight.batch
        pieces, at = [], 0
        for piece in batch.pieces:
            size = count(piece.records)
            pieces.append(Piece(cut(done.results, at, at + size), piece.file, piece.row))
            at += size
        after = Batch(batch.begin, tuple(pieces), batch.cost, done.home_bytes)
        insort(self._waiting[stage], after, key=lambda each: each.begin)
