"""A step of the user's own loop that is done again by those that are left when a process was lost in it.

In: the script's function of a step and its batch. Out: what the function returns, once all processes that are left have
done the whole of it. It must not know how processes are lost, nor start any.
"""

from __future__ import annotations

import copy
import dis
import random
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CellType, CodeType
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from hetero.floor.errors import BadValueError
from hetero.train.launch import script_mistakes as mistakes
from hetero.train.launch.process_group import ProcessGroup, ProcessLostError
from hetero.train.launch.reducer import Reducer
from hetero.train.launch.shared_batches import SharedBatches
from hetero.train.launch.shared_loader import Batch, rebuilt, tensors_in
from hetero.train.launch.summed_values import SummedValues

__all__ = ["Recovery"]

T = TypeVar("T")
_HOLDERS = Tensor | np.ndarray | Mapping | list | tuple
_NO_ROWS = int | float | complex | str | bytes | None


@dataclass(frozen=True, slots=True)
class _StepState:
    """What a function of a step may have changed before the process was lost.

    Attributes
    ----------
    generators
        Sets random numbers back.
    buffers
        Of the models, with what was in them.
    trained
        The parameters and the state of each optimizer; empty where the function steps at its end, as most do.
    """

    generators: Callable[[], None]
    buffers: list[tuple[Tensor, Tensor]]
    trained: list[tuple[Optimizer, Mapping[str, object], list[tuple[Tensor, Tensor]]]]


class Recovery:
    """Does a step anew when a process was lost in it.

    Parameters
    ----------
    processes, batches, reducer, summed
        The parts of this process.

    Attributes
    ----------
    models
        Those that are prepared.
    """

    def __init__(self, processes: ProcessGroup, batches: SharedBatches, reducer: Reducer, summed: SummedValues) -> None:
        self._processes = processes
        self._batches = batches
        self._reducer = reducer
        self.models: list[torch.nn.Module] = []
        self._passes = 2
        self._summed = summed
        self._has_lost = False
        processes.when_lost.append(self._lost)

    def step(self, function: Callable[..., T], batch: Sequence[Batch]) -> T:
        """Call a function until no process is lost in it.

        Parameters
        ----------
        batch
            What it is given: the batch as the loader gave it, whole or in parts, and things that have no rows.
        """
        processes = self._processes
        if processes.checks or (processes.is_alone and not self._batches.is_stale):
            return function(*batch)
        known = self._batches.current
        is_given = _holds(list(batch), {id_ for id_, _ in _pairs(known, known)})
        self._batches.begin_step(is_given=is_given)
        by_closure = _by_closure(function, {id_ for id_, _ in _pairs(known, known)}) if is_given else None
        if by_closure is not None:
            raise mistakes.of_batch_by_closure(by_closure)
        try:
            return self._done(function, batch, known)
        finally:
            self._batches.end_step()

    def _done(self, function: Callable[..., T], batch: Sequence[Batch], known: Batch) -> T:
        """Return what a function returns, once it was called without a process being lost in it."""
        processes = self._processes
        if processes.has_check:
            return function(*batch)
        self._check(batch)
        if processes.is_alone:
            return function(*batch)
        state = self._state()
        self._batches.remember()
        self._reducer.remember()
        while not processes.is_alone:
            try:
                with processes.recovering():
                    found = function(*batch)
            except ProcessLostError:
                if self._may_miss_rows():
                    processes.end_with(mistakes.without_batch())
                self._restore(state)
                self._say_what_is_missing()
                self._reducer.begin_again()
                batch, known = self._again(batch, known)
            else:
                self._passes = self._reducer.passes_of_attempt
                self._say_what_is_missing()
                return found
        return function(*batch)

    def _lost(self) -> None:
        self._has_lost = True

    def _say_what_is_missing(self) -> None:
        """Notify people of what a lost process had counted outside of the step: this one has the like of it."""
        missed = self._summed.missed(by_value=True) if self._has_lost else None
        self._has_lost = False
        if missed is not None:
            self._processes.note(
                f"what the lost process had counted before is missing from now on: {missed}; sum it up in each step, "
                "by fleet.sum in the function"
            )

    def _may_miss_rows(self) -> bool:
        """Return whether a step that was given no batch, and fetched none, was never seen to be alike in all."""
        return (
            self._batches.is_given_none and self._reducer.passes_of_attempt > 0 and not self._reducer.agreement.is_alike
        )

    def _check(self, batch: Sequence[Batch]) -> None:
        """Refuse tensors that are not of the batch: those of a smaller number of processes are not known."""
        known = {id(each) for each in tensors_in(self._batches.current)}
        for each in tensors_in(list(batch)):
            if id(each) not in known and not isinstance(each, torch.nn.Parameter):
                raise BadValueError(
                    f"fleet.step was given a tensor of shape {tuple(each.shape)} that is not of the last batch as its "
                    "loader gave it",
                    remedy="give the batch as it came, and make everything else, fleet.split too, in the function",
                )

    def _again(self, batch: Sequence[Batch], before: Batch) -> tuple[Sequence[Batch], Batch]:
        """Return what the function is given, with the own rows of the batch among those that are left, and these."""
        after = self._batches.hand_out_again()
        self._batches.draw_for_all_if_given_none()
        known = dict(_pairs(before, after)) if after is not None else {}
        return [_replaced(each, known) for each in batch], after

    # --- what a function changes ---------------------------------------------------------------------------

    def _state(self) -> _StepState:
        buffers = [(each, each.detach().clone()) for model in self.models for each in model.buffers()]
        trained = []
        if self._passes > 1:  # as of two networks: one has stepped when the other is computed
            for optimizer in self._reducer.steps:
                parameters = [each for group in optimizer.param_groups for each in group["params"]]
                copies = [(each, each.detach().clone()) for each in parameters]
                trained.append((optimizer, copy.deepcopy(optimizer.state_dict()), copies))
        return _StepState(_generators(self._processes.device), buffers, trained)

    def _restore(self, state: _StepState) -> None:
        state.generators()
        with torch.no_grad():
            for each, before in state.buffers:
                each.copy_(before)
            for optimizer, settings, parameters in state.trained:
                for each, before in parameters:
                    each.copy_(before)
                optimizer.load_state_dict(copy.deepcopy(dict(settings)))


