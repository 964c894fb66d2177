"""The invariants of the core, as code: `check` looks at everything, `balanced` at what can be counted at once.

In: a machine between two events. Out: nothing, or an AssertionError with the story of the task or device.
It must not change anything.
"""

from __future__ import annotations

from collections import Counter
from math import inf, isfinite

from hetero.core.machine import Machine
from hetero.core.state import STARTED, DevicePhase, DeviceState, Phase, TaskState

__all__ = ["balanced", "check", "story"]

TOLERANCE_S = 1e-6
"""Sums of seconds may drift apart by this, and by a millionth."""


def story(state: TaskState) -> str:
    """Return all that the core remembers of a task."""
    left_out = ("task", "row", "dependents", "children")
    facts = {name: getattr(state, name) for name in TaskState.__slots__ if name not in left_out}
    empty: tuple[object, ...] = (0, "", (), None, frozenset())
    told = ", ".join(f"{name}={value!r}" for name, value in facts.items() if value not in empty)
    dependents = [dependent.task.id for dependent in state.dependents or ()]
    return f"task {state.task.id} ({state.task.name}): {told}, dependents={dependents}, {state.task}"


def _story(device: DeviceState) -> str:
    placed = [state.task.id for state in device.placed]
    waiting = [state.task.id for state in device.suspended]
    return (
        f"device {device.name}: {device.phase.name}, sent {list(device.sent)}, suspended {waiting}, placed {placed}, "
        f"batches {device.batches}, held by {device.held_by}, stopping {device.stopping}"
    )


def balanced(machine: Machine) -> None:
    """Check that no task is lost: submitted + again = open + committed + failed."""
    counts = machine.counts
    have, due = len(machine.tasks) + counts.committed + counts.failed, counts.submitted + counts.again
    assert have == due, f"{have - due:+d} tasks: {counts}, {len(machine.tasks)} open"


def check(machine: Machine) -> None:
    """Check every invariant.

    Raises
    ------
    AssertionError
        A bug of ours, with the story of the task or device that shows it.
    """
    balanced(machine)
    _check_places(machine)
    _check_dependents(machine)
    _check_nested(machine)
    for device in machine.fleet.states:
        _check_device(machine, device)
        _check_held(machine, device)
    live = sum(device.phase is DevicePhase.READY for device in machine.fleet.states)
    assert machine.fleet.live == live, f"{machine.fleet.live} devices counted as live, {live} are"
    _check_pins(machine)
    _check_bytes(machine)
    _check_lineage(machine)
    _check_waits(machine)
    _check_leases(machine)


def _check_leases(machine: Machine) -> None:
    """Check that devices are handed out once, and that the open tasks of leases are counted."""
    machine.pool.check()
    leased = Counter(s.task.request.lease for s in machine.tasks.values() if s.task.request.lease and not s.recomputed)
    assert machine.leased == leased, f"open tasks of leases: {machine.leased} counted, {leased} are"


def _check_places(machine: Machine) -> None:
    """Every open task is in exactly one place, and nothing else is anywhere."""
    places: dict[int, list[str]] = {task: [] for task in machine.tasks}

    def found(state: TaskState, place: str) -> None:
        assert machine.tasks.get(state.task.id) is state, f"in {place}, but not open: {story(state)}"
        places[state.task.id].append(place)

    queued = list(machine.placer.ready)
    assert len(queued) == machine.placer.ready.count, f"{machine.placer.ready.count} ready, {len(queued)} queued"
    for state in queued:
        found(state, "ready queue")
    for state in machine.placer.groups:
        found(state, "group queue")
    for suspect in machine.quarantine.suspects.values():
        for state in (*suspect.held.values(), *suspect.retries.values()):
            found(state, "quarantine")
        assert machine.tasks.keys() >= suspect.out.keys(), f"of {suspect.name}, let go but over: {suspect.out}"
        waits = suspect.held or suspect.retries
        assert not waits or (suspect.narrow and suspect.out), f"{suspect.name} is held back for nothing"
    for device in machine.fleet.states:
        for state in device.placed:
            assert state.device == device.index, f"placed at {device.name}: {story(state)}"
            found(state, "placed")
        for state in device.suspended:
            assert state.device == device.index, f"waits at {device.name}: {story(state)}"
            assert not state.devices, f"a group waits at {device.name}: {story(state)}"
            found(state, "suspended")
        for state, _ in device.sent.values():
            assert device.index in (state.devices or (state.device,)), f"sent to {device.name}: {story(state)}"
            found(state, "sent")
    for task, at in places.items():
        state = machine.tasks[task]
        assert at == _expected(state), f"found in {at or 'no place'}: {story(state)}"
    parked = sum(len(device.placed) for device in machine.fleet.states)
    assert machine.placer.parked == parked, f"{machine.placer.parked} tasks counted as parked, {parked} are"


