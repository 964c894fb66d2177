"""Bulk work over files: tables, whole files and images, local and by URL; Parquet out."""

from __future__ import annotations

import functools
import http.server
import io
import json
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import hetero
from hetero.batch.base import BadRecordsError
from hetero.batch.options import BatchOptions
from hetero.errors import BadValueError, HeteroError
from tests.s3_server import s3_server

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SUFFIXES = (".parquet", ".arrow", ".csv", ".tsv", ".jsonl")


@pytest.fixture(scope="module")
def threads() -> Iterator[hetero.Context]:
    with hetero.Context(devices="2xcpu", isolation="thread", history=False) as context:
        yield context


@pytest.fixture(scope="module")
def processes() -> Iterator[hetero.Context]:
    with hetero.Context(devices="1xcpu,1xcpu*0.5", history=False) as context:
        yield context


def rows(begin: int, end: int) -> Any:
    return pa.table({"id": list(range(begin, end)), "x": [x / 2 for x in range(begin, end)]})


def write(table: Any, path: Path) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=7)
    elif path.suffix == ".arrow":
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        mark = "\t" if path.suffix == ".tsv" else ","
        lines = [mark.join(table.column_names), *(mark.join(map(str, row.values())) for row in table.to_pylist())]
        path.write_text("\n".join(lines) + "\n")


def folder_of(tmp_path: Path, suffix: str, *sizes: int) -> Path:
    folder, begin = tmp_path / "data", 0
    folder.mkdir()
    for number, size in enumerate(sizes):
        write(rows(begin, begin + size), folder / f"{number}{suffix}")
        begin += size
    return folder


def picture(value: int, size: tuple[int, int] = (6, 4)) -> bytes:
    file = io.BytesIO()
    Image.new("L", size, value).save(file, "png")
    return file.getvalue()


def halves(table: Any) -> Any:
    import pyarrow.compute as pc

    return table.set_column(1, "x", pc.divide(table["x"], 2.0))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("begin", [0, 1, 7, 19, 20, 33, 50])
def test_tables_are_read_from_any_row_on_and_each_row_knows_its_place(tmp_path: Path, suffix: str, begin: int) -> None:
    folder = folder_of(tmp_path, suffix, 20, 13, 17)
    pieces = list(hetero.batch.Tables(folder).read(begin))
    assert [row for piece in pieces for row in piece.records["id"].to_pylist()] == list(range(begin, 50))
    first = {f"{folder}/0{suffix}": 0, f"{folder}/1{suffix}": 20, f"{folder}/2{suffix}": 33}
    for piece in pieces:
        assert first[piece.file] + piece.row == piece.records["id"][0].as_py()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_row_that_fails_is_set_aside_with_its_file_and_row(
    threads: hetero.Context, tmp_path: Path, suffix: str
) -> None:
    folder = folder_of(tmp_path, suffix, 20, 13)

    def refuses(table: Any) -> list[float]:
        if 25 in table["id"].to_pylist():
            raise ValueError("not this one")
        return list(table["x"].to_pylist())

    found = threads.map_batches(refuses, folder, errors=1)
    assert found.value == [x / 2 for x in range(33) if x != 25]
    assert (found.bad[0].place.file, found.bad[0].place.row) == (f"{folder}/1{suffix}", 5)


def test_columns_are_chosen_and_a_wrong_name_is_told_with_the_right_one(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, ".parquet", 5)
    assert next(hetero.batch.Tables(folder, columns=["x"]).read()).records.column_names == ["x"]
    with pytest.raises(BadValueError, match=r"0\.parquet has no column 'idd'; did you mean 'id'"):
        hetero.batch.Tables(folder, columns=["idd"])


def test_files_of_several_schemas_or_formats_are_refused_by_name(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, ".parquet", 5, 5)
    write(pa.table({"id": ["a"], "x": [1.0]}), folder / "2.parquet")
    with pytest.raises(BadValueError, match=r"2\.parquet has id: string; .*0\.parquet has id: int64"):
        hetero.batch.Tables(folder)
    write(pa.table({"id": [1]}), folder / "2.parquet")
    with pytest.raises(BadValueError, match=r"2\.parquet has the columns id: int64; .* id: int64, x: double"):
        hetero.batch.Tables(folder)
    (folder / "2.parquet").unlink()
    write(rows(0, 3), folder / "2.csv")
    with pytest.raises(BadValueError, match=r"several formats: .*0\.parquet and .*2\.csv"):
        hetero.batch.Tables(folder)


