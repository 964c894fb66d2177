"""A fleet to plan for: what a user has, by words or a file, or every device of the catalog.

In: '2xH100-SXM,4xRTX-4090', a file, 'here' or 'catalog'. Out: kinds of device with their number, price and links.
It must not guess a device: one that the catalog lacks is an error.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from hetero.advise.prices import Paid, own_price
from hetero.backends.registry import kinds
from hetero.catalog.load import devices, find
from hetero.catalog.values import DeviceSpec
from hetero.core.leases import LeasePool
from hetero.floor.documents import blamed_on
from hetero.floor.errors import BadValueError, HeteroError, did_you_mean
from hetero.floor.units import parse_bandwidth, shown
from hetero.model.device import Device, DeviceKind, DeviceType
from hetero.model.leases import LeasePhase, LeaseRequest
from hetero.model.topology import Topology

if TYPE_CHECKING:
    from hetero.model.fabric import Fabric, FabricPart
    from hetero.model.leases import LeaseRequest

__all__ = [
    "DeviceRequest",
    "FreeDevices",
    "HeldDevices",
    "Kind",
    "catalog_fleet",
    "group_of",
    "here_fleet",
    "read_fleet",
    "stocked",
]

_CORES_OF_BANDWIDTH = 4
"""Cores whose own memory bandwidth adds up before they share one: declared."""

_log = logging.getLogger("hetero")
_NUMBER = re.compile(r"[+-]?\d+")
_KEYS = ("name", "count", "usd_per_hour", "day", "link", "host", "rack")
_HOLDING = ("workload", "devices", "name", "count")


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """Devices of one sort that a fleet has.

    Attributes
    ----------
    sort
        What they are asked for by; rows of one sort are alike in everything.
    name
        Of the catalog.
    kind
        As in 'cuda'.
    count
        How many.
    host, rack
        Where they stand.
    ids
        Their ids, where the topology names them; () for ids of the usual form.
    """

    sort: str
    name: str
    kind: str
    count: int
    host: str = "h0"
    rack: str = ""
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """Devices that somebody has already.

    Attributes
    ----------
    workload
        Whose they are.
    devices
        Ids, or the name of a sort.
    count
        How many of that sort.
    where
        What messages begin with.
    """

    workload: str
    devices: tuple[str, ...]
    count: int = 0
    where: str = "the fleet"


class FreeDevices:
    """Devices of a fleet by sort, and the pool that hands them out.

    Attributes
    ----------
    named
        Whether it matters which device of a sort one gets: links or leases are known.

    Examples
    --------
    >>> stock = stocked([DeviceRequest("a", "H100-SXM", "cuda", 4)], [HeldDevices("training", ("h0/cuda:1",))])
    >>> stock.copies("a", 2), stock.held("a")
    ((('h0/cuda:0', 'h0/cuda:2'),), {'training': 1})
    """

    def __init__(self, sorts: Mapping[str, Sequence[Device]], topology: Topology) -> None:
        devices = [device for alike in sorts.values() for device in alike]
        self._pool = LeasePool(devices, topology)
        self._ids = {sort: tuple(device.id for device in alike) for sort, alike in sorts.items()}
        self._named: dict[str, tuple[str, ...]] = {}
        for device in devices:
            self._named[device.name] = (*self._named.get(device.name, ()), device.id)
        self.named = self._wired = topology.fabric is not None

    def hold(self, holding: HeldDevices) -> None:
        """Record that somebody has devices.

        Raises
        ------
        BadValueError
            They are not there, or have been handed out before.
        """
        names = self._named.get(holding.devices[0], holding.devices)
        self.named = True
        known = [identity for ids in self._ids.values() for identity in ids]
        for name in names:
            if name not in known:
                remedy = did_you_mean(name, known).removeprefix("; ") or f"it has: {', '.join(known[:8])}"
                raise BadValueError(f"{holding.where}: the fleet has no device {name!r}", remedy=remedy)
        count = holding.count or len(names)
        lease = self._pool.lease(self._pool.ask(LeaseRequest(names, count=count, workload=holding.workload), 0.0))
        if lease.phase is not LeasePhase.ACTIVE:
            self._pool.release(lease.id, 0.0)
            raise BadValueError(
                f"{holding.where}: {holding.workload} cannot hold {count} of {', '.join(names[:4])}",
                remedy="others hold them already, or there are fewer",
            )

    def held(self, sort: str) -> dict[str, int]:
        """Return how many devices of a sort each workload holds."""
        own = set(self._ids[sort])
        found = {lease.request.workload: len(own.intersection(lease.devices)) for lease in self._pool.leases}
        return {workload: count for workload, count in found.items() if count}

    def copies(self, sort: str, count: int, terms: LeaseRequest | None = None) -> tuple[tuple[str, ...], ...]:
        """Return as many groups of so many devices as are free at once; the best first.

        Parameters
        ----------
        terms
            What each group keeps to: `together`, `apart`, `apart_by`.

        Notes
        -----
        Where no topology tells of links between hosts, a group stands on one host.
        """
        wish = terms or LeaseRequest()
        together = wish.together or ("" if self._wired else "host")
        return self._pool.offers(replace(wish, on=self._ids[sort], count=count, together=together))


def stocked(
    wanted: Iterable[DeviceRequest], holdings: Iterable[HeldDevices] = (), topology: Topology | None = None
) -> FreeDevices:
    """Return the stock of a fleet, what others hold taken out."""
    numbers: Counter[tuple[str, str]] = Counter()
    sorts: dict[str, list[Device]] = {}
    for sort in wanted:
        kind = DeviceType(kinds().get(sort.kind, DeviceKind("")).type)
        for at in range(sort.count):
            place = sort.host, sort.kind or "device"
            usual = f"{place[0]}/{place[1]}:{numbers[place]}"
            numbers[place] += 1
            identity = sort.ids[at] if at < len(sort.ids) else usual
            alike = sorts.setdefault(sort.sort, [])
            alike.append(Device(identity, sort.kind, kind, "planned", at, name=sort.name, rack=sort.rack))
    stock = FreeDevices(sorts, topology or Topology())
    for holding in holdings:
        stock.hold(holding)
    return stock


@dataclass(frozen=True, slots=True)
class Kind:
    """Devices of one sort.

    Attributes
    ----------
    spec
        What the catalog knows.
    count
        How many there are, None for as many as one wants.
    price
        The user's own, None where none was given.
    fabric
        How they are connected, None where unknown.
    stock, sort
        The pool that knows which are free, and what they are asked for there; None where none keeps them.
    """

    spec: DeviceSpec
    count: int | None = None
    price: Paid | None = None
    fabric: Fabric | None = None
    stock: FreeDevices | None = None
    sort: str = ""

    def copies(self, count: int, terms: LeaseRequest | None = None) -> tuple[tuple[str, ...], ...]:
        """Return the groups of so many devices that are free at once; () too where no pool keeps them."""
        return () if self.stock is None else self.stock.copies(self.sort, count, terms)

    def most_copies(self, count: int, terms: LeaseRequest | None = None) -> int | None:
        """Return how many groups of so many devices there can be, None for as many as one wants."""
        if self.count is None:
            return None
        return self.count // count if self.stock is None else len(self.copies(count, terms))


def catalog_fleet() -> tuple[Kind, ...]:
    """Return every device of the catalog, as many as one wants of each."""
    return tuple(Kind(spec) for spec in devices().values())


def here_fleet() -> tuple[Kind, ...]:
    """Return the devices of this host: as the catalog knows them, else by the speed that a kernel reached on them.

    What was not measured before is measured, once; all cores of the processor are one device. A processor is
    always measured: the catalog knows whole sockets, and neither their memory nor how many of their cores are here.
    """
    from hetero.session.fleet import choose, survey
    from hetero.session.fleet_speed import measure

    chosen = choose(survey())[0]
    known: Counter[str] = Counter()
    others: dict[tuple[str, str], list[Device]] = {}
    for device in chosen:
        if name := _name_in_catalog(device):
            known[name] += 1
        else:
            others.setdefault((device.kind, device.name), []).append(device)
    measured = [measure(alike) for alike in others.values()]
    kinds = [*(Kind(find(name), count) for name, count in known.items()), *map(_measured, measured)]
    return _kept([(kind, {}) for kind in kinds])


def _name_in_catalog(device: Device) -> str:
    if device.is_host:
        return ""
    try:
        return find(device.name).name
    except BadValueError:
        return ""


def _measured(alike: Sequence[Device]) -> Kind:
    """Return a kind from measured devices; cores add up, their memory bandwidth no further than that of a few."""
    first, cpu = alike[0], alike[0].is_host
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
    word
        'here', 'catalog', kinds as in '2xH100-SXM,4xRTX-4090', or the path of a YAML or JSON file: `devices`, a list
        of {name, count, usd_per_hour, day, link, host, rack}, `topology`, a file or a hetero-topology/1 document, and
        `leases`, a list of {workload, devices} or {workload, name, count}; or a topology whose devices have names of
        the catalog.

    Raises
    ------
    BadValueError
        A device, a number or a key is wrong; the message names the place.

    Examples
    --------
    >>> [(kind.spec.name, kind.count) for kind in read_fleet("2xH100-SXM, RTX-4090")]
    [('H100-SXM', 2), ('RTX-4090', 1)]
    """
    if word == "here":
        return here_fleet()
    if word == "catalog":
        return catalog_fleet()
    if Path(word).suffix in (".yaml", ".yml", ".json", ".txt"):
        with blamed_on(word):
            return _from_file(Path(word))
    return _kept([(_kind(item.strip(), word), {}) for item in word.split(",")])


