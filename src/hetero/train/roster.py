"""Who is known to the lead of a run, and how far the run goes.

In: what members said. Out: values that the lead goes by. It must not talk to anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from hetero.comm.lines import Line
from hetero.plan.training.shares import StepModel
from hetero.train.checkpoints import TrainingCheckpoints

__all__ = ["Extent", "Member"]


class Extent(NamedTuple):
    """From where to where a run goes.

    Attributes
    ----------
    begin, end : steps done before it and after it
    checkpoints : where it goes on when nobody who took part is left, None for `begin`
    log : takes the lines that members on other hosts have for the log of samples, after the device
    """

    begin: int
    end: int
    checkpoints: TrainingCheckpoints | None = None
    log: Callable[[str, bytes], None] = lambda device, line: None


@dataclass(slots=True)
class Member:
    """One device as far as it is known here.

    Attributes
    ----------
    phase : 'here', 'ready', 'in' or 'left'
    step : steps that it has done
    model, link_s : what it knows of its own speed and of an exchange; see `Formation`
    patience_s : how long it would wait for the others, s
    joined : generation of the group that it was last in, 0 for none
    seems : how fast it can be at most, told while it measures itself
    """

    device: str
    line: Line
    phase: str = "here"
    step: int = -1
    model: StepModel | None = None
    link_s: float = -1.0
    patience_s: float = 0.0
    joined: int = 0
    seems: StepModel | None = None
