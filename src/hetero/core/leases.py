"""Leases: devices handed out together, all that a request asks for or nothing.

In: requests and facts with the time inside. Out: leases as they stand now. It must not look at a clock or touch a
device: who uses it tells what happened.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from hetero.core.obstacles import obstacle, refusal
from hetero.floor.errors import BadValueError, NothingFitsError
from hetero.model.device import Device
from hetero.model.leases import LeasePhase, LeaseRequest, LeaseState
from hetero.model.tasks import Request
from hetero.model.topology import Topology

__all__ = ["LeasePool", "chosen_together", "place_of", "sharing"]

REMEMBERED = 4_096
"""Leases that are over and can still be asked about."""

_ROUNDING = 1e-9
_PLACES = {"numa": "NUMA node", "pcie": "PCIe bus", "nvlink": "NVLink island"}
_HOLDING = (LeasePhase.ACTIVE, LeasePhase.RELEASING)


@dataclass(slots=True)
class _Slot:
    """What of a device is handed out, and to whom."""

    device: Device
    holders: dict[int, LeaseRequest] = field(default_factory=dict)
    lost: bool = False

    @property
    def memory_bytes(self) -> int | None:
        limits = [size for size in (self.device.memory_bytes, self.device.memory_limit_bytes) if size is not None]
        return min(limits, default=None)

    def has_room(self, request: LeaseRequest) -> bool:
        """Return whether a request fits beside those that hold a part."""
        others = self.holders.values()
        if self.lost or (others and (request.exclusive or any(other.exclusive for other in others))):
            return False
        if sum(other.compute_frac for other in others) + request.compute_frac > 1.0 + _ROUNDING:
            return False
        taken = sum(other.memory_bytes for other in others)
        return self.memory_bytes is None or taken + request.memory_bytes <= self.memory_bytes


class LeasePool:
    """Devices and the leases on them.

    Attributes
    ----------
    lends
        True while there are leases, or news of them.

    Notes
    -----
    Requests are met in order of priority, then of arrival; one that cannot be met now does not hold up those behind it.

    Examples
    --------
    >>> from hetero.model.device import DeviceType
    >>> pool = LeasePool([Device(f"h0/cuda:{n}", "cuda", DeviceType("GPU"), "torch") for n in range(2)])
    >>> first = pool.ask(LeaseRequest(count=2), now_s=0.0)
    >>> second = pool.ask(LeaseRequest(on=("gpu",)), now_s=1.0)
    >>> pool.lease(first).phase, pool.lease(second).phase
    (<LeasePhase.ACTIVE: 'active'>, <LeasePhase.PENDING: 'pending'>)
    >>> pool.release(first, now_s=2.0)
    >>> pool.lease(second).devices
    ('h0/cuda:0',)
    """

    def __init__(self, devices: Iterable[Device] = (), topology: Topology | None = None) -> None:
        self._slots = {device.id: _Slot(device) for device in devices}
        self._topology = topology or Topology()
        self._leases: dict[int, LeaseState] = {}
        self._over: OrderedDict[int, LeaseState] = OrderedDict()
        self._changed: dict[int, LeaseState] = {}
        self._next = 1
        self.lends = False

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that are not lost."""
        return tuple(slot.device for slot in self._slots.values() if not slot.lost)

    @property
    def leases(self) -> tuple[LeaseState, ...]:
        """Every lease that is not over, in the order of arrival."""
        return tuple(self._leases.values())

    def lease(self, number: int) -> LeaseState:
        """Return a lease as it stands.

        Raises
        ------
        BadValueError
            There was no such lease.
        """
        lease = self._leases.get(number) or self._over.get(number)
        if lease is None:
            raise BadValueError(f"there is no lease {number}", remedy="use the number that 'ask' gave")
        return lease

    def pop_changes(self) -> tuple[LeaseState, ...]:
        """Return the leases that have changed, as they stand now, and forget that they have."""
        found, self._changed = tuple(self._changed.values()), {}
        self.lends = bool(self._leases)
        return found

    def admits(self, device: str, lease: int) -> bool:
        """Return whether work of a lease may use a device: one that it holds; work of none (0), what nobody holds."""
        holders = self._slots[device].holders
        return lease in holders if lease else not holders

    def knows(self, number: int) -> bool:
        """Return whether that number was asked for, as far as is remembered."""
        return number in self._leases or number in self._over

    def ended(self, number: int) -> str:
        """Return how a lease ended, '' where it has not."""
        if number in self._leases:
            return ""
        lease = self._over.get(number)
        return f"lease {number} is {lease.phase if lease else 'not known'}{_because(lease)}"

    def held(self, number: int) -> tuple[str, ...]:
        """Return the devices that a lease holds, none while it waits and after its end."""
        lease = self._leases.get(number)
        return () if lease is None or lease.phase is LeasePhase.PENDING else lease.devices

    def add(self, device: Device, now_s: float) -> None:
        """Take a device in; one that was lost is back."""
        slot = self._slots.setdefault(device.id, _Slot(device))
        slot.device, slot.lost = device, False
        self.advance(now_s)

    def ask(self, request: LeaseRequest, now_s: float, number: int = 0) -> int:
        """Ask for a lease and give its number; it is active at once where that can be.

        A request that the devices could never meet, were all of them free, has failed at once, with the reason.

        Parameters
        ----------
        number
            Of the asker's own choice, > 0 and never used before; 0 takes the next.
        """
        number = number or self._next
        self._next = max(self._next, number) + 1
        self._set(LeaseState(number, request, asked_s=now_s))
        if reason := self._never(request):
            self._end(number, LeasePhase.FAILED, reason)
        self.advance(now_s)
        return number

    def offers(self, request: LeaseRequest) -> tuple[tuple[str, ...], ...]:
        """Return the groups of whole devices that could be leased side by side now, the best first; none is taken."""
        left = self._free_for(request)
        if not request.together and self._topology.fabric is None:
            rest = [slot.device.id for slot in _in_order(left)]
            starts = range(0, len(rest) - request.count + 1, request.count)
            return tuple(tuple(rest[at : at + request.count]) for at in starts)
        found = []
        while chosen := self._together(left, request):
            taken = {slot.device.id for slot in chosen}
            found.append(tuple(slot.device.id for slot in chosen))
            left = [slot for slot in left if slot.device.id not in taken]
        return tuple(found)

    def release(self, number: int, now_s: float) -> None:
        """Release a lease; one that is over stays as it is."""
        if not self.lease(number).over:
            self._end(number, LeasePhase.RELEASED, "")
            self.advance(now_s)

    def begin_release(self, number: int) -> None:
        """Record that a lease is being released: its devices are held until `release`, and it can no longer expire."""
        lease = self.lease(number)
        if lease.phase is LeasePhase.ACTIVE:
            self._set(replace(lease, phase=LeasePhase.RELEASING, expires_s=0.0))

    def refuse(self, number: int, device: str, now_s: float, reason: str) -> None:
        """Record that a device could not be had after all: the whole lease is rolled back, and waits for others."""
        lease = self.lease(number)
        if lease.phase is not LeasePhase.ACTIVE or device not in lease.devices:
            return
        self._free(lease)
        request = replace(lease.request, not_on=(*lease.request.not_on, device))
        self._set(LeaseState(number, request, asked_s=lease.asked_s, reason=reason))
        if never := self._never(request):
            self._end(number, LeasePhase.FAILED, f"{reason}; {never}")
        self.advance(now_s)

    def renew(self, number: int, now_s: float) -> None:
        """Restart a lease's time from now.

        Raises
        ------
        BadValueError
            It is not active: what was given back or expired may belong to others already.
        """
        lease = self.lease(number)
        if lease.phase is not LeasePhase.ACTIVE or 0.0 < lease.expires_s <= now_s:
            self.advance(now_s)
            raise BadValueError(f"lease {number} is {self.lease(number).phase}", remedy="ask for a new one")
        if lease.request.lease_s:
            self._set(replace(lease, expires_s=now_s + lease.request.lease_s))

    def lose(self, device: str, now_s: float, reason: str = "") -> None:
        """Mark a device as lost; fail its leases and every request that can no longer be met."""
        slot = self._slot(device)
        slot.lost = True
        for number in tuple(slot.holders):
            self._end(number, LeasePhase.FAILED, f"{device} was lost{': ' if reason else ''}{reason}")
        for lease in self.leases:
            if lease.phase is LeasePhase.PENDING and (never := self._never(lease.request)):
                self._end(lease.id, LeasePhase.FAILED, f"{device} was lost; {never}")
        self.advance(now_s)

    def restore(self, device: str, now_s: float) -> None:
        """Record that a device is back."""
        self._slot(device).lost = False
        self.advance(now_s)

    def next_s(self) -> float | None:
        """Return when time alone changes something next, None where it does not."""
        times = [
            lease.expires_s if lease.phase is LeasePhase.ACTIVE else lease.asked_s + lease.request.timeout_s
            for lease in self.leases
            if (lease.phase is LeasePhase.ACTIVE and lease.expires_s)
            or (lease.phase is LeasePhase.PENDING and lease.request.timeout_s)
        ]
        return min(times, default=None)

    def advance(self, now_s: float) -> None:
        """Advance the time: leases and requests expire, other requests are met."""
        for lease in self.leases:
            if lease.phase is LeasePhase.ACTIVE and 0.0 < lease.expires_s <= now_s:
                self._end(lease.id, LeasePhase.RELEASED, f"expired after {lease.request.lease_s:g} s")
        for lease in self._waiting():
            limit_s = lease.request.timeout_s
            if chosen := self._chosen(lease.request):
                self._grant(lease, chosen, now_s)
            elif limit_s and now_s >= lease.asked_s + limit_s:
                self._end(lease.id, LeasePhase.FAILED, f"not met within {limit_s:g} s: {self._wants(lease.request)}")

    def check(self) -> None:
        """Assert that every device is handed out to those that hold it, within its bounds, and to nobody else."""
        for name, slot in self._slots.items():
            holding = {lease.id for lease in self.leases if lease.phase in _HOLDING and name in lease.devices}
            assert set(slot.holders) == holding, (name, slot.holders, holding)
            assert sum(other.compute_frac for other in slot.holders.values()) <= 1.0 + 1e-6, name
            assert len(slot.holders) == 1 or not any(other.exclusive for other in slot.holders.values()), name
            taken = sum(other.memory_bytes for other in slot.holders.values())
            assert slot.memory_bytes is None or taken <= slot.memory_bytes, name
            assert not (slot.lost and slot.holders), name
        for lease in self.leases:
            size = lease.request.count if lease.phase in _HOLDING else 0
            assert not lease.over, lease
            assert len(lease.devices) == size, lease

    # --- below ---------------------------------------------------------------------------------------------

    def _slot(self, device: str) -> _Slot:
        if device not in self._slots:
            raise BadValueError(f"the pool has no device {device!r}", remedy=f"it has: {', '.join(self._slots)}")
        return self._slots[device]

    def _waiting(self) -> list[LeaseState]:
        waiting = [lease for lease in self.leases if lease.phase is LeasePhase.PENDING]
        return sorted(waiting, key=lambda lease: (-lease.request.priority, lease.id))

    def _grant(self, lease: LeaseState, chosen: Sequence[_Slot], now_s: float) -> None:
        for slot in chosen:
            slot.holders[lease.id] = lease.request
        lease_s = lease.request.lease_s
        self._set(
            replace(
                lease,
                phase=LeasePhase.ACTIVE,
                devices=tuple(slot.device.id for slot in chosen),
                granted_s=now_s,
                expires_s=now_s + lease_s if lease_s else 0.0,
                reason="",
            )
        )

    def _set(self, lease: LeaseState) -> None:
        self._leases[lease.id] = self._changed[lease.id] = lease
        self.lends = True

    def _free(self, lease: LeaseState) -> None:
        for slot in self._slots.values():
            slot.holders.pop(lease.id, None)

    def _end(self, number: int, phase: LeasePhase, reason: str) -> None:
        lease = self._leases.pop(number)
        self._free(lease)
        self._over[number] = self._changed[number] = replace(lease, phase=phase, reason=reason, expires_s=0.0)
        if len(self._over) > REMEMBERED:
            self._over.popitem(last=False)

    def _obstacle(self, slot: _Slot, request: LeaseRequest) -> str:
        if slot.lost:
            return "it is lost"
        needs = Request(
            on=request.on,
            not_on=request.not_on,
            implemented=("any",),
            memory_bytes=request.memory_bytes,
            min_cores=request.min_cores,
            devices=request.count,
        )
        return obstacle(slot.device, needs, slot.memory_bytes)

    def _able(self, request: LeaseRequest) -> list[_Slot]:
        return [slot for slot in self._slots.values() if not self._obstacle(slot, request)]

    def _never(self, request: LeaseRequest) -> str:
        """Return why a request could not be met even if nobody held anything, '' where it could."""
        able = self._able(request)
        if self._together(able, request):
            return ""
        if len(able) >= request.count:
            names = ", ".join(slot.device.id for slot in able)
            return f"no {request.count} of {names} {sharing(request.together)}"
        found = [(slot.device.id, self._obstacle(slot, request)) for slot in self._slots.values()]
        needs = Request(devices=request.count)
        return refusal("it", needs, [pair for pair in found if pair[1]])

    def _wants(self, request: LeaseRequest) -> str:
        held = [slot.device.id for slot in self._able(request) if slot.holders]
        return f"{', '.join(held) or 'no device'} held by others"

    def _chosen(self, request: LeaseRequest) -> Sequence[_Slot]:
        """Return devices that meet a request now, partly taken ones first; empty where there are none."""
        return self._together(self._free_for(request), request)

    def _free_for(self, request: LeaseRequest) -> list[_Slot]:
        """Return the devices that have room for a request, partly taken ones first."""
        rivals = [
            (other, holder)
            for other in self._slots.values()
            for holder in other.holders.values()
            if (holder.workload and holder.workload in request.apart)
            or (request.workload and request.workload in holder.apart)
        ]
        free = [slot for slot in self._able(request) if slot.has_room(request)]
        beside = [slot for slot in free if not any(self._clash(slot, request, *rival) for rival in rivals)]
        return sorted(beside, key=lambda slot: -len(slot.holders))

    def _together(self, slots: Sequence[_Slot], request: LeaseRequest) -> Sequence[_Slot]:
        """Return as many as asked for that share what they must share, in the order of the fleet."""
        if len(slots) < request.count:
            return ()
        devices = [slot.device for slot in slots]
        whole = request.compute_frac == 1.0
        chosen = chosen_together(devices, request.count, request.together, self._topology, best=whole)
        return _in_order([self._slots[device.id] for device in chosen])

    def _clash(self, slot: _Slot, request: LeaseRequest, other: _Slot, holder: LeaseRequest) -> bool:
        """Return whether this request keeps away from a holder near the device, or the holder from it."""
        if holder.workload in request.apart and self._near(slot, other, request.apart_by):
            return True
        return request.workload in holder.apart and self._near(slot, other, holder.apart_by)

    def _near(self, one: _Slot, other: _Slot, scope: str) -> bool:
        if scope == "device":
            return one is other
        return place_of(one.device, scope, self._topology) == place_of(other.device, scope, self._topology)


