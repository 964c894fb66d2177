"""The user's own loop under `hetero launch` over two equal hosts behind a fast or a slow link, beside one of them.

The hosts are network namespaces that share no folder, each bound to a CPU of its own, made into a cluster by
`hetero cluster start` with certificates and a token. Steps in which shares are learned and compared are not timed.
Needs root, iproute2 and two CPUs.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, alternate, arguments, ratio
from benchmarks.own_loop import PROGRAM
from tests.cluster import Cluster, cluster_of_namespaces

LINKS = {"1 Gbit/s": 1e9, "100 Mbit/s": 1e8}
CELLS = {
    "0.67 M, batch 512": ("mlp", 512, 512, 1000),
    "transformer 5 M, batch 16": ("transformer", 256, 16, 120),
}


def measured(hosts: Cluster, devices: str, cell: tuple[str, int, int, int]) -> float:
    """Run the script; returns its samples a second."""
    words = ("launch", "--engine", "ray", "--address", "auto", "--devices", devices, PROGRAM, *map(str, cell))
    code, said, wrong = hosts.hetero(0, *words)
    assert code == 0, wrong
    return float(said.split()[0])


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    bench = Bench("launch_hosts", "a training script under hetero launch on two hosts", ("torch", "ray"), given.out)
    for link, bits_per_s in LINKS.items():
        with (
            tempfile.TemporaryDirectory() as folder,
            cluster_of_namespaces(Path(folder), [bits_per_s] * 2, ("1xcpu", "1xcpu"), pinned=True) as hosts,
        ):
            for name, cell in CELLS.items():
                contestants = {
                    "one host": partial(measured, hosts, "h0/cpu:0", cell),
                    "both": partial(measured, hosts, "h0/cpu:0,h1/cpu:0", cell),
                }
                found = alternate(contestants, 1 if given.quick else 3, warm_up=0)
                for who, samples in found.items():
                    bench.measure(f"{link}, {name}: {who}", samples, "samples/s")
                gain = ratio(found["both"], found["one host"])
                bench.claim(f"{link}, {name}, both hosts", gain, rival="one host", at_least=0.98)
    bench.finish()


if __name__ == "__main__":
    main()
