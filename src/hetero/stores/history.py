"""The history: measured times of earlier runs, in one SQLite file.

In: samples of this run. Out: samples of earlier runs on the same kinds of devices.
It must not judge them; it never deletes a damaged file, and never waits for another process without end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from hetero.floor.errors import HistoryError
from hetero.floor.files import local_path
from hetero.plan.performance.cost_model import KEPT, Sample

__all__ = ["ABSENCES", "FILE", "RESULTS", "VERSION", "Absence", "HistoryStore"]

FILE = "history.sqlite"
"""The name of the file below HETERO_HOME."""

VERSION = 3
"""The version of the file's layout, kept in its `user_version`."""

RESULTS = 4096
"""Signatures whose results' bytes are kept."""

ABSENCES = 32
"""Functions and environments that are kept of those where a package was missing."""

_BUSY_S = 10.0
_MAKE = """
CREATE TABLE IF NOT EXISTS samples (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    signature TEXT NOT NULL,
    device_key TEXT NOT NULL,
    size REAL NOT NULL,
    seconds REAL NOT NULL CHECK (seconds > 0)
);
CREATE INDEX IF NOT EXISTS by_key ON samples (device_key, signature, id);
CREATE TABLE IF NOT EXISTS results (
    signature TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL CHECK (bytes >= 0)
);
CREATE TABLE IF NOT EXISTS absences (
    function TEXT NOT NULL,
    python TEXT NOT NULL,
    label TEXT NOT NULL,
    message TEXT NOT NULL,
    day TEXT NOT NULL DEFAULT CURRENT_DATE,
    UNIQUE (function, python, label) ON CONFLICT REPLACE
);
"""
_PRUNE = """
DELETE FROM samples WHERE device_key = ?1 AND signature = ?2 AND id <= (
    SELECT id FROM samples WHERE device_key = ?1 AND signature = ?2 ORDER BY id DESC LIMIT 1 OFFSET ?3
)
"""
_PUT_RESULT = """
INSERT OR REPLACE INTO results (signature, bytes)
VALUES (?1, max(?2, coalesce((SELECT bytes FROM results WHERE signature = ?1), 0)))
"""
_PRUNE_RESULTS = "DELETE FROM results WHERE rowid <= (SELECT rowid FROM results ORDER BY rowid DESC LIMIT 1 OFFSET ?)"


class Absence(NamedTuple):
    """A package that was missing where a task was to run.

    Attributes
    ----------
    function
        Its name.
    python
        The interpreter of the environment, '' for the program's own.
    label
        Kind of the devices.
    message
        The line of the exception.
    day
        When it was last so, as in '2026-11-22'.
    """

    function: str
    python: str
    label: str
    message: str
    day: str = ""