def _in_order(slots: Sequence[_Slot]) -> Sequence[_Slot]:
    return sorted(slots, key=lambda slot: (slot.device.host, slot.device.kind, slot.device.index, slot.device.id))


def sharing(together: str) -> str:
    """Word what devices of a lease share."""
    if together.startswith("link:"):
        return f"are joined each with each by {together.removeprefix('link:')}"
    return f"share the same {_PLACES.get(together, together)}, as far as is known"


def _because(lease: LeaseState | None) -> str:
    return f": {lease.reason}" if lease and lease.reason else ""


def place_of(device: Device, scope: str, topology: Topology) -> str:
    """Return the host, rack, NUMA node, PCIe bus or NVLink island of a device; '' where it is unknown.

    Examples
    --------
    >>> from hetero.model.device import DeviceType
    >>> place_of(Device("h1/cuda:0", "cuda", DeviceType("GPU"), "torch", rack="r2"), "rack", Topology())
    'r2'
    """
    own = {"host": device.host, "rack": device.rack}.get(scope, "")
    fabric = topology.fabric
    return own or (fabric.place(device.id, scope) if fabric is not None and fabric.has(device.id) else "")


def chosen_together(
    devices: Sequence[Device], count: int, share: str, topology: Topology, *, best: bool = True
) -> tuple[Device, ...]:
    """Return devices that share what they must; () where there are too few.

    Parameters
    ----------
    devices
        Candidates, the preferred ones first.
    share
        '' for nothing, a scope as 'host' or 'numa', or 'link:KIND' that joins each two.
    best
        True takes those with the fastest connections, where these are known; False the first ones.

    Notes
    -----
    Of several places that have enough the smallest is taken, so that the larger ones are left for larger requests.
    """
    if share.startswith("link:"):
        return _linked(devices, count, share.removeprefix("link:"), topology)
    places: dict[str, list[Device]] = {}
    for device in devices:
        place = place_of(device, share, topology) if share else "everywhere"
        if place or share in ("host", "rack"):
            places.setdefault(place, []).append(device)
    enough = sorted((group for group in places.values() if len(group) >= count), key=len)
    if not enough:
        return ()
    return (_fastest(enough[0], count, topology) if best else ()) or tuple(enough[0][:count])


