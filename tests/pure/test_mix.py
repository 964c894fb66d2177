"""Mixes of device kinds: as cheap as the cheapest of all mixes, never dearer than one kind, within what there is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from hetero.floor.errors import BadValueError, NothingFitsError
from hetero.plan.sizing.replica_mix import Offer, best_mix, cheapest_single


def _serves(demand: tuple[float, float], offers: tuple[Offer, ...], counts: tuple[int, ...]) -> bool:
    """Fill two streams by comparative advantage: who is best at the first, against the second, serves the first."""
    first, second = demand
    order = sorted(
        (at for at, count in enumerate(counts) if count),
        key=lambda at: -offers[at].rates[0] / max(offers[at].rates[1], 1e-9),
    )
    for at in order:
        time = float(counts[at])
        one, two = offers[at].rates
        used = min(time, first / one) if one > 0 else 0.0
        first -= used * one
        second -= (time - used) * two
    return first <= 1e-9 and second <= 1e-9


@pytest.mark.parametrize("seed", range(25))
def test_a_mix_is_as_cheap_as_the_cheapest_of_all_mixes(seed: int) -> None:
    draw = np.random.default_rng(seed)
    kinds = int(draw.integers(1, 4))
    offers = tuple(
        Offer(f"k{at}", float(draw.integers(1, 20)), tuple(draw.integers(1, 12, 2).astype(float)), f"k{at}")
        for at in range(kinds)
    )
    limits = {offer.pool: int(draw.integers(1, 6)) for offer in offers}
    demand = (float(draw.integers(1, 25)), float(draw.integers(1, 25)))
    prices = [
        sum(c * offer.usd_per_hour for c, offer in zip(counts, offers, strict=True))
        for counts in product(*(range(limits[offer.pool] + 1) for offer in offers))
        if _serves(demand, offers, counts)
    ]
    if not prices:
        with pytest.raises(NothingFitsError):
            best_mix(demand, offers, limits)
        return
    mix = best_mix(demand, offers, limits)
    assert mix.usd_per_hour == pytest.approx(min(prices))
    single = cheapest_single(demand, offers, limits)
    assert single is None or mix.usd_per_hour <= single.usd_per_hour + 1e-9


def test_every_stream_is_served_within_the_time_of_the_replicas() -> None:
    offers = (Offer("a", 3.0, (9.0, 2.0), "a"), Offer("b", 1.0, (3.0, 0.5), "b"))
    mix = best_mix((20.0, 3.0), offers, load_frac=0.8)
    for stream, wanted in enumerate((20.0, 3.0)):
        assert sum(share[stream] for share in mix.shares.values()) == pytest.approx(wanted)
    for offer in offers:
        if offer.name in mix.counts:
            busy = sum(x / rate for x, rate in zip(mix.shares[offer.name], offer.rates, strict=True))
            assert busy <= 0.8 * mix.counts[offer.name] + 1e-6


def test_offers_of_one_pool_share_its_devices() -> None:
    pair, four = Offer("2-x", 2.0, (1.0,), "x", 2), Offer("4-x", 4.0, (3.0,), "x", 4)
    mix = best_mix((4.0,), (pair, four), {"x": 6})
    assert dict(mix.counts) == {"2-x": 1, "4-x": 1}
    with pytest.raises(NothingFitsError, match="all devices together"):
        best_mix((5.0,), (pair, four), {"x": 6})


def test_a_stream_that_nobody_serves_is_named() -> None:
    with pytest.raises(NothingFitsError, match="no kind of device serves stream 2"):
        best_mix((1.0, 1.0), (Offer("a", 1.0, (1.0, 0.0), "a"),))


@pytest.mark.parametrize(
    ("demand", "price", "load", "told"),
    [((0.0,), 1.0, 1.0, "one must be above"), ((1.0,), 0.0, 1.0, "price of a is 0"), ((1.0,), 1.0, 1.5, "no share")],
)
def test_wrong_figures_of_a_mix_are_refused(demand: tuple[float, ...], price: float, load: float, told: str) -> None:
    with pytest.raises(BadValueError, match=told):
        best_mix(demand, (Offer("a", price, (1.0,), "a"),), load_frac=load)
