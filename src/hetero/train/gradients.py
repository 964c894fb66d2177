"""Gradients as rows of numbers that the members add up, with a header that proves what took part.

In: the parameters of a model. Out: sums over the group, in floating point or as integers whose sum has no order.
It must not divide or step: it adds.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import median
from typing import NamedTuple

import torch

from hetero.comm.group import Group, Work
from hetero.floor import clock
from hetero.train.gradient_compression import HALVES, GradientExchange, make_exchange, settle, starting
from hetero.train.values import TrainingError, TrainOptions

__all__ = ["FINEST", "BitwiseGradients", "Bucket", "Gradients", "bucket_bytes", "cut_buckets"]

_BITS = 40
_LIMIT = 2.0**54
_HEADER_UNIT = 2**20
FINEST = 2**72
"""Parts of one that a number is counted in where its sums are to be the same bits in any order."""
_TRIES = 10
_CARRIERS = (torch.float32, torch.float64)

_LEAST_BYTES = 1 << 20
_MOST_BYTES = 4 << 20
_AIM = 8
_LITTLE = 8


class Bucket(NamedTuple):
    """Gradients of one kind that travel together.

    Attributes
    ----------
    kind
        What they have in common, a dtype.
    indices
        Of the parameters, in the order in which their gradients come about.
    """

    kind: Hashable
    indices: tuple[int, ...]


def bucket_bytes(total_bytes: int) -> int:
    """Return the size that buckets aim at: about eight of them, of 1 to 4 MiB each.

    Examples
    --------
    >>> [bucket_bytes(mib << 20) >> 20 for mib in (1, 16, 400)]
    [1, 2, 4]
    """
    return min(_MOST_BYTES, max(_LEAST_BYTES, total_bytes // _AIM))


def cut_buckets(nbytes: Sequence[int], kinds: Sequence[Hashable], order: Sequence[int]) -> tuple[Bucket, ...]:
    """Cut gradients into buckets.

    Parameters
    ----------
    nbytes, kinds
        Of each gradient; what is of one kind may share a bucket.
    order
        The indices in the order in which the gradients come about.

    Returns
    -------
    tuple of Bucket
        In the order in which they are complete; every index once.

    Notes
    -----
    The last bucket is what a step waits for when all is computed, so buckets are filled from the end: what the
    sizes leave over makes the first one small, and the last one aims at 1 MiB at most. A bucket that is less than
    an eighth full takes the next gradient in, however large.

    Examples
    --------
    >>> mib = 1 << 20
    >>> [bucket.indices for bucket in cut_buckets([mib, mib // 2, mib // 2, mib], ["f4"] * 4, [3, 2, 1, 0])]
    [(3,), (2, 1), (0,)]
    """
    limit = bucket_bytes(sum(nbytes))
    open_: dict[Hashable, list[int]] = {}
    closed: list[Bucket] = []
    for index in reversed(order):
        kind = kinds[index]
        held = open_.setdefault(kind, [])
        room = limit if any(bucket.kind == kind for bucket in closed) else _LEAST_BYTES
        filled = sum(nbytes[one] for one in held)
        if filled >= room // _LITTLE and filled + nbytes[index] > room:
            closed.append(Bucket(kind, tuple(reversed(held))))
            held.clear()
        held.append(index)
    closed += [Bucket(kind, tuple(reversed(held))) for kind, held in open_.items()]
    place = {index: position for position, index in enumerate(order)}
    return tuple(sorted(closed, key=lambda bucket: place[bucket.indices[-1]]))


@dataclass(slots=True)
class _BucketRow:
    """One bucket as it lies in memory.

    Attributes
    ----------
    indices
        Of its parameters.
    exchange
        Adds up its numbers, which are `exchange.row`.
    missing
        Parameters whose gradient is not complete in this step.
    """

    indices: tuple[int, ...]
    exchange: GradientExchange
    missing: int = 0


class Gradients:
    """The gradients of a model in rows that autograd adds to in place; a row leaves as soon as it is complete.

    Parameters
    ----------
    parameters
        Those that are trained.
    header
        Numbers that ride along.
    options
        Of the run.

    Attributes
    ----------
    parameters
        As given.

    Notes
    -----
    A group's first step is summed when all is computed: it shows in which order the first member's gradients come
    about, and all members cut their rows by that. From then on each row leaves during the last pass of a step, in
    the same order everywhere; the last row carries the header and leaves when everything is known. Where one row is
    enough for all gradients, nothing leaves early. With `overlap='auto'` ten steps are done in turn with and without,
    and the way whose median the first member found shorter is kept: where the processors that compute also do the
    work of the link, overlap gains nothing.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], header: int, options: TrainOptions) -> None:
        self.parameters = list(parameters)
        self.options = options
        self._header = header
        self._group: Group | None = None
        self._rows: list[_BucketRow] = []
        self._row_of: list[int] = []
        self._views: list[torch.Tensor] = []
        self._under_way: list[tuple[Iterator[Work], Work]] = []
        self._used = [False] * len(self.parameters)
        self._came: list[int] = []
        self._last_pass = False
        self._ordered = False
        self._early = False
        self._tried: list[float] = []
        self._gains = True
        self._begun_s = 0.0
        self._unit = 1.0
        self._next: tuple[Bucket, ...] = ()
        self._start_anew()
        for index, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(self._take_note(index))

    @property
    def _extra(self) -> int:
        return self._header + len(self.parameters)

    @property
    def nbytes(self) -> int:
        """Bytes that a member sends and receives in a usual step, before the algorithm's own factor."""
        if not self._learns or self._ordered:
            return sum(row.exchange.nbytes for row in self._rows)
        cuts = self._cut(range(len(self.parameters) - 1, -1, -1))
        usual = [self._exchange(bucket, number, "meta").nbytes for number, bucket in enumerate(cuts)]
        return sum(usual) + 4 * self._extra

    # --- how they lie --------------------------------------------------------------------------------------

    def _start_anew(self) -> None:
        """Lay out one row a dtype; several rows follow when their order is known."""
        whole, several = self._whole(), self._cut(range(len(self.parameters)))
        self._learns = self.options.overlap != "never" and len(several) > len(whole)
        self._lay_out(whole, ordered=False)

    def _whole(self) -> tuple[Bucket, ...]:
        kinds = dict.fromkeys(parameter.dtype for parameter in self.parameters)
        return tuple(Bucket(k, tuple(i for i, p in enumerate(self.parameters) if p.dtype == k)) for k in kinds)

    def _cut(self, order: Sequence[int]) -> tuple[Bucket, ...]:
        return cut_buckets([p.nbytes for p in self.parameters], [p.dtype for p in self.parameters], order)

    def _lay_out(self, cuts: Sequence[Bucket], ordered: bool) -> None:
        """Make the rows; the last one that can carries the header, in a row of its own where none can."""
        self._ordered, self._next, self._under_way, self._tried = ordered, (), [], []
        self._rows, self._views = [], []
        for parameter in self.parameters:
            parameter.grad = None
        able = [bucket for bucket in cuts if bucket.kind in _CARRIERS and self.options.compression not in HALVES]
        carrier = able[-1] if able else Bucket(torch.float64, ())
        leaving = [bucket for bucket in cuts if bucket is not carrier]
        self._rows = [
            _BucketRow(bucket.indices, self._exchange(bucket, number)) for number, bucket in enumerate(leaving)
        ]
        self._rows.append(_BucketRow(carrier.indices, self._exchange(carrier, len(leaving), extra=self._extra)))
        places = {index: number for number, row in enumerate(self._rows) for index in row.indices}
        self._row_of = [places[index] for index in range(len(self.parameters))]
        views = {index: view for row in self._rows for index, view in self._cut_up(row)}
        self._views = [views[index] for index in range(len(self.parameters))]

    def _exchange(
        self, bucket: Bucket, number: int, place: torch.device | None = None, extra: int = 0
    ) -> GradientExchange:
        """Make the exchange of a bucket; a group's first step goes uncompressed where the order is to be learned."""
        mine = [self.parameters[index] for index in bucket.indices]
        kind: object = bucket.kind
        where = place or (mine[0].device if mine else "cpu")
        flat = torch.zeros(sum(p.numel() for p in mine) + extra, dtype=kind, device=where)
        shapes = [tuple(p.shape) for p in mine]
        if not mine or (self._learns and not self._ordered and place is None):
            return GradientExchange(flat, shapes)
        return make_exchange(self.options, flat, shapes, number)

    def _cut_up(self, row: _BucketRow) -> Iterator[tuple[int, object]]:
        begin = 0
        for index in row.indices:
            like = self.parameters[index]
            yield index, row.exchange.row[begin : begin + like.numel()].view_as(like)
            begin += like.numel()

    # --- a step --------------------------------------------------------------------------------------------

    def begin(self, group: Group | None = None, unit: float = 1.0) -> None:
        """Set all gradients to zero, where autograd will add to them.

        Parameters
        ----------
        group
            With whom they will be added up; None where nobody is there yet.
        unit
            What the optimizer multiplies by, as far as it is known before the step.

        Notes
        -----
        When a step is begun anew, as after memory ran out, rows that are under way are complete and stay as they are.
        """
        if group is not self._group:
            self._group = group
            self._start_anew()
        elif self._next:
            self._lay_out(self._next, ordered=self._learns)
        self._rescale(unit)
        self._early = self._leaves_early()
        gone = len(self._under_way)
        self._begun_s = self._begun_s if gone else clock.monotonic_s()
        for row in self._rows[gone:]:
            row.exchange.row.zero_()
            row.missing = len(row.indices)
        for index, (parameter, view) in enumerate(zip(self.parameters, self._views, strict=True)):
            left = gone > 0 and self._row_of[index] < gone
            parameter.grad = None if left else view
            self._used[index] &= left
        self._came = []
        self._last_pass = False

    def _leaves_early(self) -> bool:
        if not self._ordered or self.options.overlap == "always":
            return self._ordered
        return self._gains if len(self._tried) == _TRIES else len(self._tried) % 2 == 0

    def _rescale(self, unit: float) -> None:
        if unit != self._unit:
            for row in self._rows:
                row.exchange.rescale(self._unit / unit)
            self._unit = unit

    def last_pass(self) -> None:
        """Record that the next backward pass is the last of this step."""
        self._last_pass = True

    def take(self) -> None:
        """Take in what a backward pass has added; here it is already where it belongs."""

    def _take_note(self, index: int) -> object:
        def come(_: object) -> None:
            self._used[index] = True
            if self._last_pass:
                self._came.append(index)
                if self._early:
                    self._leave(index)

        return come

    def _leave(self, index: int) -> None:
        """Send the rows that are complete with this gradient, in their order."""
        row = self._rows[self._row_of[index]]
        if self._row_of[index] < len(self._under_way) and self.parameters[index].grad is self._views[index]:
            raise TrainingError(
                "a gradient went on to change after its row had left", remedy="give the Trainer overlap='never'"
            )
        row.missing -= 1
        assert self._group is not None
        while len(self._under_way) < len(self._rows) - 1 and not self._rows[len(self._under_way)].missing:
            self._start_next()

    def _start_next(self) -> None:
        assert self._group is not None
        self._under_way.append(starting(self._rows[len(self._under_way)].exchange, self._group))

    def reduce(self, group: Group, header: Sequence[float]) -> list[float]:
        """Add up over the group; returns the summed header.

        A parameter that no member used has no gradient afterwards, as in a plain loop.
        """
        carrier = self._rows[-1].exchange.row
        begin = len(carrier) - self._extra
        carrier[begin:] = torch.tensor([*header, *map(float, self._used)], dtype=carrier.dtype)
        if group.world_size > 1:
            while len(self._under_way) < len(self._rows):
                self._start_next()
            settle(self._under_way)
            self._under_way = []
            self._compare(group)
            self._learn(group)
        total: list[float] = carrier[begin:].tolist()
        self._set_gradients(total[self._header :])
        return total[: self._header]

    def _compare(self, group: Group) -> None:
        """Record how long a step took with or without overlap, and agree on one when both are known."""
        if not self._ordered or self.options.overlap == "always" or len(self._tried) == _TRIES:
            return
        self._tried.append(clock.monotonic_s() - self._begun_s)
        if len(self._tried) == _TRIES:
            gains = median(self._tried[::2]) < median(self._tried[1::2])
            told = torch.tensor([gains and group.rank == 0], dtype=torch.int64)
            group.all_reduce(told)
            self._gains = bool(told)
            if not self._gains and self.options.compression == "none":
                self._learns, self._next = False, self._whole()

    def _learn(self, group: Group) -> None:
        """Agree on the order in which gradients come about; the first member's counts."""
        if not self._learns or self._ordered or self._next:
            return
        whole = range(len(self.parameters))
        order = list(dict.fromkeys(self._came))
        order += [index for index in reversed(whole) if index not in set(order)]
        comes_twice = len(self._came) > len(set(self._came))
        told = torch.tensor([comes_twice, *order], dtype=torch.int64) * (group.rank == 0)
        group.all_reduce(told)
        self._learns = not told[0]
        self._next = self._cut(told[1:].tolist()) if self._learns else ()

    def _set_gradients(self, used: Sequence[float]) -> None:
        for parameter, view, count in zip(self.parameters, self._views, used, strict=True):
            parameter.grad = view if count else None

    def scale(self, factor: float) -> None:
        """Multiply all gradients."""
        if factor != 1.0:
            for row in self._rows:
                row.exchange.row.mul_(factor)

    def forget(self) -> None:
        """Drop what compression owes, as after a step whose gradients are not used."""
        for row in self._rows:
            row.exchange.forget()

    def finite(self) -> bool:
        """Return whether every gradient is a number."""
        return all(bool(torch.isfinite(view).all()) for view in self._views)


class BitwiseGradients(Gradients):
    """Gradients whose sum is the same bits whatever the order: integers of one scale per tensor.

    Notes
    -----
    The gradient g of each fixed micro-batch becomes round(g·2ᵏ) as int64, with k = 40 − e, where 2ᵉ bounds the
    largest entry of this tensor's last sum. Sums of integers have no order. 40 bits are kept below that entry, and
    there are 14 bits above it for growth from step to step; beyond them the step is refused. The integers are known
    when all is computed, so none leave early.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], header: int, options: TrainOptions) -> None:
        super().__init__(parameters, header, replace(options, overlap="never"))
        self.exponents = [0] * len(self.parameters)
        self._total = torch.zeros(sum(p.numel() for p in self.parameters) + self._extra, dtype=torch.int64)
        self.overflowed = False

    @property
    def _extra(self) -> int:
        return 2 * self._header + len(self.parameters)

    @property
    def nbytes(self) -> int:
        """Bytes that a member sends and receives a step, before the algorithm's own factor."""
        return int(self._total.nbytes)

    def begin(self, group: Group | None = None, unit: float = 1.0) -> None:
        """Set all gradients and sums to zero."""
        super().begin(group, unit)
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
        for row in self._rows:
            row.exchange.row.zero_()

    def reduce(self, group: Group, header: Sequence[float]) -> list[float]:
        """Add up over the group; returns the summed header."""
        begin = len(self._total) - self._extra
        numbers = [*(part for value in header for part in _in_two(value)), *map(int, self._used)]
        self._total[begin:] = torch.tensor(numbers, dtype=torch.int64)
        group.all_reduce(self._total)
        total = self._total[begin:].tolist()
        self._to_real()
        own = 2 * self._header
        self._set_gradients(total[own:])
        return [
            float(Fraction(high, _HEADER_UNIT) + Fraction(low, FINEST))
            for high, low in zip(total[:own:2], total[1:own:2], strict=True)
        ]

    def _to_real(self) -> None:
        place = 0
        for index, view in enumerate(self._views):
            whole = self._total[place : place + view.numel()].to(torch.float64)
            place += view.numel()
            real = whole * math.ldexp(1.0, self.exponents[index] - _BITS)
            view.copy_(real.reshape(view.shape))
            largest = float(real.abs().max()) if real.numel() else 0.0
            if largest > 0.0:
                self.exponents[index] = math.frexp(largest)[1]


def _in_two(value: float) -> tuple[int, int]:
    """Return a number as multiples of 2⁻²⁰ and of 2⁻⁷²; integers of 64 bits hold the sums of either."""
    if not math.isfinite(value):
        return 0, 0
    high = round(value * _HEADER_UNIT)
    return high, round((Fraction(value) - Fraction(high, _HEADER_UNIT)) * FINEST)
