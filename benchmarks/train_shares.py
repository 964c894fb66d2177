"""Unequal devices train one model: against the sum of what torch does on each alone, and plain DDP with equal shares.

The network of the MNIST tutorials, global batch 128, Adam. A device's own speed is that of a plain torch loop that is
throttled as the device is, in the same run. Beside it stands the limit that no sharing of these passes could beat: each
device takes what its plain passes of that size take, in whole samples, and talking is free.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

import hetero
from benchmarks.common import Bench, alternate, arguments
from hetero.plan.training.shares import StepModel, make_plan
from hetero.recipes.mnist import load_digits, load_mnist, network
from hetero.train import TrainOptions
from tests.needs import _data

BATCH, SAMPLES, SLOW = 128, 4096, 0.333
FLEET = f"1xcpu,1xcpu*{SLOW}"
FOUR = (0.8, 0.4, 0.2, 0.1)
STEPS = SAMPLES // BATCH
_FEW = 16


def pictures() -> tuple[Any, Any]:
    """Return the pictures to train on: MNIST's where they are, else scikit-learn's digits, repeated."""
    folder = _data() / "mnist"
    inputs, targets = (load_mnist(folder) if folder.is_dir() else load_digits()).train
    repeat = -(-SAMPLES // len(inputs))
    return inputs.repeat(repeat, 0)[:SAMPLES], targets.repeat(repeat)[:SAMPLES]


def adam(parameters: Any) -> Any:
    """Make the optimizer that all contestants have."""
    return torch.optim.Adam(parameters, 1e-3, fused=True)


class Contestant:
    """hetero on some of the devices of one Context, whose workers are up."""

    def __init__(self, ctx: hetero.Context, shares: Any, epochs: int) -> None:
        self.ctx, self.shares, self.epochs = ctx, shares, epochs
        self.data = pictures()
        self.last: Any = None

    def trainer(self) -> hetero.Trainer:
        """Make a Trainer that knows nothing of the devices yet."""
        model = network()
        loss = nn.CrossEntropyLoss()
        return hetero.Trainer(
            model, loss, adam, self.data, options=TrainOptions(BATCH, shares=self.shares), devices=self.ctx
        )

    def warm(self) -> float:
        """Return samples/s once the first epoch has been learned from."""
        self.last = self.trainer()
        reports = self.last.fit(1 + self.epochs)[1:]
        return sum(r.samples_per_s * r.seconds for r in reports) / sum(r.seconds for r in reports)

    def cold(self) -> float:
        """Return samples/s from the call to its end, probing and learning included."""
        begin_s = time.perf_counter()
        epochs = 4 * (1 + self.epochs)
        self.trainer().fit(epochs)
        return SAMPLES * epochs / (time.perf_counter() - begin_s)


class Plain:
    """A plain loop of torch, throttled by sleeping."""

    def __init__(self) -> None:
        self.inputs, self.targets = map(torch.from_numpy, pictures())
        self.model, self.loss = network(), nn.CrossEntropyLoss()
        self.optimizer = adam(self.model.parameters())
        self.order = torch.randperm(SAMPLES)

    def step(self, begin: int, samples: int, frac: float) -> float:
        """Do one step and give its seconds."""
        begin_s, cpu_s = time.perf_counter(), time.thread_time()
        mine = self.order[begin : begin + samples]
        self.optimizer.zero_grad()
        self.loss(self.model(self.inputs[mine]), self.targets[mine]).backward()
        self.optimizer.step()
        if frac < 1.0:
            time.sleep((1 / frac - 1) * (time.thread_time() - cpu_s))
        return time.perf_counter() - begin_s

    def speed(self, frac: float, steps: int) -> float:
        """Return samples/s of whole batches."""
        begin_s = time.perf_counter()
        for step in range(steps):
            self.step(step % STEPS * BATCH, BATCH, frac)
        return steps * BATCH / (time.perf_counter() - begin_s)

    def median_s(self, samples: int, steps: int) -> float:
        """Return the usual seconds of a step with so many samples."""
        return statistics.median(self.step(step % STEPS * BATCH, samples, 1.0) for step in range(steps))


def limit(plain: Plain, fracs: Sequence[float], steps: int) -> float:
    """Return samples/s of the best whole shares of plain passes, with talking free; tells of fixed costs too."""
    few_s, many_s = (plain.median_s(samples, steps) for samples in (_FEW, BATCH))
    per_sample_s = (many_s - few_s) / (BATCH - _FEW)
    fixed_s = max(0.0, few_s - per_sample_s * _FEW)
    return BATCH / make_plan([StepModel(fixed_s / frac, per_sample_s / frac) for frac in fracs], BATCH).step_s


def ddp_rank(rank: int, port: int, epochs: int) -> None:
    """Be one rank of plain DDP with equal shares; the first prints samples/s after its first epoch."""
    torch.set_num_threads(1)
    store = torch.distributed.TCPStore("127.0.0.1", port, 2, rank == 0)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    inputs, targets = map(torch.from_numpy, pictures())
    model = nn.parallel.DistributedDataParallel(network())
    optimizer, loss = adam(model.parameters()), nn.CrossEntropyLoss()
    idle_per_cpu_s = (1 / SLOW - 1) if rank == 1 else 0.0
    half = BATCH // 2
    begin_s = 0.0
    for epoch in range(1 + epochs):
        begin_s = time.perf_counter() if epoch == 1 else begin_s
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
        for step in range(STEPS):
            mine = order[step * BATCH + rank * half :][:half]
            cpu_s = time.thread_time()
            optimizer.zero_grad()
            output = loss(model(inputs[mine]), targets[mine])
            if idle_per_cpu_s:
                time.sleep(idle_per_cpu_s * (time.thread_time() - cpu_s))
            cpu_s = time.thread_time()
            output.backward()
            optimizer.step()
            if idle_per_cpu_s:
                time.sleep(idle_per_cpu_s * (time.thread_time() - cpu_s))
    if rank == 0:
        print(json.dumps(epochs * SAMPLES / (time.perf_counter() - begin_s)))
    torch.distributed.destroy_process_group()


def ddp(epochs: int) -> float:
    """Run both ranks of plain DDP; returns samples/s."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--rank"]
    ranks = [
        subprocess.Popen([*command, str(rank), str(port), str(epochs)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    return float(json.loads(said[0]))


def two_devices(rounds: int, epochs: int, plain: Plain) -> tuple[dict[str, list[float]], Any]:
    """Measure 3 : 1; returns the speeds, and the last Trainer."""
    with hetero.Context(devices=FLEET, history=False) as ctx:
        auto = Contestant(ctx, "auto", epochs)
        samples = alternate(
            {
                "plain torch, the fast device": partial(plain.speed, 1.0, STEPS),
                "plain torch, the slow device": partial(plain.speed, SLOW, STEPS),
                "limit of plain passes": partial(limit, plain, (1.0, SLOW), STEPS),
                "hetero, the fast device alone": Contestant(ctx, {"cpu:0": BATCH}, epochs).warm,
                "both, shares: auto": auto.warm,
                "both, from cold": auto.cold,
                "plain DDP, equal shares": lambda: ddp(epochs),
            },
            rounds,
        )
    return samples, auto.last


def four_devices(rounds: int, epochs: int, plain: Plain) -> dict[str, list[float]]:
    """Measure 8 : 4 : 2 : 1, four throttled devices that together have 1.5 cores."""
    with hetero.Context(devices=",".join(f"1xcpu*{frac}" for frac in FOUR), history=False) as ctx:
        contestants: Mapping[str, Callable[[], float | None]] = {
            "plain torch, a whole core": partial(plain.speed, 1.0, STEPS),
            "limit of plain passes, four devices": partial(limit, plain, FOUR, STEPS),
            "four devices, shares: auto": Contestant(ctx, "auto", epochs).warm,
        }
        return alternate(contestants, rounds)


def whole_samples(fracs: Sequence[float]) -> float:
    """Return the share of the sum of speeds that whole samples allow where nothing else costs.

    Examples
    --------
    >>> round(whole_samples((8, 4, 2, 1)), 3)
    0.989
    """
    return BATCH / make_plan([StepModel(0.0, 1.0 / frac) for frac in fracs], BATCH).step_s / sum(fracs)


def against(mine: Sequence[float], rival: Sequence[float]) -> float:
    """Return the median over the rounds of one contestant over another, both of the same round."""
    return statistics.median(a / b for a, b in zip(mine, rival, strict=True))


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    rounds, epochs = (1, 1) if given.quick else (7, 2)
    torch.set_num_threads(1)
    bench = Bench("train_shares", "training on unequal devices", ("torch", "safetensors"), given.out)
    plain = Plain()
    two, last = two_devices(rounds, epochs, plain)
    four = four_devices(rounds, epochs, plain)
    for what, speeds in (two | four).items():
        bench.measure(what, speeds, "samples/s")
    fast, slow = two["plain torch, the fast device"], two["plain torch, the slow device"]
    own = [a + b for a, b in zip(fast, slow, strict=True)]
    auto = two["both, shares: auto"]
    bench.claim("3 : 1, share of the sum of speeds", against(auto, own), rival="plain torch on each", at_least=0.95)
    bench.claim("3 : 1, share of what the passes allow", against(auto, two["limit of plain passes"]), rival="limit")
    rival = two["plain DDP, equal shares"]
    bench.claim("3 : 1, speed", against(auto, rival), rival="plain DDP, equal shares", at_least=1.9)
    cold = against(two["both, from cold"], own)
    bench.claim("3 : 1, share of the sum from cold", cold, rival="plain torch on each", at_least=0.90)
    shared = four["four devices, shares: auto"]
    allowed = [each * sum(FOUR) * whole_samples(FOUR) for each in four["plain torch, a whole core"]]
    share = against(shared, allowed)
    bench.claim("8 : 4 : 2 : 1, share of what whole samples allow", share, rival="plain torch on each", at_least=0.90)
    passes = against(shared, four["limit of plain passes, four devices"])
    bench.claim("8 : 4 : 2 : 1, share of what the passes allow", passes, rival="limit")
    alone = against(two["hetero, the fast device alone"], fast)
    bench.claim("one device, speed", alone, rival="plain torch")
    bench.note(last_shares=last.reports[-1].shares, global_batch=BATCH, steps=STEPS * epochs)
    bench.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        ddp_rank(*map(int, sys.argv[2:5]))
    else:
        main()
