"""Whatever is in a file of any format, it is read or refused in one clean line; `python -m tests.fuzz` does more."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hetero.floor.errors import FileError, HeteroError
from tests.fuzz import fuzz, mutated
from tests.fuzz_formats import FORMATS, Format

PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_changed_files_of_every_format_are_read_or_refused_in_one_clean_line(part: int, tmp_path: Path) -> None:
    found = fuzz(5000 // PARTS, part, tmp_path, FORMATS[part::PARTS])
    assert found.broken == []
    assert found.read.total() > 0 < found.refused.total()


@pytest.mark.parametrize("one", FORMATS, ids=lambda one: str(one.name))
def test_the_sound_files_that_are_changed_can_be_read(one: Format, tmp_path: Path) -> None:
    for data in one.seeds():
        path = tmp_path / one.file
        path.write_bytes(data)
        one.read(path)
        path.unlink()


def test_the_same_seed_changes_a_file_in_the_same_way() -> None:
    data = FORMATS[4].seeds()[0]
    assert mutated(data, "json", random.Random(3)) == mutated(data, "json", random.Random(3)) != data


def _raising(error: BaseException) -> Format:
    def read(path: Path) -> None:
        raise error

    return Format("broken", "a", lambda: [b"x"], read, "bytes")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("x"), "KeyError"),
        (MemoryError(), "MemoryError"),
        (RecursionError(), "RecursionError"),
        (HeteroError("a task failed"), "exit code 1"),
        (FileError("a: wrong", remedy="one\ntwo"), "control characters"),
    ],
)
def test_what_is_no_clean_refusal_is_found_and_kept(error: BaseException, said: str, tmp_path: Path) -> None:
    found = fuzz(1, 0, tmp_path, (_raising(error),))
    assert len(found.broken) == 1
    assert said in found.broken[0]
    assert len(list(tmp_path.iterdir())) == 1
