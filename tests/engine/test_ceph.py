"""Stores on a real Ceph: what the gateway promises, and what is left when it or a disk dies."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from hetero.floor.errors import HeteroError
from hetero.stores.guarantees import probe_storage
from hetero.stores.objects import UrlStore
from hetero.stores.urls import storage_of
from hetero.testing.store import check_store
from tests.ceph import Ceph, ceph_cluster
from tests.engine.test_object_store import VARIABLES
from tests.needs import need

pytestmark = [pytest.mark.slow, pytest.mark.servers]

_WRITERS = 4


@pytest.fixture(scope="module")
def ceph() -> Iterator[Ceph]:
    need("ceph")
    folder = Path(tempfile.mkdtemp(prefix="ceph-", dir="/tmp"))  # sockets have short paths
    try:
        with ceph_cluster(folder) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def environment(ceph: Ceph, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ceph.options.items():
        monkeypatch.setenv(VARIABLES[name], value)


def test_ceph_keeps_every_promise_of_a_store(ceph: Ceph) -> None:
    ceph.client().create_bucket(Bucket="kit")
    check_store(partial(UrlStore, "s3://kit/store"), kills=4, operations=800)


def test_every_guarantee_is_seen_in_a_plain_bucket(ceph: Ceph) -> None:
    ceph.client().create_bucket(Bucket="plain")
    found = {row.name: row.holds for row in probe_storage("s3://plain", storage_of(None))}
    assert found == {**dict.fromkeys(found, True), "atomic rename": None}


def test_a_bucket_with_versions_ignores_conditions_and_nothing_rests_on_them(ceph: Ceph) -> None:
    client = ceph.client()
    client.create_bucket(Bucket="versions")
    client.put_bucket_versioning(Bucket="versions", VersioningConfiguration={"Status": "Enabled"})
    found = {row.name: row for row in probe_storage("s3://versions")}
    assert found["create if absent"].seen == "a second write of a name was accepted"
    assert found["one of eight writers"].holds is False
    assert found["wrong signature refused"].holds
    store = UrlStore("s3://versions")
    with pytest.raises(HeteroError, match="use a bucket without versions"):
        store.put_if_absent("lock", b"")
    store.put("value", b"1")
    store.put("value", b"2")
    assert (store.get("value"), store.list()) == (b"2", ("value",))


@pytest.mark.parametrize("victim", ["gateway", "osd"])
def test_nothing_that_was_acknowledged_is_lost_when_a_part_is_killed(ceph: Ceph, victim: str) -> None:
    """Four writers go on while a part is killed and comes back; each value is its writer's last, or one under way."""
    bucket = f"killed-{victim}"
    ceph.client().create_bucket(Bucket=bucket)
    ended, alive = threading.Event(), [threading.Event() for _ in range(_WRITERS)]

    def write(me: int) -> tuple[int, int]:
        store, number, done = UrlStore(f"s3://{bucket}"), 0, 0
        while not ended.is_set() or done == 0:
            number += 1
            try:
                store.put(f"writer/{me}", _value(me, number))
                assert store.put_if_absent(f"once/{me}/{number}", _value(me, number)), "nobody else writes this name"
            except HeteroError:
                continue
            done = number
            alive[me].set()
        return done, number

    with ThreadPoolExecutor(_WRITERS) as pool:
        writers = [pool.submit(write, me) for me in range(_WRITERS)]
        for _ in range(3):
            for event in alive:
                event.clear()
                assert event.wait(200), "a writer does not go on"
            ceph.kill(victim)
            ceph.start(victim)
        for event in alive:
            event.clear()
            assert event.wait(200), "a writer does not go on"
        ended.set()
        numbers = [writer.result(250) for writer in writers]
    store = UrlStore(f"s3://{bucket}")
    for me, (done, last) in enumerate(numbers):
        found = store.get(f"writer/{me}")
        assert found in {_value(me, number) for number in range(done, last + 1)}
        assert store.get(f"once/{me}/{done}") == _value(me, done)
        assert all(store.get(key) is not None for key in store.list(f"once/{me}/"))


def _value(me: int, number: int) -> bytes:
    return b"%d %d " % (me, number) * 20_000
