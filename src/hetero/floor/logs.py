"""Log records of tasks on their way to the program, the levels that travel the other way, and tagged output.

In: records and lines in a worker. Out: the same, handled by the program's loggers, marked with device and task.
It must not run a handler of the user's in a thread that somebody else waits for.
"""

from __future__ import annotations

import io
import logging
import marshal
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, BinaryIO, NamedTuple, TextIO

__all__ = [
    "Forwarder",
    "Levels",
    "Replayer",
    "TaggedStream",
    "Where",
    "follow",
    "levels",
    "mark_records",
    "tag_output",
    "warn_once",
]

Where = Callable[[], tuple[int | None, str]]
"""Tells the task that runs here, None for none, and the id of its device."""

MOST_WAITING = 100_000
"""Records that may wait for slow handlers; what comes meanwhile is dropped, and counted."""

_MOST_ARGS_BYTES = 1 << 16
"""Arguments of a message that take more travel as its text."""

_OWN = ("msg", "args", "exc_info", "message")
_SCALARS = (type(None), bool, int, float, complex, str, bytes)

_UNSEEN = 1 << 30
"""A level that nothing has, and that no `logging.disable` reaches."""


class Levels(NamedTuple):
    """What the program's logging lets pass.

    Attributes
    ----------
    disabled
        The level of `logging.disable`.
    root
        Level of the root logger.
    named
        Levels of the loggers that have one of their own.
    warnings
        Whether `logging.captureWarnings` is on.
    """

    disabled: int = 0
    root: int = logging.WARNING
    named: Mapping[str, int] = {}
    warnings: bool = False


class _Watch(logging.Logger):
    """A logger that is asked for its level again whenever a level was changed somewhere."""

    stale = True

    def getEffectiveLevel(self) -> int:  # noqa: N802
        self.stale = True
        return 0


def _registered(name: str) -> _Watch:
    before = logging.getLoggerClass()
    logging.setLoggerClass(_Watch)
    try:
        watch = logging.getLogger(name)
    finally:
        logging.setLoggerClass(before)
    assert isinstance(watch, _Watch)
    return watch


_watch = _registered("hetero.levels")
_known = Levels()


def levels() -> Levels:
    """Return the levels of this process's loggers; the same object for as long as none is changed."""
    global _known
    _watch.disabled = False
    _watch.isEnabledFor(_UNSEEN)
    if _watch.stale or _known.warnings is not _captures_warnings():
        _watch.stale = False
        found = _levels_now()
        if found != _known:
            _known = found
    return _known


def _levels_now() -> Levels:
    loggers = list(logging.root.manager.loggerDict.items())
    named = {name: logger.level for name, logger in loggers if isinstance(logger, logging.Logger) and logger.level}
    return Levels(logging.root.manager.disable, logging.root.level, named, _captures_warnings())


def _captures_warnings() -> bool:
    return getattr(logging, "_warnings_showwarning", None) is not None  # what logging.captureWarnings itself asks


def follow(new: Levels, old: Levels = Levels()) -> None:  # noqa: B008
    """Set this process's loggers to the program's levels, in place of those that it had before."""
    if new.warnings is not old.warnings:
        logging.captureWarnings(new.warnings)
    logging.disable(new.disabled)
    logging.root.setLevel(new.root)
    for name in old.named.keys() - new.named.keys():
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, level in new.named.items():
        logging.getLogger(name).setLevel(level)


def mark_records(where: Where) -> None:
    """Put `hetero_task` and `hetero_device` on every log record from now on; once a process."""
    make = logging.getLogRecordFactory()
    if isinstance(make, _Marked):
        return
    logging.setLogRecordFactory(_Marked(make, where))


class _Marked:
    def __init__(self, make: Callable[..., logging.LogRecord], where: Where) -> None:
        self._make = make
        self._where = where

    def __call__(self, *args: object, **kwargs: object) -> logging.LogRecord:
        record = self._make(*args, **kwargs)
        record.hetero_task, record.hetero_device = self._where()
        return record


