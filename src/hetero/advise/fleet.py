"""A fleet to plan for: what a user has, by words or a file, or every device of the catalog.

In: 'H100-SXM:2,RTX-4090:4', a file, 'here' or 'catalog'. Out: kinds of device with their number, price and links.
It must not guess a device: one that the catalog lacks is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hetero.advise.prices import Paid, own_price
from hetero.catalog.load import devices, find
from hetero.catalog.values import DeviceSpec
from hetero.floor.errors import BadValueError, HeteroError, did_you_mean
from hetero.floor.units import parse_bandwidth, shown
from hetero.model.device import Device
from hetero.model.fabric import Fabric

__all__ = ["Kind", "catalog_fleet", "group_of", "here_fleet", "read_fleet"]

_CORES_OF_BANDWIDTH = 4
"""Cores whose own memory bandwidth adds up before they share one: declared."""

_KEYS = ("name", "count", "usd_per_hour", "day", "link")


@dataclass(frozen=True, slots=True)
class Kind:
    """Devices of one sort.

    Attributes
    ----------
    spec : what the catalog knows
    count : how many there are, None for as many as one wants
    price : the user's own, None where none was given
    fabric : how they are connected, None where unknown
    """

    spec: DeviceSpec
    count: int | None = None
    price: Paid | None = None
    fabric: Fabric | None = None


def catalog_fleet() -> tuple[Kind, ...]:
    """Give every device of the catalog, as many as one wants of each."""
    return tuple(Kind(spec) for spec in devices().values())


def here_fleet() -> tuple[Kind, ...]:
    """Give the devices of this host: as the catalog knows them, else by the speed that a kernel reached on them.

    What was not measured before is measured, once; all cores of the processor are one device.
    """
    from hetero.session.fleet import choose, survey
    from hetero.session.fleet_speed import measure

    chosen = choose(survey())[0]
    known: Counter[str] = Counter()
    others: dict[tuple[str, str], list[Device]] = {}
    for device in chosen:
        try:
            known[find(device.name).name] += 1
        except BadValueError:
            others.setdefault((device.kind, device.name), []).append(device)
    measured = [measure(alike) for alike in others.values()]
    return (
        *(Kind(find(name), count) for name, count in known.items()),
        *(_measured(alike) for alike in measured),
    )


def _measured(alike: Sequence[Device]) -> Kind:
    """Give a kind from measured devices; cores add up, their memory bandwidth no further than that of a few."""
    first, cpu = alike[0], alike[0].kind == "cpu"
    cores = len(alike) if cpu else 1
    flop = first.flop_per_s and first.flop_per_s * cores
    speed = first.bytes_per_s and first.bytes_per_s * min(cores, _CORES_OF_BANDWIDTH)
    memory = first.memory_bytes
    spec = DeviceSpec(
        first.name,
        "",
        first.kind,
        memory_bytes=memory,
        bandwidth_bytes_per_s=speed,
        flop_per_s={"fp32": flop},
        note="speed as a kernel reached it on this host",
    )
    return Kind(spec, 1 if cpu else len(alike))


def read_fleet(word: str) -> tuple[Kind, ...]:
    """Read a fleet.

    Parameters
    ----------
    word : 'here', 'catalog', kinds as in 'H100-SXM:2,RTX-4090:4', or the path of a YAML or JSON file: `devices`, a list
        of {name, count, usd_per_hour, day, link}, and `topology`, a file or a hetero-topology/1 document; or a topology
        whose devices have names of the catalog

    Raises
    ------
    BadValueError
        A device, a number or a key is wrong; the message names the place.

    Examples
    --------
    >>> [(kind.spec.name, kind.count) for kind in read_fleet("H100-SXM:2, RTX-4090")]
    [('H100-SXM', 2), ('RTX-4090', 1)]
    """
    if word == "here":
        return here_fleet()
    if word == "catalog":
        return catalog_fleet()
    if Path(word).suffix in (".yaml", ".yml", ".json", ".txt"):
        return _from_file(Path(word))
    return tuple(_kind(item.strip(), word) for item in word.split(","))


def _kind(item: str, word: str) -> Kind:
    name, colon, count = item.rpartition(":")
    if not colon:
        return Kind(find(item), 1)
    if not count.isdecimal() or int(count) < 1:
        raise BadValueError(f"{shown(word)} asks for {count!r} of {name}", remedy="write NAME:NUMBER, as in H100-SXM:2")
    return Kind(find(name), int(count))


def _from_file(file: Path) -> tuple[Kind, ...]:
    import yaml

    from hetero.backends.topology_files import FORMAT, from_document, read_topology

    if file.suffix == ".txt":
        return _of_fabric(read_topology([file]), str(file))
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadValueError(f"{file} cannot be read: {error.strerror}", remedy="give a fleet file") from error
    except (ValueError, yaml.YAMLError) as error:
        raise BadValueError(f"{file} is no YAML", remedy="see docs/choosing.md") from error
    if not isinstance(document, dict):
        raise BadValueError(
            f"{file} holds {shown(document)}", remedy="write 'devices:' and a list; see docs/choosing.md"
        )
    if document.get("format") == FORMAT:
        return _of_fabric(from_document(document, str(file)), str(file))
    _known(document, ("devices", "topology"), str(file))
    rows = document.get("devices")
    if not isinstance(rows, list) or not rows:
        raise BadValueError(f"{file}: devices is {shown(rows)}", remedy="write a list of {name: …, count: …}")
    fabric = _fabric(document.get("topology"), file)
    return tuple(_row(row, f"{file}: devices[{at}]", fabric) for at, row in enumerate(rows))


def _known(row: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    for key in row:
        if key not in keys:
            hint = did_you_mean(key, keys).removeprefix("; ")
            raise BadValueError(f"{where}: the key {key!r} is not known", remedy=hint or f"allowed: {', '.join(keys)}")


def _fabric(given: Any, file: Path) -> Fabric | None:
    if given is None:
        return None
    from hetero.backends.topology_files import FORMAT, from_document, read_topology

    if isinstance(given, str):
        return read_topology([file.parent / given])
    return from_document({"format": FORMAT, **given} if isinstance(given, dict) else given, f"{file}: topology")


def _row(row: Any, where: str, fabric: Fabric | None) -> Kind:
    row = {"name": row} if isinstance(row, str) else row
    if not isinstance(row, dict):
        raise BadValueError(f"{where} is {shown(row)}", remedy=f"write a mapping with {', '.join(_KEYS)}")
    _known(row, _KEYS, where)
    try:
        spec = find(str(row.get("name", "")))
        link = parse_bandwidth(row["link"]) if "link" in row else None
    except HeteroError as error:
        raise BadValueError(f"{where}: {error.problem}", remedy=error.remedy) from error
    count = row.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise BadValueError(f"{where}: count is {shown(count)}", remedy="it must be a whole number ≥ 1")
    if link is not None and link <= 0.0:
        raise BadValueError(f"{where}: link is {shown(row['link'])}", remedy="it must be above 0")
    spec = replace(spec, link_bytes_per_s=link) if link else spec
    price = own_price(row["usd_per_hour"], where, row.get("day", "")) if "usd_per_hour" in row else None
    return Kind(spec, count, price, fabric)


def _of_fabric(fabric: Fabric, where: str) -> tuple[Kind, ...]:
    counts = Counter(part.name for part in fabric.devices)
    if "" in counts:
        raise BadValueError(f"{where}: {counts['']} devices have no name", remedy="name them as the catalog does")
    return tuple(Kind(find(name), count, None, fabric) for name, count in counts.items() if name != "CPU")


def group_of(kind: Kind, count: int) -> tuple[DeviceSpec, tuple[str, ...]]:
    """Give the device with the link that the best group of that many has, and the group's members.

    Where no topology is known the link is that of the data sheet, and the members are not named.
    """
    if kind.fabric is None or count < 2:
        return kind.spec, ()
    from hetero.plan.groups import Terms, best_group

    others = tuple(part.id for part in kind.fabric.devices if not _same(part.name, kind.spec.name))
    group = best_group(kind.fabric, count, terms=Terms(exclude=others))
    return replace(kind.spec, link_bytes_per_s=group.bytes_per_s), group.devices


def _same(name: str, wanted: str) -> bool:
    try:
        return bool(name) and find(name).name == wanted
    except BadValueError:
        return False
