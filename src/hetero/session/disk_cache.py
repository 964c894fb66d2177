"""What is remembered of probes and measurements between runs: one small JSON file each.

In: keys and plain values. Out: the same values. A file that is damaged or cannot be written is as good as absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from hetero.backends import host
from hetero.backends.base import Backend
from hetero.floor import settings
from hetero.floor.documents import JsonObject, read_record
from hetero.floor.errors import FileError
from hetero.floor.extras import version_of
from hetero.floor.private import write_private

__all__ = ["DiskCache", "backend_key", "digest"]


class DiskCache:
    """A dictionary in a file under HETERO_HOME.

    Parameters
    ----------
    name
        The file's name.
    """

    def __init__(self, name: str) -> None:
        self.path: Path = settings.home() / name

    def read(self) -> JsonObject:
        """Return everything; {} where the file is absent or damaged."""
        try:
            return dict(read_record(self.path, {}))
        except FileError:
            return {}

    def update(self, values: Mapping[str, object]) -> None:
        """Add or replace some entries; readers see the old file or the new one, never a part."""
        text = json.dumps(self.read() | dict(values), indent=1, sort_keys=True)
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private(self.path, text.encode())


def digest(*parts: object) -> str:
    """Return a short name for some values, the same in every process.

    Examples
    --------
    >>> digest("a", 1) == digest("a", 1), digest("a", 1) == digest("a", 2)
    (True, False)
    """
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:24]


def backend_key(backend: type[Backend], python: str = "") -> str:
    """Name everything that a probe's result depends on: host, drivers, packages, variables, and our own code.

    Parameters
    ----------
    python
        The Python that the probe runs in, '' for this one.
    """
    if python:
        home = Path(python).expanduser().parent.parent
        folders = [str(path) for path in sorted([*home.glob("lib/python*/site-packages"), home / "Lib/site-packages"])]
    else:
        folders = [path for path in sys.path if path.endswith("-packages")]
    return digest(
        backend.name,
        [_version(package) for package in backend.requires],
        [_changed(folder) for folder in folders],
        _changed(getattr(sys.modules.get(backend.__module__), "__file__", None)),
        host.driver_facts(),
        settings.device_variables(),
        (sys.prefix, sys.version),
    )


def _version(package: str) -> str:
    version = version_of(package)
    spec = None if version else find_spec(package)
    return version if spec is None else f"{spec.origin}@{_changed(spec.origin)}"


def _changed(path: str | None) -> int:
    try:
        return os.stat(path or "").st_mtime_ns
    except OSError:
        return 0
