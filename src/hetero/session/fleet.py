"""The fleet: which devices this host has, which of them a program uses, and where they stand.

In: probes, a fleet written in one line, a configuration, a topology. Out: devices, a protocol, notes for people; or one
ConfigError that lists everything that is absent.
It must not open a device in this process, nor use a simulated one that nobody named.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hetero.backends import probe, registry
from hetero.backends.base import Found
from hetero.backends.probe import found_from, found_to
from hetero.backends.registry import kinds
from hetero.floor.clock import wall_time_s
from hetero.floor.errors import BadValueError, ConfigError
from hetero.floor.extras import is_there
from hetero.floor.logs import warn_once
from hetero.model.device import KINDS, Device, DeviceType
from hetero.model.topology import Topology
from hetero.session.disk_cache import DiskCache, backend_key, digest
from hetero.session.fleet_build import Builder, DeviceEntry, Wanted, names_with_host, parse_spec, picked, refuse_absent
from hetero.session.fleet_speed import measure, status, topology

if TYPE_CHECKING:
    from hetero.floor.documents import JsonObject
    from hetero.model.fabric import Fabric, FabricPart
    from hetero.session.config import Config

__all__ = [
    "DeviceEntry",
    "available_protocols",
    "build",
    "choose",
    "choose_protocol",
    "devices_of",
    "find_devices",
    "from_spec",
    "measure",
    "placed",
    "remarks",
    "status",
    "survey",
    "topology",
    "why_absent",
]

_log = logging.getLogger("hetero")

FAILED_PROBE_KEPT_S = 600.0
"""How long the trouble of a child that crashed or hung is believed; an answer holds until something changes."""


def survey(refresh: bool = False, only: Iterable[str] | None = None, python: str = "") -> tuple[Found, ...]:
    """Find every device of this host, sound or not.

    Parameters
    ----------
    refresh
        True to probe again what is remembered.
    only
        Names of back ends, None for all.
    python
        The Python whose packages count, '' for this one.

    Returns
    -------
    tuple
        in the order of the registry; what is broken or missing carries its reason and remedy

    Notes
    -----
    Back ends whose packages are heavy are probed in child processes, all at once, and what they answered is
    remembered under HETERO_HOME until the host, a driver, a package or a variable that they read changes.
    """
    wanted = registry.names() if only is None else tuple(name for name in registry.names() if name in set(only))
    heavy = [name for name in wanted if registry.load(name).heavy and (python or not registry.load(name).missing())]
    kept = DiskCache("probes.json")
    found = {} if refresh else _remembered(kept.read(), heavy, python)
    fresh = probe.probe([name for name in heavy if name not in found], python)
    if fresh:
        kept.update({_place(name, python): _entry(name, python, *answer) for name, answer in fresh.items()})
    found |= {name: answer[0] for name, answer in fresh.items()}
    listed = [one for name in wanted for one in (found[name] if name in found else registry.load(name).probe())]
    return (*listed, *(registry.broken() if only is None else ()))


def _place(name: str, python: str) -> str:
    return f"{name} in {digest(python)}" if python else name


def _entry(name: str, python: str, found: Sequence[Found], answered: bool) -> dict[str, object]:
    return {
        "key": backend_key(registry.load(name), python),
        "at_s": wall_time_s(),
        "answered": answered,
        "found": [found_to(one) for one in found],
    }


def _remembered(kept: JsonObject, names: Iterable[str], python: str) -> dict[str, list[Found]]:
    known: dict[str, list[Found]] = {}
    for name in names:
        try:
            entry = kept[_place(name, python)]
            young = entry["answered"] or 0.0 <= wall_time_s() - entry["at_s"] < FAILED_PROBE_KEPT_S
            if young and entry["key"] == backend_key(registry.load(name), python):
                known[name] = [found_from(plain) for plain in entry["found"]]
        except (KeyError, TypeError, ValueError):
            continue
    return known


def choose(found: Iterable[Found]) -> tuple[tuple[Device, ...], tuple[tuple[Device, str], ...]]:
    """Choose the devices that a program uses when it names none.

    Parameters
    ----------
    found
        Of a survey, the preferred back ends first.

    Returns
    -------
    tuple
        the chosen devices, and (device, reason) for each sound one that is left out: of several runtimes on
        one silicon the first counts, and what computes nothing is never chosen

    Examples
    --------
    >>> from hetero.model.device import DeviceType
    >>> cpu = Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu", silicon=("h0/core0",))
    >>> cl = Device("h0/opencl:0", "opencl", DeviceType("CPU"), "opencl", silicon=("h0/core0",))
    >>> chosen, left_out = choose([Found(cpu, "cpu"), Found(cl, "opencl")])
    >>> [device.id for device in chosen], left_out[0][1]
    (['h0/cpu:0'], 'same silicon as h0/cpu:0')
    """
    chosen: list[Device] = []
    left_out: list[tuple[Device, str]] = []
    users: dict[str, str] = {}
    for one in found:
        if one.device is None or one.reason:
            continue
        same = list(dict.fromkeys(users[chip] for chip in one.device.silicon if chip in users))
        if one.device.simulated:
            left_out.append((one.device, "it computes nothing, and is used when it is named"))
        elif same:
            left_out.append((one.device, f"same silicon as {_some(same)}"))
        else:
            chosen.append(one.device)
            users.update(dict.fromkeys(one.device.silicon, one.device.id))
    return tuple(chosen), tuple(left_out)


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids) if len(ids) <= 3 else f"{ids[0]}, {ids[1]} and {len(ids) - 2} more"


def remarks(devices: Sequence[Device]) -> tuple[str, ...]:
    """Return what a reader of a result must know of these devices: simulated, throttled, or sharing silicon."""
    lines = [
        f"{device.id} is throttled to {device.throttle_frac:g}" for device in devices if device.throttle_frac < 1.0
    ]
    unreal = [device.id for device in devices if device.simulated]
    if unreal:
        lines.append(f"nothing is computed on {_some(unreal)}: results are None and times mean nothing")
    users: dict[str, list[str]] = {}
    for device in devices:
        for chip in device.silicon:
            users.setdefault(chip, []).append(device.id)
    shared: dict[tuple[str, ...], list[str]] = {}
    for chip, ids in users.items():
        if len(ids) > 1:
            shared.setdefault(tuple(ids), []).append(chip)
    lines += [f"{_some(ids)} share {_some(chips)} and slow each other down" for ids, chips in shared.items()]
    return tuple(lines)


def _survey_for(words: Iterable[str], python: str = "") -> tuple[Found, ...]:
    """Survey the back ends that the words name: by their own name, or by that of devices they may find."""
    by_word = registry.device_words()
    names = {name for word in words for name in (word, *by_word.get(word, ()))}
    return survey(only=names, python=python)


def from_spec(spec: str) -> tuple[Device, ...]:
    """Make the fleet that one line describes.

    Parameters
    ----------
    spec
        Entries with commas between them: `kind` is all devices of a kind, `2xkind` two of them, `kind:1` the one with
        index 1. Counted devices on the CPU (`cpu`, `torch-cpu`, `jax-cpu`) have a core each, `2xcpu/4cores` have four;
        cores are handed out in turn. `*f` at the end throttles: 0 < f <= 1.

    Raises
    ------
    BadValueError
        An entry cannot be read, or this host has no such device.

    Examples
    --------
    >>> [(device.id, device.cores, device.throttle_frac) for device in from_spec("1xcpu,1xcpu*0.25,2xnull")]
    [('h0/cpu:0', 1, 1.0), ('h0/cpu:1', 1, 0.25), ('h0/null:0', 1, 1.0), ('h0/null:1', 1, 1.0)]
    """
    wanted = parse_spec(spec, registry.device_words())
    if elsewhere := [name for name in names_with_host(spec) if not name.startswith("h0/") and "/" in name]:
        raise BadValueError(f"{elsewhere[0]} is on another host", remedy="give --engine ray --address ADDRESS, too")
    found = _survey_for(one.word for one in wanted)
    builder = Builder(found, choose(found)[0])
    read, warnings = builder.understood(wanted)
    for line in warnings:
        warn_once(line)
    for one in read:
        if isinstance(one.id, int) and one.id > 1:
            _log.info(
                "%s is the device with index %d; a number of them is written %dx%s", one.text, *(one.id,) * 2, one.word
            )
    made = picked([(one, builder) for one in read])
    for one, (_, absent) in zip(read, made, strict=True):
        if absent:
            raise BadValueError(f"{one.text!r} is absent: {absent}", remedy=f"here: {_here()}")
    return tuple(device for devices, _ in made for device in devices)


def _here() -> str:
    sound = [one.device.label for one in survey() if one.device is not None and not one.reason]
    return ", ".join(dict.fromkeys(sound))


def build(entries: Sequence[DeviceEntry], notes: list[str] | None = None) -> tuple[Device, ...]:
    """Make the fleet that a configuration describes.

    Parameters
    ----------
    entries
        One an entry of `devices`, () for what `choose` takes of this host.
    notes
        Lines for people are added to it: what was left out, and why.

    Raises
    ------
    ConfigError
        Devices are absent that are not optional: all of them at once, with a configuration that works here.
    """
    if not entries:
        return choose(survey())[0]
    said = [] if notes is None else notes
    devices: list[Device] = []
    absent: list[tuple[DeviceEntry, str]] = []
    builders: dict[str, Builder] = {}
    words = [(word, entry.python) for entry in entries for word in (entry.word, entry.backend)]
    for entry in entries:
        if entry.python not in builders:
            found = _survey_for((word for word, python in words if python == entry.python), entry.python)
            builders[entry.python] = Builder(found, choose(found)[0])
    made = picked([(Wanted.of(entry), builders[entry.python]) for entry in entries])
    for entry, (mine, reason) in zip(entries, made, strict=True):
        devices += [_adjusted(device, entry, said) for device in mine]
        if reason and entry.optional:
            said.append(f"{entry.shown} is left out: {reason}")
        elif reason:
            absent.append((entry, reason))
    if absent:
        refuse_absent(absent, entries)
    if not devices:
        said.append("none of the optional devices is here: this host's own are used")
        return choose(survey())[0]
    return tuple(devices)


def _adjusted(device: Device, entry: DeviceEntry, notes: list[str]) -> Device:
    if entry.python and shutil.which(entry.python) is None:
        place = f"{entry.where}: " if entry.where else ""
        raise ConfigError(
            f"{place}python: {entry.python!r} is no program that can be run here",
            remedy="give the path of an interpreter, as in 'venv/bin/python'",
        )
    if entry.python and entry.isolation == "thread":
        place = f"{entry.where}: " if entry.where else ""
        raise ConfigError(
            f"{place}python: {entry.python!r} has no effect on a worker that is a thread of this process",
            remedy="use isolation: process, or leave python out",
        )
    limit = entry.memory_limit_bytes
    if limit is not None and device.memory_bytes is not None and limit > device.memory_bytes:
        notes.append(f"{device.id} has {device.memory_bytes} bytes, less than its memory_limit of {limit}")
    device = replace(
        device,
        memory_limit_bytes=limit,
        isolation=device.isolation if device.simulated else entry.isolation,
        python=entry.python,
        link_bytes_per_s=entry.link_bytes_per_s,
        link_latency_s=entry.link_latency_s,
    )
    emulated = entry.link_bytes_per_s > 0.0 or entry.link_latency_s > 0.0
    return replace(device, memory_node=f"{device.id}.mem") if emulated else device


_INFINIBAND = Path("/sys/class/infiniband")
_NVIDIA = Path("/proc/driver/nvidia")


def why_absent(protocol: str) -> str:
    """Return why a protocol cannot be used on this host, '' when it can."""
    if protocol == "rdma":
        return _why_no_rdma(_INFINIBAND)
    if protocol == "nccl":
        return _why_no_nccl()
    return ""


def _why_no_rdma(folder: Path) -> str:
    adapters = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return "" if adapters else f"this host has no RDMA adapter ({folder} is empty or missing)"


def _why_no_nccl() -> str:
    if not _NVIDIA.exists():
        return f"this host has no NVIDIA driver ({_NVIDIA} is missing)"
    if not is_there("torch"):
        return "torch is not installed"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    return "" if torch.distributed.is_nccl_available() else f"torch {torch.__version__} is built without NCCL"


def available_protocols() -> tuple[str, ...]:
    """Return the protocols that work on this host, the usual first."""
    return tuple(name for name in ("shared_memory", "tcp", "rdma", "nccl") if not why_absent(name))


def choose_protocol(protocol: str, source: str = "") -> str:
    """Return the protocol to use; 'auto' is shared memory, since all devices are on one host.

    Parameters
    ----------
    protocol
        'auto', 'shared_memory', 'tcp', 'rdma' or 'nccl'.
    source
        The configuration's name, for the message.

    Raises
    ------
    ConfigError
        The protocol needs hardware that is not here.

    Examples
    --------
    >>> choose_protocol("auto"), choose_protocol("tcp")
    ('shared_memory', 'tcp')
    """
    if protocol == "auto":
        return "shared_memory"
    reason = why_absent(protocol)
    if reason:
        place = f"{source}: " if source else ""
        here = ", ".join(("auto", *available_protocols()))
        raise ConfigError(
            f"{place}communication.protocol: {protocol!r} is not available: {reason}", remedy=f"available here: {here}"
        )
    return protocol


def find_devices(config: Config, notes: list[str] | None = None) -> tuple[Device, ...]:
    """Return the devices of this host that a configuration names.

    Parameters
    ----------
    config
        Whose devices, spec, isolation and protocol count.
    notes
        Lines for people are added to it: what was left out, and why.

    Raises
    ------
    ConfigError
        Something that is not optional is absent: every such device, and the protocol, with what would work here.
    BadValueError
        A device of a fleet in one line is absent.
    """
    trouble = None
    try:
        choose_protocol(config.communication.protocol, config.source)
    except ConfigError as error:
        trouble = error
    try:
        devices = _devices(config, notes)
    except ConfigError as error:
        raise (error if trouble is None else _both(error, trouble)) from None
    if trouble is not None:
        raise trouble
    return devices


def _devices(config: Config, notes: list[str] | None) -> tuple[Device, ...]:
    if config.devices is not None:
        return build(config.devices, notes)
    devices = from_spec(config.spec) if config.spec else build((), notes)
    isolation = config.isolation
    return devices if isolation is None else tuple(replace(device, isolation=isolation) for device in devices)


def _both(absent: ConfigError, protocol: ConfigError) -> ConfigError:
    problem = f"{absent.problem}; {protocol.problem}"
    return ConfigError(problem, remedy=f"{absent.remedy}\ncommunication:\n  protocol: auto")


def placed(
    devices: str | Sequence[Device] | None, topology: Topology | Fabric | str | Path | None
) -> tuple[tuple[Device, ...], Topology]:
    """Return devices with the topology that they stand in.

    Parameters
    ----------
    devices
        A fleet in one line, devices, or None for those that the topology names, else those that a Context takes.
    topology
        Links between memories, a fabric, a file of either kind that `hetero.cluster.topology` reads, or None for what
        this host tells.

    Raises
    ------
    BadValueError
        The topology names none of the devices.
    """
    from hetero.session.config import load

    fabric = _fabric(topology)
    if devices is None and fabric is not None:
        found = devices_of(fabric)
    elif isinstance(devices, str):
        found = from_spec(devices)
    else:
        found = find_devices(load()) if devices is None else tuple(devices)
    if isinstance(topology, Topology):
        return found, topology
    if fabric is None:
        from hetero.backends.topology_system import fabric_here

        return found, Topology(fabric=fabric_here(found))
    if not any(fabric.has(device.id) for device in found):
        names = ", ".join(part.id for part in fabric.devices[:4])
        raise BadValueError(
            f"the topology names {names}, and no device of the pool", remedy="name devices in both alike"
        )
    return found, Topology(fabric=fabric)


def _fabric(given: Topology | Fabric | str | Path | None) -> Fabric | None:
    if isinstance(given, str | Path):
        from hetero.backends.topology_files import read_topology

        return read_topology([Path(given)])
    return given.fabric if isinstance(given, Topology) else given


def devices_of(fabric: Fabric) -> tuple[Device, ...]:
    """Return the devices of a fabric, as a pool takes them.

    Examples
    --------
    >>> from hetero.model.fabric import Fabric, FabricPart
    >>> [device.kind for device in devices_of(Fabric((FabricPart("h0/cuda:0", "device", host="h0"),)))]
    ['cuda']
    """
    return tuple(_device(part) for part in fabric.devices)


def _device(part: FabricPart) -> Device:
    label = part.id.rpartition("/")[2].partition(":")[0]
    kind = kinds().get(label, KINDS["null"])
    return Device(
        part.id,
        kind.name,
        DeviceType(kind.type),
        kind.name,
        name=part.name,
        memory_node=part.id,
        rack=part.rack,
        simulated=True,
    )
