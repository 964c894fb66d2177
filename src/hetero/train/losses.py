"""Losses as sums: what a loss adds up over a part of a batch, and the weight that its mean divides by.

In: a loss of torch's, or a function. Out: the sum over the samples and its weight, so that parts can be added.
It must not divide: the division comes after the sum over all devices.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from hetero.floor.errors import BadValueError
from hetero.train.compatibility import check_loss

__all__ = ["SummedLoss"]


_APART = {torch.float64: 1e-10, torch.float32: 1e-5}
_ROUGHLY_APART = 0.02

LossSums = tuple[torch.Tensor, torch.Tensor | float, torch.Tensor]
"""The sum of losses, its weight, and the losses one by one."""


class SummedLoss:
    """A loss as a pair of sums.

    Parameters
    ----------
    loss
        A loss module or function with `reduction`, or a function that gives one loss a sample.

    Raises
    ------
    BadValueError
        It cannot be called.

    Notes
    -----
    A loss with reduction 'mean' is Σᵢ lᵢ / W over the global batch, with W as torch has it: the elements, for
    classes those that are not ignored, weighted by class where there are class weights; the samples with reduction
    'batchmean'. With reduction 'sum' there is no division.

    Attributes
    ----------
    source
        The loss as given.
    unreduced
        Gives the losses one by one.
    divides
        Whether the sum is divided by the weight.
    """

    def __init__(self, loss: object) -> None:
        if not callable(loss):
            raise BadValueError(f"{loss!r} is no loss", remedy="give torch.nn.CrossEntropyLoss() or a function")
        check_loss(loss)
        self._by_class = _is_by_class(loss)
        self.source = loss
        reduction, self.unreduced = _unreduced(loss)
        self._reduces = self.unreduced is not loss
        torchs = type(loss).__module__.startswith("torch.") or self._by_class
        self._own_mean = self._reduces and reduction == "mean" and not torchs
        self._by_sample = reduction == "batchmean"
        self.divides = reduction != "sum"

    def as_given(self, output: object, target: object) -> torch.Tensor:
        """Return what the loss itself gives, reduced as it reduces."""
        return self.source(output, target)

    def sums(self, output: object, target: object) -> LossSums:
        """Return the sum of the losses, its weight, and the losses one by one.

        Raises
        ------
        BadValueError
            The loss gives no value per sample.
        """
        losses = self.each(output, target)
        total = losses.sum()
        if self._own_mean and bool((losses.detach() == 0.0).any()):
            self._refuse_left_out(output, target, float(total.detach()), losses)
        return total, self._weight(losses, target), losses

    def _refuse_left_out(self, output: object, target: object, total: float, losses: torch.Tensor) -> None:
        """Refuse a mean that leaves elements out: only the loss itself knows which, and some of these are zero."""
        with torch.no_grad():
            mean = float(self.as_given(output, target))
        away = abs(mean * losses.numel() - total)
        if not away <= _APART.get(losses.dtype, _ROUGHLY_APART) * abs(total) and total - total == 0.0:
            raise BadValueError(
                f"the mean of the loss, {mean:.6g}, is not that of its {losses.numel()} values: it leaves some out",
                remedy="let it return one loss a sample, or give torch's own with ignore_index or weight",
            )

    def each(self, output: object, target: object) -> torch.Tensor:
        """Return the losses one by one; raises BadValueError as `sums` does."""
        losses = self.unreduced(output, target)
        samples = _samples(target)
        if torch.is_tensor(losses) and losses.dim() and self._reduces:
            return losses
        if not torch.is_tensor(losses) or losses.dim() == 0 or losses.shape[0] != samples:
            shape = tuple(losses.shape) if torch.is_tensor(losses) else type(losses).__name__
            raise BadValueError(
                f"the loss gave {shape} for {samples} samples, so it cannot be weighted exactly",
                remedy="let it return one loss a sample, or take a reduction= argument as torch's losses do",
            )
        return losses

    def _weight(self, losses: torch.Tensor, target: torch.Tensor) -> torch.Tensor | float:
        if self._by_sample:
            return float(_samples(target))
        if not self._by_class or target.is_floating_point():
            return float(losses.numel())
        options = _class_options(self.source)
        counted = target != options["ignore_index"]
        weight = options["weight"]
        if weight is None:
            return counted.sum()
        return weight.to(losses.device)[target.masked_fill(~counted, 0)].masked_select(counted).sum()


def _samples(target: object) -> int:
    """Count the samples of targets: a tensor's rows, or those of the first tensor in a tuple or table."""
    if isinstance(target, torch.Tensor):
        return len(target) if target.dim() else 0
    parts = target.values() if isinstance(target, dict) else target if isinstance(target, tuple | list) else ()
    counts = (_samples(part) for part in parts if isinstance(part, torch.Tensor | tuple | list | dict))
    return next((count for count in counts if count), 0) or (len(target) if hasattr(target, "__len__") else 0)


def _is_by_class(loss: object) -> bool:
    if isinstance(loss, torch.nn.CrossEntropyLoss | torch.nn.NLLLoss):
        return True
    plain = loss.func if isinstance(loss, functools.partial) else loss
    return plain in (torch.nn.functional.cross_entropy, torch.nn.functional.nll_loss)


def _class_options(loss: object) -> dict[str, Any]:
    if isinstance(loss, torch.nn.Module):
        return {"ignore_index": loss.ignore_index, "weight": loss.weight}
    given = loss.keywords if isinstance(loss, functools.partial) else {}
    return {"ignore_index": given.get("ignore_index", -100), "weight": given.get("weight")}


def _unreduced(loss: Any) -> tuple[str, Callable[..., torch.Tensor]]:
    """Return how a loss is reduced, and the loss without it."""
    if isinstance(loss, torch.nn.Module) and hasattr(loss, "reduction"):
        each = copy.deepcopy(loss)
        each.reduction = "none"
        return loss.reduction, each
    defaults = _defaults(loss)
    if "reduction" in defaults:
        given = defaults["reduction"]
        return given if isinstance(given, str) else "mean", functools.partial(loss, reduction="none")
    return "mean", loss


def _defaults(function: Any) -> dict[str, object]:
    """Return the parameters of a function with their defaults; those of a partial are what it was given."""
    try:
        return {name: one.default for name, one in inspect.signature(function).parameters.items()}
    except (TypeError, ValueError):
        return {}
