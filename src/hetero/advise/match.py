"""Which devices suit a workload: scored and ranked with reasons, the others refused with the reason.

In: a workload, a fleet, limits and prices. Out: matches that explain themselves. It must not invent a figure: what the
catalog does not know is told as a reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import TYPE_CHECKING, Any

from hetero.advise.estimate import Estimate, estimate
from hetero.advise.fit import room_of
from hetero.advise.fleet import Kind, catalog_fleet, group_of, read_fleet
from hetero.advise.prices import Paid, Prices
from hetero.catalog.load import devices
from hetero.floor.deprecation import renamed_keywords
from hetero.floor.errors import BadValueError, HeteroError, did_you_mean
from hetero.floor.options import check_fields, options_argument, shows_fields
from hetero.floor.units import format_bytes, format_seconds
from hetero.model.leases import LeaseRequest
from hetero.model.workload import WorkloadSpec
from hetero.plan.sizing.footprint_search import devices_needed
from hetero.plan.sizing.scores import CandidateFigures, pareto, ranks, scores

if TYPE_CHECKING:
    from hetero.model.figure import Figure

__all__ = ["DeviceChoice", "Match", "MatchLimits", "choose", "estimates_of", "match"]

_GROUPS = (1, 2, 4, 8, 16)
"""Devices that hold one copy of a model, beside the fewest that can."""

_MOST_TIMES = 4
"""Where there is no end of devices, a copy is tried on up to so many times the fewest."""

_TERMS = {
    "prompt": "reading prompts",
    "arithmetic": "arithmetic",
    "weights": "reading weights",
    "attention": "attention",
    "cache": "reading the KV cache",
    "layer": "starting kernels",
    "reduce": "messages between devices",
    "link": "bytes between devices",
    "hop": "hops between devices",
    "request": "handling requests",
}


@dataclass(frozen=True, slots=True)
class MatchLimits:
    """What a choice must keep to.

    Attributes
    ----------
    latency_s
        Most seconds from the prompts to the last token of the batch, 0 for any.
    throughput_per_s
        Tokens/s that all replicas must give together, 0 for any.
    usd_per_hour
        Most dollars an hour, 0 for any.
    needs
        Capabilities that a device must have, as in 'fp8'.
    together
        What the devices of one copy share: 'host', 'rack', 'numa', 'pcie', 'nvlink' or 'link:KIND'; '' for nothing,
        and where no topology is known for the host.
    apart, apart_by
        Workloads that hold devices of the fleet and are kept away from, by 'device', 'host' or 'rack'.
    """

    latency_s: float = 0.0
    throughput_per_s: float = 0.0
    usd_per_hour: float = 0.0
    needs: tuple[str, ...] = ()
    together: str = ""
    apart: tuple[str, ...] = ()
    apart_by: str = "host"

    @property
    def terms(self) -> LeaseRequest:
        """What is asked of the pool for each copy."""
        return LeaseRequest(together=self.together, apart=self.apart, apart_by=self.apart_by)

    def __post_init__(self) -> None:
        check_fields(self)
        for name, what in (("latency_s", "s"), ("throughput_per_s", "tokens/s"), ("usd_per_hour", "dollars an hour")):
            given = getattr(self, name)
            if not 0.0 <= given < float("inf"):
                raise BadValueError(
                    f"a limit of {given:g} {what} is none", remedy="give a number above 0, or leave it out"
                )
        _ = self.terms  # raises where a word is wrong
        known = sorted({word for spec in devices().values() for word in spec.capabilities})
        for word in self.needs:
            if word not in known:
                hint = did_you_mean(word, known).removeprefix("; ")
                raise BadValueError(f"no device has {word!r}", remedy=hint or f"known: {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class Match:
    """A number of equal devices, and what they make of a workload.

    Attributes
    ----------
    device, count
        What; `count` devices hold one copy of the model.
    replicas
        Copies.
    refused
        Why it cannot be, '' where it can.
    estimate
        Of one copy, None where it could not be made.
    price
        Of one device an hour, None where unknown.
    groups
        Ids of the devices of each copy that there is room for, where it matters which.
    score, rank, best
        As compared with the other matches; `best` where no other beats it in everything.
    reasons
        In words.
    """

    device: str
    count: int
    replicas: int = 1
    refused: str = ""
    estimate: Estimate | None = None
    price: Paid | None = None
    groups: tuple[tuple[str, ...], ...] = ()
    score: float = 0.0
    rank: int = 0
    best: bool = False
    reasons: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """Ids of the devices of the first copy."""
        return next(iter(self.groups), ())

    @property
    def name(self) -> str:
        """What it is, for people."""
        many = f"{self.devices} × {self.device}" if self.devices > 1 else self.device
        return f"{many} in {self.replicas} copies" if self.replicas > 1 else many

    @property
    def devices(self) -> int:
        """The devices of all copies."""
        return self.count * self.replicas

    @property
    def usd_per_hour(self) -> float | None:
        """The price of all devices."""
        return None if self.price is None else self.price.usd_per_hour * self.devices

    @property
    def power_w(self) -> float | None:
        """What all devices may draw."""
        power = self.estimate.device.power_w if self.estimate else None
        return None if power is None else power * self.devices

    @property
    def latency_s(self) -> float | None:
        """Seconds from the prompts to the last token of the batch."""
        return self.estimate.latency_s.value if self.estimate else None

    @property
    def throughput_per_s(self) -> float | None:
        """Tokens/s of all copies under full load."""
        return None if self.estimate is None else _most(self.estimate).value * self.replicas

    @property
    def usd_per_million(self) -> float | None:
        """Dollars for a million tokens under full load."""
        usd, rate = self.usd_per_hour, self.throughput_per_s
        return None if usd is None or not rate else usd / 3600 / rate * 1e6

    def explain(self) -> str:
        """Return why it is where it is."""
        name = self.name
        if self.refused:
            return f"{name}: refused: {self.refused}"
        lines = [f"{self.rank}. {name}: score {self.score:.2f}{', beaten by none' if self.best else ''}"]
        return "\n".join([*lines, *(f"   {reason}" for reason in self.reasons)])

    def as_dict(self) -> dict[str, object]:
        """Return what a program would read."""
        plain = {"device": self.device, "devices": self.devices, "count": self.count, "replicas": self.replicas}
        if self.refused:
            return {**plain, "refused": self.refused}
        figures = self.estimate.as_dict() if self.estimate else {}
        return {
            **plain,
            "rank": self.rank,
            "score": self.score,
            "pareto": self.best,
            "latency_s": self.latency_s,
            "throughput_per_s": self.throughput_per_s,
            "usd_per_hour": self.usd_per_hour,
            "usd_per_million": self.usd_per_million,
            "power_w": self.power_w,
            "price": None if self.price is None else {"origin": self.price.origin, "day": self.price.day},
            "members": list(self.members),
            "groups": [list(group) for group in self.groups[: self.replicas]],
            "reasons": list(self.reasons),
            "estimate": figures,
        }


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """All matches of a workload.

    Attributes
    ----------
    matches
        Those that can be, the best first.
    refused
        Those that cannot.
    notes
        What a reader should know.
    """

    matches: tuple[Match, ...]
    refused: tuple[Match, ...]
    notes: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, object]:
        """Return what a program would read."""
        rows = {"matches": self.matches, "refused": self.refused}
        return {key: [row.as_dict() for row in found] for key, found in rows.items()} | {"notes": list(self.notes)}


def _most(found: Estimate) -> Figure:
    return found.most_tokens_per_s or found.throughput_tokens_per_s


@renamed_keywords(fleet="devices", engine="framework", optimiser="optimizer")
@shows_fields(WorkloadSpec)
def match(
    workload: WorkloadSpec | str,
    devices: str | Sequence[Kind] = "catalog",
    limits: MatchLimits | None = None,
    **how: Any,
) -> list[Match]:
    """Return which devices suit a workload, the best first, those that cannot do it last.

    Parameters
    ----------
    workload
        What is to be done; a model's name stands for its inference, with `how` as further fields.
    devices
        'here', 'catalog', words as in '2xH100-SXM,4xRTX-4090', a file, or kinds.
    limits
        What a choice must keep to.

    Notes
    -----
    score = geometric mean over latency, seconds a token, dollars a token and joules a token of (best of all / own);
    what is unknown of one is left out for all. Matches whose scores are nearer than their 80 % intervals share a rank.

    Examples
    --------
    >>> found = match("Llama-3.1-8B", "1xH100-SXM,1xRTX-4090,1xT4", context=1024)
    >>> [(one.device, bool(one.refused)) for one in found]
    [('H100-SXM', False), ('RTX-4090', False), ('T4', True)]
    """
    from hetero.advise.estimate import Workload

    work = Workload(workload, **how) if isinstance(workload, str) else replace(workload, **how)
    kinds = read_fleet(devices) if isinstance(devices, str) else tuple(devices)
    found = choose(work, kinds, limits)
    return [*found.matches, *found.refused]


def choose(
    work: WorkloadSpec,
    kinds: Sequence[Kind] | None = None,
    limits: MatchLimits | None = None,
    prices: Prices | None = None,
) -> DeviceChoice:
    """Judge every sensible number of every kind of device; see `match`."""
    limits, prices = options_argument("limits", limits, MatchLimits) or MatchLimits(), prices or Prices()
    tried: list[Match] = []
    for kind in catalog_fleet() if kinds is None else kinds:
        tried += _of_kind(work, kind, limits, prices)
    able = [one for one in tried if not one.refused]
    rows = [_figures(one) for one in able]
    judged = zip(able, scores(rows), pareto(rows), strict=True)
    scored = [replace(one, score=score, best=best) for one, score, best in judged]
    places = ranks(rows, [one.score for one in scored])
    ranked = [replace(one, rank=rank) for one, rank in zip(scored, places, strict=True)]
    ranked.sort(key=lambda one: (one.rank, -one.score, one.device, one.devices))
    least_s = min((one.latency_s or inf for one in ranked), default=inf)
    alike: dict[int, list[str]] = {}
    for one in ranked:
        alike.setdefault(one.rank, []).append(one.device)
    told = tuple(replace(one, reasons=_reasons(one, least_s, alike[one.rank], limits)) for one in ranked)
    return DeviceChoice(told, tuple(one for one in tried if one.refused), (*prices.notes, *_notes(told)))


def _figures(one: Match) -> CandidateFigures:
    assert one.estimate is not None
    most = _most(one.estimate)
    spread = (most.high / most.low) ** 0.5
    return CandidateFigures(one.latency_s or 0.0, one.throughput_per_s or 0.0, one.usd_per_hour, one.power_w, spread)


def _of_kind(work: WorkloadSpec, kind: Kind, limits: MatchLimits, prices: Prices) -> list[Match]:
    """Return the matches of one kind of device, or one refusal that says why there is none."""
    name = kind.spec.name
    lacking = [word for word in limits.needs if word not in kind.spec.capabilities]
    if lacking:
        has = ", ".join(kind.spec.capabilities) or "none that the catalog knows"
        return [Match(name, 1, refused=f"it lacks {', '.join(lacking)}; it has {has}")]
    price = kind.price or prices.of(kind.spec)
    try:
        found = [
            _judged(one, kind.most_copies(one.count, limits.terms), limits)
            for one in estimates_of(work, kind, price, limits.terms)
        ]
    except HeteroError as error:
        return [Match(name, 1, refused=error.problem)]
    able = [one for one in found if not one.refused]
    return able or found[:1] or [Match(name, kind.count or 1, refused=_too_few(work, kind, limits))]


def _too_few(work: WorkloadSpec, kind: Kind, limits: MatchLimits) -> str:
    room = room_of(kind.spec)
    needed = devices_needed(work, room)
    if needed is None:
        return f"no number of devices with {format_bytes(room.usable_bytes)} each holds it"
    return f"it takes {needed[0]} with {format_bytes(room.usable_bytes)} each{_have(kind, limits, needed[0])}"


def _have(kind: Kind, limits: MatchLimits, needed: int) -> str:
    """Return what there is of a kind, who holds some of it, and what the rest does not share."""
    from hetero.core.leases import sharing

    if kind.count is None:
        return ""
    if kind.stock is None:
        return f" and there {'is' if kind.count == 1 else 'are'} {kind.count}"
    held = kind.stock.held(kind.sort)
    told = "".join(f", {count} of them held by {workload}" for workload, count in held.items())
    free = len(kind.copies(1, replace(limits.terms, together="")))
    if free >= needed:
        told += f"; of those that are free no {needed} {sharing(limits.together or 'host')}"
    elif free < kind.count - sum(held.values()):
        told += f"; {free} are far enough from {', '.join(limits.apart)}"
    return f" and there {'is' if kind.count == 1 else 'are'} {kind.count}{told}"


def estimates_of(
    work: WorkloadSpec, kind: Kind, price: Paid | None, terms: LeaseRequest | None = None
) -> Iterator[Match]:
    """Yield a match for each number of devices that holds the model: the fewest, and the usual ones above.

    Parameters
    ----------
    terms
        What the devices of a copy must share, and whom they keep away from.

    Raises
    ------
    BadValueError
        The catalog has no source for what an estimate needs.
    """
    needed = devices_needed(work, room_of(kind.spec))
    if needed is None:
        return
    most = kind.count or _MOST_TIMES * needed[0]
    for count in sorted({needed[0], *(size for size in _GROUPS if size > needed[0])}):
        if count > most:
            return
        groups = kind.copies(count, terms)
        if kind.stock is not None and not groups:
            continue
        spec, members = group_of(kind, count, next(iter(groups), ()))
        try:
            found = estimate(work, spec, count, needed[1] if count == needed[0] else None)
        except BadValueError:
            if count == needed[0]:
                raise
            continue
        if found.memory.answer == "fits":
            named = (members, *groups[1:]) if members else ()
            yield Match(kind.spec.name, count, estimate=found, price=price, groups=named)


def _judged(one: Match, most_copies: int | None, limits: MatchLimits) -> Match:
    """Take as many copies as there are, or as the limits ask for, and refuse what cannot keep to them."""
    assert one.estimate is not None
    each = _most(one.estimate).value
    copies = most_copies or 1
    if limits.throughput_per_s:
        copies = ceil(limits.throughput_per_s / each)
    kept = replace(one, replicas=copies)
    if limits.latency_s and one.estimate.latency_s.value > limits.latency_s:
        took = format_seconds(one.estimate.latency_s.value)
        return replace(kept, refused=f"latency {took} is above {format_seconds(limits.latency_s)}")
    if most_copies is not None and copies > most_copies:
        have = f"all {most_copies * one.count} give {each * most_copies:,.0f} tokens/s"
        return replace(kept, replicas=most_copies, refused=f"{have}, and {limits.throughput_per_s:,.0f} are asked for")
    if limits.usd_per_hour and kept.usd_per_hour is None:
        return replace(kept, refused="no price is known: give one in the fleet file or with --prices")
    if limits.usd_per_hour and (kept.usd_per_hour or 0.0) > limits.usd_per_hour:
        return replace(kept, refused=f"${kept.usd_per_hour:.2f} an hour is above ${limits.usd_per_hour:.2f}")
    return kept


def _reasons(one: Match, least_s: float, alike: Sequence[str], limits: MatchLimits) -> tuple[str, ...]:
    """Return what speaks for and against a match; `alike` are the devices of its rank."""
    found = one.estimate
    assert found is not None
    need, have = found.memory.footprint.total, found.memory.usable_bytes
    copies = f", {one.replicas} copies" if one.replicas > 1 else ""
    lines = [f"holds the model on {one.count}{copies}: {format_bytes(need)} of {format_bytes(have)} on each"]
    if one.members:
        link = f", {format_bytes(found.device.link_bytes_per_s or 0.0)}/s between them" if one.count > 1 else ""
        lines.append(
            f"the best {one.count} that {'are' if one.count > 1 else 'is'} free: {', '.join(one.members)}{link}"
        )
    lines.append(_latency(found, least_s, limits))
    most = _most(found).times(one.replicas)
    at_once = f", {found.at_once} sequences at once on a copy" if found.at_once else ""
    lines.append(f"{most.value:,.0f} tokens/s under load (80 %: {most.low:,.0f} to {most.high:,.0f}){at_once}")
    if one.price is None or one.usd_per_million is None:
        lines.append("no price is known")
    else:
        lines.append(f"${one.usd_per_million:.2f} a million tokens under load, each at {one.price.said}")
    largest = max(found.shares, key=lambda share: share[1], default=None)
    if largest is not None:
        lines.append(f"{largest[1]:.0%} of the time goes into {_TERMS.get(largest[0], largest[0])}")
    ties = [device for device in dict.fromkeys(alike) if device != one.device]
    if ties:
        lines.append(f"no certain difference to {', '.join(ties)}")
    return tuple(lines)


def _latency(found: Estimate, least_s: float, limits: MatchLimits) -> str:
    own = found.latency_s
    interval = f"80 %: {format_seconds(own.low)} to {format_seconds(own.high)}; {own.origin}"
    line = f"{format_seconds(own.value)} for the batch ({interval})"
    if own.value <= least_s:
        line += ", the least of all"
    if limits.latency_s and own.high > limits.latency_s:
        line += f"; that it keeps below {format_seconds(limits.latency_s)} is likely, not sure"
    return line


def _notes(ranked: Sequence[Match]) -> Iterator[str]:
    priced = [one for one in ranked if one.price is not None]
    if ranked and len(priced) < len(ranked):
        yield f"prices are known of {len(priced)} of {len(ranked)}: scores leave money out"
    if any(one.estimate and one.estimate.latency_s.origin == "spec" for one in ranked):
        yield "speeds marked 'spec' come from data sheets alone; 'hetero calibrate' narrows them"
