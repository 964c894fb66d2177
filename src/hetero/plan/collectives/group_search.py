"""A good group among many devices: the highest bandwidth at which a ring, a clique or a tree of k can be found.

In: bandwidths between all pairs. Out: members, in ring order where it is one. It must not claim to be exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["Search", "searched"]

_STEPS = 2_000
"""Extensions that are tried at one bandwidth before it is given up."""

_IMPROVED = 24
"""Greedily grown groups of which members are exchanged."""

_NEAREST = 2
"""Members of a clique after which the order in which others are tried no longer matters."""

_SWAPS = 12
"""Swaps that improve the mean bandwidth of a group."""


@dataclass(frozen=True)
class Search:
    """What is looked for.

    Attributes
    ----------
    speeds
        Bytes/s between any two, 0 on the diagonal.
    count
        Members.
    shape
        'ring', 'pairs' or 'tree'.
    include
        Members that must be in it.
    homes
        One a device; no two members have the same.
    """

    speeds: NDArray[np.float64]
    count: int
    shape: str
    include: Sequence[int]
    homes: Sequence[str]

    @cached_property
    def clashes(self) -> list[int]:
        """For each device the set of devices, itself among them, that share its home."""
        sets: dict[str, int] = {}
        for at, home in enumerate(self.homes):
            sets[home] = sets.get(home, 0) | 1 << at
        return [sets[home] for home in self.homes]

    def beside(self, rate: float) -> list[int]:
        """For each device the set of those that it reaches with that bandwidth."""
        packed = np.packbits(self.speeds >= rate, axis=1, bitorder="little")
        rows = [int.from_bytes(row.tobytes(), "little") for row in packed]
        return [row & ~clash for row, clash in zip(rows, self.clashes, strict=True)]


def searched(search: Search) -> tuple[int, ...] | None:
    """Return a good group, None where none was found.

    Notes
    -----
    Bisection over the bandwidths that occur: at each, a depth-first search with a bounded number of steps, in a graph
    of the pairs that are as fast, from which devices that cannot belong are removed. Then members are exchanged as long
    as the mean bandwidth grows and the slowest connection stays. A clique is first grown greedily from every device.
    """
    if search.count == 1:
        return (search.include[0] if search.include else 0,) if len(search.include) < 2 else None
    rates = np.unique(search.speeds[search.speeds > 0.0])
    low, high = -1, len(rates)
    found: tuple[int, ...] | None = None
    if search.shape == "pairs" and not search.include and len(set(search.homes)) == len(search.homes):
        found = _greedy(search)
        low = int(np.searchsorted(rates, _slowest(search.speeds, found), side="right")) - 1
        found = found if low >= 0 else None
    while high - low > 1:
        middle = (low + high) // 2
        group = _GroupWalk(search, float(rates[middle])).group()
        if group is None:
            high = middle
        else:
            low, found = middle, group
    return None if found is None else _exchanged(search, found, float(rates[low]))


def _slowest(speeds: NDArray[np.float64], group: Sequence[int]) -> float:
    inside = speeds[np.ix_(group, group)]
    return float(inside[~np.eye(len(group), dtype=bool)].min())


def _greedy(search: Search) -> tuple[int, ...]:
    """Grow a group from every device by the one whose slowest pair is fastest; exchange members of the best ones."""
    speeds, n = search.speeds, len(search.speeds)
    groups, rows = np.arange(n)[:, None], np.arange(n)
    slowest = speeds.copy()
    for _ in range(search.count - 1):
        following = slowest.argmax(axis=1)
        groups = np.column_stack((groups, following))
        slowest = np.minimum(slowest, speeds[following])
        slowest[rows[:, None], groups] = -1.0
    rates = [_slowest(speeds, group) for group in groups.tolist()]
    best = sorted(rows.tolist(), key=lambda at: -rates[at])[:_IMPROVED]
    better = [_climbed(speeds, groups[at].tolist()) for at in best]
    return max(better, key=lambda group: _slowest(speeds, group))


def _climbed(speeds: NDArray[np.float64], group: list[int]) -> tuple[int, ...]:
    """Exchange one member at a time while the slowest pair becomes faster."""
    rate, improved = _slowest(speeds, group), True
    while improved:
        improved = False
        for place in range(len(group)):
            rest = group[:place] + group[place + 1 :]
            reached = speeds[rest].min(axis=0)
            newcomer = int(reached.argmax())
            new = min(float(reached[newcomer]), _slowest(speeds, rest) if len(rest) > 1 else np.inf)
            if new > rate:
                group, rate, improved = [*rest, newcomer], new, True
                break
    return tuple(group)


class _GroupWalk:
    """One depth-first search for a group at one bandwidth."""

    def __init__(self, search: Search, rate: float) -> None:
        self._search, self._beside = search, search.beside(rate)
        self._wanted = sum(1 << at for at in search.include)
        self._steps = 0
        self._least = {"ring": 2 if search.count > 2 else 1, "pairs": search.count - 1, "tree": 1}[search.shape]

    def group(self) -> tuple[int, ...] | None:
        alive = self._core()
        if alive.bit_count() < self._search.count or self._wanted & ~alive:
            return None
        starts = [self._search.include[0]] if self._search.include else _members(alive)
        sign = 1 if self._search.shape == "pairs" else -1
        starts = sorted(starts, key=lambda at: (sign * (self._beside[at] & alive).bit_count(), at))
        share = max(200, _STEPS // len(starts))
        spent = 0
        for start in starts:
            if spent >= _STEPS:
                return None
            self._steps = share if not self._search.include else _STEPS
            before = self._steps
            if (found := self._from(start, alive)) is not None:
                return found
            spent += before - self._steps
            if not self._search.include and self._steps > 0:
                alive &= ~(1 << start)
        return None

    def _core(self) -> int:
        """Return the devices that have neighbours enough, one after the other taken away."""
        alive = (1 << len(self._beside)) - 1
        while True:
            weak = [at for at in _members(alive) if (self._beside[at] & alive).bit_count() < self._least]
            if not weak:
                return alive
            for at in weak:
                alive &= ~(1 << at)

    def _from(self, start: int, alive: int) -> tuple[int, ...] | None:
        reach = self._distances(start, alive)
        if sum(map(int.bit_count, reach)) < self._search.count:
            return None
        near = [0]
        for ring in reach:
            near.append(near[-1] | ring)
        path, free = [start], alive & ~self._search.clashes[start]
        if self._search.shape == "pairs":
            free &= self._beside[start]
        return tuple(path) if self._grow(path, free, near) else None

    def _distances(self, start: int, alive: int) -> list[int]:
        rings, seen = [1 << start], 1 << start
        while rings[-1]:
            following = 0
            for at in _members(rings[-1]):
                following |= self._beside[at]
            following &= alive & ~seen
            seen |= following
            rings.append(following)
        return rings

    def _grow(self, path: list[int], free: int, near: list[int]) -> bool:
        search, left = self._search, self._search.count - len(path)
        missing = self._wanted & free
        if left == 0:
            closed = search.shape != "ring" or search.count == 2 or self._beside[path[-1]] >> path[0] & 1
            return bool(closed) and not self._wanted & ~sum(1 << at for at in path)
        self._steps -= 1
        if search.shape == "pairs":
            free = self._dense(free, left)
        if self._steps < 0 or missing.bit_count() > left or free.bit_count() < left:
            return False
        for at in self._ordered(path, self._options(path, free, near, left), missing):
            path.append(at)
            others = free & ~search.clashes[at]
            if self._grow(path, others & self._beside[at] if search.shape == "pairs" else others, near):
                return True
            path.pop()
            if self._steps < 0:
                return False
        return False

    def _dense(self, free: int, left: int) -> int:
        """Return those candidates of a clique that have neighbours enough among them."""
        beside, changed = self._beside, True
        while changed:
            changed, rest = False, free
            while rest:
                low = rest & -rest
                rest ^= low
                if (beside[low.bit_length() - 1] & free).bit_count() < left - 1:
                    free ^= low
                    changed = True
            if free.bit_count() < left:
                return 0
        return free

    def _ordered(self, path: list[int], options: int, missing: int) -> list[int]:
        """Return what must come first, then what is near to the path; in a clique all are, after its first members."""
        if self._search.shape == "pairs" and len(path) > _NEAREST:
            return _members(options & missing) + _members(options & ~missing)
        close = self._search.speeds[path].sum(axis=0).tolist()
        return sorted(_members(options), key=lambda at: (-(missing >> at & 1), -close[at]))

    def _options(self, path: list[int], free: int, near: list[int], left: int) -> int:
        if self._search.shape == "ring":
            return self._beside[path[-1]] & free & near[min(left + 1, len(near) - 1)]
        if self._search.shape == "pairs":
            return free
        options = 0
        for at in path:
            options |= self._beside[at]
        return options & free


def _members(group: int) -> list[int]:
    found = []
    while group:
        low = group & -group
        found.append(low.bit_length() - 1)
        group ^= low
    return found


def _exchanged(search: Search, group: tuple[int, ...], rate: float) -> tuple[int, ...]:
    """Exchange members while that raises the sum over all pairs and a group of this bandwidth remains."""
    for _ in range(_SWAPS):
        better = _one_exchange(search, group, rate)
        if better is None:
            return group
        group = better
    return group


def _one_exchange(search: Search, group: tuple[int, ...], rate: float) -> tuple[int, ...] | None:
    speeds, inside = search.speeds, list(group)
    to_group = speeds[:, inside].sum(axis=1)
    gain = to_group[None, :] - speeds[inside, :] - to_group[inside][:, None]
    gain[:, inside] = -np.inf
    gain[[place for place, at in enumerate(inside) if at in search.include], :] = -np.inf
    for flat in np.argsort(-gain, axis=None)[:8]:
        place, newcomer = divmod(int(flat), len(speeds))
        if gain[place, newcomer] <= 1e-9 * max(1.0, float(to_group.max())):
            return None
        members = [*inside[:place], *inside[place + 1 :], newcomer]
        homes = [search.homes[at] for at in members]
        if len(set(homes)) == len(homes) and (found := _arranged(search, members, rate)) is not None:
            return found
    return None


def _arranged(search: Search, members: list[int], rate: float) -> tuple[int, ...] | None:
    inside = search.speeds[np.ix_(members, members)]
    part = Search(inside, search.count, search.shape, (), [str(at) for at in range(len(members))])
    found = _GroupWalk(part, rate).group()
    return None if found is None else tuple(members[at] for at in found)
