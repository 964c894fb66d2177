"""Learning-rate schedulers of torch's that hold an optimizer: who can step them, and their state in checkpoints.

In: an optimizer, callbacks. Out: the name of a scheduler that nobody steps; states as plain values, and back; the way
back to an epoch that comes again. It must not step one.
"""

from __future__ import annotations

import copy
import gc
import math
import types
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from hetero.floor.errors import BadValueError
from hetero.session.functions import used_names
from hetero.train.compatibility import group_values, set_values

__all__ = ["ScheduleHistory", "load_schedulers", "unstepped_scheduler"]

_MOST_MET = 200_000


def _holding(optimizer: object) -> list[object]:
    """Return the schedulers of torch's that hold an optimizer.

    Notes
    -----
    Called after every epoch, in programs with millions of objects: to ask the collector of cycles who refers to the
    optimizer, and to the tables of attributes that do, takes a third of the time of looking at every object. What was
    frozen it does not look at.
    """
    frozen = gc.get_freeze_count() > 0
    if frozen:
        gc.unfreeze()
        gc.collect()
    holders = gc.get_referrers(optimizer)
    tables = [one for one in holders if type(one) is dict]
    owners = gc.get_referrers(*tables) if tables else []
    if frozen:
        gc.freeze()
    kind = torch.optim.lr_scheduler.LRScheduler
    found = {id(one): one for one in (*holders, *owners) if issubclass(type(one), kind)}
    return [one for one in found.values() if getattr(one, "optimizer", None) is optimizer]


# --- their state ---------------------------------------------------------------------------------------------


def load_schedulers(optimizer: object, states: Mapping[str, object]) -> None:
    """Load the states of a checkpoint into the schedulers that an optimizer has now.

    Raises
    ------
    BadValueError
        There is none of a class that had a state.
    """
    here = _by_name(_outer(optimizer)) if states else {}
    for name in states:
        if name not in here:
            raise BadValueError(
                f"the checkpoint was kept with a {name}, and no {name} holds the optimizer now",
                remedy="make the scheduler as before, and then call resume()",
            )
    for name, state in states.items():
        here[name].load_state_dict(_value(state))


def _plain_states(outer: Sequence[object]) -> dict[str, Any]:
    """Return the state of each scheduler by the name of its class, as values that JSON can hold.

    Raises
    ------
    BadValueError
        Two are of one class, or one keeps something that is not plain.
    """
    return {name: _plain(one.state_dict(), name) for name, one in _by_name(outer).items()}


def _outer(optimizer: object) -> list[Any]:
    """Return the schedulers of an optimizer that no other scheduler steps."""
    found = _holding(optimizer)
    within = {id(one) for scheduler in found for one in getattr(scheduler, "_schedulers", ())}
    return [one for one in found if id(one) not in within]


def _by_name(outer: Sequence[object]) -> dict[str, Any]:
    """Return schedulers by the names of their classes."""
    names = Counter(type(one).__name__ for one in outer)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise BadValueError(
            f"{names[twice[0]]} {twice[0]} hold the optimizer, and a checkpoint cannot tell them apart",
            remedy="chain them by torch.optim.lr_scheduler.ChainedScheduler, or leave checkpoint out",
        )
    return {type(one).__name__: one for one in outer}


