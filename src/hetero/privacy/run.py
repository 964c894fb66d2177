"""Tables anonymised over all devices: classes counted by batch and merged, levels chosen once, rows written in order.

In: a recipe and tables. Out: tables under their names, and a report that holds nothing of them. Nothing that is
published depends on how the rows were cut or on which device had them.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hetero.floor.documents import read_record
from hetero.floor.errors import BadValueError, FileError, HeteroError, did_you_mean
from hetero.floor.files import atomic_write, output_file
from hetero.floor.units import shown
from hetero.privacy.classes import (
    Choice,
    ClassSearch,
    Coded,
    Ladder,
    Numbering,
    Requirement,
    Tally,
    coded,
    merged,
    tally_of,
)
from hetero.privacy.recipe import AnonymisationRecipe, ColumnRule, NoisyCounts, read_anonymisation
from hetero.privacy.tables import InputTables, OutputTables, TablePiece, check_not_read, csv_bytes
from hetero.privacy.transforms import discrete_laplace, pseudonyms
from hetero.session.futures import Future
from hetero.session.options import Fleet, lent_or_opened
from hetero.session.task_api import get_current_device

if TYPE_CHECKING:
    from hetero.session.context import Context

__all__ = [
    "AnonymisationReport",
    "Anonymiser",
    "anonymise",
    "check_columns",
    "chosen",
    "counted_margins",
    "fit_anonymiser",
]

T = TypeVar("T")
_MERGED_AT_ONCE = 16
_AHEAD = 3
_DENSE = 1 << 22
_OTHER = "(other)"
_FRACTION = re.compile(r"\d{1,40}(?:/[1-9]\d{0,39})?")


class _Level(NamedTuple):
    """A column at the level that was chosen: its labels in the order of their codes, and the code of null."""

    level: int
    labels: pa.Array
    null: int


@dataclass(frozen=True, slots=True)
class Anonymiser:
    """Changes batches of a table as a recipe says, at levels that were chosen for the whole table.

    A call takes an Arrow table and returns one with fewer columns and, where classes stayed too small, fewer rows. Rows
    of a class that did not occur when the levels were chosen are left out.

    Attributes
    ----------
    recipe
        What is to be done.
    report
        What the levels are, and what the result will satisfy.

    Examples
    --------
    >>> import hetero, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text(chr(10).join(["age,ill", "31,yes", "38,no", "64,no", "66,yes"]))
    >>> recipe = {"columns": {"age": {"intervals": [10, 20]}, "ill": "keep"}, "require": {"k": 2}}
    >>> change = hetero.batch.fit_anonymiser(recipe, path, devices="1xcpu")
    >>> outcome = hetero.batch.map_batches(
    ...     change, path, devices="1xcpu", options=hetero.batch.BatchOptions(same_count=False)
    ... )
    >>> outcome.value["age"].to_pylist()
    ['[30, 40)', '[30, 40)', '[60, 70)', '[60, 70)']
    """

    recipe: AnonymisationRecipe
    report: AnonymisationReport
    levels: Mapping[str, _Level]
    numbering: Numbering | None = None
    kept: NDArray[np.int64] | None = None

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return a batch as it may be published."""
        check_columns(self.recipe, table.schema)
        return _plain(self._changed(table))

    def _changed(self, table: pa.Table) -> pa.Table:
        """Return a batch with its labels as dictionaries; columns that are suppressed may be absent."""
        found: dict[str, object] = {}
        codes: list[NDArray[np.int64]] = []
        for name in table.column_names:
            rule = self.recipe.columns[name]
            if rule.word == "pseudonymise":
                found[name] = _pseudonymised(coded(table[name]), self.recipe.key, rule.domain)
            elif rule.word != "suppress":
                found[name] = _plain(table.select([name]))[name]
        for name, rule in self.recipe.generalised.items():
            level = self.levels[name]
            codes.append(_at_level(name, rule, level, coded(table[name])))
            if level.level:
                absent = (codes[-1] < 0) | (codes[-1] >= len(level.labels))
                places = pa.array(codes[-1], pa.int32(), mask=absent)
                found[name] = pa.DictionaryArray.from_arrays(places, level.labels)
        changed = pa.table(found)
        return changed if self.numbering is None else self._filtered(changed, codes)

    def _filtered(self, table: pa.Table, codes: Sequence[NDArray[np.int64]]) -> pa.Table:
        """Return the rows whose classes are kept."""
        assert self.numbering is not None
        assert self.kept is not None
        numbers = self.numbering.numbers(codes)
        if self.numbering.size <= _DENSE:
            there = np.zeros(self.numbering.size + 1, np.bool_)
            there[self.kept] = True
            wanted = there[numbers]  # the last entry stands for -1
        else:
            places = np.minimum(np.searchsorted(self.kept, numbers), len(self.kept) - 1)
            wanted = self.kept[places] == numbers
        return table if wanted.all() else table.filter(pa.array(wanted))


