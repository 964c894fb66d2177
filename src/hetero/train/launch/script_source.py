"""The source of a script as far as it says what a variable comes from, and where the script sums up over processes.

In: the modules of a script. Out: its functions, what is assigned to names and attributes, the calls of `fleet.sum`.
It must not run the script's code, nor look at its variables but for modules and the fleet.
"""

from __future__ import annotations

import ast
import gc
import linecache
import os
import sysconfig
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

__all__ = ["Code", "Definition", "Scope", "Script", "SourcePlace", "Value", "last_name"]

_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
_NOT_THEIRS = (
    str(Path(__file__).absolute().parents[2]) + os.sep,
    *(sysconfig.get_path(name) + os.sep for name in _INSTALLED),
)
"""Where no script is; one may well lie below the interpreter's own folder, as in /usr/src/app."""
_SUMS = ("sum", "gather")

_Function = ast.FunctionDef | ast.AsyncFunctionDef
Code = tuple[str, int]
"""A function by its file and first line; 0 for a module."""


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """What a name may come from.

    Attributes
    ----------
    values
        The expressions; of a loop what it goes over.
    statement, scope
        In which they are.
    replaces
        Whether the name holds nothing of earlier values afterwards.
    """

    values: tuple[ast.expr, ...]
    statement: ast.stmt
    scope: Scope
    replaces: bool


@dataclass(slots=True, eq=False)
class Scope:
    """A module or a function, and what is written in it."""

    file: str
    module: ModuleType
    node: ast.Module | _Function
    parent: Scope | None = None
    is_method: bool = False
    definitions: dict[str, list[Definition]] = field(default_factory=lambda: defaultdict(list))
    declared: dict[str, type[ast.stmt]] = field(default_factory=dict)
    returns: list[ast.expr] = field(default_factory=list)

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters."""
        if isinstance(self.node, ast.Module):
            return []
        args = self.node.args
        return [each.arg for each in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg) if each]

    @property
    def code(self) -> Code:
        """By what its frames are known: file and first line, 0 of a module."""
        if isinstance(self.node, ast.Module):
            return self.file, 0
        return self.file, min(each.lineno for each in [*self.node.decorator_list, self.node])

    @property
    def top(self) -> Scope:
        """The module."""
        return self if self.parent is None else self.parent.top

    def owner(self, name: str) -> Scope | None:
        """Return the scope whose variable a name is, None for a built-in."""
        scope: Scope | None = self
        if self.declared.get(name) is ast.Global:
            scope = self.top
        elif self.declared.get(name) is ast.Nonlocal:
            scope = self.parent
        while scope is not None:
            own = name in scope.parameters or (name in scope.definitions and name not in scope.declared)
            if own or (scope.parent is None and name in vars(scope.module)):
                return scope
            scope = scope.parent
        return None

    def dominating(self, name: str, node: ast.AST, script: Script) -> tuple[Definition, SourcePlace, int] | None:
        """Return what a name at a node surely comes from, where one can tell.

        Returns
        -------
        tuple
            The definition, its place, and the index of the statement with the node among the same statements.
        """
        every = self.definitions.get(name, [])
        if any(each.scope is not self for each in every):
            return None
        statement = script.statements.get(node)
        while statement is not None:
            place = script.places[statement]
            for index in range(place.index - 1, -1, -1):
                before = place.block[index]
                there = [each for each in every if script.is_within(each.statement, before)]
                if there:
                    is_plain = all(each.statement is before and each.replaces for each in there)
                    compound = isinstance(before, ast.For | ast.AsyncFor | ast.With | ast.AsyncWith)
                    found = there[-1], SourcePlace(place.block, index, place.parent), place.index
                    return found if is_plain and not compound else None
            parent = place.parent
            head = [each for each in every if each.statement is parent and each.replaces]
            if head and place.block is getattr(parent, "body", None):
                return head[-1], SourcePlace(place.block, -1, parent), place.index
            is_loop = isinstance(parent, ast.For | ast.AsyncFor | ast.While)
            if parent is self.node or (is_loop and any(script.is_within(each.statement, parent) for each in every)):
                return None
            statement = script.above(statement)
        return None


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Where a statement is: among which, at which index (-1: what their loop begins with), and below which node."""

    block: list[ast.stmt]
    index: int
    parent: ast.AST