def _plain(value: Any, of: str) -> Any:
    """Return a value as JSON has it; what JSON has not is a table of its kind and its parts."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(float(value))}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if type(value) is list:
        return [_plain(one, of) for one in value]
    if type(value) is tuple:
        return {"tuple": [_plain(one, of) for one in value]}
    if type(value) in (dict, Counter):
        return {type(value).__name__: [[_plain(key, of), _plain(one, of)] for key, one in value.items()]}
    raise BadValueError(
        f"the state of the {of} has a {type(value).__name__}, which a checkpoint cannot keep",
        remedy="use plain numbers in it, or leave checkpoint out",
    )


def _value(plain: object) -> Any:
    """Invert `_plain`."""
    if isinstance(plain, list):
        return [_value(one) for one in plain]
    if not isinstance(plain, dict):
        return plain
    [(kind, parts)] = plain.items()
    if kind == "float":
        return float(parts)
    if kind == "tuple":
        return tuple(_value(one) for one in parts)
    pairs = {_value(key): _value(one) for key, one in parts}
    return Counter(pairs) if kind == "Counter" else pairs


# --- back to an epoch ----------------------------------------------------------------------------------------


class _Moment(NamedTuple):
    """What callbacks may have changed by the end of an epoch.

    Attributes
    ----------
    plain : states as checkpoints keep them
    states : each scheduler with a copy of its state, or the error that copying it ended with
    groups : settings of the optimizer's parameter groups
    """

    plain: dict[str, Any]
    states: list[tuple[Any, Any]]
    groups: list[dict[str, Any]]


class ScheduleHistory:
    """The schedulers of a run's optimizer after each epoch, to which the run may have to go back.

    Parameters
    ----------
    optimizer : the program's, or the function that makes one, which no scheduler can hold
    begin : steps done before the run
    kept : True where there are checkpoints; without them a run goes back to its beginning alone

    Notes
    -----
    A run whose members all died goes on from a checkpoint, and the program hears of some epochs once more. Its
    schedulers then go on from where they stood before these, as those of a run that nothing disturbed.
    """

    def __init__(self, optimizer: object, begin: int, *, kept: bool) -> None:
        self._optimizer = optimizer
        self._kept = kept
        self._furthest = begin
        self._moments = {begin: self._moment()}

    def ended(self, step: int) -> dict[str, Any]:
        """Note how things stand after the callbacks of an epoch; return the states for checkpoints from then on.

        Parameters
        ----------
        step : steps done by then
        """
        self._furthest = step
        if self._kept:
            self._moments[step] = self._moment()
        return self.at(step)

    def at(self, step: int) -> dict[str, Any]:
        """Return the states for checkpoints from a step on."""
        return self._moments[max(each for each in self._moments if each <= step)].plain

    def again(self, step: int) -> None:
        """Go back to how things stood before an epoch if it was heard of already.

        Parameters
        ----------
        step : at the end of the epoch

        Raises
        ------
        BadValueError
            A scheduler keeps something that could not be copied.
        """
        if step > self._furthest:
            return
        self._moments = {each: moment for each, moment in self._moments.items() if each < step}
        moment = self._moments[max(self._moments)]
        set_values(self._optimizer, dict(enumerate(copy.deepcopy(moment.groups))))
        for scheduler, state in moment.states:
            if isinstance(state, Exception):
                raise BadValueError(
                    f"all workers died, and the {type(scheduler).__name__} cannot go back: {state}",
                    remedy="keep only what can be copied in it",
                )
            scheduler.load_state_dict(copy.deepcopy(state))

    def _moment(self) -> _Moment:
        if not hasattr(self._optimizer, "param_groups"):
            return _Moment({}, [], [])
        outer = _outer(self._optimizer)
        states = [(one, _copied(one.state_dict())) for one in outer]
        return _Moment(_plain_states(outer) if self._kept else {}, states, copy.deepcopy(group_values(self._optimizer)))


def _copied(state: object) -> Any:
    try:
        return copy.deepcopy(state)
    except Exception as error:  # noqa: BLE001  of whatever it keeps; it matters only where a run goes back
        return error


# --- who steps them ------------------------------------------------------------------------------------------


def unstepped_scheduler(optimizer: object, hearers: Sequence[object]) -> str:
    """Name a learning-rate scheduler of torch's that holds an optimizer and that nobody can step; '' for none.

    Parameters
    ----------
    hearers
        What is called after every epoch: functions and objects. One steps a scheduler if it can reach it, by its
        closure, the globals that its code names, its arguments or its attributes.
    """
    found = _holding(optimizer)
    if not found and _is_wrapped(optimizer) and not hearers:
        return "learning-rate scheduler"
    absent = _not_reached(hearers, {id(one) for one in found})
    return next((type(one).__name__ for one in found if id(one) in absent), "")


def _not_reached(roots: Iterable[object], wanted: set[int]) -> set[int]:
    """Return those of some ids that callables cannot come by; what is near is looked at first."""
    waiting, met = deque(roots), set[int]()
    held = []
    while waiting and len(met) < _MOST_MET and not wanted <= met:
        one = waiting.popleft()
        if id(one) in met or isinstance(one, types.ModuleType | torch.Tensor | str | bytes | int | float):
            continue
        met.add(id(one))
        held.append(one)  # so that no id is used again meanwhile
        waiting.extend(_beside(one))
    return wanted - met


def _beside(one: object) -> Iterator[object]:
    """Yield what an object refers to; of a function, not all of its module, but the globals that its code names."""
    if isinstance(one, types.FunctionType):
        yield from (one.__closure__ or (), one.__defaults__ or (), one.__kwdefaults__ or {}, vars(one))
        yield from (one.__globals__[name] for name in used_names(one.__code__) if name in one.__globals__)
    elif isinstance(one, type):
        yield from (*one.__bases__, *(each for each in vars(one).values() if isinstance(each, types.FunctionType)))
    else:
        yield from gc.get_referents(one)


def _is_wrapped(optimizer: object) -> bool:
    return hasattr(getattr(optimizer, "step", None), "_wrapped_by_lr_sched")