def _plain(table: pa.Table) -> pa.Table:
    kinds = [each.type.value_type if pa.types.is_dictionary(each.type) else each.type for each in table.schema]
    return table.cast(pa.schema(list(zip(table.column_names, kinds, strict=True))))


def _pseudonymised(column: Coded, key: bytes, domain: str) -> pa.Array:
    names = pa.concat_arrays([pseudonyms(column.values, key, domain), pa.nulls(1, pa.string())])
    return names.take(pa.array(column.codes))


def _at_level(name: str, rule: ColumnRule, level: _Level, column: Coded) -> NDArray[np.int64]:
    """Return the code of the label of each row, -1 where the label was not known when the levels were chosen."""
    assert rule.levels is not None
    labels = _named(name, partial(rule.levels.labels, column.values, level.level))
    places = pc.index_in(labels, value_set=level.labels).fill_null(-1).to_numpy(zero_copy_only=False)
    return np.append(places, level.null).astype(np.int64)[column.codes]


def _named(name: str, call: Callable[[], T]) -> T:
    """Return what a call returns; a mistake in a value names the column."""
    try:
        return call()
    except BadValueError as error:
        raise BadValueError(f"column {name!r}: {error.problem}", remedy=error.remedy) from error


def check_columns(recipe: AnonymisationRecipe, schema: pa.Schema) -> None:
    """Refuse a table with columns that the recipe does not name, or without one that it names."""
    for name in recipe.columns:
        if name not in schema.names:
            raise BadValueError(
                f"the table has no column {name!r}{did_you_mean(name, schema.names)}",
                remedy=f"it has {', '.join(schema.names)}",
            )
    for name in schema.names:
        if name not in recipe.columns:
            raise BadValueError(
                f"the recipe does not say what becomes of column {name!r}", remedy=f"add {name}: suppress, or keep"
            )
    needed = {*recipe.generalised, *(name for name, rule in recipe.columns.items() if rule.word == "pseudonymise")}
    needed |= {rule.name for rule in (recipe.require or Requirement()).sensitive}
    needed |= set(recipe.counts.columns) if recipe.counts else set()
    for name in sorted(needed):
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            raise BadValueError(
                f"column {name!r} holds values of type {kind}", remedy="suppress it, or write it as text"
            )


