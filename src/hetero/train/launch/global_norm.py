"""What layers normalise by the whole batch, where each process has a part of it.

In: a group of processes, each with its rows of a batch, as unequal as they like. Out: torch's batch normalisation
with the statistics of all rows, forward, backward and in the buffers; embeddings whose rows are bounded where any of
the processes looks them up. It must not exchange anything but rows of statistics and indices, and knows nothing of
models or optimizers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from hetero.floor.errors import BadValueError

__all__ = ["GroupLike", "install", "uninstall"]

_HALF = (torch.float16, torch.bfloat16)


class GroupLike(Protocol):
    """Processes that add up rows of numbers in host memory."""

    @property
    def rank(self) -> int:
        """Return which of them this one is, from 0."""
        ...

    @property
    def world_size(self) -> int:
        """Return how many they are."""
        ...

    def all_reduce(self, tensor: Tensor) -> object:
        """Replace a row by the sum over all."""
        ...


_replaced: list[tuple[object, str, object]] = []


def install(
    group_of: Callable[[Tensor], GroupLike | None], group_now: Callable[[], GroupLike | None] = lambda: None
) -> None:
    """Have torch normalise batches over a group of processes; a second call replaces the first.

    Parameters
    ----------
    group_of
        Returns the group over which an input is cut that a layer is about to normalise; None, or a group of one, to
        normalise as torch does. All members of a group must normalise the same layers in the same order, a member
        without rows too.
    group_now
        Returns the group over which what embeddings look up is cut.

    Notes
    -----
    `torch.embedding_renorm_` is replaced, by which embeddings with `max_norm` change the rows that they look up,
    `torch.embedding` where it counts how often a row is looked up, `torch.nn.functional.batch_norm`, which the modules
    of batch normalisation call, `instance_norm` where it tracks statistics, and the forward pass of
    `torch.nn.SyncBatchNorm`. The gradients of weight and bias are those of the own rows, to be summed over the group
    with all others; the gradient that comes in is that of the summed loss. A
    compiled function is interrupted at each layer that normalises in training; one with ``fullgraph`` is refused by
    torch. `torch.batch_norm` itself is not replaced.
    """
    uninstall()
    functional = torch.nn.functional
    plain, synchronised, bound = functional.batch_norm, SyncBatchNorm.forward, torch.embedding_renorm_
    by_row, looked_up, bags = functional.instance_norm, torch.embedding, torch.embedding_bag

    def batch_norm(
        input: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        weight: Tensor = None,
        bias: Tensor = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if training and torch.compiler.is_compiling():  # torch runs this part uncompiled then
            raise NotImplementedError("batch normalisation over several processes cannot be compiled")
        group = group_of(input) if training else None
        if group is None or group.world_size < 2:
            return plain(input, running_mean, running_var, weight, bias, training, momentum, eps)
        normalise = torch.compiler.disable(_normalise) if "torch._dynamo" in sys.modules else _normalise
        return normalise(plain, group, input, running_mean, running_var, weight, bias, momentum, eps)

    def forward(self: Tensor, input: Tensor) -> Tensor:
        group = group_of(input)
        return (synchronised if group is None or group.world_size < 2 else _BatchNorm.forward)(self, input)

    def instance_norm(
        input: Tensor,
        running_mean: Tensor = None,
        running_var: Tensor = None,
        weight: Tensor = None,
        bias: Tensor = None,
        use_input_stats: bool = True,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        tracked = [each for each in (running_mean, running_var) if each is not None] if use_input_stats else []
        if tracked and torch.compiler.is_compiling():
            raise NotImplementedError("instance normalisation over several processes cannot be compiled")
        found = by_row(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
        group = group_of(input) if tracked else None
        if group is not None and group.world_size > 1:
            _take_means(group, len(input), tracked)
        return found

    def embedding_renorm_(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
        if torch.compiler.is_compiling():
            raise NotImplementedError("embeddings with max_norm over several processes cannot be compiled")
        group = group_now()
        if group is None or group.world_size < 2:
            return bound(weight, indices, max_norm, norm_type)
        own = indices.unique()
        before = weight[own]
        bound(weight, own, max_norm, norm_type)
        return bound(weight, _of_all(group, own[(weight[own] != before).any(1)]), max_norm, norm_type)

    def embedding(
        weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
    ) -> Tensor:
        group = group_of(indices) if scale_grad_by_freq and torch.is_grad_enabled() else None
        if group is None or group.world_size < 2:
            return looked_up(weight, indices, padding_idx, scale_grad_by_freq, sparse)
        often = _frequencies(group, indices, len(weight))[indices].clamp(min=1).unsqueeze(-1)
        found = looked_up(weight, indices, padding_idx, False, sparse)
        if found.requires_grad:
            found.register_hook(lambda gradient: gradient / often.to(gradient))
        return found

    def embedding_bag(*args: Tensor, **options: Tensor) -> Tensor:
        if (options.get("scale_grad_by_freq") or (len(args) > 3 and args[3])) and group_now() is not None:
            raise BadValueError(
                "an EmbeddingBag with scale_grad_by_freq=True divides by frequencies of the own rows",
                remedy="take torch.nn.Embedding(scale_grad_by_freq=True) and add its rows up, or False",
            )
        return bags(*args, **options)

    batch_norm.__doc__, instance_norm.__doc__ = plain.__doc__, by_row.__doc__
    embedding_renorm_.__doc__, embedding.__doc__ = bound.__doc__, looked_up.__doc__
    embedding_bag.__doc__ = bags.__doc__
    _replaced.extend([(functional, "batch_norm", plain), (SyncBatchNorm, "forward", synchronised)])
    _replaced.extend([(functional, "instance_norm", by_row), (torch, "embedding_renorm_", bound)])
    _replaced.extend([(torch, "embedding", looked_up), (torch, "embedding_bag", bags)])
    functional.batch_norm, functional.instance_norm = batch_norm, instance_norm
    SyncBatchNorm.forward = forward
    torch.embedding_renorm_ = embedding_renorm_
    torch.embedding, torch.embedding_bag = embedding, embedding_bag


def uninstall() -> None:
    """Put torch's own functions back."""
    while _replaced:
        owner, name, original = _replaced.pop()
        setattr(owner, name, original)


