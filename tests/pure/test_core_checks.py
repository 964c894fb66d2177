"""What the core's own check finds, each fault planted by hand; and what the rows of estimates promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, log

import numpy as np
import pytest

from hetero.core.invariants import check
from hetero.core.machine import Machine
from hetero.core.state import Phase, Row, TaskState
from hetero.model.device import HOST_NODE
from hetero.model.events import ItemPut, TaskSubmitted, TaskSuspended
from hetero.model.tasks import Near, Request, Task
from hetero.plan.replanning.lookahead import FINISHED, RUNNING, WAITING, Ahead
from tests.pure.test_core import GPU, LINKED, PLAIN, World, cpu, gpu


def busy() -> Machine:
    """Return a machine with running, ready, waiting and suspended tasks, and data that travel."""
    world = World(cpu(), cpu(1), cpu(2), gpu(), topology=LINKED)
    world.tell(ItemPut(0.0, 100, 200, HOST_NODE))
    world.submit(1, Request(on=("h0/cuda:0",)), inputs=(100,))
    world.submit(2, Request(on=("h0/cpu:0",)))
    for number in range(3, 7):
        world.submit(number, Request(on=("h0/cpu:0",)))
    world.submit(7, after=(2,))
    world.submit(8, Request(on=("h0/cpu:1",)))
    world.tell(TaskSuspended(0.1, 8, 1, "h0/cpu:1", 0.1, 0))
    child = Task(9, "f", "f|", 0.0, (), (), Request(on=("h0/cpu:2",)), (8, 1))
    world.tell(TaskSubmitted(0.1, child))
    return world.machine


def running(machine: Machine, number: int = 2) -> TaskState:
    assert machine.tasks[number].phase is Phase.RUNNING
    return machine.tasks[number]


def first_batch(machine: Machine) -> object:
    return next(iter(machine.fleet.states[0].sent.values()))[1]


def add(where: object, name: str, much: float = 1) -> None:
    setattr(where, name, getattr(where, name) + much)


def item(machine: Machine) -> object:
    return machine.replicas.items[100]


def held_by(machine: Machine, task: int) -> None:
    machine.fleet.states[0].held_by = task


def lengthen(column: object, index: int = 0, much: float = 1) -> None:
    column[index] += much


PLANTED: dict[str, tuple[Callable[[Machine], object], str]] = {
    "a task is lost": (lambda m: add(m.counts, "submitted"), r"-1 tasks"),
    "a task too many": (lambda m: add(m.counts, "committed"), r"\+1 tasks"),
    "a device too many is live": (lambda m: add(m.fleet, "live"), "counted as live"),
    "a leased task too many": (lambda m: m.leased.update({7: 1}), "open tasks of leases"),
    "a ready task too many": (lambda m: add(m.placer.ready, "count"), "ready, .* queued"),
    "a parked task too many": (lambda m: add(m.placer, "parked"), "counted as parked"),
    "a running task in no place": (lambda m: m.fleet.states[0].sent.clear(), "found in no place"),
    "a task of another device": (lambda m: setattr(running(m), "device", 1), "sent to "),
    "a phase without its place": (lambda m: setattr(running(m), "phase", Phase.READY), "found in"),
    "a child whose parent is over": (lambda m: m.tasks[8].children.clear(), "have submitted it"),
    "a child of another attempt": (lambda m: add(m.tasks[8], "attempt"), "not its parent"),
    "a wait for too many": (lambda m: add(m.tasks[7], "waits_for"), "know of it"),
    "a wait for nobody": (lambda m: m.tasks[2].dependents.clear(), "0 know of it"),
    "a suspended task too many": (lambda m: add(m.fleet, "suspended"), "counted as suspended"),
    "a batch too many": (lambda m: add(m.fleet.states[0], "batches"), "batches out"),
    "a batch that counts wrong": (lambda m: add(first_batch(m), "left"), "a batch counts"),
    "a queue that counts wrong": (lambda m: lengthen(m.fleet.queued), "counted as queued"),
    "pending seconds": (lambda m: lengthen(m.fleet.pending_s), "s pending"),
    "pending seconds, too few": (lambda m: lengthen(m.fleet.pending_s, 0, -1), "s pending"),
    "ready columns": (lambda m: m.fleet.ready.__setitem__(0, False), "its column says"),
    "room": (lambda m: lengthen(m.fleet.rooms), "its column of room says"),
    "the first one's time": (lambda m: lengthen(m.fleet.head_s), "first is"),
    "held by nobody": (lambda m: held_by(m, 77), "held by a task that is over"),
    "held by a task that holds nothing": (lambda m: held_by(m, 2), "holds nothing"),
    "a pin too many": (lambda m: lengthen(item(m).pins, HOST_NODE), "pins differ"),
    "an input that is not missing": (lambda m: setattr(m.tasks[1], "missing", 0), "inputs are missing"),
    "an input that is not on its way": (lambda m: item(m).arriving.clear(), "is not on its way"),
    "used bytes": (lambda m: lengthen(m.replicas.used, GPU), "bytes counted as used"),
    "a copy beside itself": (lambda m: item(m).valid.append(HOST_NODE), "twice on a node|bytes"),
    "heirs": (lambda m: add(item(m), "heirs"), "have it as parent"),
    "claims": (lambda m: add(item(m), "claims"), "that run again need it"),
    "awaited": (lambda m: setattr(item(m), "awaited", True), "not computed again"),
    "no timer": (lambda m: setattr(m._timer, "due_s", inf), "no timer is set"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_the_check_names_each_fault_that_is_planted(fault: str) -> None:
    machine = busy()
    check(machine)
    plant, told = PLANTED[fault]
    plant(machine)
    with pytest.raises(AssertionError, match=told):
        check(machine)


# the rows of estimates


def state(number: int = 1, size: float = 0.0, request: Request = PLAIN, name: str = "f") -> TaskState:
    return TaskState(Task(number, name, f"{name}|", size, (), (), request))


def test_while_nothing_is_measured_a_run_that_does_not_end_makes_every_guess_longer() -> None:
    row = Row("f|", 0.0, PLAIN)
    row.seconds = np.array([1.0, 3.0, inf])
    assert row.by_now(50.0).tolist() == [1.0, 3.0, inf]
    row.started(10.0, 0.5)
    row.started(11.0, 9.0)
    assert row.by_now(10.5).tolist() == [1.0, 3.0, inf]
    assert row.by_now(11.0).tolist() == [2.0, 6.0, inf]
    row.measured = True
    assert row.by_now(11.0).tolist() == [1.0, 3.0, inf]


@pytest.mark.parametrize(("count", "moves"), [(15, 0), (16, 1), (31, 1), (32, 2)])
def test_on_a_large_fleet_one_entry_moves_until_a_sixteenth_of_the_devices_did(count: int, moves: int) -> None:
    world = World(*(cpu(index) for index in range(count)))
    rows, machine = world.machine.rows, world.machine
    row = rows.of(state())
    for index in range(moves + 1):
        assert not row.stale
        device = machine.fleet.states[index]
        for _ in range(8):
            rows._cost.observe("f|", 0.0, device.device, 1e-6 * (index + 1))
        before, moved = row.seconds.copy(), rows.moves
        rows.learned("f|", device)
        rows.learned("another|", device)
        assert rows.moves == moved + 2
        if index < moves:
            assert np.flatnonzero(row.seconds != before).tolist() == [index]
            assert row.seconds[index] == rows._cost.estimate("f|", 0.0, device.device).seconds
            assert (row.best, row.best_s) == (int(row.seconds.argmin()), float(row.seconds.min()))
    assert row.stale
    rows.fresh(row)
    assert not row.stale
    rows.refresh()
    assert row.stale


def test_what_cannot_run_somewhere_is_not_learned_there() -> None:
    world = World(*(cpu(index) for index in range(16)))
    rows = world.machine.rows
    row = rows.of(state(request=Request(on=("h0/cpu:1",))))
    rows.learned("f|", world.machine.fleet.states[0])
    assert row.seconds[0] == inf
    assert row.best == 1


def test_the_largest_result_is_known_to_all_rows_of_a_signature_and_counts_for_each_task() -> None:
    rows = World(cpu()).machine.rows
    one, other = rows.of(state()), rows.of(state(2, 1e6))
    assert len(rows) == 2
    assert rows.result_bytes() == 0
    one.count, other.count = 2, 3
    assert rows.sized(one, 40)
    assert not rows.sized(other, 40)
    assert not rows.sized(one, 30)
    assert rows.result_bytes() == 5 * 40
    assert rows.of(state(3, 5e9)).out_bytes == 40


def test_a_death_marks_rows_of_about_the_same_size_and_a_good_end_is_found_by_it() -> None:
    rows = World(cpu()).machine.rows
    small, large, asked = rows.of(state(1, 10.0)), rows.of(state(2, 1e9)), rows.of(state(3, 10.0, Request(priority=1)))
    large.ended_well = True
    assert rows.ended_well(state(4, 1e9).task)
    assert not rows.ended_well(state(4, 10.0).task)
    rows.died(state(5, 10.0))
    assert (small.deadly, asked.deadly, large.deadly) == (True, True, False)
    assert rows.of(state(6, 10.0, Request(priority=2))).deadly
    assert not rows.of(state(7, 1e9, Request(priority=2))).deadly


def test_what_one_device_would_take_for_everything_counts_what_it_cannot_run_a_thousand_times() -> None:
    rows = World(cpu(), cpu(1)).machine.rows
    both, one = rows.of(state(1, name="f")), rows.of(state(2, request=Request(on=("h0/cpu:1",)), name="g"))
    both.seconds, both.best, both.count = np.array([2.0, 3.0]), 0, 4
    one.seconds, one.best, one.count = np.array([inf, 5.0]), 1, 2
    rows.of(state(3, name="h"))
    assert rows.alone_s().tolist() == [8.0 + 10_000.0, 12.0 + 10.0]


def test_a_device_that_got_nothing_is_told_why_from_the_latest_tasks() -> None:
    rows = World(cpu(), cpu(1)).machine.rows
    assert rows.why_idle(0) == "the other devices were enough"
    slow = rows.of(state(1, name="m.slow@7"))
    slow.seconds, slow.best = np.array([2.0, 1.0]), 1
    assert rows.why_idle(0) == "a task of slow would take 2 s there against 1 s on h0/cpu:1"
    assert rows.why_idle(1) == "the other devices were enough"
    rows.of(state(2, request=Request(on=("h0/cpu:1",)), name="pinned"))
    assert rows.why_idle(0).startswith("pinned: ")
    rows.refresh()
    assert rows.why_idle(0) == "the other devices were enough"


def test_a_row_is_shared_by_the_tasks_of_a_request_and_about_a_size() -> None:
    rows = World(cpu()).machine.rows
    first = rows.of(state(1, 100.0))
    assert rows.latest(state(2, 100.0).task) is first
    assert rows.latest(state(2, 101.0).task) is None
    assert rows.of(state(2, 101.0)) is first
    assert rows.of(state(3, 200.0)) is not first
    assert rows.latest(state(4, 100.0, Request(priority=1)).task) is None
    rows.refresh()
    assert rows.latest(state(5, 200.0).task) is not None
    assert not rows.of(state(6, 200.0)).stale


# eligibility


def cluster() -> Machine:
    """Return the machine of two hosts of two devices each."""
    devices = [replace(cpu(index % 2), id=f"h{index // 2}/cpu:{index % 2}") for index in range(4)]
    return World(*devices).machine


def ruled_out(machine: Machine, request: Request) -> list[int]:
    seconds = np.ones(4)
    machine._eligibility._affinities.narrow(seconds, request)
    return np.flatnonzero(seconds == inf).tolist()


@pytest.mark.parametrize(("scope", "near", "apart"), [("device", [0, 2, 3], [1]), ("host", [2, 3], [0, 1])])
def test_a_task_goes_near_another_and_apart_from_a_workload_while_that_is_there(
    scope: str, near: list[int], apart: list[int]
) -> None:
    machine = cluster()
    affinities = machine._eligibility._affinities
    by_task, by_workload = Near(scope, task=5), Near(scope, workload="blue")
    assert ruled_out(machine, Request(near=(by_task, by_workload), apart=(by_task, by_workload))) == []
    affinities.came(5, "blue", 1)
    affinities.came(6, "blue", 1)
    affinities.came(7, "", 2)
    for each in (by_task, by_workload):
        assert ruled_out(machine, Request(near=(each,))) == near
        assert ruled_out(machine, Request(apart=(each,))) == apart
    assert affinities.settled(Request(near=(by_task,))) == frozenset(near)
    assert affinities.settled(Request(apart=(by_task,))) == frozenset(apart)
    assert (
        affinities.settled(Request(near=(by_workload,))) == affinities.settled(Request(apart=(by_workload,))) == set()
    )
    affinities.left("blue", 1)
    assert ruled_out(machine, Request(apart=(by_workload,))) == apart
    affinities.left("blue", 1)
    assert ruled_out(machine, Request(apart=(by_workload,))) == []
    assert ruled_out(machine, Request(apart=(by_task,))) == apart


def test_a_request_is_refused_where_too_few_devices_could_ever_run_it() -> None:
    machine = cluster()
    one = ("h0/cpu:0",)
    assert machine.refuse("f", "f|", Request(on=one)) == ""
    assert machine.refuse("f", "f|", Request(devices=4)) == ""
    assert "no 5 devices can run f together" in machine.refuse("f", "f|", Request(devices=5))
    assert "no 2 devices can run f together" in machine.refuse("f", "f|", Request(devices=2, on=one))
    assert "no device can run f" in machine.refuse("f", "f|", Request(on=("gpu",)))
    assert [name for name, reason in machine.obstacles("f|", Request(on=one)) if not reason] == list(one)


# what lies ahead


def needs(found: Ahead) -> dict[int, list[tuple[int, int]]]:
    """Return the open and kept tasks by id, each with what it needs and whether it reads it."""
    g, ids = found.graph, found.ids.tolist()
    bounds = [range(g.pred_first[slot], g.pred_first[slot + 1]) for slot in range(len(ids))]
    return {
        task: [(ids[g.pred[edge]], int(g.pred_data[edge])) for edge in edges]
        for task, edges in zip(ids, bounds, strict=True)
    }


def test_what_lies_ahead_is_the_graph_as_it_was_handed_in_with_what_runs_and_what_is_over() -> None:
    world = World(cpu(), cpu(1), policy="planned")
    lookahead = world.machine.placer.lookahead
    assert lookahead is not None
    for number, device in ((1, "h0/cpu:0"), (2, "h0/cpu:1")):
        world.submit(number, Request(on=(device,)))
    world.submit(3, inputs=(1, 1), after=(2, 1))
    world.submit(4, after=(3,))
    found = lookahead.ahead()
    assert needs(found) == {1: [], 2: [], 3: [(1, 1), (2, 0)], 4: [(3, 0)]}
    assert found.open == 4
    assert found.graph.phase.tolist() == [RUNNING, RUNNING, WAITING, WAITING]
    assert found.graph.device.tolist() == [0, 1, -1, -1]
    assert [(slot, device) for slot, device, _, _ in found.running] == [(0, 0), (1, 1)]
    version = found.version
    world.finish(1, nbytes=50)
    found = lookahead.ahead()
    assert found.version > version
    assert (found.open, found.graph.phase[0], found.graph.nbytes[0]) == (3, FINISHED, 50)
    assert found.graph.has[:, 0].tolist() == [1, 0, 0, 0]
    version = found.version
    lookahead.over(TaskState(Task(1, "f", "f|", 0.0, (), (), PLAIN)), 0, 9)
    lookahead.over(TaskState(Task(99, "f", "f|", 0.0, (), (), PLAIN)), 0, 9)
    assert (lookahead.ahead().version, lookahead.ahead().open) == (version, 3)
    lookahead.over(world.machine.tasks[4], -1, 70)
    found = lookahead.ahead()
    assert (found.open, found.graph.nbytes[3], found.graph.has[3].tolist()) == (2, 0, [0])


def test_the_places_of_tasks_that_are_over_and_not_read_are_given_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetero.core.lookahead._FORGET", 6)
    world = World(cpu(), policy="planned")
    lookahead = world.machine.placer.lookahead
    assert lookahead is not None
    for number in range(1, 8):
        world.submit(number)
        if number == 5:
            world.submit(100, inputs=(5,))
        if number < 7 and number != 5:
            world.finish(number)
    world.submit(8, inputs=(7, 100))
    found = lookahead.ahead()
    assert set(needs(found)) == set(found.ids.tolist()) == set(found.slot_of)
    assert found.open == int((found.graph.phase != FINISHED).sum()) == len(world.machine.tasks)
    assert needs(found)[8] == [(7, 1), (100, 1)]
    assert needs(found)[100] == [(5, 1)]
    assert 1 not in found.slot_of
    assert [found.slot_of[task] for task in found.ids.tolist()] == list(range(len(found.ids)))


def test_the_spread_of_estimates_follows_how_far_times_are_off() -> None:
    world = World(cpu(), policy="planned")
    lookahead = world.machine.placer.lookahead
    assert lookahead is not None
    first = lookahead.error
    for seconds, predicted_s in ((0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)):
        lookahead.took(seconds, predicted_s)
    assert lookahead.error == first
    for _ in range(400):
        lookahead.took(1.0, 2.0)
    assert lookahead.error == pytest.approx(1.25 * log(2.0), rel=0.02)
    for _ in range(400):
        lookahead.took(1e9, 1.0)
    assert lookahead.error == pytest.approx(2.0, rel=0.02)
    for _ in range(2000):
        lookahead.took(1.0, 1.0)
    assert 0.0 < lookahead.error < 0.3
