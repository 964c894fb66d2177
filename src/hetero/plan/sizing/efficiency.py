"""How much of a data sheet a piece of software reaches, with its doubt; and how measurements narrow the doubt.

In: amounts of ideal work (see `speed`), measured seconds. Out: seconds with a spread. It must not read files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hetero.model.figure import Figure, Origin
from hetero.plan.sizing.ideal_work import TERMS

__all__ = ["SPEC", "Efficiency", "MeasuredRun", "learn"]

Vector = npt.NDArray[np.float64]

_ROUNDS = 60
_TRUSTED = 2.5
"""Residuals up to so many standard deviations count by their square, larger ones by their size (Huber's rule)."""

_EQUALS = 6.0
"""How many measurements the prior noise is worth."""

_ALIKE_FRAC = 0.7
"""Of what the terms leave unsaid, the part that nearly equal runs share: declared."""


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRun:
    """One measured run.

    Attributes
    ----------
    amounts
        In the order of `TERMS`.
    seconds
        > 0.
    place
        Log2 of sequences / 2, log2 of tokens / 2, log2 of devices; None for a part of a run.
    """

    amounts: Vector
    seconds: float
    place: Vector | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Efficiency:
    """Seconds that a unit of each term takes: over 1 for shares of the data sheet, plain seconds for counts.

    Attributes
    ----------
    log_cost
        Natural logarithms, in the order of `TERMS`.
    covariance
        Of `log_cost`, shape (n_terms, n_terms).
    noise
        Standard deviation of the logarithm of what the terms leave unsaid.
    origin
        Where it comes from.
    said
        The same in words, with sources.
    places, pulls
        Of measured runs, and what each pulls the logarithm of the time of runs like it.

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
    places: Vector = field(default_factory=lambda: np.empty((0, 3)))
    pulls: Vector = field(default_factory=lambda: np.empty(0))

    @classmethod
    def of(cls, costs: Mapping[str, tuple[float, float]], noise: float, origin: Origin, said: str = "") -> Efficiency:
        """Return one from a median and a spread for each term."""
        log_cost = np.log([costs[name][0] for name in TERMS])
        return cls(log_cost, np.diag([costs[name][1] ** 2 for name in TERMS]), noise, origin, said)

    def seconds(self, amounts: Vector, place: Vector | None = None) -> float:
        """Return the expected time of these amounts."""
        pull = 0.0 if place is None else float((_likeness(place[None], self.places) @ self.pulls)[0])
        return float(np.exp(self.log_cost) @ amounts * np.exp(pull))

    def spread(self, amounts: Vector) -> float:
        """Return the standard deviation of the time's logarithm."""
        shares = _shares(self.log_cost, amounts[None])[0]
        return float(np.sqrt(shares @ self.covariance @ shares + self.noise**2))

    def figure(self, amounts: Vector, place: Vector | None = None) -> Figure:
        """Return the time of these amounts with its interval."""
        return Figure.around(self.seconds(amounts, place), self.spread(amounts), self.origin)

    def shares(self, amounts: Vector) -> dict[str, float]:
        """Return the share that each term has of the time."""
        return dict(zip(TERMS, _shares(self.log_cost, amounts[None])[0].tolist(), strict=True))

    def widened(self, part_frac: float, common: float, origin: Origin, said: str) -> Efficiency:
        """Return the same for another device: more doubt of each term and, by `common`, of all together.

        Parameters
        ----------
        part_frac
            Of the doubt that the data sheet leaves of each term.
        common
            Standard deviation of the logarithm.
        """
        more = SPEC.covariance * part_frac**2 + common**2
        return replace(
            self,
            covariance=self.covariance + more,
            origin=origin,
            said=said,
            places=np.empty((0, 3)),
            pulls=np.empty(0),
        )


def _likeness(one: Vector, other: Vector) -> Vector:
    """Return how alike runs are, most where they are the same: a Gaussian of the distance of their places."""
    apart = ((one[:, None, :] - other[None, :, :]) ** 2).sum(axis=-1)
    alike: Vector = _ALIKE_FRAC * np.exp(-apart / 2)
    return alike


def _shares(log_cost: Vector, amounts: Vector) -> Vector:
    """Return the share of each term, one row a run: the derivative of the logarithm of the time."""
    parts = np.exp(log_cost) * amounts
    shares: Vector = parts / parts.sum(axis=1, keepdims=True)
    return shares


def _residuals(log_cost: Vector, amounts: Vector, log_seconds: Vector) -> Vector:
    left: Vector = log_seconds - np.log(amounts @ np.exp(log_cost))
    return left


def _cost(left: Vector, away: Vector, precision: Vector) -> float:
    """Return what is made small: Huber's loss of the residuals and the distance from the prior."""
    size = np.abs(left)
    loss = np.where(size < _TRUSTED, left**2, 2 * _TRUSTED * size - _TRUSTED**2)
    return float(loss.sum() + away @ precision @ away)


def _nearest(prior: Efficiency, amounts: Vector, log_seconds: Vector, noise: float) -> tuple[Vector, Vector]:
    """Return the costs that are likeliest after the measurements, and their covariance (Gauss and Newton, damped)."""
    precision: Vector = np.linalg.inv(prior.covariance).astype(np.float64)
    cost, damping = prior.log_cost.copy(), 1e-3
    left = _residuals(cost, amounts, log_seconds)
    value = _cost(left / noise, cost - prior.log_cost, precision)
    curve = precision
    for _ in range(_ROUNDS):
        slope = _shares(cost, amounts)
        trust = np.minimum(1.0, _TRUSTED * noise / np.maximum(np.abs(left), 1e-12)) / noise**2
        curve = slope.T @ (slope * trust[:, None]) + precision
        down = slope.T @ (trust * left) - precision @ (cost - prior.log_cost)
        new_value = np.inf
        while new_value > value and damping < 1e8:
            step = np.linalg.solve(curve + damping * np.diag(np.diag(curve)), down)
            left = _residuals(cost + step, amounts, log_seconds)
            new_value = _cost(left / noise, cost + step - prior.log_cost, precision)
            damping *= 4.0
        cost, damping = cost + step, damping / 32.0
        if value - new_value < 1e-9:
            break
        value = new_value
    return cost, np.linalg.inv(curve).astype(np.float64)


def _noise(prior: Efficiency, cost: Vector, covariance: Vector, noise: float, data: tuple[Vector, Vector]) -> float:
    """Return the noise after the measurements: residuals as if each had been left out, weighed against the prior's."""
    amounts, log_seconds = data
    slope = _shares(cost, amounts)
    pulled = np.einsum("ij,jk,ik->i", slope, covariance, slope) / noise**2
    apart = _residuals(cost, amounts, log_seconds) / np.sqrt(np.maximum(1 - pulled, 0.2))
    apart = np.clip(apart, -4 * noise, 4 * noise)
    return float(np.sqrt((_EQUALS * prior.noise**2 + (apart**2).sum()) / (_EQUALS + len(apart))))


def learn(prior: Efficiency, samples: Sequence[MeasuredRun], origin: Origin, said: str) -> Efficiency:
    """Return what is known after measurements: few of them leave much of the prior, many leave little.

    Parameters
    ----------
    prior
        What was known before.
    samples
        Measured runs; none leave the prior as it is.
    origin, said
        Of what comes out.

    Notes
    -----
    The maximum of log prior + log likelihood, with normal logarithms of the costs and of the noise, Huber's rule for
    outliers, and the covariance of the curvature there. The noise is learned from residuals as if each run had been
    left out, the prior's counting as six of them. What is left is then shared with runs like the measured ones, by
    a Gaussian process over sequences, tokens and devices.

    References
    ----------
    Gelman and others 2013, "Bayesian Data Analysis", sections 4.1 (normal approximation) and 5 (shrinkage).
    Huber 1964, "Robust Estimation of a Location Parameter".
    Rasmussen and Williams 2006, "Gaussian Processes for Machine Learning", equation 2.25.
    """
    if not samples:
        return prior
    amounts = np.array([sample.amounts for sample in samples])
    log_seconds = np.log([sample.seconds for sample in samples])
    noise = prior.noise
    cost, covariance = prior.log_cost, prior.covariance
    for _ in range(5):
        cost, covariance = _nearest(prior, amounts, log_seconds, noise)
        noise = _noise(prior, cost, covariance, noise, (amounts, log_seconds))
    known = replace(prior, log_cost=cost, covariance=covariance, noise=noise, origin=origin, said=said)
    whole = [number for number, sample in enumerate(samples) if sample.place is not None]
    if not whole:
        return known
    places = np.array([samples[number].place for number in whole])
    left = _residuals(cost, amounts, log_seconds)[whole]
    alike = _likeness(places, places) + (1 - _ALIKE_FRAC) * np.eye(len(whole))
    return replace(known, places=places, pulls=np.linalg.solve(alike, left).astype(np.float64))


SPEC = Efficiency.of(
    {
        "prompt": (2.0, 0.8),
        "arithmetic": (4.0, 1.3),
        "weights": (1.25, 0.15),
        "attention": (30.0, 1.5),
        "cache": (1.2, 0.4),
        "layer": (60e-6, 0.7),
        "pass": (0.5e-3, 1.0),
        "reduce": (10e-6, 0.8),
        "link": (3.0, 0.7),
        "hop": (300e-6, 1.0),
        "request": (10e-3, 1.5),
    },
    noise=0.12,
    origin="spec",
    said="the data sheet, with half of its arithmetic and four fifths of its bandwidth: declared",
)
"""What is said where nobody measured the engine: round figures, declared."""
