"""Anonymisation without devices: recipes, levels, classes, the search, noise and suggestions."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hetero.errors import BadValueError, ConfigError, HeteroError
from hetero.privacy import classes, detect
from hetero.privacy.classes import ClassSearch, Ladder, Numbering, Requirement, Sensitive, coded, merged, tally_of
from hetero.privacy.recipe import AnonymisationRecipe, ColumnRule, read_anonymisation
from hetero.privacy.run import AnonymisationReport, Anonymiser, chosen, counted_margins
from hetero.privacy.transforms import Dates, Hierarchy, Intervals, Prefix, discrete_laplace, pseudonyms
from tests.needs import PROJECT

RECIPE: dict[str, Any] = {
    "columns": {
        "age": {"intervals": [5, 10, 40]},
        "postcode": {"prefix": [2, 1]},
        "sex": "generalise",
        "illness": "keep",
        "income": "keep",
        "name": "suppress",
    },
    "require": {"k": 3},
}


def people(rng: random.Random, rows: int) -> pa.Table:
    """Make a table with an empty cell here and there."""

    def some(values: list[Any]) -> list[Any]:
        return [None if rng.random() < 0.02 else rng.choice(values) for _ in range(rows)]

    return pa.table(
        {
            "age": pa.array(some(list(range(18, 18 + rng.randrange(5, 60)))), pa.int64()),
            "postcode": pa.array(some([f"{rng.randrange(100):03}" for _ in range(12)]), pa.string()),
            "sex": pa.array(some(["f", "m"]), pa.string()),
            "illness": pa.array([rng.choice(["flu", "gout", "asthma"]) for _ in range(rows)]),
            "income": pa.array([rng.choice([10, 20, 25, 90]) for _ in range(rows)], pa.int64()),
            "name": pa.array([f"person {number}" for number in range(rows)]),
        }
    )


def recipe_with(**require: Any) -> AnonymisationRecipe:
    return read_anonymisation({**RECIPE, "require": require})


def cut(table: pa.Table, rng: random.Random) -> list[pa.Table]:
    """Cut a table into batches, some of them empty."""
    edges = sorted(rng.randrange(len(table) + 1) for _ in range(rng.randrange(6)))
    return [table.slice(begin, end - begin) for begin, end in itertools.pairwise([0, *edges, len(table)])]


def fitted(recipe: AnonymisationRecipe, parts: list[pa.Table], rng: random.Random | None = None) -> Anonymiser:
    names, margins = counted_margins(recipe)
    tallies = [tally_of(part, names, margins) for part in parts]
    if rng is not None:
        rng.shuffle(tallies)
        tallies = [merged(tallies[:2]), *tallies[2:]]
    return chosen(recipe, parts[0].column_names, merged(tallies))


def class_rows(table: pa.Table) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Return the rows of each class, by nothing of what is tested."""
    found = defaultdict(list)
    for row in table.to_pylist():
        found[row["age"], row["postcode"], row["sex"]].append(row)
    return found


def distance(own: Counter[Any], whole: Counter[Any], ordered: bool) -> float:
    """Return the earth mover's distance as it is defined."""
    values = sorted(whole)
    gaps = [own[value] / own.total() - whole[value] / whole.total() for value in values]
    if not ordered:
        return sum(map(abs, gaps)) / 2
    return sum(abs(sum(gaps[: end + 1])) for end in range(len(gaps))) / max(1, len(values) - 1)


REQUIREMENTS: list[dict[str, Any]] = [
    {"k": 2},
    {"k": 3, "suppressed": "10%"},
    {"k": 2, "l": 2, "sensitive": ["illness"], "suppressed": "5%"},
    {"k": 2, "t": 0.35, "sensitive": {"income": "number"}, "suppressed": "20%"},
    {"l": 2, "t": 0.4, "sensitive": {"illness": "category", "income": "number"}, "suppressed": "5%"},
]


