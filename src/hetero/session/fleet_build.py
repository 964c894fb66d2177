"""From words to devices: the grammar of a fleet in one line, and the handing out of cores and cards.

In: what is wanted and what was found. Out: devices, or why one is absent. It must not probe.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from hetero.backends import host
from hetero.backends.base import Found
from hetero.backends.null import null_device
from hetero.floor.errors import BadValueError, ConfigError, did_you_mean
from hetero.model.device import Device

__all__ = ["Builder", "DeviceEntry", "Wanted", "parse_spec", "refuse_absent"]

_ENTRY = re.compile(r"(?P<word>[A-Za-z][\w-]*)\s*(?::\s*(?P<count>-?[\w.]+))?\s*(?:\*\s*(?P<share>\S+))?")


NULL_DEVICES = 1024
"""Devices that compute nothing still have a thread each in a live run."""


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """One wanted device, or group of equal ones, of a configuration.

    Attributes
    ----------
    type : a type, kind or label, in any case
    id : number of the device among those of its type, or its id; None for every one
    cores : cores of a CPU device, None for all in the usual grouping
    memory_limit_bytes : the most memory that hetero may use on it, None for all
    throttle_frac : 0 < f <= 1
    optional : True when it may be absent
    isolation : 'process' or 'thread'
    python : the Python that its worker runs in, '' for this one
    link_bytes_per_s, link_latency_s : an emulated link to the host, 0 for none
    backend : the back end to use, '' for the preferred one
    where : 'file:line' for messages
    """

    type: str
    id: int | str | None = None
    cores: int | None = None
    memory_limit_bytes: int | None = None
    throttle_frac: float = 1.0
    optional: bool = False
    isolation: str = "process"
    python: str = ""
    link_bytes_per_s: float = 0.0
    link_latency_s: float = 0.0
    backend: str = ""
    where: str = ""

    @property
    def word(self) -> str:
        """The type in lower case."""
        return self.type.casefold()

    @property
    def shown(self) -> str:
        """The entry for people."""
        parts = [self.type, "" if self.id is None else str(self.id)]
        parts += [] if self.cores is None else [f"with {self.cores} cores"]
        place = f"{self.where}: " if self.where else ""
        return place + " ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One entry, wherever it was written.

    Attributes
    ----------
    text : for messages
    word : label, kind or type, in lower case
    count : number of devices that are no CPU cores, None for all
    cores : cores of the one CPU device, None for all cores in the usual grouping
    throttle_frac : 0 < f <= 1
    id : number or id of one device, None for any
    backend : name of a back end, '' for any
    """

    text: str
    word: str
    count: int | None
    cores: int | None
    throttle_frac: float
    id: int | str | None = None
    backend: str = ""

    @classmethod
    def of(cls, entry: DeviceEntry) -> Wanted:
        """Read an entry of a configuration."""
        return cls(entry.shown, entry.word, None, entry.cores, entry.throttle_frac, entry.id, entry.backend)


def parse_spec(spec: str, words: Iterable[str]) -> tuple[Wanted, ...]:
    """Read a fleet in one line.

    Raises
    ------
    BadValueError
        It is empty, or an entry cannot be read.

    Examples
    --------
    >>> parse_spec("cpu:2*0.5", ("cpu",))
    (Wanted(text='cpu:2*0.5', word='cpu', count=2, cores=2, throttle_frac=0.5, id=None, backend=''),)
    >>> parse_spec("cup", ("cpu",))
    Traceback (most recent call last):
    hetero.floor.errors.BadValueError: 'cup' is no kind of device; did you mean 'cpu'?; kinds: cpu
    """
    known = tuple(words)
    items = [item.strip() for item in spec.split(",")]
    if not any(items):
        raise BadValueError(
            f"{spec!r} is an empty fleet, which runs nothing", remedy="write it like 'cpu:1,cpu:1*0.25'"
        )
    return tuple(_parse_item(item, known) for item in items)


def _parse_item(item: str, known: tuple[str, ...]) -> Wanted:
    match = _ENTRY.fullmatch(item)
    if match is None:
        raise BadValueError(
            f"{item!r} is no entry of a fleet", remedy="write kind, kind:n or kind:n*f, as in 'cpu:2*0.5'"
        )
    word = match["word"].casefold()
    if word not in known:
        raise BadValueError(
            f"{match['word']!r} is no kind of device{did_you_mean(word, known)}", remedy=f"kinds: {', '.join(known)}"
        )
    count = match["count"]
    if count is not None and (not count.isdecimal() or int(count) == 0):
        raise BadValueError(
            f"{item!r} asks for {count!r} of it", remedy="write a whole number above zero, as in 'cpu:2'"
        )
    number = None if count is None else int(count)
    return Wanted(item, word, number, number, _share(item, match["share"]))


def _share(item: str, text: str | None) -> float:
    if text is None:
        return 1.0
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0.0 < share <= 1.0:
        raise BadValueError(
            f"{item!r} throttles to {text!r}",
            remedy="write a share of the speed above 0 and at most 1, as in 'cpu:1*0.25'",
        )
    return share