def test_text_files_may_differ_in_what_their_numbers_look_like(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    (tmp_path / "b.csv").write_text("x\n2.5\n")
    pieces = list(hetero.batch.Tables(tmp_path).read())
    assert [x for piece in pieces for x in piece.records["x"].to_pylist()] == [1.0, 2.0, 2.5]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.parquet", b"PAR1 and no more", r"a\.parquet cannot be read as parquet"),
        ("a.csv", b"", r"a\.csv cannot be read as csv"),
        ("a.txt", b"text", r"a\.txt is of no kind that can be read.*hetero\.batch\.Files takes any"),
    ],
)
def test_a_file_that_is_no_table_is_told_in_one_line(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadValueError, match=words) as caught:
        hetero.batch.map_batches(len, tmp_path / name, devices="1xcpu")
    assert "\n" not in str(caught.value)


def test_what_is_absent_or_empty_is_told_by_name(threads: hetero.Context, tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none.csv", "there is no file or folder"), (tmp_path, "holds no file")):
        with pytest.raises(BadValueError, match=words):
            threads.map_batches(len, path)
    with pytest.raises(BadValueError, match="holds no file"):
        hetero.batch.Images(f"{tmp_path}/*.png")
    write(rows(0, 0), tmp_path / "a.parquet")
    with pytest.raises(BadValueError, match="the source is empty"):
        threads.map_batches(len, tmp_path)


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, ".csv", 5, 5)
    source = hetero.batch.Tables(folder)
    with (folder / "0.csv").open("a") as file:
        file.write("9,9.5\n")
    with pytest.raises(HeteroError, match=r"0\.csv changed while it was read"):
        list(source.read())


def test_a_line_that_cannot_be_read_is_told_with_the_rows_before_it(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n" + "1\n" * 1_000_000 + "oops\n")
    with pytest.raises(HeteroError, match=r"a\.csv after row \d+ cannot be read: .*oops"):
        list(hetero.batch.Tables(path).read())


@pytest.mark.parametrize("group", [0, 3])
def test_a_page_that_is_damaged_is_blamed_on_its_own_file(tmp_path: Path, group: int) -> None:
    for number in range(4):
        table = pa.table({"x": np.arange(5000) + 5000 * number})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=1000, use_dictionary=False)
    path = tmp_path / "2.parquet"
    damage(path, pq.ParquetFile(path).metadata.row_group(group).column(0).data_page_offset, 100)
    with pytest.raises(HeteroError, match=rf"2\.parquet after row {1000 * group} cannot be read"):
        list(hetero.batch.Tables(tmp_path).read())


