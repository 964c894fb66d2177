"""Functions: a user's function as workers need it, with a new version whenever something it uses has changed.

In: a function and its implementations. Out: `Function` values, cached for as long as nothing changed.
It must not pickle anything, and checking a version must cost less than a microsecond for a small function.
"""

from __future__ import annotations

import builtins
import dis
import functools
import hashlib
import itertools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hetero.engines.base import Function
from hetero.floor.text import single_line

if TYPE_CHECKING:
    from hetero.session.tasks import TaskFunction

__all__ = ["FunctionSource", "source_of", "travels_by_name", "used_names"]

_MISSING = object()
_SIMPLE = (int, float, complex, str, bytes, bool, type(None))
_ATTRIBUTE = "__hetero_source__"
_counter = itertools.count(1)


class FunctionSource:
    """A function with its implementations, which knows when it has changed.

    A function that travels by name (its module can be imported by a worker) is one version for ever. A function
    of the main program, of a notebook or inside another function travels with the globals and the closure
    values that it uses; when one of these names is bound to another value, the next call gets a new version.

    Attributes
    ----------
    name
        For people.
    model_key
        Names the code, the same in every run, '' before the first `current`; the key of measured times begins with it.
    shipped
        What travels in place of the function, None for the function itself.
    plain_task
        The task without wishes that was made of a plain function, None before.
    pooled
        The task that an executor made of another: the request of that one, the executor's devices, the task.
    chunked
        The same function over the items of a chunk, None before it is needed.
    nests
        True once a call of it in this process was seen to submit tasks itself.
    """

    __slots__ = (
        "_cells",
        "_current",
        "_globals",
        "_of",
        "callable",
        "chunked",
        "implementations",
        "model_key",
        "name",
        "nests",
        "plain_task",
        "pooled",
        "shipped",
    )

    def __init__(
        self,
        plain: Callable[..., Any] | None,
        implementations: Mapping[str, object],
        name: str,
        of: FunctionSource | None = None,
    ) -> None:
        self.callable = plain
        self.implementations = dict(implementations)
        self.name = name
        self.shipped: Callable[..., object] | None = None
        self.plain_task: TaskFunction[..., object] | None = None
        self.pooled: tuple[object, tuple[str, ...], TaskFunction[..., object]] | None = None
        self.chunked: FunctionSource | None = None
        self.nests = False
        self._of = of
        self.model_key = ""
        self._current: Function | None = None
        self._globals: tuple[tuple[dict[str, object], str, object], ...] = ()
        self._cells: tuple[tuple[types.CellType, object], ...] = ()

    def __reduce__(self) -> tuple[object, ...]:
        """Travel as nothing: what is kept here belongs to this process."""
        return type(None), ()

    def current(self) -> Function:
        """Return the function as it is now."""
        function = self._current
        if function is None:
            return self._renew()
        for names, name, seen in self._globals:
            if names.get(name, _MISSING) is not seen:
                return self._renew()
        for cell, seen in self._cells:
            if _content(cell) is not seen:
                return self._renew()
        return function

    def changed(self) -> None:
        """Forget the version that was made: an implementation was added."""
        self._current = None
        self.chunked = None

    def _renew(self) -> Function:
        captured = _Captured()
        codes = [_identify(part, captured) for part in self.parts()]
        mark = "[]" if self._of is not None else ""
        self.model_key = f"{codes[0] if len(codes) == 1 else _joined(codes)}{mark}"
        self._globals, self._cells = tuple(captured.globals), tuple(captured.cells)
        default = self.callable if self.shipped is None else self.shipped
        key = f"{self.model_key}{captured.suffix()}"
        self._current = Function(key, self.name, default, self.implementations)
        return self._current

    def parts(self) -> Iterator[object]:
        """Yield the codes that users wrote: the function, and its implementations by their words."""
        if self._of is not None:
            yield from self._of.parts()
            return
        if self.callable is not None:
            yield self.callable
        for word in sorted(self.implementations):
            yield self.implementations[word]


