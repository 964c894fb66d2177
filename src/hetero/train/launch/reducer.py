"""Gradients in the user's own loop: the parts of a batch weighted as the loss means them, and added up.

In: a loss of the own rows. Out: gradients of the whole batch, compared in the first steps with those of one device.
It must not choose rows, and knows nothing of loaders.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from hetero.floor.errors import BadValueError
from hetero.train.launch import fleet
from hetero.train.launch import process_states as states
from hetero.train.launch import script_mistakes as mistakes
from hetero.train.launch.draw_log import MOST_DRAWS
from hetero.train.launch.host_processes import LaunchOptions
from hetero.train.launch.loss_terms import (
    MOST_TERMS,
    Meaning,
    Term,
    choices_of,
    common_factor,
    meanings_of,
    parts_of,
    terms_of,
)
from hetero.train.launch.parameter_rows import FirstSteps, ParameterRows, add_up, hooks_held, run_hooks
from hetero.train.launch.process_group import ProcessGroup
from hetero.train.launch.shared_batches import SharedBatches, StepClock
from hetero.train.launch.shared_loader import Batch
from hetero.train.launch.step_agreement import StepAgreement, StepTable
from hetero.train.values import TrainingError

__all__ = ["Reducer"]

_MOST_CHECKED = 64
_IDLE = 4
"""After how many times the steps to be compared an optimizer that has not stepped is waited for no longer."""
_ALL_COMPARED = 16
_CHOICES_CLOSE = 1e-6
_COUNTS_CLOSE = {torch.float64: 1e-10, torch.float32: 1e-6}
_COUNTS_ROUGH = 1e-2
_ALIKE = {torch.float64: 1e-6, torch.float32: 1e-4}
_ALIKE_ROUGH = 3e-2
"""By how much the loss of the same rows differs between processes at most, relative to it."""
_NOTHING = 1e-300
"""By what counts what counts nothing, so that sums of counts are not zero."""


class Reducer:
    """Makes of a backward pass over the own rows one over the whole batch.

    Parameters
    ----------
    processes
        Those that have the other rows.
    batches
        Which rows this process has.
    options
        Whether what mixes samples is refused, and for how many steps it is looked for.
    step_clock
        What measures the steps.

    Attributes
    ----------
    first_steps
        The comparison with one device.
    steps
        Of each prepared optimizer.
    models
        Those that are prepared, whose buffers are compared with one device before the first step.
    known
        The `id` of each parameter whose gradients are reduced.
    exchanges
        Backward passes so far, and sums that the script has asked for.
    loss
        Of the whole batch, in the last pass; None where it is not known.
    passes_of_attempt
        Backward passes since `remember`.
    agreement
        What the processes must have alike in a step.
    is_within
        Whether a pass is on its way, in which whatever goes backwards is torch's own.
    """

    def __init__(
        self, processes: ProcessGroup, batches: SharedBatches, options: LaunchOptions, step_clock: StepClock
    ) -> None:
        self._processes = processes
        self._batches = batches
        self._options = options
        self._clock = step_clock
        told = 2 * MOST_TERMS + processes.world + MOST_DRAWS
        self.first_steps = FirstSteps(processes.everybody, told, rough=processes.is_mixed)
        self.steps: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._compared: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._new = ""
        self._trainings, self._passes_before = 1, 0
        batches.compare_anew = self._compare_anew
        self.known: set[int] = set()
        self.models: list[torch.nn.Module] = []
        self._has_stepped = False
        self.exchanges = 0
        self.loss: float | None = None
        self.is_within = False
        self._managed: list[ParameterRows] = []
        self.agreement = StepAgreement(processes, batches, options)
        self._last_terms: tuple[Term, ...] = ()
        self._parts: list[tuple[Tensor | None, tuple[int, ...]]] = []
        self._whole_parts: list[float] = []
        self._read_later: list[tuple[Tensor, float]] = []
        self._factors_now: tuple[Sequence[float], Sequence[Meaning]] = (), ()
        self._ways: dict[tuple[str, ...], tuple[Meaning, ...]] = {}
        self._pending: list[tuple[Tensor, Tensor]] = []
        self._syncs = True
        self._defers = False
        self._factor: float | None = None
        self._count: float | None = None
        self._stashed: list[tuple[Tensor, Tensor]] | None = None
        self._remembered: tuple[int, dict[Optimizer, int]] = (0, {})
        self.passes_of_attempt = 0
        self._totals: list[float] = []

    def manage(self, label: str, names: Sequence[str], parameters: Sequence[Tensor], *, compares: bool = True) -> None:
        """Reduce the gradients of parameters, those that are new, from now on.

        Parameters
        ----------
        compares
            Whether the first steps with them are to be compared with one device.
        """
        pairs = [(name, each) for name, each in zip(names, parameters, strict=True) if id(each) not in self.known]
        mistakes.raise_if(mistakes.uninitialized(label, [each for _, each in pairs]))
        if any(each.is_complex() for _, each in pairs):
            self._processes.end_with(
                BadValueError(
                    f"{label} has complex parameters, whose gradients cannot travel",
                    remedy="hold real and imaginary parts as two parameters",
                )
            )
        self.known.update(id(each) for _, each in pairs)
        if pairs and compares:
            self._is_new(label)
        self._managed.append(ParameterRows(label, [name for name, _ in pairs], [each for _, each in pairs]))

    def add(self, optimizer: Optimizer) -> None:
        """Count the steps of an optimizer from now on, and compare its first ones."""
        self.steps[optimizer] = 0
        self._compared.add(optimizer)
        self._is_new(type(optimizer).__name__)

    def _is_new(self, label: str) -> None:
        """Record that something is trained from now on that was not there in the steps that were compared."""
        compares = self._options.check_steps > 0 and not self._processes.has_check and not self._processes.is_alone
        if self.exchanges and compares:
            self._new = self._new or label

    def _compare_anew(self, known: Collection[object]) -> None:
        """Compare the next steps with one device, as the first ones were, where something new is trained."""
        if not self._new or self._processes.has_check:
            return
        label, self._new = self._new, ""
        self._trainings += 1
        if self._trainings > _ALL_COMPARED and self._trainings & (self._trainings - 1):
            self._processes.note(
                f"of more than {_ALL_COMPARED} trainings in a script, only number 32, 64, 128 and so on are compared "
                "with one device"
            )
        elif self._processes.begin_check(known):
            self.first_steps.group = self._processes.everybody
            self._has_stepped, self._batches.draws.log.is_compared = False, True
            self._passes_before = self._batches.passes
        else:
            self._processes.note(
                f"{label} is prepared after the steps that are compared with one device, and is not compared, as that "
                "takes a second process on a CPU under Linux, without threads or processes of the script: "
                "--check-steps with as many steps as come before it, and two more, does that"
            )

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep the gradients of the passes in here until the first one outside."""
        before, self._defers = self._defers, True
        self._batches.has_unsynced = True
        try:
            yield
        finally:
            self._defers = before
            self._batches.has_unsynced = before or bool(self._pending)

    def holds_back(self, optimizer: Optimizer) -> bool:
        """Return whether gradients of passes in `no_sync` are still to be exchanged for what an optimizer steps."""
        if not self._pending:
            return False
        held = {id(parameter) for parameter, _ in self._pending}
        return any(id(each) in held for group in optimizer.param_groups for each in group["params"])

    # --- when a process is lost ----------------------------------------------------------------------------

    def remember(self) -> None:
        """Record where an attempt at a step begins."""
        self._remembered = self.exchanges, dict(self.steps)
        self._stashed, self.passes_of_attempt = None, 0

    def begin_again(self) -> None:
        """Go back to where the attempt began; gradients of earlier steps are back, and those of this one gone."""
        self.exchanges, steps = self._remembered
        for optimizer, number in steps.items():
            self.steps[optimizer] = number
        if self._stashed is not None:
            self._set_aside()
            for parameter, gradient in self._stashed:
                parameter.grad = gradient
        self._pending, self._stashed, self.passes_of_attempt = [], None, 0

    # --- one backward pass ---------------------------------------------------------------------------------

    def backward(self, loss: Tensor, weight: float | None, options: dict[str, Batch]) -> None:
        """Do one backward pass, weighted as the loss needs it, and exchange what came of it.

        Parameters
        ----------
        weight
            What the mean of the loss divides by in this process; None finds it out.
        options
            As for `torch.Tensor.backward`.
        """
        if options.get("create_graph"):
            self._processes.end_with(
                BadValueError(
                    "backward(create_graph=True) would need gradients of gradients of other processes",
                    remedy="take torch.autograd.grad(..., create_graph=True) for the penalty, backward() for the sum",
                )
            )
        mistakes.check_loss(loss, options.get("gradient"))
        if not self._managed:
            raise BadValueError(
                "backward() is called before anything is prepared",
                remedy="write model, optimizer, loader = fleet.prepare(model, optimizer, loader) before the loop",
            )
        if self._batches.is_stale and self._batches.is_divided:
            self._processes.end_with(
                TrainingError(
                    "a process was lost that had rows of this batch, and nobody has them",
                    remedy="give the batch to fleet.step with the function that computes it",
                )
            )
        with self._clock.in_backward():
            self._pass(loss, weight, options)
        if not self._compared:
            self._count_down()
        self._batches.leave_if_undivided()

    def _pass(self, loss: Tensor, weight: float | None, options: dict[str, Batch]) -> None:
        self._batches.order.used()
        stashed = self._set_aside()
        if self._stashed is None:
            self._stashed = stashed
        self.passes_of_attempt += 1
        self.loss = None
        self.exchanges += 1
        counts = _counts_of(_terms(loss, weight, options)) if self._processes.checks else []
        with hooks_held(self._managed) as hooks:
            # A hook sees the gradient of each pass, and what is not exchanged is lost with a process.
            self._syncs = not self._defers or bool(hooks) or self._processes.is_recovering
            if self._processes.checks:
                self._back(loss, options)
            else:
                self._weighted(loss, weight, options)
            if self._syncs and not self._processes.checks:
                self._processes.commit()
        if not self._syncs:
            self._pending += self._set_aside()
        elif self._processes.checks:
            self._add(self._pending)
            with self._processes.ended_together():
                told = [*counts, *self._batches.checksums, *self._batches.draws.log.codes]
                self.first_steps.show(self._touched(), states.drawn(), told)
                if not self._has_stepped:
                    self.first_steps.show_buffers(self.models)
        if self._syncs:
            self._pending = []
            self._batches.draws.log.begin()
            run_hooks(hooks)
        self._add(stashed)
        self._batches.has_unsynced = self._defers or bool(self._pending)
        self._batches.computed(is_synced=self._syncs)

    def _weighted(self, loss: Tensor, weight: float | None, options: dict[str, Batch]) -> None:
        if self._new:
            self._processes.note(
                f"{self._new} is prepared after the steps that are compared with one device, and its first ones "
                "are not compared: a comparison begins with a loop over a prepared loader, or with fleet.split"
            )
        for drawn in self._batches.draws.log.new:
            self._processes.note(
                f"{drawn} was not there in the steps that were compared with one device: that it is drawn for the rows "
                "of the whole batch is not known"
            )
        self._batches.draws.log.new.clear()
        terms = _terms(loss, weight, options)
        self._last_terms = terms
        signature = tuple(term.signature for term in terms)
        ways = list(meanings_of(terms))
        if signature in self._ways:
            ways = [self._ways[signature], *(way for way in ways if way != self._ways[signature])]
        checking = self._syncs and self._processes.has_check
        if not checking or weight is not None:
            del ways[1:]
        if not checking and signature not in self._ways and not all(term.is_known for term in terms):
            self._guess(terms, ways[0], "may be a mean or a sum over the batch")
        sums = sum(term.meanings[0] == "sum" for term in terms)
        if sums > 1 and signature not in self._ways and self._batches.is_divided and not self._processes.has_check:
            self._guess(terms, ways[0], "may add up sums over the batch and over data that no process has cut")
        if weight is None and self._batches.is_divided and self._batches.in_use.whole > 1:
            self._refuse_choices(terms)
        self.agreement.look_at(loss, terms)
        self._parts = parts_of(loss) if loss.numel() == 1 and loss.grad_fn is not None else []
        apart = ""
        for number, way in enumerate(ways):
            again = number + 1 < len(ways) or (checking and not self._options.strict)
            retain = bool(options.get("retain_graph")) or again
            self._run(loss, terms, way, {**options, "retain_graph": retain})
            if not self._syncs:
                self._add_up_loss(loss)
                break
            with self._processes.ended_together():
                self._reduce(loss)
                last = number + 1 == len(ways)
                apart = self.first_steps.compare(self._touched(), loss.dtype, last=last) if checking else ""
            if not apart:
                break
        if checking and not self._processes.is_mixed and self.first_steps.drawn != states.drawn():
            if self._options.strict:
                self.agreement.refuse_draws([self.first_steps.counts[2 * MOST_TERMS + self._processes.world :]])
            self._processes.note(f"{states.draws_refused().problem}; --no-strict goes on")
        if checking and not apart and weight is None and self._batches.is_divided:
            self._compare_counts(terms, way, loss)
        if checking and not self._has_stepped:
            with self._processes.ended_together():
                buffer = self.first_steps.compare_buffers(self.models)
                differ = torch.tensor([float(bool(buffer))], dtype=torch.float64)
                self._processes.all_reduce(differ)
            if differ:
                self._refuse_buffer(buffer)
        if apart and self._options.strict:
            self._refuse(terms, apart)
        if apart:
            self._processes.note(f"the gradients of {apart} are not those of one device, and --no-strict goes on")
            self._run(loss, terms, ways[0], options)
            with self._processes.ended_together():
                self._reduce(loss)
        self._ways[signature] = ways[0] if apart else way
        if self._factor is None and loss.numel() == 1:
            self._processes.note(
                f"after backward, loss.item() of a loss made of {_names(terms)} is that of the own rows: what its "
                "terms are for the whole batch cannot be told from their sum"
            )
        if self.loss is not None and not loss.is_leaf:
            self._read_later.append((loss, self.loss))
        self._make_whole(is_kept=bool(options.get("retain_graph")))

    def _add_up_loss(self, loss: Tensor) -> None:
        """Add up the loss and its parts over the processes, where the gradients are kept for a later pass."""
        is_known = self._factor is not None and loss.numel() == 1
        value = float(loss.detach()) * self._factor if self._factor and is_known else 0.0
        row = torch.tensor([value, float(not is_known), *self._parts_told()], dtype=torch.float64)
        with self._processes.ended_together():
            self._processes.all_reduce(row)
        whole, unknown, *self._whole_parts = row.tolist()
        self.loss = None if unknown else whole

    def _make_whole(self, *, is_kept: bool) -> None:
        """Set the last loss, and the parts that it was made of, to what they are for the whole batch.

        Parameters
        ----------
        is_kept
            Whether the graph is, which may need the numbers as they are: then they change with a later pass or step.
        """
        for (part, _), whole in zip(self._parts, self._whole_parts, strict=False):
            if part is not None and whole == whole:
                self._read_later.append((part, whole))
        if any(part is not None for part, _ in self._parts[MOST_TERMS:]) or any(
            part is not None and whole != whole
            for (part, _), whole in zip(self._parts, self._whole_parts, strict=False)
        ):
            self._processes.note(
                "after backward, item() of a number that a loss is made of is that of the own rows: what it is for the "
                "whole batch cannot be told, as it is a sum of terms that count differently"
            )
        self._parts = []
        if not is_kept:
            self._set_whole()

    def _set_whole(self) -> None:
        for each, whole in self._read_later:
            each.detach().fill_(whole)
        self._read_later = []

    def _parts_told(self) -> list[float]:
        """Return what the parts of the loss add to those of the whole batch; NaN where that is unknown."""
        told = [math.nan] * MOST_TERMS
        factors, way = self._factors_now
        for place, (part, terms) in enumerate(self._parts[:MOST_TERMS]):
            made_of = [0] if terms and len(way) == 1 else terms
            factor = common_factor([factors[each] for each in made_of], [way[each] for each in made_of])
            if part is not None and factor is not None:
                told[place] = float(part.detach()) * factor if factor else 0.0
        return told

    def _guess(self, terms: Sequence[Term], way: Sequence[Meaning], doubt: str) -> None:
        """Refuse a loss that may mean two things, and comes after the steps that would have shown which it is."""
        if self._options.strict and self._options.check_steps > 0 and not self._processes.has_check:
            self._processes.end_with(
                BadValueError(
                    f"a loss made of {_names(terms)} {doubt}, and was not there in the steps that were compared with "
                    "one device",
                    remedy="give fleet.backward(loss, weight=what its mean divides by), compare more steps with "
                    "--check-steps, or start with --no-strict",
                )
            )
        self._processes.note(f"a loss made of {_names(terms)} was not compared; taken as {' and '.join(way)}")

    def _run(self, loss: Tensor, terms: Sequence[Term], way: Sequence[Meaning], options: dict[str, Batch]) -> None:
        """Run the backward pass with each term weighted by what it means."""
        for each in self._managed:
            for parameter in each.parameters:
                parameter.grad = None
        factors = self._factors(terms, way, loss)
        self._factors_now, self._factor = (factors, way), common_factor(factors, way)
        if len(set(factors)) == 1 and (factors[0] or terms[0].node is None):
            seed: Tensor | None = options.pop("gradient", None)
            seed = torch.full_like(loss, factors[0]) if seed is None else seed * factors[0]
            self._back(loss, {**options, "gradient": seed})
            return
        hooks = [term.node.register_prehook(_scaling(factor)) for term, factor in zip(terms, factors, strict=True)]
        try:
            self._back(loss, options)
        finally:
            for hook in hooks:
                hook.remove()

    def _back(self, loss: Tensor, options: dict[str, Batch]) -> None:
        """Go backwards as torch does; what is called on the way is torch's own, too."""
        self.is_within = True
        try:
            with self._clock.own_work():
                fleet.backward(loss, **options)
        finally:
            self.is_within = False

    def counts_for(self, value: Tensor) -> dict[tuple[Meaning, ...], float]:
        """Return by what a number of the own rows counts in that of the whole batch, 0 where numbers are added.

        For each thing that it may mean, the likeliest first. A number without a graph is taken for a mean over rows; so
        is one of several terms that count differently.
        """
        terms = self._terms_now(value)
        known = self._ways.get(tuple(term.signature for term in terms))
        ways = [known] if known is not None else list(meanings_of(terms))[: None if len(terms) == 1 else 1]
        return {way: self._count_of(terms, way) for way in ways}

    def _terms_now(self, value: Tensor) -> tuple[Term, ...]:
        """Return what a number is made of, also after the backward pass that has freed its graph; () if unknown."""
        if not value.requires_grad:
            return ()
        try:
            return terms_of(value)
        except RuntimeError:
            return tuple(term for term in self._last_terms if term.node is value.grad_fn)

    def learn_way(self, value: Tensor, way: tuple[Meaning, ...]) -> None:
        """Record what a number means, as the whole batch has shown."""
        if value.requires_grad and float(value.detach()):
            self._ways.setdefault(tuple(term.signature for term in self._terms_now(value)), way)

    def _count_of(self, terms: Sequence[Term], way: Sequence[Meaning]) -> float:
        none = self._batches.has_none
        if terms and all(meaning == "sum" for meaning in way):
            return 0.0
        if len(terms) == 1 and way[0] == "once":
            return 1.0
        if len(terms) != 1 or way[0] not in ("mean", "divided"):
            return max(0.0 if none else float(self._batches.in_use.count), _NOTHING)
        return max(0.0 if none else terms[0].counts(way[0]), _NOTHING)

    def _factors(self, terms: Sequence[Term], way: Sequence[Meaning], loss: Tensor) -> list[float]:
        """Return what each term is multiplied by in this process, so that the parts add up to the whole batch."""
        own = [term.counts(meaning) for term, meaning in zip(terms, way, strict=True)]
        if way == ("divided",) and own[0] <= 1.0 and loss.numel() == 1 and not float(loss.detach()):
            own = [0.0]
            self._processes.note(
                f"{self._processes.devices[self._processes.rank]}: a loss of 0 that is divided by at most 1 is taken "
                "for that of no row, as with clamp(min=1); fleet.backward(loss, weight=n) says what it is divided by",
                of_each=True,
            )
        rows, is_divided, none = self._batches.in_use, self._batches.is_divided, self._batches.has_none
        if self._batches.order.are_several and (none or "samples" in way) and self._options.strict:
            self._processes.end_with(
                BadValueError(
                    f"batches of which each process has other parts meet in a loss made of {_names(terms)}",
                    remedy="call backward for each of them, or give --shares equal and batches of equal size",
                )
            )
        if is_divided and self._may_be_whole(terms, way):
            if self._is_same_in_all(loss):
                is_divided = none = False
            elif len(way) == 1:
                way = ["sum"]
        totals = list(own)
        self._count, self._totals = None, []
        if len(own) == 1 and own[0] == own[0] and is_divided and self._syncs and not self._pending:
            # What all have counted comes with the gradients; until then they are divided by the rows of the batch.
            self._count, totals = 0.0 if none else own[0], [float(rows.whole)]
        elif any(count == count for count in own):
            counts = [0.0 if none or count != count else count for count in own]
            row = torch.tensor(counts, dtype=torch.float64)
            with self._processes.ended_together():
                self._processes.all_reduce(row)
            totals = self._totals = row.tolist()
        once = 1.0 / len(self._processes.members)
        share = rows.count / rows.whole if is_divided else once
        known: dict[str, float] = {"samples": share, "once": once, "sum": 0.0 if none else 1.0}
        if not is_divided:
            known["sum"] = share
        return [
            known[meaning] if meaning in known else (0.0 if none or not total else count / total)
            for meaning, count, total in zip(way, own, totals, strict=True)
        ]

    def _may_be_whole(self, terms: Sequence[Term], way: Sequence[Meaning]) -> bool:
        """Return whether a loss has a sum that counts otherwise where it is of data that nobody has cut."""
        is_known = self._processes.has_check or self._batches.order.is_given
        sums = [term.meanings[0] == "sum" for term in terms]
        return not is_known and ("sum" in way or (len(terms) == 1 and sums[0] and way[0] == "once"))

    def _is_same_in_all(self, loss: Tensor) -> bool:
        """Return whether all processes have computed the same loss, to the last bit: of the same data, then."""
        table = torch.zeros(self._processes.world, dtype=torch.float64)
        table[self._processes.rank] = float(loss.detach()) if loss.numel() == 1 else math.nan
        with self._processes.ended_together():
            self._processes.all_reduce(table)
        found = {float(table[rank]) for rank in self._processes.members}
        return len(found) == 1 and found != {0.0}

    def _compare_counts(self, terms: Sequence[Term], way: Sequence[Meaning], loss: Tensor) -> None:
        """Refuse what is divided by more, or less, in the parts than in the whole batch, however little."""
        whole = self.first_steps.counts
        closeness = _COUNTS_CLOSE.get(loss.dtype, _COUNTS_ROUGH)
        for number, (meaning, total) in enumerate(zip(way, self._totals, strict=False)):
            expected = whole[number + MOST_TERMS * (meaning == "divided")]
            if meaning not in ("mean", "divided") or expected != expected or self._batches.order.are_several:
                continue
            alike = expected * len(self._processes.members)  # what is divided by a constant counts once
            if min(abs(total - expected), abs(total - alike)) <= closeness * abs(expected):
                continue
            error = BadValueError(
                f"{_names(terms[number : number + 1])} is divided by {expected:.12g} for the whole batch, and by "
                f"{total:.12g} in the parts together, as with a guard such as + 1e-6 or clamp(min=1)",
                remedy="give fleet.backward(loss, weight=n), n being the number without the guard",
            )
            if self._options.strict:
                self._refuse_data()
                self._processes.end_with(error)
            self._processes.note(f"{error.problem}, and --no-strict goes on")

    # --- the exchange --------------------------------------------------------------------------------------

    def _reduce(self, loss: Tensor) -> None:
        """Add up the gradients over the processes; those that nobody has stay None."""
        busy_s = self._clock.busy_s()
        self._add(self._pending)
        touched = self._touched()
        value = float(loss.detach()) * self._factor if self._factor and loss.numel() == 1 else 0.0
        unknown = float(self._factor is None or loss.numel() != 1)
        own = float(loss.detach()) if loss.numel() == 1 else 0.0
        times = busy_s, *self._clock.last_step
        table = self.agreement.table(times, own, self._count or 0.0, self._managed)
        close = _ALIKE_ROUGH if self.first_steps.rough else _ALIKE.get(loss.dtype, _ALIKE_ROUGH)
        first = 3 + MOST_TERMS
        numbers = np.array([value, self._count or 0.0, unknown, *self._parts_told(), *table.reshape(-1)])
        ratio, told = 1.0, StepTable(*table.tolist())

        def hear(summed: NDArray[np.float64]) -> float:
            nonlocal numbers, ratio, told
            numbers = summed
            told = self.agreement.check(summed[first:].reshape(table.shape), close)
            if self._count is not None and summed[1]:
                ratio = self._batches.in_use.whole / float(summed[1])
            return ratio

        add_up(touched, self._processes.members_group, numbers, hear, whole_rows=self._processes.has_check)
        if self._count is not None:
            self._totals = [float(numbers[1])]
        is_of_none = self._count is not None and not numbers[1]
        self.loss = None if numbers[2] or is_of_none else float(numbers[0]) * ratio
        self._whole_parts = [] if is_of_none else (numbers[3:first] * ratio).tolist()
        main = self._processes.members[0]
        self._batches.learn(told.busy_s, told.step_s[main], told.own_s[main])
        self._clock.exchanged(told.busy_s, self.loss)

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

    # --- the check -----------------------------------------------------------------------------------------

    def stepped(self, optimizer: Optimizer) -> None:
        """Record that an optimizer has stepped."""
        self._set_whole()
        self.steps[optimizer] += 1
        self._has_stepped = True
        self.agreement.stepped(optimizer)
        self._batches.stepped(optimizer)
        self._count_down()

    def _count_down(self) -> None:
        """End the check when every optimizer has done its steps."""
        if not self._processes.has_check:
            return
        wanted, passes = self._options.check_steps, self._batches.passes - self._passes_before
        idle = [each for each in self._compared if not self.steps[each]]
        if idle and max(self.steps[each] for each in self._compared) >= _IDLE * wanted:
            names = ", ".join(sorted(type(each).__name__ for each in idle))
            self._processes.note(
                f"{names} is prepared and has not stepped: its first steps are not compared with one device"
            )
            self._compared -= set(idle)
        done = min((self.steps[each] for each in self._compared), default=passes)
        if done >= wanted or passes >= _MOST_CHECKED * wanted:
            self._compared.clear()
            self._batches.draws.log.is_compared = False
            self._processes.dismiss_check(ends=self._options.check_only)

    def _refuse_choices(self, terms: Sequence[Term]) -> None:
        """End all processes where each chooses between pieces of a loss by its own rows, as by the sign of a mean."""
        chosen = choices_of(terms)
        if not chosen:
            return
        table = torch.zeros(self._processes.world, len(chosen) + 1, dtype=torch.float64)
        if not self._batches.has_none:
            table[self._processes.rank] = torch.tensor([*chosen, 1.0], dtype=torch.float64)
        with self._processes.ended_together():
            self._processes.all_reduce(table)
        each = table[table[:, -1] > 0]
        if torch.allclose(each, each[:1].expand_as(each), rtol=_CHOICES_CLOSE, atol=0.0, equal_nan=True):
            return
        error = BadValueError(
            f"a loss made of {_names(terms)} chooses by the own rows, as abs(), clamp() and max() of a mean do, and "
            "not by the whole batch",
            remedy="choose by what all processes know: fleet.sum(mean.detach() * len(rows)) / fleet.global_batch",
        )
        if self._options.strict:
            self._processes.end_with(error)
        self._processes.note(f"{error.problem}; --no-strict goes on")

    def _refuse_buffer(self, name: str) -> None:
        """End all processes, as the own rows have made another buffer than the whole batch has, here or elsewhere."""
        error = BadValueError(
            f"a buffer is that of a part of a batch, and not that of one device: {name or 'one of another process'}",
            remedy="make it of fleet.sum or fleet.gather, take a layer without it (track_running_stats=False), or "
            "start with --no-strict",
        )
        if self._options.strict:
            self._refuse_data()
            (self._processes.end_with if name else self._processes.end_after_others)(error)
        self._processes.note(f"{error.problem}, and --no-strict goes on")

    def _refuse_data(self) -> None:
        """End all processes where one has other rows of the batch than the process that checks has for it."""
        processes, rank = self._processes, self._processes.rank
        mine, theirs = self._batches.checksums[rank], self.first_steps.counts[2 * MOST_TERMS + rank]
        told = processes.told_by_members("rows", b"1" if mine and theirs and mine != theirs else b"")
        if any(told):
            names = [processes.devices[each] for each in processes.members]
            processes.end_with(mistakes.data_differs(names, list(map(bool, told))))

    def _refuse(self, terms: Sequence[Term], where: str) -> NoReturn:
        self._refuse_data()
        words = (
            f"parts of a batch do not add up to the batch: the gradients of {where} differ from those of one device, "
            f"for a loss made of {_names(terms)}"
        )
        self._processes.end_with(
            BadValueError(
                words,
                remedy="something mixes the samples of a batch, or the loss is normalised by its own batch: give "
                "fleet.backward(loss, weight=what its mean divides by), or start with --no-strict",
            )
        )


def _terms(loss: Tensor, weight: float | None, options: dict[str, Batch]) -> tuple[Term, ...]:
    """Return what a loss is made of, as far as that matters."""
    if options.get("gradient") is not None or not loss.requires_grad:
        return (Term("loss with a gradient", loss.grad_fn),)
    return terms_of(loss) if weight is None else (Term("given", loss.grad_fn, float(weight)),)


def _counts_of(terms: Sequence[Term]) -> list[float]:
    """Return by what terms are divided, a place for each that there may be."""
    none = [math.nan] * (MOST_TERMS - len(terms))
    return [*(each.weight for each in terms), *none, *(each.divisor for each in terms), *none]


def _names(terms: Sequence[Term]) -> str:
    return ", ".join(term.name.replace("Backward0", "").replace("Backward1", "") for term in terms)


def _scaling(factor: float) -> Callable[[Sequence[Tensor | None]], tuple[Tensor | None, ...]]:
    """Return a hook that multiplies gradients; by 0 it makes zeros even of what was divided by 0."""

    def scaled(gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        return tuple(
            None if each is None else each * factor if factor else torch.zeros_like(each) for each in gradients
        )

    return scaled
