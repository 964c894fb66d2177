"""Which algorithm adds up a row soonest over the links that there are.

In: bandwidth and latency of each member's link, bytes. Out: the algorithm with its tree and chunk, and its seconds.
It must not measure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from hetero.floor.errors import BadValueError, did_you_mean
from hetero.plan.collectives.trees import MemberTree, balanced_tree, capped_tree

__all__ = [
    "ALGORITHMS",
    "SMALL_BYTES",
    "Algorithm",
    "AlgorithmChoice",
    "Links",
    "check_algorithm",
    "choose",
    "pipelined",
    "ring_s",
    "tree_s",
]

Algorithm = Literal["auto", "library", "ring", "tree", "pipelined_tree"]
ALGORITHMS: tuple[Algorithm, ...] = ("auto", "library", "ring", "tree", "pipelined_tree")

SMALL_BYTES = 64 * 1024
"""Below it the latency decides, and links need not be known."""

_STEP_S = 2e-4
_LEAST_CHUNK_BYTES = 16 * 1024
_MOST_CHUNK_BYTES = 4 * 1024 * 1024
_CHUNK_UNIT_BYTES = 4096
_GAIN_FRAC = 0.85
_SHARING_FRAC = 0.1
_ALIKE = 2.0


def check_algorithm(word: str) -> Algorithm:
    """Return the algorithm of that name.

    Raises
    ------
    BadValueError
        There is none.

    Examples
    --------
    >>> check_algorithm("ring")
    'ring'
    """
    for known in ALGORITHMS:
        if word == known:
            return known
    raise BadValueError(
        f"algorithm: {word!r} is none{did_you_mean(str(word), ALGORITHMS)}", remedy=f"allowed: {', '.join(ALGORITHMS)}"
    )


@dataclass(frozen=True, slots=True)
class Links:
    """What connects each member with the others.

    Attributes
    ----------
    bytes_per_s
        Of each member's link, the slower of its two directions.
    latency_s
        Of one message.
    """

    bytes_per_s: tuple[float, ...]
    latency_s: float

    @property
    def size(self) -> int:
        """How many members there are."""
        return len(self.bytes_per_s)

    @property
    def are_alike(self) -> bool:
        """Return whether no link is so much slower than another that a ring would be held up."""
        return min(self.bytes_per_s) * _ALIKE >= max(self.bytes_per_s)


@dataclass(frozen=True, slots=True)
class AlgorithmChoice:
    """An algorithm, ready to be carried out.

    Attributes
    ----------
    algorithm
        Never 'auto'.
    tree
        Along which it goes; None for 'library' and 'ring'.
    chunk_bytes
        Size of what travels as one.
    seconds
        Predicted, s.
    """

    algorithm: Algorithm
    tree: MemberTree | None
    chunk_bytes: int
    seconds: float


def ring_s(links: Links, nbytes: float) -> float:
    """Predict the seconds of a ring: 2(n-1) rounds of nbytes/n over the slowest link.

    Examples
    --------
    >>> ring_s(Links((10.0, 10.0), 0.0), 100.0)
    10.0
    """
    rounds = 2 * (links.size - 1)
    return rounds * (nbytes / links.size / min(links.bytes_per_s) + links.latency_s)


def tree_s(links: Links, tree: MemberTree, nbytes: float, chunk_bytes: float) -> float:
    """Predict the seconds of adding up along a tree and handing out again, in chunks.

    Notes
    -----
    A member with d neighbours sends and receives d times the row, so a chunk c takes c·B + o in every hop, with
    B = max (1 + 0.1 (d - 1)) d/bandwidth, where connections that share a link disturb each other, and o the cost of
    a step. A row of M bytes in a tree of height H, with messages that need the
    latency l: (M/c + 2H - 1)(c·B + o) + 2H·l.

    Examples
    --------
    >>> round(tree_s(Links((10.0, 10.0), 0.0), MemberTree((-1, 0)), 100.0, 100.0), 2)
    20.0
    """
    per_byte_s = _per_byte_s(links, tree)
    hops = 2 * tree.heights[tree.root]
    waves = math.ceil(nbytes / chunk_bytes) + hops - 1
    return waves * (min(chunk_bytes, nbytes) * per_byte_s + _STEP_S) + hops * links.latency_s


def _per_byte_s(links: Links, tree: MemberTree) -> float:
    return max(
        degree / speed * (1 + _SHARING_FRAC * (degree - 1))
        for degree, speed in zip(tree.degrees, links.bytes_per_s, strict=True)
    )


def pipelined(links: Links, nbytes: int, root: int | None = None) -> AlgorithmChoice:
    """Return the tree and the chunk with which a pipelined tree is soonest done.

    Notes
    -----
    For every time T a byte that some number of neighbours would give some member, each member may have at most
    floor(T · bandwidth) neighbours, and one at least; of the shallow trees within these caps the one with the least
    predicted seconds is taken. Members behind slow links become leaves, where each byte crosses their link once in
    each direction.
    """
    best: AlgorithmChoice | None = None
    for tree in _trees(links, root):
        chunk_bytes = _chunk_bytes(links, tree, nbytes)
        seconds = tree_s(links, tree, nbytes, chunk_bytes)
        if best is None or seconds < best.seconds:
            best = AlgorithmChoice("pipelined_tree", tree, chunk_bytes, seconds)
    assert best is not None, "a star is always among the trees"
    return best


def _trees(links: Links, root: int | None) -> Iterator[MemberTree]:
    """Yield a tree for every set of caps that some time a byte allows."""
    seen: set[tuple[int, ...]] = set()
    speeds = _levelled(links.bytes_per_s)
    for limit_s in sorted({degree / speed for speed in speeds for degree in range(1, links.size)}):
        caps = tuple(min(links.size - 1, max(1, int(limit_s * speed * (1 + 1e-9)))) for speed in speeds)
        if sum(caps) < 2 * (links.size - 1) or caps in seen:
            continue
        seen.add(caps)
        tree = capped_tree(caps, root)
        if tree is not None:
            yield tree


def _levelled(speeds: tuple[float, ...]) -> list[float]:
    """Return links that are alike the speed of the slowest of them, so that measuring errors do not shape the tree."""
    classes: list[list[float]] = []
    for speed in sorted(speeds, reverse=True):
        if classes and speed * _ALIKE >= classes[-1][0]:
            classes[-1].append(speed)
        else:
            classes.append([speed])
    level = {speed: alike[-1] for alike in classes for speed in alike}
    return [level[speed] for speed in speeds]


def _chunk_bytes(links: Links, tree: MemberTree, nbytes: int) -> int:
    """Return the c that makes (M/c + 2H)(c·B + o) least: the root of M·o / 2H·B."""
    hops = 2 * max(1, tree.heights[tree.root])
    best = math.sqrt(nbytes * _STEP_S / (hops * _per_byte_s(links, tree)))
    whole = round(best / _CHUNK_UNIT_BYTES) * _CHUNK_UNIT_BYTES
    return min(max(whole, _LEAST_CHUNK_BYTES), _MOST_CHUNK_BYTES)


def choose(links: Links, nbytes: int, algorithm: Algorithm = "auto", *, library: bool = True) -> AlgorithmChoice:
    """Return the algorithm that adds up a row soonest, or the one asked for with the tree and chunk that suit it.

    Parameters
    ----------
    nbytes
        Of the row.
    algorithm
        'auto' for the soonest.
    library
        Whether there is a library whose ring can be taken for 'auto'.

    Examples
    --------
    >>> choose(Links((1e7,) * 8, 1e-4), 16_000_000).algorithm
    'library'
    >>> choice = choose(Links((1e7,) * 6 + (2e6,) * 2, 1e-4), 16_000_000)
    >>> choice.algorithm, choice.tree.degrees[6:]
    ('pipelined_tree', (1, 1))
    """
    around = AlgorithmChoice(
        "library" if library else "ring", None, _ring_chunk_bytes(links, nbytes), ring_s(links, nbytes)
    )
    if algorithm in ("library", "ring"):
        return AlgorithmChoice(algorithm, None, around.chunk_bytes, around.seconds)
    if algorithm == "tree":
        tree = balanced_tree(links.size)
        return AlgorithmChoice("tree", tree, max(1, nbytes), tree_s(links, tree, nbytes, max(1, nbytes)))
    if algorithm == "auto" and (nbytes < SMALL_BYTES or links.are_alike):
        return around
    along = pipelined(links, nbytes)
    return along if algorithm == "pipelined_tree" or along.seconds < _GAIN_FRAC * around.seconds else around


def _ring_chunk_bytes(links: Links, nbytes: int) -> int:
    return min(max(nbytes // (16 * links.size), _LEAST_CHUNK_BYTES), _MOST_CHUNK_BYTES)
