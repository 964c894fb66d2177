"""Plans in 0.1 s and 1 s against the best of every scheduler of SAGA, instance by instance, up to 500 tasks.

SAGA (PyPI anrg-saga, a licence for non-commercial use) is never a dependency: `--saga` installs it into an environment
of its own below HETERO_HOME, runs it on the same tables, has the independent checker judge its schedules, and keeps
the makespans with the hashes of the graphs in graphs_saga.json. Without it the kept makespans are compared with.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.common import RESULTS, Bench
from benchmarks.graphs import BUDGETS_S, Instance, instances, planned
from hetero.floor import settings
from hetero.graphs.check import violations
from hetero.graphs.planning import Budget, warm_up
from hetero.model.schedule import Placed, Schedule
from hetero.plan.problem import Problem, problem_of

KEPT = Path(__file__).resolve().with_name("graphs_saga.json")
PACKAGES = ("anrg-saga==2.0.2",)
NEEDS = ("networkx==3.6.1", "numpy==2.4.6", "pydantic==2.14.3", "pysmt==0.9.6")
"""What the schedulers import; SAGA's own list has solvers and a drawing library that none of them needs."""

TASKS_AT_MOST = 500
_FORBIDDEN = {"": 100.0, ", forbidden for long": math.inf}
"""SAGA knows no forbidden placements: they take so many times the task's longest, or as long as all the work on one
device after another, and the checker refuses schedules with one. The better of the two counts."""


def _python() -> Path:
    """Return the interpreter of SAGA's environment, made where it is not there."""
    folder = settings.home() / "cache" / "saga"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *NEEDS], check=True, timeout=600)
        subprocess.run([*pip, "--no-deps", *PACKAGES], check=True, timeout=600)
    return python


def _table(p: Problem, limit_s: float, times: float) -> dict[str, Any]:
    longest = np.where(np.isfinite(p.seconds), p.seconds, 0.0).max(axis=1, keepdims=True)
    forbidden_s = times * longest if times < math.inf else np.full_like(longest, p.seconds.min(axis=1).sum())
    dst = np.repeat(np.arange(len(p.order)), np.diff(p.pred_first))
    return {
        "limit_s": limit_s,
        "seconds": np.where(np.isfinite(p.seconds), p.seconds, forbidden_s).tolist(),
        "node": p.node.tolist(),
        "latency_s": p.latency_s.tolist(),
        "s_per_byte": p.s_per_byte.tolist(),
        "edges": [[int(a), int(b), float(c)] for a, b, c in zip(p.pred, dst, p.pred_bytes, strict=True)],
    }


def _schedules(table: dict[str, Any]) -> dict[str, Any]:
    """Return what each scheduler of SAGA makes of a table.

    Notes
    -----
    SAGA iterates over sets of names: with one hash seed its schedules are the same each time.
    """
    command = [str(_python()), str(KEPT.with_name("saga") / "run.py")]
    more: dict[str, Any] = {"env": {**os.environ, "PYTHONHASHSEED": "0"}, "timeout": 3600}
    done = subprocess.run(command, input=json.dumps(table), stdout=subprocess.PIPE, text=True, check=True, **more)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _judged(instance: Instance, rows: list[list[Any]] | str) -> float | str:
    """Return the makespan of a schedule of SAGA's, or what the checker or SAGA said."""
    if isinstance(rows, str):
        return rows
    graph = instance.graph
    placed = tuple(Placed(graph.tasks[task].id, graph.devices[d].id, start, end) for task, d, start, end in rows)
    makespan_s = max((row.finish_s for row in placed), default=0.0)
    wrong = violations(graph, Schedule(placed, makespan_s, 0.0, "saga"))
    return f"not sound: {wrong[0]}" if wrong else makespan_s


