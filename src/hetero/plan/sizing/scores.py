"""Which of several candidates is better: scores, ties, and those that no other beats in everything.

In: figures of candidates, None where unknown. Out: scores and flags. It must not know devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log
from typing import NamedTuple

__all__ = ["CandidateFigures", "pareto", "ranks", "scores"]


class CandidateFigures(NamedTuple):
    """One candidate's figures; None where unknown.

    Attributes
    ----------
    latency_s
        Seconds.
    throughput_per_s
        Tokens/s, of all its devices.
    usd_per_hour
        Of all its devices.
    power_w
        Of all its devices.
    spread
        What the first two may be off by, as a factor >= 1.
    """

    latency_s: float
    throughput_per_s: float
    usd_per_hour: float | None = None
    power_w: float | None = None
    spread: float = 1.0

    def losses(self) -> tuple[float, ...]:
        """Return what is better when smaller: latency, seconds a token, cost and power; inf where unknown."""
        cost = inf if self.usd_per_hour is None else self.usd_per_hour
        return (self.latency_s, 1.0 / self.throughput_per_s, cost, inf if self.power_w is None else self.power_w)

    def ratios(self) -> tuple[float | None, ...]:
        """Return what a score is made of: latency, and throughput, dollars and joules for a token."""
        each = 1.0 / self.throughput_per_s
        usd = None if self.usd_per_hour is None else self.usd_per_hour * each
        return (self.latency_s, each, usd, None if self.power_w is None else self.power_w * each)


def pareto(rows: Sequence[CandidateFigures]) -> list[bool]:
    """Return, for each candidate, whether it is Pareto-optimal: none is as good in everything and better in something.

    Examples
    --------
    >>> best, dearer = CandidateFigures(1.0, 10.0, 2.0, 300.0), CandidateFigures(2.0, 10.0, 2.0, 300.0)
    >>> pareto([best, dearer, CandidateFigures(2.0, 5.0, 1.0, 300.0)])
    [True, False, True]
    """
    losses = [row.losses() for row in rows]
    return [
        not any(all(x <= y for x, y in zip(other, own, strict=True)) and other != own for other in losses)
        for own in losses
    ]


def scores(rows: Sequence[CandidateFigures]) -> list[float]:
    """Score each up to 1: the geometric mean of best/own, of latency and of seconds, dollars, joules a token.

    Notes
    -----
    A figure that is unknown of any candidate is left out for all: nobody gains by saying nothing.

    Examples
    --------
    >>> scores([CandidateFigures(1.0, 10.0), CandidateFigures(2.0, 5.0)])
    [1.0, 0.5]
    """
    if not rows:
        return []
    columns = list(zip(*(row.ratios() for row in rows), strict=True))
    known = [column for column in columns if None not in column]
    best = [min(column) for column in known]
    return [
        exp(sum(log(least / column[at]) for least, column in zip(best, known, strict=True)) / len(known))
        for at in range(len(rows))
    ]


def ranks(rows: Sequence[CandidateFigures], scored: Sequence[float]) -> list[int]:
    """Return ranks from 1; candidates whose scores are closer than they are sure share the rank of the best of them.

    Examples
    --------
    >>> rows = [CandidateFigures(*row, spread=1.2) for row in ((1.0, 10.0), (1.1, 9.0), (4.0, 3.0))]
    >>> ranks(rows, scores(rows))
    [1, 1, 3]
    """
    order = sorted(range(len(rows)), key=lambda at: (-scored[at], at))
    found = [0] * len(rows)
    leader = -1
    for place, at in enumerate(order):
        if leader < 0 or scored[at] * rows[at].spread < scored[leader] / rows[leader].spread:
            leader, rank = at, place + 1
        found[at] = rank
    return found
