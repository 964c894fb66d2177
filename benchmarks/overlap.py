"""Gradients that travel while others are computed: what of the communication is left to wait for, against torch's DDP.

A stack of linear layers with 4.2 MB of parameters over 2 and 4 members, each behind a link of its own. What is exposed
is a step's time less that of the same step without communication, in the same run. A member is a processor that
computes itself, or one whose layers take their time asleep, as a host waits for an accelerator.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, alternate, arguments
from examples.netns import Fleet, fleet_of_namespaces

_WIDTH, _LAYERS, _SAMPLES = 362, 8, {"computes": 2048, "sleeps": 8}
_FORWARD_S, _BACKWARD_S = 0.006, 0.015
_BITS_PER_S = {2: 400e6, 4: 600e6}
_CASES = ((2, "sleeps"), (4, "sleeps"), (2, "computes"))
_WAIT_S = 120.0
_WARM_STEPS, _STEPS = 14, 5
_DDP = "torch DDP"
_ALONE = "no communication"
_OURS: dict[str, dict[str, Any]] = {
    "never": {"overlap": "never"},
    "always": {"overlap": "always"},
    "auto": {"overlap": "auto"},
    "always, bf16": {"overlap": "always", "compression": "bf16"},
    "always, powersgd": {"overlap": "always", "compression": "powersgd"},
}
_CONTESTANTS = (_ALONE, *_OURS, _DDP)


class Team:
    """One process in each namespace, doing the same steps."""

    def __init__(self, fleet: Fleet, way: str) -> None:
        size = len(fleet.hosts)
        command = [sys.executable, str(Path(__file__).resolve()), "--member"]
        self._members = [
            fleet.popen(
                rank,
                [*command, str(rank), str(size), host.address, way],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
                env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "TORCH_CPP_LOG_LEVEL": "ERROR"},
            )
            for rank, host in enumerate(fleet.hosts)
        ]

    def form(self) -> None:
        """Let all members find each other, and learn what is to be learned."""
        rendezvous = self._hear(self._members[0])
        for one in self._members[1:]:
            self._say(one, rendezvous)
        for one in self._members:
            self._hear(one)

    def step_s(self, contestant: str) -> float:
        """Return the median s of some steps, on the member for which it is longest."""
        for one in self._members:
            self._say(one, contestant)
        return max(self._hear(one) for one in self._members)

    def close(self) -> None:
        """Let all members end."""
        for one in self._members:
            if one.stdin is not None:
                one.stdin.close()
        for one in self._members:
            try:
                one.wait(5)
            except subprocess.TimeoutExpired:
                one.kill()

    @staticmethod
    def _say(one: subprocess.Popen[str], value: Any) -> None:
        assert one.stdin is not None
        one.stdin.write(json.dumps(value) + "\n")

    @staticmethod
    def _hear(one: subprocess.Popen[str]) -> Any:
        assert one.stdout is not None
        return json.loads(one.stdout.readline())


@contextmanager
def team(size: int, way: str) -> Iterator[Team]:
    """Have a team for the time of a `with` block."""
    with fleet_of_namespaces([_BITS_PER_S[size]] * size) as fleet:
        made = Team(fleet, way)
        try:
            made.form()
            yield made
        finally:
            made.close()


def network(way: str) -> Any:
    """Make the model, the same on all members."""
    import torch
    from torch import nn

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            time.sleep(_FORWARD_S)
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            time.sleep(_BACKWARD_S)
            return grad

    class Sleeping(nn.Linear):
        def forward(self, x: Any) -> Any:
            return Sleep.apply(super().forward(x))

    torch.manual_seed(0)
    kind = Sleeping if way == "sleeps" else nn.Linear
    return nn.Sequential(*[part for _ in range(_LAYERS) for part in (kind(_WIDTH, _WIDTH), nn.ReLU())])


def member(rank: int, size: int, address: str, way: str) -> None:
    """Be one of a team: read whose steps to do from standard input, and write how long they took."""
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
    inputs = torch.randn(_SAMPLES[way], _WIDTH, generator=torch.Generator().manual_seed(rank))
    steps = {name: step_of(name, network(way), group, inputs) for name in _CONTESTANTS}
    for step in steps.values():
        for _ in range(_WARM_STEPS):
            step()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(statistics.median(_timed(steps[json.loads(line)], dist) for _ in range(_STEPS))), flush=True)


def _timed(step: Callable[[], None], dist: Any) -> float:
    dist.barrier()
    begin_s = time.perf_counter()
    step()
    return time.perf_counter() - begin_s


def step_of(name: str, model: Any, group: Any, inputs: Any) -> Callable[[], None]:
    """Make one contestant's step: forward, backward with what it does to communicate, and the optimizer."""
    import torch

    if name == _DDP:
        model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    if name in _OURS:
        return _ours(model, optimizer, group, inputs, _OURS[name])

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def _ours(model: Any, optimizer: Any, group: Any, inputs: Any, options: dict[str, Any]) -> Callable[[], None]:
    from hetero.train import TrainOptions
    from hetero.train.gradients import Gradients

    gradients = Gradients(list(model.parameters()), 1, TrainOptions(len(inputs), **options))

    def step() -> None:
        gradients.begin(group)
        gradients.last_pass()
        model(inputs).square().mean().backward()
        assert gradients.reduce(group, [1.0]) == [group.world_size]
        gradients.scale(1.0 / group.world_size)
        optimizer.step()

    return step


def _compare(bench: Bench, size: int, way: str, rounds: int) -> None:
    where = f"{size} members, a processor that {way}"
    with team(size, way) as members:
        contestants = {name: lambda name=name: members.step_s(name) for name in _CONTESTANTS}
        samples = alternate(contestants, rounds, warm_up=0)
    alone = samples[_ALONE]
    exposed = {name: [max(1e-4, a - b) for a, b in zip(samples[name], alone, strict=True)] for name in samples}
    for name, seconds in samples.items():
        bench.measure(f"{where}: a step, {name}", seconds)
    for name in (*_OURS, _DDP):
        bench.measure(f"{where}: exposed, {name}", exposed[name])
    never, ddp = statistics.median(exposed["never"]), statistics.median(exposed[_DDP])
    for name in ("always", "auto", "always, bf16", "always, powersgd"):
        value = statistics.median(exposed[name]) / never
        aim = 0.6 if way == "sleeps" and name in ("always", "auto") else None
        bench.claim(f"{where}: exposed, {name}", value, rival="hetero without overlap", at_most=aim)
    always = statistics.median(exposed["always"])
    bench.claim(f"{where}: exposed, always", always / ddp, rival=_DDP)


def main() -> None:
    """Run the benchmark."""
    given = arguments(str(__doc__).splitlines()[0])
    bench = Bench("overlap", "gradients travel while others are computed", packages=("torch",), out=given.out)
    for size, way in _CASES[:1] if given.quick else _CASES:
        _compare(bench, size, way, 1 if given.quick else 3)
    bench.note(
        model=f"{_LAYERS} linear layers of {_WIDTH} × {_WIDTH}",
        asleep=f"{_FORWARD_S} s a layer forward, {_BACKWARD_S} s backward",
        links=f"veth pairs on a bridge, a token bucket (tc tbf), bit/s by members: {_BITS_PER_S}",
        members="one process of one thread in each network namespace, all of them on one host",
    )
    bench.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--member"]:
        member(int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:6])
    else:
        main()
