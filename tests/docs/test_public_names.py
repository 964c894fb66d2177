"""The names that users write: where each stands, what `dir` and type checkers see, and old names that go on."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

import pytest

import hetero
from tests.docs.markdown import blocks
from tests.needs import PROJECT

NAMESPACES = ("batch", "cluster", "collectives", "graphs", "inspect", "jax", "keras", "plan", "tasks", "train")
MODULES = ("hetero", *(f"hetero.{name}" for name in NAMESPACES))
OLD = {name: place for place, names in hetero._MOVED.items() for name in names}


def shown(module: ModuleType) -> list[str]:
    return [name for name in dir(module) if not name.startswith("_")]


def typed(module: ModuleType) -> set[str]:
    """The names that type checkers see: imported as themselves, which marks them as exported."""
    for node in ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            imports = [each for each in node.body if isinstance(each, ast.ImportFrom)]
            return {alias.name for each in imports for alias in each.names if alias.asname == alias.name}
    raise AssertionError(f"{module.__name__} has no names for type checkers")


def test_the_top_shows_what_a_first_program_needs_and_the_namespaces_and_nothing_else() -> None:
    assert shown(hetero) == sorted(
        {
            "Context", "Future", "Trainer", "as_completed", "checkpoint", "current_context", "errors",
            "get_current_device", "report", "restore", "task", "wait", *NAMESPACES,
        }
    )  # fmt: skip
    assert len(shown(hetero)) <= 22


@pytest.mark.parametrize("name", MODULES)
def test_a_namespace_shows_the_same_names_to_dir_and_to_type_checkers(name: str) -> None:
    module = importlib.import_module(name)
    before = shown(module)
    for each in before:
        getattr(module, each)
    assert shown(module) == before  # what was imported since is not shown beside them
    assert set(before) == typed(module)
    assert set(module.__all__) == set(before) - (set(NAMESPACES) if module is hetero else set())


def test_a_module_inside_a_namespace_never_has_the_name_of_what_users_import_from_it() -> None:
    packages = [
        module for name in NAMESPACES if hasattr(module := importlib.import_module(f"hetero.{name}"), "__path__")
    ]
    places = [f"{module.__name__}.{each}" for module in packages for each in shown(module)]
    assert len(packages) == 4
    assert [place for place in places if importlib.util.find_spec(place) is not None] == []


def test_a_star_import_hides_no_module_of_python() -> None:
    assert not set(hetero.__all__) & set(sys.stdlib_module_names)


@pytest.mark.parametrize("name", OLD)
def test_an_old_name_goes_on_for_a_version_and_tells_its_new_place(name: str) -> None:
    place = importlib.import_module(OLD[name])
    with pytest.warns(DeprecationWarning, match=rf"hetero\.{name} is now {OLD[name]}\.{name};") as told:
        assert getattr(hetero, name) is getattr(place, name)
    assert told[0].filename == __file__
    assert name not in dir(hetero)


def test_an_old_name_that_is_imported_by_itself_warns_where_it_is_imported() -> None:
    code = "from hetero import rank, HeteroError\nimport hetero\nprint(hetero.collectives.rank is rank)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=False)
    assert done.stdout == "True\n"
    assert "<string>:1: DeprecationWarning: hetero.rank is now hetero.collectives.rank" in done.stderr
    assert "hetero.HeteroError is now hetero.errors.HeteroError" in done.stderr


def test_a_pickle_that_knows_an_old_name_is_read() -> None:
    with pytest.warns(DeprecationWarning, match=r"hetero\.batch\.Files"):
        assert pickle.loads(b"chetero\nFiles\n.") is hetero.batch.Files
    assert pickle.loads(pickle.dumps(hetero.batch.Files)) is hetero.batch.Files


def test_a_new_name_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in MODULES:
            module = importlib.import_module(name)
            assert all(getattr(module, each) is not None for each in shown(module))


def test_nothing_in_the_project_uses_an_old_name() -> None:
    words = "|".join(sorted(OLD, key=len, reverse=True))
    used = re.compile(rf"(?<![\w./-])hetero\.(?:{words})\b(?![/-])")
    files = [
        path
        for pattern in ("src/**/*.py", "tests/**/*.py", "docs/*.md", "examples/*", "benchmarks/**/*.py", "*.md")
        for path in sorted(PROJECT.glob(pattern))
        if path.is_file() and path.name not in ("CHANGELOG.md", "test_public_names.py") and "pycache" not in str(path)
    ]
    found = [f"{path}: {match[0]}" for path in files for match in used.finditer(path.read_text(encoding="utf-8"))]
    assert found == []


def _imports(text: str) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of every import from hetero in a program; '' for a module that is imported as a whole."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "hetero":
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.partition(".")[0] == "hetero")


@pytest.mark.parametrize(
    "page", ["README.md", *sorted(f"docs/{path.name}" for path in (PROJECT / "docs").glob("*.md"))]
)
def test_the_programs_of_a_page_import_public_names_alone(page: str) -> None:
    """Beside the namespaces: `hetero.errors`, and `hetero.testing` for those who add something to hetero."""
    spaces = {*MODULES, "hetero.errors", "hetero.testing"}
    programs = [block.text for block in blocks(PROJECT / page) if block.language == "python"]
    found = {each for text in programs for each in _imports(text)}
    assert sorted({(module, name) for module, name in found if module not in spaces}) == []
    for module, name in found - {(module, "") for module in spaces}:
        assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"


def test_a_page_that_imports_what_is_internal_would_be_found() -> None:
    assert list(_imports("from hetero.plan.sizing import footprint")) == [("hetero.plan.sizing", "footprint")]
    assert list(_imports("import hetero.drive.sim as s, os")) == [("hetero.drive.sim", "")]


STANDARD = {"as_completed", "wait"}
"""Of Python's own library, documented there."""


