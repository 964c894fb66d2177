"""Two runs beside each other: what got slower, where, and whether the figures allow to believe it.

In: two `RunRecord`s. Out: one row per function and kind of device that both ran. It must not call noise a change.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import erfc, sqrt
from statistics import median
from typing import Literal, TypeAlias

import numpy as np

from hetero.floor.units import format_seconds
from hetero.report.account import CATEGORIES, account
from hetero.report.intervals import Floats
from hetero.report.record import RunRecord
from hetero.report.tables import text_table

__all__ = ["Comparison", "FunctionChange", "compare"]

_BELIEVE = 0.01
_NOTICE = 0.03

Difference: TypeAlias = Literal["slower", "faster", "the same as far as can be told"]


@dataclass(frozen=True, slots=True)
class FunctionChange:
    """One function on one kind of device in both runs.

    Attributes
    ----------
    before, after
        Number of runs in A and in B.
    before_s, after_s
        Seconds, medians.
    ratio
        After / before.
    p
        Probability that such a difference comes by chance, adjusted for the number of rows.
    verdict
        'slower', 'faster' or 'the same as far as can be told'.
    """

    function: str
    device: str
    before: int
    after: int
    before_s: float
    after_s: float
    ratio: float
    p: float
    verdict: Difference


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs.

    Attributes
    ----------
    before_s, after_s
        Seconds, first submission to last outcome.
    changes
        Those that cost most first.
    categories
        Per kind of time, s over all devices in A and in B.
    """

    before_s: float
    after_s: float
    changes: tuple[FunctionChange, ...]
    categories: dict[str, tuple[float, float]]

    def as_dict(self) -> dict[str, object]:
        """Return all figures by name."""
        rows = [{name: getattr(each, name) for name in each.__slots__} for each in self.changes]
        return {"before_s": self.before_s, "after_s": self.after_s, "changes": rows, "categories": self.categories}

    def as_text(self) -> str:
        """Return the comparison for people."""
        ratio = self.after_s / self.before_s if self.before_s else float("nan")
        lines = [f"A took {format_seconds(self.before_s)}, B {format_seconds(self.after_s)}: {ratio:.3g} ×.", ""]
        rows = []
        for each in self.changes:
            seconds = (format_seconds(each.before_s), format_seconds(each.after_s))
            chance = "p < 0.0001" if each.p < 1e-4 else f"p = {each.p:.2g}"
            counts = f"{each.before:,} / {each.after:,}"
            rows.append(
                (each.function[:40], each.device, counts, *seconds, f"{each.ratio:.3g} ×", chance, each.verdict)
            )
        head = ("function", "device", "runs A / B", "A", "B", "B / A", "chance", "verdict")
        lines.append(
            text_table(head, rows, left=(0, 1, 7)) if rows else "No function ran in both on the same kind of device."
        )
        kinds = [
            (name, format_seconds(before), format_seconds(after), format_seconds(after - before))
            for name, (before, after) in self.categories.items()
            if before or after
        ]
        return "\n".join([*lines, "", text_table(("over all devices", "A", "B", "B − A"), kinds)])


def compare(before: RunRecord, after: RunRecord) -> Comparison:
    """Compare two runs, function by function on each model of device.

    Notes
    -----
    Medians are compared with the rank test of Mann and Whitney (normal approximation, corrected for ties), its
    probabilities by Holm's method for the number of rows. A difference is called one when the adjusted p is below
    0.01 and the medians differ by more than 3 %.

    References
    ----------
    H. B. Mann, D. R. Whitney, "On a test of whether one of two random variables is stochastically larger than the
    other", Ann. Math. Statist. 18, 1947. S. Holm, "A simple sequentially rejective multiple test procedure",
    Scand. J. Statist. 6, 1979.
    """
    one, other = _times(before), _times(after)
    keys = sorted(set(one) & set(other))
    adjusted = _holm([_chance(np.array(one[key]), np.array(other[key])) for key in keys])
    changes = [_change(key, one[key], other[key], p) for key, p in zip(keys, adjusted, strict=True)]
    changes.sort(key=lambda each: -abs(each.after_s - each.before_s) * each.after)
    first, second = account(before), account(after)
    categories = {name: (first.total_s(name), second.total_s(name)) for name in CATEGORIES}
    return Comparison(before.span_s, after.span_s, tuple(changes), categories)


def _times(run: RunRecord) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for each in run.attempts:
        if each.outcome == "done" and each.task in run.tasks:
            found[run.tasks[each.task].name, run.devices[each.device].model_key].append(each.end_s - each.start_s)
    return found


def _change(key: tuple[str, str], one: list[float], other: list[float], p: float) -> FunctionChange:
    before_s, after_s = median(one), median(other)
    ratio = after_s / before_s if before_s > 0.0 else float("inf") if after_s > 0.0 else 1.0
    verdict: Difference = "the same as far as can be told"
    if p < _BELIEVE and abs(ratio - 1.0) > _NOTICE:
        verdict = "slower" if ratio > 1.0 else "faster"
    return FunctionChange(*key, len(one), len(other), before_s, after_s, ratio, p, verdict)


def _chance(one: Floats, other: Floats) -> float:
    """Return the two-sided probability of the rank test."""
    n, m = len(one), len(other)
    values = np.concatenate((one, other))
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[places]
    total = n + m
    ties = float((counts.astype(float) ** 3 - counts).sum()) / (total * (total - 1)) if total > 1 else 0.0
    spread = sqrt(n * m / 12.0 * max(0.0, total + 1 - ties))
    if spread == 0.0:
        return 1.0
    off = abs(float(ranks[:n].sum()) - n * (total + 1) / 2.0)
    return erfc(max(0.0, off - 0.5) / spread / sqrt(2.0))


def _holm(given: list[float]) -> list[float]:
    found = [1.0] * len(given)
    worst = 0.0
    for place, at in enumerate(sorted(range(len(given)), key=lambda each: given[each])):
        worst = max(worst, min(1.0, given[at] * (len(given) - place)))
        found[at] = worst
    return found
