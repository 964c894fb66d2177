"""What a training step takes of memory, foretold without computing: how right, and how much quicker than a real step.

The real bytes are the largest sum that torch's CPU allocator had out during a step that is not the first one. Its
seconds are those of two steps, the least that shows the state of the optimizer, with the model made for them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

import hetero
from benchmarks.common import Bench, alternate, arguments


class Case(NamedTuple):
    """A model, and a batch for it."""

    make: Callable[[], Any]
    inputs: Any
    targets: Any


def transformer() -> Any:
    """Make six layers of a width of 256."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 6), nn.Flatten(), nn.Linear(64 * 256, 10))


def convolutions() -> Any:
    """Make four convolutions with norms of groups."""
    widths = (3, 32, 64, 128, 256)
    layers = [part for a, b in pairwise(widths) for part in (nn.Conv2d(a, b, 3, 2, 1), nn.GroupNorm(8, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 4 * 4, 10))


def dense() -> Any:
    """Make four wide layers."""
    widths = (512, 2048, 2048, 2048)
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(2048, 10))


def cases(samples: int) -> dict[str, Case]:
    """Return the models that are looked at."""
    targets = torch.randint(0, 10, (samples,))
    return {
        "transformer": Case(transformer, torch.randn(samples, 64, 256), targets),
        "convolutions": Case(convolutions, torch.randn(samples, 3, 64, 64), targets),
        "dense": Case(dense, torch.randn(samples, 512), targets),
    }


def foretold(case: Case) -> int:
    """Return the bytes by `hetero.plan.footprint`."""
    batch = (case.inputs, case.targets)
    return hetero.plan.footprint(case.make(), nn.CrossEntropyLoss(), torch.optim.Adam, batch).total_bytes


def two_steps(case: Case) -> tuple[Any, Any]:
    """Do two real steps."""
    model = case.make()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(model(case.inputs), case.targets).backward()
        optimizer.step()
    return model, optimizer


def real(case: Case) -> int:
    """Return the bytes of a third step by torch's own record of its allocations."""
    model, optimizer = two_steps(case)
    states = [value for state in optimizer.state.values() for value in state.values()]
    held = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters()), *states]
    now = peak = sum(tensor.nbytes for tensor in (*held, case.inputs, case.targets))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(model(case.inputs), case.targets).backward()
        optimizer.step()
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return int(peak)


def timed(function: Callable[[Case], Any], case: Case) -> Callable[[], float]:
    """Return what measures the seconds of a call."""

    def seconds() -> float:
        begin_s = time.perf_counter()
        function(case)
        return time.perf_counter() - begin_s

    return seconds


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    rounds, samples = (1, 16) if given.quick else (7, 128)
    bench = Bench("footprint", "memory of a training step, foretold and real", ("torch",), given.out)
    errors: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for name, case in cases(samples).items():
        errors[name] = real(case) / foretold(case) - 1
        times_s = alternate({"foretold": timed(foretold, case), "real": timed(two_steps, case)}, rounds)
        for which, seconds in times_s.items():
            bench.measure(f"{name}, {which}", seconds)
        each = sorted(mine / theirs for mine, theirs in zip(times_s["foretold"], times_s["real"], strict=True))
        ratios[name] = each[len(each) // 2]
    for name, error in errors.items():
        aim = None if name == "convolutions" else 2.0
        bench.claim(f"bytes beyond the foretold, {name}", 100 * error, unit="%", rival="torch's allocator", at_most=aim)
    for name, ratio in ratios.items():
        bench.claim(f"seconds, {name}", ratio, rival="two real steps")
    bench.note(samples=samples, no_aim="what the library rearranges for convolutions is not foretold")
    bench.finish()


if __name__ == "__main__":
    main()
