"""Exchanges: how one bucket of gradients is added up over the group, as it is or in fewer bytes.

In: a row of numbers of each member. Out: their sum in the same place, and what compression still owes.
It must not know models, steps or who the members are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch

from hetero.comm.group import Group, Work
from hetero.train.reduction_groups import ByKind
from hetero.train.values import TrainOptions

__all__ = ["HALVES", "GradientExchange", "HalfExchange", "LowRankExchange", "make_exchange", "settle", "starting"]

HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""Kinds of compression that round every number; what must stay whole does not travel with them."""

_SMALL = 1e-6
_FP16_TOP, _MOST_EXPONENT = 8, 100


class GradientExchange:
    """Adds up a row as it is.

    Parameters
    ----------
    row
        The bucket: gradients one after the other, then whatever rides along.
    shapes
        Of the gradients.

    Attributes
    ----------
    row
        As given.
    owed
        What was not sent of earlier steps, None where nothing ever is.
    """

    def __init__(self, row: torch.Tensor, shapes: Sequence[Sequence[int]]) -> None:
        self.row = row
        self.shapes = tuple(tuple(shape) for shape in shapes)
        self.owed: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that a member sends and receives, before the algorithm's own factor."""
        return int(self.row.nbytes)

    def rounds(self, group: Group) -> Iterator[Work]:
        """Start one exchange after the other, each when the one before has been waited for; then `row` is the sum."""
        yield from _added_up(group, self.row)

    def rescale(self, factor: float) -> None:
        """Record that from here on gradients are so many times what they were."""
        if self.owed is not None and factor != 1.0:
            self.owed *= factor

    def forget(self) -> None:
        """Owe nothing any more."""
        if self.owed is not None:
            self.owed.zero_()


class HalfExchange(GradientExchange):
    """Adds up in 16 bits; what rounding leaves out is added to the next step's gradients.

    Notes
    -----
    With g the gradient and e what is owed: s = round₁₆(2ᵏ·(g + e)), e ← g + e − 2⁻ᵏ·s, and Σ s travels, where 2ᵏ
    puts the largest entry of the last sum near 2⁸ in fp16, and k = 0 in bf16. Entries beyond what the sum could hold
    are cut, and the rest is owed too. The sum itself is rounded to 16 bits at every hop, and that is not owed by
    anybody. A row with an entry that is no number arrives as no number.
    """

    owed: torch.Tensor

    def __init__(self, row: torch.Tensor, shapes: Sequence[Sequence[int]], kind: torch.dtype) -> None:
        super().__init__(row, shapes)
        self.kind = kind
        self.owed = torch.zeros_like(row)
        self._exponent = 0

    @property
    def nbytes(self) -> int:
        """Bytes that a member sends and receives, before the algorithm's own factor."""
        return int(self.row.numel() * self.kind.itemsize)

    def rounds(self, group: Group) -> Iterator[Work]:
        """Send the row in 16 bits."""
        self.row += self.owed
        most, scale = torch.finfo(self.kind).max / group.world_size, math.ldexp(1.0, self._exponent)
        sent = (self.row * scale).clamp_(-most, most).to(self.kind)
        if bool(torch.isfinite(self.row).all()):
            torch.sub(self.row, sent, alpha=1.0 / scale, out=self.owed)
        else:
            sent.fill_(torch.nan)
            self.owed.zero_()
        yield from _added_up(group, sent)
        torch.mul(sent.to(self.row.dtype), 1.0 / scale, out=self.row)
        if self.kind is torch.float16:
            largest = float(self.row.abs().max())
            if 0.0 < largest < math.inf:
                self._exponent = min(_FP16_TOP - math.frexp(largest)[1], _MOST_EXPONENT)


