"""What the documents tell the reader to type works as written, and prints what they say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.docs.markdown import Block, blocks, documents
from tests.needs import PROJECT

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
_UNIT = r"(?:ns|µs|ms|s|min|%|×|[KMGT]i?B(?:/s)?|[KMGT]?FLOP/s)(?!\w)"
QUANTITY = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)? ?" + _UNIT)
CELL = re.compile(r"  \d[\d,.]*(?=  |$)")
SETTING = re.compile(r"^(\w+=\S+) ")
SERVERS = ("docs/frameworks.md", "docs/hosts.md")
"""Documents whose programs load whole frameworks or start a Ray cluster."""
FRAMEWORKS = ("climate", "edge_cloud", "lora", "nbody", "one_source", "resnet50")
"""Examples that load whole frameworks, or run for a while."""


def _named() -> list[tuple[str, Block]]:
    return [(path.relative_to(PROJECT).as_posix(), block) for path in documents() for block in blocks(path)]


def _normal(text: str) -> str:
    """Return a text with every measured quantity and number in a table replaced, and runs of blanks as one."""
    replaced = [CELL.sub("  #", QUANTITY.sub("#", line)) for line in text.splitlines()]
    lines = [re.sub(r"[ ─━-]{2,}", " ", line).strip() for line in replaced]
    return "\n".join(line for line in lines if line)


def _run(command: list[str], cwd: Path, extra: dict[str, str] | None = None) -> str:
    env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120", **(extra or {})}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def _programs() -> list[tuple[str, str, str, str | None]]:
    """Return (document, file name, program, what it prints) for each block marked `program NAME`."""
    found = []
    named = _named()
    for number, (document, block) in enumerate(named):
        if block.language == "python" and block.mark.startswith("program "):
            after = named[number + 1][1] if number + 1 < len(named) else None
            printed = after.text if after is not None and after.mark == "prints" else None
            found.append((document, block.mark.removeprefix("program "), block.text, printed))
    return found


def _cases(found: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return the cases of a test, each with its document first; those of `SERVERS` run in `make test-servers`."""
    return [pytest.param(*each, marks=[pytest.mark.servers] if each[0] in SERVERS else ()) for each in found]


def _write_programs(document: str, folder: Path) -> None:
    for its_document, name, program, _ in _programs():
        if its_document == document:
            (folder / name).write_text(program, encoding="utf-8")


@pytest.mark.parametrize(
    ("document", "name", "program", "printed"), _cases(_programs()), ids=lambda value: str(value)[:20]
)
def test_a_program_prints_what_its_document_says(
    document: str, name: str, program: str, printed: str | None, tmp_path: Path
) -> None:
    _write_programs(document, tmp_path)
    out = _run([sys.executable, name], tmp_path)
    if printed is not None:
        assert _normal(out) == _normal(printed)


def test_the_first_program_fits_into_fifteen_lines() -> None:
    first = next(program for document, _, program, _ in _programs() if document == "README.md")
    assert len([line for line in first.splitlines() if line.strip()]) <= 15


def test_every_block_of_a_document_names_its_language() -> None:
    assert [(document, block.text[:40]) for document, block in _named() if not block.language] == []


def test_every_python_block_of_the_readme_is_a_program_that_is_run() -> None:
    shown = [block.mark for document, block in _named() if (document, block.language) == ("README.md", "python")]
    assert all(mark.startswith("program ") for mark in shown)


def test_every_python_block_is_python() -> None:
    for document, block in _named():
        if block.language == "python":
            compile(block.text, document, "exec")


def _commands() -> list[tuple[str, str]]:
    lines = [
        (document, re.sub(r"\s+#.*$", "", line).strip())
        for document, block in _named()
        if block.language in ("sh", "console")
        for line in block.text.splitlines()
        if block.language == "sh" or line.startswith("$ ")
    ]
    return [(document, line.removeprefix("$ ")) for document, line in lines if line]


def _extras() -> set[str]:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])


def _make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(encoding="utf-8"), re.M))


@pytest.mark.parametrize(("document", "line"), _cases(_commands()))
def test_a_command_of_a_document_works_as_written(document: str, line: str, tmp_path: Path) -> None:
    settings: dict[str, str] = {}
    while match := SETTING.match(line):
        key, _, value = match[1].partition("=")
        settings[key], line = shlex.split(value)[0], line[match.end() :]
    first, *rest = shlex.split(line)
    if first == "make":
        assert set(rest) <= _make_targets()
    elif first == "pip":
        extras = re.search(r"\[(.*)\]", line)
        assert rest[0] == "install"
        assert rest[1].partition("[")[0] in (".", "-e")
        assert set(extras[1].split(",") if extras else ()) <= _extras()
    elif first.endswith("python") and rest[0].startswith(("benchmarks/", "examples/")):
        assert (PROJECT / rest[0]).is_file()
    elif first.endswith("python") and rest[:2] == ["-m", "tests.fuzz"]:
        assert (PROJECT / "tests" / "fuzz.py").is_file()
    else:
        assert first in ("hetero", "hetero-profiler", "python"), f"no test knows how to try {first!r}"
        _write_programs(document, tmp_path)
        _run([first, *rest], tmp_path, settings)


def _examples() -> list[Path]:
    return sorted((PROJECT / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "example",
    [pytest.param(path, marks=[pytest.mark.servers] if path.stem in FRAMEWORKS else ()) for path in _examples()],
    ids=lambda path: path.stem,
)
def test_an_example_runs_as_it_is(example: Path, tmp_path: Path) -> None:
    assert _run([sys.executable, str(example)], tmp_path)


def test_every_example_is_told_of() -> None:
    text = (PROJECT / "examples" / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in _examples() if f"({path.name})" not in text] == []
