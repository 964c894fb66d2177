"""What happens to a simulated fleet whatever is run on it: devices slow down, die, come back, are used by others.

In: faults and a seed. Out: events for the core, orders for the simulated engine. It must not know of tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from hetero.core.machine import Machine
from hetero.core.state import DevicePhase
from hetero.drive.faults import Dice, Faults
from hetero.drive.sim_engine import SimEngine
from hetero.model.device import Device
from hetero.model.events import DeviceAdded, Event, UtilisationReported

__all__ = ["FaultInjector"]


class FaultInjector:
    """Lets faults of the fleet happen.

    Parameters
    ----------
    fleet : by id
    machine, engine, dice : of the simulation
    faults : what goes wrong
    chore : puts a call into the simulation's queue that no task waits for
    handle : hands an event to the core
    now_s : gives the time
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
