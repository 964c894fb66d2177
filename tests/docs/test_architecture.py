"""ARCHITECTURE.md tells of the tree as it is."""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hetero.testing
from tests.docs.markdown import blocks
from tests.needs import PROJECT

SOURCE = PROJECT / "src" / "hetero"
LIVES = ("life-of-a-task.md", "life-of-a-training-step.md")
TEXT = (PROJECT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PACKAGES = re.findall(r"^\| `(\w+)/` \|", TEXT, re.M)


def _layers() -> list[list[str]]:
    contract = configparser.ConfigParser()
    contract.read(PROJECT / ".importlinter")
    rows = contract["importlinter:contract:layers"]["layers"].split("\n")
    return [re.findall(r"hetero\.(\w+)", row) for row in rows if row.strip()]


def test_the_packages_listed_are_the_folders_that_exist() -> None:
    folders = {path.parent.name for path in (PROJECT / "src" / "hetero").glob("*/__init__.py")}
    assert sorted(PACKAGES) == sorted(folders)


def test_the_packages_are_listed_from_the_top_layer_down() -> None:
    layer_of = {package: number for number, row in enumerate(_layers()) for package in row}
    assert set(PACKAGES) <= set(layer_of)
    numbers = [layer_of[package] for package in PACKAGES]
    assert numbers == sorted(numbers)


def test_every_conformance_kit_is_told_of_to_contributors() -> None:
    text = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert sorted(set(re.findall(r"hetero\.testing\.(\w+)", text))) == [
        name for name in sorted(hetero.testing.__all__) if name.startswith("check_")
    ]


def test_every_file_that_the_architecture_names_exists() -> None:
    named = set(re.findall(r"`((?:src|tests|benchmarks|docs|examples)/[\w./-]+)`", TEXT))
    assert sorted(path for path in named if not (PROJECT / path).exists()) == []


def test_every_module_named_by_its_package_exists() -> None:
    named = {path for path in re.findall(r"`(\w+/[\w/]+\.py)`", TEXT) if not path.startswith(("tests/", "benchmarks/"))}
    assert sorted(path for path in named if not (PROJECT / "src" / "hetero" / path).exists()) == []


def test_every_file_of_the_engines_is_told_of() -> None:
    section = TEXT.partition("## The engines")[2].partition("\n## ")[0]
    engines = PROJECT / "src" / "hetero" / "engines"
    files = {path.relative_to(engines).as_posix() for path in engines.rglob("*.py") if path.name != "__init__.py"}
    assert sorted(files - {"base.py"} - set(re.findall(r"`engines/([\w/]+\.py)`", section))) == []


def test_every_file_of_the_session_is_told_of() -> None:
    section = TEXT.partition("## The session")[2].partition("\n## ")[0]
    files = {path.name for path in (SOURCE / "session").glob("*.py")} - {"__init__.py"}
    assert sorted(files ^ set(re.findall(r"`(\w+\.py)`", section))) == []


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield the modules that a file imports when it runs, at its top or inside a function."""
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _import_graph() -> dict[str, set[str]]:
    """Return the packages that each package imports."""
    graph: dict[str, set[str]] = {path.parent.name: set() for path in SOURCE.glob("*/__init__.py")}
    for package, others in graph.items():
        for path in (SOURCE / package).rglob("*.py"):
            names = (name.split(".") for name in _imported(ast.parse(path.read_text(encoding="utf-8"))))
            others |= {parts[1] for parts in names if parts[0] == "hetero" and len(parts) > 1}
        others &= graph.keys() - {package}
    return graph


def _arrows(graph: dict[str, set[str]]) -> list[str]:
    """Return the imports that do not follow from others, from the upper package to the lower."""

    def below(package: str) -> set[str]:
        return graph[package].union(*map(below, graph[package]))

    return [
        f"{package} --> {other}"
        for package in PACKAGES
        for other in sorted(graph[package])
        if not any(other in below(between) for between in graph[package] - {other})
    ]


def test_the_diagram_of_packages_is_the_graph_of_imports() -> None:
    drawn = next(block.text for block in blocks(PROJECT / "ARCHITECTURE.md") if block.mark == "imports")
    expected = "flowchart TD\n" + "".join(f"    {arrow}\n" for arrow in _arrows(_import_graph()))
    assert drawn == expected, f"the diagram of ARCHITECTURE.md should be:\n{expected}"


def _defined(path: Path) -> set[str]:
    """Return the names of the functions and classes of a file, methods as 'Class.method'."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            methods = (inner.name for inner in node.body if isinstance(inner, ast.FunctionDef))
            found |= {node.name, *(f"{node.name}.{name}" for name in methods)}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return found


@pytest.mark.parametrize("page", LIVES)
def test_every_file_and_function_of_a_life_exists(page: str) -> None:
    text = (PROJECT / "docs" / page).read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if re.match(r"\| \w+ \| `", line)]
    assert len(rows) > 15
    files = set(re.findall(r"`(\w+/[\w/]+\.py)`", text))
    assert sorted(path for path in files if not (SOURCE / path).is_file()) == []
    everything = set().union(*(_defined(SOURCE / path) for path in files))
    assert sorted(name for row in rows for name in re.findall(r"`([\w.]+)`", row[3]) if name not in everything) == []
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    assert sorted(name for name in re.findall(r"`(_?[A-Z]\w+\._?\w+)`", prose) if name not in everything) == []


def test_the_pages_of_lives_are_linked_from_the_plan() -> None:
    assert all(f"docs/{page}" in TEXT for page in LIVES)
