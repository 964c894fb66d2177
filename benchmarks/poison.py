"""50 tasks that end their workers among 1,000 good ones on two devices: every good one is done, and little time lost.

Good tasks sleep for 50 ms, so that a device is taken without competing for processors: what a run takes beyond the
same tasks without the bad ones is what those cost. They are a function of their own, or calls of the same function.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import contextlib

from benchmarks.common import Bench, arguments

TASK_S = 0.05
LIMIT_S = 300.0


def good(index: int) -> int:
    """Take a device for a while."""
    time.sleep(TASK_S)
    return index


def bad(index: int) -> None:
    """End the worker."""
    os.kill(os.getpid(), signal.SIGSEGV)


def either(index: int, ends: bool) -> int:
    """End the worker, or take a device for a while."""
    if ends:
        bad(index)
    return good(index)


def calls(tasks: int, poison: int, kind: str) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Spread the bad calls among the good ones."""
    every = (tasks + poison) // max(1, poison)
    ends = [bool(poison) and index % every == 0 and index // every < poison for index in range(tasks + poison)]
    if kind == "same":
        return [(either, (index, end)) for index, end in enumerate(ends)]
    return [(bad if end else good, (index,)) for index, end in enumerate(ends)]


def run(ctx: Executor, work: list[tuple[Callable[..., Any], tuple[Any, ...]]]) -> tuple[int, float]:
    """Hand everything in; return how many were done, and in how many seconds.

    A broken `ProcessPoolExecutor` sometimes leaves futures pending for ever, so that the whole has a bound.
    """
    begin_s = time.perf_counter()
    futures = []
    for function, given in work:
        try:
            futures.append(ctx.submit(function, *given))
        except BrokenProcessPool:
            break
    done = 0
    for future in futures:
        with contextlib.suppress(TimeoutError):
            done += future.exception(max(0.0, begin_s + LIMIT_S - time.perf_counter())) is None
    return done, time.perf_counter() - begin_s


def main() -> None:
    """Measure and print."""
    import hetero

    given = arguments(str(__doc__).splitlines()[0])
    tasks, poison = (100, 5) if given.quick else (1_000, 50)
    what = f"{tasks} tasks of 50 ms on two devices, {poison} more that end their worker by SIGSEGV"
    bench = Bench("poison", what, (), given.out)
    found: dict[str, tuple[int, float]] = {}
    for kind, count in (("without", 0), ("own", poison), ("same", poison)):
        with hetero.Context(devices="2xcpu", history=False) as ctx:
            ctx.gather([ctx.submit(good, index) for index in range(4)])
            found[kind] = run(ctx, calls(tasks, count, kind))  # type: ignore[arg-type]
        bench.measure(f"hetero, {kind}", [found[kind][1]])
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        rival = run(pool, calls(tasks, poison, "own"))
    bench.measure("ProcessPoolExecutor", [rival[1]])
    for kind, words in (("own", "a function of their own"), ("same", "the same function")):
        bench.claim(f"bad calls of {words}: good tasks done", found[kind][0], unit="", at_least=tasks)
    lost = 1.0 - found["without"][1] / found["own"][1]
    bench.claim("bad calls of a function of their own: device time lost", 100 * lost, unit="%", at_most=5)
    lost = 1.0 - found["without"][1] / found["same"][1]
    bench.claim("bad calls of the same function: device time lost", 100 * lost, unit="%")
    bench.claim("ProcessPoolExecutor: good tasks done", rival[0], unit="")
    bench.finish()


if __name__ == "__main__":
    main()
