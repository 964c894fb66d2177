"""The tasks of the demonstration: tiles of a Cholesky factorisation, strips of a diffusing field.

In: arrays of whatever device runs them. Out: arrays of the same device. Written once, against the array API.
It must not know which device that is, nor how the tasks are put together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hetero

__all__ = ["FLOP", "advance", "gemm", "potrf", "syrk", "trsm"]

_SMALL = 64
"""Triangles up to this size are solved at once, larger ones in halves, which makes matrix products of the rest."""

FLOP: dict[str, Callable[[int], float]] = {
    "potrf": lambda tile: tile**3 / 3,
    "trsm": lambda tile: tile**3,
    "syrk": lambda tile: tile**2 * (tile + 1),
    "gemm": lambda tile: 2 * tile**3,
}
"""Useful floating-point operations of each task, by the size of the tile."""


@hetero.task(priority=3)
def potrf(a: Any) -> Any:
    """Factorise a tile of the diagonal: a = l lᵀ.

    Examples
    --------
    >>> import numpy as np
    >>> potrf(np.array([[4.0, 2.0], [2.0, 5.0]]))
    array([[2., 0.],
           [1., 2.]])
    """
    xp = hetero.namespace()
    return xp.linalg.cholesky(xp.asarray(a))


@hetero.task(priority=2)
def trsm(diagonal: Any, a: Any) -> Any:
    """Solve x lᵀ = a for a tile below the factorised tile l of the diagonal."""
    xp = hetero.namespace()
    return _solve(xp, xp.asarray(diagonal), xp.asarray(a))


def _solve(xp: Any, lower: Any, a: Any) -> Any:
    size = lower.shape[0]
    if size <= _SMALL:
        return xp.linalg.solve(lower, a.T).T
    half = size // 2
    left = _solve(xp, lower[:half, :half], a[:, :half])
    right = _solve(xp, lower[half:, half:], a[:, half:] - left @ lower[half:, :half].T)
    return xp.concat([left, right], axis=1)


@hetero.task(priority=1)
def syrk(c: Any, a: Any) -> Any:
    """Take a column's part out of a tile of the diagonal: c - a aᵀ."""
    xp = hetero.namespace()
    a = xp.asarray(a)
    return xp.asarray(c) - a @ a.T


@hetero.task
def gemm(c: Any, a: Any, b: Any) -> Any:
    """Take a column's part out of a tile below the diagonal: c - a bᵀ."""
    xp = hetero.namespace()
    return xp.asarray(c) - xp.asarray(a) @ xp.asarray(b).T


@hetero.task
def advance(above: Any, strip: Any, below: Any, steps: int, rate: float) -> Any:
    """Let a strip of a field diffuse for some steps.

    Parameters
    ----------
    above, strip, below : neighbouring strips of at least `steps` rows
    steps : number of steps
    rate : diffusivity · time step / spacing², at most 1/4

    Notes
    -----
    One step is u ← u + rate (north + south + west + east − 4 u), periodic from east to west. With as many rows
    of the neighbours as there are steps, a strip advances by itself; each step uses up one row on each side.
    """
    xp = hetero.namespace()
    u = xp.concat([xp.asarray(above)[-steps:, :], xp.asarray(strip), xp.asarray(below)[:steps, :]], axis=0)
    for _ in range(steps):
        middle = u[1:-1, :]
        around = u[:-2, :] + u[2:, :] + xp.roll(middle, 1, axis=1) + xp.roll(middle, -1, axis=1)
        u = (1.0 - 4.0 * rate) * middle + rate * around
    return u