def _frequencies(group: GroupLike, indices: Tensor, entries: int) -> Tensor:
    """Return how often each entry of a table is looked up by all members: the own counts of what nobody has cut."""
    table = torch.zeros(group.world_size, entries + 1, dtype=torch.float64)
    table[group.rank, :-1] = torch.bincount(indices.reshape(-1), minlength=entries)
    table[group.rank, -1] = not getattr(group, "is_of_rows", True)
    own = table[group.rank, :-1].clone()
    group.all_reduce(table)
    counts = [each[:-1] for each in table if each.any()]
    is_whole = bool(table[:, -1].any()) and all(torch.equal(each, counts[0]) for each in counts)
    return (own if is_whole else table[:, :-1].sum(0)).to(indices.device)


def _take_means(group: GroupLike, rows: int, tracked: Sequence[Tensor]) -> None:
    """Set statistics that are a mean over rows, and were changed by the own ones, to those of the rows of all."""
    count = rows if getattr(group, "has_rows", True) else 0
    own = torch.cat([each.detach().reshape(-1).to("cpu", torch.float64) for each in tracked])
    sums = _summed(group, torch.cat([torch.tensor([float(count)], dtype=torch.float64), own * count]))
    if not sums[0]:
        return
    means = (sums[1:] / sums[0]).split([each.numel() for each in tracked])
    with torch.no_grad():
        for each, mean in zip(tracked, means, strict=True):
            each.copy_(mean.view(each.shape))


def _of_all(group: GroupLike, own: Tensor) -> Tensor:
    """Return the indices that any member gives."""
    counts = torch.zeros(group.world_size, dtype=torch.float64)
    counts[group.rank] = len(own)
    group.all_reduce(counts)
    ends = [0, *(int(each) for each in counts.cumsum(0))]
    row = torch.zeros(ends[-1], dtype=torch.float64)
    if ends[-1]:
        begin, end = ends[group.rank : group.rank + 2]
        row[begin:end] = own[: end - begin].cpu()
        group.all_reduce(row)
    return row.to(own.device, torch.int64).unique()


