"""A process of `hetero launch` among the others: parts of batches, gradients of whole ones, a comparison at first.

In: what the launching program told, the script's models and losses. Out: gradients of the whole batch.
It must not own the loop, nor know how processes are started.
"""

from __future__ import annotations

import atexit
import os
import pickle
import random
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from hetero.backends.cpu import hold_threads
from hetero.comm.errors import DisagreementError, GroupBrokenError, LineClosedError
from hetero.comm.group import Group
from hetero.comm.lines import Line
from hetero.comm.rendezvous import Library
from hetero.drive.throttle import Throttle
from hetero.floor import clock
from hetero.floor.errors import BadValueError, HeteroError
from hetero.model.device import KINDS
from hetero.plan.training.shares import given_shares
from hetero.train import fleet, global_norm
from hetero.train import process_states as states
from hetero.train import script_mistakes as mistakes
from hetero.train.launch import LaunchedProcess
from hetero.train.leaving import BatchOrder, SummedPlaces
from hetero.train.loss_terms import Meaning, Term, meanings_of, terms_of
from hetero.train.parameter_rows import FirstSteps, GradientRow, ParameterRows, hooks_held, run_hooks
from hetero.train.share_planner import LearnedShares, StepTimes, counts_of
from hetero.train.shared_loader import (
    Batch,
    SharedLoader,
    map_tensors,
    moved_to,
    part_of,
    rows_of,
    samples_in,
    tensors_in,
)
from hetero.train.values import TrainingError
from hetero.train.whole_draws import Rows, WholeDraws

__all__ = ["Member"]

_END_S = 20.0
_LET_OTHERS_SAY_S = 1.5
_DIFFERENT = (
    "the processes do different things, as where backward, fleet.sum or batch normalisation in training mode runs in "
    "one of them only"
)
_MOST_CHECKED = 64
_UNDIVIDED = 16
_SLOWER_FRAC = 0.05

_autograd_backward = torch.autograd.backward


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
            if message is not None and message[:2] == ("exchanged", key):
                values: list[bytes] = message[2]
                return values
        raise GroupBrokenError(f"not all processes came to {word!r} within {deadline_s:g} s")

    def store(self) -> NoReturn:
        """Return torch's store of keys; there is none."""
        raise AssertionError("this meeting has no store")


