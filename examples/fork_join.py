"""Fork and join: phases of tasks of unlike size with a barrier after each, where idle devices hurt most."""

import time

import numpy as np

import hetero

PHASES, WIDTH = 4, 10


def work(size, *before):
    """Something that takes about size**3."""
    return float(np.linalg.norm(np.linalg.inv(np.eye(size) + np.full((size, size), 1e-3)))) + 0.0 * sum(before)


def join(*parts):
    """Wait for all parts."""
    return sum(parts)


def graph_of(sizes):
    """Return the graph: a phase begins when all of the one before is over."""
    graph, joined = hetero.graphs.Graph(), []
    for phase in sizes:
        parts = [graph.add(work, int(size), *joined) for size in phase]
        joined = [graph.add(join, *parts)]
    return graph


if __name__ == "__main__":
    sizes = np.random.default_rng(0).choice([120, 240, 360], size=(PHASES, WIDTH))
    took, totals = {}, set()
    for devices in ("1xcpu", "1xcpu*0.5", "1xcpu,1xcpu*0.5"):
        with hetero.Context(devices=devices, policy="planned") as ctx:
            graph_of(sizes).run(ctx)
            begin = time.perf_counter()
            totals.update(round(total, 6) for total in graph_of(sizes).run(ctx))
            took[devices] = time.perf_counter() - begin
    fast, slow, both = took.values()
    print("the same total on every fleet:", len(totals) == 1)
    print(f"full speed alone {fast:.2f} s, half speed alone {slow:.2f} s, both {both:.2f} s;"
          f" bound {1 / (1 / fast + 1 / slow):.2f} s")  # fmt: skip
