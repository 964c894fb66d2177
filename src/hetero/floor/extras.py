"""Optional packages: which extra of hetero brings each, and the one error that says so.

In: the name of a package. Out: nothing when it is there, else an error with the command that installs it. It must not
import the package: that costs seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec

from hetero.floor.errors import MissingPackageError

__all__ = ["EXTRAS", "is_there", "missing", "need", "own_version", "version_of"]

EXTRAS: Mapping[str, str] = {
    "cryptography": "encrypt",
    "cupy": "nvidia",
    "fsspec": "batch",
    "gpuhunt": "prices",
    "jax": "jax",
    "joblib": "joblib",
    "matplotlib": "plot",
    "mlflow": "mlflow",
    "mpi4py": "mpi",
    "numba": "plan",
    "obstore": "batch",
    "onnxruntime": "onnx",
    "optuna": "tune",
    "ortools": "plan",
    "peft": "adapters",
    "PIL": "train",
    "prometheus_client": "metrics",
    "pyarrow": "batch",
    "pynvml": "nvidia",
    "pyopencl": "opencl",
    "ray": "ray",
    "safetensors": "train",
    "scipy": "plan",
    "sklearn": "train",
    "tensorboard": "tensorboard",
    "torch": "torch",
    "torchao": "compress",
    "wandb": "wandb",
    "wgpu": "vulkan",
}
"""The extra that brings each optional package, by the name that is imported."""


def own_version() -> str:
    """Return the version of hetero, 'unknown' where it runs from a source tree that was not installed."""
    return version_of("hetero-core") or "unknown"


def version_of(distribution: str) -> str:
    """Return the version of an installed package, '' where it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def is_there(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    if package in sys.modules:
        return sys.modules[package] is not None
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def need(package: str, what: str) -> None:
    """Check that an optional package is there.

    Parameters
    ----------
    package
        One of `EXTRAS`.
    what
        What needs it, for people, as in 'a split over devices'.

    Raises
    ------
    MissingPackageError
        It is not installed; the remedy is the command that installs it.

    Examples
    --------
    >>> need("torch_that_is_not_here", "a test")
    Traceback (most recent call last):
    hetero.floor.errors.MissingPackageError: a test needs torch_that_is_not_here, which is not installed; pip install it
    """
    if not is_there(package):
        raise missing(package, what)


def missing(package: str, what: str) -> MissingPackageError:
    """Return the error of a package that is not there."""
    extra = EXTRAS.get(package)
    remedy = f"pip install 'hetero-core[{extra}]'" if extra else "pip install it"
    return MissingPackageError(f"{what} needs {package}, which is not installed", remedy=remedy)
