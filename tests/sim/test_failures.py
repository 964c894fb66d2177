"""What breaks, and what becomes of the tasks."""

from __future__ import annotations

import pytest

from hetero.core.machine import Rules
from hetero.drive.sim import Costs, Program, SimHooks, SimTask, simulate
from hetero.drive.sim_faults import Faults, Slowdown
from hetero.model.device import Device
from hetero.model.events import TransferFinished
from hetero.model.tasks import Near, Request, Task
from tests.sim.worlds import cpus, gpu, independent, joined, known, program, speeds, task

STARTS = Costs(start_s=0.2)


@pytest.mark.parametrize("seed", range(5))
def test_killed_workers_cost_their_running_attempts_and_nothing_else(seed: int) -> None:
    fleet = cpus(4)
    truth = speeds(fleet, 0.05, 1.0, 1.0, 0.5, 0.25)
    done = simulate(
        program(independent(1000)),
        fleet,
        truth,
        cost=known(fleet, truth),
        seed=seed,
        costs=STARTS,
        faults=Faults(kill_every_s=2.0, late=0.5),
    )
    assert len(done.commits) == 1000
    assert not done.failures
    assert done.happened["kill"] >= 5
    assert done.launches - 1000 <= done.happened["kill"] * len(fleet)


def test_a_hanging_attempt_is_given_up_and_tried_again() -> None:
    fleet = cpus(2)
    truth = speeds(fleet, 0.02, 1.0, 1.0)
    rules = Rules(stall_s=1.0, sweep_s=0.5)
    done = simulate(
        program(independent(300)), fleet, truth, cost=known(fleet, truth), faults=Faults(hang=0.01), rules=rules, seed=3
    )
    assert done.happened["hang"] >= 1
    assert len(done.commits) == 300
    assert any("hangs" in text for text in done.warnings)


def test_a_time_limit_ends_a_hanging_task_with_a_timeout() -> None:
    fleet = cpus(1)
    limited = Request(timeout_s=0.5)
    done = simulate(program(independent(1, limited)), fleet, lambda *_: 1.0, faults=Faults(hang=1.0))
    assert done.failures[1].kind == "timeout"
    assert done.failures[1].message == "f ran longer than its limit of 0.5 s"
    assert done.makespan_s == pytest.approx(0.5)


def test_a_task_whose_worker_dies_each_time_is_given_up_and_the_others_finish() -> None:
    def truth(one: Task, device: Device) -> float:
        return 0.01

    fleet = cpus(2)
    done = simulate(program(independent(3)), fleet, truth, faults=Faults(crash=1.0))
    assert {failure.kind for failure in done.failures.values()} == {"crash"}
    assert done.launches <= 3 * 4
    lone = simulate(program(independent(1)), fleet, truth, faults=Faults(crash=1.0))
    assert lone.launches == 4


def test_a_device_that_never_starts_is_given_up_and_its_tasks_go_elsewhere_or_fail() -> None:
    fleet = cpus(1)
    done = simulate(program(independent(3)), fleet, lambda *_: 0.1, costs=STARTS, faults=Faults(start=1.0))
    assert {failure.kind for failure in done.failures.values()} == {"nothing_fits"}
    assert done.warnings == [
        "h0/cpu:0 is started again and not used until then: its worker did not start",
        "h0/cpu:0 is not used any more: its worker did not start",
    ]


def test_a_device_lost_for_good_leaves_its_work_to_the_others() -> None:
    fleet = cpus(3)
    truth = speeds(fleet, 0.05, 1.0, 1.0, 1.0)
    faults = Faults(kill_every_s=1.0, permanent=1.0)
    done = simulate(program(independent(100)), fleet, truth, cost=known(fleet, truth), faults=faults)
    assert len(done.commits) == 100
    assert done.happened["permanent"] >= 2


def test_a_lost_result_is_computed_again_with_all_that_it_needs() -> None:
    fleet = [gpu(), *cpus(1)]
    chain = [SimTask(task(1), nbytes=1_000)]
    chain += [SimTask(task(n, after=[n - 1], inputs=[n - 1]), nbytes=1_000) for n in range(2, 16)]
    done = simulate(
        Program(chain, released_after=1),
        fleet,
        speeds(fleet, 0.05, 10.0, 0.001),
        cost=known(fleet, speeds(fleet, 0.05, 10.0, 0.001)),
        topology=joined(gpu(), bytes_per_s=1e9),
        faults=Faults(kill_every_s=0.07),
        check_every=1,
    )
    assert len(done.commits) == 15
    assert done.happened["recommit"] > 0


