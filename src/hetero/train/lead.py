"""Leading a run: who takes part, in which generation of the group, and what becomes of those who die.

In: what the members say, what their tasks became. Out: groups that form, reports to the caller, the trained state.
It must not take part in a step: between epochs the members need no word from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any, ClassVar, Literal, NamedTuple

from hetero.comm.errors import LineClosedError
from hetero.comm.lines import Line, LineServer
from hetero.floor import clock
from hetero.floor.errors import (
    HeteroError,
    NothingFitsError,
    OutOfDeviceMemoryError,
    RemoteTracebackError,
    TaskCancelledError,
    TaskLostError,
)
from hetero.plan.training.shares import StepModel, make_plan
from hetero.session.futures import Future
from hetero.train import messages as msg
from hetero.train.checkpoints import TrainingCheckpoints
from hetero.train.compatibility import changed_values
from hetero.train.listener import Listener
from hetero.train.schedules import ScheduleHistory
from hetero.train.values import NotANumberError, StepReport, Totals, TrainingError, TrainOptions
from hetero.train.worker_deaths import KilledPasses, WorkerDeaths

__all__ = ["Admission", "Extent", "Lead", "MemberState", "ProgramHooks"]

_POLL_S = 0.1
_START_S = 30.0
_LAST_WORDS_S = 2.0
_LAST_CHECKPOINT_S = 60.0

_MEASURING_S = 30.0
_LEAST_WAIT_S = 0.5
_TIMES_THE_FIRST = 5.0


class Extent(NamedTuple):
    """From where to where a run goes.

    Attributes
    ----------
    begin, end
        Steps done before it and after it.
    checkpoints
        Where it goes on when nobody who took part is left, None for `begin`.
    log
        Takes the lines that members on other hosts have for the log of samples, after the device.
    """

    begin: int
    end: int
    checkpoints: TrainingCheckpoints | None = None
    log: Callable[[str, bytes], None] = lambda device, line: None


@dataclass(slots=True)
class MemberState:
    """One device as far as it is known here.

    Attributes
    ----------
    phase
        How far it is in joining, or that it is gone.
    step
        Steps that it has done.
    model, link_s
        What it knows of its own speed and of an exchange; see `Formation`.
    patience_s
        How long it would wait for the others, s.
    joined
        Generation of the group that it was last in, 0 for none.
    seems
        How fast it can be at most, told while it measures itself.
    measures
        True once it was asked to measure itself.
    """

    device: str
    line: Line
    phase: Literal["here", "ready", "in", "left"] = "here"
    step: int = -1
    model: StepModel | None = None
    link_s: float = -1.0
    patience_s: float = 0.0
    joined: int = 0
    seems: StepModel | None = None
    measures: bool = False


class Admission(NamedTuple):
    """Which devices may join a run, and how long the run waits for them.

    Attributes
    ----------
    options
        Of the run.
    on_host
        The devices that compute on their host's cores.

    Notes
    -----
    A device that is so slow that it would be left out also measures itself slowly. Whoever is ready begins without it.
    """

    options: TrainOptions
    on_host: frozenset[str] = frozenset()

    def wait_s(self, first_s: float) -> float:
        """Return how long the others are waited for, once the first device has measured itself in `first_s`.

        Examples
        --------
        >>> Admission(TrainOptions(128)).wait_s(0.3), Admission(TrainOptions(128, shares="equal")).wait_s(0.3)
        (1.5, 30.0)
        """
        return max(_LEAST_WAIT_S, _TIMES_THE_FIRST * first_s) if self.options.shares == "auto" else _MEASURING_S

    def refusal(self, team: Sequence[StepModel], newcomer: StepModel, link_s: float) -> str:
        """Return why a newcomer would not make the step of a group shorter, '' where it would.

        Parameters
        ----------
        link_s
            Seconds that an exchange costs for each further member, below 0 where it is not known.

        Examples
        --------
        >>> Admission(TrainOptions(128)).refusal([StepModel(0.001, 0.0001)], StepModel(0.05, 0.005), -1.0)
        'one sample would take it 55 ms, and the others do all 128 in 13.8 ms'
        >>> Admission(TrainOptions(128)).refusal([StepModel(0.001, 0.0001)], StepModel(0.001, 0.0003), 0.001)
        ''
        """
        if self.options.shares != "auto":
            return ""
        units = -(-self.options.global_batch // self.options.unit)
        comm_s = [0.0, *(max(0.0, link_s) * others for others in range(len(team) + 1))]
        return make_plan([*team, newcomer], units, comm_s).reasons[-1]


class ProgramHooks(NamedTuple):
    """What the lead calls in the program besides its listener.

    Attributes
    ----------
    show
        Brings the program's model and optimizer to the state of an epoch, before anybody hears of it.
    written
        Gives the state that callbacks have written since, None where they wrote nothing.
    measured
        Gives the metrics of a test by name, from its passes in order; None where there are none to take.
    stepped
        Hears of every step, once and in order, where the members tell them.
    """

    show: Callable[[bytes], None] = lambda state: None
    written: Callable[[], bytes | None] = lambda: None
    measured: Callable[[list[tuple[object, object]]], dict[str, float | list[float]]] | None = None
    stepped: Callable[[StepReport], None] = lambda report: None


@dataclass(slots=True)
class Lead:
    """Leads one run.

    Attributes
    ----------
    hub
        Where members dial in.
    futures
        The members' tasks by device.
    start
        Starts the task of a device's member.
    listener
        Who hears of it.
    extent
        From where to where it goes.
    admission
        Who takes part.
    values
        Gives the settings of the optimizer's parameter groups in the program, which callbacks may change.
    schedules
        The program's schedulers, whose states go into checkpoints and go back with the run.
    program
        What is called in the program.
    notes
        What was said to the listener.
    killed
        Whose memory is too small.
    deaths
        Whose worker gets nowhere.
    """

    hub: LineServer
    start: Callable[[str], Future]
    futures: dict[str, Future]
    listener: Listener
    extent: Extent
    admission: Admission
    values: Callable[[], list[dict[str, Any]]] = list
    schedules: ScheduleHistory = field(default_factory=partial(ScheduleHistory, None, 0, kept=False))
    program: ProgramHooks = field(default_factory=ProgramHooks)
    notes: list[str] = field(default_factory=list)
    killed: KilledPasses = field(default_factory=KilledPasses)
    deaths: WorkerDeaths = field(default_factory=WorkerDeaths)
    _members: dict[Line, MemberState] = field(default_factory=dict)
    _team: list[MemberState] = field(default_factory=list)
    _generation: int = 0
    _outsiders: dict[str, float] = field(default_factory=dict)
    _bad: dict[int, list[int]] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    _probing: bool = False
    _first_here_s: float = inf
    _probe_s: float = inf
    _first_ready_s: float = inf
    _report_due_s: float = inf
    _scheduled: dict[str, object] = field(default_factory=dict)
    _end: int = 0
    _heard: int = 0
    _nowhere: dict[str, str] = field(default_factory=dict)
    _changed: dict[int, dict[int, dict[str, object]]] = field(default_factory=dict)
    _told: int = 0
    _written: tuple[int, bytes | None] = (-1, None)
    _outputs: dict[int, list[tuple[object, object]]] = field(default_factory=dict)
    _unmeasured: msg.EpochDone | None = None

    def __post_init__(self) -> None:
        self._end, self._heard = self.extent.end, self.extent.begin
        self._told = self.extent.begin
        self._scheduled = self.schedules.at(self.extent.begin)
        for future in self.futures.values():
            self._watch(future)

    def _watch(self, future: Future) -> None:
        future.add_done_callback(lambda _: self.hub.wake())

    def run(self) -> bytes:
        """Lead until the last member is done; returns the trained state.

        Raises
        ------
        TrainingError
            No device is left.
        Exception
            Whatever a member raised.
        """
        try:
            while True:
                self._look_at_tasks()
                over = all(future.done() for future in self.futures.values())
                if (state := self._outcome()) is not None or over:
                    break
                self._receive(_POLL_S)
                self._probe_if_here()
                self._form_if_ready()
        except BaseException:
            self._stop_all()
            raise
        if state is not None:
            self._end_latecomers()
            return state
        raise TrainingError("no device is left to train on: " + "; ".join(self.notes))

    def _outcome(self) -> bytes | None:
        """Return the trained state once the first member has handed it in."""
        for future in self.futures.values():
            if future.done() and _error(future) is None and future.result() is not None:
                state: bytes = future.result()
                return state
        return None

    def _end_latecomers(self) -> None:
        """End the team's other members, and stop devices that came back too late."""
        for member in self._team:
            self._send(member, msg.RunDone())
        team = {member.device for member in self._team}
        for device, future in self.futures.items():
            if device not in team:
                future.cancel()
        begun_s = clock.monotonic_s()
        while self._speaks(clock.monotonic_s() - begun_s):
            self._receive(_POLL_S)
        for future in self.futures.values():
            future.cancel()

    def _speaks(self, waited_s: float) -> bool:
        """Return whether somebody may still have a word to say: the first member its last checkpoint."""
        first = [member for member in self._members.values() if member is self._team[0] and member.phase != "left"]
        if first and waited_s < (_LAST_WORDS_S if self.extent.checkpoints is None else _LAST_CHECKPOINT_S):
            return True
        return waited_s < _LAST_WORDS_S and not all(future.done() for future in self.futures.values())

    # --- hearing -------------------------------------------------------------------------------------------

    def _receive(self, timeout_s: float) -> None:
        for line, came in self.hub.poll(timeout_s):
            if came is None:
                self._gone(line)
                continue
            message = msg.read_message(came)
            if isinstance(message, msg.MemberArrived):
                self._on_arrived(line, message.device)
            elif line in self._members:
                self._answers[type(message)](self, self._members[line], message)

    def _on_arrived(self, line: Line, device: str) -> None:
        for old in [known for known in self._members.values() if known.device == device]:
            self._forget(old)
        for old in [member for member in self._team if member.device == device]:
            self._break(old)
        self._members[line] = MemberState(device, line)
        if self._generation:
            self._note(f"{device} {'is back' if device in self._seen else 'is up'} and joins at the next step")
        self._seen.add(device)
        self._first_here_s = min(self._first_here_s, clock.monotonic_s())

    def _probe_if_here(self) -> None:
        """Ask members to measure themselves once all are up; one that is not up in time joins later.

        Notes
        -----
        Accelerators come first, then all CPUs at the same time, as they will train. A CPU device that computes on
        every core takes the time of the thread that feeds an accelerator, which would seem several times slower than
        it is alone.
        """
        if not self._probing and not self._may_probe():
            return
        here = [member for member in self._members.values() if member.phase == "here"]
        first = [member for member in here if member.device not in self.admission.on_host]
        for member in first or here:
            if not member.measures:
                member.measures = True
                self._send(member, msg.MeasureSpeed(self.killed.most(member.device)))

    def _may_probe(self) -> bool:
        wanted = {device for device, future in self.futures.items() if not future.done()}
        absent = wanted - {member.device for member in self._members.values()}
        if absent and clock.monotonic_s() - self._first_here_s < _START_S:
            return False
        for device in sorted(absent):
            self._note(f"{device} is not up yet: training begins without it")
        self._probing, self._probe_s = True, clock.monotonic_s()
        return True

    def _on_seen(self, member: MemberState, seen: msg.SpeedSeen) -> None:
        member.seems = seen.model

    def _on_ready(self, member: MemberState, ready: msg.MemberReady) -> None:
        member.phase, member.step, member.model = "ready", ready.step, ready.model
        self.deaths.reached(ready.step)
        member.link_s, member.patience_s = ready.link_s, ready.patience_s
        if not any(other.phase == "ready" for other in self._members.values() if other is not member):
            self._first_ready_s = clock.monotonic_s()
        if member not in self._team and self._team and self._team[0].phase == "in":
            self._admit(member)

    def _admit(self, member: MemberState) -> None:
        """Have the group take in a newcomer at its next step, or let it go where it would not help."""
        models = [each.model for each in self._team if each.model is not None]
        assert member.model is not None
        reason = self.admission.refusal(models, member.model, max(each.link_s for each in self._team))
        if not reason:
            self._send(self._team[0], msg.Regroup())
            return
        member.phase = "left"
        if not any(note.startswith(f"{member.device} is left out") for note in self.notes):
            self._note(f"{member.device} is left out: {reason}")
        self._send(member, msg.StopTraining())

    def _on_rendezvous(self, _: MemberState, opened: msg.RendezvousOpened) -> None:
        if opened.generation == self._generation:
            for member in self._team[1:]:
                self._send(member, msg.MeetAt(opened.rendezvous))

    def _on_left(self, member: MemberState, left: msg.LeftOut) -> None:
        member.phase = "left"
        self._outsiders[member.device] = left.speed
        self._note(f"{member.device} is left out: {left.reason}")

    def _on_pass(self, member: MemberState, grown: msg.PassGrown) -> None:
        if not self.killed.begins(member.device, grown.samples, grown.kills_file):
            self.futures[member.device].cancel()

    def _on_halved(self, member: MemberState, halved: msg.PassesHalved) -> None:
        self._note(f"{member.device} ran out of memory: its passes have at most {halved.samples} samples now")

    def _on_ended(self, member: MemberState, _: msg.MemberEnded) -> None:
        member.phase = "left"

    def _on_step(self, _: MemberState, done: msg.StepDone) -> None:
        report = done.report
        self.deaths.reached(report.step)
        self.listener.on_step(report.step, report.loss)
        self.listener.on_step_report(report)

    def _on_sent(self, _: MemberState, sent: msg.CheckpointSent) -> None:
        assert self.extent.checkpoints is not None
        begun_s = clock.monotonic_s()
        self.extent.checkpoints.write(sent.step, sent.state, sent.facts)
        self.listener.on_checkpoint(sent.step, len(sent.state), clock.monotonic_s() - begun_s)

    def _on_stored(self, _: MemberState, stored: msg.CheckpointStored) -> None:
        self.listener.on_checkpoint(*stored)

    def _on_logged(self, member: MemberState, logged: msg.SamplesLogged) -> None:
        self.extent.log(member.device, logged.line)

    def _on_plan(self, _: MemberState, adopted: msg.PlanAdopted) -> None:
        self.listener.on_plan(adopted.shares)

    def _on_steps(self, _: MemberState, told: msg.StepsTold) -> None:
        for report in told.reports:
            if report.step > self._told:
                self._told = report.step
                self.program.stepped(report)

    def _on_outputs(self, member: MemberState, tested: msg.TestOutputs) -> None:
        if tested.generation == self._generation:
            self._outputs[tested.rank] = tested.passes
            if self._unmeasured is not None:
                self._on_epoch(member, self._unmeasured)

    def _on_epoch(self, _: MemberState, done: msg.EpochDone) -> None:
        report = done.report
        if self.program.measured is not None:
            if len(self._outputs) < len(self._team):
                self._unmeasured = done
                return
            passes = [each for rank in sorted(self._outputs) for each in self._outputs[rank]]
            self._forget_outputs()
            report = replace(report, metrics=self.program.measured(passes))
        self.deaths.reached(report.step)
        if done.state is not None:
            self.program.show(done.state)
        self.schedules.again(report.step)
        before = self.values()
        if self.listener.on_epoch(report):
            self._end = report.step
        self._add_changes(report.step, changed_values(before, self.values()))
        self._written = report.step, self.program.written()
        self._scheduled = self.schedules.ended(report.step)
        self._heard = report.step
        self._report_due_s = inf
        for member in self._team:
            self._send(member, msg.AnswerToEpoch(self._end, self._latest, self._scheduled, self._written[1]))

    def _forget_outputs(self) -> None:
        self._outputs, self._unmeasured = {}, None

    def _add_changes(self, step: int, changes: dict[int, dict[str, object]]) -> None:
        """Keep all settings that were changed up to a step, for members that join or form a group anew."""
        latest = self._latest
        self._changed[step] = {i: {**latest.get(i, {}), **changes.get(i, {})} for i in {*latest, *changes}}

    @property
    def _latest(self) -> dict[int, dict[str, object]]:
        return self._changed[max(self._changed)] if self._changed else {}

    def _on_awaited(self, _: MemberState, awaited: msg.EpochAwaited) -> None:
        if awaited.step > self._heard:
            self._report_due_s = min(self._report_due_s, clock.monotonic_s() + awaited.patience_s)

    def _on_bad_samples(self, _: MemberState, bad: msg.BadSamples) -> None:
        self._bad.setdefault(bad.step, []).extend(bad.samples)

    _answers: ClassVar[dict[type[msg.Message], Callable[..., None]]] = {
        msg.SpeedSeen: _on_seen,
        msg.MemberReady: _on_ready,
        msg.RendezvousOpened: _on_rendezvous,
        msg.LeftOut: _on_left,
        msg.MemberEnded: _on_ended,
        msg.PassGrown: _on_pass,
        msg.PassesHalved: _on_halved,
        msg.StepDone: _on_step,
        msg.StepsTold: _on_steps,
        msg.TestOutputs: _on_outputs,
        msg.CheckpointSent: _on_sent,
        msg.CheckpointStored: _on_stored,
        msg.SamplesLogged: _on_logged,
        msg.PlanAdopted: _on_plan,
        msg.EpochDone: _on_epoch,
        msg.EpochAwaited: _on_awaited,
        msg.BadSamples: _on_bad_samples,
    }

    # --- who is there --------------------------------------------------------------------------------------

    def _gone(self, line: Line) -> None:
        member = self._members.pop(line, None)
        if member is not None and member.phase != "left":
            why = self.killed.was_killed(member.device)
            self._note(f"{member.device} is lost{': ' if why else ''}{why}")
            self._break(member)
            if member.device in self.killed.full:
                self.futures[member.device].cancel()

    def _break(self, lost: MemberState) -> None:
        """Notify the other members, including those that wait for a message rather than in a collective."""
        self._report_due_s = inf
        for other in self._team if lost in self._team else ():
            if other is not lost and other.phase == "in":
                self._send(other, msg.GroupBroken(self._generation))

    def _forget(self, member: MemberState) -> None:
        self._members.pop(member.line, None)
        self.hub.drop(member.line)

    def _look_at_tasks(self) -> None:
        for device, future in self.futures.items():
            error = _error(future) if future.done() else None
            if error is None:
                continue
            if isinstance(error, NotANumberError):
                raise self._explained(error)
            if isinstance(error, TaskLostError) and self._starts_again(device):
                continue
            if isinstance(error, OutOfDeviceMemoryError):
                raised = error.__cause__
                if raised is None or isinstance(raised, RemoteTracebackError):
                    raised = error  # by a member itself, in words of its own
                error = self.killed.ran_out(device, raised)
            elif not isinstance(error, TaskLostError | TaskCancelledError | LineClosedError | NothingFitsError):
                raise error
            text = f"{device} is given up: {self._nowhere.get(device, '')}{error}"
            if text not in self.notes:
                self._note(text)
                for member in [member for member in self._team if member.device == device]:
                    self._break(member)

    def _starts_again(self, device: str) -> bool:
        """Start a member whose worker died again, unless it gets nowhere; False where it does not."""
        for line in [line for line, member in self._members.items() if member.device == device]:
            self._gone(line)
        if device in self._nowhere or device in self.killed.full:
            return False
        nowhere = self.deaths.died(device, self.killed.most(device))
        if nowhere:
            self._nowhere[device] = f"{nowhere}; "
            return False
        self.futures[device] = self.start(device)
        self._watch(self.futures[device])
        return True

    def _explained(self, error: NotANumberError) -> NotANumberError:
        """Name the samples, once all members have said theirs."""
        deadline_s = clock.monotonic_s() + _LAST_WORDS_S
        while self._members and clock.monotonic_s() < deadline_s:
            self._receive(_POLL_S)
        samples = sorted({sample for found in self._bad.values() for sample in found})
        which = f"; samples {', '.join(map(str, samples[:20]))}{' …' if len(samples) > 20 else ''}" if samples else ""
        return NotANumberError(
            f"{error.problem}{which}",
            remedy="look at these samples, lower the learning rate, or give on_nan='skip'",
        )

    # --- groups --------------------------------------------------------------------------------------------

    def _form_if_ready(self) -> None:
        now_s = clock.monotonic_s()
        if now_s > self._report_due_s:
            self._give_up(self._team[0])
        alive = [member for member in self._members.values() if member.phase != "left"]
        ready = [member for member in alive if member.phase == "ready"]
        if not ready:
            return
        waited_s = now_s - self._first_ready_s
        if not self._generation and len(ready) < len(alive):
            longest_s = self.admission.wait_s(self._first_ready_s - self._probe_s)
            late = {member.device: self._hopeless(member, ready) for member in alive if member not in ready}
            if waited_s < longest_s and not all(late.values()):
                return
            for device, reason in late.items():
                said = f"is left out: {reason}" if reason else "still measures itself: training begins without it"
                self._note(f"{device} {said}")
        missing = [member for member in alive if member.phase == "in"]
        if not missing:
            self._form(ready)
        elif any(m.joined for m in ready) and waited_s > max(m.patience_s for m in ready if m.joined):
            for member in missing:
                self._give_up(member)

    def _hopeless(self, member: MemberState, ready: list[MemberState]) -> str:
        """Return why one that still measures itself would not make the step of the others shorter, '' where it may."""
        models = [each.model for each in ready if each.model is not None]
        return "" if member.seems is None else self.admission.refusal(models, member.seems, -1.0)

    def _give_up(self, member: MemberState) -> None:
        """Go on without a member that does not answer; should it wake up, it finds its line cut, and comes back."""
        self._note(f"{member.device} does not answer and is given up")
        self._forget(member)
        self._break(member)

    def _form(self, ready: list[MemberState]) -> None:
        order = {device: index for index, device in enumerate(self.futures)}
        team = sorted(ready, key=lambda member: order[member.device])
        saved = self._saved(team) if self._generation and not any(member.joined for member in team) else None
        furthest = max(member.step for member in team)
        source = next(rank for rank, member in enumerate(team) if member.step == furthest)
        source = next((r for r, m in enumerate(team) if m.step == furthest and m.joined), source)
        behind = any(member.step != furthest or (self._generation and not member.joined) for member in team)
        self._team = team
        self._generation += 1
        self._forget_outputs()
        word = msg.Formation(
            rank=0,
            team=tuple(member.device for member in team),
            models=[member.model for member in team if member.model is not None],
            source=0 if saved else source,
            behind=behind,
            generation=self._generation,
            outsiders=self._outsiders,
            steps=self._end,
            heard=self._heard,
            link_s=next((member.link_s for member in team if member.link_s >= 0.0), -1.0),
            saved=saved,
            values=self._latest,
            schedulers=self._scheduled,
            written=self._written[1] if self._written[0] == furthest else None,
        )
        for rank, member in enumerate(team):
            member.phase, member.joined = "in", self._generation
            self.deaths.joined(member.device)
            self._send(member, word._replace(rank=rank, saved=None if rank else saved))

    def _saved(self, team: list[MemberState]) -> msg.LastCheckpoint | None:
        """Return the newest checkpoint where it is further than all who are there; say what was lost."""
        begin = max(member.step for member in team)
        found = None
        if self.extent.checkpoints is not None:
            try:
                found = self.extent.checkpoints.newest()
            except HeteroError as error:
                self._note(str(error))
        for text in found.damaged if found is not None else ():
            self._note(text)
        reached = begin if found is None else max(begin, found.step)
        self._changed = {step: values for step, values in self._changed.items() if step <= reached}
        self._scheduled = self.schedules.at(reached)
        self._told, self._written = min(self._told, reached), (-1, None)
        if found is None or found.step <= begin:
            self._note(f"nobody is left who took part: training goes on from step {begin}")
            self._heard = min(self._heard, begin)
            return None
        self._note(f"nobody is left who took part: training goes on from the checkpoint of step {found.step}")
        self._heard = min(self._heard, found.step)
        return msg.LastCheckpoint(found.state, Totals(**found.facts["totals"]))

    def _send(self, member: MemberState, message: msg.Message) -> None:
        with suppress(LineClosedError):  # the line itself will tell of it
            msg.send_message(member.line, message)

    def _stop_all(self) -> None:
        for member in list(self._members.values()):
            self._send(member, msg.StopTraining())
        for future in self.futures.values():
            future.cancel()

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.listener.on_note(text)


def _error(future: Future) -> BaseException | None:
    """Return what became of a task that has ended; a cancellation too is an error here."""
    return TaskCancelledError("the task was cancelled") if future.cancelled() else future.exception()
