"""Leading a run: who takes part, in which generation of the group, and what becomes of those who die.

In: what the members say, what their tasks became. Out: groups that form, reports to the caller, the trained state.
It must not take part in a step: between epochs the members need no word from here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

from hetero.comm.errors import LineClosedError
from hetero.comm.lines import Hub, Line
from hetero.floor import clock
from hetero.floor.errors import TaskCancelledError, TaskLostError
from hetero.plan.shares import StepModel
from hetero.session.futures import Future
from hetero.train.values import EpochReport, NotANumberError, TrainingError

__all__ = ["Lead", "Listener"]

_POLL_S = 0.1
_PATIENCE_S = 10.0
_LAST_WORDS_S = 2.0


class Listener:
    """What a caller of `Lead.run` hears; every method may be left as it is."""

    def on_step(self, step: int, loss: float) -> None:
        """Hear of a step, a few times a second."""

    def on_plan(self, shares: dict[str, int]) -> None:
        """Hear how a step is shared from now on."""

    def on_epoch(self, report: EpochReport) -> bool:
        """Hear of an epoch; True ends the training."""
        return False

    def on_note(self, text: str) -> None:
        """Hear that a device was left out, died or joined."""


@dataclass(slots=True)
class _Member:
    """One device as far as it is known here.

    Attributes
    ----------
    phase : 'here', 'probing', 'ready', 'in' or 'left'
    """

    device: str
    line: Line
    phase: str = "here"
    step: int = -1
    model: StepModel | None = None
    joined: int = 0


@dataclass(slots=True)
class Lead:
    """Leads one run.

    Attributes
    ----------
    hub : where members dial in
    futures : the members' tasks by device
    listener : who hears of it
    notes : what was said to the listener
    """

    hub: Hub
    futures: dict[str, Future]
    listener: Listener
    notes: list[str] = field(default_factory=list)
    _members: dict[Line, _Member] = field(default_factory=dict)
    _team: list[_Member] = field(default_factory=list)
    _generation: int = 0
    _outsiders: dict[str, float] = field(default_factory=dict)
    _bad: dict[int, list[int]] = field(default_factory=dict)
    _waiting_since_s: float = 0.0
    _waits_since_s: float = inf

    def run(self) -> bytes:
        """Lead until the last member is done; gives the trained state.

        Raises
        ------
        TrainingError
            No device is left.
        Exception
            Whatever a member raised.
        """
        try:
            while (state := self._outcome()) is None and not all(future.done() for future in self.futures.values()):
                self._hear(_POLL_S)
                self._look_at_tasks()
                self._form_if_ready()
        except BaseException:
            self._stop_all()
            raise
        if state is not None:
            self._end_latecomers()
            return state
        raise TrainingError("no device is left to train on: " + "; ".join(self.notes))

    def _outcome(self) -> bytes | None:
        """Give the trained state once the first member has handed it in."""
        for future in self.futures.values():
            if future.done() and _error(future) is None and future.result() is not None:
                state: bytes = future.result()
                return state
        return None

    def _end_latecomers(self) -> None:
        """Let the team's other members end, and stop devices that came back too late."""
        team = {member.device for member in self._team}
        for device, future in self.futures.items():
            if device not in team:
                future.cancel()
        deadline_s = clock.monotonic_s() + _LAST_WORDS_S
        while not all(future.done() for future in self.futures.values()) and clock.monotonic_s() < deadline_s:
            self._hear(_POLL_S)
        for future in self.futures.values():
            future.cancel()

    # --- hearing -------------------------------------------------------------------------------------------

    def _hear(self, timeout_s: float) -> None:
        for line, message in self.hub.poll(timeout_s):
            if message is None:
                self._gone(line)
            else:
                self._answers[message[0]](self, line, *message[1:])

    def _on_here(self, line: Line, device: str) -> None:
        for old in [known for known in self._members.values() if known.device == device]:
            self._forget(old)
        self._members[line] = _Member(device, line)
        if self._generation:
            self._note(f"{device} is back and joins at the next step")
            self._send(self._members[line], "probe")
        elif {member.device for member in self._members.values()} == set(self._wanted()):
            for member in self._members.values():
                self._send(member, "probe")

    def _wanted(self) -> list[str]:
        return [device for device, future in self.futures.items() if not future.done()]

    def _on_ready(self, line: Line, step: int, model: StepModel) -> None:
        member = self._members[line]
        member.phase, member.step, member.model = "ready", step, model
        if not any(other.phase == "ready" for other in self._members.values() if other is not member):
            self._waiting_since_s = clock.monotonic_s()
        joins = member not in self._team
        if joins and self._team and self._team[0].phase == "in":
            self._send(self._team[0], "regroup")

    def _on_rendezvous(self, line: Line, generation: int, rendezvous: Any) -> None:
        if generation == self._generation:
            for member in self._team[1:]:
                self._send(member, "rendezvous", rendezvous)

    def _on_left(self, line: Line, reason: str, speed: float) -> None:
        member = self._members[line]
        member.phase = "left"
        self._outsiders[member.device] = speed
        self._note(f"{member.device} is left out: {reason}")

    def _on_step(self, line: Line, step: int, loss: float) -> None:
        self.listener.on_step(step, loss)

    def _on_plan(self, line: Line, shares: dict[str, int]) -> None:
        self.listener.on_plan(shares)

    def _on_epoch(self, line: Line, report: EpochReport) -> None:
        stop = bool(self.listener.on_epoch(report))
        self._waits_since_s = inf
        for member in self._team:
            self._send(member, "go", stop)

    def _on_waits(self, line: Line) -> None:
        self._waits_since_s = min(self._waits_since_s, clock.monotonic_s())

    def _on_not_a_number(self, line: Line, step: int, samples: list[int]) -> None:
        self._bad.setdefault(step, []).extend(samples)

    _answers: ClassVar[dict[str, Callable[..., None]]] = {
        "here": _on_here,
        "ready": _on_ready,
        "rendezvous": _on_rendezvous,
        "left": _on_left,
        "step": _on_step,
        "plan": _on_plan,
        "epoch": _on_epoch,
        "waits": _on_waits,
        "not a number": _on_not_a_number,
    }

    # --- who is there --------------------------------------------------------------------------------------

    def _gone(self, line: Line) -> None:
        member = self._members.pop(line, None)
        if member is None or member.phase == "left" or self._is_done(member.device):
            return
        self._note(f"{member.device} is lost")
        self._break(member)

    def _break(self, lost: _Member) -> None:
        """Tell the others of the group, some of whom may wait for words and not in the group."""
        self._waits_since_s = inf
        for other in self._team if lost in self._team else ():
            if other is not lost and other.phase == "in":
                self._send(other, "broken", self._generation)

    def _is_done(self, device: str) -> bool:
        future = self.futures[device]
        if not future.done():
            for _ in range(20):
                clock.sleep(0.005)
                if future.done():
                    break
        return future.done() and _error(future) is None

    def _forget(self, member: _Member) -> None:
        self._members.pop(member.line, None)
        self.hub.drop(member.line)

    def _look_at_tasks(self) -> None:
        for device, future in self.futures.items():
            error = _error(future) if future.done() else None
            if error is None:
                continue
            if isinstance(error, NotANumberError):
                raise self._explained(error)
            if not isinstance(error, TaskLostError | TaskCancelledError):
                raise error
            text = f"{device} is given up: {error}"
            if text not in self.notes:
                self._note(text)

    def _explained(self, error: NotANumberError) -> NotANumberError:
        """Name the samples, once all members have said theirs."""
        deadline_s = clock.monotonic_s() + _LAST_WORDS_S
        while self._members and clock.monotonic_s() < deadline_s:
            self._hear(_POLL_S)
        samples = sorted(sample for found in self._bad.values() for sample in found)
        which = f"; samples {', '.join(map(str, samples[:20]))}{' …' if len(samples) > 20 else ''}" if samples else ""
        return NotANumberError(
            f"{error.problem}{which}",
            remedy="look at these samples, lower the learning rate, or give on_nan='skip'",
        )

    # --- groups --------------------------------------------------------------------------------------------

    def _form_if_ready(self) -> None:
        alive = [member for member in self._members.values() if member.phase != "left"]
        ready = [member for member in alive if member.phase == "ready"]
        if clock.monotonic_s() - self._waits_since_s > _PATIENCE_S and self._team[0] in alive:
            self._give_up(self._team[0])
            return
        if not ready:
            return
        missing = [member for member in alive if member.phase == "in"]
        first = self._generation == 0
        if first and {member.device for member in ready} != set(self._wanted()):
            return
        if any(member.joined for member in ready) and missing:
            if clock.monotonic_s() - self._waiting_since_s > _PATIENCE_S:
                for member in missing:
                    self._give_up(member)
            return
        if missing:
            return
        self._form(ready)

    def _give_up(self, member: _Member) -> None:
        self._note(f"{member.device} does not answer and is given up")
        self._forget(member)
        self._break(member)
        self.futures[member.device].cancel()

    def _form(self, ready: list[_Member]) -> None:
        order = {device: index for index, device in enumerate(self.futures)}
        self._team = sorted(ready, key=lambda member: order[member.device])
        self._generation += 1
        furthest = max(member.step for member in self._team)
        source = next(rank for rank, member in enumerate(self._team) if member.step == furthest)
        behind = any(member.step != furthest or (self._generation > 1 and not member.joined) for member in self._team)
        source = next((r for r, m in enumerate(self._team) if m.step == furthest and m.joined), source)
        names = tuple(member.device for member in self._team)
        models = [member.model for member in self._team]
        for rank, member in enumerate(self._team):
            member.phase, member.joined = "in", self._generation
            self._send(member, "form", rank, names, models, source, behind, self._generation, self._outsiders)

    def _send(self, member: _Member, *message: Any) -> None:
        with suppress(LineClosedError):  # the line itself will tell of it
            member.line.send(*message)

    def _stop_all(self) -> None:
        for member in list(self._members.values()):
            self._send(member, "stop")
        for future in self.futures.values():
            future.cancel()

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.listener.on_note(text)


def _error(future: Future) -> BaseException | None:
    """Give what became of a task that has ended; a cancellation too is an error here."""
    return TaskCancelledError("the task was cancelled") if future.cancelled() else future.exception()
