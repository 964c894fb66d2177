"""Recipes of anonymisation: what becomes of each column, and what the result must satisfy.

In: a YAML file or a mapping, with the hierarchies and the key that it names. Out: one frozen value, or a mistake with
its place. It must not read a table.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from hetero.floor import settings
from hetero.floor.documents import read_bytes, read_text
from hetero.floor.errors import BadValueError, ConfigError, did_you_mean
from hetero.floor.private import check_secret
from hetero.floor.units import shown
from hetero.floor.yaml_tree import Key, read_yaml
from hetero.privacy.classes import Requirement, Sensitive
from hetero.privacy.transforms import (
    DATE_STEPS,
    Dates,
    Generaliser,
    Hierarchy,
    Intervals,
    Prefix,
    WholeValue,
    nesting_fault,
)
from hetero.session.config import read_file
from hetero.session.config_yaml import Tree, lay_over, tree_of
from hetero.session.options import Fleet

__all__ = ["KEYS", "AnonymisationRecipe", "ColumnRule", "NoisyCounts", "read_anonymisation"]

_ROOT = ("key", "columns", "require", "counts", "devices")
_KEY = ("file", "variable")
_REQUIRE = ("k", "l", "t", "sensitive", "suppressed")
_COUNTS = ("epsilon", "output", "columns", "ledger")
_COUNT = ("values", "epsilon")
_LEVELS = ("intervals", "dates", "prefix", "hierarchy")
_OPTIONS = {"intervals": ("origin", "least"), **dict.fromkeys(("dates", "prefix", "hierarchy"), ("least",))}
_WORDS = ("keep", "suppress", "pseudonymise", "generalise")
_KINDS = ("category", "number")
_LEAST_KEY_BYTES = 32

KEYS = {*_ROOT, *_KEY, *_REQUIRE, *_COUNTS, *_COUNT, *_LEVELS, "pseudonymise", "origin", "least"}
"""Every key that a recipe may have."""


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """What becomes of a column.

    Attributes
    ----------
    word
        'keep', 'suppress', 'pseudonymise' or 'generalise'.
    domain
        Of pseudonyms.
    levels
        Of generalisation, None for other words.
    least
        Level below which it is never left.
    """

    word: str
    domain: str = ""
    levels: Generaliser | None = None
    least: int = 0


@dataclass(frozen=True, slots=True)
class NoisyCounts:
    """Counts of rows that are published with noise.

    Attributes
    ----------
    output
        CSV file.
    columns
        By name, the values that are counted and the epsilon of their counts.
    epsilon
        Of all counts together, at most.
    ledger
        File in which what all runs spent is kept, None where the budget is that of one run.
    """

    output: Path
    columns: Mapping[str, tuple[tuple[str, ...], Fraction]]
    epsilon: Fraction
    ledger: Path | None = None

    @property
    def spent(self) -> Fraction:
        """What the counts of one run spend: by sequential composition the sum."""
        return sum((epsilon for _, epsilon in self.columns.values()), Fraction(0))


@dataclass(frozen=True, slots=True)
class AnonymisationRecipe:
    """What is to be done with tables.

    Attributes
    ----------
    columns
        By name.
    require
        Of the classes, None where nothing is.
    counts
        None for none.
    key
        Of the pseudonyms, b'' where there are none.
    files
        From which all this was read.
    devices
        The fleet, as a Context takes it.
    """

    columns: Mapping[str, ColumnRule]
    require: Requirement | None = None
    counts: NoisyCounts | None = None
    key: bytes = field(default=b"", repr=False)
    files: tuple[Path, ...] = ()
    devices: Fleet = None

    @property
    def generalised(self) -> dict[str, ColumnRule]:
        """The columns that have levels, which are those that classes are made by."""
        return {name: rule for name, rule in self.columns.items() if rule.levels is not None}


def read_anonymisation(given: str | Path | Mapping[str, object], set: Sequence[str] = ()) -> AnonymisationRecipe:
    """Read a recipe; paths in it are taken from its own folder.

    Parameters
    ----------
    given
        A YAML file, or what stands in one.
    set
        Settings laid over it, 'require.k=10'.

    Raises
    ------
    ConfigError
        The file, a hierarchy or the key cannot be read, or a key or a value is wrong; the message begins with its
        place.
    """
    tree = tree_of(given, "recipe") if isinstance(given, Mapping) else read_file(given)
    for setting in set:
        lay_over(tree, setting)
    return _RecipeReader(
        tree, Path() if isinstance(given, Mapping) else Path(given).expanduser().parent, given
    ).recipe()


class _RecipeReader:
    """Checks a tree key by key."""

    def __init__(self, tree: Tree, folder: Path, given: object) -> None:
        self._tree, self._folder = tree, folder
        self._files = [] if isinstance(given, Mapping) else [Path(str(given)).expanduser()]

    def recipe(self) -> AnonymisationRecipe:
        """Return the checked recipe."""
        root = self._mapping((), self._tree.value, _ROOT)
        rules = self._mapping(("columns",), root.get("columns"))
        if not rules:
            raise self._wrong(("columns",), "no column is named", f"write NAME: and one of {', '.join(_WORDS)}")
        columns = {name: self._rule(("columns", name), rule) for name, rule in rules.items()}
        if all(rule.word == "suppress" for rule in columns.values()):
            raise self._wrong(("columns",), "all columns are suppressed", "keep or generalise one")
        require = self._require(root["require"], columns) if "require" in root else None
        counts = self._counts(root["counts"], columns) if "counts" in root else None
        if require is None:
            for name, rule in columns.items():
                if rule.levels is not None and not rule.least:
                    raise self._wrong(
                        ("columns", name),
                        "nothing says how far this is generalised",
                        "give least: 1, or require: {k: 5}",
                    )
        wanted = [name for name, rule in columns.items() if rule.word == "pseudonymise"]
        key = self._key(root.get("key"), wanted)
        devices = root.get("devices")
        if not isinstance(devices, str | list | None):
            raise self._wrong(("devices",), f"{shown(devices)} is no fleet", "write it like 2xcpu,cuda:0")
        return AnonymisationRecipe(columns, require, counts, key, tuple(self._files), devices)

    def _wrong(self, key: Key, problem: str, remedy: str) -> ConfigError:
        path = ".".join(map(str, key))
        return ConfigError(f"{self._tree.place(key)}: {f'{path}: ' if path else ''}{problem}", remedy=remedy)

    def _mapping(self, key: Key, given: object, allowed: Sequence[str] | None = None) -> dict[str, object]:
        """Return a mapping without its blank keys; of `allowed` keys alone."""
        if given is None:
            given = {}
        if not isinstance(given, Mapping):
            words = f"allowed keys: {', '.join(allowed)}" if allowed else "write 'NAME: …' lines"
            raise self._wrong(key, f"{shown(given)} is not a mapping of keys to values", words)
        for name in given:
            if allowed is not None and name not in allowed:
                raise self._wrong(
                    (*key, str(name)),
                    f"there is no such key{did_you_mean(name, allowed)}",
                    f"allowed keys: {', '.join(allowed)}",
                )
        return {str(name): value for name, value in given.items() if value is not None or allowed is None}

    # --- columns ------------------------------------------------------------------------------------------------

    def _rule(self, key: Key, given: object) -> ColumnRule:
        if given in _WORDS:
            return ColumnRule(str(given), levels=WholeValue() if given == "generalise" else None)
        if not isinstance(given, Mapping):
            raise self._wrong(
                key,
                f"{shown(given)} is not what becomes of a column{did_you_mean(given, _WORDS)}",
                f"allowed: {', '.join(_WORDS)}, or a mapping with one of pseudonymise, {', '.join(_LEVELS)}",
            )
        found = [word for word in ("pseudonymise", *_LEVELS) if word in given]
        if len(found) != 1:
            said = " and ".join(found) or "none of them"
            words = ", ".join(("pseudonymise", *_LEVELS))
            raise self._wrong(key, f"it names {said}", f"name one of {words}")
        word = found[0]
        allowed = (word, *_OPTIONS.get(word, ()))
        rule = self._mapping(key, given, allowed)
        if word == "pseudonymise":
            return ColumnRule(word, domain=self._text((*key, word), rule.get(word)))
        levels = self._levels((*key, word), word, rule)
        least = self._whole((*key, "least"), rule.get("least", 0), 0, levels.height)
        return ColumnRule("generalise", levels=levels, least=least)

    def _levels(self, key: Key, word: str, rule: Mapping[str, object]) -> Generaliser:
        given = rule.get(word)
        if word == "hierarchy":
            return self._hierarchy(key, given)
        several = given if isinstance(given, list) else [given]
        if not several:
            raise self._wrong(key, "it has no level", "give one or more")
        if word == "intervals":
            return self._intervals(key, several, rule.get("origin", 0))
        if word == "dates":
            steps = tuple(self._one_of((*key, at), each, tuple(DATE_STEPS)) for at, each in enumerate(several))
            order = [list(DATE_STEPS).index(step) for step in steps]
            if order != sorted(dict.fromkeys(order)):
                raise self._wrong(
                    key, f"{shown(several)} does not go from fine to coarse", f"as {', '.join(DATE_STEPS)}"
                )
            return Dates(steps)
        kept = tuple(self._whole((*key, at), each, 0, 1000) for at, each in enumerate(several))
        if list(kept) != sorted(dict.fromkeys(kept), reverse=True):
            raise self._wrong(key, f"{shown(several)} does not get shorter", "write it as [4, 2, 1]")
        return Prefix(kept)

    def _intervals(self, key: Key, several: Sequence[object], origin: object) -> Intervals:
        widths = tuple(self._number((*key, at), each) for at, each in enumerate(several))
        if widths[0] <= 0:
            raise self._wrong(key, f"{shown(several[0])} is no width", "give a number above 0")
        for one, other in itertools.pairwise(widths):
            if other <= one or other % one:
                raise self._wrong(
                    key, f"{shown(several)}: each width must be a multiple of the one before", "write it as [5, 10, 20]"
                )
        return Intervals(widths, self._number((*key[:-1], "origin"), origin))

    def _hierarchy(self, key: Key, given: object) -> Hierarchy:
        if isinstance(given, Mapping):
            return self._listed(key, given, self._tree.place(key))
        path = self._file(key, given)
        if path.suffix.lower() in (".yaml", ".yml"):
            tree = read_yaml(read_text(path, ConfigError), str(path), ConfigError)
            return self._listed(key, self._mapping(key, tree.value), str(path))
        return self._rows(key, _csv_rows(path), str(path))

    def _listed(self, key: Key, given: Mapping[str, object], place: str) -> Hierarchy:
        """Return the hierarchy of labels over labels over lists of values."""
        rows: list[list[str]] = []

        def walk(node: object, above: list[str]) -> None:
            if isinstance(node, Mapping):
                for label, inner in node.items():
                    walk(inner, [str(label), *above])
            elif isinstance(node, list):
                rows.extend([self._text(key, value), *above] for value in node)
            else:
                raise self._wrong(key, f"{place}: {shown(node)} is no list of values", "write 'LABEL: [value, value]'")

        walk(given, [])
        return self._rows(key, rows, place)

    def _rows(self, key: Key, rows: Sequence[Sequence[str]], place: str) -> Hierarchy:
        """Return the hierarchy whose rows are a value and its labels, from fine to coarse."""
        if not rows or len(rows[0]) < 2:
            raise self._wrong(key, f"{place} has no level above the value", "write 'value,label,label' rows")
        width = len(rows[0])
        for number, row in enumerate(rows, 1):
            if len(row) != width:
                problem = f"{place}: row {number} has {len(row)} cells, the first has {width}"
                raise self._wrong(key, problem, "give each value as many labels")
        values, *labels = zip(*rows, strict=True)
        if len(set(values)) < len(values):
            twice = Counter(values).most_common(1)[0][0]
            raise self._wrong(key, f"{place} has the value {shown(twice)} twice", "keep one of the rows")
        fault = nesting_fault(labels)
        if fault is not None:
            level, label, one, other = fault
            problem = f"{place}: the label {shown(label)} of level {level} lies under {shown(one)} and {shown(other)}"
            raise self._wrong(key, problem, "a label lies under one label of the next level")
        return Hierarchy(values, tuple(labels), place)

    # --- what must hold -------------------------------------------------------------------------------------------

    def _require(self, given: object, columns: Mapping[str, ColumnRule]) -> Requirement:
        at: Key = ("require",)
        asked = self._mapping(at, given, _REQUIRE)
        if not any(rule.levels is not None for rule in columns.values()):
            words = ", ".join(("generalise", *_LEVELS))
            raise self._wrong(at, "no column is generalised", f"give columns that tell who somebody is one of {words}")
        sensitive = self._sensitive(asked.get("sensitive"), columns)
        t = None if "t" not in asked else float(self._number((*at, "t"), asked["t"]))
        if t is not None and not 0 <= t <= 1:
            raise self._wrong((*at, "t"), f"{shown(asked['t'])} is no distance", "give a number from 0 to 1")
        for word in ("l", "t"):
            if word in asked and not sensitive:
                raise self._wrong((*at, word), "no column is sensitive", "name some: sensitive: [diagnosis]")
        if not {"k", "l", "t"} & asked.keys():
            raise self._wrong(at, "nothing is required", "give k, l or t")
        return Requirement(
            k=self._whole((*at, "k"), asked.get("k", 1), 1, 2**40),
            l=self._whole((*at, "l"), asked.get("l", 1), 1, 2**40),
            t=t,
            sensitive=sensitive,
            suppressed_frac=self._share((*at, "suppressed"), asked.get("suppressed", 0)),
        )

    def _sensitive(self, given: object, columns: Mapping[str, ColumnRule]) -> tuple[Sensitive, ...]:
        at: Key = ("require", "sensitive")
        if given is None:
            return ()
        named = dict.fromkeys(map(str, given), "category") if isinstance(given, list) else self._mapping(at, given)
        found = []
        for name, kind in named.items():
            rule = self._known((*at, name), name, columns)
            if rule.word != "keep":
                raise self._wrong(
                    (*at, name), f"columns.{name} is {rule.word}", "write keep there, or leave it out here"
                )
            found.append(Sensitive(name, self._one_of((*at, name), kind, _KINDS) == "number"))
        return tuple(found)

    def _counts(self, given: object, columns: Mapping[str, ColumnRule]) -> NoisyCounts:
        at: Key = ("counts",)
        asked = self._mapping(at, given, _COUNTS)
        for word in _COUNTS[:-1]:
            if word not in asked:
                raise self._wrong(at, f"{word} is absent", "give epsilon for all counts, output and columns")
        found: dict[str, tuple[tuple[str, ...], Fraction]] = {}
        for name, each in self._mapping((*at, "columns"), asked["columns"]).items():
            key: Key = (*at, "columns", name)
            self._known(key, name, columns)
            one = self._mapping(key, each, _COUNT)
            values = one.get("values")
            if not isinstance(values, list) or not values:
                raise self._wrong(
                    key, "values is absent", "list the values that are counted: which occur, tells something"
                )
            found[name] = (tuple(dict.fromkeys(self._text(key, value) for value in values)), self._epsilon(key, one))
        most = self._epsilon(at, asked)
        ledger = None if "ledger" not in asked else self._folder / self._text((*at, "ledger"), asked["ledger"])
        output = self._folder / self._text((*at, "output"), asked["output"])
        counts = NoisyCounts(output, found, most, ledger)
        if counts.spent > most:
            raise self._wrong(
                at,
                f"the columns spend {float(counts.spent):g} of epsilon, and {float(most):g} may be spent",
                "count less, or less exactly",
            )
        return counts

    def _epsilon(self, key: Key, asked: Mapping[str, object]) -> Fraction:
        value = self._number((*key, "epsilon"), asked.get("epsilon"))
        if not Fraction(1, 10**6) <= value <= 10**3:
            raise self._wrong((*key, "epsilon"), f"{shown(asked['epsilon'])} is no budget", "give a number like 0.5")
        return value

    # --- the key ----------------------------------------------------------------------------------------------------

    def _key(self, given: object, wanted: Sequence[str]) -> bytes:
        at: Key = ("key",)
        asked = self._mapping(at, given, _KEY)
        if not asked and not wanted:
            return b""
        if not wanted:
            raise self._wrong(at, "no column is pseudonymised", "leave the key out")
        if len(asked) != 1:
            what = "column" if len(wanted) == 1 else "columns"
            remedy = "give key: {file: PATH} or key: {variable: NAME}; openssl rand -hex 32 makes one"
            raise self._wrong(at, f"{what} {', '.join(map(repr, wanted))} needs one key for pseudonyms", remedy)
        word, value = next(iter(asked.items()))
        if word == "variable":
            name = self._text((*at, word), value)
            secret = (settings.present([name])[name] or "").strip().encode()
            place = f"variable {name}"
        else:
            path = self._file((*at, word), value)
            secret, place = read_bytes(path, ConfigError).strip(), str(path)
            try:
                check_secret(path)
            except BadValueError as error:
                raise ConfigError(error.problem, remedy=error.remedy) from error
        if len(secret) < _LEAST_KEY_BYTES:
            problem = f"{place} holds {len(secret)} bytes, and a key has {_LEAST_KEY_BYTES} or more"
            raise self._wrong((*at, word), problem, "openssl rand -hex 32 makes one")
        return secret

    # --- values -----------------------------------------------------------------------------------------------------

    def _known(self, key: Key, name: str, columns: Mapping[str, ColumnRule]) -> ColumnRule:
        if name not in columns:
            problem = f"no column {name!r} stands under columns{did_you_mean(name, columns)}"
            raise self._wrong(key, problem, f"there are {', '.join(columns)}")
        return columns[name]

    def _file(self, key: Key, given: object) -> Path:
        path = self._folder / Path(self._text(key, given)).expanduser()
        self._files.append(path)
        return path

    def _text(self, key: Key, given: object) -> str:
        if isinstance(given, bool) or not isinstance(given, str | int | float):
            raise self._wrong(key, f"{shown(given)} is not text", "put it between quotation marks")
        return str(given)

    def _one_of(self, key: Key, given: object, allowed: Sequence[str]) -> str:
        if given not in allowed:
            raise self._wrong(
                key, f"{shown(given)} is not known{did_you_mean(given, allowed)}", f"allowed: {', '.join(allowed)}"
            )
        return str(given)

    def _whole(self, key: Key, given: object, least: int, most: int) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
            raise self._wrong(key, f"{shown(given)} is not allowed", f"give a whole number from {least} to {most}")
        return given

    def _number(self, key: Key, given: object) -> Fraction:
        if isinstance(given, bool) or not isinstance(given, int | float) or abs(given) > 1e15 or given != given:
            raise self._wrong(key, f"{shown(given)} is not a number", "give one like 5 or 0.5")
        return Fraction(str(given))

    def _share(self, key: Key, given: object) -> float:
        text = str(given)
        try:
            value = float(text[:-1]) / 100.0 if text.endswith("%") else float(text)
        except ValueError:
            value = -1.0
        if not 0.0 <= value < 1.0 or isinstance(given, bool):
            raise self._wrong(key, f"{shown(given)} is not a share of the rows", "give one like '1%'")
        return value


def _csv_rows(path: Path) -> list[list[str]]:
    """Return the rows of a hierarchy; cells are parted by commas, or by semicolons where the first row has no comma."""
    text = read_text(path, ConfigError)
    parted = "," if "," in text.split("\n", 1)[0] else ";"
    try:
        return [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=parted, strict=True) if row]
    except csv.Error as error:
        raise ConfigError(f"{path}: this is no table: {error}", remedy="write 'value,label,label' rows") from error
