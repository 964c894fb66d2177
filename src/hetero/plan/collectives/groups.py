"""The best group of k devices, by the bandwidth of the collective that they will run.

In: a fabric, a number, who must be together and who apart. Out: a group with its order and its bandwidth, exact up to
16 candidates. It must not look at load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from hetero.floor.errors import BadValueError, NothingFitsError, did_you_mean
from hetero.model.fabric import Fabric
from hetero.plan.collectives.group_search import Search, searched

__all__ = ["COLLECTIVES", "EXACT", "DeviceGroup", "Terms", "best_group", "group_bandwidth"]

COLLECTIVES = {
    "all_reduce": "ring",
    "all_gather": "ring",
    "reduce_scatter": "ring",
    "broadcast": "tree",
    "reduce": "tree",
    "all_to_all": "pairs",
}
"""How each collective goes: round a ring, along a tree, or between all pairs."""

EXACT = 16
"""Up to this many candidates every group is looked at."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Terms:
    """Who must be in a group, and who must not.

    Attributes
    ----------
    include, exclude
        Ids of devices.
    within
        A scope that all devices of the group share, '' for any.
    spread
        A scope of which no two devices of the group share one, '' for any.
    near, apart
        (device, scope): every device of the group shares it with that device, or does not.

    Examples
    --------
    >>> import hetero
    >>> hetero.collectives.Terms(near=(("cuda:0", "numa"),)).include
    ()
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    within: str = ""
    spread: str = ""
    near: tuple[tuple[str, str], ...] = ()
    apart: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices that run a collective together.

    Attributes
    ----------
    devices
        Ids, in the order of the ring where it is one.
    bytes_per_s
        Of the slowest connection that the collective uses.
    mean_bytes_per_s
        Between two of them, over all pairs: what decides between equals.
    collective
        Its name.
    exact
        True where every group was looked at.
    """

    devices: tuple[str, ...]
    bytes_per_s: float
    mean_bytes_per_s: float
    collective: str
    exact: bool

    def seconds(self, nbytes: float) -> float:
        """Return the seconds that the collective takes for that many bytes a device, latencies left out.

        Notes
        -----
        Ring: all-reduce 2 (k - 1)/k · n / b, all-gather and reduce-scatter (k - 1)/k · n / b. Tree: n / b, pipelined.
        Pairs: (k - 1)/k · n / b, one partner at a time.

        References
        ----------
        Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication Operations in MPICH".
        """
        k = len(self.devices)
        if k < 2:
            return 0.0
        factor = {"all_reduce": 2 * (k - 1) / k, "broadcast": 1.0, "reduce": 1.0}.get(self.collective, (k - 1) / k)
        return factor * nbytes / self.bytes_per_s


def _shape(collective: str) -> str:
    if collective not in COLLECTIVES:
        hint = did_you_mean(collective, COLLECTIVES).removeprefix("; ")
        raise BadValueError(f"{collective!r} is no collective", remedy=hint or f"allowed: {', '.join(COLLECTIVES)}")
    return COLLECTIVES[collective]


def best_group(fabric: Fabric, count: int, collective: str = "all_reduce", terms: Terms | None = None) -> DeviceGroup:
    """Return the k devices whose slowest connection in that collective is the fastest.

    Parameters
    ----------
    count
        Devices of the group, > 0.
    collective
        One of `COLLECTIVES`.
    terms
        Who must be together and who apart.

    Raises
    ------
    NothingFitsError
        No group of that size meets the terms, or its devices are not connected.

    Notes
    -----
    Of groups that are equal in this, the one with more bandwidth between all pairs is taken, then the first by id. The
    bandwidth of two devices is that of the widest path; that several pairs may share a wire is not counted, but a ring
    is ordered so that the sum along it is largest, which crosses a narrow wire as seldom as it can.

    Examples
    --------
    >>> from hetero.model.fabric import FabricPart, Wire
    >>> gpus = [FabricPart(f"h0/cuda:{n}", "device", host="h0") for n in range(4)]
    >>> wires = [Wire(gpu.id, "bridge", "pcie", 16e9) for gpu in gpus]
    >>> wires += [Wire("h0/cuda:1", "h0/cuda:3", "nvlink", 100e9)]
    >>> best_group(Fabric((*gpus, FabricPart("bridge", "switch")), tuple(wires)), 2).devices
    ('h0/cuda:1', 'h0/cuda:3')
    """
    _shape(collective)
    terms = terms or Terms()
    if count < 1:
        raise BadValueError(f"a group of {count} is none", remedy="give at least 1")
    found: list[tuple[tuple[float, float], DeviceGroup]] = []
    pools = list(_pools(fabric, terms))
    for names in pools:
        if len(names) >= count:
            group = _best_of(fabric, names, count, collective, terms)
            if group is not None:
                found.append(((group.bytes_per_s, group.mean_bytes_per_s), group))
    if not found:
        why = _why(fabric, pools, count, terms)
        raise NothingFitsError(f"there is no group of {count}: {why}", remedy="ask for fewer devices, or less of them")
    return max(found, key=lambda one: one[0])[1]


