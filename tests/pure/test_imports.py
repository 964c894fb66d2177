"""What an import costs, and who may import whom."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import PROJECT

HEAVY = ("torch", "jax", "ray", "numba", "scipy", "pandas", "distributed", "sklearn", "ortools", "pyopencl", "wgpu")

_ENTRY = """
import json, sys
import {module}
sys.argv = {argv!r}
try:
    {call}
except SystemExit as end:
    assert not end.code, end.code
print("\\n" + json.dumps(sorted(name for name in sys.modules if "." not in name)))
"""


def _modules_after(module: str, call: str = "pass", argv: tuple[str, ...] = ()) -> set[str]:
    code = _ENTRY.format(module=module, call=call, argv=list(argv))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_hetero_imports_no_framework() -> None:
    assert not _modules_after("hetero") & {*HEAVY, "numpy"}


@pytest.mark.parametrize("command", [("--help",), ("devices",), ("devices", "--json")])
def test_a_command_imports_no_framework(command: tuple[str, ...]) -> None:
    loaded = _modules_after("hetero.cli.main", "hetero.cli.main.entry()", ("hetero", *command))
    assert not loaded & {"torch", "jax", "ray", "numba", "scipy"}


def test_the_import_contract_holds() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], cwd=PROJECT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def _imports_at_run_time() -> dict[str, set[str]]:
    """Return which files of hetero each file imports, inside functions too, and not for type checkers alone."""
    root = PROJECT / "src"
    files = {".".join(path.relative_to(root).with_suffix("").parts): path for path in (root / "hetero").rglob("*.py")}
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        unread = {
            id(each)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for each in ast.walk(node)
        }
        named = [
            f"{node.module}{part}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module and id(node) not in unread
            for part in ("", *(f".{alias.name}" for alias in node.names))
        ]
        found[name] = {each for each in named if each in files and each != name}
    return found


def test_no_file_imports_itself_over_others_where_imports_inside_functions_count() -> None:
    """Where two files need each other, what both need belongs into a file below; two packages still have such pairs."""
    graph = _imports_at_run_time()
    assert len(graph) > 400

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        left = [start]
        while left:
            new = graph[left.pop()] - seen
            seen |= new
            left.extend(new)
        return seen

    circular = {name for name in graph if name in reached(name)}
    assert {name for name in circular if name.split(".")[1] not in ("session", "train", "launch")} == set()


def test_only_the_clock_imports_time() -> None:
    importers = [
        path.relative_to(PROJECT / "src" / "hetero").as_posix()
        for path in sorted((PROJECT / "src" / "hetero").rglob("*.py"))
        if any(
            line.strip() in ("import time", "from time import sleep") or line.strip().startswith("from time import")
            for line in path.read_text(encoding="utf-8").splitlines()
        )
    ]
    assert importers == ["floor/clock.py"]