@pytest.mark.parametrize("seed", range(50))
def test_however_rows_are_cut_the_result_is_the_same_and_satisfies_what_is_required(seed: int) -> None:
    rng = random.Random(seed)
    table = people(rng, rng.randrange(40, 200))
    require = REQUIREMENTS[seed % len(REQUIREMENTS)]
    recipe = recipe_with(**require)
    whole, parts = fitted(recipe, [table]), cut(table, rng)
    split = fitted(recipe, parts, rng)
    assert split.report == whole.report
    result = whole(table)
    assert pa.concat_tables([split(part) for part in parts]).equals(result)
    assert len(result) >= len(table) * (1 - float(str(require.get("suppressed", "0%"))[:-1]) / 100)
    found = class_rows(result)
    assert min(map(len, found.values())) >= require.get("k", 1)
    assert min(map(len, found.values())) == whole.report.as_dict()["classes"]["smallest"]
    kinds = require.get("sensitive", {})
    for name, kind in kinds.items() if isinstance(kinds, dict) else [(name, "category") for name in kinds]:
        every = Counter(result[name].to_pylist())
        own = [Counter(row[name] for row in rows) for rows in found.values()]
        assert min(map(len, own)) >= require.get("l", 1)
        assert max(distance(each, every, kind == "number") for each in own) <= require.get("t", 1) + 1e-6


@pytest.mark.parametrize("seed", range(12))
def test_no_levels_lose_less_than_those_that_are_taken(seed: int) -> None:
    """Every node of the lattice is tried in plain Python."""
    rng = random.Random(seed)
    table = people(rng, 60)
    require = REQUIREMENTS[seed % 3]
    recipe = recipe_with(**require)
    names, margins = counted_margins(recipe)
    tally = merged([tally_of(table, names, margins)])
    rules = list(recipe.generalised.values())
    ladders = [Ladder.of(rule.levels, tally.values[at], 0) for at, rule in enumerate(rules) if rule.levels]
    assert recipe.require is not None
    found = ClassSearch(tally, ladders, recipe.require).best()
    columns = [coded(table[name]) for name in ("age", "postcode", "sex")]
    order = [{value: at for at, value in enumerate(tally.values[at].to_pylist())} for at in range(3)]
    base = [
        [order[at].get(column.values[int(code)].as_py()) if code < len(column.values) else len(order[at])
         for code in column.codes]
        for at, column in enumerate(columns)
    ]  # fmt: skip
    best = math.inf
    for node in itertools.product(*(range(ladder.height + 1) for ladder in ladders)):
        labels = list(
            zip(
                *([int(lad.maps[lvl][c]) for c in col] for lad, lvl, col in zip(ladders, node, base, strict=True)),
                strict=True,
            )
        )
        members = defaultdict(list)
        for label, ill in zip(labels, table["illness"].to_pylist(), strict=True):
            members[label].append(ill)
        sound = {
            label for label, ills in members.items()
            if len(ills) >= require.get("k", 1) and len(set(ills)) >= require.get("l", 1)
        }  # fmt: skip
        gone = sum(label not in sound for label in labels)
        if gone > recipe.require.suppressed_frac * len(table) or not sound:
            continue
        lost = [
            1.0 if label not in sound
            else sum(float(lad.losses[lvl][c]) for lad, lvl, c in zip(ladders, node, label, strict=True)) / 3
            for label in labels
        ]  # fmt: skip
        best = min(best, sum(lost) / len(lost))
    assert found.loss == pytest.approx(best)


def test_a_large_lattice_is_searched_along_a_path_and_still_satisfies(monkeypatch: pytest.MonkeyPatch) -> None:
    table = people(random.Random(3), 150)
    recipe = recipe_with(k=4)
    best = fitted(recipe, [table])
    monkeypatch.setattr(classes, "_MOST_NODES", 1)
    path = fitted(recipe, [table])
    assert min(map(len, class_rows(path(table)).values())) >= 4
    assert path.report.loss is not None
    assert best.report.loss is not None
    assert path.report.loss["certainty_penalty"] >= best.report.loss["certainty_penalty"]


