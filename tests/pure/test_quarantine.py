"""Faults belong to the task that causes them: who is blamed for a worker's death, and what it costs the others."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest

from hetero.core.invariants import check
from hetero.core.machine import Rules
from hetero.core.state import DevicePhase, Phase
from hetero.drive.sim import Costs, Program, SimResult, SimTask, simulate
from hetero.drive.sim_faults import Faults
from hetero.model.commands import Command, Commit, Fail, Run, StartWorker, Warn
from hetero.model.device import HOST_NODE
from hetero.model.events import (
    CancelRequested,
    DeviceLost,
    DeviceReady,
    Event,
    TaskFinished,
    TaskResumed,
    TaskSubmitted,
    TaskSuspended,
    TaskWithdrawn,
    TimerFired,
)
from hetero.model.tasks import JUDGED_BY_CALLER, Request, Task
from hetero.train.worker_deaths import WorkerDeaths
from tests.pure.test_core import PLAIN, World, cpu, only
from tests.sim.worlds import cpus, independent, known, program, speeds, task

QUICK = Rules(restarts=1000)
SEGV = "its worker was killed by SIGSEGV"


class Workers(World):
    """A world whose workers die of certain tasks and finish the others, until nothing is left to do."""

    def __init__(self, count: int, poison: Sequence[int], *, exact: bool = True) -> None:
        super().__init__(*[cpu(index) for index in range(count)], rules=QUICK)
        self.poison, self.exact = frozenset(poison), exact
        self.runs: list[int] = []
        self.deaths = 0
        self.failed: dict[int, str] = {}
        self.done: list[int] = []
        self.warnings: list[str] = []
        self.queue: list[Event] = []

    def tell(self, event: Event) -> list[Command]:
        self.now_s = event.at_s
        commands = self.machine.handle(event)
        if len(self.machine.tasks) < 100:
            check(self.machine)
        for command in commands:
            if isinstance(command, Run):
                self.queue.append(self._outcome(command))
            elif isinstance(command, Fail):
                self.failed[command.task] = command.failure.message
            elif isinstance(command, Commit):
                self.done.append(command.task)
            elif isinstance(command, Warn):
                self.warnings.append(command.text)
        return commands

    def _outcome(self, command: Run) -> Event:
        launch = command.launches[0]
        assert len(command.launches) == 1, "tests with chunks tell the events themselves"
        self.runs.append(launch.task)
        if launch.task in self.poison:
            return DeviceLost(self.now_s, command.device, SEGV, False, launch.task if self.exact else -1)
        return TaskWithdrawn(self.now_s, launch.task, launch.attempt, command.device)

    def go(self) -> None:
        """Let everything happen that is under way."""
        while self.queue:
            self.step()

    def step(self) -> None:
        """Run the next event that is under way."""
        event = self.queue.pop(0)
        if isinstance(event, DeviceLost):
            self.deaths += 1
            self.tell(event)
            self.tell(DeviceReady(self.now_s, event.device))
        else:
            assert isinstance(event, TaskWithdrawn)
            self.finish(event.task, event.attempt, event.device)

    def hand_in(self, number: int, name: str = "f", size: float = 0.0, request: Request | None = None) -> None:
        self.tell(TaskSubmitted(self.now_s, Task(number, name, f"{name}|", size, (), (), request or Request())))


def chunk(world: World) -> list[int]:
    """Let a worker have several small tasks in one message, none of which may kill it; return their numbers."""
    for number in range(1, 9):
        world.submit(number)
        world.tell(TaskFinished(0.0, number, 1, "h0/cpu:0", 0.0, 1e-5, 0, HOST_NODE))
    world.submit(9)
    request = Request(crashes=0)
    for number in range(10, 40):
        world.submit(number, request)
    runs = only(world.tell(TaskFinished(0.0, 9, 1, "h0/cpu:0", 0.0, 1e-5, 0, HOST_NODE)), Run)
    if 10 in world.machine.tasks:
        world.tell(TaskFinished(0.0, 10, 1, "h0/cpu:0", 0.0, 1e-5, 0, HOST_NODE))
    numbers = [launch.task for command in runs for launch in command.launches]  # type: ignore[attr-defined]
    assert len(numbers) > 3
    return numbers


def test_a_class_of_tasks_that_only_kills_is_given_up_after_few_deaths_and_nothing_else_is() -> None:
    world = Workers(2, range(1, 51))
    for number in range(1, 51):
        world.hand_in(number, "bad")
    for number in range(51, 151):
        world.hand_in(number, "good")
    world.go()
    assert sorted(world.done) == list(range(51, 151))
    assert sorted(world.failed) == list(range(1, 51))
    assert world.deaths <= 8
    assert all(SEGV in text for text in world.failed.values())
    untried = [text for text in world.failed.values() if "was not run" in text]
    assert len(untried) >= 40
    (warning,) = world.warnings
    assert warning == (
        f"bad ended 4 workers, the last one {SEGV}: its tasks are tried one at a time until one ends well"
    )


@pytest.mark.parametrize("bad", [range(1, 51), range(1001, 1051), range(1, 1051, 21), range(500, 550)])
def test_good_tasks_of_a_function_whose_other_tasks_kill_are_all_done(bad: range) -> None:
    world = Workers(2, bad)
    for number in range(1, 1051):
        world.hand_in(number)
    world.go()
    assert len(world.done) == 1000
    assert sorted(world.failed) == list(bad)
    assert world.deaths <= len(bad) + 12


def test_a_task_whose_worker_was_killed_by_others_is_tried_again_each_time() -> None:
    world = World(cpu())
    world.submit(1)
    world.finish(1)
    for number in range(2, 42):
        world.submit(number)
        world.tell(DeviceLost(0.0, "h0/cpu:0", "its worker was killed by SIGKILL", False, number))
        world.tell(DeviceReady(0.0, "h0/cpu:0"))
        assert only(world.finish(number, 2), Commit)


def test_when_somebody_kills_all_workers_at_once_every_task_is_tried_again() -> None:
    class KilledOnce(Workers):
        def _outcome(self, command: Run) -> Event:
            first = command.launches[0].attempt == 1
            self.poison = frozenset([command.launches[0].task] if first else [])
            return super()._outcome(command)

    world = KilledOnce(8, ())
    for number in range(1, 9):
        world.hand_in(number)
    world.go()
    assert (sorted(world.done), world.failed, world.deaths) == (list(range(1, 9)), {}, 8)


def test_a_task_that_kills_is_retried_as_often_as_it_asks_for_and_then_its_like_no_more() -> None:
    world = Workers(1, [2, 3, 4])
    for number in range(1, 5):
        world.hand_in(number)
        world.go()
    assert world.runs == [1, 2, 2, 2, 2, 3, 4]
    assert world.failed[2] == f"f was given up: its worker died 4 times, last on h0/cpu:0: {SEGV}"
    others = "and so did those of others of its kind"
    assert world.failed[3] == f"f was given up: its worker died once, on h0/cpu:0, {others}: {SEGV}"


def test_where_a_retry_helped_the_next_task_is_retried_too() -> None:
    world = Workers(1, [])
    for number in (1, 2):
        world.poison = frozenset([number])
        world.hand_in(number)
        world.poison = frozenset()
        world.go()
    world.poison = frozenset([3, 4, 5])
    for number in (3, 4, 5):
        world.hand_in(number)
        world.go()
    assert (world.done, world.runs) == ([1, 2], [1, 1, 2, 2, *[3] * 4, *[4] * 4, *[5] * 4])
    (suspect,) = world.machine.quarantine.suspects.values()
    assert suspect.hopeless


def test_only_the_task_that_ran_is_blamed_and_not_those_queued_behind_or_done_before_it() -> None:
    world = World(cpu())
    numbers = chunk(world)
    commands = world.tell(DeviceLost(0.0, "h0/cpu:0", SEGV, False, numbers[2]))
    assert [command.task for command in only(commands, Fail)] == [numbers[2]]  # type: ignore[attr-defined]


def test_a_worker_that_dies_idle_costs_no_task_anything() -> None:
    world = World(cpu())
    world.submit(1, Request(crashes=0))
    for _ in range(4):
        assert not only(world.tell(DeviceLost(0.0, "h0/cpu:0", SEGV, False, 0)), Fail)
        world.tell(DeviceReady(0.0, "h0/cpu:0"))
    assert world.machine.tasks[1].crashes == 0


def test_a_task_whose_workers_all_die_before_they_answer_is_blamed_in_the_end_and_its_neighbours_are_done() -> None:
    world = World(cpu())
    sent = chunk(world)
    guilty, failed, deaths = sent[1], list[int](), 0
    while world.machine.tasks and deaths < 100:
        first, batch = next(iter(world.machine.fleet.states[0].sent.values()))
        travelling = [state for state, other in world.machine.fleet.states[0].sent.values() if other is batch]
        if any(state.task.id == guilty for state in travelling):
            deaths += 1
            commands = world.tell(DeviceLost(0.0, "h0/cpu:0", "its worker closed its connection", False, 0))
            failed += [command.task for command in only(commands, Fail)]  # type: ignore[attr-defined]
            world.now_s += 100.0
            world.tell(DeviceReady(world.now_s, "h0/cpu:0"))
        else:
            world.finish(first.task.id, first.attempt)
    assert failed == [guilty]
    assert not world.machine.tasks
    assert deaths <= 8


def test_where_the_engine_cannot_tell_a_chunk_is_sent_apart_and_the_killer_found() -> None:
    world = World(cpu())
    sent = chunk(world)
    assert not only(world.lose(), Fail)
    commands = world.tell(DeviceReady(0.0, "h0/cpu:0"))
    killed = list[int]()
    for _ in range(100):
        if not world.machine.tasks:
            break
        state = world.machine.fleet.states[0]
        first, batch = next(iter(state.sent.values()))
        assert first.task.id not in sent or batch.left == 1, "a suspect travels with others"
        if first.task.id == sent[1]:
            commands = world.lose()
            killed += [command.task for command in only(commands, Fail)]  # type: ignore[attr-defined]
            world.tell(DeviceReady(0.0, "h0/cpu:0"))
        else:
            world.tell(TaskFinished(0.0, first.task.id, first.attempt, "h0/cpu:0", 0.0, 1e-5, 0, HOST_NODE))
    assert killed == [sent[1]]


def test_a_task_that_was_being_stopped_does_not_hide_the_one_that_killed() -> None:
    world = World(cpu())
    first, second, *_ = chunk(world)
    world.tell(CancelRequested(0.0, second))
    commands = world.tell(DeviceLost(0.0, "h0/cpu:0", SEGV, False, first))
    assert [command.task for command in only(commands, Fail)] == [first]  # type: ignore[attr-defined]


def test_tasks_of_a_class_in_quarantine_are_tried_one_at_a_time_and_a_cancelled_trial_makes_way() -> None:
    world = Workers(2, range(1, 100))
    for number in range(1, 20):
        world.hand_in(number)
    while not world.warnings:
        event = world.queue.pop(0)
        world.tell(event)
        world.tell(DeviceReady(0.0, event.device))  # type: ignore[union-attr]
    running = [task for device in world.machine.fleet.states for task in device.sent]
    while len(running) > 1:
        event = world.queue.pop(0)
        world.tell(event)
        world.tell(DeviceReady(0.0, event.device))  # type: ignore[union-attr]
        running = [task for device in world.machine.fleet.states for task in device.sent]
    (trial,) = running
    world.poison = frozenset()
    held = [number for number in range(1, 20) if number in world.machine.tasks and number != trial]
    world.tell(CancelRequested(0.0, held[0]))
    world.queue.clear()
    world.tell(CancelRequested(0.0, trial))
    world.fail(trial, "cancelled", 1)
    assert len(world.queue) == 1
    world.go()
    assert set(world.done) | set(world.failed) == set(range(1, 20))


def test_an_exception_shows_that_a_class_does_not_only_kill() -> None:
    world = Workers(1, range(1, 20))
    for number in range(1, 20):
        world.hand_in(number)
    for _ in range(4):
        world.tell(world.queue.pop(0))
        world.tell(DeviceReady(0.0, "h0/cpu:0"))
    world.poison = frozenset()
    world.queue.clear()
    (device,) = world.machine.fleet.states
    if not device.sent:
        world.tell(DeviceReady(0.0, "h0/cpu:0"))
    (trial,) = device.sent
    world.queue.clear()
    world.fail(trial, "exception", world.machine.tasks[trial].attempt)
    (suspect,) = world.machine.quarantine.suspects.values()
    assert world.warnings
    assert not suspect.quarantined
    world.go()
    assert sorted(world.done) == [number for number in range(1, 20) if number != trial]


def test_a_large_task_that_is_killed_for_its_memory_leaves_small_ones_of_its_function_alone() -> None:
    world = Workers(1, range(1, 11))
    for number in range(1, 11):
        world.hand_in(number, "f", 8e9)
    for number in range(11, 31):
        world.hand_in(number, "f", 8e3)
    world.go()
    assert sorted(world.done) == list(range(11, 31))
    assert world.deaths <= 8


def test_a_task_whose_worker_died_twice_on_a_device_goes_to_another() -> None:
    world = World(cpu(), cpu(1), rules=QUICK)
    world.submit(1)
    for _ in range(2):
        world.tell(DeviceLost(0.0, "h0/cpu:0", SEGV, False, 1))
        world.tell(DeviceReady(0.0, "h0/cpu:0"))
        if 1 in world.machine.fleet.states[1].sent:
            break
        world.machine.tasks[1].died_on = 0
    assert 1 in world.machine.fleet.states[1].sent


def test_what_may_run_of_a_class_that_killed_is_found_first_and_the_others_go_before_it() -> None:
    world = Workers(1, range(1, 51))
    for number in range(1, 1051):
        world.hand_in(number)
    world.go()
    assert sorted(world.done) == list(range(51, 1051))
    assert sorted(world.failed) == list(range(1, 51))
    assert world.deaths <= 50 + 3
    last_good = max(place for place, number in enumerate(world.runs) if number > 50)
    assert len(world.runs) - last_good > 40, "the good tasks were done before most of the bad ones"
    retried = [place for place, number in enumerate(world.runs) if number in world.runs[:place]]
    assert min(retried) > last_good, "no retry before the last good task"


def test_a_task_of_another_class_waits_for_two_trials_at_most() -> None:
    world = Workers(1, range(1, 101))
    world.hand_in(0)
    world.go()
    for number in range(1, 101):
        world.hand_in(number)
    while len(world.failed) < 40:
        waits_for = len(world.runs) + 2
        number = 1000 + len(world.runs)
        world.hand_in(number, "other")
        while number not in world.runs:
            world.step()
        assert len(world.runs) <= waits_for
        world.step()


def test_retries_end_where_more_were_used_up_than_helped_and_a_task_that_is_not_retried_says_nothing() -> None:
    world = Workers(1, [2, 3])
    world.hand_in(1)
    world.hand_in(2, request=Request(crashes=0))
    world.hand_in(3)
    world.go()
    assert (world.done, world.runs) == ([1], [1, 2, *[3] * 4])


def test_those_that_wait_for_their_retry_are_given_up_once_retries_prove_useless() -> None:
    world = Workers(1, [2, 3, 4])
    for number in range(1, 8):
        world.hand_in(number)
    world.go()
    assert sorted(world.done) == [1, 5, 6, 7]
    assert world.deaths == 3 + 3
    given_up = f"f was given up: its worker died once, and retries did not help others of its kind; {SEGV}"
    assert list(world.failed.values()).count(given_up) == 2


def test_tasks_that_are_let_go_and_cannot_start_do_not_keep_those_held_back_from_an_idle_device() -> None:
    world = Workers(2, [1])
    for _ in range(2):
        world.machine.handle(DeviceLost(0.0, "h0/cpu:1", "its worker did not start", False, 0))
    for number in range(1, 41):
        world.hand_in(number, request=Request(on=("h0/cpu:1",)) if 1 < number < 21 else Request())
    world.go()
    assert len(world.done) < 20
    for number in range(1, 40):
        world.tell(TimerFired(6.0 * number))
        world.go()
    assert sorted(world.done) == list(range(21, 41))
    assert sorted(world.machine.tasks) == list(range(2, 21))


def test_a_worker_that_tasks_kill_is_started_again_at_once_each_time_and_one_that_dies_idle_is_not() -> None:
    world = World(cpu(), rules=Rules(restarts=0))
    for number in range(1, 101):
        world.submit(number, Request(crashes=JUDGED_BY_CALLER))
        assert only(world.tell(DeviceLost(0.0, "h0/cpu:0", SEGV, False, number)), StartWorker)
        world.tell(DeviceReady(0.0, "h0/cpu:0"))
    assert not only(world.tell(DeviceLost(0.0, "h0/cpu:0", SEGV, False, 0)), StartWorker)
    world = World(cpu(), rules=Rules(restarts=0))
    chunk(world)
    assert only(world.lose(), StartWorker), "one of them did it"


# whole runs in virtual time


def run(poison: frozenset[int], names: dict[int, str], tasks: int = 1050, devices: int = 2) -> SimResult:
    fleet = cpus(devices)
    truth = speeds(fleet, 0.05, *[1.0] * devices)
    numbers = [SimTask(task(number, name=names.get(number, "f"))) for number in range(1, tasks + 1)]
    costs = Costs(start_s=0.2)
    return simulate(program(numbers), fleet, truth, costs=costs, faults=Faults(poison=poison), check_every=50)


def test_fifty_poison_among_a_thousand_good_on_two_devices_cost_less_than_a_twentieth_of_the_time() -> None:
    bad = frozenset(range(1, 1051, 21))
    done = run(bad, dict.fromkeys(bad, "bad"))
    assert len(done.commits) == 1000
    assert set(done.failures) == bad
    assert done.makespan_s <= 1.05 * 1000 * 0.05 / 2 + 0.5
    assert all(state.phase is not DevicePhase.GONE for state in done.machine.fleet.states)


def test_fifty_poison_of_the_same_function_cost_one_death_each_and_no_good_task() -> None:
    bad = frozenset(range(1, 1051, 21))
    done = run(bad, {})
    assert len(done.commits) == 1000
    assert set(done.failures) == bad
    assert done.happened["crash"] <= 50 + 8


def test_fifty_poison_handed_in_first_on_one_device_keep_nobody_waiting() -> None:
    bad, start_s = frozenset(range(1, 51)), 0.5
    fleet = cpus(1)
    truth = speeds(fleet, 1e-3, 1.0)
    others = [SimTask(task(number, name="other"), 1.0 + 2.0 * (number - 2000)) for number in range(2000, 2012)]
    done = simulate(
        program([*independent(1050), *others]), fleet, truth, costs=Costs(start_s=start_s),
        faults=Faults(poison=bad), check_every=50,
    )  # fmt: skip
    assert len(done.commits) == 1000 + len(others)
    assert set(done.failures) == bad
    assert done.happened["crash"] <= 53
    assert max(done.commits[each.task.id] - each.at_s for each in others) < 3 * start_s
    assert max(done.commits[number] for number in range(51, 1051)) < 5 * start_s + 1000 * 2e-3
    assert done.makespan_s <= (done.happened["crash"] + 1) * (start_s + 0.01) + 1050 * 2e-3


def test_sixty_poison_handed_in_first_on_two_devices_take_half_as_long() -> None:
    done = run(frozenset(range(1, 61)), {})
    assert set(done.failures) == set(range(1, 61))
    assert done.makespan_s <= 990 * 0.05 / 2 + 70 / 2 * 0.25 + 1.0


def test_a_group_that_kills_its_workers_is_given_up_and_the_others_go_on() -> None:
    fleet = cpus(4)
    groups = [SimTask(task(number, Request(devices=2), name="group")) for number in range(1, 11)]
    done = simulate(
        Program([*groups, *independent(100, first=11)]), fleet, lambda *_: 0.01,
        faults=Faults(poison=frozenset(range(1, 11))), costs=Costs(start_s=0.01), check_every=1,
    )  # fmt: skip
    assert len(done.commits) == 100
    assert {failure.kind for failure in done.failures.values()} == {"crash"}
    assert done.happened["crash"] <= 10


def test_a_device_is_not_given_up_however_often_its_worker_is_killed() -> None:
    fleet = cpus(1)
    truth = speeds(fleet, 0.2, 1.0)
    faults = Faults(kill_every_s=0.05)
    short = simulate(
        program(independent(20, Request(crashes=10_000))), fleet, lambda *_: 0.04, cost=known(fleet, truth),
        faults=faults, check_every=1,
    )  # fmt: skip
    assert len(short.commits) == 20
    assert short.happened["kill"] > 10


def nested(world: World, number: int, request: Request = PLAIN) -> list[Command]:
    return world.tell(TaskSubmitted(world.now_s, Task(number, "k", "k|", 0.0, (), (), request, (1, 1), 1)))


def test_no_task_of_a_class_that_killed_is_sent_on_top_of_its_parent_whatever_it_asks_for_and_when_it_was_placed() -> (
    None
):
    world = World(cpu(), cpu(1))
    world.submit(1, Request(on=("cpu:0",)))
    nested(world, 2, Request(on=("cpu:1",), crashes=0))
    assert not nested(world, 3)  # it waits at the device of its parent
    assert [each.task.id for each in world.machine.fleet.states[0].placed] == [3]
    world.tell(DeviceLost(0.1, "h0/cpu:1", SEGV, False, 2))
    assert not only(world.tell(TaskSuspended(0.2, 1, 1, "h0/cpu:0", 0.2, 0)), Run)
    assert [each.device for each in only(world.tell(DeviceReady(0.3, "h0/cpu:1")), Run)] == ["h0/cpu:1"]  # type: ignore[attr-defined]
    world.finish(3, device="h0/cpu:1")
    for number in range(4, 20):  # after these the class is not held back any more
        assert [each.device for each in only(nested(world, number), Run)] == ["h0/cpu:1"]  # type: ignore[attr-defined]
        world.finish(number, device="h0/cpu:1")
    nested(world, 20)
    assert not only(nested(world, 21, Request(retries=1)), Run)
    assert world.machine.tasks[21].phase is Phase.READY
    world.tell(TaskResumed(world.now_s, 1, 1, "h0/cpu:0", world.now_s))
    world.tell(TimerFired(world.now_s))
    assert world.machine.tasks[21].phase is Phase.READY


def test_a_nested_task_waits_for_its_device_that_does_not_start_for_long_as_any_other_does() -> None:
    world = World(cpu(), cpu(1))
    world.submit(1, Request(on=("cpu:0",)))
    nested(world, 2, Request(on=("cpu:1",)))
    world.tell(TaskSuspended(0.1, 1, 1, "h0/cpu:0", 0.1, 2))
    world.tell(DeviceLost(0.2, "h0/cpu:1", SEGV, False, 2))
    for second in range(1, 60):
        assert not only(world.tell(TimerFired(float(second))), Fail)
        assert not only(world.tell(DeviceLost(float(second), "h0/cpu:1", "its initializer raised", False)), Fail)
    assert [each.device for each in only(world.tell(DeviceReady(60.0, "h0/cpu:1")), Run)] == ["h0/cpu:1"]  # type: ignore[attr-defined]


def test_a_task_whose_caller_judges_fails_with_its_first_death_and_leaves_no_suspect() -> None:
    world = Workers(1, range(1, 9))
    for number in range(1, 9):
        world.submit(number, Request(crashes=JUDGED_BY_CALLER))
        world.go()
    assert world.runs == list(range(1, 9))
    assert world.failed[8] == f"f was given up: its worker died once, on h0/cpu:0: {SEGV}"
    assert not world.machine.quarantine.suspects


def test_deaths_count_in_a_row_unless_a_further_step_was_done_or_passes_became_smaller() -> None:
    deaths = WorkerDeaths()
    assert not any(deaths.died("cpu:0", inf) for _ in range(3))
    assert deaths.died("cpu:0", inf) == "its worker died 4 times, no step being done between"
    for step in range(10):
        deaths.joined("cpu:1")
        deaths.reached(step)
        assert not deaths.died("cpu:1", inf)
    assert not any(deaths.died("cpu:1", most) for most in (8, 4, 2, 1))
    for life in range(3):
        deaths.joined("cpu:2")
        deaths.reached(9)
        assert bool(deaths.died("cpu:2", inf)) == (life == 3)
    deaths.reached(20)
    assert deaths.died("cpu:2", inf), "the others' steps are none of this device"