def run_saga(limit_s: float) -> None:
    """Run every scheduler of SAGA on every instance, and keep what came of it."""
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for instance in instances():
        p = problem_of(instance.graph)
        if len(p.order) > TASKS_AT_MOST or kept.get(instance.name, {}).get("sha256") == instance.sha256:
            continue
        judged: dict[str, float | str] = {}
        for how, times in _FORBIDDEN.items() if np.isinf(p.seconds).any() else [("", 1.0)]:
            found = _schedules(_table(p, limit_s, times))
            judged.update({name + how: _judged(instance, rows) for name, rows in found.items()})
        kept[instance.name] = {"sha256": instance.sha256, "tasks": len(p.order), "schedulers": judged}
        print(f"{instance.name}: {_best(judged)}", flush=True)
        KEPT.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")


def _best(judged: dict[str, float | str]) -> tuple[float, str]:
    """Return the shortest sound schedule and whose it is."""
    return min(((made, name) for name, made in judged.items() if isinstance(made, float)), default=(math.inf, ""))


def compare(bench: Bench, quick: bool) -> None:
    """Plan every instance, and hold the makespans against the best of SAGA's."""
    kept: dict[str, Any] = json.loads(KEPT.read_text())
    over: dict[float, dict[str, float]] = {budget_s: {} for budget_s in BUDGETS_S}
    for instance in instances():
        known = kept.get(instance.name)
        if known is None or (quick and len(over[1.0]) == 3):
            continue
        if known["sha256"] != instance.sha256:
            raise AssertionError(f"{instance.name} is not the graph that SAGA was run on: run --saga")
        p = problem_of(instance.graph)
        for budget_s in BUDGETS_S:
            made_s = planned(instance, p, Budget(budget_s), 0).makespan_s
            over[budget_s][instance.name] = made_s / _best(known["schedulers"])[0]
    for budget_s, ratios in over.items():
        values = list(ratios.values())
        bench.measure(f"search {budget_s:g} s", values, "×")
        rival, exact = "the best of SAGA's schedulers", 1.0 + 1e-9
        bench.claim(f"makespan in {budget_s:g} s: geometric mean", statistics.geometric_mean(values), rival=rival)
        if budget_s < 1.0:
            share = sum(value <= exact for value in values) / len(values)
            bench.claim(f"no longer in {budget_s:g} s", share, rival=rival, unit="of the graphs", at_least=0.95)
        worst_at_most = 1.005 if budget_s < 1.0 else exact
        bench.claim(f"makespan in {budget_s:g} s: worst", max(values), rival=rival, at_most=worst_at_most)
        bench.note(**{f"over_saga_at_{budget_s:g}_s": {name: round(value, 5) for name, value in ratios.items()}})
    bench.note(instances=len(over[1.0]), saga=PACKAGES[0], saga_not_counted=_not_counted(kept))


def _not_counted(kept: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Return for each scheduler of SAGA how many schedules were not sound, and how many it did not give."""
    found: dict[str, dict[str, int]] = {}
    for known in kept.values():
        for name, made in known["schedulers"].items():
            if isinstance(made, str):
                why = "not sound" if made.startswith("not sound") else made.partition(":")[0]
                found.setdefault(name, {}).setdefault(why, 0)
                found[name][why] += 1
    return found


def main() -> None:
    """Compare and print, or run SAGA anew."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run; its figures mean nothing and are not kept")
    parser.add_argument("--out", type=Path, help="folder of the results (default: results/ beside this file)")
    parser.add_argument("--saga", type=float, metavar="SECONDS", help="run SAGA, each scheduler at most so long")
    given = parser.parse_args()
    if given.saga:
        run_saga(given.saga)
        return
    warm_up(searches=True)
    out = given.out if given.quick or given.out else RESULTS
    bench = Bench("graphs_saga", "task graphs of others, against SAGA", ("numba", "scipy", "ortools"), out)
    bench.note(model="free", times="processor time of this process; SAGA's schedulers take what they take")
    compare(bench, given.quick)
    bench.finish()


if __name__ == "__main__":
    main()
