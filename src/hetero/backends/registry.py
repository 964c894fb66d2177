"""Which back ends there are: the built-in ones, and those of other packages.

In: names. Out: back end classes. It must not import a framework: back ends import theirs inside functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

from hetero.backends.base import Backend, Found
from hetero.floor.errors import BadValueError, DeviceError, did_you_mean
from hetero.floor.text import exception_line
from hetero.model.device import KINDS, TYPE_WORDS, Device, DeviceKind

__all__ = [
    "GROUP",
    "backend_of",
    "broken",
    "device_words",
    "kind_named",
    "kind_of",
    "kinds",
    "known_words",
    "load",
    "loaded",
    "names",
    "refuse_unknown",
    "runs_torch",
    "torch_place",
    "why_unusable",
]

GROUP = "hetero.backends"
"""The group of entry points by which other packages offer back ends: name = 'module:Class'."""

_BUILT_IN = {
    "cpu": "CpuBackend",
    "torch": "TorchBackend",
    "jax": "JaxBackend",
    "opencl": "OpenclBackend",
    "vulkan": "VulkanBackend",
    "null": "NullBackend",
}


_WORD = re.compile(r"[a-z][a-z0-9_-]*")
_TYPE = re.compile(r"[A-Z][A-Z0-9_]*")


class _Registered(NamedTuple):
    classes: dict[str, type[Backend]]
    broken: tuple[Found, ...]


@cache
def loaded() -> _Registered:
    """Load every back end once; the built-in ones first, in the order in which they are preferred."""
    classes = {name: getattr(import_module(f"hetero.backends.{name}"), word) for name, word in _BUILT_IN.items()}
    broken: list[Found] = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        reason = _take(entry, classes)
        if reason:
            where = f"entry point {entry.name!r} = {entry.value!r}"
            broken.append(Found(None, entry.name, f"{where}: {reason}", "repair or uninstall the package"))
    return _Registered(classes, tuple(broken))


def _take(entry: EntryPoint, classes: dict[str, type[Backend]]) -> str:
    """Load one entry point into `classes`; return why not, '' when it is there."""
    if entry.name in classes:
        return f"the name {entry.name!r} is taken"
    try:
        given = entry.load()
    except Exception as error:  # noqa: BLE001  others' packages raise anything
        return exception_line(error)
    if not (isinstance(given, type) and issubclass(given, Backend)):
        return f"{given!r} is no subclass of hetero.backends.base.Backend"
    if getattr(given, "name", None) != entry.name:
        return f"its class is named {getattr(given, 'name', None)!r}"
    reason = why_unusable(given, classes.values())
    if not reason:
        classes[entry.name] = given
    return reason


def why_unusable(backend: type[Backend], others: Iterable[type[Backend]] = ()) -> str:
    """Return what is wrong with the name, the kinds or the labels of a back end, '' where nothing is.

    Parameters
    ----------
    backend
        The class, registered or not.
    others
        Back ends whose kinds it must not declare with other facts, beside those of `KINDS`.

    Examples
    --------
    >>> why_unusable(load("cpu"))
    ''
    """
    name = getattr(backend, "name", None)
    if not (isinstance(name, str) and _WORD.fullmatch(name)):
        return f"{backend.__name__}: name is {name!r}, and no word"
    listed = getattr(backend, "kinds", None)
    if not isinstance(listed, tuple) or not listed:
        return f"{name}: kinds is a tuple of at least one"
    for one in listed:
        if not isinstance(one, str | DeviceKind):
            return f"{name}: {one!r} in kinds is neither a name nor a DeviceKind"
    faults = [_fault_of(kind) or _conflict(kind, backend, others) for kind in backend.declared_kinds().values()]
    faults += [f"label {label!r} is no word in lower case" for label in backend.labels if not _WORD.fullmatch(label)]
    return next((f"{name}: {fault}" for fault in faults if fault), "")


def _fault_of(kind: DeviceKind) -> str:
    if not _WORD.fullmatch(kind.name):
        return f"kind {kind.name!r} is no word in lower case"
    if not _TYPE.fullmatch(kind.type):
        return f"the type {kind.type!r} of {kind.name} is no word in capitals"
    try:
        kind.torch_place(0)
    except (LookupError, ValueError):
        return f"torch={kind.torch!r} of {kind.name} is not like 'cuda:{{index}}'"
    return ""


def _conflict(kind: DeviceKind, backend: type[Backend], others: Iterable[type[Backend]]) -> str:
    """Return whose kind this is where it is declared already with other facts, '' where it is not."""
    if kind.name in backend.kinds:
        return ""
    owner = "hetero" if kind.name in KINDS else ""
    known = KINDS.get(kind.name)
    for other in others:
        if known is None and other.name != backend.name and kind.name not in other.kinds:
            known, owner = other.declared_kinds().get(kind.name), f"back end {other.name!r}"
    if known is None or known == kind:
        return ""
    differing = next(
        f"{field.name}={getattr(kind, field.name)!r}, there {getattr(known, field.name)!r}"
        for field in fields(kind)
        if getattr(kind, field.name) != getattr(known, field.name)
    )
    return (
        f"it declares kind {kind.name!r} anew with {differing}: {owner} declares this kind; "
        f"write kinds = ({kind.name!r},) to use it as it is, or take another name"
    )


def names() -> tuple[str, ...]:
    """Return the names of the back ends, the preferred first.

    Examples
    --------
    >>> names()[0], "null" in names()
    ('cpu', True)
    """
    return tuple(loaded().classes)


def broken() -> tuple[Found, ...]:
    """Return the entry points that could not be loaded, each with its reason."""
    return loaded().broken


def load(name: str) -> type[Backend]:
    """Return a back end's class.

    Raises
    ------
    BadValueError
        No back end has this name.

    Examples
    --------
    >>> load("cpu").kinds
    ('cpu',)
    >>> load("cuda")
    Traceback (most recent call last):
    hetero.floor.errors.BadValueError: 'cuda' is no back end; back ends: cpu, torch, jax, opencl, vulkan, null
    """
    classes = loaded().classes
    if name not in classes:
        raise BadValueError(
            f"{name!r} is no back end{did_you_mean(name, classes)}", remedy=f"back ends: {', '.join(classes)}"
        )
    return classes[name]


def backend_of(device: Device) -> Backend:
    """Return the back end of a device, not yet open."""
    return load(device.backend)(device)


@cache
def kinds() -> dict[str, DeviceKind]:
    """Return every kind of device by name: those of `KINDS`, then those that back ends of other packages declare.

    Examples
    --------
    >>> kinds()["cuda"].type, kinds()["opencl"].runs_python
    ('GPU', False)
    """
    found = dict(KINDS)
    named_only: dict[str, DeviceKind] = {}
    for backend in loaded().classes.values():
        for name, kind in backend.declared_kinds().items():
            (named_only if name in backend.kinds else found).setdefault(name, kind)
    return found | {name: kind for name, kind in named_only.items() if name not in found}


def kind_of(device: Device) -> DeviceKind:
    """Return the kind of a device, with its name and type only where no package here declares it."""
    return kinds().get(device.kind) or DeviceKind(device.kind, str(device.type), device.runs_python)


def kind_named(name: str) -> DeviceKind:
    """Return the kind with this name, with nothing but its name where no package here declares it."""
    return kinds().get(name) or DeviceKind(name)


@cache
def known_words() -> tuple[str, ...]:
    """Return the words that name kinds and types of devices, each once.

    Examples
    --------
    >>> known_words()[:2], "gpu" in known_words(), "any" in known_words()
    (('cpu', 'cuda'), True, True)
    """
    types = (kind.type.casefold() for kind in kinds().values())
    return tuple(dict.fromkeys((*kinds(), *TYPE_WORDS, *types)))


def torch_place(device: Device) -> str:
    """Return torch's name of a device.

    Raises
    ------
    DeviceError
        torch cannot use it.

    Examples
    --------
    >>> torch_place(load("null").probe()[0].device)
    Traceback (most recent call last):
    hetero.floor.errors.DeviceError: torch cannot use h0/null:0; name CPUs and GPUs that torch knows
    """
    place = kind_of(device).torch_place(device.index)
    if not place:
        raise DeviceError(f"torch cannot use {device.id}", remedy="name CPUs and GPUs that torch knows")
    return place


def runs_torch(device: Device) -> bool:
    """Return whether torch may compute on a device as its back end has it."""
    backend = loaded().classes.get(device.backend)
    return backend is not None and backend.runs_torch and kind_of(device).torch != "" and not device.simulated


def device_words() -> dict[str, tuple[str, ...]]:
    """Return each word that names devices, labels before kinds before types, with the back ends that may find some.

    Examples
    --------
    >>> device_words()["torch-cpu"], device_words()["null"]
    (('torch',), ('null',))
    """
    words: dict[str, list[str]] = {}
    for name, backend in loaded().classes.items():
        for label in backend.labels:
            words.setdefault(label, []).append(name)
    for name, backend in loaded().classes.items():
        for kind in backend.declared_kinds():
            if kind != "cpu" and name not in words.setdefault(kind, []):
                words[kind].append(name)
            broad = kinds()[kind].type.casefold()
            if broad not in ("cpu", "null") and name not in words.setdefault(broad, []):
                words[broad].append(name)
    others = [name for name, backend in loaded().classes.items() if backend.heavy]
    for word in TYPE_WORDS[1 : TYPE_WORDS.index("null")]:
        words[word] = list(dict.fromkeys([*words.get(word, ()), *others]))
    return {word: tuple(found) for word, found in words.items()}


def refuse_unknown(option: str, words: Iterable[str], devices: Iterable[Device]) -> None:
    """Refuse a word that can name no device: neither one of these, nor of any kind that is known here.

    Parameters
    ----------
    option
        For the message.
    words
        In lower case: kinds, types, labels, back ends, ids.
    devices
        The fleet, whose hosts may have back ends of their own.

    Raises
    ------
    BadValueError
        A word, or the kind in an id, is unknown.

    Examples
    --------
    >>> refuse_unknown("not_on", ["cpu", "h0/cuda:3"], [])
    >>> refuse_unknown("not_on", ["bogus"], [])
    Traceback (most recent call last):
    hetero.floor.errors.BadValueError: not_on='bogus' names no kind, type or back end; known: cpu, cuda, rocm, ...
    """
    for word in words:
        label = word.rpartition("/")[2].partition(":")[0]
        if label in KINDS or label in TYPE_WORDS:
            continue
        known = dict.fromkeys((*known_words(), *device_words(), *names()))
        known |= dict.fromkeys(one for device in devices for one in device.words if ":" not in one)
        if label not in known:
            raise BadValueError(
                f"{option}={word!r} names no kind, type or back end{did_you_mean(label, known)}",
                remedy=f"known: {', '.join(known)}, or an id like 'cpu:0'",
            )
