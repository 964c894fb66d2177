"""Gradients of the user's own loop as rows of numbers: added up over processes, compared with those of a whole batch.

In: parameters whose gradients one process has computed. Out: the sums of all processes, where they differ, hooks run.
It must not run a backward pass or weight one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetero.comm.group import Group

__all__ = ["FirstSteps", "GradientRow", "Held", "ParameterRows", "hooks_held", "run_hooks"]

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3}
_ROUGH_TOLERANCE = 0.05
_LEAST = 1e-30
_ROOM = 96


class GradientRow(NamedTuple):
    """What travels of the parameters of one dtype: their indices, the numbers, and a view for each parameter.

    Attributes
    ----------
    buffer
        The numbers, and room for a header behind them.
    """

    indices: list[int]
    numbers: Tensor
    views: list[Tensor]
    buffer: Tensor

    def added_up(self, group: Group, header: NDArray[np.float64]) -> NDArray[np.float64]:
        """Replace the numbers by their sums over a group; returns the sums of a header that travels with them."""
        end = len(self.numbers)
        if len(self.buffer) < end + len(header):  # there are more processes, or parameters, than room was made for
            buffer = torch.cat([self.numbers, torch.from_numpy(header).to(self.numbers)])
            group.all_reduce(buffer)
            self.numbers.copy_(buffer[:end])
            return np.asarray(buffer[end:].double().numpy())
        self.buffer[end:].zero_()
        self.buffer[end : end + len(header)] = torch.from_numpy(header)
        group.all_reduce(self.buffer)
        return np.asarray(self.buffer[end : end + len(header)].double().numpy())


@dataclass(slots=True, eq=False)
class ParameterRows:
    """The parameters of one model, or of an optimizer that has some of its own; their gradients travel together.

    Attributes
    ----------
    label
        Name of the model's class.
    names, parameters
        Of each.
    """

    label: str
    names: list[str]
    parameters: list[Tensor]
    _rows: dict[torch.dtype, GradientRow] = field(default_factory=dict)

    @property
    def has_gradients(self) -> bool:
        """Return whether a backward pass has come to one of them."""
        return any(each.grad is not None for each in self.parameters)

    @property
    def dtypes(self) -> list[torch.dtype]:
        """Those of the parameters that are trained."""
        return list(dict.fromkeys(each.dtype for each in self.parameters if each.requires_grad))

    def row(self, dtype: torch.dtype) -> GradientRow:
        """Return the row of a dtype; made anew where other parameters are trained than before."""
        indices = [index for index, each in enumerate(self.parameters) if each.dtype == dtype and each.requires_grad]
        if dtype not in self._rows or self._rows[dtype].indices != indices:
            kind = torch.float64 if dtype == torch.float64 else torch.float32
            size = sum(self.parameters[index].numel() for index in indices)
            buffer = torch.zeros(size + len(self.parameters) + _ROOM, dtype=kind)
            flat = buffer[:size]
            views, begin = [], 0
            for index in indices:
                like = self.parameters[index]
                views.append(flat[begin : begin + like.numel()].view(like.shape))
                begin += like.numel()
            self._rows[dtype] = GradientRow(indices, flat, views, buffer)
        return self._rows[dtype]

    def take(self, dtype: torch.dtype) -> GradientRow:
        """Copy the gradients of a dtype into their row; zeros where there is none."""
        row = self.row(dtype)
        there = [number for number, index in enumerate(row.indices) if self.parameters[index].grad is not None]
        if len(there) < len(row.indices):
            row.numbers.zero_()
        if there:
            gradients = [_dense(self.parameters[row.indices[number]].grad) for number in there]
            torch._foreach_copy_([row.views[number] for number in there], gradients)
        return row

    def give(self, row: GradientRow, used: Sequence[bool], factor: float = 1.0) -> None:
        """Copy a row, multiplied by a factor, back into the gradients; a parameter that no process used has none."""
        if factor != 1.0:
            row.numbers.mul_(factor)
        copied = []
        for number, index in enumerate(row.indices):
            parameter = self.parameters[index]
            if not used[index]:
                parameter.grad = None
            elif parameter.grad is None or parameter.grad.is_sparse:
                parameter.grad = row.views[number].to(parameter.device, parameter.dtype, copy=True)
            else:
                copied.append(number)
        if copied:
            gradients = [self.parameters[row.indices[number]].grad for number in copied]
            torch._foreach_copy_(gradients, [row.views[number] for number in copied])


def _dense(gradient: Tensor) -> Tensor:
    found = gradient.detach()
    return found.to_dense() if found.is_sparse else found


class FirstSteps:
    """The comparison of the first steps: gradients of the parts' sum against those of the whole batch.

    Parameters
    ----------
    group
        Of all members and, as the last one, the process that computes whole batches.
    rough
        Whether the numbers are those of different kinds of device, or of half precision; may be set later.

    Attributes
    ----------
    is_over
        Whether nothing is compared any more.
    drawn
        What tells the state of the random numbers where the whole batch was computed, in the pass compared last.
    """

    def __init__(self, group: Group, *, rough: bool) -> None:
        self._group = group
        self.rough = rough
        self._whole: list[tuple[ParameterRows, torch.dtype, Tensor]] | None = None
        self._sizes: dict[ParameterRows, float] = {}
        self.is_over = group.world_size == 1
        self.drawn = 0.0

    def show(self, touched: Sequence[ParameterRows], drawn: float) -> None:
        """Show the members the gradients of the whole batch, and what tells the state of the random numbers."""
        self._group.broadcast(torch.tensor([drawn], dtype=torch.float64), self._group.world_size - 1)
        for each in touched:
            for dtype in each.dtypes:
                self._group.broadcast(each.take(dtype).numbers, self._group.world_size - 1)

    def compare(self, touched: Sequence[ParameterRows], *, last: bool) -> str:
        """Return where the members' sums differ from the whole batch's gradients, '' where they do not.

        Parameters
        ----------
        last
            Whether no other weights will be tried for this pass.
        """
        if self._whole is None:
            state = torch.zeros(1, dtype=torch.float64)
            self._group.broadcast(state, self._group.world_size - 1)
            self.drawn, self._whole = float(state), []
            for each in touched:
                for dtype in each.dtypes:
                    whole = torch.empty_like(each.row(dtype).numbers)
                    self._group.broadcast(whole, self._group.world_size - 1)
                    self._whole.append((each, dtype, whole))
        worst, where = 0.0, ""
        for each, dtype, whole in self._whole:
            apart = self._apart(each, dtype, whole)
            if not apart <= self._limit(dtype) and not apart <= worst:
                worst, where = apart, f"{each.label}, {_furthest(each, each.row(dtype), whole)}"
        if not where or last:
            self._whole = None
        return f"{where} ({worst:.2g} of the whole gradient)" if where else ""

    def _apart(self, each: ParameterRows, dtype: torch.dtype, whole: Tensor) -> float:
        """Return the difference, relative to the largest gradient so far: near a minimum all of one is rounding.

        Where both have overflown, as a `GradScaler` lets them at first, they are alike.
        """
        norm = torch.linalg.vector_norm
        numbers = each.row(dtype).numbers
        sizes = float(norm(whole)), float(norm(numbers))
        if not any(map(math.isfinite, sizes)):
            return 0.0
        self._sizes[each] = max(self._sizes.get(each, _LEAST), *filter(math.isfinite, sizes))
        return float(norm(whole - numbers)) / self._sizes[each]

    def _limit(self, dtype: torch.dtype) -> float:
        limit = _TOLERANCES.get(dtype, _ROUGH_TOLERANCE)
        return max(limit, _ROUGH_TOLERANCE) if self.rough else limit


def _furthest(each: ParameterRows, row: GradientRow, whole: Tensor) -> str:
    """Return the name of the parameter whose gradients are furthest apart."""
    begin, found = 0, []
    for view, index in zip(row.views, row.indices, strict=True):
        other = whole[begin : begin + view.numel()].view(view.shape)
        found.append((float(torch.linalg.vector_norm(other - view)), each.names[index]))
        begin += view.numel()
    return max(found)[1]


_Hooks = dict[int, Callable[[Tensor], Tensor | None]]

Held = list[tuple[Tensor, _Hooks, _Hooks]]
"""Parameters with the hooks that ran before and after their gradients were kept."""


@contextmanager
def hooks_held(managed: Sequence[ParameterRows]) -> Iterator[Held]:
    """Take the hooks of parameters off while parts of a batch are computed; `run_hooks` has them see the whole."""
    held: Held = []
    for each in managed:
        for parameter in each.parameters:
            before, after = parameter._backward_hooks, getattr(parameter, "_post_accumulate_grad_hooks", None)
            if before or after:
                held.append((parameter, dict(before or {}), dict(after or {})))
                for hooks in (before, after):
                    if hooks:
                        hooks.clear()
    try:
        yield held
    finally:
        for parameter, before, after in held:
            if before:
                parameter._backward_hooks.update(before)
            if after:
                parameter._post_accumulate_grad_hooks.update(after)


def run_hooks(held: Held) -> None:
    """Call the hooks of parameters with their gradients, as autograd would have."""
    for parameter, before, after in held:
        if parameter.grad is None:
            continue
        for hook in before.values():
            found = hook(parameter.grad)
            if found is not None:
                parameter.grad = found.detach()
        for hook in after.values():
            hook(parameter)
