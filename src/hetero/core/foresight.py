"""What a plan says of data: which item is read where next, and which one should travel before its task is placed.

In: the plan of a policy that looks ahead, the outlook. Out: times for `Replicas`, and transfers. It must not place.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np

from hetero.core.fleet import Fleet
from hetero.core.lookahead import Outlook
from hetero.core.replicas import Replicas
from hetero.core.state import DevicePhase
from hetero.model.commands import Command
from hetero.plan.outlook import Foreseen
from hetero.plan.problem import Ints

__all__ = ["Foresight"]

_AHEAD = 2
"""So many of the next tasks of each device have their inputs sent ahead."""


class Foresight:
    """Reads the policy's plan; nothing here changes what is planned.

    Parameters
    ----------
    plan : gives where and when the policy means to run what waits, None where it has no plan
    """

    def __init__(self, fleet: Fleet, replicas: Replicas, outlook: Outlook, plan: Callable[[], Foreseen | None]) -> None:
        self._fleet = fleet
        self._replicas = replicas
        self._outlook = outlook
        self._plan = plan
        self._seen = (-1, -1)
        replicas.foresight = self.next_reads

    def next_reads(self, node: str) -> dict[int, float]:
        """Return when the plan next reads items on a memory node, s; one that is absent is not read there again."""
        found: dict[int, float] = {}
        plan = self._plan()
        if plan is None:
            return found
        slots = self._waiting(plan)
        devices = [state.index for state in self._fleet.states if state.device.memory_node == node]
        slots = slots[np.isin(plan.device[slots], devices)]
        for slot in slots[np.argsort(plan.start_s[slots], kind="stable")].tolist():
            for item in self._outlook.task(slot).inputs:
                found.setdefault(item, float(plan.start_s[slot]))
        return found

    def fetches(self) -> list[Command]:
        """Return the transfers that bring each device the inputs of its next tasks, as far as they exist."""
        seen = (self._outlook.version, self._replicas.settled)
        if seen == self._seen or not self._fleet.own_nodes:
            return []
        self._seen = seen
        plan = self._plan()
        if plan is None:
            return []
        slots = self._waiting(plan)
        slots = slots[np.lexsort((plan.start_s[slots], plan.device[slots]))]
        first = np.searchsorted(plan.device[slots], np.arange(len(self._fleet.states) + 1))
        commands: list[Command] = []
        for state in self._fleet.states:
            if state.phase is DevicePhase.READY and not state.held_by:
                near = slots[first[state.index] : first[state.index + 1]][:_AHEAD].tolist()
                wanted = (
                    self._replicas.fetch(self._outlook.task(slot).inputs, state.device.memory_node) for slot in near
                )
                commands.extend(islice((transfer for transfer in wanted if transfer is not None), 1))
        return commands

    def _waiting(self, plan: Foreseen) -> Ints:
        """Return the slots of the tasks that wait, of those that the plan knows."""
        slots = self._outlook.waiting()
        return slots[slots < len(plan.device)]
