"""What a trace is told of the plan that a policy follows.

In: a core whose policy plans ahead, between two events. Out: what is new in its plan. It must not plan.
"""

from __future__ import annotations

import numpy as np

from hetero.core.machine import Machine
from hetero.model.annotations import PlanMade
from hetero.plan.problem import Ints
from hetero.plan.replanning.lookahead import WAITING
from hetero.plan.replanning.replan import RULES, RemainingPlan

__all__ = ["PlanRecorder"]

_WORTH_FRAC = 0.01
"""A re-plan that moves no task is told when what is left is expected to end by this much earlier or later."""


class PlanRecorder:
    """Looks at the plan of a core after each event.

    Parameters
    ----------
    machine
        The core.

    Notes
    -----
    A plan reaches a bounded number of tasks ahead. Each task is told once, when it first stands in a plan; of later
    plans the number of tasks that changed their device, and the expected end.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._last: object = None
        self._end_s = -np.inf
        self._device: dict[int, int] = {}

    @property
    def is_new(self) -> bool:
        """True when the policy remembers something else than at the last pop_plan."""
        return self._machine.placer.memory is not self._last

    def pop_plan(self, now_s: float) -> PlanMade | None:
        """Return what is new in the plan, and record it as known; None where nothing is."""
        placer = self._machine.placer
        plan = placer.memory
        if plan is self._last:
            return None
        self._last = plan
        if not isinstance(plan, RemainingPlan) or placer.lookahead is None:
            return None
        ids, phase = placer.lookahead.tasks()
        if len(ids) < plan.known:
            return None
        slots = np.flatnonzero((phase[: plan.known] == WAITING) & (plan.device >= 0) & (plan.finish_s > 0.0))
        planned = ids[slots].tolist()
        before = np.array([self._device.get(task, -1) for task in planned], dtype=np.int64)
        self._device.update(zip(planned, plan.device[slots].tolist(), strict=True))
        new = slots[before < 0]
        moved = int(((before >= 0) & (before != plan.device[slots])).sum())
        worth = abs(plan.makespan_s - self._end_s) > _WORTH_FRAC * max(plan.makespan_s - now_s, 0.0)
        if not len(new) and not moved and not worth:
            return None
        self._end_s = plan.makespan_s
        return self._note(plan, now_s, new, ids[new], moved)

    def _note(self, plan: RemainingPlan, now_s: float, slots: Ints, ids: Ints, moved: int) -> PlanMade:
        names = [device.id for device in self._machine.fleet.devices]
        rank, looks = RULES[plan.rule] if plan.rule >= 0 else ("guide", False)
        return PlanMade(
            now_s,
            float(plan.makespan_s),
            f"{rank}, looking ahead" if looks else rank,
            moved,
            tuple(ids.tolist()),
            tuple(names[device] for device in plan.device[slots].tolist()),
            tuple(plan.start_s[slots].tolist()),
            tuple(plan.finish_s[slots].tolist()),
        )