class Forwarder(logging.Handler):
    """Sends each record of this process away, as a dict of plain values.

    A process that a task forks has no way of its own to the program: its warnings go to standard error.

    Parameters
    ----------
    send
        Takes the dict, in the thread that logs.
    """

    def __init__(self, send: Callable[[dict[str, object]], None]) -> None:
        super().__init__()
        self._send = send
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record; what it was given stays if it is plain, and else becomes its text."""
        if os.getpid() != self._pid:
            if logging.lastResort is not None and record.levelno >= logging.lastResort.level:
                logging.lastResort.handle(record)
            return
        try:
            self.format(record)
            fields = {name: _plain(value) for name, value in vars(record).items() if name not in _OWN}
            args: Any = record.args
            kept = _is_plain(args) and len(marshal.dumps(args)) <= _MOST_ARGS_BYTES
            text = {"msg": str(record.msg), "args": args} if kept else {"msg": record.getMessage(), "args": None}
            fields |= {**text, "exc_info": None}
            with suppress(OSError):
                self._send(fields)
        except Exception:  # noqa: BLE001  as every handler of the standard library does
            self.handleError(record)


def _is_plain(value: Any) -> bool:
    """Return whether a value is written into a message alike in every process; the order of a set may differ."""
    kind = type(value)
    if kind is tuple or kind is list:
        return all(map(_is_plain, value))
    if kind is dict:
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return kind in _SCALARS


def _plain(value: Any) -> object:
    try:
        marshal.dumps(value)
    except ValueError:
        return repr(value)
    return value


class Replayer:
    """Hands the records of workers to this process's loggers, in a thread of its own and in their order."""

    def __init__(self) -> None:
        self._records: deque[dict[str, object]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._open = True
        self._dropped = 0
        self._taken = 0
        self._handled = 0

    @property
    def behind(self) -> bool:
        """True while a record waits."""
        return self._handled != self._taken

    def add(self, records: Iterable[dict[str, object]]) -> None:
        """Take records."""
        with self._changed:
            for record in records:
                if len(self._records) >= MOST_WAITING or not self._open:
                    self._dropped += 1
                    continue
                self._records.append(record)
                self._taken += 1
            if self._thread is None and self._open:
                self._thread = threading.Thread(target=self._work, name="hetero-logs", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self, timeout_s: float) -> None:
        """Wait until what was taken so far has been handled; not in a handler, and not for longer than that."""
        if self._handled != self._taken and threading.current_thread() is not self._thread:
            with self._changed:
                until = self._taken
                self._changed.wait_for(lambda: self._handled >= until, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Handle what is left, within so many seconds, and end the thread."""
        self.settle(timeout_s)
        with self._changed:
            self._open = False
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while self._open or self._records:
            with self._changed:
                self._changed.wait_for(lambda: self._records or not self._open)
                batch, dropped = list(self._records), self._dropped
                self._records.clear()
                self._dropped = 0
            for fields in batch:
                _handle(fields)
                self._handled += 1
            if dropped:
                logging.getLogger("hetero").warning("%d log records of tasks were dropped: handlers are slow", dropped)
            with self._changed:
                self._changed.notify_all()


def _handle(fields: dict[str, object]) -> None:
    record = logging.makeLogRecord(fields)
    logger = logging.getLogger(record.name)
    try:
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)
    except BaseException:  # noqa: BLE001  a handler or a filter of the user's may raise anything
        sys.excepthook(*sys.exc_info())


class TaggedStream(io.TextIOBase):
    """A text stream whose lines begin with the device and the task that print them.

    Parameters
    ----------
    stream
        Where the lines go.
    where
        Tells who prints; what nobody's task prints passes as it is.

    Examples
    --------
    >>> tagged = TaggedStream(sys.stdout, lambda: (7, "h0/cpu:1"))
    >>> print("a line", file=tagged)
    [cpu:1 task 7] a line
    """

    def __init__(self, stream: TextIO, where: Where) -> None:
        self.stream = stream
        self._where = where
        self._begun = threading.local()

    def write(self, text: str) -> int:
        """Write whole lines, each with its tag; what ends in none waits for its end, a flush, or another's text."""
        task, device = self._where()
        tag = "" if task is None else f"[{device.partition('/')[2] or device} task {task}] "
        begun, of = getattr(self._begun, "text", ("", ""))
        if begun and of != tag:
            self.stream.write(f"{of}{begun}\n")
            begun = ""
        if task is None:
            self._begun.text = "", ""
            return self.stream.write(text)
        *lines, rest = (begun + text).split("\n")
        self._begun.text = rest, tag
        if lines:
            self.stream.write("".join([f"{tag}{line}\n" for line in lines]))
        return len(text)

    def flush(self) -> None:
        """Write what was begun, on a line of its own."""
        begun, of = getattr(self._begun, "text", ("", ""))
        if begun:
            self.stream.write(f"{of}{begun}\n")
            self._begun.text = "", ""
        self.stream.flush()

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the stream."""
        return self.stream.fileno()

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return self.stream.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream."""
        return self.stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """What the stream does with text that its encoding lacks."""
        return self.stream.errors

    @property
    def buffer(self) -> BinaryIO:
        """The binary buffer of the stream, behind the text so far; bytes pass without a tag."""
        self.flush()
        return self.stream.buffer

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)


def tag_output(where: Where) -> Callable[[], None]:
    """Tag what this process prints in tasks; returns a function that ends it."""
    before = sys.stdout, sys.stderr
    after = tuple(stream if stream is None else TaggedStream(stream, where) for stream in before)
    sys.stdout, sys.stderr = after

    def end() -> None:
        if sys.stdout is after[0]:
            sys.stdout = before[0]
        if sys.stderr is after[1]:
            sys.stderr = before[1]

    return end


@cache
def warn_once(line: str) -> None:
    """Log a warning of hetero's own, the first time that it is given in this process."""
    logging.getLogger("hetero").warning(line)
