"""The variables and objects of a script as they are, read without running anything of it.

In: functions that run, the heap. Out: what names and attributes hold, and whether that is nothing.
It must not call a method of the script's classes, nor keep objects alive.
"""

from __future__ import annotations

import ast
import gc
import inspect
import numbers
import sys
import types
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from types import FrameType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hetero.train.launch.script_source import Scope, Script, SourcePlace

__all__ = ["DATA", "Variables", "is_nothing", "objects_in", "own_attribute"]

DATA = (Tensor, np.ndarray, np.generic, numbers.Number, dict, list, tuple, set, frozenset, deque)
"""Classes of what holds numbers or rows."""
_NESTED = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>")
_MOST_READ = 10_000
_OWN_REFERENCES = 3


def is_nothing(value: object, *, empty: bool = False) -> bool | None:
    """Return whether a value adds nothing to a sum: 0, an empty list, a tensor of zeros; None for what is no data.

    Parameters
    ----------
    value
        Anything; nothing of its class is called.
    empty
        Whether rows of zeros are something, as where they are gathered or counted.

    Examples
    --------
    >>> is_nothing({"right": 0, "rows": []}), is_nothing([0, 1]), is_nothing(torch.zeros(2)), is_nothing(print)
    (True, False, True, None)
    >>> is_nothing(torch.zeros(2), empty=True), is_nothing([], empty=True)
    (False, True)
    """
    left = [_MOST_READ]

    def read(part: Any) -> bool | None:
        left[0] -= 1
        kind = type(part)  # isinstance() would ask the object
        if left[0] < 0:
            return False
        if part is None or issubclass(kind, bool | str | bytes):
            return True
        if issubclass(kind, Tensor):
            is_plain = kind in (Tensor, torch.nn.Parameter) and not part.is_meta
            return is_plain and not (empty and part.dim() and part.numel()) and not int(part.count_nonzero())
        if issubclass(kind, np.ndarray | np.generic):
            if empty and part.ndim and part.size:
                return False
            return part.dtype.kind in "SUMm" or (part.dtype.kind != "O" and not np.count_nonzero(part))
        for number in (int, float, complex):
            if issubclass(kind, number):
                return number.__eq__(part, 0) is True
        if issubclass(kind, numbers.Number):
            return not part
        if issubclass(kind, dict):
            return all(read(each) is not False for each in dict.values(part))
        for known in (list, tuple, set, frozenset, deque):
            if issubclass(kind, known):
                return not (empty and known.__len__(part)) and all(
                    read(each) is not False for each in known.__iter__(part)
                )
        return None

    return read(value)


def objects_in(value: Any) -> list[object]:
    """Return what is no data: a value itself, or those that a list or dict of them has."""
    if is_nothing(value) is None:
        return [value]
    for kind, parts in ((dict, dict.values), (list, list.__iter__), (tuple, tuple.__iter__)):
        if issubclass(type(value), kind):
            return [each for each in parts(value) if is_nothing(each) is None]
    return []


@dataclass(slots=True)
class _Heap:
    """What there is of a script: objects of its classes, the classes, functions with variables of others."""

    objects: list[object] = field(default_factory=list)
    classes: list[type] = field(default_factory=list)
    functions: list[tuple[Scope, FunctionType]] = field(default_factory=list)


