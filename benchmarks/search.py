"""A search over two devices 3 : 1: against the best device alone, and against plain Optuna with two threads."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, alternate, arguments, ratio

SLOW, USELESS = 1 / 3, 0.02
TRIAL_CPU_S = 0.25
SPACE = {"x": {"linear": [-5, 5]}}


def work(cpu_s: float) -> float:
    """Multiply matrices for so long; returns the CPU seconds that it took."""
    begun_s = time.thread_time()
    matrix = np.ones((128, 128), dtype=np.float32)
    while time.thread_time() - begun_s < cpu_s:
        matrix = matrix @ matrix / 128
    return time.thread_time() - begun_s


def objective(trial: Any) -> float:
    """Work a fixed amount in four steps, with a report after each."""
    value = float((trial["x"] - 2) ** 2)
    for step in range(4):
        work(TRIAL_CPU_S / 4)
        trial.report(step, value)
    return value


def settle(ctx: hetero.Context) -> None:
    """Wait until every device answers; one whose late trial was stopped starts anew."""
    for device in ctx.devices:
        ctx.submit(hetero.task(len, on=(device.id,)), []).result()


def ours(ctx: hetero.Context, trials: int, counts: dict[str, dict[str, int]], name: str) -> float:
    """Search over a fleet that is up; returns the seconds of the search."""
    settle(ctx)
    found = hetero.train.tune(objective, SPACE, trials=trials, sampler="random", pruner="none", seed=0, devices=ctx)
    counts[name] = found.by_device
    settle(ctx)
    return found.seconds


def plain_optuna(trials: int) -> None:
    """Search with Optuna alone, its second thread as slow as our second device."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    speeds = iter((1.0, SLOW))
    own = threading.local()
    lock = threading.Lock()

    def throttled(trial: Any) -> float:
        with lock:
            own.frac = getattr(own, "frac", None) or next(speeds)
        x = trial.suggest_float("x", -5, 5)
        for step in range(4):
            time.sleep((1 / own.frac - 1) * work(TRIAL_CPU_S / 4))
            trial.report((x - 2) ** 2, step)
            trial.should_prune()
        return float((x - 2) ** 2)

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0), pruner=optuna.pruners.NopPruner())
    with threadpoolctl.threadpool_limits(1):
        study.optimize(throttled, n_trials=trials, n_jobs=2)


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    rounds, trials = (1, 6) if given.quick else (4, 16)
    bench = Bench("search", "a search over unequal devices", ("optuna",), given.out)
    counts: dict[str, dict[str, int]] = {}
    fleets = {"best device alone": "1xcpu", "both, 3 : 1": f"1xcpu,1xcpu*{SLOW}", "useless": f"1xcpu,1xcpu*{USELESS}"}
    opened = {name: hetero.Context(devices=fleet, history=False) for name, fleet in fleets.items()}
    try:
        samples = alternate(
            {
                **{name: lambda name=name: ours(opened[name], trials, counts, name) for name in fleets},
                "plain Optuna, n_jobs=2, 3 : 1": lambda: plain_optuna(trials),
            },
            rounds,
        )
    finally:
        for ctx in opened.values():
            ctx.close()
    for what, seconds in samples.items():
        bench.measure(what, seconds)
    alone = samples["best device alone"]
    both, useless, rival = samples["both, 3 : 1"], samples["useless"], samples["plain Optuna, n_jobs=2, 3 : 1"]
    bench.claim("time on both", ratio(both, alone), rival="best device alone", at_most=0.85)
    bench.claim("time on both", ratio(both, rival), rival="plain Optuna, n_jobs=2", at_most=1.0)
    bench.claim("time with a device of 0.02", ratio(useless, alone), rival="best device alone", at_most=1.03)
    bench.note(trials=trials, trial_cpu_s=TRIAL_CPU_S, by_device=counts)
    bench.finish()


if __name__ == "__main__":
    main()
