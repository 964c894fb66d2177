"""Two devices 3 : 1 train one model: against the sum of their own speeds, and against plain DDP with equal shares.

The network of the MNIST tutorials, 4,096 pictures an epoch, global batch 128, Adam. Each device's own speed is that of
hetero on it alone, in the same run. DDP's two ranks are throttled as the devices are: by sleeping.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

import hetero
from benchmarks.common import Bench, alternate, arguments
from hetero.train.mnist import load_digits, load_mnist, network
from tests.needs import _data

BATCH, SAMPLES, SLOW = 128, 4096, 0.333
FLEET = f"cpu:1,cpu:1*{SLOW}"


def pictures() -> tuple[Any, Any]:
    """Give the pictures to train on: MNIST's where they are, else scikit-learn's digits, repeated."""
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
        return hetero.Trainer(model, loss, adam, self.data, global_batch=BATCH, devices=self.ctx, shares=self.shares)

    def warm(self) -> float:
        """Give samples/s once the first epoch has been learned from."""
        self.last = self.trainer()
        reports = self.last.fit(1 + self.epochs)[1:]
        return sum(r.samples_per_s * r.seconds for r in reports) / sum(r.seconds for r in reports)

    def cold(self) -> float:
        """Give samples/s from the call to its end, probing and learning included."""
        begin_s = time.perf_counter()
        self.trainer().fit(1 + self.epochs)
        return SAMPLES * (1 + self.epochs) / (time.perf_counter() - begin_s)


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
        for step in range(SAMPLES // BATCH):
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
    """Run both ranks of plain DDP; gives samples/s."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--rank"]
    ranks = [
        subprocess.Popen([*command, str(rank), str(port), str(epochs)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    return float(json.loads(said[0]))


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    rounds, epochs = (1, 1) if given.quick else (9, 2)
    title = "training on two devices 3 : 1"
    bench = Bench("train_shares", title, ("torch", "safetensors"), given.out)
    with hetero.Context(devices=FLEET, history=False) as ctx:
        auto = Contestant(ctx, "auto", epochs)
        samples = alternate(
            {
                "fast device alone": Contestant(ctx, {"cpu:0": BATCH}, epochs).warm,
                "slow device alone": Contestant(ctx, {"cpu:1": BATCH}, epochs).warm,
                "both, shares: auto": auto.warm,
                "both, from cold": auto.cold,
                "both, shares: equal": Contestant(ctx, "equal", epochs).warm,
                "plain DDP, equal shares": lambda: ddp(epochs),
            },
            rounds,
        )
        shares = auto.last.reports[-1].shares
    for what, speeds in samples.items():
        bench.measure(what, speeds, "samples/s")
    own = [a + b for a, b in zip(samples["fast device alone"], samples["slow device alone"], strict=True)]

    def against(what: str, rival: list[float]) -> float:
        """Give the median over the rounds of one contestant over another, both of the same round."""
        ratios = sorted(mine / theirs for mine, theirs in zip(samples[what], rival, strict=True))
        return ratios[len(ratios) // 2]

    bench.claim("share of the sum of speeds", against("both, shares: auto", own), rival="each alone", at_least=0.95)
    rival = samples["plain DDP, equal shares"]
    bench.claim("speed", against("both, shares: auto", rival), rival="plain DDP, equal shares", at_least=1.9)
    bench.claim("share from cold", against("both, from cold", own), rival="each alone", at_least=0.90)
    bench.note(last_shares=shares, global_batch=BATCH, steps=SAMPLES // BATCH * epochs)
    bench.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        ddp_rank(*map(int, sys.argv[2:5]))
    else:
        main()
