"""The page on tasks: its programs run in order, and print what stands behind each line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import blocks
from tests.needs import PROJECT

PAGE = PROJECT / "docs" / "tasks.md"
_PRINTS = re.compile(r"print\(.*\)  # (?P<said>.*)$", re.M)


@pytest.mark.slow
def test_the_programs_of_the_page_print_what_stands_behind_each_line(tmp_path: Path) -> None:
    program = "\n".join(block.text for block in blocks(PAGE) if block.language == "python")
    expected = [match["said"] for match in _PRINTS.finditer(program)]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == expected
    assert len(expected) > 10
