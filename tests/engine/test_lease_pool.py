"""Leases of programs: threads wait for devices, and tasks keep away from those that are leased."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import hetero
from hetero.floor.errors import BadValueError, DeviceError, NothingFitsError, TaskTimeoutError
from hetero.model.leases import LeasePhase


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
        hetero.Pool("null:1").lease(**wrong)


def test_a_thread_waits_until_another_gives_its_lease_back() -> None:
    pool = hetero.Pool("null:2")
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
    pool = hetero.Pool("null:1")
    with pool.lease():
        with pytest.raises(NothingFitsError, match="not met within"):
            pool.lease(timeout="20ms")
        waiting = pool.ask()
        with pytest.raises(TaskTimeoutError):
            waiting.wait(0.01)
        waiting.release()
    assert pool.leases == ()


def test_a_lease_that_expired_frees_its_device_by_itself() -> None:
    pool = hetero.Pool("null:1")
    old = pool.ask(expires="10ms")
    with pool.lease() as new:
        assert new.devices[0].id == "h0/null:0"
        assert old.phase == "released"


def test_preparing_a_device_that_fails_takes_another() -> None:
    pool = hetero.Pool("null:3")
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
    device = hetero.Pool("null:1").device("h0/null:0")
    assert (device.type, device.free, device.spec) == ("null", True, None)
    device.allocate(compute=0.5)
    device.allocate(compute=0.5)
    assert not device.free
    device.release()
    assert device.free


@pytest.fixture
def context() -> Iterator[hetero.Context]:
    with hetero.Context(devices="cpu:1,cpu:1", isolation="thread", history=False) as ctx:
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
    with context.lease(count=2), pytest.raises(NothingFitsError, match="excludes"):
        context.run(_where)
    assert context.run(_where).startswith("h0/cpu:")