# --- the report ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AnonymisationReport:
    """What was done to a table and what the result satisfies; it holds no value of the table.

    Attributes
    ----------
    rows, suppressed
        Of the table, and those that were left out.
    columns
        By name, what became of it: 'column', 'done', and of levels 'level', 'of' and 'loss'.
    required, reached
        k, l and t.
    classes
        How many there are, and the rows of the 'smallest', the 'median' and the 'largest'.
    loss
        'certainty_penalty' (Xu and others, 2006), the mean of all cells, 1 for those of rows that were left out;
        'discernibility' (Bayardo and Agrawal, 2005), the sum of the squares of the classes, and of the rows of the
        whole for each that was left out; 'class_size' (LeFevre and others, 2006), mean rows of a class over k.
    epsilon
        What the counts 'spent' of the 'budget', and what runs 'before' did.
    tried
        Combinations of levels whose classes were counted.
    devices
        Rows that each device changed.

    Examples
    --------
    >>> AnonymisationReport(4).as_dict()["rows"]
    4
    """

    rows: int
    suppressed: int = 0
    columns: tuple[Mapping[str, object], ...] = ()
    required: Mapping[str, float] | None = None
    reached: Mapping[str, float] | None = None
    classes: Mapping[str, float] | None = None
    loss: Mapping[str, float] | None = None
    epsilon: Mapping[str, float] | None = None
    tried: int = 0
    devices: Mapping[str, int] | None = None

    def as_dict(self) -> dict[str, object]:
        """Return the figures for a program; what does not apply is None.

        Examples
        --------
        >>> AnonymisationReport(4, 1).as_dict()["suppressed"]
        1
        """
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def as_text(self) -> str:
        """Return the report in lines.

        Examples
        --------
        >>> print(AnonymisationReport(4, 1).as_text())
        3 of 4 rows, 1 left out (25 %)
        """
        part = 100 * self.suppressed / max(1, self.rows)
        lines = [f"{self.rows - self.suppressed:,} of {self.rows:,} rows, {self.suppressed:,} left out ({part:.3g} %)"]
        for column in self.columns:
            loss = f", loss {column['loss']:.3g}" if "loss" in column else ""
            level = f" (level {column['level']} of {column['of']})" if "level" in column else ""
            lines.append(f"  {column['column']}: {column['done']}{level}{loss}")
        if self.required is not None and self.reached is not None:
            words = (f"{name} {self.reached[name]:.4g} (required {value:g})" for name, value in self.required.items())
            lines.append(f"reached: {', '.join(words)}")
        if self.classes is not None:
            words = (f"{name} {value:,.6g}" for name, value in self.classes.items() if name != "count")
            lines.append(f"classes: {self.classes['count']:,.0f}; rows: {', '.join(words)}")
        if self.loss is not None:
            words = (f"{name.replace('_', ' ')} {value:.4g}" for name, value in self.loss.items())
            lines.append(f"loss: {', '.join(words)}")
        if self.epsilon is not None:
            before = f", {self.epsilon['before']:g} before" if self.epsilon["before"] else ""
            lines.append(f"counts: epsilon {self.epsilon['spent']:g} of {self.epsilon['budget']:g} spent{before}")
        if self.devices:
            lines.append(f"rows by device: {', '.join(f'{name} {rows:,}' for name, rows in self.devices.items())}")
        return "\n".join(lines)


def _report_of(
    recipe: AnonymisationRecipe, names: Sequence[str], rows: int, choice: Choice | None
) -> AnonymisationReport:
    at = dict(zip(recipe.generalised, choice.node, strict=True)) if choice else {}
    lost = dict(zip(recipe.generalised, choice.losses, strict=True)) if choice else {}
    columns = tuple(_told(name, recipe.columns[name], at, lost) for name in names)
    require, counts = recipe.require, recipe.counts
    spent = None
    if counts is not None:
        before = float(_spent_before(counts))
        spent = {"spent": float(counts.spent), "before": before, "budget": float(counts.epsilon)}
    if require is None or choice is None:
        return AnonymisationReport(rows, columns=columns, epsilon=spent)
    sizes = choice.counts[choice.kept]
    required, reached = {"k": float(require.k)}, {"k": float(sizes.min())}
    if require.sensitive:
        required |= {"l": float(require.l)} | ({} if require.t is None else {"t": require.t})
        reached |= {"l": float(choice.distinct), "t": choice.distance}
    squares = sum(int(size) ** 2 * int(many) for size, many in zip(*np.unique(sizes, return_counts=True), strict=True))
    return AnonymisationReport(
        rows,
        choice.suppressed,
        columns,
        required,
        reached,
        {
            "count": len(sizes),
            "smallest": int(sizes.min()),
            "median": float(np.median(sizes)),
            "largest": int(sizes.max()),
        },
        {
            "certainty_penalty": choice.loss,
            "discernibility": float(squares + choice.suppressed * rows),
            "class_size": float(sizes.mean()) / require.k,
        },
        spent,
        choice.tried,
    )


