from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import hetero
from hetero.cli.doctor import findings
from hetero.floor.errors import HistoryError
from hetero.model.device import Device, DeviceType
from hetero.plan.performance.cost_model import KEPT, CostModel, Sample
from hetero.stores.history import ABSENCES, FILE, RESULTS, VERSION, Absence, HistoryStore

CPU = Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu", name="x")


def samples(count: int, signature: str = "f|", key: str = "cpu/x", first: int = 1) -> list[Sample]:
    return [Sample(signature, key, 8.0, float(number)) for number in range(first, first + count)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / FILE


def test_samples_come_back_in_order_for_the_kinds_asked_for_only(path: Path) -> None:
    store = HistoryStore(path)
    store.add(samples(3) + samples(2, key="cuda/y"))
    store.add(samples(1, signature="g|"))
    assert store.load(["cpu/x"]) == tuple(samples(3) + samples(1, signature="g|"))
    assert store.load(["cuda/y", "absent", "cuda/y"]) == tuple(samples(2, key="cuda/y"))
    assert store.load([]) == ()


def test_only_the_newest_of_each_signature_on_each_kind_of_device_are_kept(path: Path) -> None:
    store = HistoryStore(path)
    for begin in (1, 11, 21):
        store.add(samples(10, first=begin) + samples(1, signature="g|", first=begin))
    kept = store.load(["cpu/x"])
    assert [row.seconds for row in kept if row.signature == "f|"] == [float(n) for n in range(31 - KEPT, 31)]
    assert [row.seconds for row in kept if row.signature == "g|"] == [1.0, 11.0, 21.0]


def test_what_a_model_learned_is_known_to_the_next_run(path: Path) -> None:
    model = CostModel([CPU])
    for value in (9.0, 0.1, 0.1, 0.1):
        model.observe("f|", 8.0, CPU, value)
    HistoryStore(path).add(model.new_samples())
    later = CostModel([CPU])
    later.load(HistoryStore(path).load([CPU.model_key]))
    found = later.estimate("f|", 8.0, CPU)
    assert (found.seconds, found.origin) == (0.1, "history")


def test_the_largest_result_of_a_signature_is_kept_and_the_oldest_signatures_are_not(path: Path) -> None:
    store = HistoryStore(path)
    store.add_results({"f|": 8, "g|": 100})
    store.add_results({"f|": 4, "h|": 0})
    assert HistoryStore(path).result_bytes() == {"g|": 100, "f|": 8, "h|": 0}
    store.add_results({f"{number}|": 1 for number in range(RESULTS - 1)})
    kept = store.result_bytes()
    assert len(kept) == RESULTS
    assert not {"f|", "g|"} & set(kept)


def test_a_file_of_the_first_layout_gains_the_sizes_of_results(path: Path) -> None:
    HistoryStore(path).add(samples(2))
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE results")
        connection.execute("PRAGMA user_version = 1")
    store = HistoryStore(path)
    store.add_results({"f|": 8})
    assert (store.load(["cpu/x"]), store.result_bytes()) == (tuple(samples(2)), {"f|": 8})


def test_a_set_of_samples_with_a_bad_one_is_refused_whole(path: Path) -> None:
    store = HistoryStore(path)
    with pytest.raises(HistoryError, match=r"history\.sqlite refused a sample.*above 0"):
        store.add([*samples(2), Sample("f|", "cpu/x", 8.0, -1.0)])
    assert store.load(["cpu/x"]) == ()


def test_four_processes_that_write_at_once_lose_nothing(path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from hetero.stores.history import *; from hetero.plan.performance.cost_model import Sample\n"
        "for n in range(15): HistoryStore(Path(sys.argv[1])).add([Sample(f'{sys.argv[2]}.{n}|', 'cpu/x', 1.0, 1.0)])\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(path), str(number)]) for number in range(4)]
    try:
        assert [writer.wait(timeout=250) for writer in writers] == [0] * 4
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    assert len(HistoryStore(path).load(["cpu/x"])) == 60


@pytest.mark.parametrize(
    "content", [b"this is no database, but long enough to be one" * 20, b"SQLite format 3\0" + b"\1" * 600]
)
def test_a_damaged_file_is_named_with_the_remedy_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(HistoryError, match=r"history\.sqlite is damaged .*; move it away") as caught:
        HistoryStore(path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content


def test_damage_in_the_middle_of_the_file_is_noticed_on_opening(path: Path) -> None:
    HistoryStore(path).add([Sample(f"f{n}|", "cpu/x", 1.0, 1.0) for n in range(3000)])
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 8192] = b"\xff" * 8192
    path.write_bytes(content)
    with pytest.raises(HistoryError, match="is damaged"):
        HistoryStore(path)


def test_a_damaged_file_is_set_aside_and_never_overwritten(path: Path) -> None:
    path.parent.mkdir()
    for content, aside in ((b"first " * 200, f"{FILE}.damaged"), (b"second " * 200, f"{FILE}.2.damaged")):
        path.write_bytes(content)
        store, warning = HistoryStore.open_or_aside(path)
        assert aside in warning
        assert path.with_name(aside).read_bytes() == content
        store.add(samples(1))
        assert len(store.load(["cpu/x"])) == 1
        path.unlink()
    assert path.with_name(f"{FILE}.damaged").read_bytes() == b"first " * 200


def test_a_sound_file_is_opened_without_a_warning(path: Path) -> None:
    HistoryStore(path).add(samples(1))
    store, warning = HistoryStore.open_or_aside(path)
    assert (len(store.load(["cpu/x"])), warning) == (1, "")


def test_a_file_of_a_newer_version_is_refused_and_not_set_aside(path: Path) -> None:
    HistoryStore(path)
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with pytest.raises(HistoryError, match=rf"written by a newer hetero \(version {VERSION + 1}.*HETERO_HOME"):
        HistoryStore.open_or_aside(path)
    assert path.exists()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryError, match=r"cannot be made: .*; set HETERO_HOME"):
        HistoryStore(tmp_path / "file" / FILE)


def test_a_path_that_is_a_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="cannot be used"):
        HistoryStore.open_or_aside(tmp_path)


