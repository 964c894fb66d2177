"""Whatever is in a file of any format, it is read or refused in one clean line; `python -m tests.fuzz` does more."""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero.batch.base import Job
from hetero.batch.sinks import MANIFEST, JsonLinesSink
from hetero.engines.ray.node import Node, read_node
from hetero.floor.errors import BadValueError, FileError, HeteroError
from hetero.recipes.saved_models import read_pictures
from hetero.session.run_server import read_descriptor
from tests.fuzz import fuzz, mutated
from tests.fuzz_formats import FORMATS, Format

PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(
    "inputs", [pytest.param(2000, marks=pytest.mark.slow), pytest.param(5000, marks=pytest.mark.servers)]
)
def test_changed_files_of_every_format_are_read_or_refused_in_one_clean_line(
    inputs: int, part: int, tmp_path: Path
) -> None:
    found = fuzz(inputs // PARTS, part, tmp_path, FORMATS[part::PARTS])
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


@pytest.mark.parametrize("name", ["../kept.txt", "/etc/hostname", "part-1.jsonl", "manifest.json"])
def test_a_manifest_that_names_a_file_elsewhere_removes_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("of somebody else")
    folder = tmp_path / "out"
    folder.mkdir()
    note = {"part": 0, "file": name, "begin": 0, "end": 9, "rows": 8, "bytes": 7, "sha256": "", "bad": []}
    (folder / MANIFEST).write_text(json.dumps({"job": "k", "source": "s", "parts": [note]}))
    with pytest.raises(FileError, match="is no file that a run writes"):
        JsonLinesSink(folder).open(Job("k", 1, 9, "s"), "overwrite")
    assert (tmp_path / "kept.txt").exists()


@pytest.mark.parametrize("wrong", [{"folder": "/"}, {"folder": "/tmp/hetero-x/.."}, {"pid": -1}, {"pid": True}])
def test_a_node_file_names_only_what_a_node_has(wrong: dict[str, Any], tmp_path: Path) -> None:
    node = Node("127.0.0.1:1", "127.0.0.1", "ab" * 32, "", 4242, "/tmp/hetero-abcn")
    (tmp_path / "node.json").write_text(json.dumps(asdict(node)))
    assert read_node(tmp_path / "node.json") == node
    (tmp_path / "node.json").write_text(json.dumps({**asdict(node), **wrong}))
    with pytest.raises(FileError, match=r"node\.json"):
        read_node(tmp_path / "node.json")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
def test_a_pipe_in_place_of_a_descriptor_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a-1-1.json")
    with pytest.raises(FileError, match="is no file"):
        read_descriptor(tmp_path / "a-1-1.json")


def test_what_is_no_array_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr': '|u1'")
    with pytest.raises(BadValueError, match="cannot be read as an array"):
        read_pictures(tmp_path / "a.npy")
    np.save(tmp_path / "b.npy", np.full((28, 28), np.inf))
    with pytest.raises(BadValueError, match="no grey"):
        read_pictures(tmp_path / "b.npy")
