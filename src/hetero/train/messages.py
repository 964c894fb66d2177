"""The messages between the lead of a training run and its members, all of them.

In: values. Out: tuples for a line, a number in the place of the class, and back. It must not decide what follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias, TypeVar

from hetero.comm.lines import Line
from hetero.comm.rendezvous import Rendezvous
from hetero.floor.errors import HeteroError
from hetero.model.annotations import TrainingStep
from hetero.plan.training.shares import StepModel
from hetero.train.values import EpochReport, StepReport, Totals

__all__ = [
    "AnswerToEpoch",
    "BadSamples",
    "CheckpointSent",
    "CheckpointStored",
    "EpochAwaited",
    "EpochDone",
    "Formation",
    "GroupBroken",
    "LastCheckpoint",
    "LeftOut",
    "MeasureSpeed",
    "MeetAt",
    "MemberArrived",
    "MemberEnded",
    "MemberReady",
    "Message",
    "PassGrown",
    "PassesHalved",
    "PlanAdopted",
    "Regroup",
    "RendezvousOpened",
    "RunDone",
    "SamplesLogged",
    "SpeedSeen",
    "StepDone",
    "StepsTold",
    "StopTraining",
    "TestOutputs",
    "read_message",
    "send_message",
]

GroupValues: TypeAlias = Mapping[int, Mapping[str, object]]
"""Settings of an optimizer's parameter groups, by group."""


# --- from a member to the lead -----------------------------------------------------------------------------


class MemberArrived(NamedTuple):
    """The member of a device is up."""

    device: str


class SpeedSeen(NamedTuple):
    """How fast it can be at most, told while it measures itself."""

    model: StepModel


class MemberReady(NamedTuple):
    """It can form a group.

    Attributes
    ----------
    step
        Steps that it has done.
    model, link_s
        What it knows of its own speed and of an exchange; see `Formation`.
    patience_s
        How long it would wait for the others, s.
    """

    step: int
    model: StepModel
    link_s: float
    patience_s: float


class RendezvousOpened(NamedTuple):
    """The first member of a generation can be reached."""

    generation: int
    rendezvous: Rendezvous


class LeftOut(NamedTuple):
    """The plan leaves it out; `speed` is in samples/s."""

    reason: str
    speed: float


class MemberEnded(NamedTuple):
    """It has ended, for whatever reason."""


class PassGrown(NamedTuple):
    """A pass is larger than all before; `kills_file` is where the system counts what it kills for memory."""

    samples: int
    kills_file: str


class PassesHalved(NamedTuple):
    """Memory ran out: passes have at most so many samples from here on."""

    samples: int


class StepDone(NamedTuple):
    """A step, told a few times a second."""

    report: TrainingStep


class StepsTold(NamedTuple):
    """All steps since the last such message, where the program asked for them."""

    reports: list[StepReport]


class TestOutputs(NamedTuple):
    """What the model gave for a member's part of a test, where the program has metrics of it.

    Attributes
    ----------
    generation, rank
        Of the group that tests, and of the member in it.
    passes
        Outputs and targets, pass by pass.
    """

    generation: int
    rank: int
    passes: list[tuple[object, object]]


class CheckpointSent(NamedTuple):
    """A checkpoint that the program is to write, from a member that cannot."""

    step: int
    state: bytes
    facts: dict[str, object]


class CheckpointStored(NamedTuple):
    """A checkpoint that the member wrote."""

    step: int
    nbytes: int
    seconds: float


class SamplesLogged(NamedTuple):
    """A line for the log of samples, from another host."""

    line: bytes


class PlanAdopted(NamedTuple):
    """The samples of a step by device."""

    shares: dict[str, int]


class EpochDone(NamedTuple):
    """An epoch is over; the trained state where the program looks at the model."""

    report: EpochReport
    state: bytes | None


class EpochAwaited(NamedTuple):
    """A member waits for the answer to an epoch, and for how long it would, s."""

    step: int
    patience_s: float


