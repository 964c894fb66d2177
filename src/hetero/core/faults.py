"""The lives of devices and data: added, ready, lost; results that are lost with them and computed again.

In: what happened to a device or an item. Out: commands.
"""

from __future__ import annotations

from hetero.core.lending import Lending
from hetero.core.quarantine import times
from hetero.core.replicas import Item
from hetero.core.state import STARTED, DevicePhase, DeviceState, Phase, TaskState
from hetero.model.commands import (
    Command,
    StartWorker,
    Warn,
)
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

__all__ = ["Losses"]

LOST = 50
"""A result that was lost this often with its device is not computed once more."""


UNEXPLAINED = 4
"""Workers that may die between tasks, each with the same task at the head of what was sent, before it is to blame."""


class Losses(Lending):
    """What becomes of devices and data."""

    def _device_added(self, event: DeviceAdded) -> list[Command]:
        known = self.fleet.by_id.get(event.device.id)
        if known is None or known.phase is DevicePhase.GONE:
            if known is not None:
                self.restarts.pop(known.index, None)
            self.fleet.add(event.device, event.at_s)
            self.pool.add(event.device, event.at_s)
            self.replicas.costs.spread(self.fleet.memory_nodes)
            self._able.clear()
            self.rows.refresh()
            self.placer.best_device.changed()
        return []

    def _device_ready(self, event: DeviceReady) -> list[Command]:
        state = self.fleet.by_id.get(event.device)
        if state is None or state.phase in (DevicePhase.READY, DevicePhase.GONE):
            return []
        state.up_s, state.told = event.at_s, ""
        self.fleet.set_phase(state, DevicePhase.READY, event.at_s)
        self.placer.fleet_changed()
        self.placer.offer_all()
        return []

    def _device_lost(self, event: DeviceLost) -> list[Command]:
        device = self.fleet.by_id.get(event.device)
        if device is None or device.phase is DevicePhase.GONE:
            return []
        commands: list[Command] = []
        culprit = self._culprit(device, event)
        wait_s = self._restart_wait_s(device, event, culprit)
        device.stopping.clear()
        self._tell_no_start(device, event, commands)
        self.fleet.set_phase(device, DevicePhase.GONE if event.permanent else DevicePhase.LOST, event.at_s)
        self.placer.fleet_changed()
        victims = [*(state for state, _ in device.sent.values()), *device.suspended[::-1]]
        if culprit is not None and device.suspended:
            victims.remove(culprit)
            above = [state for state in self._ancestors(culprit) if state in device.suspended]
            self._lose_attempt(culprit, device, event, commands, blamed=True)
            self._fail_endangered(above, device, event, commands)
        for state in victims:
            if state.phase in STARTED:  # else it was nested in one that is given up
                self._lose_attempt(state, device, event, commands, blamed=state is culprit)
        for state in list(device.placed)[::-1]:
            self.placer.unplace(state, event.at_s, commands)
            self._make_ready(state, commands, first=True)
        for group in list(self.placer.groups):
            if device.index in group.devices:
                self.placer.let_go(group)
                commands.extend(self.replicas.unplace(group))
        if device.device.memory_node != HOST_NODE:
            self._lose_node(device.device.memory_node, event.at_s, commands)
        self.placer.offer(device)
        self.restarts.pop(device.index, None)
        if event.permanent:
            device.lost = f"it was lost: {event.reason}"
            self._device_gone(device, event, commands)
        elif wait_s:
            self.restarts[device.index] = event.at_s + wait_s
        else:
            commands.append(StartWorker(device.name))
        return commands

    def _restart_wait_s(self, device: DeviceState, event: DeviceLost, culprit: TaskState | None) -> float:
        """Count a death, and return how long to wait before the worker is started again.

        Notes
        -----
        wait = 0 for the first `restarts` deaths in a row, else restart * 2^(n - 1) for the n-th beyond, at most
        restart_max. A death of a task does not count, and is not waited for: it is the task's fault, and not that of
        the device. A worker that did not start at all is waited for from the first time on.
        """
        rules, was_up = self.rules, device.phase is DevicePhase.READY
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
        """Say, once for each reason, that a worker did not start and is tried again."""
        if device.phase is not DevicePhase.READY and not event.permanent and device.told != event.reason:
            device.told = event.reason
            commands.append(Warn(f"{device.name} is started again and not used until then: {event.reason}"))

    def _start_again(self, now_s: float, commands: list[Command]) -> None:
        """Start the workers whose wait is over."""
        for index in [index for index, at_s in self.restarts.items() if at_s <= now_s]:
            del self.restarts[index]
            commands.append(StartWorker(self.fleet.states[index].name))

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
        self._cancel_others(state, device, commands)
        self.placer.unplace(state, event.at_s, commands)
        if blamed:
            state.crashes += 1
            if state.crashes > self._forgiven(state, event.reason):
                last = "on" if state.crashes == 1 else "last on"
                deaths = f"its worker died {times(state.crashes)}, {last} {device.name}: {event.reason}"
                self._fail(state, Failure("crash", f"{state.task.name} was given up: {deaths}"), commands)
                return
            self._avoid(state, device)
        self._again(state, commands)

    def _fail_endangered(
        self, above: list[TaskState], device: DeviceState, event: DeviceLost, commands: list[Command]
    ) -> None:
        """Fail those that died too often with a task nested in them; the others below it bear no blame."""
        for state in above:
            state.endangered += 1
            if state.endangered > max(state.task.request.crashes, 0):
                self.placer.unplace(state, event.at_s, commands)
                deaths = f"its worker died {times(state.endangered)} of a task that it submitted"
                text = f"{state.task.name} was given up: {deaths}, last on {device.name}: {event.reason}"
                self._fail(state, Failure("crash", text), commands)

    def _forgiven(self, state: TaskState, reason: str) -> int:
        """Return how many deaths of its worker a task is forgiven, now that one more was its own."""
        if state.task.request.crashes == JUDGED_BY_CALLER:
            return 0
        return self.quarantine.died(state, reason, self.rows.ended_well(state.task))

    def _avoid(self, state: TaskState, device: DeviceState) -> None:
        """Keep a task from the device on which its worker died twice running, as long as another may run it."""
        again, state.died_on = state.died_on == device.index, device.index
        if again and not state.is_group:
            state.avoided |= {device.index}

    def _device_gone(self, device: DeviceState, event: DeviceLost, commands: list[Command]) -> None:
        commands.append(Warn(f"{device.name} is not used any more: {event.reason}"))
        self.rows.refresh()
        self.placer.best_device.changed()
        self.pool.lose(device.name, event.at_s, event.reason)
        self._refuse_stranded(commands)

    def _lose_node(self, node: str, now_s: float, commands: list[Command]) -> None:
        orphans, broken = self.replicas.lose(node)
        for entry in orphans:
            self.placer.best_device.paid(entry.id)
        for item, src, dst in broken:
            waiters, orders = self.replicas.failed(item, src, dst)
            commands.extend(orders)
            for state in waiters:
                self._take_off(state, now_s, commands)
                self._make_ready(state, commands, first=True)
        needed = {item for state in self.tasks.values() for item in state.task.inputs} if orphans else set()
        wanted = [entry for entry in orphans if not entry.released or entry.id in needed]
        again = self._begin_again([entry for entry in wanted if entry.id in self.replicas.items])
        gone = self.replicas.lost.union(again)
        for state in list(self.tasks.values()) if gone else ():
            waits = state.phase in (Phase.READY, Phase.PLACED) and state.task.id not in again
            if waits and not gone.isdisjoint(state.task.inputs):
                self._take_off(state, now_s, commands)
                self._make_ready(state, commands, first=True)
        for producer in again.values():
            self._make_ready(producer, commands, first=True)

    def _begin_again(self, orphans: list[Item]) -> dict[int, TaskState]:
        """Open the tasks of lost results again, and of those that their inputs need."""
        again: dict[int, TaskState] = {}
        while orphans:
            entry = orphans.pop()
            producer = entry.producer
            if producer is None:
                self.replicas.lost.add(entry.id)
            if producer is None or entry.awaited:
                continue
            producer.lost += 1
            if producer.lost > LOST:
                self.replicas.lost.add(entry.id)
                continue
            entry.awaited = True
            self.counts.again += 1
            producer.recomputed, producer.dependents = True, None
            producer.excluded = producer.avoided = frozenset()
            producer.phase, producer.waits_for = Phase.SUBMITTED, 0
            self.tasks[entry.id] = again[entry.id] = producer
            if self.placer.lookahead is not None:
                self.placer.lookahead.came(producer)
            orphans.extend(self.replicas.claim(producer.task.inputs))
        return again

    def _utilisation_reported(self, event: UtilisationReported) -> list[Command]:
        state = self.fleet.by_id.get(event.device)
        if state is not None:
            self.fleet.busy_frac[state.index] = event.busy_frac
            self.placer.offer_all()
            self.placer.look_again = True
        return []

    def _item_put(self, event: ItemPut) -> list[Command]:
        return self.replicas.add(event.item, event.nbytes, event.node, None)

    def _item_released(self, event: ItemReleased) -> list[Command]:
        state = self.tasks.get(event.item)
        if state is not None and not state.recomputed:
            state.released = True
            return []
        item = self.replicas.items.get(event.item)
        if item is not None and item.producer is not None:
            self.placer.best_device.released(item.nbytes)
        return self.replicas.release(event.item)

    def _transfer_finished(self, event: TransferFinished) -> list[Command]:
        waiters, commands = self.replicas.arrived(event.item, event.src, event.dst)
        count, nbytes = self.replicas.moved.get((event.src, event.dst), (0, 0))
        self.replicas.moved[event.src, event.dst] = (count + 1, nbytes + event.nbytes)
        self.placer.best_device.paid(event.item)
        if self.placer.lookahead is not None:
            self.placer.lookahead.copied(event.item, event.dst)
        for state in waiters:
            if not state.missing and state.phase is Phase.PLACED:
                self.placer.flush(self.fleet.states[state.device], event.at_s, commands)
        if self.placer.starved:
            self.placer.offer_all()
        return commands

    def _transfer_failed(self, event: TransferFailed) -> list[Command]:
        waiters, commands = self.replicas.failed(event.item, event.src, event.dst)
        for state in waiters:
            self._take_off(state, event.at_s, commands)
            state.crashes += 1
            state.out_of_memory += event.reason.startswith("MemoryError")
            if state.crashes > state.task.request.crashes:
                text = f"{state.task.name} was given up: its input {event.item} could not be copied: {event.reason}"
                self._fail(state, Failure("crash", text), commands)
            else:
                self._make_ready(state, commands, first=True)
        return commands
