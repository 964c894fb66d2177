"""What processes tell of themselves with the gradients of a pass, and the errors where they do not agree.

In: a process's loss, its batches and its state. Out: a column of a table that all have alike after it was added up.
It must not weight or exchange gradients.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from typing import NamedTuple, NoReturn
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from hetero.floor.errors import BadValueError
from hetero.train.launch import process_states as states
from hetero.train.launch import script_mistakes as mistakes
from hetero.train.launch.host_processes import LaunchOptions
from hetero.train.launch.loss_graph import ComparedGraphs, Strange
from hetero.train.launch.loss_terms import Term
from hetero.train.launch.parameter_rows import ParameterRows
from hetero.train.launch.process_group import ProcessGroup
from hetero.train.launch.shared_batches import SharedBatches

__all__ = ["StepAgreement", "StepTable"]

_DROPPED_CLOSE = 1e-5
"""By how much the numbers of values differ that are the same but for rounding, relative to them."""
_BITS = 0xFFFFFF  # that travel with gradients of float32, unchanged


class StepTable(NamedTuple):
    """Numbers that the processes tell of themselves with the gradients of a pass, one of each process in each row.

    Attributes
    ----------
    busy_s
        Seconds that it has computed for its rows.
    step_s, own_s
        Seconds of the step before, and of it without what is done because there are others.
    loss
        Its loss in a step that was given no batch, or what that is divided by where devices draw other numbers; else 0.
    batches
        How many it was handed to train on.
    signature
        Of how the loss is made, 0 where it is of no row.
    over, mixing
        What of the new in its graph goes over a first dimension, and whether that has its rows.
    dropped
        For the values that dropout without rows was given, 0 for none.
    drawn, given, settings, weights
        See `process_states.of_process`.
    """

    busy_s: Sequence[float]
    step_s: Sequence[float]
    own_s: Sequence[float]
    loss: Sequence[float]
    batches: Sequence[float]
    signature: Sequence[float]
    over: Sequence[float]
    mixing: Sequence[float]
    dropped: Sequence[float]
    drawn: Sequence[float]
    given: Sequence[float]
    settings: Sequence[float]
    weights: Sequence[float]


class StepAgreement:
    """What the processes must have alike in a step.

    Parameters
    ----------
    processes
        Those that must agree.
    batches
        Which rows this process has.
    options
        Whether processes that do not agree end.

    Attributes
    ----------
    is_alike
        Whether a step that was given no batch was seen to be the same in all processes.
    """

    def __init__(self, processes: ProcessGroup, batches: SharedBatches, options: LaunchOptions) -> None:
        self._processes = processes
        self._batches = batches
        self._options = options
        self._graphs = ComparedGraphs()
        self._strange = Strange()
        self._signature = 0.0
        self._stepped: weakref.ref[Optimizer] | None = None
        self.is_alike = False

    def look_at(self, loss: Tensor, terms: Sequence[Term]) -> None:
        """Record how a loss is made, and what of it was not compared: all hear of that before a step is taken by it."""
        self._signature = 0.0 if self._batches.has_none else _code({each.signature for each in terms})
        if self._processes.has_check:
            self._graphs.learn(loss)
        elif self._options.check_steps > 0 and self._graphs.is_new(loss):
            rows = self._batches.in_use
            found = self._graphs.strange(loss, rows.count, [term.node for term in terms])
            is_seen = 1 < rows.count < rows.whole
            self._strange += found if is_seen else Strange(other=found.mixing + found.other)

    def table(
        self, times_s: tuple[float, float, float], loss: float, count: float, managed: Sequence[ParameterRows]
    ) -> NDArray[np.float64]:
        """Return a `StepTable` with a column for each process, the own one filled in.

        Parameters
        ----------
        times_s
            Its `busy_s`, `step_s` and `own_s`.
        loss, count
            Of the own rows, and what its mean divides by.
        managed
            Parameters, of which some weights are told.
        """
        last = None if self._stepped is None else self._stepped()
        optimizers = [] if last is None else [last]
        drawn, *others = states.of_process(self._batches.given, optimizers, managed, self._batches.passes)
        is_mixed = self._processes.is_mixed  # each kind of device has a generator of its own
        alike = (count if is_mixed else loss) if self._batches.is_given_none else 0.0
        dropped = 0.0 if is_mixed or self._batches.has_none else self._batches.draws.log.seen
        seen = self._signature, _code(self._strange.over), float(bool(self._strange.mixing)), dropped
        state = 0.0 if is_mixed else drawn, *others
        table = np.zeros((len(StepTable._fields), self._processes.world))
        table[:, self._processes.rank] = [*times_s, alike, self._batches.trained_on, *seen, *state]
        return table

    def check(self, numbers: NDArray[np.float64], close: float) -> StepTable:
        """Return the table of all processes; ends all of them where they do not agree.

        Parameters
        ----------
        numbers
            What `table` returns, added up over the processes.
        close
            By how much losses that should be alike may differ, relative to them.
        """
        told = StepTable(*([float(each) for each in row] for row in numbers))
        self._check_batches(told)
        self._check_dropped(told)
        self._check_states(told)
        self._check_loss(told, close)
        self._check_graphs(told)
        return told

    def stepped(self, optimizer: Optimizer) -> None:
        """Record which optimizer has stepped last: its settings are told."""
        self._stepped = weakref.ref(optimizer)

    def _check_batches(self, told: StepTable) -> None:
        """End all processes where one is at another batch than the others."""
        at = {self._processes.devices[rank]: int(told.batches[rank]) for rank in self._processes.members}
        if len(set(at.values())) == 1:
            return
        error = mistakes.batches_differ(at)
        if self._options.strict:
            self._processes.end_with(error)
        self._processes.note(f"{error.problem}, and --no-strict goes on")

    def _check_dropped(self, told: StepTable) -> None:
        """End all processes where dropout was given own rows, and nothing in their shape says how many they are."""
        numbers = [each for rank in self._processes.members if (each := told.dropped[rank])]
        if not numbers or max(numbers) - min(numbers) <= _DROPPED_CLOSE * max(numbers):
            return
        where = self._batches.draws.log.seen_at
        error = BadValueError(
            f"dropout was given other values in each process, and not as many as there are own rows{where}, as where "
            "rows are chosen by a mask: what one device would draw for them is not known",
            remedy="give the model all rows, and those that do not count no weight in the loss (ignore_index, or * 0)",
        )
        if self._options.strict:
            self._processes.end_with(error)
        self._processes.note(f"{error.problem}; --no-strict goes on")

    def _check_states(self, told: StepTable) -> None:
        """End all processes where they have come apart, by what each has told."""
        rows = (told.drawn, told.given, told.settings, told.weights)
        error = states.trouble(*([row[rank] for rank in self._processes.members] for row in rows))
        if error is None and len({told.signature[rank] for rank in self._processes.members} - {0.0}) > 1:
            error = BadValueError(
                "the loss of a batch is made in one way by one process and otherwise by another, as where it depends "
                "on whether one of the own rows is valid",
                remedy="give fleet.backward(loss, weight=n), n being what its mean divides by, 0 for no row",
            )
        if error is not None and self._options.strict:
            if len({told.drawn[rank] for rank in self._processes.members}) > 1:
                codes = self._processes.told_by_members("draws", np.array(self._batches.draws.log.codes).tobytes())
                self.refuse_draws([np.frombuffer(each).tolist() for each in codes])
            self._processes.end_with(error)
        if error is not None:
            self._processes.note(f"{error.problem}, and --no-strict goes on")

    def _check_loss(self, told: StepTable, close: float) -> None:
        """End all processes where a step that was given no batch is not the same in all of them."""
        values = [told.loss[rank] for rank in self._processes.members]
        apart = max(values) - min(values)
        self.is_alike |= any(values)
        if not apart > close * max(map(abs, values)):
            return
        error = mistakes.without_batch()
        if self._options.strict:
            self._processes.end_with(error)
        self._processes.note(f"{error.problem}; --no-strict goes on")

    def _check_graphs(self, told: StepTable) -> None:
        """End all processes where something new can mix rows.

        Where it has as many entries as there are rows in one process and not in another, it has them by chance.
        """
        strange, self._strange = self._strange, Strange()
        members = self._processes.members
        ranks = [rank for rank in members if told.mixing[rank]]
        refused = ranks and all(told.mixing[rank] for rank in members if told.over[rank] == told.over[ranks[0]])
        if refused and self._options.strict:
            words = ", ".join(strange.mixing[:3]) or "what another process computes"
            error = BadValueError(
                f"{words} may mix the samples of a batch, and was not there in the steps that were compared with one "
                "device",
                remedy="have it there in the first steps, compare more of them with --check-steps, or start with "
                "--no-strict",
            )
            (self._processes.end_with if strange.mixing else self._processes.end_after_others)(error)
        names = [*strange.mixing, *strange.other]
        if names:
            self._processes.note(
                f"not compared with one device, as it was not there in the first steps: {', '.join(names[:3])}"
                + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            )

    def refuse_draws(self, others: Sequence[Sequence[float]]) -> NoReturn:
        """End all processes, as random numbers differ, by the codes of what other processes have drawn."""
        first, by_chance = self._batches.draws.log.first_apart(others)
        if first is not None and by_chance:
            self._processes.end_with(states.taken_for_rows(first))
        self._processes.end_after_others(states.draws_refused(first))


def _code(words: Collection[str]) -> float:
    """Return a number that tells words from others, not 0, which travels unchanged."""
    return float(crc32("|".join(sorted(words)).encode()) & _BITS | 1)