def _kind(item: str, word: str) -> Kind:
    count, times, name = item.partition("x")
    if not times or not _NUMBER.fullmatch(count.strip()):
        name, colon, count = item.rpartition(":")
        if not colon:
            return Kind(find(item), 1)
        if _NUMBER.fullmatch(count):
            _log.warning("%r is read as '%sx%s', as numbers of devices are written now", item, count, name)
    if not count.strip().isdecimal() or len(count) > 9 or int(count) == 0:
        raise BadValueError(f"{shown(word)} asks for {count!r} of {name}", remedy="write NUMBERxNAME, as in 2xH100-SXM")
    if int(count) > _MOST:
        raise BadValueError(f"{shown(word)} asks for {int(count):,} of {name}", remedy=f"give at most {_MOST:,}")
    return Kind(find(name.strip()), int(count))


def _from_file(file: Path) -> tuple[Kind, ...]:
    from hetero.backends.topology_files import FORMAT, from_document, read_topology
    from hetero.floor.yaml_tree import read_document

    if file.suffix == ".txt":
        return _of_fabric(read_topology([file]), str(file))
    document = read_document(file)
    if not isinstance(document, dict):
        raise BadValueError(
            f"{file} holds {shown(document)}", remedy="write 'devices:' and a list; see docs/choosing.md"
        )
    if document.get("format") == FORMAT:
        return _of_fabric(from_document(document, str(file)), str(file))
    _known(document, ("devices", "topology", "leases"), str(file))
    rows = document.get("devices")
    if not isinstance(rows, list) or not rows:
        raise BadValueError(f"{file}: devices is {shown(rows)}", remedy="write a list of {name: …, count: …}")
    fabric = _fabric(document.get("topology"), file)
    kinds = [(_row(row, f"{file}: devices[{at}]", fabric), row) for at, row in enumerate(rows)]
    return _kept(kinds, _holdings(document.get("leases", []), str(file)))


