"""Double justification: a schedule is packed towards its end, and then towards its beginning again.

In: a `Problem`, schedules. Out: often shorter ones, at the price of two list schedules each. It must not draw chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hetero.plan.planners.list_scheduling import order_of, schedule_by_keys, timed_schedule
from hetero.plan.problem import Ints, Problem, Timeline, backwards

__all__ = ["Justification"]

_MEMBERS, _PASSES, _LEAST_GAIN = 12, 6, 1e-4
_ROUNDING = 1e-9
_MODES = ((False, False), (True, True), (False, True), (True, False))
"""Whether tasks may choose devices anew on the way to the end, and on the way back."""


class Justification:
    """Schedules of one problem, packed towards both ends in turn.

    Parameters
    ----------
    p
        The problem.

    Notes
    -----
    By falling finish, each task goes as late as those behind it allow; then, by rising start, as early as those
    before it allow, into idle gaps both times. What has room moves out of the way of what has none.

    References
    ----------
    V. Valls, F. Ballestin, S. Quintanilla, "Justification and RCPSP: a technique that pays", European Journal of
    Operational Research 165 (2005), 375-386, there for one kind of resources; devices that are chosen anew are added.
    """

    def __init__(self, p: Problem) -> None:
        self._p, self._back = p, backwards(p)

    def once(self, timeline: Timeline, late_free: bool = False, early_free: bool = False) -> Timeline:
        """Pack a schedule towards the end and back; tasks keep their devices where they are not free."""
        late = schedule_by_keys(self._back, timeline.finish_s, None if late_free else timeline.device)
        return schedule_by_keys(self._p, late.finish_s, None if early_free else late.device)

    def critical(self, timeline: Timeline) -> Ints:
        """Return the tasks that cannot start later without making the schedule longer."""
        rest = timed_schedule(self._back, order_of(self._p, timeline)[::-1], timeline.device)
        return np.flatnonzero(timeline.start_s + rest.finish_s >= timeline.makespan_s * (1.0 - _ROUNDING))

    def of(self, timelines: Sequence[Timeline]) -> Iterator[Timeline]:
        """Yield what each pass makes of the best of the schedules, as long as passes make them shorter."""
        by_length = {timeline.makespan_s: timeline for timeline in timelines}
        for _, timeline in sorted(by_length.items(), key=lambda item: item[0])[:_MEMBERS]:
            for mode in _MODES:
                now = timeline
                for _ in range(_PASSES):
                    before_s, now = now.makespan_s, self.once(now, *mode)
                    yield now
                    if now.makespan_s >= before_s * (1.0 - _LEAST_GAIN):
                        break
