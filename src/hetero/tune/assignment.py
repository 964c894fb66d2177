"""Which device should take a further trial, and when a trial should be tried on a second device.

In: how long trials took on each device. Out: yes or no; the number of a trial. It must not start or stop anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from statistics import fmean
from typing import NamedTuple

__all__ = ["Paces", "RunningTrial"]


class RunningTrial(NamedTuple):
    """A trial on a device, for so long.

    Attributes
    ----------
    elapsed_s : s since it was handed in
    """

    number: int
    device: str
    elapsed_s: float


class Paces:
    """How long a trial takes on each device: the mean, since trials differ and some are pruned.

    The first trial of a device also loads what trials need, and counts only as long as there is no other.

    Examples
    --------
    >>> paces = Paces()
    >>> paces.learn("fast", 1.0)
    >>> paces.learn("slow", 5.0)
    >>> running = [RunningTrial(7, "fast", 0.5)]
    >>> paces.worth("slow", 10, running), paces.worth("slow", 3, running)
    (True, False)
    >>> paces.to_rescue("fast", [RunningTrial(8, "slow", 1.0)])
    8
    """

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    def learn(self, device: str, seconds: float) -> None:
        """Record a trial that ended."""
        self._seconds.setdefault(device, []).append(seconds)

    def learn_at_least(self, device: str, seconds: float) -> None:
        """Record a trial that was stopped, which is all that is known of a device that ended none."""
        if device not in self._seconds:
            self.learn(device, seconds)

    @property
    def seconds(self) -> Mapping[str, float]:
        """S that a trial takes on each device that ended one."""
        return {device: max(fmean(known[1:] or known), 1e-9) for device, known in self._seconds.items()}

    def fastest_first(self, devices: Iterable[str]) -> list[str]:
        """Return devices in the order in which they should be asked; those that are not known come last."""
        known = self.seconds
        return sorted(devices, key=lambda device: known.get(device, inf))

    def worth(self, device: str, left: int, running: Iterable[RunningTrial]) -> bool:
        """Return whether a device should take one of the trials that are left.

        Notes
        -----
        True where it would end the trial before the others could end all that is left: with rₑ s to go on device e
        and sₑ s a trial, they need (left + Σ rₑ/sₑ) / Σ 1/sₑ and min(rₑ + sₑ) at least. A device that is not known
        yet takes one.
        """
        known = self.seconds
        if device not in known:
            return True
        others = {other: seconds for other, seconds in known.items() if other != device}
        if not others:
            return True
        to_go = dict.fromkeys(others, 0.0)
        for trial in running:
            if trial.device in others:
                to_go[trial.device] = max(0.0, others[trial.device] - trial.elapsed_s)
        rate = sum(1.0 / seconds for seconds in others.values())
        loaded = sum(to_go[other] / seconds for other, seconds in others.items())
        first_s = min(to_go[other] + seconds for other, seconds in others.items())
        return known[device] <= max(first_s, (left + loaded) / rate)

    def to_rescue(self, device: str, running: Iterable[RunningTrial]) -> int | None:
        """Return the running trial that an idle device would end before whoever runs it, None where there is none.

        Notes
        -----
        A trial that should have ended by now, or runs on a device that is not known, is expected to take as long
        again as it took so far, and no less than a trial takes on the fastest. A device that is not known may be the
        fastest, so it takes one.
        """
        known = self.seconds
        least_s = min(known.values(), default=0.0)

        def left_s(trial: RunningTrial) -> float:
            due_s = known.get(trial.device, 0.0) - trial.elapsed_s
            return due_s if due_s > 0.0 else max(trial.elapsed_s, least_s)

        soonest: dict[int, float] = {}
        for trial in running:
            soonest[trial.number] = min(left_s(trial), soonest.get(trial.number, inf))
        if not soonest:
            return None
        latest = max(soonest, key=lambda number: (soonest[number], -number))
        return latest if soonest[latest] >= known.get(device, 0.0) else None