def _why(fabric: Fabric, pools: Sequence[Sequence[str]], count: int, terms: Terms) -> str:
    most = max(map(len, pools), default=0)
    if most < count:
        return f"{most} of {len(fabric.devices)} devices meet the terms"
    if terms.spread:
        homes = max(len({fabric.place(name, terms.spread) or name for name in pool}) for pool in pools)
        if homes < count:
            return f"the devices have no more than {homes} different places by {terms.spread}"
    return "no links join so many of those that meet the terms"


def _pools(fabric: Fabric, terms: Terms) -> Iterator[tuple[str, ...]]:
    """Yield the candidates, all of them or one pool for each place that the group may be within."""
    include = tuple(fabric.part(name).id for name in terms.include)
    exclude = {fabric.part(name).id for name in terms.exclude}
    if clash := exclude & set(include):
        raise BadValueError(f"{min(clash)} is both included and excluded", remedy="choose one")
    names = [part.id for part in fabric.devices if part.id not in exclude]
    for name, scope in terms.near:
        home = fabric.place(name, scope)
        names = [one for one in names if home and fabric.place(one, scope) == home]
    for name, scope in terms.apart:
        home = fabric.place(name, scope)
        names = [one for one in names if not home or fabric.place(one, scope) != home]
    if not set(include) <= set(names):
        return
    if not terms.within:
        yield tuple(names)
        return
    places: dict[str, list[str]] = {}
    for name in names:
        places.setdefault(fabric.place(name, terms.within), []).append(name)
    for place, members in places.items():
        if place and set(include) <= set(members):
            yield tuple(members)


def _best_of(fabric: Fabric, names: tuple[str, ...], count: int, collective: str, terms: Terms) -> DeviceGroup | None:
    speeds = np.array(fabric.bandwidths(names))
    homes = [fabric.place(name, terms.spread) or name for name in names] if terms.spread else list(names)
    include = tuple(names.index(fabric.part(name).id) for name in terms.include)
    shape = _shape(collective)
    if len(names) <= EXACT:
        chosen = _enumerated(speeds, count, shape, include, homes)
    else:
        chosen = searched(Search(speeds, count, shape, include, homes))
    if chosen is None:
        return None
    order = _ring(speeds, chosen) if shape == "ring" else chosen
    rate, mean = group_bandwidth(speeds, order, shape), _mean(speeds, order)
    return DeviceGroup(tuple(names[at] for at in order), rate, mean, collective, len(names) <= EXACT)


def _mean(speeds: Floats, members: Sequence[int]) -> float:
    k = len(members)
    return float(speeds[np.ix_(members, members)].sum() / (k * (k - 1))) if k > 1 else float("inf")


def group_bandwidth(speeds: Floats, members: Sequence[int], shape: str) -> float:
    """Return the slowest connection of a group: along the ring in the given order, of the best tree, or of any pair.

    Examples
    --------
    >>> speeds = np.array([[0, 4, 1], [4, 0, 2], [1, 2, 0]], dtype=float)
    >>> [group_bandwidth(speeds, (0, 1, 2), shape) for shape in ("ring", "tree", "pairs")]
    [1.0, 2.0, 1.0]
    """
    if len(members) < 2:
        return float("inf")
    if shape == "ring":
        return float(min(speeds[one, other] for one, other in zip(members, (*members[1:], members[0]), strict=True)))
    inside = speeds[np.ix_(members, members)]
    if shape == "pairs":
        return float(inside[~np.eye(len(members), dtype=bool)].min())
    reached, rate = inside[0].copy(), float("inf")
    left = set(range(1, len(members)))
    while left:
        following = max(left, key=lambda at: reached[at])
        rate = min(rate, float(reached[following]))
        left.discard(following)
        reached = np.maximum(reached, inside[following])
    return rate