def _told(name: str, rule: ColumnRule, at: Mapping[str, int], lost: Mapping[str, float]) -> Mapping[str, object]:
    done = {"keep": "kept", "suppress": "left out", "pseudonymise": "pseudonyms"}.get(rule.word, "")
    if rule.levels is None:
        return {"column": name, "done": done}
    level = at.get(name, rule.least)
    done = "kept" if not level else "all alike" if level == rule.levels.height else rule.levels.described(level)
    more = {"loss": lost[name]} if name in lost else {}
    return {"column": name, "done": done, "level": level, "of": rule.levels.height, **more}


# --- the passes ---------------------------------------------------------------------------------------------


def anonymise(
    recipe: str | Path | Mapping[str, object],
    source: str | Path,
    output: str | Path,
    *,
    set: Sequence[str] = (),
    ctx: Context | None = None,
    devices: Fleet = None,
) -> AnonymisationReport:
    """Anonymise a table, or a folder of tables as one, over all devices.

    Parameters
    ----------
    recipe
        A YAML file, or what stands in one; docs/anonymise.md lists its keys.
    source
        A CSV or Parquet file, or a folder of them.
    output
        A file, CSV or Parquet by its name, or a folder for a folder. It appears when all is done.
    set
        Settings laid over the recipe, 'require.k=10'.
    ctx
        The Context whose devices do the work; one is opened where none is given.
    devices
        The fleet of the Context that is opened.

    Raises
    ------
    ConfigError
        The recipe is wrong.
    BadValueError
        The table and the recipe do not go together, k is larger than the table, or the output would replace the input.
    FileError
        The table cannot be read.

    Examples
    --------
    >>> import hetero, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.csv").write_text(chr(10).join(["name,age", "Ada,31", "Bob,38", "Cleo,64", "Dan,66"]))
    >>> recipe = {"columns": {"name": "suppress", "age": {"intervals": [10, 20]}}, "require": {"k": 2}}
    >>> report = hetero.batch.anonymise(recipe, folder / "a.csv", folder / "b.csv", devices="1xcpu")
    >>> report.classes["smallest"], (folder / "b.csv").read_text().splitlines()[1]
    (2, '"[30, 40)"')
    """
    wanted = read_anonymisation(recipe, set)
    inputs = InputTables(source)
    check_columns(wanted, inputs.schema)
    files = OutputTables(output, inputs, wanted.files)
    for field in inputs.schema if files.form == "csv" else ():
        if wanted.columns[field.name].word == "keep" and pa.types.is_nested(field.type):
            raise BadValueError(
                f"column {field.name!r} holds values of type {field.type}, which CSV has no form for",
                remedy="suppress it, or write Parquet",
            )
    counts = None if wanted.counts is None else output_file(wanted.counts.output, "counts.output")
    if counts is not None and wanted.counts is not None:
        ledger = [] if wanted.counts.ledger is None else [output_file(wanted.counts.ledger, "counts.ledger")]
        check_not_read(counts, "counts.output", inputs, [*wanted.files, files.path, *ledger])
        for path in ledger:
            check_not_read(path, "counts.ledger", inputs, [*wanted.files, files.path])
        _spent_before(wanted.counts)
    with _context(wanted, ctx, devices) as context:
        change, tally = _fitted(context, wanted, inputs)
        rows: Counter[str] = Counter()
        try:
            left = _write(context, change, inputs, files, rows)
            if tally is not None and left != tally.rows - change.report.suppressed:
                raise HeteroError(
                    f"{inputs.source} changed while it was read", remedy="begin anew when nothing writes to it"
                )
            files.finish()
            if wanted.counts is not None and counts is not None and tally is not None:
                _spend(wanted.counts)
                atomic_write(counts, _noisy(wanted.counts, tally))
        finally:
            files.abort()
    return replace(change.report, rows=rows.total(), devices=dict(sorted(rows.items())))


