from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hetero.cli.main import app
from hetero.floor.errors import BadValueError, HeteroError, SerialisationError
from hetero.stores import guarantees, urls
from hetero.stores.files import Disk, FileStore
from hetero.stores.guarantees import probe_storage
from hetero.stores.objects import UrlStore, open_store
from hetero.stores.urls import storage_of
from hetero.testing.store import check_store
from tests.s3_server import s3_server

VARIABLES = {
    "endpoint": "AWS_ENDPOINT",
    "region": "AWS_REGION",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "virtual_hosted_style_request": "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
}
"""The environment by which a client finds a store, for the options of `s3_server`."""


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the developer's own credentials out."""
    for name in (*VARIABLES.values(), "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def _go_by(monkeypatch: pytest.MonkeyPatch, options: dict[str, str]) -> None:
    for name, value in options.items():
        monkeypatch.setenv(VARIABLES[name], value)


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    with s3_server("pile") as options:
        yield options


@pytest.mark.slow
def test_an_object_store_keeps_every_promise_of_a_store(
    bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _go_by(monkeypatch, bucket)
    check_store(partial(UrlStore, "s3://pile/kit"), kills=2, operations=160)


def test_a_value_comes_back_under_a_prefix_and_others_objects_are_left_alone(bucket: dict[str, str]) -> None:
    store = UrlStore("s3://pile/some/runs/", bucket)
    store._objects.put("some/runs/of-others", b"not ours")
    store.put("a/b", b"1")
    store.put("a", b"")
    assert (store.get("a/b"), store.get("a"), store.get("c")) == (b"1", b"", None)
    assert store.list() == ("a", "a/b")
    assert UrlStore("s3://pile/some", bucket).list() == ("runs/a", "runs/a/b")
    for key in store.list():
        store.delete(key)
    assert store.list() == ()
    assert bytes(store._objects.get("some/runs/of-others").bytes()) == b"not ours"


def test_a_long_value_goes_up_in_parts_where_a_dead_upload_was_seen_to_be_invisible() -> None:
    store = UrlStore("memory://long")
    data = bytes(range(256)) * (33 * 2**12)
    store.put("long", data)
    assert store.get("long") == data


def test_a_long_value_is_read_by_ranges_and_its_damage_is_seen(bucket: dict[str, str]) -> None:
    store = UrlStore("s3://pile/ranges", bucket)
    data = bytes(range(256)) * (2**17) + b"end"
    store.put("long", data)
    assert store.get("long") == data
    name = "ranges/long="
    sound = bytes(store._objects.get(name).bytes())
    for damaged in (sound[:-1], sound[: 2**24] + b"X" + sound[2**24 + 1 :]):
        store._objects.put(name, damaged)
        with pytest.raises(HeteroError, match="has a damaged value of 'long'"):
            store.get("long")


def test_a_damaged_object_is_named_in_the_error() -> None:
    store = UrlStore("memory://damaged")
    store.put("run/1", b"state" * 100)
    name = "run/1="
    sound = bytes(store._objects.get(name).bytes())
    for damaged in (sound[:-1], sound + b"x", sound[:200] + b"X" + sound[201:], b"", b"other"):
        store._objects.put(name, damaged)
        with pytest.raises(HeteroError, match=r"memory://damaged has a damaged value of 'run/1'"):
            store.get("run/1")


def test_a_store_that_ignores_conditions_is_seen_and_nothing_rests_on_them() -> None:
    with s3_server("versions", "ignores-conditions") as options:
        found = {row.name: row for row in probe_storage("s3://versions", storage_of(options))}
        assert found["create if absent"].holds is False
        assert "accepted" in found["create if absent"].seen
        assert found["one of eight writers"].holds is False
        store = UrlStore("s3://versions/store", options)
        with pytest.raises(HeteroError, match="put_if_absent rests on 'create if absent', which does not hold here"):
            store.put_if_absent("lock", b"mine")
        assert store.get("lock") is None
        store.put("value", b"1")
        assert store.get("value") == b"1"


def test_a_writer_whose_answer_was_lost_knows_that_it_won() -> None:
    with s3_server("lossy", "loses-answers") as options:
        store = UrlStore("s3://lossy", options)
        assert [store.put_if_absent(f"lock/{number}", b"") for number in range(6)] == [True] * 6
        assert [store.put_if_absent(f"lock/{number}", b"") for number in range(6)] == [False] * 6


def test_the_probe_tells_what_it_saw_and_leaves_nothing_behind(bucket: dict[str, str]) -> None:
    url = "s3://pile/probed"
    found = {row.name: row.holds for row in probe_storage(url, storage_of(bucket))}
    assert found == {
        "create if absent": True,
        "one of eight writers": True,
        "wrong signature refused": False,  # this server takes any
        "listing after a write": True,
        "dead upload invisible": True,
        "atomic rename": None,
    }
    objects, _ = urls.open_url(url, storage_of(bucket))
    assert [each["path"] for chunk in objects.list("probed") for each in chunk] == []


def test_a_folder_is_probed_and_left_as_it_was(tmp_path: Path) -> None:
    found = {row.name: row.holds for row in probe_storage(tmp_path)}
    assert found == {**dict.fromkeys(found, True), "wrong signature refused": None}
    assert list(tmp_path.iterdir()) == []


class _Careless(Disk):
    """A file system on which a link replaces what has the name, and a rename shows a part of a file."""

    def link(self, src: Path, dst: Path) -> None:
        dst.write_bytes(src.read_bytes())

    def rename(self, src: Path, dst: Path) -> None:
        dst.unlink()
        dst.write_bytes(src.read_bytes())
        src.unlink()


def test_a_folder_that_keeps_less_is_seen(tmp_path: Path) -> None:
    assert guarantees._links_once(tmp_path, _Careless()).holds is False
    assert guarantees._one_link(tmp_path, _Careless()).seen == "8 of 8 writers were told that they won"
    renamed = guarantees._renames(tmp_path, _Careless())
    assert renamed.holds is False
    assert "a reader got" in renamed.seen


def test_the_doctor_prints_the_table_of_a_store(bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    _go_by(monkeypatch, bucket)
    shown = CliRunner().invoke(app, ["doctor", "storage", "s3://pile/doctor"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0, shown.output
    assert "!  wrong signature refused" in shown.stdout
    assert "let nobody else reach the store" in shown.stdout
    document = CliRunner().invoke(app, ["doctor", "storage", "s3://pile/doctor", "--json"])
    assert [row["name"] for row in json.loads(document.stdout)["guarantees"] if row["holds"] is False] == [
        "wrong signature refused"
    ]


def test_secrets_are_neither_shown_nor_pickled(bucket: dict[str, str]) -> None:
    secret = {**bucket, "secret_access_key": "wq7-secret", "endpoint": "http://127.0.0.1:1"}
    store = UrlStore("s3://pile", secret)
    assert "wq7-secret" not in f"{store!r} {storage_of(secret)!r} {vars(store)}"
    assert "secret_access_key=…" in repr(storage_of(secret))
    with pytest.raises(SerialisationError, match="give them by the environment"):
        pickle.dumps(store)
    open_one = UrlStore("memory://pickled")
    assert repr(pickle.loads(pickle.dumps(open_one))) == repr(open_one)


def test_an_error_of_the_store_has_no_secret_in_it() -> None:
    found = urls.first_line(ValueError("the key wq7-secret is wrong\nmore"), storage_of({"token": "wq7-secret"}))
    assert found == "the key … is wrong"


def test_what_is_wrong_with_an_address_is_told_in_one_line(bucket: dict[str, str]) -> None:
    for url, words in (
        ("s3://key:wq7-secret@pile/x", "addresses are printed and kept"),
        ("https://host/x", "is no object store to write to"),
        ("ftp://pile/x", "cannot be opened"),
        ("no-url", "is no object store to write to"),
    ):
        with pytest.raises(BadValueError, match=words) as caught:
            UrlStore(url, bucket)
        assert "wq7-secret" not in str(caught.value)
        assert "\n" not in str(caught.value)
    absent = UrlStore("s3://absent", bucket)
    for call in (lambda: absent.get("a"), lambda: absent.put("a", b""), lambda: absent.list()):
        with pytest.raises(HeteroError, match=r"s3://absent: '.*' cannot be used") as told:
            call()
        assert "\n" not in str(told.value)
    with pytest.raises(HeteroError, match="s3://absent cannot be written to"):
        probe_storage("s3://absent", storage_of(bucket))


def test_a_place_is_a_folder_or_a_url(tmp_path: Path) -> None:
    assert isinstance(open_store(tmp_path), FileStore)
    by_url = open_store(f"file://{tmp_path}/a%20b")
    assert isinstance(by_url, FileStore)
    assert by_url.root == tmp_path / "a b"
    assert isinstance(open_store("memory://x"), UrlStore)
    with pytest.raises(BadValueError, match="is a folder, which has no options"):
        open_store(tmp_path, {"endpoint": "x"})


def test_a_profile_of_the_aws_tools_brings_the_credentials(
    bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("boto3")
    for name in ("endpoint", "region", "virtual_hosted_style_request"):
        monkeypatch.setenv(VARIABLES[name], bucket[name])
    (tmp_path / "file").write_text("[team]\naws_access_key_id = key\naws_secret_access_key = secret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "file"))
    monkeypatch.setenv("AWS_PROFILE", "team")
    assert "credential_provider" in urls.options_of("s3", storage_of(None))
    store = UrlStore("s3://pile/profile", {"allow_http": "true"})  # obstore takes that for its client alone
    store.put("a", b"1")
    assert store.get("a") == b"1"
