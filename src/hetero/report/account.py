"""The account of a run: what each device did with each second, each kind of time computed by itself, collectives too.

In: a `RunRecord`. Out: seconds per device and category, which together are the whole run, and what contradicts that.
It must not take any category for the rest of the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from math import inf
from typing import NamedTuple

import numpy as np

from hetero.core.obstacles import obstacle
from hetero.model.annotations import CollectiveDone, PhasesRun
from hetero.model.device import HOST_NODE
from hetero.model.tasks import Request
from hetero.report.intervals import (
    EMPTY,
    Floats,
    Ints,
    Spans,
    by_owner,
    column,
    common,
    cut,
    length_s,
    pairs,
    union,
    without,
)
from hetero.report.phases import START_UP
from hetero.report.record import Attempt, RunRecord

__all__ = [
    "CATEGORIES",
    "Account",
    "CollectiveTime",
    "account",
    "collective_problems",
    "collective_spans",
    "collective_times",
    "collective_waits",
    "open_tasks",
]

_SLACK_S = 2e-6
_SLACK_FRAC = 1e-6
"""Traces give durations with seven digits."""
TimeSpans = dict[int, list[tuple[float, float]]]


class CollectiveTime(NamedTuple):
    """One kind of collective by one algorithm, over all groups of a size.

    Attributes
    ----------
    what, algorithm, members
        As in `CollectiveDone`.
    calls
        Of one member after the other.
    nbytes
        Bytes of all their rows.
    seconds
        Seconds that members spent in there, all together.
    """

    what: str
    algorithm: str
    members: int
    calls: int
    nbytes: int
    seconds: float


def collective_times(run: RunRecord) -> tuple[CollectiveTime, ...]:
    """Sum up what members told, those that took longest first."""
    sums: dict[tuple[str, str, int], tuple[int, int, float]] = {}
    for each in run.collectives:
        key = (each.what, each.algorithm, each.world_size)
        calls, nbytes, seconds = sums.get(key, (0, 0, 0.0))
        sums[key] = (calls + each.calls, nbytes + each.nbytes, seconds + each.seconds)
    rows = (CollectiveTime(*key, *values) for key, values in sums.items())
    return tuple(sorted(rows, key=lambda each: (-each.seconds, each[:3])))


def collective_spans(run: RunRecord) -> TimeSpans:
    """Return for each device when it was in a collective."""
    index_of = {device.id: index for index, device in enumerate(run.devices)}
    spans: TimeSpans = defaultdict(list)
    for each in run.collectives:
        if each.device in index_of:
            spans[index_of[each.device]].append((each.started_s, each.started_s + each.seconds))
    return spans


def collective_waits(run: RunRecord) -> TimeSpans:
    """Return for each device when it had ended its part of a group task and others had not."""
    sizes = Counter(key[:2] for key in {(each.task, each.attempt, each.device) for each in run.attempts})
    ends: dict[tuple[int, int], float] = {}
    for each in run.attempts:
        key = (each.task, each.attempt)
        if sizes[key] > 1:
            ends[key] = max(ends.get(key, -inf), each.end_s)
    waits: TimeSpans = defaultdict(list)
    for each in run.attempts:
        last_s = ends.get((each.task, each.attempt), -inf)
        if last_s > each.end_s:
            waits[each.device].append((each.end_s, last_s))
    return waits


def collective_problems(run: RunRecord) -> Iterator[str]:
    """Return which collectives lie outside of their attempt, overlap, or were told by some members of a group only."""
    told: dict[tuple[int, int, str], list[CollectiveDone]] = defaultdict(list)
    for each in run.collectives:
        told[each.task, each.attempt, each.device].append(each)
    if not told or run.torn:
        return
    groups: dict[tuple[int, int], list[Attempt]] = defaultdict(list)
    for attempt in run.attempts:
        groups[attempt.task, attempt.attempt].append(attempt)
    for key, members in groups.items():
        rows = [told.pop((*key, run.devices[each.device].id), []) for each in members]
        yield from _outside(members, rows)
        counts = {sum(each.calls for each in row) for row in rows}
        if len(counts) > 1 and all(each.outcome == "done" for each in members):
            yield f"the members of task {key[0]} tell of {min(counts)} to {max(counts)} collectives"
    for task, number, device in told:
        yield f"a collective of attempt {number} of task {task} was told on {device}, which did not run it"


def _outside(members: Iterable[Attempt], rows: Iterable[list[CollectiveDone]]) -> Iterator[str]:
    for member, row in zip(members, rows, strict=True):
        spans = sorted((each.started_s, each.started_s + each.seconds) for each in row)
        slack_s = _SLACK_S + _SLACK_FRAC * (member.end_s - member.start_s)
        if spans and (spans[0][0] < member.start_s - slack_s or max(spans)[1] > member.end_s + slack_s):
            yield f"a collective of task {member.task} lies outside of its attempt {member.attempt}"
        if any(next_s < end_s - slack_s for (_, end_s), (next_s, _) in pairwise(spans)):
            yield f"two collectives of task {member.task} overlap in its attempt {member.attempt}"


CATEGORIES: Mapping[str, str] = {
    "compute": "ran tasks whose results counted",
    "loading": "read the functions and arguments of its tasks",
    "storing": "stored results of its tasks",
    "waiting for memory": "waited for room in memory for a result",
    "transfer in": "waited while inputs of its tasks were copied to it",
    "transfer out": "waited while its results were copied away",
    "collective": "took part in a collective of its group, or waited for the others at the end of a group task",
    "waiting for data": "found only tasks whose inputs were not computed yet",
    "waiting for work": "found no open task that it could run",
    "retry": "ran attempts that did not count, or had lost its worker",
    "start-up": "had a worker that had not started yet",
    "overhead": "had a task that had not begun (messages)",
    "idle": "was left without a task although one that it could run was ready",
}
"""What a device can do with its time, and what each means: a device …"""


@dataclass(frozen=True, slots=True)
class Account:
    """Where the time of a run went.

    Attributes
    ----------
    span_s
        Seconds, the whole run.
    seconds
        For each device, s per category in the order of `CATEGORIES`.
    problems
        One line for each thing that does not add up; empty when the account can be trusted.
    """

    span_s: float
    seconds: tuple[dict[str, float], ...]
    problems: tuple[str, ...]

    def total_s(self, category: str) -> float:
        """Sum one category over all devices."""
        return sum(each[category] for each in self.seconds)


def account(run: RunRecord) -> Account:
    """Compute each category of each device, and check that they make up the run.

    Notes
    -----
    At any moment a device either has an attempt (retry where it did not count; else what its parts tell: a transfer
    on an emulated link, loading, storing, waiting for memory; else collective while it is in one, else compute), or
    waits for the others at the end of a group task (collective), or its worker is away (retry; start-up before its
    first start), or bytes travel for it (transfer in, before transfer out), or an attempt that was sent to it has not
    begun (overhead), or some task that it could run is ready elsewhere (idle), or some is not ready (waiting for
    data), or none is open (waiting for work). Each of these is computed from the events that make it so. An event that
    is missing, and two attempts at the same time on one device, show in `problems`.
    """
    facts = _facts(run)
    seconds = tuple(_seconds(each) for each in facts)
    problems = [*run.problems, *collective_problems(run)]
    for device, found, fact in zip(run.devices, seconds, facts, strict=True):
        twice_s = length_s(fact.busy) - length_s(union(fact.busy))
        if twice_s > _SLACK_S * (1 + len(fact.busy[0])):
            problems.append(f"{device.id} ran two attempts at the same time for {twice_s:.6f} s")
        off_s = abs(sum(found.values()) - run.span_s)
        if off_s > _SLACK_S * (1 + len(fact.busy[0])) + _SLACK_FRAC * run.span_s:
            problems.append(f"the categories of {device.id} add up to {sum(found.values()):.6f} of {run.span_s:.6f} s")
    return Account(run.span_s, seconds, tuple(problems))


@dataclass(slots=True)
class _Facts:
    """What was so at a device, and when."""

    window: Spans
    done: Spans = EMPTY
    wasted: Spans = EMPTY
    inside: Spans = EMPTY
    parts: tuple[Spans, ...] = ()
    member: Spans = EMPTY
    inbound: Spans = EMPTY
    outbound: Spans = EMPTY
    queued: Spans = EMPTY
    starting: Spans = EMPTY
    away: Spans = EMPTY
    ready: Spans = EMPTY
    blocked: Spans = EMPTY

    @property
    def busy(self) -> Spans:
        """Attempts, those that overlap twice."""
        return _together(self.done, self.wasted)


def _together(one: Spans, other: Spans) -> Spans:
    """Put two sets together without merging what overlaps."""
    return np.concatenate((one[0], other[0])), np.concatenate((one[1], other[1]))


def _seconds(fact: _Facts) -> dict[str, float]:
    inside = union(fact.inside)
    busy = union(fact.done, fact.wasted)
    member = without(union(fact.member), busy)
    held = union(busy, member)
    gone = without(union(fact.starting, fact.away), held)
    taken = union(held, gone)
    inbound = without(union(fact.inbound), taken)
    outbound = without(union(fact.outbound), union(taken, inbound))
    moved = union(taken, inbound, outbound)
    queued = without(union(fact.queued), moved)
    unused = without(fact.window, union(moved, queued))
    ready, blocked = union(fact.ready), union(fact.blocked)
    none_open = without(fact.window, union(ready, blocked))
    link_in, load, store, wait, link_out = fact.parts
    beside = union(inside, *fact.parts)
    return {
        "compute": length_s(without(fact.done, beside)),
        "loading": length_s(load),
        "storing": length_s(store),
        "waiting for memory": length_s(wait),
        "transfer in": length_s(inbound) + length_s(link_in),
        "transfer out": length_s(outbound) + length_s(link_out),
        "collective": length_s(member) + length_s(common(fact.done, inside)),
        "waiting for data": length_s(common(unused, without(blocked, ready))),
        "waiting for work": length_s(common(unused, none_open)),
        "retry": length_s(fact.wasted) + length_s(without(fact.away, held)),
        "start-up": length_s(without(without(fact.starting, fact.away), held)),
        "overhead": length_s(queued),
        "idle": length_s(common(unused, ready)),
    }


def _facts(run: RunRecord) -> list[_Facts]:
    begin_s, end_s = run.begin_s, run.end_s
    window = pairs([(begin_s, end_s)])
    done, wasted, queued = _attempts(run)
    parts = _parts(run)
    inbound, outbound = _transfers(run)
    members, inside = collective_waits(run), collective_spans(run)
    open_of = open_tasks(run)
    facts = []
    for index, device in enumerate(run.devices):
        starting, away = _absences(run.up[index], begin_s, end_s)
        able = [spans for request, spans in open_of.items() if not obstacle(device, request, None)]
        facts.append(
            _Facts(
                window=window,
                done=cut(*done[index], begin_s, end_s),
                wasted=cut(*wasted[index], begin_s, end_s),
                parts=tuple(cut(*each[index], begin_s, end_s) for each in parts),
                inside=pairs(inside.get(index, ()), begin_s, end_s),
                member=pairs(members.get(index, ()), begin_s, end_s),
                inbound=pairs(inbound.get(index, ()), begin_s, end_s),
                outbound=pairs(outbound.get(index, ()), begin_s, end_s),
                queued=cut(*queued[index], begin_s, end_s),
                starting=starting,
                away=away,
                ready=union(*(ready for ready, _ in able)),
                blocked=union(*(blocked for _, blocked in able)),
            )
        )
    return facts


def _attempts(run: RunRecord) -> tuple[list[Spans], list[Spans], list[Spans]]:
    """Return for each device the attempts that counted, those that did not, and when some had not begun."""
    count = len(run.devices)
    attempts = _after_start_up(run)
    owners = column(attempts, "device").astype(np.int64)
    starts, ends = column(attempts, "start_s"), column(attempts, "end_s")
    counted = np.fromiter((each.outcome == "done" for each in attempts), bool, len(attempts))
    halves = [by_owner(owners[part], (starts[part], ends[part]), count) for part in (counted, ~counted)]
    table = np.fromiter(chain.from_iterable(run.queued), float, 3 * len(run.queued)).reshape(-1, 3)
    return halves[0], halves[1], by_owner(table[:, 0].astype(np.int64), (table[:, 1], table[:, 2]), count)


def _after_start_up(run: RunRecord) -> list[Attempt]:
    """Return the attempts without the phases of a process that lie before its first step."""
    if not any(isinstance(each, PhasesRun) for each in run.notes):
        return run.attempts
    return [each for each in run.attempts if run.tasks[each.task].name not in START_UP]


def _parts(run: RunRecord) -> list[list[Spans]]:
    """Return for each part of the attempts that counted, and for each device, when it was in that part."""
    counted = [each for each in run.attempts if each.outcome == "done"]
    owners, count = column(counted, "device").astype(np.int64), len(run.devices)
    starts, ends = column(counted, "start_s"), column(counted, "end_s")
    link_in, load, store, wait, link_out = (
        column(counted, name) for name in ("link_in_s", "load_s", "store_s", "wait_s", "link_out_s")
    )
    loads, stored = starts + link_in, ends - link_out
    edges = (
        (starts, loads),
        (loads, loads + load),
        (stored - store, stored),
        (stored - store - wait, stored - store),
        (stored, ends),
    )
    return [by_owner(owners, each, count) for each in edges]


def _absences(up: list[tuple[float, float]], begin_s: float, end_s: float) -> tuple[Spans, Spans]:
    """Return when a worker had not started yet, and when it was lost."""
    if not up:
        return pairs([(begin_s, end_s)]), EMPTY
    starting = pairs([(-inf, up[0][0])], begin_s, end_s)
    until = [*(from_s for from_s, _ in up[1:]), inf]
    return starting, pairs(zip((to_s for _, to_s in up), until, strict=True), begin_s, end_s)


def _transfers(run: RunRecord) -> tuple[dict[int, list[tuple[float, float]]], dict[int, list[tuple[float, float]]]]:
    """Return for each device the copies that it waited for, and those that took its results away.

    A node of one device's own is that device's. On a node that several share, a copy to it is for the devices that
    ran a reader of the item, and a copy from it is of the device that computed the item.
    """
    residents: dict[str, list[int]] = defaultdict(list)
    for index, device in enumerate(run.devices):
        residents[device.memory_node].append(index)
    readers = _readers(run) if run.transfers else {}
    index_of = {device.id: index for index, device in enumerate(run.devices)}
    inbound: dict[int, list[tuple[float, float]]] = defaultdict(list)
    outbound: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for each in run.transfers:
        for owner in _owners(each.dst, residents, readers.get((each.item, each.dst), ())):
            inbound[owner].append((each.start_s, each.end_s))
        task = run.tasks.get(each.item)
        maker = (index_of[task.commit[1]],) if task and task.commit and task.commit[1] in index_of else ()
        makers = tuple(one for one in maker if run.devices[one].memory_node == each.src)
        for owner in _owners(each.src, residents, makers):
            outbound[owner].append((each.start_s, each.end_s))
    return inbound, outbound


def _owners(node: str, residents: Mapping[str, list[int]], known: tuple[int, ...]) -> tuple[int, ...] | list[int]:
    here = residents.get(node, [])
    return here if len(here) == 1 and node != HOST_NODE else known


def _readers(run: RunRecord) -> dict[tuple[int, str], tuple[int, ...]]:
    moved = {each.item for each in run.transfers}
    nodes = [device.memory_node for device in run.devices]
    found: dict[tuple[int, str], set[int]] = defaultdict(set)
    for each in run.attempts:
        task = run.tasks.get(each.task)
        for item in task.inputs if task else ():
            if item in moved:
                found[item, nodes[each.device]].add(each.device)
    return {key: tuple(sorted(devices)) for key, devices in found.items()}


def open_tasks(run: RunRecord) -> Mapping[Request, tuple[Spans, Spans]]:
    """Return for each request when a task of it was ready and had not begun, and when one was not ready."""
    tasks = list(run.tasks.values())
    requests, kinds = _kinds([each.request for each in tasks])
    over_s = np.minimum(column(tasks, "over_s"), run.end_s)
    free_s = np.minimum(column(tasks, "ready_s"), over_s)
    blocked = column(tasks, "submitted_s"), free_s
    rows, waits, last_s = _waits(run, free_s)
    answered = np.fromiter((each.commit is not None for each in tasks), bool, len(tasks))
    left = np.flatnonzero((last_s < over_s) & ~answered)
    ready = (
        np.concatenate((waits[0], last_s[left])),
        np.concatenate((np.minimum(waits[1], over_s[rows]), over_s[left])),
    )
    window, count = (run.begin_s, run.end_s), len(requests)
    ready_of = by_owner(np.concatenate((kinds[rows], kinds[left])), ready, count)
    blocked_of = by_owner(kinds, blocked, count)
    return {
        request: (union(cut(*ready_of[kind], *window)), union(cut(*blocked_of[kind], *window)))
        for kind, request in enumerate(requests)
    }


def _kinds(given: list[Request]) -> tuple[list[Request], Ints]:
    """Return the different requests, and for each task the place of its own; hashing one takes long."""
    by_id: dict[int, int] = {}
    places: dict[Request, int] = {}
    for each in given:
        if id(each) not in by_id:
            by_id[id(each)] = places.setdefault(each, len(places))
    return list(places), np.fromiter((by_id[id(each)] for each in given), np.int64, len(given))


def _waits(run: RunRecord, free_s: Floats) -> tuple[Ints, Spans, Floats]:
    """Return the row and interval of each wait of a ready task for its next attempt, and when the last one ended."""
    place = {number: row for row, number in enumerate(run.tasks)}
    tries = [each for each in run.attempts if each.task in place]
    rows = np.fromiter((place[each.task] for each in tries), np.int64, len(tries))
    starts, ends = column(tries, "start_s"), column(tries, "end_s")
    order = np.lexsort((ends, starts, rows))
    rows, starts, ends = rows[order], starts[order], ends[order]
    free_until_s = free_s.copy()
    since = np.empty(len(rows))
    alone = np.bincount(rows, minlength=len(free_s))[rows] == 1
    since[alone] = free_s[rows[alone]]
    np.maximum.at(free_until_s, rows[alone], ends[alone])
    for at in np.flatnonzero(~alone):
        since[at] = free_until_s[rows[at]]
        free_until_s[rows[at]] = max(free_until_s[rows[at]], ends[at])
    waited = since < starts
    return rows[waited], (since[waited], starts[waited]), free_until_s
