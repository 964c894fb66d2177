"""What signatures and annotations of the package may look like, held by walking its source."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import hetero
from hetero.batch.api import map_batches
from hetero.batch.options import BatchLimits, BatchOptions
from hetero.floor.deprecation import Moved, moved_keywords
from hetero.model.workload import WorkloadSpec
from hetero.session.config_schema import Root
from hetero.session.options import ContextOptions
from hetero.session.requests import OPTIONS

SOURCE = Path(hetero.__file__).parent
MOST_PARAMETERS = 12
MOST_ANY = 284
"""How often `Any` stands in the source; it only goes down."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees() -> list[tuple[Path, ast.Module]]:
    """Return the syntax trees of the source, each by its path in the package."""
    return [(path.relative_to(SOURCE), ast.parse(path.read_text())) for path in sorted(SOURCE.rglob("*.py"))]


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function, bool]]:
    """Yield each function with its dotted name, and whether its first parameter is bound."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in child.decorator_list)
            yield prefix + child.name, child, isinstance(node, ast.ClassDef) and not static
            yield from functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from functions(child, f"{prefix}{child.name}.")
        else:
            yield from functions(child, prefix)


def parameters(function: Function, bound: bool) -> int:
    given = function.args
    more = (given.vararg is not None) + (given.kwarg is not None)
    return len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) + more - bound


def is_command(path: Path, function: Function) -> bool:
    """Return whether the parameters are options of a command, which are no signature that anybody calls."""
    return path.parts[0] == "cli" and "typer." in ast.unparse(function.args)


def test_no_function_has_more_than_twelve_parameters() -> None:
    long = [
        f"{path}:{function.lineno} {name}: {parameters(function, bound)}"
        for path, tree in trees()
        for name, function, bound in functions(tree)
        if parameters(function, bound) > MOST_PARAMETERS and not is_command(path, function)
    ]
    assert long == []


def test_public_functions_show_the_keywords_that_they_take() -> None:
    spaces = [hetero, *(import_module(f"hetero.{space}") for space in hetero._NAMESPACES)]
    hidden = set()
    for name, made in ((name, getattr(space, name)) for space in spaces for name in space.__all__):
        methods = [part for word, part in vars(made).items() if word[0] != "_"] if inspect.isclass(made) else []
        for part in filter(callable, [made, *methods]):
            more = [each for each in inspect.signature(part).parameters.values() if each.kind is each.VAR_KEYWORD]
            hidden |= {(name, part.__name__) for each in more if each.name != "kwargs"}  # those of a user's function
    assert hidden == {
        ("ContextOptions", "overlaid"),  # its own fields
    }


def test_shown_keywords_are_those_that_are_taken() -> None:
    shown = inspect.signature(hetero.task).parameters
    assert list(shown)[1:] == list(OPTIONS)
    assert "int" in str(shown["retries"].annotation)
    assert set(OPTIONS) <= set(inspect.signature(hetero.tasks.TaskFunction.options).parameters)
    fields_of = {each.name for each in fields(WorkloadSpec)}
    assert fields_of <= set(inspect.signature(hetero.plan.Workload).parameters)
    for function in (hetero.plan.match, hetero.plan.does_it_fit):
        assert fields_of - {"model"} <= set(inspect.signature(function).parameters)


def test_any_stands_in_no_more_places_than_before() -> None:
    found = sum(isinstance(node, ast.Name) and node.id == "Any" for _, tree in trees() for node in ast.walk(tree))
    assert found <= MOST_ANY, f"{found} places say Any: use object, a TypeVar, a Protocol or an alias of hetero.floor"


def test_a_class_name_means_one_thing() -> None:
    found = Counter(node.name for _, tree in trees() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    twice = {name for name, count in found.items() if count > 1}
    assert twice == {"Split"}, "what `hetero.train.split` makes, and the command that traces know by this name"


def test_what_a_module_does_as_a_program_stands_at_its_end() -> None:
    """What follows would not be defined when the program runs."""
    early = [
        str(path)
        for path, tree in trees()
        for node in tree.body[:-1]
        if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
    ]
    assert early == []


def test_options_of_a_context_are_its_keywords_and_keys_of_its_configuration() -> None:
    options = {each.name for each in fields(ContextOptions)}
    assert set(inspect.signature(hetero.Context).parameters) - {"devices", "options"} <= options
    assert set(ContextOptions().keys) <= set(Root.model_fields)


def test_no_option_of_bulk_work_is_a_keyword_too() -> None:
    names = {each.name for options in (BatchOptions, BatchLimits) for each in fields(options)}
    assert names.isdisjoint(inspect.signature(map_batches).parameters)


@moved_keywords(Moved("options", BatchOptions, {"part": "part", "learn": "learn"}))
def takes_options(source: object, options: BatchOptions | None = None) -> BatchOptions | None:
    return options


def test_a_former_keyword_works_and_says_how_it_is_written_now() -> None:
    with pytest.warns(DeprecationWarning, match=r"\(part=, learn=\) is deprecated: write options=") as told:
        found = takes_options([], part=3, learn=False)  # type: ignore[call-arg]
    assert found == BatchOptions(part=3, learn=False)
    assert told[0].filename == __file__


def test_a_former_keyword_beside_the_options_that_replace_it_is_refused() -> None:
    with pytest.raises(hetero.errors.BadValueError, match="both part= and options="):
        takes_options([], options=BatchOptions(), part=3)  # type: ignore[call-arg]


def test_a_keyword_that_never_was_is_refused_by_python() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'parts'"):
        takes_options([], parts=3)  # type: ignore[call-arg]


def test_former_keywords_of_the_public_functions_still_work() -> None:
    with pytest.warns(DeprecationWarning, match=r"write options=ContextOptions\(progress=…\)"):
        hetero.Context(devices="1xcpu", engine="inline", progress=False).close()
    with pytest.warns(DeprecationWarning, match="is deprecated: write") as told:
        found = hetero.batch.map_batches(lambda batch: batch, range(4), devices="1xcpu", part=2, memory="10MB")
    assert found.value == [0, 1, 2, 3]
    assert [str(each.message).rpartition("write ")[2] for each in told] == [
        "options=BatchOptions(part=…)", "limits=BatchLimits(memory=…)"
    ]  # fmt: skip
