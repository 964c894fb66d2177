"""A device that is left out of the user's own loop: when it may go without anything of it being missed.

In: the order in which batches are handed out and used, the source of a script. Out: which batch is in use, whether all
that was handed out is used up, and whether the script may still sum up what it has counted of it.
It must not talk to other processes.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
import sysconfig
import weakref
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, ModuleType

from torch import Tensor

from hetero.train.whole_draws import Rows

__all__ = ["BatchOrder", "SummedPlaces"]

_KEPT = 4
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_HERE = os.path.dirname(os.path.abspath(__file__))
_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
_NOT_THEIRS = (os.path.dirname(_HERE), *(sysconfig.get_path(name) + os.sep for name in _INSTALLED))
"""Where no script is; one may well lie below the interpreter's own folder, as in /usr/src/app."""


@dataclass(slots=True)
class _Epoch:
    """What batches come from: a loader in one of its epochs, or what the script splits.

    Attributes
    ----------
    recent
        The rows of the last batches, and the tensors that the script has of each.
    handed
        Batches of this epoch.
    used
        Whether one of them was followed by a backward pass.
    newer
        Batches since the one that was given to a model and whose backward pass is to come; None where there is none.
    is_over
        Whether the epoch is; its last batches may still be in use.
    """

    recent: deque[tuple[Rows, tuple[weakref.ref[Tensor], ...]]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    handed: int = 0
    used: bool = False
    newer: int | None = None
    is_over: bool = False


class BatchOrder:
    """The order of batches, models and backward passes, which tells which batch is in use.

    Attributes
    ----------
    ahead
        Batches that the script fetches before it uses the one before.
    is_seen
        Whether it is known which batch each backward pass is of.
    in_use
        Rows of the batch that the next backward pass is of.
    are_several
        Whether batches of several sources, with other parts of the whole, meet in it.

    Notes
    -----
    A batch is recognised by its tensors where they are given to a prepared model as they are. Otherwise it is taken to
    be the newest. While a single source is open, and the script uses each batch before it fetches the next but `ahead`,
    a new batch says that those before are done with. With several sources at once nothing can be said.

    Examples
    --------
    >>> order = BatchOrder()
    >>> for _ in range(2):
    ...     order.handed("loader", Rows(0, 4, 8))
    ...     order.used()
    >>> order.is_done("loader"), order.ahead
    (True, 0)
    >>> order.handed("another", Rows(0, 4, 8)), order.is_done("loader")
    (None, False)
    """

    def __init__(self) -> None:
        self._open: dict[object, _Epoch] = {}
        self._last: object = None
        self._met: set[Rows] = set()
        self.ahead = 0
        self.is_seen = True
        self.in_use = Rows(0, 1, 1)

    @property
    def sources(self) -> list[object]:
        """Those of which batches may be in use."""
        return [source for source, one in self._open.items() if not one.is_over]

    @property
    def are_several(self) -> bool:
        """See above."""
        return len({rows.count / rows.whole for rows in self._met}) > 1

    def handed(self, source: object, rows: Rows) -> None:
        """Record that a batch was handed out."""
        for each in [each for each, one in self._open.items() if one.is_over and (each == source or one.newer is None)]:
            del self._open[each]
        one = self._open.setdefault(source, _Epoch())
        one.handed += 1
        one.recent.append((rows, ()))
        if one.newer is not None:
            one.newer += 1
        if all(each.newer is None for each in self._open.values()):
            self.in_use = rows
        self._last = source

    def holds(self, tensors: Sequence[Tensor]) -> None:
        """Record the tensors of the batch that was handed out last."""
        recent = self._open[self._last].recent
        recent[-1] = recent[-1][0], tuple(weakref.ref(each) for each in tensors)

    def given(self, tensors: Sequence[Tensor]) -> Rows | None:
        """Record that a model is given tensors; returns the rows of the batch that they are, None if unknown."""
        for one in self._open.values():
            for newer, (rows, known) in enumerate(reversed(one.recent)):
                if any(each() is tensor for each in known for tensor in tensors):
                    one.newer, self.in_use = newer, rows
                    self._met.add(rows)
                    return self.in_use
        return None

    def used(self) -> None:
        """Record that a backward pass begins."""
        pending = [one.newer for one in self._open.values() if one.newer is not None]
        last = self._open.get(self._last)
        if pending:
            self.ahead = max(self.ahead, *pending)
        elif last is not None and not last.used:  # what was fetched before it counts as fetched ahead
            self.ahead = max(self.ahead, last.handed - 1)
            self.is_seen = not self.ahead
        if last is not None:
            last.used = True

    def computed(self) -> None:
        """Record that a backward pass is over."""
        self._met.clear()
        for one in self._open.values():
            one.newer = None

    def ended(self, source: object) -> None:
        """Record that the epoch of a loader is over."""
        if source in self._open:
            self._open[source].is_over = True

    def is_done(self, source: object) -> bool:
        """Return whether all batches but the last `ahead` are done with when this source has its next one."""
        one = self._open.get(source)
        return set(self.sources) <= {source} and (one is None or one.is_over or one.used)


class SummedPlaces:
    """Where a script sums up over processes, and whether a process may go without any of it missing.

    Parameters
    ----------
    fleet
        Whose `sum` and `gather` the script calls.
    modules
        Those in which to look for the script's own.

    Attributes
    ----------
    is_certain
        Whether all calls so far were at places that were found in the source.

    Notes
    -----
    What is summed is safe where its names are variables of a function that has begun after the last batch: they hold
    nothing of earlier ones. Everything else may hold what the process that goes has counted, which would be lost.
    """

    def __init__(self, fleet: object, modules: Mapping[str, ModuleType] = sys.modules) -> None:
        self._fleet = fleet
        self._modules = modules
        self._safe: dict[tuple[str, int], bool] | None = None
        self._active: set[int] = set()
        self.is_certain = True

    def called(self) -> None:
        """Record a call of `sum` or `gather`."""
        if self._safe is not None:
            frame = _caller()
            self.is_certain &= frame is not None and _is_known(frame, self._safe)

    def handed(self) -> None:
        """Record that a batch was handed out: the functions that run now may count it."""
        self._active = {id(frame) for frame in _frames()}

    @property
    def are_safe(self) -> bool:
        """Return whether a process may go between two runs of the functions that sum up."""
        if self._safe is None:
            self._safe = _places_of(self._fleet, list(self._modules.values()))
        return self.is_certain and all(self._safe.values())

    def may_leave(self) -> bool:
        """Return whether nothing that the script sums can hold what it has counted of batches handed out so far."""
        return self.are_safe and not any(
            id(frame) in self._active and (frame.f_code.co_filename, frame.f_code.co_firstlineno) in (self._safe or ())
            for frame in _frames()
        )


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_HERE):
            yield frame
        frame = frame.f_back