def test_nothing_is_generalised_where_classes_are_large_enough() -> None:
    table = pa.concat_tables([people(random.Random(1), 20)] * 3)
    change = fitted(recipe_with(k=3), [table])
    assert {column.get("level", 0) for column in change.report.columns} == {0}
    assert change(table).equals(table.drop_columns(["name"]))


def test_classes_that_did_not_occur_are_left_out() -> None:
    table = people(random.Random(2), 80)
    change = fitted(recipe_with(k=1), [table])
    assert len(change(table)) == len(table)
    stranger = table.slice(0, 1).set_column(0, "age", pa.array([99], pa.int64()))
    assert len(change(stranger)) == 0


def test_the_numbers_of_rows_keep_their_order_where_the_product_of_columns_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(5)
    columns = [rng.integers(0, 50, 400) for _ in range(4)]
    whole, numbers = Numbering.of(columns, [50] * 4)
    monkeypatch.setattr(classes, "_LARGEST", 1000)
    small, fewer = Numbering.of(columns, [50] * 4)
    assert small.size < whole.size
    assert (np.argsort(numbers, kind="stable") == np.argsort(fewer, kind="stable")).all()
    assert all((one == other).all() for one, other in zip(small.codes(fewer), columns, strict=True))
    assert (small.numbers(columns) == fewer).all()
    unseen = small.numbers([np.array([49]), np.array([-1]), np.array([0]), np.array([0])])
    assert unseen.tolist() == [-1]


# --- levels and pseudonyms ------------------------------------------------------------------------------------


def test_intervals_are_nested_and_begin_at_the_origin() -> None:
    levels = Intervals((Fraction("0.1"), Fraction("0.2"), Fraction(1)), Fraction("0.05"))
    values = pa.array([str(number / 100) for number in range(-60, 60)])
    ladder = Ladder.of(levels, values, 0)
    for below in range(levels.height):
        assert (ladder.up(below, below + 1)[ladder.maps[below]] == ladder.maps[below + 1]).all()
    assert levels.labels(pa.array(["0.05", "0.04"]), 1).to_pylist() == ["[0.05, 0.15)", "[-0.05, 0.05)"]


def test_what_is_lost_grows_with_the_level_from_nothing_to_all() -> None:
    values = pa.array(["1990-01-31", "1990-02-01", "1991-07-05", "2003-11-30"])
    for levels in (Dates(("month", "year", "decade")), Prefix((7, 4, 3))):
        ladder = Ladder.of(levels, values, 0)
        means = [float(loss[to[:-1]].mean()) for loss, to in zip(ladder.losses, ladder.maps, strict=True)]
        assert means == sorted(means)
        assert (means[0], means[-1]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("levels", "value", "words"),
    [
        (Intervals((Fraction(5),), Fraction(0)), "abc", "'abc' is no number"),
        (Intervals((Fraction(5),), Fraction(0)), "1e300", "beyond all intervals"),
        (Dates(("year",)), "31.12.1999", "'31.12.1999' is no date"),
        (Dates(("year",)), "1999-02-31", "'1999-02-31' is no date"),
        (Hierarchy(("a",), (("x",),), "h.csv"), "b", "h.csv does not cover 'b'"),
    ],
)
def test_a_value_of_another_kind_is_named(levels: Any, value: str, words: str) -> None:
    with pytest.raises(BadValueError, match=words):
        Ladder.of(levels, pa.array([value]), 0)