def test_a_table_that_lost_its_columns_is_damage(path: Path) -> None:
    HistoryStore(path)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE samples")
    connection.close()
    with pytest.raises(HistoryError, match="is damaged"):
        HistoryStore(path).load(["cpu/x"])


def test_no_file_descriptor_stays_open(path: Path) -> None:
    store = HistoryStore(path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        store.add(samples(1))
        store.load(["cpu/x"])
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_a_run_found_missing_in_an_environment_is_told_by_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HETERO_HOME", str(tmp_path))
    message = "ModuleNotFoundError: No module named 'polars'"
    for _ in range(2):
        with hetero.Context(devices="1xcpu", isolation="thread") as ctx:
            device = replace(ctx.devices[0], python="/opt/other/bin/python")
            ctx.driver.ask(lambda core: core).rows.leave_out("work.load@1f|int", device, message)
    (told,) = [finding for finding in findings() if finding.group == "Packages that tasks missed"]
    assert (told.name, told.state) == ("load", "missing")
    assert told.found.startswith(f"{message}: not run on {device.label} devices of /opt/other/bin/python (2")
    assert "/opt/other/bin/python -m pip install" in told.remedy


def test_only_the_newest_absences_are_kept_and_a_history_of_the_version_before_takes_them(path: Path) -> None:
    store = HistoryStore(path)
    with sqlite3.connect(path) as connection:
        connection.executescript("DROP TABLE absences; PRAGMA user_version = 2;")
    connection.close()
    store = HistoryStore(path)
    store.add_absences(Absence(f"f{number}", "", "cpu", "no x") for number in range(ABSENCES + 5))
    assert [found.function for found in store.absences()] == [f"f{n}" for n in range(ABSENCES + 4, 4, -1)]


def test_doctor_tells_of_a_damaged_history_in_one_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_HOME", str(path.parent))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"no database" * 100)
    (told,) = [finding for finding in findings() if finding.group == "Packages that tasks missed"]
    assert told.state == "poor"
    assert "is damaged" in told.found