def _pairs(before: Batch, after: Batch) -> list[tuple[int, Batch]]:
    """Return for each part of a batch that has an identity, by its `id`, what it is in another one made alike."""
    found = [] if isinstance(before, _NO_ROWS) else [(id(before), after)]
    if isinstance(before, Mapping):
        parts = [(before[name], after[name]) for name in before]
    elif isinstance(before, list | tuple):
        parts = list(zip(before, after, strict=True))
    else:
        return found
    return found + [pair for one, other in parts for pair in _pairs(one, other)]


def _holds(value: Batch, known: Container[int]) -> bool:
    """Return whether a value is a part of a batch, or a container or an object that has one."""
    if id(value) in known:
        return True
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return any(_holds(part, known) for part in (*parts, *_attributes(value).values()))


def _by_closure(function: Callable[..., object], known: Container[int]) -> str | None:
    """Return the name of a variable outside of a function that it reads, and that has a part of a batch."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    cells = zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=False)
    found = {name: cell.cell_contents for name, cell in cells if cell != CellType()}
    names = _globals_of(code) & function.__globals__.keys()
    found |= {name: function.__globals__[name] for name in names}
    parts = Tensor | np.ndarray | list | tuple | dict
    return next((name for name, value in found.items() if isinstance(value, parts) and _holds(value, known)), None)


@lru_cache(64)
def _globals_of(code: CodeType) -> frozenset[str]:
    """Return the global names that code reads, and the functions and comprehensions in it."""
    own = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return frozenset(own).union(*(_globals_of(each) for each in code.co_consts if isinstance(each, CodeType)))


def _attributes(value: Batch) -> dict[str, Batch]:
    """Return the attributes of an object of the script's that hold data, {} for anything else."""
    if callable(value) or isinstance(value, _HOLDERS | Optimizer):
        return {}
    names = (*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ()))
    found = {name: getattr(value, name, None) for name in names}
    return {name: part for name, part in found.items() if isinstance(part, _HOLDERS)}


def _replaced(value: Batch, known: Mapping[int, Batch]) -> Batch:
    """Return a value with the parts of a batch in it replaced; an object keeps its identity."""
    if id(value) in known:
        return known[id(value)]
    if not _holds(value, known):
        return value
    for name, part in _attributes(value).items():
        object.__setattr__(value, name, _replaced(part, known))
    return rebuilt(lambda part: _replaced(part, known), value)


def _generators(device: torch.device) -> Callable[[], None]:
    """Return what sets the generators of torch, NumPy and Python, and the device's own, back to what they are now."""
    own = None if device.type == "cpu" else getattr(torch, device.type)
    before, numpys, pythons = torch.get_rng_state(), np.random.get_state(), random.getstate()
    owns = None if own is None else own.get_rng_state()

    def restore() -> None:
        torch.set_rng_state(before)
        np.random.set_state(numpys)
        random.setstate(pythons)
        if own is not None:
            own.set_rng_state(owns)

    return restore
