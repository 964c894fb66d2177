"""How fast models are on each device: all of them in turn on the same device, so that a disturbance hits all.

In: models, samples, a fleet. Out: samples/s by device. It must not change a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import cloudpickle

from hetero.drive.frame import Frame, current
from hetero.floor import clock
from hetero.floor.errors import BadValueError
from hetero.session.tasks import task
from hetero.train.bulk_inference import quietly

if TYPE_CHECKING:
    from hetero.session.context import Context

__all__ = ["measure_here", "measure_speeds"]

_PASS = 256
_SAMPLES = 1024
_BUDGET_S = 0.5
_LEAST_ROUNDS = 3


def measure_speeds(ctx: Context, models: Sequence[Any], test: Any) -> list[dict[str, float]]:
    """Measure models on every device that torch knows, one device after the other.

    Returns
    -------
    list of dict
        For each model its samples/s by device; empty where there is no test data.

    Raises
    ------
    BadValueError
        The inputs are no array.
    """
    found: list[dict[str, float]] = [{} for _ in models]
    if test is None:
        return found
    from hetero.train.data import as_samples
    from hetero.train.trainer import can_train

    samples = as_samples(test, "test")
    some = samples.batch(range(min(len(samples), _SAMPLES)), 0, 0)[0]
    if not hasattr(some, "numpy"):
        raise BadValueError(f"test: inputs of {type(some).__name__} cannot be cut", remedy="give inputs as one array")
    inputs = ctx.put(some.numpy())
    parts = ctx.put(tuple(cloudpickle.dumps(model) for model in models))
    for device in filter(can_train, ctx.devices):
        speeds = ctx.submit(task(measure_here, on=(device.id,), name="measure"), parts, inputs).result()
        for known, speed in zip(found, speeds, strict=True):
            known[device.short] = speed
    return found


def measure_here(parts: Sequence[bytes], inputs: Any) -> list[float]:
    """Return the samples/s of each model on this device; runs as a task.

    Parameters
    ----------
    parts : pickled models
    inputs : array, first dimension the samples
    """
    import torch

    from hetero.train.probe import torch_place

    frame = current()
    assert frame is not None, "it runs as a task"
    place = torch_place(frame.device)
    with quietly():
        models = [cloudpickle.loads(part).to(place).eval() for part in parts]
    batch = torch.from_numpy(inputs).to(place)
    took_s: list[list[float]] = [[] for _ in models]
    with torch.no_grad(), frame.backend.activate():
        for model in models:
            _pass_s(model, batch, frame)
        begun_s = clock.monotonic_s()
        while len(took_s[0]) < _LEAST_ROUNDS or clock.monotonic_s() - begun_s < _BUDGET_S:
            for model, known_s in zip(models, took_s, strict=True):
                known_s.append(_pass_s(model, batch, frame))
    return [len(batch) / median(known_s) for known_s in took_s]


def _pass_s(model: Any, batch: Any, frame: Frame) -> float:
    """Return the seconds of one pass over a batch.

    Notes
    -----
    A throttled device sleeps after the task for (1/f − 1) × its CPU time; that belongs to its speed.
    """
    begun_s, cpu_s = clock.monotonic_s(), clock.thread_cpu_s()
    for piece in batch.split(_PASS):
        model(piece)
    frame.backend.synchronize()
    idle_per_cpu_s = 1.0 / frame.device.throttle_frac - 1.0
    return clock.monotonic_s() - begun_s + idle_per_cpu_s * (clock.thread_cpu_s() - cpu_s)
