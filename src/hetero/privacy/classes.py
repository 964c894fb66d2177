"""Classes of rows that look alike: counted by batch, merged, and made large enough by the least generalisation.

In: columns of batches. Out: counts that do not depend on how rows were cut into batches, and the levels to take. It
must not know where batches are counted, and loops over columns and levels, never over rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hetero.floor.errors import BadValueError
from hetero.privacy.transforms import Generaliser

__all__ = ["Choice", "ClassSearch", "Coded", "Ladder", "Margin", "Numbering", "Requirement", "Sensitive", "Tally"]
__all__ += ["coded", "merged", "tally_of"]

Codes = NDArray[np.int64]
"""A number for each row or class: of its value in a list, the length of the list where there is none."""

_LARGEST = 1 << 62
_DENSE = 1 << 20
_MOST_NODES = 20_000
_MOST_KEPT = 1 << 24
_ROUNDING = 1e-9


class Coded(NamedTuple):
    """A column as codes, and the distinct values that they stand for, as text."""

    codes: Codes
    values: pa.Array


def coded(column: pa.ChunkedArray) -> Coded:
    """Return a column as codes and the distinct values that occur; NaN counts as null."""
    whole = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    found = whole if pa.types.is_dictionary(whole.type) else whole.dictionary_encode()
    values = found.dictionary
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    texts = values.cast(pa.string()).dictionary_encode()
    many = len(texts.dictionary)
    table = np.append(texts.indices.fill_null(many).to_numpy(zero_copy_only=False), many).astype(np.int64)
    codes = table[found.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)]
    there = np.bincount(codes, minlength=many + 1)[:many] > 0
    if there.all():
        return Coded(codes, texts.dictionary)
    ranks = np.append(np.cumsum(there) - 1, there.sum())
    return Coded(ranks[codes], texts.dictionary.filter(pa.array(there)))


# --- counting -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Numbering:
    """One number for the codes of a row in several columns; numbers have the order of the codes.

    Attributes
    ----------
    widths
        Codes that each column may have.
    seen
        By column, the sorted numbers of the columns before it where these got too large to go on, else None.
    """

    widths: tuple[int, ...]
    seen: tuple[Codes | None, ...]

    @classmethod
    def of(cls, columns: Sequence[Codes], widths: Sequence[int]) -> tuple[Numbering, Codes]:
        """Return a numbering for some columns, and their numbers."""
        numbers, size = np.zeros(len(columns[0]), np.int64), 1
        seen: list[Codes | None] = []
        for codes, width in zip(columns, widths, strict=True):
            before = None
            if size * width > _LARGEST:
                before = np.unique(numbers)
                numbers, size = np.searchsorted(before, numbers), len(before)
            seen.append(before)
            numbers, size = numbers * width + codes, size * width
        return cls(tuple(widths), tuple(seen)), numbers

    @property
    def size(self) -> int:
        """All numbers are below it."""
        size = 1
        for width, before in zip(self.widths, self.seen, strict=True):
            size = (size if before is None else len(before)) * width
        return size

    def numbers(self, columns: Sequence[Codes]) -> Codes:
        """Return the numbers of other rows, -1 where one has a code below 0 or what stands before never occurred."""
        numbers, lost = np.zeros(len(columns[0]), np.int64), np.zeros(len(columns[0]), np.bool_)
        for codes, width, before in zip(columns, self.widths, self.seen, strict=True):
            if before is not None:
                places = np.minimum(np.searchsorted(before, numbers), len(before) - 1)
                lost |= before[places] != numbers
                numbers = places
            lost |= codes < 0
            numbers = numbers * width + codes
        numbers[lost] = -1
        return numbers

    def codes(self, numbers: Codes) -> tuple[Codes, ...]:
        """Return the codes of numbers, by column."""
        found: list[Codes] = []
        for width, before in zip(reversed(self.widths), reversed(self.seen), strict=True):
            numbers, codes = np.divmod(numbers, width)
            found.append(codes)
            numbers = numbers if before is None else before[numbers]
        return tuple(reversed(found))


def _grouped(columns: Sequence[Codes], widths: Sequence[int], counts: Codes | None) -> tuple[tuple[Codes, ...], Codes]:
    """Return the distinct rows of some columns in the order of their codes, and the sum of the counts of each."""
    numbering, numbers = Numbering.of(columns, widths)
    if numbering.size <= max(_DENSE, 2 * len(numbers)):
        exact = np.bincount(numbers, None if counts is None else counts, minlength=numbering.size)  # sums below 2^53
        there = np.flatnonzero(exact)
        return numbering.codes(there), exact[there].astype(np.int64)
    table = pa.table({"number": numbers, "rows": np.ones(len(numbers), np.int64) if counts is None else counts})
    summed = table.group_by("number", use_threads=False).aggregate([("rows", "sum")])
    found, sums = summed["number"].to_numpy(), summed["rows_sum"].to_numpy()
    order = np.argsort(found)
    return numbering.codes(found[order]), sums[order]


class Margin(NamedTuple):
    """How many rows have the same values in some columns.

    Attributes
    ----------
    columns
        Their places in the tally.
    codes
        By column, a row for each combination that occurs, in the order of the codes.
    counts
        Of rows.
    """

    columns: tuple[int, ...]
    codes: tuple[Codes, ...]
    counts: Codes


@dataclass(frozen=True, slots=True)
class Tally:
    """What was counted of some rows.

    Attributes
    ----------
    rows
        How many there are.
    values
        By column, those that occur, as text.
    margins
        Counts by the columns that were asked for.
    """

    rows: int
    values: tuple[pa.Array, ...]
    margins: tuple[Margin, ...]


def tally_of(table: pa.Table, names: Sequence[str], margins: Sequence[tuple[int, ...]]) -> Tally:
    """Count the rows of a batch by the columns of each margin.

    Parameters
    ----------
    names
        Of the columns.
    margins
        Places in `names`.

    Examples
    --------
    >>> tally_of(pa.table({"a": [1, 2, 1]}), ["a"], [(0,)]).margins[0].counts.tolist()
    [2, 1]
    """
    columns = [coded(table[name]) for name in names]
    found = []
    for places in margins:
        widths = [len(columns[place].values) + 1 for place in places]
        found.append(Margin(places, *_grouped([columns[place].codes for place in places], widths, None)))
    return Tally(table.num_rows, tuple(column.values for column in columns), tuple(found))


def merged(tallies: Sequence[Tally]) -> Tally:
    """Return what was counted of all rows: the same tally, values sorted, however rows were cut and in any order.

    Examples
    --------
    >>> one, other = (tally_of(pa.table({"a": rows}), ["a"], [(0,)]) for rows in (["y", "x"], ["y"]))
    >>> total = merged([one, other])
    >>> total.values[0].to_pylist(), total.margins[0].counts.tolist()
    (['x', 'y'], [1, 2])
    """
    values, maps = [], []
    for each in zip(*(tally.values for tally in tallies), strict=True):
        known = pa.concat_arrays(each).unique()
        known = known.take(pc.sort_indices(known))
        values.append(known)
        places = [pc.index_in(one, value_set=known).to_numpy(zero_copy_only=False) for one in each]
        maps.append([np.append(place, len(known)).astype(np.int64) for place in places])
    margins = []
    for number, margin in enumerate(tallies[0].margins):
        parts = [tally.margins[number] for tally in tallies]
        columns = [
            np.concatenate([maps[place][turn][part.codes[at]] for turn, part in enumerate(parts)])
            for at, place in enumerate(margin.columns)
        ]
        counts = np.concatenate([part.counts for part in parts])
        widths = [len(values[place]) + 1 for place in margin.columns]
        margins.append(Margin(margin.columns, *_grouped(columns, widths, counts)))
    return Tally(sum(tally.rows for tally in tallies), tuple(values), tuple(margins))


# --- levels -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ladder:
    """The levels of one column over the values that occur.

    Attributes
    ----------
    least
        The level below which it may not be.
    maps
        By level, the code of each value's label; the last entry is that of null.
    widths
        By level, codes that there are, with that of null.
    losses
        By level, what is lost at each label, 0 to 1.
    labels
        By level, in the order of their codes.

    Notes
    -----
    The loss is the normalised certainty penalty (Xu and others, 2006), over the values that occur: of numbers and dates
    the part of the whole range that a label spans, of other values the part of them that lies under it, 0 for one.
    """

    least: int
    maps: tuple[Codes, ...]
    widths: tuple[int, ...]
    losses: tuple[NDArray[np.float64], ...]
    labels: tuple[pa.Array, ...]

    @classmethod
    def of(cls, levels: Generaliser, values: pa.Array, least: int) -> Ladder:
        """Return the ladder of a column.

        Raises
        ------
        BadValueError
            A value is of another kind, or a hierarchy lacks it.
        """
        places = levels.places(values)
        maps: list[Codes] = []
        labels: list[pa.Array] = []
        losses = []
        for level in range(levels.height + 1):
            found = levels.labels(values, level).dictionary_encode()
            order = pc.sort_indices(found.dictionary).to_numpy()
            ranks = np.empty(len(order), np.int64)
            ranks[order] = np.arange(len(order))
            codes = ranks[found.indices.to_numpy(zero_copy_only=False)]
            labels.append(found.dictionary.take(pa.array(order)))
            maps.append(np.append(codes, 0 if level == levels.height else len(order)))
            losses.append(np.append(_losses(codes, len(order), places), 0.0))
        losses[-1] = np.array([1.0, 1.0]) if len(values) else losses[-1]
        return cls(least, tuple(maps), tuple(len(each) + 1 for each in labels), tuple(losses), tuple(labels))

    @property
    def height(self) -> int:
        """Number of the last level."""
        return len(self.maps) - 1

    def up(self, below: int, above: int) -> Codes:
        """Return the code at a level of each code at a level below."""
        table = np.zeros(self.widths[below], np.int64)
        table[self.maps[below]] = self.maps[above]
        return table


def _losses(codes: Codes, labels: int, places: NDArray[np.float64] | None) -> NDArray[np.float64]:
    if places is None:
        leaves = np.bincount(codes, minlength=labels).astype(np.float64)
        return np.where(leaves > 1, leaves / max(1, len(codes)), 0.0)
    low, high = np.full(labels, np.inf), np.full(labels, -np.inf)
    np.minimum.at(low, codes, places)
    np.maximum.at(high, codes, places)
    span = float(places.max() - places.min()) if len(places) else 0.0
    return (high - low) / span if span > 0 else np.zeros(labels)


# --- what classes must satisfy --------------------------------------------------------------------------------


class Sensitive(NamedTuple):
    """A column whose values a class must not tell.

    Attributes
    ----------
    name
        Of the column.
    ranked
        True where its values are numbers, whose distance counts.
    """

    name: str
    ranked: bool


@dataclass(frozen=True, slots=True)
class Requirement:
    """What every class must satisfy.

    Attributes
    ----------
    k
        Least rows of a class (Samarati and Sweeney, 1998).
    l
        Least distinct values of each sensitive column in a class (distinct l-diversity, Machanavajjhala and others,
        2007).
    t
        Most distance between the values of a sensitive column in a class and in the whole, None for any
        (t-closeness, Li and others, 2007).
    sensitive
        Columns that l and t are about.
    suppressed_frac
        Most rows that may be left out, of all.
    """

    k: int = 1
    l: int = 1  # noqa: E741
    t: float | None = None
    sensitive: tuple[Sensitive, ...] = ()
    suppressed_frac: float = 0.0


class _Counted(NamedTuple):
    """The classes at one node of the lattice: a margin of the columns alone, then one for each sensitive column."""

    node: tuple[int, ...]
    margins: tuple[tuple[tuple[Codes, ...], Codes], ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The levels that are taken, and what follows.

    Attributes
    ----------
    node
        Level by column.
    codes, counts
        The classes at these levels.
    kept
        Of each class, whether its rows are kept.
    loss
        Mean normalised certainty penalty of a cell, 1 for one of a row that is left out.
    losses
        The same by column, over the rows that are kept.
    distinct
        Least distinct values of a sensitive column in a class, 0 without one.
    distance
        Largest distance of a class from the whole, 0 without a sensitive column.
    tried
        Nodes whose classes were counted.
    """

    node: tuple[int, ...]
    codes: tuple[Codes, ...]
    counts: Codes
    kept: NDArray[np.bool_]
    loss: float
    losses: tuple[float, ...]
    distinct: int
    distance: float
    tried: int = 0

    @property
    def suppressed(self) -> int:
        """Rows that are left out."""
        return int(self.counts[~self.kept].sum())


