"""Batches in the user's own loop: which rows each process of `hetero launch` has, by shares learned from the steps.

In: batches of prepared loaders and of `fleet.split`, what each process took for its rows. Out: the own rows, shares
that move, devices left out. It must not know losses or gradients.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

from hetero.drive.throttle import Throttle
from hetero.floor import clock
from hetero.floor.errors import BadValueError
from hetero.plan.training.shares import given_shares
from hetero.train.launch import process_states as states
from hetero.train.launch.host_processes import LaunchOptions
from hetero.train.launch.leaving import BatchOrder
from hetero.train.launch.process_group import ProcessGroup
from hetero.train.launch.shared_loader import Batch, SharedLoader, moved_to, part_of, rows_of, samples_in, tensors_in
from hetero.train.launch.summed_values import SummedValues
from hetero.train.launch.whole_draws import Rows, WholeDraws
from hetero.train.share_planner import LearnedShares, StepTimes, counts_of

__all__ = ["SharedBatches", "StepClock"]

_UNDIVIDED = 16
_OF_SHAPES = re.compile(r"\b(size|sizes|shape|shapes|hidden)\b")
_SLOWER_FRAC = 0.05
_MOST, _LEAST = 17.0, 15.0  # parts of batches of a power of two are then in the same proportion
_MOST_ASKED = 3


class StepClock:
    """What a step takes this process: its own work, and what it does because there are others.

    Parameters
    ----------
    processes
        Whose waiting is taken off.
    throttle_frac
        Share of its speed that the device has.

    Attributes
    ----------
    last_step
        Of the step before, from one batch to the next, s: all of it, and without what is done because there are others.
    """

    def __init__(self, processes: ProcessGroup, throttle_frac: float) -> None:
        self._processes = processes
        self._throttle = Throttle(throttle_frac)
        self._begun_s = self._handed_s = clock.monotonic_s()
        self._waited_s = 0.0
        self._own_s = self._for_others_s = 0.0
        self.last_step = (0.0, 0.0)

    def next_step(self) -> None:
        """Record that a batch is handed out."""
        now_s = clock.monotonic_s()
        step_s = now_s - self._handed_s
        self.last_step = step_s, step_s - self._for_others_s
        self._handed_s, self._for_others_s = now_s, 0.0
        self.restart()

    def restart(self) -> None:
        """Begin to measure own work anew, as after an exchange."""
        self._begun_s, self._waited_s = clock.monotonic_s(), self._processes.waited_s
        self._throttle.restart()

    def script_ends(self) -> None:
        """Record that the script wants a batch; `StepPhases` keeps this and the two that follow."""

    def handed(self, samples: int) -> None:
        """Record that it gets one."""

    def exchanged(self, busy_s: Sequence[float], loss: float | None) -> None:
        """Record that gradients were exchanged, with the own work of each process, s, and the loss of the batch."""
        self.restart()

    def busy_s(self) -> float:
        """Return the time of own work since the last restart, s; a throttled device sleeps before."""
        if self._throttle.active:
            begun_s = clock.monotonic_s()
            self._throttle.pause()
            self._own_s += clock.monotonic_s() - begun_s
        return clock.monotonic_s() - self._begun_s - (self._processes.waited_s - self._waited_s)

    @contextmanager
    def in_backward(self) -> Iterator[None]:
        """Count a backward pass as done because there are others, but for what is `own_work` in it."""
        begun_s, self._own_s = clock.monotonic_s(), 0.0
        yield
        self._for_others_s += clock.monotonic_s() - begun_s - self._own_s

    @contextmanager
    def own_work(self) -> Iterator[None]:
        """Count what is done in here as own work, but for waiting."""
        begun_s, waited_s = clock.monotonic_s(), self._processes.waited_s
        yield
        self._own_s += clock.monotonic_s() - begun_s - (self._processes.waited_s - waited_s)


class SharedBatches:
    """Which rows of each batch this process has; the `BatchOwner` of prepared loaders.

    Parameters
    ----------
    processes
        Who shares.
    options
        How the shares are chosen.
    step_clock
        What measures the steps.
    summed
        What the script sums up.

    Attributes
    ----------
    shares
        Who has how much of the next batch; equal in all processes.
    rows
        Of the batch that was handed out last.
    is_divided
        Whether batches were handed out.
    has_loader
        Whether a loader was prepared.
    has_copy
        Whether this process has none of the rows, and computes the first one with weight 0.
    handed_out
        Batches so far.
    without_batch
        Batches handed out when a step began that was given none of them; None in other steps, and between steps.
    trained_on
        How many of them were handed out where gradients are computed.
    passes
        Backward passes with an exchange so far.
    has_unsynced
        Whether gradients are still to be exchanged, before which nobody may go.
    given
        Checksum of what the script has split last.
    order
        Which batch is in use.
    draws
        What draws random numbers for the own rows.
    current
        The own part of the batch that a loader has handed out last, None where it is not known any more.
    checksums
        While whole batches are compared: a number for the rows of each process in the last one, 0 where not known.
    is_stale
        Whether a process is lost that had rows of the batch that was handed out last.
    compare_anew
        Called before a batch is read where no other one is in use, with the processes that loaders read by: whole
        batches can be computed from here on.
    """

    def __init__(
        self, processes: ProcessGroup, options: LaunchOptions, step_clock: StepClock, summed: SummedValues
    ) -> None:
        self._processes = processes
        self._options = options
        self._clock = step_clock
        self._summed = summed
        self.seed = options.seed
        self.shares = self._first_shares()
        self.rows = Rows(0, 1, 1)
        self.is_divided = self.has_loader = self.has_copy = self.has_unsynced = False
        self.handed_out = self.trained_on = self.passes = self.given = 0
        self.order = BatchOrder()
        self.draws = WholeDraws()
        self.draws.gathered = self._numbers_of_rows
        self.without_batch: int | None = None
        self._drew_for_rows = False
        self._by_split = self._is_fresh = self._told_slower = False
        self._stepped_now: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._stepped_before: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._learners = processes.members
        self._learning = LearnedShares(processes.world)
        self._handed: tuple[float, ...] = (1.0,) * processes.world
        self._last_counts: tuple[int, ...] = ()
        self._leaving = 0
        self._wanted: tuple[float, ...] = ()
        self.current: Batch = None
        self.checksums = [0.0] * processes.world
        self.is_stale = False
        self.compare_anew: Callable[[Collection[object]], None] = lambda workers: None
        self._source: object = None
        self._loaders: weakref.WeakSet[SharedLoader] = weakref.WeakSet()
        self._remembered: tuple[tuple[int, ...], list[set[Optimizer]], dict[SharedLoader, int]] | None = None
        self._may_carry = False
        self._asked = 0
        self._begins = self._is_passed_over = False
        self._read = 0
        processes.explanations.append(self._why)
        processes.when_lost.append(self._share_anew)
        processes.when_checking.append(self._check_from_here)

    def _first_shares(self) -> tuple[float, ...]:
        """Return shares that differ, so that what one process has as many of as rows, by chance, another has not."""
        given, world = self._options.shares, self._processes.world
        if given == "auto":
            return tuple(_MOST - (_MOST - _LEAST) * rank / max(1, world - 1) for rank in range(world))
        if isinstance(given, str):
            return (1.0,) * world
        return tuple(float(share) for share in given_shares(given, self._processes.devices, sum(given.values())))

    # --- handing out ---------------------------------------------------------------------------------------

    @property
    def in_use(self) -> Rows:
        """The own rows of the batch of which the next backward pass is."""
        return self.order.in_use

    @property
    def is_given_none(self) -> bool:
        """Return whether a step is on its way that was given no batch, and has fetched none."""
        return self.is_divided and self.without_batch == self.handed_out

    def begin_step(self, *, is_given: bool) -> None:
        """Record that a step begins, and whether it was given a batch."""
        self._drew_for_rows = self.draws.rows is not None
        self.without_batch = None if is_given else self.handed_out
        self.draw_for_all_if_given_none()

    def end_step(self) -> None:
        """Record that a step is over: what follows is of the batch that was handed out last."""
        if self.is_given_none and self._drew_for_rows:
            self.draws.rows = self._drawn_for(self.rows)
        self.without_batch = None

    def draw_for_all_if_given_none(self) -> None:
        """Draw for all that is computed, and normalise over it alone, in a step that was given no batch."""
        if self.is_given_none:
            self.draws.rows = None

    @property
    def has_none(self) -> bool:
        """Return whether this process has no row of the batch in use."""
        return self.is_divided and not self.in_use.count

    def begin_batches(self, source: object) -> None:
        """Record that a loader begins an epoch, before which a device may be left out."""
        self._clock.script_ends()
        self._begins, self._is_passed_over, self._read = True, True, 0
        self.begin_batch(source)
        if not self._wanted or self._processes.has_check or self.order.ahead:
            return
        if self.has_unsynced or not self.order.is_done(source):
            return
        if self._is_nothing_missed(self._wanted, by_value=True):
            self.shares, self._wanted, self._leaving = self._wanted, (), 1
            return
        self._asked += 1
        if self._asked == _MOST_ASKED:
            self._wanted = ()

    def begin_batch(self, source: object) -> None:
        """Record that the next batch is about to be read, in this process, by nobody ahead of it."""
        if self._begins and isinstance(source, SharedLoader) and not self.order.ahead:
            self.order.ended_if_used("split")
        is_done = self.order.is_done(source) and (self._begins or not self.order.ahead)
        if is_done and not self.has_unsynced and not self._leaving and not self._processes.is_recovering:
            self.compare_anew([each for loader in self._loaders for each in loader.workers])

    def _check_from_here(self) -> None:
        """Go on in a process that was forked to compute whole batches: those that it has are whole from here on."""
        self._wanted = ()
        for loader in self._loaders:
            loader.leave_workers()

    def hand_out(self, rows: Rows, shares: tuple[float, ...], source: object) -> None:
        """Record which rows of a batch the script gets next; a process that is left out ends here."""
        self._may_carry = self.is_divided and rows.count != self.rows.count and not self._processes.checks
        self.rows, self.is_divided, self._handed = rows, True, shares
        self.current, self.is_stale, self._source = None, False, source
        if self._processes.is_alone:
            return
        if any(not shares[rank] for rank in self._processes.members):
            self._leave(shares, source)
        self._begins = False
        self.handed_out += 1
        self.trained_on += torch.is_grad_enabled()
        self._is_passed_over &= torch.is_grad_enabled()
        self._read += 1
        self.order.handed(source, rows)
        self.has_copy = not rows.count and torch.is_grad_enabled()
        if len(self._processes.members) > rows.whole and torch.is_grad_enabled():
            self._processes.note(
                f"a batch of {rows.whole} for {len(self._processes.members)} processes: who has no sample of it "
                "computes the first one with weight 0, and what the script counts of that is one too many"
            )
        if self._processes.is_alone:
            return
        self.draws.rows = self._drawn_for(rows)
        self._clock.next_step()
        self._is_fresh = True
        self._stepped_before, self._stepped_now = self._stepped_now, weakref.WeakSet()
        self._by_split, self.draws.folded, self.draws.dim = False, True, 0

    def _drawn_for(self, rows: Rows) -> Rows:
        """Return for which rows random numbers are; a process without rows has the first one."""
        return rows if rows.count else Rows(0, 1, rows.whole)

    def in_model(self, model: torch.nn.Module, args: Batch, options: Batch) -> None:
        """Find of which batch a prepared model is given something: the script may have fetched another one since."""
        if not model.training:
            self._is_passed_over = False
        if self._processes.is_alone or not torch.is_grad_enabled() or not model.training:
            return
        rows = self.order.given(tensors_in((args, options)))
        if rows is not None:
            self.draws.rows = self._drawn_for(rows)

    def between_batches(self) -> None:
        """Record that what is drawn from here on is not for a part of a batch."""
        self._clock.script_ends()
        self.draws.rows = None

    def read_through(self) -> None:
        """Notify people of an epoch whose batches were all passed over."""
        if self._is_passed_over and self._read and not self._processes.is_alone:
            self._processes.note(
                f"{self._read} batches were read, and none was followed by a backward pass: where the script looks at "
                "the size of a batch, as by `if len(x) < 16: continue`, it sees the own rows; fleet.global_batch is "
                "that of all devices"
            )

    def note(self, words: str) -> None:
        """Notify people, once of each thing."""
        self._processes.note(words)

    def end_of_batches(self, source: object) -> None:
        """Record that an epoch is over."""
        self.order.ended(source)
        self.between_batches()
        if source is self._source:
            self.current = None

    def place(self, batch: Batch) -> Batch:
        """Return a batch on this process's device."""
        device = self._processes.device
        found = batch if device.type == "cpu" else moved_to(device, batch)
        if isinstance(self._source, SharedLoader):
            self.current = found
        if not self._processes.is_alone:
            self.order.holds(tensors_in(found))
        if self._processes.has_check:
            self.checksums = [self._checksum(found, rank) for rank in range(self._processes.world)]
        self._clock.handed(self.rows.count)
        return found

    def _checksum(self, batch: Batch, rank: int) -> float:
        """Return a number for the rows of a process in a batch of which this one has all, or these."""
        rows, checks = rows_of(counts_of(self._handed, self.rows.whole), rank), self._processes.checks
        if not rows.count or not (checks or rank == self._processes.rank):
            return 0.0
        try:
            return float(states.checksum(part_of(batch, rows, self.draws.dim) if checks else batch) & 0xFFFFFF)
        except BadValueError:  # what cannot be cut
            return 0.0

    def split(self, batch: Batch, dim: int) -> Batch:
        """Return the own rows of a batch that the script made itself."""
        self._clock.script_ends()
        self.begin_batch("split")
        samples = samples_in(batch, dim)
        if samples is None and isinstance(batch, list):
            samples = len(batch)
        if samples is None:
            raise BadValueError("split() was given no tensor with rows", remedy="give a batch of tensors")
        rows = self.rows_for(self.shares, samples)
        if self._processes.is_alone:
            self.hand_out(rows, self.shares, "split")
            return self.place(batch)
        self.given = states.checksum(batch)
        own = part_of(batch, rows if rows.count else Rows(0, 1, rows.whole), dim) if rows.whole > 1 else batch
        self.hand_out(rows, self.shares, "split")
        # Its end is not seen as that of a loader: it is where all have stepped. The next one is drawn before.
        self._by_split, self.draws.folded, self.draws.dim = True, False, dim
        return self.place(own)

    @property
    def is_alone(self) -> bool:
        """Return whether nobody else has rows of the batches any more."""
        return self._processes.is_alone

    def rows_for(self, shares: Sequence[float], samples: int) -> Rows:
        """Return this process's rows of a batch of so many samples."""
        if self._processes.checks or self._processes.is_alone:
            return Rows(0, samples, samples)
        return rows_of(counts_of(shares, samples), self._processes.rank)

    def stepped(self, optimizer: Optimizer) -> None:
        """Record that an optimizer has stepped."""
        self._stepped_now.add(optimizer)
        if self._by_split and not self.order.ahead and self._stepped_now >= self._stepped_before:
            self.draws.rows = None

    def computed(self, *, is_synced: bool) -> None:
        """Record that a backward pass is over, and whether its gradients were exchanged."""
        self.passes += is_synced
        self._processes.steps = self.passes
        self._is_passed_over = False
        self.order.computed()

    def group_for(self, batch: Tensor) -> _NormGroup | None:
        """Return over whom a batch is normalised, and whether it has as many rows as this process, or a multiple."""
        found, rows = self.group_now(), self.draws.rows
        if found is not None and rows is not None:
            found.is_of_rows = not len(batch) % rows.count and not len(batch) == rows.whole > rows.count
        return found

    def group_now(self) -> _NormGroup | None:
        """Return who has the other rows of the batch in use: nobody where it is not cut."""
        is_whole = self.draws.rows is None or self._processes.checks
        return None if is_whole else _NormGroup(self._processes, has_rows=not self.has_none)

    def _numbers_of_rows(self, own: Tensor) -> Tensor:
        """Return a whole number of each row of the whole batch, given those of the own rows."""
        rows = self.rows
        table = torch.zeros(rows.whole, dtype=torch.float64)
        table[rows.begin : rows.begin + rows.count] = own[: rows.count]
        with self._processes.ended_together():
            self._processes.all_reduce(table)
        return table.to(own.dtype)

    def _why(self, error: BaseException) -> str | None:
        """Return what an error that has ended the script may come from."""
        if self._may_carry and isinstance(error, RuntimeError | ValueError) and _OF_SHAPES.search(str(error)):
            return (
                "this batch has another number of own rows than the one before: state that is carried from batch to "
                "batch with a row for each sample, as of a recurrent network, needs --shares equal (and drop_last=True)"
            )
        if not self.is_divided or self.rows.count or self.has_copy or self._processes.is_alone:
            return None
        return (
            f"{self._processes.devices[self._processes.rank]} has no sample of a batch of {self.rows.whole} and got an "
            "empty one: where the script cannot take that, give drop_last=True or another batch size"
        )

    # --- learning shares -----------------------------------------------------------------------------------

    def learn(self, busy_s: Sequence[float], step_s: float, own_s: float) -> None:
        """Take in what a step took, the one before wholly; all processes do it with the same numbers."""
        if not self._is_fresh or not self.is_divided or self._options.shares != "auto":
            return
        if not self.order.is_seen:
            self._processes.note(
                "shares stay as they are: the script has several batches in use at a time, and none is given to a "
                "prepared model as it came from the loader or from fleet.split"
            )
            return
        self._is_fresh = False
        counts = tuple(counts_of(self._handed, self.rows.whole)[rank] for rank in self._learners)
        before = StepTimes(self._last_counts, step_s, own_s) if self._last_counts else None
        self._last_counts = counts
        if self._processes.has_check or self._leaving:
            self._last_counts = ()
            return
        if self._wanted:
            return
        own_busy_s = [busy_s[rank] for rank in self._learners]
        better = self._learning.observed(counts, own_busy_s, before, may_leave=self._may_leave)
        if better is None:
            return
        shares = self._of_all(better)
        if all(shares[rank] for rank in self._processes.members):
            self.shares = shares
            self._say_if_slower()
        elif self._is_nothing_missed(shares, by_value=False):
            self.shares, self._leaving = shares, self.order.ahead + 1
        else:
            self.shares, self._wanted = self._of_all(self._learning.shared), shares

    def _of_all(self, shares: Sequence[float]) -> tuple[float, ...]:
        """Return the shares of all processes, given those of the ones that learn together."""
        known = dict(zip(self._learners, shares, strict=True))
        return tuple(float(known.get(rank, 0.0)) for rank in range(self._processes.world))

    def _say_if_slower(self) -> None:
        alone_s, together_s = self._learning.alone_s, self._learning.together_s
        if self._may_leave or alone_s is None or together_s is None or alone_s >= together_s * (1 - _SLOWER_FRAC):
            return
        if self._told_slower:
            return
        self._told_slower = True
        why = "has several batches in use at a time"
        if not self._summed.is_readable:
            why = "calls fleet.sum or fleet.gather by another name, so that nobody knows what it sums up"
        elif self._asked:
            why = "sums up what each process has counted before"
        first = self._processes.devices[self._processes.members[0]]
        self._processes.note(
            f"a step takes {together_s * 1e3:.3g} ms, and {first} alone would take about "
            f"{alone_s * 1e3:.3g} ms; the others stay, as the script {why}: start with that device alone, or see "
            "'When a second device does not pay' in the guide of hetero launch"
        )

    # --- when a process is lost ----------------------------------------------------------------------------

    def shares_of(self, loader: SharedLoader) -> SharedLoader:
        """Return a loader whose batches are shared anew, too, when a process is lost."""
        self._loaders.add(loader)
        return loader

    def remember(self) -> None:
        """Record where an attempt at a step begins."""
        epochs = {loader: loader.epochs for loader in self._loaders}
        stepped = [set(self._stepped_now), set(self._stepped_before)]
        self._remembered = (self.handed_out, self.trained_on, self.passes, self.given), stepped, epochs

    def hand_out_again(self) -> Batch:
        """Return the own part of the last batch of a loader, when an attempt begins again with fewer processes."""
        assert self._remembered is not None
        counts, (now, before), epochs = self._remembered
        self.handed_out, self.trained_on, self.passes, self.given = counts
        for loader, number in epochs.items():
            loader.epochs = number
        self.order.forget()
        source = self._source
        if isinstance(source, SharedLoader) and source.is_open:
            self.handed_out -= 1
            self.trained_on -= torch.is_grad_enabled()
            source.hand_out_again()
        self._stepped_now, self._stepped_before = weakref.WeakSet(now), weakref.WeakSet(before)
        return self.current

    def _share_anew(self) -> None:
        """Share all that follows among the processes that are left."""
        members = self._processes.members
        shares = tuple(share if rank in members else 0.0 for rank, share in enumerate(self.shares))
        self.shares = shares if any(shares) else tuple(float(rank in members) for rank in range(len(shares)))
        self._learners, self._learning = members, LearnedShares(len(members))
        self._last_counts, self._wanted, self._leaving = (), (), 0
        self.current, self.is_stale = None, True
        for loader in self._loaders:
            loader.read_again()

    # --- leaving devices out -------------------------------------------------------------------------------

    @property
    def _may_leave(self) -> bool:
        """Return whether a process can go without anything of it being missed."""
        source = "split" if self._by_split else next(iter(self.order.sources), None)
        is_done = self.order.is_done(source) and (self._by_split or not self.order.ahead)
        return is_done and self._summed.is_readable and self._asked < _MOST_ASKED

    def _is_nothing_missed(self, shares: Sequence[float], *, by_value: bool) -> bool:
        """Return whether all who have no share may go, of whom each looks at its own variables; all ask together."""
        goes = not shares[self._processes.rank]
        missed = self._summed.missed(by_value=by_value) if goes else None
        stays = torch.tensor([float(missed is not None)], dtype=torch.float64)
        with self._processes.ended_together():
            self._processes.all_reduce(stays)
        if missed is not None and by_value and self._asked + 1 == _MOST_ASKED:
            self._processes.note(
                f"{self._processes.devices[self._processes.rank]} costs more than it brings, but stays: {missed}; "
                "begin it anew, as by right = 0, before each loop over a loader",
                of_each=True,
            )
        return not float(stays)

    def _leave(self, shares: tuple[float, ...], source: object) -> None:
        """Leave out who has no share any more; where this process is one, end it.

        Batches that the script has fetched ahead are computed by all.
        """
        if not self.order.is_done(source) or self.has_unsynced:
            return
        self._leaving -= self._leaving > 0
        if self._leaving:
            return
        if not self._begins and not self._is_nothing_missed(shares, by_value=False):
            self.shares, self._wanted = self._of_all(self._learning.shared), shares
            return
        before = self._processes.members
        members = tuple(rank for rank in before if shares[rank])
        self._say_who_is_left_out([rank for rank in before if rank not in members], alone=len(members) == 1)
        self._processes.go_on_with(members)

    def leave_if_undivided(self) -> None:
        """Leave the others out of a script that divides nothing, as the check has shown: each computes the same."""
        undivided = not (self.is_divided or self.has_loader) and self._options.shares == "auto"
        if not undivided or self.passes < _UNDIVIDED or self._processes.has_check or self._processes.is_alone:
            return
        if self._options.check_steps > 0:
            left = ", ".join(self._processes.devices[1:])
            self._processes.note(f"each process computes the same, so {left} are left out")
            self._processes.go_on_with((0,))

    def _say_who_is_left_out(self, gone: Sequence[int], *, alone: bool) -> None:
        learned, devices, first = self._learning, self._processes.devices, self._processes.members[0]
        words = f"{', '.join(devices[rank] for rank in gone)} left out after {self.passes} steps"
        if alone and learned.alone_s is not None and learned.together_s is not None:
            words += (
                f": a step took {learned.together_s * 1e3:.3g} ms with all, and takes {devices[first]} alone about "
                f"{learned.alone_s * 1e3:.3g} ms"
            )
        self._processes.note(words)


class _NormGroup:
    """The members as the layers see them that exchange in the forward pass.

    Attributes
    ----------
    has_rows
        Whether this process has rows of the batch; one without has nothing to add.
    is_of_rows
        Whether what is normalised has its rows, or several entries of each.
    """

    is_of_rows = True

    def __init__(self, processes: ProcessGroup, *, has_rows: bool) -> None:
        self._processes = processes
        self.rank = processes.members.index(processes.rank)
        self.world_size = len(processes.members)
        self.has_rows = has_rows

    def all_reduce(self, row: Tensor) -> None:
        """Add a row up over the processes."""
        if not self.has_rows:
            row.zero_()
        with self._processes.ended_together():
            self._processes.all_reduce(row)
