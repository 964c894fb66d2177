"""What a run would have gained without one thing that held it up: the run again in the simulator, cause by cause.

In: a `RunRecord`. Out: gains in seconds, the largest first. It must not guess a cause from a kind of lost time:
whatever it tells was replayed without it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, isfinite
from statistics import median
from typing import NamedTuple

from hetero.core.obstacles import obstacle
from hetero.drive.sim import Costs, Program, SimTask, simulate
from hetero.floor.errors import HeteroError
from hetero.model.annotations import DeviceSampled
from hetero.model.device import Device
from hetero.model.tasks import Request, Task
from hetero.model.topology import Link, MemoryNode, Topology
from hetero.plan.performance.cost_model import CostModel, Sample
from hetero.plan.policies.registry import OURS
from hetero.report.record import Attempt, RunRecord

__all__ = ["Gain", "Gains", "gains"]

_TASKS_MAX = 1_000
"""Tasks that are replayed; of a longer run the first ones, and gains but that of the start-up are scaled."""
_SOON_S = 2e-3
"""A task handed in so soon after an outcome was handed in because of it."""
_PACED_FRAC = 0.05
_SATURATED_FRAC = 0.9
_STRAGGLER = 3.0
_LEAST_FRAC = 0.01
_FUNCTIONS = 3
_REPLAYED = {"planned": "eft"}


class Gain(NamedTuple):
    """What a run would have gained.

    Attributes
    ----------
    cause
        'start-up', 'device', 'pin', 'load', 'link', 'loading', 'storing', 'attempts', 'late', 'stragglers' or
        'messages'.
    subject
        The device or function that it is about, '' for none.
    seconds
        Seconds that the run would have ended sooner.
    remedy
        What to do.
    """

    cause: str
    subject: str
    seconds: float
    remedy: str


class Gains(NamedTuple):
    """All gains of a run.

    Attributes
    ----------
    found
        The largest first; those below 1 % of the run are left out.
    replayed_s
        Seconds that the replay of the run as it was took, which should be near what it took.
    tasks
        So many were replayed.
    nested
        True where tasks waited for others that they had submitted, which no replay does: then there are none.
    """

    found: tuple[Gain, ...]
    replayed_s: float
    tasks: int
    nested: bool = False


@dataclass(frozen=True, slots=True)
class _Change:
    """What is different in a replay.

    Attributes
    ----------
    without
        Index of a device that is left out, -1 for none.
    free
        Function that may run anywhere.
    quick_load, quick_store
        Function whose arguments and results take no time, '*' for all.
    link
        Times the bandwidth.
    """

    no_start: bool = False
    without: int = -1
    free: str = ""
    idle: bool = False
    link: float = 1.0
    quick_load: str = ""
    quick_store: str = ""
    no_waste: bool = False
    early: bool = False
    even: bool = False
    no_messages: bool = False


class _Entry(NamedTuple):
    """One task as it is replayed: what it waits for beyond its inputs because the program did, and its attempt."""

    number: int
    at_s: float
    because: tuple[int, ...]
    attempt: Attempt
    wasted_s: float
    busy_frac: float


@dataclass(slots=True)
class _Model:
    """A run as it can be replayed."""

    run: RunRecord
    entries: list[_Entry]
    quiet_s: float
    starts_s: dict[str, float]
    message_s: float
    nbytes: dict[int, int]
    knows: bool
    requests: dict[tuple[int, bool], Request] = field(default_factory=dict)


def gains(run: RunRecord) -> Gains:
    """Replay a run as it was and without one cause after the other.

    Notes
    -----
    Every task takes what it took; on another device, the median of its function there times how much it strayed from
    the median where it ran; where its function never ran, that by the ratio of both devices on other functions. Tasks
    that were handed in just after an outcome wait for it in the replay too. A gain is the difference of both replays.
    """
    if _nests(run):
        return Gains((), 0.0, 0, nested=True)
    try:
        return _gains(run)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return Gains((), 0.0, 0)  # a trace that was changed by hand may hold what no simulator takes


def _nests(run: RunRecord) -> bool:
    """Return whether an attempt gave its device up and got it back: it stands there once for each time."""
    came = [each[:3] for each in run.attempts if each.outcome == "done"]
    return len({*came}) < len(came)


def _gains(run: RunRecord) -> Gains:
    model = _model(run)
    if model is None or not isfinite(run.span_s):
        return Gains((), 0.0, 0)
    base_s = _replayed(model, _Change())
    if base_s is None or base_s <= 0.0:
        return Gains((), 0.0, 0)
    found = []
    for make, change in _candidates(model):
        without_s = _replayed(model, change)
        if without_s is not None and base_s - without_s > _LEAST_FRAC * base_s:
            scale = 1.0 if change.no_start and len(model.entries) == _TASKS_MAX else run.span_s / base_s
            found.append(make(float((base_s - without_s) * scale)))
    found.sort(key=lambda each: (-each.seconds, each.cause, each.subject))
    return Gains(tuple(found), base_s, len(model.entries))


# -- what could be the cause


def _candidates(model: _Model) -> Iterator[tuple[Callable[[float], Gain], _Change]]:
    """Yield what makes a gain of seconds, and the replay that measures them."""

    def named(cause: str, subject: str, remedy: str) -> Callable[[float], Gain]:
        return lambda seconds: Gain(cause, subject, seconds, remedy)

    run, attempts = model.run, [each.attempt for each in model.entries]
    if any(model.starts_s.values()):
        text = "open the Context before there is work, keep it open, or use isolation: thread"
        yield named("start-up", "", text), _Change(no_start=True)
    if len(run.devices) > 1:
        for index in sorted({each.device for each in attempts}):
            short = run.devices[index].short
            yield named("device", short, f"leave {short} out of devices"), _Change(without=index)
    for name in _pinned(model):
        yield named("pin", name, f"let {name} run on more devices (on=…)"), _Change(free=name)
    if any(each.busy_frac > 0.0 for each in model.entries):
        yield named("load", "", "run when the host is idle, or end the other programs"), _Change(idle=True)
    if any(each.link_in_s or each.link_out_s for each in attempts) or any(each.nbytes for each in run.transfers):
        text = "keep readers beside their data (near=…), reduce where the data lies, or use a faster link"
        yield named("link", "", text), _Change(link=2.0)
    for name in _largest(model, lambda each: each.load_s):
        text = f"send less to {name} (hetero.put for what many read), and import less in it"
        yield named("loading", name, text), _Change(quick_load=name)
    for name in _largest(model, lambda each: each.store_s + each.wait_s):
        text = f"return less from {name}, or leave its results where they were computed"
        yield named("storing", name, text), _Change(quick_store=name)
    if any(each.wasted_s for each in model.entries):
        yield named("attempts", "", "see under problems why attempts failed or workers died"), _Change(no_waste=True)
    yield named("late", "", "hand in tasks as soon as they are known"), _Change(early=True)
    yield named("stragglers", "", "cut the longest tasks into smaller ones"), _Change(even=True)
    yield named("messages", "", "make tasks longer, or use isolation: thread"), _Change(no_messages=True)


def _pinned(model: _Model) -> list[str]:
    """Return the functions whose tasks may not run on every device because of the words they were given."""
    names = (model.run.tasks[each.number] for each in model.entries)
    return sorted({task.name for task in names if task.request.on or task.request.not_on})[:_FUNCTIONS]


def _largest(model: _Model, part: Callable[[Attempt], float]) -> list[str]:
    """Return the functions with most of a part of their time, where that is not nothing."""
    sums: dict[str, float] = defaultdict(float)
    for each in model.entries:
        sums[model.run.tasks[each.number].name] += part(each.attempt)
    least_s = _LEAST_FRAC * model.run.span_s
    return sorted((name for name in sums if sums[name] > least_s), key=lambda name: (-sums[name], name))[:_FUNCTIONS]


# -- the run as it can be replayed


def _model(run: RunRecord) -> _Model | None:
    done: dict[int, Attempt] = {}
    tried: dict[int, list[Attempt]] = defaultdict(list)
    for each in run.attempts:
        if each.outcome == "done":
            known = done.get(each.task)
            if known is not None and known[1:3] == each[1:3]:  # it was suspended in between
                done[each.task] = known._replace(end_s=known.end_s + each.end_s - each.start_s)
            elif known is None or each.taken_s > known.taken_s:
                done[each.task] = each
        elif each.outcome in ("failed", "lost"):
            tried[each.task].append(each)
    order = sorted((number for number in done if number in run.tasks), key=lambda number: run.tasks[number].submitted_s)
    if not order:
        return None
    order = order[:_TASKS_MAX]
    entries, quiet_s = _entries(
        run, order, done, {number: _wasted(run, done[number], tried[number]) for number in order}
    )
    starts_s = {
        device.id: max(0.0, up[0][0] - run.begin_s) if up else inf
        for device, up in zip(run.devices, run.up, strict=True)
    }
    kept = set(order)
    nbytes = {item: size for item, size, _, _ in reversed(run.put) if item in kept}
    return _Model(run, entries, quiet_s, starts_s, _message_s(run), nbytes, _knew(run))


def _wasted(run: RunRecord, done: Attempt, tried: list[Attempt]) -> tuple[float, float]:
    """Return s that attempts before the one that counted wasted, and s of loading in them that were needed anyway."""
    took_s = sum(each.end_s - each.start_s + _away_s(run, each) for each in tried)
    needed_s = max(0.0, *(each.load_s - done.load_s for each in tried)) if tried else 0.0
    return took_s - needed_s, needed_s


def _away_s(run: RunRecord, attempt: Attempt) -> float:
    """Return for how long the worker was away that an attempt died with."""
    if attempt.outcome != "lost":
        return 0.0
    back = [from_s for from_s, _ in run.up[attempt.device] if from_s >= attempt.end_s]
    return min(back) - attempt.end_s if back else 0.0


def _entries(
    run: RunRecord, order: list[int], done: dict[int, Attempt], wasted: dict[int, tuple[float, float]]
) -> tuple[list[_Entry], float]:
    """Return the tasks in the order in which they were handed in, and s in which the program handed in nothing."""
    outcomes = sorted((run.tasks[number].over_s, number) for number in order)
    used = _used(run)
    paced = _is_paced(run, order, [over_s for over_s, _ in outcomes])
    entries: list[_Entry] = []
    quiet_s = at_s = 0.0
    place, because, last_s = 0, tuple[int, ...](), run.begin_s
    for count, number in enumerate(order):
        since_s = run.tasks[number].submitted_s
        before = place
        while place < len(outcomes) and outcomes[place][0] <= since_s:
            place += 1
        if place == count and count and place > before and not paced:
            because = (outcomes[place - 1][1],)
            quiet_s += since_s - outcomes[place - 1][0]
        elif place > before and since_s - outcomes[place - 1][0] <= _SOON_S:
            because = (outcomes[place - 1][1],)
        elif since_s - last_s > _SOON_S:
            because, at_s = (), max(at_s, since_s - run.begin_s - quiet_s)
        last_s = since_s
        busy = _busy_frac(used, done[number])
        wasted_s, needed_s = wasted[number]
        mine = done[number]
        counted = mine._replace(end_s=mine.end_s + needed_s, load_s=mine.load_s + needed_s) if needed_s else mine
        entries.append(_Entry(number, at_s, because, counted, wasted_s, busy))
    return entries, quiet_s


def _is_paced(run: RunRecord, order: list[int], overs_s: list[float]) -> bool:
    """Return whether the program hands in tasks at times of its own: some of them while others are still open."""
    submitted_s = [run.tasks[number].submitted_s for number in order]
    spaced = [count for count, (one, other) in enumerate(pairwise(submitted_s), start=1) if other - one > _SOON_S]
    beside = sum(bisect_right(overs_s, submitted_s[count]) < count for count in spaced)
    return beside > _PACED_FRAC * len(spaced)


def _used(run: RunRecord) -> dict[int, tuple[list[float], list[float]]]:
    """Return for each device when it was told what others used of it, and how much; 0 while the host had time left."""
    hosts = [each for each in run.notes if isinstance(each, DeviceSampled) and each.device == "host"]
    times_s = [each.at_s for each in hosts]
    found: dict[int, tuple[list[float], list[float]]] = {}
    for device, told in run.used.items():
        shares = []
        for at_s, frac in told:
            near = hosts[min(bisect_right(times_s, at_s), len(hosts) - 1)] if hosts else None
            shares.append(0.0 if near is not None and near.busy_frac < _SATURATED_FRAC else frac)
        found[device] = [at_s for at_s, _ in told], shares
    return found


def _busy_frac(used: dict[int, tuple[list[float], list[float]]], attempt: Attempt) -> float:
    """Return how much of its device others used during an attempt, else when it was told before, else after."""
    if attempt.device not in used:
        return 0.0
    times_s, shares = used[attempt.device]
    begin, end = bisect_right(times_s, attempt.start_s), bisect_right(times_s, attempt.end_s)
    inside = shares[begin:end] or shares[max(0, begin - 1) : max(1, begin)]
    return sum(inside) / len(inside)


def _message_s(run: RunRecord) -> float:
    """Return the median time from the end of an attempt to the begin of the next one that was there already."""
    free_s: dict[int, float] = {}
    waits = []
    for each in sorted(run.attempts, key=lambda one: one.start_s):
        free = free_s.get(each.device)
        if free is not None and each.launch_s <= free:
            waits.append(max(0.0, each.start_s - free))
        free_s[each.device] = max(free_s.get(each.device, 0.0), each.end_s)
    return median(waits) if waits else 0.0


def _knew(run: RunRecord) -> bool:
    """Return whether the first attempt of each function on each device was predicted well: its history was known."""
    first: dict[tuple[str, int], Attempt] = {}
    for each in sorted(run.attempts, key=lambda one: one.launch_s):
        if each.task in run.tasks:
            first.setdefault((run.tasks[each.task].signature, each.device), each)
    near = [abs(each.predicted_s - each.taken_s) <= 0.5 * each.taken_s for each in first.values()]
    return sum(near) * 2 > len(near)


# -- a replay


def _replayed(model: _Model, change: _Change) -> float | None:
    """Return what a replay takes, s; None where the tasks cannot run so."""
    run = model.run
    fleet = [device for index, device in enumerate(run.devices) if index != change.without and run.up[index]]
    tasks = list(_tasks(model, change))
    if not fleet or any(all(obstacle(device, each.task.request, None) for device in fleet) for each in tasks):
        return None
    truth = _Truth(model, change)
    cost = CostModel(fleet)
    if model.knows:
        cost.load(truth.samples(fleet))
    starts_s = dict.fromkeys(model.starts_s, 0.0) if change.no_start else model.starts_s
    costs = Costs(launch_s=0.0 if change.no_messages else model.message_s, starts_s=starts_s)
    name = str(run.head.get("policy") or "eft")
    try:
        result = simulate(
            Program(tasks), fleet, truth, policy=_REPLAYED.get(name, name) if name in OURS else "eft", cost=cost,
            topology=_topology(run, change.link), costs=costs, check_every=10**9,
        )  # fmt: skip
    except (AssertionError, HeteroError):
        return None
    if result.failures:
        return None
    return result.makespan_s + (0.0 if change.early else model.quiet_s)


def _tasks(model: _Model, change: _Change) -> Iterator[SimTask]:
    run, kept = model.run, {each.number for each in model.entries}
    for each in model.entries:
        record = run.tasks[each.number]
        request = _request(model, record.request, record.name == change.free)
        inputs = tuple(item for item in record.inputs if item in kept and item in model.nbytes)
        after = tuple(dict.fromkeys(item for item in (*record.after, *each.because) if item in kept))
        task = Task(each.number, record.name, record.signature, 0.0, inputs, after, request)
        yield SimTask(task, 0.0 if change.early else each.at_s, model.nbytes.get(each.number, 0))


def _request(model: _Model, request: Request, free: bool) -> Request:
    """Return a request as it is replayed: without what only a live run can have, and where wanted without words."""
    key = (id(request), free)
    if key not in model.requests:
        words = {"on": (), "not_on": (), "near": (), "apart": ()} if free else {}
        model.requests[key] = replace(request, timeout_s=0.0, lease=0, memory_bytes=0, **words)  # type: ignore[arg-type]
    return model.requests[key]


def _topology(run: RunRecord, times: float) -> Topology:
    told = run.head.get("topology") or {}
    links = [Link(**each) for each in told.get("links", ())]
    faster = [
        replace(each, latency_s=each.latency_s / times, bandwidth_bytes_per_s=times * each.bandwidth_bytes_per_s)
        for each in links
    ]
    return Topology(tuple(MemoryNode(**each) for each in told.get("nodes", ())), tuple(faster))


class _Truth:
    """How long each task takes on each device in a replay."""

    def __init__(self, model: _Model, change: _Change) -> None:
        self._model, self._change = model, change
        self._index = {device.id: index for index, device in enumerate(model.run.devices)}
        self._took = {each.number: self._seconds(each) for each in model.entries}
        groups: dict[tuple[str, int], list[float]] = defaultdict(list)
        for each in model.entries:
            groups[model.run.tasks[each.number].signature, each.attempt.device].append(self._took[each.number])
        self._middle = {key: median(values) for key, values in groups.items()}
        self._home = {each.number: each.attempt.device for each in model.entries}
        self._wasted = {each.number: each.wasted_s for each in model.entries}
        self._by_signature: dict[str, dict[int, float]] = defaultdict(dict)
        for (signature, device), seconds in self._middle.items():
            self._by_signature[signature][device] = seconds
        self._known: dict[tuple[str, int], float] = {}

    def _seconds(self, entry: _Entry) -> float:
        """Return s that an attempt takes on its device with the change."""
        change, each = self._change, entry.attempt
        name = self._model.run.tasks[entry.number].name
        seconds = each.taken_s + (each.link_in_s + each.link_out_s) / change.link
        if change.quick_load == name:
            seconds -= each.load_s
        if change.quick_store == name:
            seconds -= each.store_s + each.wait_s
        return max(seconds * self._idle_frac(entry), 1e-9) if change.idle else max(seconds, 1e-9)

    def _idle_frac(self, entry: _Entry) -> float:
        """Return what of an attempt's time is left where no other program computes.

        Notes
        -----
        Of a device that is throttled to f the others may have 1 - f without holding it up: it computed for at most
        1 - busy of the time, and takes 1 / f of that by itself.
        """
        throttle = self._model.run.devices[entry.attempt.device].throttle_frac
        return min(1.0, (1.0 - entry.busy_frac) / throttle)

    def __call__(self, task: Task, device: Device) -> float:
        """Return s that a task takes on a device."""
        here, home = self._index[device.id], self._home[task.id]
        usual = max(self._middle[task.signature, home], 1e-9)
        factor = self._took[task.id] / usual
        if self._change.even and factor > _STRAGGLER:
            factor = 1.0
        seconds = usual if here == home else self._expected(task.signature, here)
        return seconds * factor + (0.0 if self._change.no_waste else self._wasted[task.id])

    def _expected(self, signature: str, device: int) -> float:
        key = (signature, device)
        if key not in self._known:
            self._known[key] = self._guess(signature, device)
        return self._known[key]

    def _guess(self, signature: str, device: int) -> float:
        measured, devices = self._by_signature[signature], self._model.run.devices
        if device in measured:
            return measured[device]
        like = [s for other, s in measured.items() if devices[other].model_key == devices[device].model_key]
        if like:
            return median(like)
        guesses = []
        for home, seconds in measured.items():
            ratios = [
                took[device] / took[home] for took in self._by_signature.values() if device in took and home in took
            ]
            if ratios:
                guesses.append(seconds * median(ratios))
        return median(guesses) if guesses else min(measured.values())

    def samples(self, fleet: list[Device]) -> list[Sample]:
        """Return what history tells of each function on each device where it ran."""
        left = {device.id for device in fleet}
        return [
            Sample(signature, self._model.run.devices[device].model_key, 0.0, seconds)
            for (signature, device), seconds in sorted(self._middle.items())
            if self._model.run.devices[device].id in left
            for _ in range(3)
        ]
