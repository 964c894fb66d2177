from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from hetero.batch.committing import Entry, Journal, MergeSink
from hetero.drive import checkpoints
from hetero.drive.frame import Frame, enter
from hetero.engines.base import Channel
from hetero.floor.errors import BadValueError, HeteroError, SerialisationError
from hetero.model.device import Device, DeviceType
from hetero.stores.checkpoints import Checkpoints, decode_state, encode_state
from hetero.stores.files import FileStore, ForeignFileError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HETERO_HOME", str(tmp_path))
    return tmp_path


@contextmanager
def attempt(task_key: str = "run/task", channel: Channel | None = None) -> Iterator[None]:
    device = Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu")
    before = enter(Frame(device, None, task_key=task_key, channel=channel))
    try:
        yield
    finally:
        enter(before)


def in_a_process(call: Callable[[], Any]) -> subprocess.Popen[bytes]:
    """Run one attempt of a task in a process of its own."""

    def run() -> None:
        with attempt():
            call()

    child = subprocess.Popen(
        [sys.executable, "-c", "import sys,cloudpickle; cloudpickle.load(sys.stdin.buffer)()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdin is not None
    cloudpickle.dump(run, child.stdin)
    child.stdin.close()
    return child


def test_a_first_attempt_finds_nothing_and_a_later_one_the_last_state() -> None:
    with attempt():
        assert checkpoints.restore() is None
        checkpoints.checkpoint("a", {"step": 1})
        checkpoints.checkpoint("b", {"step": 2})
        checkpoints.checkpoint("a", {"step": 3})
    with attempt():
        assert checkpoints.restore() == {"step": 3}
        assert checkpoints.restore("b") == {"step": 2}
        assert checkpoints.restore("c") is None


def test_a_checkpoint_without_a_state_gives_its_name() -> None:
    with attempt():
        checkpoints.checkpoint("data is loaded / ½")
    with attempt():
        assert checkpoints.restore() == "data is loaded / ½"


def test_a_name_written_again_replaces_itself(home: Path) -> None:
    with attempt():
        for step in range(20):
            checkpoints.checkpoint("epoch", step)
        assert checkpoints.restore() == 19
    assert len([path for path in home.rglob("*=") if path.is_file()]) == 1


def test_tasks_do_not_see_each_others_checkpoints() -> None:
    with attempt("run/1"):
        checkpoints.checkpoint("a", 1)
    with attempt("run/11"):
        assert checkpoints.restore() is None
    with attempt("other/1"):
        assert checkpoints.restore() is None


class Member:
    world_size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def send(self, value: Any, rank: int) -> None:
        raise NotImplementedError

    def recv(self, rank: int) -> Any:
        raise NotImplementedError


def test_members_of_a_group_task_keep_their_own_checkpoints() -> None:
    for rank in (0, 1):
        with attempt(channel=Member(rank)):
            checkpoints.checkpoint("a", rank)
    for rank in (0, 1):
        with attempt(channel=Member(rank)):
            assert checkpoints.restore() == rank
    checkpoints.clear("run/task")
    with attempt(channel=Member(0)):
        assert checkpoints.restore() is None


def test_clearing_a_task_leaves_the_others_and_clearing_a_run_leaves_none() -> None:
    for key in ("run/1", "run/11", "run/2", "runner/1"):
        with attempt(key):
            checkpoints.checkpoint("a", key)
            list(checkpoints.resumable(range(3)))
    checkpoints.clear("run/1")
    kept = Checkpoints(FileStore(checkpoints.settings.home() / "checkpoints"))
    assert [kept.last(key) is None for key in ("run/1", "run/11", "run/2")] == [True, False, False]
    assert kept.loops("run/1") is None
    checkpoints.clear("run")
    assert [kept.last(key) is None for key in ("run/11", "run/2", "runner/1")] == [True, True, False]


def test_a_task_without_a_key_runs_and_keeps_nothing(home: Path) -> None:
    with attempt(""):
        checkpoints.checkpoint("a", 1)
        assert checkpoints.restore() is None
        assert list(checkpoints.resumable(range(3))) == [0, 1, 2]
    checkpoints.clear("")
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    "call", [lambda: checkpoints.checkpoint("a"), checkpoints.restore, lambda: checkpoints.resumable([])]
)
def test_outside_of_a_task_the_error_says_where_it_belongs(call: Callable[[], object]) -> None:
    with pytest.raises(HeteroError, match=r"\(\) works only inside a task; call hetero\.\w+ inside a function"):
        call()


@pytest.mark.parametrize(
    "bad",
    [
        lambda: checkpoints.checkpoint(""),
        lambda: checkpoints.checkpoint(3),  # type: ignore[arg-type]
        lambda: checkpoints.checkpoint("x" * 999),
        lambda: checkpoints.resumable(3),  # type: ignore[arg-type,type-var]
        lambda: checkpoints.resumable([], every=0),
        lambda: checkpoints.resumable([], every=2.5),
    ],
)  # type: ignore[arg-type]
def test_a_bad_name_or_interval_is_refused(bad: Callable[[], object]) -> None:
    with attempt(), pytest.raises(BadValueError):
        bad()


class _ReplacedMeanwhile(FileStore):
    """Another attempt saves again between the listing and the reading."""

    def list(self, prefix: str = "") -> tuple[str, ...]:
        keys = super().list(prefix)
        if keys == ("run/task/00000001.epoch",):
            Checkpoints(FileStore(self.root)).save("run/task", "epoch", 2)
        return keys


def test_a_checkpoint_that_is_replaced_while_it_is_looked_up_gives_the_newer_one(tmp_path: Path) -> None:
    Checkpoints(FileStore(tmp_path)).save("run/task", "epoch", 1)
    assert Checkpoints(_ReplacedMeanwhile(tmp_path)).last("run/task") == ("epoch", 2)


def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(home: Path) -> None:
    with attempt():
        checkpoints.checkpoint("a", "sound")
        checkpoints.checkpoint("b", "damaged")
    last = max((path for path in home.rglob("*=") if path.is_file()), key=lambda path: path.name)
    last.write_bytes(last.read_bytes()[:-1])
    with attempt(), pytest.warns(UserWarning, match="a checkpoint is left out"):
        assert checkpoints.restore() == "sound"


def test_a_loop_goes_on_after_the_last_kept_item_with_its_state() -> None:
    with attempt():
        loop = checkpoints.resumable(range(100), every=10, state=0)
        for item in loop:
            loop.state += item
            if item == 37:
                break
    with attempt():
        loop = checkpoints.resumable(range(100), every=10, state=0)
        assert (loop.done, loop.state, len(loop)) == (30, sum(range(30)), 70)
        for item in loop:
            loop.state += item
        assert loop.state == sum(range(100))
    with attempt():
        assert list(checkpoints.resumable(range(100), every=10)) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: range(7),
        lambda: list("abcdefg"),
        lambda: np.arange(7),
        lambda: {"a": 1, "b": 2, "c": 3, "d": 4},
        lambda: (i * i for i in range(7)),
    ],
)
def test_every_iterable_resumes_at_the_next_item(make: Callable[[], Any]) -> None:
    every_item = list(make())
    with attempt():
        for _, item in zip(range(4), checkpoints.resumable(make()), strict=False):
            assert item is not None
    with attempt():
        assert list(checkpoints.resumable(make())) == every_item[3:]


