"""Exactly once, as far as the engines keep it: one result of a task is committed, the others leave nothing behind."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hetero.engines.base import Call, Function, ItemRef, NodeUsage
from hetero.engines.shared import in_flight
from hetero.engines.shared.in_flight import FUNCTIONS_KEPT, InFlight, Outbox, Shipped, next_batch, pack_function
from hetero.engines.shared.items import HeldItem, Items, NodeMeter, Replica, resolve, sizeof
from hetero.engines.shared.memory_pool import (
    AHEAD,
    DEADLY_BYTES,
    FUNCTIONS,
    RUNNING_BYTES,
    WORKERS_BYTES,
    Allocator,
    BufferPlace,
    MemoryPool,
    OutputLeases,
    Payload,
    SharedMappings,
    store,
)
from hetero.engines.shared.wire import LARGE_BYTES, WireValue
from hetero.floor.errors import DeviceLostError, HeteroError, SerialisationError
from hetero.floor.platform import PAGE_BYTES
from hetero.model.commands import Launch
from hetero.model.device import Device, DeviceType

PAGE = PAGE_BYTES
NUMBERS = LARGE_BYTES // 8


class Worker:
    """A worker, as far as items know one; `dropped` are the values that it was told to forget."""

    def __init__(self, node: str, **facts: Any) -> None:
        self.device = Device(f"{node}:0", "cuda", DeviceType("GPU"), "null", memory_node=node, **facts)
        self.dropped: list[Any] = []

    def drop(self, key: Any) -> None:
        self.dropped.append(key)


class Packs:
    """A packer that counts, and refuses what is no bytes."""

    def __init__(self) -> None:
        self.packed = 0

    def payload(self, value: Any) -> Payload:
        self.packed += 1
        if not isinstance(value, bytes):
            raise TypeError("no bytes")
        return Payload(value)


class World:
    def __init__(self) -> None:
        self.meter, self.packs = NodeMeter(), Packs()
        self.items = Items(self.packs, self.meter)
        self.one, self.other = Worker("v1"), Worker("v2")

    def used(self, worker: Worker) -> int:
        return self.meter.usage(worker.device).used_bytes

    def kept(self, worker: Worker, key: str, nbytes: int = 10) -> HeldItem:
        return HeldItem(replica=Replica(worker, key, nbytes))


@pytest.fixture
def world() -> World:
    return World()


# --- one result of a task ------------------------------------------------------------------------------------


def test_the_result_of_the_attempt_that_counts_is_committed(world: World) -> None:
    world.items.finished(7, 1, world.kept(world.one, "a"))
    with pytest.raises(DeviceLostError, match="item 7 is not there"):
        world.items.find(7)
    world.items.commit(7, 1)
    assert world.items.find(7).on(world.one) == Replica(world.one, "a", 10)
    assert world.items.find(7).on(world.other) is None
    assert (world.used(world.one), world.one.dropped) == (10, [])


@pytest.mark.parametrize("wanted", [1, 2])
def test_of_two_attempts_that_finished_one_is_kept_and_the_other_dropped(world: World, wanted: int) -> None:
    """As where a device was given up, its task ran again, and both tell a result."""
    world.items.finished(7, 1, world.kept(world.one, "a"))
    world.items.finished(7, 2, world.kept(world.other, "b", 30))
    world.items.commit(7, wanted)
    winner, loser = (world.one, world.other) if wanted == 1 else (world.other, world.one)
    assert world.items.find(7).on(winner) is not None
    assert world.items.find(7).on(loser) is None
    assert (winner.dropped, loser.dropped) == ([], ["b" if wanted == 1 else "a"])
    assert (world.used(winner), world.used(loser)) == (10 if wanted == 1 else 30, 0)


def test_an_attempt_that_was_not_told_of_is_not_committed(world: World) -> None:
    world.items.finished(7, 1, world.kept(world.one, "a"))
    world.items.commit(7, 2)
    with pytest.raises(DeviceLostError):
        world.items.find(7)
    assert world.one.dropped == ["a"]
    world.items.commit(7, 1)
    with pytest.raises(DeviceLostError):
        world.items.find(7)


def test_a_result_that_is_computed_again_takes_the_place_of_the_one_before(world: World) -> None:
    for attempt, (worker, key) in enumerate(((world.one, "a"), (world.other, "b")), 1):
        world.items.finished(7, attempt, world.kept(worker, key))
        world.items.commit(7, attempt)
    assert world.items.find(7).on(world.other) is not None
    assert (world.one.dropped, world.other.dropped) == (["a"], [])


def test_a_discarded_attempt_leaves_the_others(world: World) -> None:
    for attempt, worker in ((1, world.one), (2, world.other)):
        world.items.finished(7, attempt, world.kept(worker, f"a{attempt}"))
    world.items.discard(7, 1)
    assert (world.one.dropped, world.other.dropped) == (["a1"], [])
    world.items.discard(7, 3)
    world.items.discard(8, 1)
    world.items.commit(7, 2)
    assert world.items.find(7).on(world.other) is not None
    assert world.other.dropped == []


def test_a_forgotten_item_goes_with_all_that_was_not_committed(world: World) -> None:
    world.items.finished(7, 1, world.kept(world.one, "a"))
    world.items.commit(7, 1)
    world.items.finished(7, 2, world.kept(world.other, "b"))
    world.items.forget(7)
    world.items.forget(8)
    assert (world.one.dropped, world.other.dropped) == (["a"], ["b"])
    world.items.commit(7, 2)
    with pytest.raises(DeviceLostError):
        world.items.find(7)


def test_what_a_lost_worker_kept_is_forgotten_and_not_dropped_there(world: World) -> None:
    world.items.finished(7, 1, world.kept(world.one, "a"))
    world.items.commit(7, 1)
    world.items.add_replica(7, Replica(world.other, "b", 25))
    world.items.finished(8, 1, world.kept(world.one, "c"))
    world.items.lost(world.one)
    assert world.items.find(7).replicas == (Replica(world.other, "b", 25),)
    assert (world.used(world.one), world.used(world.other), world.one.dropped) == (0, 25, [])
    world.items.commit(8, 1)
    with pytest.raises(DeviceLostError):
        world.items.find(8)


def test_a_copy_of_what_is_gone_is_dropped_where_it_came_to(world: World) -> None:
    world.items.add_replica(7, Replica(world.one, "late", 10))
    assert (world.one.dropped, world.used(world.one)) == (["late"], 0)


def test_one_copy_can_be_freed_and_the_others_stay(world: World) -> None:
    item = HeldItem(payload=Payload(b"7"), value=7, replica=Replica(world.one, "a", 10))
    world.items.put(7, item)
    world.items.add_replica(7, Replica(world.other, "b", 20))
    world.items.free(7, "v1", on_host=False)
    assert (world.one.dropped, world.other.dropped) == (["a"], [])
    assert item.on_host
    world.items.free(7, "host", on_host=True)
    assert not item.on_host
    assert item.replicas == (Replica(world.other, "b", 20),)
    world.items.free(8, "v1", on_host=False)


def test_nothing_is_left_after_all_is_cleared(world: World) -> None:
    world.items.put(7, HeldItem(value=7))
    world.items.finished(8, 1, HeldItem(value=8))
    world.items.clear()
    world.items.commit(8, 1)
    for number in (7, 8):
        with pytest.raises(DeviceLostError):
            world.items.find(number)


@pytest.mark.parametrize(
    ("item", "there"), [(HeldItem(Payload(b"")), True), (HeldItem(value=None), True), (HeldItem(), False)]
)
def test_an_item_is_on_the_host_in_either_form(world: World, item: HeldItem, there: bool) -> None:
    assert item.on_host == there
    world.items.put(7, item)
    if there:
        assert world.items.find(7) is item
        return
    with pytest.raises(DeviceLostError):
        world.items.find(7)


# --- how items travel ----------------------------------------------------------------------------------------


def test_an_object_becomes_bytes_once(world: World) -> None:
    world.items.put(7, HeldItem(value=b"seven"))
    assert world.items.payload(7) is world.items.payload(7)
    assert world.packs.packed == 1
    assert world.items.payload(7).body == b"seven"
    assert world.items.for_worker(7, world.one) == ((WireValue(b"seven"), None), world.items.payload(7))


def test_what_cannot_travel_says_which_item_it_is(world: World) -> None:
    world.items.put(7, HeldItem(value=7))
    with pytest.raises(SerialisationError, match="data item 7 cannot travel to a worker process: no bytes"):
        world.items.payload(7)
    world.items.put(8, world.kept(world.one, "a"))
    with pytest.raises(DeviceLostError, match="data item 8 is not on the host"):
        world.items.payload(8)


def test_a_worker_that_keeps_an_item_gets_its_key(world: World) -> None:
    world.items.put(7, HeldItem(payload=Payload(b"7"), replica=Replica(world.one, "a", 10)))
    assert world.items.for_worker(7, world.one) == ((None, "a"), None)
    assert world.items.for_thread(7, lambda key: f"kept {key}", world.one) == "kept a"
    world.items.put(8, HeldItem(value=None))
    assert world.items.for_thread(8, lambda key: key, world.one) is None


def test_references_become_values_inside_containers_too() -> None:
    assert resolve([ItemRef(1), {"a": (ItemRef(2), 3)}], {1: "one", 2: "two"}) == ["one", {"a": ("two", 3)}]


def test_only_large_arrays_have_a_size() -> None:
    large, small = np.zeros(LARGE_BYTES, np.uint8), np.zeros(LARGE_BYTES - 1, np.uint8)
    assert sizeof(large) == LARGE_BYTES
    assert sizeof(small) == 0
    assert sizeof([large, (large, {"a": large}), small]) == 3 * LARGE_BYTES
    assert sizeof([large] * 4096) == 4096 * LARGE_BYTES
    assert sizeof([large] * 4097) == 0
    assert sizeof(dict.fromkeys(range(4096), large)) == 4096 * LARGE_BYTES
    assert sizeof(dict.fromkeys(range(4097), large)) == 0

    class Odd:
        nbytes = "many"

    class Raises:
        @property
        def nbytes(self) -> int:
            raise KeyboardInterrupt

    assert sizeof(Odd()) == sizeof(Raises()) == sizeof("text") == 0


def test_a_node_has_a_use_a_peak_and_a_capacity() -> None:
    meter, worker = NodeMeter(), Worker("v1", memory_bytes=100)
    assert meter.usage(worker.device) == NodeUsage(100, 0, 0, 0.0)
    for nbytes in (10, 20, -25):
        meter.add("v1", nbytes)
    assert meter.usage(worker.device) == NodeUsage(100, 5, 30, 0.0)
    limited = Worker("v1", memory_bytes=100, memory_limit_bytes=60)
    assert meter.usage(limited.device).capacity_bytes == 60
    assert meter.usage(Worker("v1").device).capacity_bytes == 0


# --- attempts under way ----------------------------------------------------------------------------------------


def attempt(predicted_s: float, group: Any = None) -> InFlight:
    call = Call(Function("key", "f", None), (), {})
    return InFlight(1, Launch(1, 1, predicted_s), call, group, 0)


@pytest.mark.parametrize(
    ("predicted_s", "together"),
    [
        ([0.9e-3] * 30, 11),
        ([2e-3, 2e-3, 2e-3, 2e-3, 2e-3, 2e-3], 5),
        ([2.1e-3, 1e-3], 1),
        ([1e-3, 2.1e-3], 1),
        ([0.0, 1e-3], 1),
        ([1e-3, 0.0], 1),
        ([1e-6] * 600, 500),
        ([1.0], 1),
    ],
)
def test_short_attempts_share_a_call_up_to_ten_milliseconds(predicted_s: list[float], together: int) -> None:
    waiting = deque(map(attempt, predicted_s))
    batch = next_batch(waiting)
    assert len(batch) == together
    assert len(waiting) == len(predicted_s) - together


def test_a_member_of_a_group_goes_by_itself() -> None:
    waiting = deque([attempt(1e-3, object()), attempt(1e-3)])
    assert len(next_batch(waiting)) == 1
    waiting = deque([attempt(1e-3), attempt(1e-3, object())])
    assert len(next_batch(waiting)) == 1


def test_a_function_travels_once_and_the_longest_unused_goes_first() -> None:
    counters: Counter[str] = Counter()
    shipped = Shipped(counters)
    functions = [Function(f"k{n}", "f", None, blob=b"%d" % n) for n in range(FUNCTIONS_KEPT + 2)]
    travelling: list[tuple[str, bytes]] = []
    for function in functions:
        assert shipped.use(function, travelling) == function.key
    shipped.use(functions[0], travelling)
    assert travelling == [(function.key, function.blob) for function in functions]
    assert counters["functions"] == FUNCTIONS_KEPT + 2
    travelling.clear()
    shipped.retire(travelling, {"k1"})
    assert travelling == [("k2", b"")], "k0 was used again, and k1 is needed"
    travelling.clear()
    shipped.retire(travelling, set())
    assert travelling == [("k1", b"")]
    travelling.clear()
    shipped.retire(travelling, set())
    assert travelling == []


def test_a_function_is_pickled_once_and_named_where_it_cannot_be() -> None:
    function = Function("k", "double", len)
    first = pack_function(function)
    assert pack_function(function) is first
    assert function.blob is first
    with pytest.raises(SerialisationError, match="'double' cannot travel"):
        pack_function(Function("k", "double", (each for each in ()).__next__))


class Sent:
    """An outbox with a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.rows: list[list[Any]] = []
        self.armed = 0
        self.box = Outbox(self.rows.append, lambda seconds: None, lambda: self.now_s)
        monkeypatch.setattr(self.box, "_arm", self._arm)

    def _arm(self) -> None:
        self.armed += 1


