"""Faults: devices and data that are lost, workers that die or hang; what is tried again, and where.

In: what happened to a device or a data item, and the time. Out: commands. Devices, data and hangs do not know each
other; all three call the lifecycle of tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop
from math import inf, isfinite

from hetero.core.lifecycle import CoreState, TaskLifecycle
from hetero.core.quarantine import times
from hetero.core.replicas import Item
from hetero.core.state import STARTED, DevicePhase, DeviceState, Phase, TaskState
from hetero.model.commands import Cancel, Command, StartWorker, Warn, Withdraw
from hetero.model.device import HOST_NODE
from hetero.model.events import (
    DeviceAdded,
    DeviceLost,
    DeviceReady,
    ItemPut,
    ItemReleased,
    TransferFailed,
    TransferFinished,
    UtilisationReported,
)
from hetero.model.tasks import JUDGED_BY_CALLER, Failure

__all__ = ["DataFaults", "DeviceFaults", "HangDetector"]

LOST = 50
"""A result that was lost this often with its device is not computed once more."""

ENDANGERED = 100
"""Workers that may die under a task of what it submitted before it is given up itself."""

UNEXPLAINED = 4
"""Workers that may die between tasks, each with the same task at the head of what was sent, before it is to blame."""


class DeviceFaults:
    """What becomes of devices: added, ready, lost, started again.

    Parameters
    ----------
    lose_node
        What is to be done when the content of a memory node is gone: node, time, commands.

    Attributes
    ----------
    restarts
        Seconds at which the worker of a device, by index, is to be started again.
    """

    def __init__(
        self, core: CoreState, tasks: TaskLifecycle, lose_node: Callable[[str, float, list[Command]], None]
    ) -> None:
        self._lifecycle = tasks
        self._lose_node = lose_node
        self._rules = core.rules
        self._fleet = core.fleet
        self._rows = core.rows
        self._replicas = core.replicas
        self._pool = core.pool
        self._placer = core.placer
        self._quarantine = core.quarantine
        self._eligibility = core.eligibility
        self.restarts: dict[int, float] = {}

    def added(self, event: DeviceAdded) -> list[Command]:
        """Take a device into the fleet, or back into it."""
        known = self._fleet.by_id.get(event.device.id)
        if known is None or known.phase is DevicePhase.GONE:
            if known is not None:
                self.restarts.pop(known.index, None)
            self._fleet.add(event.device, event.at_s)
            self._pool.add(event.device, event.at_s)
            self._replicas.costs.spread(self._fleet.memory_nodes)
            self._eligibility.changed()
            self._rows.refresh()
            self._placer.best_device.changed()
        return []

    def ready(self, event: DeviceReady) -> list[Command]:
        """Offer a device whose worker takes tasks now."""
        state = self._fleet.by_id.get(event.device)
        if state is None or state.phase in (DevicePhase.READY, DevicePhase.GONE):
            return []
        self.restarts.pop(state.index, None)
        state.up_s, state.told = event.at_s, ""
        self._fleet.set_phase(state, DevicePhase.READY, event.at_s)
        self._placer.fleet_changed()
        self._placer.offer_all()
        return []

    def lost(self, event: DeviceLost) -> list[Command]:
        """Try the tasks of a lost device again, and start its worker again unless it is gone for good."""
        device = self._fleet.by_id.get(event.device)
        if device is None or device.phase is DevicePhase.GONE:
            return []
        commands: list[Command] = []
        culprit = self._culprit(device, event)
        wait_s = self._restart_wait_s(device, event, culprit)
        device.stopping.clear()
        self._tell_no_start(device, event, commands)
        self._fleet.set_phase(device, DevicePhase.GONE if event.permanent else DevicePhase.LOST, event.at_s)
        self._placer.fleet_changed()
        victims = [*(state for state, _ in device.sent.values()), *device.suspended[::-1]]
        if culprit is not None and device.suspended:
            victims.remove(culprit)
            above = [state for state in self._lifecycle.ancestors(culprit) if state in device.suspended]
            self._lose_attempt(culprit, device, event, commands, blamed=True)
            self._fail_endangered(above, device, event, commands)
        for state in victims:
            if state.phase in STARTED:  # else it was nested in one that is given up
                self._lose_attempt(state, device, event, commands, blamed=state is culprit)
        for state in list(device.placed)[::-1]:
            self._placer.unplace(state, event.at_s, commands)
            self._lifecycle.make_ready(state, commands, first=True)
        for group in list(self._placer.groups):
            if device.index in group.devices:
                self._placer.let_go(group)
                commands.extend(self._replicas.unplace(group))
        if device.device.memory_node != HOST_NODE:
            self._lose_node(device.device.memory_node, event.at_s, commands)
        self._placer.offer(device)
        self.restarts.pop(device.index, None)
        if event.permanent:
            device.lost = f"it was lost: {event.reason}"
            self._device_gone(device, event, commands)
        elif wait_s:
            self.restarts[device.index] = event.at_s + wait_s
        else:
            commands.append(StartWorker(device.name))
        return commands

    def used(self, event: UtilisationReported) -> list[Command]:
        """Record how much of a device others use."""
        state = self._fleet.by_id.get(event.device)
        if state is not None:
            self._fleet.busy_frac[state.index] = event.busy_frac
            self._placer.offer_all()
            self._placer.look_again = True
        return []

    def _restart_wait_s(self, device: DeviceState, event: DeviceLost, culprit: TaskState | None) -> float:
        """Count a death, and return how long to wait before the worker is started again.

        Notes
        -----
        wait = 0 for the first `restarts` deaths in a row, else restart * 2^(n - 1) for the n-th beyond, at most
        restart_max. A death of a task does not count, and is not waited for: it is the task's fault, and not that of
        the device. A worker that did not start at all is waited for from the first time on.
        """
        rules, was_up = self._rules, device.phase is DevicePhase.READY
        if was_up and event.at_s - device.up_s > rules.steady_s:
            device.deaths = 0
        of_task = culprit is not None or event.task > 0 or (event.task < 0 and len(device.sent) > 0)
        if was_up and of_task:
            return 0.0
        device.deaths += not device.stopping
        beyond = device.deaths - (rules.restarts if was_up else 0)
        return min(rules.restart_s * 2.0 ** (min(beyond, 32) - 1), rules.restart_max_s) if beyond > 0 else 0.0

    @staticmethod
    def _tell_no_start(device: DeviceState, event: DeviceLost, commands: list[Command]) -> None:
        """Warn, once for each reason, that a worker did not start and is tried again."""
        if device.phase is not DevicePhase.READY and not event.permanent and device.told != event.reason:
            device.told = event.reason
            commands.append(Warn(f"{device.name} is started again and not used until then: {event.reason}"))

    def start_again(self, now_s: float, commands: list[Command]) -> None:
        """Start the workers whose wait is over."""
        for index in [index for index, at_s in self.restarts.items() if at_s <= now_s]:
            del self.restarts[index]
            commands.append(StartWorker(self._fleet.states[index].name))

    def _culprit(self, device: DeviceState, event: DeviceLost) -> TaskState | None:
        """Return the task that ran as a worker died, None where none did or it was being stopped anyway.

        Where the engine cannot tell, a task that was sent by itself is the culprit. Those that were sent together
        travel in messages of their own from then on, with an expected time of 0, so that no engine joins them. Where
        none ran, this begins once it happened to the same tasks more than `UNEXPLAINED` times: a task whose worker
        dies before it can answer would otherwise be sent for ever.
        """
        if not device.sent:
            return None
        if event.task > 0:
            return device.sent[event.task][0] if event.task in device.sent else None
        first = next(iter(device.sent.values()))[1]
        together = [state for state, batch in device.sent.values() if batch is first]
        if event.task == 0:
            if device.stopping:
                return None
            for state in together:
                state.unexplained += 1
            if together[0].unexplained <= UNEXPLAINED:
                return None
        if len(together) == 1:
            return None if device.stopping else together[0]
        for state in together:
            state.alone = True
        return None

    def _lose_attempt(
        self, state: TaskState, device: DeviceState, event: DeviceLost, commands: list[Command], *, blamed: bool
    ) -> None:
        self._lifecycle.cancel_members(state, device, commands)
        self._placer.unplace(state, event.at_s, commands)
        if blamed:
            state.crashes += 1
            self._rows.died(state)
            if state.crashes > self._forgiven(state, event.reason):
                early = state.crashes <= state.task.request.crashes
                kind = ", and so did those of others of its kind" if early else ""
                last = "on" if state.crashes == 1 else "last on"
                deaths = f"its worker died {times(state.crashes)}, {last} {device.name}{kind}: {event.reason}"
                failure = Failure("crash", f"{state.task.name} was given up: {deaths}")
                self._lifecycle.remember_killer(state, failure)
                self._lifecycle.fail(state, failure, commands)
                return
            self._lifecycle.remember_killer(state, None)
            self._avoid(state, device)
        self._lifecycle.retry(state, commands)

    def _fail_endangered(
        self, above: list[TaskState], device: DeviceState, event: DeviceLost, commands: list[Command]
    ) -> None:
        """Fail those that died too often with a task nested in them; the others below it bear no blame.

        Notes
        -----
        What is nested in them is to blame itself, and is given up in the next attempt where it was in this one: see
        `TaskLifecycle.remember_killer`. Only who asked for no further attempt has none.
        """
        for state in above:
            state.endangered += 1
            if state.endangered > (ENDANGERED if state.task.request.crashes > 0 else 0):
                self._placer.unplace(state, event.at_s, commands)
                deaths = f"its worker died {times(state.endangered)} of a task that it submitted"
                text = f"{state.task.name} was given up: {deaths}, last on {device.name}: {event.reason}"
                self._lifecycle.fail(state, Failure("crash", text), commands)

    def _forgiven(self, state: TaskState, reason: str) -> int:
        """Return how many deaths of its worker a task is forgiven, now that one more was its own."""
        if state.task.request.crashes == JUDGED_BY_CALLER:
            return 0
        return self._quarantine.died(state, reason, self._rows.ended_well(state.task))

    def _avoid(self, state: TaskState, device: DeviceState) -> None:
        """Keep a task from the device on which its worker died twice running, as long as another may run it."""
        again, state.died_on = state.died_on == device.index, device.index
        if again and not state.is_group:
            state.avoided |= {device.index}

    def _device_gone(self, device: DeviceState, event: DeviceLost, commands: list[Command]) -> None:
        commands.append(Warn(f"{device.name} is not used any more: {event.reason}"))
        self._rows.refresh()
        self._placer.best_device.changed()
        self._pool.lose(device.name, event.at_s, event.reason)
        self._lifecycle.refuse_stranded(commands)


class DataFaults:
    """What becomes of data items: put, copied, released, lost with a device, and computed again."""

    def __init__(self, core: CoreState, tasks: TaskLifecycle) -> None:
        self._lifecycle = tasks
        self._tasks = core.tasks
        self._counts = core.counts
        self._fleet = core.fleet
        self._replicas = core.replicas
        self._placer = core.placer

    def put(self, event: ItemPut) -> list[Command]:
        """Record a value that the program put on the host."""
        return self._replicas.add(event.item, event.nbytes, event.node, None)

    def released(self, event: ItemReleased) -> list[Command]:
        """Record that nobody outside holds an item any more."""
        state = self._tasks.get(event.item)
        if state is not None and not state.recomputed:
            state.released = True
            return []
        item = self._replicas.items.get(event.item)
        if item is not None and item.producer is not None:
            self._placer.best_device.released(item.nbytes)
        return self._replicas.release(event.item)

    def transferred(self, event: TransferFinished) -> list[Command]:
        """Record a copy, and send the tasks that waited for it."""
        waiters, commands = self._replicas.arrived(event.item, event.src, event.dst)
        count, nbytes = self._replicas.moved.get((event.src, event.dst), (0, 0))
        self._replicas.moved[event.src, event.dst] = (count + 1, nbytes + event.nbytes)
        self._placer.best_device.paid(event.item)
        if self._placer.lookahead is not None:
            self._placer.lookahead.copied(event.item, event.dst)
        for state in waiters:
            if not state.missing and state.phase is Phase.PLACED:
                self._placer.flush(self._fleet.states[state.device], event.at_s, commands)
        if self._placer.starved:
            self._placer.offer_all()
        return commands

    def transfer_failed(self, event: TransferFailed) -> list[Command]:
        """Place the tasks that waited for a copy anew, or give them up."""
        waiters, commands = self._replicas.failed(event.item, event.src, event.dst)
        for state in waiters:
            self._lifecycle.take_off(state, event.at_s, commands)
            state.crashes += 1
            state.out_of_memory += event.reason.startswith("MemoryError")
            if state.crashes > state.task.request.crashes:
                text = f"{state.task.name} was given up: its input {event.item} could not be copied: {event.reason}"
                self._lifecycle.fail(state, Failure("crash", text), commands)
            else:
                self._lifecycle.make_ready(state, commands, first=True)
        return commands

    def lose_node(self, node: str, now_s: float, commands: list[Command]) -> None:
        """Compute again what was lost with a memory node and is still needed."""
        orphans, broken = self._replicas.lose(node)
        for entry in orphans:
            self._placer.best_device.paid(entry.id)
        for item, src, dst in broken:
            waiters, orders = self._replicas.failed(item, src, dst)
            commands.extend(orders)
            for state in waiters:
                self._lifecycle.take_off(state, now_s, commands)
                self._lifecycle.make_ready(state, commands, first=True)
        needed = {item for state in self._tasks.values() for item in state.task.inputs} if orphans else set()
        wanted = [entry for entry in orphans if not entry.released or entry.id in needed]
        again = self._begin_again([entry for entry in wanted if entry.id in self._replicas.items])
        gone = self._replicas.lost.union(again)
        for state in list(self._tasks.values()) if gone else ():
            waits = state.phase in (Phase.READY, Phase.PLACED) and state.task.id not in again
            if waits and not gone.isdisjoint(state.task.inputs):
                self._lifecycle.take_off(state, now_s, commands)
                self._lifecycle.make_ready(state, commands, first=True)
        for producer in again.values():
            self._lifecycle.make_ready(producer, commands, first=True)

    def _begin_again(self, orphans: list[Item]) -> dict[int, TaskState]:
        """Open the tasks of lost results again, and of those that their inputs need."""
        again: dict[int, TaskState] = {}
        while orphans:
            entry = orphans.pop()
            producer = entry.producer
            if producer is None:
                self._replicas.lost.add(entry.id)
            if producer is None or entry.awaited:
                continue
            producer.lost += 1
            if producer.lost > LOST:
                self._replicas.lost.add(entry.id)
                continue
            entry.awaited = True
            self._counts.again += 1
            producer.recomputed, producer.dependents = True, None
            producer.excluded = producer.avoided = frozenset()
            producer.enter(Phase.SUBMITTED)
            producer.waits_for = producer.born = 0
            self._tasks[entry.id] = again[entry.id] = producer
            if self._placer.lookahead is not None:
                self._placer.lookahead.came(producer)
            orphans.extend(self._replicas.claim(producer.task.inputs))
        return again


class HangDetector:
    """Abandons what takes too long: attempts beyond their time limit or absurdly late, tasks stuck behind a long one.

    Attributes
    ----------
    sweep_at_s
        When attempts are looked at next, inf while no task is open.
    """

    def __init__(self, core: CoreState, tasks: TaskLifecycle) -> None:
        self._lifecycle = tasks
        self._tasks = core.tasks
        self._rules = core.rules
        self._fleet = core.fleet
        self._rows = core.rows
        self._placer = core.placer
        self._quarantine = core.quarantine
        self.sweep_at_s = inf

    def stop_late(self, now_s: float, commands: list[Command]) -> None:
        """Stop what is beyond its limit; look at the rest where that is due."""
        deadlines = self._placer.deadlines
        while deadlines and deadlines[0][0] <= now_s:
            _, task, attempt = heappop(deadlines)
            state = self._tasks.get(task)
            if state is not None and state.attempt == attempt and state.phase in STARTED:
                limit = state.task.request.timeout_s
                failure = Failure("timeout", f"{state.task.name} ran longer than its limit of {limit:g} s")
                commands.extend(self._lifecycle.stop(state, now_s, failure))
        if self._fleet.live > 1:
            self._rescue(now_s, commands)
        if now_s >= self.sweep_at_s:
            self.sweep_at_s = inf
            self._sweep(now_s, commands)

    def _rescue(self, now_s: float, commands: list[Command]) -> None:
        """Take back the small tasks that are stuck behind one which turned out long."""
        idle = any(not (device.sent or device.placed) for device in self._fleet.states)
        for device in self._fleet.states:
            parked = device.sent and device.placed and not self._fleet.own_nodes
            if len(device.sent) < 2 and not parked:
                continue
            self._placer.crowded = True
            head, *others = [state for state, _ in device.sent.values()]
            if now_s - device.started_s > max(10 * head.predicted_s, self._rules.recheck_s / 2):
                if parked and idle:
                    self._placer.clear(device, now_s, commands)
                commands.extend(Withdraw(device.name, state.task.id, state.attempt) for state in others)

    def _sweep(self, now_s: float, commands: list[Command]) -> None:
        """Abandon attempts that have run absurdly long for what is known of them."""
        if self._quarantine.suspects and any(d.phase is DevicePhase.READY and not d.sent for d in self._fleet.states):
            self._quarantine.stuck()
        for device in self._fleet.states:
            if not device.sent:
                continue
            state = next(iter(device.sent.values()))[0]
            limit = self._rules.stall_s + self._rules.stall_factor * self._rows.of(state).high_s
            if isfinite(limit) and now_s - device.started_s > limit:
                commands.append(Warn(f"{state.task.name} hangs on {device.name} and is tried again"))
                commands.append(Cancel(device.name, state.task.id, state.attempt))
                self._lifecycle.cancel_members(state, device, commands)
                self._lifecycle.keep_busy(state, now_s, commands)
                state.crashes += 1
                if state.crashes > state.task.request.crashes:
                    self._lifecycle.fail(
                        state, Failure("crash", f"{state.task.name} hung {state.crashes} times"), commands
                    )
                else:
                    self._lifecycle.retry(state, commands)