def public() -> dict[str, object]:
    """Return every function and class that users find in a namespace, and every method of these classes, by name."""
    found: dict[str, object] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for each in sorted(set(shown(module)) - STANDARD - set(NAMESPACES)):
            value = getattr(module, each)
            if isinstance(value, ModuleType):
                continue
            found[f"{name}.{each}"] = value
            found |= {f"{name}.{each}.{word}": code for word, code in methods(value).items()} if is_class(value) else {}
    return found


def is_class(value: object) -> TypeGuard[type]:
    return isinstance(value, type)


def methods(kind: type) -> dict[str, object]:
    """Return the public methods of a class that hetero defines, without properties."""
    found: dict[str, object] = {}
    for word in dir(kind):
        owner = next((each for each in kind.__mro__ if word in vars(each)), None)
        if word.startswith("_") or owner is None or not owner.__module__.startswith("hetero"):
            continue
        code = vars(owner)[word]
        code = code.__func__ if isinstance(code, classmethod | staticmethod) else code
        if inspect.isfunction(code):
            found[word] = code
    return found


PUBLIC = public()


def test_every_public_name_has_an_example() -> None:
    """Those of every module run in test_doctests.py."""
    assert len(PUBLIC) > 140
    assert [name for name, value in PUBLIC.items() if ">>>" not in (inspect.getdoc(value) or "")] == []


METHODS = {
    "hetero.Context": "agather amap arun asubmit close executor explain flush_trace gather lease left_out map"
    " map_batches put reduce run submit",
    "hetero.Future": "add_done_callback cancel exception result running",
    "hetero.Trainer": "close evaluate fit predict resume save",
    "hetero.batch.AnonymisationReport": "as_dict as_text",
    "hetero.batch.Anonymiser": "",
    "hetero.batch.Files": "identity peek read",
    "hetero.batch.Tables": "identity peek read",
    "hetero.cluster.Pool": "ask device get lease look lose release renew restore wait",
    "hetero.cluster.Pressure": "what_if",
    "hetero.collectives.Group": "abort all_gather all_reduce broadcast close reduce_scatter start_all_reduce",
    "hetero.collectives.MpiGroup": "abort all_gather all_reduce broadcast close reduce_scatter start_all_reduce",
    "hetero.graphs.Graph": "add data from_file plan run submit",
    "hetero.plan.Estimate": "as_dict explain",
    "hetero.tasks.Executor": "map shutdown submit",
    "hetero.tasks.TaskContext": "gather map put run submit",
    "hetero.tasks.TaskFunction": "implementation options",
    "hetero.train.Split": "close gather report step",
}


@pytest.mark.parametrize("name", METHODS)
def test_a_public_class_shows_the_methods_that_are_meant_for_users_and_no_other(name: str) -> None:
    kind = PUBLIC[name]
    assert is_class(kind)
    assert sorted(methods(kind)) == METHODS[name].split()


def test_leases_and_bulk_work_of_a_context_show_their_real_signatures() -> None:
    shared = set(inspect.signature(hetero.batch.map_batches).parameters) - {"ctx", "devices"}
    assert set(inspect.signature(hetero.Context.map_batches).parameters) == {"self", *shared}
    for lease in (hetero.Context.lease, hetero.cluster.Pool.lease):
        parameters = inspect.signature(lease).parameters
        assert {"prepare", "on", "count", "memory", "expires", "apart_by", "priority"} <= set(parameters)
        assert parameters["count"].default == 1
        assert all(each.kind is not inspect.Parameter.VAR_KEYWORD for each in parameters.values())


def test_a_former_keyword_of_bulk_work_reaches_it_by_the_context_too() -> None:
    with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        with pytest.warns(DeprecationWarning, match="write options=BatchOptions"):
            assert ctx.map_batches(lambda batch: batch, [1, 2], part=1).value == [1, 2]
        with pytest.raises(TypeError, match="parts"):
            ctx.map_batches(lambda batch: batch, [1, 2], parts=1)  # type: ignore[call-arg]


def test_a_star_import_brings_what_the_page_of_names_says() -> None:
    page = (PROJECT / "docs" / "index.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| `hetero` |"))
    found: dict[str, object] = {}
    exec("from hetero import *\nfrom hetero.batch import map_batches", found)
    assert set(found) - {"__builtins__", "map_batches"} == {word.strip("` ") for word in row.split("|")[2].split(",")}
    assert "`from hetero.batch import map_batches`" in page
