"""Bodies under gravity: each step's forces are shared by two unlike devices, in blocks, as one task graph."""

import time
from itertools import pairwise

import numpy as np

import hetero

BODIES, BLOCKS, STEPS, STEP_S = 1200, 12, 3, 1e-3


def forces(positions, masses, begin, end):
    """Accelerations of the bodies from `begin` to `end`."""
    away = positions[None, :, :] - positions[begin:end, None, :]
    return np.einsum("ijk,ij->ik", away, masses[None, :] * (np.square(away).sum(axis=2) + 1e-3) ** -1.5)


def step(positions, speeds, *accelerations):
    """Move every body by one step."""
    speeds = speeds + STEP_S * np.concatenate(accelerations)
    return positions + STEP_S * speeds, speeds


def first(pair):
    """Return the positions."""
    return pair[0]


def second(pair):
    """Return the speeds."""
    return pair[1]


def graph_of(positions, speeds, masses):
    """Return the graph of some steps."""
    graph = hetero.graphs.Graph()
    cuts = np.linspace(0, BODIES, BLOCKS + 1).astype(int).tolist()
    for _ in range(STEPS):
        parts = [graph.add(forces, positions, masses, a, b) for a, b in pairwise(cuts)]
        both = graph.add(step, positions, speeds, *parts)
        positions, speeds = graph.add(first, both), graph.add(second, both)
    return graph


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    start, speeds, masses = rng.normal(size=(BODIES, 3)), np.zeros((BODIES, 3)), rng.uniform(0.5, 1.5, BODIES) / BODIES
    took = {}
    for devices in ("1xcpu", "1xcpu*0.5", "1xcpu,1xcpu*0.5"):
        with hetero.Context(devices=devices, policy="planned") as ctx:
            graph_of(start, speeds, masses).run(ctx)
            begin = time.perf_counter()
            positions, last = graph_of(start, speeds, masses).run(ctx)
            took[devices] = time.perf_counter() - begin
    drift = float(np.abs((masses[:, None] * last).sum(axis=0)).max())
    fast, slow, both = took.values()
    print(f"{BODIES} bodies, {STEPS} steps; momentum drifts by {drift:.1e}")
    print(f"full speed alone {fast:.2f} s, half speed alone {slow:.2f} s, both {both:.2f} s;"
          f" bound {1 / (1 / fast + 1 / slow):.2f} s")  # fmt: skip