class Builder:
    """Hands out the devices that were found, each once, and the host's cores in turn.

    Parameters
    ----------
    found : what a survey found
    chosen : those that `choose` takes, for words that name a type
    cores : CPU numbers to hand out, None for the host's
    """

    def __init__(self, found: Iterable[Found], chosen: Sequence[Device], cores: Sequence[int] | None = None) -> None:
        self.found = tuple(found)
        self.sound = tuple(one.device for one in self.found if one.device is not None and not one.reason)
        self.chosen = tuple(chosen)
        self.cores = host.cpus() if cores is None else tuple(cores)

    def add(self, wanted: Wanted, devices: list[Device]) -> str:
        """Add what is wanted to the devices; give '' or why it is absent."""
        matching = self._matching(wanted)
        if wanted.word == "null":
            made, reason = self._null(wanted, devices)
        elif matching and matching[0].kind == "cpu":
            made, reason = self._cpu(wanted, matching, devices)
        else:
            made, reason = self._cards(wanted, matching, devices)
        devices += [replace(device, throttle_frac=wanted.throttle_frac) for device in made]
        return reason

    def _matching(self, wanted: Wanted) -> list[Device]:
        sound = [device for device in self.sound if wanted.backend in ("", device.backend)]
        by_label = [device for device in sound if device.label == wanted.word]
        if by_label:
            return by_label
        by_kind = [device for device in sound if device.kind == wanted.word]
        if by_kind:
            return by_kind
        among = sound if wanted.backend else self.chosen
        return [device for device in among if device.type == wanted.word]

    def _null(self, wanted: Wanted, devices: Sequence[Device]) -> tuple[list[Device], str]:
        start = 1 + max((device.index for device in devices if device.kind == "null"), default=-1)
        count = wanted.count or 1
        if start + count > NULL_DEVICES:
            return [], f"a live run takes {NULL_DEVICES} null devices at most; the simulator takes any number"
        return [null_device(start + number) for number in range(count)], ""

    def _cpu(self, wanted: Wanted, matching: Sequence[Device], devices: Sequence[Device]) -> tuple[list[Device], str]:
        native, total = matching[0], len(self.cores)
        if wanted.cores is not None and wanted.cores > total:
            return [], f"it asks for {wanted.cores} cores and this host has {total}"
        if wanted.cores is not None:
            start = 1 + max((device.index for device in devices if device.label == native.label), default=-1)
            return [_on_cores(native, start, self._take(wanted.cores, devices))], ""
        taken = {device.id for device in devices}
        named = [device for device in matching if wanted.id in (None, device.index, device.id, device.short)]
        free = [device for device in named if device.id not in taken]
        return free, "" if free else f"this host has {_ids(matching)}{', already named' if named else ''}"

    def _take(self, count: int, devices: Sequence[Device]) -> tuple[int, ...]:
        """Give the next cores in turn, the least used first, so that devices overlap only when cores run out."""
        uses = [cpu for device in devices if device.kind == "cpu" for cpu in device.cpus]
        order = sorted(range(len(self.cores)), key=lambda place: (uses.count(self.cores[place]), place))
        return tuple(self.cores[place] for place in sorted(order[:count]))

    def _cards(self, wanted: Wanted, matching: Sequence[Device], devices: Sequence[Device]) -> tuple[list[Device], str]:
        taken = {device.id for device in devices}
        if wanted.id is not None:
            named = [device for device in matching if wanted.id in (device.index, device.id, device.short)]
            if named and named[0].id in taken:
                return [], f"{named[0].id} is named twice"
            return (named[:1], "") if named else ([], self._why(wanted, matching))
        free = [device for device in matching if device.id not in taken]
        count = len(free) if wanted.count is None else wanted.count
        if not free or len(free) < count:
            return [], self._why(wanted, matching)
        return free[:count], ""

    def _why(self, wanted: Wanted, matching: Sequence[Device]) -> str:
        if matching:
            return f"this host has {_ids(matching)}"
        reasons = [f"{one.backend}: {one.reason}" for one in self.found if one.reason]
        return f"this host has none ({'; '.join(reasons)})" if reasons else "this host has none"


def _on_cores(native: Device, index: int, cpus: tuple[int, ...]) -> Device:
    place = native.id.rpartition(":")[0]
    return replace(native, id=f"{place}:{index}", index=index, cores=len(cpus), cpus=cpus, silicon=host.core_ids(cpus))


def _ids(devices: Sequence[Device]) -> str:
    return ", ".join(device.short for device in devices)


def refuse_absent(absent: Sequence[tuple[DeviceEntry, str]], entries: Sequence[DeviceEntry]) -> NoReturn:
    """Raise the one error that lists every absent device, with a configuration that works here."""
    lines = "; ".join(f"{entry.shown}: {reason}" for entry, reason in absent)
    noun = "device is" if len(absent) == 1 else "devices are"
    missing = {id(entry) for entry, _ in absent}
    present = [entry for entry in entries if id(entry) not in missing]
    cores = len(host.cpus())
    if not any(entry.word == "cpu" for entry in present):
        present.append(DeviceEntry("CPU", cores=cores))
    text = "\n".join(line for entry in present for line in _yaml(entry))
    raise ConfigError(
        f"{len(absent)} configured {noun} absent: {lines}",
        remedy=f"this works here (or set 'optional: true'):\ndevices:\n{text}",
    )


def _yaml(entry: DeviceEntry) -> list[str]:
    usual = DeviceEntry(entry.type)
    keys = {"id": "id", "cores": "cores", "memory_limit_bytes": "memory_limit", "throttle_frac": "throttle"}
    keys |= {name: name for name in ("optional", "isolation", "python", "backend")}
    given = {key: getattr(entry, name) for name, key in keys.items() if getattr(entry, name) != getattr(usual, name)}
    word = "'null'" if entry.word == "null" else entry.type
    return [f"- type: {word}", *(f"  {key}: {str(value).lower()}" for key, value in given.items())]
