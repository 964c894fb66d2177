"""What is known of a device and an engine: from published measurements, and from those of the user and this host.

In: published rows, tables of the user's own figures, and runs that `calibrate` timed. Out: an `Efficiency` for a device
and an engine. It must not measure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from hetero.advise.measurements import Measurement, published, read_known_rows, read_rows, read_table
from hetero.advise.rates import rates_of
from hetero.catalog.values import DeviceSpec
from hetero.model.architecture import ModelSpec
from hetero.model.workload import Sharding, WorkloadSpec
from hetero.plan.sizing import ideal_work
from hetero.plan.sizing.efficiency import SPEC, Efficiency, MeasuredRun, learn
from hetero.session.disk_cache import DiskCache

if TYPE_CHECKING:
    from hetero.floor.documents import JsonObject

__all__ = ["MINI", "Timed", "borrowed", "keep_table", "keep_timed", "kept_entries", "known_of", "prior_of", "tables"]

_BETWEEN_DEVICES = 0.5
"""The part of a data sheet's doubt that stays when others of the kind were measured: declared."""

_BETWEEN_KINDS = 0.7
"""The same when only other kinds were measured, as CUDA and not Metal: declared."""

_BETWEEN_SETTINGS = 0.15
"""By how much whole runs differ between versions of an engine, its settings and machines (standard deviation of the
logarithm): declared."""


@cache
def _of_kind(engine: str, kind: str) -> Efficiency:
    rows = [row for row in published() if row.engine == engine]
    near = [row for row in rows if row.device.kind == kind]
    if not rows:
        return SPEC
    pages = "published measurements of " + engine
    if near:
        return learn(SPEC, [row.sample for row in near], "borrowed", f"{pages} on {_names(near)}")
    far = learn(SPEC, [row.sample for row in rows], "borrowed", "")
    return far.widened(_BETWEEN_KINDS, 0.0, "borrowed", f"{pages} on other kinds of devices: {_names(rows)}")


@cache
def _of_device(engine: str, kind: str, name: str) -> Efficiency:
    common = _of_kind(engine, kind)
    if common.origin == "spec":
        return common.widened(0.0, 2 * _BETWEEN_SETTINGS, "spec", common.said)
    own = [row for row in published() if row.engine == engine and row.device.name == name]
    near = common.widened(_BETWEEN_DEVICES, 0.0, "borrowed", common.said)
    known = learn(near, [row.sample for row in own], "prior", f"published measurements of {engine} on {name}")
    return known.widened(0.0, _BETWEEN_SETTINGS, known.origin, known.said)


def _names(rows: list[Measurement]) -> str:
    return ", ".join(sorted({row.device.name for row in rows}))


def prior_of(device: DeviceSpec, engine: str) -> Efficiency:
    """Return what published measurements say of an engine on a device.

    Notes
    -----
    Three levels: what the data sheet says is narrowed by the rows of this engine on devices of this kind, widened by
    what devices differ, and narrowed again by the rows of this very device. Without any row of the engine the data
    sheet stays. Rows of the device count in both levels (empirical Bayes).

    Examples
    --------
    >>> from hetero.catalog.load import find
    >>> prior_of(find("RTX-4090"), "llama.cpp").origin, prior_of(find("RTX-4080"), "llama.cpp").origin
    ('prior', 'borrowed')
    """
    return _of_device(engine, device.kind, device.name)


def borrowed(prior: Efficiency, samples: Sequence[MeasuredRun], said: str) -> Efficiency:
    """Return the prior for this device, updated by own measurements of the engine on other devices.

    Parameters
    ----------
    samples
        Runs on other devices; none leave the prior as it is.
    said
        Whose they are.
    """
    if not samples:
        return prior
    return learn(prior, samples, "borrowed", said).widened(_BETWEEN_DEVICES, _BETWEEN_SETTINGS, "borrowed", said)


FILE = "calibration.json"
"""The file's name under HETERO_HOME."""

_ENOUGH = 200
"""Rows of other devices from which no more is learned by taking more."""

MINI = ModelSpec("mini", 8, 1024, 16, 4, 64, 2816, 4096)
"""The small decoder that `calibrate` runs."""


