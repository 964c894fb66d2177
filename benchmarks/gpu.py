"""An NVIDIA GPU beside the CPUs of its host: never slower than the GPU alone; what hetero costs against plain torch.

Needs a GPU that torch can use; elsewhere nothing is measured. Every contestant computes from arrays of the host. Each
fleet is opened, and learns the device, in the rounds that are not counted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, alternate, arguments, ratio
from hetero.train import TrainOptions

GPU, BOTH = "cuda:0", "cuda:0,torch-cpu"
BATCH, SAMPLES, EPOCHS = 512, 16_384, 3
RECORDS, TOKENS, WIDTH = 20_000, 64, 256


def network() -> Any:
    """Return a convolutional network for pictures of 32 x 32 pixels; the same weights each time."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, 10))


def plain_training(data: tuple[Any, Any], half: bool) -> float:
    """Return the seconds of the last epochs of a plain loop on the GPU, whose batches come from the host."""
    import torch

    model, loss = network().to(GPU), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    begin_s = 0.0
    for epoch in range(EPOCHS + 1):
        if epoch == 1:
            torch.cuda.synchronize()
            begin_s = time.perf_counter()
        order = torch.randperm(SAMPLES)
        for begin in range(0, SAMPLES, BATCH):
            ids = order[begin : begin + BATCH]
            inputs, targets = data[0][ids].to(GPU), data[1][ids].to(GPU)
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                value = loss(model(inputs), targets)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        torch.cuda.synchronize()
    return time.perf_counter() - begin_s


def training(data: tuple[Any, Any], half: bool, devices: str, shares: dict[str, dict[str, int]]) -> float:
    """Return the seconds of the last epochs of a Trainer."""
    import torch

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    precision = "bf16" if half else "fp32"
    with hetero.Trainer(
        model,
        torch.nn.CrossEntropyLoss(),
        optimizer,
        data,
        options=TrainOptions(BATCH, precision=precision),
        devices=devices,
    ) as trainer:
        reports = trainer.fit(EPOCHS + 1)
    shares[f"{devices}, {precision}"] = reports[-1].shares
    return sum(report.seconds for report in reports[1:])


def encoder() -> Any:
    """Return a transformer's encoder."""
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).eval()


def plain_batches(model: Any, records: np.ndarray, size: int) -> float:
    """Return the seconds of a plain loop on the GPU."""
    import torch

    begin_s = time.perf_counter()
    with torch.inference_mode():
        parts = [
            model(torch.from_numpy(records[begin : begin + size]).to(GPU)).cpu().numpy()
            for begin in range(0, len(records), size)
        ]
    assert sum(map(len, parts)) == len(records)
    return time.perf_counter() - begin_s


def batches(ctx: hetero.Context, model: Any, records: np.ndarray) -> float:
    """Return the seconds of a bulk run on a fleet that is up."""
    begin_s = time.perf_counter()
    assert len(ctx.map_batches(model, records).value) == len(records)
    return time.perf_counter() - begin_s


def powers(seed: int) -> float:
    """Multiply a matrix with itself 40 times, on whatever device this is."""
    xp = hetero.tasks.namespace()
    matrix = xp.asarray(np.random.default_rng(seed).random((1536, 1536), dtype=np.float32))
    for _ in range(40):
        matrix = matrix @ matrix
        matrix = matrix / xp.max(matrix)
    return float(matrix[0, 0])


def spin(steps: int) -> int:
    """Count in plain Python, which a GPU does no faster than a CPU."""
    total = 0
    for number in range(steps):
        total += number * number
    return total


def mapped(ctx: hetero.Context, function: Callable[[int], Any], items: Sequence[int]) -> float:
    """Return the seconds of a map on a fleet that is up."""
    begin_s = time.perf_counter()
    assert len(list(ctx.map(function, items))) == len(items)
    return time.perf_counter() - begin_s


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        print("no GPU that torch can use: nothing is measured, and the result of another host stays as it is")
        return
    rounds = 1 if given.quick else 3
    bench = Bench("gpu", "a GPU beside CPUs is never slower than the GPU alone", ("torch",), given.out)
    bench.note(gpu=torch.cuda.get_device_name(0))
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(SAMPLES, 3, 32, 32, generator=generator), torch.randint(0, 10, (SAMPLES,), generator=generator)
    shares: dict[str, dict[str, int]] = {}
    for half in (False, True):
        word = "bf16" if half else "fp32"
        names = [f"plain torch, {word}", f"{GPU}, {word}", f"{BOTH}, {word}"]
        calls = [partial(plain_training, data, half), *(partial(training, data, half, d, shares) for d in (GPU, BOTH))]
        times_s = alternate(dict(zip(names, calls, strict=True)), rounds)
        for name, samples in times_s.items():
            bench.measure(f"training, {EPOCHS} epochs, {name}", samples)
        bench.claim(f"training, {word}: {BOTH}", ratio(times_s[names[2]], times_s[names[1]]), rival=GPU, at_most=1.05)
        bench.claim(f"training, {word}: {GPU}", ratio(times_s[names[1]], times_s[names[0]]), rival="plain torch")
    bench.note(shares=shares)

    records = np.random.default_rng(0).standard_normal((RECORDS, TOKENS, WIDTH), dtype=np.float32)
    model = encoder()
    on_gpu = encoder().to(GPU)
    with ExitStack() as stack:
        alone, both = (stack.enter_context(hetero.Context(devices=devices, history=False)) for devices in (GPU, BOTH))
        times_s = alternate(
            {
                "plain torch": partial(plain_batches, on_gpu, records, 512),
                GPU: partial(batches, alone, model, records),
                BOTH: partial(batches, both, model, records),
            },
            rounds,
        )
        for name, samples in times_s.items():
            bench.measure(f"{RECORDS:,} records, {name}", samples)
        bench.claim(f"records: {BOTH}", ratio(times_s[BOTH], times_s[GPU]), rival=GPU, at_most=1.05)
        bench.claim(f"records: {GPU}", ratio(times_s[GPU], times_s["plain torch"]), rival="plain torch")

    with ExitStack() as stack:
        fleets = {devices: hetero.Context(devices=devices, history=False) for devices in (GPU, "cpu", f"{GPU},cpu")}
        for ctx in fleets.values():
            stack.enter_context(ctx)
        for title, function, items in (
            ("matrix powers", powers, range(96)),
            ("plain Python", spin, [200_000] * 400),
        ):
            kept = fleets if function is spin else {name: ctx for name, ctx in fleets.items() if name != "cpu"}
            times_s = alternate({name: partial(mapped, ctx, function, items) for name, ctx in kept.items()}, rounds)
            for name, samples in times_s.items():
                bench.measure(f"{title}, {name}", samples)
            best = min((name for name in kept if name != f"{GPU},cpu"), key=lambda name: ratio(times_s[name], [1.0]))
            bench.claim(
                f"{title}: {GPU},cpu", ratio(times_s[f"{GPU},cpu"], times_s[best]), rival=f"{best} alone", at_most=1.05
            )
    bench.finish()


if __name__ == "__main__":
    main()