def test_results_that_exceed_a_devices_memory_are_written_back_and_dropped() -> None:
    fleet = [gpu()]
    items = [(1_000 + n, 400) for n in range(20)]
    tasks = [SimTask(task(n + 1, inputs=[1_000 + n]), nbytes=100) for n in range(20)]
    back: list[TransferFinished] = []

    def trace(record: object) -> None:
        if isinstance(record, TransferFinished) and record.src == gpu().id:
            back.append(record)

    links = joined(gpu(), bytes_per_s=1e6, capacity_bytes=1_100)
    done = simulate(Program(tasks, items), fleet, lambda *_: 0.01, topology=links, hooks=SimHooks(trace), check_every=1)
    assert len(done.commits) == 20
    assert back
    assert done.machine.replicas.peak[gpu().id] <= 1_100


def test_an_input_larger_than_any_memory_is_refused_with_the_reason() -> None:
    done = simulate(
        Program([SimTask(task(1, inputs=[1_000]))], [(1_000, 5_000)]),
        [gpu()],
        lambda *_: 0.01,
        topology=joined(gpu(), bytes_per_s=1e6, capacity_bytes=1_100),
    )
    assert done.failures[1].kind == "nothing_fits"
    assert "exceed the memory there" in done.failures[1].message


def test_the_next_tasks_input_travels_while_this_one_runs() -> None:
    items = [(1_000 + n, 1_000_000) for n in range(20)]
    tasks = [SimTask(task(n + 1, inputs=[1_000 + n])) for n in range(20)]
    links = joined(gpu(), bytes_per_s=1e8)
    done = simulate(Program(tasks, items), [gpu()], lambda *_: 0.02, topology=links)
    assert done.makespan_s == pytest.approx(20 * 0.02 + 0.01, rel=0.01)


def test_a_task_that_runs_out_of_memory_is_tried_elsewhere_then_cut_then_merged() -> None:
    fleet = cpus(2)
    big = Task(1, "f", "f|", 100.0, (), (), Request(splittable=True))
    done = simulate(program([SimTask(big)]), fleet, lambda *_: 0.01, faults=Faults(out_of_memory_size=30.0))
    assert 1 in done.commits
    assert done.happened["split"] == 3
    whole = Task(1, "f", "f|", 100.0, (), (), Request())
    assert (
        simulate(program([SimTask(whole)]), fleet, lambda *_: 0.01, faults=Faults(out_of_memory_size=30.0))
        .failures[1]
        .kind
        == "out_of_memory"
    )


def test_a_missing_package_leaves_out_the_kind_of_device_for_this_function_only() -> None:
    fleet = [*cpus(1), gpu()]
    truth = speeds(fleet, 0.02, 1.0, 10.0)
    tasks = [*independent(20), *[SimTask(task(n, name="g")) for n in range(21, 41)]]
    done = simulate(
        program(tasks),
        fleet,
        truth,
        cost=known(fleet, truth, "f", "g"),
        topology=joined(gpu(), bytes_per_s=1e9),
        faults=Faults(absent=(("f", "cuda"),)),
    )
    assert len(done.commits) == 40
    assert done.happened["missing_package"] <= 2
    assert set(done.warnings) == {"f is not run on cuda devices: it failed"}
    assert "h0/cuda:0" in {decision.device for decision in done.decisions if decision.task > 20}


def test_small_tasks_stuck_behind_one_that_turned_out_long_are_taken_back() -> None:
    fleet = cpus(2)
    truth = speeds(fleet, 1e-4, 1.0, 1.0)

    def surprising(one: Task, device: Device) -> float:
        return 10.0 if one.id == 20 else truth(one, device)

    done = simulate(program(independent(2_000)), fleet, surprising, cost=known(fleet, truth))
    assert done.makespan_s < 10.1
    assert sorted(done.commits.values())[-2] < 1.0
    assert done.happened["withdrawn"] >= 1


def test_a_task_that_is_stuck_behind_a_slow_device_is_not_waited_for_elsewhere() -> None:
    fleet = cpus(2)
    truth = speeds(fleet, 0.02, 1.0, 1.0)
    faults = Faults(slowdowns=(Slowdown(0.5, "h0/cpu:1", 100.0),))
    done = simulate(program(independent(200)), fleet, truth, cost=known(fleet, truth), faults=faults)
    late = [number for number, at_s in done.commits.items() if at_s > 0.5 + (200 - 50) * 0.02 + 0.1]
    assert len(late) <= 1


# groups, exclusive use, affinities, priorities


def test_groups_are_all_or_nothing_and_competing_ones_do_not_deadlock() -> None:
    fleet = cpus(4)
    requests = [Request(devices=3), Request(devices=2), Request(exclusive=True), Request(devices=4), Request()]
    tasks = [SimTask(task(n, requests[n % len(requests)])) for n in range(1, 101)]
    done = simulate(
        program(tasks), fleet, lambda *_: 0.01, faults=Faults(crash=0.02, late=0.5), costs=STARTS, check_every=1, seed=5
    )
    assert len(done.commits) == 100


