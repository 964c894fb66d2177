"""Nested tasks in virtual time: random trees, pins and faults on random fleets end, with every invariant kept."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hetero.core.fleet import MOST_SUSPENDED
from hetero.drive.sim import Costs, Program, SimHooks, SimLease, SimResult, SimTask, simulate
from hetero.drive.sim_faults import Faults, Loss
from hetero.model.device import Device, DeviceType
from hetero.model.leases import LeaseRequest
from hetero.model.tasks import Request
from hetero.plan.policies.registry import names
from tests.sim.small_worlds import World, leased
from tests.sim.worlds import cpus, joined, known, task

PINS = {index: Request(on=(f"cpu:{index}",)) for index in range(4)}
FREE = Request()


def tree(chance: random.Random, devices: int, depth: int, width: int, pinned: float) -> SimTask:
    """Create a task of random children, some of them pinned to a device."""
    request = PINS[chance.randrange(devices)] if chance.random() < pinned else FREE
    below = chance.randint(0, width) if depth else 0
    nested = tuple(tree(chance, devices, depth - 1, width, pinned) for _ in range(below))
    return SimTask(task(1, request, name=f"f{chance.randrange(3)}"), nested=nested)


def count(entry: SimTask) -> int:
    return 1 + sum(map(count, entry.nested))


def run(seed: int, faults: Faults | None = None, policy: str = "eft", free: bool = False) -> tuple[SimResult, int]:
    chance = random.Random(seed)
    devices = chance.randint(1, 4)
    depth, width = chance.choice(((2, 5), (4, 3), (12, 1), (7, 2)))
    pinned = 0.0 if free else chance.choice((0.0, 0.3, 1.0))
    roots = [tree(chance, devices, depth, width, pinned) for _ in range(chance.randint(1, 12))]
    given = [entry._replace(task=entry.task._replace(id=at + 1)) for at, entry in enumerate(roots)]
    seconds = {f"f{kind}": chance.choice((1e-4, 3e-3, 0.4)) for kind in range(3)}
    result = simulate(
        Program(given, together=chance.random() < 0.5),
        cpus(devices),
        lambda one, device: seconds[one.name],
        policy=policy,
        seed=seed,
        faults=faults,
        costs=Costs(noise=0.3, notice_s=chance.choice((1e-5, 1e-3)), tick_s=chance.choice((0.0, 1e-3))),
        check_every=1,
    )
    return result, sum(map(count, given))


@pytest.mark.parametrize("first", range(0, 200, 50))
@pytest.mark.slow
def test_random_trees_with_random_pins_end_on_random_fleets(first: int) -> None:
    waited = 0
    for seed in range(first, first + 50):
        result, total = run(seed)
        assert len(result.commits) == total, f"seed {seed}"
        assert not result.failures, f"seed {seed}: {result.failures}"
        waited += result.happened["suspended"]
        busy_s = sum(result.busy_s.values())
        told_s = sum(state.busy_s for state in result.machine.fleet.states)
        assert told_s == pytest.approx(busy_s), f"seed {seed}: a device's time is counted once"
    assert waited > 100


@pytest.mark.parametrize("first", [0, *(pytest.param(each, marks=pytest.mark.servers) for each in (50, 100))])
@pytest.mark.slow
def test_trees_end_whatever_fails(first: int) -> None:
    happened = set()
    for seed in range(first, first + 50):
        chances = {"crash": 0.02, "exception": 0.02, "cancel": 0.02, "duplicate": 0.05, "late": 0.1, "replaced": 0.2}
        faults = Faults(kill_every_s=0.3, **chances)
        result, _ = run(seed, faults)
        counts = result.machine.counts
        assert counts.submitted == counts.committed + counts.failed, f"seed {seed}"
        assert set(range(1, 2)) <= {*result.commits, *result.failures}
        happened |= set(result.happened)
    assert {"crash", "suspended", "cancel", "stopped"} <= happened


@pytest.mark.parametrize("policy", [name for name in names() if name != "eft"])
def test_trees_end_under_every_policy(policy: str) -> None:
    for seed in range(6):
        result, total = run(seed, policy=policy)
        assert len(result.commits) == total, f"seed {seed}"


def test_parents_and_children_pinned_crosswise_end() -> None:
    def crosswise(at: int, depth: int) -> SimTask:
        nested = (crosswise(1 - at, depth - 1),) if depth else ()
        return SimTask(task(1, PINS[at]), nested=nested)

    roots = [crosswise(at % 2, 40)._replace(task=task(at + 1, PINS[at % 2])) for at in range(6)]
    result = simulate(Program(roots, together=True), cpus(2), lambda *_: 0.01, check_every=1)
    assert len(result.commits) == 6 * 41
    assert not result.failures


@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("on", [(), ("cpu:0",), ("cpu:1",)])
def test_an_exclusive_task_runs_on_top_of_whatever_waits_at_its_device(devices: int, on: tuple[str, ...]) -> None:
    leaf = SimTask(task(1, Request(exclusive=True, on=on)))
    inner = SimTask(task(1, PINS[1]), nested=(leaf,))
    roots = [SimTask(task(at + 1, PINS[0]), nested=(inner,)) for at in range(3)]
    result = simulate(Program(roots, together=True), cpus(devices), lambda *_: 0.01, check_every=1)
    assert len(result.commits) == 9
    assert not result.failures


def test_a_device_whose_task_waits_runs_only_what_is_nested_in_that_task() -> None:
    waited = 0
    for seed in range(60):
        result, _ = run(seed, free=True)
        assert not result.happened["strangers"], f"seed {seed}"
        waited += result.happened["suspended"]
    assert waited > 100


def test_a_stranger_waits_for_the_end_of_the_task_that_waits() -> None:
    child = SimTask(task(1, PINS[1], name="short"))
    roots = [SimTask(task(1, PINS[0], name="parent"), nested=(child,)), SimTask(task(2, PINS[0], name="other"))]
    seconds = {"parent": 0.2, "short": 10.0, "other": 0.01}
    fleet = cpus(2)
    for cost in (None, known(fleet, lambda one, _: seconds[one.name], *seconds)):
        result = simulate(Program(roots, together=True), fleet, lambda one, _: seconds[one.name], cost=cost)
        assert result.commits[1] < result.commits[2]
        assert not result.happened["strangers"]


def test_parents_that_wait_for_each_other_go_on_while_a_third_device_always_works() -> None:
    pairs = [
        SimTask(task(1 + at, PINS[at], name="parent"), nested=(SimTask(task(1, PINS[1 - at], name="child")),))
        for at in range(2)
    ]
    busy = [SimTask(task(3 + at, PINS[2], name="busy")) for at in range(100)]
    result = simulate(Program([*pairs, *busy], together=True), cpus(3), lambda *_: 0.1, check_every=1)
    assert max(result.commits[1], result.commits[2]) < 1.0 < result.commits[102]
    assert result.happened["strangers"] == 1


@pytest.mark.parametrize("children", [1, 2, 5])
def test_parents_that_wait_for_several_in_a_circle_go_on_while_a_third_device_always_works(children: int) -> None:
    nested = [tuple(SimTask(task(1, PINS[1 - at], name="child")) for _ in range(children)) for at in range(2)]
    pairs = [SimTask(task(1 + at, PINS[at], name="parent"), nested=nested[at]) for at in range(2)]
    busy = [SimTask(task(3 + at, PINS[2], name="busy")) for at in range(100)]
    result = simulate(Program([*pairs, *busy], together=True), cpus(3), lambda *_: 0.1, check_every=1)
    assert max(result.commits[1], result.commits[2]) < 2.0 < result.commits[102]


@pytest.mark.parametrize("leased_too", [False, True])
def test_children_of_a_class_that_killed_a_worker_run_on_top_of_their_parent_while_another_device_works(
    leased_too: bool,
) -> None:
    pin, seconds = Request() if leased_too else PINS[0], {"child": 0.01, "parent": 0.1, "busy": 20.0}
    killer = SimTask(task(1, Request(on=("cpu:0",), crashes=0), name="child"))
    parent = SimTask(task(2, pin, name="parent"), 1.0, nested=(SimTask(task(1, pin, name="child")),) * 2)
    leases = [SimLease(1, LeaseRequest(on=("cpu:0",)), at_s=0.5, tasks=[leased(parent, 1)])] if leased_too else []
    entries = [killer, SimTask(task(3, PINS[1], name="busy")), *([] if leased_too else [parent])]
    faults = Faults(poison=frozenset({1}))
    result = simulate(
        Program(entries, leases=leases), cpus(2), lambda one, _: seconds[one.name], faults=faults, check_every=1
    )
    assert result.commits[2] < 5.0 < result.commits[3]


def test_two_parents_with_many_children_keep_two_devices_at_work() -> None:
    def parent(number: int) -> SimTask:
        return SimTask(task(number, name="parent"), nested=tuple(SimTask(task(1, name="child")) for _ in range(400)))

    result = simulate(Program([parent(1), parent(2)], together=True), cpus(2), lambda *_: 0.01)
    assert max(result.commits.values()) < 4.4
    assert not result.happened["strangers"]


def test_a_killer_nested_in_others_is_given_up_and_those_beside_it_are_not() -> None:
    killer = SimTask(task(1, PINS[0], name="killer"))
    parent = SimTask(task(1, PINS[0], name="parent"), nested=(killer,))
    other = SimTask(task(2, PINS[1], name="other"), nested=(SimTask(task(1, PINS[1], name="mild")),))
    faults = Faults(poison_names=frozenset({"killer"}))
    result = simulate(Program([parent, other]), cpus(2), lambda *_: 0.01, faults=faults, check_every=1)
    assert {1, 2} <= set(result.commits)
    assert "crash" in {failure.kind for failure in result.failures.values()}
    assert result.happened["crash"] < 40


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("crashes", [1, 3])
def test_parents_on_every_device_outlive_the_killers_that_they_submit(devices: int, crashes: int) -> None:
    def parent(at: int) -> SimTask:
        request = Request(crashes=crashes)
        killer = SimTask(task(1, request, name="killer"))
        good = SimTask(task(1, request, name="good"))
        inner = SimTask(task(1, request, name="inner"), nested=(good, killer))
        return SimTask(task(at, request, name="parent"), nested=(good, killer, inner, killer))

    entries = [parent(at) for at in range(1, devices + 1)]
    faults = Faults(poison_names=frozenset({"killer"}))
    result = simulate(Program(entries, together=True), cpus(devices), lambda *_: 0.01, faults=faults, check_every=1)
    assert set(range(1, devices + 1)) <= set(result.commits)
    given_up = [failure.message for failure in result.failures.values() if failure.kind == "crash"]
    assert given_up
    assert all(message.startswith("killer was given up") for message in given_up)


def test_who_asks_for_no_further_attempt_is_given_up_with_a_killer_that_it_submits() -> None:
    killer = SimTask(task(1, PINS[0], name="killer"))
    parent = SimTask(task(1, replace(PINS[0], crashes=0), name="parent"), nested=(killer,))
    faults = Faults(poison_names=frozenset({"killer"}))
    result = simulate(Program([parent]), cpus(1), lambda *_: 0.01, faults=faults, check_every=1)
    assert "its worker died once of a task that it submitted" in result.failures[1].message


def test_what_finds_no_room_beside_those_that_wait_for_it_is_given_up() -> None:
    entry = SimTask(task(1, PINS[0]))
    for _ in range(MOST_SUSPENDED + 5):
        entry = SimTask(task(1, PINS[0]), nested=(entry,))
    result = simulate(Program([entry]), cpus(2), lambda *_: 1e-3)
    assert {failure.kind for failure in result.failures.values()} == {"nothing_fits"}
    assert 1 in result.commits


def test_what_waits_for_the_end_of_a_stack_that_has_no_room_is_not_given_up_with_it() -> None:
    deep = SimTask(task(1, PINS[0]))
    for _ in range(MOST_SUSPENDED + 5):
        deep = SimTask(task(1, PINS[0]), nested=(deep,))
    other = SimTask(task(2, PINS[1]), nested=(SimTask(task(1, PINS[0], name="behind")),))
    result = simulate(Program([deep, other], together=True), cpus(2), lambda *_: 1e-3)
    assert [failure.kind for failure in result.failures.values()] == ["nothing_fits"]
    assert not any("behind" in failure.message for failure in result.failures.values())
    assert {1, 2} <= set(result.commits)


@pytest.mark.parametrize("seed", [9, 431, 443, 490, 567, 701, 791, 1088, 1489, 5657, 7795])
def test_nested_tasks_and_groups_of_leases_end_in_worlds_where_they_once_waited_for_ever(seed: int) -> None:
    result = World(seed).run(SimHooks())
    assert result.machine is not None
    assert not result.machine.pool.leases
    assert not result.machine.tasks


def test_a_nested_task_that_has_room_is_not_given_up_for_others_that_the_policy_prefers_and_that_have_none() -> None:
    result = World(26183).run(SimHooks())
    assert result.machine is not None
    assert not result.machine.tasks, "what travels ahead of its task is nothing to wait for"
    assert not [failure for failure in result.failures.values() if "finds no room" in failure.message]


GPUS = [
    Device(f"h0/cuda:{index}", "cuda", DeviceType("GPU"), "null", index, memory_node="h0/cuda:0") for index in range(2)
]


@pytest.mark.parametrize("seed", range(4))
def test_what_an_exclusive_task_nests_runs_as_a_part_of_it(seed: int) -> None:
    inner = SimTask(task(1, name="inner"), nested=(SimTask(task(1, name="inner")),))
    entries = [SimTask(task(at, Request(exclusive=at % 2 > 0, crashes=9)), nested=(inner, inner)) for at in range(1, 9)]
    links = joined(GPUS[0], bytes_per_s=1e9)
    result = simulate(
        Program(entries, together=True), GPUS, lambda *_: 0.01, topology=links, seed=seed, check_every=1,
        faults=Faults(kill_every_s=0.2),
    )  # fmt: skip
    assert sorted(number for number in result.commits if number < 9) == list(range(1, 9))


def test_a_group_that_leased_devices_keep_waiting_does_not_hold_up_the_group_of_the_lease() -> None:
    mine = SimLease(1, LeaseRequest(count=2), tasks=[SimTask(task(101, Request(devices=2)), at_s=0.5)])
    others = [SimTask(task(1, Request(devices=3)), at_s=0.2), SimTask(task(2, Request(devices=3)), at_s=0.2)]
    result = simulate(Program(others, leases=[mine]), cpus(3), lambda *_: 0.1, check_every=1)
    assert result.commits[101] < result.commits[1] < result.commits[2]


def test_a_small_group_does_not_overtake_one_that_waits_for_the_end_of_others() -> None:
    given = [Request(devices=2), Request(devices=3), *[Request(devices=2)] * 4]
    entries = [SimTask(task(at, request)) for at, request in enumerate(given, 1)]
    result = simulate(Program(entries, together=True), cpus(3), lambda *_: 0.1, check_every=1)
    assert sorted(result.commits, key=result.commits.__getitem__) == [1, 2, 3, 4, 5, 6]


def test_an_exclusive_task_that_is_dropped_does_not_free_the_devices_of_the_group_before_it() -> None:
    group = SimTask(task(1, Request(devices=2), name="group"))
    alone = SimTask(task(2, Request(exclusive=True)), at_s=0.1)
    lease = SimLease(1, LeaseRequest(on=("cpu:2",), lease_s=0.3), at_s=0.2, held_s=9.0)
    after = SimTask(task(3), at_s=0.4)
    held: list[int] = []
    result = simulate(
        Program([group, alone, after], leases=[lease]), cpus(3),
        lambda one, _: 1.0 if one.name == "group" else 0.01, check_every=1,
        hooks=SimHooks(watch=lambda core, _: held.append(sum(each.held_by == 1 for each in core.fleet.states))),
    )  # fmt: skip
    assert max(held) == 2
    assert held.count(2) > 3, "the group holds its devices to its end"
    assert {1, 2, 3} == set(result.commits)


def test_a_nested_task_runs_on_top_of_its_parent_although_the_device_was_leased_meanwhile() -> None:
    parent = SimTask(task(1, PINS[0]), nested=(SimTask(task(1, PINS[0])),))
    lease = SimLease(1, LeaseRequest(on=("cpu:0",)), at_s=0.1, held_s=50.0)
    result = simulate(Program([parent], leases=[lease]), cpus(2), lambda *_: 1.0, check_every=1)
    assert result.commits[1] < 10.0


def test_a_leased_task_runs_on_top_of_one_that_waits_for_the_end_of_the_lease() -> None:
    seconds = {"busy": 0.3, "parent": 0.4, "f": 0.1}
    parent = SimTask(task(1, PINS[0], name="parent"), nested=(SimTask(task(1, PINS[1])),))
    busy = SimTask(task(2, PINS[1], name="busy"))
    lease = SimLease(1, LeaseRequest(count=2), at_s=0.1, tasks=[leased(SimTask(task(101, PINS[0])), 1)])
    result = simulate(Program([busy, parent], leases=[lease]), cpus(2), lambda one, _: seconds[one.name], check_every=1)
    assert set(result.commits) >= {1, 2, 101}
    assert result.commits[101] < result.commits[1] < 2.0


def test_what_a_task_nests_that_runs_again_after_its_lease_runs_where_that_runs() -> None:
    fleet = [*cpus(1), *(replace(gpu, memory_node=gpu.id) for gpu in GPUS)]
    links = joined(*fleet[1:], bytes_per_s=1e9)
    made = SimTask(task(100, name="make"), nbytes=1000, nested=(SimTask(task(1, name="inner")),))
    lease = SimLease(1, LeaseRequest(on=("h0/cuda:0",)), tasks=[leased(made, 1)])
    reader = SimTask(task(101, inputs=(100,), after=(100,), name="read"), at_s=3.0)
    faults, work = Faults(losses=(Loss(2.0, "h0/cuda:0"),)), Program([reader], leases=[lease])
    result = simulate(work, fleet, lambda *_: 0.5, topology=links, check_every=1, faults=faults)
    assert result.happened["recommit"] == 1, result.failures
    assert 101 in result.commits
    assert not result.failures


def test_the_same_seed_gives_the_same_run() -> None:
    faults = replace(Faults(), crash=0.05, cancel=0.05)
    assert run(7, faults)[0].decisions == run(7, faults)[0].decisions