def _caller() -> FrameType | None:
    return next(_frames(), None)


def _is_known(frame: FrameType, places: Mapping[tuple[str, int], bool]) -> bool:
    while frame is not None:
        if (frame.f_code.co_filename, frame.f_code.co_firstlineno) in places:
            return True
        if frame.f_code.co_name not in ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>"):
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _places_of(fleet: object, modules: Sequence[ModuleType]) -> dict[tuple[str, int], bool]:
    """Return the functions, by file and first line, in which a script sums up, and whether by their own variables only.

    The body of a module has the line 0 or 1, and is never safe.
    """
    found: dict[tuple[str, int], bool] = {}
    for module in modules:
        file = getattr(module, "__file__", None)
        if not file or not file.endswith(".py") or file.startswith(_NOT_THEIRS):
            continue
        try:
            tree = ast.parse("".join(linecache.getlines(file)))
        except SyntaxError:
            continue
        names = {name for name, value in vars(module).items() if value is fleet}
        imported = {name for name, value in vars(module).items() if isinstance(value, ModuleType)}
        _Places(file, names, imported, found).visit(tree)
    return found


class _Places(ast.NodeVisitor):
    """Finds calls of `sum` and `gather` that may be those of the fleet."""

    def __init__(self, file: str, names: set[str], modules: set[str], found: dict[tuple[str, int], bool]) -> None:
        self._file = file
        self._names = names
        self._modules = modules
        self._found = found
        self._functions: list[_Function] = []

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.value, ast.Call) and _last_name(node.value.func) == "init":
            self._names.update(name for target in node.targets if (name := _last_name(target)))
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._functions.append(node)
        self.generic_visit(node)
        self._functions.pop()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._functions.append(node)
        self.generic_visit(node)
        self._functions.pop()

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in ("sum", "gather"):
            return
        base, first = _last_name(node.func.value), node.args[0] if node.args else None
        by_parameter = base in _parameters(self._functions) and not isinstance(first, ast.Constant | ast.UnaryOp | None)
        if base in self._names or (base is None and _is_init(node.func.value)) or by_parameter:
            self._note(node)

    def _note(self, node: ast.Call) -> None:
        if not self._functions:
            self._found[self._file, 1] = self._found[self._file, 0] = False
            return
        function = self._functions[-1]
        line = min([function.lineno, *(each.lineno for each in function.decorator_list)])
        place = self._file, line
        self._found[place] = self._found.get(place, True) and _is_own(node, function, self._modules | self._names)


def _last_name(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _is_init(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _last_name(node.func) == "init"


def _parameters(functions: Sequence[_Function]) -> set[str]:
    given = [function.args for function in functions]
    return {each.arg for args in given for each in (*args.posonlyargs, *args.args, *args.kwonlyargs)}


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield which names an assignment gives which values."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for each, its in zip(target.elts, value.elts, strict=True):
            yield from _pairs(each, its)
        return
    for part in ast.walk(target):
        if isinstance(part, ast.Name):
            yield part.id, value


def _is_own(call: ast.Call, function: _Function, harmless: Collection[str]) -> bool:
    """Return whether what is summed is made of variables that the function itself begins, and of nothing that lasts.

    Parameters
    ----------
    harmless
        Names whose methods return nothing that a script counts: modules, and the fleet.
    """
    nodes = list(ast.walk(function))
    own = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    own -= _parameters([function])
    values: dict[str, list[ast.expr]] = {}
    for each in nodes:
        if isinstance(each, ast.Global | ast.Nonlocal | ast.FunctionDef | ast.Lambda) and each is not function:
            return False
        if isinstance(each, ast.Assign):
            for name, value in (pair for target in each.targets for pair in _pairs(target, each.value)):
                values.setdefault(name, []).append(value)
    open_values, seen = [*call.args, *(each.value for each in call.keywords)], set[str]()
    while open_values:
        value = open_values.pop()
        if isinstance(value, ast.Attribute | ast.Subscript | ast.Name) and _root(value) not in own:
            return False
        called = {id(part.func) for part in ast.walk(value) if isinstance(part, ast.Call)}
        for part in ast.walk(value):
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
                root = _root(part.func)
                if root is not None and root not in own and root not in harmless:
                    return False
            if isinstance(part, ast.Name) and id(part) not in called and part.id in own and part.id not in seen:
                seen.add(part.id)
                open_values += values.get(part.id, [])
    return bool(seen) or all(isinstance(each, ast.Constant) for each in call.args)


def _root(node: ast.expr) -> str | None:
    """Return the name at the beginning of `a.b[c].d`, None where it is no name."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
