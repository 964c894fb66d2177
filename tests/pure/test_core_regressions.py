"""Bugs that the core had: each with the events that showed it."""

from __future__ import annotations

from collections.abc import Sequence

from hetero.core.machine import Rules
from hetero.model.commands import Cancel, Command, Commit, Discard, Fail, Recommit, Run, RunGroup, Transfer, Withdraw
from hetero.model.device import HOST_NODE
from hetero.model.events import (
    CancelRequested,
    DeviceAdded,
    DeviceLost,
    DeviceReady,
    ItemPut,
    ItemReleased,
    TaskFinished,
    TimerFired,
    TransferFailed,
    TransferFinished,
)
from hetero.model.tasks import Near, Request
from hetero.model.topology import Link, MemoryNode, Topology
from tests.pure.test_core import GPU, LINKED, World, cpu, gpu, only

GROUP = Request(devices=2)


def launches(commands: Sequence[Command]) -> list[tuple[str, int, int]]:
    """Return the device, task and attempt of each launch among commands."""
    return [(c.device, one.task, one.attempt) for c in commands if isinstance(c, Run) for one in c.launches]


def test_a_group_that_is_served_before_the_first_leaves_its_own_place_in_the_queue() -> None:
    world = World(cpu(), cpu(1))
    world.submit(1, Request(on=("h0/cpu:0",)))
    world.submit(2, GROUP)
    world.submit(3, GROUP)
    (group,) = only(world.finish(1), RunGroup)
    assert group.launch.task == 2  # type: ignore[attr-defined]
    world.fail(2, "exception")
    assert only(world.fail(2, "cancelled", device="h0/cpu:1"), RunGroup)


def test_a_group_that_is_tried_again_does_not_wait_for_devices_that_a_later_group_holds() -> None:
    world = World(cpu(), cpu(1), cpu(2))
    world.submit(1, GROUP)
    world.submit(2, Request(on=("h0/cpu:2",)))
    world.submit(3, Request(exclusive=True))
    world.lose("h0/cpu:0")
    world.fail(1, "cancelled", device="h0/cpu:1")
    world.tell(DeviceReady(0.0, "h0/cpu:0"))
    commands = world.finish(2, device="h0/cpu:2")
    (alone,) = only(commands, Run)
    assert alone.launches[0].task == 3  # type: ignore[attr-defined]
    assert only(world.finish(3, device=alone.device), RunGroup)  # type: ignore[attr-defined]


def test_an_exclusive_task_has_its_inputs_on_the_device_that_runs_it() -> None:
    world = World(gpu(), topology=LINKED)
    world.tell(ItemPut(0.0, 100, 400, HOST_NODE))
    assert world.submit(1, Request(exclusive=True), inputs=[100]) == [Transfer(100, HOST_NODE, GPU, 400)]
    assert only(world.tell(TransferFinished(0.0, 100, HOST_NODE, GPU, 400, 0.0, 0.0)), Run)


def test_a_group_whose_input_could_not_be_copied_is_held_anew() -> None:
    world = World(gpu(), cpu(), topology=LINKED)
    world.submit(1, Request(on=(GPU,)))
    world.finish(1, device=GPU, nbytes=300, node=GPU)
    assert world.submit(2, GROUP, inputs=[1]) == [Transfer(1, GPU, HOST_NODE, 300)]
    assert world.tell(TransferFailed(0.0, 1, GPU, HOST_NODE, "no")) == [Transfer(1, GPU, HOST_NODE, 300)]
    assert only(world.tell(TransferFinished(0.0, 1, GPU, HOST_NODE, 300, 0.0, 0.0)), RunGroup)


def test_a_lost_result_waits_for_its_lost_input_whichever_is_looked_at_first() -> None:
    world = World(gpu(), topology=LINKED)
    for number in (1, 2, 3):
        world.submit(number, inputs=[number - 1] if number > 1 else [])
        world.finish(number, device=GPU, nbytes=100, node=GPU)
    world.lose(GPU)
    for number in (1, 2, 3):
        event = DeviceReady(0.0, GPU) if number == 1 else TaskFinished(0.0, number - 1, 2, GPU, 0.0, 0.1, 100, GPU)
        commands = world.tell(event)
        assert [task for _, task, _ in launches(commands)] == [number]
    assert only(world.finish(3, 2, GPU, 100, GPU), Recommit)


def test_a_released_input_is_computed_again_for_the_result_that_was_made_of_it() -> None:
    world = World(gpu(), topology=LINKED)
    world.submit(1)
    world.finish(1, device=GPU, nbytes=100, node=GPU)
    world.submit(2, inputs=[1])
    world.finish(2, device=GPU, nbytes=100, node=GPU)
    world.tell(ItemReleased(0.0, 1))
    assert world.machine.replicas.used[GPU] == 100
    world.lose(GPU)
    assert launches(world.tell(DeviceReady(0.0, GPU))) == [(GPU, 1, 2)]
    assert only(world.finish(1, 2, GPU, 100, GPU), Run)
    world.finish(2, 2, GPU, 100, GPU)
    assert world.machine.replicas.used[GPU] == 100


def test_a_lost_result_that_comes_back_in_a_message_is_on_the_host_and_not_lost() -> None:
    world = World(gpu(), cpu(), topology=LINKED)
    world.submit(1, Request(on=(GPU,)))
    world.finish(1, device=GPU, nbytes=100, node=GPU)
    world.submit(2, Request(on=("h0/cpu:0",)))
    world.submit(3, Request(on=("h0/cpu:0",)), inputs=[1])
    assert only(world.lose(GPU), Transfer) == []
    world.tell(DeviceReady(0.0, GPU))
    assert only(world.finish(1, 2, GPU, 0, ""), Recommit)
    assert world.machine.replicas.items[1].valid == [HOST_NODE]
    commands = world.finish(2, device="h0/cpu:0")
    assert launches(commands) == [("h0/cpu:0", 3, 1)]
    assert only(commands, Transfer) == []


