"""The lifecycle of tasks: handed in, ready, finished, failed, tried again, stopped.

In: what happened to a task. Out: commands. Devices, data, leases and nesting have parts of their own, which call this
one; it knows none of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from hetero.core.eligibility import Eligibility
from hetero.core.estimates import EstimateRows
from hetero.core.fleet import Fleet
from hetero.core.leases import LeasePool
from hetero.core.placement import Placer
from hetero.core.quarantine import Quarantine, Suspect
from hetero.core.replicas import Replicas
from hetero.core.state import STARTED, CoreTimer, Counts, DevicePhase, DeviceState, Phase, Rules, TaskState
from hetero.model.commands import Cancel, Command, Commit, Discard, Fail, Recommit, Split, Warn
from hetero.model.device import HOST_NODE
from hetero.model.events import CancelRequested, LoneTasks, TaskFailed, TaskFinished, TaskSubmitted, TaskWithdrawn
from hetero.model.tasks import Failure, Task
from hetero.plan.performance.cost_model import CostModel

__all__ = ["CoreState", "TaskLifecycle"]

_ORPHANED = Failure("cancelled", "cancelled: the task that submitted it has ended")


@dataclass(slots=True)
class CoreState:
    """What the core remembers, each kind in an object that alone changes it; the parts of the core share them.

    Attributes
    ----------
    rules
        The bounds on waiting.
    cost
        Learns and estimates run times.
    fleet, rows, replicas, pool
        Devices, estimates, data items, leases.
    placer
        Ready and placed tasks, and the policy.
    eligibility
        Which device may run what.
    quarantine
        Classes of tasks that workers died of.
    tasks
        Open tasks by id.
    leased
        Open tasks by the number of their lease.
    """

    rules: Rules
    cost: CostModel
    fleet: Fleet
    rows: EstimateRows
    replicas: Replicas
    pool: LeasePool
    placer: Placer
    eligibility: Eligibility
    quarantine: Quarantine = field(default_factory=Quarantine)
    timer: CoreTimer = field(default_factory=CoreTimer)
    counts: Counts = field(default_factory=Counts)
    tasks: dict[int, TaskState] = field(default_factory=dict)
    leased: Counter[int] = field(default_factory=Counter)


class TaskLifecycle:
    """What becomes of tasks.

    Attributes
    ----------
    reduced
        True once a device or a package is gone for good, so that ready tasks have to be looked at anew.
    """

    def __init__(self, core: CoreState) -> None:
        self._tasks = core.tasks
        self._counts = core.counts
        self._leased = core.leased
        self._timer = core.timer
        self._cost = core.cost
        self._fleet = core.fleet
        self._rows = core.rows
        self._replicas = core.replicas
        self._placer = core.placer
        self._quarantine = core.quarantine
        self._eligibility = core.eligibility
        self._epoch = 0
        self._killers: dict[tuple[int, ...], tuple[str, int, Failure | None]] = {}
        self.reduced = False

    def submitted(self, event: TaskSubmitted) -> list[Command]:
        """Open a task that is handed in."""
        task = event.task
        commands: list[Command] = []
        self._counts.submitted += 1
        if task.request.lease:
            self._leased[task.request.lease] += 1
        state = self._tasks[task.id] = TaskState(task)
        if task.parent and not self._adopt(state):
            self.fail(state, _ORPHANED, commands)
            return commands
        if self._killers and task.parent and self._is_known_killer(state, commands):
            return commands
        self._admit(state, commands)
        return commands

    def resubmitted(self, state: TaskState, event: TaskSubmitted) -> list[Command]:
        """Take a task that was cut into parts: it waits for them now."""
        commands: list[Command] = []
        state.task, state.row, state.waits_for, state.excluded = event.task, None, 0, frozenset()
        self._admit(state, commands)
        return commands

    def _admit(self, state: TaskState, commands: list[Command]) -> None:
        """Hold a task for those before it, or send it, or make it ready."""
        task = state.task
        if self._fleet.own_nodes:
            self._count_inputs(state)
        if self._placer.lookahead is not None:
            self._placer.lookahead.came(state)
        if task.after or task.inputs:
            for parent in dict.fromkeys(task.after + task.inputs):
                waited = self._tasks.get(parent)
                if waited is not None and waited is not state:
                    self._wait(state, waited)
        if not state.waits_for:
            special = task.inputs or self.reduced or self._counts.again
            suspected = self._quarantine.suspects and self._quarantine.of(task)
            run = None if special or suspected else self._placer.express(state, self._timer.now_s)
            if run is not None:
                commands.append(run)
            else:
                self.make_ready(state, commands)

    def _adopt(self, state: TaskState) -> bool:
        """Note a nested task with its parent; False where that attempt of it is over."""
        parent = self._tasks.get(state.task.parent[0])
        if parent is None or parent.attempt != state.task.parent[1] or parent.phase not in STARTED:
            return False
        if parent.children is None:
            parent.children = {}
        parent.children[state.task.id] = state
        parent.born += 1
        state.above, state.place = parent, parent.born
        return True

    def _lineage(self, state: TaskState) -> tuple[int, ...]:
        """Return what names a nested task over all attempts of those above it: the outermost, and places below it."""
        places: list[int] = []
        top = state
        while top.above is not None:
            places.append(top.place)
            top = top.above
        return top.task.id, *places[::-1]

    def remember_killer(self, state: TaskState, failure: Failure | None) -> None:
        """Remember that a nested task ended its worker, and why it was given up, for it is submitted again."""
        if state.task.parent:
            self._killers[self._lineage(state)] = (state.task.signature, state.crashes, failure)

    def _is_known_killer(self, state: TaskState, commands: list[Command]) -> bool:
        """Take over what is known of a nested task that is submitted again; True where it was given up before."""
        signature, crashes, failure = self._killers.get(self._lineage(state), ("", 0, None))
        if signature != state.task.signature:
            return False
        state.crashes = crashes
        if failure is not None:
            self.fail(state, failure, commands)
        return failure is not None

    def _forget_killers(self, task: Task) -> None:
        if not task.parent:
            for lineage in [lineage for lineage in self._killers if lineage[0] == task.id]:
                del self._killers[lineage]

    def _left_parent(self, task: Task) -> None:
        """Record that a nested task is over; its parent goes on if it waited for that one."""
        parent = self._tasks.get(task.parent[0])
        if parent is None or not parent.children or parent.children.pop(task.id, None) is None:
            return
        if not parent.awaits:
            parent.woken_s = self._timer.now_s
        elif parent.phase is Phase.SUSPENDED and parent.awaits == task.id:
            parent.resumes = True
            self._placer.offer(self._fleet.states[parent.device])

    def _orphan(self, state: TaskState, commands: list[Command]) -> None:
        """Stop what an attempt that is over has submitted and not waited for, and what that has, the deepest first."""
        below = [state]
        for each in below:
            below.extend((each.children or {}).values())
            each.children = None
        for each in below[:0:-1]:
            if self._tasks.get(each.task.id) is each:
                commands.extend(self.stop(each, self._timer.now_s, _ORPHANED))

    def lone(self, task: Task) -> tuple[str, float] | None:
        """Return where the driver may send a task by itself, and the expected seconds; None where it may not.

        Notes
        -----
        While no task is open, where a small task of a known class goes follows from what is known already. The
        driver tells of what came of it in a `LoneTasks`, which the core has to take before any other event.
        """
        if self._tasks or self.reduced or self._quarantine.suspects or task.after or task.inputs:
            return None
        return self._placer.lone(task)

    def lone_tasks(self, event: LoneTasks) -> list[Command]:
        """Record tasks that the driver sent by itself; see `lone`."""
        came = self._placer.affinities.came
        self._counts.submitted += len(event.ended)
        self._counts.committed += len(event.ended)
        for task, finished in event.ended:
            device = self._fleet.by_id[finished.device]
            came(task.id, "", device.index)
            row = self._rows.latest(task)
            if row is not None:
                row.ended_well = True
            self._took(task, device, finished.seconds)
        self._look_at_speeds()
        if event.running is not None:
            at_s, task, name = event.running
            self._counts.submitted += 1
            state = self._tasks[task.id] = TaskState(task)
            self._placer.send_lone(state, self._rows.of(state), self._fleet.by_id[name], at_s)
        return []

    def _count_inputs(self, state: TaskState) -> None:
        best_device, items = self._placer.best_device, self._replicas.items
        best_device.came(self._rows.of(state))
        for item in state.task.inputs:
            if item in items:
                best_device.reads(items[item])

    def _wait_for_lost_inputs(self, state: TaskState) -> bool:
        """Hold a task for those of its inputs that are computed again; True when there are any."""
        for item in dict.fromkeys(state.task.inputs):
            if item in self._tasks:
                self._wait(state, self._tasks[item])
        if state.waits_for:
            state.enter(Phase.SUBMITTED)
        return state.waits_for > 0

    def _lease_left(self, task: Task) -> None:
        lease = task.request.lease
        if lease:
            self._leased[lease] -= 1
            if not self._leased[lease]:
                del self._leased[lease]

    @staticmethod
    def _wait(state: TaskState, waited: TaskState) -> None:
        state.waits_for += 1
        if waited.dependents is None:
            waited.dependents = []
        waited.dependents.append(state)

    def make_ready(self, state: TaskState, commands: list[Command], *, first: bool = False) -> None:
        """Queue a task for placement; one that nothing can run fails, one of a suspect class is held back."""
        if self._counts.again and self._wait_for_lost_inputs(state):
            if self._quarantine.suspects:
                self._quarantine.ended(state, well=False)
            return
        if self._replicas.lost and not self._replicas.lost.isdisjoint(state.task.inputs):
            text = f"an input of {state.task.name} was lost with its device and cannot be computed again"
            self.fail(state, Failure("crash", text), commands)
            return
        reason = self.why_stranded(state) if self._eligibility.may_be_stranded(state) else ""
        if reason:
            self.fail(state, Failure("nothing_fits", reason), commands)
        elif self._quarantine.suspects and self._hold_if_suspect(state):
            state.enter(Phase.HELD)
        elif state.is_group:
            state.enter(Phase.READY)
            (self._placer.groups.appendleft if first else self._placer.groups.append)(state)
        else:
            self._placer.ready.push(state, first=first)

    def why_stranded(self, state: TaskState) -> str:
        """Exclude the devices whose memory cannot hold a task; return why none is left, '' where one is."""
        if too_small := self._eligibility.too_small(state):
            state.excluded |= frozenset(too_small)
        return self._eligibility.stranded(state)

    def _hold_if_suspect(self, state: TaskState) -> bool:
        """Hold a task back where its class is in quarantine; a nested one of a suspect class is sent by itself."""
        suspect = self._quarantine.of(state.task)
        if suspect is not None and suspect.deaths and state.task.parent:
            state.alone = True
        return self._quarantine.hold_back(state)

    def finished(self, state: TaskState, device: DeviceState, event: TaskFinished) -> list[Command]:
        """Commit the result of an attempt; of a group, once its last member is done."""
        if state.devices:
            return self._member_finished(state, device, event)
        commands = self._keep(state, event)
        self._placer.unplace(state, event.at_s, commands)
        self._learn(state, device, event)
        self._commit(state, event, commands)
        if device.placed:
            self._placer.flush(device, event.at_s, commands)
        return commands

    def finished_late(self, event: TaskFinished) -> list[Command]:
        """Drop the result of an attempt that was given up, unless it is the one that is kept of a group's member."""
        state = self._tasks.get(event.task)
        commands = self.late(event)
        kept = state is not None and state.result is not None and state.result[1:4] == event[1:4]
        return commands if kept else [*commands, Discard(event.device, event.task, event.attempt)]

    def _learn(self, state: TaskState, device: DeviceState, event: TaskFinished) -> None:
        self._rows.of(state).ended_well = True
        if self._quarantine.suspects:
            self._quarantine.ended(state, well=True)
        task = state.task
        if self._placer.lookahead is not None and state.sure:
            self._placer.lookahead.took(event.seconds, state.predicted_s)
        if self._fleet.own_nodes and self._rows.sized(self._rows.of(state), event.nbytes):
            self._placer.best_device.changed()
            self._placer.offer_all()
        self._took(task, device, event.seconds)
        self._look_at_speeds()

    def _took(self, task: Task, device: DeviceState, seconds: float) -> None:
        """Count a task that a device finished, and learn from its time."""
        device.finished += 1
        device.busy_s += seconds
        device.deaths = 0
        if self._cost.observe(task.signature, task.size, device.device, seconds):
            self._rows.learned(task.signature, device)
            self._placer.offer_all()

    def _look_at_speeds(self) -> None:
        if self._cost.epoch != self._epoch:
            self._epoch = self._cost.epoch
            self._rows.refresh()

    def _keep(self, state: TaskState, event: TaskFinished) -> list[Command]:
        """Record the data item that a result is; one computed again may come to the host in a message."""
        if not event.nbytes:
            known = self._replicas.items.get(event.task) if state.recomputed else None
            return self._replicas.add(known.id, known.nbytes, HOST_NODE, state) if known is not None else []
        readers = sum(event.task in dependent.task.inputs for dependent in state.dependents or ())
        self._placer.best_device.kept(event.task, self._fleet.by_id[event.device].index, event.nbytes, readers)
        return self._replicas.add(event.task, event.nbytes, event.node, state)

    def _commit(self, state: TaskState, event: TaskFinished, commands: list[Command]) -> None:
        task = state.task
        if state.children:
            self._orphan(state, commands)
        state.enter(Phase.FINISHED)
        del self._tasks[task.id]
        if task.parent:
            self._left_parent(task)
        if self._killers:
            self._forget_killers(task)
        if self._placer.lookahead is not None:
            self._placer.lookahead.over(state, self._fleet.by_id[event.device].index, event.nbytes)
        if state.recomputed:
            commands.append(Recommit(task.id, event.attempt, event.device))
            commands.extend(self._replicas.unclaim(task.inputs))
            self._counts.again -= 1
        else:
            self._counts.committed += 1
            self._lease_left(task)
            commands.append(Commit(task.id, event.attempt, event.device))
        if state.released:
            commands.extend(self._replicas.release(task.id))
        if task.inputs:
            self._placer.best_device.read(task.inputs)
        state.result = None
        dependents, state.dependents = state.dependents, None
        for dependent in dependents or ():
            dependent.waits_for -= 1
            if not dependent.waits_for and dependent.phase is Phase.SUBMITTED:
                self.make_ready(dependent, commands)

    def _member_finished(self, state: TaskState, device: DeviceState, event: TaskFinished) -> list[Command]:
        commands: list[Command] = []
        rank = state.devices.index(device.index)
        state.group_left -= 1
        device.busy_s += event.seconds if rank else 0.0
        self._fleet.drop(device, state, event.at_s)
        if rank == 0:
            state.result = event
        elif event.nbytes:
            commands.append(Discard(event.device, event.task, event.attempt))
        if state.group_left:
            return commands
        first, result = self._fleet.states[state.devices[0]], state.result
        assert result is not None
        commands.extend(self._keep(state, result))
        self._placer.unplace(state, event.at_s, commands)
        self._learn(state, first, result)
        self._commit(state, result, commands)
        return commands

    def failed(self, state: TaskState, device: DeviceState, event: TaskFailed) -> list[Command]:
        """Try an attempt that failed again, there or elsewhere, or fail its task."""
        commands: list[Command] = []
        self.cancel_members(state, device, commands)
        self._placer.unplace(state, event.at_s, commands)
        self._after_failure(state, device, event.failure, commands)
        self._placer.flush(device, event.at_s, commands)
        return commands

    def late(self, event: TaskFinished | TaskFailed | TaskWithdrawn) -> list[Command]:
        """Count news of an attempt that was given up; if it was being stopped, its device is free now."""
        self._counts.late += 1
        commands: list[Command] = []
        device = self._fleet.by_id[event.device]
        if device.stopping.get(event.task) == event.attempt:
            del device.stopping[event.task]
            self._placer.flush(device, event.at_s, commands)
        return commands

    def cancel_members(self, state: TaskState, failed: DeviceState, commands: list[Command]) -> None:
        """Stop the other members of a group, and drop the result that one of them may have given."""
        for index in state.devices:
            member = self._fleet.states[index]
            if member is not failed and state.task.id in member.sent:
                commands.append(Cancel(member.name, state.task.id, state.attempt))
                member.stopping[state.task.id] = state.attempt
        if state.result is not None:
            commands.append(Discard(state.result.device, state.task.id, state.attempt))
            state.result = None

    def _after_failure(self, state: TaskState, device: DeviceState, failure: Failure, commands: list[Command]) -> None:
        request = state.task.request
        if self._quarantine.suspects and failure.kind == "exception":
            self._quarantine.ended(state, well=True)
        if failure.kind == "exception" and state.retries < request.retries:
            state.retries += 1
            self.retry(state, commands)
        elif failure.kind == "missing_package":
            self._rows.leave_out(state.task.signature, device.device, failure.message)
            there = f" of {device.device.python}" if device.device.python else ""
            commands.append(
                Warn(f"{state.task.name} is not run on {device.device.label} devices{there}: {failure.message}")
            )
            self._elsewhere(state, failure, commands)
            self.refuse_stranded(commands)
        elif failure.kind == "out_of_memory":
            self._out_of_memory(state, device, failure, commands)
        else:
            self.fail(state, failure, commands)

    def retry(self, state: TaskState, commands: list[Command]) -> None:
        """Queue a task again whose attempt has failed."""
        self._counts.retried += 1
        state.born = 0
        if state.children:
            self._orphan(state, commands)
        self.make_ready(state, commands, first=True)

    def _elsewhere(self, state: TaskState, failure: Failure, commands: list[Command]) -> None:
        """Try on another device; where none is left, the failure is the task's."""
        obstacles = self._eligibility.obstacles(state.task.signature, state.task.request)
        able = [i for i, (_, reason) in enumerate(obstacles) if not reason and i not in state.excluded]
        if len(able) >= state.task.request.devices:
            self.retry(state, commands)
        elif failure.kind == "out_of_memory" and state.task.request.splittable:
            state.enter(Phase.SUBMITTED)
            state.waits_for = 1
            if self._quarantine.suspects:
                self._quarantine.ended(state, well=False)
            commands.append(Split(state.task.id))
        else:
            if failure.kind == "out_of_memory":  # those that need its value fail by the same words
                text = f"{state.task.name} does not fit into the memory of any device that may run it"
                failure = replace(failure, message=f"{text}: {failure.message}")
            self.fail(state, failure, commands)

    def _out_of_memory(self, state: TaskState, device: DeviceState, failure: Failure, commands: list[Command]) -> None:
        """Try there once more when nothing else lies there; then elsewhere, then smaller."""
        node = device.device.memory_node
        if not state.out_of_memory and self._replicas.holds_more(node, state.task.inputs):
            state.out_of_memory += 1
            commands.extend(self._replicas.evict(node))
            self.retry(state, commands)
            return
        state.excluded |= {device.index}
        self._elsewhere(state, failure, commands)

    def fail(self, state: TaskState, failure: Failure, commands: list[Command]) -> None:
        """Fail a task that is in no queue, and every task that waits for its result."""
        doomed = [state]
        while doomed:
            state = doomed.pop()
            if self._tasks.pop(state.task.id, None) is None:
                continue
            state.enter(Phase.FAILED)
            if state.task.parent:
                self._left_parent(state.task)
            if self._killers:
                self._forget_killers(state.task)
            if state.children:
                self._orphan(state, commands)
            if self._quarantine.suspects:
                self._quarantine.ended(state, well=False)
            if self._placer.lookahead is not None:
                self._placer.lookahead.over(state, -1, 0)
            self._placer.best_device.read(state.task.inputs)
            self._counts.failed += not state.recomputed
            if not state.recomputed:
                self._lease_left(state.task)
            commands.append(Fail(state.task.id, failure))
            if state.recomputed:
                self._counts.again -= 1
                commands.extend(self._replicas.unclaim(state.task.inputs))
                commands.extend(self._replicas.give_up(state.task.id))
            doomed.extend(state.dependents or ())
            state.dependents = None

    def withdrawn(self, state: TaskState, device: DeviceState, event: TaskWithdrawn) -> list[Command]:
        """Queue a task again whose attempt the worker has given back."""
        commands: list[Command] = []
        self._placer.unplace(state, event.at_s, commands)
        self.make_ready(state, commands, first=True)
        self._placer.flush(device, event.at_s, commands)
        return commands

    def cancelled(self, state: TaskState, event: CancelRequested) -> list[Command]:
        """Stop a task that has not started."""
        return self.stop(state, event.at_s, Failure("cancelled", f"{state.task.name} was cancelled"))

    def cancelled_running(self, state: TaskState, event: CancelRequested) -> list[Command]:
        """Stop a task that has started, unless only a waiting one was to be stopped."""
        return [] if event.waiting_only else self.cancelled(state, event)

    def stop(self, state: TaskState, now_s: float, failure: Failure) -> list[Command]:
        """Fail a task wherever it stands, and stop its attempt."""
        commands: list[Command] = []
        if state.phase in STARTED:
            devices = [self._fleet.states[index] for index in state.devices or (state.device,)]
            up = [device for device in devices if device.phase is DevicePhase.READY]
            commands.extend(Cancel(device.name, state.task.id, state.attempt) for device in up)
            self.keep_busy(state, now_s, commands)
        else:
            self.take_off(state, now_s, commands)
        self.fail(state, failure, commands)
        return commands

    def _unqueue(self, state: TaskState, commands: list[Command]) -> None:
        if state.is_group:
            self._placer.groups.remove(state)
            self._placer.let_go(state)
            state.enter(Phase.SUBMITTED)
            commands.extend(self._replicas.unplace(state))
        else:
            self._placer.ready.remove(state, Phase.SUBMITTED)

    def keep_busy(self, state: TaskState, now_s: float, commands: list[Command]) -> None:
        """Count a stopped attempt's device as busy until the engine has answered for it."""
        for index in state.devices or (state.device,):
            device = self._fleet.states[index]
            if state.task.id in device.sent and device.phase is DevicePhase.READY:
                device.stopping[state.task.id] = state.attempt
        self._placer.unplace(state, now_s, commands)

    def ancestors(self, state: TaskState) -> Iterator[TaskState]:
        """Yield the tasks that a task is nested in, the nearest first."""
        above = state.above
        while above is not None:
            yield above
            above = above.above

    def take_off(self, state: TaskState, now_s: float, commands: list[Command]) -> None:
        """Take a task that does not run yet out of whatever queue it is in."""
        if state.phase is Phase.PLACED:
            self._placer.unplace(state, now_s, commands)
        elif state.phase is Phase.READY:
            self._unqueue(state, commands)
        elif state.phase is Phase.HELD:
            self._quarantine.let_go(state)

    def try_suspects(self, commands: list[Command]) -> None:
        """Hold back, let go or give up tasks of the classes that killed workers."""
        due = self._quarantine.due
        while due:
            suspect = due.pop()
            if suspect.narrow:
                self._hold_back(suspect, commands)
            for state in suspect.give_up():
                self.fail(state, Failure("crash", suspect.why(state)), commands)
            devices = sum(device.phase is not DevicePhase.GONE for device in self._fleet.states)
            for state in suspect.take(devices):
                self.make_ready(state, commands)

    def _hold_back(self, suspect: Suspect, commands: list[Command]) -> None:
        """Hold the tasks of a class back that are ready, since a worker died of one of them."""
        of, recall = self._quarantine.of, suspect.recall
        suspect.recall = ""
        if recall == "ready":
            for state in [state for state in self._tasks.values() if state.phase is Phase.READY]:
                if of(state.task) is suspect:
                    self._unqueue(state, commands)
                    self.make_ready(state, commands)
        elif recall == "out":
            for state in [self._tasks[task] for task in reversed(suspect.out)]:
                if state.phase is Phase.READY:
                    self._unqueue(state, commands)
                    state.enter(Phase.HELD)
                    suspect.put_back(state)
        if suspect.quarantined and not suspect.told and (suspect.held or suspect.retries):
            suspect.told = True
            text = f"{suspect.name} ended {suspect.deaths} workers, the last one {suspect.reason}"
            commands.append(Warn(f"{text}: its tasks are tried one at a time until one ends well"))

    def refuse_stranded(self, commands: list[Command]) -> None:
        """Fail the tasks in queues that no device can run any more; later ones fail when they become ready."""
        self.reduced = True
        self._eligibility.changed()
        queued = (Phase.READY, Phase.PLACED)
        for state in [s for s in self._tasks.values() if s.phase in queued]:
            reason = self.why_stranded(state) if self._eligibility.may_be_stranded(state) else ""
            if reason and state.phase in queued:
                self.take_off(state, self._timer.now_s, commands)
                self.fail(state, Failure("nothing_fits", reason), commands)

    def refuse_ruled_out(self, commands: list[Command]) -> None:
        """Fail the ready tasks that wait for a place which their affinities leave nowhere."""
        for state in self._placer.picky():
            reason = self.why_stranded(state)
            if reason:
                self._unqueue(state, commands)
                self.fail(state, Failure("nothing_fits", reason), commands)
