"""Leases of programs: threads wait for devices, and tasks keep away from those that are leased."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import hetero
from hetero.floor.errors import BadValueError, DeviceError, NothingFitsError, TaskTimeoutError
from hetero.model.events import LeaseAsked
from hetero.model.leases import LeasePhase, LeaseRequest


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": 0},
        {"compute": 0.0},
        {"compute": 2},
        {"together": "hots"},
        {"cout": 2},
        {"memory": "8GBB"},
        {"on": "cudda"},
    ],
)
def test_a_wrong_option_of_a_lease_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadValueError):
        hetero.cluster.Pool("1xnull").lease(**wrong)


def test_a_thread_waits_until_another_gives_its_lease_back() -> None:
    pool = hetero.cluster.Pool("2xnull")
    order: list[str] = []
    first = pool.lease(count=2)

    def second() -> None:
        with pool.lease(count=2):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    while not any(lease.phase is LeasePhase.PENDING for lease in pool.leases):
        threading.Event().wait(0.005)
    order.append("first")
    first.release()
    thread.join(60)
    assert order == ["first", "second"]
    assert all(device.free for device in pool.devices)


def test_a_wait_ends_with_its_timeout_and_leaves_nothing_held() -> None:
    pool = hetero.cluster.Pool("1xnull")
    with pool.lease():
        with pytest.raises(NothingFitsError, match="not met within"):
            pool.lease(timeout="20ms")
        waiting = pool.ask()
        with pytest.raises(TaskTimeoutError):
            waiting.wait(0.01)
        waiting.release()
    assert pool.leases == ()


def test_a_lease_that_expired_frees_its_device_by_itself() -> None:
    pool = hetero.cluster.Pool("1xnull")
    old = pool.ask(expires="10ms")
    with pool.lease() as new:
        assert new.devices[0].id == "h0/null:0"
        assert old.phase == "released"


def test_preparing_a_device_that_fails_takes_another() -> None:
    pool = hetero.cluster.Pool("3xnull")
    seen = []

    def prepare(device: object) -> None:
        seen.append(device.id)  # type: ignore[attr-defined]
        if device.id == "h0/null:0":  # type: ignore[attr-defined]
            raise OSError("no room")

    with pool.lease(prepare=prepare, count=2) as lease:
        assert [device.id for device in lease.devices] == ["h0/null:1", "h0/null:2"]
    with pytest.raises(NothingFitsError, match="OSError: no room"):
        pool.lease(prepare=prepare, count=3)
    assert pool.leases == ()


def test_a_device_is_allocated_and_released_through_itself() -> None:
    device = hetero.cluster.Pool("1xnull").device("h0/null:0")
    assert (device.type, device.free, device.spec) == ("null", True, None)
    device.allocate(compute=0.5)
    device.allocate(compute=0.5)
    assert not device.free
    device.release()
    assert device.free


@pytest.fixture
def context() -> Iterator[hetero.Context]:
    with hetero.Context(devices="2xcpu", isolation="thread", history=False) as ctx:
        yield ctx


def _where() -> str:
    return hetero.get_current_device().id


def test_tasks_keep_away_from_leased_devices_and_those_of_the_lease_use_them(context: hetero.Context) -> None:
    with context.lease(on="h0/cpu:1") as lease:
        assert {context.run(_where) for _ in range(6)} == {"h0/cpu:0"}
        assert {lease.run(_where) for _ in range(3)} == {"h0/cpu:1"}
    with pytest.raises(DeviceError, match="is released"):
        lease.run(_where)


def test_with_all_devices_leased_a_task_without_a_lease_is_refused(context: hetero.Context) -> None:
    with context.lease(count=2), pytest.raises(NothingFitsError, match="are leased; run it by the lease"):
        context.run(_where)
    assert context.run(_where).startswith("h0/cpu:")


def test_work_that_began_before_a_lease_and_work_behind_it_are_both_done(context: hetero.Context) -> None:
    before = [context.submit(_where) for _ in range(50)]
    with context.lease(on="h0/cpu:1") as lease:
        inside = [lease.submit(_where) for _ in range(200)]
        beside = [context.submit(_where) for _ in range(200)]
        assert {future.result() for future in inside} == {"h0/cpu:1"}
        assert {future.result() for future in beside} == {"h0/cpu:0"}
    assert len(context.gather(before)) == 50


def test_a_lease_that_is_left_ends_once_its_tasks_have(context: hetero.Context) -> None:
    gate = threading.Event()
    with context.lease(on="h0/cpu:1") as lease:
        waits = lease.submit(gate.wait, 60)
        behind = lease.submit(_where)
    assert lease.phase is LeasePhase.RELEASING
    assert context.run(_where) == "h0/cpu:0"
    gate.set()
    assert (waits.result(), behind.result()) == (True, "h0/cpu:1")
    context.lease(on="h0/cpu:1").release()
    assert lease.phase is LeasePhase.RELEASED


def test_a_lease_of_a_context_that_is_not_renewed_makes_room_for_the_next(context: hetero.Context) -> None:
    old = context.lease(count=2, expires="50ms")
    with context.lease(count=2) as new:
        assert new.run(_where).startswith("h0/cpu:")
        assert old.phase is LeasePhase.RELEASED
        assert "expired" in old.value.reason


def test_a_task_that_names_the_devices_of_a_lease_belongs_to_it(context: hetero.Context) -> None:
    with context.lease(on="h0/cpu:1"):
        assert context.run(hetero.task(_where).options(on="h0/cpu:1")) == "h0/cpu:1"


def test_leases_of_two_threads_follow_one_another(context: hetero.Context) -> None:
    first, seen = context.lease(count=2), []

    def second() -> None:
        with context.lease(count=2, timeout="60s") as lease:
            seen.append(lease.run(_where))

    thread = threading.Thread(target=second)
    thread.start()
    seen.append(first.run(_where))
    first.release()
    thread.join(60)
    assert len(seen) == 2


def test_a_lease_that_waits_ends_with_its_context() -> None:
    with hetero.Context(devices="1xcpu", isolation="thread", history=False) as ctx:
        held = ctx.lease()
        told: list[str] = []

        def second() -> None:
            try:
                ctx.lease()
            except hetero.errors.HeteroError as error:
                told.append(str(error))

        thread = threading.Thread(target=second)
        thread.start()
        while len(ctx.driver.ask(lambda core: core).pool.leases) < 2:
            threading.Event().wait(0.005)
    thread.join(60)
    assert "over" in told[0]
    assert held.phase is LeasePhase.RELEASED


def test_who_looks_at_the_leases_holds_up_nobody_who_asks_the_core() -> None:
    with hetero.Context(devices="2xcpu", isolation="thread", history=False) as ctx:
        ctx.lease().release()
        driver, answers = ctx.driver, list[int]()
        bringer = threading.Thread(target=lambda: driver.lend(LeaseAsked(driver.now_s(), 99, LeaseRequest())))
        asker = threading.Thread(target=lambda: answers.append(driver.ask(lambda core: len(core.pool.leases))))
        with ctx._leases._pool._changed:  # as by `pool.leases`, at the worst moment
            bringer.start()
            while not driver._inbox and not driver._core.pool.leases:
                threading.Event().wait(0.005)
            asker.start()
            asker.join(30.0)
            was_answered = list(answers)
        bringer.join(30.0)
        assert was_answered == [1]


def test_a_device_that_cannot_be_prepared_is_not_taken_for_a_lease_of_a_context(context: hetero.Context) -> None:
    def prepare(device: object) -> None:
        if device.id == "h0/cpu:0":  # type: ignore[attr-defined]
            raise OSError("no room")

    with context.lease(prepare=prepare) as lease:
        assert lease.run(_where) == "h0/cpu:1"
