"""The processes of `hetero launch` as one of them sees the others: how they meet, exchange rows, fail and end.

In: what the launching program told this process. Out: groups that exchange rows, errors that end all processes, notes.
It must not know batches, gradients or models.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import random
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from hetero.comm.errors import DisagreementError, GroupBrokenError, LineClosedError
from hetero.comm.group import Group
from hetero.comm.lines import Line
from hetero.comm.rendezvous import Library
from hetero.floor import clock, platform
from hetero.floor.contexts import transparent
from hetero.floor.errors import HeteroError
from hetero.model.device import KINDS
from hetero.train.launch import script_mistakes as mistakes
from hetero.train.launch.host_processes import LaunchedProcess
from hetero.train.reduction_groups import ByHost
from hetero.train.values import TrainingError

__all__ = ["ProcessGroup", "ProcessLostError"]

_END_S = 20.0
_LET_OTHERS_SAY_S = 1.5
_NOT_MISSED = {"QueueFeederThread", "TMonitor"}
"""Threads by name or class that begin anew in a process that is forked: of queues, and of tqdm."""
_DIFFERENT = (
    "the processes do different things, as where backward, fleet.sum or batch normalisation in training mode runs in "
    "one of them only, or a loss depends on the model in one of them only, as by `if mask.any()`: there 0 * out.sum() "
    "with fleet.backward(loss, weight=0) does"
)


class _Meeting:
    """Where the processes exchange small values: the launching program; see `hetero.comm.rendezvous.Meeting`."""

    library: Library = "none"

    def __init__(self, line: Line, name: str, rank: int, world: int) -> None:
        self._line = line
        self._name = name
        self._rank = rank
        self._world = world

    def exchange(self, word: str, mine: bytes, deadline_s: float) -> list[bytes]:
        """Publish a value under a key; return what each member published under it, by rank."""
        key = f"{self._name}/{word}"
        self._line.send("exchange", key, self._rank, self._world, mine)
        until_s = clock.monotonic_s() + deadline_s
        while (left_s := until_s - clock.monotonic_s()) > 0.0:
            message = self._line.receive(left_s)
            if message == ("lost", key):
                raise GroupBrokenError(f"a process was lost before all had come to {word!r}")
            if message is not None and message[:2] == ("exchanged", key):
                values: list[bytes] = message[2]
                return values
        raise GroupBrokenError(f"not all processes came to {word!r} within {deadline_s:g} s")

    def store(self) -> NoReturn:
        """Return torch's store of keys; there is none."""
        raise AssertionError("this meeting has no store")


class ProcessLostError(BaseException):
    """Another process was lost in a step that can be done again; no script catches it by `except Exception`."""


class _Position(NamedTuple):
    """Where a process is when it notices that another one is lost.

    Attributes
    ----------
    begun, done
        Exchanges when its attempt at a step began, and by now.
    waits
        Whether it has all of the last exchange, and waits for the others to have it, too.
    """

    begun: int
    done: int
    waits: bool

    def is_complete(self, all_positions: Sequence[_Position]) -> bool:
        """Return whether everybody has what it waits for: who is further, and nobody else, has known it to be so."""
        return self.waits and any(each.begun > self.begun for each in all_positions)


