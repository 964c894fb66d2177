"""ResNet-50 over two devices, each faster at its own kind of layer: the split against the best device alone.

Each device is one core of this host, and one kind of layer is slowed down on each by sleeping, as `slow=` of
`hetero.train.split` documents; the rivals get the same emulation. The rival of the same kind is torch's own pipelining
over Gloo, cut into two parts of equally many layers in the better order, on the same cores. Pictures of 64 × 64.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import hetero
from benchmarks.common import Bench, alternate, arguments, ratio
from hetero.splitting.layers import chain_of
from hetero.splitting.stage import slow_layers

SLOW = {"cpu:0": {"Linear": 0.02}, "cpu:1": {"Conv2d": 0.4}}
MICRO_BATCH, COUNT = 8, 8
PICTURES = MICRO_BATCH * COUNT


def resnet50(norm: Any = torch.nn.BatchNorm2d) -> Any:
    """Return the network of the example, the same weights each time."""
    path = Path(__file__).resolve().parent.parent / "examples" / "resnet50.py"
    spec = importlib.util.spec_from_file_location("resnet50", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    return module.ResNet50(norm=norm)


def group_norm(channels: int) -> Any:
    """Normalise groups of 32 channels, whatever the micro-batch."""
    return torch.nn.GroupNorm(32, channels)


def pictures() -> Any:
    """Return the batch that everybody computes."""
    return torch.randn(PICTURES, 3, 64, 64, generator=torch.Generator().manual_seed(1))


# --- torch's pipelining --------------------------------------------------------------------------------------


def be_rival(rank: int, port: int) -> None:
    """Be one of the two processes of torch's pipelining; computes a batch for every line that comes in."""
    from torch import distributed
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    layers = [layer.module for layer in chain_of(resnet50().eval(), training=False)]
    half = len(layers) // 2
    part = torch.nn.Sequential(*(layers[half:] if rank else layers[:half])).eval()
    slow_layers(part, SLOW[f"cpu:{rank}"])
    schedule = ScheduleGPipe(PipelineStage(part, rank, 2, torch.device("cpu")), COUNT)
    batch = pictures()
    with torch.no_grad():
        for _ in sys.stdin:
            begin_s = time.perf_counter()
            given = schedule.step() if rank else schedule.step(batch)
            total = 0.0 if given is None else float(given.double().sum())
            print(json.dumps([time.perf_counter() - begin_s, total]), flush=True)
    distributed.destroy_process_group()


@contextmanager
def rival() -> Iterator[Callable[[], tuple[float, float]]]:
    """Start torch's pipelining; returns what runs a batch and tells the samples/s and the sum of the outputs."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, str(Path(__file__).resolve()), "--rival"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]

    def run() -> tuple[float, float]:
        answers = []
        for process in ranks:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in ranks:
            assert process.stdout is not None
            answers.append(json.loads(process.stdout.readline()))
        return PICTURES / max(seconds for seconds, _ in answers), answers[1][1]

    try:
        run()
        yield run
    finally:
        for process in ranks:
            process.communicate(timeout=60)


# --- hetero --------------------------------------------------------------------------------------------------


def samples_per_s(call: Callable[[], Any]) -> float:
    """Return the samples/s of one batch."""
    begin_s = time.perf_counter()
    call()
    return PICTURES / (time.perf_counter() - begin_s)


def predict(bench: Bench, ctx: hetero.Context, rounds: int) -> None:
    """Measure the forward pass."""
    batch, model = pictures(), resnet50()
    with ExitStack() as stack:
        enter = stack.enter_context
        ours = enter(hetero.train.split(model, ctx, batch[:MICRO_BATCH], slow=SLOW))
        layers = len(ours.layers)
        alone = str(ours.report().alone)
        one = enter(hetero.train.split(model, ctx, batch[:MICRO_BATCH], slow=SLOW, place=[(alone, layers)]))
        half = [("cpu:0", layers // 2), ("cpu:1", layers - layers // 2)]
        even = enter(hetero.train.split(model, ctx, batch[:MICRO_BATCH], slow=SLOW, place=half))
        torchs = enter(rival())
        expected = float(one(batch).double().sum())
        assert abs(torchs()[1] - expected) < 1e-3 * max(1.0, abs(expected)), "the rival computes something else"
        found = alternate(
            {
                "split": lambda: samples_per_s(lambda: ours(batch)),
                f"best device alone, {alone}": lambda: samples_per_s(lambda: one(batch)),
                "even split": lambda: samples_per_s(lambda: even(batch)),
                "torch pipelining, even": lambda: torchs()[0],
            },
            rounds,
        )
        keep(bench, "forward", found, ours)
        for name, word in (("even split", "even split"), ("torch pipelining, even", "torch.distributed.pipelining")):
            bench.claim("forward, split", ratio(found["split"], found[name]), rival=word, at_least=1.0)


def train(bench: Bench, ctx: hetero.Context, rounds: int) -> None:
    """Measure a step of training."""
    batch, model = pictures(), resnet50(group_norm)
    targets = torch.randint(0, 1000, (PICTURES,), generator=torch.Generator().manual_seed(2))
    options: dict[str, Any] = {"loss": torch.nn.CrossEntropyLoss(), "optimizer": sgd, "slow": SLOW}
    with hetero.train.split(model, ctx, batch[:MICRO_BATCH], **options) as ours:
        place = [(str(ours.report().alone), len(ours.layers))]
        with hetero.train.split(resnet50(group_norm), ctx, batch[:MICRO_BATCH], place=place, **options) as one:
            found = alternate(
                {
                    "split": lambda: samples_per_s(lambda: ours.step(batch, targets)),
                    f"best device alone, {place[0][0]}": lambda: samples_per_s(lambda: one.step(batch, targets)),
                },
                rounds,
            )
            keep(bench, "training", found, ours)


def sgd(parameters: Any) -> Any:
    """Make the optimizer."""
    return torch.optim.SGD(parameters, lr=0.01)


def keep(bench: Bench, what: str, found: dict[str, list[float]], ours: Any) -> None:
    """Keep the samples, the claim against the best device alone, and the prediction."""
    for name, samples in found.items():
        bench.measure(f"{what}, {name}", samples, "samples/s")
    alone = next(name for name in found if name.startswith("best"))
    bench.claim(f"{what}, split", ratio(found["split"], found[alone]), rival="the best device alone", at_least=1.15)
    report = ours.report()
    bench.measure(f"{what}, split, predicted", [report.predicted_samples_per_s], "samples/s")
    bench.measure(f"{what}, {alone}, predicted", [report.alone_samples_per_s], "samples/s")
    measured = ratio(found["split"], [report.predicted_samples_per_s])
    bench.claim(f"{what}, the prediction was off by", max(measured, 1 / measured), at_most=1.2)
    bench.note(**{f"{what} stages": [(stage.device, *stage.layers, stage.count) for stage in report.stages]})


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    torch.set_num_threads(1)
    bench = Bench("split", "ResNet-50 over two devices, each faster at its own kind of layer", ("torch",), given.out)
    with hetero.Context(devices="2xcpu", history=False) as ctx:
        predict(bench, ctx, 1 if given.quick else 9)
        train(bench, ctx, 1 if given.quick else 5)
    bench.note(emulated=SLOW, micro_batches=f"{COUNT} of {MICRO_BATCH} pictures of 64 × 64")
    bench.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rival"]:
        be_rival(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
