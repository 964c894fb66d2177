"""Tasks that wait for tasks they submitted: suspended, resumed, and what becomes of a fleet in which all wait.

In: what a worker tells of an attempt that waits. Out: commands. It must not choose devices: the placer does.
"""

from __future__ import annotations

from math import inf, isfinite

from hetero.core.lifecycle import CoreState, TaskLifecycle
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
        """Allow the tasks that others wait for in a circle to run on top of any that wait."""
        for device in self._fleet.states:
            if device.suspended and not device.sent and not self._goes_on(device.suspended[-1]):
                self._tasks[device.suspended[-1].awaits].stray = True
                self._placer.offer_all()

    def _goes_on(self, top: TaskState) -> bool:
        """Return whether a task that waits will go on although none that is not nested in it runs on top of it.

        Notes
        -----
        It will if what it waits for runs, or may: on a device where nothing waits, or something that will go on.
        """
        tops, seen = [top], {top.task.id}
        for each in tops:
            awaited = self._tasks.get(each.awaits)
            if awaited is None or awaited.stray or awaited.phase not in (Phase.READY, Phase.SUSPENDED):
                return True
            states = self._fleet.states
            if awaited.phase is Phase.SUSPENDED:
                places = [states[awaited.device]]
            else:
                seconds = self._rows.of(awaited).seconds
                places = [device for device in states if isfinite(seconds[device.index])]
            for device in places:
                if device.phase is DevicePhase.GONE:
                    continue
                if not device.suspended or (
                    awaited.phase is Phase.READY and self._fleet.admits(device, awaited, False)
                ):
                    return True
                if device.suspended[-1].task.id not in seen:
                    seen.add(device.suspended[-1].task.id)
                    tops.append(device.suspended[-1])
        return False

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