def _nested(stop_at: int) -> list[tuple[int, int]]:
    """Two loops in one another and one after them; stops like a killed task after some inner items."""
    count = 0
    outer = checkpoints.resumable(range(4), every=3, state=[])
    for i in outer:
        for j in checkpoints.resumable(range(5), every=2):
            if count == stop_at:
                return outer.state
            outer.state.append((i, j))
            count += 1
    last = checkpoints.resumable("xy", state=outer.state)
    for letter in last:
        last.state.append((9, ord(letter)))
    return list(last.state)


@pytest.mark.parametrize("stop_at", range(0, 21))
def test_loops_in_loops_lose_no_item_and_repeat_none(stop_at: int) -> None:
    with attempt():
        _nested(stop_at)
    with attempt():
        assert _nested(999) == [(i, j) for i in range(4) for j in range(5)] + [(9, ord("x")), (9, ord("y"))]


def test_a_loop_after_an_interrupted_loop_is_not_taken_for_an_inner_one() -> None:
    with attempt():
        for _ in checkpoints.resumable(range(3)):
            break
        assert checkpoints.resumable(range(3)).name == "2"


def test_a_killed_attempt_resumes_at_its_last_checkpoint_in_a_new_process(home: Path) -> None:
    seen = home / "seen"

    def work() -> None:
        loop = checkpoints.resumable(range(30), every=5, state=np.zeros(3))
        for item in loop:
            loop.state += item
            with seen.open("a") as file:
                file.write(f"{item}\n")
            if item == 17 and len(seen.read_text().split()) == 18:
                os.kill(os.getpid(), signal.SIGKILL)
        checkpoints.checkpoint("result", loop.state)

    with in_a_process(work) as killed:
        assert killed.wait(30) == -signal.SIGKILL
    with in_a_process(work) as sound:
        assert sound.wait(30) == 0
    assert [int(word) for word in seen.read_text().split()] == [*range(18), *range(15, 30)]
    with attempt():
        np.testing.assert_array_equal(checkpoints.restore("result"), np.full(3, sum(range(30))))


class Custom:
    def __init__(self, value: int) -> None:
        self.value = value


