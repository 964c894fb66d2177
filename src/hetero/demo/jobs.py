"""The two jobs of the demonstration, as graphs of tasks: what is submitted, how much work it is, how it is checked.

In: a size and a field. Out: futures, and a comparison with SciPy or NumPy.
It must not measure time, choose devices or print.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import hetero

__all__ = ["FLOP", "Checked", "Cholesky", "DemoJob", "Diffusion", "Submit", "advance", "gemm", "potrf", "syrk", "trsm"]

Array = NDArray[Any]
Submit = Callable[..., "hetero.Future"]
"""Submits a task with its arguments and gives its future."""

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
def potrf(a: object) -> object:
    """Factorise a tile of the diagonal: a = l lᵀ.

    Examples
    --------
    >>> import numpy as np
    >>> potrf(np.array([[4.0, 2.0], [2.0, 5.0]]))
    array([[2., 0.],
           [1., 2.]])
    """
    xp = hetero.tasks.namespace()
    return xp.linalg.cholesky(xp.asarray(a))


@hetero.task(priority=2)
def trsm(diagonal: object, a: object) -> object:
    """Solve x lᵀ = a for a tile below the factorised tile l of the diagonal."""
    xp = hetero.tasks.namespace()
    return _solve(xp, xp.asarray(diagonal), xp.asarray(a))


def _solve(xp: ModuleType, lower: Any, a: Any) -> object:
    size = lower.shape[0]
    if size <= _SMALL:
        return xp.linalg.solve(lower, a.T).T
    half = size // 2
    left = _solve(xp, lower[:half, :half], a[:, :half])
    right = _solve(xp, lower[half:, half:], a[:, half:] - left @ lower[half:, :half].T)
    return xp.concat([left, right], axis=1)


@hetero.task(priority=1)
def syrk(c: object, a: Any) -> object:
    """Take a column's part out of a tile of the diagonal: c - a aᵀ."""
    xp = hetero.tasks.namespace()
    a = xp.asarray(a)
    return xp.asarray(c) - a @ a.T


@hetero.task
def gemm(c: object, a: object, b: object) -> object:
    """Take a column's part out of a tile below the diagonal: c - a bᵀ."""
    xp = hetero.tasks.namespace()
    return xp.asarray(c) - xp.asarray(a) @ xp.asarray(b).T


@hetero.task
def advance(above: object, strip: object, below: object, steps: int, rate: float) -> object:
    """Diffuse a strip of a field for some steps.

    Parameters
    ----------
    above, strip, below
        Neighbouring strips of at least `steps` rows.
    steps
        Number of steps.
    rate
        Diffusivity · time step / spacing², at most 1/4.

    Notes
    -----
    One step is u ← u + rate (north + south + west + east − 4 u), periodic from east to west. With as many rows
    of the neighbours as there are steps, a strip advances by itself; each step uses up one row on each side.
    """
    xp = hetero.tasks.namespace()
    u = xp.concat([xp.asarray(above)[-steps:, :], xp.asarray(strip), xp.asarray(below)[:steps, :]], axis=0)
    for _ in range(steps):
        middle = u[1:-1, :]
        around = u[:-2, :] + u[2:, :] + xp.roll(middle, 1, axis=1) + xp.roll(middle, -1, axis=1)
        u = (1.0 - 4.0 * rate) * middle + rate * around
    return u


@dataclass(frozen=True, slots=True)
class Checked:
    """A result compared with that of another library.

    Attributes
    ----------
    against
        What it was compared with.
    error_frac
        Largest difference / largest value of the reference.
    allowed_frac
        The most that rounding explains.
    """

    against: str
    error_frac: float
    allowed_frac: float

    @property
    def ok(self) -> bool:
        """True when the difference is no more than rounding explains."""
        return self.error_frac <= self.allowed_frac


class DemoJob(Protocol):
    """One computation.

    Attributes
    ----------
    name
        For people, short.
    unit
        What its work is counted in, as in 'FLOP'.
    functions
        Names of its tasks.
    """

    name: str
    unit: str
    functions: tuple[str, ...]

    @property
    def title(self) -> str:
        """What is computed, with its sizes."""
        ...

    @property
    def work(self) -> float:
        """Amount of work, in units."""
        ...

    def place(self, put: Callable[[Array], object]) -> list[object]:
        """Put the inputs where the tasks will read them."""
        ...

    def start(self, inputs: list[object], submit: Submit) -> list[Any]:
        """Submit all tasks; return the futures of the result."""
        ...

    def check(self, parts: list[object]) -> Checked:
        """Compare the result with another library's."""
        ...


