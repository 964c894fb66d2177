"""Which stage of a pipeline a device works on next: the one where it relieves the longest queue soonest.

In: queues before each stage, what is known of each device at each stage. Out: a step, that is, stages run at once.
It must not know a clock, a record or a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hetero.plan.batch.size_tuning import Sizes

__all__ = ["StagePlanner", "Step"]

Step = tuple[int, int]
"""The first and the last of the stages that run in one call."""

_QUEUED = 2
_FUSED = 1.05
_LEAST = 8.0
_ROOM = 8.0


@dataclass(slots=True)
class _StageQueue:
    """One device: the stages it may run, what is known of it at each step, and what it was given."""

    allowed: tuple[bool, ...]
    sizes: dict[Step, Sizes] = field(default_factory=dict)
    queue: dict[int, tuple[Step, float]] = field(default_factory=dict)
    idle: bool = True


class StagePlanner:
    """Gives devices to stages, and again to others as the bottleneck moves.

    Parameters
    ----------
    allowed
        By device, for each stage whether it may run it.
    make_sizes
        Makes what is known of a device at a step.

    Notes
    -----
    A free device takes the stage for which rate · (queue before it − queue behind it) is greatest. Where the
    queues are bounded, this keeps up with any input that some division of the devices among the stages keeps up
    with, and needs no forecast. All stages in one call are one more choice, with the queue behind it empty: they
    are taken where nothing is won by dividing, so that a pipeline is not slower than its stages in one piece.

    References
    ----------
    L. Tassiulas and A. Ephremides, "Stability properties of constrained queueing systems and scheduling policies
    for maximum throughput in multihop radio networks", IEEE Transactions on Automatic Control 37 (1992),
    1936-1948. Departure: records wait in batches, and a stage that was never tried on a device is tried first.

    Examples
    --------
    >>> planner = StagePlanner({"cpu": (True, False), "gpu": (False, True)}, lambda name, step: Sizes(fixed=4))
    >>> planner.choose("cpu", [10.0, 0.0]), planner.choose("gpu", [10.0, 0.0])
    ((0, 0), None)
    """

    def __init__(self, allowed: Mapping[str, tuple[bool, ...]], make_sizes: Callable[[str, Step], Sizes]) -> None:
        self._queues = {name: _StageQueue(stages) for name, stages in allowed.items()}
        self._make_sizes = make_sizes

    @property
    def names(self) -> tuple[str, ...]:
        """The devices that still take part."""
        return tuple(self._queues)

    @property
    def bound(self) -> float:
        """How many records may wait before a stage, for each device eight batches of the largest size."""
        sizes = [each.wanted() for own in self._queues.values() for each in own.sizes.values()]
        return max(_LEAST, _ROOM * max(sizes, default=1.0) * len(self._queues))

    def may(self, name: str, step: Step) -> bool:
        """Return whether a device may run a step."""
        return all(self._queues[name].allowed[step[0] : step[1] + 1])

    def sizes_at(self, name: str, step: Step) -> Sizes:
        """Return what is known of a device at a step."""
        own = self._queues[name]
        if step not in own.sizes:
            own.sizes[step] = self._make_sizes(name, step)
        return own.sizes[step]

    def sizes(self, name: str) -> Sizes:
        """Return what is known of a device at the step that it knows best."""
        own = self._queues[name]
        known = sorted(own.sizes, key=lambda step: (len(own.sizes[step].points()), step))
        return own.sizes[known[-1]] if known else self.sizes_at(name, (0, 0))

    def given(self, name: str) -> tuple[int, ...]:
        """Return the tickets of the batches that a device has not done yet."""
        return tuple(self._queues[name].queue)

    def why_idle(self, name: str) -> str:
        """Return why a device did nothing."""
        return "the other devices kept up with every stage" if self._queues[name].idle else ""

    def choose(self, name: str, queues: Sequence[float]) -> Step | None:
        """Return the step that a free device takes, None where it should wait.

        Parameters
        ----------
        queues
            Records that wait before each stage.
        """
        own, bound = self._queues[name], self.bound
        if len(own.queue) >= _QUEUED or any(self.sizes_at(name, step).probing for step, _ in own.queue.values()):
            return None
        behind = [ready + self._coming(number + 1) for number, ready in enumerate(queues[1:])] + [0.0]
        stages = [
            number
            for number, ready in enumerate(queues)
            if ready > 0 and own.allowed[number] and (behind[number] < bound or number == len(queues) - 1)
            if not self._too_late(name, number, queues)
        ]
        for number in reversed(stages):
            if self.sizes_at(name, (number, number)).law is None:
                return None if own.queue else (number, number)
        gains = {
            (number, number): self._rate(name, (number, number)) * (queues[number] - behind[number])
            for number in stages
        }
        whole = (0, len(queues) - 1)
        if len(queues) > 1 and queues[0] >= bound and self.may(name, whole):
            gains[whole] = _FUSED * self._rate(name, whole) * queues[0]
        best = max(gains, key=lambda step: (gains[step], step), default=None)
        if best is not None and gains[best] <= 0.0:
            return (stages[-1], stages[-1]) if stages else None
        return best

    def assign(self, name: str, ticket: int, step: Step, size: float) -> None:
        """Record that a device was given a batch."""
        self._queues[name].queue[ticket] = step, size
        self._queues[name].idle = False

    def done(self, name: str, ticket: int, now_s: float, seconds: float = 0.0, cold: bool = False) -> None:
        """Record that a device is through with a batch, in so many seconds; 0 where nothing is to be learned."""
        step, size = self._queues[name].queue.pop(ticket)
        if seconds > 0.0:
            self.sizes_at(name, step).add(size, seconds, cold)

    def drop(self, name: str) -> tuple[int, ...]:
        """Leave a device out from now on; returns the tickets that it had."""
        return tuple(self._queues.pop(name).queue)

    def _too_late(self, name: str, stage: int, queues: Sequence[float]) -> bool:
        """Return whether quicker ones will be through with a stage before this device has done a batch of it."""
        law = self.sizes_at(name, (stage, stage)).law
        if queues[0] >= self.bound or law is None:
            return False
        step = (stage, stage)
        rates = [self._rate(other, step) for other in self._queues if self.may(other, step)]
        quicker = sum(rate for rate in rates if rate > law.rate)
        return law.seconds(min(law.best, queues[stage])) * quicker > queues[stage]

    def _coming(self, stage: int) -> float:
        """Return how many records devices work on that will wait before a stage."""
        works = [work for own in self._queues.values() for work in own.queue.values()]
        return sum(size for (_, last), size in works if last + 1 == stage)

    def _rate(self, name: str, step: Step) -> float:
        """Return the records a second of a device at a step; of several stages, from each where they were not run."""
        law = self.sizes_at(name, step).law
        if law is not None:
            return law.rate
        laws = [self.sizes_at(name, (number, number)).law for number in range(step[0], step[1] + 1)]
        return 1.0 / sum(1.0 / each.rate for each in laws if each is not None) if all(laws) else 0.0
