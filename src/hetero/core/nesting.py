"""Tasks that wait for tasks they submitted: suspended, resumed, and what becomes of a fleet in which all wait.

In: what a worker tells of an attempt that waits. Out: commands. It must not choose devices: the placer does.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isfinite

from hetero.core.lifecycle import Lives
from hetero.core.state import DevicePhase, Phase, TaskState
from hetero.model.commands import Command
from hetero.model.events import TaskResumed, TaskSuspended
from hetero.model.tasks import Failure

__all__ = ["Nesting"]


class Nesting(Lives):
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
    stack is full, is given up after `Rules.stuck_s`, so that those that wait for it hear of it.
    """

    _stuck_s = inf
    _look_s = 0.0

    def _suspended(self, event: TaskSuspended) -> list[Command]:
        state = self.tasks.get(event.task)
        device = self.fleet.by_id[event.device]
        if state is None or state.attempt != event.attempt or event.task not in device.sent:
            self.counts.late += 1
            return []
        commands: list[Command] = []
        self.fleet.suspend(device, state, event.at_s)
        state.phase, state.awaits = Phase.SUSPENDED, event.awaits
        if self.quarantine.suspects:
            self.quarantine.ended(state, well=False)
        state.resumes = event.awaits > 0 and event.awaits not in (state.children or ())
        self.rows.of(state).waits = True
        for other in [other for other in device.placed if not other.is_below(state)][::-1]:
            self.placer.unplace(other, event.at_s, commands)
            self.placer.ready.push(other, first=True)
        self.placer.flush(device, event.at_s, commands)
        self.placer.offer_all()
        return commands

    def _resumed(self, event: TaskResumed) -> list[Command]:
        state = self.tasks.get(event.task)
        if state is None or state.attempt != event.attempt or state.phase is not Phase.SUSPENDED:
            self.counts.late += 1
            return []
        device = self.fleet.states[state.device]
        self.fleet.resume(device, state, event.at_s)
        state.phase, state.awaits, state.resumes = Phase.RUNNING, 0, False
        self.placer.offer(device)
        return []

    def _ancestors(self, state: TaskState) -> Iterator[TaskState]:
        """Yield the tasks that a task is nested in, the nearest first."""
        above = state.above
        while above is not None:
            yield above
            above = above.above

    def _watch_stacks(self, commands: list[Command]) -> None:
        """Look again soon while tasks are ready, and give up what finds no room although nothing runs any more."""
        waits = self.placer.ready.count or self.placer.groups or self.placer.parked
        if waits and self.now_s >= self._look_s:
            self._look_s = self.now_s + self.rules.retry_s
            self._free_circles()
        if waits:
            self._wake(self.now_s + self.rules.retry_s, commands)
        if not waits or not self.fleet.stalled or self.pool.lends or self.placer.is_moving():
            self._stuck_s = inf
        elif self._stuck_s == inf:
            self._stuck_s = self.now_s + self.rules.stuck_s
        elif self.now_s >= self._stuck_s:
            self._stuck_s = inf
            self._give_up_stuck(commands)

    def _free_circles(self) -> None:
        """Let the tasks that others wait for in a circle run on top of any that wait."""
        for device in self.fleet.states:
            if device.suspended and not device.sent and not self._goes_on(device.suspended[-1]):
                self.tasks[device.suspended[-1].awaits].stray = True
                self.placer.offer_all()

    def _goes_on(self, top: TaskState) -> bool:
        """Return whether a task that waits will go on although none that is not nested in it runs on top of it.

        Notes
        -----
        It will if what it waits for runs, or may: on a device where nothing waits, or something that will go on.
        """
        tops, seen = [top], {top.task.id}
        for each in tops:
            awaited = self.tasks.get(each.awaits)
            if awaited is None or awaited.stray or awaited.phase not in (Phase.READY, Phase.SUSPENDED):
                return True
            states = self.fleet.states
            if awaited.phase is Phase.SUSPENDED:
                places = [states[awaited.device]]
            else:
                seconds = self.rows.of(awaited).seconds
                places = [device for device in states if isfinite(seconds[device.index])]
            for device in places:
                if device.phase is DevicePhase.GONE:
                    continue
                if not device.suspended or (awaited.phase is Phase.READY and awaited.is_below(device.suspended[-1])):
                    return True
                if device.suspended[-1].task.id not in seen:
                    seen.add(device.suspended[-1].task.id)
                    tops.append(device.suspended[-1])
        return False

    def _give_up_stuck(self, commands: list[Command]) -> None:
        waiting = (Phase.READY, Phase.PLACED)
        for state in [state for state in self.tasks.values() if state.task.parent and state.phase in waiting]:
            if self.tasks.get(state.task.id) is state:
                text = "finds no room beside the tasks that wait for it on all devices that could run it"
                self._take_off(state, self.now_s, commands)
                self._fail(state, Failure("nothing_fits", f"{state.task.name} {text}"), commands)