def test_a_pseudonym_depends_on_value_domain_and_key_alone() -> None:
    values, key = pa.array(["Ada", "Bob"]), b"k" * 32
    once = pseudonyms(values, key, "").to_pylist()
    assert once == pseudonyms(values, key, "").to_pylist()
    assert len({*once, *pseudonyms(values, key, "x").to_pylist(), *pseudonyms(values, b"j" * 32, "").to_pylist()}) == 6
    assert pseudonyms(pa.array(["1:b"]), key, "a").to_pylist() != pseudonyms(pa.array(["b"]), key, "a:1").to_pylist()
    table = pa.table({"id": pa.array([7, None, 7], pa.int64()), "x": ["7", "8", None]})
    recipe = AnonymisationRecipe({name: ColumnRule("pseudonymise") for name in ("id", "x")}, key=key)
    found = Anonymiser(recipe, AnonymisationReport(0), {})(table)
    assert found["id"].to_pylist() == [found["x"][0].as_py(), None, found["x"][0].as_py()]


# --- noise ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [Fraction(1, 2), Fraction(1), Fraction(7, 3)])
def test_noise_has_the_two_sided_geometric_distribution(epsilon: Fraction) -> None:
    rng, many = random.Random(11), 20_000
    found = Counter(discrete_laplace(epsilon, rng.randrange) for _ in range(many))
    a = math.exp(-epsilon)
    for size in range(-3, 4):
        expected = many * (1 - a) / (1 + a) * a ** abs(size)
        assert abs(found[size] - expected) < 5 * math.sqrt(expected)


# --- recipes --------------------------------------------------------------------------------------------------


def test_the_example_can_be_read(tmp_path: Path) -> None:
    text = (PROJECT / "examples" / "anonymise.yaml").read_text(encoding="utf-8")
    (tmp_path / "anonymise.yaml").write_text(text)
    (tmp_path / "people.key").write_text("0" * 64)
    (tmp_path / "people.key").chmod(0o600)
    recipe = read_anonymisation(tmp_path / "anonymise.yaml", ["require.k=7"])
    assert recipe.require == Requirement(7, 2, None, (Sensitive("illness", False),), 0.02)
    assert recipe.columns["job"].levels == Hierarchy(
        ("nurse", "doctor", "baker", "smith"),
        (("health", "health", "trade", "trade"),),
        recipe.columns["job"].levels.place,  # type: ignore[union-attr]
    )
    assert "0000" not in repr(recipe)


