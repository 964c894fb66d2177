"""Runs whose tasks write down their own times, so that what a trace says of them can be checked.

In: a kind of task and a file. Out: a trace, and what clocks inside the workers showed. Values sleep while they are
unpickled and pickled; the shares compare spans of time, so that a loaded machine does not matter.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

import hetero
from hetero.drive.frame import current
from hetero.report.intervals import Spans, common, length_s, pairs, union
from hetero.report.record import RunRecord
from hetero.report.trace_reader import read_run
from hetero.train.values import DataOptions, TrainOptions

LINKED = {"devices": [{"type": "cpu", "cores": 1, "link": {"bandwidth": "100MB/s"}}] * 2}
SIZE = 200_000
PARTS = ("loading", "running", "storing")


@contextmanager
def clocked(log: str, part: str) -> Iterator[None]:
    """Write down by the worker's own clock from when until when a block ran, and on which device where a task knows."""
    begin_s = time.monotonic()
    frame = current()
    device = frame.device.id if frame is not None else ""
    try:
        yield
    finally:
        line = json.dumps([f"{os.getpid()}:{threading.get_ident()}", device, part, begin_s, time.monotonic()])
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def loaded(log: str, seconds: float, kind: type[Any], state: dict[str, Any]) -> Any:
    """Be what a value is unpickled by: slow in a worker, quick where it was made."""
    made = kind.__new__(kind)
    made.__dict__.update(state)
    if os.getpid() != state["home"]:
        with clocked(log, "loading"):
            time.sleep(seconds)
    return made


class SlowToLoad:
    """Sleeps in a worker while it is unpickled."""

    def __init__(self, log: str, seconds: float) -> None:
        self.log, self.seconds, self.home = log, seconds, os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return loaded, (self.log, self.seconds, type(self), dict(self.__dict__))


class SlowToStore:
    """Sleeps while it is pickled."""

    def __init__(self, log: str, seconds: float) -> None:
        self.log, self.seconds = log, seconds

    def __reduce__(self) -> tuple[Any, ...]:
        with clocked(self.log, "storing"):
            time.sleep(self.seconds)
        return int, (7,)


class SlowError(Exception):
    """Sleeps while it is pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        with clocked(self.args[0], "storing"):
            time.sleep(self.args[1])
        return ValueError, ("it failed",)


def work(given: SlowToLoad, run_s: float, ends: str) -> Any:
    """Run for a while, and end as told."""
    with clocked(given.log, "running"):
        time.sleep(run_s)
    if ends == "error":
        raise SlowError(given.log, 0.5 * run_s)
    return {"value": SlowToStore(given.log, 0.5 * run_s), "resident": np.ones(SIZE)}.get(ends)


@hetero.task(devices=2)
def together(given: SlowToLoad, run_s: float) -> Any:
    """Run as a member of a group, the second one for less long; only the first has a result."""
    with clocked(given.log, "running"):
        time.sleep(run_s / (1 + hetero.collectives.rank()))
    return SlowToStore(given.log, run_s) if hetero.collectives.rank() == 0 else None


def tasks(ends: str) -> Callable[[str, str, float], None]:
    """Create a run of six tasks that end in one way."""

    def run(log: str, trace: str, unit_s: float, **options: Any) -> None:
        fleet = {"config": LINKED} if ends == "resident" else {"devices": "2xcpu"}
        with hetero.Context(**{**fleet, **options}, trace=trace, history=False) as ctx:
            given = SlowToLoad(log, 3.0 * unit_s)
            for future in [ctx.submit(work, given, unit_s, ends) for _ in range(6)]:
                with suppress(Exception):
                    future.result()

    return run


def groups(log: str, trace: str, unit_s: float, **options: Any) -> None:
    """Run two group tasks."""
    with hetero.Context(devices="2xcpu", trace=trace, history=False, **options) as ctx:
        for _ in range(2):
            ctx.run(together, SlowToLoad(log, 2.0 * unit_s), unit_s)


class Stage:
    """A stage of a pipeline that is slow to load once and sleeps for each batch."""

    def __init__(self, log: str, unit_s: float) -> None:
        self.given, self.unit_s = SlowToLoad(log, 2.0 * unit_s), unit_s

    def __call__(self, batch: list[int]) -> list[int]:
        with clocked(self.given.log, "running"):
            time.sleep(self.unit_s * len(batch))
        return [x + 1 for x in batch]


def stream(log: str, trace: str, unit_s: float, **options: Any) -> None:
    """Stream records from a generator through a pipeline of two stages."""
    with hetero.Context(devices="2xcpu", trace=trace, history=False, **options) as ctx:
        steps = hetero.batch.pipeline(Stage(log, unit_s), Stage(log, 0.5 * unit_s))
        assert ctx.map_batches(steps, (x for x in range(12)), batch=2).value == list(range(2, 14))


class Images(SlowToLoad):
    """A data set that is slow to load, and whose samples are slow to read."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, place: int) -> tuple[Any, int]:
        return np.full(4, float(place), dtype=np.float32), place % 3