class LowRankExchange(GradientExchange):
    """Adds up each matrix by two thin factors, and owes what they leave out (PowerSGD).

    Parameters
    ----------
    rank
        Columns of a factor.
    seed
        Of the first factors, the same on all members.

    Notes
    -----
    For a member's gradient as matrix M = g + e and the factor Q of the step before: P = orthonormal(Σ M·Q),
    Qᵢ = Mᵀ·P, the step's gradient is P·(Σ Qᵢ)ᵀ, and e ← M − P·Qᵢᵀ. Summed over the members, what was applied and
    what is owed make up the gradients exactly. Unlike the paper, each member owes what its own factors leave out,
    which needs no mean, and a column that came out as zero starts anew from its first random values. Gradients that
    two factors would not make smaller travel as they are.

    References
    ----------
    Vogels, Karimireddy and Jaggi (2019), PowerSGD: Practical Low-Rank Gradient Compression for Distributed
    Optimization, algorithm 1. https://arxiv.org/abs/1905.13727
    """

    owed: torch.Tensor

    def __init__(self, row: torch.Tensor, shapes: Sequence[Sequence[int]], rank: int, seed: int) -> None:
        super().__init__(row, shapes)
        self._kind = torch.float64 if row.dtype == torch.float64 else torch.float32
        self._thin: list[tuple[slice, tuple[int, int]]] = []
        self._whole: list[slice] = []
        self._first: list[torch.Tensor] = []
        generator, end = torch.Generator().manual_seed(seed), 0
        for height, width in map(_as_matrix, self.shapes):
            part, columns = slice(end, end + height * width), min(rank, height, width)
            end = part.stop
            if columns * (height + width) < height * width:
                self._thin.append((part, (height, width)))
                drawn = torch.randn(width, columns, generator=generator, dtype=torch.float64)
                self._first.append(drawn.to(row.device, self._kind))
            else:
                self._whole.append(part)
        self._whole.append(slice(end, len(row)))
        self._factors = [first.clone() for first in self._first]
        self.owed = torch.zeros(end, dtype=self._kind, device=row.device)

    @property
    def nbytes(self) -> int:
        """Bytes that a member sends and receives, before the algorithm's own factor."""
        thin = sum(factor.shape[1] * sum(shape) for factor, (_, shape) in zip(self._factors, self._thin, strict=True))
        whole = sum(part.stop - part.start for part in self._whole)
        return int((thin + whole) * self._kind.itemsize)

    def rounds(self, group: Group) -> Iterator[Work]:
        """Send the left factors with all that is not compressed, then the right ones."""
        matrices = [(self.row[part] + self.owed[part]).reshape(shape) for part, shape in self._thin]
        left = [matrix @ factor for matrix, factor in zip(matrices, self._factors, strict=True)]
        sent = _joined([*left, *(self.row[part].to(self._kind) for part in self._whole)], self.row)
        yield from _added_up(group, sent)
        for part, own in zip(self._whole, _parted(sent, self._whole, left), strict=True):
            self.row[part] = own
        left = [_orthonormal(factor) for factor in _shaped(sent, left)]
        right = [matrix.T @ factor for matrix, factor in zip(matrices, left, strict=True)]
        for (part, _), matrix, p, q in zip(self._thin, matrices, left, right, strict=True):
            self.owed[part] = (matrix - p @ q.T).reshape(-1)
        if not right:
            return
        sent = _joined(right, self.row)
        yield from _added_up(group, sent)
        summed = _shaped(sent, right)
        for (part, _), p, q in zip(self._thin, left, summed, strict=True):
            self.row[part] = (p @ q.T).reshape(-1).to(self.row.dtype)
        self._keep(summed)

    def _keep(self, summed: Sequence[torch.Tensor]) -> None:
        """Start the next step from these factors; from the first ones where they are of no use."""
        if all(bool(torch.isfinite(factor).all()) for factor in summed):
            pairs = zip(summed, self._first, strict=True)
            self._factors = [torch.where(q.norm(dim=0) > 0, q, first) for q, first in pairs]
        else:
            self._factors = [first.clone() for first in self._first]
            self.forget()


def make_exchange(
    options: TrainOptions, row: torch.Tensor, shapes: Sequence[Sequence[int]], number: int
) -> GradientExchange:
    """Make the exchange of one bucket as the options say; `number` tells buckets apart.

    Examples
    --------
    >>> row = torch.zeros(64 * 64)
    >>> kinds = "none", "bf16", "powersgd"
    >>> [make_exchange(TrainOptions(8, compression=kind), row, [(64, 64)], 0).nbytes for kind in kinds]
    [16384, 8192, 2048]
    """
    if options.compression == "powersgd":
        return LowRankExchange(row, shapes, options.compression_rank, options.seed % 2**32 + number)
    if options.compression in HALVES and row.dtype.itemsize > 2:
        return HalfExchange(row, shapes, HALVES[options.compression])
    return GradientExchange(row, shapes)


def starting(exchange: GradientExchange, group: Group) -> tuple[Iterator[Work], Work]:
    """Start the first round of an exchange."""
    rounds = exchange.rounds(group)
    return rounds, next(rounds)


def settle(under_way: Sequence[tuple[Iterator[Work], Work]]) -> None:
    """Wait for exchanges, round by round, in the same order on all members."""
    left = list(under_way)
    while left:
        further = []
        for rounds, work in left:
            work.wait()
            following = next(rounds, None)
            if following is not None:
                further.append((rounds, following))
        left = further


def _added_up(group: Group, row: torch.Tensor) -> Iterator[Work]:
    """Add up a row where it lies if the group can, else on the host."""
    if row.device.type == "cpu" or isinstance(group, ByKind):
        yield group.start_all_reduce(row)
        return
    host = row.cpu()
    yield group.start_all_reduce(host)
    row.copy_(host)


def _as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    return (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))


def _joined(parts: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in parts]) if parts else like.new_zeros(0)


def _shaped(row: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Cut a row into parts of the shapes of `like`; what is left over stays."""
    ends = list(accumulate(part.numel() for part in like))
    return [row[end - part.numel() : end].reshape(part.shape) for end, part in zip(ends, like, strict=True)]


def _parted(row: torch.Tensor, parts: Sequence[slice], behind: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Cut what comes behind some tensors into parts as long as these slices."""
    sizes = [part.stop - part.start for part in parts]
    return list(torch.split(row[sum(one.numel() for one in behind) :], sizes))


def _orthonormal(matrix: torch.Tensor) -> torch.Tensor:
    """Make the columns orthonormal (Gram and Schmidt, modified); what is dependent becomes zero."""
    result = matrix.clone()
    for column in range(result.shape[1]):
        own = result[:, column]
        before = own.norm()
        for earlier in range(column):
            own -= (result[:, earlier] @ own) * result[:, earlier]
        length = own.norm()
        own *= torch.where(length > _SMALL * before, 1.0 / length, torch.zeros_like(length))
    return result
