"""Quarantine: classes of tasks that kill their workers are held back, so that what they cost does not grow with them.

In: which task ran as its worker died, and which tasks ended well. Out: tasks to hold back, to let go, or to give up.
It must not place, start or fail a task.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from math import frexp

from hetero.core.state import TaskState
from hetero.model.tasks import Task

__all__ = ["Quarantine", "Suspect", "size_class", "times"]

DEATHS = 4
"""Workers that a class may kill, none of its tasks ending well between, before its tasks are tried one at a time …"""

TRIALS = 3
"""Tasks that are tried alone, and end their workers one after the other, before those held back are given up too."""

WIDE = 1024
"""A class of which so many tasks may be let go at once is not held back any more."""

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

    After each death, as many of its tasks as there are devices are let go, and twice as many with each that ends well:
    bad tasks that were handed in together do not keep those of other classes waiting.

    Attributes
    ----------
    deaths
        Workers that it ended since one of its tasks last ended well.
    killers
        The tasks that did it.
    failed_trials
        Tasks that were tried alone and ended their workers, since tasks were last given up untried.
    sound
        True when one of its tasks has ended well in this run; then none is given up untried.
    helped, exhausted
        Tasks that ended well after a retry; tasks that used up their retries.
    width
        Tasks that may be let go at once, fewer than `WIDE` while tasks are held back.
    out
        Ids of the tasks that were let go and are not over.
    held
        Tasks that are held back, in the order in which they became ready.
    retries
        Those that ended a worker; they follow when no other is held back.
    turn
        Where the next of those held back is taken from: first, last, middle in turn.
    recall
        What a death asks for: "ready", all ready tasks to be held back; "out", those that were let go; or "".
    reason
        How the last worker ended.
    """

    __slots__ = (
        "deaths", "exhausted", "failed_trials", "held", "helped", "killers", "name", "out", "reason", "recall",
        "retries", "sound", "told", "turn", "width",
    )  # fmt: skip

    def __init__(self, name: str, sound: bool) -> None:
        self.name = name
        self.deaths = 0
        self.failed_trials = 0
        self.killers: set[int] = set()
        self.sound = sound
        self.helped = 0
        self.exhausted = 0
        self.width = WIDE
        self.out: dict[int, None] = {}
        self.held: OrderedDict[int, TaskState] = OrderedDict()
        self.retries: dict[int, TaskState] = {}
        self.turn = 0
        self.recall = ""
        self.reason = ""
        self.told = False

    @property
    def quarantined(self) -> bool:
        """True when its tasks are tried one at a time."""
        return self.deaths >= DEATHS and not self.sound

    @property
    def narrow(self) -> bool:
        """True when its tasks are held back."""
        return self.width < WIDE

    @property
    def hopeless(self) -> bool:
        """True when retries were used up more often than one of them helped."""
        return self.exhausted > self.helped

    def died(self, state: TaskState, reason: str) -> int:
        """Record a death, and return how many the task is forgiven: none where it was tried alone as one of many.

        Tasks that ran as the quarantine began keep their retries: somebody may have killed all workers at once.
        """
        task, crashes = state.task.id, state.task.request.crashes
        alone = self.quarantined and task in self.out
        self.out.pop(task, None)
        self.killers.add(task)
        self.deaths += 1
        self.turn += self.deaths > 1
        if not self.narrow:
            self.out.clear()
            self.recall = "ready"
        self.recall = self.recall or "out"
        self.width = 1
        self.exhausted += state.crashes > crashes > 0
        self.reason = reason
        limit = 0 if self.hopeless or (alone and len(self.killers) > 1) else crashes
        self.failed_trials += alone and state.crashes > limit
        return limit

    def ended_well(self, state: TaskState) -> None:
        """Record that a worker outlived a task."""
        self.sound, self.deaths, self.failed_trials = True, 0, 0
        self.killers.clear()
        self.helped += state.crashes > 0
        self.widen()

    def widen(self) -> None:
        """Allow twice as many tasks at once."""
        self.width = min(WIDE, 2 * self.width)

    def give_up(self) -> list[TaskState]:
        """Take the tasks that are held back in vain; those that come later are tried anew.

        Those are the retries where retries do not help, and all where enough were tried alone.
        """
        states = list[TaskState]()
        enough = self.quarantined and self.failed_trials >= TRIALS
        if enough:
            self.failed_trials = 0
            states += self.held.values()
            self.held.clear()
        if enough or self.hopeless:
            states += self.retries.values()
            self.retries.clear()
        return states

    def take(self, devices: int) -> list[TaskState]:
        """Take the tasks that may go now, on so many devices."""
        states = list[TaskState]()
        if not self.narrow:
            self.out.clear()
            states += [*self.held.values(), *self.retries.values()]
            self.held.clear()
            self.retries.clear()
            return states
        room = 1 if self.quarantined else max(self.width, devices)
        while len(self.out) < room and (self.held or self.retries):
            state = self._next()
            self.out[state.task.id] = None
            states.append(state)
        return states

    def _next(self) -> TaskState:
        """Take the next task: bad ones often come together, so that after two deaths in a row the place changes.

        Of the retries, the one that is nearest to its last: what comes of it is known soonest.
        """
        if not self.held:
            return self.retries.pop(max(self.retries.values(), key=lambda state: state.crashes).task.id)
        if self.turn % 3 == 2:
            return self.held.pop(next(islice(self.held, len(self.held) // 2, None)))
        return self.held.popitem(last=self.turn % 3 == 1)[1]

    def hold(self, state: TaskState) -> None:
        """Hold a task back."""
        (self.retries if state.crashes else self.held)[state.task.id] = state

    def put_back(self, state: TaskState) -> None:
        """Hold a task back that was let go and did not start: it is the first again."""
        del self.out[state.task.id]
        self.hold(state)
        if not state.crashes:
            self.held.move_to_end(state.task.id, last=False)

    def why(self, state: TaskState) -> str:
        """Return why a task that is held back is given up."""
        how = f"its worker died {times(state.crashes)}" if state.crashes else "it was not run"
        if self.sound or not self.quarantined:
            return f"{self.name} was given up: {how}, and retries did not help others of its kind; {self.reason}"
        return (
            f"{self.name} was given up: {how}, and the last {self.deaths} runs of its kind each ended their worker, "
            f"none ended well; {self.reason}"
        )


class Quarantine:
    """The suspects, by class.

    Attributes
    ----------
    suspects
        By signature and size class; empty as long as no worker has died of a task.
    due
        Those whose tasks are to be let go, tried or given up.
    """

    def __init__(self) -> None:
        self.suspects: dict[tuple[str, int], Suspect] = {}
        self.due: list[Suspect] = []

    def of(self, task: Task) -> Suspect | None:
        """Return the suspect that a task belongs to, None where no worker died of its class."""
        return self.suspects.get((task.signature, size_class(task.size)))

    def died(self, state: TaskState, reason: str, sound: bool) -> int:
        """Record that a worker died of a task, and return how many deaths of its worker it is forgiven.

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
        self.due.append(suspect)
        return suspect.died(state, reason)

    def ended(self, state: TaskState, well: bool) -> None:
        """Record that a task is over, or waits for others: `well` when its worker outlived it, whatever came of it."""
        suspect = self.of(state.task)
        if suspect is None:
            return
        suspect.out.pop(state.task.id, None)
        if well:
            suspect.ended_well(state)
        self._check(suspect)

    def hold_back(self, state: TaskState) -> bool:
        """Hold a ready task back where its class is and it was not let go; return whether it is."""
        suspect = self.of(state.task)
        if suspect is None or not suspect.narrow or state.task.id in suspect.out:
            return False
        suspect.hold(state)
        self._check(suspect)
        return True

    def stuck(self) -> None:
        """Release more tasks when the released ones cannot start on an idle device."""
        for suspect in self.suspects.values():
            if suspect.held or suspect.retries:
                suspect.out.clear()
                suspect.widen()
                self.due.append(suspect)

    def let_go(self, state: TaskState) -> None:
        """Drop a task that was held back."""
        suspect = self.of(state.task)
        if suspect is not None:
            suspect.held.pop(state.task.id, None)
            suspect.retries.pop(state.task.id, None)

    def _check(self, suspect: Suspect) -> None:
        if suspect.held or suspect.retries:
            self.due.append(suspect)

    def _forget_oldest(self) -> None:
        if len(self.suspects) > SUSPECTS:
            entries = self.suspects.items()
            old = next((key for key, each in entries if not (each.held or each.retries or each.out)), None)
            if old is not None:
                del self.suspects[old]
