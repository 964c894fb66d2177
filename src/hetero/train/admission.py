"""Admission: how long a run waits for devices that measure themselves, and who is not let into a group that trains.

In: what was asked, what is known of the devices. Out: seconds, reasons.
It must not talk to anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hetero.plan.training.shares import StepModel, make_plan
from hetero.train.values import Options

__all__ = ["Admission"]

_START_S = 30.0
_LEAST_S = 0.5
_TIMES = 5.0


class Admission(NamedTuple):
    """The door of one run.

    Attributes
    ----------
    options : of the run

    Notes
    -----
    A device that is so slow that it would be left out also measures itself slowly. Whoever is ready begins without it.
    """

    options: Options

    def wait_s(self, first_s: float) -> float:
        """Return how long the others are waited for, once the first device has measured itself in `first_s`.

        Examples
        --------
        >>> Admission(Options(128)).wait_s(0.3), Admission(Options(128, shares="equal")).wait_s(0.3)
        (1.5, 30.0)
        """
        return max(_LEAST_S, _TIMES * first_s) if self.options.shares == "auto" else _START_S

    def refusal(self, team: Sequence[StepModel], newcomer: StepModel, link_s: float) -> str:
        """Return why a newcomer would not make the step of a group shorter, '' where it would.

        Parameters
        ----------
        link_s : s that an exchange costs for each further member, below 0 where it is not known

        Examples
        --------
        >>> Admission(Options(128)).refusal([StepModel(0.001, 0.0001)], StepModel(0.05, 0.005), -1.0)
        'one sample would take it 55 ms, and the others do all 128 in 13.8 ms'
        >>> Admission(Options(128)).refusal([StepModel(0.001, 0.0001)], StepModel(0.001, 0.0003), 0.001)
        ''
        """
        if self.options.shares != "auto":
            return ""
        units = -(-self.options.global_batch // self.options.unit)
        comm_s = [0.0, *(max(0.0, link_s) * others for others in range(len(team) + 1))]
        return make_plan([*team, newcomer], units, comm_s).reasons[-1]