class ClassSearch:
    """Finds the levels at which all classes satisfy a requirement and the least is lost.

    Parameters
    ----------
    tally
        Counts of all rows; its first margin is of the columns of the ladders.
    ladders
        By column.
    require
        What must hold.

    Notes
    -----
    Every column has one level in the whole table (global recoding), and classes that are still too small are left out
    as long as these are few enough. The combinations of levels are a lattice, as in Samarati (2001) and in the Optimal
    Lattice Anonymization of El Emam and others (2009); as there, the classes of a node are rolled up from those of a
    node below. Unlike there, nodes are tried by what they lose before anything is left out, which never is more than
    what they lose in the end: the first node that no other can beat is the best of all, whatever is required. Of a
    lattice of more than 20,000 nodes only a path is tried: up, as Datafly does (Sweeney, 2002), by the column with most
    labels, and down again by whatever column gains most, as long as the requirement holds.
    """

    def __init__(self, tally: Tally, ladders: Sequence[Ladder], require: Requirement) -> None:
        self._ladders, self._require = tuple(ladders), require
        self._most = math.floor(require.suppressed_frac * tally.rows + _ROUNDING)
        self._rows = tally.rows
        margins: list[tuple[tuple[Codes, ...], Codes]] = []
        first, width = tally.margins[0], len(self._ladders)
        own = [ladder.widths[0] for ladder in self._ladders]
        margins.append(_grouped(first.codes[:width], own, first.counts))
        self._levels: list[int] = []
        for rule, margin in zip(require.sensitive, tally.margins, strict=False):
            values = tally.values[margin.columns[-1]]
            ranks = _ranks(values, rule) if rule.ranked else np.arange(len(values) + 1)
            self._levels.append(int(ranks.max(initial=0)) + 1)
            columns = (*margin.codes[:width], ranks[margin.codes[width]])
            margins.append(_grouped(columns, [*own, self._levels[-1]], margin.counts))
            self._check_distinct(rule, len(np.unique(columns[-1])))
        self._base = _Counted((0,) * width, tuple(margins))
        self._known: dict[tuple[int, ...], _Counted] = {}
        self._tried = 0
        self._usual = self._means()

    def best(self) -> Choice:
        """Return the levels to take.

        Raises
        ------
        BadValueError
            No levels satisfy the requirement.
        """
        if self._require.k > self._rows:
            raise BadValueError(
                f"k={self._require.k} is larger than the table, which has {self._rows:,} rows",
                remedy="lower k, or give more rows",
            )
        nodes = math.prod(ladder.height - ladder.least + 1 for ladder in self._ladders)
        found = self._of_all() if nodes <= _MOST_NODES else self._of_a_path()
        assert found is not None, "one class of all rows satisfies everything that was not refused before"
        return found

    def _check_distinct(self, rule: Sensitive, there: int) -> None:
        if there < self._require.l:
            raise BadValueError(
                f"l={self._require.l} cannot be reached: column {rule.name!r} has {there} distinct values",
                remedy="lower l, or leave the column out of sensitive",
            )

    def _means(self) -> list[NDArray[np.float64]]:
        """Return what is lost by each column at each level, nothing left out."""
        codes, counts = self._base.margins[0]
        means = []
        for ladder, column in zip(self._ladders, codes, strict=True):
            rows = np.bincount(column, counts, minlength=ladder.widths[0])
            lost = [float(rows @ loss[to]) for loss, to in zip(ladder.losses, ladder.maps, strict=True)]
            means.append(np.array(lost) / max(1, self._rows))
        return means

    def _bound(self, node: tuple[int, ...]) -> float:
        return sum(float(means[level]) for means, level in zip(self._usual, node, strict=True)) / len(node)

    def _of_all(self) -> Choice | None:
        ranges = [range(ladder.least, ladder.height + 1) for ladder in self._ladders]
        best: Choice | None = None
        for bound, node in sorted((self._bound(node), node) for node in itertools.product(*ranges)):
            if best is not None and bound >= best.loss:
                break
            found = self._tried_at(node)
            if found is not None and (best is None or found.loss < best.loss):
                best = found
        return best

    def _of_a_path(self) -> Choice | None:
        node = tuple(ladder.least for ladder in self._ladders)
        while (best := self._tried_at(node)) is None:
            codes = self._at(node).margins[0][0]
            open_ = [place for place, ladder in enumerate(self._ladders) if node[place] < ladder.height]
            if not open_:
                return None
            place = max(open_, key=lambda each: (len(np.unique(codes[each])), -each))
            node = _moved(node, place, 1)
        while True:
            lower = (
                _moved(best.node, place, -1)
                for place, ladder in enumerate(self._ladders)
                if best.node[place] > ladder.least
            )
            found = [each for each in map(self._tried_at, lower) if each is not None and each.loss < best.loss]
            if not found:
                return best
            best = min(found, key=lambda each: (each.loss, each.node))

    def _at(self, node: tuple[int, ...]) -> _Counted:
        """Return the classes of a node, rolled up from the fewest classes of a node just below that are at hand."""
        if node in self._known:
            return self._known[node]
        below = (self._known.get(_moved(node, place, -1)) for place, level in enumerate(node) if level)
        start = min((each for each in below if each), key=lambda each: len(each.margins[0][1]), default=self._base)
        ways = [ladder.up(one, other) for ladder, one, other in zip(self._ladders, start.node, node, strict=True)]
        widths = [ladder.widths[level] for ladder, level in zip(self._ladders, node, strict=True)]
        margins = []
        for place, (codes, counts) in enumerate(start.margins):
            columns = [way[column] for way, column in zip(ways, codes, strict=False)]
            more = [self._levels[place - 1]] if place else []
            margins.append(_grouped([*columns, *codes[len(ways) :]], [*widths, *more], counts))
        found = _Counted(node, tuple(margins))
        self._keep(found)
        return found

    def _keep(self, found: _Counted) -> None:
        self._tried += 1
        self._known[found.node] = found
        sizes = {node: len(each.margins[-1][1]) for node, each in self._known.items()}
        total = sum(sizes.values())
        for node in list(self._known)[:-1]:
            if total <= _MOST_KEPT:
                break
            total -= sizes[node]
            del self._known[node]

    def _tried_at(self, node: tuple[int, ...]) -> Choice | None:
        """Return what a node comes to, None where too many rows would have to be left out."""
        found = self._at(node)
        codes, counts = found.margins[0]
        kept = self._satisfying(found)
        if int(counts[~kept].sum()) > self._most or not kept.any():
            return None
        lost = np.stack([
            ladder.losses[level][column]
            for ladder, level, column in zip(self._ladders, node, codes, strict=True)
        ])  # fmt: skip
        gone = counts[~kept] * (1.0 - lost.mean(axis=0)[~kept])
        rows = counts[kept]
        owners = [_owners(margin[0][:-1]) for margin in found.margins[1:]]
        distinct = [
            int(np.bincount(owner, minlength=len(counts))[kept].min()) for owner in owners
        ]  # fmt: skip
        return Choice(
            node,
            codes,
            counts,
            kept,
            loss=self._bound(node) + float(gone.sum()) / self._rows,
            losses=tuple(float(each) for each in (lost[:, kept] @ rows) / rows.sum()),
            distinct=min(distinct, default=0),
            distance=max((float(far[kept].max()) for far in self._distances(found, kept)), default=0.0),
            tried=self._tried,
        )

    def _satisfying(self, found: _Counted) -> NDArray[np.bool_]:
        """Return which classes satisfy the requirement, the others left out.

        Leaving classes out changes the whole that t-closeness compares with, so it is compared until nothing changes.
        """
        counts = found.margins[0][1]
        kept = counts >= self._require.k
        if self._require.l > 1:
            for codes, _ in found.margins[1:]:
                kept &= np.bincount(_owners(codes[:-1]), minlength=len(counts)) >= self._require.l
        while self._require.t is not None and counts[~kept].sum() <= self._most:
            near = kept.copy()
            for far in self._distances(found, kept):
                near &= far <= self._require.t + _ROUNDING
            if (near == kept).all():
                break
            kept = near
        return kept

    def _distances(self, found: _Counted, kept: NDArray[np.bool_]) -> Iterator[NDArray[np.float64]]:
        """Yield for each sensitive column how far each class lies from all rows that are kept."""
        totals = found.margins[0][1]
        for rule, levels, (codes, counts) in zip(self._require.sensitive, self._levels, found.margins[1:], strict=True):
            owner = _owners(codes[:-1])
            whole = np.bincount(codes[-1], counts * kept[owner], minlength=levels).astype(np.float64)
            if not whole.any():
                yield np.zeros(len(totals))
            elif rule.ranked:
                yield _ordered_distance(owner, codes[-1], counts, totals, whole)
            else:
                share = whole / whole.sum()
                apart = np.abs(counts / totals[owner] - share[codes[-1]]) - share[codes[-1]]
                yield (1.0 + np.bincount(owner, apart, minlength=len(totals)).astype(np.float64)) / 2.0