@pytest.mark.parametrize(
    ("columns", "rest", "words"),
    [
        ("{a: kept}", "", "a.yaml:1: columns.a: 'kept' is not what becomes of a column; did you mean 'keep'?"),
        ("{a: {interval: [5]}}", "", "it names none of them"),
        ("{a: {intervals: [5], dates: [day]}}", "", "it names intervals and dates; name one of"),
        ("{a: {intervals: [5, 12], least: 1}}", "", "each width must be a multiple of the one before"),
        ("{a: {intervals: [0], least: 1}}", "", "0 is no width"),
        ("{a: {dates: [year, month], least: 1}}", "", "does not go from fine to coarse"),
        ("{a: {dates: [week], least: 1}}", "", "'week' is not known"),
        ("{a: {prefix: [1, 2], least: 1}}", "", "does not get shorter"),
        ("{a: {prefix: [2], least: 3}}", "", "columns.a.least: 3 is not allowed; give a whole number from 0 to 2"),
        ("{a: {prefix: [2]}}", "", "nothing says how far this is generalised"),
        ("{a: {hierarchy: {x: y}, least: 1}}", "", "'y' is no list of values"),
        ("{a: {hierarchy: {x: [y], z: [y]}, least: 1}}", "", "the value 'y' twice"),
        ("{a: {hierarchy: gone.csv, least: 1}}", "", "gone.csv cannot be read"),
        ("{a: pseudonymise}", "", "'a' needs one key for pseudonyms"),
        ("{a: keep}", "key: {file: b}", "no column is pseudonymised"),
        ("{a: pseudonymise}", "key: {variable: HETERO_NO_SUCH}", "holds 0 bytes, and a key has 32 or more"),
        ("{a: suppress}", "", "all columns are suppressed"),
        ("{a: keep}", "require: {k: 5}", "no column is generalised"),
        ("{a: generalise}", "require: {l: 2}", "require.l: no column is sensitive"),
        ("{a: generalise}", "require: {k: 2, sensitive: [b]}", "no column 'b' stands under columns"),
        ("{a: generalise, b: suppress}", "require: {k: 2, sensitive: [b]}", "columns.b is suppress; write keep there"),
        ("{a: generalise, b: keep}", "require: {sensitive: [b]}", "nothing is required; give k, l or t"),
        ("{a: generalise, b: keep}", "require: {t: 2, sensitive: [b]}", "2 is no distance"),
        ("{a: generalise}", "require: {k: 2, suppressed: 2}", "2 is not a share of the rows"),
        ("{a: keep}", "kolumns: 1", "there is no such key; did you mean 'columns'?"),
        ("{a: keep}", "counts: {epsilon: 1, output: o}", "counts: columns is absent"),
        (
            "{a: keep}",
            "counts: {epsilon: 1, output: o, columns: {a: {values: [x], epsilon: 2}}}",
            "the columns spend 2 of epsilon, and 1 may be spent",
        ),
        ("{a: keep}", "counts: {epsilon: 1, output: o, columns: {a: {epsilon: 1}}}", "values is absent"),
    ],
)
def test_a_wrong_recipe_is_refused_by_its_place_in_one_line(
    columns: str, rest: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(f"columns: {columns}\n{rest}\n")
    with pytest.raises(ConfigError) as caught:
        read_anonymisation("a.yaml")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("0" * 64)
    (tmp_path / "key").chmod(0o644)
    recipe = {"columns": {"a": "pseudonymise"}, "key": {"file": str(tmp_path / "key")}}
    with pytest.raises(ConfigError, match="is a secret, and others may read or write it; chmod 600"):
        read_anonymisation(recipe)


def test_a_hierarchy_whose_labels_lie_under_two_is_refused(tmp_path: Path) -> None:
    (tmp_path / "h.csv").write_text("nurse,health,all\nbaker,health,some\n")
    with pytest.raises(ConfigError, match="'health' of level 1 lies under 'all' and 'some'"):
        read_anonymisation({"columns": {"a": {"hierarchy": str(tmp_path / "h.csv"), "least": 1}}})


@pytest.mark.parametrize(
    ("require", "words"),
    [
        ({"k": 61}, "k=61 is larger than the table, which has 60 rows"),
        ({"l": 4, "sensitive": ["illness"]}, "l=4 cannot be reached: column 'illness' has 3 distinct values"),
        ({"t": 0.1, "sensitive": {"illness": "number"}}, "column 'illness' holds what is no number"),
    ],
)
def test_what_no_levels_can_satisfy_is_refused(require: dict[str, Any], words: str) -> None:
    with pytest.raises(HeteroError, match=words):
        fitted(recipe_with(**require), [people(random.Random(0), 60)])


# --- detecting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "right", "wrong"),
    [
        ("e-mail addresses", "ada@example.org", "ada@example"),
        ("IP addresses", "192.0.2.7", "192.0.2.700"),
        ("IP addresses", "2001:db8::1", "12"),
        ("IBANs", "GB82 WEST 1234 5698 7654 32", "GB82 WEST 1234 5698 7654 33"),
        ("card numbers", "4111 1111 1111 1111", "4111 1111 1111 1112"),
        ("phone numbers", "+34 600 123 456", "600123456789012345"),
        ("phone numbers", "(030) 123-4567", "2026-11-23"),
    ],
)
def test_a_pattern_takes_what_is_right_and_not_what_has_a_wrong_digit(what: str, right: str, wrong: str) -> None:
    assert detect.PATTERNS[what](right)
    assert not detect.PATTERNS[what](wrong)