def fit_anonymiser(
    recipe: str | Path | Mapping[str, object],
    source: str | Path,
    *,
    set: Sequence[str] = (),
    ctx: Context | None = None,
    devices: Fleet = None,
) -> Anonymiser:
    """Choose levels for a table, and return the function of a batch that applies them, for `map_batches`.

    Parameters
    ----------
    recipe, source, set, ctx, devices
        As for `anonymise`.

    Examples
    --------
    >>> import hetero, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text(chr(10).join(["age", "31", "38"]))
    >>> recipe = {"columns": {"age": {"intervals": [10]}}, "require": {"k": 2}}
    >>> hetero.batch.fit_anonymiser(recipe, path, devices="1xcpu").report.classes["count"]
    1
    """
    wanted = read_anonymisation(recipe, set)
    inputs = InputTables(source)
    check_columns(wanted, inputs.schema)
    if wanted.counts is not None:
        raise BadValueError(
            "counts have no effect on a function of batches", remedy="leave counts out, or anonymise the table"
        )
    with _context(wanted, ctx, devices) as context:
        return _fitted(context, wanted, inputs)[0]


def _context(wanted: AnonymisationRecipe, ctx: Context | None, devices: Fleet) -> AbstractContextManager[Context]:
    if ctx is not None and devices is not None:
        raise BadValueError(
            "ctx and devices exclude one another", remedy="give the Context, or the devices of a new one"
        )
    if ctx is not None:
        return lent_or_opened(ctx)
    return lent_or_opened(wanted.devices if devices is None else devices)


def _fitted(ctx: Context, recipe: AnonymisationRecipe, inputs: InputTables) -> tuple[Anonymiser, Tally | None]:
    """Count the classes of all batches, and choose the levels."""
    names, margins = counted_margins(recipe)
    if not margins:
        return Anonymiser(recipe, _report_of(recipe, inputs.names, 0, None), {}), None
    tally = _tallied(ctx, inputs, names, margins)
    return chosen(recipe, inputs.names, tally), tally


def chosen(recipe: AnonymisationRecipe, names: Sequence[str], tally: Tally) -> Anonymiser:
    """Choose the levels for what was counted of all rows.

    Parameters
    ----------
    names
        Of the table's columns.

    Raises
    ------
    BadValueError
        A value does not go with its column's levels, or the requirement cannot be satisfied.
    """
    ladders = [
        _named(name, partial(Ladder.of, rule.levels, tally.values[place], rule.least))
        for place, (name, rule) in enumerate(recipe.generalised.items())
        if rule.levels is not None
    ]
    choice = ClassSearch(tally, ladders, recipe.require).best() if recipe.require else None
    node = choice.node if choice else tuple(ladder.least for ladder in ladders)
    levels = {
        name: _Level(level, ladder.labels[level], int(ladder.maps[level][-1]))
        for name, ladder, level in zip(recipe.generalised, ladders, node, strict=True)
    }
    report = _report_of(recipe, names, tally.rows, choice)
    if choice is None:
        return Anonymiser(recipe, report, levels)
    widths = [ladder.widths[level] for ladder, level in zip(ladders, node, strict=True)]
    numbering, numbers = Numbering.of(choice.codes, widths)
    return Anonymiser(recipe, report, levels, numbering, numbers[choice.kept])


def counted_margins(recipe: AnonymisationRecipe) -> tuple[list[str], list[tuple[int, ...]]]:
    """Return the columns that are counted, and by which of them together; first those of classes."""
    names = list(recipe.generalised)
    own = tuple(range(len(names)))
    margins: list[tuple[int, ...]] = []
    if recipe.require is not None:
        names += [rule.name for rule in recipe.require.sensitive]
        margins = [(*own, place) for place in range(len(own), len(names))] or [own]
    elif own:
        margins = [own]
    for name in recipe.counts.columns if recipe.counts else ():
        margins.append((names.index(name),) if name in names else (len(names),))
        names += [] if name in names else [name]
    return names, margins


def _tallied(ctx: Context, inputs: InputTables, names: Sequence[str], margins: Sequence[tuple[int, ...]]) -> Tally:
    work = ctx.put(_Counting(tuple(names), tuple(margins)))
    found: list[Tally] = []
    for tally in _in_order(ctx, _count, work, inputs.pieces(names, names)):
        found.append(tally)
        if len(found) == _MERGED_AT_ONCE:
            found = [merged(found)]
    return merged(found)