def test_a_flipped_bit_in_a_page_that_hetero_wrote_is_told_and_gives_no_value(
    threads: hetero.Context, tmp_path: Path
) -> None:
    threads.map_batches(
        lambda batch: {"y": np.asarray(batch)}, list(range(1000)), output=tmp_path / "out", form="parquet"
    )
    path = tmp_path / "out" / "part-00000.parquet"
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    damage(path, (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size - 8, 1)
    with pytest.raises(HeteroError, match=r"part-00000\.parquet after row 0 cannot be read: .*CRC"):
        list(hetero.batch.Tables(path).read())


def damage(path: Path, begin: int, count: int) -> None:
    content = bytearray(path.read_bytes())
    content[begin : begin + count] = bytes(byte ^ 0xFF for byte in content[begin : begin + count])
    path.write_bytes(content)


def test_a_source_that_grew_is_told_when_a_run_is_resumed(threads: hetero.Context, tmp_path: Path) -> None:
    folder, out = folder_of(tmp_path, ".parquet", 20), tmp_path / "out"
    threads.map_batches(halves, folder, output=out, form="parquet")
    write(rows(20, 30), folder / "1.parquet")
    with pytest.raises(
        BadValueError, match=r"holds results of 1 files with 20 rows.*the source is now 2 files with 30"
    ):
        threads.map_batches(halves, folder, output=out, form="parquet", resume=True)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_parquet_comes_out_the_same_whatever_the_batches_and_the_order(
    processes: hetero.Context, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, ".parquet", 400, 333, 467)
    outs = [tmp_path / name for name in ("auto", "small", "unordered")]
    processes.map_batches(halves, folder, output=outs[0], form="parquet", options=BatchOptions(part=500))
    processes.map_batches(
        halves, hetero.batch.Tables(folder), output=outs[1], form="parquet", options=BatchOptions(part=500), batch=9
    )
    processes.map_batches(
        halves, folder, output=outs[2], form="parquet", options=BatchOptions(part=500, ordered=False), batch=64
    )
    assert content(outs[0]) == content(outs[1]) == content(outs[2])
    assert pq.read_table(outs[0])["x"].to_pylist() == [x / 4 for x in range(1200)]
    assert [path.name for path in sorted(outs[0].glob("part-*"))] == [f"part-0000{n}.parquet" for n in range(3)]
    umask = os.umask(0)
    os.umask(umask)
    assert {stat.S_IMODE(path.stat().st_mode) for path in outs[0].iterdir()} == {0o666 & ~umask}


@pytest.mark.parametrize(
    ("results", "rows"),
    [
        (lambda n: list(range(n)), [{"value": 0}, {"value": 1}]),
        (lambda n: [{"a": i, "b": "t"} for i in range(n)], [{"a": 0, "b": "t"}, {"a": 1, "b": "t"}]),
        (lambda n: {"a": np.arange(n), "v": np.ones((n, 2))}, [{"a": 0, "v": [1.0, 1.0]}, {"a": 1, "v": [1.0, 1.0]}]),
        (lambda n: np.zeros((n, 1, 2)), [{"value": [[0.0, 0.0]]}, {"value": [[0.0, 0.0]]}]),
        (lambda n: pa.table({"a": list(range(n))}).to_batches()[0], [{"a": 0}, {"a": 1}]),
    ],
)
def test_any_form_of_results_becomes_columns(
    threads: hetero.Context, tmp_path: Path, results: Any, rows: list[dict[str, Any]]
) -> None:
    threads.map_batches(lambda batch: results(len(batch)), range(2), batch=2, output=tmp_path / "out", form="parquet")
    assert pq.read_table(tmp_path / "out").to_pylist() == rows


def test_results_of_another_schema_than_before_are_told_and_not_written(
    threads: hetero.Context, tmp_path: Path
) -> None:
    def turns(batch: list[int]) -> list[Any]:
        return [float(x) if x >= 10 else x for x in batch]

    with pytest.raises(HeteroError, match=r"items \d+ to \d+ have the columns value: \w+; those before had value"):
        threads.map_batches(
            turns, range(20), batch=5, options=BatchOptions(part=10), output=tmp_path / "out", form="parquet"
        )
    assert len(list((tmp_path / "out").glob("part-*"))) == 1


def test_a_function_may_give_fewer_rows_of_a_table(processes: hetero.Context, tmp_path: Path) -> None:
    def odd(table: Any) -> Any:
        return table.filter(pa.array([x % 2 == 1 for x in table["id"].to_pylist()], pa.bool_()))

    found = processes.map_batches(odd, folder_of(tmp_path, ".parquet", 100), options=BatchOptions(same_count=False))
    assert found.value["id"].to_pylist() == list(range(1, 100, 2))


def test_rows_of_tables_that_hold_nan_are_set_aside_and_those_with_nulls_are_not(
    threads: hetero.Context, tmp_path: Path
) -> None:
    def wrong(table: Any) -> Any:
        values = [{3: float("nan"), 5: None, 6: float("inf")}.get(x, float(x)) for x in table["id"].to_pylist()]
        return pa.table({"id": table["id"], "y": pa.array(values, pa.float64())})

    source = folder_of(tmp_path, ".parquet", 8)
    found = threads.map_batches(
        wrong, source, options=BatchOptions(check_finite=True), errors=2, output=tmp_path / "out", form="parquet"
    )
    assert [(record.item, record.reason) for record in found.bad] == [
        (3, "the result holds NaN"), (6, "the result holds an infinity"),
    ]  # fmt: skip
    assert pq.read_table(tmp_path / "out")["id"].to_pylist() == [0, 1, 2, 4, 5, 7]


def test_images_come_as_one_array_and_what_is_no_image_is_set_aside_with_its_path(
    processes: hetero.Context, tmp_path: Path
) -> None:
    for value in range(12):
        (tmp_path / f"{value:02}.PNG").write_bytes(picture(value) if value != 7 else b"no picture")
    images = hetero.batch.Images(tmp_path, size=(4, 6), mode="L")
    found = processes.map_batches(lambda batch: batch[:, 0, 0], images, errors=1)
    assert found.value.tolist() == [x for x in range(12) if x != 7]
    assert found.bad[0].place.file == f"{tmp_path}/07.PNG"
    assert "07.PNG is no image" in found.bad[0].reason
    with pytest.raises(BadRecordsError, match=r"07\.PNG is no image"):
        processes.map_batches(lambda batch: batch[:, 0, 0], images)
    plain = processes.map_batches(lambda batch: [image.shape for image in batch], tmp_path, errors="10%")
    assert set(plain.value) == {(4, 6, 3)}


def test_a_folder_is_what_all_its_files_are(threads: hetero.Context, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture(1))
    kinds = threads.map_batches(lambda batch: [type(one).__name__ for one in batch], tmp_path)
    assert kinds.value == ["ndarray"]
    (tmp_path / "b.txt").write_text("text")
    (tmp_path / ".hidden").write_text("x")
    files = threads.map_batches(lambda batch: [(Path(one.path).name, len(one)) for one in batch], tmp_path)
    assert files.value == [("a.png", len(picture(1))), ("b.txt", 4)]


def test_batches_of_files_are_of_equal_length_where_that_is_asked(threads: hetero.Context, tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:02}.txt").write_text("x" * (1 + number))
    sums = threads.map_batches(
        lambda batch: [sum(map(len, batch))] * len(batch),
        hetero.batch.Files(tmp_path),
        options=BatchOptions(cost=len, learn=False),
        batch=60,
    ).value
    assert max(sums) <= 60


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    pytest.importorskip("moto.server")
    from hetero.stores.urls import storage_of

    obstore = pytest.importorskip("obstore.store")
    with s3_server("pile") as options:
        assert storage_of(options)
        store = obstore.S3Store("pile", config=options, client_options={"allow_http": True})
        for number in range(3):
            file = io.BytesIO()
            pq.write_table(rows(10 * number, 10 * number + 10), file)
            store.put(f"tables/part {number}.parquet", file.getvalue())
            store.put(f"photos/{number}.png", picture(number))
            store.put(f"notes/{number}.txt", b"x" * number)
        yield options


def test_tables_files_and_images_are_read_from_s3_on_the_workers(
    processes: hetero.Context, bucket: dict[str, str]
) -> None:
    tables = hetero.batch.Tables("s3://pile/tables/", storage=bucket)
    assert tables.length == 30
    assert processes.map_batches(lambda t: t["id"].to_pylist(), tables).value == list(range(30))
    assert next(hetero.batch.Tables("s3://pile/tables/part 1.parquet", storage=bucket).read(4)).row == 4
    images = hetero.batch.Images("s3://pile/photos/*.png", size=(2, 2), mode="L", storage=bucket)
    assert processes.map_batches(lambda batch: batch[:, 0, 0], images).value.tolist() == [0, 1, 2]
    notes = hetero.batch.Files("s3://pile/notes", storage=bucket)
    assert processes.map_batches(lambda batch: list(map(len, batch)), notes).value == [0, 1, 2]


def test_what_a_store_lacks_or_refuses_is_told_in_one_line(bucket: dict[str, str]) -> None:
    for url, words in (
        ("s3://pile/nothing/", "s3://pile/nothing/ holds no file"),
        ("s3://absent/x.parquet", "s3://absent/x.parquet cannot be read"),
        ("ftp://pile/x.parquet", "ftp://pile cannot be opened"),
    ):
        with pytest.raises(HeteroError, match=words) as caught:
            hetero.batch.Tables(url, storage=bucket)
        assert "\n" not in str(caught.value)


def test_an_object_that_is_replaced_is_told_when_it_is_read(bucket: dict[str, str]) -> None:
    from obstore.store import S3Store

    store = S3Store("pile", config=bucket, client_options={"allow_http": True})
    store.put("changes/a.csv", b"x\n1\n")
    source = hetero.batch.Tables("s3://pile/changes/a.csv", storage=bucket)
    store.put("changes/a.csv", b"x\n2\n")
    with pytest.raises(HeteroError, match=r"changes/a\.csv changed while it was read"):
        list(source.read())


def test_files_are_read_from_the_web(threads: hetero.Context, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    (tmp_path / "a.txt").write_text("hello")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            found = threads.map_batches(lambda batch: [one.text for one in batch], hetero.batch.Files(f"{url}/a.txt"))
            assert found.value == ["hello"]
            with pytest.raises(BadValueError, match=r"there is no file http://.*/b\.txt"):
                hetero.batch.Files(f"{url}/b.txt")
        finally:
            server.shutdown()
            serving.join()
