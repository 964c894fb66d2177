"""Exceptions of tasks as bytes and back: the caller gets the task's own exception, whatever its class needs.

In: an exception, in a worker. Out: the same in the program, made without its `__init__`. It must not raise: what
cannot travel is left out, and a note on the exception names it.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from hetero.engines.shared.wire import as_bytes, cloud_pickler
from hetero.floor.errors import HeteroError, RemoteTracebackError, SerialisationError, came_from
from hetero.model.tasks import Failure, FailureKind

__all__ = [
    "add_note",
    "dump_error",
    "failure_of",
    "kind_here",
    "load_error",
    "one_line",
    "read_field",
    "write_field",
]

_OURS = f"{Path(__file__).parents[2]}{os.sep}"
_MOST = 50
_SHOWN = 200
_SIMPLE = (str, int, float, bool, bytes, type(None))


class _Piece(NamedTuple):
    """A value that belongs to an exception: its pickle, None where it has none, and how it is shown instead."""

    body: bytes | None
    shown: str


class _Plain(NamedTuple):
    """An exception without anything that only its own class can read.

    Attributes
    ----------
    kind
        The class pickled, None where it cannot be.
    name
        Its name.
    bases
        (module, qualified name) of it and of its bases, in their order.
    made
        The arguments of the built-in base's constructor, None where they are `args`.
    args
        The attribute `args`.
    state
        The other attributes, slots included.
    whole
        The exception pickled by its own `__reduce__`, where its class has one that works.
    cause, context
        Those of the exception, by their rows in the table, -1 for none.
    """

    kind: bytes | None
    name: str
    bases: tuple[tuple[str, str], ...]
    made: tuple[_Piece, ...] | None
    args: tuple[_Piece, ...]
    state: dict[str, _Piece]
    whole: bytes | None
    cause: int
    context: int
    suppress: bool


UNREAD = "raised while the arguments of the task were loaded in its worker"
"""The note on an exception that the function itself had no part in."""


def one_line(error: BaseException) -> str:
    """Return what an exception says, on one line, also where its own words fail."""
    try:
        text = str(error).strip().splitlines()
    except BaseException:  # noqa: BLE001  a user's exception may raise anything when it is shown
        text = ["(its text cannot be made)"]
    name = type.__getattribute__(type(error), "__name__")
    return f"{name}: {text[0]}" if text else str(name)


def dump_error(error: BaseException) -> tuple[bytes | None, str]:
    """Return an exception as bytes, None where even that fails, and its traceback as text.

    The text begins with the user's own frame: those of ours, which called it, say nothing of the task.
    """
    begin = frames = read_field(error, "__traceback__")
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames or begin))
    except BaseException:  # noqa: BLE001  a user's exception may raise anything when it is shown
        text = one_line(error)
    return _dumped(error), text


def load_error(blob: bytes | None, message: str, text: str) -> BaseException:
    """Return the exception, with the remote traceback at the end of its causes.

    One that came through other tasks has that of the innermost of them there already, and keeps it alone.
    """
    error = _loaded(blob)
    if error is None:
        error = HeteroError(message)
    *_, last = came_from(error)
    if type(last) is not RemoteTracebackError:
        write_field(last, "__cause__", RemoteTracebackError(text))
    return error


def kind_here(kind: FailureKind, error: BaseException) -> FailureKind:
    """Return the kind of a failure as the program sees it.

    A package that the program lacks too is missing nowhere in particular: the task's exception is its own.
    """
    if kind != "missing_package":
        return kind
    name = read_field(error, "name")
    return kind if isinstance(name, str) and _is_here(name) else "exception"


def _is_here(name: str) -> bool:
    if name in sys.modules:
        return True
    parent = name.rpartition(".")[0]
    try:
        return find_spec(name if parent in ("", *sys.modules) else name.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def failure_of(kind: FailureKind, message: str, blob: bytes | None, text: str) -> Failure:
    """Return the failure that a worker process told."""
    if kind == "cancelled":
        return Failure("cancelled", message)
    if kind == "unserialisable":
        remedy = "return arrays, numbers, strings, or lists, tuples and dicts of these"
        return Failure(kind, message, SerialisationError(message, remedy=remedy))
    error = load_error(blob, message, text)
    return Failure(kind_here(kind, error), message, error)


# --- in the worker -------------------------------------------------------------------------------------------


class _Rows:
    """The exceptions that travel together: one, and those that it leads to, each of them once.

    Attributes
    ----------
    errors
        Each at its row, so that circles end and what is reached in two ways stays one.
    """

    def __init__(self, error: BaseException) -> None:
        self.errors = [error]
        self._at = {id(error): 0}

    def of(self, error: BaseException | None) -> int:
        """Return the row of an exception, -1 for none and for those that are too many."""
        if error is None:
            return -1
        at = self._at.get(id(error), -1)
        if at < 0 and len(self.errors) < _MOST:
            at = self._at[id(error)] = len(self.errors)
            self.errors.append(error)
        return at


@functools.cache
def _pickler() -> Any:
    class Pickler(cloud_pickler()):  # type: ignore[misc]
        rows: _Rows

        def reducer_override(self, value: object) -> object:
            if issubclass(type(value), BaseException):
                return _referred, (self.rows.of(value),)  # type: ignore[arg-type]
            return super().reducer_override(value)

    return Pickler


def _dumped(error: BaseException) -> bytes | None:
    rows, found = _Rows(error), list[tuple[object, ...] | None]()
    for each in rows.errors:  # of which more come
        try:
            found.append(tuple(_plain(each, rows)))
        except BaseException:  # noqa: BLE001  a user's class may raise anything, also when it is asked for an attribute
            found.append(None)
    return None if found[0] is None else pickle.dumps(found, 5)


def _plain(error: BaseException, rows: _Rows) -> _Plain:
    kind = type(error)
    base = _builtin(kind)
    made, *rest = _reduced(base, error)
    args = read_field(error, "args")
    as_args = len(made) == len(args) and all(one is other for one, other in zip(made, args, strict=True))
    state = {**(rest[0] if rest and isinstance(rest[0], dict) else {}), **_attributes(error)}
    cause, context = read_field(error, "__cause__"), read_field(error, "__context__")
    return _Plain(
        _body(kind, rows),
        kind.__name__,
        tuple([(one.__module__, one.__qualname__) for one in kind.__mro__]),
        None if as_args else tuple([_piece(value, rows) for value in made]),
        tuple([_piece(value, rows) for value in args]),
        {name: _piece(value, rows) for name, value in state.items()},
        _whole(error) if _reduces_itself(kind) else None,
        rows.of(cause),
        rows.of(None if context is cause else context),
        read_field(error, "__suppress_context__"),
    )


def _builtin(kind: type) -> type[BaseException]:
    """Return the nearest base that is written in C: the one that holds the fields that no attribute shows."""
    return next(base for base in kind.__mro__ if base.__module__ == "builtins" and issubclass(base, BaseException))


def _reduced(base: Any, error: BaseException) -> tuple[Any, ...]:
    """Return the arguments by which the built-in base makes its part, and its state where it has some."""
    try:
        _, made, *rest = base.__reduce__(error)
    except BaseException:  # noqa: BLE001  of a base in C that lacks what a subclass did not set
        return (read_field(error, "args"),)
    return (made, *rest)


def _attributes(error: BaseException) -> dict[str, object]:
    found = dict(read_field(error, "__dict__") or {})
    for name in _slots(type(error)):
        try:
            found[name] = object.__getattribute__(error, name)
        except AttributeError:
            continue
    for name in ("name", "code"):
        if name not in found and type(getattr(_builtin(type(error)), name, None)).__name__ == "member_descriptor":
            found[name] = read_field(error, name)
    return found


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            yield f"_{base.__name__.lstrip('_')}{name}" if private else name


def _reduces_itself(kind: type) -> bool:
    """Return whether a class says itself how it is pickled."""
    names = ("__reduce__", "__reduce_ex__", "__setstate__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")
    own = (base for base in kind.__mro__ if base.__module__ != "builtins")
    return any(name in vars(base) for base in own for name in names)


def _whole(error: BaseException) -> bytes | None:
    try:
        blob = as_bytes(error)
        return blob if type(pickle.loads(blob)).__name__ == type(error).__name__ else None
    except BaseException:  # noqa: BLE001  a user's exception may raise anything when pickled
        return None


def _piece(value: object, rows: _Rows) -> _Piece:
    try:
        shown = repr(value)
    except BaseException:  # noqa: BLE001  a user's value may raise anything when it is shown
        shown = f"<{type(value).__name__}>"
    return _Piece(_body(value, rows), shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…")


def _body(value: object, rows: _Rows) -> bytes | None:
    if type(value) in _SIMPLE:
        return pickle.dumps(value, 5)
    try:
        file = io.BytesIO()
        pickler = _pickler()(file, 5)
        pickler.rows = rows
        pickler.dump(value)
        pickle.loads(file.getvalue())
    except BaseException:  # noqa: BLE001  a user's value may raise anything when pickled
        return None
    return file.getvalue()


# --- in the program ------------------------------------------------------------------------------------------


class _Reading(threading.local):
    """The table of which an exception is being read in this thread."""

    table: _Table | None = None


_reading = _Reading()


def _loaded(blob: bytes | None) -> BaseException | None:
    if blob is None:
        return None
    before = _reading.table
    try:
        _reading.table = table = _Table(pickle.loads(blob))
        return table.load()
    except BaseException:  # noqa: BLE001  a user's class may raise anything
        return None
    finally:
        _reading.table = before


def _referred(row: int) -> BaseException:
    """Return an exception that was inside another one, or inside one of its attributes."""
    found = None if _reading.table is None else _reading.table.error(row)
    return HeteroError("an exception that cannot be read here") if found is None else found


class _Table:
    """Exceptions that travelled together, made as they are asked for, and filled once they are there.

    Parameters
    ----------
    rows
        As `_dumped` wrote them.
    """

    def __init__(self, rows: list[tuple[object, ...] | None]) -> None:
        self._rows = [None if row is None else _Plain._make(row) for row in rows]
        self._begun: set[int] = set()
        self._made: dict[int, BaseException] = {}
        self._own: set[int] = set()
        self._lost: dict[int, list[str]] = {}

    def load(self) -> BaseException | None:
        """Return the first."""
        first = self.error(0)
        filled = 0
        while filled < len(self._made):  # of which more come
            row = [*self._made][filled]
            filled += 1
            try:
                self._fill(row)
            except BaseException:
                if row == 0:
                    raise
        return first

    def error(self, row: int) -> BaseException | None:
        """Return the exception of a row, None where it cannot be read; in a circle, one that is not complete yet."""
        plain = self._rows[row] if row >= 0 else None
        if plain is None or row in self._made:
            return self._made.get(row)
        try:
            if row in self._begun:
                self._made[row] = _empty(_class(plain, []), [])
            else:
                self._begun.add(row)
                self._make(row, plain)
        except BaseException:
            if row == 0:
                raise
        return self._made.get(row)

    def _make(self, row: int, plain: _Plain) -> None:
        lost = self._lost[row] = []
        whole = _value(plain.whole)
        if isinstance(whole, BaseException):
            self._own.add(row)
            self._made[row] = whole
            return
        kind = _class(plain, lost)
        made = [_read(piece, "an argument", lost) for piece in (plain.args if plain.made is None else plain.made)]
        if row in self._made:
            _begin(self._made[row], made)
        else:
            self._made[row] = _empty(kind, made)

    def _fill(self, row: int) -> None:
        plain, error, lost = self._rows[row], self._made[row], self._lost.get(row, [])
        assert plain is not None
        if row not in self._own:
            if plain.made is not None:
                write_field(error, "args", tuple([_read(piece, "", lost) for piece in plain.args]))
            for name, piece in plain.state.items():
                _set(error, name, piece, lost)
        write_field(error, "__cause__", self.error(plain.cause))
        write_field(error, "__context__", self.error(plain.context))
        write_field(error, "__suppress_context__", plain.suppress)
        for line in dict.fromkeys(lost):
            add_note(error, f"hetero: {line} did not travel")


def write_field(error: BaseException, name: str, value: object) -> None:
    """Set an attribute, whatever the class has made of setting attributes."""
    place = vars(BaseException).get(name)
    if place is not None:
        place.__set__(error, value)
    elif name == "__notes__":
        _dict_of(error)[name] = value
    else:
        BaseException.__setattr__(error, name, value)


def _dict_of(error: BaseException) -> dict[str, object]:
    """Return the attributes that an exception has itself, whatever properties its class has."""
    found: dict[str, object] = vars(BaseException)["__dict__"].__get__(error)
    return found


def read_field(error: BaseException, name: str) -> Any:
    """Return an attribute, None where it is absent, whatever the class has made of getting attributes."""
    place = vars(BaseException).get(name)
    try:
        if place is not None:
            return place.__get__(error)
        return _dict_of(error).get(name) if name == "__notes__" else BaseException.__getattribute__(error, name)
    except Exception:  # noqa: BLE001  it may be a property of the user's
        return None


def add_note(error: BaseException, line: str, unless: str = "") -> None:
    """Add a note to an exception, whatever its class has made of attributes; none where one begins with `unless`."""
    notes = read_field(error, "__notes__")
    others = notes if isinstance(notes, list) else []
    if not (unless and any(isinstance(note, str) and note.startswith(unless) for note in others)):
        write_field(error, "__notes__", [*others, line])


def _value(body: bytes | None) -> object:
    if body is None:
        return None
    try:
        return pickle.loads(body)
    except BaseException:  # noqa: BLE001  its class may not exist here
        return None


def _read(piece: tuple[bytes | None, str], what: str, lost: list[str]) -> object:
    body, shown = piece
    if body is not None:
        try:
            return pickle.loads(body)
        except BaseException:  # noqa: BLE001  its class may not exist here
            body = None
    if what:
        lost.append(f"{what}, {shown},")
    return shown


def _set(error: BaseException, name: str, piece: tuple[bytes | None, str], lost: list[str]) -> None:
    before = len(lost)
    value = _read(piece, f"the attribute {name!r}", lost)
    if len(lost) == before:
        try:
            write_field(error, name, value)
        except (AttributeError, TypeError):
            _dict_of(error)[name] = value


def _class(plain: _Plain, lost: list[str]) -> type[BaseException]:
    kind = _value(plain.kind)
    if isinstance(kind, type) and issubclass(kind, BaseException):
        return kind
    lost.append(f"its class, {'.'.join(plain.bases[0])},")
    return _stand_in(plain.name, tuple(map(tuple, plain.bases)))


@functools.lru_cache(maxsize=256)
def _stand_in(name: str, bases: tuple[tuple[str, str], ...]) -> type[BaseException]:
    """Return a class of that name whose base is the nearest one that can be imported here."""
    base = next(found for module, path in bases if (found := _imported(module, path)) is not None)
    module, path = bases[0]
    return type(name, (base,), {"__module__": module, "__qualname__": path})


def _imported(module: str, path: str) -> type[BaseException] | None:
    try:
        found: object = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except BaseException:  # noqa: BLE001  importing a user's module may raise anything
        return None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _empty(kind: type[BaseException], made: list[object]) -> BaseException:
    """Make an exception with its built-in part set, and without the `__init__` of its class."""
    try:
        error: BaseException = kind.__new__(kind, *made)
    except BaseException:  # noqa: BLE001  of a class with a `__new__` of its own
        error = _builtin(kind).__new__(kind, *made)
    _begin(error, made)
    return error


def _begin(error: BaseException, made: list[object]) -> None:
    try:
        _builtin(type(error)).__init__(error, *made)
    except BaseException:  # noqa: BLE001  as far as it came is enough
        return
