"""Gradients of the user's own loop as rows of numbers: added up over processes, compared with those of a whole batch.

In: parameters whose gradients one process has computed. Out: the sums of all processes, where they differ, hooks run.
It must not run a backward pass or weight one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetero.comm.group import Group, shared_row
from hetero.comm.shared_memory import SharedRow
from hetero.floor.contexts import transparent

__all__ = ["FirstSteps", "GradientRow", "Held", "ParameterRows", "add_up", "hooks_held", "run_hooks"]

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3}
_ROUGH_TOLERANCE = 0.05
_LEAST = 1e-30
_BUFFERS_CLOSER = 0.1
"""How much closer buffers must be than gradients: they are compared before a step has made anything of rounding."""
_LEAST_BUFFER = 1e-2
"""Norm of a buffer below which differences are not relative to it: a mean of what is centred is rounding."""
_ROOM = 128
_PART_BYTES = 32 << 20
"""Of gradients that travel together, those of all processes: three times that fits into what they share."""


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
    _parts: tuple[list[int], int, list[_GradientPart]] | None = None

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

    def parts(self, members: int) -> list[_GradientPart]:
        """Return what travels together through memory that so many members share.

        It is made anew where other parameters are trained, or by other members.
        """
        indices = [index for index, each in enumerate(self.parameters) if each.requires_grad]
        if self._parts is None or self._parts[:2] != (indices, members):
            cut = _cut(indices, self.parameters, _PART_BYTES // members)
            self._parts = indices, members, [_GradientPart(chosen, self.parameters) for chosen in cut]
        return self._parts[2]

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


def add_up(
    touched: Sequence[ParameterRows],
    group: Group,
    header: NDArray[np.float64],
    hear: Callable[[NDArray[np.float64]], float],
    *,
    whole_rows: bool,
) -> None:
    """Replace gradients by their sums over a group; those that no process has stay None.

    Parameters
    ----------
    touched
        Those to which a backward pass has come; the same in all processes.
    header
        Numbers that travel with the gradients.
    hear
        Called with the sums of the header, before a gradient is changed; returns what all sums are multiplied by.
    whole_rows
        Whether the sums shall lie in the rows afterwards, as `FirstSteps` needs them.

    Notes
    -----
    Between processes of one host the gradients are written once, into memory that they share, in parts of 16 MiB
    between two processes, of less between more: each part takes words of its own. One is read while the next is there
    already. What has no room in it travels in rows as long as the gradients.
    """
    used = [float(one.grad is not None) for each in touched for one in each.parameters]
    numbers = np.array([*header, *used])
    if not whole_rows and touched and _add_up_in_parts(touched, group, numbers, len(header), hear):
        return
    rows = [each.take(dtype) for each in touched for dtype in each.dtypes]
    if rows:
        numbers = rows[0].added_up(group, numbers)
        for row in rows[1:]:
            group.all_reduce(row.numbers)
    else:
        group.all_reduce(numbers)
    factor, flags = hear(numbers[: len(header)]), iter((numbers[len(header) :] > 0.0).tolist())
    taken = iter(rows)
    for each in touched:
        flagged = [next(flags) for _ in each.parameters]
        for _ in each.dtypes:
            each.give(next(taken), flagged, factor)


def _add_up_in_parts(
    touched: Sequence[ParameterRows],
    group: Group,
    header: NDArray[np.float64],
    told: int,
    hear: Callable[[NDArray[np.float64]], float],
) -> bool:
    """Do as `add_up` in memory that all share; False where the first part has no room there."""
    factor, flags = 1.0, list[bool]()
    under_way: deque[tuple[_GradientPart, int, SharedRow]] = deque()

    def finish() -> None:
        part, begin, row = under_way.popleft()
        part.give(row, group.rank, flags[begin:], factor)
        row.release()

    offset, is_first = 0, True
    for each in touched:
        for part in each.parts(group.world_size):
            row = part.send(group, header if is_first else header[:0])
            if is_first:
                if row is None:
                    return False
                numbers = part.header(row)
                factor, flags = hear(numbers[:told]), (numbers[told:] > 0.0).tolist()
                is_first = False
            if row is None:
                while under_way:
                    finish()
                part.add_up(group, flags[offset:], factor)
                continue
            under_way.append((part, offset, row))
            if len(under_way) > 1:
                finish()
        offset += len(each.parameters)
    while under_way:
        finish()
    return True


def _cut(indices: Sequence[int], parameters: Sequence[Tensor], most_bytes: int) -> Iterator[list[int]]:
    """Cut parameters into parts of one dtype each, of so many bytes at most or of one parameter."""
    for dtype in dict.fromkeys(parameters[index].dtype for index in indices):
        chosen: list[int] = []
        for index in (each for each in indices if parameters[each].dtype == dtype):
            if chosen and sum(parameters[each].nbytes for each in (*chosen, index)) > most_bytes:
                yield chosen
                chosen = []
            chosen.append(index)
        yield chosen


class _GradientPart:
    """Gradients of one dtype that travel together through shared memory.

    Parameters
    ----------
    indices
        Of the parameters, among those of their model.
    parameters
        All of the model's.
    """

    def __init__(self, indices: Sequence[int], parameters: Sequence[Tensor]) -> None:
        self.indices = indices
        self.parameters = [parameters[index] for index in indices]
        self._kind = torch.float64 if self.parameters[0].dtype == torch.float64 else torch.float32
        self._size = sum(each.numel() for each in self.parameters)
        self._like = torch.empty(self._size, dtype=self._kind)

    def send(self, group: Group, header: NDArray[np.float64]) -> SharedRow | None:
        """Show the others the gradients of this process, and a header behind them; None where there is no room."""
        if len(self._like) != self._size + len(header):
            self._like = torch.empty(self._size + len(header), dtype=self._kind)
        row = shared_row(group, self._like)
        if row is not None:
            flat = self._numbers(row.mine)
            self._fill(flat)
            flat[self._size :] = torch.from_numpy(header)
            row.send()
        return row

    def _fill(self, flat: Tensor) -> None:
        """Copy the gradients; zeros where there is none."""
        there = [(view, one.grad) for view, one in zip(self._views(flat), self.parameters, strict=True)]
        gradients = [_dense(gradient) for _, gradient in there if gradient is not None]
        if len(gradients) < len(there):
            flat[: self._size].zero_()
        if gradients:
            torch._foreach_copy_([view for view, gradient in there if gradient is not None], gradients)

    def _numbers(self, data: memoryview) -> Tensor:
        return torch.frombuffer(data, dtype=self._kind)

    def _views(self, flat: Tensor) -> Sequence[Tensor]:
        found: Sequence[Tensor] = torch._utils._unflatten_dense_tensors(flat, self.parameters)
        return found

    def header(self, row: SharedRow) -> NDArray[np.float64]:
        """Return the sum of the headers of all processes."""
        return np.asarray(self._total(row, self._size).double().numpy())

    def _total(self, row: SharedRow, begin: int = 0) -> Tensor:
        """Return the sum of the rows of all processes from a number on; two processes add up for themselves."""
        rows = row.meet()
        if len(rows) > 2:
            return self._numbers(row.total())[begin:]
        return self._numbers(rows[0])[begin:] + self._numbers(rows[1])[begin:]

    def give(self, row: SharedRow, rank: int, used: Sequence[bool], factor: float) -> None:
        """Replace the gradients by the sums over all processes; a parameter that no process used has none."""
        rows = row.meet()
        pairs = [(one.grad, bool(used[index])) for one, index in zip(self.parameters, self.indices, strict=True)]
        plain = all(self._is_plain(gradient) if is_used else gradient is None for gradient, is_used in pairs)
        if len(rows) > 2 or not plain:
            self._set(self._total(row), used, factor)
        else:  # what the other process has is added to the own: the same bits in both
            views = self._views(self._numbers(rows[1 - rank]))
            mine = [gradient for gradient, is_used in pairs if is_used]
            if mine:
                others = [view for view, (_, is_used) in zip(views, pairs, strict=True) if is_used]
                torch._foreach_add_(mine, others)
                if factor != 1.0:
                    torch._foreach_mul_(mine, factor)

    def _is_plain(self, gradient: Tensor | None) -> bool:
        """Return whether a gradient can be added to in place as the numbers travel."""
        if gradient is None or gradient.is_sparse:
            return False
        return bool(gradient.device.type == "cpu" and gradient.dtype == self._kind)

    def add_up(self, group: Group, used: Sequence[bool], factor: float) -> None:
        """Do as `give`, without shared memory."""
        self._fill(self._like)
        group.all_reduce(self._like)
        self._set(self._like, used, factor)

    def _set(self, total: Tensor, used: Sequence[bool], factor: float) -> None:
        """Copy sums, multiplied by a factor, into the gradients."""
        copied = []
        for view, one, index in zip(self._views(total), self.parameters, self.indices, strict=True):
            if not used[index]:
                one.grad = None
            elif one.grad is None or one.grad.is_sparse:
                one.grad = (view * factor).to(one.device, one.dtype)
            else:
                copied.append((one.grad, view))
        if copied:
            scaled = [view for _, view in copied]
            torch._foreach_copy_(
                [gradient for gradient, _ in copied], scaled if factor == 1.0 else torch._foreach_mul(scaled, factor)
            )


def _dense(gradient: Tensor) -> Tensor:
    found = gradient.detach()
    return found.to_dense() if found.is_sparse else found


class FirstSteps:
    """The comparison of the first steps: gradients of the parts' sum against those of the whole batch.

    Parameters
    ----------
    group
        Of all members and, as the last one, the process that computes whole batches.
    told
        How many counts the process that checks tells.
    rough
        Whether the numbers are those of different kinds of device, or of half precision; may be set later.

    Attributes
    ----------
    group
        As given; another one where another process computes whole batches.
    drawn
        What tells the state of the random numbers where the whole batch was computed, in the pass compared last.
    counts
        By what the terms of its loss are divided, in that pass.
    """

    def __init__(self, group: Group, told: int, *, rough: bool) -> None:
        self.group = group
        self.rough = rough
        self._told = told
        self._whole: list[tuple[ParameterRows, torch.dtype, Tensor]] | None = None
        self._sizes: dict[ParameterRows, float] = {}
        self.drawn = 0.0
        self.counts: list[float] = []

    def show(self, touched: Sequence[ParameterRows], drawn: float, counts: Sequence[float]) -> None:
        """Show the members the gradients of the whole batch, and what tells the state of the random numbers.

        Parameters
        ----------
        counts
            By what the terms of the loss are divided.
        """
        self.group.broadcast(torch.tensor([drawn, *counts], dtype=torch.float64), self.group.world_size - 1)
        for each in touched:
            for dtype in each.dtypes:
                self.group.broadcast(each.take(dtype).numbers, self.group.world_size - 1)

    def compare(self, touched: Sequence[ParameterRows], computed_in: torch.dtype, *, last: bool) -> str:
        """Return where the members' sums differ from the whole batch's gradients, '' where they do not.

        Parameters
        ----------
        computed_in
            The dtype of the loss, which may be coarser than the parameters'.
        last
            Whether no other weights will be tried for this pass.
        """
        if self._whole is None:
            state = torch.zeros(1 + self._told, dtype=torch.float64)
            self.group.broadcast(state, self.group.world_size - 1)
            self.drawn, *self.counts = state.tolist()
            self._whole = []
            for each in touched:
                for dtype in each.dtypes:
                    whole = torch.empty_like(each.row(dtype).numbers)
                    self.group.broadcast(whole, self.group.world_size - 1)
                    self._whole.append((each, dtype, whole))
        worst, where = 0.0, ""
        for each, dtype, whole in self._whole:
            apart = self._apart(each, dtype, whole)
            if not apart <= max(self._limit(dtype), self._limit(computed_in)) and not apart <= worst:
                worst, where = apart, f"{each.label}, {_furthest(each, each.row(dtype), whole)}"
        if not where or last:
            self._whole = None
        return f"{where} ({worst:.2g} of the whole gradient)" if where else ""

    def show_buffers(self, models: Sequence[torch.nn.Module]) -> None:
        """Show the members what the whole batch has made of the buffers of models."""
        last = self.group.world_size - 1
        found = [each.detach().reshape(-1).to("cpu", torch.float64) for _, each in _buffers(models)]
        self.group.broadcast(torch.tensor([float(len(found))], dtype=torch.float64), last)
        if found:
            self.group.broadcast(torch.tensor([float(len(each)) for each in found], dtype=torch.float64), last)
            self.group.broadcast(torch.cat(found), last)

    def compare_buffers(self, models: Sequence[torch.nn.Module]) -> str:
        """Return which buffer of models the own rows have made another one than the whole batch has, '' for none.

        One of another size has a place for each row, as an activation that is kept, and is passed over.
        """
        last, own = self.group.world_size - 1, _buffers(models)
        count = torch.zeros(1, dtype=torch.float64)
        self.group.broadcast(count, last)
        if not count:
            return ""
        sizes = torch.zeros(int(count), dtype=torch.float64)
        self.group.broadcast(sizes, last)
        wholes = torch.zeros(int(sizes.sum()), dtype=torch.float64)
        self.group.broadcast(wholes, last)
        for (name, each), whole in zip(own, wholes.split([int(size) for size in sizes]), strict=False):
            mine = each.detach().reshape(-1).to("cpu", torch.float64)
            if len(mine) != len(whole) or not whole.isfinite().all():
                continue
            limit = (
                _BUFFERS_CLOSER * self._limit(each.dtype) * max(_LEAST_BUFFER, float(torch.linalg.vector_norm(whole)))
            )
            if not float(torch.linalg.vector_norm(mine - whole)) <= limit:
                return name
        return ""

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


def _buffers(models: Sequence[torch.nn.Module]) -> list[tuple[str, Tensor]]:
    """Return the buffers of floating numbers that models save, with their names."""
    return [
        (f"{type(model).__name__}, {f'{place}.{name}'.removeprefix('.')}", buffer)
        for model in models
        for place, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and buffer.is_floating_point() and name not in module._non_persistent_buffers_set
    ]


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


@transparent
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
            if hook(parameter) is not None:
                raise RuntimeError("hooks that run after a gradient was accumulated should return None")