class Script:
    """The modules of a script, read.

    Attributes
    ----------
    sites
        The calls that sum up, and their scopes.
    scopes
        By file and first line.
    stores
        What is written to attributes, by their names.
    functions
        By name; those that make objects by the class's name, too.
    calls
        By the last part of what is called.
    changed
        Names of attributes that are changed, not only given.
    of_modules
        What is written to the variables of other modules, by the module's name and theirs.
    fleets
        Names of the fleet.
    modules
        Names of the modules.
    is_readable
        Whether sums are called in no other way than by `fleet.sum` as it stands.
    places, statements
        Of each statement, and the statement of each expression.
    """

    def __init__(self, fleet: object, modules: Iterable[ModuleType]) -> None:
        self.sites: list[tuple[ast.Call, Scope]] = []
        self.scopes: dict[Code, Scope] = {}
        self.stores: dict[str, list[Value]] = defaultdict(list)
        self.functions: dict[str, list[Scope]] = defaultdict(list)
        self.calls: dict[str, list[tuple[ast.Call, Scope]]] = defaultdict(list)
        self.changed: set[str] = set()
        self.fleets: set[str] = set()
        self.of_modules: dict[tuple[str, str], list[Value]] = defaultdict(list)
        self.modules: set[str] = set()
        self.is_readable = True
        self.places: dict[ast.stmt, SourcePlace] = {}
        self.statements: dict[ast.AST, ast.stmt] = {}
        trees = [(module, tree) for module in modules if (tree := _tree_of(module)) is not None]
        self.modules.update(module.__name__ for module, _ in trees)
        held = _names_of(fleet)
        for module, tree in trees:
            names = _aliases(tree, held | {name for name, value in vars(module).items() if value is fleet})
            self.fleets |= names
            _SourceReader(self, Scope(str(module.__file__), module, tree), names).read(tree)

    def above(self, statement: ast.stmt) -> ast.stmt | None:
        """Return the statement that a statement is in, None for one of a module."""
        parent = self.places[statement].parent if statement in self.places else None
        return parent if isinstance(parent, ast.stmt) else self.statements.get(parent) if parent is not None else None

    def is_within(self, statement: ast.stmt | None, other: ast.AST) -> bool:
        """Return whether a statement is another one, or a part of it."""
        while statement is not None and statement is not other:
            statement = self.above(statement)
        return statement is other

    def is_split(self, node: ast.Call) -> bool:
        """Return whether a call gives the own rows of a batch."""
        func = node.func
        return isinstance(func, ast.Attribute) and func.attr == "split" and last_name(func.value) in self.fleets

    def is_site(self, node: ast.AST) -> bool:
        """Return whether a call sums up over processes."""
        return any(node is each for each, _ in self.sites)


def _tree_of(module: ModuleType) -> ast.Module | None:
    """Return the source of a module of the script's own."""
    file = getattr(module, "__file__", None)
    if not file or not file.endswith(".py") or file.startswith(_NOT_THEIRS):
        return None
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None


def _names_of(fleet: object) -> set[str]:
    """Return the names by which variables of modules and attributes of objects refer to the fleet."""
    found: set[str] = set()
    for holder in gc.get_referrers(fleet):
        given = holder if type(holder) is dict else _attributes(holder)
        found.update(name for name, value in list(given.items()) if value is fleet and type(name) is str)
    return found


def _attributes(holder: object) -> dict[str, object]:
    try:
        found = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _aliases(tree: ast.Module, known: set[str]) -> set[str]:
    """Return the names of the fleet in a module."""
    names, before = set(known), -1
    while len(names) != before:
        before = len(names)
        for node in (each for each in ast.walk(tree) if isinstance(each, ast.Assign)):
            is_init = isinstance(node.value, ast.Call) and last_name(node.value.func) == "init"
            if is_init or last_name(node.value) in names:
                names.update(name for target in node.targets if (name := last_name(target)) is not None)
    return names


