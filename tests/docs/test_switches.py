"""The table of switches is what the code registers."""

from __future__ import annotations

import re

import pytest

from hetero.floor import settings
from tests.needs import PROJECT

INDEX = PROJECT / "docs" / "index.md"
BEGIN, END = "<!-- switches -->", "<!-- end of switches -->"


def _table() -> str:
    shown = [s for s in settings.SWITCHES if s.for_users]
    rows = [f"| `{s.name}` | {f'`{s.default}`' if s.default else ''} | {s.meaning} |" for s in shown]
    return "\n".join(["| switch | default | meaning |", "|---|---|---|", *rows])


def test_the_documented_switches_are_the_registered_ones(request: pytest.FixtureRequest) -> None:
    text = INDEX.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    written, _, after = rest.partition(END)
    if request.config.getoption("--accept"):
        INDEX.write_text(f"{before}{BEGIN}\n{_table()}\n{END}{after}", encoding="utf-8")
        return
    assert written.strip() == _table(), f"run pytest {request.node.nodeid} --accept"


def test_every_switch_named_anywhere_is_registered() -> None:
    known = {switch.name for switch in settings.SWITCHES}
    places = [*(PROJECT / "src").rglob("*.py"), *PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")]
    for path in places:
        named = set(re.findall(r"\bHETERO_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8")))
        assert named <= known, f"{path.relative_to(PROJECT)} names {sorted(named - known)}"


def test_only_the_floor_reads_the_environment_and_only_settings_the_switches() -> None:
    texts = {
        path.relative_to(PROJECT / "src").as_posix(): path.read_text(encoding="utf-8")
        for path in (PROJECT / "src").rglob("*.py")
    }
    readers = {path for path, text in texts.items() if re.search(r"\bos\.(environ\b|getenv)", text)}
    assert readers <= {"hetero/floor/settings.py", "hetero/floor/platform.py"}
    assert "HETERO_" not in texts["hetero/floor/platform.py"]
