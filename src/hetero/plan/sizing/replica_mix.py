"""The cheapest mix of device kinds for streams of requests of different lengths.

In: requests a second of each stream, and what a replica of each kind serves of them for what price. Out: how many
replicas of each kind, and which share of which stream goes where. It must not estimate a speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hetero.floor.errors import BadValueError, NothingFitsError
from hetero.floor.extras import need

__all__ = ["Mix", "Offer", "best_mix", "cheapest_single"]

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Offer:
    """A replica that can be had: one device, or several that hold one model together.

    Attributes
    ----------
    name
        Unique.
    usd_per_hour
        Of the replica, > 0.
    rates
        One a stream; requests/s that it serves of that stream alone, 0 where it cannot.
    pool
        What its devices are counted under; offers of one pool share its limit.
    devices
        Of the pool that a replica takes.
    """

    name: str
    usd_per_hour: float
    rates: tuple[float, ...]
    pool: str
    devices: int = 1


@dataclass(frozen=True, slots=True)
class Mix:
    """Replicas that serve all streams.

    Attributes
    ----------
    counts
        Replicas by name of the offer, those above 0.
    shares
        By name of the offer, requests/s of each stream that it takes.
    usd_per_hour
        Of all together.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    shares: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    usd_per_hour: float = 0.0


def best_mix(
    demand: Sequence[float], offers: Sequence[Offer], limits: Mapping[str, int] | None = None, load_frac: float = 1.0
) -> Mix:
    """Return the mix of least price that serves all streams.

    Parameters
    ----------
    demand
        Requests/s of each stream, >= 0, one at least above 0.
    limits
        Devices of each pool that there are; default: as many as needed.
    load_frac
        Share of its time that a replica may be busy, 0 < f <= 1: below 1 leaves room for bursts.

    Raises
    ------
    NothingFitsError
        The devices that there are cannot serve all.
    BadValueError
        A demand, a price or the load is not above 0.

    Notes
    -----
    min Σ_j p_j·n_j with n_j whole, x_ij ≥ 0: Σ_j x_ij = d_i for each stream i; Σ_i x_ij / r_ij ≤ f·n_j for each offer
    j; Σ_j devices_j·n_j ≤ limit of each pool. One kind alone is a point of this set, so a mix is never dearer.

    References
    ----------
    Griggs and others 2024, "Mélange: Cost Efficient Large Language Model Serving by Exploiting GPU Heterogeneity",
    section 5.

    Examples
    --------
    >>> big, small = Offer("big", 4.0, (10.0, 2.0), "big"), Offer("small", 1.0, (4.0, 0.0), "small")
    >>> mix = best_mix((8.0, 2.0), (big, small))
    >>> dict(mix.counts), mix.usd_per_hour
    ({'big': 1, 'small': 2}, 6.0)
    """
    _check(demand, offers, load_frac)
    limits = limits or {}
    needed = [_most_needed(demand, offer, load_frac) for offer in offers]
    found = _solved(np.asarray(demand, dtype=float), offers, limits, load_frac, needed)
    if found is None:
        raise NothingFitsError(_why_not(demand, offers), remedy="add devices or kinds, or ask for less")
    counts, flows = found
    price = sum(offer.usd_per_hour * int(count) for offer, count in zip(offers, counts, strict=True))
    rows = zip(offers, counts, flows, strict=True)
    used = [(offer, int(count), tuple(float(x) for x in flow)) for offer, count, flow in rows if count]
    return Mix(
        {offer.name: count for offer, count, _ in used}, {offer.name: flow for offer, _, flow in used}, float(price)
    )


def _check(demand: Sequence[float], offers: Sequence[Offer], load_frac: float) -> None:
    if not demand or min(demand) < 0 or max(demand) <= 0:
        raise BadValueError(f"requests a second are {list(demand)}", remedy="none may be below 0, one must be above")
    if not 0.0 < load_frac <= 1.0:
        raise BadValueError(f"a load of {load_frac:g} is no share", remedy="it must be above 0 and at most 1")
    for offer in offers:
        if not offer.usd_per_hour > 0.0:
            raise BadValueError(f"the price of {offer.name} is {offer.usd_per_hour:g}", remedy="it must be above 0")


