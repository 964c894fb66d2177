"""ARCHITECTURE.md tells of the tree as it is."""

from __future__ import annotations

import configparser
import re

import hetero.testing
from tests.needs import PROJECT

TEXT = (PROJECT / "ARCHITECTURE.md").read_text(encoding="utf-8")
ROOMS = re.findall(r"^\| `(\w+)/` \|", TEXT, re.M)


def _layers() -> list[list[str]]:
    contract = configparser.ConfigParser()
    contract.read(PROJECT / ".importlinter")
    rows = contract["importlinter:contract:layers"]["layers"].split("\n")
    return [re.findall(r"hetero\.(\w+)", row) for row in rows if row.strip()]


def test_the_rooms_listed_are_the_folders_that_exist() -> None:
    folders = {path.parent.name for path in (PROJECT / "src" / "hetero").glob("*/__init__.py")}
    assert sorted(ROOMS) == sorted(folders)


def test_the_rooms_are_listed_from_the_top_layer_down() -> None:
    layer_of = {room: number for number, row in enumerate(_layers()) for room in row}
    assert set(ROOMS) <= set(layer_of)
    numbers = [layer_of[room] for room in ROOMS]
    assert numbers == sorted(numbers)


def test_every_conformance_kit_is_told_of_to_contributors() -> None:
    text = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert sorted(set(re.findall(r"hetero\.testing\.(\w+)", text))) == sorted(hetero.testing.__all__)


def test_every_file_that_the_plan_of_the_house_names_exists() -> None:
    named = set(re.findall(r"`((?:src|tests|benchmarks|docs|examples)/[\w./-]+)`", TEXT))
    assert sorted(path for path in named if not (PROJECT / path).exists()) == []


def test_every_module_named_by_its_room_exists() -> None:
    named = {path for path in re.findall(r"`(\w+/[\w/]+\.py)`", TEXT) if not path.startswith(("tests/", "benchmarks/"))}
    assert sorted(path for path in named if not (PROJECT / "src" / "hetero" / path).exists()) == []


def test_every_file_of_the_engines_is_told_of() -> None:
    section = TEXT.partition("## The engines")[2].partition("\n## ")[0]
    engines = PROJECT / "src" / "hetero" / "engines"
    files = {path.relative_to(engines).as_posix() for path in engines.rglob("*.py") if path.name != "__init__.py"}
    assert sorted(files - {"base.py"} - set(re.findall(r"`engines/([\w/]+\.py)`", section))) == []