def _expected(state: TaskState) -> list[str]:
    if state.phase is Phase.READY:
        return ["group queue" if state.is_group else "ready queue"]
    if state.phase is Phase.PLACED:
        return ["placed"]
    if state.phase is Phase.HELD:
        return ["quarantine"]
    if state.phase is Phase.SUSPENDED:
        return ["suspended"]
    if state.phase is Phase.RUNNING:
        return ["sent"] * (state.group_left if state.devices else 1)
    assert state.phase is Phase.SUBMITTED, f"open, but over: {story(state)}"
    return []


def _check_dependents(machine: Machine) -> None:
    """Check that a task waits for as many open tasks as count it among their dependents."""
    parents = Counter(
        dependent.task.id
        for state in machine.tasks.values()
        for dependent in state.dependents or ()
        if machine.tasks.get(dependent.task.id) is dependent
    )
    for task, state in machine.tasks.items():
        split = state.phase is Phase.SUBMITTED and bool(state.excluded) and state.task.request.splittable
        due = parents[task] or int(split and state.waits_for == 1)
        assert state.waits_for == due, f"waits for {state.waits_for} tasks, {due} know of it: {story(state)}"
        waits = state.phase is Phase.SUBMITTED
        assert waits == (state.waits_for > 0), f"{state.phase.name} with {state.waits_for} to wait for: {story(state)}"


def _check_nested(machine: Machine) -> None:
    """Check that each open nested task is known to the attempt that submitted it, and that this has not ended."""
    known: Counter[int] = Counter()
    for state in machine.tasks.values():
        for task, child in (state.children or {}).items():
            known[task] += 1
            assert machine.tasks.get(task) is child, f"child {task} is over: {story(state)}"
            assert child.task.parent == (state.task.id, state.attempt), f"not its parent: {story(child)}"
        assert not state.children or state.phase in STARTED, f"has children and has not started: {story(state)}"
    for state in machine.tasks.values():
        due = int(bool(state.task.parent) and not state.recomputed)
        assert known[state.task.id] == due, f"{known[state.task.id]} open tasks have submitted it: {story(state)}"
    waiting = sum(len(device.suspended) for device in machine.fleet.states)
    assert machine.fleet.suspended == waiting, f"{machine.fleet.suspended} tasks counted as suspended, {waiting} are"


def _check_device(machine: Machine, device: DeviceState) -> None:
    fleet, index, told = machine.fleet, device.index, _story(device)
    batches = Counter(id(batch) for _, batch in device.sent.values())
    assert device.batches == len(batches) <= 3, f"{len(batches)} batches out: {told}"
    for _, batch in device.sent.values():
        assert batch.left == batches[id(batch)], f"a batch counts {batch.left}, {batches[id(batch)]} are out: {told}"
    work = [state for state, _ in device.sent.values()] + list(device.placed)
    assert fleet.queued[index] == len(work), f"{fleet.queued[index]} counted as queued: {told}"
    total_s = sum(state.predicted_s for state in work)
    pending_s = float(fleet.pending_s[index])
    assert abs(pending_s - total_s) <= TOLERANCE_S + 1e-6 * total_s, f"{pending_s} s pending, {total_s} s in it: {told}"
    ready = device.phase is DevicePhase.READY
    assert bool(fleet.ready[index]) == ready, f"its column says {fleet.ready[index]}: {told}"
    assert ready or not (work or device.stopping or device.suspended), f"has work and takes none: {told}"
    assert fleet.rooms[index] == fleet.room(device), f"its column of room says {fleet.rooms[index]}: {told}"
    first = fleet.first(device)
    assert first is None or fleet.head_s[index] == first.predicted_s, f"first is {story(first)}: {told}"


def _check_held(machine: Machine, device: DeviceState) -> None:
    """Check that a device that is held gets nothing else, and that a task that runs there is alone."""
    if not device.held_by:
        return
    group, told = machine.tasks.get(device.held_by), _story(device)
    assert group is not None, f"held by a task that is over: {told}"
    assert group.devices, f"held by a task that holds nothing: {told}; {story(group)}"
    assert not device.placed, f"held, and tasks wait there: {told}"
    if group.phase is Phase.RUNNING:
        others = [task for task, (state, _) in device.sent.items() if task != device.held_by and not _waited(state)]
        assert not others, f"held by a running task, and others run there: {told}"


def _waited(state: TaskState) -> bool:
    """Return whether a task may have gone on from waiting just as others were placed on its device."""
    return state.row is not None and state.row.waits


