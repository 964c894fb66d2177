"""The best group of devices: how near to the best that a long search finds, and how long it takes."""

from __future__ import annotations

import statistics
import sys
import time
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, arguments
from hetero.model.fabric import Fabric, FabricPart, Wire
from hetero.plan.collectives.groups import best_group, group_bandwidth

COUNT = 8


def cluster(seed: int) -> Fabric:
    """Return 64 devices on 8 hosts: NVSwitch, bridged pairs or PCIe alone, networks of four speeds, all a bit off."""
    draw = np.random.default_rng(seed)
    parts, wires = [FabricPart("net", "network")], []

    def wire(one: str, other: str, kind: str, rate: float) -> None:
        wires.append(Wire(one, other, kind, rate * (1.0 + 0.05 * draw.random())))

    kinds = draw.permutation([0, 0, 1, 2, 2, 3, 3, 3])
    for host, kind in enumerate(f"{kind}" for kind in kinds):
        name = f"h{host}"
        parts += [FabricPart(f"{name}/numa:{at}", "numa", host=name) for at in range(2)]
        parts += [FabricPart(f"{name}/nic", "nic", host=name), FabricPart(f"{name}/nvswitch", "switch", host=name)]
        wire(f"{name}/numa:0", f"{name}/numa:1", "smp", 20e9)
        wire(f"{name}/nic", f"{name}/numa:0", "pcie", 31e9)
        wire(f"{name}/nic", "net", "network", float(draw.choice([1.25e9, 3.1e9, 12.5e9, 50e9])))
        for at in range(8):
            parts.append(FabricPart(f"{name}/cuda:{at}", "device", host=name, numa=at // 4))
            wire(f"{name}/cuda:{at}", f"{name}/numa:{at // 4}", "pcie", 16e9)
            if kind == "1" and at < 6:
                wire(f"{name}/cuda:{at}", f"{name}/nvswitch", "nvlink", 300e9)
            if kind == "2" and at % 2:
                wire(f"{name}/cuda:{at - 1}", f"{name}/cuda:{at}", "nvlink", 100e9)
    return Fabric(tuple(parts), tuple(wires))


def tangle(seed: int) -> Fabric:
    """Return 64 devices of which every pair has a link of its own, of any rate: nothing to go by."""
    draw = np.random.default_rng(1000 + seed)
    parts = tuple(FabricPart(f"d{at:02}", "device") for at in range(64))
    pairs = combinations(parts, 2)
    return Fabric(parts, tuple(Wire(a.id, b.id, "other", float(draw.uniform(1e9, 100e9))) for a, b in pairs))


def annealed(speeds: NDArray[np.float64], shape: str, steps: int, seed: int) -> float:
    """Search long: exchange, or reorder, members at random from several starts, and keep what is not worse."""
    draw = np.random.default_rng(seed)
    best = 0.0
    for _ in range(8):
        group = [int(at) for at in draw.permutation(len(speeds))[:COUNT]]
        rate, sum_ = group_bandwidth(speeds, group, shape), _sum(speeds, group, shape)
        for step in range(steps // 8):
            other = list(group)
            if shape == "ring" and draw.random() < 0.4:
                one, two = sorted(draw.integers(0, COUNT, 2))
                other[one : two + 1] = other[one : two + 1][::-1]
            else:
                outside = int(draw.integers(0, len(speeds)))
                if outside in other:
                    continue
                other[int(draw.integers(0, COUNT))] = outside
            new, total = group_bandwidth(speeds, other, shape), _sum(speeds, other, shape)
            heat = 0.3 * (1.0 - step / (steps / 8))
            if (new, total) >= (rate, sum_) or draw.random() < np.exp((new / rate - 1.0) / max(1e-3, heat)) * heat:
                group, rate, sum_ = other, new, total
            best = max(best, rate)
    return best


def _sum(speeds: NDArray[np.float64], group: list[int], shape: str) -> float:
    if shape == "ring":
        return float(sum(speeds[a, b] for a, b in zip(group, [*group[1:], group[0]], strict=True)))
    return float(speeds[np.ix_(group, group)].sum())


def main() -> None:
    """Compare on both sorts of fabric, for each shape of collective."""
    given = arguments("Best group of 8 out of 64 devices against a long search.")
    rounds, steps = (1, 2_000) if given.quick else (8, 60_000)
    bench = Bench("groups", "Groups of 8 out of 64 devices with mixed links", out=given.out)
    shapes = {"all_reduce": "ring", "broadcast": "tree", "all_to_all": "pairs"}
    shares: dict[str, list[float]] = {}
    took: list[float] = []
    best_group(cluster(0), COUNT)
    for make in (cluster, tangle):
        for seed in range(rounds):
            fabric = make(seed)
            speeds = np.array(fabric.bandwidths([part.id for part in fabric.devices]))
            for collective, shape in shapes.items():
                times_s = []
                for _ in range(3):
                    begin_s = time.perf_counter()
                    found = best_group(fabric, COUNT, collective).bytes_per_s
                    times_s.append(time.perf_counter() - begin_s)
                took.append(statistics.median(times_s))
                long = annealed(speeds, shape, steps, seed)
                shares.setdefault(f"{make.__name__}, {collective}", []).append(found / max(found, long))
    bench.measure("choice of a group", took)
    for what, samples in shares.items():
        bench.measure(f"share of the best found: {what}", samples, "of it")
    worst = min(min(samples) for samples in shares.values())
    bench.claim(
        "group of 8 of 64, worst of all", worst, rival="the best of it and of annealing", unit="of it", at_least=0.99
    )
    bench.claim("time of a choice (median of three), slowest", max(took) * 1000, unit="ms", at_most=50.0)
    bench.note(fabrics=rounds * 2, annealing_steps=steps, groups_of=COUNT)
    bench.finish()


if __name__ == "__main__":
    main()
