"""How much of a data sheet a piece of software reaches, with its doubt; and how own measurements narrow the doubt.

In: amounts of ideal work (see `speed`), measured seconds. Out: seconds with a spread. It must not read files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hetero.model.figure import Figure, Origin
from hetero.plan.speed import TERMS

__all__ = ["SPEC", "Efficiency"]

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Efficiency:
    """Seconds that a unit of each term takes: over 1 for shares of the data sheet, plain seconds for counts.

    Attributes
    ----------
    log_cost : natural logarithms, in the order of `TERMS`
    covariance : of `log_cost`, shape (n_terms, n_terms)
    noise : standard deviation of the logarithm of what the terms leave unsaid
    origin : where it comes from
    said : the same in words, with sources

    Notes
    -----
    time = Σ over terms of exp(log_cost) · amount. The spread of its logarithm is √(g·C·g + noise²), with g the share
    that each term has of the time.
    """

    log_cost: Vector
    covariance: Vector
    noise: float
    origin: Origin
    said: str = ""

    @classmethod
    def of(cls, costs: Mapping[str, tuple[float, float]], noise: float, origin: Origin, said: str = "") -> Efficiency:
        """Give one from a median and a spread for each term."""
        log_cost = np.log([costs[name][0] for name in TERMS])
        return cls(log_cost, np.diag([costs[name][1] ** 2 for name in TERMS]), noise, origin, said)

    def seconds(self, amounts: Vector) -> float:
        """Give the expected time of these amounts."""
        return float(np.exp(self.log_cost) @ amounts)

    def spread(self, amounts: Vector) -> float:
        """Give the standard deviation of the time's logarithm."""
        parts = np.exp(self.log_cost) * amounts
        shares = parts / parts.sum()
        return float(np.sqrt(shares @ self.covariance @ shares + self.noise**2))

    def figure(self, amounts: Vector) -> Figure:
        """Give the time of these amounts with its interval."""
        return Figure.around(self.seconds(amounts), self.spread(amounts), self.origin)

    def shares(self, amounts: Vector) -> dict[str, float]:
        """Give the share that each term has of the time."""
        parts = np.exp(self.log_cost) * amounts
        return dict(zip(TERMS, (parts / parts.sum()).tolist(), strict=True))


SPEC = Efficiency.of(
    {
        "prompt": (2.0, 0.5),
        "arithmetic": (2.0, 0.7),
        "weights": (1.4, 0.3),
        "attention": (4.0, 0.7),
        "cache": (1.8, 0.5),
        "layer": (20e-6, 0.7),
        "reduce": (15e-6, 0.7),
        "link": (2.0, 0.6),
        "hop": (200e-6, 1.0),
        "request": (5e-3, 1.0),
    },
    noise=0.25,
    origin="spec",
    said="data sheet; half of the arithmetic, 70 % of the bandwidth: declared",
)
"""What is said where nobody measured the engine: round figures, declared."""