def test_a_group_whose_members_share_a_memory_node_keeps_its_result_for_its_readers() -> None:
    fleet = cpus(4)
    groups = [SimTask(task(n, Request(devices=2)), nbytes=1000) for n in range(1, 11)]
    readers = [SimTask(task(100 + n, inputs=[n]), nbytes=10) for n in range(1, 11)]
    done = simulate(program([*groups, *readers]), fleet, lambda *_: 0.01, check_every=1)
    assert len(done.commits) == 20
    assert done.happened["discarded"] == 0


def test_an_exclusive_task_has_its_host_for_itself() -> None:
    fleet = [*cpus(2), *cpus(2, host="h1")]
    tasks = [SimTask(task(n, Request(exclusive=True) if n % 10 == 0 else Request())) for n in range(1, 61)]
    done = simulate(program(tasks), fleet, lambda *_: 0.05, check_every=1)
    begun = {decision.task: decision for decision in done.decisions}
    for number in range(10, 61, 10):
        mine = begun[number]
        ended_s = done.commits[number]
        for other, decision in begun.items():
            same_host = decision.device[:2] == mine.device[:2]
            apart = done.commits[other] <= mine.at_s + 1e-9 or decision.at_s >= ended_s - 1e-9
            assert other == number or not same_host or apart


def test_affinity_and_anti_affinity_are_kept() -> None:
    fleet = [*cpus(2), *cpus(2, host="h1")]
    near = [SimTask(task(n, Request(near=(Near("device", task=1),)), after=[1])) for n in range(2, 12)]
    apart = [SimTask(task(n, Request(apart=(Near("host", task=1),)), after=[1])) for n in range(12, 22)]
    done = simulate(program([SimTask(task(1)), *near, *apart]), fleet, lambda *_: 0.01, check_every=1)
    where = {decision.task: decision.device for decision in done.decisions}
    assert {where[n] for n in range(2, 12)} == {where[1]}
    assert {where[n][:2] for n in range(12, 22)} == {"h1" if where[1][:2] == "h0" else "h0"}


def test_a_task_keeps_apart_from_a_workload_as_long_as_that_is_there() -> None:
    fleet = cpus(2)
    blue = [SimTask(task(n, Request(workload="blue", on=("h0/cpu:0",)))) for n in range(1, 11)]
    shy = [SimTask(task(n, Request(apart=(Near("device", workload="blue"),)))) for n in range(11, 21)]
    done = simulate(program([*blue, *shy]), fleet, lambda *_: 0.01, check_every=1)
    where = {decision.task: decision for decision in done.decisions}
    blue_ends_s = max(done.commits[n] for n in range(1, 11))
    assert all(where[n].device == "h0/cpu:1" or where[n].at_s >= blue_ends_s for n in range(11, 21))


def test_affinities_that_leave_no_device_are_refused_and_not_waited_for() -> None:
    fleet = cpus(1)
    lone = Request(apart=(Near("device", task=1),))
    done = simulate(program([SimTask(task(1)), SimTask(task(2, lone))]), fleet, lambda *_: 0.01)
    assert done.failures[2].kind == "nothing_fits"
    assert "its affinities rule it out" in done.failures[2].message
    assert done.makespan_s < 0.1


def test_a_higher_priority_goes_first() -> None:
    tasks = [*independent(10), *independent(10, Request(priority=7), first=11)]
    fleet = cpus(1)
    truth = speeds(fleet, 0.01, 1.0)
    done = simulate(program(tasks), fleet, truth, cost=known(fleet, truth))
    order = [decision.task for decision in done.decisions]
    assert order == [1, 2, *range(11, 21), *range(3, 11)]


# cancelling, long chains


def test_cancelled_tasks_fail_once_and_free_their_devices() -> None:
    fleet = cpus(2)
    done = simulate(program(independent(200)), fleet, lambda *_: 0.01, faults=Faults(cancel=0.3), costs=STARTS, seed=2)
    assert {failure.kind for failure in done.failures.values()} == {"cancelled"}
    assert len(done.failures) > 30
    assert len(done.commits) + len(done.failures) == 200


def test_a_chain_of_5000_dependents_fails_with_its_first() -> None:
    tasks = [SimTask(task(1)), *[SimTask(task(n, after=[n - 1])) for n in range(2, 5_002)]]
    done = simulate(program(tasks), cpus(1), lambda *_: 0.01, faults=Faults(exception=1.0))
    assert len(done.failures) == 5_001
    assert done.launches == 1
