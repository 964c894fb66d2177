"""What travels from the program to the members: a training job, and the word by which a group forms.

In: what a Trainer was asked, who is ready. Out: frozen values that pickle. It must not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hetero.comm.lines import Address
from hetero.model.device import Device
from hetero.plan.training.shares import StepModel
from hetero.train.memory import Need
from hetero.train.values import Totals, TrainOptions

__all__ = ["Formation", "LastCheckpoint", "TrainingJob"]


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What is to be trained, as it travels to the members.

    Attributes
    ----------
    parts : pickled (model, loss, optimizer)
    options : of the run
    steps : steps done in all when the job is over
    names : the devices of the run, in the order of share tables and reports
    address : of the program's hub
    state : where to begin, None at the beginning
    costs : cost of each sample, mean 1; None where all cost the same
    checkpoint : folder of checkpoints, '' for none
    checkpoint_every : steps between them
    keep : the newest so many checkpoints stay
    number : of this job in its program, so that its time is not taken for another's
    totals : of the epoch in which it begins, None at the beginning of one
    sample_log : folder of the log of samples, '' for none
    run : number of this run in that log
    need : what a step takes by estimate, None where no device could be short of it
    key : stands for the model and how it is trained, where sizes of passes are kept
    sum_on : the device that adds up gradients, None where the members do
    hosts : address of each device's host; empty where all are on the program's own
    process : settings of torch's that hold for the program; see `honoured.process_settings`
    shows : True where the program looks at the model after every epoch, so that the state comes with the report
    """

    parts: bytes
    options: TrainOptions
    steps: int
    names: tuple[str, ...]
    address: Address
    state: bytes | None = None
    costs: Any = None
    checkpoint: str = ""
    checkpoint_every: int = 0
    keep: int = 3
    number: int = 0
    totals: Totals | None = None
    sample_log: str = ""
    run: int = 0
    need: Need | None = None
    key: str = ""
    sum_on: Device | None = None
    hosts: Mapping[str, str] = field(default_factory=dict)
    process: Mapping[str, Any] = field(default_factory=dict)
    shows: bool = False


class LastCheckpoint(NamedTuple):
    """Where training goes on when nobody who took part is left.

    Attributes
    ----------
    state : of the newest complete checkpoint
    totals : of its epoch so far
    """

    state: bytes
    totals: Totals


class Formation(NamedTuple):
    """What a member is told when its group forms.

    Attributes
    ----------
    rank : of this member
    team : the devices, in the order of ranks
    models : what is known of each
    source : rank of the member that is furthest
    behind : True where others have to take over its state
    generation : of the group, counted from 1
    outsiders : samples/s of the devices that were left out
    steps : done in all when the job is over
    heard : steps done at the end of the last epoch whose report the program has
    link_s : s that an exchange of gradients takes for each further member, below 0 where nobody knows
    saved : for the first member, where all who took part were lost
    values : settings of parameter groups that callbacks changed so far, by group
    schedulers : their states after the last epoch that was heard of; see `schedules.ScheduleHistory`
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
    values: Mapping[int, Mapping[str, Any]] = {}
    schedulers: Mapping[str, Any] = {}
