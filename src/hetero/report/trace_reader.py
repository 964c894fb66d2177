"""Reading a run from its trace: which attempt each event belongs to, and which events are missing.

In: events and commands in order. Out: a `RunRecord`, with one line for each event that contradicts another.
It must not judge where time went: that is `account`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from math import inf
from pathlib import Path

from hetero.drive.trace import read_trace
from hetero.floor.errors import BadValueError, TraceError, did_you_mean
from hetero.model.annotations import NOTES, TASK_NOTES, CollectiveDone, PhasesRun, TaskParts
from hetero.model.commands import Commit, Fail, Free, Launch, Recommit, Run, RunGroup, Transfer, Warn
from hetero.model.device import Device, DeviceType
from hetero.model.events import (
    DeviceAdded,
    DeviceLost,
    DeviceReady,
    ItemPut,
    TaskFailed,
    TaskFinished,
    TaskResumed,
    TaskSubmitted,
    TaskSuspended,
    TaskWithdrawn,
    TransferFailed,
    TransferFinished,
    UtilisationReported,
)
from hetero.model.tasks import Request
from hetero.report.phases import TOGETHER
from hetero.report.record import Attempt, Outcome, RunRecord, TaskRecord, TransferRecord, nothing_collected

__all__ = ["collect", "only", "read_run"]

_TASKS_MAX = 1_500_000
"""Tasks that are read of one trace, which take about 4 GB."""


def read_run(path: Path | str) -> RunRecord:
    """Read a trace as far as it goes.

    Raises
    ------
    TraceError
        The file cannot be read, is no trace, or was written by a newer version. A file that is corrupt further on
        is read up to there, one of more than 1,500,000 tasks up to that many, and `problems` says so.
    """
    trace = read_trace(path).printable()
    collector = _Collector(trace.devices())
    broken = ""
    with nothing_collected():
        try:
            for at_s, record in trace:
                collector.take(at_s, record)
                if type(record) is TaskSubmitted and collector.is_full:
                    broken = f"{path} is longer than a report can be: this is about its first {_TASKS_MAX:,} tasks"
                    break
        except TraceError as error:
            broken = str(error)
        run = collector.finish(torn=bool(broken) or trace.torn)
    run.head = trace.head
    if broken:
        run.problems.insert(0, broken)
    return run


def collect(records: Iterable[tuple[float, object]], devices: Iterable[Device] = ()) -> RunRecord:
    """Create a run of events and commands with their times, all of them there."""
    collector = _Collector(tuple(devices))
    for at_s, record in records:
        collector.take(at_s, record)
    return collector.finish(torn=False)


def only(run: RunRecord, functions: Collection[str]) -> RunRecord:
    """Return the part of a run that is about some functions, from their first submission to their last outcome.

    Raises
    ------
    BadValueError
        No task of the run has one of these names.
    """
    tasks = {number: task for number, task in run.tasks.items() if task.name in functions}
    if not tasks:
        known = sorted({task.name for task in run.tasks.values()})
        close = did_you_mean(next(iter(functions), ""), known)
        problem = f"no task of the run is named {' or '.join(map(repr, functions))}{close}"
        raise BadValueError(problem, remedy=f"there are: {', '.join(known[:20])}")
    begin_s = min(task.submitted_s for task in tasks.values())
    end_s = max(begin_s, *(task.over_s for task in tasks.values() if task.over_s < inf))
    attempts = [each for each in run.attempts if each.task in tasks]
    return replace(
        run,
        tasks=tasks,
        attempts=attempts,
        queued=[each for each in run.queued if begin_s <= each[1] <= end_s],
        transfers=[each for each in run.transfers if begin_s <= each.start_s <= end_s],
        notes=[each for each in run.notes if not isinstance(each, TASK_NOTES) or each.task in tasks],
        begin_s=begin_s,
        end_s=max(end_s, max((each.end_s for each in attempts), default=end_s)),
    )


def _sum_between(edges: list[float]) -> float:
    """Return the seconds from each edge with an even place to the next one."""
    return sum(end_s - start_s for start_s, end_s in zip(edges[::2], edges[1::2], strict=False))


class _Collector:
    """Takes records one by one."""

    def __init__(self, devices: tuple[Device, ...]) -> None:
        self._run = RunRecord()
        self._index: dict[str, int] = {}
        self._open: dict[tuple[int, int, int], tuple[float, float]] = {}
        self._over: set[tuple[int, int, int]] = set()
        self._parts: dict[tuple[int, int, int], TaskParts] = {}
        self._cuts: dict[tuple[int, int, int], list[float]] = {}
        self._on_device: list[dict[tuple[int, int, int], None]] = []
        self._ready_since: list[float | None] = []
        self._last_end_s: list[float] = []
        self._moving: dict[tuple[int, str, str], list[tuple[float, int]]] = defaultdict(list)
        self._at_s = 0.0
        self._requests: dict[str, Request] = {}
        self._take: dict[type, Callable[..., None]] = {
            TaskSubmitted: self._submitted,
            Run: self._launched,
            RunGroup: self._group_launched,
            TaskFinished: self._finished,
            TaskFailed: self._failed,
            TaskWithdrawn: self._withdrawn,
            TaskSuspended: self._suspended,
            TaskResumed: self._resumed,
            Commit: self._committed,
            Recommit: self._recommitted,
            Fail: self._gave_up,
            DeviceAdded: lambda at_s, record: self._add(record.device),
            DeviceReady: self._ready,
            DeviceLost: self._lost,
            Transfer: self._ordered,
            TransferFinished: self._moved,
            TransferFailed: self._stuck,
            ItemPut: lambda at_s, record: self._run.put.append((record.item, record.nbytes, record.node, at_s)),
            UtilisationReported: self._used,
            Free: lambda at_s, record: self._run.freed.append((record.item, record.node, at_s)),
            Warn: lambda at_s, record: self._run.warnings.append((at_s, record.text)),
            **dict.fromkeys(NOTES, lambda at_s, record: self._run.notes.append(record)),
            TaskParts: self._timed,
            PhasesRun: self._phased,
        }
        for device in devices:
            self._add(device)

    @property
    def is_full(self) -> bool:
        return len(self._run.tasks) >= _TASKS_MAX

    def take(self, at_s: float, record: object) -> None:
        self._at_s = at_s
        take = self._take.get(type(record))
        if take is not None:
            take(at_s, record)

    def _problem(self, text: str) -> None:
        self._run.problems.append(text)

    def _add(self, device: Device) -> None:
        if device.id not in self._index:
            self._index[device.id] = len(self._index)
            self._run.devices = (*self._run.devices, device)
            self._run.up.append([])
            self._run.lost.append([])
            self._on_device.append({})
            self._ready_since.append(None)
            self._last_end_s.append(0.0)

    def _device(self, name: str) -> int:
        index = self._index.get(name)
        if index is None:
            self._problem(f"device {name} was never added")
            self._add(Device(name, "null", DeviceType("NULL"), ""))
            index = self._index[name]
        return index

    # tasks

    def _submitted(self, at_s: float, record: TaskSubmitted) -> None:
        task = record.task
        known = self._run.tasks.get(task.id)
        since_s = known.submitted_s if known else at_s
        self._run.tasks[task.id] = TaskRecord(task.name, task.signature, task.inputs, task.after, task.request, since_s)

    def _launched(self, at_s: float, record: Run) -> None:
        device = self._device(record.device)
        for launch in record.launches:
            self._launch(at_s, device, launch)

    def _group_launched(self, at_s: float, record: RunGroup) -> None:
        for name in record.devices:
            self._launch(at_s, self._device(name), record.launch)

    def _launch(self, at_s: float, device: int, launch: Launch) -> None:
        task, attempt, predicted_s, _ = launch
        if task not in self._run.tasks:
            self._problem(f"task {task} was launched but never submitted")
        if self._ready_since[device] is None:
            self._problem(f"task {task} was launched on {self._run.devices[device].id}, which was not ready")
        key = (task, attempt, device)
        self._open[key] = (at_s, predicted_s)
        self._on_device[device][key] = None

    def _close(self, key: tuple[int, int, int], what: str) -> tuple[float, float] | None:
        found = self._open.pop(key, None)
        if found is None:
            if key not in self._over:
                where = self._run.devices[key[2]].id
                self._problem(f"attempt {key[1]} of task {key[0]} {what} on {where} but was never launched there")
            return None
        self._over.add(key)
        del self._on_device[key[2]][key]
        return found

    def _finished(self, at_s: float, record: TaskFinished) -> None:
        self._ended(record, "unused")
        if record.nbytes:
            self._run.put.append((record.task, record.nbytes, record.node, at_s))

    def _failed(self, at_s: float, record: TaskFailed) -> None:
        self._ended(record, "failed")

    def _timed(self, at_s: float, record: TaskParts) -> None:
        self._parts[record.task, record.attempt, self._device(record.device)] = record

    def _ended(self, record: TaskFinished | TaskFailed, outcome: Outcome) -> None:
        device = self._device(record.device)
        key = (record.task, record.attempt, device)
        told = self._parts.pop(key, None)
        found = self._close(key, "ended")
        if found is None:
            return
        launch_s, predicted_s = found
        parts = (0.0,) * 5
        if told is not None:
            parts = (told.link_in_s, told.load_s, told.store_s, told.wait_s, told.link_out_s)
        end_s = record.started_s + record.seconds + parts[0] + parts[4]
        if outcome == "failed" and record.seconds <= 0.0:
            self._run.queued.append((device, launch_s, end_s))
            return
        cuts = self._cuts.pop(key, [record.started_s])[1:]
        if cuts:
            end_s = cuts[-1] + end_s - record.started_s - _sum_between([record.started_s, *cuts])
        self._last_end_s[device] = max(self._last_end_s[device], end_s)
        begun = Attempt(*key, launch_s, record.started_s, end_s, predicted_s, outcome, *parts)
        self._append_in_pieces(begun, [record.started_s, *cuts, end_s])

    def _suspended(self, at_s: float, record: TaskSuspended) -> None:
        self._cut((record.task, record.attempt, self._device(record.device)), record.since_s)

    def _resumed(self, at_s: float, record: TaskResumed) -> None:
        self._cut((record.task, record.attempt, self._device(record.device)), record.since_s)

    def _cut(self, key: tuple[int, int, int], since_s: float) -> None:
        """Note when an attempt gave its device up, or got it back; before that, when it began, as far as is known."""
        if key in self._open:
            last_s = self._last_end_s[key[2]]
            self._cuts.setdefault(key, [max(self._open[key][0], last_s)]).append(since_s)
            self._last_end_s[key[2]] = max(last_s, since_s)

    def _append_in_pieces(self, attempt: Attempt, edges: list[float]) -> None:
        """Add an attempt for each time that it had its device: what it loaded in the first, what it stored in the last.

        Parameters
        ----------
        edges
            When it began, gave its device up, got it back, and so on, and ended.
        """
        pieces = list(zip(edges[::2], edges[1::2], strict=False))
        for place, (start_s, end_s) in enumerate(pieces):
            piece = attempt._replace(start_s=start_s, end_s=end_s)
            if place:
                piece = piece._replace(link_in_s=0.0, load_s=0.0)
            if place < len(pieces) - 1:
                piece = piece._replace(store_s=0.0, wait_s=0.0, link_out_s=0.0)
            if place:
                self._run.attempts.append(piece)
            else:
                self._append(piece)

    def _append(self, attempt: Attempt) -> None:
        self._run.attempts.append(attempt)
        device, launch_s, start_s = attempt.device, attempt.launch_s, attempt.start_s
        if start_s > launch_s:
            self._run.queued.append((device, launch_s, start_s))

    def _withdrawn(self, at_s: float, record: TaskWithdrawn) -> None:
        device = self._device(record.device)
        found = self._close((record.task, record.attempt, device), "was withdrawn")
        if found is not None:
            self._run.queued.append((device, found[0], at_s))

    def _committed(self, at_s: float, record: Commit) -> None:
        task = self._run.tasks.get(record.task)
        if task is None:
            self._problem(f"task {record.task} was committed but never submitted")
            return
        if task.commit is not None:
            self._problem(f"task {record.task} was committed twice")
        task.commit = (record.attempt, record.device)
        task.over_s = at_s
        if (record.task, record.attempt, self._device(record.device)) not in self._over:
            self._problem(f"task {record.task} was committed but its attempt {record.attempt} never ended")

    def _recommitted(self, at_s: float, record: Recommit) -> None:
        task = self._run.tasks.get(record.task)
        if task is None or task.commit is None:
            self._problem(f"task {record.task} was committed again but never before")

    def _gave_up(self, at_s: float, record: Fail) -> None:
        task = self._run.tasks.get(record.task)
        if task is None:
            self._problem(f"task {record.task} failed but was never submitted")
        elif task.commit is None:
            task.over_s = at_s
            task.failure = record.failure.message or record.failure.kind

    # phases

    def _phased(self, at_s: float, record: PhasesRun) -> None:
        """Add a task for each phase of a step, so that it is shown and counted as any other."""
        device = self._device(record.device)
        self._run.notes.append(record)
        request = self._requests.setdefault(record.device, Request(on=(record.device,)))
        from_s = record.started_s
        for name, seconds in zip(record.names, record.seconds, strict=False):
            number, until_s = len(self._run.tasks) + 1, from_s + seconds
            self._run.tasks[number] = TaskRecord(
                name, name, (), (), request, from_s, over_s=until_s, commit=(1, record.device)
            )
            load_s = seconds if name == "read" else 0.0
            self._run.attempts.append(Attempt(number, 1, device, from_s, from_s, until_s, inf, "unused", load_s=load_s))
            if name in TOGETHER:
                which = (number, 1, record.device, name, "between processes", device, len(self._run.devices))
                self._run.notes.append(CollectiveDone(at_s, *which, 0, from_s, seconds, 1))
            from_s = until_s

    # devices

    def _ready(self, at_s: float, record: DeviceReady) -> None:
        device = self._device(record.device)
        if self._ready_since[device] is None:
            self._ready_since[device] = at_s

    def _lost(self, at_s: float, record: DeviceLost) -> None:
        device = self._device(record.device)
        since_s = self._ready_since[device]
        if since_s is not None:
            self._run.up[device].append((since_s, at_s))
            self._ready_since[device] = None
        self._run.lost[device].append((at_s, record.reason))
        self._end_open(device, at_s)
        node = self._run.devices[device].memory_node
        for item, src, dst in [key for key in self._moving if node in key[1:]]:
            for start_s, nbytes in self._moving.pop((item, src, dst)):
                self._run.transfers.append(TransferRecord(item, src, dst, nbytes, start_s, at_s, False))

    def _end_open(self, device: int, at_s: float) -> None:
        """End what a device had: the first in its queue was running, as far as anybody knows."""
        for place, key in enumerate(list(self._on_device[device])):
            launch_s, predicted_s = self._open.pop(key)
            self._over.add(key)
            begin_s = max(launch_s, self._last_end_s[device])
            cuts = self._cuts.pop(key, [])
            if cuts:
                edges = cuts if len(cuts) % 2 == 0 else [*cuts, at_s]
                self._append_in_pieces(Attempt(*key, launch_s, begin_s, at_s, predicted_s, "lost"), edges)
            elif place == 0 and begin_s < at_s:
                self._append(Attempt(*key, launch_s, begin_s, at_s, predicted_s, "lost"))
            else:
                self._run.queued.append((device, launch_s, at_s))
        self._on_device[device].clear()

    def _used(self, at_s: float, record: UtilisationReported) -> None:
        self._run.used.setdefault(self._device(record.device), []).append((at_s, record.busy_frac))

    # data

    def _ordered(self, at_s: float, record: Transfer) -> None:
        self._moving[record.item, record.src, record.dst].append((at_s, record.nbytes))

    def _order_of(self, item: int, src: str, dst: str) -> tuple[float, int] | None:
        orders = self._moving.get((item, src, dst))
        if orders:
            found = orders.pop(0)
            if not orders:
                del self._moving[item, src, dst]
            return found
        return None

    def _moved(self, at_s: float, record: TransferFinished) -> None:
        item, src, dst = record.item, record.src, record.dst
        if self._order_of(item, src, dst) is None:
            if not any(each[:3] == (item, src, dst) for each in reversed(self._run.transfers)):
                self._problem(f"item {item} was copied from {src} to {dst} without an order")
            return
        end_s = record.started_s + record.seconds
        self._run.transfers.append(TransferRecord(item, src, dst, record.nbytes, record.started_s, end_s, True))
        self._run.put.append((item, record.nbytes, dst, at_s))

    def _stuck(self, at_s: float, record: TransferFailed) -> None:
        order = self._order_of(record.item, record.src, record.dst)
        if order is not None:
            found = TransferRecord(record.item, record.src, record.dst, order[1], order[0], at_s, False)
            self._run.transfers.append(found)

    # the end

    def finish(self, torn: bool) -> RunRecord:
        run = self._run
        run.torn = torn
        self._set_bounds()
        if not torn:
            self._find_what_is_missing()
        for device, since_s in enumerate(self._ready_since):
            if since_s is not None:
                run.up[device].append((since_s, max(since_s, run.end_s)))
            self._end_open(device, run.end_s)
        commits = {number: task.commit[0] for number, task in run.tasks.items() if task.commit is not None}
        run.attempts = [
            each._replace(outcome="done")
            if each.outcome == "unused" and commits.get(each.task) == each.attempt
            else each
            for each in run.attempts
        ]
        for task in run.tasks.values():
            needed = [run.tasks[each].over_s for each in task.after if each in run.tasks]
            task.ready_s = max(task.submitted_s, *needed) if needed else task.submitted_s
        return run

    def _set_bounds(self) -> None:
        run = self._run
        begins = (*(each.submitted_s for each in run.tasks.values()), *(each.start_s for each in run.attempts))
        ends = (
            *(each.over_s for each in run.tasks.values() if each.over_s < inf),
            *(each.end_s for each in run.attempts),
        )
        run.begin_s = min(begins, default=0.0)
        run.end_s = max(run.begin_s, max(ends, default=run.begin_s), self._at_s if run.torn and begins else 0.0)

    def _find_what_is_missing(self) -> None:
        run = self._run
        for task, attempt, device in self._open:
            self._problem(f"attempt {attempt} of task {task} was launched on {run.devices[device].id} but never ended")
        for number, task_record in run.tasks.items():
            if task_record.over_s == inf:
                self._problem(f"task {number} was submitted but never answered")
        for item, src, dst in self._moving:
            self._problem(f"the copy of item {item} from {src} to {dst} was ordered but never ended")
