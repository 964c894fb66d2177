"""Whole tables anonymised over processes of unequal speed: the same files for any fleet, and mistakes leave none."""

from __future__ import annotations

import csv
import datetime
import decimal
import json
import math
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import hetero
from hetero.cli.main import app
from hetero.errors import BadValueError, HeteroError
from hetero.privacy import run, tables

RECIPE: dict[str, Any] = {
    "key": {"file": "people.key"},
    "columns": {
        "name": "suppress",
        "email": "pseudonymise",
        "age": {"intervals": [5, 10, 40]},
        "postcode": {"prefix": [3, 2, 1]},
        "illness": "keep",
    },
    "require": {"k": 4, "l": 2, "sensitive": ["illness"], "suppressed": "5%"},
}


@pytest.fixture(scope="module")
def fleet() -> Any:
    with hetero.Context(devices="1xcpu,1xcpu*0.25", history=False) as ctx:
        yield ctx


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 4096)
    monkeypatch.setattr(tables, "_PIECE_ROWS", 100)
    (tmp_path / "people.key").write_text("0123456789abcdef" * 4)
    (tmp_path / "people.key").chmod(0o600)
    write_people(tmp_path / "people.csv", 1000)
    return tmp_path


def write_people(path: Path, rows: int, seed: int = 0) -> None:
    rng = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["name", "email", "age", "postcode", "illness"])
        for _ in range(rows):
            number = rng.randrange(300)
            lines.writerow([
                f'Q"{number}",\nzz', f"q{number}@example.org", rng.randrange(18, 90), f"0{rng.randrange(2000, 2100)}",
                rng.choice(["flu", "gout", "asthma"]),
            ])  # fmt: skip


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_files_are_the_same_whatever_the_fleet_and_the_cut(
    folder: Path, fleet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = hetero.batch.anonymise(RECIPE, "people.csv", "two.csv", ctx=fleet)
    assert report.devices is not None
    assert sum(report.devices.values()) == report.rows == 1000
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 1 << 20)
    other = hetero.batch.anonymise(RECIPE, "people.csv", "one.csv", devices="1xcpu")
    assert Path("one.csv").read_bytes() == Path("two.csv").read_bytes()
    assert {**report.as_dict(), "devices": 0} == {**other.as_dict(), "devices": 0}
    found = rows_of(folder / "two.csv")
    classes = Counter((row["age"], row["postcode"]) for row in found)
    assert min(classes.values()) >= 4
    assert len(found) == 1000 - report.suppressed >= 950
    assert list(found[0]) == ["email", "age", "postcode", "illness"]
    assert sorted(path.name for path in folder.iterdir()) == ["one.csv", "people.csv", "people.key", "two.csv"]


def test_parquet_gives_the_rows_of_csv_and_a_folder_is_one_table(folder: Path, fleet: Any) -> None:
    hetero.batch.anonymise(RECIPE, "people.csv", "a.parquet", ctx=fleet)
    text = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(RECIPE["columns"], pa.string()))
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    whole = pyarrow.csv.read_csv("people.csv", convert_options=text, parse_options=parse)
    Path("many").mkdir()
    for number in range(3):
        part = whole.slice(334 * number, 334)
        pq.write_table(part, f"many/{number}.parquet", row_group_size=50)
    hetero.batch.anonymise(RECIPE, "many", "public", ctx=fleet)
    parts = [pq.read_table(path) for path in sorted(Path("public").iterdir())]
    assert pa.concat_tables(parts).equals(pq.read_table("a.parquet"))
    csv_rows = rows_of_parquet("a.parquet")
    hetero.batch.anonymise(RECIPE, "people.csv", "a.csv", ctx=fleet)
    assert csv_rows == rows_of(folder / "a.csv")
    assert pq.read_schema("a.parquet").metadata is None


def rows_of_parquet(path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def test_bulk_work_applies_levels_that_were_chosen_for_the_whole(folder: Path, fleet: Any) -> None:
    change = hetero.batch.fit_anonymiser(RECIPE, "people.csv", ctx=fleet)
    hetero.batch.anonymise(RECIPE, "people.csv", "a.csv", ctx=fleet)
    text = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(RECIPE["columns"], pa.string()))
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    whole = pyarrow.csv.read_csv("people.csv", convert_options=text, parse_options=parse)
    outcome = fleet.map_batches(change, whole, options=hetero.batch.BatchOptions(same_count=False))
    assert outcome.value.to_pylist() == rows_of(folder / "a.csv")


def test_a_pseudonym_is_the_same_in_another_table(folder: Path, fleet: Any) -> None:
    write_people(folder / "others.csv", 400, seed=1)
    for name in ("people", "others"):
        recipe = {**RECIPE, "columns": {**RECIPE["columns"], "age": "suppress", "postcode": "suppress"}}
        del recipe["require"]
        hetero.batch.anonymise(recipe, f"{name}.csv", f"{name}-out.csv", ctx=fleet)
    found: dict[str, set[str]] = {}
    for name in ("people", "others"):
        for before, after in zip(rows_of(folder / f"{name}.csv"), rows_of(folder / f"{name}-out.csv"), strict=True):
            found.setdefault(before["email"], set()).add(after["email"])
    assert {len(each) for each in found.values()} == {1}
    assert len({next(iter(each)) for each in found.values()}) == len(found)


