"""What an import costs, and who may import whom."""

from __future__ import annotations

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
