"""All processes of one of two hosts are killed while they train: seconds to the next step, no sample lost, equal bits.

The network of the MNIST tutorials, global batch 128, `exact: bitwise`, one device on each host. The hosts are network
namespaces behind links of 1 Gbit/s, made into a cluster by `hetero cluster start`, with certificates and a token. The
next step is the first that the group of those who are left has applied, by the log of samples. Needs root and iproute2.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, arguments
from tests.cluster import Cluster, cluster_of_namespaces

PROGRAM = str(Path(__file__).resolve().parent / "inside" / "train_hosts_program.py")
BITS_PER_S = 1e9
FIRST_STEPS = 5


def line_with(program: subprocess.Popen[str], begin: str) -> str:
    """Read what the program says up to a line that begins so: Ray says things in between."""
    assert program.stdout is not None
    return next(line for line in iter(program.stdout.readline, "") if line.startswith(begin))


def struck(hosts: Cluster, log: Path) -> float:
    """Kill the second host when the training has come to some steps; return when that was."""
    while max((path.read_bytes().count(b"applied") for path in log.iterdir()), default=0) < FIRST_STEPS:
        time.sleep(0.005)
    begun_s = time.time()
    hosts.kill_node(1)
    return begun_s


def killed_once(hosts: Cluster, program: subprocess.Popen[str]) -> tuple[float, dict[str, Any]]:
    """Kill the second host while the program trains; return seconds to the next step, and what the program found."""
    log = hosts.path(0, Path(line_with(program, "log ").split()[1]))
    struck_s = struck(hosts, log)
    found = dict(json.loads(line_with(program, "{")))
    hosts.hetero(1, "cluster", "stop")
    hosts.start_node(1, "1xcpu")
    return found["applied_s"] - struck_s, found


def main() -> None:
    """Measure, and tell."""
    given = arguments(str(__doc__).splitlines()[0])
    times = 1 if given.quick else 5
    bench = Bench("train_hosts", "training over two hosts, one of them killed", ("torch", "ray"), given.out)
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster_of_namespaces(Path(folder), [BITS_PER_S, BITS_PER_S], ("1xcpu", "1xcpu")) as hosts,
        hosts.start(0, sys.executable, PROGRAM, str(times), folder, stderr=sys.stderr) as program,
    ):
        rounds = [killed_once(hosts, program) for _ in range(times)]
    seconds = [each for each, _ in rounds]
    bench.measure("killed: to the next step", seconds)
    bench.claim("killed: seconds to the next step, worst", max(seconds), unit="s", at_most=5.0)
    for name, words in (("other_bits", "other bits than the undisturbed one"), ("samples_wrong", "a sample lost")):
        wrong = sum(found[name] for _, found in rounds)
        bench.claim(f"runs with {words}", float(wrong), unit="", at_most=0.0)
    bench.finish()


if __name__ == "__main__":
    main()
