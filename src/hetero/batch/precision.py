"""In what a model computes on a device: as the user says, or in what is quickest there and near enough.

In: ways to run a model, one a precision. Out: results, and words on which way was taken.
It must not know torch or ONNX Runtime: it is handed functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import numpy as np

from hetero.batch.records import Records
from hetero.floor.clock import monotonic_s
from hetero.floor.errors import BadValueError, did_you_mean
from hetero.floor.units import shown

__all__ = ["PRECISIONS", "Chooser", "Precision", "Wish", "wish_of"]

Precision = Literal["float32", "bfloat16", "float16", "any"]

PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "float16", "any")
"""In what a model may compute; 'any' lets each device take the quickest."""

_GROWN = 8
_RUNS = 3

Run = Callable[..., object]


class Wish(NamedTuple):
    """What the user allows.

    Attributes
    ----------
    word
        One of `PRECISIONS`.
    tolerance_frac
        How far results of 'any' may be off, as a share of the largest one.
    """

    word: str = "float32"
    tolerance_frac: float = 0.01


def wish_of(precision: str, tolerance: float) -> Wish:
    """Check what the user says.

    Raises
    ------
    BadValueError
        The precision is unknown, or the tolerance is no share.
    """
    if precision not in PRECISIONS:
        raise BadValueError(
            f"precision={precision!r} is not allowed{did_you_mean(precision, PRECISIONS)}",
            remedy=f"allowed: {', '.join(PRECISIONS)}",
        )
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
        raise BadValueError(
            f"tolerance={shown(tolerance)} is not allowed", remedy="give a share of the largest result, from 0 to 1"
        )
    return Wish(precision, float(tolerance))


class Chooser:
    """Runs batches in one precision, and finds the quickest one where any is allowed.

    Parameters
    ----------
    makers
        Make the way to run the model in each precision; the first one is exact.

    Attributes
    ----------
    computed_in
        In what the model computes, and how far off that was; '' before the first batch.

    Notes
    -----
    With 'any', every precision is run on the first batch. One whose results are further from the exact ones than
    the tolerance, or that the device cannot do, is out; of the others the quickest is kept. As speed depends on
    the size, the choice is made again where a batch is eight times as large as the one that was measured.
    """

    def __init__(self, wish: Wish, makers: Mapping[str, Callable[[], Run]]) -> None:
        self._wish, self._makers = wish, makers
        self._run: Run | None = None
        self._measured = 0
        self.computed_in = ""

    def __call__(self, inputs: object, size: int) -> object:
        """Return the results of a batch of so many records."""
        if self._wish.word == "any" and size >= _GROWN * self._measured:
            self._measured = size
            self._run, self.computed_in = self._quickest(inputs)
        elif self._run is None:
            self._run, self.computed_in = self._makers[self._wish.word](), self._wish.word
        return self._run(inputs)

    def _quickest(self, inputs: object) -> tuple[Run, str]:
        (first, make), *others = self._makers.items()
        run = make()
        exact = run(inputs)
        timed = [(_seconds(run, inputs), run, first)]
        for name, make in others:
            try:
                run = make()
                off = _off_frac(run(inputs), exact)
                if off <= self._wish.tolerance_frac:
                    timed.append((_seconds(run, inputs), run, f"{name}, off by {off:.2g}"))
            except Exception:  # noqa: BLE001  a precision that a device cannot do raises anything
                continue
        _, run, computed_in = min(timed, key=lambda each: each[0])
        return run, computed_in


def _seconds(run: Run, inputs: object) -> float:
    """Return the shortest of some runs."""
    found = []
    for _ in range(_RUNS):
        begin_s = monotonic_s()
        run(inputs)
        found.append(monotonic_s() - begin_s)
    return min(found)


def _off_frac(found: Records, exact: object) -> float:
    """Return the largest difference as a share of the largest exact result, over all outputs."""
    if isinstance(exact, dict):
        return max(_off_frac(found[name], exact[name]) for name in exact)
    wide = np.asarray(exact, np.float64)
    if not wide.size:
        return 0.0
    return float(np.abs(np.asarray(found, np.float64) - wide).max() / max(float(np.abs(wide).max()), 1e-30))
