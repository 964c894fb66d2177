"""Tasks that wait for tasks they submitted: suspended, resumed, and what becomes of a fleet in which all wait.

In: what a worker tells of an attempt that waits. Out: commands. It must not choose devices: the placer does.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from hetero.core.lifecycle import Lives
from hetero.core.state import DevicePhase, Phase, TaskState
from hetero.model.commands import Command, Withdraw
from hetero.model.events import TaskResumed, TaskSuspended
from hetero.model.tasks import Failure

__all__ = ["Nesting"]


class Nesting(Lives):
    """What becomes of tasks that wait for others.

    Notes
    -----
    A task that waits gives its device up, and others run on top of it in the same worker; only the topmost may go on.
    No such fleet can wait for ever: of the started tasks that have not ended take the one started last. Nothing is
    on top of it, and it waits for tasks that it submitted itself, which have not started: else they would have been
    started later. So they are ready, or wait for others like them that are, and every device that could run one is
    free for it: what is on top there waits too. What still finds no room, for want of memory or because a worker's
    stack is full, is given up after `Rules.stuck_s`, so that those that wait for it hear of it.
    """

    _stuck_s = inf

    def _suspended(self, event: TaskSuspended) -> list[Command]:
        state = self.tasks.get(event.task)
        device = self.fleet.by_id[event.device]
        if state is None or state.attempt != event.attempt or event.task not in device.sent:
            self.counts.late += 1
            return []
        commands: list[Command] = []
        depth = state.task.depth
        self.fleet.suspend(device, state, event.at_s)
        state.phase, state.awaits = Phase.SUSPENDED, event.awaits
        if self.quarantine.suspects:
            self.quarantine.ended(state, well=False)
        state.resumes = event.awaits > 0 and event.awaits not in (state.children or ())
        self.rows.of(state).waits = True
        for other, _ in device.sent.values():
            if other.task.depth <= depth and not other.devices:
                commands.append(Withdraw(device.name, other.task.id, other.attempt))
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
        parent = self.tasks.get(state.task.parent[0]) if state.task.parent else None
        while parent is not None:
            above = parent.task.parent
            yield parent
            parent = self.tasks.get(above[0]) if above else None

    def _watch_stacks(self, commands: list[Command]) -> None:
        """Look again soon while tasks are ready, and give up what finds no room although nothing runs any more."""
        waits = self.placer.ready.count or self.placer.groups or self.placer.parked
        if waits:
            self._wake(self.now_s + self.rules.retry_s, commands)
        if not waits or not self.fleet.stalled or self._is_moving():
            self._stuck_s = inf
        elif self._stuck_s == inf:
            self._stuck_s = self.now_s + self.rules.stuck_s
        elif self.now_s >= self._stuck_s:
            self._stuck_s = inf
            self._give_up_stuck(commands)

    def _is_moving(self) -> bool:
        """Return whether a device is coming, a task is about to go on, bytes travel, or a lease may end."""
        coming = (DevicePhase.STARTING, DevicePhase.LOST)
        for device in self.fleet.states:
            if device.phase in coming or (device.suspended and device.suspended[-1].resumes):
                return True
        return self.pool.lends or any(entry.arriving for entry in self.replicas.items.values())

    def _give_up_stuck(self, commands: list[Command]) -> None:
        waiting = (Phase.READY, Phase.PLACED)
        for state in [state for state in self.tasks.values() if state.task.parent and state.phase in waiting]:
            if self.tasks.get(state.task.id) is state:
                text = "finds no room beside the tasks that wait for it on all devices that could run it"
                self._take_off(state, self.now_s, commands)
                self._fail(state, Failure("nothing_fits", f"{state.task.name} {text}"), commands)
