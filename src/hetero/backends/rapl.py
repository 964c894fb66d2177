"""The energy counters of the host's processors, as the kernel's power capping folder shows them.

In: sysfs. Out: joules. It must not raise: a counter that is absent, or that only root may read, is not there.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["PackageEnergy"]

_FOLDER = "sys/class/powercap"


class PackageEnergy:
    """Adds up the energy of all processor packages, from when it is made.

    Parameters
    ----------
    root : of the file system

    Attributes
    ----------
    readable : whether there is a counter that may be read
    """

    def __init__(self, root: Path = Path("/")) -> None:
        folders = sorted((root / _FOLDER).glob("*-rapl:*"))
        packages = [folder for folder in folders if _text(folder / "name").startswith("package")]
        last = {folder: _number(folder / "energy_uj") for folder in packages}
        self._last = {folder: count for folder, count in last.items() if count is not None}
        self._joules = 0.0
        self.readable = bool(self._last)

    def joules(self) -> float:
        """Give the joules until now; a counter that went round is counted on from 0."""
        for folder, before in self._last.items():
            now = _number(folder / "energy_uj")
            if now is None:
                continue
            grown = now - before
            if grown < 0:
                grown += _number(folder / "max_energy_range_uj") or 0
            self._joules += max(0, grown) * 1e-6
            self._last[folder] = now
        return self._joules


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None