class _SourceReader:
    """Reads one scope, and those within."""

    def __init__(self, script: Script, scope: Scope, names: set[str]) -> None:
        self._script = script
        self._scope = scope
        self._names = names
        script.scopes[scope.code] = scope

    def read(self, node: ast.AST, statement: ast.stmt | None = None, *, in_class: bool = False) -> None:
        """Read what is below a node, which is in a statement."""
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                for index, each in enumerate(value):
                    self._script.places[each] = SourcePlace(value, index, node)
                    self._script.statements[each] = each
                    self._statement(each, in_class=in_class)
                continue
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST) and statement is not None:
                    self._script.statements[each] = statement
                    self._expression(each, statement)
                    self.read(each, statement, in_class=in_class)

    def _statement(self, node: ast.stmt, *, in_class: bool) -> None:
        if isinstance(node, _Function):
            self._define(node.name, (), node)
            inner = Scope(self._scope.file, self._scope.module, node, self._scope, in_class)
            self._script.functions[node.name].append(inner)
            _SourceReader(self._script, inner, self._names).read(node)
            return
        if isinstance(node, ast.ClassDef):
            self._define(node.name, (), node)
            self.read(node, node, in_class=True)
            made = [each for each in self._script.functions["__init__"] if each.node in node.body]
            self._script.functions[node.name] += made
            return
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self._bind(target, node.value, node, replaces=not isinstance(node, ast.AugAssign))
                if in_class and isinstance(target, ast.Name):
                    self._script.stores[target.id].append((node.value, self._scope))
        elif isinstance(node, ast.For | ast.AsyncFor):
            self._bind(node.target, node.iter, node, replaces=True)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                if item.optional_vars is not None:
                    self._bind(item.optional_vars, item.context_expr, node, replaces=True)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                self._define((alias.asname or alias.name).partition(".")[0], (), node)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            self._scope.declared.update(dict.fromkeys(node.names, type(node)))
        elif isinstance(node, ast.Return) and node.value is not None:
            self._scope.returns.append(node.value)
        self.read(node, node, in_class=in_class)

    def _expression(self, node: ast.AST, statement: ast.stmt) -> None:
        if isinstance(node, ast.NamedExpr):
            self._bind(node.target, node.value, statement, replaces=False)
        elif isinstance(node, ast.comprehension):
            self._bind(node.target, node.iter, statement, replaces=False)
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name and isinstance(statement, ast.Match):
            self._define(node.name, (statement.subject,), statement, replaces=False)
        elif isinstance(node, ast.Yield | ast.YieldFrom) and node.value is not None:
            self._scope.returns.append(node.value)
        elif isinstance(node, ast.Call):
            self._call(node, statement)
        elif isinstance(node, ast.Attribute) and node.attr in _SUMS and last_name(node.value) in self._names:
            self._script.is_readable &= any(node is call.func for call, _ in self._script.sites)

    def _call(self, node: ast.Call, statement: ast.stmt) -> None:
        name, given = last_name(node.func), [*node.args, *(each.value for each in node.keywords)]
        if name is not None:
            self._script.calls[name].append((node, self._scope))
        if not isinstance(node.func, ast.Attribute):
            return
        base, first = last_name(node.func.value), node.args[0] if node.args else None
        by_parameter = base in self._all_parameters() and not isinstance(first, ast.Constant | ast.UnaryOp | None)
        is_init = isinstance(node.func.value, ast.Call) and last_name(node.func.value.func) == "init"
        if node.func.attr in _SUMS and (base in self._names or by_parameter or is_init):
            self._script.sites.append((node, self._scope))
        elif isinstance(statement, ast.Expr) and statement.value is node:
            self._change(node.func.value, tuple(given), statement)

    def _all_parameters(self) -> set[str]:
        found = set[str]()
        scope: Scope | None = self._scope
        while scope is not None:
            found.update(scope.parameters)
            scope = scope.parent
        return found

    def _bind(self, target: ast.expr, value: ast.expr, statement: ast.stmt, *, replaces: bool) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            values = [value] * len(target.elts)
            if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
                values = value.elts
            for each, its in zip(target.elts, values, strict=True):
                self._bind(each, its, statement, replaces=replaces)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, value, statement, replaces=replaces)
        elif isinstance(target, ast.Name):
            self._define(target.id, (value,), statement, replaces=replaces)
        else:
            self._change(target, (value,), statement, is_given=replaces and isinstance(target, ast.Attribute))

    def _change(
        self, target: ast.expr, values: tuple[ast.expr, ...], statement: ast.stmt, *, is_given: bool = False
    ) -> None:
        """Record that something is put into what a name or an attribute has."""
        while isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Attribute):
            base = vars(self._scope.module).get(last_name(target.value) or "")
            stored = self._script.stores[target.attr]
            if isinstance(base, ModuleType):
                stored = self._script.of_modules[base.__name__, target.attr]
            stored += [(value, self._scope) for value in values]
            if not is_given:
                self._script.changed.add(target.attr)
        elif isinstance(target, ast.Name):
            self._define(target.id, values, statement, replaces=False, is_new=False)

    def _define(
        self,
        name: str,
        values: tuple[ast.expr, ...],
        statement: ast.stmt,
        *,
        replaces: bool = True,
        is_new: bool = True,
    ) -> None:
        found = Definition(values, statement, self._scope, replaces)
        owner: Scope | None = self._scope
        if name in self._scope.declared or not is_new:
            owner = self._scope.owner(name)
        (owner or self._scope).definitions[name].append(found)


def last_name(node: ast.expr) -> str | None:
    """Return the last part of `a.b.c`, None where it is no such chain."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


Value = tuple[ast.expr, Scope]
"""An expression, and the scope of its names."""
