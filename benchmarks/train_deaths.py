"""A worker that is killed or frozen while three devices train: seconds to the next step, no sample lost, equal bits.

The network of the MNIST tutorials, global batch 128, `exact: bitwise`; one worker of three, another each time, gets
SIGKILL or SIGSTOP within an epoch. The next step is the first that the new group has applied, by the log of samples.
The rival is plain DDP over Gloo under `torchrun --max-restarts`, with a checkpoint every ten steps and a monitor that
looks every 0.1 s: it starts all of its workers again.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil
import torch
from torch import nn

import hetero
from benchmarks.common import Bench, arguments
from benchmarks.train_shares import BATCH, SAMPLES, adam, pictures
from hetero.recipes.mnist import network
from hetero.train import DataOptions, TrainOptions
from hetero.train.listener import Listener

MEMBERS, STEPS = 3, SAMPLES // BATCH
DEADLINE_STEPS, LEAST_DEADLINE_S = 30, 2.0


class Timed(Listener):
    """Notes when it heard that a device was given up."""

    def __init__(self) -> None:
        self.found_s: list[float] = []

    def on_note(self, text: str) -> None:
        """Take the time."""
        if "does not answer" in text or "is lost" in text:
            self.found_s.append(time.time())


class Ours:
    """hetero on three equal devices of one Context."""

    def __init__(self, ctx: hetero.Context) -> None:
        self.ctx, self.data, self.chance = ctx, pictures(), random.Random(7)
        self.wrong_bits, self.wrong_logs, self.rounds = 0, 0, 0
        self.deadlines: list[float] = []
        self.bits = self.fit(Path(tempfile.mkdtemp()), Listener())

    def fit(self, log: Path, listener: Listener) -> list[Any]:
        """Train and give the parameters."""
        torch.manual_seed(0)
        options, read = TrainOptions(BATCH, exact="bitwise", shares="equal"), DataOptions(sample_log=log)
        trainer = hetero.Trainer(
            network(), nn.CrossEntropyLoss(), adam, self.data, options=options, data_options=read, devices=self.ctx
        )
        trainer.fit(1, listener=listener)
        return [parameter.detach() for parameter in trainer.model.parameters()]

    def disturb(self, what: signal.Signals) -> tuple[float, float]:
        """Train, and signal a worker meanwhile; returns s until it was missed, and until the next step."""
        self.wait_for_workers()
        log, heard, struck_s = Path(tempfile.mkdtemp()), Timed(), [0.0]
        victim = dict(self.ctx.driver.engine.pids())[self.ctx.devices[self.rounds % MEMBERS].id]
        first = self.chance.randrange(2, STEPS * 3 // 4)
        self.rounds += 1

        def strike() -> None:
            while max((path.read_bytes().count(b"applied") for path in log.iterdir()), default=0) < first:
                time.sleep(0.005)
            time.sleep(self.chance.uniform(0.0, 0.05))
            struck_s[0] = time.time()
            os.kill(victim, what)

        striker = threading.Thread(target=strike)
        striker.start()
        bits = self.fit(log, heard)
        striker.join()
        if what == signal.SIGSTOP:
            os.kill(victim, signal.SIGCONT)
        return self.judge(log, bits, heard, struck_s[0])

    def judge(self, log: Path, bits: list[Any], heard: Timed, struck_s: float) -> tuple[float, float]:
        """Check the bits and the samples of a disturbed run, and give its times."""
        self.wrong_bits += not all(torch.equal(one, other) for one, other in zip(bits, self.bits, strict=True))
        self.wrong_logs += hetero.train.check_sample_log(log).epochs != 1
        steps = hetero.train.read_sample_log(log)
        before = [step for step in steps if step.generation == 1]
        after = next(step for step in steps if step.generation > 1)
        gaps = [b.applied_s - a.applied_s for a, b in itertools.pairwise(before)]
        self.deadlines.append(max(LEAST_DEADLINE_S, DEADLINE_STEPS * max(gaps)))
        return heard.found_s[0] - struck_s, after.applied_s - struck_s

    def wait_for_workers(self) -> None:
        """Wait until all workers are up and have torch."""
        for device in self.ctx.devices:
            self.ctx.submit(hetero.task(has_torch, on=(device.id,))).result()


def has_torch() -> bool:
    """Import torch in a worker."""
    from importlib import import_module

    return bool(import_module("torch").get_num_threads())


# --- the rival -------------------------------------------------------------------------------------------------


def rank_main(folder: Path) -> None:
    """Be one rank of plain DDP under torchrun; writes its process id and the time of each step."""
    torch.set_num_threads(1)
    told = os.environ
    rank, size = int(told["RANK"]), int(told["WORLD_SIZE"])
    agents = torch.distributed.TCPStore(told["MASTER_ADDR"], int(told["MASTER_PORT"]), is_master=False)
    store = torch.distributed.PrefixStore(f"attempt-{told['TORCHELASTIC_RESTART_COUNT']}", agents)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    inputs, targets = map(torch.from_numpy, pictures())
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(network())
    optimizer, loss = adam(model.parameters()), nn.CrossEntropyLoss()
    kept, step = folder / "state.pt", 0
    if kept.exists():
        step, weights, moments = torch.load(kept, weights_only=True)
        model.module.load_state_dict(weights)
        optimizer.load_state_dict(moments)
    mine = BATCH // size
    with (folder / f"rank-{rank}").open("a", buffering=1) as out:
        while True:
            begin = (step * BATCH + rank * mine) % (SAMPLES - mine)
            optimizer.zero_grad()
            loss(model(inputs[begin : begin + mine]), targets[begin : begin + mine]).backward()
            optimizer.step()
            step += 1
            out.write(f"{os.getpid()} {time.time()}\n")
            if rank == 0 and step % 10 == 0:
                torch.save((step, model.module.state_dict(), optimizer.state_dict()), kept.with_suffix(".new"))
                kept.with_suffix(".new").replace(kept)


def rows(folder: Path, rank: int) -> list[tuple[int, float]]:
    """Return the process id and the time of each step that a rank has done."""
    path = folder / f"rank-{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(line.split()[0]), float(line.split()[1])) for line in lines if len(line.split()) == 2]


def torchrun(kills: int) -> list[float]:
    """Kill a rank of plain DDP again and again; returns the seconds to the first step after each."""
    folder = Path(tempfile.mkdtemp())
    options = ["--standalone", f"--nproc-per-node={MEMBERS}", f"--max-restarts={kills}", "--monitor-interval=0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, __file__, "--rank", str(folder)]
    agent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return [kill_rank(folder, kill % MEMBERS) for kill in range(kills)]
    finally:
        family = psutil.Process(agent.pid)
        for process in [*family.children(recursive=True), family]:
            process.kill()
        agent.wait()


def kill_rank(folder: Path, rank: int) -> float:
    """Kill a rank once it has done some steps; returns s until its successor has done one."""
    victim = wait_for(folder, rank, len(rows(folder, rank)) + 20)[-1][0]
    struck_s = time.time()
    os.kill(victim, signal.SIGKILL)
    before = len(rows(folder, rank))
    return wait_for(folder, rank, before + 1)[before][1] - struck_s


def wait_for(folder: Path, rank: int, steps: int) -> list[tuple[int, float]]:
    """Wait until a rank has done so many steps; returns all of them."""
    deadline_s = time.monotonic() + 60
    while len(found := rows(folder, rank)) < steps:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"rank {rank} under torchrun does no steps")
        time.sleep(0.02)
    return found


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    kills, freezes, rival_kills = (2, 1, 1) if given.quick else (15, 6, 5)
    bench = Bench("train_deaths", "workers that die and freeze while three devices train", ("torch",), given.out)
    with hetero.Context(devices=f"{MEMBERS}xcpu", history=False) as ctx:
        ours = Ours(ctx)
        killed = [ours.disturb(signal.SIGKILL)[1] for _ in range(kills)]
        frozen = [ours.disturb(signal.SIGSTOP) for _ in range(freezes)]
    rival = torchrun(rival_kills)
    late = max(found / deadline for (found, _), deadline in zip(frozen, ours.deadlines[kills:], strict=True))
    bench.measure("killed: next step", killed)
    bench.measure("frozen: found", [found for found, _ in frozen])
    bench.measure("frozen: next step", [step for _, step in frozen])
    bench.measure("torchrun and DDP, killed: next step", rival)
    middle = sorted(killed)[len(killed) // 2]
    bench.claim("killed: seconds to the next step, median", middle, unit="s", at_most=1.0)
    bench.claim("killed: seconds to the next step, worst", max(killed), unit="s", at_most=1.0)
    bench.claim("killed: next step", middle / sorted(rival)[len(rival) // 2], rival="torchrun and DDP", at_most=0.5)
    bench.claim(f"frozen: found, of {DEADLINE_STEPS} steps and at least {LEAST_DEADLINE_S:g} s", late, at_most=1.0)
    bench.claim("runs with other bits than the undisturbed one", ours.wrong_bits, unit="", at_most=0)
    bench.claim("runs in which a sample was not used once", ours.wrong_logs, unit="", at_most=0)
    bench.note(runs=kills + freezes, steps_a_run=STEPS)
    bench.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(Path(sys.argv[2]))
    else:
        main()
