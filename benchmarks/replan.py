"""Times that stray from the model: planning the rest anew at each completion, a static plan, and an online policy.

The online one binds a task to a device when it becomes ready, as StarPU's dmdas does. In virtual time, so nothing but
the decisions differ: the same draws of lognormal times for all three.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, arguments
from benchmarks.graphs import Instance, cholesky, instances
from hetero.core.machine import Machine
from hetero.drive.sim import SimHooks, simulate
from hetero.floor.clock import cpu_seconds
from hetero.graphs.planning import Budget, plan_graph
from hetero.graphs.simulation import guide_of, prepared, run_graph
from hetero.model.events import TaskFinished
from hetero.model.graph import TaskGraph
from hetero.model.schedule import Schedule
from hetero.plan.planners.ranks import upward_rank
from hetero.plan.policies.base import Memory, Policy, Proposal, ReadyTask, View
from hetero.plan.policies.planned import Planned
from hetero.plan.problem import problem_of

SIGMAS = (0.1, 0.3, 0.6)
DRAWS = 20
MOST_TASKS = 130
PLAN_ITERATIONS = 30


class Static:
    """Follow a plan: each device runs its tasks in the planned order, whatever happens."""

    name = "static"

    def __init__(self, guide: Mapping[int, tuple[float, int]]) -> None:
        self._place: dict[int, tuple[int, int]] = {}
        count: dict[int, int] = {}
        for task in sorted(guide, key=lambda task: (guide[task][0], task)):
            device = guide[task][1]
            self._place[task] = (device, count.get(device, 0))
            count[device] = count.get(device, 0) + 1

    def propose(self, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
        """Propose the next task of each device, where it is ready."""
        due = dict(memory) if isinstance(memory, dict) else {}
        found = []
        for device in np.flatnonzero(view.ready & (view.room > 0)).tolist():
            mine = sorted((self._place[task.id][1], task.id) for task in ready if self._place[task.id][0] == device)
            if mine and mine[0][0] <= due.get(device, 0):
                found.append(Proposal(mine[0][1], device))
                due[device] = max(due.get(device, 0), mine[0][0] + 1)
        return found, due


class Bound(NamedTuple):
    """Where ready tasks were bound, and how much work each device was given."""

    device: dict[int, int]
    load_s: dict[int, float]


class AtReady:
    """Bind each task, when it becomes ready, to the device where it would end first; devices take the most urgent.

    References
    ----------
    C. Augonnet, S. Thibault, R. Namyst, P.-A. Wacrenier, "StarPU: a unified platform for task scheduling on
    heterogeneous multicore architectures", CCPE 23 (2011), 187-198: dmda, and dmdas with sorted queues.
    """

    name = "at_ready"

    def __init__(self, graph: TaskGraph) -> None:
        self._urgency = upward_rank(problem_of(graph))

    def propose(self, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
        """Bind what is new, and propose the most urgent of what each device was given."""
        bound = dict(memory) if isinstance(memory, dict) else {}
        waiting = {task.id: task for task in ready}
        load_s = view.available_s.copy()
        for task, device in bound.items():
            if task in waiting:
                load_s[device] += waiting[task].seconds[device]
        for task_id in sorted(waiting, key=lambda task: (-self._urgency[task - 1], task)):
            task = waiting[task_id]
            if task_id not in bound:
                begin_s = load_s if task.arrive_s is None else np.maximum(load_s, view.now_s + task.arrive_s)
                device = int((begin_s + task.seconds).argmin())
                bound[task_id] = device
                load_s[device] += task.seconds[device]
        found = []
        for device in np.flatnonzero(view.ready & (view.room > 0)).tolist():
            mine = [task for task in waiting if bound[task] == device]
            if mine:
                found.append(Proposal(min(mine, key=lambda task: (-self._urgency[task - 1], task)), device))
        return found, bound


class Clocked(Planned):
    """The policy with a clock: CPU seconds of its calls while there are about 500 open tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.look_s: list[float] = []
        self.plan_s: list[float] = []
        self.is_large = False

    def propose(self, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
        """Time a call that plans anew."""
        begin_s = cpu_seconds()
        found, plan = super().propose(view, ready, memory)
        if self.is_large and plan is not memory:
            self.plan_s.append(cpu_seconds() - begin_s)
        return found, plan


class Row(NamedTuple):
    """Mean makespans over the draws of one graph, in terms of the plan's."""

    graph: str
    family: str
    sigma: float
    replan: float
    static: float
    online: float

    @classmethod
    def of(cls, entry: Instance, plan: Schedule, sigma: float, draws: int) -> Row:
        """Run one graph under every policy."""
        graph = entry.graph
        rivals: dict[str, Policy | str] = {
            "replan": "planned",
            "static": Static(guide_of(graph, plan)),
            "online": AtReady(graph),
        }
        means = {
            name: statistics.fmean(
                run_graph(graph, policy, guide=plan, noise=sigma, seed=seed).makespan_s for seed in range(draws)
            )
            / plan.makespan_s
            for name, policy in rivals.items()
        }
        return cls(entry.name, entry.name.partition("/")[0], sigma, **means)

    @property
    def over_better(self) -> float:
        """Re-planning over the better of the two rivals."""
        return self.replan / min(self.static, self.online)


def _claims(bench: Bench, sigma: float, rows: Sequence[Row]) -> None:
    for family in dict.fromkeys(row.family for row in rows):
        mine = [row for row in rows if row.family == family]
        for rival in ("static", "online"):
            value = statistics.fmean(row.replan / getattr(row, rival) for row in mine)
            bench.claim(f"spread {sigma:g}, {family}: re-planned", value, rival=rival, at_most=1.0)
    worst = max(row.over_better for row in rows)
    bench.claim(f"spread {sigma:g}: re-planned, the worst graph", worst, rival="better of the two", at_most=1.1)


def _speed(bench: Bench) -> None:
    """Measure one pass over 500 open tasks on 24 devices, the core's hand-over included."""
    made = prepared(cholesky(15, 24))
    policy = Clocked()

    def watch(machine: Machine, event: object) -> None:
        outlook = machine.placer.lookahead
        assert outlook is not None
        policy.is_large = 450 <= outlook.open <= 550
        if isinstance(event, TaskFinished) and policy.is_large:
            begin_s = cpu_seconds()
            outlook.ahead()
            policy.look_s.append(cpu_seconds() - begin_s)

    simulate(
        made.program,
        made.devices,
        lambda task, device: made.cost.estimate(task.signature, 0.0, device).seconds,
        policy=policy,
        cost=made.cost,
        topology=made.topology,
        hooks=SimHooks(watch=watch),
    )
    bench.measure("hand-over of about 500 open tasks", policy.look_s)
    bench.measure("re-plan of about 500 tasks", policy.plan_s)
    total_s = statistics.median(policy.look_s) + statistics.median(policy.plan_s)
    bench.claim("re-plan of about 500 tasks on 24 devices, hand-over included", 1e3 * total_s, unit="ms", at_most=1.0)


def main() -> None:
    """Run every graph under every spread."""
    given = arguments(__doc__ or "")
    title = "Times that stray from the model: re-planning against a static plan and an online policy"
    bench = Bench("replan", title, out=given.out)
    draws = 2 if given.quick else DRAWS
    chosen = [entry for entry in instances() if 10 < len(entry.graph.tasks) <= MOST_TASKS]
    rows: list[Row] = []
    for entry in chosen[:: 6 if given.quick else 1]:
        plan = plan_graph(entry.graph, "search", Budget(iterations=2 if given.quick else PLAN_ITERATIONS)).schedule
        for sigma in SIGMAS:
            rows.append(Row.of(entry, plan, sigma, draws))
    for sigma in SIGMAS:
        _claims(bench, sigma, [row for row in rows if row.sigma == sigma])
    _speed(bench)
    bench.note(graphs=len(chosen), draws=draws, rows=[row._asdict() for row in rows])
    bench.finish()


if __name__ == "__main__":
    main()