def _normalise(
    plain: Callable[..., Tensor],
    group: GroupLike,
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor,
    bias: Tensor,
    momentum: float,
    eps: float,
) -> Tensor:
    if eps <= 0.0:
        raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
    with torch.no_grad():
        found = _whole_statistics(group, x.detach())
    if found is None:
        return plain(x, running_mean, running_var, weight, bias, True, momentum, eps)
    count, mean, squares = found
    with torch.no_grad():
        if count == 1:
            torch.nn.functional._verify_batch_size(torch.Size((1, *x.shape[1:2])))
        if count and running_mean is not None:
            running_mean.mul_(1 - momentum).add_(mean.to(running_mean), alpha=momentum)
        if count and running_var is not None:
            running_var.mul_(1 - momentum).add_((squares / (count - 1)).to(running_var), alpha=momentum)
        kind = torch.float32 if x.dtype in _HALF else x.dtype
        place = {"dtype": kind, "device": x.device}
        mean, variance = mean.to(**place), (squares / max(count, 1)).to(**place)
    return _GlobalNorm.apply(x, weight, bias, group, count, mean, variance, eps)


def _whole_statistics(group: GroupLike, x: Tensor) -> tuple[int, Tensor, Tensor] | None:
    """Return how many values a channel has, their means and the sums of their squared distances from them.

    None where x is the same in all members, and in one of them not of as many rows as it has: then nobody has cut it.

    Notes
    -----
    mean ← mean + δ nᵢ/n, M2 ← M2 + M2ᵢ + δ² nᵢ (n − nᵢ)/n with δ = meanᵢ − mean, rank after rank; Chan, Golub and
    LeVeque 1983. In float64, in the same order everywhere, so that all members have the same bits.
    """
    channels = x.shape[1]
    table = torch.zeros(group.world_size, 2 + 2 * channels, dtype=torch.float64)
    rows: Tensor = table.numpy()  # of so few numbers, NumPy is quicker
    rows[group.rank, -1] = not getattr(group, "is_of_rows", True)
    if x.numel():
        own, count = rows[group.rank], x.numel() // channels
        own[0] = count
        own[1 : 1 + channels], own[1 + channels : -1] = (each.cpu().numpy() for each in _own_statistics(x))
        own[1 + channels : -1] *= count
    group.all_reduce(table)
    if rows[:, -1].any() and len({each[:-1].tobytes() for each in rows if each[0]}) == 1:
        return None
    total, mean, squares = rows[0, 0], rows[0, 1 : 1 + channels].copy(), rows[0, 1 + channels : -1].copy()
    for each in rows[1:]:
        count = each[0]
        total += count
        if count:
            apart = each[1 : 1 + channels] - mean
            mean += apart * (count / total)
            squares += each[1 + channels : -1] + apart * apart * (count * (total - count) / total)
    return int(total), torch.from_numpy(mean), torch.from_numpy(squares)