def test_answers_of_short_tasks_leave_together(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(monkeypatch)
    sent.box.add("a", None)
    assert sent.rows == [["a"]]
    sent.box.add("b", 1e-3)
    assert sent.rows == [["a"], ["b"]], "more than a window after the last"
    sent.now_s += 0.5e-3
    sent.box.add("c", 1e-3)
    assert (sent.rows[2:], sent.armed) == ([], 1)
    sent.box.add("d", None)
    assert sent.rows[2:] == [["c", "d"]]
    sent.box.flush()
    assert len(sent.rows) == 3


@pytest.mark.parametrize("next_s", [1.1e-3, 0.0])
def test_an_answer_does_not_wait_behind_a_task_that_may_be_long(monkeypatch: pytest.MonkeyPatch, next_s: float) -> None:
    sent = Sent(monkeypatch)
    sent.box._flushed_s = sent.now_s
    sent.box.add("a", next_s)
    assert sent.rows == [["a"]]


def test_an_outbox_sends_late_answers_itself_and_ends() -> None:
    rows: list[list[Any]] = []
    box = Outbox(rows.append, lambda seconds: None, lambda: 0.0)
    box.add("a", 1e-3)
    assert box._thread is not None
    thread = box._thread
    while not rows:
        thread.join(0.001)
    assert rows == [["a"]]
    box.close()
    thread.join(60)
    assert not thread.is_alive()
    assert in_flight.FUNCTIONS_KEPT == FUNCTIONS_KEPT


# --- shared memory ---------------------------------------------------------------------------------------------


@pytest.fixture
def pool() -> Iterator[MemoryPool]:
    notes: list[str] = []
    made = MemoryPool(16 * PAGE + 100, notes.append, Counter())
    made.notes = notes  # type: ignore[attr-defined]
    yield made
    made.close()


@pytest.fixture
def large() -> Iterator[tuple[MemoryPool, SharedMappings]]:
    """Yield a pool with room for large buffers, and what a worker maps of it."""
    made = MemoryPool(128 * PAGE, lambda text: None, Counter())
    yield made, SharedMappings(os.dup(made.main.memory.fd), 128 * PAGE + RUNNING_BYTES)
    made.close()


def test_a_block_returns_when_nobody_holds_it(pool: MemoryPool) -> None:
    block = pool.take(PAGE + 1)
    assert (pool.usage().used_bytes, pool.usage().capacity_bytes) == (2 * PAGE, 16 * PAGE)
    assert pool.segment(0) is pool.main
    del block
    usage = pool.usage()
    assert (usage.used_bytes, usage.peak_bytes) == (0, 2 * PAGE)


def test_what_does_not_fit_goes_to_a_file_that_is_told_once(pool: MemoryPool) -> None:
    closed: list[int] = []
    pool.closed_segments = closed.append
    blocks = [pool.take(10 * PAGE) for _ in range(2)]
    assert len(pool.notes) == 1  # type: ignore[attr-defined]
    blocks.append(pool.take(10 * PAGE))
    assert [block.place.segment for block in blocks] == [0, 1, 2]
    assert pool.segment(2) is blocks[2].segment
    assert (pool.counters["spills"], pool.counters["spilled_bytes"]) == (2, 20 * PAGE)
    assert len(pool.notes) == 1  # type: ignore[attr-defined]
    assert f"({10 * PAGE} of {16 * PAGE} bytes)" in pool.notes[0]  # type: ignore[attr-defined]
    assert (pool.usage().used_bytes, pool.usage().peak_bytes) == (30 * PAGE, 30 * PAGE)
    del blocks[1]
    assert pool.usage().used_bytes == 20 * PAGE
    assert closed == [1]


def test_copies_of_arguments_make_way_for_results(large: tuple[MemoryPool, SharedMappings]) -> None:
    pool, _ = large
    arrays = [np.full(NUMBERS, float(n)) for n in range(3)]
    for array in arrays:
        pool.payload(array)
    kept = [pool.payload(array).places[0] for array in arrays]
    assert pool.usage().used_bytes == 3 * LARGE_BYTES
    assert pool.counters["shared"] == 3, "the same bytes are copied once"
    del kept
    first = pool.take(80 * PAGE)
    assert pool.usage().used_bytes == 128 * PAGE
    second = pool.take(16 * PAGE)
    assert (first.place.segment, second.place.segment) == (0, 0)
    assert pool.usage().used_bytes == 128 * PAGE, "the oldest copy went, the others stay"
    pool.drop_copies()
    assert pool.usage().used_bytes == 96 * PAGE


def test_a_closed_pool_holds_no_file_and_no_memory() -> None:
    before = set(os.listdir("/proc/self/fd"))
    pool = MemoryPool(PAGE, lambda text: None, Counter())
    blocks = [pool.take(PAGE) for _ in range(3)]
    assert set(os.listdir("/proc/self/fd")) > before
    pool.close()
    assert set(os.listdir("/proc/self/fd")) == before
    assert len(blocks) == 3
    with pytest.raises(KeyError):
        pool.segment(1)


def test_an_empty_payload_has_no_bytes() -> None:
    assert Payload(b"body").nbytes == 0
    assert Payload(b"body").wire() == WireValue(b"body")


def test_a_worker_maps_and_unmaps_further_segments(pool: MemoryPool) -> None:
    mappings = SharedMappings(os.dup(pool.main.memory.fd), 16 * PAGE + RUNNING_BYTES)
    pool.take(16 * PAGE)
    spilled = pool.take(17 * PAGE)
    before = len(os.listdir("/proc/self/fd"))
    mappings.add(1, os.dup(spilled.segment.memory.fd), 17 * PAGE)
    mappings.write(spilled.place, memoryview(b"x" * 17 * PAGE))
    assert spilled.segment.part(17 * PAGE - 1, 1).tobytes() == b"x"
    mappings.close(1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_spare_block_leaves_half_of_the_pool_free(pool: MemoryPool) -> None:
    first = pool.spare(8 * PAGE)
    assert first is not None
    assert first.place == (0, 0, 8 * PAGE)
    assert pool.spare(1) is None
    del first
    assert pool.spare(8 * PAGE + 1) is None


def test_workers_tell_which_attempt_they_run(pool: MemoryPool) -> None:
    slots = [pool.running_slot(name) for name in ("a", "b", "c")]
    assert slots == [16 * PAGE, 16 * PAGE + 8, 16 * PAGE + 16]
    assert pool.running_slot("b") == slots[1]
    mappings = SharedMappings(os.dup(pool.main.memory.fd), 16 * PAGE + RUNNING_BYTES)
    mappings.running_slot(slots[1])[0] = 77
    assert [pool.running(slot) for slot in slots] == [0, 77, 0]
    pool.clear_running(slots[1])
    assert pool.running(slots[1]) == 0


def test_a_class_whose_nested_task_ended_a_worker_is_known_to_all_workers(pool: MemoryPool) -> None:
    slots = [pool.running_slot(name) for name in ("a", "b")]
    first, second = (SharedMappings(os.dup(pool.main.memory.fd), 16 * PAGE + WORKERS_BYTES) for _ in range(2))
    assert not pool.is_of_nested(slots[1])
    first.nested_slot(slots[1])[0] = 77
    assert not pool.is_of_nested(slots[0])
    assert [pool.is_of_nested(slots[1]) for _ in range(2)] == [True, True]  # another worker may have begun before
    assert second.deadly[:3].tolist() == [1, 77, 0]
    pool.clear_running(slots[1])
    assert not pool.is_of_nested(slots[1])
    for mark in range(100, 100 + DEADLY_BYTES // 8):
        first.nested_slot(slots[0])[0] = mark
        assert pool.is_of_nested(slots[0]) == (mark < 98 + DEADLY_BYTES // 8)  # beyond, the parent is blamed


def test_values_go_through_memory_that_was_leased(large: tuple[MemoryPool, SharedMappings]) -> None:
    announced: list[Payload] = []
    pool, mappings = large
    leases = OutputLeases(pool, announced.append)
    value = [np.arange(NUMBERS, dtype=np.float64), "text", np.ones(NUMBERS)]

    def room(buffers: list[memoryview]) -> list[BufferPlace]:
        granted = leases.grant(5, [buffer.nbytes for buffer in buffers], "f")
        assert isinstance(granted, list)
        return granted

    wire = store(value, mappings, room)
    assert len(wire.places) == 2
    assert announced[0].nbytes == 2 * LARGE_BYTES
    payload = leases.close(5, wire, "g")
    assert payload is not None
    assert len(payload.places) == 2
    found = payload.value()
    assert (found[0] == value[0]).all()
    assert found[1] == "text"
    found[0][0] = 5.0
    assert payload.value()[0][0] == 0.0, "what is read is shared with nobody"
    assert leases.close(5) is None
    assert store("small", mappings, lambda buffers: []).places == ()


def test_room_is_leased_ahead_for_a_result_like_the_last(pool: MemoryPool) -> None:
    leases = OutputLeases(pool, lambda payload: None)
    assert leases.grant_ahead(1, "f") == []
    assert [place.nbytes for place in leases.grant(1, [PAGE, 2 * PAGE], "f")] == [PAGE, 2 * PAGE]  # type: ignore[union-attr]
    assert leases.close(1) is None
    assert pool.usage().used_bytes == 0
    assert [place.nbytes for place in leases.grant_ahead(2, "f")] == [PAGE, 2 * PAGE]
    assert leases.grant_ahead(3, "g") == []
    assert len(leases.grant_ahead(3, "f")) == 2
    assert leases.grant_ahead(4, "f") == [], f"at most {AHEAD} at a time"
    payload = leases.close(2, WireValue(b"small"), "f")
    assert payload is not None
    assert payload.places == ()
    assert leases.grant_ahead(5, "f") == [], "the last result was small"
    leases.clear()
    assert pool.usage().used_bytes == 0
    for number in range(FUNCTIONS + 1):
        leases.grant(6, [1], f"f{number}")
        leases.close(6)
    assert leases.grant_ahead(7, "f0") == []
    assert len(leases.grant_ahead(7, f"f{FUNCTIONS}")) == 1


def test_room_ahead_is_all_or_nothing(pool: MemoryPool) -> None:
    leases = OutputLeases(pool, lambda payload: None)
    leases.grant(1, [5 * PAGE, 5 * PAGE], "f")
    leases.close(1)
    assert leases.grant_ahead(2, "f") == []
    assert pool.usage().used_bytes == 0


def test_what_a_worker_sends_while_it_goes_on_is_leased_no_more(pool: MemoryPool) -> None:
    leases = OutputLeases(pool, lambda payload: None)
    first, second = leases.grant(1, [PAGE, PAGE])
    sent = leases.filled(1, WireValue(b"body", (first,)))  # type: ignore[arg-type]
    assert [block.place for block in sent.blocks] == [first]
    assert leases.filled(1, WireValue(b"small")).blocks == ()
    leases.close(1)
    assert pool.usage().used_bytes == PAGE
    assert second not in sent.places


def test_the_views_of_a_worker_are_private_before_their_place_is_used_again(
    large: tuple[MemoryPool, SharedMappings],
) -> None:
    pool, mappings = large
    payload = pool.payload(np.arange(NUMBERS, dtype=np.float64))
    views: list[Any] = []
    array = mappings.value(payload.wire(), views)
    assert len(views) == 1
    mappings.release(views)
    payload.blocks[0].segment.part(payload.blocks[0].place.offset, 8)[:] = 255
    assert array[0] == 0.0


def test_a_segment_that_never_comes_is_an_error(pool: MemoryPool, monkeypatch: pytest.MonkeyPatch) -> None:
    from hetero.engines.shared import memory_pool

    monkeypatch.setattr(memory_pool, "_ANNOUNCED_S", 0.01)
    mappings = SharedMappings(os.dup(pool.main.memory.fd), 16 * PAGE + RUNNING_BYTES)
    mappings.close(9)
    with pytest.raises(HeteroError, match="segment 9"):
        mappings.segment(9)


def test_an_allocator_uses_whole_pages_only() -> None:
    allocator = Allocator(2 * PAGE + 1, PAGE)
    assert allocator.usage() == NodeUsage(2 * PAGE, 0, 0, 0.0)
    assert (allocator.take(0), allocator.take(PAGE), allocator.take(1)) == (0, PAGE, None)
    allocator.release(0)
    assert allocator.usage() == NodeUsage(2 * PAGE, PAGE, 2 * PAGE, 0.0)
