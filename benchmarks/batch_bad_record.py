"""One bad record among 100,000: the calls that it takes to find it, and the results of all others.

Each call of the function appends a line to a file, so that calls are counted outside of hetero.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, arguments
from hetero.batch import BatchOptions

BATCHES = (64, 256, 1024)
FLEET = "1xcpu,1xcpu*0.5"


def extra_calls(log: Path, bad: int) -> int:
    """Return how many calls worked on records of the batch that failed first, after it had failed."""
    calls = [(int(begin), int(size)) for begin, size in map(str.split, log.read_text(encoding="utf-8").splitlines())]
    first, size = max((call for call in calls if call[0] <= bad < sum(call)), key=lambda call: call[1])
    return sum(first <= begin and begin + each <= first + size for begin, each in calls) - 1


def find(ctx: hetero.Context, count: int, batch: int, bad: int) -> tuple[int, int]:
    """Run the job with one bad record; returns the extra calls and the results."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "calls"

        def work(records: list[int]) -> list[float]:
            with log.open("a", encoding="utf-8") as file:
                file.write(f"{records[0]} {len(records)}\n")
            return [1.0 / (record - bad) for record in records]

        outcome = ctx.map_batches(work, range(count), batch=batch, errors=1, options=BatchOptions(learn=False))
        assert [record.item for record in outcome.bad] == [bad], "the bad record is found, and no other"
        return extra_calls(log, bad), len(outcome.value)


def main() -> None:
    """Run the benchmark."""
    title = str(__doc__).splitlines()[0]
    given = arguments(title)
    count, rounds, chance = (3_000, 1, random.Random(1)) if given.quick else (100_000, 7, random.Random(1))
    bench = Bench("batch_bad_record", title, (), given.out)
    bench.note(records=count, fleet=FLEET)
    results = []
    with hetero.Context(devices=FLEET, history=False) as ctx:
        for batch in BATCHES:
            places = [0, count - 1, *(chance.randrange(count) for _ in range(rounds - 2))][:rounds]
            found = [find(ctx, count, batch, bad) for bad in places]
            results += [number for _, number in found]
            extra = [float(calls) for calls, _ in found]
            bench.measure(f"calls to find it, batches of {batch}", extra, "calls")
            most = 2 * math.log2(batch)
            bench.claim(f"batches of {batch}: calls to find it, the worst place", max(extra), unit="", at_most=most)
    bench.claim(f"results of {count:,} records, the fewest", min(results), unit="", at_least=count - 1)
    bench.finish()


if __name__ == "__main__":
    main()
