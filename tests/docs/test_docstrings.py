"""Docstrings begin as the documentation of NumPy does: "Return the ...", not "Give ..."."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.needs import PROJECT

#: First words, and what to write instead.
WORDS = {
    "Give": "Return",
    "Gives": "Returns",
    "Take note": "Record",
    "Tell": "Return, Notify, Decide",
    "Say": "Return, Warn, Describe",
    "Look": "Check, Search, Inspect",
    "Let": "what the function itself does: Set, Release, Accept, Make",
    "Whether": "Return whether",
    "Hear": "Receive, Handle",
    "Hand in": "Submit",
    "Let go": "Release",
}


def first_lines() -> Iterator[tuple[str, str]]:
    """Yield the place and the first line of each docstring of a function or method."""
    for path in sorted(PROJECT.glob("src/hetero/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (doc := ast.get_docstring(node)):
                yield f"{path.relative_to(PROJECT)}:{node.lineno}", doc.splitlines()[0]


def test_docstrings_begin_with_the_words_of_the_field() -> None:
    lines = list(first_lines())
    assert len(lines) > 3000
    wrong = [
        f'{place}: "{line}": not "{word}", but "{better}"'
        for place, line in lines
        for word, better in WORDS.items()
        if line.startswith(word + " ")
    ]
    assert wrong == []
