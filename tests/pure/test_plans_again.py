"""Tasks that are handed in again: the plan that the ones before came to is followed while times keep to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from hetero.plan.policies.base import View
from hetero.plan.policies.planned import Planned
from hetero.plan.replanning import replan as replanning
from hetero.plan.replanning.lookahead import FINISHED, RUNNING, WAITING, Ahead, OpenGraph
from hetero.plan.replanning.replan import RemainingPlan, is_on_course, replan

SECONDS = [[1.0, 4.0], [3.0, 1.0], [2.0, 2.0]]
"""Of each kind of task on two devices that share a memory."""

DIAMOND = ((0, ()), (1, (0,)), (2, (0,)), (0, (1, 2)))
"""Kinds, and the places of what each task needs."""


@dataclass
class Run:
    """What has been handed in so far: batches of tasks, one after another."""

    kinds: list[int] = field(default_factory=list)
    preds: list[tuple[int, ...]] = field(default_factory=list)
    phases: list[int] = field(default_factory=list)
    devices: list[int] = field(default_factory=list)
    version: int = 0
    upset: int = 0

    def hand_in(self, tasks: tuple[tuple[int, tuple[int, ...]], ...] = DIAMOND) -> None:
        first = len(self.kinds)
        for kind, needs in tasks:
            self.kinds.append(kind)
            self.preds.append(tuple(first + place for place in needs))
            self.phases.append(WAITING)
            self.devices.append(-1)

    def end(self) -> None:
        """End all tasks, where the last plan had them."""
        self.phases = [FINISHED] * len(self.phases)
        self.devices = [max(0, device) for device in self.devices]

    def ahead(self, running: tuple[tuple[int, int, float, float], ...] = ()) -> Ahead:
        self.version += 1
        n = len(self.kinds)
        for slot, device, *_ in running:
            self.phases[slot], self.devices[slot] = RUNNING, device
        first = np.concatenate([[0], np.cumsum([len(needs) for needs in self.preds])]).astype(np.int64)
        pred = np.array([need for needs in self.preds for need in needs], dtype=np.int64)
        graph = OpenGraph(
            np.array(self.phases, dtype=np.uint8), np.array(self.kinds), np.array(SECONDS), np.zeros(3), first, pred,
            np.ones(len(pred), dtype=np.uint8), np.array(self.devices), np.zeros(n), np.ones((n, 1), dtype=np.uint8),
            np.zeros(2, dtype=np.int64), np.zeros((1, 1)), np.zeros((1, 1)),
        )  # fmt: skip
        ids = np.arange(1, n + 1)
        is_open = sum(phase != FINISHED for phase in self.phases)
        slots = {int(task): slot for slot, task in enumerate(ids)}
        return Ahead(graph, slots, ids, is_open, self.version, self.version, running, 0.1, self.upset)

    def planned(self, now_s: float, before: RemainingPlan | None) -> RemainingPlan:
        made = replan(self.ahead(), now_s, np.full(2, now_s), before, None)
        self.devices = [*made.device.tolist()]
        return made


def twice(second: tuple[tuple[int, tuple[int, ...]], ...] = DIAMOND) -> tuple[Run, RemainingPlan, RemainingPlan]:
    """Hand a diamond in, have it end, and hand something in again at 100 s; return the plans of both."""
    run = Run()
    run.hand_in()
    first = run.planned(0.0, None)
    run.end()
    run.hand_in(second)
    return run, first, run.planned(100.0, first)


def test_what_is_handed_in_again_is_planned_as_the_ones_before_and_kept_to() -> None:
    _, first, again = twice()
    assert first.slack_s == 0.0
    assert again.slack_s == pytest.approx(0.05 * (again.makespan_s - 100.0))
    assert again.device[4:].tolist() == first.device[:4].tolist()
    assert (again.start_s[4:] - 100.0).tolist() == pytest.approx(first.start_s[:4].tolist())


@pytest.mark.parametrize(
    "second",
    [
        ((0, ()), (1, (0,)), (2, (0,)), (0, (1,))),
        ((0, ()), (1, (0,)), (1, (0,)), (0, (1, 2))),
        (*DIAMOND, (0, ())),
        DIAMOND[:3],
    ],
)
def test_other_tasks_are_planned_anew(second: tuple[tuple[int, tuple[int, ...]], ...]) -> None:
    assert twice(second)[2].slack_s == 0.0


def test_a_plan_is_left_when_starts_stray_or_something_happens_that_no_plan_foresees() -> None:
    run, _, again = twice()
    device = int(again.device[4])
    assert is_on_course(again, run.ahead(), 100.0)
    on_time = run.ahead(((4, device, 100.0 + 0.5 * again.slack_s, 1.0),))
    assert is_on_course(again, on_time, 100.5)
    assert not is_on_course(again, on_time, again.finish_s[4] + 1.1 * again.slack_s)
    late = run.ahead(((4, device, 100.0 + 1.5 * again.slack_s, 1.0),))
    assert not is_on_course(again, late, 100.5)
    assert not is_on_course(again, on_time._replace(upset=1), 100.5)
    run.hand_in(((0, ()),))
    assert not is_on_course(again, run.ahead(), 100.0)


def test_the_last_task_is_no_batch_of_its_own_where_it_waits_alone() -> None:
    run = Run()
    run.hand_in()
    first = run.planned(0.0, None)
    run.phases[:3] = [FINISHED] * 3
    last = run.planned(5.0, first)
    run.end()
    run.hand_in()
    assert run.planned(100.0, last).slack_s > 0.0


def test_what_is_planned_anew_on_the_way_is_kept_to_more_loosely_and_remembers_when_tasks_began() -> None:
    run, _, again = twice()
    begun_s = 100.0 + 3.0 * again.slack_s
    late = run.ahead(((4, int(again.device[4]), begun_s, 1.0),))
    after = replan(late, begun_s + 0.1, np.full(2, begun_s), again, None)
    assert after.slack_s == 2.0 * again.slack_s
    assert after.start_s[4] == begun_s
    assert is_on_course(after, late, begun_s + 0.1)


def test_the_policy_plans_anew_only_when_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def count(*args: Any) -> RemainingPlan:
        counted.append(1)
        return replanning.replan(*args)

    monkeypatch.setattr("hetero.plan.policies.planned.replan", count)
    run, _, again = twice()
    policy, memory = Planned(), again
    for begun_s in (100.0, 100.0 + 0.5 * again.slack_s, 100.0 + 2.0 * again.slack_s):
        running = ((4, int(again.device[4]), begun_s, 1.0),)
        view = View(
            begun_s, (), np.ones(2, dtype=bool), np.full(2, begun_s), np.zeros(2, dtype=np.int64),
            np.zeros(2, dtype=np.int64), np.zeros(2), 0, ahead=run.ahead(running),
        )  # fmt: skip
        _, made = policy.propose(view, (), memory)
        assert isinstance(made, RemainingPlan)
        memory = made
    assert len(counted) == 1
