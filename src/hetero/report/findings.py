"""What a report says of a run: figures, sentences, losses, predictions against measurements.

In: a `RunRecord`. Out: `Findings`, plain values for the page, the terminal and programs.
It must not format for one of them only, and every figure carries its unit in its name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import NamedTuple

import numpy as np

from hetero.floor.units import format_seconds
from hetero.model.annotations import OperatorsRun
from hetero.model.device import Device
from hetero.report.account import CATEGORIES, Account, CollectiveTime, account, collective_times
from hetero.report.best_possible import Best, best_possible
from hetero.report.causes import Gain, Gains, gains
from hetero.report.intervals import by_owner, column
from hetero.report.phases import ProcessTime, process_times
from hetero.report.phases import sentence as process_sentence
from hetero.report.planning import Planning, planning
from hetero.report.planning import sentence as planning_sentence
from hetero.report.prices import lost_usd, rates
from hetero.report.prices import sentence as money_sentence
from hetero.report.record import Attempt, RunRecord, nothing_collected
from hetero.report.training import Training, training
from hetero.report.training import sentences as training_sentences

__all__ = [
    "LOSSES",
    "ChainLink",
    "Findings",
    "OperatorTime",
    "Prediction",
    "critical_chain",
    "find",
    "gain_words",
    "longest_path",
    "operators",
    "operators_sentence",
]


class ChainLink(NamedTuple):
    """One link of the chain that held the run up.

    Attributes
    ----------
    attempt
        Index in `RunRecord.attempts`.
    waited_s
        Seconds between what it waited for and its start.
    cause
        Why it began when it did: 'data' (a task before it ended), 'device' (the attempt before it on its device ended),
        or 'submission'.
    """

    attempt: int
    waited_s: float
    cause: str


def critical_chain(run: RunRecord) -> list[ChainLink]:
    """Walk back from the last finish: each attempt began after the latest of what it waited for."""
    if not run.attempts:
        return []
    places = _by_device(run)
    ended: dict[int, int] = {}
    for index, each in enumerate(run.attempts):
        if each.outcome == "done":
            ended[each.task] = index
    at = len(run.attempts) - 1 - int(column(run.attempts[::-1], "end_s").argmax())
    chain: list[ChainLink] = []
    seen = set()
    while at not in seen:
        seen.add(at)
        attempt = run.attempts[at]
        cause, before, since_s = _reason(run, at, attempt, places[attempt.device], ended)
        chain.append(ChainLink(at, max(0.0, attempt.start_s - since_s), cause))
        if before is None:
            break
        at = before
    return chain[::-1]


def _by_device(run: RunRecord) -> dict[int, tuple[list[float], list[int]]]:
    """Return for each device the ends of its attempts, ascending, and their places."""
    owners, ends = column(run.attempts, "device").astype(np.int64), column(run.attempts, "end_s")
    order = np.argsort(ends, kind="stable")
    split = by_owner(owners[order], (ends[order], order.astype(float)), len(run.devices))
    return {device: (end.tolist(), at.astype(int).tolist()) for device, (end, at) in enumerate(split)}


def _reason(
    run: RunRecord, at: int, attempt: Attempt, here: tuple[list[float], list[int]], ended: dict[int, int]
) -> tuple[str, int | None, float]:
    """Return why an attempt began when it did, the attempt that it waited for, and when that ended."""
    task = run.tasks.get(attempt.task)
    found: tuple[str, int | None, float] = ("submission", None, task.submitted_s if task else attempt.launch_s)
    for parent in task.after if task else ():
        index = ended.get(parent)
        if index is not None and found[2] < run.attempts[index].end_s <= attempt.start_s:
            found = ("data", index, run.attempts[index].end_s)
    place = bisect_right(here[0], attempt.start_s) - 1
    while place >= 0 and here[1][place] == at:
        place -= 1
    if place >= 0 and here[0][place] > found[2]:
        found = ("device", here[1][place], here[0][place])
    return found


def longest_path(run: RunRecord) -> tuple[list[int], float]:
    """Return the tasks of the longest chain of the task graph, by what they took, and its seconds."""
    taken: dict[int, float] = {}
    for each in run.attempts:
        if each.outcome == "done":
            taken[each.task] = max(taken.get(each.task, 0.0), each.end_s - each.start_s)
    reach: dict[int, float] = {}
    before: dict[int, int] = {}
    for number in sorted(run.tasks, key=lambda each: (run.tasks[each].ready_s, each)):
        longest_s = -1.0
        for parent in run.tasks[number].after:
            reach_s = reach.get(parent, -inf)
            if reach_s > longest_s or (reach_s == longest_s and parent < before[number]):
                before[number], longest_s = parent, reach_s
        reach[number] = taken.get(number, 0.0) + max(longest_s, 0.0)
    if not reach:
        return [], 0.0
    last = max(reach, key=lambda each: (reach[each], -each))
    path = [last]
    while path[-1] in before:
        path.append(before[path[-1]])
    return path[::-1], reach[last]


LOSSES = tuple(name for name in CATEGORIES if name != "compute")
_IN_TRAINING = {
    "start-up": "train for longer: workers start once",
    "collective": "take a larger global batch, so that a step computes for longer",
    "waiting for work": "see above which devices were left out, and why; a device without samples waits",
}

_WITHOUT = {
    "start-up": "with workers that had started",
    "device": "without {}",
    "pin": "with {} on any device",
    "load": "on an idle host",
    "link": "with links twice as fast",
    "loading": "with nothing to load for {}",
    "storing": "with nothing to store of {}",
    "attempts": "without failed attempts",
    "late": "with all tasks handed in at once",
    "stragglers": "with no task far longer than others of its function",
    "messages": "without the time between tasks",
}
"""What is different in the replay of each cause."""
_GAINS = 3
_TOLD_FRAC = 0.02
_EPSILON_S = 1e-9


class OperatorTime(NamedTuple):
    """One operator on one device.

    Attributes
    ----------
    device
        Short name.
    calls
        How often it was called in what was profiled.
    own_s
        Seconds that it took, without those of what it called.
    share_frac
        Of all operators of that device.
    """

    operator: str
    device: str
    calls: int
    own_s: float
    share_frac: float


def operators(run: RunRecord) -> tuple[OperatorTime, ...]:
    """Return the operators by the time that they took, the longest first."""
    short = {device.id: device.short for device in run.devices}
    sums: dict[tuple[str, str], tuple[int, float]] = {}
    whole: dict[str, float] = defaultdict(float)
    for note in run.notes:
        if isinstance(note, OperatorsRun):
            for name, calls, own_s in zip(note.operators, note.calls, note.own_s, strict=True):
                before = sums.get((name, note.device), (0, 0.0))
                sums[name, note.device] = (before[0] + calls, before[1] + own_s)
                whole[note.device] += own_s
    rows = [
        OperatorTime(name, short.get(device, device), calls, own_s, own_s / whole[device] if whole[device] else 0.0)
        for (name, device), (calls, own_s) in sums.items()
    ]
    return tuple(sorted(rows, key=lambda each: (-each.own_s, each.operator, each.device)))


def operators_sentence(rows: Sequence[OperatorTime]) -> str:
    """Return which operators took most time."""
    told = [
        f"{each.operator} on {each.device} ({format_seconds(each.own_s)}, {100.0 * each.share_frac:.0f} %)"
        for each in rows[:3]
    ]
    return f"The operators that took most time: {', '.join(told)}."


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one function was expected to take on one model of device, and took.

    Attributes
    ----------
    runs
        Attempts with a prediction.
    predicted_s, measured_s
        Seconds, medians.
    error_frac
        Median of |measured - predicted| / measured.
    """

    function: str
    device: str
    runs: int
    predicted_s: float
    measured_s: float
    error_frac: float


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known of a run.

    Attributes
    ----------
    tasks, failed, retried
        Tasks committed; failed for good; attempts that did not count.
    span_s, makespan_s
        Seconds, first submission to last outcome; first start to last finish.
    account
        Where the time went.
    best
        The lower bound.
    gains
        What the run would have gained without one cause, as replays in the simulator tell; none of a training.
    others_frac
        Share of the devices' time that other programs used, as far as it was told.
    chain
        What held the run up, first to last.
    path, path_s
        The longest chain of the task graph, and its s.
    predictions
        Per function and device.
    training
        What was told of training, None where there was none.
    processes
        The time of each process of a launched script, by phase; empty for other runs.
    planning
        What was told of plans, None where nothing planned ahead.
    collectives
        What members of groups told of collectives, those that took longest first.
    operators
        What a profiler told of operators, those that took longest first; empty where none did.
    usd
        Per device its price for the run, None where its price per hour is not known.
    price_origins
        Per device where that price is from: 'yours', or the catalog with its source; '' without.
    sentences
        The summary, most important first.
    """

    tasks: int
    failed: int
    retried: int
    span_s: float
    makespan_s: float
    bytes_moved: int
    torn: bool
    account: Account
    best: Best
    gains: Gains
    others_frac: float
    chain: list[ChainLink]
    path: list[int]
    path_s: float
    predictions: list[Prediction]
    usd: tuple[float | None, ...]
    price_origins: tuple[str, ...]
    sentences: tuple[str, ...]
    problems: tuple[str, ...]
    devices: tuple[Device, ...]
    training: Training | None
    processes: tuple[ProcessTime, ...]
    planning: Planning | None
    operators: tuple[OperatorTime, ...]
    collectives: tuple[CollectiveTime, ...]

    def as_dict(self) -> dict[str, object]:
        """Return all figures by name, for programs."""
        plain = {
            name: getattr(self, name)
            for name in ("tasks", "failed", "retried", "span_s", "makespan_s", "bytes_moved", "torn", "path_s")
        }
        rows = zip(self.devices, self.account.seconds, self.usd, self.price_origins, strict=True)
        return {
            **plain,
            "best": asdict(self.best),
            "gains": [each._asdict() for each in self.gains.found],
            "others_frac": self.others_frac,
            "devices": [
                {"id": each.id, "name": each.name, "seconds": took, "usd": usd, "usd_from": origin}
                for each, took, usd, origin in rows
            ],
            "lost_s": {name: self.account.total_s(name) for name in LOSSES},
            "lost_usd": {name: lost_usd(self.account, self.usd, name) for name in LOSSES} if any(self.usd) else None,
            "critical_chain": [each._asdict() for each in self.chain],
            "longest_path": self.path,
            "predictions": [asdict(each) for each in self.predictions],
            "sentences": list(self.sentences),
            "problems": list(self.problems),
            "training": self.training.as_dict() if self.training else None,
            "processes": [each.as_dict() for each in self.processes],
            "collectives": [each._asdict() for each in self.collectives],
            "operators": [each._asdict() for each in self.operators],
            "plan": self.planning.as_dict() if self.planning else None,
        }


def find(run: RunRecord, usd_per_hour: Mapping[str, float] | None = None) -> Findings:
    """Analyse a run.

    Parameters
    ----------
    usd_per_hour
        Price per hour by device id, label, name or kind; where none is given, the catalog's.

    Raises
    ------
    BadValueError
        A price is for a device that the run did not have.
    """
    with nothing_collected():
        given = account(run)
        processes = process_times(run)
        best = Best(run.span_s, 0.0, "load", 0, 0, 0.0) if processes else best_possible(run)
        path, path_s = longest_path(run)
        predictions = _predictions(run)
        trained = training(run)
        gained = gains(run) if trained is None and not processes else Gains((), 0.0, 0)
    counts = Counter(each.outcome for each in run.attempts)
    committed = sum(1 for each in run.tasks.values() if each.commit is not None)
    failed = sum(1 for each in run.tasks.values() if each.failure)
    rated = rates(run.devices, usd_per_hour or {})
    found = Findings(
        tasks=committed,
        failed=failed,
        retried=len(run.attempts) - counts["done"],
        span_s=run.span_s,
        makespan_s=run.makespan_s,
        bytes_moved=sum(each.nbytes for each in run.transfers if each.ok),
        torn=run.torn,
        account=given,
        best=best,
        gains=gained,
        others_frac=_others_frac(run),
        chain=[] if processes else critical_chain(run),
        path=path,
        path_s=path_s,
        predictions=predictions,
        usd=tuple(None if each is None else each[0] * run.span_s / 3600.0 for each in rated),
        price_origins=tuple("" if each is None else each[1] for each in rated),
        sentences=(),
        problems=given.problems,
        devices=run.devices,
        training=trained,
        processes=processes,
        planning=planning(run),
        operators=operators(run),
        collectives=collective_times(run),
    )
    return replace(found, sentences=tuple(_sentences(run, found)))


def _predictions(run: RunRecord) -> list[Prediction]:
    found: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    taken: dict[tuple[int, int, int, float], float] = defaultdict(float)
    for each in run.attempts:
        if each.outcome == "done" and each.predicted_s < inf and each.task in run.tasks:
            taken[each.task, each.attempt, each.device, each.predicted_s] += each.taken_s
    for (task, _, device, predicted_s), seconds in taken.items():
        found[run.tasks[task].name, device].append((predicted_s, seconds))
    told = []
    for (name, device), pairs in sorted(found.items()):
        predicted, took = np.array(pairs).T
        errors = np.abs(took - predicted) / np.maximum(took, _EPSILON_S)
        middle = (float(np.median(each)) for each in (predicted, took, errors))
        told.append(Prediction(name, run.devices[device].short, len(pairs), *middle))
    return told


def _percent(part: float, whole: float) -> str:
    share = 100.0 * part / whole if whole > 0.0 else 0.0
    if 0.0 < share < 0.1:
        return "less than 0.1 %"
    return f"{share:.0f} %" if share >= 10.0 or share == 0.0 else f"{share:.1f} %"


def _sentences(run: RunRecord, found: Findings) -> list[str]:
    if not found.tasks and not found.failed:
        return [_nothing_ended(run) if run.torn and run.tasks else "No task ran."]
    told = [_failures(run, found)] if found.failed else []
    told.append(_what_ran(run, found))
    if found.others_frac >= _TOLD_FRAC:
        told.append(f"Other programs used {_percent(found.others_frac, 1.0)} of the devices' time.")
    inside = [operators_sentence(found.operators)] if found.operators else []
    money = list(filter(None, [money_sentence(found.account, found.usd, found.price_origins)]))
    if found.training is not None or found.processes:
        own = training_sentences(found.training) if found.training is not None else []
        own.append(process_sentence(found.processes) if found.processes else _whole_time(run, found))
        return [*told, *own, *inside, _who_worked(found), _largest_loss(found), *money]
    told.append(_who_worked(found))
    whole_s = found.span_s * len(found.devices)
    moving_s = sum(found.account.total_s(name) for name in ("transfer in", "transfer out", "collective"))
    moving = f"{_percent(moving_s, whole_s)} of the devices' time was communication that no computing hid."
    told.append(moving[0].upper() + moving[1:] if moving_s > 0.0 else "No device waited for communication.")
    if found.planning is not None:
        told.append(planning_sentence(found.planning, run))
    told.append(_how_far(found))
    told.append(_largest_loss(found))
    told.extend(_what_helps(found))
    told.extend(money)
    told.extend(_predicted(found))
    return [*told, *inside]


def _nothing_ended(run: RunRecord) -> str:
    count = f"{len(run.tasks):,} task{'s' if len(run.tasks) != 1 else ''}"
    return f"{count} had been handed in and none had ended when the trace broke off."


def _what_ran(run: RunRecord, found: Findings) -> str:
    used = len({each.device for each in run.attempts})
    again = f"; {found.retried:,} attempt{'s' if found.retried != 1 else ''} did not count" if found.retried else ""
    torn = " The trace has no end: this is what it told until then." if found.torn else ""
    tasks = f"{found.tasks:,} {'phase' if found.processes else 'task'}{'s' if found.tasks != 1 else ''}"
    return f"{tasks} ran on {used} of {len(found.devices)} devices in {format_seconds(found.span_s)}{again}.{torn}"


def _failures(run: RunRecord, found: Findings) -> str:
    reasons = Counter(each.failure for each in run.tasks.values() if each.failure)
    reason, count = reasons.most_common(1)[0]
    words = "1 task" if found.failed == 1 else f"{found.failed:,} tasks"
    return f"{words} failed; {'the' if len(reasons) == 1 else 'the commonest'} reason ({count:,} ×): {reason[:200]}"


def _who_worked(found: Findings) -> str:
    rows = zip(found.devices, found.account.seconds, strict=True)
    shares = sorted(((took["compute"], device.short) for device, took in rows), key=lambda each: (-each[0], each[1]))
    if len(shares) > 4:
        shares = [shares[0], shares[len(shares) // 2], shares[-1]]
        return (
            f"The busiest device, {shares[0][1]}, worked {_percent(shares[0][0], found.span_s)} of the time, "
            f"the middle one {_percent(shares[1][0], found.span_s)}, "
            f"the least busy, {shares[2][1]}, {_percent(shares[2][0], found.span_s)}."
        )
    words = [f"{name} worked {_percent(took, found.span_s)} of the time" for took, name in shares]
    return ", ".join(words) + "."


def _how_far(found: Findings) -> str:
    best = found.best
    why = {
        "path": "the longest chain of tasks takes that long on the fastest devices",
        "load": "all devices together need that long for the work",
    }.get(best.cause, "the work and the chains of tasks need that long")
    marked = f"; {best.estimated} of {best.pairs} times behind it are estimates" if best.estimated else ""
    return (
        f"The best possible placement would have ended at most {format_seconds(best.saving_s)} sooner "
        f"({_percent(best.saving_s, found.span_s)}): no placement needs less than {format_seconds(best.seconds)}, "
        f"because {why}{marked}."
    )


def _largest_loss(found: Findings) -> str:
    lost = sorted(LOSSES, key=lambda name: (-found.account.total_s(name), name))
    name = lost[0]
    total_s = found.account.total_s(name)
    if total_s <= 0.0:
        return "No device lost any time."
    share = _percent(total_s, found.span_s * len(found.devices))
    advice = f" What helps: {_IN_TRAINING[name]}." if found.training is not None and name in _IN_TRAINING else ""
    return (
        f"The largest loss was {name}: {format_seconds(total_s)} over all devices ({share}), in which a device "
        f"{CATEGORIES[name]}.{advice}"
    )


def _what_helps(found: Findings) -> list[str]:
    """Return what would have made the run shorter, the largest gain first."""
    if found.gains.nested:
        return ["Tasks waited for tasks that they had submitted; what held such a run up is not looked for by replays."]
    if not found.gains.found:
        return []
    words = [f"{gain_words(each)}: {format_seconds(each.seconds)}" for each in found.gains.found[:_GAINS]]
    return [f"The run would have ended sooner, by replays in the simulator: {'; '.join(words)}."]


def gain_words(gain: Gain) -> str:
    """Return what is different in the replay that a gain was measured by."""
    return _WITHOUT[gain.cause].format(gain.subject)


def _others_frac(run: RunRecord) -> float:
    """Return the share of the devices' time that others used, over those devices of which it was told."""
    shares = [sum(frac for _, frac in told) / len(told) for told in run.used.values() if told]
    return sum(shares) / len(shares) if shares else 0.0


def _whole_time(run: RunRecord, found: Findings) -> str:
    """Account for the whole time of a training run."""
    assert found.training is not None
    start_s = max((took["start-up"] for took in found.account.seconds), default=0.0)
    load_s = max((each.load_s for each in run.attempts), default=0.0)
    steps_s = sum(each.seconds for each in found.training.epochs)
    kept_s = sum(each.seconds for each in found.training.checkpoints)
    parts = {"starting workers": start_s, "loading data and model": load_s, "steps": steps_s, "checkpoints": kept_s}
    rest_s = max(0.0, found.span_s - sum(parts.values()))
    parts["probing devices, tests and waiting"] = rest_s
    words = [f"{name} {format_seconds(seconds)}" for name, seconds in parts.items() if seconds > 0.0]
    return f"Of the {format_seconds(found.span_s)} went to {', '.join(words)}."


def _predicted(found: Findings) -> list[str]:
    if not found.predictions:
        return []
    errors = sorted((each.error_frac, each.runs) for each in found.predictions)
    half, seen = sum(count for _, count in errors) / 2.0, 0
    for error_frac, count in errors:
        seen += count
        if seen >= half:
            return [f"Half of the run times were predicted within {100.0 * error_frac:.0f} %."]
    return []