class BadSamples(NamedTuple):
    """The loss of these samples is not a number."""

    step: int
    samples: list[int]


# --- from the lead to a member -----------------------------------------------------------------------------


class MeasureSpeed(NamedTuple):
    """Measure yourself; a pass may have at most so many samples."""

    most: float


class MeetAt(NamedTuple):
    """Where the first member of the group is reached."""

    rendezvous: Rendezvous


class AnswerToEpoch(NamedTuple):
    """Go on after an epoch.

    Attributes
    ----------
    steps
        Done in all when the job is over.
    values, schedulers, written
        See `Formation`.
    """

    steps: int
    values: GroupValues
    schedulers: Mapping[str, object]
    written: bytes | None = None


class GroupBroken(NamedTuple):
    """A member of the group is gone."""

    generation: int


class Regroup(NamedTuple):
    """Form a new group after this step: somebody waits to join."""


class StopTraining(NamedTuple):
    """The program wants no more."""


class RunDone(NamedTuple):
    """The first member has handed the trained state in."""


class LastCheckpoint(NamedTuple):
    """Where training goes on when nobody who took part is left.

    Attributes
    ----------
    state
        Of the newest complete checkpoint.
    totals
        Of its epoch so far.
    """

    state: bytes
    totals: Totals


class Formation(NamedTuple):
    """To a member: its group forms.

    Attributes
    ----------
    rank
        Of this member.
    team
        The devices, in the order of ranks.
    models
        What is known of each.
    source
        Rank of the member that is furthest.
    behind
        True where others have to take over its state.
    generation
        Of the group, counted from 1.
    outsiders
        Samples/s of the devices that were left out.
    steps
        Done in all when the job is over.
    heard
        Steps done at the end of the last epoch whose report the program has.
    link_s
        Seconds that an exchange of gradients takes for each further member, below 0 where nobody knows.
    saved
        For the first member, where all who took part were lost.
    values
        Settings of parameter groups that callbacks changed so far, by group.
    schedulers
        Their states after the last epoch that was heard of; see `schedules.ScheduleHistory`.
    written
        The state of this step as callbacks wrote it, None where they wrote nothing.
    """

    rank: int
    team: tuple[str, ...]
    models: list[StepModel]
    source: int
    behind: bool
    generation: int
    outsiders: dict[str, float]
    steps: int
    heard: int
    link_s: float
    saved: LastCheckpoint | None = None
    values: Mapping[int, Mapping[str, object]] = {}
    schedulers: Mapping[str, object] = {}
    written: bytes | None = None


# --- on the line -------------------------------------------------------------------------------------------

Message: TypeAlias = (
    MemberArrived
    | SpeedSeen
    | MemberReady
    | RendezvousOpened
    | LeftOut
    | MemberEnded
    | PassGrown
    | PassesHalved
    | StepDone
    | StepsTold
    | TestOutputs
    | CheckpointSent
    | CheckpointStored
    | SamplesLogged
    | PlanAdopted
    | EpochDone
    | EpochAwaited
    | BadSamples
    | MeasureSpeed
    | Formation
    | MeetAt
    | AnswerToEpoch
    | GroupBroken
    | Regroup
    | StopTraining
    | RunDone
)
Kind = TypeVar("Kind", bound=Message)

KINDS: tuple[type[Message], ...] = Message.__args__
"""The classes of messages; on the line the place in here stands for the class."""

_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


def send_message(line: Line, message: Message) -> None:
    """Send a message; raises LineClosedError when the other end is gone."""
    line.send(_NUMBERS[type(message)], *message)


def read_message(came: tuple[object, ...]) -> Message:
    """Return the message that came as a tuple.

    Raises
    ------
    HeteroError
        It is none of these.
    """
    number, *values = came
    try:
        assert isinstance(number, int)
        return KINDS[number]._make(values)
    except (AssertionError, IndexError, TypeError) as error:
        raise HeteroError(
            f"a message of a training run cannot be read: {error}", remedy="use one version of hetero on all hosts"
        ) from error
