"""A checkpoint is whole or not there, the last sound one is found, and it belongs to its run."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.floor.errors import BadValueError, FileError, HeteroError, SerialisationError
from hetero.stores.base import Store
from hetero.stores.checkpoints import Checkpoints, Saved, decode_state, encode_state
from hetero.train.checkpoints import Checkpoint, TrainingCheckpoints, run_facts
from hetero.train.values import TrainOptions


class Kept(Store):
    """A store in memory that records what is done, in order; what is `damaged` cannot be read."""

    def __init__(self) -> None:
        self.rows: dict[str, bytes] = {}
        self.damaged: set[str] = set()
        self.done: list[tuple[str, str]] = []

    def put(self, key: str, data: bytes) -> None:
        self.done.append(("put", key))
        self.rows[key] = data

    def get(self, key: str) -> bytes | None:
        if key in self.damaged:
            raise HeteroError(f"{key} is damaged")
        return self.rows.get(key)

    def list(self, prefix: str = "") -> tuple[str, ...]:
        return tuple(sorted(key for key in self.rows if key.startswith(prefix)))

    def delete(self, key: str) -> None:
        self.done.append(("delete", key))
        self.rows.pop(key, None)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        raise AssertionError("checkpoints replace each other")


@pytest.fixture
def store() -> Iterator[Kept]:
    kept = Kept()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield kept


# --- states as bytes ---------------------------------------------------------------------------------------

simple = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
plain = st.recursive(
    simple | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.tuples(st.integers()), inner),
    max_leaves=12,
)


def has_pickle(data: bytes) -> bool:
    begin = len(b"hetero-state 1\n") + 8
    head = json.loads(data[begin : begin + int.from_bytes(data[begin - 8 : begin], "little")])
    return isinstance(head["tree"], dict) and "pickle" in head["tree"]


@settings(max_examples=40)
@given(plain)
def test_every_plain_state_comes_back_as_it_was(state: Any) -> None:
    assert decode_state(encode_state(state)) == state


@pytest.mark.parametrize(
    "state",
    [
        None, True, 7, -1.5, "text", b"bytes", 3j, [1, (2, 3)], {"a": {1, 2}, (1, 2): frozenset({3})}, np.float32(1.5),
        np.int64(3), np.datetime64("2026-01-01"), 2**9_998,
    ],
)  # fmt: skip
def test_a_plain_state_is_no_code(state: Any) -> None:
    data = encode_state(state)
    found = decode_state(data)
    assert not has_pickle(data)
    assert found == state
    assert type(found) is type(state)


@pytest.mark.parametrize("dtype", ["b1", "i4", "u8", "f2", "c16", "S3", "U3", "M8[s]", "m8[s]"])
def test_arrays_keep_type_and_shape(dtype: str) -> None:
    array = np.zeros((2, 3), dtype)
    data = encode_state({"a": array, "b": [array.copy()]})
    found = decode_state(data)
    assert not has_pickle(data)
    assert found["a"].dtype == array.dtype
    assert found["a"].shape == (2, 3)
    assert (found["b"][0] == array).all()


@pytest.mark.parametrize(
    "state", [2**10_000, np.zeros(2, [("a", "i4")]), np.array([None, 1]), Saved("a", 1), Path("x")]
)
def test_what_is_not_plain_is_pickled_whole(state: Any) -> None:
    data = encode_state({"a": state})
    assert has_pickle(data)
    assert str(decode_state(data)["a"]) == str(state)


@pytest.mark.parametrize("shared", [[1], {"a": 1}, {1}, np.zeros(2)])
def test_what_was_shared_stays_shared(shared: Any) -> None:
    found = decode_state(encode_state([shared, shared]))
    assert found[0] is found[1]
    ring: list[Any] = []
    ring.append(ring)
    found = decode_state(encode_state(ring))
    assert found[0] is found


def test_a_state_that_cannot_be_kept_is_named() -> None:
    with pytest.raises(SerialisationError, match="a dict, cannot be kept"):
        encode_state({"rows": (row for row in ())})


def test_a_state_of_another_version_is_refused() -> None:
    with pytest.raises(FileError, match="another version"):
        decode_state(b"hetero-state 2\n" + encode_state(1)[15:])


@pytest.mark.parametrize("state", [{"a": np.arange(3.0)}, [1, 2], b"bytes", 3j])
def test_no_change_of_a_byte_raises_anything_but_damage(state: Any) -> None:
    data = encode_state(state)
    for place in range(len(data)):
        for changed in (data[:place], data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]):
            with suppress(HeteroError):
                decode_state(changed)


# --- the checkpoints of tasks ------------------------------------------------------------------------------


def test_the_last_checkpoint_is_the_one_that_was_written_last(store: Kept) -> None:
    kept = Checkpoints(store)
    assert kept.last("run/1") is None
    for number, name in enumerate(("b", "a", "b", "c")):
        assert kept.save("run/1", name, number) == len(encode_state(number))
    assert kept.last("run/1") == Saved("c", 3)
    assert kept.last("run/1", "b") == Saved("b", 2)
    assert kept.last("run/1", "d") is None
    assert kept.last("run/10") is None
    assert store.list() == ("run/1/00000002.a", "run/1/00000003.b", "run/1/00000004.c")


def test_a_name_that_is_written_again_is_replaced_after_the_new_one_is_there(store: Kept) -> None:
    kept = Checkpoints(store)
    kept.save("run/1", "a", 0)
    kept.save("run/1", "a", 1)
    assert store.done == [("put", "run/1/00000001.a"), ("put", "run/1/00000002.a"), ("delete", "run/1/00000001.a")]


def test_a_damaged_checkpoint_is_left_out_with_a_warning(store: Kept) -> None:
    kept = Checkpoints(store)
    kept.save("run/1", "a", 1)
    kept.save("run/1", "b", 2)
    store.damaged.add("run/1/00000002.b")
    with pytest.warns(UserWarning, match="a checkpoint is left out: run/1/00000002.b is damaged") as caught:
        assert kept.last("run/1") == Saved("a", 1)
    assert caught[0].filename != __file__
    with pytest.warns(UserWarning, match="left out"):
        assert kept.last("run/1", "b") is None


def test_a_checkpoint_that_was_replaced_while_it_was_looked_for_is_looked_for_again(store: Kept) -> None:
    kept = Checkpoints(store)
    kept.save("run/1", "a", 1)
    before = store.list

    def replaced(prefix: str = "") -> tuple[str, ...]:
        found = before(prefix)
        if "run/1/00000001.a" in store.rows:
            store.rows["run/1/00000002.a"] = encode_state(2)
            del store.rows["run/1/00000001.a"]
        return found

    store.list = replaced  # type: ignore[method-assign]
    assert kept.last("run/1") == Saved("a", 2)


def test_loops_are_one_value_beside_the_checkpoints(store: Kept) -> None:
    kept = Checkpoints(store)
    assert kept.loops("run/1") is None
    assert kept.save_loops("run/1", [1]) == len(encode_state([1]))
    kept.save_loops("run/1", [2])
    kept.save("run/1", "a", 0)
    assert kept.loops("run/1") == [2]
    assert kept.last("run/1") == Saved("a", 0)
    assert store.list() == ("run/1/00000001.a", "run/1/loops")


def test_clearing_a_run_leaves_other_runs(store: Kept) -> None:
    kept = Checkpoints(store)
    for key in ("run/1", "run/2", "run2/1"):
        kept.save(key, "a", 0)
    kept.clear("run/1")
    assert store.list() == ("run/2/00000001.a", "run2/1/00000001.a")
    kept.clear("run")
    assert store.list() == ("run2/1/00000001.a",)


@pytest.mark.parametrize("name", ["epoch 3", "a/b", "a_b", "é", "_", "A-z9", "..", "\udcff", "a__b_5f"])
def test_every_name_comes_back(store: Kept, name: str) -> None:
    kept = Checkpoints(store)
    kept.save(f"run.1/{name.replace('/', '')}", name, 1)
    assert kept.last(f"run.1/{name.replace('/', '')}") == Saved(name, 1)
    (key,) = store.list()
    assert set(key) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./")


def test_a_name_is_a_word_of_some_length(store: Kept) -> None:
    kept = Checkpoints(store)
    kept.save("run", "a" * 180, 1)
    for name in ("a" * 181, "é" * 31):
        with pytest.raises(BadValueError, match="too long"):
            kept.save("run", name, 1)
    for bad in ("", 3, None):
        with pytest.raises(BadValueError, match="is not the name"):
            kept.save("run", bad, 1)  # type: ignore[arg-type]


# --- the checkpoints of training ---------------------------------------------------------------------------


def test_a_training_checkpoint_counts_from_its_manifest_on(tmp_path: Path) -> None:
    """The state is written first: a program that is killed between the two leaves no checkpoint."""
    kept = TrainingCheckpoints(tmp_path)
    done: list[str] = []
    real = kept.store.put
    kept.store.put = lambda key, data: (done.append(key), real(key, data))[1]  # type: ignore[method-assign]
    kept.write(7, b"state", {"seed": 1})
    assert done == ["step-000000000007/state", "step-000000000007/manifest"]
    kept.store.delete("step-000000000007/manifest")
    assert kept.steps() == ()
    assert kept.newest() is None


def test_the_newest_few_stay_and_later_ones_of_another_run_do_not_push_them_out(tmp_path: Path) -> None:
    kept = TrainingCheckpoints(tmp_path, keep=2)
    for step in (30, 10, 20, 25):
        kept.write(step, b"%d" % step, {})
    assert kept.steps() == (20, 25, 30)
    assert kept.store.list() == tuple(
        f"step-{step:012d}/{part}" for step in (20, 25, 30) for part in ("manifest", "state")
    )
    assert kept.newest() == Checkpoint(30, b"30", kept.read(30)[1])


def test_the_manifest_goes_before_the_state_does(tmp_path: Path) -> None:
    kept = TrainingCheckpoints(tmp_path, keep=1)
    gone: list[str] = []
    real = kept.store.delete
    kept.store.delete = lambda key: (gone.append(key), real(key))[1]  # type: ignore[method-assign]
    for step in (1, 2):
        kept.write(step, b"", {})
    assert gone == ["step-000000000001/manifest", "step-000000000001/state"]


def test_a_damaged_training_checkpoint_is_passed_over(tmp_path: Path) -> None:
    kept = TrainingCheckpoints(tmp_path)
    assert kept.newest() is None
    for step in (1, 2, 3):
        kept.write(step, b"state %d" % step, {"seed": step})
    kept.store.put("step-000000000003/state", b"another")
    kept.store.delete("step-000000000002/state")
    found = kept.newest()
    assert found is not None
    assert (found.step, found.state, found.facts["seed"]) == (1, b"state 1", 1)
    newer, older = found.damaged
    assert newer.startswith("the checkpoint of step 3 is passed over: its state does not match")
    assert older.startswith("the checkpoint of step 2 is passed over: its state is absent")
    kept.store.put("step-000000000001/state", b"")
    with pytest.raises(HeteroError, match="does not match its manifest"):
        kept.newest()


def test_facts_tell_what_was_written(tmp_path: Path) -> None:
    kept = TrainingCheckpoints(tmp_path)
    kept.write(5, b"12345", {"seed": 1})
    state, facts = kept.read(5)
    assert state == b"12345"
    assert (facts["step"], facts["bytes"], facts["seed"]) == (5, 5, 1)


@pytest.mark.parametrize("totals", [3, {"loss_sum": "x"}, {"speeds": 1}, {"unknown": 1}])
def test_a_manifest_with_odd_sums_is_damaged(tmp_path: Path, totals: Any) -> None:
    kept = TrainingCheckpoints(tmp_path)
    kept.write(1, b"", {"totals": totals})
    with pytest.raises(HeteroError, match="are no sums of an epoch"):
        kept.read(1)


def test_a_manifest_with_sums_is_read(tmp_path: Path) -> None:
    kept = TrainingCheckpoints(tmp_path)
    kept.write(1, b"", {"totals": {"speeds": {"cpu:0": 1.0}}})
    assert kept.read(1)[1]["totals"] == {"speeds": {"cpu:0": 1.0}}


WAYS = ("clip_norm", "clip_value", "ema_decay")


def test_a_run_goes_on_from_its_own_checkpoint_only(tmp_path: Path) -> None:
    kept = TrainingCheckpoints(tmp_path)
    facts, unset = run_facts(TrainOptions(32, seed=3, shuffle=True), 100), dict.fromkeys(WAYS)
    assert facts == {"seed": 3, "global_batch": 32, "shuffle": True, "exact": "sum", "samples": 100, **unset}
    assert kept.newest_of(facts) is None
    kept.write(4, b"state", facts)
    found = kept.newest_of(facts)
    assert found is not None
    assert found.step == 4
    for name, other in {"seed": 4, "global_batch": 64, "shuffle": False, "exact": "bitwise", "samples": 99}.items():
        with pytest.raises(BadValueError, match=f"has {name} "):
            kept.newest_of({**facts, name: other})


def test_a_run_does_not_overtake_checkpoints_of_later_steps(tmp_path: Path) -> None:
    kept = TrainingCheckpoints(tmp_path)
    kept.refuse_to_overtake(0)
    kept.write(10, b"", {})
    kept.refuse_to_overtake(10)
    with pytest.raises(BadValueError, match="checkpoint of step 10 already, and this run stands at step 9"):
        kept.refuse_to_overtake(9)
    kept.write(5, b"", {})
    kept.store.delete("step-000000000010/state")
    kept.refuse_to_overtake(7)
    kept.refuse_to_overtake(5)
    with pytest.raises(BadValueError, match="step 5 already"):
        kept.refuse_to_overtake(4)
    kept.store.delete("step-000000000005/state")
    kept.refuse_to_overtake(4)


def test_a_folder_may_be_named_from_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    TrainingCheckpoints("~/kept").write(1, b"", {})
    assert (tmp_path / "kept").is_dir()
