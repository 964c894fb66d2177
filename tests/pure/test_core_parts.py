"""The core as a composition: one table of transitions, one writer of phases, parts that do not know each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest

import hetero.core
from hetero.core.quarantine import size_class
from hetero.core.state import NEXT_PHASES, STARTED, Phase, TaskState
from hetero.model.device import HOST_NODE
from hetero.model.events import (
    CancelRequested,
    Event,
    ItemPut,
    LoneTasks,
    TaskFailed,
    TaskFinished,
    TaskResumed,
    TaskSubmitted,
    TaskSuspended,
    TaskWithdrawn,
)
from hetero.model.tasks import Failure, Request, Task
from tests.pure.test_core import GPU, LINKED, PLAIN, World, cpu, gpu

FOLDER = Path(hetero.core.__file__).parent
ATTEMPT = (TaskFinished, TaskFailed, TaskWithdrawn, TaskSuspended, TaskResumed)


def trees() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(FOLDER.glob("*.py")):
        yield file.stem, ast.parse(file.read_text())


def test_the_phase_of_a_task_is_written_in_one_place() -> None:
    found = []
    for name, tree in trees():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    writes = (
                        isinstance(node, ast.Attribute) and node.attr == "phase" and isinstance(node.ctx, ast.Store)
                    )
                    found += [(name, function.name)] if writes else []
    assert found == [("fleet", "set_phase"), ("state", "__init__"), ("state", "enter"), ("state", "__init__")]


def test_a_phase_is_left_only_for_one_that_may_follow() -> None:
    for before, after in product(Phase, Phase):
        state = TaskState(Task(1, "f", "f|", 0.0, (), (), PLAIN))
        state.phase = before
        if after in NEXT_PHASES[before]:
            state.enter(after)
            assert state.phase is after
        else:
            with pytest.raises(AssertionError, match=f"task 1: {before.name} to {after.name}"):
                state.enter(after)


def test_parts_that_change_tasks_do_not_import_each_other() -> None:
    parts = {"faults", "lease_lifecycle", "nesting", "machine"}
    for name, tree in trees():
        imported = {
            node.module.rpartition(".")[2]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hetero.core.")
        }
        if name not in ("machine", "invariants"):
            assert not imported & parts, name


def in_phase(phase: Phase) -> World:
    """Return a world in which task 9 is in a phase, with attempt 1 where it has begun."""
    world = World(cpu())
    if phase is Phase.SUBMITTED:
        world.submit(1)
        world.submit(9, after=(1,))
    elif phase is Phase.READY:
        for number in (1, 2, 3):
            world.submit(number)
        world.submit(9, Request(priority=-1))
    else:
        world.submit(9)
    if phase is Phase.SUSPENDED:
        world.tell(TaskSuspended(0.1, 9, 1, "h0/cpu:0", 0.1, 0))
    assert world.machine.tasks[9].phase is phase
    return world


def reported(kind: type, attempt: int) -> Event:
    values: dict[type, tuple[Any, ...]] = {
        TaskFinished: (0.2, 9, attempt, "h0/cpu:0", 0.1, 0.1, 0, HOST_NODE),
        TaskFailed: (0.2, 9, attempt, "h0/cpu:0", 0.1, 0.1, Failure("exception", "it failed")),
        TaskWithdrawn: (0.2, 9, attempt, "h0/cpu:0"),
        TaskSuspended: (0.2, 9, attempt, "h0/cpu:0", 0.2, 0),
        TaskResumed: (0.2, 9, attempt, "h0/cpu:0", 0.2),
    }
    event: Event = kind(*values[kind])
    return event


@pytest.mark.parametrize("phase", [Phase.SUBMITTED, Phase.READY, Phase.RUNNING, Phase.SUSPENDED])
@pytest.mark.parametrize("kind", ATTEMPT)
def test_what_is_not_in_the_table_comes_late_and_changes_no_task(kind: type, phase: Phase) -> None:
    listed = (phase, kind) in World(cpu()).machine._transitions()
    for attempt in (0, 1, 2):
        world = in_phase(phase)
        machine = world.machine
        state = machine.tasks[9]
        before = machine.counts.late
        world.tell(reported(kind, attempt))
        fits = listed and attempt == 1
        assert (machine.counts.late == before) == fits, attempt
        if not fits:
            assert state.phase is phase


@pytest.mark.parametrize("phase", [Phase.SUBMITTED, Phase.READY, Phase.RUNNING, Phase.SUSPENDED])
def test_a_task_is_cancelled_in_every_phase_unless_only_a_waiting_one_was_meant(phase: Phase) -> None:
    world = in_phase(phase)
    world.tell(CancelRequested(0.2, 9, True))
    assert (9 in world.machine.tasks) == (phase in STARTED)
    world.tell(CancelRequested(0.3, 9, False))
    assert 9 not in world.machine.tasks


def test_a_task_that_is_open_cannot_be_handed_in_again_unless_it_is_being_cut() -> None:
    world = in_phase(Phase.RUNNING)
    with pytest.raises(AssertionError, match="TaskSubmitted of task 9, which is RUNNING"):
        world.machine.handle(TaskSubmitted(0.2, world.machine.tasks[9].task))


def test_a_question_does_not_change_what_it_is_asked_of() -> None:
    world = World(cpu(), gpu(), topology=LINKED)
    world.tell(ItemPut(0.0, 100, 2_000, HOST_NODE))
    machine = world.machine
    state = TaskState(Task(9, "f", "f|", 0.0, (100,), (), PLAIN))
    eligibility = machine._eligibility
    assert eligibility.may_be_stranded(state)
    assert list(eligibility.too_small(state)) == [machine.fleet.by_id[GPU].index]
    assert eligibility.stranded(state) == ""
    assert state.excluded == frozenset()
    only_gpu = TaskState(Task(9, "f", "f|", 0.0, (100,), (), Request(on=("gpu",))))
    assert "exceed the memory there" in eligibility.stranded(only_gpu)
    before = repr((machine.counts, machine.timer_s, machine.now_s, machine.tasks, machine.fleet.queued.tolist()))
    machine.refuse("f", "f|", PLAIN)
    machine.obstacles("f|", PLAIN)
    machine.estimates("f|", 0.0)
    machine.left_out()
    machine.lone(Task(9, "f", "f|", 0.0, (), (), PLAIN))
    after = repr((machine.counts, machine.timer_s, machine.now_s, machine.tasks, machine.fleet.queued.tolist()))
    assert after == before


def test_every_event_has_a_handler() -> None:
    kinds = set(get_args(Event))
    assert set(World(cpu()).machine._handlers) == kinds
    assert LoneTasks in kinds


def test_a_class_of_its_own_for_each_task_costs_no_look_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain function has a request of its own in each call, so each call has a row of its own."""
    looks = 0

    def counted(size: float) -> int:
        nonlocal looks
        looks += 1
        return size_class(size)

    monkeypatch.setattr("hetero.core.estimates.size_class", counted)
    world = World(cpu(0))
    rows = world.machine.rows
    for number in range(1, 101):
        world.submit(number, request=Request())
        rows.of(world.machine.tasks[number])
    assert looks <= 100
