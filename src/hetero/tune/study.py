"""The study: which trials there were and are, kept in SQLite by Optuna, and found again after a kill.

In: what ended, what was reported. Out: the values to try next, whether to prune, the trials so far.
It must not run a trial, and it belongs to one thread.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

from hetero.floor.documents import JsonObject, parse_json, record_of
from hetero.floor.errors import BadValueError
from hetero.floor.files import local_path, output_folder
from hetero.tune.space import describe, distributions, grid
from hetero.tune.trial import TrialResult
from hetero.tune.values import FORMER_GOALS, SearchPlan, TrialEnd, TrialReport

if TYPE_CHECKING:
    import optuna


__all__ = ["Study"]

_NAME = "hetero"
_ABOUT = "hetero.about"
_OWNER = "hetero.owner"
_AGAIN = "hetero.again"
_POINT = "hetero.point"
_HOPELESS = 3


class Study:
    """A study of Optuna's that can be opened again, and whose unfinished trials are then tried again.

    Parameters
    ----------
    plan
        What was asked.
    path
        File of the study, None to keep it in memory.

    Raises
    ------
    BadValueError
        The file is no study, belongs to another search, or is in use.

    Notes
    -----
    A trial that an earlier run left unfinished is queued with the same values; only then it is marked as failed, so
    a kill between the two loses nothing. One that was killed before all of its values were stored, which no objective
    has seen, is left out and its values are drawn again. The sampler is made anew for every trial, from the seed and
    the number of trials asked for so far: a run that was killed goes on as if it had not been.
    """

    def __init__(self, plan: SearchPlan, path: Path | None) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.plan = plan
        self.path = path
        self._states = optuna.trial.TrialState
        self._space = distributions(plan.space)
        self._points = _points(plan) if plan.sampler == "grid" else []
        self._running: dict[int, optuna.Trial] = {}
        self._verdicts: dict[tuple[int, int], bool] = {}
        self._reports: dict[int, TrialReport] = {}
        self._storage = _open_storage(path)
        try:
            self._study = optuna.create_study(
                storage=self._storage,
                study_name=_NAME,
                direction=plan.goal,
                pruner=_pruner(plan.pruner),
                load_if_exists=True,
            )
            self._check_owner()
            self._check_about()
            self._adopt()
        except BaseException:
            self.close()
            raise

    # --- opening -------------------------------------------------------------------------------------------

    def _check_owner(self) -> None:
        import psutil

        me = psutil.Process()
        owner = self._study.user_attrs.get(_OWNER)
        if owner and owner[0] != me.pid and _lives(*owner):
            raise BadValueError(
                f"the study in {self.path} is being worked on by process {owner[0]}",
                remedy="wait for it, or keep this search elsewhere",
            )
        self._study.set_user_attr(_OWNER, [me.pid, me.create_time()])

    def _check_about(self) -> None:
        about = {"objective": self.plan.what, "goal": self.plan.goal, "space": describe(self.plan.space)}
        known = self._study.user_attrs.get(_ABOUT)
        if known is None:
            self._study.set_user_attr(_ABOUT, json.dumps(about))
            return
        difference = _difference(_about_of(str(known), str(self.path)), about)
        if difference:
            raise BadValueError(
                f"the study in {self.path} is of another search: {difference}",
                remedy="keep this search elsewhere, or search as before",
            )

    def _adopt(self) -> None:
        """Take over what earlier runs left: ended trials as they are, unfinished ones to be tried again."""
        trials = self._study.get_trials(deepcopy=False)
        again = {trial.user_attrs[_AGAIN] for trial in trials if _AGAIN in trial.user_attrs}
        for trial in trials:
            if trial.state == self._states.RUNNING:
                values = self._values_of(trial, trials)
                if values is not None and trial.number not in again:
                    self._study.enqueue_trial(values, user_attrs={_AGAIN: trial.number})
                    again.add(trial.number)
                self._study.tell(trial.number, state=self._states.FAIL)
        self._asked = 0
        self._tried: set[int] = set()
        trials = self._study.get_trials(deepcopy=False)
        for trial in trials:
            facts = trial.user_attrs
            if self._values_of(trial, trials) is None and trial.state != self._states.WAITING:
                continue
            self._asked += _AGAIN not in facts and trial.state != self._states.WAITING
            self._tried |= {facts[_POINT]} if _POINT in facts else set()
            if trial.state.is_finished() and trial.number not in again:
                self._reports[trial.number] = self._report_of(trial)
        self.resumed = len(self._reports)

    def _values_of(self, trial: optuna.trial.FrozenTrial, trials: list[object]) -> dict[str, object] | None:
        """Return what a trial tries; None where a kill came before all of it was stored."""
        while _AGAIN in trial.user_attrs:
            trial = trials[trial.user_attrs[_AGAIN]]
        if _POINT in trial.user_attrs:
            return dict(self._points[trial.user_attrs[_POINT]])
        return dict(trial.params) if set(trial.params) == set(self._space) else None

    def _report_of(self, trial: optuna.trial.FrozenTrial) -> TrialReport:
        words: dict[object, TrialEnd] = {
            self._states.COMPLETE: "finished",
            self._states.PRUNED: "pruned",
            self._states.FAIL: "failed",
        }
        facts = trial.user_attrs
        return TrialReport(
            trial.number,
            words[trial.state],
            dict(trial.params),
            trial.value,
            facts.get("device", ""),
            facts.get("seconds", 0.0),
            facts.get("problem", ""),
        )

    # --- trials --------------------------------------------------------------------------------------------

    @property
    def wanted(self) -> int:
        """How many trials there will be in all."""
        return min(self.plan.trials, len(self._points)) if self._points else self.plan.trials

    @property
    def left(self) -> int:
        """How many trials are still to be asked for."""
        return self.wanted - len(self._reports) - len(self._running)

    @property
    def reports(self) -> tuple[TrialReport, ...]:
        """The trials that ended."""
        return tuple(self._reports[number] for number in sorted(self._reports))

    @property
    def best(self) -> TrialReport | None:
        """The best finished trial; of equal ones the first."""
        sign = 1.0 if self.plan.goal == "minimize" else -1.0
        ranked = [(sign * (t.value or 0.0), t.number) for t in self._reports.values() if t.state == "finished"]
        return self._reports[min(ranked)[1]] if ranked else None

    @property
    def hopeless(self) -> bool:
        """True when the first trials all failed."""
        states = {report.state for report in self._reports.values()}
        return states == {"failed"} and len(self._reports) >= min(_HOPELESS, self.wanted)

    def ask(self) -> tuple[int, dict[str, object]]:
        """Return the number and the values of the next trial."""
        self._study.sampler = self._sampler()
        if self._points and not self._waiting():
            self._enqueue_point()
        trial = self._study.ask(self._space)
        self._asked += _AGAIN not in trial.user_attrs
        self._running[trial.number] = trial
        return trial.number, dict(trial.params)

    def _sampler(self) -> object:
        from optuna import samplers

        seed = (self.plan.seed * 1_000_003 + self._asked) % 2**32
        return samplers.TPESampler(seed=seed) if self.plan.sampler == "tpe" else samplers.RandomSampler(seed=seed)

    def _waiting(self) -> bool:
        return bool(self._study.get_trials(deepcopy=False, states=(self._states.WAITING,)))

    def _enqueue_point(self) -> None:
        """Queue the next point of the grid, its values and its number in one write."""
        point = next(number for number in range(len(self._points)) if number not in self._tried)
        self._study.enqueue_trial(self._points[point], user_attrs={_POINT: point})
        self._tried.add(point)

    def report(self, number: int, step: int, value: float) -> bool:
        """Take a value that a running trial reported; True where it is to be pruned."""
        trial = self._running.get(number)
        if trial is None:
            return True
        if (number, step) not in self._verdicts:
            trial.report(value, step)
            self._verdicts[number, step] = bool(trial.should_prune())
        return self._verdicts[number, step]

    def finish(self, number: int, ended: TrialResult) -> TrialReport:
        """Take what a trial came to."""
        trial = self._running[number]
        trial.set_user_attr("device", ended.device)
        trial.set_user_attr("seconds", ended.seconds)
        if ended.pruned:
            return self._end(number, state=self._states.PRUNED)
        return self._end(number, values=ended.value)

    def fail(self, number: int, problem: str) -> TrialReport:
        """Record that a trial failed."""
        self._running[number].set_user_attr("problem", problem)
        return self._end(number, state=self._states.FAIL)

    def _end(self, number: int, **outcome: object) -> TrialReport:
        done = self._study.tell(self._running[number], **outcome)
        del self._running[number]
        self._reports[number] = self._report_of(done)
        return self._reports[number]

    def close(self) -> None:
        """Release the file."""
        if self.path is not None:
            self._storage.remove_session()
            self._storage.engine.dispose()


def _open_storage(path: Path | None) -> optuna.storages.BaseStorage:
    from optuna.storages import InMemoryStorage, RDBStorage
    from sqlalchemy.exc import DatabaseError

    if path is None:
        return InMemoryStorage()
    output_folder(local_path(path, "study").parent, "study")
    try:
        return RDBStorage(f"sqlite:///{path}")
    except (DatabaseError, RuntimeError) as error:
        said = str(getattr(error, "orig", error)).splitlines()[0]
        raise BadValueError(
            f"{path} is no study that can be read: {said}", remedy="keep the search elsewhere"
        ) from error


def _pruner(word: str) -> optuna.pruners.BasePruner:
    from optuna import pruners

    made = {"median": pruners.MedianPruner, "hyperband": pruners.HyperbandPruner, "none": pruners.NopPruner}
    return made[word]()


def _points(plan: SearchPlan) -> list[dict[str, object]]:
    """Return the points of the grid, in an order that the seed decides."""
    values = grid(plan.space)
    points = [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]
    random.Random(plan.seed).shuffle(points)
    return points


def _lives(pid: int, since_s: float) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).create_time() == since_s)
    except psutil.Error:
        return False


def _about_of(text: str, place: str) -> dict[str, object]:
    kinds = {"objective": str, "goal": str, "space": dict}
    about = record_of(parse_json(text, place), kinds, place)
    return {**about, "goal": FORMER_GOALS.get(about["goal"], about["goal"])}


def _difference(known: JsonObject, about: JsonObject) -> str:
    """Return the first setting in which two searches differ, '' where they are the same."""
    for name in ("objective", "goal"):
        if known[name] != about[name]:
            return f"its {name} is {known[name]!r}, and here {about[name]!r}"
    before, now = known["space"], about["space"]
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            return f"its {name} is {before.get(name, 'not searched')}, and here {now.get(name, 'not searched')}"
    return ""
