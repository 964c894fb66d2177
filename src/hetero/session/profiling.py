"""Profiling of tasks: has a Context's functions run under a profiler, and reads which.

In: functions as workers need them. Out: the same, profiled. It must not import a profiler.
"""

from __future__ import annotations

from importlib.util import find_spec

from hetero.drive.profiling import Profiled
from hetero.engines.base import Function
from hetero.floor.errors import MissingPackageError

__all__ = ["Profiling"]

_MOST = 1024


class Profiling:
    """Gives the profiled version of each function, the same one for the same function.

    Parameters
    ----------
    profiler : 'torch'

    Raises
    ------
    BadValueError
        torch is not installed.
    """

    def __init__(self, profiler: str) -> None:
        if find_spec("torch") is None:
            raise MissingPackageError(f"profile={profiler!r} needs torch", remedy="pip install 'hetero-core[torch]'")
        self._known: dict[str, Function] = {}

    def of(self, function: Function) -> Function:
        """Return a function that is profiled where it runs Python."""
        found = self._known.get(function.key)
        if found is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            parts = function.implementations.items()
            implementations = {word: Profiled(each) if callable(each) else each for word, each in parts}
            default = None if function.default is None else Profiled(function.default)
            found = Function(f"{function.key}|profiled", function.name, default, implementations)
            self._known[function.key] = found
        return found