def test_counts_are_published_near_what_they_are(folder: Path, fleet: Any) -> None:
    counts = {"epsilon": 60, "output": "counts.csv", "columns": {"illness": {"values": ["flu", "gout"], "epsilon": 50}}}
    report = hetero.batch.anonymise({**RECIPE, "counts": counts}, "people.csv", "a.csv", ctx=fleet)
    exact = Counter(row["illness"] for row in rows_of(folder / "people.csv"))
    assert report.epsilon == {"spent": 50.0, "before": 0.0, "budget": 60.0}
    assert rows_of(folder / "counts.csv") == [
        {"column": "illness", "value": "flu", "count": str(exact["flu"])},
        {"column": "illness", "value": "gout", "count": str(exact["gout"])},
        {"column": "illness", "value": "(other)", "count": str(exact["asthma"])},
    ]


def test_what_is_spent_is_kept_and_no_run_exceeds_the_budget(folder: Path, fleet: Any) -> None:
    counts = {**COUNTS, "output": "counts.csv", "ledger": "people.budget", "epsilon": 2.5}
    for number in range(2):
        report = hetero.batch.anonymise({**RECIPE, "counts": counts}, "people.csv", "a.csv", ctx=fleet)
        assert report.epsilon == {"spent": 1.0, "before": float(number), "budget": 2.5}
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(BadValueError, match=r"people.budget: 2 of epsilon is spent, 1 more is asked for, and 2.5 may"):
        hetero.batch.anonymise({**RECIPE, "counts": counts}, "people.csv", "a.csv", ctx=fleet)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    Path("people.budget").write_text('{"format": "hetero-epsilon/1", "spent": "1e9"}')
    with pytest.raises(HeteroError, match=r"people.budget: '1e9' is no epsilon"):
        hetero.batch.anonymise({**RECIPE, "counts": counts}, "people.csv", "a.csv", ctx=fleet)


def _dies_once(work: Any, piece: Any) -> Any:
    mark = Path(f"{piece.place}.mark")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return run._change(work, piece)


def test_a_worker_that_dies_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hetero.Context(devices="2xcpu", history=False) as ctx:
        hetero.batch.anonymise(RECIPE, "people.csv", "calm.csv", ctx=ctx)
        with monkeypatch.context() as patch:
            patch.setattr(run, "_change", _dies_once)
            hetero.batch.anonymise(RECIPE, "people.csv", "died.csv", ctx=ctx)
    assert Path("people.csv.mark").exists()
    assert Path("died.csv").read_bytes() == Path("calm.csv").read_bytes()


def test_a_table_without_rows_keeps_its_columns(folder: Path, fleet: Any) -> None:
    Path("people.csv").write_text("name,email,age,postcode,illness\n")
    recipe = {key: part for key, part in RECIPE.items() if key != "require"}
    recipe["columns"] = {**recipe["columns"], "age": "keep", "postcode": {"prefix": [3], "least": 1}}
    hetero.batch.anonymise(recipe, "people.csv", "a.csv", ctx=fleet)
    assert Path("a.csv").read_text().strip() == '"email","age","postcode","illness"'


COUNTS = {"epsilon": 1, "output": "people.csv", "columns": {"illness": {"values": ["flu"], "epsilon": 1}}}
CHANGED_COLUMNS = {**RECIPE["columns"], "agge": "keep"}


