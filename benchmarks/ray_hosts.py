"""Two hosts on Ray: the sum of their speeds, an array crosses the link once, a lost host is found in seconds.

The hosts are network namespaces behind links of 1 Gbit/s, each on a CPU of its own, made into a cluster by `hetero
node`, with certificates and a token. Plain Ray's pool of actors and equal halves run in the same program. Needs root
and iproute2.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, arguments
from tests.cluster import Cluster, cluster_of_namespaces

PROGRAM = str(Path(__file__).resolve().parent / "inside" / "hosts_program.py")
BITS_PER_S = 1e9
ARRAY_BYTES = 64e6
SHARED_BY = 8


def part(hosts: Cluster, name: str, count: int, meanwhile: Callable[[], None] = lambda: None) -> dict[str, float]:
    """Run a part on the head; `meanwhile` is called when it says that it is ready."""
    with hosts.start(0, sys.executable, PROGRAM, name, str(count), stderr=sys.stderr) as program:
        assert program.stdout is not None
        if name != "speeds":
            assert program.stdout.readline() == "ready\n"
        meanwhile()
        said, _ = program.communicate("\n", timeout=500)
    return dict(json.loads(said.splitlines()[-1]))


def crossed_bytes(hosts: Cluster) -> float:
    """Return the bytes that left the head while tasks on both hosts shared an array."""
    before: list[int] = []
    part(hosts, "shared", SHARED_BY, lambda: before.append(hosts.fleet.counters()[0].sent_bytes))
    return float(hosts.fleet.counters()[0].sent_bytes - before[0])


def found_after_s(hosts: Cluster, count: int, go_away: Callable[[], None]) -> float:
    """Return the seconds from a host's end until that was found; all results are checked."""
    begun: list[float] = []

    def meanwhile() -> None:
        begun.append(time.monotonic())
        go_away()

    return part(hosts, "faulty", count, meanwhile)["found_s"] - begun[0]


def cut(hosts: Cluster) -> None:
    """Cut the second host's link without a word to either end."""
    name = hosts.fleet.hosts[1].name
    switch = f"{name.rpartition('-')[0]}-switch"
    subprocess.run(["ip", "-n", switch, "link", "set", "port1", "nomaster"], check=True)


def refusals_s(hosts: Cluster, folder: Path) -> tuple[int, float]:
    """Try to join with another token, with no certificate, and with a foreign one; return how many, and the longest."""
    from hetero.engines.ray.certificates import make_certificates

    other = folder / "other-token"
    other.write_text("0" * 64)
    other.chmod(0o600)
    host = hosts.fleet.hosts[1].address
    make_certificates(folder / "foreign", [host])
    hosts.copy(1, other, folder / "foreign")
    own, foreign = ("--certificates", str(hosts.certificates)), ("--certificates", str(folder / "foreign"))
    right, wrong = ("--token-file", str(hosts.token)), ("--token-file", str(other))
    took_s = []
    for options in ((*wrong, *own), right, (*right, *foreign)):
        command = (
            sys.executable,
            "-m",
            "hetero",
            "cluster",
            "start",
            "--join",
            hosts.address,
            "--host",
            host,
            *options,
        )
        begin_s = time.perf_counter()
        code, _, _ = hosts.run(1, "env", f"HETERO_HOME={folder}/nobody", *command)
        if code != 0:
            took_s.append(time.perf_counter() - begin_s)
    return len(took_s), max(took_s)


def main() -> None:
    """Measure, and tell."""
    given = arguments(str(__doc__).splitlines()[0])
    count, faulty = (48, 100) if given.quick else (400, 400)
    bench = Bench("ray_hosts", "two hosts on Ray, devices 4 : 1, 1 Gbit/s", ("ray",), given.out)
    devices = ("1xcpu", "1xcpu*0.25")
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster_of_namespaces(Path(folder), [BITS_PER_S, BITS_PER_S], devices, pinned=True) as hosts,
    ):
        rates = part(hosts, "speeds", count)
        sent_bytes = crossed_bytes(hosts)
        refused, refused_s = refusals_s(hosts, Path(folder))
        killed_s = found_after_s(hosts, faulty, lambda: hosts.kill_node(1))
        hosts.hetero(1, "cluster", "stop")
        hosts.start_node(1, devices[1])
        cut_s = found_after_s(hosts, faulty, lambda: cut(hosts))
    for name, tasks_per_s in rates.items():
        bench.measure(name, [tasks_per_s], "tasks/s")
    total = rates["fast"] + rates["slow"]
    bench.claim("of the sum of the speeds", rates["hetero"] / total, at_least=0.92)
    for rival in ("ActorPool", "equal halves"):
        bench.claim("speed", rates["hetero"] / rates[rival], rival=f"plain Ray, {rival}")
    bench.claim("64 MB for 8 tasks, over the link", sent_bytes / ARRAY_BYTES, unit="× its bytes", at_most=1.5)
    bench.claim("a host's processes killed: found after", killed_s, unit="s", at_most=5.0)
    bench.claim("its link cut silently: found after", cut_s, unit="s", at_most=10.0)
    bench.claim("strangers refused", float(refused), unit="of 3", at_least=3.0)
    bench.claim("the longest refusal", refused_s, unit="s", at_most=10.0)
    bench.finish()


if __name__ == "__main__":
    main()