def _most_needed(demand: Sequence[float], offer: Offer, load_frac: float) -> int:
    """Return as many replicas as serve alone all that the offer can serve: more are of no use."""
    busy = sum(d / rate for d, rate in zip(demand, offer.rates, strict=True) if rate > 0.0)
    return int(np.ceil(busy / load_frac - _ROUNDING))


def _why_not(demand: Sequence[float], offers: Sequence[Offer]) -> str:
    for stream, wanted in enumerate(demand):
        if wanted > 0.0 and not any(offer.rates[stream] > 0.0 for offer in offers):
            return f"no kind of device serves stream {stream + 1}"
    return "all devices together do not serve that many requests a second"


def _solved(
    demand: np.ndarray[tuple[int], np.dtype[np.float64]],
    offers: Sequence[Offer],
    limits: Mapping[str, int],
    load_frac: float,
    needed: Sequence[int],
) -> tuple[list[int], list[list[float]]] | None:
    """Solve the integer program: variables are the counts, then the share of each stream that each offer takes."""
    need("scipy", "a mix of devices for streams")
    from scipy.optimize import Bounds, LinearConstraint, milp

    streams, kinds = len(demand), len(offers)
    rates = np.array([offer.rates for offer in offers], dtype=float).reshape(kinds, streams)
    busy = np.divide(demand, rates, out=np.zeros_like(rates), where=rates > 0.0)
    total = kinds + kinds * streams
    served = np.zeros((streams, total))
    time = np.zeros((kinds, total))
    for kind in range(kinds):
        at = kinds + kind * streams
        served[:, at : at + streams] = np.eye(streams)
        time[kind, at : at + streams] = busy[kind]
        time[kind, kind] = -load_frac
    pools = [pool for pool in dict.fromkeys(offer.pool for offer in offers) if pool in limits]
    room = np.zeros((len(pools), total))
    for kind, offer in enumerate(offers):
        if offer.pool in limits:
            room[pools.index(offer.pool), kind] = offer.devices
    wanted = (demand > 0.0).astype(float)
    constraints = [LinearConstraint(served, wanted, wanted), LinearConstraint(time, -np.inf, 0.0)]
    if pools:
        constraints.append(LinearConstraint(room, -np.inf, [limits[pool] for pool in pools]))
    result = milp(
        np.concatenate(([offer.usd_per_hour for offer in offers], np.zeros(kinds * streams))),
        constraints=constraints,
        integrality=np.concatenate((np.ones(kinds), np.zeros(kinds * streams))),
        bounds=Bounds(0.0, np.concatenate((needed, (rates > 0.0).astype(float).ravel()))),
        options={"mip_rel_gap": 0.0},
    )
    if result.x is None:
        return None
    shares = result.x[kinds:].reshape(kinds, streams) * demand
    return [round(count) for count in result.x[:kinds]], np.maximum(shares, 0.0).tolist()


def cheapest_single(
    demand: Sequence[float], offers: Sequence[Offer], limits: Mapping[str, int] | None = None, load_frac: float = 1.0
) -> Mix | None:
    """Return the cheapest offer that serves all streams alone, None where none does.

    Examples
    --------
    >>> cheapest_single((8.0,), (Offer("a", 3.0, (4.0,), "a"), Offer("b", 1.0, (1.0,), "b"))).counts
    {'a': 2}
    """
    _check(demand, offers, load_frac)
    found = None
    for offer in offers:
        if any(wanted > 0.0 and rate <= 0.0 for wanted, rate in zip(demand, offer.rates, strict=True)):
            continue
        count = _most_needed(demand, offer, load_frac)
        price = count * offer.usd_per_hour
        short = limits is not None and offer.pool in limits and count * offer.devices > limits[offer.pool]
        if not short and (found is None or price < found.usd_per_hour):
            found = Mix({offer.name: count}, {offer.name: tuple(map(float, demand))}, price)
    return found