@pytest.mark.parametrize(
    ("recipe", "source", "output", "words"),
    [
        ({"require": {"k": 2000}}, "people.csv", "a.csv", "k=2000 is larger than the table, which has 1,000 rows"),
        ({"columns": CHANGED_COLUMNS}, "people.csv", "a.csv", "no column 'agge'; did you mean 'age'?"),
        (
            {"columns": {"age": "keep"}, "key": None, "require": None}, "people.csv", "a.csv",
            "what becomes of column 'name'",
        ),
        (
            {"columns": {**RECIPE["columns"], "illness": {"hierarchy": {"x": ["flu"]}}}, "require": {"k": 2}},
            "people.csv", "a.csv", "column 'illness': recipe does not cover",
        ),
        ({}, "people.csv", "people.csv", "is what is read"),
        ({}, "people.csv", "people.key", "is what is read"),
        ({"counts": COUNTS}, "people.csv", "a.csv", "counts.output: people.csv is what is read"),
        ({"counts": {**COUNTS, "output": "a.csv"}}, "people.csv", "a.csv", "counts.output: a.csv is what is"),
        ({}, "people.csv", "a.txt", "a.txt is no table"),
        ({}, "gone.csv", "a.csv", "there is no file or folder gone.csv"),
        ({}, "broken.csv", "a.csv", "broken.csv: row 3 has 2 cells, and there are 5 columns"),
        ({}, "cut.parquet", "a.csv", "cut.parquet cannot be read as parquet"),
        ({}, "latin.csv", "a.csv", "latin.csv: it is not UTF-8 text"),
        ({}, "empty.csv", "a.csv", "empty.csv: it has no column"),
        ({}, "open.csv", "a.csv", "open.csv: a quotation mark is not closed"),
        (
            {"columns": {"a": "keep"}, "key": None, "require": None}, "nested.parquet", "a.csv",
            "which CSV has no form for",
        ),
        ({}, "twice.csv", "a.csv", "the column 'a' is there twice"),
        ({}, "people.csv", "nowhere/a.csv", "nowhere"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_line_and_leaves_nothing_behind(
    folder: Path, fleet: Any, recipe: dict[str, Any], source: str, output: str, words: str
) -> None:
    text = Path("people.csv").read_text(encoding="utf-8")
    if source == "broken.csv":
        Path(source).write_text("name,email,age,postcode,illness\nQ,a@b.c,5,0,flu\nZsecret,x\n")
    elif source == "cut.parquet":
        pq.write_table(pa.table({"a": [1]}), source)
        Path(source).write_bytes(Path(source).read_bytes()[:-20])
    elif source == "latin.csv":
        Path(source).write_bytes(text.encode() + "Jos\xe9,a@b.c,5,0,flu\n".encode("latin-1"))
    elif source == "empty.csv":
        Path(source).write_text("")
    elif source == "open.csv":
        Path(source).write_text(text.replace('zz"', "zz", 1), encoding="utf-8")
    elif source == "nested.parquet":
        pq.write_table(pa.table({"a": [[1], [2]]}), source)
    elif source == "twice.csv":
        Path(source).write_text("a,a\n1,2\n")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    given = {key: part for key, part in {**RECIPE, **recipe}.items() if part is not None}
    with pytest.raises(HeteroError) as caught:
        hetero.batch.anonymise(given, source, output, ctx=fleet)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert "secret" not in message
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_columns_of_any_type_are_counted_and_written(folder: Path, fleet: Any) -> None:
    day, time = datetime.date(2020, 1, 31), datetime.datetime(2020, 1, 31, 5)
    table = pa.table(
        {
            "time": pa.array([time, time, None], pa.timestamp("us")),
            "day": [day, day.replace(month=3), None],
            "word": pa.array(["x", "y", "x"]).dictionary_encode(),
            "none": pa.nulls(3),
            "truth": [True, False, None],
            "exact": pa.array([decimal.Decimal("1.50"), decimal.Decimal("1.75"), None]),
            "float": [1.5, math.nan, None],
            "list": [[1], [2], [3]],
        }
    )
    columns = {
        "time": {"dates": ["month"], "least": 1}, "day": {"dates": ["year"], "least": 1}, "word": "generalise",
        "none": "generalise", "truth": "keep", "exact": {"intervals": [1], "least": 1},
        "float": {"intervals": [2], "least": 1}, "list": "keep",
    }  # fmt: skip
    pq.write_table(table, "t.parquet")
    hetero.batch.anonymise({"columns": columns, "require": {"k": 1}}, "t.parquet", "u.parquet", ctx=fleet)
    assert pq.read_table("u.parquet").to_pydict() == {
        "time": ["2020-01", "2020-01", None],
        "day": ["2020", "2020", None],
        "word": ["x", "y", "x"],
        "none": [None, None, None],
        "truth": [True, False, None],
        "exact": ["[1, 2)", "[1, 2)", None],
        "float": ["[0, 2)", None, None],
        "list": [[1], [2], [3]],
    }


def test_a_run_that_fails_on_the_way_leaves_nothing_behind(folder: Path, fleet: Any) -> None:
    before = sorted(folder.iterdir())
    with Path("people.csv").open("a") as file:
        file.write("Q,a@b.c,5,0\n")
    recipe = {"columns": {**RECIPE["columns"], "age": "keep", "postcode": "keep"}, "key": RECIPE["key"]}
    with pytest.raises(HeteroError, match=r"people.csv: row 1002 has 4 cells, and there are 5 columns"):
        hetero.batch.anonymise(recipe, "people.csv", "a.csv", ctx=fleet)
    assert sorted(folder.iterdir()) == before


def test_the_commands_print_what_they_did_and_a_recipe_that_they_take(folder: Path) -> None:
    runner = CliRunner()
    found = runner.invoke(app, ["anonymise", "detect", "people.csv"])
    assert found.exit_code == 0, found.output
    Path("recipe.yaml").write_text(found.stdout.replace("anonymise.key", "people.key"))
    words = ["anonymise", "recipe.yaml", "people.csv", "a.csv", "--devices", "1xcpu", "--set", "require.k=4"]
    done = runner.invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "1,000 rows" in done.stdout
    told = runner.invoke(app, [*words, "--json"])
    assert json.loads(told.stdout)["required"] == {"k": 4.0}
    emails = {row["email"] for row in rows_of(folder / "people.csv")}
    assert not [email for email in emails if email in done.stdout + told.stdout + found.stdout]
