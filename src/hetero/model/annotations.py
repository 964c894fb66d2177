"""Notes: facts of a run that the core need not know, and that its trace tells.

In: applications make them. Out: the trace and the metrics keep them. They are named tuples, as events are;
`at_s` is the time at which the fact was told. The core must never be given one.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "NOTES",
    "TASK_NOTES",
    "CheckpointKept",
    "CheckpointWritten",
    "CollectiveDone",
    "DeviceSampled",
    "NestedRun",
    "OperatorsRun",
    "PhasesRun",
    "PlanMade",
    "TaskNote",
    "TaskParts",
    "TrainingEpoch",
    "TrainingNews",
    "TrainingStep",
    "set_in_time",
]


class TrainingStep(NamedTuple):
    """A step of training was done; a few a second are told; `at_s` is 0 until that reaches the program.

    Attributes
    ----------
    step
        Counted from 1.
    loss
        Mean over the step's samples.
    seconds
        Seconds, from the step's beginning to its end.
    exchange_s
        Seconds that the last member to come spent in the exchange of gradients of the step before.
    devices, samples, busy_s
        Of each member: short name, samples of this step, s that its passes took.
    """

    at_s: float
    step: int
    loss: float
    seconds: float
    exchange_s: float
    devices: tuple[str, ...]
    samples: tuple[int, ...]
    busy_s: tuple[float, ...]


class TrainingEpoch(NamedTuple):
    """An epoch of training is over.

    Attributes
    ----------
    epoch, step
        Counted from 1; the last step of the epoch.
    loss, accuracy
        Over the epoch's samples; nan where unknown.
    seconds, samples_per_s
        Seconds of its steps; samples/s.
    devices, samples, speeds
        By device: short name, samples of a whole step, samples/s that it would reach alone.
    test_loss, test_accuracy
        On held-back data; nan where unknown.
    """

    at_s: float
    epoch: int
    step: int
    loss: float
    accuracy: float
    seconds: float
    samples_per_s: float
    devices: tuple[str, ...]
    samples: tuple[int, ...]
    speeds: tuple[float, ...]
    test_loss: float
    test_accuracy: float


class TrainingNews(NamedTuple):
    """Something became of a device, or of the run: left out, lost, back."""

    at_s: float
    text: str


class CheckpointWritten(NamedTuple):
    """A checkpoint of a step was written, which took so many seconds of the first member's time."""

    at_s: float
    step: int
    nbytes: int
    seconds: float


class DeviceSampled(NamedTuple):
    """What a device told of itself; once a second of each GPU, and of the host.

    Attributes
    ----------
    device
        Id, or 'host' for all processors and the memory of this machine.
    busy_frac
        0..1 of the time since the sample before; nan where unknown, as are the others.
    used_bytes, temperature_c, power_w
        Bytes, degrees Celsius, W.
    """

    at_s: float
    device: str
    busy_frac: float
    used_bytes: float
    temperature_c: float
    power_w: float


class CollectiveDone(NamedTuple):
    """A member took part in a collective of its group, within its attempt at a task.

    Attributes
    ----------
    task, attempt, device
        Whose attempt it was; members of one group task share the first two.
    what
        'all_reduce', 'broadcast', 'all_gather', 'reduce_scatter', or 'exchange' for a step of training.
    algorithm
        What carried it: 'shared_memory', 'library', 'ring', 'tree' or 'pipelined_tree'.
    rank, world_size
        Of the member, and of its group.
    nbytes
        Bytes of the member's row; 0 where that is not known.
    started_s, seconds
        Seconds, when the member came and how long it was in there, waiting for others included.
    calls
        How many collectives this stands for; above 1 only for those after the first 10,000 of an attempt.
    """

    at_s: float
    task: int
    attempt: int
    device: str
    what: str
    algorithm: str
    rank: int
    world_size: int
    nbytes: int
    started_s: float
    seconds: float
    calls: int


class CheckpointKept(NamedTuple):
    """A task kept a state from which a later attempt can go on.

    Attributes
    ----------
    task, attempt, device
        Whose attempt it was.
    name
        Of the checkpoint; '' for the positions of resumable loops.
    nbytes
        Bytes on disk.
    started_s, seconds
        Seconds.
    calls
        How many this stands for; above 1 only for those after the first 10,000 of an attempt.
    """

    at_s: float
    task: int
    attempt: int
    device: str
    name: str
    nbytes: int
    started_s: float
    seconds: float
    calls: int


