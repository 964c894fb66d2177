"""A tracer carried by winds over the globe (compute-bound), then statistics and maps of it (data-bound), as one graph.

`--winds FILE` reads u and v of ERA-Interim (NetCDF-3, needs SciPy); without it the winds are made up. The graph runs
on each kind of device alone and on both, and the bound is what no placement can beat: all the work at the sum of the
speeds. A core and a core at half speed can be 1.5 times as fast as the first alone; three times takes other devices.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from climate_grid import carry, map_of, read_winds, synthetic_winds, vorticity

import hetero


def advect(tracer, u, v, steps, step_s):
    """Carry the tracer along the winds: semi-Lagrangian, bilinear."""
    for _ in range(steps):
        tracer = carry(tracer, u, v, step_s)
    return tracer


def statistics(tracer):
    """Mean, spread and extremes of what has arrived, its zonal means, and a map with both."""
    return [tracer.mean(), tracer.std(), tracer.min(), tracer.max()], tracer.mean(axis=1), map_of(tracer)


def graph_of(winds, hours, parts):
    """Return the graph, and the nodes of the results by field."""
    graph, results = hetero.graphs.Graph(), {}
    for name, (u, v) in winds.items():
        tracer = np.tile(np.sin(np.linspace(0.0, 6.0 * np.pi, u.shape[1])), (u.shape[0], 1))
        for _ in range(parts):
            tracer = graph.add(advect, tracer, u, v, max(1, hours // parts), 3600.0)
        results[name] = graph.add(statistics, tracer), graph.add(vorticity, u, v)
    return graph, results


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--winds", help="NetCDF-3 file with u and v by month, level, latitude, longitude")
    words.add_argument("--hours", type=int, default=240, help="720 for a month")
    words.add_argument("--out", type=Path, default=Path("climate"))
    given = words.parse_args()
    winds = read_winds(given.winds) if given.winds else synthetic_winds()
    given.out.mkdir(exist_ok=True)
    took = {}
    for devices in ("1xcpu", "1xcpu*0.5", "1xcpu,1xcpu*0.5"):
        with hetero.Context(devices=devices, policy="planned") as ctx:
            graph, results = graph_of(winds, given.hours, parts=6)
            graph_of(winds, 1, 1)[0].run(ctx)
            begin = time.perf_counter()
            futures = graph.submit(ctx)
            found = {name: [futures[node].result() for node in nodes] for name, nodes in results.items()}
            took[devices] = time.perf_counter() - begin
    for name, ((figures, zonal, tracer), whirls) in found.items():
        (given.out / f"{name}-tracer.png").write_bytes(tracer)
        (given.out / f"{name}-vorticity.png").write_bytes(whirls)
        middle = zonal[len(zonal) // 2]
        print(name, "mean, spread, least, most:", *np.round(figures, 4), "; at the equator", round(middle, 4))
    fast, slow, both = took.values()
    bound = 1 / (1 / fast + 1 / slow)
    print(f"a core alone {fast:.2f} s, a core at half speed alone {slow:.2f} s, both together {both:.2f} s")
    print(f"{fast / both:.2f} and {slow / both:.2f} times as fast; at best {bound:.2f} s: {both / bound - 1:.0%} above")
