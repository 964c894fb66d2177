"""What a report says of a run: figures, sentences, losses, predictions against measurements.

In: a `RunRecord`. Out: `Findings`, plain values for the page, the terminal and programs.
It must not format for one of them only, and every figure carries its unit in its name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

import numpy as np

from hetero.floor.units import format_seconds
from hetero.model.device import Device
from hetero.report.account import CATEGORIES, Account, account
from hetero.report.best import Best, best_possible
from hetero.report.collectives import CollectiveTime, collective_times
from hetero.report.money import lost_usd, rates
from hetero.report.money import sentence as money_sentence
from hetero.report.operators import OperatorTime, operators
from hetero.report.operators import sentence as operator_sentence
from hetero.report.paths import Link, critical_chain, longest_path
from hetero.report.planning import Planning, planning
from hetero.report.planning import sentence as planning_sentence
from hetero.report.quick import nothing_collected
from hetero.report.record import RunRecord
from hetero.report.training import Training, training
from hetero.report.training import sentences as training_sentences

__all__ = ["LOSSES", "Findings", "Prediction", "find", "remedy"]

LOSSES = tuple(name for name in CATEGORIES if name != "compute")
REMEDIES = {
    "loading": "send less to a task (hetero.put for what many read), and import less in its function",
    "storing": "return less, or leave results where they were computed",
    "waiting for memory": "give a larger memory_pool_size, or return less at a time",
    "transfer in": "keep readers beside their data (near=…), or make fewer, larger tasks",
    "transfer out": "reduce where the data lies (ctx.reduce) instead of bringing it back",
    "collective": "give the slower members of the group less work",
    "waiting for data": "break the longest chain of tasks into smaller ones, or start it first (priority=…)",
    "waiting for work": "hand in more tasks at once, or use fewer devices",
    "retry": "see why attempts failed or workers died",
    "overhead": "make tasks longer, or use isolation: thread",
    "idle": "nothing, where that device is slow at this work; else see ctx.explain(task)",
}
"""What helps against each loss."""
_IN_TRAINING = {
    "collective": "take a larger global batch, so that a step computes for longer",
    "waiting for work": "see above which devices were left out, and why; a device without samples waits",
    "overhead": "train for longer: workers start once",
}

_EPSILON_S = 1e-9


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one function was expected to take on one model of device, and took.

    Attributes
    ----------
    runs : attempts with a prediction
    predicted_s, measured_s : s, medians
    error_frac : median of |measured - predicted| / measured
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
    tasks, failed, retried : tasks committed; failed for good; attempts that did not count
    span_s, makespan_s : s, first submission to last outcome; first start to last finish
    account : where the time went
    best : the lower bound
    chain : what held the run up, first to last
    path, path_s : the longest chain of the task graph, and its s
    predictions : per function and device
    training : what was told of training, None where there was none
    planning : what was told of plans, None where nothing planned ahead
    collectives : what members of groups told of collectives, those that took longest first
    operators : what a profiler told of operators, those that took longest first; empty where none did
    usd : per device its price for the run, None where its price per hour is not known
    price_origins : per device where that price is from: 'yours', or the catalog with its source; '' without
    sentences : the summary, most important first
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
    chain: list[Link]
    path: list[int]
    path_s: float
    predictions: list[Prediction]
    usd: tuple[float | None, ...]
    price_origins: tuple[str, ...]
    sentences: tuple[str, ...]
    problems: tuple[str, ...]
    devices: tuple[Device, ...]
    training: Training | None
    planning: Planning | None
    operators: tuple[OperatorTime, ...]
    collectives: tuple[CollectiveTime, ...]

    def as_dict(self) -> dict[str, Any]:
        """Give all figures by name, for programs."""
        plain = {
            name: getattr(self, name)
            for name in ("tasks", "failed", "retried", "span_s", "makespan_s", "bytes_moved", "torn", "path_s")
        }
        rows = zip(self.devices, self.account.seconds, self.usd, self.price_origins, strict=True)
        return {
            **plain,
            "best": asdict(self.best),
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
            "collectives": [each._asdict() for each in self.collectives],
            "operators": [each._asdict() for each in self.operators],
            "plan": self.planning.as_dict() if self.planning else None,
        }


def find(run: RunRecord, usd_per_hour: Mapping[str, float] | None = None) -> Findings:
    """Analyse a run.

    Parameters
    ----------
    usd_per_hour : price per hour by device id, label, name or kind; where none is given, the catalog's

    Raises
    ------
    BadValueError
        A price is for a device that the run did not have.
    """
    with nothing_collected():
        given = account(run)
        best = best_possible(run)
        path, path_s = longest_path(run)
        predictions = _predictions(run)
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
        chain=critical_chain(run),
        path=path,
        path_s=path_s,
        predictions=predictions,
        usd=tuple(None if each is None else each[0] * run.span_s / 3600.0 for each in rated),
        price_origins=tuple("" if each is None else each[1] for each in rated),
        sentences=(),
        problems=given.problems,
        devices=run.devices,
        training=training(run),
        planning=planning(run),
        operators=operators(run),
        collectives=collective_times(run),
    )
    return replace(found, sentences=tuple(_sentences(run, found)))


def remedy(found: Findings, loss: str) -> str:
    """Say what helps against a loss in this run."""
    return (_IN_TRAINING if found.training is not None else REMEDIES).get(loss, REMEDIES[loss])


def _predictions(run: RunRecord) -> list[Prediction]:
    found: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for each in run.attempts:
        if each.outcome == "done" and each.predicted_s < inf and each.task in run.tasks:
            key = (run.tasks[each.task].name, each.device)
            found[key].append((each.predicted_s, each.taken_s))
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
    told = [_what_ran(run, found)]
    if found.failed:
        told.append(_failures(run, found))
    inside = [operator_sentence(found.operators)] if found.operators else []
    money = list(filter(None, [money_sentence(found.account, found.usd, found.price_origins)]))
    if found.training is not None:
        return [*told, *training_sentences(found.training), *inside, _who_worked(found), _largest_loss(found), *money]
    told.append(_who_worked(found))
    whole_s = found.span_s * len(found.devices)
    moving_s = sum(found.account.total_s(name) for name in ("transfer in", "transfer out", "collective"))
    moving = f"{_percent(moving_s, whole_s)} of the devices' time was communication that no computing hid."
    told.append(moving[0].upper() + moving[1:] if moving_s > 0.0 else "No device waited for communication.")
    if found.planning is not None:
        told.append(planning_sentence(found.planning, run))
    told.append(_how_far(found))
    told.append(_largest_loss(found))
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
    tasks = f"{found.tasks:,} task{'s' if found.tasks != 1 else ''}"
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
    return (
        f"The largest loss was {name}: {format_seconds(total_s)} over all devices ({share}), in which a device "
        f"{CATEGORIES[name]}. What helps: {remedy(found, name)}."
    )


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
