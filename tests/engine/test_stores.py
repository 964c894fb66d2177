from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from hetero.floor.errors import HeteroError
from hetero.stores.base import Store
from hetero.stores.encryption import EncryptedStore, read_key
from hetero.stores.files import Disk, FileStore
from hetero.testing.store import check_power_cuts, check_store


@pytest.mark.slow
@pytest.mark.parametrize("operations", [10_000, pytest.param(100_000, marks=pytest.mark.servers)])
def test_a_file_store_keeps_every_promise_of_a_store(operations: int, tmp_path: Path) -> None:
    check_store(partial(FileStore, tmp_path / "store"), tmp_path / "store", operations=operations)


@pytest.mark.slow
def test_an_encrypted_store_keeps_every_promise_of_a_store(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    folder = tmp_path / "store"

    def make() -> Store:
        return EncryptedStore(FileStore(folder), read_key(key))

    check_store(make, folder, kills=3, operations=1_000)


def test_no_power_cut_at_any_write_boundary_loses_what_was_put() -> None:
    assert check_power_cuts(FileStore) > 200


class _WithoutSync(Disk):
    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattribute__(self, name: str) -> Callable[..., object]:
        disk: Disk = object.__getattribute__(self, "_disk")
        skipped = "sync" if name == "sync" else ""
        return (lambda *_: None) if skipped else getattr(disk, name)


class _WithoutFolderSync(_WithoutSync):
    def __getattribute__(self, name: str) -> Callable[..., object]:
        disk: Disk = object.__getattribute__(self, "_disk")
        return (lambda *_: None) if name == "sync_folder" else getattr(disk, name)


@pytest.mark.parametrize("careless", [_WithoutSync, _WithoutFolderSync])
def test_the_kit_catches_a_store_that_does_not_wait_for_the_disk(careless: type[_WithoutSync]) -> None:
    with pytest.raises((AssertionError, HeteroError)):
        check_power_cuts(lambda root, disk: FileStore(root, careless(disk)))


class _InPlace(FileStore):
    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def get(self, key: str) -> bytes | None:
        path = self._path(key)
        return path.read_bytes() if path.exists() else None


def test_the_kit_catches_a_store_that_writes_in_place(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check_store(partial(_InPlace, tmp_path), tmp_path)


def test_a_damaged_file_is_named_in_the_error(tmp_path: Path) -> None:
    store: Store = FileStore(tmp_path)
    store.put("run/1", b"state")
    (tmp_path / "run" / "1=").write_bytes(b"other")
    with pytest.raises(HeteroError, match=r"run/1= is damaged: its bytes do not match their checksum; remove the file"):
        store.get("run/1")


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HeteroError, match="set HETERO_HOME to a folder that can be written"):
        FileStore(tmp_path / "file" / "store").put("a", b"")


def test_what_killed_writers_left_is_removed_after_an_hour(tmp_path: Path) -> None:
    spare = tmp_path / "=tmp"
    spare.mkdir()
    for name, age_s in (("old", 4000), ("new", 10)):
        (spare / name).write_bytes(b"")
        left = os.stat(spare / name).st_mtime - age_s
        os.utime(spare / name, (left, left))
    FileStore(tmp_path).put("a", b"1")
    assert [path.name for path in spare.iterdir()] == ["new"]


def test_a_store_that_is_only_read_makes_no_folder(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    assert store.get("a") is None
    assert store.list() == ()
    store.delete("a")
    assert not (tmp_path / "store").exists()


class _FolderRemovedMeanwhile(Disk):
    """Another process removes a folder that it finds empty, each time one was just made, a few times."""

    def __init__(self, times: int) -> None:
        self.left = times

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        if self.left and path.name == "task":
            self.left -= 1
            path.rmdir()


def test_a_folder_that_others_remove_in_between_is_made_again(tmp_path: Path) -> None:
    disk = _FolderRemovedMeanwhile(50)
    store = FileStore(tmp_path, disk)
    store.put("run/task/1", b"a")
    assert store.get("run/task/1") == b"a"
    store.delete("run/task/1")
    disk.left = 50
    assert store.put_if_absent("run/task/2", b"b")
    assert (store.get("run/task/2"), disk.left) == (b"b", 0)


def test_a_file_in_the_way_of_a_folder_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("a", b"")
    (tmp_path / "b").write_text("")
    for put in (store.put, store.put_if_absent):
        with pytest.raises(HeteroError, match="b/1= cannot be used: Not a directory"):
            put("b/1", b"")
    assert not list((tmp_path / "=tmp").iterdir())
