"""The same graph of 1,000 tasks again and again: processor time of planning it, and of handing it in.

A graph of 20 layers runs on two cores by `Graph.plan` and `GraphPlan.run`. Planning is whatever the policy 'planned'
does to make a plan, over the whole run, in whichever thread; handing in is what the program's thread does until
`GraphPlan.submit` returns, planning left out. Each run is checked.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, arguments
from hetero.plan.policies import planned
from hetero.plan.replanning.replan import RemainingPlan

LAYERS, WIDTH = 20, 50
WORK = 60
RUNS = 9


def step(value: Any, *others: Any) -> Any:
    """Take about a millisecond."""
    for _ in range(WORK):
        value = np.sqrt(value * value + 1.0)
    return value + sum(float(other[0]) for other in others)


class Planning:
    """Counts what planning takes.

    Attributes
    ----------
    seconds, passes
        Processor time, and how often something was planned, since the last `take`.
    """

    def __init__(self) -> None:
        self._replan = planned.replan
        self.seconds, self.passes = 0.0, 0
        planned.replan = self._counted

    def _counted(self, *args: Any) -> RemainingPlan:
        begin_s = time.thread_time()
        made = self._replan(*args)
        self.seconds += time.thread_time() - begin_s
        self.passes += 1
        return made

    def take(self) -> tuple[float, int]:
        """Return the seconds and passes so far, and begin anew."""
        found = self.seconds, self.passes
        self.seconds, self.passes = 0.0, 0
        return found


def layered(width: int, layers: int) -> tuple[hetero.graphs.Graph, Any]:
    """Return a graph whose tasks read two of the layer before, and its input."""
    graph, random = hetero.graphs.Graph(), np.random.default_rng(0)
    begin = graph.data(np.ones(4096))
    above: list[Any] = [begin.read] * width
    for _ in range(layers):
        above = [graph.add(step, above[at], above[int(random.integers(width))]) for at in range(width)]
    graph.add(lambda *values: sum(float(value.sum()) for value in values), *above)
    return graph, begin


def main() -> None:
    """Run the graph."""
    given = arguments(__doc__ or "")
    width, layers, runs = (10, 4, 2) if given.quick else (WIDTH, LAYERS, RUNS)
    bench = Bench("graph_again", "A graph of 1,000 tasks that is run again", (), given.out)
    graph, begin = layered(width, layers)
    planning = Planning()
    with hetero.Context(devices="2xcpu", policy="planned", history=False) as ctx:
        plan = graph.plan(ctx)
        planning.take()
        results, planned_s, handed_s, wall_s, passes = [], [], [], [], []
        for _ in range(1 + runs):
            begin_s, began_s = time.perf_counter(), time.thread_time()
            futures = plan.submit({begin: np.ones(4096)})
            handed = time.thread_time() - began_s - planning.seconds
            results.append(futures[graph.last[0]].result())
            del futures
            wall_s.append(time.perf_counter() - begin_s)
            seconds, count = planning.take()
            planned_s.append(seconds)
            passes.append(count)
            handed_s.append(handed)
    assert len(set(results)) == 1, "the results differ"
    tasks = len(graph)
    bench.measure("planning, first run", planned_s[:1])
    bench.measure("planning, a later run", planned_s[1:])
    bench.measure("handing in, a later run", handed_s[1:])
    bench.measure("wall time, first run", wall_s[:1])
    bench.measure("wall time, a later run", wall_s[1:])
    bench.claim("second run, planning", 1e3 * planned_s[1], unit="ms", at_most=5.0)
    later_s = bench.measured["planning, a later run"].median
    bench.claim("later runs, planning a task", 1e6 * later_s / tasks, unit="µs", at_most=5.0)
    bench.claim(
        "later runs, handing in a task", 1e6 * bench.measured["handing in, a later run"].median / tasks, unit="µs"
    )
    bench.note(tasks=tasks, passes=passes)
    bench.finish()


if __name__ == "__main__":
    main()