class _Captured:
    """What a function that travels by value takes along."""

    def __init__(self) -> None:
        self.globals: list[tuple[dict[str, object], str, object]] = []
        self.cells: list[tuple[types.CellType, object]] = []
        self.tokens: list[str] = []
        self.unique = False
        self.seen: set[int] = set()

    def suffix(self) -> str:
        if self.unique:
            return f"#{next(_counter)}"
        return f"+{_digest(self.tokens)}" if self.tokens else ""

    def value(self, value: object) -> None:
        """Note one captured value."""
        if type(value) in _SIMPLE:
            self.tokens.append(repr(value))
        elif type(value) is tuple:
            for item in value:
                self.value(item)
        elif isinstance(value, types.ModuleType) or value is _MISSING:
            return
        elif isinstance(value, types.FunctionType):
            self.function(value)
        elif isinstance(vars(value).get("source") if hasattr(value, "__dict__") else None, FunctionSource):
            self.tokens.extend(_identify(part, self) for part in vars(value)["source"].parts())
        elif isinstance(value, type | types.BuiltinFunctionType) and travels_by_name(value):
            self.tokens.append(f"{value.__module__}.{value.__qualname__}")
        else:
            self.unique = True
            if isinstance(value, type):
                self.members(value)

    def function(self, value: types.FunctionType) -> None:
        """Note a captured function, and what that one takes along."""
        self.tokens.append(_code_key(value))
        if id(value) not in self.seen and not travels_by_name(value):
            self.seen.add(id(value))
            self.takes(value)

    def members(self, kind: type) -> None:
        """Note what the methods of a class take along."""
        if id(kind) not in self.seen:
            self.seen.add(id(kind))
            for member in vars(kind).values():
                if isinstance(member, types.FunctionType):
                    self.function(member)

    def takes(self, function: types.FunctionType) -> None:
        """Note the globals, closure values and defaults of a function."""
        names = function.__globals__
        for name in sorted(used_names(function.__code__)):
            value = names.get(name, _MISSING)
            if value is _MISSING and hasattr(builtins, name):
                continue
            self.globals.append((names, name, value))
            self.value(value)
        for cell in function.__closure__ or ():
            content = _content(cell)
            self.cells.append((cell, content))
            self.value(content)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.value(default)


def source_of(function: Any) -> FunctionSource:
    """Return the source of a plain callable; the same one for the same function object.

    The source lives on the function itself, so that both go together. A bound method, a `functools.partial`
    or a callable object may carry other values at each call and is taken anew each time.
    """
    if type(function) is not types.FunctionType:
        return FunctionSource(function, {}, _name(function))
    source = function.__dict__.get(_ATTRIBUTE)
    if source is None:
        source = FunctionSource(function, {}, _name(function))
        function.__dict__[_ATTRIBUTE] = source
    return source


def travels_by_name(value: object) -> bool:
    """Return whether a worker finds this function or class by importing its module.

    Examples
    --------
    >>> import json
    >>> travels_by_name(json.dumps), travels_by_name(lambda: 1)
    (True, False)
    """
    module_name, path = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if module_name in (None, "__main__"):
        return False
    found: object = sys.modules.get(module_name)
    for part in path.split("."):
        found = getattr(found, part, None)
        if found is None:
            return False
    return found is value


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _name(function: object) -> str:
    if isinstance(function, functools.partial):
        return _name(function.func)
    return single_line(getattr(function, "__name__", None) or type(function).__name__)


def _identify(part: Any, captured: _Captured) -> str:
    if isinstance(part, types.FunctionType):
        if id(part) not in captured.seen and not travels_by_name(part):
            captured.seen.add(id(part))
            captured.takes(part)
        return _code_key(part)
    if isinstance(part, functools.partial):
        captured.value((*part.args, *sorted(part.keywords), *(part.keywords[name] for name in sorted(part.keywords))))
        return f"{_identify(part.func, captured)}()"
    if isinstance(part, types.MethodType):
        captured.unique = True
        return _code_key(part.__func__) if isinstance(part.__func__, types.FunctionType) else _path(part)
    if isinstance(part, type | types.BuiltinFunctionType) or not hasattr(part, "source"):
        captured.unique = captured.unique or not (_by_module_attribute(part) or travels_by_name(part))
        return _path(part)
    return f"{part.entry}@{_digest([str(part.source), part.entry])}"


def _by_module_attribute(part: object) -> bool:
    name = getattr(part, "__name__", "")
    modules = (sys.modules.get(module) for module in ("numpy", "builtins", "math", "operator"))
    return any(module is not None and vars(module).get(name) is part for module in modules)


def _path(part: object) -> str:
    module = getattr(part, "__module__", None) or type(part).__module__
    return (
        f"{module}.{getattr(part, '__qualname__', None) or getattr(part, '__name__', None) or type(part).__qualname__}"
    )


@functools.lru_cache(maxsize=4096)
def _code_digest(code: types.CodeType) -> str:
    return _digest(list(_code_words(code)))


def _code_key(function: types.FunctionType) -> str:
    return f"{function.__module__}.{function.__qualname__}@{_code_digest(function.__code__)}"


def _code_words(code: types.CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_kwonlyargcount))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_words(constant)
        elif isinstance(constant, frozenset):
            yield repr(sorted(map(repr, constant)))
        else:
            yield repr(constant)


@functools.lru_cache(maxsize=4096)
def used_names(code: types.CodeType) -> frozenset[str]:
    """Return the names of the globals that a code reads, also in the functions that it makes."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= used_names(constant)
    return frozenset(names)


def _digest(words: list[str]) -> str:
    return hashlib.blake2b("\0".join(words).encode(), digest_size=6).hexdigest()


def _joined(codes: list[str]) -> str:
    return f"{codes[0]}+{_digest(codes)}"