class Variables:
    """The variables and objects of a script as they are, which are read without running anything of it.

    Parameters
    ----------
    script
        Whose they are.
    frames
        The functions that run now.
    """

    def __init__(self, script: Script, frames: Iterable[FrameType]) -> None:
        self._script = script
        self._running: dict[Scope, list[FrameType]] = defaultdict(list)
        for frame in frames:
            self._add(frame)

    def _add(self, frame: FrameType) -> None:
        code = frame.f_code
        line = 0 if code.co_name == "<module>" else code.co_firstlineno
        scope = self._script.scopes.get((code.co_filename, line))
        if scope is not None and code.co_name not in _NESTED and frame not in self._running[scope]:
            self._running[scope].append(frame)

    @cached_property
    def _heap(self) -> _Heap:
        """Everything that there is, looked through once, and only if it must be: that takes a tenth of a second."""
        found = _Heap()
        for each in gc.get_objects():
            kind = type(each)
            if kind is types.GeneratorType and each.gi_frame is not None:
                self._add(each.gi_frame)
            elif kind is FunctionType and each.__closure__:
                scope = self._script.scopes.get((each.__code__.co_filename, each.__code__.co_firstlineno))
                if scope is not None:
                    found.functions.append((scope, each))
            elif issubclass(kind, type):
                found.classes += [each] if self.is_own(each) else []
            elif self.is_own(kind):
                found.objects.append(each)
        return found

    def _frames_of(self, scope: Scope) -> list[FrameType]:
        """Return the frames of a function that runs, or is to go on as a generator."""
        if any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(scope.node)):
            assert self._heap
        return self._running[scope]

    def forget(self) -> None:
        """Release what was read: up to Python 3.12 a frame keeps what it was asked for, and objects live longer."""
        for frame in (each for frames in self._running.values() for each in frames):
            if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
                held = frame.f_locals
                if sys.getrefcount(held) <= _OWN_REFERENCES:  # otherwise the script has asked for locals(), too
                    held.clear()
        self._running.clear()

    def is_own(self, kind: type) -> bool:
        """Return whether a class is the script's."""
        return type.__getattribute__(kind, "__dict__").get("__module__") in self._script.modules

    def of_name(self, name: str, scope: Scope) -> list[object]:
        """Return what a variable of a scope holds, once for each time that the function runs."""
        if scope.parent is None:
            return [vars(scope.module)[name]] if name in vars(scope.module) else []
        found = [frame.f_locals[name] for frame in self._frames_of(scope) if name in frame.f_locals]
        if any(
            isinstance(each, ast.FunctionDef | ast.Lambda) and each is not scope.node for each in ast.walk(scope.node)
        ):
            for inner, each in self._heap.functions:
                if inner is not scope and _is_below(inner, scope) and name in each.__code__.co_freevars:
                    cells = dict(zip(each.__code__.co_freevars, each.__closure__ or (), strict=False))
                    found += _contents(cells[name])
        return found

    def of_attribute(self, name: str) -> Iterator[object]:
        """Yield what the objects and classes of the script have in an attribute."""
        for each in self._heap.objects:
            yield from own_attribute(each, name)
        for kind in self._heap.classes:
            if name in (given := type.__getattribute__(kind, "__dict__")) and not isinstance(
                given[name], property | FunctionType | types.MemberDescriptorType
            ):
                yield given[name]

    def is_between(self, scope: Scope, place: SourcePlace, index: int) -> bool:
        """Return whether a function is just between a statement and a later one of the same block."""
        for frame in self._running[scope]:
            statement = _running(frame, scope)
            while statement is not None and statement in self._script.places:
                here = self._script.places[statement]
                if here.block is place.block and place.index < here.index <= index:
                    return True
                statement = self._script.above(statement)
        return False


def _running(frame: FrameType, scope: Scope) -> ast.stmt | None:
    """Return the innermost statement that a frame is at."""
    positions = getattr(frame.f_code, "co_positions", None)
    line, column = frame.f_lineno, None
    if positions is not None and frame.f_lasti >= 0:
        begin, _, begin_column, _ = list(positions())[frame.f_lasti // 2]
        line, column = begin or line, begin_column
    found: ast.stmt | None = None
    for each in ast.walk(scope.node):
        if isinstance(each, ast.stmt) and each is not scope.node and each.lineno <= line <= (each.end_lineno or 0):
            starts_later = column is not None and (each.lineno, each.col_offset) > (line, column)
            if not starts_later and (
                found is None or (each.lineno, each.col_offset) >= (found.lineno, found.col_offset)
            ):
                found = each
    return found


def _is_below(scope: Scope | None, other: Scope) -> bool:
    while scope is not None and scope is not other:
        scope = scope.parent
    return scope is other


def _contents(cell: types.CellType) -> list[object]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def own_attribute(holder: object, name: str) -> list[object]:
    """Return what an object has in an attribute of its own, [] where it has none; nothing of its class is called."""
    found: list[object] = []
    for kind in type(holder).__mro__:
        given = type.__getattribute__(kind, "__dict__")
        if name in given and isinstance(given[name], types.MemberDescriptorType):
            try:
                found.append(given[name].__get__(holder))
            except AttributeError:
                continue
    try:
        attributes = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return found
    places = (attributes, attributes.get("_buffers"), attributes.get("_parameters"))
    return found + [each[name] for each in places if isinstance(each, dict) and name in each]