def _enumerated(
    speeds: Floats, count: int, shape: str, include: Sequence[int], homes: Sequence[str]
) -> tuple[int, ...] | None:
    """Inspect every group: return the best, None where none is connected and allowed."""
    groups = np.array(list(combinations(range(len(homes)), count)), dtype=np.int64)
    for member in include:
        groups = groups[(groups == member).any(axis=1)]
    places = np.unique(homes, return_inverse=True)[1][groups]
    different = np.ones(len(groups), dtype=bool)
    for one, other in combinations(range(count), 2):
        different &= places[:, one] != places[:, other]
    groups = groups[different]
    if not len(groups):
        return None
    if count == 1:
        return (int(groups[0, 0]),)
    rates = _ring_rates(speeds, groups) if shape == "ring" else _other_rates(speeds, groups, shape)
    sums = sum(speeds[groups[:, one], groups[:, other]] for one, other in combinations(range(count), 2))
    best = np.lexsort((-np.asarray(sums), -rates))[0]
    return tuple(int(member) for member in groups[best]) if rates[best] > 0.0 else None


def _other_rates(speeds: Floats, groups: NDArray[np.int64], shape: str) -> Floats:
    """Return the slowest pair of each group, or the slowest connection of its best tree (Prim 1957, many at once)."""
    count = groups.shape[1]
    pairs = speeds[groups[:, :, None], groups[:, None, :]]
    if shape == "pairs":
        return np.asarray(np.where(np.eye(count, dtype=bool), np.inf, pairs).min(axis=(1, 2)))
    rows = np.arange(len(groups))
    reached, rate = pairs[:, 0].copy(), np.full(len(groups), np.inf)
    outside = np.ones((len(groups), count), dtype=bool)
    outside[:, 0] = False
    for _ in range(count - 1):
        following = np.where(outside, reached, -1.0).argmax(axis=1)
        rate = np.minimum(rate, reached[rows, following])
        outside[rows, following] = False
        reached = np.maximum(reached, pairs[rows, following])
    return rate


def _sizes(n: int) -> NDArray[np.int8]:
    """Return the number of members of every set of n, a set being the bits of its index."""
    sizes = np.zeros(1, dtype=np.int8)
    for _ in range(n):
        sizes = np.concatenate((sizes, sizes + np.int8(1)))
    return sizes


def _ring_rates(speeds: Floats, groups: NDArray[np.int64]) -> Floats:
    """Return the slowest connection of the best ring through each group.

    Notes
    -----
    Held and Karp 1962 with min in place of the sum: f(S, v) is the best slowest connection of a path that begins at the
    first member of S, passes all of S and ends at v. One table serves all groups.
    """
    n, count = len(speeds), groups.shape[1]
    best = np.zeros((1 << n, n))
    best[1 << np.arange(n), np.arange(n)] = np.inf
    sets, sizes = np.arange(1 << n), _sizes(n)
    for size in range(1, count):
        layer = sets[sizes == size]
        for end in range(n):
            grown = layer[(layer & 1 << end == 0) & (layer & -layer < 1 << end)]
            best[grown | 1 << end, end] = np.minimum(best[grown], speeds[:, end]).max(axis=1)
    masks = (1 << groups).sum(axis=1)
    return np.asarray(np.minimum(best[masks], speeds[groups[:, 0]]).max(axis=1))


def _ring(speeds: Floats, members: Sequence[int]) -> tuple[int, ...]:
    """Order a group as a ring: the slowest connection as fast as it can be, then the largest sum."""
    if not 3 < len(members) <= EXACT:
        return tuple(members)
    inside = speeds[np.ix_(members, members)]
    rate = float(_ring_rates(inside, np.arange(len(members))[None, :])[0])
    return tuple(members[at] for at in _largest_sum(np.where(inside >= rate, inside, -np.inf)))


def _largest_sum(inside: Floats) -> tuple[int, ...]:
    """Return the ring from the first member whose connections have the largest sum (Held and Karp 1962)."""
    n = len(inside)
    best = np.full((1 << n, n), -np.inf)
    came = np.zeros((1 << n, n), dtype=np.int8)
    best[1, 0] = 0.0
    sets, sizes = np.arange(1 << n), _sizes(n)
    for size in range(1, n):
        layer = sets[(sizes == size) & (sets & 1 == 1)]
        for end in range(1, n):
            grown = layer[layer & 1 << end == 0]
            values = best[grown] + inside[:, end]
            best[grown | 1 << end, end] = values.max(axis=1)
            came[grown | 1 << end, end] = values.argmax(axis=1)
    mask, end = (1 << n) - 1, int((best[-1] + inside[:, 0]).argmax())
    order = []
    while mask:
        order.append(end)
        mask, end = mask ^ 1 << end, int(came[mask, end])
    return tuple(reversed(order))
