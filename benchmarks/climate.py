"""The climate pipeline as one graph on a core and a core at half speed: over each kind alone, and over the bound.

The winds are made up on a grid of 1.5 degrees; advection of a tracer in parts, statistics and maps, as in
examples/climate.py. The bound is what no placement can beat: all the work at the sum of the two speeds.
"""

from __future__ import annotations

import importlib
import statistics
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import hetero
from benchmarks.common import Bench, alternate, arguments
from hetero.floor.clock import monotonic_s

FAST, SLOW, BOTH = "1xcpu", "1xcpu*0.5", "1xcpu,1xcpu*0.5"
ROWS, COLUMNS, PARTS = 121, 240, 8
HOURS, ROUNDS = 240, 5


def run_s(ctx: hetero.Context, hours: int) -> float:
    """Run the pipeline once, and give the seconds until every result is there."""
    winds = importlib.import_module("climate_grid").synthetic_winds(ROWS, COLUMNS)
    graph, _ = importlib.import_module("climate").graph_of(winds, hours, PARTS)
    begin_s = monotonic_s()
    ctx.gather(list(graph.submit(ctx).values()))
    return monotonic_s() - begin_s


def main() -> None:
    """Run the pipeline on each fleet in turn."""
    given = arguments(__doc__ or "")
    bench = Bench("climate", "A climate pipeline on two kinds of devices, over each alone and the bound", out=given.out)
    hours, rounds = (24, 1) if given.quick else (HOURS, ROUNDS)
    with ExitStack() as stack:
        fleets = {
            devices: stack.enter_context(hetero.Context(devices=devices, policy="planned", history=False))
            for devices in (FAST, SLOW, BOTH)
        }
        found = alternate({name: partial(run_s, ctx, hours) for name, ctx in fleets.items()}, rounds)
    for name, samples in found.items():
        bench.measure(name, samples)
    fast_s, slow_s, both_s = (statistics.median(found[name]) for name in (FAST, SLOW, BOTH))
    bound_s = 1.0 / (1.0 / fast_s + 1.0 / slow_s)
    bench.claim("climate pipeline on a core and a core at half speed", fast_s / both_s, rival="the core", at_least=1.0)
    bench.claim("climate pipeline on both kinds", slow_s / both_s, rival="the core at half speed")
    bench.claim("time of the climate pipeline on both kinds", both_s / bound_s, rival="the bound")
    bench.note(bound_s=bound_s, hours=hours, grid=(ROWS, COLUMNS), tasks=6 * (PARTS + 2))
    bench.finish()


if __name__ == "__main__":
    main()