class ProcessGroup:
    """The processes that train together, and the one that checks them at first.

    Parameters
    ----------
    told
        What the launching program told this process.

    Attributes
    ----------
    rank
        Of this process; the one that checks comes after the others.
    devices
        Short names of the devices of all ranks, without that of the process that checks.
    members
        The ranks of those that still take part.
    device
        torch's, of this process.
    checks
        Whether this process computes whole batches, for comparison.
    has_check
        Whether one of the processes does, as long as it is there.
    is_mixed
        Whether the devices are of different kinds.
    waited_s
        Time spent in `all_reduce` since the beginning, s.
    steps
        Done so far: people are told after how many another process was missed.
    members_group, everybody
        The groups of the members, and of all with the process that checks.
    has_threads
        Whether a library computes in threads of its own, without which a forked process would stand still.
    when_alone
        What is called when no other member is left.
    explanations
        Functions that return a note on an error that ends the script, or None.
    when_lost
        What is called when the group was made anew without a process that was lost.
    when_leaving
        What is called before this process ends, as it is not needed any more.
    when_checking
        What is called in a process that was forked, and computes whole batches from here on.
    """

    def __init__(self, told: LaunchedProcess) -> None:
        self.rank = told.rank
        self.devices = told.devices
        self.device = torch.device(KINDS[told.kind].torch_place(told.index))
        self.checks = told.checks
        self.has_check = told.has_check
        self.has_threads = False
        self.waited_s = 0.0
        self.steps = 0
        self.when_alone: list[Callable[[], None]] = []
        self.explanations: list[Callable[[BaseException], str | None]] = []
        self.when_lost: list[Callable[[], None]] = []
        self.when_leaving: list[Callable[[], None]] = []
        self.when_checking: list[Callable[[], None]] = []
        self._timeout_s = told.options.timeout_s
        self._hosts = told.hosts
        self._recovers = self._has_said_so = False
        self._begun = self._done = 0
        self._pid = os.getpid()
        self._noted: set[str] = set()
        self._checks_begun = self._forked = 0
        self._inherited: list[object] = []
        self._address = told.address
        self._line = Line.dial(told.address)
        self._line.send("arrived", self.rank)
        self._shown_before, sys.excepthook = sys.excepthook, self._show_error
        mistakes.raise_if(mistakes.hidden_devices(told.sees))
        self.members = tuple(range(self.world))
        self.everybody = self._grouped("everybody", range(self.world + told.has_check))
        self.members_group = Group(0, 1) if self.checks else self._grouped(f"members {self.members}", self.members)
        kinds = {name.rpartition("/")[2].partition(":")[0] for name in self.devices}
        self.is_mixed = len(kinds) > 1

    @property
    def world(self) -> int:
        """How many members there were at the beginning."""
        return len(self.devices)

    @property
    def is_own(self) -> bool:
        """Return whether this is the process that was started, and none that it forked."""
        return self._pid == os.getpid()

    @property
    def is_alone(self) -> bool:
        """Return whether one member is left."""
        return len(self.members) == 1

    @property
    def is_first(self) -> bool:
        """Return whether this is the first of those that are left, which prints and saves."""
        return self.rank == self.members[0]

    @property
    def all(self) -> Group:
        """All processes, the one that checks too, as long as it is there."""
        return self.everybody if self.has_check else self.members_group

    @property
    def is_first_here(self) -> bool:
        """Return whether no process of a lower rank is on this one's host."""
        return self._hosts.index(self._hosts[self.rank]) == self.rank if self._hosts else self.rank == 0

    # --- exchanging ----------------------------------------------------------------------------------------

    def all_reduce(self, row: Tensor) -> None:
        """Replace a row by the sum over the members; what that takes counts as waiting."""
        begun_s = clock.monotonic_s()
        self.members_group.all_reduce(row)
        self.waited_s += clock.monotonic_s() - begun_s

    def from_first(self, value: bytes) -> bytes:
        """Return what the first process gave."""
        with self.ended_together():
            world = self.everybody.world_size
            meeting = _Meeting(self._line, "generators", self.rank, world)
            return meeting.exchange("generators", value if self.rank == 0 else b"", self._timeout_s)[0]

    def told_by_members(self, word: str, mine: bytes) -> list[bytes]:
        """Return what each member tells under a word of its own, by way of the launching program."""
        meeting = _Meeting(self._line, word, self.members.index(self.rank), len(self.members))
        return meeting.exchange(word, mine, _END_S)

    def _grouped(self, name: str, ranks: Sequence[int]) -> Group:
        """Return the group of some processes, which sums in shared memory on a host and over TCP between hosts."""
        mine, places = ranks.index(self.rank), [self._hosts[rank] for rank in ranks if self._hosts]

        def meet(part: str, rank: int, world: int) -> _Meeting:
            return _Meeting(self._line, f"{name}{part}", rank, world)

        if len(set(places)) > 1:
            return ByHost(mine, places, meet, self._timeout_s)
        return Group(mine, len(ranks), meet("", mine, len(ranks)), None, self._timeout_s)

    # --- who takes part ------------------------------------------------------------------------------------

    def dismiss_check(self, *, ends: bool) -> None:
        """Go on without the process that checks, which ends here; all end where `ends`."""
        self.has_check = False
        with self.ended_together():
            self.everybody.all_reduce(np.zeros(1))
            if self.checks or ends:
                if self.rank == 0:
                    self._line.send("report", "the first steps are those of one device")
                self.leave()
        if self._forked:
            os.waitpid(self._forked, 0)
            self._forked = 0

    def begin_check(self, known: Collection[object]) -> bool:
        """Have whole batches computed once more, by a process that a member forks; returns whether one can.

        Parameters
        ----------
        known
            Processes of this one that the forked one leaves alone.

        Notes
        -----
        The forked process has all that the script has made, and goes on with it from here. A member can be forked
        where it computes on a CPU under Linux, and neither threads nor other processes of the script would be missed.
        """
        able = torch.zeros(self.world)
        able[self.rank] = self._may_fork(known)
        with self.ended_together():
            self.all_reduce(able)
        ranks = [rank for rank in self.members[1:] if able[rank]]  # what the main process writes, it writes once
        if not ranks:
            return False
        self._checks_begun += 1
        self.has_check = True
        if self._hosts:
            self._hosts = (*self._hosts[: self.world], self._hosts[ranks[0]])
        if self.rank == ranks[0]:
            self._fork_check()
        if not self.checks:
            self.everybody.close()
        with self.ended_together():
            self.everybody = self._grouped(f"everybody {self._checks_begun}", (*self.members, self.world))
        return True

    def _may_fork(self, known: Collection[object]) -> bool:
        if not platform.FEATURES.fork or self.device.type != "cpu" or self.has_threads:
            return False
        if set(multiprocessing.active_children()) - set(known):
            gc.collect()
        threads = [each for each in threading.enumerate() if not {each.name, type(each).__name__} & _NOT_MISSED]
        return threads == [threading.current_thread()] and not set(multiprocessing.active_children()) - set(known)

    def _fork_check(self) -> None:
        """Fork a process that computes whole batches; what it prints and writes by the way is nobody's."""
        parent, drawn = os.getpid(), random.getstate()
        self._forked = platform.fork()
        if self._forked:
            return
        random.setstate(drawn)  # Python seeds it anew
        platform.die_with_parent(parent)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        torch.set_num_threads(1)
        self._inherited += [self._line, self.members_group, self.everybody]  # which are the other process's to close
        self._pid, self.rank, self.checks = os.getpid(), self.world, True
        self._line, self.members_group = Line.dial(self._address), Group(0, 1)
        self.when_leaving = []
        atexit.register(self._end_fork)
        for call in self.when_checking:
            call()

    def _end_fork(self) -> NoReturn:
        """End without the handlers that belong to the process that was forked."""
        self.close()
        os._exit(0)

    def go_on_with(self, members: tuple[int, ...]) -> None:
        """Go on with some of the members; a process that is none of them ends here."""
        self.members = members
        if self.rank not in members:
            self.leave()
        self.members_group.close()
        if not self.is_alone:
            self.members_group = self._grouped(f"members {members}", members)
            return
        self.members_group = Group(0, 1)
        for call in self.when_alone:
            call()

    # --- going on without who is lost ----------------------------------------------------------------------

    @property
    def is_recovering(self) -> bool:
        """Return whether what is done now can be done again."""
        return self._recovers

    @transparent
    def recovering(self) -> Iterator[None]:
        """Attempt in here what can be done again: ProcessLostError is raised where a process was lost in it."""
        if not self._has_said_so:
            self._has_said_so = True
            self._line.send("recovers", self.rank)
        self._recovers, self._begun = True, self._done
        try:
            yield
        except ProcessLostError:
            self._done = self._begun
            raise
        finally:
            self._recovers = False

    def commit(self) -> None:
        """Record that this process has all of an exchange; an attempt goes on when all others have it, too.

        Raises
        ------
        ProcessLostError
            They have not: the attempt begins again.
        """
        self._done += 1
        if not self._recovers or self.is_alone:
            return
        try:
            self.members_group.all_reduce(np.zeros(1))
        except (GroupBrokenError, LineClosedError) as error:
            self._go_on_without(error, waits=True)

    def _go_on_without(self, error: HeteroError, *, waits: bool) -> None:
        """Make the group anew of those that are left; raises ProcessLostError where the attempt begins again."""
        mine = _Position(self._begun, self._done, waits)
        self.members_group.close()
        try:
            self._line.send("regroup", self.rank, tuple(mine), str(error), self.steps)
            members, positions = self._regrouped()
        except LineClosedError:
            raise TrainingError(str(error)) from None
        self.go_on_with(members)
        for call in self.when_lost:
            call()
        if not mine.is_complete([_Position(*each) for each in positions]):
            raise ProcessLostError

    def _regrouped(self) -> tuple[tuple[int, ...], list[tuple[int, int, bool]]]:
        """Wait for the launching program to say who is left, and where each of them is."""
        until_s = clock.monotonic_s() + self._timeout_s
        while (left_s := until_s - clock.monotonic_s()) > 0.0:
            message = self._line.receive(left_s)
            if message is not None and message[0] == "regrouped":
                return tuple(message[1]), list(message[2])
        raise TrainingError(f"who is left was not known within {self._timeout_s:g} s")

    def leave(self) -> NoReturn:
        """End this process without what the script does at its end; the others go on without it."""
        for call in self.when_leaving:
            call()
        self._line.send("done", self.rank)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def close(self) -> None:
        """Close groups and line at the end of the script."""
        if not self.is_own:
            return
        for group in (self.members_group, self.everybody):
            group.close()
        self._line.close()

    # --- what people are told ------------------------------------------------------------------------------

    def note(self, words: str, *, of_each: bool = False) -> None:
        """Notify people, once of each thing.

        Parameters
        ----------
        words
            One line.
        of_each
            Whether it is another thing in each process, which says it itself.
        """
        if (of_each or self.is_first) and words not in self._noted:
            self._noted.add(words)
            self._line.send("note", words)

    def tell_phases(self, steps: Sequence[tuple[object, ...]]) -> None:
        """Notify the launching program of what the phases of steps took; see `hetero.train.launch.step_phases`."""
        if self.checks:
            return
        with suppress(LineClosedError):
            self._line.send("phases", self.rank, clock.wall_time_s() - clock.monotonic_s(), steps)

    @contextmanager
    def ended_together(self) -> Iterator[None]:
        """End all processes where one does not come: the launching program knows whose fault it is."""
        try:
            yield
        except DisagreementError as error:
            self._report("broken", f"{_DIFFERENT}: {error.problem}")
            raise
        except (GroupBrokenError, LineClosedError) as error:
            if self._recovers:
                self._go_on_without(error, waits=False)
            if self._forked and (ended := os.waitpid(self._forked, getattr(os, "WNOHANG", 0))[1]):
                how = platform.describe_exit(os.waitstatus_to_exitcode(ended))
                words = f"the process that computes whole batches {how}"
                self._report("refused", f"{words}; leave the comparison out with --check-steps 0")
            self._report("broken", str(error))
            raise TrainingError(str(error)) from None

    def end_with(self, error: HeteroError) -> NoReturn:
        """End all processes with an error that each of them has, which is said once."""
        self._report("refused", str(error))
        raise error

    def end_after_others(self, error: HeteroError) -> NoReturn:
        """End all processes with an error of which another one may know more."""
        clock.sleep(_LET_OTHERS_SAY_S)
        self.end_with(error)

    def _show_error(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Show what has ended the script: one line where hetero refused something, else as Python does."""
        words = mistakes.last_words(error, trace) if self.is_own else None
        if words is None and self.checks and self._checks_begun:  # nobody reads what a forked process writes
            words = f"{kind.__name__}: {error}"
        if words is None:
            for note in filter(None, (explain(error) for explain in self.explanations if self.is_own)):
                self._line.send("note", note)
            self._shown_before(kind, error, trace)
            return
        if self.checks:
            clock.sleep(_LET_OTHERS_SAY_S)
        self._report("refused", f"{'the check' if self.checks else self.devices[self.rank]}: {words}")

    def _report(self, word: str, text: str) -> None:
        try:
            self._line.send(word, self.rank, text, self.steps)
        except LineClosedError:
            return
        sys.stdout.flush()
        clock.sleep(_END_S)
