"""From words to devices: the grammar of a fleet in one line, and the handing out of cores and cards.

In: what is wanted and what was found. Out: devices, or why one is absent. It must not probe.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from hetero.backends import host
from hetero.backends.base import Found
from hetero.backends.null import null_device
from hetero.backends.registry import kind_named, known_words
from hetero.floor.errors import BadValueError, ConfigError, did_you_mean
from hetero.floor.units import shown
from hetero.model.device import Device, index_of

__all__ = [
    "Builder",
    "DeviceEntry",
    "Wanted",
    "most_cpu_devices",
    "names_with_host",
    "parse_spec",
    "picked",
    "refuse_absent",
    "refuse_cores",
]

_HOST = re.compile(r"h\d+/")
_ENTRY = re.compile(
    r"(?:(?P<count>[-+.\d]+)\s*x\s*)?(?:h0/)?(?P<word>[a-z][\w-]*?)"
    r"(?::(?P<index>[-+.\w]+)|\s*/\s*(?P<cores>[-+.\d]+)\s*cores?)?\s*(?:\*\s*(?P<share>\S+))?",
    re.IGNORECASE,
)
_SHARE = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e-?[0-9]{1,2})?", re.IGNORECASE)
_FORMS = "write kind for all of them, 2xkind for two, kind:1 for the one of that index; as in '2xcpu,1xcpu*0.25'"

DEVICES_A_CORE = 8
"""More CPU devices than that on one core are a mistake, and their processes would bring a host down."""

NULL_DEVICES = 1024
"""Devices that compute nothing still have a thread each in a live run."""


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """One wanted device, or group of equal ones, of a configuration.

    Attributes
    ----------
    type
        A type, kind or label, in any case.
    id
        Number of the device among those of its type, or its id; None for every one.
    cores
        Cores of a CPU device, None for all in the usual grouping.
    memory_limit_bytes
        The most memory that hetero may use on it, None for all.
    throttle_frac
        0 < f <= 1.
    optional
        True when it may be absent.
    isolation
        'process' or 'thread'.
    python
        The Python that its worker runs in, '' for this one.
    link_bytes_per_s, link_latency_s
        An emulated link to the host, 0 for none.
    backend
        The back end to use, '' for the preferred one.
    where
        'file:line' for messages.
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
    text
        For messages.
    word
        Label, kind or type, in lower case.
    count
        Number of devices, None for all.
    cores
        Cores of each CPU device, None for one each where they are counted, else for the usual grouping.
    throttle_frac
        0 < f <= 1.
    id
        Number or id of one device, None for any.
    backend
        Name of a back end, '' for any.
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
    >>> parse_spec("2xcpu*0.5", ("cpu",))
    (Wanted(text='2xcpu*0.5', word='cpu', count=2, cores=None, throttle_frac=0.5, id=None, backend=''),)
    >>> parse_spec("cup", ("cpu",))
    Traceback (most recent call last):
    hetero.floor.errors.BadValueError: 'cup' is no kind of device; did you mean 'cpu'?; kinds: cpu
    """
    known = tuple(words)
    items = [item.strip() for item in spec.split(",")]
    if not any(items):
        raise BadValueError(
            f"{spec!r} is an empty fleet, which runs nothing", remedy="write it like '1xcpu,1xcpu*0.25'"
        )
    named = names_with_host(spec)
    found = tuple(_parse_item(item.rpartition("/")[2] if named else item, known) for item in items)
    if named and (several := [item for item, one in zip(items, found, strict=True) if one.id is None]):
        raise BadValueError(
            f"{several[0]!r} beside devices that are named with their host says not which one",
            remedy="name each as in 'cpu:0,h1/cuda:0'",
        )
    return found


def names_with_host(spec: str) -> tuple[str, ...]:
    """Return the devices of a fleet in one line that names them as a cluster lists them, () where none has a host.

    Examples
    --------
    >>> names_with_host("cpu:0, h1/cuda:0"), names_with_host("2xcpu/4cores")
    (('cpu:0', 'h1/cuda:0'), ())
    """
    names = tuple(dict.fromkeys(word.strip() for word in spec.split(",")))
    return names if any(_HOST.match(name) for name in names) else ()


def _parse_item(item: str, known: tuple[str, ...]) -> Wanted:
    match = _ENTRY.fullmatch(item)
    if match is None:
        raise BadValueError(f"{item!r} is no entry of a fleet", remedy=_FORMS)
    word = match["word"].casefold()
    if word not in known:
        raise BadValueError(
            f"{match['word']!r} is no kind of device{did_you_mean(word, known)}", remedy=f"kinds: {', '.join(known)}"
        )
    count, cores = _above_zero(item, match["count"]), _above_zero(item, match["cores"])
    refuse_cores(word, cores)
    index = match["index"]
    number = None if index is None else index_of(index)
    if index is not None and (count is not None or number is None):
        raise BadValueError(
            f"{item!r} says both how many and which one"
            if count is not None
            else f"{shown(index)} is no index, which has no sign and no leading zero",
            remedy=_FORMS,
        )
    return Wanted(item, word, count, cores, _share(item, match["share"]), number)


def refuse_cores(word: str, cores: int | None) -> None:
    """Refuse a number of cores for devices that have no cores to hand out.

    Raises
    ------
    BadValueError
        The word names devices that are no CPU.
    """
    if cores is not None and word in known_words() and not kind_named(word).is_host:
        raise BadValueError(
            f"cores={cores} is for devices on the CPU, and {word!r} is none",
            remedy=f"leave the cores out for {word}, or name 'cpu'",
        )


def _above_zero(item: str, text: str | None) -> int | None:
    number = None if text is None else index_of(text)
    if text is not None and not number:
        raise BadValueError(
            f"{shown(item)} asks for {shown(text)} of it", remedy="write a whole number above zero, as in '2xcpu'"
        )
    return number


def _share(item: str, text: str | None) -> float:
    if text is None:
        return 1.0
    share = float(text) if _SHARE.fullmatch(text) else 0.0
    if not 0.0 < share <= 1.0:
        raise BadValueError(
            f"{item!r} throttles to {text!r}",
            remedy="write a share of the speed above 0 and at most 1, as in '1xcpu*0.25'",
        )
    return share


def most_cpu_devices() -> int:
    """Return the largest number of CPU devices that one entry may ask for on this host."""
    return DEVICES_A_CORE * len(host.cpus())


class Builder:
    """Hands out the devices that were found, each once, and the host's cores in turn.

    Parameters
    ----------
    found
        What a survey found.
    chosen
        Those that `choose` takes, for words that name a type.
    cores
        CPU numbers to hand out, None for the host's.
    """

    def __init__(self, found: Iterable[Found], chosen: Sequence[Device], cores: Sequence[int] | None = None) -> None:
        self.found = tuple(found)
        self.sound = tuple(one.device for one in self.found if one.device is not None and not one.reason)
        self.chosen = tuple(chosen)
        self.cores = host.cpus() if cores is None else tuple(cores)

    def pick(self, wanted: Wanted, devices: Sequence[Device]) -> tuple[list[Device], str]:
        """Return what is wanted beside the devices that there are, or why it is absent."""
        matching = self._matching(wanted)
        if wanted.word == "null":
            made, reason = self._null(wanted, devices)
        elif matching and matching[0].is_host:
            made, reason = self._cpu(wanted, matching, devices)
        else:
            made, reason = self._cards(wanted, matching, devices)
        return [replace(device, throttle_frac=wanted.throttle_frac) for device in made], reason

    def understood(self, wanted: Sequence[Wanted]) -> tuple[list[Wanted], list[str]]:
        """Read `kind:n` as the number that it was before, where it can name no device; with a warning for each.

        Notes
        -----
        That is so where the same index is named twice (`cpu:1,cpu:1*0.25`), and where no device has it and there are
        as many (`null:8`, `cuda:2` of two). The other entries of that kind then are numbers, too. A broken device keeps
        its index: whoever names it learns why it is broken, and gets no other one.
        """
        old = {one.word for one in wanted if one.id is not None and one.backend == "" and self._is_count(one, wanted)}
        read = [_counted(one, self._counts_cores(one)) if one.word in old and one.id else one for one in wanted]
        pairs = [(one, new) for one, new in zip(wanted, read, strict=True) if new is not one]
        return read, [
            f"{one.text!r} is taken as a number of devices or cores, as in earlier versions: write {new.text!r}; the "
            f"next version reads {one.text!r} as the device with index {one.id}"
            for one, new in dict.fromkeys(pairs)
        ]

    def _is_count(self, one: Wanted, wanted: Sequence[Wanted]) -> bool:
        """Return whether an index can only be a number of devices, or of cores."""
        alike = [other.id for other in wanted if other.word == one.word and isinstance(other.id, int)]
        if 0 in alike or not isinstance(one.id, int):
            return False
        if one.word == "null":
            return alike != list(range(alike[0], alike[0] + len(alike))) or alike[0] != _nulls_counted(wanted)
        matching = self._matching(one)
        if any(self._broken(other) for other in wanted if other.word == one.word):
            return False
        room = len(self.cores) if self._counts_cores(one) else len(matching)
        absent = one.id not in [device.index for device in matching]
        return bool(matching) and one.id <= room and (absent or len(set(alike)) < len(alike))

    def _counts_cores(self, wanted: Wanted) -> bool:
        return any(device.is_host for device in self._matching(wanted)[:1])

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

    def _broken(self, wanted: Wanted) -> list[Found]:
        """Return what is broken of the devices that an entry names by index or id."""
        unsound = [(one, one.device) for one in self.found if one.reason and one.device is not None]
        return [
            one
            for one, device in unsound
            if wanted.backend in ("", device.backend)
            and wanted.word in (device.label, device.kind, device.type.casefold())
            and wanted.id in (device.index, device.id, device.short)
        ]

    def _null(self, wanted: Wanted, devices: Sequence[Device]) -> tuple[list[Device], str]:
        taken = [device.index for device in devices if device.kind == "null"]
        indices = _free(taken, wanted.count or 1)
        if wanted.id is not None:
            index = index_of(str(wanted.id).removeprefix("h0/").removeprefix("null:"))
            if index is None or index in taken:
                return [], "null devices have an index, as null:0" if index is None else f"null:{index} is named twice"
            indices = [index]
        if indices[-1] >= NULL_DEVICES:
            return [], f"a live run takes {NULL_DEVICES} null devices at most; the simulator takes any number"
        return [null_device(index) for index in indices], ""

    def _cpu(self, wanted: Wanted, matching: Sequence[Device], devices: Sequence[Device]) -> tuple[list[Device], str]:
        if wanted.id is None and (wanted.count or wanted.cores):
            return self._cpu_of(wanted.count or 1, wanted.cores or 1, matching[0], devices)
        taken = {device.id for device in devices}
        named = [device for device in matching if wanted.id in (None, device.index, device.id, device.short)]
        free = [device for device in named if device.id not in taken]
        if free and wanted.cores not in (None, free[0].cores):
            return (
                [],
                f"{free[0].short} has {free[0].cores} cores; leave the index out to have a device of {wanted.cores}",
            )
        if named and not free:
            return [], f"this host has {_ids(matching)}, already named"
        return free, "" if free else self._why(wanted, matching)

    def _cpu_of(self, count: int, cores: int, native: Device, devices: Sequence[Device]) -> tuple[list[Device], str]:
        """Make CPU devices of so many cores each."""
        total = len(self.cores)
        if cores > total:
            return [], f"it asks for {cores} cores and this host has {total}"
        if count > DEVICES_A_CORE * total:
            return [], f"it asks for {count} devices on {total} cores, which take {DEVICES_A_CORE * total} at most"
        made: list[Device] = []
        for index in _free((device.index for device in devices if device.label == native.label), count):
            made.append(_on_cores(native, index, self._take(cores, [*devices, *made])))
        return made, ""

    def _take(self, count: int, devices: Sequence[Device]) -> tuple[int, ...]:
        """Return the next cores in turn, the least used first, so that devices overlap only when cores run out."""
        uses = [cpu for device in devices if device.is_host for cpu in device.cpus]
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
        if broken := self._broken(wanted):
            others = f"; this host has {_ids(matching)}" if matching else ""
            return "; ".join(f"{one.device.short} is broken: {one.reason}" for one in broken if one.device) + others
        if matching:
            return f"this host has {_ids(matching)}"
        reasons = [f"{one.backend}: {one.reason}" for one in self.found if one.reason]
        return f"this host has none ({'; '.join(reasons)})" if reasons else "this host has none"


def _counted(wanted: Wanted, on_cores: bool) -> Wanted:
    """Return an entry `kind:n` as the number of devices, or of the cores of a CPU device, that it was before."""
    number = int(str(wanted.id))
    share = f"*{wanted.throttle_frac:g}" if wanted.throttle_frac < 1.0 else ""
    if on_cores and number > 1:
        return replace(wanted, text=f"{wanted.word}/{number}cores{share}", cores=number, id=None)
    return replace(wanted, text=f"{number}x{wanted.word}{share}", count=number, id=None)


def _nulls_counted(wanted: Sequence[Wanted]) -> int:
    """Return how many null devices are wanted by number."""
    return sum(one.count or 1 for one in wanted if one.word == "null" and one.id is None)


def picked(wanted: Sequence[tuple[Wanted, Builder]]) -> list[tuple[list[Device], str]]:
    """Return the devices of each entry of a fleet, or why they are absent.

    Notes
    -----
    An entry means the same wherever it stands: those that name a device come first, then those that say how many, then
    those that take all that are left.
    """
    found: list[tuple[list[Device], str]] = [([], "")] * len(wanted)
    for place in sorted(range(len(wanted)), key=lambda place: _turn(wanted[place][0])):
        one, builder = wanted[place]
        found[place] = builder.pick(one, [device for devices, _ in found for device in devices])
    return found


def _turn(wanted: Wanted) -> int:
    if wanted.id is not None:
        return 0
    return 1 if wanted.count or wanted.cores or wanted.word == "null" else 2


def _free(taken: Iterable[int], count: int) -> list[int]:
    """Return so many of the lowest indices that are not taken."""
    held = set(taken)
    return list(itertools.islice((index for index in itertools.count() if index not in held), count))


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
    if not any(kind_named(entry.word).is_host for entry in present):
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
