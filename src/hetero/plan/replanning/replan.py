"""Re-planning: a new plan for what is left of a graph, from the state in which a run is.

In: what lies ahead, when each device is free, the plan so far. Out: a plan, found within a bounded number of
placements, so that whoever waits for it waits about a millisecond. It must not decide what is started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import erfc, sqrt
from typing import NamedTuple

import numpy as np

from hetero.plan.problem import Floats, Ints
from hetero.plan.replanning.lookahead import WAITING, Ahead, Bytes, OpenGraph, remaining_s

__all__ = [
    "HandedIn",
    "Ranks",
    "RemainingPlan",
    "Scenarios",
    "expected_s",
    "free_from",
    "is_on_course",
    "left_s",
    "replan",
    "scenarios",
    "warm_up",
]

PLACEMENTS = 1200
"""Tasks that are placed in one pass, all candidates together; the kept plan and one other always are …"""

HORIZON = 2000
"""… of at most so many tasks, those that the plan starts first."""

PLAIN = 40
"""Without a compiler these numbers, and that of scenarios, are divided by this."""

SLACK_FRAC, SLACK_S = 0.05, 2e-3
"""Where the same tasks were handed in again, starts may stray by this part of their plan, and by this at least, before
what is left is planned anew; each time that happens by twice as much."""

RULES = (
    ("fastest", False),
    ("optimistic", True),
    ("mean", False),
    ("optimistic", False),
    ("fastest", True),
    ("mean", True),
)
"""The list schedules that challenge the plan so far: by which rank, and whether with the optimistic cost table."""

_NONE = np.empty((0, 0))


class Ranks(NamedTuple):
    """How urgent each task is: upward ranks, and the optimistic cost table with its mean; higher goes first."""

    fastest: Floats
    mean: Floats
    optimistic: Floats
    table_s: Floats

    def order(self, name: str, slots: Ints) -> Ints:
        """Return those slots by rank; since a task has a lower slot than what needs it, the order is topological."""
        keys: Floats = getattr(self, name)[slots]
        return slots[np.argsort(-keys, kind="stable")]


class HandedIn(NamedTuple):
    """Tasks that were handed in at once: what they are, and what they need of each other.

    Attributes
    ----------
    first, first_id
        Slot and id of the first; the others follow it.
    kind
        Shape (n,); their kinds.
    needs
        Shape (n,); how much each needs.
    pred
        What it needs, as places in the batch; -1 for what was handed in before.
    data
        Shape as pred; 1 where the result is read.
    """

    first: int
    first_id: int
    kind: Ints
    needs: Ints
    pred: Ints
    data: Bytes

    def is_like(self, other: HandedIn) -> bool:
        """Return whether two batches have the same tasks with the same needs."""
        same = np.array_equal(self.kind, other.kind) and np.array_equal(self.needs, other.needs)
        return same and np.array_equal(self.pred, other.pred) and np.array_equal(self.data, other.data)

    def is_in(self, ahead: Ahead) -> bool:
        """Return whether the tasks still have their slots."""
        end = self.first + len(self.kind)
        return end <= len(ahead.ids) and bool(ahead.ids[self.first] == self.first_id)


class RemainingPlan(NamedTuple):
    """Where and when what is left would run.

    Attributes
    ----------
    version, table, upset
        Of the outlook that it was made for.
    known
        Number of slots that it knows.
    device
        Shape (known,).
    start_s, finish_s
        Shape (known,), s.
    makespan_s
        Seconds, the last finish, if times keep to their estimates.
    ranks
        As of `table`.
    rule
        Which of `RULES` it follows, -1 for that of the plan at the start.
    turn
        Passes so far.
    batch
        What was handed in last at once, while nothing else was open; None where nothing was.
    slack_s
        Seconds by which starts may stray from those of a plan that is followed again; 0 for another plan.
    """

    version: int
    table: int
    known: int
    device: Ints
    start_s: Floats
    finish_s: Floats
    makespan_s: float
    ranks: Ranks
    rule: int
    turn: int
    upset: int = 0
    batch: HandedIn | None = None
    slack_s: float = 0.0


def is_on_course(plan: RemainingPlan, ahead: Ahead, now_s: float) -> bool:
    """Return whether what has happened is near enough to a plan that is followed again for it to be kept."""
    if not plan.slack_s or plan.upset != ahead.upset or plan.known != len(ahead.ids):
        return False
    for slot, _, started_s, _ in ahead.running:
        if started_s >= 0.0:
            late_s = max(abs(started_s - plan.start_s[slot]), now_s - plan.finish_s[slot])
            if late_s > plan.slack_s:
                return False
    return True


def free_from(ahead: Ahead, now_s: float, ready_s: Floats) -> tuple[Floats, Floats]:
    """Return when each device has ended what it runs, and when each slot that runs ends.

    Parameters
    ----------
    ready_s
        Shape (n_devices,), s; when a device that runs nothing takes a task, inf for never.

    Notes
    -----
    A task that is late is expected to run on as times of its spread do, see `remaining_s`.
    """
    free_s = ready_s.copy()
    finish_s = np.zeros(len(ahead.graph.phase))
    for slot, device, started_s, predicted_s in ahead.running:
        elapsed_s = now_s - started_s if started_s >= 0.0 else 0.0
        end_s = max(free_s[device], now_s) + remaining_s(predicted_s, elapsed_s, ahead.error)
        free_s[device] = finish_s[slot] = end_s
    return free_s, finish_s


def replan(
    ahead: Ahead,
    now_s: float,
    ready_s: Floats,
    before: RemainingPlan | None,
    guide: Mapping[int, tuple[float, int]] | None,
) -> RemainingPlan:
    """Plan what waits anew.

    Parameters
    ----------
    now_s, ready_s
        As in `free_from`.
    before
        The plan so far, None at first.
    guide
        Start and device of tasks by id in a plan that was made beforehand, None for none.

    Notes
    -----
    The plan so far, shifted to what has happened since, is compared with list schedules over other ranks, taken in
    turn; the one that is expected to end first is taken, in the mean over scenarios of how far times may stray. The
    first time, and when an estimate has moved, all are tried.

    Where tasks are handed in at once that are like those before, the plan that these kept to in the end takes part as
    the plan so far, timed anew by what was learned of them, and what comes of it is kept as long as `is_on_course`.
    """
    from hetero.plan.replanning.replan_kernels import place_rest

    g = ahead.graph
    plain = _plainness()
    ranks = _ranks(ahead, before)
    free_s, ends_s = free_from(ahead, now_s, ready_s)
    waiting = np.flatnonzero(g.phase == WAITING)
    batch, old, slack_s = _so_far(ahead, waiting, before)
    again = old is not before
    everything = before is None or (before.table != ahead.table and not again)
    turn = 0 if before is None else before.turn + 1
    old = old if old is not None else _guided(ahead, guide, ranks)
    begun_s = _begun(ahead, before)
    may = scenarios(ahead, now_s, ready_s, len(waiting), WORK // plain)
    best: RemainingPlan | None = None
    least = np.inf
    for rule, order, pinned, look_s in _candidates(ranks, old, waiting, turn, everything, plain):
        device, start_s, finish_s = g.device.copy(), begun_s.copy(), ends_s.copy()
        end_s = place_rest(g, order, pinned, look_s, free_s, now_s, device, start_s, finish_s)
        mean_s = end_s if may is None else expected_s(may, g, waiting, device, start_s, now_s)
        if best is None or mean_s < least * (1.0 - 1e-9):
            least = mean_s
            best = RemainingPlan(
                ahead.version, ahead.table, len(g.phase), device, start_s, finish_s, end_s, ranks, rule, turn,
                ahead.upset, batch, max(SLACK_S, SLACK_FRAC * (end_s - now_s)) if again else slack_s,
            )  # fmt: skip
    assert best is not None
    return best


def _begun(ahead: Ahead, before: RemainingPlan | None) -> Floats:
    """Return when each slot began, as far as the plans so far say; 0 where they say nothing."""
    begun_s = np.zeros(len(ahead.graph.phase))
    if before is not None:
        begun_s[: before.known] = before.start_s[: len(begun_s)]
    for slot, _, started_s, _ in ahead.running:
        if started_s >= 0.0:
            begun_s[slot] = started_s
    return begun_s


def _so_far(
    ahead: Ahead, waiting: Ints, before: RemainingPlan | None
) -> tuple[HandedIn | None, RemainingPlan | None, float]:
    """Return what was handed in last at once, the plan so far, and by how much starts may stray from it, s.

    Where the same was handed in before, and that is over, it is the plan that those tasks kept to.
    """
    batch = _batch(ahead, waiting)
    if before is None or before.batch is None:
        return batch, before, 0.0
    was = before.batch
    if was.is_in(ahead) and (batch is None or batch.first < was.first + len(was.kind)):
        return was, before, 2.0 * before.slack_s
    if batch is None:
        return None, before, 0.0
    return batch, _again(before, was.first, batch, ahead) if batch.is_like(was) else before, 0.0


def _batch(ahead: Ahead, waiting: Ints) -> HandedIn | None:
    """Return all that is open where none of it has begun, and it has slots in a row; else None."""
    if ahead.running or not len(waiting) or len(waiting) != ahead.open:
        return None
    g, first, end = ahead.graph, int(waiting[0]), int(waiting[-1]) + 1
    if end - first != len(waiting):
        return None
    edges = slice(g.pred_first[first], g.pred_first[end])
    return HandedIn(
        first,
        int(ahead.ids[first]),
        g.kind[first:end].copy(),
        np.diff(g.pred_first[first : end + 1]),
        np.maximum(g.pred[edges] - first, -1),
        g.pred_data[edges].copy(),
    )


def _again(before: RemainingPlan, was: int, batch: HandedIn, ahead: Ahead) -> RemainingPlan:
    """Return the plan that a batch kept to, for one like it."""
    n, count = len(ahead.graph.phase), len(batch.kind)
    start_s, device = np.full(n, np.inf), np.full(n, -1, dtype=np.int64)
    start_s[batch.first : batch.first + count] = before.start_s[was : was + count]
    device[batch.first : batch.first + count] = before.device[was : was + count]
    return before._replace(known=n, device=device, start_s=start_s, finish_s=start_s, rule=-1)


def _plainness() -> int:
    from hetero.plan.compiled import COMPILED

    return 1 if COMPILED else PLAIN


def _ranks(ahead: Ahead, before: RemainingPlan | None) -> Ranks:
    if before is not None and before.table == ahead.table and before.known == len(ahead.graph.phase):
        return before.ranks
    from hetero.plan.replanning.replan_kernels import raised, ranks

    g = ahead.graph
    n, m = len(g.phase), g.seconds.shape[1]
    fastest, mean, table_s = np.empty(n), np.empty(n), np.empty((n, m))
    ranks(g, fastest, mean, table_s)
    allowed = np.isfinite(g.seconds)[g.kind]
    optimistic = np.where(allowed, table_s, 0.0).sum(axis=1) / np.maximum(1, allowed.sum(axis=1))
    raised(g, optimistic)
    return Ranks(fastest, mean, optimistic, table_s)


def _guided(ahead: Ahead, guide: Mapping[int, tuple[float, int]] | None, ranks: Ranks) -> RemainingPlan | None:
    """Return the plan made beforehand as one that has not begun."""
    if guide is None:
        return None
    n = len(ahead.graph.phase)
    start_s, device = np.full(n, np.inf), np.full(n, -1, dtype=np.int64)
    for slot, task in enumerate(ahead.ids.tolist()):
        start_s[slot], device[slot] = guide.get(task, (np.inf, -1))
    return RemainingPlan(-1, -1, n, device, start_s, start_s, np.inf, ranks, -1, 0)


def _candidates(
    ranks: Ranks, old: RemainingPlan | None, waiting: Ints, turn: int, everything: bool, plain: int
) -> Iterator[tuple[int, Ints, Ints, Floats]]:
    """Yield (rule, order, pinned devices, look ahead) of what is tried in this pass."""
    horizon = max(1, HORIZON // plain)
    free = np.full(min(len(waiting), horizon), -1, dtype=np.int64)
    if old is not None:
        order = _kept(old, waiting)[:horizon]
        pinned = np.full(len(order), -1, dtype=np.int64)
        known = order < old.known
        pinned[known] = old.device[order[known]]
        yield old.rule, order, pinned, _NONE
        if len(waiting) > horizon and not everything:
            return
    tries = len(RULES) if everything else max(1, PLACEMENTS // plain // max(1, len(waiting)) - 1)
    for step in range(min(tries, len(RULES))):
        rule = step if everything else (turn + step) % len(RULES)
        name, looks = RULES[rule]
        yield rule, ranks.order(name, waiting)[:horizon], free, ranks.table_s if looks else _NONE


def _kept(old: RemainingPlan, waiting: Ints) -> Ints:
    """Return what waits by start in the plan so far; what it does not know comes last."""
    start_s = np.full(len(waiting), np.inf)
    known = waiting < old.known
    start_s[known] = old.start_s[waiting[known]]
    return waiting[np.lexsort((waiting, start_s))]


def warm_up() -> None:
    """Load and compile what re-planning needs, so that no run waits for it."""
    zero = np.zeros(1, dtype=np.int64)
    bits = np.zeros(1, dtype=np.uint8)
    g = OpenGraph(
        bits, zero, np.ones((1, 1)), np.ones(1), np.zeros(2, dtype=np.int64), zero[:0], bits[:0], zero - 1,
        np.zeros(1), np.zeros((1, 1), dtype=np.uint8), zero, np.zeros((1, 1)), np.zeros((1, 1)),
    )  # fmt: skip
    ahead = Ahead(g, {1: 0}, zero + 1, 1, 1, 1, (), 0.1)
    replan(ahead, 0.0, np.zeros(1), None, None)


# --- scenarios ----------------------------------------------------------------------------------------------

COUNTS = (23, 11, 7, 5, 3)
"""So many scenarios are looked at, the first of these numbers with which …"""

WORK = 1000
"""… tasks times scenarios are no more than this; with more tasks than that, their times even out by themselves."""

_ROWS = 127
_DEVIATIONS = np.linspace(-8.0, 8.0, 1025)
_ABOVE = np.array([0.5 * erfc(z / sqrt(2.0)) for z in _DEVIATIONS])


class Scenarios(NamedTuple):
    """What may happen, an entry a scenario.

    Attributes
    ----------
    running, on
        Slots of the tasks that run, and their devices; the first of each device first.
    more_s
        Shape (n_running, count), s; how much longer each takes from now on, or from the end of the one before.
    free_s
        Shape (n_devices,), s; when a device that runs nothing takes a task, inf for never.
    factors
        Shape (n_rows, count); run time over its estimate, a row a task, taken in turn.
    """

    running: Ints
    on: Ints
    more_s: Floats
    free_s: Floats
    factors: Floats


def scenarios(ahead: Ahead, now_s: float, ready_s: Floats, waiting: int, work: int = WORK) -> Scenarios | None:
    """Return what may happen from now on; None where there are too many tasks for it to matter.

    Parameters
    ----------
    ready_s
        Shape (n_devices,), s; when a device that runs nothing takes a task, inf for never.
    waiting
        Number of tasks that wait.
    work
        Most tasks times scenarios.

    Notes
    -----
    A run time is w exp(σ z). The z of each task are the middles of `count` equally likely parts of the normal
    distribution, each once, in an order of the task's own (a Latin hypercube).

    References
    ----------
    M. D. McKay, R. J. Beckman, W. J. Conover, Technometrics 21 (1979), 239-245: Latin hypercube sampling.
    """
    count = next((count for count in COUNTS if count * waiting <= work), 0)
    if not count:
        return None
    runs = np.array(ahead.running, dtype=np.float64).reshape(-1, 4)
    running, on = runs[:, 0].astype(np.int64), runs[:, 1].astype(np.int64)
    elapsed_s = np.where(runs[:, 2] >= 0.0, np.maximum(now_s - runs[:, 2], 0.0), 0.0)
    above, deviations = _points(count)
    more_s = left_s(runs[:, 3], elapsed_s, ahead.error, above[running % _ROWS])
    return Scenarios(running, on, more_s, ready_s, np.exp(ahead.error * deviations))


@lru_cache(len(COUNTS))
def _points(count: int) -> tuple[Floats, Floats]:
    """Return the middles of equal parts of 0..1, a row a task, each row shuffled; and their deviations."""
    middles = np.tile((np.arange(count) + 0.5) / count, (_ROWS, 1))
    above = np.random.default_rng(0).permuted(middles, axis=1)
    return above, _deviation(above)


def _deviation(above: Floats) -> Floats:
    """Return the deviation from the mean above which such a part of the normal distribution lies."""
    return np.interp(above, _ABOVE[::-1], _DEVIATIONS[::-1])


def left_s(predicted_s: Floats, elapsed_s: Floats, error: float, above: Floats) -> Floats:
    """Return how much longer tasks may run that have not ended yet: in a part `above` of all cases longer than that.

    Parameters
    ----------
    predicted_s
        Shape (n,), s, the median.
    elapsed_s
        Shape (n,), >= 0, s.
    error
        > 0, standard deviation of the logarithm of run times.
    above
        Shape (n, count), 0 < above < 1.

    Notes
    -----
    With X lognormal of median w and spread σ, Q the upper tail of the normal distribution and z = ln(e / w) / σ:
    P(X > x | X > e) = Q(ln(x / w) / σ) / Q(z); far out it falls off as exp(-(x - e) z / (e σ)).

    Examples
    --------
    >>> above = np.array([[0.9, 0.5, 0.1]])
    >>> left_s(np.ones(1), np.array([1.5]), 0.3, above).round(2)
    array([[0.03, 0.17, 0.54]])
    """
    median_s, e = np.maximum(predicted_s, 1e-12), np.maximum(elapsed_s, 1e-300)
    z = np.log(e / median_s) / error
    upper = np.interp(z, _DEVIATIONS, _ABOVE)[:, None]
    near_s = median_s[:, None] * np.exp(error * _deviation(upper * above)) - elapsed_s[:, None]
    far_s = -np.log(above) * (elapsed_s * error / np.maximum(z, 3.0))[:, None]
    return np.maximum(np.where(z[:, None] > 3.0, far_s, near_s), 0.0)


def expected_s(may: Scenarios, g: OpenGraph, waiting: Ints, device: Ints, start_s: Floats, now_s: float) -> float:
    """Return when all is expected to be over, s, if each device runs its tasks in the order of their planned starts.

    Parameters
    ----------
    waiting
        Slots of what waits.
    device, start_s
        By slot, as planned.
    """
    from hetero.plan.replanning.replan_kernels import ends

    order = waiting[np.lexsort((waiting, start_s[waiting]))]
    found_s = np.empty(may.more_s.shape[1])
    ends(g, order, device, *may, now_s, found_s)
    return float(found_s.mean())
