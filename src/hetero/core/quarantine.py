"""Quarantine: classes of tasks that kill their workers are held back, so that what they cost does not grow with them.

In: which task ran as its worker died, and which tasks ended well. Out: tasks to hold back, to try alone, or to give up.
It must not place, start or fail a task.
"""

from __future__ import annotations

from math import frexp

from hetero.core.state import TaskState
from hetero.model.tasks import Task

__all__ = ["Quarantine", "Suspect", "size_class", "times"]

DEATHS = 4
"""Workers that a class may kill, none of its tasks ending well between, before its tasks are tried one at a time …"""

TRIALS = 3
"""Tasks that are tried alone, and end their workers one after the other, before those held back are given up too."""

SUSPECTS = 1024
"""Classes that are remembered; the oldest that holds nothing back is forgotten."""


def times(count: int) -> str:
    """Return a count of deaths in words.

    Examples
    --------
    >>> times(1), times(4)
    ('once', '4 times')
    """
    return "once" if count == 1 else f"{count} times"


def size_class(size: float) -> int:
    """Return the class of a size: up to a million are one, and from there on each thousand times as much.

    Examples
    --------
    >>> size_class(0.0), size_class(900.0), size_class(5e6), size_class(2e9)
    (0, 0, 1, 2)
    """
    return max(0, -(-(frexp(size)[1] - 20) // 10))


class Suspect:
    """One class of tasks, a function with arguments of one kind and size, since a worker died of one of them.

    Attributes
    ----------
    deaths : workers that it ended since one of its tasks last ended well
    killers : the tasks that did it
    failed_trials : tasks that were tried alone and ended their workers, since tasks were last given up untried
    sound : True when one of its tasks has ended well in this run; then none is held back or given up untried
    hopeless : True when a task used up its retries, and none that was retried has ended well since
    trial : id of the task that is tried alone, 0 for none
    held : tasks that are held back, in the order in which they became ready
    reason : how the last worker ended
    """

    __slots__ = ("deaths", "failed_trials", "held", "hopeless", "killers", "name", "reason", "sound", "told", "trial")

    def __init__(self, name: str, sound: bool) -> None:
        self.name = name
        self.deaths = 0
        self.failed_trials = 0
        self.killers: set[int] = set()
        self.sound = sound
        self.hopeless = False
        self.trial = 0
        self.held: dict[int, TaskState] = {}
        self.reason = ""
        self.told = False

    @property
    def quarantined(self) -> bool:
        """True when its tasks are tried one at a time."""
        return self.deaths >= DEATHS and not self.sound

    def limit(self, state: TaskState) -> int:
        """Return how many deaths of its worker a task is forgiven: none where it was tried alone as one of many.

        Tasks that ran as the quarantine began keep their retries: somebody may have killed all workers at once.
        """
        alike = self.quarantined and len(self.killers) > 1 and self.trial == state.task.id
        return 0 if self.hopeless or alike else state.task.request.crashes

    def give_up(self) -> list[TaskState]:
        """Take all tasks that are held back, where enough were tried in vain; those that come later are tried anew."""
        if not self.quarantined or self.failed_trials < TRIALS:
            return []
        self.failed_trials = 0
        states, self.held = list(self.held.values()), {}
        return states

    def take(self) -> list[TaskState]:
        """Take the tasks that may go: all once one ended well, else the next to be tried alone.

        Bad tasks often come together, so that the last, the first and the middle one are tried in turn.
        """
        if not self.quarantined:
            states, self.held = list(self.held.values()), {}
            return states
        if self.trial or not self.held:
            return []
        place = (-1, 0, len(self.held) // 2)[self.failed_trials % 3]
        self.trial = list(self.held)[place]
        return [self.held.pop(self.trial)]

    def why(self, state: TaskState) -> str:
        """Say why a task that is held back is given up."""
        how = f"its worker died {times(state.crashes)}" if state.crashes else "it was not run"
        return (
            f"{self.name} was given up: {how}, and the last {self.deaths} runs of its kind each ended their worker, "
            f"none ended well; {self.reason}"
        )


class Quarantine:
    """The suspects, by class.

    Attributes
    ----------
    suspects : by signature and size class; empty as long as no worker has died of a task
    due : those whose tasks are to be let go, tried or given up
    """

    def __init__(self) -> None:
        self.suspects: dict[tuple[str, int], Suspect] = {}
        self.due: list[Suspect] = []

    def of(self, task: Task) -> Suspect | None:
        """Return the suspect that a task belongs to, None where no worker died of its class."""
        return self.suspects.get((task.signature, size_class(task.size)))

    def died(self, state: TaskState, reason: str, sound: bool) -> Suspect:
        """Record that a worker died of a task.

        Parameters
        ----------
        state
            The task; this death is counted in its `crashes`.
        reason
            How the worker ended.
        sound
            True when a task of its class has ended well before.
        """
        task = state.task
        key = (task.signature, size_class(task.size))
        suspect = self.suspects.get(key)
        if suspect is None:
            suspect = self.suspects[key] = Suspect(task.name, sound)
            self._forget_oldest()
        suspect.deaths += 1
        suspect.killers.add(task.id)
        suspect.hopeless |= state.crashes > task.request.crashes
        suspect.reason = reason
        if suspect.trial == task.id and state.crashes > suspect.limit(state):
            suspect.failed_trials += 1
        self._look(suspect)
        return suspect

    def ended(self, state: TaskState, well: bool) -> None:
        """Record that a task is over: `well` when its worker outlived it, whatever it gave or raised."""
        suspect = self.of(state.task)
        if suspect is None:
            return
        if suspect.trial == state.task.id:
            suspect.trial = 0
        if well:
            suspect.sound, suspect.deaths, suspect.failed_trials = True, 0, 0
            suspect.killers.clear()
            suspect.hopeless &= not state.crashes
        self._look(suspect)

    def holds(self, state: TaskState) -> bool:
        """Hold a task that is ready back, where its class is in quarantine and it is not the one that is tried."""
        suspect = self.of(state.task)
        if suspect is None or not suspect.quarantined or suspect.trial == state.task.id:
            return False
        suspect.held[state.task.id] = state
        self._look(suspect)
        return True

    def let_go(self, state: TaskState) -> None:
        """Drop a task that was held back."""
        suspect = self.of(state.task)
        if suspect is not None:
            suspect.held.pop(state.task.id, None)

    def _look(self, suspect: Suspect) -> None:
        if suspect.held or suspect.quarantined:
            self.due.append(suspect)

    def _forget_oldest(self) -> None:
        if len(self.suspects) > SUSPECTS:
            old = next((key for key, each in self.suspects.items() if not (each.held or each.trial)), None)
            if old is not None:
                del self.suspects[old]
