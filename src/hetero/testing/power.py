"""Power cuts, simulated: a disk that records every operation, and the states in which a cut may leave it.

In: the operations of a store. Out: one folder after another, as found after the cut.
It must be no kinder than real disks: what was not waited for may be lost, torn or zeroed, in any order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from hetero.stores.files import Disk

__all__ = ["DiskOperation", "RecordingDisk", "cuts"]

FOLDER = -1
"""Stands for a folder where a file has the number of its content."""


class DiskOperation(NamedTuple):
    """One recorded operation: what was done, to which path below the root, with which other path or bytes."""

    what: str
    path: str
    other: str = ""
    data: bytes | None = None


class RecordingDisk(Disk):
    """Does what `Disk` does, below one folder, and keeps a log of it.

    Attributes
    ----------
    log
        The steps so far.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log: list[DiskOperation] = []

    def during(self, key: str, data: bytes | None, call: Callable[[], object]) -> None:
        """Call something that gives the key this value, and note its begin and end in the log."""
        self.log.append(DiskOperation("begin", key, data=data))
        call()
        self.log.append(DiskOperation("end", key, data=data))

    def make_folder(self, path: Path) -> None:
        """Make a folder."""
        super().make_folder(path)
        self._note("make_folder", path)

    def create(self, path: Path, *pieces: bytes) -> None:
        """Make a file."""
        super().create(path, *pieces)
        self._note("create", path)
        for piece in pieces:
            self.log.append(DiskOperation("write", self._name(path), data=piece))

    def sync(self, path: Path) -> None:
        """Wait for a content."""
        self._note("sync", path)

    def sync_folder(self, path: Path) -> None:
        """Wait for names."""
        self._note("sync_folder", path)

    def rename(self, src: Path, dst: Path) -> None:
        """Rename a file."""
        super().rename(src, dst)
        self._note("rename", src, dst)

    def link(self, src: Path, dst: Path) -> None:
        """Link a file to a second name."""
        super().link(src, dst)
        self._note("link", src, dst)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        super().remove(path)
        self._note("remove", path)

    def remove_folder(self, path: Path) -> bool:
        """Remove an empty folder."""
        removed = super().remove_folder(path)
        if removed:
            self._note("remove", path)
        return removed

    def _note(self, what: str, path: Path, other: Path | None = None) -> None:
        if path == self.root or self.root in path.parents:
            self.log.append(DiskOperation(what, self._name(path), "" if other is None else self._name(other)))

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


class _DiskModel:
    """What is on the disk, and what is only on its way there."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []
        self.waited: set[int] = set()
        self.now: dict[str, int] = {}
        self.names: dict[str, int] = {}
        self.pending: list[tuple[str, int | None]] = []

    def apply(self, step: DiskOperation) -> None:
        if step.what == "create":
            self.contents.append(b"")
            self._name(step.path, len(self.contents) - 1)
        elif step.what == "write":
            self.contents[self.now[step.path]] += step.data or b""
        elif step.what == "make_folder":
            self._name(step.path, FOLDER)
        elif step.what == "sync":
            self.waited.add(self.now[step.path])
        elif step.what == "sync_folder":
            self._wait_for_names(step.path)
        elif step.what in ("rename", "link"):
            self._name(step.other, self.now[step.path])
        if step.what in ("rename", "remove") and step.path in self.now:
            self._name(step.path, None)

    def _name(self, path: str, content: int | None) -> None:
        self.pending.append((path, content))
        _set(self.now, path, content)

    def _wait_for_names(self, folder: str) -> None:
        here = [change for change in self.pending if _above(change[0]) == folder]
        self.pending = [change for change in self.pending if _above(change[0]) != folder]
        for path, content in here:
            _set(self.names, path, content)

    def states(self) -> Iterator[tuple[tuple[str, bytes | None], ...]]:
        """Yield every state that a cut may leave now: paths with their content, None for a folder."""
        for chosen, damage in itertools.product(_some(self.pending), _DAMAGES):
            names = dict(self.names)
            for path, content in chosen:
                _set(names, path, content)
            yield tuple(
                (path, None if content == FOLDER else self._found(content, damage))
                for path, content in sorted(names.items())
                if all(names.get(above) == FOLDER for above in _folders_above(path))
            )

    def _found(self, content: int, damage: Callable[[bytes], bytes]) -> bytes:
        whole = self.contents[content]
        return whole if content in self.waited else damage(whole)


_DAMAGES: tuple[Callable[[bytes], bytes], ...] = (
    lambda data: data,
    lambda data: b"",
    lambda data: data[: len(data) // 2],
    lambda data: bytes(len(data)),
)


def _set(names: dict[str, int], path: str, content: int | None) -> None:
    if content is None:
        for gone in [each for each in names if each == path or each.startswith(f"{path}/")]:
            del names[gone]
    else:
        names[path] = content


def _above(path: str) -> str:
    return path.rpartition("/")[0] or "."


def _folders_above(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]


def _some(pending: list[tuple[str, int | None]]) -> Iterator[list[tuple[str, int | None]]]:
    """Yield the ways in which waiting names may have reached the disk: none, all, each prefix, each alone."""
    yield from (pending[:count] for count in range(len(pending) + 1))
    yield from ([change] for change in pending)


Build = Callable[[Path], None]


def cuts(log: Iterable[DiskOperation]) -> Iterator[tuple[dict[str, set[bytes | None]], Build]]:
    """Yield each state in which a power cut during the log may leave the disk, once.

    Yields
    ------
    tuple
        the values that each key may have then, and a function that builds the state below a folder
    """
    model = _DiskModel()
    done: dict[str, set[bytes | None]] = {}
    seen: set[object] = set()
    for step in log:
        if step.what == "begin":
            done.setdefault(step.path, {None}).add(step.data)
        elif step.what == "end":
            done[step.path] = {step.data}
        else:
            model.apply(step)
        for state in model.states():
            mark = (state, tuple((key, frozenset(values)) for key, values in done.items()))
            if mark not in seen:
                seen.add(mark)
                yield {key: set(values) for key, values in done.items()}, _builder(state)


def _builder(state: tuple[tuple[str, bytes | None], ...]) -> Build:
    def build(root: Path) -> None:
        for path, content in state:
            if content is None:
                (root / path).mkdir(parents=True, exist_ok=True)
            else:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(content)

    return build