def _known(row: Mapping[str, object], keys: Sequence[str], where: str) -> None:
    for key in row:
        if key not in keys:
            hint = did_you_mean(key, keys).removeprefix("; ")
            raise BadValueError(
                f"{where}: the key {shown(key)} is not known", remedy=hint or f"allowed: {', '.join(keys)}"
            )


def _fabric(given: object, file: Path) -> Fabric | None:
    if given is None:
        return None
    from hetero.backends.topology_files import FORMAT, from_document, read_topology

    if isinstance(given, str):
        return read_topology([file.parent / given])
    return from_document({"format": FORMAT, **given} if isinstance(given, dict) else given, f"{file}: topology")


def _row(row: object, where: str, fabric: Fabric | None) -> Kind:
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
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST:
        raise BadValueError(
            f"{where}: count is {shown(count)}", remedy=f"it must be a whole number from 1 to {_MOST:,}"
        )
    if link is not None and link <= 0.0:
        raise BadValueError(f"{where}: link is {shown(row['link'])}", remedy="it must be above 0")
    spec = replace(spec, link_bytes_per_s=link) if link else spec
    price = own_price(row["usd_per_hour"], where, row.get("day", "")) if "usd_per_hour" in row else None
    return Kind(spec, count, price, fabric)


def _of_fabric(fabric: Fabric, where: str) -> tuple[Kind, ...]:
    counts = Counter(part.name for part in fabric.devices)
    if "" in counts:
        raise BadValueError(f"{where}: {counts['']} devices have no name", remedy="name them as the catalog does")
    return _kept([(Kind(find(name), count, None, fabric), {}) for name, count in counts.items() if name != "CPU"])


