"""What a worker takes over from the program: its surroundings when the Context was opened, and an initializer.

In: this process, and a function. Out: a value that travels to workers. It must not read anything later than that.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from hetero.engines.shared.exceptions import one_line
from hetero.engines.shared.wire import as_bytes
from hetero.floor import logs, platform
from hetero.floor.errors import SerialisationError

__all__ = ["Initializer", "WorkerSetup"]


class Initializer:
    """A function that each worker calls before its first task.

    Parameters
    ----------
    function, args
        The call.
    """

    def __init__(self, function: Callable[..., object], args: tuple[object, ...]) -> None:
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self._call: tuple[Callable[..., object], tuple[object, ...]] | None = (function, args)
        self._blob = b""

    def pack(self) -> None:
        """Capture the call as bytes, as it is now.

        Raises
        ------
        SerialisationError
            The function or an argument cannot travel.
        """
        try:
            self._blob = as_bytes(self._call)
        except Exception as error:
            raise SerialisationError(
                f"the initializer {self.name} cannot travel to a worker: {one_line(error)}",
                remedy="give a function of a module and plain arguments, or use isolation: thread",
            ) from error

    def __call__(self) -> None:
        """Call it."""
        function, args = self._call or pickle.loads(self._blob)
        function(*args)

    def __getstate__(self) -> dict[str, object]:
        if not self._blob:
            self.pack()
        return {"name": self.name, "_call": None, "_blob": self._blob}


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker takes over from the program.

    Attributes
    ----------
    environment
        Environment variables.
    folder
        Working folder, '' where the program has none.
    path
        Folders in which modules are found.
    arguments
        `sys.argv`.
    hash_seed
        Of all workers of the program, so that `hash` of a string is the same in each, also in one that is started anew.
    levels
        Levels of the loggers at the start; later ones follow.
    tag_output
        True puts device and task in front of each line that a task prints.
    initializer
        Called before the first task, None for nothing.
    """

    environment: dict[str, str] = field(default_factory=platform.environment)
    folder: str = field(default_factory=lambda: _folder())
    path: tuple[str, ...] = field(default_factory=lambda: tuple([entry or _folder() for entry in sys.path]))
    arguments: tuple[str, ...] = field(default_factory=lambda: tuple(sys.argv))
    hash_seed: str = field(default_factory=platform.hash_seed)
    levels: logs.Levels = field(default_factory=logs.levels)
    tag_output: bool = False
    initializer: Initializer | None = None


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""
