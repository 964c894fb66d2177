"""What processes of `hetero launch` have alike while they train, in a few numbers, and what it means if they differ.

In: random numbers, settings, weights and batches of one process. Out: numbers that travel with gradients, or an error.
It must not talk to the others.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from zlib import crc32

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from hetero.floor.errors import BadValueError
from hetero.train.launch.draw_log import Drawn
from hetero.train.launch.parameter_rows import ParameterRows
from hetero.train.launch.shared_loader import Batch, map_tensors

__all__ = ["checksum", "drawn", "draws_refused", "of_process", "taken_for_rows", "trouble"]

_SETTINGS = ("lr", "momentum", "weight_decay", "eps")
_CHECKED_VALUES = 4096
_BITS = 0xFFFFFF  # that travel with gradients of float32, unchanged
_WEIGHTS_EVERY = 8
_WEIGHTS_APART = 1e-3


def of_process(
    given: int, optimizers: Sequence[Optimizer], managed: Sequence[ParameterRows], number: int
) -> tuple[float, float, float, float]:
    """Return what tells the state of a process: its random numbers, batch, settings and some weights.

    Parameters
    ----------
    given
        Checksum of what the script split.
    number
        Of the backward pass; another parameter is told each time, and at most passes none, nor NumPy's and Python's
        generators.
    """
    some = drawn() if not number % _WEIGHTS_EVERY else float(crc32(torch.get_rng_state().numpy()) & _BITS)
    return some, float(given & _BITS), float(_settings(optimizers) & _BITS), _some_weights(managed, number)


def trouble(
    drawn: Sequence[float], given: Sequence[float], settings: Sequence[float], weights: Sequence[float]
) -> BadValueError | None:
    """Return what is wrong where processes have come apart, from the numbers of all of them.

    Examples
    --------
    >>> trouble([1.0, 1.0], [0.0, 0.0], [7.0, 7.0], [2.5, 2.5])
    >>> trouble([1.0, 1.0], [3.0, 4.0], [7.0, 7.0], [2.5, 2.5]).problem
    'fleet.split was given different batches by the processes'
    """
    if len(set(drawn)) > 1:
        return draws_refused()
    if len(set(given)) > 1:
        return BadValueError(
            "fleet.split was given different batches by the processes",
            remedy="make the batch alike in all of them, with random numbers that all draw",
        )
    if len(set(settings)) > 1:
        return BadValueError(
            "the settings of an optimizer, such as its learning rate, differ between the processes",
            remedy="give a scheduler what all processes know alike, as fleet.sum(loss) of an evaluation",
        )
    if max(weights) - min(weights) > _WEIGHTS_APART * max(weights):
        return BadValueError(
            "the weights of the processes have come apart: something changes them in one process only, or by its own "
            "part of a batch",
            remedy="change them in all processes alike, by what fleet.sum or fleet.gather returns",
        )
    return None


def draws_refused(first: Drawn | None = None) -> BadValueError:
    """Return the error that says that processes draw different random numbers.

    Parameters
    ----------
    first
        The first draw of this process that another one has not drawn alike, where it is known.
    """
    known = "" if first is None else f"; the first that differs: {first.words}"
    return BadValueError(
        "the processes have drawn different random numbers: a part of the script that draws runs in one process only, "
        "as an evaluation under fleet.is_main, or something draws for each sample of its part in a way that cannot be "
        f"cut to the rows of a batch, as random.random() for each{known}",
        remedy="run it in all processes and print in the main one, draw with torch.rand, torch.randn or "
        "torch.nn.functional.dropout, or start with --no-strict",
    )


def taken_for_rows(drawn: Drawn) -> BadValueError:
    """Return the error that says that what is drawn has as many entries as there are own rows by chance."""
    return BadValueError(
        f"{drawn.words} has as many entries as this process has rows of the batch, or a multiple of them, but they are "
        "none, as another process has drawn as many",
        remedy="give another batch size or --shares, or draw it before the loop",
    )


def drawn() -> float:
    """Return a number that tells the states of torch's, NumPy's and Python's generators."""
    numpys: Batch = np.random.get_state()
    _, pythons, spare = random.getstate()
    others = hash((numpys[2], pythons, spare or 0.0)) & 0xFFFFFFFF  # of numbers: the same in all processes
    found = crc32(torch.get_rng_state().numpy(), crc32(numpys[1], others))
    return float(found & _BITS)


def checksum(batch: Batch) -> int:
    """Return a number that tells a batch by some values of its tensors and arrays.

    Examples
    --------
    >>> checksum({"x": torch.zeros(3)}) == checksum({"x": torch.zeros(3)}) != checksum({"x": torch.ones(3)})
    True
    """
    found = [0]

    def add(part: Tensor) -> Tensor:
        flat = torch.as_tensor(part).detach().reshape(-1)
        some = flat[:: max(1, len(flat) // _CHECKED_VALUES)].to("cpu")
        found[0] = crc32(some.contiguous().view(torch.uint8).numpy(), found[0])
        return part

    map_tensors(add, batch)
    return found[0]


def _settings(optimizers: Sequence[Optimizer]) -> int:
    found = 0
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            numbers = [float(group[name]) for name in _SETTINGS if isinstance(group.get(name), float | Tensor)]
            found = crc32(np.array(numbers).tobytes(), found)
    return found


def _some_weights(managed: Sequence[ParameterRows], number: int) -> float:
    """Return the norm of one parameter."""
    parameters = [one for each in managed for one in each.parameters if one.requires_grad]
    if not parameters or number % _WEIGHTS_EVERY:
        return 0.0
    some = parameters[(number // _WEIGHTS_EVERY) % len(parameters)]
    return float(torch.linalg.vector_norm(some.detach().float(), dtype=torch.float64))