def _holdings(rows: object, file: str) -> Iterator[HeldDevices]:
    """Read who has what already: rows of {workload, devices} or {workload, name, count}."""
    if not isinstance(rows, list):
        raise BadValueError(f"{file}: leases is {shown(rows)}", remedy="write a list of {workload: …, devices: […]}")
    for at, row in enumerate(rows):
        where = f"{file}: leases[{at}]"
        if not isinstance(row, dict):
            raise BadValueError(f"{where} is {shown(row)}", remedy=f"write a mapping with {', '.join(_HOLDING)}")
        _known(row, _HOLDING, where)
        workload, ids, name, count = (row.get(key) for key in _HOLDING)
        if not isinstance(workload, str) or not workload:
            raise BadValueError(f"{where}: workload is {shown(workload)}", remedy="name whose devices they are")
        if isinstance(name, str) and isinstance(count, int) and not isinstance(count, bool) and count > 0:
            yield HeldDevices(workload, (find(name).name,), count, where)
        elif isinstance(ids, list) and ids and all(isinstance(one, str) for one in ids):
            yield HeldDevices(workload, tuple(ids), where=where)
        else:
            raise BadValueError(f"{where} names no devices", remedy="give 'devices', a list of ids, or name and count")


_MOST = 10_000
"""Devices of one row of a fleet."""


def _kept(rows: Sequence[tuple[Kind, object]], holdings: Iterable[HeldDevices] = ()) -> tuple[Kind, ...]:
    """Return kinds whose devices one pool keeps; rows that are alike in all but their place become one."""
    from hetero.model.topology import Topology

    alike: dict[tuple[object, ...], list[tuple[Kind, object]]] = {}
    for kind, row in rows:
        alike.setdefault((kind.spec.name, kind.spec.link_bytes_per_s, kind.price), []).append((kind, row))
    wanted = [one for sort, members in enumerate(alike.values()) for one in _wanted(str(sort), members)]
    stock = stocked(wanted, holdings, Topology(fabric=rows[0][0].fabric))
    return tuple(
        replace(members[0][0], count=sum(kind.count or 0 for kind, _ in members), stock=stock, sort=str(sort))
        for sort, members in enumerate(alike.values())
    )


def _wanted(sort: str, members: Sequence[tuple[Kind, object]]) -> Iterator[DeviceRequest]:
    """Yield the devices of rows that are alike, under the ids that the topology gives them."""
    ids = iter([part.id for part in _parts_of(members[0][0])])
    for kind, row in members:
        place = row if isinstance(row, dict) else {}
        host, rack, count = str(place.get("host", "h0")), str(place.get("rack", "")), kind.count or 0
        yield DeviceRequest(sort, kind.spec.name, kind.spec.kind, count, host, rack, tuple(islice(ids, count)))


def _parts_of(kind: Kind) -> Sequence[FabricPart]:
    return [] if kind.fabric is None else [part for part in kind.fabric.devices if _same(part.name, kind.spec.name)]


def group_of(kind: Kind, count: int, members: tuple[str, ...] = ()) -> tuple[DeviceSpec, tuple[str, ...]]:
    """Return the device with the link that a group of that many has, and the group's members.

    Parameters
    ----------
    members
        Ids; () for those that the pool gives first.

    Notes
    -----
    Where no topology is known the link is that of the data sheet; the members are named where it matters which.
    """
    members = members or next(iter(kind.copies(count)), ())
    fabric = kind.fabric
    if fabric is None or count < 2 or not members or not all(map(fabric.has, members)):
        return kind.spec, members if kind.stock is not None and kind.stock.named else ()
    from hetero.plan.collectives.groups import Terms, best_group

    others = tuple(part.id for part in fabric.devices if part.id not in members)
    group = best_group(fabric, count, terms=Terms(exclude=others))
    return replace(kind.spec, link_bytes_per_s=group.bytes_per_s), group.devices


def _same(name: str, wanted: str) -> bool:
    try:
        return bool(name) and find(name).name == wanted
    except BadValueError:
        return False
