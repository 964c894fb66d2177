from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hetero.engines.shared.memory_pool import MemoryPool
from hetero.floor import files, platform
from hetero.floor.errors import EngineError
from hetero.floor.platform import FEATURES, PAGE_BYTES


def test_writing_to_a_private_view_changes_nobody_elses_bytes(no_leaks: None) -> None:
    memory = platform.shared_memory(4 * PAGE_BYTES)
    shared = memory.map()
    shared[:] = b"a" * len(shared)
    views = [platform.private_view(memory, PAGE_BYTES, 5000) for _ in range(2)]
    views[0][0:3] = b"xyz"
    assert bytes(views[0])[:4] == b"xyza"
    assert bytes(views[1])[:4] == shared[PAGE_BYTES : PAGE_BYTES + 4] == b"aaaa"
    shared.close()
    memory.close()


@pytest.mark.parametrize("mapping", [True, False])
def test_a_view_made_private_keeps_its_bytes_when_its_place_is_used_again(
    mapping: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FEATURES, "private_mapping", mapping)
    memory = platform.shared_memory(4 * PAGE_BYTES)
    shared = memory.map()
    shared[:] = b"a" * len(shared)
    view = platform.private_view(memory, 0, 3 * PAGE_BYTES + 1)
    platform.make_private(view)
    shared[:] = b"b" * len(shared)
    assert bytes(view) == b"a" * (3 * PAGE_BYTES + 1)
    shared.close()
    memory.close()


def test_views_hold_no_file_descriptor_and_are_unmapped_with_their_last_user() -> None:
    gc.collect()  # what other tests have left
    memory = platform.shared_memory(PAGE_BYTES)
    files = len(os.listdir("/proc/self/fd"))
    lines = f" {os.fstat(memory.fd).st_ino} ", "memfd:hetero"

    def mapped() -> int:  # of this memory: what other tests have left goes at any time
        return sum(all(part in line for part in lines) for line in Path("/proc/self/maps").read_text().splitlines())

    arrays = [np.frombuffer(platform.private_view(memory, 0, PAGE_BYTES), np.uint8) for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == files
    assert len(arrays) == mapped() == 50
    del arrays
    gc.collect()
    assert mapped() == 0
    memory.close()


def test_a_small_folder_in_memory_is_seen_before_it_bites(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_leaks: None
) -> None:
    monkeypatch.setattr(FEATURES, "memfd", False)
    monkeypatch.setattr(FEATURES, "shm_dir", str(tmp_path))
    real = platform.free_bytes
    monkeypatch.setattr(platform, "free_bytes", lambda folder: 64_000_000 if folder == str(tmp_path) else real(folder))
    fits = platform.shared_memory(60_000_000)
    assert fits.note == ""
    fits.close()
    memory = platform.shared_memory(70_000_000)
    assert f"{tmp_path} has room for 64000000 bytes" in memory.note
    assert not list(tmp_path.iterdir())
    memory.close()
    gc.collect()


def test_a_pool_that_fits_nowhere_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FEATURES, "memfd", False)
    monkeypatch.setattr(FEATURES, "shm_dir", "")
    with pytest.raises(EngineError, match="make memory_pool_size smaller"):
        platform.shared_memory(1 << 60)
    with pytest.raises(EngineError, match="make memory_pool_size larger"):
        platform.spill_file(1 << 60)


@pytest.mark.parametrize("dir_fsync", [True, False])
def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, dir_fsync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FEATURES, "dir_fsync", dir_fsync)
    path = tmp_path / "state"
    files.atomic_write(path, b"old")
    files.atomic_write(path, b"new" * 1000)
    assert path.read_bytes() == b"new" * 1000
    with pytest.raises(TypeError):
        files.atomic_write(path, "text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"new" * 1000
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode


def test_without_affinity_a_process_stays_unbound(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = tuple(sorted(os.sched_getaffinity(0)))
    monkeypatch.setattr(FEATURES, "affinity", False)
    assert not platform.bind_to_cpus(allowed[:1])
    assert tuple(sorted(os.sched_getaffinity(0))) == allowed


def test_binding_to_a_cpu_that_does_not_exist_is_told() -> None:
    code = "from hetero.floor import platform; print(platform.bind_to_cpus([100000]), platform.bind_to_cpus([0]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "False"


def test_the_signals_that_end_processes_have_names() -> None:
    assert platform.describe_exit(-11) == "was killed by SIGSEGV"
    assert platform.describe_exit(-250) == "was killed by signal 250"


def test_an_array_changed_between_two_calls_is_copied_again_and_an_unchanged_one_is_not() -> None:
    counters: Counter[str] = Counter()
    pool = MemoryPool(10_000_000, lambda text: None, counters)
    array = np.zeros(100_000)
    payloads = [pool.payload(array), pool.payload((array, 1)), pool.payload([array])]
    assert (counters["copies"], counters["shared"]) == (1, 2)
    array[-1] = 1.0
    payloads.append(pool.payload(array))
    assert (counters["copies"], counters["shared"]) == (2, 2)
    assert [float(np.sum(payload.value()[0])) for payload in payloads[:1]] == [0.0]
    assert payloads[3].value()[-1] == 1.0
    used = pool.usage().used_bytes
    del payloads, array
    gc.collect()
    assert used > 1_600_000
    assert pool.usage().used_bytes == 0
    pool.close()


def test_copies_that_are_only_kept_for_later_make_room_for_what_is_needed() -> None:
    notes: list[str] = []
    counters: Counter[str] = Counter()
    pool = MemoryPool(2_000_000, notes.append, counters)
    arrays = [np.full(150_000, float(number)) for number in range(4)]
    for array in arrays:
        assert pool.payload(array).value()[0] == array[0]
    assert notes == []
    assert counters["spills"] == 0
    pool.close()


def test_a_value_that_was_read_outlives_the_engine() -> None:
    pool = MemoryPool(2_000_000, lambda text: None, Counter())
    value = pool.payload(np.arange(100_000)).value()
    pool.close()
    gc.collect()
    assert value.sum() == 4999950000
