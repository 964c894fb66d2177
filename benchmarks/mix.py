"""Mixes of device kinds: as cheap as the cheapest of all mixes, never dearer than one kind, and quickly found."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
from scipy.optimize import linprog

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, arguments
from hetero.floor.errors import NothingFitsError
from hetero.plan.sizing.replica_mix import Offer, best_mix, cheapest_single

MOST = 8


def case(draw: np.random.Generator, kinds: int) -> tuple[list[float], list[Offer], dict[str, int]]:
    """Return streams and kinds: prices and rates over a decade, some kinds unable to serve some streams."""
    streams = int(draw.integers(1, 4))
    offers = []
    for kind in range(kinds):
        rates = np.exp(draw.uniform(0.0, np.log(12.0), streams)) * (draw.random(streams) > 0.15)
        offers.append(Offer(f"k{kind}", float(np.round(np.exp(draw.uniform(0, 2.3)), 2)), tuple(rates), f"k{kind}"))
    best = np.array([offer.rates for offer in offers]).max(axis=0)
    demand = draw.uniform(0.2, 3.0, streams) * np.where(best > 0, best, 1.0)
    return demand.tolist(), offers, {offer.pool: int(draw.integers(1, MOST + 1)) for offer in offers}


def serves(demand: Sequence[float], offers: Sequence[Offer], counts: Sequence[int]) -> bool:
    """Tell by a linear program of its own whether these replicas serve all streams."""
    streams, kinds = len(demand), len(offers)
    equal = np.tile(np.eye(streams), kinds)
    busy = np.zeros((kinds, kinds * streams))
    bounds = []
    for kind, offer in enumerate(offers):
        for stream, rate in enumerate(offer.rates):
            busy[kind, kind * streams + stream] = 1.0 / rate if rate > 0 else 0.0
            bounds.append((0.0, None if rate > 0 else 0.0))
    answer = linprog(np.zeros(kinds * streams), busy, counts, equal, demand, bounds)
    return bool(answer.status == 0)


def brute_force(demand: Sequence[float], offers: Sequence[Offer], limits: dict[str, int]) -> float | None:
    """Return the price of the cheapest mix by trying all, from the cheapest on."""
    every = product(*(range(limits[offer.pool] + 1) for offer in offers))
    prices = sorted(
        (sum(c * offer.usd_per_hour for c, offer in zip(counts, offers, strict=True)), counts) for counts in every
    )
    rates = np.array([offer.rates for offer in offers])
    for price, counts in prices:
        if (np.asarray(counts) @ rates >= np.asarray(demand) - 1e-9).all() and serves(demand, offers, counts):
            return float(price)
    return None


def main() -> None:
    """Compare random cases."""
    given = arguments("The cheapest mix of device kinds against all mixes.")
    draw = np.random.default_rng(7)
    cases = [case(draw, 1 + at % 4) for at in range(12 if given.quick else 240)]
    bench = Bench("mix", "Mixes of up to 4 kinds of at most 8 devices", packages=("scipy",), out=given.out)
    best_mix((1.0,), (Offer("a", 1.0, (1.0,), "a"),))
    took, brute, equal, dearer, saved = [], [], 0, 0, []
    for demand, offers, limits in cases:
        begin_s = time.perf_counter()
        try:
            ours: float | None = best_mix(demand, offers, limits).usd_per_hour
        except NothingFitsError:
            ours = None
        took.append(time.perf_counter() - begin_s)
        begin_s = time.perf_counter()
        theirs = brute_force(demand, offers, limits)
        brute.append(time.perf_counter() - begin_s)
        single = cheapest_single(demand, offers, limits)
        equal += (ours is None and theirs is None) or (
            ours is not None and theirs is not None and abs(ours - theirs) <= 1e-6 * theirs
        )
        if single is not None and ours is not None:
            dearer += ours > single.usd_per_hour * (1 + 1e-9)
            saved.append(1.0 - ours / single.usd_per_hour)
    bench.measure("integer program", took)
    bench.measure("all mixes", brute)
    bench.claim("as cheap as the cheapest of all mixes", equal, unit=f"of {len(cases)}", at_least=float(len(cases)))
    bench.claim("dearer than the best single kind", dearer, unit="cases", at_most=0.0)
    bench.claim("slowest choice", max(took), unit="s", at_most=1.0)
    bench.claim("saved against the best single kind, mean", 100 * float(np.mean(saved)), unit="%")
    bench.note(cases=len(cases), where_one_kind_serves_all=len(saved))
    bench.finish()


if __name__ == "__main__":
    main()
