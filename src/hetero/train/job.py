"""A training job as it travels from the program to the members.

In: what a Trainer was asked. Out: a frozen value that pickles. It must not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hetero.comm.lines import Address
from hetero.train.values import Options

__all__ = ["Job"]


@dataclass(frozen=True, slots=True)
class Job:
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
    """

    parts: bytes
    options: Options
    steps: int
    names: tuple[str, ...]
    address: Address
    state: bytes | None = None
    costs: Any = None
    checkpoint: str = ""
    checkpoint_every: int = 0
    keep: int = 3
    number: int = 0
