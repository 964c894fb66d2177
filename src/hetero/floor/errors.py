"""The tree of exceptions: every mistake that a user can make, worded once.

In: the value that was given, what is allowed, what to do. Out: one line for people.
It must not print or exit, and imports nothing of hetero but the words of `text`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from pickle import PicklingError

from hetero.floor.text import printable, single_line

__all__ = [
    "EXIT_MEANINGS",
    "BadValueError",
    "ConfigError",
    "DeviceError",
    "DeviceLostError",
    "EngineError",
    "ExitCode",
    "FileError",
    "GraphError",
    "GroupError",
    "HeteroError",
    "HistoryError",
    "MissingPackageError",
    "NothingFitsError",
    "OutOfDeviceMemoryError",
    "RemoteTracebackError",
    "SerialisationError",
    "ShutDownRuntimeError",
    "TaskCancelledError",
    "TaskLostError",
    "TaskTimeoutError",
    "TraceError",
    "came_from",
    "did_you_mean",
]

_CAUSE = vars(BaseException)["__cause__"]


class ExitCode(IntEnum):
    """What a command exits with; the table of docs/commands.md."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    CONFIGURATION = 3
    NOTHING_FITS = 4
    INTERRUPTED = 130
    CLOSED_PIPE = 141


EXIT_MEANINGS: Mapping[ExitCode, str] = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "a task or a check failed",
    ExitCode.USAGE: "usage",
    ExitCode.CONFIGURATION: "a configuration or a file is wrong",
    ExitCode.NOTHING_FITS: "nothing fits",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.CLOSED_PIPE: "the reader of the output has gone",
}


class HeteroError(Exception):
    """A mistake or a failure that hetero can name.

    Attributes
    ----------
    exit_code
        What the command line exits with, one of `ExitCode`.

    Notes
    -----
    What steers a terminal is written as escapes, and endless text is cut, wherever it came from.

    Examples
    --------
    >>> print(HeteroError("no device is named 'cpu:9'", remedy="run 'hetero devices'"))
    no device is named 'cpu:9'; run 'hetero devices'
    """

    exit_code: int = ExitCode.FAILED
    _written = staticmethod(printable)

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        self.problem = self._written(_cut(problem))
        self.remedy = printable(_cut(remedy))
        super().__init__(f"{self.problem}; {self.remedy}" if remedy else self.problem)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by the two parts, so that the error crosses processes whole."""
        return (_rebuild, (type(self), self.problem, self.remedy))


_LONGEST_LINE, _MOST_LINES = 900, 100


def _cut(text: str) -> str:
    """Return at most so many lines of text, each at most so long."""
    if len(text) <= _LONGEST_LINE:
        return text
    lines = text.split("\n", _MOST_LINES)[:_MOST_LINES]
    return "\n".join(line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 1]}…" for line in lines)


def _rebuild(kind: type[HeteroError], problem: str, remedy: str) -> HeteroError:
    return kind(problem, remedy=remedy)


class BadValueError(HeteroError, ValueError):
    """An argument or option has a value that is not allowed."""

    exit_code = ExitCode.USAGE


class FileError(BadValueError):
    """A file that was given cannot be read, or a value in it is wrong; the message begins with the file."""

    exit_code = ExitCode.CONFIGURATION
    _written = staticmethod(single_line)


class ShutDownRuntimeError(BadValueError, RuntimeError):
    """An executor takes no more calls, since it was shut down or the program ends."""


class ConfigError(HeteroError, ValueError):
    """A configuration is wrong; the message begins with file:line."""

    exit_code = ExitCode.CONFIGURATION


class MissingPackageError(BadValueError):
    """A command or an option needs a package that is not installed; the remedy names the extra that brings it."""


class HistoryError(HeteroError):
    """The file of measured times cannot be read."""

    exit_code = ExitCode.CONFIGURATION
    _written = staticmethod(single_line)


class TraceError(HeteroError):
    """A trace cannot be read."""

    exit_code = ExitCode.CONFIGURATION
    _written = staticmethod(single_line)


class GraphError(HeteroError, ValueError):
    """A task graph, a fleet file or a plan is wrong; the message begins with the file and the place in it."""

    exit_code = ExitCode.CONFIGURATION
    _written = staticmethod(single_line)


class NothingFitsError(HeteroError):
    """No device can meet the request; the message gives the reason per device."""

    exit_code = ExitCode.NOTHING_FITS


class DeviceError(HeteroError):
    """A device cannot be opened or used."""

    exit_code = ExitCode.NOTHING_FITS


class DeviceLostError(DeviceError):
    """A device or its worker went away."""

    exit_code = ExitCode.FAILED


class OutOfDeviceMemoryError(HeteroError, MemoryError):
    """A task did not fit into the memory of any device that may run it."""


class EngineError(HeteroError):
    """An engine could not start or carry out a command."""


class GroupError(HeteroError):
    """Another member of a group task failed or ended, so this one gives up."""


class SerialisationError(HeteroError, TypeError, PicklingError):
    """A function, an argument or a result cannot travel to or from a worker."""


class TaskTimeoutError(HeteroError, TimeoutError):
    """A task ran longer than its request allows."""


class TaskCancelledError(HeteroError):
    """A task was cancelled."""


class TaskLostError(HeteroError):
    """A task was given up after its worker died too often."""


class RemoteTracebackError(Exception):
    """The traceback of a task's own exception, as text, attached as its cause."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def came_from(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, each once: they may lead back to it, and a class may hide its own.

    Examples
    --------
    >>> first, last = ValueError("first"), KeyError("last")
    >>> last.__cause__, first.__cause__ = first, last
    >>> [*came_from(last)]
    [KeyError('last'), ValueError('first')]
    """
    seen = set[int]()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = _CAUSE.__get__(cause)


def did_you_mean(given: object, allowed: Iterable[str]) -> str:
    """Return '; did you mean …?' when the value resembles an allowed word, else ''.

    Examples
    --------
    >>> did_you_mean("round_robbin", ["eft", "round_robin"])
    "; did you mean 'round_robin'?"
    >>> did_you_mean("zzz", ["eft"])
    ''
    """
    close = difflib.get_close_matches(str(given), list(allowed), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