PLAIN = [
    None, True, 3, -(10**40), 2.5, "tëxt\ud800", b"\0bytes", (1, (2,)), [1, [2, {"a": None}]], {1, 2}, frozenset({"a"}),
    {1: "a", (2, 3): "b", "c": {"d": []}}, 1 + 2j, np.float32(1.5), np.int64(7), np.datetime64("2026-01-01"),
    math.inf, float("-inf"), 10**9000,
]  # fmt: skip


@pytest.mark.parametrize("state", PLAIN, ids=lambda state: str(type(state).__name__))
def test_a_plain_state_comes_back_as_it_was(state: Any) -> None:
    found = decode_state(encode_state(state))
    assert found == state
    assert type(found) is type(state)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4),
        np.zeros((0, 3), np.int8),
        np.asfortranarray(np.eye(3)),
        np.array(["a", "bc"]),
        np.array(5),
        np.arange(6)[::2],
        np.array([1 + 1j]),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_an_array_comes_back_bit_for_bit_and_can_be_written(array: np.ndarray[Any, Any]) -> None:
    found = decode_state(encode_state({"array": array}))["array"]
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype
    assert found.flags.writeable


def test_a_plain_state_holds_no_pickle() -> None:
    data = encode_state({"weights": np.ones(4), "step": 3, "names": ("a", "b")})
    assert b"pickle" not in data
    assert b"cloudpickle" in encode_state(lambda: 1)


def test_what_is_shared_in_a_state_stays_shared() -> None:
    part = np.zeros(3)
    found = decode_state(encode_state({"a": part, "b": [part]}))
    assert found["a"] is found["b"][0]
    loop: list[Any] = []
    loop.append(loop)
    assert decode_state(encode_state(loop))[0][0] is not None


def test_objects_come_back_through_pickle() -> None:
    assert decode_state(encode_state([Custom(4)]))[0].value == 4
    objects = np.array([{"a": 1}, None], dtype=object)
    assert decode_state(encode_state(objects))[0] == {"a": 1}


def test_a_state_that_cannot_be_kept_is_one_line(home: Path) -> None:
    with attempt(), (home / "file").open("w") as file, pytest.raises(SerialisationError, match="cannot be kept: "):
        checkpoints.checkpoint("a", {"open": file})


def test_a_state_of_another_version_is_refused() -> None:
    with pytest.raises(HeteroError, match="another version"):
        decode_state(b"hetero-state 9\n")


# --- whose they are ------------------------------------------------------------------------------------------


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def given_to_another(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file belong to another user; who is not root becomes another user instead."""
    if os.geteuid() == 0:
        os.chown(file, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


def writable_by_all(file: Path, _: pytest.MonkeyPatch) -> None:
    file.chmod(0o666)


@pytest.mark.parametrize(
    ("change", "words"), [(given_to_another, "belongs to user"), (writable_by_all, r"mode 666\).*chmod go-w")]
)
def test_a_checkpoint_that_another_user_may_have_written_is_not_unpickled(
    change: Callable[..., None], words: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with attempt():
        checkpoints.checkpoint("epoch", Trap(home / "sprung"))
    (file,) = (home / "checkpoints").rglob("*.epoch=")
    change(file, monkeypatch)
    with attempt(), pytest.warns(UserWarning, match=words):
        assert checkpoints.restore() is None
    assert not (home / "sprung").exists()


def test_what_a_store_writes_is_for_its_owner_to_change_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        FileStore(tmp_path / "store").put("key", b"value")
    finally:
        os.umask(before)
    (file,) = (tmp_path / "store").glob("key=")
    assert file.stat().st_mode & 0o777 == 0o644
    assert FileStore(tmp_path / "store", own_only=True).get("key") == b"value"


def test_results_of_batches_that_another_user_may_have_written_are_not_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "batches")
    journal.put(Entry(0, 1, Trap(tmp_path / "sprung"), ()))
    (file,) = (tmp_path / "batches").glob("0*=")
    given_to_another(file, monkeypatch)
    for read in (journal.entries, lambda: journal.get(0)):
        with pytest.raises(ForeignFileError, match="belongs to user"):
            read()
    assert file.exists()
    assert not (tmp_path / "sprung").exists()


def test_states_of_a_merge_that_another_user_may_have_written_are_not_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job: Any = type("Job", (), {"key": "job"})()
    store = FileStore(tmp_path / "states")
    store.put("job", b"job")
    store.put("part-0", cloudpickle.dumps(Trap(tmp_path / "sprung")))
    given_to_another(tmp_path / "states" / "part-0=", monkeypatch)
    merge: Any = None
    with pytest.raises(ForeignFileError, match="belongs to user"):
        MergeSink(merge, tmp_path).open(job, "resume")
    assert not (tmp_path / "sprung").exists()
