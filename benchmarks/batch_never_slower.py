"""Bulk work on a pair of devices is never slower than on the better one alone: random laws, in virtual time.

Like is compared with like: the better one alone has the same laws, the same records and the same planner, and where
the pair begins cold, it begins cold too.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, arguments
from hetero.plan.batch.planner import BatchPlanner
from hetero.plan.batch.size_tuning import Sizes
from tests.batch_simulation import simulate

Truth = Callable[[float], float]


def law(rng: np.random.Generator) -> Truth:
    """Draw t(b) = a + c·b + d·b² with a best size up to 1,024, and a best rate up to 10,000 a second."""
    best, rate, overhead = 2.0 ** rng.uniform(0, 10), 10.0 ** rng.uniform(0, 4), rng.uniform(0.02, 0.45)
    whole_s = best / rate
    a, d = overhead * whole_s, overhead * whole_s / best**2
    return lambda size: a + (whole_s - 2 * a) / best * size + d * size**2


def measured(truth: Truth) -> tuple[tuple[float, float], ...]:
    """Return the points that a run learns of a law."""
    sizes = Sizes()
    while sizes.probing:
        size = sizes.wanted()
        sizes.add(size, truth(size))
    return sizes.points()


def makespan_s(truths: dict[str, Truth], known: dict[str, tuple[tuple[float, float], ...]], count: int) -> float:
    """Return the seconds of a run in virtual time."""
    planner = BatchPlanner({name: Sizes(known=known.get(name, ())) for name in truths})
    return simulate(planner, truths, count).makespan_s


def main() -> None:
    """Run the benchmark."""
    given = arguments(str(__doc__).splitlines()[0])
    pairs = 20 if given.quick else 1000
    rng = np.random.default_rng(2026)
    ratios: dict[str, list[float]] = {"known": [], "cold": []}
    gains: list[float] = []
    for _ in range(pairs):
        truths = {"a": law(rng), "b": law(rng)}
        count = int(10.0 ** rng.uniform(1, 4))
        learned = {name: measured(truth) for name, truth in truths.items()}
        for word, known in (("known", learned), ("cold", {})):
            alone = min(makespan_s({name: truth}, known, count) for name, truth in truths.items())
            ratios[word].append(makespan_s(truths, known, count) / alone)
        rates = [max(size / seconds for size, seconds in points) for points in learned.values()]
        gains.append(ratios["known"][-1] * sum(rates) / max(rates))
    bench = Bench("batch_never_slower", str(__doc__).splitlines()[0], (), given.out)
    bench.note(pairs=pairs, law="t(b) = a + c·b + d·b², best sizes 1 to 1,024, 10 to 10,000 records")
    for word, found in ratios.items():
        bench.measure(f"pair / better one alone, sizes {word}", found, "×")
    bench.measure("pair, sizes known / what both speeds allow", gains, "×")
    bench.claim("sizes known: the worst pair", max(ratios["known"]), rival="the better one alone", at_most=1.02)
    over = sum(each > 1.02 for each in ratios["cold"]) / pairs
    bench.claim("from cold: share of pairs over 1.02 ×", over, rival="the better one alone, cold", unit="", at_most=0)
    worst = statistics.quantiles(ratios["cold"], n=100)[98]
    bench.claim("from cold: the 99th percentile", worst, rival="the better one alone, cold", at_most=1.02)
    bench.claim("from cold: the worst pair", max(ratios["cold"]), rival="the better one alone, cold")
    bench.finish()


if __name__ == "__main__":
    main()
