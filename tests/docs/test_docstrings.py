"""Docstrings and pages in plain English: "Return the ...", not "Give ..."; no translated phrases, no long sentences."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.markdown import BLOCK
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


def test_no_parameter_or_attribute_has_words_in_the_place_of_its_type() -> None:
    """`name : words` renders as a type: the description stands below the name."""
    wrong = []
    for path in sorted(PROJECT.glob("src/hetero/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            section = ""
            for line in (ast.get_docstring(node) or "").splitlines():
                if re.fullmatch(r"[A-Z][a-z]+( [A-Z][a-z]+)?", line):
                    section = line
                if section in ("Parameters", "Attributes") and re.match(r"\*{0,2}\w+(, \*{0,2}\w+)* : ", line):
                    wrong.append(f"{path.relative_to(PROJECT)}: {line}")
    assert wrong == []


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


PHRASES = {
    r"(is|are) told": (2, "gets, receives, reports"),
    r"tells? of": (0, "reports, describes"),
    r"go(es)? on": (7, "continues, resumes"),
    r"anew": (4, "again"),
    r"beside": (8, "next to, compared with"),
    r"hears?": (3, "receives, gets"),
    r"of which": (0, "two sentences"),
    r"for people": (0, "who reads it"),
    r"takes? part": (0, "is used, joins"),
    r"do(es)? not know": (0, "has no, cannot see"),
    r"what (is|was|are|were) \w+ed": (8, "a noun"),
    r"(lies?|stands?)": (6, "is"),
}
"""Phrases that read as translated: how often they may stand in the pages, which only goes down, and what to write."""

MOST_WORDS = 40
"""In a sentence outside of tables, lists and code."""
MOST_LONG_SENTENCES = 15
"""How many sentences of the pages are longer; it only goes down."""


def pages() -> list[Path]:
    """Return the README and the pages of docs/."""
    return [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]


def paragraphs(path: Path) -> Iterator[str]:
    """Yield the paragraphs of a page that are no tables, lists, headings or code."""
    for paragraph in re.split(r"\n\s*\n|\n(?=[*-] |\d+\. |[|#<])", BLOCK.sub("\n\n", path.read_text(encoding="utf-8"))):
        if not re.match(r"\n*([*-] |\d+\. |[|#<]|    )", paragraph):
            yield " ".join(paragraph.split())


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_translated_phrase_stands_in_no_more_places_than_before(phrase: str) -> None:
    most, better = PHRASES[phrase]
    pattern = re.compile(rf"\b{phrase}\b", re.I)
    found = [
        f"{path.name}: …{text[max(0, match.start() - 30) : match.end() + 30]}…"
        for path in pages()
        for text in [" ".join(BLOCK.sub("", path.read_text(encoding="utf-8")).split())]
        for match in pattern.finditer(text)
    ]
    assert len(found) <= most, f"{len(found)} places, {most} allowed; write: {better}\n" + "\n".join(found)


def test_sentences_of_the_pages_have_at_most_forty_words() -> None:
    found = [
        f"{path.name}: {sentence}"
        for path in pages()
        for paragraph in paragraphs(path)
        for sentence in re.split(r"(?<=[.!?]) ", paragraph)
        if len(sentence.split()) > MOST_WORDS
    ]
    assert len(found) <= MOST_LONG_SENTENCES, f"{len(found)} sentences, split them:\n" + "\n".join(found)
