"""What of a fleet is free to be planned with: the pool that a Context and the simulator use, asked and left as it was.

In: what a fleet has, and who holds what of it. Out: groups of devices, one a copy of a model. It must not take any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hetero.core.leases import LeasePool
from hetero.floor.errors import BadValueError, did_you_mean
from hetero.model.device import Device, DeviceType
from hetero.model.leases import LeasePhase, LeaseRequest
from hetero.model.topology import Topology

__all__ = ["Holding", "Stock", "Wanted", "stocked"]

_LABELS = {"cpu": "CPU", "tpu": "TPU", "npu": "NPU", "fpga": "FPGA"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Devices of one sort that a fleet has.

    Attributes
    ----------
    sort : what they are asked for by; rows of one sort are alike in everything
    name : of the catalog
    kind : as in 'cuda'
    count : how many
    host, rack : where they stand
    ids : their ids, where the topology names them; () for ids of the usual form
    """

    sort: str
    name: str
    kind: str
    count: int
    host: str = "h0"
    rack: str = ""
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Holding:
    """Devices that somebody has already.

    Attributes
    ----------
    workload : whose they are
    devices : ids, or the name of a sort
    count : how many of that sort
    where : what messages begin with
    """

    workload: str
    devices: tuple[str, ...]
    count: int = 0
    where: str = "the fleet"


class Stock:
    """Devices of a fleet by sort, and the pool that hands them out.

    Attributes
    ----------
    named : whether it matters which device of a sort one gets: links or leases are known

    Examples
    --------
    >>> stock = stocked([Wanted("a", "H100-SXM", "cuda", 4)], [Holding("training", ("h0/cuda:1",))])
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

    def hold(self, holding: Holding) -> None:
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
        terms : what each group keeps to: `together`, `apart`, `apart_by`

        Notes
        -----
        Where no topology tells of links between hosts, a group stands on one host.
        """
        wish = terms or LeaseRequest()
        together = wish.together or ("" if self._wired else "host")
        return self._pool.offers(replace(wish, on=self._ids[sort], count=count, together=together))


def stocked(wanted: Iterable[Wanted], holdings: Iterable[Holding] = (), topology: Topology | None = None) -> Stock:
    """Return the stock of a fleet, what others hold taken out."""
    numbers: Counter[tuple[str, str]] = Counter()
    sorts: dict[str, list[Device]] = {}
    for sort in wanted:
        kind = DeviceType(_LABELS.get(sort.kind, "GPU"))
        for at in range(sort.count):
            place = sort.host, sort.kind or "device"
            usual = f"{place[0]}/{place[1]}:{numbers[place]}"
            numbers[place] += 1
            identity = sort.ids[at] if at < len(sort.ids) else usual
            alike = sorts.setdefault(sort.sort, [])
            alike.append(Device(identity, sort.kind, kind, "planned", at, name=sort.name, rack=sort.rack))
    stock = Stock(sorts, topology or Topology())
    for holding in holdings:
        stock.hold(holding)
    return stock
