"""The core: events in, commands out."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest

from hetero.core.invariants import check
from hetero.core.machine import Machine, Rules
from hetero.core.placement import CHUNK_S
from hetero.model.commands import (
    Cancel,
    Command,
    Commit,
    Discard,
    Fail,
    Free,
    Launch,
    Run,
    RunGroup,
    SetTimer,
    Split,
    StartWorker,
    Transfer,
    Warn,
)
from hetero.model.device import HOST_NODE, Device, DeviceType
from hetero.model.events import (
    CancelRequested,
    DeviceAdded,
    DeviceLost,
    DeviceReady,
    Event,
    ItemPut,
    ItemReleased,
    LeaseAsked,
    LeaseRenewed,
    LoneTasks,
    TaskFailed,
    TaskFinished,
    TaskSubmitted,
    TaskWithdrawn,
    TimerFired,
    TransferFailed,
    TransferFinished,
    UtilisationReported,
)
from hetero.model.leases import LeaseRequest
from hetero.model.tasks import Failure, FailureKind, Near, Request, Task
from hetero.model.topology import Link, MemoryNode, Topology
from hetero.plan.performance.cost_model import CostModel
from hetero.plan.policies.registry import get

PLAIN = Request()
GPU = "h0/cuda:0"


def cpu(index: int = 0) -> Device:
    return Device(f"h0/cpu:{index}", "cpu", DeviceType("CPU"), "cpu", index)


def gpu() -> Device:
    return Device(GPU, "cuda", DeviceType("GPU"), "null", memory_node=GPU)


LINKED = Topology((MemoryNode(GPU, 1_000),), (Link(HOST_NODE, GPU, 0.0, 1e6), Link(GPU, HOST_NODE, 0.0, 1e6)))


class World:
    """A machine with its devices ready; every event is followed by a full check, timers are left out."""

    def __init__(
        self, *devices: Device, topology: Topology | None = None, rules: Rules | None = None, policy: str = "eft"
    ) -> None:
        self.machine = Machine(get(policy), CostModel(), topology or Topology(), rules)
        self.now_s = 0.0
        for device in devices:
            self.tell(DeviceAdded(0.0, device))
        for device in devices:
            self.tell(DeviceReady(0.0, device.id))

    def tell(self, event: Event) -> list[Command]:
        self.now_s = event.at_s
        commands = self.machine.handle(event)
        check(self.machine)
        return [command for command in commands if type(command) is not SetTimer]

    def submit(self, number: int, request: Request = PLAIN, **more: Sequence[int]) -> list[Command]:
        after, inputs = tuple(more.get("after", ())), tuple(more.get("inputs", ()))
        return self.tell(TaskSubmitted(self.now_s, Task(number, "f", "f|", 0.0, inputs, after, request)))

    def finish(
        self, number: int, attempt: int = 1, device: str = "h0/cpu:0", nbytes: int = 0, node: str = HOST_NODE
    ) -> list[Command]:
        return self.tell(TaskFinished(self.now_s + 0.1, number, attempt, device, self.now_s, 0.1, nbytes, node))

    def fail(self, number: int, kind: FailureKind, attempt: int = 1, device: str = "h0/cpu:0") -> list[Command]:
        failure = Failure(kind, "it failed")
        return self.tell(TaskFailed(self.now_s + 0.1, number, attempt, device, self.now_s, 0.1, failure))

    def lose(self, device: str = "h0/cpu:0", *, permanent: bool = False) -> list[Command]:
        return self.tell(DeviceLost(self.now_s, device, "it died", permanent))


def run(number: int, attempt: int = 1, device: str = "h0/cpu:0") -> Run:
    return Run(device, (Launch(number, attempt, 0.001),))


def only(commands: Sequence[Command], kind: type) -> list[Command]:
    return [command for command in commands if type(command) is kind]


def test_a_task_is_run_and_its_result_committed_once() -> None:
    world = World(cpu())
    assert world.submit(1) == [run(1)]
    assert world.finish(1) == [Commit(1, 1, "h0/cpu:0")]
    assert world.finish(1) == [Discard("h0/cpu:0", 1, 1)]
    assert world.machine.counts.committed == 1


def test_a_task_waits_for_the_tasks_whose_results_it_needs() -> None:
    world = World(cpu(), cpu(1))
    world.submit(1)
    assert world.submit(2, after=[1]) == []
    assert only(world.finish(1), Run)[0].launches[0].task == 2


def test_a_task_after_one_that_is_over_is_ready_at_once() -> None:
    world = World(cpu())
    world.submit(1)
    world.finish(1)
    assert only(world.submit(2, after=[1]), Run)


def test_late_news_of_an_attempt_that_was_given_up_change_nothing() -> None:
    world = World(cpu())
    world.submit(1)
    assert world.lose() == [StartWorker("h0/cpu:0")]
    assert world.finish(1) == [Discard("h0/cpu:0", 1, 1)]
    assert world.tell(DeviceReady(1.0, "h0/cpu:0")) == [run(1, 2)]
    assert world.finish(1, 2) == [Commit(1, 2, "h0/cpu:0")]


def test_a_task_whose_worker_died_too_often_is_given_up() -> None:
    world = World(cpu())
    world.submit(1, Request(crashes=1))
    world.lose()
    world.tell(DeviceReady(0.0, "h0/cpu:0"))
    (failed,) = only(world.lose(), Fail)
    assert isinstance(failed, Fail)
    assert failed.failure.kind == "crash"
    assert failed.failure.message == "f was given up: its worker died 2 times, last on h0/cpu:0: it died"


def test_an_exception_is_the_tasks_own_and_not_retried_unless_asked_for() -> None:
    world = World(cpu())
    world.submit(1)
    assert only(world.fail(1, "exception"), Fail)
    world.submit(2, Request(retries=1))
    assert only(world.fail(2, "exception"), Run) == [run(2, 2)]
    assert only(world.fail(2, "exception", 2), Fail)


def test_whoever_needs_the_result_of_a_failed_task_fails_with_it() -> None:
    world = World(cpu())
    world.submit(1)
    world.submit(2, after=[1])
    world.submit(3, after=[2])
    assert [failed.task for failed in only(world.fail(1, "exception"), Fail)] == [1, 2, 3]  # type: ignore[attr-defined]


def test_a_cancelled_running_task_is_stopped_and_its_device_waits_for_the_answer() -> None:
    world = World(cpu())
    world.submit(1)
    stopped = world.tell(CancelRequested(0.0, 1))
    assert only(stopped, Cancel) == [Cancel("h0/cpu:0", 1, 1)]
    assert only(stopped, Fail)
    assert world.submit(2) == []
    assert only(world.fail(1, "cancelled"), Run) == [run(2)]


def test_a_worker_that_is_replaced_to_stop_a_task_is_no_crash_of_the_others() -> None:
    world = World(cpu())
    world.submit(1)
    world.tell(CancelRequested(0.0, 1))
    world.submit(2, Request(crashes=0))
    assert world.lose() == [StartWorker("h0/cpu:0")]
    assert world.tell(DeviceReady(0.0, "h0/cpu:0")) == [run(2)]


def test_a_time_limit_fails_the_task_and_a_timer_is_set_for_it() -> None:
    world = World(cpu())
    world.submit(1, Request(timeout_s=0.5))
    assert world.machine.timer_s == 0.5
    commands = world.tell(TimerFired(0.5))
    assert only(commands, Cancel) == [Cancel("h0/cpu:0", 1, 1)]
    assert only(commands, Fail)[0].failure.kind == "timeout"  # type: ignore[attr-defined]


def test_a_hanging_attempt_is_swept_even_while_other_events_keep_coming() -> None:
    world = World(cpu(), cpu(1), rules=Rules(stall_s=1.0, stall_factor=1.0, sweep_s=0.5))
    for number in (1, 2, 3):
        world.submit(number)
        world.finish(number)
    world.submit(10, Request(on=("h0/cpu:0",)))
    swept: list[Command] = []
    for step in range(1, 40):
        world.now_s = 0.3 + 0.1 * step
        world.submit(10 + step, Request(on=("h0/cpu:1",)))
        world.finish(10 + step, device="h0/cpu:1")
        if world.machine.timer_s <= world.now_s:
            swept += world.tell(TimerFired(world.now_s))
    assert Cancel("h0/cpu:0", 10, 1) in swept


def test_a_withdrawn_attempt_is_placed_anew() -> None:
    world = World(cpu())
    world.submit(1)
    assert only(world.tell(TaskWithdrawn(0.0, 1, 1, "h0/cpu:0")), Run) == [run(1, 2)]


def test_waiting_tasks_move_away_from_a_device_that_others_use() -> None:
    world = World(cpu(), cpu(1), policy="migration")
    for number in range(1, 31):
        world.submit(number)
    first, second = world.machine.fleet.states
    world.tell(UtilisationReported(0.0, "h0/cpu:0", 0.0))
    assert len(first.placed) == len(second.placed) == 14
    world.tell(UtilisationReported(0.0, "h0/cpu:0", 0.9))
    assert (len(first.placed), len(second.placed)) == (6, 22)


def test_a_group_waits_until_all_its_devices_are_idle_and_commits_the_result_of_rank_0() -> None:
    world = World(cpu(), cpu(1))
    world.submit(1, Request(on=("h0/cpu:1",)))
    assert world.submit(2, Request(devices=2)) == []
    assert world.submit(3) == []
    (group,) = only(world.finish(1, device="h0/cpu:1"), RunGroup)
    assert isinstance(group, RunGroup)
    assert set(group.devices) == {"h0/cpu:0", "h0/cpu:1"}
    assert only(world.finish(2, device=group.devices[1]), Commit) == []
    commands = world.finish(2, device=group.devices[0])
    assert only(commands, Commit) == [Commit(2, 1, group.devices[0])]
    assert only(commands, Run)


def test_a_group_fails_as_one_and_the_others_are_stopped() -> None:
    world = World(cpu(), cpu(1))
    world.submit(1, Request(devices=2))
    commands = world.fail(1, "exception")
    assert only(commands, Cancel) == [Cancel("h0/cpu:1", 1, 1)]
    assert only(commands, Fail)


def test_a_worker_that_dies_again_and_again_is_started_without_end_after_ever_longer_waits() -> None:
    world = World(cpu(), rules=Rules(restarts=2, restart_s=0.5, restart_max_s=2.0))
    now_s, waits = 0.0, list[float]()
    for _ in range(50):
        commands = world.lose()
        begun_s = now_s
        while not only(commands, StartWorker):
            now_s = world.machine.timer_s
            commands = world.tell(TimerFired(now_s))
        waits.append(now_s - begun_s)
        world.tell(DeviceReady(now_s, "h0/cpu:0"))
        world.now_s = now_s
    assert waits == [0.0, 0.0, 0.5, 1.0, 2.0, *[2.0] * 45]
    world.submit(1)
    world.finish(1)
    assert world.lose() == [StartWorker("h0/cpu:0")]


def test_a_worker_that_was_up_for_long_is_started_again_at_once() -> None:
    world = World(cpu(), rules=Rules(restarts=1, steady_s=10.0))
    for _ in range(5):
        assert world.lose() == [StartWorker("h0/cpu:0")]
        world.tell(DeviceReady(world.now_s, "h0/cpu:0"))
        world.now_s += 10.5


def test_only_a_device_whose_own_probe_fails_is_given_up() -> None:
    world = World(cpu())
    assert world.lose(permanent=True) == [Warn("h0/cpu:0 is not used any more: it died")]


def test_tasks_that_no_device_can_run_any_more_are_refused_with_the_reason() -> None:
    world = World(cpu(), cpu(1))
    world.lose("h0/cpu:1", permanent=True)
    (failed,) = world.submit(1, Request(on=("h0/cpu:1",)))
    assert isinstance(failed, Fail)
    assert failed.failure.message == (
        "no device can run f: h0/cpu:0: it is not one of: h0/cpu:1; h0/cpu:1: it was lost: it died"
    )


def test_a_device_that_comes_back_is_used_again() -> None:
    world = World(cpu())
    world.lose(permanent=True)
    world.tell(DeviceAdded(0.0, cpu()))
    assert world.submit(1) == []
    assert world.tell(DeviceReady(0.0, "h0/cpu:0")) == [run(1)]


def test_an_input_travels_once_and_the_task_follows_it() -> None:
    world = World(gpu(), topology=LINKED)
    world.tell(ItemPut(0.0, 100, 400, HOST_NODE))
    assert world.submit(1, inputs=[100]) == [Transfer(100, HOST_NODE, GPU, 400)]
    assert only(world.tell(TransferFinished(0.0, 100, HOST_NODE, GPU, 400, 0.0, 0.0)), Run)
    world.finish(1, device=GPU)
    assert only(world.submit(2, inputs=[100]), Transfer) == []


def test_an_input_that_cannot_be_copied_fails_the_task_in_the_end() -> None:
    world = World(gpu(), topology=LINKED)
    world.tell(ItemPut(0.0, 100, 400, HOST_NODE))
    commands = world.submit(1, Request(crashes=2), inputs=[100])
    for _ in range(2):
        assert only(commands, Transfer)
        commands = world.tell(TransferFailed(0.0, 100, HOST_NODE, GPU, "the link failed"))
    (failed,) = only(world.tell(TransferFailed(0.0, 100, HOST_NODE, GPU, "the link failed")), Fail)
    assert failed.failure.message == "f was given up: its input 100 could not be copied: the link failed"  # type: ignore[attr-defined]


def test_a_released_item_is_dropped_once_no_placed_task_needs_it() -> None:
    world = World(gpu(), topology=LINKED)
    world.tell(ItemPut(0.0, 100, 400, HOST_NODE))
    world.submit(1, inputs=[100])
    world.tell(TransferFinished(0.0, 100, HOST_NODE, GPU, 400, 0.0, 0.0))
    assert world.tell(ItemReleased(0.0, 100)) == []
    assert set(only(world.finish(1, device=GPU), Free)) == {Free(100, HOST_NODE), Free(100, GPU)}
    assert world.machine.replicas.used == {GPU: 0, HOST_NODE: 0}


def test_an_item_released_before_its_task_ended_is_dropped_when_it_ends() -> None:
    world = World(gpu(), topology=LINKED)
    world.submit(1)
    world.tell(ItemReleased(0.0, 1))
    assert only(world.finish(1, device=GPU, nbytes=300, node=GPU), Free) == [Free(1, GPU)]


def test_out_of_memory_drops_what_it_can_then_tries_elsewhere_then_splits() -> None:
    world = World(gpu(), cpu(), topology=LINKED)
    world.tell(ItemPut(0.0, 100, 400, HOST_NODE))
    world.submit(1, Request(on=("gpu",)), inputs=[100])
    world.tell(TransferFinished(0.0, 100, HOST_NODE, GPU, 400, 0.0, 0.0))
    world.finish(1, device=GPU)
    world.submit(2, Request(splittable=True, on=("gpu",)))
    commands = world.fail(2, "out_of_memory", device=GPU)
    assert only(commands, Free) == [Free(100, GPU)]
    assert only(commands, Run)
    assert only(world.fail(2, "out_of_memory", 2, GPU), Split) == [Split(2)]
    world.submit(3)
    world.submit(2, Request(), after=[3])
    assert world.machine.counts.submitted == 3


def test_out_of_memory_sends_results_home_and_tries_again_when_they_have_left() -> None:
    world = World(gpu(), cpu(), topology=LINKED)
    on_gpu = Request(on=("gpu",))
    world.submit(1, on_gpu)
    world.finish(1, device=GPU, nbytes=300, node=GPU)
    world.submit(2, on_gpu)
    assert world.fail(2, "out_of_memory", device=GPU) == [Transfer(1, GPU, HOST_NODE, 300)]
    commands = world.tell(TransferFinished(0.0, 1, GPU, HOST_NODE, 300, 0.0, 0.0))
    assert only(commands, Free) == [Free(1, GPU)]
    assert only(commands, Run)
    assert only(world.fail(2, "out_of_memory", 2, GPU), Fail)


@pytest.mark.parametrize("count", [1, 5])
def test_equal_small_tasks_travel_together_once_their_time_is_known(count: int) -> None:
    world = World(cpu())
    world.submit(1)
    for number in range(2, 2 + count):
        world.submit(number)
    world.tell(TaskFinished(1e-5, 1, 1, "h0/cpu:0", 0.0, 1e-5, 0, HOST_NODE))
    assert world.machine.counts.committed == 1
    assert len(world.machine.fleet.by_id["h0/cpu:0"].sent) == count


def test_refuse_words_why_no_device_fits() -> None:
    machine = World(cpu()).machine
    assert machine.refuse("f", "f|", Request(on=("gpu",))) == "no device can run f: h0/cpu:0: it is not one of: gpu"
    assert machine.refuse("f", "f|", Request()) == ""


# --- tasks that the driver sends by itself --------------------------------------------------------------------


def quick(number: int, request: Request = PLAIN, **more: tuple[int, ...]) -> Task:
    return Task(number, "f", "f|", 0.0, more.get("inputs", ()), more.get("after", ()), request)


def ended(number: int, at_s: float, seconds: float, device: str = "h0/cpu:0") -> TaskFinished:
    return TaskFinished(at_s, number, 1, device, at_s - seconds, seconds, 0, "")


def warm(*devices: Device, seconds: float = 1e-3) -> World:
    """Return a world in which a task of the function was tried on each device."""
    world = World(*devices)
    for number, device in enumerate(devices, start=1):
        world.machine.cost.observe("f|", 0.0, device, seconds * number)
        world.machine.cost.observe("f|", 0.0, device, seconds * number)
    world.submit(100)
    world.tell(ended(100, 1.0, seconds))
    return world


def test_a_lone_task_goes_where_it_would_have_gone_and_the_core_learns_the_same() -> None:
    one, other = warm(cpu(), cpu(1)), warm(cpu(), cpu(1))
    at_s, told = 1.0, []
    for number in range(1, 60):
        seconds = 1e-3 if number < 20 else 9e-3
        place = one.machine.lone(quick(number))
        one.tell(TaskSubmitted(at_s, quick(number)))
        (sent,) = (device.name for device in one.machine.fleet.states if device.sent)
        assert place is None or place[0] == sent
        finished = ended(number, at_s + seconds, seconds, sent)
        one.tell(finished)
        told.append((quick(number), finished))
        at_s += 2 * seconds
    assert other.tell(LoneTasks(at_s, tuple(told), None)) == []
    assert other.machine.counts == one.machine.counts
    for mine, its in zip(one.machine.fleet.states, other.machine.fleet.states, strict=True):
        assert (mine.finished, mine.busy_s, mine.deaths) == (its.finished, its.busy_s, its.deaths)
    assert one.machine.estimates("f|", 0.0) == other.machine.estimates("f|", 0.0)
    assert other.submit(200) == one.submit(200)


def test_a_lone_task_that_runs_is_like_one_that_the_core_has_sent() -> None:
    world = warm(cpu(), cpu(1))
    place = world.machine.lone(quick(1))
    assert place is not None
    assert world.tell(LoneTasks(2.0, (), (2.0, quick(1), place[0]))) == []
    assert world.machine.lone(quick(2)) is None
    assert world.submit(2)[0] == Run("h0/cpu:1", (Launch(2, 1, world.machine.tasks[2].predicted_s),))
    assert world.tell(CancelRequested(3.0, 1))[0] == Cancel(place[0], 1, 1)
    assert only(world.finish(2, device="h0/cpu:1"), Commit) == [Commit(2, 1, "h0/cpu:1")]


def test_the_worker_of_a_lone_task_may_die() -> None:
    world = warm(cpu())
    world.tell(LoneTasks(2.0, (), (2.0, quick(1), "h0/cpu:0")))
    assert StartWorker("h0/cpu:0") in world.lose()
    (again,) = only(world.tell(DeviceReady(3.0, "h0/cpu:0")), Run)
    assert isinstance(again, Run)
    assert [launch[:2] for launch in again.launches] == [(1, 2)]


@pytest.mark.parametrize(
    "task",
    [
        quick(1, Request(timeout_s=1.0)),
        quick(1, Request(devices=2)),
        quick(1, Request(workload="blue")),
        quick(1, Request(lease=1)),
        quick(1, after=(7,)),
        quick(1, inputs=(7,)),
        Task(1, "g", "g|", 0.0, (), (), PLAIN),
        Task(1, "f", "f|", 9.0, (), (), PLAIN),
    ],
    ids=["limit", "group", "workload", "lease", "after", "input", "unknown", "size"],
)
def test_what_is_special_is_not_sent_alone(task: Task) -> None:
    world = warm(cpu(), cpu(1))
    assert world.machine.lone(quick(1)) == ("h0/cpu:0", world.machine.rows.latest(quick(1)).best_s)
    assert world.machine.lone(task) is None


def test_nothing_is_sent_alone_while_something_else_has_to_be_weighed() -> None:
    assert warm(cpu(), seconds=1.0).machine.lone(quick(1)) is None
    assert warm(cpu(), gpu()).machine.lone(quick(1)) is None
    world = warm(cpu())
    world.tell(DeviceLost(2.0, "h0/cpu:0", "it died", False))
    assert world.machine.lone(quick(1)) is None


def test_a_missing_package_is_missing_for_the_whole_function_whatever_its_arguments_are() -> None:
    world = World(cpu(), gpu())
    world.tell(TaskSubmitted(0.0, Task(1, "f", "f|int|str", 0.0, (), (), Request(on=("cpu",)))))
    world.fail(1, "missing_package")
    obstacles = dict(world.machine.obstacles("f|float", PLAIN))
    assert obstacles["h0/cpu:0"]
    assert not obstacles[GPU]
    assert not dict(world.machine.obstacles("g|int|str", PLAIN))["h0/cpu:0"]


def test_a_message_holds_as_many_small_tasks_as_a_chunk_is_long_and_no_more() -> None:
    world = World(cpu())
    for _ in range(8):
        world.machine.cost.observe("f|", 0.0, cpu(), 0.3 * CHUNK_S)
    tasks = [Task(number, "f", "f|", 0.0, (), (), PLAIN) for number in range(1, 30)]
    commands = world.machine.handle_all([TaskSubmitted(0.0, task) for task in tasks])
    assert [len(each.launches) for each in commands if isinstance(each, Run)] == [1, 3]  # the first goes at once


def test_what_never_went_anywhere_has_used_and_moved_nothing() -> None:
    replicas = World(gpu(), topology=LINKED).machine.replicas
    assert set(replicas.used.values()) == set(replicas.peak.values()) == {0}
    assert replicas.moved == {}
    assert replicas.settled == 0


def test_a_plan_of_memory_nodes_is_asked_for_only_where_a_device_has_one_of_its_own() -> None:
    machine = Machine(get("eft"), CostModel(), LINKED)
    assert not machine.fleet.own_nodes
    machine.handle(DeviceAdded(0.0, cpu()))
    assert not machine.fleet.own_nodes
    machine.handle(DeviceAdded(0.0, gpu()))
    assert machine.fleet.own_nodes


def test_a_lease_that_is_renewed_lasts_from_then_on_and_no_longer() -> None:
    world = World(cpu())
    world.tell(LeaseAsked(0.0, 1, LeaseRequest(lease_s=0.3)))
    world.tell(LeaseRenewed(0.2, 1))
    world.tell(TimerFired(0.4))
    assert world.machine.pool.held(1) == ("h0/cpu:0",)
    world.tell(LeaseRenewed(0.45, 1))
    world.tell(TimerFired(0.8))
    world.tell(LeaseRenewed(0.81, 1))
    assert world.machine.pool.held(1) == ()
    world.tell(LeaseRenewed(0.82, 77))


def test_devices_that_nobody_needed_are_told_once_others_have_worked() -> None:
    world = World(cpu(), cpu(1))
    assert world.machine.left_out() == []
    world.submit(1)
    world.finish(1)
    assert world.machine.left_out() == [("h0/cpu:1", "the other devices were enough")]


@pytest.mark.parametrize(("task", "waits"), [(0, True), (1, False), (-1, False)])
def test_a_death_that_no_task_caused_delays_the_restart_and_any_other_does_not(task: int, waits: bool) -> None:
    world = World(cpu(), rules=Rules(restarts=0, restart_s=1.0))
    world.submit(1)
    started = only(world.tell(DeviceLost(0.0, "h0/cpu:0", "it died", False, task)), StartWorker)
    assert bool(started) is not waits
    if waits:
        assert only(world.tell(TimerFired(1.0)), StartWorker)


def test_a_device_that_is_gone_for_good_waits_for_nothing_and_one_that_died_does() -> None:
    world = World(cpu(), cpu(1))
    world.lose("h0/cpu:0", permanent=True)
    world.lose("h0/cpu:1")
    assert world.machine.fleet.since_s[0] == inf > world.machine.fleet.since_s[1]


def test_that_one_function_can_run_says_nothing_of_another_with_the_same_arguments_and_request() -> None:
    world = World(cpu())
    world.submit(1)
    world.fail(1, "missing_package")
    world.tell(TaskSubmitted(1.0, Task(2, "g", "g|", 0.0, (), (), PLAIN)))
    assert only(world.submit(3), Fail)


def test_a_task_may_be_near_one_that_the_driver_sent_by_itself() -> None:
    world = World(cpu(), cpu(1))
    alone = Task(1, "f", "f|", 0.0, (), (), PLAIN)
    ended = TaskFinished(0.1, 1, 1, "h0/cpu:1", 0.0, 0.1, 0, HOST_NODE)
    world.tell(LoneTasks(0.1, ((alone, ended),), None))
    (sent,) = only(world.submit(2, Request(near=(Near("device", task=1),))), Run)
    assert isinstance(sent, Run)
    assert sent.device == "h0/cpu:1"
