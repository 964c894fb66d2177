"""The compiler of the inner loops: numba where it is installed, plain Python elsewhere, with equal results.

In: a function over NumPy arrays. Out: the same function, compiled at its first call and kept on disk.
Only modules that are themselves imported inside functions may import this one: numba takes half a second to load.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar, cast

__all__ = ["COMPILED", "WHY_NOT", "njit", "njit_in_place"]

Function = TypeVar("Function", bound=Callable[..., object])


def _numba() -> tuple[ModuleType | None, str]:
    try:
        import numba
    except Exception as error:  # noqa: BLE001  a broken numba raises anything
        return None, f"numba cannot be used ({type(error).__name__}: {error})"
    if numba.config.DISABLE_JIT:
        return None, "numba is switched off (NUMBA_DISABLE_JIT)"
    return numba, ""


_NUMBA, WHY_NOT = _numba()
COMPILED = _NUMBA is not None
"""Whether the inner loops are compiled; `WHY_NOT` says why not."""


def njit(function: Function) -> Function:
    """Compile a function where numba is there; return it back as it is elsewhere."""
    if _NUMBA is None:
        return function
    try:
        made: Function = _NUMBA.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no folder for the cache can be written
        return cast(Function, _NUMBA.njit(nogil=True)(function))
    _forget_other_versions(made)
    return made


def _forget_other_versions(made: Any) -> None:
    """Empty what is kept of a function, if it names classes that are gone: numba does not survive reading that."""
    kept = made._cache
    try:
        kept._cache_file._load_index()
    except Exception:  # noqa: BLE001  unpickling raises anything
        kept.flush()


def njit_in_place(function: Function) -> Function:
    """Compile a function that makes no array and is called by compiled ones alone, into each of them.

    Notes
    -----
    What would let Python call it takes a third of the time of compiling, and is left out.
    numba counts the references to every array of a tuple at each use. Where nothing is made nothing needs counting,
    and inner loops over a tuple of arrays run three to four times as fast without.
    """
    if _NUMBA is None:
        return function
    made: Function = _NUMBA.njit(
        nogil=True, forceinline=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)
    return made