def _moved(node: tuple[int, ...], place: int, by: int) -> tuple[int, ...]:
    return (*node[:place], node[place] + by, *node[place + 1 :])


def _owners(codes: Sequence[Codes]) -> Codes:
    """Return the number of the class of each row of a margin, whose rows have the order of the classes."""
    new = np.zeros(len(codes[0]), np.bool_)
    for column in codes:
        new[1:] |= column[1:] != column[:-1]
    return np.cumsum(new)


def _ranks(values: pa.Array, rule: Sensitive) -> Codes:
    """Return the place of each number in their order, that of null last."""
    try:
        numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise BadValueError(
            f"column {rule.name!r} holds what is no number", remedy="write it as 'category' under sensitive"
        ) from error
    found, ranks = np.unique(numbers, return_inverse=True)
    return np.append(ranks, len(found)).astype(np.int64)


def _ordered_distance(
    owner: Codes, codes: Codes, counts: Codes, totals: Codes, whole: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the earth mover's distance of each class over values in an order.

    Notes
    -----
    D = 1 / (m - 1) · Σ_i |Σ_{j ≤ i} (p_j - q_j)| over the m values of the whole (Li and others, 2007, 5.1). Between two
    values of a class its own sum stays the same, so a row of the margin stands for all i from its value up to the next.
    """
    there = whole > 0
    most = int(there.sum())
    if most < 2:
        return np.zeros(len(totals))
    shares = np.cumsum(whole[there]) / whole.sum()
    below = np.concatenate([[0.0], np.cumsum(shares)])
    place = (np.cumsum(there) - 1)[codes]
    first = np.concatenate([[True], owner[1:] != owner[:-1]])
    summed = np.cumsum(counts)
    own = (summed - (summed - counts)[first][owner]) / totals[owner]
    end = np.where(np.append(first[1:], True), most, np.append(place[1:], most))
    end = np.maximum(end, place)
    cut = np.clip(np.searchsorted(shares, own, "right"), place, end)
    apart = own * (2 * cut - place - end) - 2 * below[cut] + below[place] + below[end]
    apart[first] += below[np.maximum(place[first], 0)]
    return np.bincount(owner, apart, minlength=len(totals)) / (most - 1)
