"""The field that the demonstration lets diffuse: a synthetic one, or one that the user brings.

In: a size, or a file. Out: a two-dimensional array. It must not bring data of others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero.backends.wording import one_line
from hetero.floor.documents import read_array
from hetero.floor.errors import BadValueError

__all__ = ["read_field", "synthetic_field"]

_FORMS = "give a .npy file, or a NetCDF-3 file (.nc), which needs SciPy"


def synthetic_field(size: int, seed: int = 0) -> NDArray[np.float64]:
    """Make a square field of waves and hot spots that repeats at its edges.

    Examples
    --------
    >>> synthetic_field(64).shape
    (64, 64)
    """
    x = np.arange(size) * (2.0 * np.pi / size)
    field: NDArray[np.float64] = 0.2 * np.sin(3 * x)[:, None] * np.cos(5 * x)[None, :]
    for row, column, width in np.random.default_rng(seed).random((12, 3)):
        sharpness = 4.0 + 40.0 * width
        north = np.exp(sharpness * (np.cos(x - 2 * np.pi * row) - 1.0))
        field += north[:, None] * np.exp(sharpness * (np.cos(x - 2 * np.pi * column) - 1.0))[None, :]
    return field


def read_field(path: Path, size: int) -> NDArray[np.float64]:
    """Read a field, and enlarge it to a square by repeating its cells.

    Parameters
    ----------
    path : a NumPy file, or a NetCDF-3 file, of which the largest variable's first layer is taken
    size : rows and columns of the result; a larger field is cut

    Raises
    ------
    BadValueError
        The file cannot be read, or holds no field of finite numbers.
    """
    try:
        layer = read_array(path, BadValueError) if path.suffix == ".npy" else _netcdf(path)
        while layer.ndim > 2:
            layer = layer[0]
        field = np.asarray(layer, dtype=np.float64)
    except BadValueError:
        raise
    except Exception as error:  # a damaged NetCDF file raises anything
        raise BadValueError(f"the field {path} cannot be read: {one_line(error)}", remedy=_FORMS) from error
    if field.ndim != 2 or not field.size or not np.isfinite(field).all():
        raise BadValueError(f"{path} holds no two-dimensional field of finite numbers", remedy=_FORMS)
    rows, columns = ((np.arange(size) * min(length, size)) // size for length in field.shape)
    return np.ascontiguousarray(field[np.ix_(rows, columns)])


def _netcdf(path: Path) -> NDArray[Any]:
    if path.suffix != ".nc":
        raise ValueError(f"its name ends in {path.suffix!r}")
    try:
        from scipy.io import netcdf_file
    except ImportError as error:
        raise ValueError("SciPy is not installed") from error
    with netcdf_file(path, mmap=False) as file:
        variables = [each for each in file.variables.values() if len(each.shape) >= 2]
        if not variables:
            raise ValueError("no variable has two dimensions")
        largest = max(variables, key=lambda each: int(np.prod(each.shape)))
        scale, offset = getattr(largest, "scale_factor", 1.0), getattr(largest, "add_offset", 0.0)
        return np.asarray(largest[:], dtype=np.float64) * scale + offset
