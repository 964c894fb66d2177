"""Reading the project's own documents: fenced blocks with the mark before them, and links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.needs import PROJECT

BLOCK = re.compile(r"(?:<!-- (?P<mark>[\w .-]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<text>[^)\s]+)\)|!\[[^\]]*\]\((?P<image>[^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block; `mark` is the HTML comment on the line before it."""

    language: str
    text: str
    mark: str


def documents() -> list[Path]:
    """Return every Markdown file of the project."""
    folders = ("", "docs", "benchmarks", "examples", "tests")
    return sorted(path for folder in folders for path in (PROJECT / folder).glob("*.md"))


def blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a file in their order."""
    found = BLOCK.finditer(path.read_text(encoding="utf-8"))
    return [Block(match["language"], match["text"], match["mark"] or "") for match in found]


def links(path: Path) -> list[str]:
    """Return the targets of all links and images outside of fenced blocks."""
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    return [match["text"] or match["image"] for match in _LINK.finditer(text)]


def anchors(path: Path) -> set[str]:
    """Return the anchors that the headings of a file make."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", path.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
