"""Several kinds of device together for requests of different lengths, at the least price.

In: a workload, streams of requests, a fleet, prices. Out: how many of each, what each serves, and the best single kind
beside it. It must not invent a price: a kind without one takes no part, and that is told.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hetero.advise.estimate import estimate
from hetero.advise.fleet import Kind
from hetero.advise.match import Match, MatchLimits, estimates_of
from hetero.advise.prices import Prices
from hetero.floor.errors import BadValueError, HeteroError, NothingFitsError
from hetero.floor.options import options_argument
from hetero.model.workload import WorkloadSpec
from hetero.plan.sizing.replica_mix import Mix, Offer, best_mix, cheapest_single

__all__ = ["MixChoice", "Stream", "mix", "read_stream"]

_STREAM = re.compile(r"(\d+)/(\d+)@(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests of one sort.

    Attributes
    ----------
    prompt, answer
        Tokens, > 0.
    per_s
        Requests/s, > 0.
    """

    prompt: int
    answer: int
    per_s: float

    def __str__(self) -> str:
        return f"{self.prompt}/{self.answer}@{self.per_s:g}"


def read_stream(word: str) -> Stream:
    """Read a stream: tokens of the prompt / tokens of the answer @ requests a second.

    Examples
    --------
    >>> read_stream("512/128@4")
    Stream(prompt=512, answer=128, per_s=4.0)
    """
    found = _STREAM.fullmatch(word.strip())
    if found is None or not all(float(part) > 0 for part in found.groups()):
        raise BadValueError(f"{word!r} is no stream", remedy="write PROMPT/ANSWER@PER_SECOND, as in 512/128@4")
    return Stream(int(found[1]), int(found[2]), float(found[3]))


@dataclass(frozen=True, slots=True)
class MixChoice:
    """The cheapest mix, and the cheapest single kind.

    Attributes
    ----------
    streams
        What is asked.
    mix, single
        What serves it; `single` None where no kind does alone.
    offers
        Every replica that was considered, by name.
    notes
        Kinds that took no part, and why.
    """

    streams: tuple[Stream, ...]
    mix: Mix
    single: Mix | None
    offers: dict[str, Offer]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Return what a program would read."""
        plans = {"mix": self.mix, "single": self.single}
        return {
            "streams": [str(stream) for stream in self.streams],
            **{
                name: plan
                and {
                    "usd_per_hour": plan.usd_per_hour,
                    "replicas": dict(plan.counts),
                    "requests_per_s": {key: list(value) for key, value in plan.shares.items()},
                }
                for name, plan in plans.items()
            },
            "notes": list(self.notes),
        }

    def explain(self) -> str:
        """Return the mix in lines."""
        lines = [f"${self.mix.usd_per_hour:.2f} an hour:"]
        for name, count in self.mix.counts.items():
            share = self.mix.shares[name]
            parts = [
                f"{x:.3g}/s of {s.prompt}/{s.answer}" for x, s in zip(share, self.streams, strict=True) if x > 1e-9
            ]
            lines.append(f"  {count} × {name}: {', '.join(parts)}")
        if self.single is None:
            lines.append("no single kind serves all of it")
        else:
            [(name, count)] = self.single.counts.items()
            less = 1.0 - self.mix.usd_per_hour / self.single.usd_per_hour
            saved = f", the mix saves {less:.0%}" if less > 0.005 else ", the mix saves nothing"
            lines.append(f"best single kind: {count} × {name} for ${self.single.usd_per_hour:.2f}{saved}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def mix(
    work: WorkloadSpec,
    streams: Sequence[Stream],
    kinds: Sequence[Kind],
    limits: MatchLimits | None = None,
    prices: Prices | None = None,
    load_frac: float = 0.8,
) -> MixChoice:
    """Return the cheapest mix of devices that serves all streams.

    Parameters
    ----------
    work
        The model and how it is run; its prompt and context are those of each stream.
    limits
        The latency that each stream must keep to, the capabilities that a device must have, the most to pay.
    load_frac
        Share of its time that a device may be busy: the rest is for bursts.

    Raises
    ------
    NothingFitsError
        No devices with a price serve it, or only dearer ones than the limit.

    Notes
    -----
    A replica serves most_tokens_per_s / answer requests a second of a stream alone; streams share its time.
    """
    limits, prices = options_argument("limits", limits, MatchLimits) or MatchLimits(), prices or Prices()
    offers: list[Offer] = []
    notes: list[str] = list(prices.notes)
    unpriced = []
    for kind in kinds:
        price = kind.price or prices.of(kind.spec)
        if any(word not in kind.spec.capabilities for word in limits.needs):
            continue
        if price is None:
            unpriced.append(kind.spec.name)
            continue
        offers += _offers(work, streams, kind, price.usd_per_hour, limits)
    if unpriced:
        notes.append(f"without a price, so left out: {', '.join(unpriced)}")
    if not offers:
        raise NothingFitsError("no device with a price serves any of it", remedy="give prices with --prices, or others")
    demand = [stream.per_s for stream in streams]
    alone = replace(limits.terms, together="")
    free = {kind.spec.name: kind.most_copies(1, alone) for kind in kinds}
    counts = {name: count for name, count in free.items() if count is not None}
    found = best_mix(demand, offers, counts, load_frac)
    if limits.usd_per_hour and found.usd_per_hour > limits.usd_per_hour:
        raise NothingFitsError(
            f"the cheapest mix costs ${found.usd_per_hour:.2f} an hour, above ${limits.usd_per_hour:.2f}",
            remedy="raise --max-cost, or ask for fewer requests",
        )
    single = cheapest_single(demand, offers, counts, load_frac)
    return MixChoice(tuple(streams), found, single, {offer.name: offer for offer in offers}, tuple(notes))


def _offers(work: WorkloadSpec, streams: Sequence[Stream], kind: Kind, usd: float, limits: MatchLimits) -> list[Offer]:
    longest = max(stream.prompt + stream.answer for stream in streams)
    try:
        sizes = list(estimates_of(replace(work, context=longest, prompt=0), kind, None, limits.terms))
    except HeteroError:
        return []
    found = []
    for size in sizes:
        rates = tuple(_rate(work, stream, size, limits) for stream in streams)
        name = f"{size.count}-{kind.spec.name}" if size.count > 1 else kind.spec.name
        if any(rates):
            found.append(Offer(name, usd * size.count, rates, kind.spec.name, size.count))
    return found


def _rate(work: WorkloadSpec, stream: Stream, size: Match, limits: MatchLimits) -> float:
    """Return the requests/s of a stream that one replica serves, 0 where it is too slow for the limit."""
    assert size.estimate is not None
    own = replace(work, prompt=stream.prompt, context=stream.prompt + stream.answer)
    found = estimate(own, size.estimate.device, size.count, size.estimate.spread)
    if found.most_tokens_per_s is None or (limits.latency_s and found.latency_s.value > limits.latency_s):
        return 0.0
    return found.most_tokens_per_s.value / stream.answer
