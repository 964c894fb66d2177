"""Faults: what goes wrong in a simulated run, drawn from one seed, and what happens to its fleet.

In: how likely each fault is, and a seed. Out: draws, the same for the same seed; events for the core, orders for the
simulated engine. It must not know of tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf, log
from typing import TYPE_CHECKING

import numpy as np

from hetero.core.state import DevicePhase
from hetero.model.device import Device
from hetero.model.events import DeviceAdded, Event, UtilisationReported

if TYPE_CHECKING:
    from hetero.core.machine import Machine
    from hetero.drive.sim_engine import SimEngine

__all__ = ["Dice", "FaultInjector", "Faults", "Loss", "Slowdown"]

_DRAWN = 4096


@dataclass(frozen=True, slots=True)
class Slowdown:
    """From `at_s` on a device takes `factor` times as long for everything.

    Attributes
    ----------
    at_s
        Seconds.
    device
        Id.
    factor
        > 0; 1 is its first speed.
    """

    at_s: float
    device: str
    factor: float


@dataclass(frozen=True, slots=True)
class Loss:
    """At `at_s` a device is lost for good.

    Attributes
    ----------
    at_s
        Seconds.
    device
        Id.
    """

    at_s: float
    device: str


@dataclass(frozen=True, slots=True)
class Faults:
    """How likely each fault is.

    Attributes
    ----------
    crash, hang, exception, out_of_memory
        Probability per attempt; a crash takes the worker with it, a hang never ends by itself.
    transfer
        Probability that a copy does not happen.
    poison, poison_names
        Ids and names of tasks that end the worker of each of their attempts.
    start
        Probability that a worker does not start; a device whose worker did not start three times running is lost.
    duplicate
        Probability that an event is told twice.
    late
        Probability that news of an attempt reach the core only after its worker was lost.
    cancel
        Probability that a task is cancelled while it is open.
    replaced
        Probability that stopping an attempt takes a new worker; a hanging one always does.
    kill_every_s
        Seconds between two kills of a worker chosen at random, 0 for none.
    permanent
        Probability that a kill loses the device for good ….
    back_s
        … until it is added again after this many s, 0 for never.
    absent
        (function, device label) where a package is missing that the function imports.
    out_of_memory_size
        Tasks of a larger size run out of memory everywhere.
    slowdowns
        Changes of speed.
    losses
        Devices that are lost for good at a time.
    utilisation_every_s
        Seconds between two reports of use by others, 0 for none.
    """

    crash: float = 0.0
    hang: float = 0.0
    exception: float = 0.0
    out_of_memory: float = 0.0
    poison: frozenset[int] = frozenset()
    poison_names: frozenset[str] = frozenset()
    transfer: float = 0.0
    start: float = 0.0
    duplicate: float = 0.0
    late: float = 0.0
    cancel: float = 0.0
    replaced: float = 0.5
    kill_every_s: float = 0.0
    permanent: float = 0.0
    back_s: float = 0.0
    absent: tuple[tuple[str, str], ...] = ()
    out_of_memory_size: float = inf
    slowdowns: tuple[Slowdown, ...] = ()
    losses: tuple[Loss, ...] = ()
    utilisation_every_s: float = 0.0

    def outcome(self, draw: float) -> str:
        """Turn one draw from 0..1 into how an attempt ends: '' for well, else the name of the fault."""
        for name in ("crash", "hang", "exception", "out_of_memory"):
            draw -= getattr(self, name)
            if draw < 0.0:
                return name
        return ""

    @property
    def attempts_fail(self) -> bool:
        """True when an attempt may end badly by chance."""
        return self.crash + self.hang + self.exception + self.out_of_memory > 0.0


class Dice:
    """Draws from one generator, many at a time.

    Examples
    --------
    >>> one, other = Dice(7), Dice(7)
    >>> [one.draw() for _ in range(3)] == [other.draw() for _ in range(3)]
    True
    """

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._uniform: list[float] = []
        self._normal: list[float] = []

    def draw(self) -> float:
        """Return a number from 0 to 1."""
        if not self._uniform:
            self._uniform = self._generator.random(_DRAWN).tolist()
        return self._uniform.pop()

    def normal(self) -> float:
        """Return a number from the standard normal distribution."""
        if not self._normal:
            self._normal = self._generator.standard_normal(_DRAWN).tolist()
        return self._normal.pop()

    def happens(self, probability: float) -> bool:
        """Return whether something of this probability happens now."""
        return probability > 0.0 and self.draw() < probability

    def wait_s(self, mean_s: float) -> float:
        """Return an exponentially distributed time, s."""
        return -mean_s * log(1.0 - self.draw())

    def below(self, count: int) -> int:
        """Return a whole number from 0 to count - 1."""
        return min(int(self.draw() * count), count - 1)


class FaultInjector:
    """Lets faults of the fleet happen.

    Parameters
    ----------
    fleet
        By id.
    machine, engine, dice
        Of the simulation.
    faults
        What goes wrong.
    chore
        Puts a call into the simulation's queue that no task waits for.
    handle
        Hands an event to the core.
    now_s
        Gives the time.
    """

    def __init__(
        self,
        fleet: Mapping[str, Device],
        machine: Machine,
        engine: SimEngine,
        dice: Dice,
        faults: Faults,
        *,
        chore: Callable[[float, Callable[[], None]], None],
        handle: Callable[[Event], None],
        now_s: Callable[[], float],
    ) -> None:
        self._fleet, self._machine, self._engine = fleet, machine, engine
        self._dice, self._faults = dice, faults
        self._chore, self._handle, self._now_s = chore, handle, now_s

    def begin(self) -> None:
        """Put what is to happen into the queue."""
        for change in self._faults.slowdowns:
            self._chore(change.at_s, partial(self._slow_down, change.device, change.factor))
        for loss in self._faults.losses:
            self._chore(loss.at_s, partial(self._engine.lose, loss.device, "it failed", permanent=True))
        if self._faults.kill_every_s:
            self._chore(self._faults.kill_every_s, self._kill)
        if self._faults.utilisation_every_s:
            self._chore(self._faults.utilisation_every_s, self._report)

    def _slow_down(self, device: str, factor: float) -> None:
        self._engine.happened["slowdown"] += 1
        self._engine.workers[device].factor = factor

    def _kill(self) -> None:
        """Kill a worker chosen at random, and add the devices again that were lost for good."""
        live = self._engine.live()
        if live:
            permanent = self._dice.happens(self._faults.permanent)
            self._engine.happened["permanent" if permanent else "kill"] += 1
            self._engine.lose(live[self._dice.below(len(live))], "it was killed", permanent=permanent)
        self._chore(self._faults.kill_every_s, self._kill)
        if self._faults.back_s:
            gone = [state.name for state in self._machine.fleet.states if state.phase is DevicePhase.GONE]
            for name in gone:
                self._chore(self._faults.back_s, partial(self._back, name))

    def _back(self, name: str) -> None:
        if self._machine.fleet.by_id[name].phase is DevicePhase.GONE:
            self._engine.happened["back"] += 1
            self._handle(DeviceAdded(self._now_s(), self._fleet[name]))
            self._engine.start(name)

    def _report(self) -> None:
        names = list(self._fleet)
        name = names[self._dice.below(len(names))]
        self._handle(UtilisationReported(self._now_s(), name, self._dice.draw()))
        self._chore(self._faults.utilisation_every_s, self._report)