def test_suggestions_are_a_recipe_that_holds_no_value_of_the_table(tmp_path: Path) -> None:
    rows = ["firstName,contact,age,born,zip code,gender,remarks2,blood"]
    for number in range(60):
        rows.append(
            f"Q{number}zz,q{number}@example.org,{number},19{number:02}-01-01,28{number:03},f,"
            f"text {number} of qq,{'ab'[number % 2]}bb"
        )
    (tmp_path / "a.csv").write_text("\n".join(rows))
    text = detect.recipe_of(detect.suggested(tmp_path / "a.csv"))
    (tmp_path / "anonymise.key").write_text("0" * 64)
    (tmp_path / "anonymise.key").chmod(0o600)
    (tmp_path / "recipe.yaml").write_text(text)
    recipe = read_anonymisation(tmp_path / "recipe.yaml")
    assert {name: rule.word for name, rule in recipe.columns.items()} == {
        "firstName": "suppress", "contact": "pseudonymise", "age": "generalise", "born": "generalise",
        "zip code": "generalise", "gender": "generalise", "remarks2": "suppress", "blood": "keep",
    }  # fmt: skip
    assert not [cell for row in rows[1:] for cell in row.split(",") if len(cell) > 2 and cell in text]


# --- reports --------------------------------------------------------------------------------------------------


def test_the_report_holds_no_value_of_the_table() -> None:
    rng = random.Random(9)
    table = people(rng, 90)
    change = fitted(recipe_with(k=3, l=2, sensitive=["illness"], suppressed="5%"), [table])
    text = change.report.as_text() + json.dumps(change.report.as_dict())
    values = {str(value) for column in table.columns for value in column.to_pylist() if value is not None}
    assert not [value for value in values if not value.isdigit() and len(value) > 1 and value in text]
    assert "age" in text


def test_the_report_counts_loss_as_its_sources_define_it() -> None:
    table = pa.table({"age": [1, 2, 11, 12, 40], "ill": ["a", "b", "a", "b", "a"]})
    recipe = read_anonymisation(
        {
            "columns": {"age": {"intervals": [10]}, "ill": "keep"},
            "require": {"k": 2, "suppressed": "20%"},
        }
    )
    report = fitted(recipe, [table]).report
    assert report.suppressed == 1
    assert report.classes == {"count": 2, "smallest": 2, "median": 2.0, "largest": 2}
    assert report.loss is not None
    assert report.loss["certainty_penalty"] == pytest.approx((4 * (1 / 39) + 1) / 5)
    assert report.loss["discernibility"] == 2 * 2**2 + 1 * 5
    assert report.loss["class_size"] == 1.0


def test_pycanon_agrees() -> None:
    pytest.importorskip("pycanon")
    from pycanon import anonymity

    for seed in range(6):
        rng = random.Random(100 + seed)
        table = people(rng, 150)
        table = table.filter(pc.is_valid(table["age"])).drop_null()
        recipe = recipe_with(k=3, l=2, t=0.5, sensitive=["illness"], suppressed="10%")
        change = fitted(recipe, cut(table, rng))
        reached = change.report.reached
        assert reached is not None
        frame, own = change(table).to_pandas().astype(str), ["age", "postcode", "sex"]
        assert anonymity.k_anonymity(frame, own) == reached["k"] >= 3
        assert anonymity.l_diversity(frame, own, ["illness"]) == reached["l"] >= 2
        assert anonymity.t_closeness(frame, own, ["illness"]) == pytest.approx(reached["t"], abs=1e-6)
        change = fitted(recipe_with(k=2, t=0.4, sensitive={"income": "number"}, suppressed="10%"), cut(table, rng))
        frame, reached = change(table).to_pandas().astype(dict.fromkeys(own, str)), change.report.reached
        assert reached is not None
        assert reached["t"] <= 0.4 + 1e-6
        assert anonymity.t_closeness(frame, own, ["income"]) == pytest.approx(reached["t"], abs=1e-6)
