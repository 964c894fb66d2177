"""What travels from the program to the members with their tasks: a training job.

In: what a Trainer was asked. Out: a frozen value that pickles. It must not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hetero.comm.lines import Address
from hetero.model.device import Device
from hetero.train.memory import Need
from hetero.train.values import Totals, TrainOptions

__all__ = ["TrainingJob"]


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
    on_host : the devices that compute on their host's cores
    tells_steps : True where the program hears of every step
    measures : True where the program has metrics of what the model gives in a test
    settled : the same number for runs between which nothing but the trained state was changed
    """

    parts: bytes
    options: TrainOptions
    steps: int
    names: tuple[str, ...]
    address: Address
    state: bytes | None = None
    costs: Sequence[float] | None = None
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
    process: Mapping[str, object] = field(default_factory=dict)
    shows: bool = False
    on_host: frozenset[str] = frozenset()
    tells_steps: bool = False
    measures: bool = False
    settled: int = 0