class _Counting(NamedTuple):
    names: tuple[str, ...]
    margins: tuple[tuple[int, ...], ...]


def _count(work: _Counting, piece: TablePiece) -> Tally:
    return tally_of(piece.load(), work.names, work.margins)


class _Changing(NamedTuple):
    change: Anonymiser
    form: str


class _Changed(NamedTuple):
    """A batch as it is written: of which file and how many rows it was, who changed it, and what is left."""

    file: int
    rows: int
    device: str
    left: int
    written: pa.Table | bytes


def _change(work: _Changing, piece: TablePiece) -> _Changed:
    given = piece.load()
    table = work.change._changed(given)
    written = csv_bytes(_plain(table)) if work.form == "csv" else table
    return _Changed(piece.file, given.num_rows, get_current_device().id, table.num_rows, written)


def _write(ctx: Context, change: Anonymiser, inputs: InputTables, files: OutputTables, rows: Counter[str]) -> int:
    """Change all batches, and write them in order; return how many rows were written."""
    empty = change._changed(inputs.schema.empty_table())
    work = ctx.put(_Changing(change, files.form))
    left = 0
    rules = change.recipe.columns
    names = [name for name in inputs.names if rules[name].word != "suppress"]
    words = [name for name in names if rules[name].word != "keep"]
    for part in _in_order(ctx, _change, work, inputs.pieces(names, words)):
        rows[part.device] += part.rows
        left += part.left
        files.write(part.file, part.written, empty)
    return left


def _in_order(ctx: Context, call: Callable[..., T], work: object, pieces: Iterable[TablePiece]) -> Iterator[T]:
    """Yield what a function returns for each piece, a few of them computed ahead."""
    waiting: deque[Future[T]] = deque()
    most = _AHEAD * len(ctx.devices) + 1
    try:
        for piece in pieces:
            waiting.append(ctx.submit(call, work, piece))
            if len(waiting) >= most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _spent_before(counts: NoisyCounts) -> Fraction:
    """Return what earlier runs spent of the budget.

    Raises
    ------
    BadValueError
        What is left of the budget is not enough.
    """
    if counts.ledger is None or not counts.ledger.exists():
        return Fraction(0)
    text = read_record(counts.ledger, {"format": str, "spent": str})["spent"]
    if _FRACTION.fullmatch(text) is None:
        raise FileError(f"{counts.ledger}: {shown(text)} is no epsilon", remedy="name another ledger")
    spent = Fraction(text)
    if spent + counts.spent > counts.epsilon:
        raise BadValueError(
            f"{counts.ledger}: {float(spent):g} of epsilon is spent, {float(counts.spent):g} more is asked for, and"
            f" {float(counts.epsilon):g} may be spent",
            remedy="count less, or less exactly",
        )
    return spent


def _spend(counts: NoisyCounts) -> None:
    """Write what is spent into the ledger, before anything is published."""
    if counts.ledger is not None:
        spent = _spent_before(counts) + counts.spent
        atomic_write(counts.ledger, json.dumps({"format": "hetero-epsilon/1", "spent": str(spent)}).encode())


def _noisy(counts: NoisyCounts, tally: Tally) -> bytes:
    """Return the table of counts with noise: of the values that were named, and of all others together."""
    sink = io.StringIO(newline="")
    rows = csv.writer(sink, lineterminator="\n")
    rows.writerow(("column", "value", "count"))
    for (name, (values, epsilon)), margin in zip(
        counts.columns.items(), tally.margins[-len(counts.columns) :], strict=True
    ):
        there = [*tally.values[margin.columns[0]].to_pylist(), None]
        exact = {there[code]: int(many) for code, many in zip(margin.codes[0], margin.counts, strict=True)}
        others = sum(many for value, many in exact.items() if value not in values)
        for value, many in [*((value, exact.get(value, 0)) for value in values), (_OTHER, others)]:
            rows.writerow((name, value, many + discrete_laplace(epsilon)))
    return sink.getvalue().encode()
