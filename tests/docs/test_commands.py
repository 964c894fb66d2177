"""Every command that a message or a document names can be typed today: its words and options are the command line's."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import pytest
import typer

from hetero.cli.main import app
from hetero.cli.profiler import app as profiler
from tests.needs import PROJECT

_QUOTED = re.compile(r"'(hetero(?:-profiler)? [a-z][^']*)'")
_TICKED = re.compile(r"`(hetero(?:-profiler)? [a-z][^`]*)`")
_LINE = re.compile(r"^\s*\$?\s*(hetero(?:-profiler)? [a-z].*)$", re.M)
_FENCED = re.compile(r"```(?:sh|console|bash)\n(.*?)```", re.S)


def _in_messages() -> Iterator[tuple[str, str]]:
    for path in sorted((PROJECT / "src" / "hetero").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ""
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            elif isinstance(node, ast.JoinedStr):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
            for found in (*_QUOTED.findall(text), *_TICKED.findall(text)):
                yield path.name, found


def _in_documents() -> Iterator[tuple[str, str]]:
    for path in (*sorted((PROJECT / "docs").glob("*.md")), PROJECT / "README.md", PROJECT / "examples" / "README.md"):
        text = path.read_text(encoding="utf-8")
        for found in _TICKED.findall(text):
            yield path.name, found
        for block in _FENCED.findall(text):
            for found in _LINE.findall(block):
                yield path.name, found


def _wrong(line: str) -> str:
    """Return what of a command line does not exist, '' where all does."""
    words = shlex.split(line.replace("…", "").split(" | ")[0], comments=True)
    part: Any = typer.main.get_command(profiler if words[0] == "hetero-profiler" else app)
    rest = words[1:]
    while hasattr(part, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0).rstrip(".,;:")
        two = f"{name} {rest[0].rstrip('.,;:')}" if rest else ""
        if two in part.commands:
            name, rest = two, rest[1:]
        if name not in part.commands:
            return "" if part.invoke_without_command and not name.islower() else f"no command {name!r}"
        part = part.commands[name]
    options = {word for option in part.params for word in (*option.opts, *option.secondary_opts)} | {"--help", "-h"}
    if (part.context_settings or {}).get("allow_interspersed_args") is False:
        rest = rest[: next((at for at, word in enumerate(rest) if not word.startswith("-")), None)]
    for word in takewhile("--".__ne__, rest):
        name = word.partition("=")[0].rstrip(".,;:")
        if name.startswith("--") and name not in options:
            return f"no option {name!r}"
    return ""


@pytest.mark.parametrize("where", [_in_messages, _in_documents], ids=["messages", "documents"])
def test_every_command_that_is_named_can_be_typed(where: object) -> None:
    named = sorted(set(where()))  # type: ignore[operator]
    assert len(named) > 20
    wrong = [f"{file}: {line}: {problem}" for file, line in named if (problem := _wrong(line))]
    assert wrong == []


@pytest.mark.parametrize(("line", "said"), [("hetero graf x", "no command"), ("hetero devices --prob", "no option")])
def test_a_command_that_does_not_exist_is_found(line: str, said: str) -> None:
    assert said in _wrong(line)
