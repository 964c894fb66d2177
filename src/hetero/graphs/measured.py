"""What earlier runs measured of kinds of devices, function by function: ratios that go before data sheets.

In: samples of the history. Out: how many times as long a function takes on one kind of device as on another.
It must not read files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache

from hetero.catalog.load import find
from hetero.floor.errors import BadValueError
from hetero.plan.performance.cost_model import Sample
from hetero.plan.performance.robust_statistics import median

__all__ = ["Measured"]

_NUMBERING = re.compile(r"[\d\W_]*$")


class Measured:
    """Seconds of functions on kinds of devices, as far as they were measured.

    Parameters
    ----------
    samples : of earlier runs

    Attributes
    ----------
    kinds : the kinds of devices that were measured, as in 'cuda/NVIDIA H100 80GB HBM3'

    Notes
    -----
    The ratio of a function between two kinds is the geometric mean, over the signatures and sizes that were measured
    on both, of the ratios of the medians. A task of a graph is of the function whose name it has, but for numbers at
    its end: `gemm`, `gemm3`, `gemm_3.2` and `gemm#7` are of `gemm`.

    Examples
    --------
    >>> rows = [("m.gemm@1|", "cpu/x", 2.0), ("m.gemm@1|", "cpu/x", 2.2), ("m.gemm@1|", "cuda/y", 0.5)]
    >>> measured = Measured(Sample(signature, kind, 8.0, seconds) for signature, kind, seconds in rows)
    >>> measured.ratio("gemm_3.2", "cuda/y", "cpu/x"), measured.ratio("potrf", "cuda/y", "cpu/x")
    (0.25, None)
    """

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        self._seconds: dict[tuple[str, str], dict[tuple[str, float], list[float]]] = {}
        for row in samples:
            function = row.signature.partition("|")[0].partition("@")[0].rpartition(".")[2]
            by_call = self._seconds.setdefault((function, row.device_key), {})
            by_call.setdefault((row.signature, row.size), []).append(row.seconds)
        self.kinds = tuple(sorted({kind for _, kind in self._seconds}))

    def kind(self, name: str) -> str:
        """Return the measured kind of a name: itself, or the device of that name in the catalog; else ''."""
        if name in self.kinds:
            return name
        spec = _catalogued(name)
        return next((kind for kind in self.kinds if spec and _catalogued(kind.partition("/")[2]) == spec), "")

    def ratio(self, task: str, new: str, old: str) -> float | None:
        """Return how many times as long the function of a task takes on one kind as on another; None if unknown."""
        function = _NUMBERING.sub("", task)
        here, there = (self._seconds.get((function, kind), {}) for kind in (new, old))
        shared = sorted(here.keys() & there.keys())
        if not shared:
            return None
        return math.exp(sum(math.log(median(here[call]) / median(there[call])) for call in shared) / len(shared))


@lru_cache(maxsize=256)
def _catalogued(name: str) -> str:
    """Return the name that the catalog has for a device, '' for none."""
    try:
        return find(name).name
    except BadValueError:
        return ""
