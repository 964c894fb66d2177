"""A no-op task through hetero on Ray: 1.3 times the round trip of a plain actor, thrice the throughput of plain tasks.

A round trip is one call of a function that does nothing, waited for. The throughput is that of many such calls handed
in together: hetero sends those that are short in one call of an actor. All contestants use the same Ray, which the
program itself starts with two CPUs, and two processes each.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, alternate, arguments, ratio
from benchmarks.rivals import ray_module

DEVICES = "2xcpu"


@hetero.task
def nothing() -> None:
    """Do nothing."""


def trips(call: Callable[[], Any], count: int) -> float:
    """Return the median seconds of a round trip."""
    samples = []
    for _ in range(count):
        begin_s = time.perf_counter()
        call()
        samples.append(time.perf_counter() - begin_s)
    return statistics.median(samples)


def per_s(together: Callable[[], Any], count: int) -> float:
    """Return the calls per second of a batch."""
    begin_s = time.perf_counter()
    together()
    return count / (time.perf_counter() - begin_s)


def main() -> None:
    """Measure, and tell."""
    given = arguments(str(__doc__).splitlines()[0])
    count, many, rounds = (30, 300, 1) if given.quick else (300, 5000, 7)
    bench = Bench("ray_round_trip", "a no-op task through hetero on Ray", ("ray",), given.out)
    with ray_module() as ray, hetero.Context(devices=DEVICES, engine="ray", address="auto", history=False) as ctx:

        class Plain:
            def nothing(self) -> None:
                """Do nothing."""

        actors = [ray.remote(num_cpus=0)(Plain).remote() for _ in range(2)]
        task = ray.remote(lambda: None)
        ray.get([actor.nothing.remote() for actor in actors])
        ctx.gather([ctx.submit(nothing) for _ in range(100)])
        trip = alternate(
            {
                "hetero": lambda: trips(lambda: ctx.run(nothing), count),
                "plain actor": lambda: trips(lambda: ray.get(actors[0].nothing.remote()), count),
            },
            rounds,
        )
        flow = alternate(
            {
                "hetero, together": lambda: per_s(lambda: ctx.gather([ctx.submit(nothing) for _ in range(many)]), many),
                "plain tasks": lambda: per_s(lambda: ray.get([task.remote() for _ in range(many)]), many),
                "plain actors": lambda: per_s(
                    lambda: ray.get([actors[number % 2].nothing.remote() for number in range(many)]), many
                ),
            },
            rounds,
        )
    for name, samples in trip.items():
        bench.measure(f"{name}, round trip", [sample * 1e6 for sample in samples], "µs")
    for name, samples in flow.items():
        bench.measure(name, samples, "tasks/s")
    bench.claim("round trip", ratio(trip["hetero"], trip["plain actor"]), rival="plain actor", at_most=1.3)
    bench.claim("throughput", ratio(flow["hetero, together"], flow["plain tasks"]), rival="plain tasks", at_least=3.0)
    bench.finish()


if __name__ == "__main__":
    main()
