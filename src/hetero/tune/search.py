"""The search: trials over unequal devices, each device takes the next when it is free, so a fast one gets more.

In: an objective, a space, devices. Out: the best values, and what every trial was like.
It must not sample or prune: the study does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from hetero.comm.errors import LineClosedError
from hetero.comm.lines import Line, LineServer
from hetero.floor import clock, settings
from hetero.floor.deprecation import moved_keywords, renamed_values
from hetero.floor.errors import BadValueError, HeteroError, NothingFitsError
from hetero.floor.extras import need
from hetero.model.device import Device
from hetero.session.options import OPENING, ContextOptions, Fleet, lent_or_opened
from hetero.session.tasks import task
from hetero.tune.space import read_space
from hetero.tune.study import Study
from hetero.tune.trial import Trial, TrialCall, run_trial
from hetero.tune.values import FORMER_GOALS, SearchError, SearchListener, SearchPlan, SearchResult

if TYPE_CHECKING:
    from hetero.session.context import Context
    from hetero.session.futures import Future

__all__ = ["RunningTrial", "TrialPaces", "run_search", "takes_python", "tune"]

_POLL_S = 1.0
_TRIALS = 20


class RunningTrial(NamedTuple):
    """A trial on a device, for so long.

    Attributes
    ----------
    elapsed_s
        Seconds since it was handed in.
    """

    number: int
    device: str
    elapsed_s: float


class TrialPaces:
    """How long a trial takes on each device: the mean, since trials differ and some are pruned.

    The first trial of a device also loads what trials need, and counts only as long as there is no other.

    Examples
    --------
    >>> paces = TrialPaces()
    >>> paces.learn("fast", 1.0)
    >>> paces.learn("slow", 5.0)
    >>> running = [RunningTrial(7, "fast", 0.5)]
    >>> paces.worth("slow", 10, running), paces.worth("slow", 3, running)
    (True, False)
    >>> paces.to_rescue("fast", [RunningTrial(8, "slow", 1.0)])
    8
    """

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    def learn(self, device: str, seconds: float) -> None:
        """Record a trial that ended."""
        self._seconds.setdefault(device, []).append(seconds)

    def learn_at_least(self, device: str, seconds: float) -> None:
        """Record a trial that was stopped, which is all that is known of a device that ended none."""
        if device not in self._seconds:
            self.learn(device, seconds)

    @property
    def seconds(self) -> Mapping[str, float]:
        """S that a trial takes on each device that ended one."""
        return {device: max(fmean(known[1:] or known), 1e-9) for device, known in self._seconds.items()}

    def fastest_first(self, devices: Iterable[str]) -> list[str]:
        """Return devices in the order in which they should be asked; those that are not known come last."""
        known = self.seconds
        return sorted(devices, key=lambda device: known.get(device, inf))

    def worth(self, device: str, left: int, running: Iterable[RunningTrial]) -> bool:
        """Return whether a device should take one of the trials that are left.

        Notes
        -----
        True where it would end the trial before the others could end all that is left: with rₑ s to go on device e
        and sₑ s a trial, they need (left + Σ rₑ/sₑ) / Σ 1/sₑ and min(rₑ + sₑ) at least. A device that is not known
        yet takes one.
        """
        known = self.seconds
        if device not in known:
            return True
        others = {other: seconds for other, seconds in known.items() if other != device}
        if not others:
            return True
        to_go = dict.fromkeys(others, 0.0)
        for trial in running:
            if trial.device in others:
                to_go[trial.device] = max(0.0, others[trial.device] - trial.elapsed_s)
        rate = sum(1.0 / seconds for seconds in others.values())
        loaded = sum(to_go[other] / seconds for other, seconds in others.items())
        first_s = min(to_go[other] + seconds for other, seconds in others.items())
        return known[device] <= max(first_s, (left + loaded) / rate)

    def to_rescue(self, device: str, running: Iterable[RunningTrial]) -> int | None:
        """Return the running trial that an idle device would end before whoever runs it, None where there is none.

        Notes
        -----
        A trial that should have ended by now, or runs on a device that is not known, is expected to take as long
        again as it took so far, and no less than a trial takes on the fastest. A device that is not known may be the
        fastest, so it takes one.
        """
        known = self.seconds
        least_s = min(known.values(), default=0.0)

        def left_s(trial: RunningTrial) -> float:
            due_s = known.get(trial.device, 0.0) - trial.elapsed_s
            return due_s if due_s > 0.0 else max(trial.elapsed_s, least_s)

        soonest: dict[int, float] = {}
        for trial in running:
            soonest[trial.number] = min(left_s(trial), soonest.get(trial.number, inf))
        if not soonest:
            return None
        latest = max(soonest, key=lambda number: (soonest[number], -number))
        return latest if soonest[latest] >= known.get(device, 0.0) else None


@moved_keywords(OPENING)
@renamed_values(goal=FORMER_GOALS)
def tune(
    objective: Callable[[Trial], object],
    space: Mapping[str, object],
    *,
    trials: int | None = None,
    sampler: str = "tpe",
    pruner: str = "median",
    goal: str = "minimize",
    storage: str | Path | None = None,
    seed: int | None = None,
    devices: Fleet | Context = None,
    context: ContextOptions | None = None,
    listener: SearchListener | None = None,
) -> SearchResult:
    """Find the values of a space for which a function gives the least, or the most.

    Parameters
    ----------
    objective
        Takes a trial, whose values are `trial["name"]`, and gives a number; it may tell values of before its end with
        `trial.report(step, value)`, which ends a bad trial.
    space
        Ranges by name: {"log": [a, b]}, {"linear": [a, b]}, {"whole": [a, b]} or {"choice": [a, b, …]}; a grid takes
        `points` of the first two.
    trials
        How many in all; 20 where none is given, and every point of a grid.
    sampler
        'tpe', 'random' or 'grid'.
    pruner
        'median', 'hyperband' or 'none'.
    goal
        'minimize' or 'maximize'.
    storage
        SQLite file of the trials, from which the same call goes on after a kill; None keeps none.
    seed
        Of the sampler; HETERO_SEED where none is given.
    devices
        The fleet, as `hetero.Context` takes it, or a Context that is open.
    context
        How a Context is opened where `devices` is none.
    listener
        Hears of trials.

    Raises
    ------
    BadValueError
        An argument is not allowed, or the file holds another search.
    SearchError
        The first trials all failed; the first one's exception is its cause.

    Notes
    -----
    On one device the same seed gives the same trials, also after a kill.

    Examples
    --------
    >>> import hetero
    >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
    ...     found = hetero.train.tune(
    ...         lambda trial: (trial["x"] - 2) ** 2, {"x": {"whole": [0, 5]}}, sampler="grid", devices=ctx
    ...     )
    >>> found.best.params, found.best.value, len(found.trials)
    ({'x': 2}, 0.0, 6)
    """
    if not callable(objective):
        raise BadValueError(f"{objective!r} is no function", remedy="give a function of a trial")
    ranges = read_space(space)
    count = trials if trials is not None else 10**5 if sampler == "grid" else _TRIALS
    chosen = settings.seed() if seed is None else seed
    plan = SearchPlan(_name_of(objective), ranges, count, sampler, pruner, goal, chosen)
    path = None if storage is None else Path(storage).expanduser().absolute()
    return run_search(objective, plan, path, devices=devices, context=context, listener=listener or SearchListener())


def takes_python(device: Device) -> bool:
    """Return whether a device runs Python functions and really computes."""
    return device.runs_python and not device.simulated


def run_search(
    objective: Callable[[Trial], object],
    plan: SearchPlan,
    path: Path | None,
    *,
    devices: Fleet | Context = None,
    context: ContextOptions | None = None,
    listener: SearchListener,
    fits: Callable[[Device], bool] = takes_python,
) -> SearchResult:
    """Carry out a plan.

    Parameters
    ----------
    path
        File of the study, None to keep none.
    devices, context
        The fleet and how it is opened, or a Context that is open.
    fits
        Tells whether a device can run the objective.
    """
    need("optuna", "a search")
    begun_s = clock.monotonic_s()
    study = Study(plan, path)
    try:
        if study.left > 0:
            with lent_or_opened(devices, context, history=False) as ctx:
                _DeviceSearch(ctx, study, objective, listener, fits).run()
        best = study.best
        if best is None:
            raise SearchError("no trial finished", remedy="see the trials' problems, or use pruner='none'")
        return SearchResult(best, study.reports, plan.goal, clock.monotonic_s() - begun_s, study.resumed, path)
    finally:
        study.close()


@dataclass(slots=True)
class _TrialRun:
    """A trial on a device."""

    number: int
    device: Device
    future: Future
    begun_s: float


class _DeviceSearch:
    """Gives every device the next trial when it is free, as long as that helps."""

    def __init__(
        self,
        ctx: Context,
        study: Study,
        objective: Callable[[Trial], object],
        listener: SearchListener,
        fits: Callable[[Device], bool],
    ) -> None:
        self.ctx = ctx
        self.study = study
        self.listener = listener
        self.devices = {device.short: device for device in ctx.devices if fits(device)}
        if not self.devices:
            names = ", ".join(device.short for device in ctx.devices)
            raise NothingFitsError(f"none of {names} can run this objective", remedy="name a CPU or a GPU")
        self.tasks = {name: task(run_trial, on=(each.id,), name="trial") for name, each in self.devices.items()}
        self.objective = ctx.put(objective)
        self.runs: list[_TrialRun] = []
        self.params: dict[int, dict[str, object]] = {}
        self.cause: BaseException | None = None
        self.paces = TrialPaces()
        for report in study.reports:
            if report.device in self.devices:
                self.paces.learn(report.device, report.seconds)

    def run(self) -> None:
        """Work through the trials."""
        names = {name: device.name for name, device in self.devices.items()}
        self.listener.on_start(names, self.study.resumed, self.study.wanted)
        with LineServer() as hub:
            bell = Line.dial(hub.address)
            try:
                self._fill(hub, bell)
                while self.runs:
                    self._answer(hub)
                    self._collect()
                    self._fill(hub, bell)
            finally:
                for run in self.runs:
                    run.future.cancel()
                bell.close()

    def _fill(self, hub: LineServer, bell: Line) -> None:
        """Start trials on idle devices; one that ends sets the event, so that the next is submitted at once."""
        busy = {run.device.id for run in self.runs}
        for name in self.paces.fastest_first(self.devices):
            device = self.devices[name]
            number = None if device.id in busy else self._next_for(device)
            if number is None:
                continue
            call = TrialCall(number, self.params[number], hub.address)
            future = self.ctx.submit(self.tasks[name], call, self.objective)
            self.runs.append(_TrialRun(number, device, future, clock.monotonic_s()))
            future.add_done_callback(lambda _: _ring(bell))
        self.listener.on_running({run.device.short: (run.number, self.params[run.number]) for run in self.runs})

    def _next_for(self, device: Device) -> int | None:
        """Return the trial that an idle device should take: a new one, or at the end one that another is late with."""
        now_s = clock.monotonic_s()
        running = [RunningTrial(run.number, run.device.short, now_s - run.begun_s) for run in self.runs]
        if self.study.left:
            if not self.paces.worth(device.short, self.study.left, running):
                return None
            number, self.params[number] = self.study.ask()
            return number
        return self.paces.to_rescue(device.short, running)

    def _answer(self, hub: LineServer) -> None:
        for line, message in hub.poll(_POLL_S):
            if message is not None and message[0] == "report":
                _, number, step, value = message
                prune = self.study.report(number, step, value)
                self.listener.on_value(number, step, value)
                with suppress(LineClosedError):
                    line.send("prune" if prune else "go")

    def _collect(self) -> None:
        for run in [run for run in self.runs if run.future.done()]:
            if run not in self.runs:
                continue
            try:
                ended = run.future.result()
                self.paces.learn(run.device.short, ended.seconds)
                report = self.study.finish(run.number, ended)
            except (Exception, SystemExit) as error:  # noqa: BLE001  the objective's own, told with the trial
                self.cause = error if self.cause is None else self.cause
                report = self.study.fail(run.number, _worded(error))
            self._let_go(run.number)
            self.listener.on_trial(report, self.study.best)
            self._stop_if_hopeless()

    def _let_go(self, number: int) -> None:
        """Stop what else runs of a trial that has ended."""
        for run in [run for run in self.runs if run.number == number]:
            self.runs.remove(run)
            if not run.future.done():
                run.future.cancel()
                self.paces.learn_at_least(run.device.short, clock.monotonic_s() - run.begun_s)

    def _stop_if_hopeless(self) -> None:
        if self.study.hopeless:
            raise SearchError(
                f"every trial failed so far, the first: {self.study.reports[0].problem}",
                remedy="mend the objective or narrow the space, and keep the search elsewhere",
            ) from self.cause


def _ring(bell: Line) -> None:
    with suppress(LineClosedError):
        bell.send("ended")


def _worded(error: BaseException) -> str:
    return str(error) if isinstance(error, HeteroError) else f"{type(error).__name__}: {error}"


def _name_of(objective: object) -> str:
    name = getattr(objective, "__qualname__", type(objective).__qualname__)
    module = getattr(objective, "__module__", "")
    return name if module in ("", "__main__") else f"{module}.{name}"
