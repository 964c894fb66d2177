"""What a script sums up over processes, and whether one process may go without any of it being missed.

In: the source of a script, its variables and objects as they are. Out: the first expression that holds what the process
has counted, if any. It must not run the script's code, nor talk to other processes.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch

from hetero.train.launch.script_source import Definition, Scope, Script, Value, last_name
from hetero.train.launch.script_variables import DATA, Variables, is_nothing, objects_in, own_attribute

__all__ = ["Missed", "SummedValues"]

_HERE = str(Path(__file__).absolute().parents[1]) + os.sep
_OF_TENSORS = frozenset({"T", "data", "device", "dtype", "grad", "imag", "mT", "ndim", "real", "shape"})
_UNREADABLE = frozenset({"eval", "exec", "getattr", "globals", "locals", "vars"})
_LINEAR = {
    "array", "as_tensor", "asarray", "clone", "cpu", "cuda", "detach", "dict", "double", "float", "from_numpy", "get",
    "int", "item", "items", "long", "max", "mean", "numpy", "reshape", "squeeze", "stack", "sum", "tensor", "to",
    "values", "view",
}  # fmt: skip
"""What makes zeros of zeros; anything else may count them."""
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Missed:
    """An expression by which something would be missed if this process went.

    Attributes
    ----------
    expression, file, line
        What the script sums up, or what goes into it, and where.
    holds
        What it holds.
    """

    expression: str
    file: str
    line: int
    holds: str

    def __str__(self) -> str:
        return f"{self.expression} ({os.path.basename(self.file)}, line {self.line}) {self.holds}"


@dataclass(frozen=True, slots=True)
class How:
    """What is done with an expression.

    Attributes
    ----------
    called
        Whether an attribute or a method of it is asked for.
    empty
        Whether rows of zeros are something.
    """

    called: bool = False
    empty: bool = False


class _Search:
    """Looks for what would be missed: back from what is summed to all that it is made of.

    Parameters
    ----------
    by_value
        Whether variables that hold nothing are harmless; False where the process may still count into them before it
        goes.

    Notes
    -----
    A variable that is surely given another value before it is summed is harmless whatever it holds: what it is made of
    is looked at instead. Of a product one factor that is nothing is enough.
    """

    def __init__(self, script: Script, variables: Variables, *, by_value: bool) -> None:
        self._script = script
        self._variables = variables
        self._by_value = by_value
        self._seen: dict[tuple[ast.AST, How], Missed | None] = {}

    def first(self, parts: Iterable[Value], how: How) -> Missed | None:
        """Return what would be missed of one of several expressions."""
        return next((found for node, scope in parts if (found := self.of(node, scope, how)) is not None), None)

    def of(self, node: ast.expr, scope: Scope, how: How) -> Missed | None:
        """Return what would be missed of an expression.

        Parameters
        ----------
        how
            What is done with it.
        """
        key = node, how
        if key not in self._seen:
            self._seen[key] = None
            self._seen[key] = self._of(node, scope, how)
        return self._seen[key]

    def _of(self, node: ast.expr, scope: Scope, how: How) -> Missed | None:
        if isinstance(node, ast.Name):
            return self._name(node, scope, how)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, scope, how)
        if isinstance(node, ast.Call):
            return self._call(node, scope, how)
        if isinstance(node, ast.Subscript):
            holder, key = self._value(node.value, scope), node.slice
            if issubclass(type(holder), dict) and isinstance(key, ast.Constant):
                held = [dict.__getitem__(holder, key.value)] if dict.__contains__(holder, key.value) else []
                return self._held(node, scope, held, how) or self.first(self._put_into(node.value, scope), how)
            return self.of(node.value, scope, how)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.MatMult):
            return self.of(node.left, scope, how) and self.of(node.right, scope, how)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.FloorDiv):
            return self.of(node.left, scope, how)
        if isinstance(node, ast.Constant | ast.JoinedStr):
            return None
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
            return self.first(((each.iter, scope) for each in node.generators), replace(how, empty=True))
        how = How(empty=how.empty or isinstance(node, ast.Compare))
        return self.first(((each, scope) for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)), how)

    def _name(self, node: ast.Name, scope: Scope, how: How) -> Missed | None:
        owner = scope.owner(node.id)
        if owner is None:
            return None
        if owner is scope:
            found = scope.dominating(node.id, node, self._script)
            if found is not None and not self._variables.is_between(scope, found[1], found[2]):
                return self.first(((value, scope) for value in found[0].values), how)
        values = self._variables.of_name(node.id, owner)
        every = owner.definitions.get(node.id, [])
        stored = self._script.of_modules.get((owner.module.__name__, node.id), []) if owner.parent is None else []
        if self._is_constant(every) and not stored and node.id not in owner.parameters:
            return None
        missed = self._held(node, scope, values, how) or self.first(stored, how)
        if missed is None and values and all(is_nothing(value) is None for value in values):
            return None  # it is no data, whatever it was made of
        missed = missed or self.first(((v, each.scope) for each in every for v in each.values), how)
        if missed is None and node.id in owner.parameters:
            missed = self.first(self._arguments(owner, node.id), how)
        return missed

    def _is_constant(self, every: Iterable[Definition]) -> bool:
        """Return whether a name is a number that the script has written down, and nothing else."""
        found = list(every)
        return bool(found) and all(
            each.replaces and each.values and all(isinstance(value, ast.Constant) for value in each.values)
            for each in found
        )

    def _held(self, node: ast.expr, scope: Scope, values: Iterable[object], how: How) -> Missed | None:
        """Return an expression as missed where one of its values is something."""
        for value in values:
            nothing = is_nothing(value, empty=how.empty)
            if how.called and not all(self._is_harmless(each) for each in objects_in(value)):
                return Missed(ast.unparse(node), scope.file, node.lineno, _UNREAD.format(type(value).__name__))
            if nothing is False or (nothing and not self._by_value and _may_count(value)):
                return Missed(ast.unparse(node), scope.file, node.lineno, _HOLDS)
        return None

    def _is_harmless(self, value: object) -> bool:
        kind = type(value)
        known = issubclass(kind, ModuleType | type | FunctionType | types.GeneratorType) or self._variables.is_own(kind)
        return known or self._is_settings(value)

    @staticmethod
    def _is_settings(value: object) -> bool:
        """Return whether the numbers of an object are given, and not counted."""
        kind = type(value)
        is_ours = str(type.__getattribute__(kind, "__dict__").get("__module__")).startswith("hetero.")
        return is_ours or issubclass(kind, argparse.Namespace | types.SimpleNamespace | torch.utils.data.DataLoader)

    def _attribute(self, node: ast.Attribute, scope: Scope, how: How) -> Missed | None:
        base = self._value(node.value, scope)
        stored, functions = self._script.stores.get(node.attr, []), self._script.functions.get(node.attr, [])
        if issubclass(type(base), ModuleType):
            if base.__name__ not in self._script.modules:
                return None
            top = self._script.scopes.get((getattr(base, "__file__", ""), 0))
            every = [] if top is None else top.definitions.get(node.attr, [])
            stored = self._script.of_modules.get((base.__name__, node.attr), [])
            if self._is_constant(every) and not stored:
                return None
            held = [vars(base)[node.attr]] if node.attr in vars(base) else []
            missed = self._held(node, scope, held, how) or self.first(stored, how)
            return missed or self.first(((v, each.scope) for each in every for v in each.values), how)
        if node.attr in _OF_TENSORS:
            return self.of(node.value, scope, replace(how, empty=how.empty or node.attr == "shape"))
        if stored or functions:
            missed = None
            is_changed = node.attr in self._script.changed
            if is_changed or not stored or not all(isinstance(value, ast.Constant) for value, _ in stored):
                missed = self._held(node, scope, self._variables.of_attribute(node.attr), how)
            missed = missed or self.first(stored, how)
            return missed or self.first(((value, each) for each in functions for value in each.returns), how)
        if base is not _MISSING and is_nothing(base) is None:
            held = [] if self._is_settings(base) else own_attribute(base, node.attr) or [base]
            return self._held(node, scope, held, replace(how, called=True))
        return self.of(node.value, scope, replace(how, called=True))

    def _call(self, node: ast.Call, scope: Scope, how: How) -> Missed | None:
        if self._script.is_site(node):
            return None
        name, func = last_name(node.func), node.func
        if isinstance(func, ast.Name) and name in _UNREADABLE:
            return Missed(ast.unparse(node), scope.file, node.lineno, "cannot be read without being run")
        function = self._value(func, scope)
        if self._script.is_split(node) or (issubclass(type(function), type) and not issubclass(function, DATA)):
            return None
        args = [*node.args, *(each.value for each in node.keywords)]
        inner = self._script.functions.get(name or "", [])
        how = How(empty=how.empty or not (inner or name in _LINEAR))
        found = [self.of(each, scope, how) for each in args]
        missed = next(filter(None, found), None)
        if missed is not None and None in found and self._is_of_rows(function):
            missed = None
        if missed is None and isinstance(func, ast.Attribute):
            missed = self.of(func.value, scope, replace(how, called=True))
        elif missed is None and isinstance(func, ast.Name):
            owner = scope.owner(func.id)
            every = [] if owner is None else owner.definitions.get(func.id, [])
            values = ((value, each.scope) for each in every for value in each.values)
            missed = self.first(((value.body, each) for value, each in values if isinstance(value, ast.Lambda)), how)
        elif missed is None:
            missed = self.of(func, scope, how)
        return missed or self.first(((value, each) for each in inner for value in each.returns), how)

    @staticmethod
    def _is_of_rows(function: object) -> bool:
        """Return whether what a function returns is of the rows that it is given, beside weights or not."""
        kind = type(function)
        is_functional = kind is FunctionType and function.__module__ == "torch.nn.functional"
        return is_functional or issubclass(kind, torch.nn.Module)

    def _value(self, node: ast.expr, scope: Scope) -> Any:
        """Return what a chain of names and attributes is, where it is one thing and will be the same."""
        if isinstance(node, ast.Name) and (owner := scope.owner(node.id)) is not None:
            found = scope.dominating(node.id, node, self._script) if owner is scope else None
            if found is not None and found[0].values and not self._variables.is_between(scope, found[1], found[2]):
                return _MISSING
            values = self._variables.of_name(node.id, owner)
            return values[0] if len(values) == 1 else _MISSING
        if isinstance(node, ast.Attribute):
            base = self._value(node.value, scope)
            held = [] if base is _MISSING else own_attribute(base, node.attr)
            if issubclass(type(base), torch.nn.Module) and not held:
                within = [each for each in own_attribute(base, "_modules") if isinstance(each, dict)]
                held = [each[node.attr] for each in within if node.attr in each]
            return held[0] if len(held) == 1 else _MISSING
        return _MISSING

    def _put_into(self, node: ast.expr, scope: Scope) -> list[Value]:
        """Return what the script puts into a container."""
        if isinstance(node, ast.Attribute):
            return self._script.stores.get(node.attr, [])
        if isinstance(node, ast.Name) and (owner := scope.owner(node.id)) is not None:
            every = owner.definitions.get(node.id, [])
            return [(value, each.scope) for each in every if not each.replaces for value in each.values]
        return [(node, scope)]

    def _arguments(self, scope: Scope, name: str) -> Iterator[Value]:
        """Yield what a parameter of a function is given where it is called."""
        assert not isinstance(scope.node, ast.Module)
        names = [scope.node.name]
        names += [each for each, found in self._script.functions.items() if scope in found and each != scope.node.name]
        given = scope.node.args
        positional = [each.arg for each in (*given.posonlyargs, *given.args)][scope.is_method :]
        for call, caller in (each for called in names for each in self._script.calls.get(called, [])):
            is_plain = not any(isinstance(each, ast.Starred) for each in call.args) and name in positional
            index = positional.index(name) if is_plain else len(call.args)
            by_keyword = [each.value for each in call.keywords if each.arg in (name, None)]
            yield from ((each, caller) for each in by_keyword)
            if is_plain and index < len(call.args):
                yield call.args[index], caller
            elif not is_plain and not by_keyword:
                yield from ((each, caller) for each in call.args)


_HOLDS = "holds what this process has counted"
_UNREAD = "is of a {}, whose counts cannot be read without running its code"


def _may_count(value: object) -> bool:
    """Return whether a value is of the kind that a script counts in."""
    return value is not None and not issubclass(type(value), bool | str | bytes)


class SummedValues:
    """What a script sums up, and whether a process may go without any of it missing.

    Parameters
    ----------
    fleet
        Whose `sum` and `gather` the script calls.
    modules
        Those in which to look for the script's own.

    Attributes
    ----------
    is_certain
        Whether all sums so far were at places that were found in the source.

    Notes
    -----
    What a process has counted is in variables. If those that a sum is made of hold nothing when a loop over a loader
    begins, the process has nothing to add to what the others will count from there on. Variables of functions that
    do not run hold nothing. Attributes are looked up in all objects of the script's classes.
    """

    def __init__(self, fleet: object, modules: Mapping[str, ModuleType] = sys.modules) -> None:
        self._fleet = fleet
        self._modules = modules
        self._read: Script | None = None
        self.is_certain = True

    @property
    def _script(self) -> Script:
        if self._read is None:
            self._read = Script(self._fleet, list(self._modules.values()))
            self.is_certain &= self._read.is_readable
        return self._read

    def called(self) -> None:
        """Record a call of `sum` or `gather`."""
        if self._read is not None:
            frame = next(_frames(), None)
            self.is_certain &= frame is not None and self._is_known(frame, self._read)

    @staticmethod
    def _is_known(frame: FrameType | None, script: Script) -> bool:
        sites = {
            (scope.file, line)
            for call, scope in script.sites
            for line in range(call.lineno, (call.end_lineno or 0) + 1)
        }
        return frame is not None and (frame.f_code.co_filename, frame.f_lineno) in sites

    @property
    def is_readable(self) -> bool:
        """Return whether all places at which the script sums up are known."""
        return self._script.is_readable and self.is_certain

    def missed(self, *, by_value: bool) -> Missed | None:
        """Return what would be missed if this process went now, None for nothing.

        Parameters
        ----------
        by_value
            Whether a loop over a loader is about to begin, so that nothing is counted any more until the process goes.
            Otherwise no variable that may be counted in may be there.
        """
        self._read = None  # there may be more modules now, and more names
        script = self._script
        if not self.is_readable:
            return Missed("a sum", "the script", 0, "is called in another way than as fleet.sum(...)")
        if not script.sites:
            return None
        variables = Variables(script, _frames())
        search = _Search(script, variables, by_value=by_value)
        sites = ((call, scope, [*call.args, *(each.value for each in call.keywords)]) for call, scope in script.sites)
        try:
            parts = ((each, scope, _is_gather(call)) for call, scope, given in sites for each in given)
            missed = (search.of(each, scope, How(empty=empty)) for each, scope, empty in parts)
            return next((found for found in missed if found is not None), None)
        finally:
            variables.forget()


def _is_gather(call: ast.Call) -> bool:
    return last_name(call.func) == "gather"


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_HERE):
            yield frame
        frame = frame.f_back
