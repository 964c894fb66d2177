"""Tasks that submit tasks and wait for them: two devices beside one, and beside Ray's nested tasks.

A parent submits sixteen children of 50 ms; a tree of 64 leaves of 20 ms waits at each of its nodes; a recursion of 465
calls does nothing else, which may gain nothing and must not lose. Ray has two processors and runs no recursion of
nothing: each of its calls takes about a millisecond.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, alternate, arguments, ratio
from benchmarks.rivals import ray_module
from benchmarks.work import calibrate, spin

CHILDREN = 16
DEPTH = 6


def lead(steps: int) -> int:
    """Submit children and wait for all of them."""
    ctx = hetero.current_context()
    return len(ctx.gather([ctx.submit(spin, steps) for _ in range(CHILDREN)]))


def tree(depth: int, steps: int) -> int:
    """Wait for two halves, down to leaves that work; returns the number of leaves."""
    if not depth:
        spin(steps)
        return 1
    ctx = hetero.current_context()
    left, right = ctx.submit(tree, depth - 1, steps), ctx.submit(tree, depth - 1, steps)
    return int(left.result() + right.result())


def fib(n: int) -> int:
    """Do nothing but recur."""
    if n < 2:
        return n
    ctx = hetero.current_context()
    left, right = ctx.submit(fib, n - 1), ctx.submit(fib, n - 2)
    return int(left.result() + right.result())


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    rounds = 2 if given.quick else 9
    long, short = calibrate(0.05), calibrate(0.02)
    bench = Bench("nested", "tasks that submit tasks, 2 process workers", ("ray",), given.out)
    with (
        hetero.Context(devices="1xcpu", history=False) as one,
        hetero.Context(devices="2xcpu", history=False) as two,
        ray_module() as ray,
    ):
        remote_spin = ray.remote(spin)

        @ray.remote
        def remote_lead(steps: int) -> int:
            return len(ray.get([remote_spin.remote(steps) for _ in range(CHILDREN)]))

        @ray.remote
        def remote_tree(depth: int, steps: int) -> int:
            if not depth:
                spin(steps)
                return 1
            return sum(ray.get([remote_tree.remote(depth - 1, steps) for _ in range(2)]))

        def run(ctx: hetero.Context, function: Any, *args: int) -> None:
            ctx.run(function, *args)

        def run_ray(function: Any, *args: int) -> None:
            ray.get(function.remote(*args))

        runs = {
            "16 children, one device": partial(run, one, lead, long),
            "16 children, two devices": partial(run, two, lead, long),
            "16 children, Ray": partial(run_ray, remote_lead, long),
            "tree, one device": partial(run, one, tree, DEPTH, short),
            "tree, two devices": partial(run, two, tree, DEPTH, short),
            "tree, Ray": partial(run_ray, remote_tree, DEPTH, short),
            "recursion, one device": partial(run, one, fib, 12),
            "recursion, two devices": partial(run, two, fib, 12),
        }
        times_s = alternate(runs, rounds)
    for name, samples in times_s.items():
        bench.measure(name, samples)
    for what in ("16 children", "tree"):
        ours = times_s[f"{what}, two devices"]
        bench.claim(
            f"{what}, two devices", ratio(ours, times_s[f"{what}, one device"]), rival="one device", at_most=0.6
        )
        bench.claim(f"{what}, two devices", ratio(ours, times_s[f"{what}, Ray"]), rival="Ray", at_most=1.0)
    nothing = ratio(times_s["recursion, two devices"], times_s["recursion, one device"])
    bench.claim("recursion of nothing, two devices", nothing, rival="one device", at_most=1.05)
    bench.finish()


if __name__ == "__main__":
    main()