class HistoryStore:
    """Keeps the newest samples of each signature on each kind of device, and the bytes of its largest result.

    Every call opens the file anew, so a store may be used from any thread and after a fork, and several
    processes may read and write at once: a write waits up to ten seconds for its turn.

    Parameters
    ----------
    path
        The file; it and its folder are made when they are absent.

    Raises
    ------
    HistoryError
        The file is damaged, was written by a newer hetero, or cannot be opened or written. Every method
        raises it.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = HistoryStore(Path(folder) / FILE)
    ...     store.add([Sample("f|", "cpu/x", 8.0, 0.5)])
    ...     store.load(["cpu/x"])
    (Sample(signature='f|', device_key='cpu/x', size=8.0, seconds=0.5),)
    """

    def __init__(self, path: Path) -> None:
        self.path = local_path(path, "history")
        with self._worded():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            with closing(self._connect()) as connection:
                self._prepare(connection)

    @classmethod
    def open_or_aside(cls, path: Path) -> tuple[HistoryStore, str]:
        """Open the file; a damaged one is renamed to *.damaged, and a new one begun.

        Returns
        -------
        tuple
            The store, and a warning for people, '' when all is well.

        Raises
        ------
        HistoryError
            The file is not damaged but cannot be used: a newer version, no permission, no space.
        """
        try:
            return cls(path), ""
        except _DamagedError as error:
            aside = _set_aside(path)
            return cls(path), f"{error.problem}: it was renamed to {aside.name}, and times are learned anew"

    def device_keys(self) -> tuple[str, ...]:
        """Return the kinds of devices that there are samples of, by name."""
        with self._worded(), closing(self._connect()) as connection:
            rows = connection.execute("SELECT DISTINCT device_key FROM samples ORDER BY device_key")
            return tuple(key for (key,) in rows)

    def load(self, device_keys: Iterable[str]) -> tuple[Sample, ...]:
        """Return the samples of these kinds of devices, oldest first within each kind."""
        found: list[Sample] = []
        with self._worded(), closing(self._connect()) as connection:
            for key in dict.fromkeys(device_keys):
                rows = connection.execute(
                    "SELECT signature, device_key, size, seconds FROM samples WHERE device_key = ? ORDER BY id", (key,)
                )
                found += map(Sample._make, rows)
        return tuple(found)

    def add(self, samples: Iterable[Sample]) -> None:
        """Add samples, all or none, and drop all but the newest of each signature on each kind of device."""
        rows = list(samples)
        if not rows:
            return
        touched = sorted({(row.device_key, row.signature) for row in rows})
        with self._worded(), closing(self._connect()) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT INTO samples (signature, device_key, size, seconds) VALUES (?, ?, ?, ?)", rows
            )
            connection.executemany(_PRUNE, [(*pair, KEPT) for pair in touched])

    def result_bytes(self) -> dict[str, int]:
        """Return the bytes of the largest result seen of each signature, the one added last at the end."""
        with self._worded(), closing(self._connect()) as connection:
            return dict(connection.execute("SELECT signature, bytes FROM results ORDER BY rowid"))

    def add_results(self, result_bytes: Mapping[str, int]) -> None:
        """Record the bytes of results, all or none, and drop those that were not added for longest."""
        if not result_bytes:
            return
        with self._worded(), closing(self._connect()) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_PUT_RESULT, result_bytes.items())
            connection.execute(_PRUNE_RESULTS, (RESULTS,))

    def absences(self) -> tuple[Absence, ...]:
        """Return the packages that were missing, the last one first."""
        with self._worded(), closing(self._connect()) as connection:
            rows = connection.execute("SELECT function, python, label, message, day FROM absences ORDER BY rowid DESC")
            return tuple(map(Absence._make, rows))

    def add_absences(self, absences: Iterable[Absence]) -> None:
        """Add packages that were missing, all or none, and drop all but the newest."""
        rows = [absence[:4] for absence in absences]
        if not rows:
            return
        with self._worded(), closing(self._connect()) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO absences (function, python, label, message) VALUES (?, ?, ?, ?)", rows)
            newest = "SELECT rowid FROM absences ORDER BY rowid DESC LIMIT ?"
            connection.execute(f"DELETE FROM absences WHERE rowid NOT IN ({newest})", (ABSENCES,))

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version > VERSION:
            raise HistoryError(
                f"{self.path} was written by a newer hetero (version {version}, this one knows {VERSION})",
                remedy="update hetero, or set HETERO_HOME to another folder",
            )
        verdict = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
        if verdict != "ok":
            raise _damaged(self.path, verdict)
        if version < VERSION:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(f"BEGIN IMMEDIATE; {_MAKE} PRAGMA user_version = {VERSION}; COMMIT;")

    @contextmanager
    def _worded(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if "no such table" in str(error) or "malformed" in str(error) or "no such column" in str(error):
                raise _damaged(self.path, str(error)) from error
            raise HistoryError(
                f"{self.path} cannot be used: {error}", remedy="make it writable, or set HETERO_HOME to another folder"
            ) from error
        except sqlite3.IntegrityError as error:
            raise HistoryError(f"{self.path} refused a sample: {error}", remedy="give seconds above 0") from error
        except sqlite3.DatabaseError as error:
            raise _damaged(self.path, str(error)) from error
        except UnicodeDecodeError as error:
            raise _damaged(self.path, "a text in it is not UTF-8") from error
        except OSError as error:
            raise HistoryError(
                f"{self.path} cannot be made: {error.strerror}", remedy="set HETERO_HOME to a writable folder"
            ) from error


class _DamagedError(HistoryError):
    """The file is not what was written."""


def _damaged(path: Path, why: str) -> _DamagedError:
    reason = " ".join(why.split())
    return _DamagedError(f"{path} is damaged ({reason})", remedy="move it away, and times are learned anew")


def _set_aside(path: Path) -> Path:
    """Rename a file, and what SQLite keeps beside it, to a name that is free; nothing is overwritten."""
    number = 1
    aside = path.with_name(f"{path.name}.damaged")
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.{number}.damaged")
    for suffix in ("", "-wal", "-shm"):
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            beside.rename(aside.with_name(aside.name + suffix))
    return aside