class NestedRun(NamedTuple):
    """A task ran another that it had submitted, within its own time; those nested deeper are part of that one.

    Attributes
    ----------
    task, attempt, device
        Of the outer task.
    name
        Of the nested one.
    started_s, seconds
        Seconds.
    calls
        How many this stands for; above 1 only for those after the first 10,000 of an attempt.
    """

    at_s: float
    task: int
    attempt: int
    device: str
    name: str
    started_s: float
    seconds: float
    calls: int


class PlanMade(NamedTuple):
    """A policy that plans ahead has a new plan of what is open.

    Attributes
    ----------
    ends_s
        Seconds, when the last task is expected to end.
    rule
        By which rank the plan was made.
    moved
        Tasks that this plan puts on another device than the one before.
    tasks, devices, starts_s, finishes_s
        Of tasks that stand in a plan for the first time: id, device, s.
    """

    at_s: float
    ends_s: float
    rule: str
    moved: int
    tasks: tuple[int, ...]
    devices: tuple[str, ...]
    starts_s: tuple[float, ...]
    finishes_s: tuple[float, ...]


class OperatorsRun(NamedTuple):
    """What a profiler saw inside an attempt, or inside some steps of training.

    Attributes
    ----------
    started_s
        Seconds, from which `starts_s` count.
    names, lanes, starts_s, seconds
        Of slices, the longest 2,000: operator, '' for the attempt's own thread or the name of another thread or stream,
        s, s.
    operators, calls, own_s
        By operator, those that took longest: how often, and s without what it called.
    """

    at_s: float
    task: int
    attempt: int
    device: str
    started_s: float
    names: tuple[str, ...]
    lanes: tuple[str, ...]
    starts_s: tuple[float, ...]
    seconds: tuple[float, ...]
    operators: tuple[str, ...]
    calls: tuple[int, ...]
    own_s: tuple[float, ...]


class TaskParts(NamedTuple):
    """What the time of an attempt consists of; it comes before the event that ends the attempt.

    Attributes
    ----------
    task, attempt, device
        Whose attempt it was.
    started_s
        Seconds, when the device was taken.
    load_s, run_s, store_s, wait_s, link_in_s, link_out_s, away_s, below_s
        As in `Times`.
    """

    at_s: float
    task: int
    attempt: int
    device: str
    started_s: float
    load_s: float
    run_s: float
    store_s: float
    wait_s: float
    link_in_s: float
    link_out_s: float
    away_s: float = 0.0
    below_s: float = 0.0


class PhasesRun(NamedTuple):
    """What a process of a launched script did from `started_s` on, phase by phase without a gap.

    Attributes
    ----------
    device
        Of the process.
    step
        Which step of this process it was, counted from 1.
    names, seconds
        Of each phase, s: 'import' and 'prepare' before the first step, 'read', 'forward', 'backward', 'wait' for other
        processes, 'exchange' of gradients, 'comparison' of the first steps with one device, 'update' by the optimizer,
        'script' for what else the script does, 'end' after the last step, 'untold' for what was lost.
    """

    at_s: float
    device: str
    step: int
    started_s: float
    names: tuple[str, ...]
    seconds: tuple[float, ...]


TaskNote = CollectiveDone | CheckpointKept | OperatorsRun | TaskParts | NestedRun
"""What an attempt tells of its inside; `started_s` counts from the attempt's beginning until it reaches the program."""


TASK_NOTES = (CollectiveDone, CheckpointKept, OperatorsRun, TaskParts, NestedRun)


def set_in_time(note: TaskNote, began_s: float) -> TaskNote:
    """Return a note that counts from the beginning of an attempt with the time of the run.

    Parameters
    ----------
    began_s
        Seconds of the run at which the attempt began.
    """
    return note._replace(started_s=note.started_s + began_s)


NOTES: tuple[type, ...] = (
    TrainingStep,
    TrainingEpoch,
    TrainingNews,
    CheckpointWritten,
    DeviceSampled,
    CollectiveDone,
    PlanMade,
    OperatorsRun,
    CheckpointKept,
    TaskParts,
    NestedRun,
    PhasesRun,
)
"""Every kind of note, in the order of the documentation."""
