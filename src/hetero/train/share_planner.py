"""How a step is shared between the members of a group, as every member computes it from the same numbers.

In: speed models, what an exchange costs, measured seconds. Out: plans, and samples of each member.
It must not measure or talk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from hetero.plan.training import shares as planning
from hetero.plan.training.shares import SharePlan, StepModel
from hetero.train.values import TrainOptions

__all__ = ["LearnedShares", "SharePlanner", "StepTimes", "counts_of"]

_WINDOW = 7
"""Steps between two looks at whether an accelerator alone is faster, and of which the cost of exchanges is a median."""
_LOOKS_BEFORE_LEAVING = 3
"""How often a plan must look better that leaves a device out for good."""
_LEARN_AT = (2, 4, 8, 16)
_LEARN_EVERY = 32
"""Steps after which shares are reconsidered: the first ones, and then every so many."""
_SEEN = 8
_FRESH_STEPS = 16
"""Times kept for each number of samples, and after how many steps without a new one they are dropped."""
_STEPS_KEPT = 15
"""Whole steps that a median is taken of."""
_TRIED = 7
_TRIED_AT_LEAST = 3
"""Steps of a trial, and after how many of them it may end because all took longer."""
_SHOWN_BEFORE_LEAVING = 2
"""How often a trial must show that the others do not pay before they are left out."""
_LOOK_LATER = 4
"""By what the steps so far are multiplied until the next trial, where all steps of one took longer."""
_WORTH_A_TRIAL = 1.3
"""A step alone is estimated to take at least this many times as long: then no trial is made."""
_WORTH_OTHERS_FRAC = 0.02
"""By how much faster than alone a step with the others must be to keep them."""
_TALKS = 8
"""Exchanges of which each must be too long, see `_talks_too_long`."""
_TALKS_TOO_LONG = 1.2
"""How many times a step of one device an exchange takes that is too long."""
_LEAST_S = 1e-9


class SharePlanner:
    """The plan of one group and what it rests on.

    Parameters
    ----------
    options
        Of the run.
    team
        The members' devices, in the order of ranks.
    models
        What is known of each.
    comm_s
        Shape (members + 1,), s; what k members need to exchange gradients, as measured beforehand.
    costs
        Cost of each sample, mean 1; None where all cost the same.
    on_host
        The devices that compute on their host's cores.

    Attributes
    ----------
    plan
        The shares in units: samples, cost, or the fixed micro-batches of `exact: bitwise`.

    Notes
    -----
    Accelerators measured themselves while the CPUs were idle. Where steps with CPUs take longer than the fastest
    accelerator was measured to take alone, the CPUs slow it down, and it goes on alone.

    Examples
    --------
    >>> models = [StepModel(0.0, 0.001), StepModel(0.0, 0.003)]
    >>> sharing = SharePlanner(TrainOptions(128), ("cpu:0", "cpu:1"), models, [0.0, 0.0, 0.0])
    >>> sharing.counts(range(128)), sharing.counts(range(40))
    ((96, 32), (30, 10))
    """

    def __init__(
        self,
        options: TrainOptions,
        team: Sequence[str],
        models: Sequence[StepModel],
        comm_s: Sequence[float],
        costs: Sequence[float] | None = None,
        on_host: Collection[str] = (),
    ) -> None:
        self.options = options
        self.team = tuple(team)
        self.models = list(models)
        self.comm_s = tuple(comm_s)
        self._waits: deque[float] = deque(maxlen=_WINDOW)
        self.costs = None if options.unit > 1 else costs
        self.units = -(-options.global_batch // options.unit)
        self.plan = self._first()
        self._alone = self._fastest_alone([rank for rank, name in enumerate(self.team) if name not in on_host])
        self._steps = 0
        self._looks = 0

    def _first(self) -> SharePlan:
        wanted = self.options.shares
        if wanted == "auto":
            return planning.make_plan(self.models, self.units, self.comm_s)
        if wanted == "proportional":
            return planning.proportional_plan(self.models, self.units)
        weights = [1.0 if isinstance(wanted, str) else float(wanted.get(name, 0)) for name in self.team]
        if not any(weights):
            weights = [1.0] * len(self.team)
        return planning.fixed_plan(self.models, planning.apportion(weights, self.units), self.comm_s)

    def counts(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the samples of each member in a step over these samples."""
        unit, shares = self.options.unit, self.plan.shares
        if self.costs is not None:
            return planning.cut([self.costs[sample] for sample in ids], shares)
        units = -(-len(ids) // unit)
        if units != self.units:
            shares = planning.apportion(shares, units)
        return self._in_samples(shares, len(ids))

    def _in_samples(self, shares: Sequence[int], samples: int) -> tuple[int, ...]:
        ends = [min(samples, self.options.unit * sum(shares[: end + 1])) for end in range(len(shares))]
        return tuple(end - begin for begin, end in pairwise([0, *ends]))

    def learn(
        self, seconds: Sequence[float], waits: Sequence[float], ids: Sequence[int], counts: Sequence[int]
    ) -> SharePlan | None:
        """Take in a step; returns a new plan where one is worth having.

        Parameters
        ----------
        seconds, waits
            Of each member, s; busy in this step, and in the exchange of the step before.
        ids, counts
            Samples of the step, and how many each member had.
        """
        begin = 0
        for rank, count in enumerate(counts):
            self.models[rank] = self.models[rank].observed(self._load(ids[begin : begin + count]), seconds[rank])
            begin += count
        self._steps += 1
        self._learn_comm(waits)
        if self.options.shares != "auto":
            return None
        better = planning.replanned(self.plan, self.models, self.units, self.comm_s, self._steps)
        better = self._plan_alone(better or self.plan) or better
        if better is None and not self._steps % _WINDOW:
            self._looks = 0
        if better is None or not self._is_settled(better):
            return None
        self.plan, self._steps, self._looks = better, 0, 0
        return better

    def _fastest_alone(self, accelerators: Sequence[int]) -> tuple[float, int] | None:
        """Return the seconds of a step on the fastest accelerator alone, and its rank; None where no CPU takes part."""
        if len(accelerators) == len(self.team):
            return None
        able = [rank for rank in accelerators if self.models[rank].most >= self.units]
        return min(((self.models[rank].seconds(self.units), rank) for rank in able), default=None)

    def _plan_alone(self, plan: SharePlan) -> SharePlan | None:
        """Return the plan of the fastest accelerator alone where that is faster than `plan`.

        A window of steps has to show it, or `plan` leaves that accelerator out.
        """
        if self._alone is None:
            return None
        alone_s, rank = self._alone
        if plan.shares[rank] and (not self._steps or self._steps % _WINDOW):
            return None
        step_s = planning.fixed_plan(self.models, plan.shares, self.comm_s).step_s
        if plan.members == (rank,) or step_s <= alone_s * (1 + planning.GAIN_FRAC):
            return None
        shares = tuple(self.units if each == rank else 0 for each in range(len(self.team)))
        reason = (
            f"with it the step of {self.options.global_batch} takes {step_s * 1e3:.3g} ms, "
            f"and {self.team[rank]} took {alone_s * 1e3:.3g} ms alone"
        )
        reasons = tuple("" if each == rank else reason for each in range(len(self.team)))
        return SharePlan(shares, alone_s, tuple(self.models), reasons)

    def _is_settled(self, better: SharePlan) -> bool:
        """Return whether a plan may be taken; one that leaves a device out for good is looked at three times."""
        self._looks += 1
        return len(better.members) == len(self.plan.members) or self._looks >= _LOOKS_BEFORE_LEAVING

    def _learn_comm(self, waits: Sequence[float]) -> None:
        """Take what the last member to come spent in the exchange for what talking costs: it waited for nobody."""
        self._waits.append(min(waits))
        others = len(self.team) - 1
        if others and len(self._waits) == _WINDOW:
            each_s = median(self._waits) / others
            self.comm_s = (0.0, *(each_s * count for count in range(others + 1)))

    def _load(self, ids: Sequence[int]) -> float:
        if self.costs is not None:
            return sum(self.costs[sample] for sample in ids)
        return len(ids) / self.options.unit

    def shares(self, names: Sequence[str]) -> dict[str, int]:
        """Return the samples of a whole step by device, 0 for one that takes no part."""
        own = self._in_samples(self.plan.shares, self.options.global_batch)
        return dict.fromkeys(names, 0) | dict(zip(self.team, own, strict=True))

    def speeds(self) -> dict[str, float]:
        """Return the samples/s that each member would reach alone with the whole batch."""
        unit = self.options.unit
        return {name: model.speed(self.units) * unit for name, model in zip(self.team, self.models, strict=True)}


def counts_of(shares: Sequence[float], samples: int) -> tuple[int, ...]:
    """Return how many samples of a batch each process has; with enough of them, nobody with a share has none.

    Examples
    --------
    >>> counts_of((3.0, 1.0), 128), counts_of((30.0, 1.0), 8), counts_of((1.0, 1.0, 1.0), 2), counts_of((1.0, 0.0), 8)
    ((96, 32), (7, 1), (1, 1, 0), (8, 0))
    """
    counts = list(planning.apportion(shares, samples))
    sharing = [index for index, share in enumerate(shares) if share]
    while (
        samples >= len(sharing)
        and (without := next((index for index in sharing if not counts[index]), None)) is not None
    ):
        counts[counts.index(max(counts))] -= 1
        counts[without] += 1
    return tuple(counts)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What a whole step took the first process, from one batch to the next.

    Attributes
    ----------
    counts
        Samples of each process.
    step_s
        All of it, s.
    own_s
        Without what is done because there are others, s.
    """

    counts: tuple[int, ...]
    step_s: float
    own_s: float


class LearnedShares:
    """Shares of processes that run the user's own loop, learned from their steps; the same in all of them.

    Parameters
    ----------
    world
        How many processes.

    Attributes
    ----------
    together_s, alone_s
        Medians of a step with the shares of now and of one of the first process alone, s; None before they are known.
    shared
        The samples of each process before the last trial.

    Notes
    -----
    Whether the others pay is tried out: for some steps the first process has all samples but one of each other. Where a
    step would take it no longer alone, steps with the shares as they were and such steps take turns once more, as other
    programs may have been in the way of either; the second time the others are left out, for good. A trial of which the
    first steps all take longer ends with them. A device that stays is tried again after twice as many steps, four times
    as many where all of them took longer. Nothing is tried where each of several exchanges between two processes took
    longer than a whole step takes one of them alone, as over a slow link.

    Examples
    --------
    >>> learned = LearnedShares(2)
    >>> [learned.observed((64, 64), (0.064, 0.192)) for _ in range(3)]
    [None, None, (96, 32)]
    """

    def __init__(self, world: int) -> None:
        self._seen: list[dict[int, list[float]]] = [{} for _ in range(world)]
        self._seen_at: list[dict[int, int]] = [{} for _ in range(world)]
        self._models = [StepModel(0.0, 1.0)] * world
        self._own: dict[int, list[float]] = {}
        self._steps_s: deque[float] = deque(maxlen=_STEPS_KEPT)
        self._rests_s: deque[tuple[float, float]] = deque(maxlen=_STEPS_KEPT)
        self._talks: deque[tuple[float, float]] = deque(maxlen=_TALKS)
        self._busy_s: Sequence[float] = ()
        self._settled: tuple[int, ...] = ()
        self._trial: tuple[int, ...] = ()
        self._tried = 0
        self._shown = 0
        self._steps = 0
        self._look_at = _LEARN_AT[-1]
        self.shared: tuple[int, ...] = ()
        self.together_s: float | None = None
        self.alone_s: float | None = None

    def observed(
        self,
        counts: tuple[int, ...],
        busy_s: Sequence[float],
        before: StepTimes | None = None,
        *,
        may_leave: bool = True,
    ) -> tuple[int, ...] | None:
        """Take in a step; returns new shares where they are worth having, 0 for who is left out.

        Parameters
        ----------
        counts, busy_s
            Samples of each process and how long it computed for them, s.
        before
            The step before this one.
        may_leave
            Whether a process can be left out now.
        """
        self._steps += 1
        busy_s = [max(each_s, _LEAST_S) for each_s in busy_s]
        busy_before, self._busy_s = self._busy_s, busy_s
        if self._steps == 1:  # the first step after the check is slow for many reasons
            return None
        if not self._trial:
            self._see(counts, busy_s)
        self._settled = self._settled or counts
        if sum(counts) < sum(self._settled):  # the last batch of an epoch
            return None
        if before is not None and busy_before and sum(before.counts) == sum(self._settled):
            self._time(before, busy_before)
        if self._trial:
            return self._after_trial(may_leave=may_leave)
        if may_leave and self._talks_too_long():
            self.shared = counts
            return self._settle((sum(counts), *[0] * (len(self._seen) - 1)))
        if self._steps - 1 in _LEARN_AT or not self._steps % _LEARN_EVERY:
            better = self._shared_better(counts)
            if better is not None:
                return self._settle(better)
        due = self._steps >= self._look_at and len(self._steps_s) >= _TRIED
        return self._look(counts, may_leave=may_leave) if due else None

    def _see(self, counts: Sequence[int], busy_s: Sequence[float]) -> None:
        """Take in what each process needed for its samples, and forget what is old: the devices may be slower now."""
        for seen, seen_at, count, seconds in zip(self._seen, self._seen_at, counts, busy_s, strict=True):
            seen.setdefault(count, []).append(seconds)
            del seen[count][:-_SEEN]
            seen_at[count] = self._steps
            for old in [each for each, step in seen_at.items() if step <= self._steps - _FRESH_STEPS]:
                del seen[old], seen_at[old]

    def _model(self, rank: int, count: int) -> StepModel:
        """Return how long a process takes for samples, at its speed with as many as it has now.

        What a step takes with another number of samples says how much of it does not depend on them, unless another
        program was in the way of one of the two.
        """
        seen = {each: median(seconds) for each, seconds in self._seen[rank].items() if each}
        model = self._models[rank]
        few, many = min(seen), max(seen)
        if many >= few * 1.2 + 1 and seen[many] > seen[few]:
            model = planning.fit_step(few, seen[few], many, seen[many])
        factor = seen[count] / model.seconds(count)
        self._models[rank] = StepModel(model.fixed_s * factor, model.per_sample_s * factor)
        return self._models[rank]

    def _time(self, before: StepTimes, busy_s: Sequence[float]) -> None:
        if before.counts not in (self._settled, self._trial):
            return
        kept = self._own.setdefault(before.counts[0], [])
        kept.append(before.own_s)
        del kept[:-_STEPS_KEPT]
        self._tried += before.counts == self._trial
        if before.counts == self._settled:
            rest_s = before.own_s - busy_s[0]
            talking_s = before.step_s - max(busy_s) - rest_s
            self._steps_s.append(before.step_s)
            self._rests_s.append((rest_s, talking_s))
            if before.counts[0]:
                self._talks.append((talking_s, rest_s + busy_s[0] / before.counts[0] * sum(before.counts)))

    def _talks_too_long(self) -> bool:
        """Return whether two processes exchange for longer than one computes, even at its slowest of the last steps.

        What it would take alone is estimated as if all of it depended on the samples, which is too long.
        """
        if len(self._talks) < _TALKS or sum(map(bool, self._settled)) != 2:
            return False
        alone_s = max(alone_s for _, alone_s in self._talks)
        if min(talking_s for talking_s, _ in self._talks) <= alone_s * _TALKS_TOO_LONG:
            return False
        self.together_s, self.alone_s = median(self._steps_s), alone_s
        return True

    def _settle(self, counts: tuple[int, ...]) -> tuple[int, ...]:
        self._settled = counts
        self._own.clear()
        self._steps_s.clear()
        self._rests_s.clear()
        return counts

    def _members(self, counts: Sequence[int]) -> list[int]:
        return [rank for rank, count in enumerate(counts) if count]

    def _shared_better(self, counts: tuple[int, ...]) -> tuple[int, ...] | None:
        members, whole = self._members(counts), sum(counts)
        models = [self._model(rank, counts[rank]) for rank in members]
        plan = planning.make_plan(models, whole)
        now_s = planning.fixed_plan(models, [counts[rank] for rank in members]).step_s
        better = counts_of([max(share, 1e-9) for share in plan.shares], whole)
        if planning.fixed_plan(models, better).step_s >= now_s * (1 - planning.GAIN_FRAC):
            return None
        return self._spread(members, better)

    def _spread(self, members: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
        found = dict(zip(members, counts, strict=True))
        return tuple(found.get(rank, 0) for rank in range(len(self._seen)))

    def _look(self, counts: tuple[int, ...], *, may_leave: bool) -> tuple[int, ...] | None:
        """Return shares that leave somebody out, or those of a trial."""
        self._look_at = 2 * self._steps
        members, whole = self._members(counts), sum(counts)
        self.together_s = median(self._steps_s)
        self.alone_s = _fitted_step(self._own).seconds(whole)
        models = [self._model(rank, counts[rank]) for rank in members]
        comm_s = max(0.0, median(talking_s for _, talking_s in self._rests_s))
        each_s = comm_s / max(1, len(members) - 1)
        plan = planning.make_plan(models, whole, [0.0, *(each_s * count for count in range(len(members)))])
        fewer = may_leave and 1 < len(plan.members) < len(members) and plan.shares[0]
        rest_s = median(rest_s for rest_s, _ in self._rests_s)
        if fewer and plan.step_s + rest_s < self.together_s * (1 - planning.GAIN_FRAC):
            self.shared = counts
            return self._settle(self._spread(members, plan.shares)) if self._is_shown_again() else None
        if self.alone_s >= self.together_s * _WORTH_A_TRIAL or whole < 2 * len(members):
            self._shown = 0
            return None
        self._settled, self.shared, self._tried = counts, counts, 0
        self._trial = self._spread(members, (whole - len(members) + 1, *[1] * (len(members) - 1)))
        return self._trial

    def _is_shown_again(self) -> bool:
        """Count that leaving somebody out would pay; tells whether it was shown often enough, else looks again soon."""
        self._shown += 1
        if self._shown >= _SHOWN_BEFORE_LEAVING:
            return True
        self._look_at = self._steps
        self._settle(self._settled)
        return False

    def _after_trial(self, *, may_leave: bool) -> tuple[int, ...] | None:
        """Return how to go on after a trial; None while it lasts."""
        assert self.together_s is not None
        least_s = self.together_s * (1 + _WORTH_OTHERS_FRAC)
        pays = self._tried >= _TRIED_AT_LEAST and min(self._own[self._trial[0]]) > least_s
        if self._tried < _TRIED and not pays:
            return None
        whole = sum(self._settled)
        self.alone_s = _fitted_step(self._own).seconds(whole)
        del self._own[self._trial[0]]
        self._trial = ()
        if pays:
            self._look_at = max(self._look_at, _LOOK_LATER * self._steps)
        if pays or not may_leave or self.alone_s >= least_s:
            self._shown = 0
        elif self._is_shown_again():
            return self._settle((whole, *[0] * (len(self._seen) - 1)))
        return self._settled


def _fitted_step(seen: dict[int, list[float]]) -> StepModel:
    """Return how long a device takes for n samples, from the median of what it took for each number of them."""
    points = sorted((count, median(seconds)) for count, seconds in seen.items() if count)
    (few, few_s), (many, many_s) = points[0], points[-1]
    if many < few * 1.2 + 1:
        count, seconds = points[-1]
        return StepModel(0.0, max(seconds / count, 1e-12))
    return planning.fit_step(few, few_s, many, many_s)
