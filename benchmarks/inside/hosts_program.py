"""What benchmarks/ray_hosts.py runs on the head: one part of it, named on the command line; prints one line of JSON.

In: the name of a part, how many tasks. Out: figures. It must run from any folder, and unchanged on every host.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import hetero

TASK_S = 0.05
SLOW_FRAC = 0.25
ARRAY_LENGTH = 8_000_000


def spin(number: int) -> int:
    """Keep a core busy for a while of its own time; return the number back."""
    end_s = time.thread_time() + TASK_S
    while time.thread_time() < end_s:
        pass
    return number


def spin_at(number: int, frac: float) -> int:
    """Do the same as slowly as the throttled device does."""
    begin_s = time.thread_time()
    spin(number)
    time.sleep((1 / frac - 1) * (time.thread_time() - begin_s))
    return number


def rate(ctx: hetero.Context, count: int, device: str = "") -> float:
    """Return tasks/s of one device, or of the fleet."""
    task = hetero.task(spin).options(on=(device,)) if device else hetero.task(spin)
    begin_s = time.perf_counter()
    assert ctx.gather([ctx.submit(task, number) for number in range(count)]) == list(range(count))
    return count / (time.perf_counter() - begin_s)


def speeds(count: int) -> dict[str, float]:
    """Measure hetero on each device alone and on both, and plain Ray's pool of actors on both."""
    import ray
    from ray.util import ActorPool
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    with hetero.Context(engine="ray", address="auto", history=False) as ctx:
        ctx.gather([ctx.submit(spin, number) for number in range(20)])
        alone = [rate(ctx, count // 4, "h0/cpu:0"), rate(ctx, count // 16, "h1/cpu:0")]
        together = rate(ctx, count)
        driver = ray.get_runtime_context().get_node_id()
        nodes = sorted((node["NodeID"] for node in ray.nodes() if node["Alive"]), key=lambda node: node != driver)
        actors = []
        for node, frac in zip(nodes, (1.0, SLOW_FRAC), strict=True):
            place = NodeAffinitySchedulingStrategy(node, soft=False)
            actors.append(ray.remote(num_cpus=0)(_Spinner).options(scheduling_strategy=place).remote(frac))
        ray.get([actor.spin.remote(0) for actor in actors])
        begin_s = time.perf_counter()
        list(ActorPool(actors).map_unordered(lambda actor, number: actor.spin.remote(number), range(count)))
        pool = count / (time.perf_counter() - begin_s)
        begin_s = time.perf_counter()
        ray.get([actors[number % 2].spin.remote(number) for number in range(count)])
        halves = count / (time.perf_counter() - begin_s)
    return {"fast": alone[0], "slow": alone[1], "hetero": together, "ActorPool": pool, "equal halves": halves}


class _Spinner:
    def __init__(self, frac: float) -> None:
        self.frac = frac

    def spin(self, number: int) -> int:
        return spin_at(number, self.frac)


def shared(count: int) -> dict[str, float]:
    """Hand a large array to tasks on both hosts, when the word is given."""
    import numpy as np

    def total(array: Any) -> float:
        return float(array.sum())

    on = [hetero.task(total).options(on=(f"{host}/cpu:0",)) for host in ("h0", "h1")]
    with hetero.Context(engine="ray", address="auto", history=False) as ctx:
        ctx.gather([ctx.submit(task, np.ones(3)) for task in on])
        print("ready", flush=True)
        input()
        array = np.ones(ARRAY_LENGTH)
        answers = ctx.gather([ctx.submit(on[number % 2], array) for number in range(count)])
    assert answers == [float(ARRAY_LENGTH)] * count
    return {"tasks": float(count)}


class _Ear:
    """Hears in the trace when the other host is found to be gone."""

    def __init__(self) -> None:
        self.found_s = 0.0
        self.found = threading.Event()

    def write(self, record: tuple[object, ...]) -> None:
        if type(record).__name__ == "DeviceLost" and not self.found.is_set():
            self.found_s = time.monotonic()
            self.found.set()


def faulty(count: int) -> dict[str, float]:
    """Have the other host go away while tasks run; return when that was found, and that none is lost."""
    ear = _Ear()
    with hetero.Context(engine="ray", address="auto", history=False) as ctx:
        while len(set(ctx.gather([ctx.submit(_where) for _ in range(8)]))) < 2:
            pass
        ctx.driver.listen(ear)
        futures = [ctx.submit(spin, number) for number in range(count)]
        print("ready", flush=True)
        assert ctx.gather(futures) == list(range(count))
        ear.found.wait(120.0)
    return {"found_s": ear.found_s, "results": float(count)}


def _where() -> str:
    time.sleep(0.02)
    return hetero.get_current_device().host


PARTS: dict[str, Callable[[int], dict[str, float]]] = {"speeds": speeds, "shared": shared, "faulty": faulty}

if __name__ == "__main__":
    print(json.dumps(PARTS[sys.argv[1]](int(sys.argv[2]))), flush=True)
