"""Tasks that wait for tasks they submitted: suspended, resumed, and what becomes of a fleet in which all wait.

In: what a worker tells of an attempt that waits. Out: commands. It must not choose devices: the placer does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from math import inf, isfinite

import numpy as np

from hetero.core.lifecycle import CoreState, TaskLifecycle
from hetero.core.placement import WINDOW
from hetero.core.state import COMING, DevicePhase, DeviceState, Phase, TaskState
from hetero.model.commands import Command
from hetero.model.events import TaskResumed, TaskSuspended
from hetero.model.tasks import Failure

__all__ = ["Nesting"]


class Nesting:
    """What becomes of tasks that wait for others.

    Notes
    -----
    A task that waits gives its device up, and those that are nested in it run on top of it in the same worker, which
    hands back what else it was sent; only the topmost may go on. Where nothing would go on so, others may run there.
    No such fleet can wait for ever: of the started tasks that have not ended take the one started last. Nothing is
    on top of it, and it waits for tasks that it submitted itself, which have not started: else they would have been
    started later. So they are ready, or wait for others like them that are, and every device that could run one is
    free for it: what is on top there waits too. Where other devices are at work all the time, the tasks that wait
    for each other in a circle are looked for. What still finds no room, for want of memory or because a worker's
    stack is full, is given up after `Rules.stuck_s`, so that those that wait for it hear of it; what could run on a
    device that is being started, again perhaps, waits for that one, as tasks of the program do.
    """

    def __init__(self, core: CoreState, tasks: TaskLifecycle) -> None:
        self._lifecycle = tasks
        self._tasks = core.tasks
        self._counts = core.counts
        self._rules = core.rules
        self._timer = core.timer
        self._fleet = core.fleet
        self._rows = core.rows
        self._pool = core.pool
        self._placer = core.placer
        self._quarantine = core.quarantine
        self._stuck_s = inf
        self._look_s = 0.0

    def suspended(self, state: TaskState, device: DeviceState, event: TaskSuspended) -> list[Command]:
        """Count a running task as waiting at its device, which others may use."""
        commands: list[Command] = []
        self._fleet.suspend(device, state, event.at_s)
        state.enter(Phase.SUSPENDED)
        state.awaits = event.awaits
        if self._quarantine.suspects:
            self._quarantine.ended(state, well=False)
        state.resumes = event.awaits > 0 and event.awaits not in (state.children or ())
        self._rows.of(state).waits = True
        for other in [other for other in device.placed if other.is_deadly or not other.is_below(state)][::-1]:
            self._placer.unplace(other, event.at_s, commands)
            self._placer.ready.push(other, first=True)
        self._placer.flush(device, event.at_s, commands)
        self._placer.offer_all()
        return commands

    def resumed(self, state: TaskState, device: DeviceState, event: TaskResumed) -> list[Command]:
        """Count a task that waited as the one that runs at its device."""
        self._fleet.resume(device, state, event.at_s)
        state.enter(Phase.RUNNING)
        state.awaits, state.resumes = 0, False
        self._placer.offer(device)
        return []

    def late(self, event: TaskSuspended | TaskResumed) -> list[Command]:
        """Count news of an attempt that was given up."""
        self._counts.late += 1
        return []

    def watch(self, commands: list[Command]) -> None:
        """Schedule another check while tasks are ready; fail those that cannot start although nothing is running."""
        waits = self._placer.ready.count or self._placer.groups or self._placer.parked
        if waits and self._timer.now_s >= self._look_s:
            self._look_s = self._timer.now_s + self._rules.recheck_s
            self._free_circles()
        if waits:
            self._timer.wake(self._timer.now_s + self._rules.recheck_s, commands)
        if not waits or not self._fleet.stalled or self._placer.is_moving():
            self._stuck_s = inf
        elif self._stuck_s == inf:
            self._stuck_s = self._timer.now_s + self._rules.stuck_s
        elif self._timer.now_s >= self._stuck_s:
            self._stuck_s = inf
            self._give_up_stuck(commands)

    def _free_circles(self) -> None:
        """Allow the tasks that others wait for in a circle to run on top of any that wait.

        Notes
        -----
        A device goes on where something runs, or where all that its topmost task waits for will end: it runs, or may
        on a device that goes on. Those that are left when no further device is found wait for each other, until one
        of them is allowed to.
        """
        fleet = self._fleet
        waiting = [device for device in fleet.states if device.suspended and not device.sent]
        going = {device.index for device in fleet.states if device.phase is not DevicePhase.GONE}
        going.difference_update(device.index for device in waiting)
        awaited = {device.index: self._awaited(device.suspended[-1]) for device in waiting}
        while awaited:
            found = [at for at, states in awaited.items() if all(self._ends(state, going) for state in states)]
            going.update(found)
            for at in found:
                del awaited[at]
            if not found:
                left = [state for states in awaited.values() for state in states if not self._ends(state, going)]
                stray = next((state for state in left if state.phase is Phase.READY), None)
                if stray is None:
                    break
                stray.stray = True
                self._placer.offer_all()

    def _awaited(self, top: TaskState) -> list[TaskState]:
        """Return the first of what a task waits for, and of what that waits for in turn.

        One that waits for any of several may wait for each that it has submitted.
        """
        waiting = deque([top.awaits] if top.awaits else islice(top.children or (), WINDOW))
        found, met = list[TaskState](), set[int]()
        while waiting and len(met) < 2 * WINDOW:
            state = self._tasks.get(number := waiting.popleft())
            if state is None or number in met:
                continue
            met.add(number)
            if state.phase is Phase.SUBMITTED:
                waiting.extend((*state.task.after, *state.task.inputs))
            else:
                found.append(state)
        return found

    def _ends(self, state: TaskState, going: set[int]) -> bool:
        """Return whether a task will end: it does not wait for room, or finds it on devices that go on."""
        if state.phase is Phase.SUSPENDED:
            return state.device in going
        if state.phase is not Phase.READY or state.stray:
            return True
        wanted = state.task.request.devices
        places = (each for each in self._places(state) if each.index in going or self._fleet.admits(each, state, False))
        return len(list(islice(places, wanted))) == wanted

    def _places(self, state: TaskState) -> Iterator[DeviceState]:
        """Yield the devices that a task may run on, were they free: that of who submitted it first."""
        able = np.isfinite(self._rows.of(state).seconds)
        able[list(state.excluded)] = False
        held = self._pool.held(state.task.request.lease)
        own = () if state.above is None else (state.above.device,)
        for index in dict.fromkeys((*own, *np.flatnonzero(able).tolist())):
            device = self._fleet.states[index]
            is_own = device.suspended and state.is_below(device.suspended[-1])
            if able[index] and (not held or device.name in held or is_own):
                yield device

    def _give_up_stuck(self, commands: list[Command]) -> None:
        for state in self._stuck():
            if self._tasks.get(state.task.id) is state:
                text = "finds no room beside the tasks that wait for it on all devices that could run it"
                self._lifecycle.take_off(state, self._timer.now_s, commands)
                self._lifecycle.fail(state, Failure("nothing_fits", f"{state.task.name} {text}"), commands)

    def _stuck(self) -> list[TaskState]:
        """Return the nested tasks that find no room and that no device which starts could take.

        Notes
        -----
        Where some are nested in the topmost task of a device that could run them, it is they who keep it from going
        on, and the others have a chance once it does.
        """
        waiting = [state for state in self._tasks.values() if state.phase in (Phase.READY, Phase.PLACED)]
        stuck = [state for state in waiting if state.task.parent and not self._may_start(state)]
        return [state for state in stuck if self._is_in_its_own_way(state)] or stuck

    def _may_start(self, state: TaskState) -> bool:
        """Return whether a device that is being started, again perhaps, or that others have leased could run a task."""
        row, lease = self._rows.of(state), state.task.request.lease
        if lease and not self._pool.ended(lease) and not self._pool.held(lease):
            return True
        seconds = self._placer.view.seconds(state, row)
        for device in self._fleet.states:
            comes = device.phase in COMING and isfinite(seconds[device.index])
            if comes or (not lease and isfinite(row.seconds[device.index]) and not self._pool.admits(device.name, 0)):
                return True
        return False

    def _is_in_its_own_way(self, state: TaskState) -> bool:
        seconds = self._rows.of(state).seconds
        able = [device for device in self._fleet.states if isfinite(seconds[device.index])]
        return any(device.suspended and state.is_below(device.suspended[-1]) for device in able)
