"""Gradients as one row of numbers that the members add up, with a header that proves what took part.

In: the parameters of a model. Out: sums over the group, in floating point or as integers whose sum has no order.
It must not divide or step: it adds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from hetero.comm.group import Group

__all__ = ["BitwiseGradients", "Gradients"]

_BITS = 40
_LIMIT = 2.0**54
_HEADER_UNIT = 2.0**20


class Gradients:
    """The gradients of a model in flat buffers, one per dtype, that autograd adds to in place.

    Parameters
    ----------
    parameters : those that are trained
    header : numbers that ride along

    Attributes
    ----------
    parameters : as given
    """

    def __init__(self, parameters: Sequence[Any], header: int) -> None:
        self.parameters = list(parameters)
        self._header = header
        self._flat: dict[Any, Any] = {}
        self._views: list[Any] = []
        self._used: list[bool] = [False] * len(self.parameters)
        by_dtype: dict[Any, list[int]] = {}
        for index, parameter in enumerate(self.parameters):
            by_dtype.setdefault(parameter.dtype, []).append(index)
        self._carrier = next((kind for kind in by_dtype if kind in (torch.float32, torch.float64)), None)
        views: dict[int, Any] = {}
        for kind, indices in by_dtype.items():
            views |= self._lay(kind, indices)
        if self._carrier is None:
            self._carrier = torch.float64
            self._flat[self._carrier] = torch.zeros(self._extra, dtype=torch.float64)
        self._views = [views[index] for index in range(len(self.parameters))]
        for index, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(self._mark(index))

    @property
    def _extra(self) -> int:
        return self._header + len(self.parameters)

    @property
    def nbytes(self) -> int:
        """Bytes that a member sends and receives a step, before the algorithm's own factor."""
        return sum(flat.nbytes for flat in self._flat.values())

    def _lay(self, kind: Any, indices: list[int]) -> dict[int, Any]:
        sizes = [self.parameters[index].numel() for index in indices]
        extra = self._extra if kind is self._carrier else 0
        flat = torch.zeros(sum(sizes) + extra, dtype=kind, device=self.parameters[indices[0]].device)
        self._flat[kind] = flat
        pieces = torch.split(flat[: sum(sizes)], sizes)
        return {index: piece.view_as(self.parameters[index]) for index, piece in zip(indices, pieces, strict=True)}

    def _mark(self, index: int) -> Any:
        def mark(_: Any) -> None:
            self._used[index] = True

        return mark

    def begin(self) -> None:
        """Set all gradients to zero, where autograd will add to them."""
        for flat in self._flat.values():
            flat.zero_()
        self._used = [False] * len(self.parameters)
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.grad = view

    def take(self) -> None:
        """Take in what a backward pass has added; here it is already where it belongs."""

    def reduce(self, group: Group, header: Sequence[float]) -> list[float]:
        """Add up over the group; gives the summed header.

        A parameter that no member used has no gradient afterwards, as in a plain loop.
        """
        carrier = self._flat[self._carrier]
        begin = len(carrier) - self._extra
        carrier[begin:] = torch.tensor([*header, *map(float, self._used)], dtype=carrier.dtype)
        for flat in self._flat.values():
            _add_up(group, flat)
        total: list[float] = carrier[begin:].tolist()
        self._drop_unused(total[self._header :])
        return total[: self._header]

    def _drop_unused(self, used: Sequence[float]) -> None:
        for parameter, count in zip(self.parameters, used, strict=True):
            if not count:
                parameter.grad = None

    def scale(self, factor: float) -> None:
        """Multiply all gradients."""
        if factor != 1.0:
            for flat in self._flat.values():
                flat.mul_(factor)

    def finite(self) -> bool:
        """Tell whether every gradient is a number."""
        return all(bool(torch.isfinite(view).all()) for view in self._views)


class BitwiseGradients(Gradients):
    """Gradients whose sum is the same bits whatever the order: integers of one scale per tensor.

    Notes
    -----
    The gradient g of each fixed micro-batch becomes round(g·2ᵏ) as int64, with k = 40 − e, where 2ᵉ bounds the
    largest entry of this tensor's last sum. Sums of integers have no order. 40 bits are kept below that entry, and
    there are 14 bits above it for growth from step to step; beyond them the step is refused.
    """

    def __init__(self, parameters: Sequence[Any], header: int) -> None:
        super().__init__(parameters, header)
        self.exponents = [0] * len(self.parameters)
        self._total = torch.zeros(sum(p.numel() for p in self.parameters) + self._extra, dtype=torch.int64)
        self.overflowed = False

    @property
    def nbytes(self) -> int:
        """Bytes that a member sends and receives a step, before the algorithm's own factor."""
        return int(self._total.nbytes)

    def begin(self) -> None:
        """Set all gradients and sums to zero."""
        super().begin()
        self._total.zero_()
        self.overflowed = False

    def take(self) -> None:
        """Add the gradients of one micro-batch to the integers, and set them to zero."""
        place = 0
        for view, exponent in zip(self._views, self.exponents, strict=True):
            scaled = (view.to(torch.float64) * math.ldexp(1.0, _BITS - exponent)).reshape(-1).cpu()
            if not bool((scaled.abs() < _LIMIT).all()):
                self.overflowed = True
            self._total[place : place + scaled.numel()] += scaled.round_().nan_to_num_(0.0, 0.0, 0.0).to(torch.int64)
            place += scaled.numel()
        for flat in self._flat.values():
            flat.zero_()

    def reduce(self, group: Group, header: Sequence[float]) -> list[float]:
        """Add up over the group; gives the summed header."""
        begin = len(self._total) - self._extra
        numbers = [*(_whole(value * _HEADER_UNIT) for value in header), *map(int, self._used)]
        self._total[begin:] = torch.tensor(numbers, dtype=torch.int64)
        group.all_reduce(self._total)
        total = self._total[begin:].tolist()
        self._give_back()
        self._drop_unused(total[self._header :])
        return [value / _HEADER_UNIT for value in total[: self._header]]

    def _give_back(self) -> None:
        place = 0
        for index, view in enumerate(self._views):
            whole = self._total[place : place + view.numel()].to(torch.float64)
            place += view.numel()
            real = whole * math.ldexp(1.0, self.exponents[index] - _BITS)
            view.copy_(real.reshape(view.shape))
            largest = float(real.abs().max()) if real.numel() else 0.0
            if largest > 0.0:
                self.exponents[index] = math.frexp(largest)[1]


def _whole(value: float) -> int:
    return round(value) if math.isfinite(value) else 0


def _add_up(group: Group, flat: Any) -> None:
    if flat.device.type == "cpu":
        group.all_reduce(flat)
        return
    host = flat.cpu()
    group.all_reduce(host)
    flat.copy_(host)
