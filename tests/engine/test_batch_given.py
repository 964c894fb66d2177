"""Bulk work over what other packages have opened: Arrow data sets and readers, data frames, indexed data sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.batch.options import BatchLimits
from hetero.errors import BadValueError, HeteroError

pa = pytest.importorskip("pyarrow")
ds = pytest.importorskip("pyarrow.dataset")
pd = pytest.importorskip("pandas")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def ctx() -> Iterator[hetero.Context]:
    with hetero.Context(devices="2xcpu", isolation="thread", history=False) as context:
        yield context


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(2):
        table = pa.table({"id": list(range(100 * number, 100 * number + 100))})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    return tmp_path


def doubled(table: Any) -> Any:
    return pa.table({"twice": [2 * x for x in table["id"].to_pylist()]})


def test_a_data_set_is_read_in_its_order(ctx: hetero.Context, folder: Path) -> None:
    outcome = ctx.map_batches(doubled, ds.dataset(folder, format="parquet"))
    assert outcome.value["twice"].to_pylist() == [2 * x for x in range(200)]


def test_the_filter_of_a_data_set_holds(ctx: hetero.Context, folder: Path) -> None:
    some = ds.dataset(folder, format="parquet").filter(ds.field("id") >= 150)
    outcome = ctx.map_batches(doubled, some)
    assert outcome.items == 50
    assert outcome.value["twice"].to_pylist() == [2 * x for x in range(150, 200)]


def test_a_bad_row_of_a_data_set_is_named_by_its_file_and_row(ctx: hetero.Context, folder: Path) -> None:
    def picky(table: Any) -> Any:
        if 103 in table["id"].to_pylist():
            raise ValueError("no 103")
        return table

    outcome = ctx.map_batches(picky, ds.dataset(folder, format="parquet"), errors=1)
    assert [(Path(bad.place.file).name, bad.place.row) for bad in outcome.bad] == [("1.parquet", 3)]


def test_a_data_set_that_changed_is_not_resumed(ctx: hetero.Context, folder: Path, tmp_path: Path) -> None:
    def stops(table: Any) -> Any:
        raise ValueError("stop")

    out = tmp_path / "out"
    with pytest.raises(HeteroError):
        ctx.map_batches(stops, ds.dataset(folder, format="parquet"), output=out, form="parquet")
    pq.write_table(pa.table({"id": [1]}), folder / "2.parquet")
    with pytest.raises(HeteroError, match=r"data set of \d files.*data set of \d files"):
        ctx.map_batches(stops, ds.dataset(folder, format="parquet"), output=out,
                        form="parquet", resume=True)  # fmt: skip


def test_a_reader_of_record_batches_gives_its_rows_once(ctx: hetero.Context, folder: Path) -> None:
    reader = ds.dataset(folder, format="parquet").scanner().to_reader()
    assert ctx.map_batches(doubled, reader).items == 200
    with pytest.raises(HeteroError, match=r"gives its rows once|is empty"):
        ctx.map_batches(doubled, reader)


def test_rows_of_a_data_frame_are_its_records(ctx: hetero.Context, tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(50.0), "word": [f"w{x}" for x in range(50)]}, index=np.arange(50) + 0.5)

    def scaled(part: Any) -> Any:
        return part.assign(x=part["x"] * 2)

    whole = ctx.map_batches(scaled, frame)
    pd.testing.assert_frame_equal(whole.value, scaled(frame))
    ctx.map_batches(scaled, frame, output=tmp_path / "rows", form="jsonl")
    text = (tmp_path / "rows" / "part-00000.jsonl").read_text().splitlines()
    assert text[3] == '{"x": 6.0, "word": "w3"}'
    ctx.map_batches(scaled, frame, output=tmp_path / "columns", form="parquet")
    assert pq.read_table(tmp_path / "columns").to_pydict() == scaled(frame).to_dict("list")


def test_a_series_comes_back_as_one(ctx: hetero.Context) -> None:
    series = pd.Series([1, 2, 3] * 10)
    pd.testing.assert_series_equal(ctx.map_batches(lambda part: part + 1, series).value, series + 1)


class Squares:
    """A data set as torch has them: a length, and a record by its number."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, place: int) -> int:
        if not 0 <= place < 30:
            raise IndexError(place)
        return place * place


def test_a_data_set_that_is_read_by_number_is_a_source(ctx: hetero.Context) -> None:
    assert ctx.map_batches(list, Squares()).value == [x * x for x in range(30)]


@pytest.mark.parametrize("given", [{"a": 5}, {}, 7])
def test_what_holds_no_records_is_refused(ctx: hetero.Context, given: object) -> None:
    with pytest.raises(BadValueError, match="gives no records"):
        ctx.map_batches(list, given)


def test_a_word_that_names_no_device_is_refused(ctx: hetero.Context) -> None:
    with pytest.raises(BadValueError, match="batch='cuda_' is no kind or type of device; did you mean 'cuda'"):
        ctx.map_batches(list, [1, 2], batch={"cuda_": 3})
    with pytest.raises(BadValueError, match="usd_per_hour='cpuu'"):
        ctx.map_batches(list, [1, 2], limits=BatchLimits(usd_per_hour={"cpuu": 3}))


def test_arrays_of_several_shapes_do_not_go_into_one_file(ctx: hetero.Context, tmp_path: Path) -> None:
    with pytest.raises(HeteroError, match="no array of numbers or text; return arrays of one shape"):
        ctx.map_batches(lambda batch: [[1] * x for x in batch], list(range(5)), output=tmp_path / "out", form="npy")
