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
    parts
        Pickled (model, loss, optimizer).
    options
        Of the run.
    steps
        Steps done in all when the job is over.
    names
        The devices of the run, in the order of share tables and reports.
    address
        Of the program's hub.
    state
        Where to begin, None at the beginning.
    costs
        Cost of each sample, mean 1; None where all cost the same.
    checkpoint
        Folder of checkpoints, '' for none.
    checkpoint_every
        Steps between them.
    keep
        The newest so many checkpoints stay.
    number
        Of this job in its program, so that its time is not taken for another's.
    totals
        Of the epoch in which it begins, None at the beginning of one.
    sample_log
        Folder of the log of samples, '' for none.
    run
        Number of this run in that log.
    need
        What a step takes by estimate, None where no device could be short of it.
    key
        Stands for the model and how it is trained, where sizes of passes are kept.
    sum_on
        The device that adds up gradients, None where the members do.
    hosts
        Address of each device's host; empty where all are on the program's own.
    process
        Settings of torch's that hold for the program; see `honoured.process_settings`.
    shows
        True where the program looks at the model after every epoch, so that the state comes with the report.
    on_host
        The devices that compute on their host's cores.
    tells_steps
        True where the program hears of every step.
    measures
        True where the program has metrics of what the model gives in a test.
    settled
        The same number for runs between which nothing but the trained state was changed.
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