class Member(fleet.TrainingFleet):
    """One of several processes that `hetero launch` has started."""

    def __init__(self, told: LaunchedProcess) -> None:
        super().__init__()
        self._told = told
        self._options = told.options
        self.rank = told.rank
        self.devices = told.devices
        self.device = torch.device(KINDS[told.kind].torch_place(told.index))
        self.seed = told.options.seed
        self._checks = told.checks
        if self.device.type == "cpu":
            hold_threads(told.cores, torch.get_num_threads, torch.set_num_threads)
        else:
            getattr(torch, self.device.type).set_device(self.device)
        self._line = Line.dial(told.address)
        self._line.send("arrived", self.rank)
        self._shown_before, sys.excepthook = sys.excepthook, self._show_error
        _raise_if(mistakes.hidden_devices(told.sees))
        self._world = len(told.devices)
        self._members = tuple(range(self._world))
        self._everybody = Group(self.rank, self._world + told.has_check, self._meeting("everybody", told.has_check))
        self._group = Group(self.rank, self._world, self._meeting("members")) if not self._checks else Group(0, 1)
        for group in (self._everybody, self._group):
            group.deadline_s = told.options.timeout_s
        self._mixed = len(set(self._kinds())) > 1
        self._first_steps = FirstSteps(self._everybody, rough=self._mixed)
        self._first_steps.is_over |= not told.has_check
        self._managed: list[ParameterRows] = []
        self._known: set[int] = set()
        self._steps: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._stepped_now: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._stepped_before: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._by_split = False
        self._has_loader = self._has_copy = False
        self._given = 0
        self._exchanges = self._handed_out = 0
        self._at_step: weakref.WeakKeyDictionary[Optimizer, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._reductions = 0
        self._ways: dict[tuple[str, ...], tuple[Meaning, ...]] = {}
        self._pending: list[tuple[Tensor, Tensor]] = []
        self._syncs = True
        self._defers = False
        self._rows = Rows(0, 1, 1)
        self._split = False
        self._throttle = Throttle(told.throttle_frac)
        self._begun_s = clock.monotonic_s()
        self._waited_s = 0.0
        self._learning = LearnedShares(self._world)
        self._fresh = False
        self._handed_s = self._begun_s
        self._handed = (1.0,) * self._world
        self._for_others_s = 0.0
        self._last_step = (0.0, 0.0)
        self._last_counts: tuple[int, ...] = ()
        self._order = BatchOrder()
        self._leaving = 0
        self._summed = SummedPlaces(self)
        self._wanted: tuple[float, ...] = ()
        self._told_slower = False
        self._hooks: list[RemovableHandle] = []
        self._noted: set[str] = set()
        self.shares = self._first_shares()
        self._draws = WholeDraws()
        self._draws.gathered = self._numbers_of_rows
        self._share_generators()
        if self._world > 1:
            self._take_over()
        atexit.register(self._close)

    # --- the beginning -------------------------------------------------------------------------------------

    def _meeting(self, name: str, more: int = 0) -> _Meeting:
        return _Meeting(self._line, name, self.rank, self._world + more)

    def _first_shares(self) -> tuple[float, ...]:
        given = self._options.shares
        if isinstance(given, str):
            return (1.0,) * self._world
        return tuple(float(share) for share in given_shares(given, self.devices, sum(given.values())))

    def _share_generators(self) -> None:
        """Set in all processes the first one's random numbers."""
        state = pickle.dumps((torch.get_rng_state(), np.random.get_state(), random.getstate()))
        with self._ended_together():
            meeting = self._meeting("generators", self._told.has_check)
            told = meeting.exchange("generators", state if self.rank == 0 else b"", self._options.timeout_s)
        torchs, numpys, pythons = pickle.loads(told[0])
        torch.set_rng_state(torchs)
        np.random.set_state(numpys)
        random.setstate(pythons)
        if self.device.type != "cpu":
            getattr(torch, self.device.type).manual_seed(torch.initial_seed())

    def _take_over(self) -> None:
        """Replace what a loop calls by what knows of the other processes."""
        torch.Tensor.backward = _launched_backward
        torch.autograd.backward = _launched_autograd_backward
        self._draws.install()
        global_norm.install(self._group_for)
        self._hooks.append(register_optimizer_step_pre_hook(self._about_to_step))
        enter = torch.autocast.__enter__

        def entered(context: torch.autocast) -> object:
            self._first_steps.rough |= bool(context._enabled)
            return enter(context)

        torch.autocast.__enter__ = entered

    def _group_for(self, batch: Tensor) -> _Timed | None:
        """Return over whom a batch is normalised: nobody else where it is none that was cut."""
        rows = self._draws.rows
        if self._checks or rows is None or len(batch) % rows.count or len(batch) == rows.whole > rows.count:
            return None
        return _Timed(self)

    @property
    def _all(self) -> Group:
        """All processes, the one that checks too, as long as it is there."""
        return self._group if self._first_steps.is_over else self._everybody

    def _kinds(self) -> list[str]:
        return [name.rpartition("/")[2].partition(":")[0] for name in self.devices]

    # --- what is prepared ----------------------------------------------------------------------------------

    def _prepared_model(self, model: torch.nn.Module) -> torch.nn.Module:
        found = super()._prepared_model(model)
        if not self._is_alone:
            names = [name for name, _ in found.named_parameters()]
            self._manage(type(model).__name__, names, list(found.parameters()))
            self._level(found)
            self._hooks.append(found.register_forward_pre_hook(_Given(self), with_kwargs=True))
        return found

    def _prepared_optimizer(self, optimizer: Optimizer) -> Optimizer:
        if self._is_alone or optimizer in self._steps:
            return optimizer
        if isinstance(optimizer, torch.optim.SparseAdam):
            self._end_with(
                BadValueError(
                    "SparseAdam needs sparse gradients, and those of several processes travel dense",
                    remedy="take torch.optim.Adam, and Embedding without sparse=True",
                )
            )
        own = [each for group in optimizer.param_groups for each in group["params"] if id(each) not in self._known]
        if own:
            self._manage(type(optimizer).__name__, [f"parameter {number}" for number in range(len(own))], own)
        self._steps[optimizer] = 0
        self._hooks.append(optimizer.register_step_pre_hook(self._with_whole_losses))
        self._hooks.append(optimizer.register_step_post_hook(lambda one, args, options: self._stepped(one)))
        return optimizer

    def _about_to_step(self, optimizer: Optimizer, *_: object) -> None:
        _raise_if(mistakes.unprepared(optimizer, self._known))
        now = (self._exchanges, self._handed_out)
        before = self._at_step.get(optimizer, (0, 0))
        if now[0] == before[0] and now[1] > before[1]:
            _raise_if(mistakes.without_backward(optimizer))
        self._at_step[optimizer] = now

    def _with_whole_losses(self, _: Optimizer, args: tuple[Batch, ...], options: dict[str, Batch]) -> Batch:
        """Wrap the closure of an optimizer to return the loss of the whole batch: decisions rest on it."""
        places = [(args[1:], 0)] if len(args) > 1 else []
        closure = places[0][0][0] if places else options.get("closure")
        if closure is None:
            return None

        def whole() -> object:
            found = closure()
            if self._loss is None or not isinstance(found, Tensor):
                return found
            return found.detach().clone().fill_(self._loss)

        return ((args[0], whole, *args[2:]), options) if places else (args, {**options, "closure": whole})

    def _prepared_loader(self, loader: DataLoader[Batch]) -> Batch:
        self._has_loader = True
        if self._is_alone:
            return super()._prepared_loader(loader)
        table = np.zeros((self._all.world_size, 2))
        table[self._all.rank] = mistakes.loader_numbers(loader)
        with self._ended_together():
            self._all.all_reduce(table)
        _raise_if(mistakes.loaders_differ([*self.devices, "the check"][: len(table)], table.tolist()))
        return SharedLoader(loader, self)

    def _manage(self, label: str, names: list[str], parameters: list[Tensor]) -> None:
        pairs = [(name, each) for name, each in zip(names, parameters, strict=True) if id(each) not in self._known]
        _raise_if(mistakes.uninitialized(label, [each for _, each in pairs]))
        if any(each.is_complex() for _, each in pairs):
            self._end_with(
                BadValueError(
                    f"{label} has complex parameters, whose gradients cannot travel",
                    remedy="hold real and imaginary parts as two parameters",
                )
            )
        self._known.update(id(each) for _, each in pairs)
        self._managed.append(ParameterRows(label, [name for name, _ in pairs], [each for _, each in pairs]))

    def _level(self, model: torch.nn.Module) -> None:
        """Set in all processes the main one's weights."""
        with self._ended_together(), torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                host = tensor.detach().to("cpu").contiguous()
                if host.numel() and not host.is_complex():
                    sent = host.view(torch.uint8) if host.dim() else host.reshape(1).view(torch.uint8)
                    self._all.broadcast(sent.numpy(), 0)
                    if self.rank:
                        tensor.copy_(host)

    # --- batches -------------------------------------------------------------------------------------------

    @property
    def global_batch(self) -> int:
        """See `TrainingFleet.global_batch`."""
        return self._rows.whole if self._split else 0

    def begin_batches(self, source: object) -> None:
        """Record that a loader begins an epoch, before which a device may be left out."""
        if self._wanted and self._order.is_done(source) and self._summed.may_leave():
            self.shares, self._wanted = self._wanted, ()
            self._leaving = self._order.ahead + 1

    def hand_out(self, rows: Rows, shares: tuple[float, ...], source: object) -> None:
        """Record which rows of a batch the script gets next; a process that is left out ends here."""
        self._rows, self._split, self._handed = rows, True, shares
        if self._is_alone:
            return
        if any(not shares[rank] for rank in self._members):
            self._leave(shares, source)
        self._summed.handed()
        self._handed_out += 1
        self._order.handed(source, rows)
        self._has_copy = not rows.count and torch.is_grad_enabled()
        if len(self._members) > rows.whole and torch.is_grad_enabled():
            self._note(
                f"a batch of {rows.whole} for {len(self._members)} processes: who has no sample of it computes the "
                "first one with weight 0, and what the script counts of that is one too many"
            )
        if self._is_alone:
            return
        self._draws.rows = self._drawn_for(rows)
        now_s = clock.monotonic_s()
        step_s = now_s - self._handed_s
        self._last_step = step_s, step_s - self._for_others_s
        self._begun_s = self._handed_s = now_s
        self._waited_s, self._for_others_s, self._fresh = 0.0, 0.0, True
        self._throttle.restart()
        self._stepped_before, self._stepped_now = self._stepped_now, weakref.WeakSet()
        self._by_split, self._draws.folded, self._draws.dim = False, True, 0

    def _drawn_for(self, rows: Rows) -> Rows | None:
        """Return for which rows random numbers are; a process without rows has the first one."""
        if self._checks:
            return None
        return rows if rows.count else Rows(0, 1, rows.whole)

    def given(self, model: torch.nn.Module, args: Batch, options: Batch) -> None:
        """Find of which batch a prepared model is given something: the script may have fetched another one since."""
        if self._is_alone or not torch.is_grad_enabled() or not model.training:
            return
        rows = self._order.given(tensors_in((args, options)))
        if rows is not None:
            self._draws.rows = self._drawn_for(rows)

    def between_batches(self) -> None:
        """Record that what is drawn from here on is not for a part of a batch."""
        self._draws.rows = None

    def end_of_batches(self, source: object) -> None:
        """Record that an epoch is over."""
        self._order.ended(source)
        self.between_batches()

    def place(self, batch: Batch) -> Batch:
        """Return a batch on this process's device."""
        found = batch if self.device.type == "cpu" else moved_to(self.device, batch)
        if not self._is_alone:
            self._order.holds(tensors_in(found))
        return found

    def split(self, *batch: Batch, dim: int = 0) -> Batch:
        """See `TrainingFleet.split`."""
        self._check_own()
        found = batch[0] if len(batch) == 1 else batch
        if self._world == 1:
            return found
        samples = samples_in(found, dim)
        if samples is None and isinstance(found, list):
            samples = len(found)
        if samples is None:
            raise BadValueError("split() was given no tensor with rows", remedy="give a batch of tensors")
        rows = self.rows_for(self.shares, samples)
        if self._is_alone:
            self.hand_out(rows, self.shares, "split")
            return self.place(found)
        self._given = states.checksum(found)
        own = part_of(found, rows if rows.count else Rows(0, 1, rows.whole), dim) if rows.whole > 1 else found
        self.hand_out(rows, self.shares, "split")
        # Its end is not seen as that of a loader: it is where all have stepped. The next one is drawn before.
        self._by_split, self._draws.folded, self._draws.dim = True, False, dim
        return self.place(own)

    def _numbers_of_rows(self, own: Tensor) -> Tensor:
        """Return a whole number of each row of the whole batch, given those of the own rows."""
        rows = self._rows
        table = torch.zeros(rows.whole, dtype=torch.float64)
        table[rows.begin : rows.begin + rows.count] = own[: rows.count]
        with self._ended_together():
            self._all_reduce(table)
        return table.to(own.dtype)

    def rows_for(self, shares: Sequence[float], samples: int) -> Rows:
        """Return this process's rows of a batch of so many samples."""
        return Rows(0, samples, samples) if self._checks else rows_of(counts_of(shares, samples), self.rank)

    # --- gradients -----------------------------------------------------------------------------------------

    def backward(self, loss: Tensor, weight: float | None = None, **kwargs: Batch) -> None:
        """See `TrainingFleet.backward`."""
        self._check_own()
        if self._is_alone or self._is_within:  # checkpoints of activations go backwards on their way
            fleet.backward(loss, **kwargs)
            return
        if kwargs.get("create_graph"):
            self._end_with(
                BadValueError(
                    "backward(create_graph=True) would need gradients of gradients of other processes",
                    remedy="take torch.autograd.grad(..., create_graph=True) for the penalty, backward() for the sum",
                )
            )
        mistakes.check_loss(loss, kwargs.get("gradient"))
        if not self._managed:
            raise BadValueError(
                "backward() is called before anything is prepared",
                remedy="write model, optimizer, loader = fleet.prepare(model, optimizer, loader) before the loop",
            )
        self._pass(loss, weight, kwargs)

    def _pass(self, loss: Tensor, weight: float | None, options: dict[str, Batch]) -> None:
        """Do one backward pass, weighted as the loss needs it, and exchange what came of it."""
        begun_s, self._torch_s = clock.monotonic_s(), 0.0
        self._order.used()
        stashed = self._set_aside()
        self._loss = None
        self._exchanges += 1
        with hooks_held(self._managed) as hooks:
            self._syncs = not self._defers or bool(hooks)  # a hook sees the gradient of each pass
            if self._checks:
                self._back(loss, options)
            else:
                self._weighted(loss, weight, options)
        if not self._syncs:
            self._pending += self._set_aside()
        elif self._checks:
            self._add(self._pending)
            with self._ended_together():
                self._first_steps.show(self._touched(), states.drawn())
        if self._syncs:
            self._pending = []
            run_hooks(hooks)
        self._add(stashed)
        self._reductions += self._syncs
        self._order.computed()
        self._for_others_s += clock.monotonic_s() - begun_s - self._torch_s
        if not self._steps:
            self._count_down()
        self._leave_if_undivided()

    def _weighted(self, loss: Tensor, weight: float | None, options: dict[str, Batch]) -> None:
        if options.get("gradient") is not None or not loss.requires_grad:
            terms: tuple[Term, ...] = (Term("loss with a gradient", loss.grad_fn),)
        else:
            terms = terms_of(loss) if weight is None else (Term("given", loss.grad_fn, float(weight)),)
        signature = tuple(term.signature for term in terms)
        ways = list(meanings_of(terms))
        if signature in self._ways:
            ways = [self._ways[signature], *(way for way in ways if way != self._ways[signature])]
        checking = self._syncs and not self._first_steps.is_over
        if not checking or weight is not None:
            del ways[1:]
        if not checking and signature not in self._ways and not all(term.is_known for term in terms):
            self._note(f"a loss made of {_names(terms)} was not compared; taken as {' and '.join(ways[0])}")
        apart = ""
        for number, way in enumerate(ways):
            again = number + 1 < len(ways) or (checking and not self._options.strict)
            retain = bool(options.get("retain_graph")) or again
            self._run(loss, terms, way, {**options, "retain_graph": retain})
            if not self._syncs:
                self._ways.setdefault(signature, way)
                return
            with self._ended_together():
                self._reduce(loss)
                apart = self._first_steps.compare(self._touched(), last=number + 1 == len(ways)) if checking else ""
            if not apart:
                break
        if checking and not self._mixed and self._first_steps.drawn != states.drawn():
            if self._options.strict:
                self._end_with(states.draws_refused())
            self._note(f"{states.draws_refused().problem}; --no-strict goes on")
        if apart and self._options.strict:
            self._refuse(terms, apart)
        if apart:
            self._note(f"the gradients of {apart} are not those of one device, and --no-strict goes on")
            self._run(loss, terms, ways[0], options)
            with self._ended_together():
                self._reduce(loss)
        self._ways[signature] = ways[0] if apart else way
        if self._loss is not None and not loss.is_leaf and not options.get("retain_graph"):
            loss.detach().fill_(self._loss)

    def _run(self, loss: Tensor, terms: Sequence[Term], way: Sequence[Meaning], options: dict[str, Batch]) -> None:
        """Run the backward pass with each term weighted by what it means."""
        for each in self._managed:
            for parameter in each.parameters:
                parameter.grad = None
        factors = self._factors(terms, way)
        if len(set(factors)) == 1:
            seed: Tensor | None = options.pop("gradient", None)
            seed = torch.full_like(loss, factors[0]) if seed is None else seed * factors[0]
            self._factor = factors[0]
            self._back(loss, {**options, "gradient": seed})
            return
        self._factor = None
        hooks = [term.node.register_prehook(_scaling(factor)) for term, factor in zip(terms, factors, strict=True)]
        try:
            self._back(loss, options)
        finally:
            for hook in hooks:
                hook.remove()

    def _back(self, loss: Tensor, options: dict[str, Batch]) -> None:
        """Go backwards as torch does; what is called on the way is torch's own, too."""
        begun_s, waited_s = clock.monotonic_s(), self._waited_s
        self._is_within = True
        try:
            fleet.backward(loss, **options)
        finally:
            self._is_within = False
        self._torch_s += clock.monotonic_s() - begun_s - (self._waited_s - waited_s)

    def _factors(self, terms: Sequence[Term], way: Sequence[Meaning]) -> list[float]:
        """Return what each term is multiplied by in this process, so that the parts add up to the whole batch."""
        own = [term.counts(meaning) for term, meaning in zip(terms, way, strict=True)]
        rows = self._order.in_use
        none = self._split and not rows.count
        if self._order.are_several and (none or "samples" in way) and self._options.strict:
            self._end_with(
                BadValueError(
                    f"batches of which each process has other parts meet in a loss made of {_names(terms)}",
                    remedy="call backward for each of them, or give --shares equal and batches of equal size",
                )
            )
        totals = list(own)
        self._count = None
        if len(own) == 1 and own[0] == own[0] and self._split and self._syncs and not self._pending:
            # What all have counted comes with the gradients; until then they are divided by the rows of the batch.
            self._count, totals = 0.0 if none else own[0], [float(rows.whole)]
        elif any(count == count for count in own):
            counts = [0.0 if none or count != count else count for count in own]
            row = torch.tensor(counts, dtype=torch.float64)
            with self._ended_together():
                self._all_reduce(row)
            totals = row.tolist()
        share = rows.count / rows.whole if self._split else 1.0 / len(self._members)
        known: dict[str, float] = {"samples": share, "once": 1.0 / len(self._members), "sum": 0.0 if none else 1.0}
        if not self._split:
            known["sum"] = share
        return [
            known[meaning] if meaning in known else (0.0 if none or not total else count / total)
            for meaning, count, total in zip(way, own, totals, strict=True)
        ]

    def _all_reduce(self, row: Tensor) -> None:
        begun_s = clock.monotonic_s()
        self._group.all_reduce(row)
        self._waited_s += clock.monotonic_s() - begun_s

    def _reduce(self, loss: Tensor) -> None:
        """Add up the gradients over the processes; those that nobody has stay None."""
        if self._throttle.active:
            paused_s = clock.monotonic_s()
            self._throttle.pause()
            self._torch_s += clock.monotonic_s() - paused_s
        busy_s = clock.monotonic_s() - self._begun_s - self._waited_s
        self._add(self._pending)
        touched = self._touched()
        used = [float(one.grad is not None) for each in touched for one in each.parameters]
        value = float(loss.detach()) * self._factor if self._factor and loss.numel() == 1 else 0.0
        own = states.of_process(self._given, list(self._steps), self._managed, self._reductions)
        if self._mixed:  # each kind of device has a generator of its own
            own = (0.0, *own[1:])
        table = np.zeros((3 + len(own), self._world))
        table[:, self.rank] = [busy_s, *self._last_step, *own]
        header = np.array([value, self._count or 0.0, *table.reshape(-1), *used])
        rows = [each.take(dtype) for each in touched for dtype in each.dtypes]
        numbers = self._added_up(rows, header)
        each_s, steps_s, owns_s, *told = numbers[2 : 2 + table.size].reshape(table.shape).tolist()
        error = states.trouble(*([row[rank] for rank in self._members] for row in told))
        if error is not None and self._options.strict:
            self._end_with(error)
        if error is not None:
            self._note(f"{error.problem}, and --no-strict goes on")
        ratio = 1.0 if self._count is None or not numbers[1] else self._order.in_use.whole / float(numbers[1])
        flags = iter((numbers[2 + table.size :] > 0.0).tolist())
        taken = iter(rows)
        for each in touched:
            flagged = [next(flags) for _ in each.parameters]
            for _ in each.dtypes:
                each.give(next(taken), flagged, ratio)
        self._loss = float(numbers[0]) * ratio if self._factor is not None and loss.numel() == 1 else None
        self._learn(each_s, steps_s[0], owns_s[0])
        self._begun_s, self._waited_s = clock.monotonic_s(), 0.0
        self._throttle.restart()

    def _added_up(self, rows: Sequence[GradientRow], header: NDArray[np.float64]) -> NDArray[np.float64]:
        """Add rows and a header up over the processes, the header in the first row; returns that of all."""
        if not rows:
            whole = torch.from_numpy(header)
            self._group.all_reduce(whole)
            return header
        first, *others = rows
        numbers = first.added_up(self._group, header)
        for row in others:
            self._group.all_reduce(row.numbers)
        return numbers

    def _touched(self) -> list[ParameterRows]:
        return [each for each in self._managed if each.has_gradients]

    def _set_aside(self) -> list[tuple[Tensor, Tensor]]:
        """Take the gradients of earlier passes off the parameters; they are those of whole batches already."""
        found = [(one, one.grad) for each in self._managed for one in each.parameters if one.grad is not None]
        for parameter, _ in found:
            parameter.grad = None
        return found

    @staticmethod
    def _add(gradients: Sequence[tuple[Tensor, Tensor]]) -> None:
        for parameter, gradient in gradients:
            parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad.add_(gradient)

    _torch_s = 0.0
    _factor: float | None = None
    _count: float | None = None
    _loss: float | None = None
    _is_within = False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """See `TrainingFleet.no_sync`."""
        self._check_own()
        before, self._defers = self._defers, True
        try:
            yield
        finally:
            self._defers = before

    # --- the check -----------------------------------------------------------------------------------------

    def _stepped(self, optimizer: Optimizer) -> None:
        self._steps[optimizer] += 1
        self._stepped_now.add(optimizer)
        if self._by_split and not self._order.ahead and self._stepped_now >= self._stepped_before:
            self._draws.rows = None
        self._count_down()

    def _count_down(self) -> None:
        """End the check when every optimizer has done its steps."""
        if self._first_steps.is_over:
            return
        wanted = self._options.check_steps
        done = min(self._steps.values()) if self._steps else self._reductions
        if done < wanted and self._reductions < _MOST_CHECKED * wanted:
            return
        self._first_steps.is_over = True
        with self._ended_together():
            self._everybody.all_reduce(np.zeros(1))
            if self._checks or self._options.check_only:
                if self.is_main:
                    self._line.send("report", "the first steps are those of one device")
                self._line.send("done", self.rank)
                _leave_now()

    def _refuse(self, terms: Sequence[Term], where: str) -> NoReturn:
        words = (
            f"parts of a batch do not add up to the batch: the gradients of {where} differ from those of one device, "
            f"for a loss made of {_names(terms)}"
        )
        self._end_with(
            BadValueError(
                words,
                remedy="something mixes the samples of a batch, or the loss is normalised by its own batch: give "
                "fleet.backward(loss, weight=what its mean divides by), or start with --no-strict",
            )
        )

    def _note(self, words: str) -> None:
        """Notify people, once of each thing."""
        if self.is_main and words not in self._noted:
            self._noted.add(words)
            self._line.send("note", words)

    # --- shares --------------------------------------------------------------------------------------------

    def _learn(self, busy_s: Sequence[float], step_s: float, own_s: float) -> None:
        """Take in what a step took, the one before wholly; all processes do it with the same numbers."""
        if not self._fresh or not self._split or self._options.shares != "auto":
            return
        if not self._order.is_seen:
            self._note(
                "shares stay equal: the script has several batches in use at a time, and none is given to a prepared "
                "model as it came from the loader or from fleet.split"
            )
            return
        self._fresh = False
        whole = self._rows.whole
        counts = counts_of(self._handed, whole)
        before = StepTimes(self._last_counts, step_s, own_s) if self._last_counts else None
        self._last_counts = counts
        if not self._first_steps.is_over or self._leaving:
            self._last_counts = ()
            return
        if self._wanted:
            return
        better = self._learning.observed(counts, busy_s, before, may_leave=self._may_leave)
        if better is None:
            return
        shares = tuple(float(share) for share in better)
        if all(shares[rank] for rank in self._members):
            self.shares = shares
            self._say_if_slower()
        elif self._summed.may_leave():
            self.shares, self._leaving = shares, self._order.ahead + 1
        else:
            self.shares, self._wanted = tuple(float(share) for share in self._learning.shared), shares

    @property
    def _may_leave(self) -> bool:
        """Return whether a process can go without anything of it being missed."""
        source = "split" if self._by_split else next(iter(self._order.sources), None)
        return self._order.is_done(source) and (self._by_split or not self._order.ahead) and self._summed.are_safe

    def _say_if_slower(self) -> None:
        alone_s, together_s = self._learning.alone_s, self._learning.together_s
        if self._may_leave or alone_s is None or together_s is None or alone_s >= together_s * (1 - _SLOWER_FRAC):
            return
        if self._told_slower:
            return
        self._told_slower = True
        why = "has several batches in use at a time"
        if not self._summed.are_safe:
            why = "may sum up with fleet.sum or fleet.gather what each process has counted since its beginning"
        self._note(
            f"a step takes {together_s * 1e3:.3g} ms, and {self.devices[0]} alone would take about "
            f"{alone_s * 1e3:.3g} ms; the others stay, as the script {why}: start with that device alone, or see "
            "'When a second device does not pay' in the guide of hetero launch"
        )

    # --- leaving devices out -------------------------------------------------------------------------------

    @property
    def _is_alone(self) -> bool:
        return len(self._members) == 1

    def _leave(self, shares: tuple[float, ...], source: object) -> None:
        """Leave out who has no share any more; where this process is one, end it.

        Batches that the script has fetched ahead are computed by all.
        """
        if not self._order.is_done(source) or self._pending or self._defers or not self._summed.may_leave():
            return
        self._leaving -= self._leaving > 0
        if self._leaving:
            return
        before, self._members = self._members, tuple(rank for rank in self._members if shares[rank])
        if self.rank not in self._members:
            self._go()
        self._say_who_is_left_out([rank for rank in before if rank not in self._members])
        self._regroup()

    def _leave_if_undivided(self) -> None:
        """Leave the others out of a script that divides nothing, as the check has shown: each computes the same."""
        undivided = not (self._split or self._has_loader) and self._options.shares == "auto" and self._told.has_check
        if not undivided or self._reductions < _UNDIVIDED or not self._first_steps.is_over or self._is_alone:
            return
        if self.rank:
            self._go()
        self._note(f"each process computes the same, so {', '.join(self.devices[1:])} are left out")
        self._members = (0,)
        self._regroup()

    def _say_who_is_left_out(self, gone: Sequence[int]) -> None:
        learned = self._learning
        words = f"{', '.join(self.devices[rank] for rank in gone)} left out after {self._reductions} steps"
        if self._is_alone and learned.alone_s is not None and learned.together_s is not None:
            words += (
                f": a step took {learned.together_s * 1e3:.3g} ms with all, and takes {self.devices[0]} alone about "
                f"{learned.alone_s * 1e3:.3g} ms"
            )
        self._note(words)

    def _regroup(self) -> None:
        """Go on with the members that are left; alone as torch does without hetero."""
        self._group.close()
        mine, world = self._members.index(self.rank), len(self._members)
        if not self._is_alone:
            self._group = Group(mine, world, _Meeting(self._line, f"members {self._members}", mine, world))
            self._group.deadline_s = self._options.timeout_s
            return
        self._group = Group(0, 1)
        torch.Tensor.backward = fleet.backward
        torch.autograd.backward = _autograd_backward
        self._draws.uninstall()
        self._draws.rows = None
        global_norm.uninstall()
        for hook in self._hooks:
            hook.remove()

    def _go(self) -> NoReturn:
        """End this process: the others go on without it."""
        self._line.send("done", self.rank)
        _leave_now()

    # --- other things that all do --------------------------------------------------------------------------

    def gather(self, rows: Batch) -> Batch:
        """See `TrainingFleet.gather`."""
        self._check_own()
        self._summed.called()
        if self._checks or self._is_alone:
            return super().gather(rows)
        with self._ended_together():
            return map_tensors(self._gathered, rows)

    def _gathered(self, rows: Tensor) -> Tensor:
        own = torch.as_tensor(rows).detach().to("cpu")
        counts = np.zeros(self._world, dtype=np.int64)
        counts[self.rank] = 0 if self._has_copy and len(own) == 1 else len(own)
        self._group.all_reduce(counts)
        begin = int(counts[: self.rank].sum())
        sent = own.to(torch.float64 if own.is_floating_point() else torch.int64)
        whole = torch.zeros((int(counts.sum()), *own.shape[1:]), dtype=sent.dtype)
        whole[begin : begin + int(counts[self.rank])] = sent[: int(counts[self.rank])]
        self._group.all_reduce(whole)
        found = whole.to(own.dtype)
        return found.to(rows.device) if isinstance(rows, Tensor) else found.numpy()

    def sum(self, value: object) -> Tensor:
        """See `TrainingFleet.sum`."""
        self._check_own()
        given = torch.as_tensor(value).detach()
        self._exchanges += 1
        self._summed.called()
        if self._checks or self._is_alone:
            return given
        row = given.to("cpu", torch.float64 if given.is_floating_point() else torch.int64, copy=True).reshape(-1)
        with self._ended_together():
            self._group.all_reduce(row)
        return row.reshape(given.shape).to(given.device, given.dtype)

    def wait(self) -> None:
        """See `TrainingFleet.wait`."""
        self._check_own()
        if not self._is_alone:
            with self._ended_together():
                self._all.all_reduce(np.zeros(1))

    # --- the end -------------------------------------------------------------------------------------------

    @contextmanager
    def _ended_together(self) -> Iterator[None]:
        """End all processes where one does not come: the launching program knows whose fault it is."""
        try:
            yield
        except DisagreementError as error:
            self._report("broken", f"{_DIFFERENT}: {error.problem}")
            raise
        except (GroupBrokenError, LineClosedError) as error:
            self._report("broken", str(error))
            raise TrainingError(str(error)) from None

    def _end_with(self, error: HeteroError) -> NoReturn:
        self._report("refused", str(error))
        raise error

    def _show_error(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Show what has ended the script: one line where hetero refused something, else as Python does."""
        words = mistakes.last_words(error, trace) if self.is_own else None
        if words is None and self._split and not self._rows.count and not self._has_copy and not self._is_alone:
            self._line.send(
                "note",
                f"{self.devices[self.rank]} has no sample of a batch of {self._rows.whole} and got an empty one: where "
                "the script cannot take that, give drop_last=True or another batch size",
            )
        if words is None:
            self._shown_before(kind, error, trace)
            return
        if self._checks:
            clock.sleep(_LET_OTHERS_SAY_S)
        self._report("refused", f"{'the check' if self._checks else self.devices[self.rank]}: {words}")

    def _report(self, word: str, text: str) -> None:
        try:
            self._line.send(word, self.rank, text)
        except LineClosedError:
            return
        sys.stdout.flush()
        clock.sleep(_END_S)

    def _close(self) -> None:
        if not self.is_own:
            return
        for group in (self._group, self._everybody):
            group.close()
        self._line.close()


class _Given:
    """A hook of prepared models, whose copies and files have it not."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def __call__(self, model: torch.nn.Module, args: Batch, options: Batch) -> None:
        self._member.given(model, args, options)

    def __deepcopy__(self, memo: object) -> Callable[..., None]:
        return nullcontext().__exit__

    def __reduce__(self) -> tuple[object, ...]:
        return getattr, (nullcontext(), "__exit__")


class _Timed:
    """The group as the layers see it that exchange in the forward pass; that counts as waiting."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self.rank = member._members.index(member.rank)
        self.world_size = len(member._members)
        self.has_rows = not member._split or member._order.in_use.count > 0

    def all_reduce(self, row: Tensor) -> None:
        """Add a row up over the processes; one without rows of the batch has nothing to add."""
        if not self.has_rows:
            row.zero_()
        with self._member._ended_together():
            self._member._all_reduce(row)


def _raise_if(error: HeteroError | None) -> None:
    if error is not None:
        raise error


def _names(terms: Sequence[Term]) -> str:
    return ", ".join(term.name.replace("Backward0", "").replace("Backward1", "") for term in terms)


def _scaling(factor: float) -> Callable[[Sequence[Tensor | None]], tuple[Tensor | None, ...]]:
    return lambda gradients: tuple(None if each is None else each * factor for each in gradients)


def _launched_backward(
    self: Tensor,
    gradient: object = None,
    retain_graph: object = None,
    create_graph: bool = False,
    inputs: object = None,
) -> None:
    options = {"gradient": gradient, "retain_graph": retain_graph, "create_graph": create_graph, "inputs": inputs}
    fleet.init().backward(self, None, **options)


def _launched_autograd_backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Tensor | Sequence[Tensor] | None = None,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Stand in for `torch.autograd.backward`, by which torch's own method of tensors goes, too."""
    member = fleet.init()
    if sys._getframe(1).f_code is fleet.backward.__code__ or (isinstance(member, Member) and member._is_within):
        _autograd_backward(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
        return
    first, *others = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    given = grad_tensors if grad_tensors is not None else grad_variables
    if given is not None and others:
        raise BadValueError(
            "torch.autograd.backward was given several tensors with gradients of their own",
            remedy="call backward(gradient) of each",
        )
    gradient = given if given is None or isinstance(given, Tensor) else next(iter(given))
    sum(others, first).backward(gradient, retain_graph, create_graph, inputs)


def _leave_now() -> NoReturn:
    """End this process without what the script does at its end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