@dataclass(frozen=True, slots=True)
class Timed:
    """What `calibrate` timed on one device.

    Attributes
    ----------
    device
        Its name.
    flop_per_s, bytes_per_s
        Of a float32 matrix product and of a copy.
    in_bytes_per_s, out_bytes_per_s
        To and from the host's memory, None where they share it.
    weights
        Number format of the small model, '' where torch is not there.
    prompt_s, step_s
        Seconds by tokens of a prompt; of one decode step by tokens kept.
    versions
        Of driver and libraries.
    day
        Year-month-day.
    """

    device: str
    flop_per_s: float
    bytes_per_s: float
    in_bytes_per_s: float | None = None
    out_bytes_per_s: float | None = None
    weights: str = ""
    prompt_s: Mapping[str, float] = field(default_factory=dict)
    step_s: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    day: str = ""

    @classmethod
    def read(cls, kept: JsonObject) -> Timed:
        """Read what was kept, perhaps by another version."""
        names = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in kept.items() if name in names})

    def samples(self, spec: DeviceSpec) -> list[MeasuredRun]:
        """Return the timed passes of the small model as runs, against what the data sheet promises."""
        if not self.weights:
            return []
        found = []
        for tokens, seconds in self.prompt_s.items():
            work = WorkloadSpec(MINI, weights=self.weights, prompt=int(tokens), context=int(tokens) + 1)
            amounts = ideal_work.prompt_amounts(work, Sharding(), rates_of(spec, work), 1)
            found.append(MeasuredRun(amounts, seconds))
        for kept, seconds in self.step_s.items():
            work = WorkloadSpec(MINI, weights=self.weights)
            amounts = ideal_work.step_amounts(work, Sharding(), rates_of(spec, work), 1, float(kept))
            found.append(MeasuredRun(amounts, seconds))
        return found


def keep_table(path: Path) -> tuple[list[Measurement], list[str]]:
    """Keep a user's own figures; a table of the same name takes the place of the older one.

    Returns
    -------
    tuple
        The rows that could be read, and a line for each that could not.

    Raises
    ------
    BadValueError
        The file cannot be read, lacks a column, or has no row that could be read.
    """
    found, unread = read_known_rows(path)
    DiskCache(FILE).update({f"table {path.name}": [dict(row) for row in read_table(path)]})
    return found, unread


def keep_timed(timed: Timed) -> None:
    """Keep what was timed on a device of this host."""
    DiskCache(FILE).update({f"here {timed.device}": asdict(timed)})


def _state() -> tuple[str, int]:
    """Return the file and when it was written last, 0 where it is absent: the key of what was read of it."""
    path = DiskCache(FILE).path
    try:
        return str(path), path.stat().st_mtime_ns
    except OSError:
        return str(path), 0


def kept_entries() -> JsonObject:
    """Return everything that is kept, read anew where the file has changed."""
    return _entries(_state())


@lru_cache(maxsize=4)
def _entries(state: tuple[str, int]) -> JsonObject:
    return DiskCache(FILE).read() if state[1] else {}


def tables() -> Sequence[Measurement]:
    """Return the rows of every kept table."""
    return _rows(_state())


@lru_cache(maxsize=4)
def _rows(state: tuple[str, int]) -> tuple[Measurement, ...]:
    kept = _entries(state)
    return tuple(read_rows(row for name, table in kept.items() if name.startswith("table ") for row in table)[0])


def known_of(device: DeviceSpec, engine: str) -> Efficiency:
    """Return what is known of an engine on a device: its prior, narrowed by what was measured here or by the user.

    Notes
    -----
    See `hetero.plan.sizing.efficiency.learn`. Own measurements of the engine on other devices are borrowed first;
    without any the prior stays.
    """
    state = _state()
    if not state[1]:
        return prior_of(device, engine)
    key = (device.name, device.kind, engine)
    known = _known(state)
    if key not in known:
        known[key] = _learned(device, engine)
    return known[key]


@lru_cache(maxsize=1)
def _known(state: tuple[str, int]) -> dict[tuple[str, str, str], Efficiency]:
    """Return the room for what was learned from one state of the file."""
    return {}


def _learned(device: DeviceSpec, engine: str) -> Efficiency:
    rows = [row for row in tables() if row.engine == engine]
    others = [row for row in rows if row.device.name != device.name]
    some = others[:: 1 + len(others) // _ENOUGH]
    names = ", ".join(sorted({row.device.name for row in some}))
    said = f"own measurements of {engine} on {names}"
    near = borrowed(prior_of(device, engine), [row.sample for row in some], said)
    own = [row.sample for row in rows if row.device.name == device.name]
    here = kept_entries().get(f"here {device.name}")
    if here and engine == "torch":
        own += Timed.read(here).samples(device)
    return learn(near, own, "measured", f"{len(own)} own measurements of {engine} on {device.name}")
