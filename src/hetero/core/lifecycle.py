"""The lives of tasks: handed in, ready, finished, failed, tried again, stopped.

In: what happened to a task. Out: commands. Devices and data have rooms of their own.
"""

from __future__ import annotations

from hetero.core.quarantine import Suspect
from hetero.core.questions import Questions
from hetero.core.state import STARTED, DevicePhase, DeviceState, Phase, TaskState
from hetero.model.commands import (
    Cancel,
    Command,
    Commit,
    Discard,
    Fail,
    Recommit,
    Split,
    Warn,
)
from hetero.model.device import HOST_NODE
from hetero.model.events import (
    CancelRequested,
    LoneTasks,
    TaskFailed,
    TaskFinished,
    TaskSubmitted,
    TaskWithdrawn,
)
from hetero.model.tasks import Failure, Task

__all__ = ["Lives"]

_ORPHANED = Failure("cancelled", "cancelled: the task that submitted it has ended")


class Lives(Questions):
    """What becomes of tasks."""

    def _submitted(self, event: TaskSubmitted) -> list[Command]:
        task = event.task
        commands: list[Command] = []
        state = self.tasks.get(task.id)
        if state is None:
            self.counts.submitted += 1
            if task.request.lease:
                self.leased[task.request.lease] += 1
            state = self.tasks[task.id] = TaskState(task)
            if task.parent and not self._adopted(state):
                self._fail(state, _ORPHANED, commands)
                return commands
        else:
            state.task, state.row, state.waits_for, state.excluded = task, None, 0, frozenset()
        if self.fleet.own_nodes:
            self._count_at_home(state)
        if self.placer.lookahead is not None:
            self.placer.lookahead.came(state)
        if task.after or task.inputs:
            for parent in dict.fromkeys(task.after + task.inputs):
                waited = self.tasks.get(parent)
                if waited is not None and waited is not state:
                    self._wait(state, waited)
        if not state.waits_for:
            special = task.inputs or self._reduced or self.counts.again
            suspected = self.quarantine.suspects and self.quarantine.of(task)
            run = None if special or suspected else self.placer.express(state, event.at_s)
            if run is not None:
                commands.append(run)
            else:
                self._make_ready(state, commands)
        return commands

    def _adopted(self, state: TaskState) -> bool:
        """Note a nested task with its parent; False where that attempt of it is over."""
        parent = self.tasks.get(state.task.parent[0])
        if parent is None or parent.attempt != state.task.parent[1] or parent.phase not in STARTED:
            return False
        if parent.children is None:
            parent.children = {}
        parent.children[state.task.id] = state
        state.above = parent
        return True

    def _left_parent(self, task: Task) -> None:
        """Record that a nested task is over; its parent goes on if it waited for that one."""
        parent = self.tasks.get(task.parent[0])
        if parent is None or not parent.children or parent.children.pop(task.id, None) is None:
            return
        if not parent.awaits:
            parent.woken_s = self.now_s
        elif parent.phase is Phase.SUSPENDED and parent.awaits == task.id:
            parent.resumes = True
            self.placer.offer(self.fleet.states[parent.device])

    def _orphan(self, state: TaskState, commands: list[Command]) -> None:
        """Stop what an attempt that is over has submitted and not waited for, and what that has, the deepest first."""
        below = [state]
        for each in below:
            below.extend((each.children or {}).values())
            each.children = None
        for each in below[:0:-1]:
            if self.tasks.get(each.task.id) is each:
                commands.extend(self._stop(each, self.now_s, _ORPHANED))

    def lone(self, task: Task) -> tuple[str, float] | None:
        """Return where the driver may send a task by itself, and the expected seconds; None where it may not.

        Notes
        -----
        While no task is open, where a small task of a known class goes follows from what is known already. The
        driver tells of what came of it in a `LoneTasks`, which the core has to take before any other event.
        """
        if self.tasks or self._reduced or self.quarantine.suspects or task.after or task.inputs:
            return None
        return self.placer.lone(task)

    def _lone_tasks(self, event: LoneTasks) -> list[Command]:
        came = self.placer.affinities.came
        self.counts.submitted += len(event.ended)
        self.counts.committed += len(event.ended)
        for task, finished in event.ended:
            device = self.fleet.by_id[finished.device]
            came(task.id, "", device.index)
            row = self.rows.latest(task)
            if row is not None:
                row.ended_well = True
            self._took(task, device, finished.seconds)
        self._look_at_speeds()
        if event.running is not None:
            at_s, task, name = event.running
            self.counts.submitted += 1
            state = self.tasks[task.id] = TaskState(task)
            self.placer.send_lone(state, self.rows.of(state), self.fleet.by_id[name], at_s)
        return []

    def _count_at_home(self, state: TaskState) -> None:
        best_device, items = self.placer.best_device, self.replicas.items
        best_device.came(self.rows.of(state))
        for item in state.task.inputs:
            if item in items:
                best_device.reads(items[item])

    def _waits_again(self, state: TaskState) -> bool:
        """Let a task wait for those of its inputs that are computed again; True when there are any."""
        for item in dict.fromkeys(state.task.inputs):
            if item in self.tasks:
                self._wait(state, self.tasks[item])
        if state.waits_for:
            state.phase = Phase.SUBMITTED
        return state.waits_for > 0

    def _lease_left(self, task: Task) -> None:
        lease = task.request.lease
        if lease:
            self.leased[lease] -= 1
            if not self.leased[lease]:
                del self.leased[lease]

    @staticmethod
    def _wait(state: TaskState, waited: TaskState) -> None:
        state.waits_for += 1
        if waited.dependents is None:
            waited.dependents = []
        waited.dependents.append(state)

    def _make_ready(self, state: TaskState, commands: list[Command], *, first: bool = False) -> None:
        if self.counts.again and self._waits_again(state):
            if self.quarantine.suspects:
                self.quarantine.ended(state, well=False)
            return
        if self.replicas.lost and not self.replicas.lost.isdisjoint(state.task.inputs):
            text = f"an input of {state.task.name} was lost with its device and cannot be computed again"
            self._fail(state, Failure("crash", text), commands)
            return
        reason = self._stranded(state) if self._may_be_stranded(state) else ""
        if reason:
            self._fail(state, Failure("nothing_fits", reason), commands)
        elif self.quarantine.suspects and self._is_held(state):
            state.phase = Phase.HELD
        elif state.is_group:
            state.phase = Phase.READY
            (self.placer.groups.appendleft if first else self.placer.groups.append)(state)
        else:
            self.placer.ready.push(state, first=first)

    def _is_held(self, state: TaskState) -> bool:
        """Hold a task back where its class is in quarantine; a nested one of a suspect class is sent by itself."""
        suspect = self.quarantine.of(state.task)
        if suspect is not None and suspect.deaths and state.task.parent:
            state.alone = True
        return self.quarantine.holds(state)

    def _finished(self, event: TaskFinished) -> list[Command]:
        state = self.tasks.get(event.task)
        device = self.fleet.by_id[event.device]
        if state is None or state.attempt != event.attempt or event.task not in device.sent:
            commands = self._late(device, event)
            kept = state is not None and state.result is not None and state.result[1:4] == event[1:4]
            return commands if kept else [*commands, Discard(event.device, event.task, event.attempt)]
        if state.devices:
            return self._member_finished(state, device, event)
        commands = self._keep(state, event)
        self.placer.unplace(state, event.at_s, commands)
        self._learn(state, device, event)
        self._commit(state, event, commands)
        if device.placed:
            self.placer.flush(device, event.at_s, commands)
        return commands

    def _learn(self, state: TaskState, device: DeviceState, event: TaskFinished) -> None:
        self.rows.of(state).ended_well = True
        if self.quarantine.suspects:
            self.quarantine.ended(state, well=True)
        task = state.task
        if self.placer.lookahead is not None and state.sure:
            self.placer.lookahead.took(event.seconds, state.predicted_s)
        if self.fleet.own_nodes and self.rows.sized(self.rows.of(state), event.nbytes):
            self.placer.best_device.changed()
            self.placer.offer_all()
        self._took(task, device, event.seconds)
        self._look_at_speeds()

    def _took(self, task: Task, device: DeviceState, seconds: float) -> None:
        """Count a task that a device finished, and learn from its time."""
        device.finished += 1
        device.busy_s += seconds
        device.deaths = 0
        if self.cost.observe(task.signature, task.size, device.device, seconds):
            self.rows.learned(task.signature, device)
            self.placer.offer_all()

    def _look_at_speeds(self) -> None:
        if self.cost.epoch != self._epoch:
            self._epoch = self.cost.epoch
            self.rows.refresh()

    def _keep(self, state: TaskState, event: TaskFinished) -> list[Command]:
        """Record the data item that a result is; one computed again may come to the host in a message."""
        if not event.nbytes:
            known = self.replicas.items.get(event.task) if state.recomputed else None
            return self.replicas.add(known.id, known.nbytes, HOST_NODE, state) if known is not None else []
        readers = sum(event.task in dependent.task.inputs for dependent in state.dependents or ())
        self.placer.best_device.kept(event.task, self.fleet.by_id[event.device].index, event.nbytes, readers)
        return self.replicas.add(event.task, event.nbytes, event.node, state)

    def _commit(self, state: TaskState, event: TaskFinished, commands: list[Command]) -> None:
        task = state.task
        if state.children:
            self._orphan(state, commands)
        state.phase = Phase.FINISHED
        del self.tasks[task.id]
        if task.parent:
            self._left_parent(task)
        if self.placer.lookahead is not None:
            self.placer.lookahead.over(state, self.fleet.by_id[event.device].index, event.nbytes)
        if state.recomputed:
            commands.append(Recommit(task.id, event.attempt, event.device))
            commands.extend(self.replicas.unclaim(task.inputs))
            self.counts.again -= 1
        else:
            self.counts.committed += 1
            self._lease_left(task)
            commands.append(Commit(task.id, event.attempt, event.device))
        if state.released:
            commands.extend(self.replicas.release(task.id))
        if task.inputs:
            self.placer.best_device.read(task.inputs)
        state.result = None
        dependents, state.dependents = state.dependents, None
        for dependent in dependents or ():
            dependent.waits_for -= 1
            if not dependent.waits_for and dependent.phase is Phase.SUBMITTED:
                self._make_ready(dependent, commands)

    def _member_finished(self, state: TaskState, device: DeviceState, event: TaskFinished) -> list[Command]:
        commands: list[Command] = []
        rank = state.devices.index(device.index)
        state.group_left -= 1
        device.busy_s += event.seconds if rank else 0.0
        self.fleet.drop(device, state, event.at_s)
        if rank == 0:
            state.result = event
        elif event.nbytes:
            commands.append(Discard(event.device, event.task, event.attempt))
        if state.group_left:
            return commands
        first, result = self.fleet.states[state.devices[0]], state.result
        assert result is not None
        commands.extend(self._keep(state, result))
        self.placer.unplace(state, event.at_s, commands)
        self._learn(state, first, result)
        self._commit(state, result, commands)
        return commands

    def _failed(self, event: TaskFailed) -> list[Command]:
        state = self.tasks.get(event.task)
        device = self.fleet.by_id[event.device]
        if state is None or state.attempt != event.attempt or event.task not in device.sent:
            return self._late(device, event)
        commands: list[Command] = []
        self._cancel_others(state, device, commands)
        self.placer.unplace(state, event.at_s, commands)
        self._after_failure(state, device, event.failure, commands)
        self.placer.flush(device, event.at_s, commands)
        return commands

    def _late(self, device: DeviceState, event: TaskFinished | TaskFailed | TaskWithdrawn) -> list[Command]:
        """Count news of an attempt that was given up; if it was being stopped, its device is free now."""
        self.counts.late += 1
        commands: list[Command] = []
        if device.stopping.get(event.task) == event.attempt:
            del device.stopping[event.task]
            self.placer.flush(device, event.at_s, commands)
        return commands

    def _cancel_others(self, state: TaskState, failed: DeviceState, commands: list[Command]) -> None:
        """Stop the other members of a group, and drop the result that one of them may have given."""
        for index in state.devices:
            member = self.fleet.states[index]
            if member is not failed and state.task.id in member.sent:
                commands.append(Cancel(member.name, state.task.id, state.attempt))
                member.stopping[state.task.id] = state.attempt
        if state.result is not None:
            commands.append(Discard(state.result.device, state.task.id, state.attempt))
            state.result = None

    def _after_failure(self, state: TaskState, device: DeviceState, failure: Failure, commands: list[Command]) -> None:
        request = state.task.request
        if self.quarantine.suspects and failure.kind == "exception":
            self.quarantine.ended(state, well=True)
        if failure.kind == "exception" and state.retries < request.retries:
            state.retries += 1
            self._again(state, commands)
        elif failure.kind == "missing_package":
            self.rows.leave_out(state.task.signature, device.device, failure.message)
            there = f" of {device.device.python}" if device.device.python else ""
            commands.append(
                Warn(f"{state.task.name} is not run on {device.device.label} devices{there}: {failure.message}")
            )
            self._elsewhere(state, failure, commands)
            self._refuse_stranded(commands)
        elif failure.kind == "out_of_memory":
            self._out_of_memory(state, device, failure, commands)
        else:
            self._fail(state, failure, commands)

    def _again(self, state: TaskState, commands: list[Command]) -> None:
        self.counts.retried += 1
        if state.children:
            self._orphan(state, commands)
        self._make_ready(state, commands, first=True)

    def _elsewhere(self, state: TaskState, failure: Failure, commands: list[Command]) -> None:
        """Try on another device; where none is left, the failure is the task's."""
        obstacles = self.obstacles(state.task.signature, state.task.request)
        able = [i for i, (_, reason) in enumerate(obstacles) if not reason and i not in state.excluded]
        if len(able) >= state.task.request.devices:
            self._again(state, commands)
        elif failure.kind == "out_of_memory" and state.task.request.splittable:
            state.phase, state.waits_for = Phase.SUBMITTED, 1
            if self.quarantine.suspects:
                self.quarantine.ended(state, well=False)
            commands.append(Split(state.task.id))
        else:
            self._fail(state, failure, commands)

    def _out_of_memory(self, state: TaskState, device: DeviceState, failure: Failure, commands: list[Command]) -> None:
        """Try there once more when nothing else lies there; then elsewhere, then smaller."""
        node = device.device.memory_node
        if not state.out_of_memory and self.replicas.holds_more(node, state.task.inputs):
            state.out_of_memory += 1
            commands.extend(self.replicas.evict(node))
            self._again(state, commands)
            return
        state.excluded |= {device.index}
        self._elsewhere(state, failure, commands)

    def _fail(self, state: TaskState, failure: Failure, commands: list[Command]) -> None:
        """Fail a task that is in no queue, and every task that waits for its result."""
        doomed = [state]
        while doomed:
            state = doomed.pop()
            if self.tasks.pop(state.task.id, None) is None:
                continue
            state.phase = Phase.FAILED
            if state.task.parent:
                self._left_parent(state.task)
            if state.children:
                self._orphan(state, commands)
            if self.quarantine.suspects:
                self.quarantine.ended(state, well=False)
            if self.placer.lookahead is not None:
                self.placer.lookahead.over(state, -1, 0)
            self.placer.best_device.read(state.task.inputs)
            self.counts.failed += not state.recomputed
            if not state.recomputed:
                self._lease_left(state.task)
            commands.append(Fail(state.task.id, failure))
            if state.recomputed:
                self.counts.again -= 1
                commands.extend(self.replicas.unclaim(state.task.inputs))
                commands.extend(self.replicas.give_up(state.task.id))
            doomed.extend(state.dependents or ())
            state.dependents = None

    def _withdrawn(self, event: TaskWithdrawn) -> list[Command]:
        state = self.tasks.get(event.task)
        device = self.fleet.by_id[event.device]
        if state is None or state.attempt != event.attempt or event.task not in device.sent:
            return self._late(device, event)
        commands: list[Command] = []
        self.placer.unplace(state, event.at_s, commands)
        self._make_ready(state, commands, first=True)
        self.placer.flush(device, event.at_s, commands)
        return commands

    def _cancel_requested(self, event: CancelRequested) -> list[Command]:
        state = self.tasks.get(event.task)
        if state is None or (event.waiting_only and state.phase in STARTED):
            return []
        return self._stop(state, event.at_s, Failure("cancelled", f"{state.task.name} was cancelled"))

    def _stop(self, state: TaskState, now_s: float, failure: Failure) -> list[Command]:
        """Fail a task wherever it stands, and stop its attempt."""
        commands: list[Command] = []
        if state.phase in STARTED:
            devices = [self.fleet.states[index] for index in state.devices or (state.device,)]
            up = [device for device in devices if device.phase is DevicePhase.READY]
            commands.extend(Cancel(device.name, state.task.id, state.attempt) for device in up)
            self._keep_busy(state, now_s, commands)
        else:
            self._take_off(state, now_s, commands)
        self._fail(state, failure, commands)
        return commands

    def _unqueue(self, state: TaskState, commands: list[Command]) -> None:
        if state.is_group:
            self.placer.groups.remove(state)
            self.placer.let_go(state)
            commands.extend(self.replicas.unplace(state))
        else:
            self.placer.ready.remove(state, Phase.SUBMITTED)

    def _keep_busy(self, state: TaskState, now_s: float, commands: list[Command]) -> None:
        """Count a stopped attempt's device as busy until the engine has answered for it."""
        for index in state.devices or (state.device,):
            device = self.fleet.states[index]
            if state.task.id in device.sent and device.phase is DevicePhase.READY:
                device.stopping[state.task.id] = state.attempt
        self.placer.unplace(state, now_s, commands)

    def _take_off(self, state: TaskState, now_s: float, commands: list[Command]) -> None:
        """Take a task that does not run yet out of whatever queue it is in."""
        if state.phase is Phase.PLACED:
            self.placer.unplace(state, now_s, commands)
        elif state.phase is Phase.READY:
            self._unqueue(state, commands)
        elif state.phase is Phase.HELD:
            self.quarantine.let_go(state)

    def _try_suspects(self, commands: list[Command]) -> None:
        """Hold back, let go or give up tasks of the classes that killed workers."""
        due = self.quarantine.due
        while due:
            suspect = due.pop()
            if suspect.narrow:
                self._hold_back(suspect, commands)
            for state in suspect.give_up():
                self._fail(state, Failure("crash", suspect.why(state)), commands)
            devices = sum(device.phase is not DevicePhase.GONE for device in self.fleet.states)
            for state in suspect.take(devices):
                self._make_ready(state, commands)

    def _hold_back(self, suspect: Suspect, commands: list[Command]) -> None:
        """Hold the tasks of a class back that are ready, since a worker died of one of them."""
        of, recall = self.quarantine.of, suspect.recall
        suspect.recall = ""
        if recall == "ready":
            for state in [state for state in self.tasks.values() if state.phase is Phase.READY]:
                if of(state.task) is suspect:
                    self._unqueue(state, commands)
                    self._make_ready(state, commands)
        elif recall == "out":
            for state in [self.tasks[task] for task in reversed(suspect.out)]:
                if state.phase is Phase.READY:
                    self._unqueue(state, commands)
                    state.phase = Phase.HELD
                    suspect.put_back(state)
        if suspect.quarantined and not suspect.told and (suspect.held or suspect.retries):
            suspect.told = True
            text = f"{suspect.name} ended {suspect.deaths} workers, the last one {suspect.reason}"
            commands.append(Warn(f"{text}: its tasks are tried one at a time until one ends well"))

    def _refuse_stranded(self, commands: list[Command]) -> None:
        """Fail the ready tasks that no device can run any more; later ones fail when they become ready."""
        self._reduced = True
        self._able.clear()
        for state in [s for s in self.tasks.values() if s.phase is Phase.READY]:
            reason = self._stranded(state) if self._may_be_stranded(state) else ""
            if reason and state.phase is Phase.READY:
                self._unqueue(state, commands)
                self._fail(state, Failure("nothing_fits", reason), commands)

    def _refuse_ruled_out(self, commands: list[Command]) -> None:
        """Fail the ready tasks that wait for a place which their affinities leave nowhere."""
        for state in self.placer.picky():
            reason = self._stranded(state)
            if reason:
                self._unqueue(state, commands)
                self._fail(state, Failure("nothing_fits", reason), commands)