def _own_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance of each channel."""
    x = x.float() if x.dtype in _HALF else x
    if x.device.type == "cpu":
        mean, variance = torch.batch_norm_update_stats(x, None, None, 0.0)
    else:
        variance, mean = torch.var_mean(x, _reduced(x), correction=0)
    return mean, variance


def _reduced(x: Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


def _summed(group: GroupLike, own: Tensor) -> Tensor:
    """Return the sum of a row over the members, added in the order of their ranks."""
    table = torch.zeros(group.world_size, own.numel(), dtype=torch.float64)
    rows: Tensor = table.numpy()
    rows[group.rank] = own.detach().cpu().numpy()
    group.all_reduce(table)
    total = rows[0]
    for each in rows[1:]:
        total = total + each
    return torch.from_numpy(total).to(own)


class _Summed(torch.autograd.Function):  # type: ignore[misc]
    """The sum of a row over the members, as often differentiable as one likes."""

    @staticmethod
    def forward(ctx: Tensor, own: Tensor, group: GroupLike) -> Tensor:
        ctx.group = group
        return _summed(group, own)

    @staticmethod
    def backward(ctx: Tensor, gradient: Tensor) -> tuple[Tensor, None]:
        return _Summed.apply(gradient, ctx.group), None


class _GlobalNorm(torch.autograd.Function):  # type: ignore[misc]
    """y = (x − mean) / √(variance + ε) · weight + bias, where mean and variance are functions of all rows."""

    @staticmethod
    def forward(
        ctx: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        group: GroupLike,
        count: int,
        mean: Tensor,
        variance: Tensor,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.count, ctx.mean, ctx.variance, ctx.eps = group, max(count, 1), mean, variance, eps
        ctx.bias_dtype = None if bias is None else bias.dtype
        return _transformed(ctx, x.to(mean.dtype), weight, bias).to(x.dtype)

    @staticmethod
    def backward(ctx: Tensor, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wide, dy = x.to(ctx.mean.dtype), dy.to(ctx.mean.dtype)
        # The gradient is to be differentiated again where grad mode is on.
        formula = _differentiable_gradients if torch.is_grad_enabled() else _gradients
        dx, of_weight, of_bias = formula(ctx, wide, dy, weight)
        if dx is not None and not getattr(ctx.group, "has_rows", True):
            dx = torch.zeros_like(dx)  # the rows are a stand-in, and the sums of the others none of theirs
        return (
            None if dx is None else dx.to(x.dtype),
            None if weight is None else of_weight.to(weight.dtype),
            None if ctx.bias_dtype is None else of_bias.to(ctx.bias_dtype),
            *[None] * 5,
        )


def _transformed(ctx: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return (x − mean) / √(variance + ε) · weight + bias."""
    weight, bias = (None if value is None else value.to(ctx.mean) for value in (weight, bias))
    return torch.batch_norm(x, weight, bias, ctx.mean, ctx.variance, False, 0.0, ctx.eps, False)


def _gradients(ctx: Tensor, x: Tensor, dy: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias.

    Notes
    -----
    With x̂ = (x − mean)/σ: dx = weight/σ · (dy − Σdy/n − x̂ Σ(dy·x̂)/n), the sums over the rows of all members; the
    gradients of weight and bias are the sums over the own.
    """
    inverse = 1.0 / torch.sqrt(ctx.variance + ctx.eps)
    if x.device.type == "cpu" and x.numel():
        _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            dy, x, None, None, None, ctx.mean, inverse, True, ctx.eps, [False, True, True]
        )
    else:
        of_bias = dy.sum(_reduced(x))
        of_weight = (dy * (x - _broadcast(ctx.mean, x))).sum(_reduced(x)) * inverse
    if not ctx.needs_input_grad[0]:
        return None, of_weight, of_bias
    sums = _summed(ctx.group, torch.cat([of_weight, of_bias])) / ctx.count
    scale = inverse if weight is None else inverse * weight
    dx = _transformed(ctx, x, -scale * sums[: len(scale)], -scale * sums[len(scale) :])
    return dx.addcmul_(dy, _broadcast(scale, x)), of_weight, of_bias


def _differentiable_gradients(ctx: Tensor, x: Tensor, dy: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `_gradients` does, as functions of x, dy and weight that torch can differentiate."""
    reduced = _reduced(x)
    centred = x - _broadcast(_Summed.apply(x.sum(reduced), ctx.group) / ctx.count, x)
    variance = _Summed.apply((centred * centred).sum(reduced), ctx.group) / ctx.count
    inverse = _broadcast(1.0 / torch.sqrt(variance + ctx.eps), x)
    normal = centred * inverse
    of_weight, of_bias = (dy * normal).sum(reduced), dy.sum(reduced)
    means = _Summed.apply(torch.cat([of_weight, of_bias]), ctx.group) / ctx.count
    inner = dy - _broadcast(means[x.shape[1] :], x) - normal * _broadcast(means[: x.shape[1]], x)
    return (inner if weight is None else inner * _broadcast(weight, x)) * inverse, of_weight, of_bias


def _broadcast(values: Tensor, x: Tensor) -> Tensor:
    """Return one value a channel, to be combined with x."""
    return values.to(x.dtype).view(1, -1, *[1] * (x.dim() - 2))
