"""Sums over 4, 8 and 16 members behind links of 100 Mbit/s: rings, trees, and what `auto` makes of unequal links."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, alternate, arguments, ratio
from examples.netns import Fleet, fleet_of_namespaces

_MBIT = 1e6
_FAST_BITS_PER_S = 100 * _MBIT
_SLOW_BITS_PER_S = 20 * _MBIT
_SLOW_EVERY = 4
_NBYTES = 16_000_000
_QUICK_NBYTES = 1_000_000
_WAIT_S = 120.0
_RIVAL = "torch.distributed"
_COUNTER = Path("/sys/class/net/eth0/statistics/tx_bytes")


class Team:
    """One process in each namespace, doing the same sums.

    Attributes
    ----------
    sent_bytes : by contestant, what each member sent over its link the last time
    """

    def __init__(self, fleet: Fleet, nbytes: int) -> None:
        size = len(fleet.hosts)
        command = [sys.executable, str(Path(__file__).resolve()), "--member"]
        self.nbytes = nbytes
        self.sent_bytes: dict[str, list[int]] = {}
        self._members = [
            fleet.popen(
                rank,
                [*command, str(rank), str(size), host.address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
                env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0"},
            )
            for rank, host in enumerate(fleet.hosts)
        ]

    def form(self) -> None:
        """Let all members find each other."""
        rendezvous = self._hear(self._members[0])
        for member in self._members[1:]:
            self._say(member, rendezvous)
        for member in self._members:
            self._hear(member)

    def sum_s(self, contestant: str) -> float:
        """Return the seconds from the first member's start to the last one's end."""
        for member in self._members:
            self._say(member, [contestant, self.nbytes])
        rows: list[tuple[float, float, int, bool]] = [self._hear(member) for member in self._members]
        assert all(right for _, _, _, right in rows), f"{contestant}: the sum is wrong"
        self.sent_bytes[contestant] = [sent for _, _, sent, _ in rows]
        return max(end_s for _, end_s, _, _ in rows) - min(begin_s for begin_s, _, _, _ in rows)

    def close(self) -> None:
        """End all members."""
        for member in self._members:
            member.kill()
            member.wait()

    @staticmethod
    def _say(member: subprocess.Popen[str], value: Any) -> None:
        assert member.stdin is not None
        member.stdin.write(json.dumps(value) + "\n")

    @staticmethod
    def _hear(member: subprocess.Popen[str]) -> Any:
        assert member.stdout is not None
        return json.loads(member.stdout.readline())


@contextmanager
def team(bits_per_s: Sequence[float], nbytes: int) -> Iterator[Team]:
    """Have a team for the time of a `with` block."""
    with fleet_of_namespaces(bits_per_s) as fleet:
        made = Team(fleet, nbytes)
        try:
            made.form()
            yield made
        finally:
            made.close()


def member(rank: int, size: int, address: str) -> None:
    """Be one of a team: read what to sum up from standard input, and write what it took."""
    import torch
    import torch.distributed as dist

    from hetero.comm.group import Group, open_rendezvous

    torch.set_num_threads(1)
    store = None
    if rank == 0:
        store, rendezvous = open_rendezvous("bench", size, address, beyond_loopback=True)
        print(json.dumps(rendezvous), flush=True)
    else:
        rendezvous = tuple(json.loads(input()))
    group = Group(rank, size, rendezvous, store, _WAIT_S, address=address, beyond_loopback=True)
    plain = dist.TCPStore(*rendezvous[:2], size, False, timedelta(seconds=_WAIT_S), wait_for_workers=False)
    dist.init_process_group("gloo", store=dist.PrefixStore("plain", plain), rank=rank, world_size=size)
    group.all_reduce(torch.zeros(1 << 14), algorithm="auto")
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        contestant, nbytes = json.loads(line)
        row = torch.full((nbytes // 4,), float(rank + 1))
        dist.barrier()
        sent_bytes, begin_s = int(_COUNTER.read_text()), time.perf_counter()
        if contestant == _RIVAL:
            dist.all_reduce(row)
        else:
            group.all_reduce(row, algorithm=contestant)
        end_s = time.perf_counter()
        dist.barrier()
        right = bool((row == size * (size + 1) / 2).all())
        print(json.dumps([begin_s, end_s, int(_COUNTER.read_text()) - sent_bytes, right]), flush=True)
    group.close()
    dist.destroy_process_group()


def bound_s(size: int, nbytes: int, bits_per_s: float) -> float:
    """Return 2(n-1)/n · M/bw: no ring over links of one speed can be done sooner."""
    return 2 * (size - 1) / size * nbytes * 8 / bits_per_s


def _equal_links(bench: Bench, size: int, nbytes: int, rounds: int) -> None:
    where = f"{size} members"
    with team([_FAST_BITS_PER_S] * size, nbytes) as members:
        names = (_RIVAL, "auto", "ring", "pipelined_tree")
        samples = alternate({name: partial(members.sum_s, name) for name in names}, rounds, warm_up=0)
        samples["tree"] = [members.sum_s("tree")]
        _keep(bench, where, samples, members)
    least_s = [bound_s(size, nbytes, _FAST_BITS_PER_S)]
    bench.claim(
        f"{where}: auto, which is the library's ring",
        ratio(samples["auto"], least_s),
        rival="the bound of a ring",
        at_most=1.15,
    )
    bench.claim(f"{where}: ring of our own", ratio(samples["ring"], least_s), rival="the bound of a ring", at_most=1.15)
    bench.claim(
        f"{where}: pipelined tree",
        ratio(samples["pipelined_tree"], samples["tree"]),
        rival="the whole row at once",
        at_most=0.6,
    )
    bench.claim(f"{where}: pipelined tree", ratio(samples["pipelined_tree"], samples[_RIVAL]), rival=_RIVAL)


def _unequal_links(bench: Bench, size: int, nbytes: int, rounds: int) -> None:
    where = f"{size} members, {size // _SLOW_EVERY} of them behind links five times slower"
    last = _SLOW_EVERY - 1
    speeds = [_SLOW_BITS_PER_S if rank % _SLOW_EVERY == last else _FAST_BITS_PER_S for rank in range(size)]
    with team(speeds, nbytes) as members:
        names = (_RIVAL, "auto")
        samples = alternate({name: partial(members.sum_s, name) for name in names}, rounds, warm_up=0)
        _keep(bench, where, samples, members)
    bench.claim(f"{where}: auto", ratio(samples["auto"], samples[_RIVAL]), rival=_RIVAL, at_most=0.65)
    least_s = nbytes * 8 / _SLOW_BITS_PER_S
    bench.claim(f"{where}: auto", ratio(samples["auto"], [least_s]), rival="once over the slowest link")


def _keep(bench: Bench, where: str, samples: dict[str, list[float]], members: Team) -> None:
    for name, seconds in samples.items():
        bench.measure(f"{where}: {name}", seconds)
        bench.measure(f"{where}: {name}, most over a link, one way", [max(members.sent_bytes[name]) / 1e6], "MB")


def main() -> None:
    """Run the benchmark."""
    given = arguments(__doc__ or "")
    bench = Bench("all_reduce", (__doc__ or "").strip(), packages=("torch",), out=given.out)
    nbytes, rounds = (_QUICK_NBYTES, 1) if given.quick else (_NBYTES, 2)
    sizes = (4,) if given.quick else (4, 8, 16)
    for size in sizes:
        _equal_links(bench, size, nbytes, rounds)
    _unequal_links(bench, sizes[-1], nbytes, rounds)
    bench.note(
        row=f"{nbytes / 1e6:g} MB of float32",
        links="veth pairs on a bridge, a token bucket (tc tbf) of 100 Mbit/s, slow ones 20 Mbit/s, in each direction",
        members="one process in each network namespace, all of them on one host",
    )
    bench.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--member"]:
        member(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        main()
