"""What each optimizer step of a training script gave, kept in files: the loss, gradients and values by parameter.

In: a script's optimizers as they step. Out: one file a step, and the end of the process after the last one wanted.
Where it is asked to, it adds to each gradient what rounding may have made of it. It must not compare anything.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hetero.train.launch.shared_loader import Batch

__all__ = ["RecordedRun", "record_steps"]

_TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4}
_ROUGH_TOLERANCE = 0.05


class RecordedRun(Protocol):
    """One process of a script, whose steps are recorded.

    Attributes
    ----------
    is_main
        Whether it is the one that writes them.
    is_rough
        Whether numbers are those of different kinds of device, or computed in half precision.
    loss
        Of the whole batch, in the last backward pass; None where it is not known.
    """

    @property
    def is_main(self) -> bool: ...  # noqa: D102  the attributes above

    @property
    def is_rough(self) -> bool: ...  # noqa: D102

    @property
    def loss(self) -> float | None: ...  # noqa: D102

    def end(self) -> NoReturn:
        """End the process without what the script does at its end."""


def record_steps(wanted: str, run: RecordedRun | None = None) -> None:
    """Record the steps of all optimizers from now on, and end the process after the last one wanted.

    Parameters
    ----------
    wanted
        `LaunchOptions.record`.
    run
        None for a script under plain Python.
    """
    steps, _, folder = wanted.partition(" ")
    _Recorder(int(steps), Path(folder), run or _PlainRun())


class _PlainRun:
    """A script under plain Python, of which the loss is what it gives to torch.

    Attributes
    ----------
    loss
        See `RecordedRun`.
    """

    is_main = True

    def __init__(self) -> None:
        self.loss: float | None = None
        self.is_rough = False
        self._is_within = False
        backward, enter = torch.autograd.backward, torch.autocast.__enter__

        def recorded(tensors: Batch, *args: Batch, **options: Batch) -> None:
            if not self._is_within:
                self.loss = _only_value(tensors)
            before, self._is_within = self._is_within, True
            try:
                backward(tensors, *args, **options)
            finally:
                self._is_within = before

        def entered(context: torch.autocast) -> object:
            self.is_rough |= bool(context._enabled)
            return enter(context)

        torch.autograd.backward = recorded
        torch.autocast.__enter__ = entered

    def end(self) -> NoReturn:
        """See `RecordedRun.end`."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _only_value(tensors: Tensor | Sequence[Tensor]) -> float | None:
    """Return the number that goes backwards, None where there are several."""
    given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    return float(given[0].detach()) if len(given) == 1 and given[0].numel() == 1 else None


class _Recorder:
    """Writes `step-1.npz`, `step-2.npz` and so on into a folder, and first `begun`.

    Notes
    -----
    A file has `gradient-0` and `value-0` of the first parameter of the optimizer that stepped, with its first step
    `initial value-0`, too. Its text `about` is a JSON object: the optimizer's number, its parameters' names, how far
    apart each may be by rounding, the loss. Where the folder has `noise.json`, with a list for each optimizer by its
    number, each gradient is changed before a step, by at most so much; what was there before is recorded.
    """

    def __init__(self, steps: int, folder: Path, run: RecordedRun) -> None:
        self._steps = steps
        self._folder = folder
        self._run = run
        self._done = 0
        self._names: dict[Optimizer, list[str]] = {}
        self._initial: list[Tensor] = []
        self._gradients: list[Tensor | None] = []
        noise = folder / "noise.json"
        self._noise: dict[str, list[float]] = json.loads(noise.read_text()) if noise.exists() else {}
        self._generator = torch.Generator().manual_seed(1)
        if run.is_main:
            (folder / "begun").touch()
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    def _before(self, optimizer: Optimizer, *_: object) -> None:
        self._initial = []
        if self._run.is_main and optimizer not in self._names:
            parameters = _parameters(optimizer)
            self._names[optimizer] = _names(parameters, type(optimizer).__name__)
            self._initial = [each.detach().clone() for each in parameters]
        if self._noise:
            self._disturb(optimizer)

    def _disturb(self, optimizer: Optimizer) -> None:
        """Change gradients as rounding might, with random numbers that the script does not see."""
        parameters = _parameters(optimizer)
        self._gradients = [None if each.grad is None else each.grad.detach().clone() for each in parameters]
        sizes = self._noise.get(str(list(self._names).index(optimizer)), [])
        for gradient, size in zip((each.grad for each in parameters), sizes, strict=False):
            if gradient is not None and gradient.layout == torch.strided and size:
                drawn = torch.rand(gradient.shape, generator=self._generator, dtype=torch.float64) * 2.0 - 1.0
                gradient.add_((drawn * size).to(gradient.device, gradient.dtype))

    def _after(self, optimizer: Optimizer, *_: object) -> None:
        self._done += 1
        if self._run.is_main:
            self._write(optimizer)
        if self._done == self._steps:
            self._run.end()

    def _write(self, optimizer: Optimizer) -> None:
        parameters = _parameters(optimizer)
        names = self._names[optimizer]
        if len(names) != len(parameters):
            names = self._names[optimizer] = _names(parameters, type(optimizer).__name__)
        about = {
            "optimizer": list(self._names).index(optimizer),
            "names": names,
            "tolerances": [_tolerance(each.dtype, rough=self._run.is_rough) for each in parameters],
            "loss": self._run.loss,
        }
        arrays = {f"initial value-{index}": _numbers(each) for index, each in enumerate(self._initial)}
        gradients = self._gradients if self._noise else [each.grad for each in parameters]
        for index, (each, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            arrays[f"gradient-{index}"] = _numbers(torch.zeros_like(each) if gradient is None else gradient)
            arrays[f"value-{index}"] = _numbers(each)
        named: dict[str, Batch] = {"about": np.array(json.dumps(about)), **arrays}
        np.savez(self._folder / f"step-{self._done}.npz", **named)


def _tolerance(dtype: torch.dtype, *, rough: bool) -> float:
    """Return how far numbers may be apart by the order in which they are summed, relative to the largest of them."""
    return _ROUGH_TOLERANCE if rough else _TOLERANCES.get(dtype, _ROUGH_TOLERANCE)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _numbers(tensor: Tensor) -> NDArray[np.generic]:
    """Return what a tensor holds; NumPy has no bfloat16, and numbers of half precision fit into 32 bits."""
    host = tensor.detach().to("cpu")
    host = host.to_dense() if host.layout != torch.strided else host
    host = torch.view_as_real(host.resolve_conj()) if host.is_complex() else host
    found = host if host.dtype in (torch.float32, torch.float64) else host.float()
    return np.asarray(found.numpy())


def _names(parameters: Sequence[Tensor], optimizer: str) -> list[str]:
    """Return the names of parameters in the outermost modules that have them, else their places in the optimizer."""
    wanted = {id(each): -1 for each in parameters}
    found: dict[int, str] = {}
    for module in [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]:
        with suppress(AttributeError):  # one that is being made
            for name, parameter in module.named_parameters(remove_duplicate=False):
                depth = name.count(".")
                if depth > wanted.get(id(parameter), depth):
                    wanted[id(parameter)], found[id(parameter)] = depth, f"{type(module).__name__}.{name}"
    return [found.get(id(each), f"{optimizer} parameter {index}") for index, each in enumerate(parameters)]
