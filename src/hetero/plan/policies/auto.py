"""Auto: chooses a policy for this fleet, and says why.

In: the fleet. Out: what the chosen policy proposes; the choice and its reason, as memory.
It must not change its mind before the fleet does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hetero.model.device import Device
from hetero.plan.policies.base import Memory, Policy, Proposal, ReadyTask, View
from hetero.plan.policies.eft import EarliestFinishTime
from hetero.plan.policies.round_robin import RoundRobin

__all__ = ["Auto", "Chosen", "choose"]


class Chosen(NamedTuple):
    """What `Auto` remembers.

    Attributes
    ----------
    name : the policy that it chose
    reason : why, in words
    devices : number of devices at that time
    memory : what the chosen policy remembers
    """

    name: str
    reason: str
    devices: int
    memory: Memory


def choose(devices: Sequence[Device]) -> tuple[str, str]:
    """Choose a policy for a fleet; returns its name and the reason.

    Notes
    -----
    Earliest finish time leaves out a device that would make the whole slower, counts transfers, and binds
    nothing early; no other policy here does, so only a fleet that leaves nothing to choose gets another one.

    Examples
    --------
    >>> choose(())
    ('eft', 'no device is known yet')
    """
    if not devices:
        return "eft", "no device is known yet"
    if len(devices) == 1:
        return "round_robin", f"{devices[0].id} is the only device: there is nothing to choose"
    kinds = len({device.model_key for device in devices})
    if kinds == 1:
        return "eft", f"the {len(devices)} devices are equal, but one may slow down, and nothing is bound early"
    return "eft", f"{len(devices)} devices of {kinds} kinds: a task ends first where its speed and transfers say so"


class Auto:
    """Let `choose` say which policy proposes.

    Notes
    -----
    It chooses again when the number of devices changed. The choice is a rule and not a search: in the spirit
    of algorithm selection, with the features that tell these policies apart.

    References
    ----------
    J. R. Rice, "The algorithm selection problem", Advances in Computers 15 (1976), 65-118.
    """

    name = "auto"

    def __init__(self) -> None:
        self._policies: dict[str, Policy] = {policy.name: policy for policy in (EarliestFinishTime(), RoundRobin())}

    def propose(self, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
        """Propose what the chosen policy proposes; remember the choice."""
        if isinstance(memory, Chosen) and memory.devices == len(view.devices):
            chosen = memory
        else:
            chosen = Chosen(*choose(view.devices), len(view.devices), None)
        proposals, inner = self._policies[chosen.name].propose(view, ready, chosen.memory)
        return proposals, chosen._replace(memory=inner)
