"""A store on Ceph, plain and encrypted, beside obstore's own speed: one large value, and many of 100 kB.

Ceph is started for this: a monitor, one OSD and the gateway, on loopback. obstore writes and reads the same bytes, the
many over as many threads, without a checksum; a store checks each value when it is read.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.common import Bench, alternate, arguments, ratio
from hetero.stores.base import Store
from hetero.stores.encryption import EncryptedStore, EncryptionKey
from hetero.stores.objects import UrlStore
from hetero.stores.urls import open_url, storage_of
from tests.ceph import Ceph, ceph_cluster

THREADS = 8
SMALL_BYTES = 100_000

Transfer = Callable[[], float]


def timed(call: Callable[[], object], nbytes: int) -> float:
    """Return the bytes a second of a call."""
    begin_s = time.perf_counter()
    call()
    return nbytes / (time.perf_counter() - begin_s)


def contestants(ceph: Ceph, large: bytes, count: int) -> dict[str, dict[str, Transfer]]:
    """Return the transfers of each contestant by what is measured."""
    storage = storage_of(ceph.options)
    objects, _ = open_url("s3://speed", storage)
    small = large[:SMALL_BYTES]
    plain = UrlStore("s3://speed/plain", ceph.options)
    stores: dict[str, Store] = {
        "store": plain,
        "encrypted": EncryptedStore(UrlStore("s3://speed/encrypted", ceph.options), EncryptionKey(bytes(range(32)))),
    }
    found: dict[str, dict[str, Transfer]] = {
        "large, written": {"obstore": lambda: timed(lambda: objects.put("own/large", large), len(large))},
        "large, read": {"obstore": lambda: timed(lambda: bytes(objects.get("own/large").bytes()), len(large))},
        "many, written": {"obstore": lambda: many(lambda at: objects.put(f"own/{at}", small), count)},
        "many, read": {"obstore": lambda: many(lambda at: bytes(objects.get(f"own/{at}").bytes()), count)},
    }
    for name, store in stores.items():
        found["large, written"][name] = lambda store=store: timed(lambda: store.put("large", large), len(large))
        found["large, read"][name] = lambda store=store: timed(lambda: store.get("large"), len(large))
        found["many, written"][name] = lambda store=store: many(lambda at: store.put(f"small/{at}", small), count)
        found["many, read"][name] = lambda store=store: many(lambda at: store.get(f"small/{at}"), count)
    return found


def many(call: Callable[[int], object], count: int) -> float:
    """Make so many calls over the threads; returns the bytes a second."""
    with ThreadPoolExecutor(THREADS) as pool:
        return timed(lambda: list(pool.map(call, range(count))), count * SMALL_BYTES)


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    nbytes, count, rounds = (2**24, 20, 2) if given.quick else (2**26, 500, 5)
    bench = Bench("object_store", "a store on Ceph beside obstore", ("obstore", "cryptography"), given.out)
    large = np.random.default_rng(0).bytes(nbytes)
    folder = Path(tempfile.mkdtemp(prefix="ceph-"))
    try:
        with ceph_cluster(folder) as ceph:
            ceph.client().create_bucket(Bucket="speed")
            for what, callers in contestants(ceph, large, count).items():
                samples = alternate(callers, rounds)
                for name, found in samples.items():
                    bench.measure(f"{what}: {name}", [each / 1e6 for each in found], "MB/s")
                for name, least in (("store", 0.95), ("encrypted", 0.7)):
                    speed = ratio(samples[name], samples["obstore"])
                    bench.claim(f"{what}: {name}", speed, rival="obstore", at_least=least)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    bench.note(large_bytes=nbytes, many=f"{count} of {SMALL_BYTES} bytes, {THREADS} threads")
    bench.finish()


if __name__ == "__main__":
    main()