def _is_wired(device: Device, topology: Topology) -> bool:
    return topology.fabric is not None and topology.fabric.has(device.id)


def _fastest(devices: Sequence[Device], count: int, topology: Topology) -> tuple[Device, ...]:
    """Return the group whose all-reduce is fastest; () where there is no choice, or the wires are not known."""
    fabric = topology.fabric
    if fabric is None or not 1 < count < len(devices) or not all(_is_wired(device, topology) for device in devices):
        return ()
    from hetero.plan.collectives.groups import Terms, best_group

    names = {device.id for device in devices}
    others = tuple(part.id for part in fabric.devices if part.id not in names)
    try:
        group = best_group(fabric, count, terms=Terms(exclude=others)).devices
    except NothingFitsError:
        return ()
    return tuple(device for device in devices if device.id in group)


def _linked(devices: Sequence[Device], count: int, kind: str, topology: Topology) -> tuple[Device, ...]:
    joined = [
        sum(1 << at for at, other in enumerate(devices) if other is not one and _joins(one, other, kind, topology))
        for one in devices
    ]

    def grown(group: list[int], others: int) -> list[int]:
        if len(group) == count:
            return group
        while others and len(group) + others.bit_count() >= count:
            low = others & -others
            others ^= low
            at = low.bit_length() - 1
            if found := grown([*group, at], others & joined[at]):
                return found
        return []

    return tuple(devices[at] for at in grown([], (1 << len(devices)) - 1))


def _joins(one: Device, other: Device, kind: str, topology: Topology) -> bool:
    """Return whether links of that kind, and of no other, lead from one device to another."""
    link = topology.link(one.memory_node, other.memory_node)
    if link is not None and link.kind == kind:
        return True
    fabric = topology.fabric
    if fabric is None or not (_is_wired(one, topology) and _is_wired(other, topology)):
        return False
    if kind == "nvlink":
        return fabric.nvlinked(one.id, other.id)
    try:
        return fabric.path(one.id, other.id).kinds == (kind,)
    except BadValueError:
        return False