def test_a_task_whose_input_is_lost_for_good_fails_instead_of_waiting() -> None:
    world = World(gpu(), cpu(), topology=LINKED)
    world.submit(1, Request(on=(GPU,)))
    world.finish(1, device=GPU, nbytes=100, node=GPU)
    world.lose(GPU, permanent=True)
    (failed,) = only(world.submit(2, inputs=[1]), Fail)
    assert failed.failure.message == "an input of f was lost with its device and cannot be computed again"  # type: ignore[attr-defined]


def test_a_second_report_of_rank_0_does_not_drop_its_result() -> None:
    world = World(cpu(), cpu(1))
    world.submit(1, GROUP)
    world.finish(1, nbytes=50)
    assert only(world.finish(1, nbytes=50), Discard) == []
    assert only(world.finish(1, device="h0/cpu:1"), Commit)


def test_the_result_of_rank_0_is_dropped_when_another_member_fails() -> None:
    world = World(cpu(), cpu(1))
    world.submit(1, Request(devices=2, retries=1))
    world.finish(1, nbytes=50)
    assert Discard("h0/cpu:0", 1, 1) in world.fail(1, "exception", device="h0/cpu:1")


def test_a_device_that_is_added_twice_is_counted_once() -> None:
    world = World(cpu())
    world.tell(DeviceAdded(0.0, cpu()))
    assert world.machine.fleet.live == 1
    assert only(world.submit(1), Run)


def test_an_answer_for_a_stopped_attempt_lets_what_waits_there_go() -> None:
    world = World(gpu(), topology=LINKED)
    world.submit(1)
    world.tell(ItemPut(0.0, 100, 100, HOST_NODE))
    world.submit(2, inputs=[100])
    world.tell(CancelRequested(0.0, 1))
    world.tell(TransferFinished(0.0, 100, HOST_NODE, GPU, 100, 0.0, 0.0))
    assert only(world.fail(1, "cancelled", device=GPU), Run)


def test_a_batch_that_gets_stuck_late_is_taken_back_too() -> None:
    world = World(cpu(), cpu(1))
    for number in (1, 2):
        world.submit(number, Request(on=(f"h0/cpu:{number - 1}",)))
        world.tell(TaskFinished(0.0, number, 1, f"h0/cpu:{number - 1}", 0.0, 1e-5, 0, HOST_NODE))
    plain = Request()
    for number in range(10, 30):
        world.submit(number, plain)
    world.tell(TaskFinished(0.001, 10, 1, "h0/cpu:0", 0.0, 1e-3, 0, HOST_NODE))
    stuck = next(device for device in world.machine.fleet.states if len(device.sent) > 1)
    told = []
    for step in range(1, 6):
        world.now_s = 0.05 * step + 0.001
        told += world.tell(TimerFired(world.now_s))
    assert any(isinstance(command, Withdraw) and command.device == stuck.name for command in told)


def test_a_sweep_is_not_put_off_by_the_timers_between() -> None:
    world = World(cpu(), cpu(1), rules=Rules(stall_s=0.1, stall_factor=1.0, sweep_s=0.5))
    for number in (1, 2, 3, 4):
        world.submit(number, Request(on=("h0/cpu:0",)))
        world.tell(TaskFinished(0.0, number, 1, "h0/cpu:0", 0.0, 0.01, 0, HOST_NODE))
    world.submit(5, Request(on=("h0/cpu:0",)))
    told = []
    for step in range(1, 30):
        told += world.tell(TimerFired(0.04 * step))
    assert Cancel("h0/cpu:0", 5, 1) in told


def test_a_device_that_was_left_without_work_is_asked_again_for_another_kind_of_task() -> None:
    world = World(cpu(), cpu(1))
    fast, slow = Request(on=("h0/cpu:0",)), Request(on=("h0/cpu:1",))
    for number, (request, device, seconds) in enumerate(
        [(fast, "h0/cpu:0", 0.5), (slow, "h0/cpu:1", 60.0)] * 4, start=1
    ):
        world.submit(number, request)
        world.tell(TaskFinished(0.0, number, 1, device, 0.0, seconds, 0, HOST_NODE))
    any_device = Request()
    world.submit(20, any_device)
    assert world.submit(21, any_device) == []
    assert launches(world.submit(22, slow)) == [("h0/cpu:1", 22, 1)]


def test_a_dead_device_that_a_task_wanted_to_be_near_binds_nobody() -> None:
    world = World(cpu(), cpu(1))
    world.submit(1, Request(on=("h0/cpu:0",)))
    world.finish(1)
    world.tell(DeviceLost(0.0, "h0/cpu:0", "it died", True))
    assert only(world.submit(2, Request(near=(Near("device", task=1),))), Run)


def test_a_node_that_is_full_makes_room_by_what_it_needs_and_no_more() -> None:
    links = Topology((MemoryNode(GPU, 1_000),), (Link(HOST_NODE, GPU, 0.0, 1e6), Link(GPU, HOST_NODE, 0.0, 1e6)))
    world = World(gpu(), topology=links)
    for number in (1, 2, 3):
        world.submit(number, Request(memory_bytes=1))
        world.finish(number, device=GPU, nbytes=300, node=GPU)
    assert world.submit(4, Request(memory_bytes=350)) == [Transfer(1, GPU, HOST_NODE, 300)]
