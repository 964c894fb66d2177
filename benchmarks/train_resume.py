"""A whole training run that is killed at random moments, a hundred times: it resumes to the bits of an undisturbed one.

A small network with dropout on scikit-learn's digits, over two workers 1 : 0.5, `exact: bitwise`, a checkpoint every
four steps. The program and its workers get SIGKILL at a moment between the start and the end of a run; the same command
goes on until the run is done, and the next run begins. The rival is a plain torch loop that writes its state with
`torch.save` every four steps, over the file before it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.common import Bench, arguments
from hetero.train.sample_log import check_sample_log, read_sample_log
from hetero.train.values import TrainingError

KILLS, RIVAL_KILLS, EPOCHS, EVERY, BATCH = 100, 40, 24, 4, 128

TASK = """
import os, sys, torch
from torch import nn
from hetero.recipes.mnist import load_digits
torch.manual_seed(0)
data = load_digits().train
data = data[0].reshape(len(data[0]), -1), data[1]
model = nn.Sequential(nn.Linear(data[0].shape[1], 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10))
loss = nn.CrossEntropyLoss()

def adam(parameters):
    return torch.optim.Adam(parameters, 1e-3)
"""

OURS = f"""{TASK}
import hetero

where = sys.argv[1]
trainer = hetero.Trainer(model, loss, adam, data, global_batch={BATCH}, devices="1xcpu,1xcpu*0.5", exact="bitwise",
    checkpoint=where + "/kept", checkpoint_every={EVERY}, sample_log=where + "/log")
with trainer:
    trainer.fit({EPOCHS} - trainer.resume())
torch.save(list(model.parameters()), where + "/done")
"""

PLAIN = f"""{TASK}
torch.set_num_threads(1)
inputs, targets = map(torch.from_numpy, data)
path, first, steps, optimizer = sys.argv[1] + "/state", 0, -(-len(inputs) // {BATCH}), adam(model.parameters())
if os.path.exists(path):
    kept = torch.load(path, weights_only=False)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    torch.set_rng_state(kept["random"])
    first = kept["step"]
for step in range(first, {EPOCHS} * steps):
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(step // steps))
    mine = order[step % steps * {BATCH}:][:{BATCH}]
    optimizer.zero_grad()
    loss(model(inputs[mine]), targets[mine]).backward()
    optimizer.step()
    if (step + 1) % {EVERY} == 0:
        state = dict(model=model.state_dict(), optimizer=optimizer.state_dict(), random=torch.get_rng_state())
        torch.save(dict(state, step=step + 1), path)
torch.save(list(model.parameters()), sys.argv[1] + "/done")
"""


class Contestant:
    """A program that is killed until it is done, again and again."""

    def __init__(self, program: str, check: Callable[[Path], None]) -> None:
        self.program, self.check = program, check
        self.chance = random.Random(11)
        self.kills = self.runs = self.wrong = self.stuck = 0
        begun_s = time.monotonic()
        folder = Path(tempfile.mkdtemp())
        assert self.start(folder).wait() == 0
        self.whole_s = time.monotonic() - begun_s
        self.bits = torch.load(folder / "done", weights_only=False)

    def start(self, folder: Path) -> subprocess.Popen[bytes]:
        """Start the program, in a process group of its own."""
        command = [sys.executable, "-c", self.program, str(folder)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def torment(self, kills: int) -> None:
        """Kill so often, and look at every run that came to its end."""
        while self.kills < kills:
            folder = Path(tempfile.mkdtemp())
            self._one_run(folder, kills)

    def _one_run(self, folder: Path, kills: int) -> None:
        while True:
            running = self.start(folder)
            if self.kills < kills and not self._ends_within(running, self.chance.uniform(0.0, self.whole_s)):
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
                self.kills += 1
                continue
            if running.wait():
                self.stuck += 1
                return
            break
        self.runs += 1
        found = torch.load(folder / "done", weights_only=False)
        self.wrong += not all(torch.equal(one, other) for one, other in zip(found, self.bits, strict=True))
        self.check(folder)

    def _ends_within(self, running: subprocess.Popen[bytes], seconds: float) -> bool:
        try:
            running.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    kills, rival_kills = (3, 3) if given.quick else (KILLS, RIVAL_KILLS)
    bench = Bench("train_resume", "whole runs that are killed", ("torch",), given.out)
    logs: list[str] = []

    def check(folder: Path) -> None:
        try:
            found = check_sample_log(folder / "log")
            if found.epochs != EPOCHS or len(read_sample_log(folder / "log")) != found.steps:
                logs.append(f"{found} in {folder}")
        except TrainingError as error:
            logs.append(str(error))

    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent)
    ours, plain = Contestant(OURS, check), Contestant(PLAIN, lambda folder: None)
    ours.torment(kills)
    plain.torment(rival_kills)
    bench.measure("hetero, an undisturbed run", [ours.whole_s])
    bench.measure("plain loop, an undisturbed run", [plain.whole_s])
    bench.claim("kills", ours.kills, unit="", at_least=kills)
    bench.claim("runs that could not go on", ours.stuck, unit="", at_most=0)
    bench.claim("runs whose parameters differ", ours.wrong, unit="", at_most=0)
    bench.claim("runs in which a sample was lost or used twice", len(logs), unit="", at_most=0)
    bench.claim("plain loop: runs that could not go on", plain.stuck, unit=f"of {plain.stuck + plain.runs}")
    bench.claim("plain loop: runs whose parameters differ", plain.wrong, unit=f"of {plain.runs}")
    bench.note(runs=ours.runs, logs=logs, plain_kills=plain.kills)
    bench.finish()


if __name__ == "__main__":
    main()
