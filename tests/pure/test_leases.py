"""Leases: all or nothing, never more than there is, given back in every way."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.core.leases import LeasePool
from hetero.floor.errors import BadValueError
from hetero.model.device import Device, DeviceType
from hetero.model.leases import LeasePhase, LeaseRequest
from hetero.model.topology import Link, Topology

ACTIVE, PENDING, FAILED, RELEASED = LeasePhase.ACTIVE, LeasePhase.PENDING, LeasePhase.FAILED, LeasePhase.RELEASED


def fleet() -> list[Device]:
    """Two hosts in two racks with three GPUs each, and a CPU."""
    gpus = [
        Device(f"h{host}/cuda:{n}", "cuda", DeviceType("GPU"), "torch", n, memory_node=f"h{host}/cuda:{n}",
               memory_bytes=100, rack=f"r{host}")
        for host in range(2) for n in range(3)
    ]  # fmt: skip
    return [*gpus, Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu", cores=8, rack="r0")]


def test_a_lease_has_all_that_it_asked_for_or_nothing() -> None:
    pool = LeasePool(fleet())
    first = pool.ask(LeaseRequest(on=("gpu",), count=4), 0.0)
    second = pool.ask(LeaseRequest(on=("gpu",), count=3), 1.0)
    assert len(pool.lease(first).devices) == 4
    assert pool.lease(second).phase is PENDING
    assert pool.lease(second).devices == ()
    pool.release(first, 2.0)
    assert len(pool.lease(second).devices) == 3
    pool.check()


def test_a_request_that_could_never_be_met_fails_at_once_with_the_reason() -> None:
    pool = LeasePool(fleet())
    for request, told in (
        (LeaseRequest(on=("tpu",)), "not one of: tpu"),
        (LeaseRequest(on=("gpu",), memory_bytes=101), "101"),
        (LeaseRequest(on=("cpu",), min_cores=9), "8 cores of the 9"),
        (LeaseRequest(on=("gpu",), count=7), "no 7 devices"),
        (LeaseRequest(on=("gpu",), count=4, together="host"), "share the same host"),
    ):
        lease = pool.lease(pool.ask(request, 0.0))
        assert lease.phase is FAILED
        assert told in lease.reason


def test_parts_of_a_device_are_shared_until_its_time_or_memory_is_used_up() -> None:
    pool = LeasePool(fleet()[:1])
    half = [pool.ask(LeaseRequest(compute_frac=0.5, memory_bytes=40), 0.0) for _ in range(3)]
    assert [pool.lease(number).phase for number in half] == [ACTIVE, ACTIVE, PENDING]
    small = pool.ask(LeaseRequest(compute_frac=0.01, memory_bytes=30), 0.0)
    pool.release(half[0], 1.0)
    assert pool.lease(half[2]).phase is ACTIVE
    assert pool.lease(small).phase is PENDING
    pool.check()


def test_an_exclusive_lease_shares_with_nobody() -> None:
    pool = LeasePool(fleet()[:1])
    part = pool.ask(LeaseRequest(compute_frac=0.1), 0.0)
    alone = pool.ask(LeaseRequest(compute_frac=0.1, exclusive=True), 0.0)
    assert pool.lease(alone).phase is PENDING
    pool.release(part, 1.0)
    assert pool.lease(alone).phase is ACTIVE
    assert pool.lease(pool.ask(LeaseRequest(compute_frac=0.1), 2.0)).phase is PENDING


def test_devices_that_must_share_a_host_or_a_rack_do() -> None:
    pool = LeasePool(fleet())
    pool.ask(LeaseRequest(on=("h0/cuda:0",)), 0.0)
    lease = pool.lease(pool.ask(LeaseRequest(on=("gpu",), count=3, together="host"), 0.0))
    assert lease.devices == ("h1/cuda:0", "h1/cuda:1", "h1/cuda:2")
    lease = pool.lease(pool.ask(LeaseRequest(count=3, together="rack"), 0.0))
    assert set(lease.devices) == {"h0/cuda:1", "h0/cuda:2", "h0/cpu:0"}


def test_devices_that_must_be_linked_are_linked_each_with_each() -> None:
    joined = [("h0/cuda:0", "h0/cuda:2"), ("h0/cuda:2", "h1/cuda:1"), ("h0/cuda:0", "h1/cuda:1")]
    topology = Topology((), tuple(Link(a, b, 0.0, 1e9, kind="nvlink") for a, b in joined))
    pool = LeasePool(fleet(), topology)
    lease = pool.lease(pool.ask(LeaseRequest(on=("gpu",), count=3, together="link:nvlink"), 0.0))
    assert set(lease.devices) == {"h0/cuda:0", "h0/cuda:2", "h1/cuda:1"}
    assert pool.lease(pool.ask(LeaseRequest(count=4, together="link:nvlink"), 0.0)).phase is FAILED


def test_workloads_that_keep_apart_keep_apart_whoever_comes_first() -> None:
    pool = LeasePool(fleet())
    noisy = pool.ask(LeaseRequest(on=("h0/cuda:0",), workload="noisy", compute_frac=0.1), 0.0)
    quiet = pool.ask(LeaseRequest(on=("gpu",), apart=("noisy",), apart_by="host", workload="quiet"), 0.0)
    assert pool.lease(quiet).devices[0].startswith("h1/")
    late = pool.ask(LeaseRequest(on=("h1/cuda:0", "h1/cuda:1", "h1/cuda:2"), workload="noisy", compute_frac=0.1), 0.0)
    assert pool.lease(late).phase is PENDING
    pool.release(quiet, 1.0)
    assert pool.lease(late).phase is ACTIVE
    assert pool.lease(noisy).phase is ACTIVE


def test_a_lease_that_is_not_renewed_expires_and_the_next_is_met() -> None:
    pool = LeasePool(fleet()[:1])
    first = pool.ask(LeaseRequest(lease_s=10.0), 0.0)
    second = pool.ask(LeaseRequest(), 1.0)
    assert pool.next_s() == 10.0
    pool.renew(first, 8.0)
    pool.advance(17.9)
    assert pool.lease(first).phase is ACTIVE
    pool.advance(18.0)
    assert (pool.lease(first).phase, pool.lease(second).phase) == (RELEASED, ACTIVE)
    assert "expired" in pool.lease(first).reason
    with pytest.raises(BadValueError, match="is released"):
        pool.renew(first, 19.0)


def test_a_request_waits_no_longer_than_its_timeout() -> None:
    pool = LeasePool(fleet()[:1])
    pool.ask(LeaseRequest(), 0.0)
    late = pool.ask(LeaseRequest(timeout_s=5.0), 1.0)
    assert pool.next_s() == 6.0
    pool.advance(6.0)
    assert pool.lease(late).phase is FAILED
    assert "h0/cuda:0 held by others" in pool.lease(late).reason


def test_a_device_that_cannot_be_had_rolls_the_whole_lease_back() -> None:
    pool = LeasePool(fleet()[:3])
    number = pool.ask(LeaseRequest(count=2), 0.0)
    pool.refuse(number, "h0/cuda:1", 1.0, "busy elsewhere")
    assert pool.lease(number).devices == ("h0/cuda:0", "h0/cuda:2")
    pool.refuse(number, "h0/cuda:2", 2.0, "busy too")
    assert pool.lease(number).phase is FAILED
    assert "busy too" in pool.lease(number).reason
    assert not pool.leases
    pool.check()


def test_a_lost_device_fails_its_leases_whole_and_frees_the_others() -> None:
    pool = LeasePool(fleet()[:3])
    number = pool.ask(LeaseRequest(count=2), 0.0)
    waiting = pool.ask(LeaseRequest(count=2), 0.0)
    hopeless = pool.ask(LeaseRequest(count=3), 0.0)
    pool.lose("h0/cuda:0", 1.0, "no answer")
    assert pool.lease(number).phase is FAILED
    assert pool.lease(waiting).devices == ("h0/cuda:1", "h0/cuda:2")
    assert pool.lease(hopeless).phase is FAILED
    pool.restore("h0/cuda:0", 2.0)
    assert pool.lease(pool.ask(LeaseRequest(), 3.0)).devices == ("h0/cuda:0",)


def test_while_a_lease_is_being_given_back_its_devices_are_still_held() -> None:
    pool = LeasePool(fleet()[:1])
    first, second = pool.ask(LeaseRequest(lease_s=1.0), 0.0), pool.ask(LeaseRequest(), 0.0)
    pool.begin_release(first)
    pool.advance(5.0)
    assert (pool.lease(first).phase, pool.lease(second).phase) == (LeasePhase.RELEASING, PENDING)
    pool.release(first, 6.0)
    assert pool.lease(second).phase is ACTIVE


def test_a_higher_priority_is_met_first() -> None:
    pool = LeasePool(fleet()[:1])
    first = pool.ask(LeaseRequest(), 0.0)
    low, high = pool.ask(LeaseRequest(), 1.0), pool.ask(LeaseRequest(priority=1), 2.0)
    pool.release(first, 3.0)
    assert (pool.lease(low).phase, pool.lease(high).phase) == (PENDING, ACTIVE)


REQUESTS = st.builds(
    LeaseRequest,
    on=st.sampled_from([(), ("gpu",), ("cpu",), ("h0/cuda:1", "h1/cuda:1")]),
    count=st.integers(1, 4),
    memory_bytes=st.integers(0, 110),
    compute_frac=st.sampled_from([0.1, 0.3, 0.5, 1.0]),
    exclusive=st.booleans(),
    together=st.sampled_from(["", "host", "rack"]),
    workload=st.sampled_from(["", "a", "b"]),
    apart=st.sampled_from([(), ("a",), ("b",)]),
    apart_by=st.sampled_from(["device", "host"]),
    timeout_s=st.sampled_from([0.0, 3.0]),
    lease_s=st.sampled_from([0.0, 4.0]),
    priority=st.integers(0, 2),
)
STEPS = st.one_of(
    st.tuples(st.just("ask"), REQUESTS),
    st.tuples(st.sampled_from(["release", "begin", "renew", "refuse"]), st.integers(0, 30)),
    st.tuples(st.sampled_from(["lose", "restore"]), st.integers(0, 6)),
    st.tuples(st.just("wait"), st.integers(1, 5)),
)


@given(st.lists(STEPS, max_size=40))
@settings(max_examples=150, deadline=None)
def test_whatever_happens_nothing_is_handed_out_twice_and_in_the_end_all_is_free(steps: list[tuple]) -> None:
    pool, now_s, asked = LeasePool(fleet()), 0.0, 0
    for what, how in steps:
        number = 1 + how % asked if isinstance(how, int) and asked else 0
        if what == "ask":
            asked = pool.ask(how, now_s)
        elif what in ("lose", "restore"):
            getattr(pool, what)(fleet()[how].id, now_s)
        elif what == "wait":
            now_s += how
            pool.advance(now_s)
        elif number and what == "release":
            pool.release(number, now_s)
        elif number and what == "begin":
            pool.begin_release(number)
        elif number and what == "refuse" and pool.lease(number).devices:
            pool.refuse(number, pool.lease(number).devices[0], now_s, "no")
        elif number and what == "renew" and pool.lease(number).phase is ACTIVE:
            pool.renew(number, now_s)
        pool.check()
        for lease in pool.leases:
            assert lease.phase is not PENDING or not lease.request.timeout_s or now_s <= lease.asked_s + 3.0
    for lease in pool.leases:
        pool.release(lease.id, now_s)
    for lease in pool.leases:
        pool.release(lease.id, now_s)
    pool.check()


def test_what_could_be_leased_side_by_side_is_told_and_nothing_is_taken() -> None:
    pool = LeasePool(fleet())
    pairs = pool.offers(LeaseRequest(on=("gpu",), count=2))
    assert [len(pair) for pair in pairs] == [2, 2, 2]
    assert len({device for pair in pairs for device in pair}) == 6
    assert [len(group) for group in pool.offers(LeaseRequest(on=("gpu",), count=4))] == [4]
    assert pool.offers(LeaseRequest(on=("gpu",), count=7)) == ()
    assert len(pool.offers(LeaseRequest(on=("gpu",), count=2, together="host"))) == 2
    assert pool.lease(pool.ask(LeaseRequest(on=("gpu",), count=6), 0.0)).phase is ACTIVE


def test_only_an_active_lease_holds_devices() -> None:
    pool = LeasePool(fleet())
    first, second = (pool.ask(LeaseRequest(on=("gpu",), count=6), 0.0) for _ in range(2))
    assert len(pool.held(first)) == 6
    assert pool.held(second) == pool.held(77) == ()


def test_a_lease_whose_time_is_over_cannot_be_renewed_though_nobody_has_looked_since() -> None:
    pool = LeasePool(fleet())
    short, endless = pool.ask(LeaseRequest(lease_s=0.5), 0.0), pool.ask(LeaseRequest(), 0.0)
    with pytest.raises(BadValueError, match="ask for a new one"):
        pool.renew(short, 0.7)
    pool.renew(endless, 0.7)
    assert pool.lease(endless).phase is ACTIVE
