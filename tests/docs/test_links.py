"""Every relative link leads to something."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.markdown import anchors, documents, links
from tests.needs import PROJECT


def _broken(document: Path, link: str) -> bool:
    target, _, anchor = link.partition("#")
    path = (document.parent / target).resolve() if target else document
    if not path.exists():
        return True
    return bool(anchor) and path.suffix == ".md" and anchor not in anchors(path)


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.relative_to(PROJECT).as_posix())
def test_every_relative_link_exists(document: Path) -> None:
    relative = [link for link in links(document) if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in relative if _broken(document, link)] == []


def test_every_document_in_docs_can_be_reached_from_the_index() -> None:
    index = PROJECT / "docs" / "index.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert [path.name for path in documents() if path.parent.name == "docs" and path not in {*linked, index}] == []