def _states_at_nodes(machine: Machine) -> list[TaskState]:
    states = [state for state in machine.tasks.values() if state.node]
    for state in states:
        placed = state.phase in (Phase.PLACED, *STARTED) or (state.is_group and state.phase is Phase.READY)
        assert placed, f"holds memory at {state.node}: {story(state)}"
    return states


def _check_pins(machine: Machine) -> None:
    """Check that the pins of a replica are the placed tasks that need it there and the transfers that read it."""
    items = machine.replicas.items
    pins: Counter[tuple[int, str]] = Counter()
    for state in _states_at_nodes(machine):
        inputs = [items[item] for item in dict.fromkeys(state.task.inputs) if item in items]
        missing = sum(state.node not in entry.valid for entry in inputs)
        assert state.missing == missing, f"{missing} inputs are missing: {story(state)}"
        pins.update((entry.id, state.node) for entry in inputs)
        for entry in inputs:
            there = state.node in entry.valid or state.node in entry.arriving
            assert there, f"item {entry.id} is not on its way: {story(state)}"
    for entry in items.values():
        pins.update((entry.id, src) for src in entry.arriving.values())
        for src in entry.arriving.values():
            assert src in entry.valid, f"item {entry.id} is copied from {src}, where it is not"
    have = {(entry.id, node): count for entry in items.values() for node, count in entry.pins.items()}
    assert have == dict(pins), f"pins differ: {set(have.items()) ^ set(pins.items())}"


def _check_bytes(machine: Machine) -> None:
    """Check that what is used on a node is its replicas, those arriving, and what tasks reserved."""
    replicas, used = machine.replicas, Counter[str]()
    for entry in replicas.items.values():
        assert len(set(entry.valid)) == len(entry.valid), f"item {entry.id} lies twice on a node: {entry.valid}"
        assert not set(entry.valid) & set(entry.arriving), f"item {entry.id} arrives where it is: {entry.arriving}"
        for node in (*entry.valid, *entry.arriving):
            used[node] += entry.nbytes
    for state in machine.tasks.values():
        used[state.node] += state.reserved_bytes
    for node in {*used, *replicas.used} - {""}:
        have = replicas.used.get(node, 0)
        assert have == used[node], f"{have} bytes counted as used on {node}, {used[node]} are"
        results = any(node in entry.valid and entry.producer is not None for entry in replicas.items.values())
        assert have <= replicas.capacity(node) or results, f"{have} bytes used on {node}, of {replicas.capacity(node)}"
    assert not used[""], "memory is reserved on no node"


def _check_lineage(machine: Machine) -> None:
    """Check that what can be computed again is remembered as long as something may need it."""
    items = machine.replicas.items
    heirs = Counter(parent for entry in items.values() for parent in entry.parents)
    running = [state for state in machine.tasks.values() if state.recomputed]
    claims = Counter(item for state in running for item in dict.fromkeys(state.task.inputs))
    again = {state.task.id for state in running}
    for entry in items.values():
        told = f"item {entry.id}: {entry.heirs} heirs, {entry.claims} claims, awaited {entry.awaited}, on {entry.valid}"
        assert entry.heirs == heirs[entry.id], f"{heirs[entry.id]} items have it as parent: {told}"
        assert entry.claims == claims[entry.id], f"{claims[entry.id]} tasks that run again need it: {told}"
        assert entry.awaited == (entry.id in again), f"{'' if entry.id in again else 'not '}computed again: {told}"
        kept = not entry.released or entry.heirs or entry.claims or entry.awaited or entry.pins
        assert kept, f"nobody needs it: {told}"


def _check_waits(machine: Machine) -> None:
    """Every wait is bounded: a timer is set while tasks are open, an early one while tasks could run and do not."""
    if not machine.tasks:
        return
    assert machine.timer_s < inf, f"{len(machine.tasks)} tasks are open, and no timer is set"
    placer, rules = machine.placer, machine.rules
    limit_s = min((at for at, task, attempt in placer.deadlines if _runs(machine, task, attempt)), default=inf)
    assert machine.timer_s <= limit_s, f"a time limit ends at {limit_s}, the timer at {machine.timer_s}"
    first = next(iter(placer.ready), None)
    if first is None:
        return
    row = machine.rows.of(first)
    idle = [
        device.name
        for device in machine.fleet.states
        if machine.fleet.room(device) and not device.sent and isfinite(row.seconds[device.index])
    ]
    soon = machine.timer_s <= machine.now_s + rules.recheck_s + TOLERANCE_S
    assert soon or not idle, f"{idle} idle until {machine.timer_s}, and ready: {story(first)}"


def _runs(machine: Machine, task: int, attempt: int) -> bool:
    state = machine.tasks.get(task)
    return state is not None and state.attempt == attempt and state.phase is Phase.RUNNING