@dataclass(slots=True)
class Cholesky:
    """A = L Lᵀ by tiles, for the covariances of random places in a square.

    Attributes
    ----------
    size
        Rows of the matrix, a multiple of the tile.
    tile
        Rows of a tile.
    dtype
        'float64' or 'float32'.

    Notes
    -----
    Right-looking, as in Buttari, Langou, Kurzak and Dongarra, "A class of parallel tiled linear algebra
    algorithms for multicore architectures", 2009. Aᵢⱼ = exp(−|xᵢ − xⱼ| / 0.2) + 0.01 δᵢⱼ is what kriging solves
    with, and is positive definite for any places.
    """

    size: int
    tile: int
    dtype: str = "float64"
    seed: int = 0
    name: str = "Cholesky factorisation"
    unit: str = "FLOP"
    functions: tuple[str, ...] = ("potrf", "trsm", "syrk", "gemm")
    matrix: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        places = np.random.default_rng(self.seed).random((self.size, 2))
        squares = (places**2).sum(axis=1)
        distances2 = squares[:, None] + squares[None, :] - 2.0 * (places @ places.T)
        matrix = np.exp(np.sqrt(np.maximum(distances2, 0.0, out=distances2), out=distances2) / -0.2)
        matrix[np.diag_indices(self.size)] = 1.01
        self.matrix = matrix.astype(self.dtype)

    @property
    def title(self) -> str:
        """What is computed, with its sizes."""
        return f"{self.name} of a {self.size} × {self.size} matrix in tiles of {self.tile}, {self.dtype}"

    @property
    def count(self) -> int:
        """Tiles in a row."""
        return self.size // self.tile

    @property
    def work(self) -> float:
        """Floating-point operations."""
        tiles = self.count
        kinds = Counter(
            potrf=tiles,
            trsm=tiles * (tiles - 1) // 2,
            syrk=tiles * (tiles - 1) // 2,
            gemm=tiles * (tiles - 1) * (tiles - 2) // 6,
        )
        return sum(number * FLOP[kind](self.tile) for kind, number in kinds.items())

    def place(self, put: Callable[[Array], object]) -> list[object]:
        """Put the tiles on and below the diagonal, row by row."""
        return [put(np.ascontiguousarray(self._tile(row, column))) for row, column in self._places()]

    def _places(self) -> list[tuple[int, int]]:
        return [(row, column) for row in range(self.count) for column in range(row + 1)]

    def _tile(self, row: int, column: int) -> Array:
        tile = self.tile
        return self.matrix[row * tile : (row + 1) * tile, column * tile : (column + 1) * tile]

    def start(self, inputs: list[object], submit: Submit) -> list[object]:
        """Submit the factorisation; the futures are the tiles of L, row by row."""
        a = dict(zip(self._places(), inputs, strict=True))
        for k in range(self.count):
            a[k, k] = submit(potrf, a[k, k])
            for i in range(k + 1, self.count):
                a[i, k] = submit(trsm, a[k, k], a[i, k])
            for i in range(k + 1, self.count):
                a[i, i] = submit(syrk, a[i, i], a[i, k])
                for j in range(k + 1, i):
                    a[i, j] = submit(gemm, a[i, j], a[i, k], a[j, k])
        return [a[place] for place in self._places()]

    def check(self, parts: list[object]) -> Checked:
        """Compare L with SciPy's, or with NumPy's where SciPy is not installed."""
        lower = np.zeros_like(self.matrix)
        for (row, column), part in zip(self._places(), parts, strict=True):
            tile = self.tile
            lower[row * tile : (row + 1) * tile, column * tile : (column + 1) * tile] = np.asarray(part)
        against, reference = self._reference()
        return Checked(against, _difference(lower, reference), self.size * float(np.finfo(self.dtype).eps))

    def _reference(self) -> tuple[str, Array]:
        try:
            from scipy.linalg import cholesky
        except ImportError:
            return "numpy.linalg.cholesky", np.linalg.cholesky(self.matrix.astype("float64"))
        return "scipy.linalg.cholesky", cholesky(self.matrix.astype("float64"), lower=True)


@dataclass(slots=True)
class Diffusion:
    """A field that diffuses on a torus, cut into strips that advance by themselves for some steps.

    Attributes
    ----------
    field
        Shape (rows, columns).
    strips
        Number of strips; divides the rows, and leaves each at least `steps` rows.
    steps
        Steps of one task.
    rounds
        Tasks of one strip, one after the other.
    origin
        What the field is, for people.
    rate
        Diffusivity · time step / spacing².
    """

    field: Array
    strips: int
    steps: int
    rounds: int
    origin: str = "a synthetic field"
    rate: float = 0.2
    name: str = "diffusion"
    unit: str = "cells"
    functions: tuple[str, ...] = ("advance",)

    @property
    def title(self) -> str:
        """What is computed, with its sizes."""
        rows, columns = self.field.shape
        sizes = f"{rows} × {columns} in {self.strips} strips, {self.steps * self.rounds} steps"
        return f"{self.name} of {self.origin}, {sizes}, {self.field.dtype}"

    @property
    def work(self) -> float:
        """Cells, each counted once a step."""
        return float(self.field.size * self.steps * self.rounds)

    def place(self, put: Callable[[Array], object]) -> list[object]:
        """Put the strips, from north to south."""
        return [put(strip) for strip in np.split(self.field, self.strips)]

    def start(self, inputs: list[object], submit: Submit) -> list[object]:
        """Submit all rounds; the futures are the strips after the last one."""
        strips, count = inputs, self.strips
        for _ in range(self.rounds):
            strips = [
                submit(advance, strips[i - 1], strips[i], strips[(i + 1) % count], self.steps, self.rate)
                for i in range(count)
            ]
        return strips

    def check(self, parts: list[object]) -> Checked:
        """Compare the field with one convolved by SciPy step by step, or by NumPy where that is not installed."""
        found = np.concatenate([np.asarray(part) for part in parts])
        against, reference = self._reference()
        steps = self.steps * self.rounds
        return Checked(against, _difference(found, reference), steps * 10 * float(np.finfo(self.field.dtype).eps))

    def _reference(self) -> tuple[str, Array]:
        u, rate = self.field.astype("float64"), self.rate
        try:
            from scipy.ndimage import convolve
        except ImportError:
            for _ in range(self.steps * self.rounds):
                around = sum(np.roll(u, shift, axis) for axis in (0, 1) for shift in (1, -1))
                u = u + rate * (around - 4.0 * u)
            return "numpy.roll", u
        kernel = np.array([[0.0, rate, 0.0], [rate, 1.0 - 4.0 * rate, rate], [0.0, rate, 0.0]])
        for _ in range(self.steps * self.rounds):
            u = convolve(u, kernel, mode="wrap")
        return "scipy.ndimage.convolve", u


def _difference(found: Array, reference: Array) -> float:
    return float(np.max(np.abs(found - reference)) / np.max(np.abs(reference)))