def training(log: str, trace: str, unit_s: float, **options: Any) -> None:
    """Train a small model over two devices; its forward pass sleeps."""
    import torch

    class Slow(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            with clocked(log, "running"):
                time.sleep(0.2 * unit_s)
            return super().forward(x)

    model = torch.nn.Sequential(Slow(4, 3))
    fleet = hetero.Context(devices="2xcpu", trace=trace, history=False, **options)
    with fleet, hetero.Trainer(
        model, torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.01), Images(log, 6.0 * unit_s),
        devices=fleet, options=TrainOptions(16, shares="equal"), data_options=DataOptions(readers=0),
    ) as trainer:  # fmt: skip
        trainer.fit(4)


RUNS: dict[str, Callable[..., None]] = {
    "ordinary": tasks("value"),
    "None": tasks("none"),
    "resident": tasks("resident"),
    "failing": tasks("error"),
    "group": groups,
    "streaming": stream,
    "training": training,
}
"""How to run tasks of each kind: with a log, a trace, the unit of time in s, and what a Context takes."""


def shown(log: Path, run: RunRecord) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return what the clocks in the worker of each device showed, by part, in the times of the run."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    device_of = {worker.partition(":")[0]: device for worker, device, *_ in lines if device}  # of its other threads
    device_of |= {worker: device for worker, device, *_ in lines if device}
    found: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for worker, _, part, *times in lines:
        begin_s, end_s = (each - run.head["clock_origin_s"] for each in times)
        found[device_of.get(worker) or device_of[worker.partition(":")[0]]][part].append((begin_s, end_s))
    return found


def told(run: RunRecord, device: int) -> dict[str, Spans]:
    """Return what the trace tells of each part of the attempts of a device."""
    mine = [each for each in run.attempts if each.device == device]
    loads = [each.start_s + each.link_in_s for each in mine]
    stores = [each.end_s - each.link_out_s - each.store_s for each in mine]
    loading = [(at, at + each.load_s) for at, each in zip(loads, mine, strict=True)]
    storing = [(at, at + each.store_s) for at, each in zip(stores, mine, strict=True)]
    running = [(a, b - each.wait_s) for (_, a), (b, _), each in zip(loading, storing, mine, strict=True)]
    return dict(zip(PARTS, map(pairs, (loading, running, storing)), strict=True))


def missing_s(log: Path, trace: Path) -> tuple[float, float, float]:
    """Compare a trace with the clocks in the workers.

    Returns
    -------
    tuple of float
        s that the clocks showed; s of that in which no attempt of the worker's device is told; s of that in which the
        attempt is told to have been in another part
    """
    run = read_run(trace)
    names = [device.id for device in run.devices]
    shown_s = lost_s = wrong_s = 0.0
    for name, parts in shown(log, run).items():
        spans = {part: union(pairs(each)) for part, each in parts.items()}
        whole = union(*spans.values())
        mine = told(run, names.index(name))
        shown_s += length_s(whole)
        lost_s += length_s(whole) - _agreed_s(whole, *mine.values())
        wrong_s += sum(length_s(each) - _agreed_s(each, mine[part]) for part, each in spans.items())
    return shown_s, lost_s, wrong_s


def _agreed_s(shown: Spans, *told: Spans) -> float:
    """Return for how long both cover a time, but for the digits of a trace."""
    return length_s(common(shown, union(*((each[0] - 1e-5, each[1] + 1e-5) for each in told))))
