"""Leases in virtual time: the pool that a Context uses, with expiry, timeouts and devices that die."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero.drive.sim import Costs, Program, SimHooks, SimLease, SimResult, SimTask, simulate
from hetero.drive.sim_faults import Faults, Loss
from hetero.floor.errors import BadValueError
from hetero.model.commands import LeaseChanged
from hetero.model.device import Device, DeviceType
from hetero.model.fabric import Fabric, FabricPart, Wire
from hetero.model.leases import LeasePhase, LeaseRequest
from hetero.model.tasks import Request, Task
from hetero.model.topology import Topology

ACTIVE, FAILED, RELEASED = LeasePhase.ACTIVE, LeasePhase.FAILED, LeasePhase.RELEASED
GPUS = [Device(f"h{n // 2}/cuda:{n % 2}", "cuda", DeviceType("GPU"), "null", n % 2) for n in range(4)]


def work(first: int, count: int, **request: object) -> list[SimTask]:
    return [SimTask(Task(n, "f", "f|", 0.0, (), (), Request(**request))) for n in range(first, first + count)]  # type: ignore[arg-type]


def run(leases: Sequence[SimLease], tasks: Sequence[SimTask] = (), **how: object) -> SimResult:
    program = Program(tasks, leases=leases)
    return simulate(program, GPUS, lambda task, device: 1.0, check_every=1, **how)  # type: ignore[arg-type]


def phases(result: SimResult, number: int) -> list[LeasePhase]:
    return [news.phase for news in result.leases[number]]


def test_tasks_of_a_lease_and_those_of_others_never_meet_on_a_device_while_it_is_held() -> None:
    mine = SimLease(1, LeaseRequest(count=2), tasks=work(100, 10))
    result = run([mine], work(1, 20))
    held = set(result.leases[1][0].devices)
    until_s = result.leases[1][-1].at_s
    for decision in result.decisions:
        if decision.task >= 100:
            assert decision.device in held
        elif 0.0 < decision.at_s < until_s:
            assert decision.device not in held
    assert len(result.commits) == 30
    assert phases(result, 1) == [ACTIVE, LeasePhase.RELEASING, RELEASED]


def test_a_lease_that_nobody_renews_expires_in_virtual_time_and_what_had_not_begun_fails() -> None:
    mine = SimLease(1, LeaseRequest(on=("h0/cuda:0",), lease_s=2.5), tasks=work(100, 5), held_s=inf)
    result = run([mine], work(1, 3))
    assert [news.at_s for news in result.leases[1]] == [0.0, 2.5]
    assert sorted(task for task in result.commits if task >= 100) == [100, 101, 102]
    assert {failure.message for failure in result.failures.values()} == {
        "f did not begin in time: lease 1 is released: expired after 2.5 s"
    }


def test_a_request_that_waits_too_long_fails_and_one_that_waits_long_enough_is_met() -> None:
    first = SimLease(1, LeaseRequest(count=4), held_s=10.0)
    late = SimLease(2, LeaseRequest(timeout_s=5.0), at_s=1.0)
    patient = SimLease(3, LeaseRequest(timeout_s=20.0), at_s=1.0)
    result = run([first, late, patient])
    assert (phases(result, 2)[-1], result.leases[2][-1].at_s) == (FAILED, 6.0)
    assert [news.at_s for news in result.leases[3] if news.phase is ACTIVE] == [10.0]


def test_a_lease_is_all_or_nothing_and_does_not_hold_up_smaller_ones_behind_it() -> None:
    leases = [SimLease(1, LeaseRequest(), held_s=5.0), SimLease(2, LeaseRequest(count=4), at_s=1.0, held_s=1.0)]
    small = SimLease(3, LeaseRequest(), at_s=2.0, held_s=1.0)
    result = run([*leases, small])
    granted = {
        number: told[0].at_s if told[0].phase is ACTIVE else told[1].at_s for number, told in result.leases.items()
    }
    assert granted == {1: 0.0, 2: 5.0, 3: 2.0}
    assert len(result.leases[2][1].devices) == 4


def test_a_device_that_dies_fails_its_lease_whole_and_frees_the_others() -> None:
    mine = SimLease(1, LeaseRequest(count=2), tasks=work(100, 20), held_s=30.0)
    next_one = SimLease(2, LeaseRequest(count=3), at_s=1.0, tasks=work(200, 3))
    result = run([mine, next_one], faults=Faults(losses=(Loss(4.0, "h0/cuda:0"),)))
    assert phases(result, 1)[-1] is FAILED
    assert "h0/cuda:0 was lost" in result.leases[1][-1].reason
    assert [news.phase for news in result.leases[2]][:2] == [LeasePhase.PENDING, ACTIVE]
    assert "h0/cuda:0" not in result.leases[2][1].devices
    assert {200, 201, 202} <= set(result.commits)


def test_a_worker_that_dies_and_starts_again_leaves_its_lease_as_it_was() -> None:
    mine = SimLease(1, LeaseRequest(count=2), tasks=work(100, 20, crashes=100))
    result = run([mine], faults=Faults(kill_every_s=0.7), costs=Costs(start_s=0.1), seed=3)
    assert phases(result, 1) == [ACTIVE, LeasePhase.RELEASING, RELEASED]
    assert len(result.commits) == 20


def test_devices_that_must_share_nvlink_or_a_numa_node_do() -> None:
    parts = [FabricPart(gpu.id, "device", host=gpu.host, numa=0) for gpu in GPUS]
    wires = [Wire(gpu.id, "switch", "pcie", 16e9) for gpu in GPUS]
    wires.append(Wire("h0/cuda:1", "h1/cuda:0", "nvlink", 100e9))
    topology = Topology(fabric=Fabric((*parts, FabricPart("switch", "switch")), tuple(wires)))
    wishes = [
        LeaseRequest(count=2, together="nvlink"),
        LeaseRequest(count=2, together="link:nvlink"),
        LeaseRequest(count=2),
        LeaseRequest(count=2, together="numa"),
        LeaseRequest(count=3, together="link:nvlink"),
    ]
    result = run([SimLease(n, wish, float(n)) for n, wish in enumerate(wishes, 1)], topology=topology)
    joined = ("h0/cuda:1", "h1/cuda:0")
    assert [result.leases[number][0].devices for number in (1, 2, 3)] == [joined] * 3
    assert result.leases[4][0].devices == ("h0/cuda:0", "h0/cuda:1")
    assert phases(result, 5) == [FAILED]


def test_a_lease_that_would_be_held_for_ever_is_refused() -> None:
    with pytest.raises(BadValueError, match="never given back"):
        run([SimLease(1, LeaseRequest(), held_s=inf)])


WISHES = st.builds(
    LeaseRequest,
    on=st.sampled_from([(), ("gpu",), ("h0/cuda:1", "h1/cuda:1")]),
    count=st.integers(1, 4),
    compute_frac=st.sampled_from([0.4, 1.0]),
    exclusive=st.booleans(),
    together=st.sampled_from(["", "host"]),
    workload=st.sampled_from(["", "a", "b"]),
    apart=st.sampled_from([(), ("a",)]),
    timeout_s=st.sampled_from([0.0, 3.0]),
    lease_s=st.sampled_from([0.0, 4.0]),
    priority=st.integers(0, 2),
)


@given(
    wishes=st.lists(st.tuples(WISHES, st.sampled_from([0.0, 0.5, 2.0]), st.integers(0, 4)), max_size=8),
    alone=st.integers(0, 12),
    seed=st.integers(0, 1_000),
    permanent=st.sampled_from([0.0, 0.3]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.slow
def test_whatever_dies_no_device_is_held_twice_alone_and_every_lease_and_task_ends(
    wishes: list[tuple[LeaseRequest, float, int]], alone: int, seed: int, permanent: float
) -> None:
    leases = [
        SimLease(n, wish, at_s, work(1000 * n, count, crashes=50), held_s=1.0)
        for n, (wish, at_s, count) in enumerate(wishes, 1)
    ]
    holding: dict[int, tuple[str, ...]] = {}
    exclusive = {lease.number for lease in leases if lease.wish.exclusive}

    def trace(record: object) -> None:
        if isinstance(record, LeaseChanged):
            holding[record.lease] = record.devices if record.phase in ("active", "releasing") else ()
            for number in exclusive:
                others = {name for other, devices in holding.items() if other != number for name in devices}
                assert others.isdisjoint(holding.get(number, ()))

    faults = Faults(crash=0.05, kill_every_s=0.8, permanent=permanent, back_s=1.0, duplicate=0.1, late=0.5)
    tasks = work(1, alone, crashes=50)
    result = run(leases, tasks, faults=faults, seed=seed, hooks=SimHooks(trace))
    assert all(phases(result, lease.number)[-1] in (RELEASED, FAILED) for lease in leases)
    assert result.machine is not None
    assert not result.machine.pool.leases
    assert result.machine.counts.submitted == len(result.commits) + len(result.failures)


def test_a_seed_tells_the_same_of_leases_each_time() -> None:
    def told() -> list[object]:
        records: list[object] = []
        leases = [SimLease(n, LeaseRequest(count=n % 3 + 1, lease_s=2.0), tasks=work(100 * n, 3)) for n in range(1, 6)]
        run(leases, work(1, 10), faults=Faults(crash=0.1), seed=7, hooks=SimHooks(records.append))
        return records

    assert told() == told()


def test_a_task_whose_worker_died_twice_on_the_only_device_of_its_lease_is_tried_there_again() -> None:
    mine = SimLease(1, LeaseRequest(on=("h0/cuda:0",)), tasks=work(100, 8, crashes=50))
    result = run([mine], work(1, 4), faults=Faults(crash=0.5), seed=0)
    assert sum(decision.task >= 100 for decision in result.decisions) > 12, "some died twice"
    assert sorted(task for task in result.commits if task >= 100) == list(range(100, 108))


def test_a_task_that_runs_out_of_memory_on_the_only_device_of_its_lease_fails_and_says_so() -> None:
    mine = SimLease(1, LeaseRequest(on=("h0/cuda:0",)), tasks=work(100, 1))
    result = run([mine], faults=Faults(out_of_memory_size=-1.0))
    failure = result.failures[100]
    assert "it ran out of memory there" in failure.message or failure.kind == "out_of_memory"
    assert phases(result, 1)[-1] is RELEASED


def test_a_task_whose_worker_died_twice_on_a_device_runs_there_once_the_other_device_is_gone() -> None:
    tasks = work(1, 40, crashes=50)
    fleet = GPUS[:2]
    faults = Faults(crash=0.5, losses=(Loss(20.0, "h0/cuda:1"),))
    result = simulate(Program(tasks), fleet, lambda task, device: 1.0, check_every=1, seed=5, faults=faults)
    assert sorted(result.commits) == list(range(1, 41))
