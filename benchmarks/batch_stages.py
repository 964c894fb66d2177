"""A pipeline decode, model, write on two devices, the bottleneck moving in mid-run: its rate before and after."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, arguments
from hetero.batch import BatchOptions

SLOW_S, QUICK_S, WRITE_S = 4e-3, 1e-3, 5e-4
"""What a record costs at the bottleneck, at the other one of decode and model, and when it is written."""


def stages(half: int) -> Any:
    """Make the stages: the first half of the records is slow to decode, the second half to put through the model."""

    def decode(batch: list[int]) -> list[int]:
        time.sleep(sum(SLOW_S if record < half else QUICK_S for record in batch))
        return batch

    def model(batch: list[int]) -> list[int]:
        time.sleep(sum(QUICK_S if record < half else SLOW_S for record in batch))
        return batch

    def write(batch: list[int]) -> list[float]:
        time.sleep(WRITE_S * len(batch))
        return [time.monotonic()] * len(batch)

    return decode, model, write


def rate(ends_s: list[float]) -> float:
    """Return the records a second between the first and the last fifth of some."""
    kept = sorted(ends_s)[len(ends_s) // 5 : -len(ends_s) // 5]
    return (len(kept) - 1) / (kept[-1] - kept[0])


def run(ctx: hetero.Context, count: int) -> tuple[float, float]:
    """Return the rates before and after the bottleneck moved."""
    decode, model, write = stages(count // 2)
    steps = hetero.batch.pipeline((decode, "cpu:0"), (model, "cpu:1"), write)
    ends_s = ctx.map_batches(steps, range(count), options=BatchOptions(learn=False)).value
    return rate(ends_s[: count // 2]), rate(ends_s[count // 2 :])


def run_in_one_piece(ctx: hetero.Context, count: int) -> float:
    """Return the rate of all stages in one call, on both devices."""
    decode, model, write = stages(count // 2)
    return rate(
        ctx.map_batches(
            lambda batch: write(model(decode(batch))), range(count), options=BatchOptions(learn=False)
        ).value
    )


def main() -> None:
    """Run the benchmark."""
    given = arguments(__doc__ or "")
    count, rounds = (400, 1) if given.quick else (6_000, 3)
    bench = Bench("batch_stages", (__doc__ or "").strip(), (), given.out)
    bench.note(records=count, seconds_a_record=[SLOW_S, QUICK_S, WRITE_S], decode="on cpu:0", model="on cpu:1")
    with hetero.Context(devices="2xcpu", history=False) as ctx:
        rates = [run(ctx, count) for _ in range(rounds)]
        whole = [run_in_one_piece(ctx, count) for _ in range(rounds)]
    for word, found in zip(("before", "after"), zip(*rates, strict=True), strict=True):
        bench.measure(f"{word} the bottleneck moves", found, "records/s")
        bench.claim(f"rate over the bottleneck's, {word}", statistics.median(found) * SLOW_S, at_least=0.9)
    bench.measure("all stages in one call, both devices alike", whole, "records/s")
    bench.finish()


if __name__ == "__main__":
    main()
