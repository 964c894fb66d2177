"""The interface of a policy, and what a policy sees.

In: a `View` of the fleet and the ready tasks. Out: proposals, which the core accepts or not.
A policy is pure: what it wants to remember is handed in and out. It must not change the view.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hetero.model.device import Device
from hetero.plan.replanning.lookahead import Ahead, Foreseen

__all__ = ["Memory", "Policy", "Proposal", "ReadyTask", "Traits", "View", "Waiting", "plan_of", "traits"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Memory = object
"""Whatever a policy remembers between two calls: an immutable value, None at the start."""


class ReadyTask(NamedTuple):
    """One task that could start now.

    Attributes
    ----------
    id
        Task id.
    seconds
        Shape (n_devices,), s; estimated run time on each device, inf where it must not run now.
    arrive_s
        Shape (n_devices,), s, or None when no input has to travel; time until all inputs are there.
    key
        What tasks that belong together share (function and argument shapes); consistent hashing uses it.
    back_s
        Shape (n_devices,), s, or None when nothing has to travel; time of its result to `View.best_device`, inf where
        the size of the result is not known yet.
    """

    id: int
    seconds: Floats
    arrive_s: Floats | None
    key: str
    back_s: Floats | None = None


class Waiting(NamedTuple):
    """One task that is placed on a device and not yet sent to it, so that it may still be moved."""

    task: ReadyTask
    device: int


class Proposal(NamedTuple):
    """Put this task on this device; for a waiting task: move it there.

    Attributes
    ----------
    task
        Task id.
    device
        Index into `View.devices`.
    """

    task: int
    device: int


@dataclass(slots=True)
class View:
    """The fleet as columns, one entry a device; read-only for policies.

    Attributes
    ----------
    now_s
        Seconds.
    devices
        The devices, in the order of the columns.
    ready
        Shape (n_devices,), bool; the device's worker takes tasks.
    available_s
        Shape (n_devices,), s; when the work already accepted is estimated to end, never before now; for a device that
        is starting, when it should take tasks; inf for one that is gone.
    queued
        Shape (n_devices,); attempts accepted and not finished, those waiting in the core included.
    room
        Shape (n_devices,); how many more tasks the core would send to the device right now.
    busy_frac
        Shape (n_devices,), 0..1; use of the device by others, 0 where unknown.
    backlog
        Number of ready tasks, those beyond the ones that the policy is shown included.
    waiting
        Placed tasks that may still be moved, in the order of their placement.
    best_device
        Index of the device that would be the best one alone, -1 where it does not matter.
    offered
        Shape (n_devices,), the room that was not left unused when it was offered before; None for all. Once it is used
        up a policy may stop: for the other room it is asked again when something changed.
    ahead
        The open task graph, for a policy whose `looks_ahead` is True; else None.
    """

    now_s: float
    devices: tuple[Device, ...]
    ready: NDArray[np.bool_]
    available_s: Floats
    queued: Ints
    room: Ints
    busy_frac: Floats
    backlog: int
    waiting: tuple[Waiting, ...] = ()
    best_device: int = -1
    offered: Ints | None = None
    ahead: Ahead | None = None

    @property
    def home(self) -> int:
        """The former name of `best_device`."""
        warnings.warn("View.home is now View.best_device", DeprecationWarning, stacklevel=2)
        return self.best_device


class Policy(Protocol):
    """A rule that proposes placements.

    Attributes
    ----------
    name
        The word by which users choose it; the core never reads it.

    Notes
    -----
    What the core may rely on beyond `propose` is declared by further attributes of the class, those of `Traits`.
    A policy without them is shown everything and asked each time.

    A policy whose `looks_ahead` is True may also have `foresee(memory) -> Foreseen | None`: where and when it
    means to run what waits, by which the core sends data ahead and chooses what leaves a full memory node.

    A policy may have `suits(devices) -> str`: why it is the right one for a fleet, '' where another does better.
    `policy: auto` takes the first one that says so.
    """

    name: str

    def propose(self, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
        """Propose devices for some of the ready tasks.

        Parameters
        ----------
        view
            The fleet now.
        ready
            The first ready tasks in order of priority and age; `view.backlog` counts them all.
        memory
            What the last call gave back, None at first.

        Returns
        -------
        tuple
            Proposals in the order in which they should be accepted, and what to remember. A task left out
            stays ready. A task proposed for a device without room waits there, in the core, and can be moved.

        Notes
        -----
        Deterministic; ties are broken by (value, task id, device index).
        """
        ...


@dataclass(frozen=True, slots=True)
class Traits:
    """What a policy declares of itself by attributes of the same names; whatever it leaves out is False.

    Attributes
    ----------
    lazy_sends
        It proposes only tasks that would start soon, for devices with room, and never moves a waiting one. So the core
        asks it only while tasks are ready, without `View.waiting`, and takes tasks back that it has sent ahead where an
        idle device would end them sooner.
    lone_to_fastest
        A plain task that is ready alone goes to its fastest device where that is idle and no data have to travel. So
        the core sends such a task without asking. The policy must not need to remember it.
    looks_ahead
        It reads `View.ahead`, the open task graph.
    watches_use
        It reads `View.busy_frac`, which is sampled during the run.
    """

    lazy_sends: bool = False
    lone_to_fastest: bool = False
    looks_ahead: bool = False
    watches_use: bool = False


def traits(policy: Policy) -> Traits:
    """Return what a policy declares of itself.

    Examples
    --------
    >>> from hetero.plan.policies.eft import EarliestFinishTime
    >>> traits(EarliestFinishTime())
    Traits(lazy_sends=True, lone_to_fastest=True, looks_ahead=False, watches_use=False)
    """
    return Traits(*(bool(getattr(policy, field.name, False)) for field in fields(Traits)))


def plan_of(policy: Policy) -> Callable[[Memory], Foreseen | None] | None:
    """Return the method by which a policy tells its plan, None for a policy without one."""
    foresee: Callable[[Memory], Foreseen | None] | None = getattr(policy, "foresee", None)
    return foresee
