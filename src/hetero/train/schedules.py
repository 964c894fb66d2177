"""Learning-rate schedulers of torch's that hold an optimizer: who can step them, and their state in checkpoints.

In: an optimizer, callbacks. Out: the name of a scheduler that nobody steps; states as plain values, and back.
It must not step one.
"""

from __future__ import annotations

import gc
import math
import types
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from hetero.floor.errors import BadValueError
from hetero.session.functions import used_names

__all__ = ["load_schedulers", "scheduler_states", "unstepped_scheduler"]

_MOST_MET = 200_000


def _holding(optimizer: Any) -> list[Any]:
    """Return the schedulers of torch's that hold an optimizer."""
    kind = torch.optim.lr_scheduler.LRScheduler
    return [
        one for one in gc.get_objects() if issubclass(type(one), kind) and getattr(one, "optimizer", None) is optimizer
    ]


# --- their state ---------------------------------------------------------------------------------------------


def scheduler_states(optimizer: Any) -> dict[str, Any]:
    """Return the state of each scheduler of an optimizer by the name of its class, as values that JSON can hold.

    Raises
    ------
    BadValueError
        Two are of one class, or one keeps something that is not plain.
    """
    return {name: _plain(one.state_dict(), name) for name, one in _outermost(optimizer).items()}


def load_schedulers(optimizer: Any, states: Mapping[str, Any]) -> None:
    """Load what `scheduler_states` gave into the schedulers that an optimizer has now.

    Raises
    ------
    BadValueError
        There is none of a class that had a state.
    """
    here = _outermost(optimizer) if states else {}
    for name in states:
        if name not in here:
            raise BadValueError(
                f"the checkpoint was kept with a {name}, and no {name} holds the optimizer now",
                remedy="make the scheduler as before, and then call resume()",
            )
    for name, state in states.items():
        here[name].load_state_dict(_value(state))


def _outermost(optimizer: Any) -> dict[str, Any]:
    """Return the schedulers that no other scheduler steps, by the names of their classes."""
    found = _holding(optimizer)
    within = {id(one) for scheduler in found for one in getattr(scheduler, "_schedulers", ())}
    outer = [one for one in found if id(one) not in within]
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


def _value(plain: Any) -> Any:
    """Return what `_plain` was given."""
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


# --- who steps them ------------------------------------------------------------------------------------------


def unstepped_scheduler(optimizer: Any, hearers: Sequence[Any]) -> str:
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


def _not_reached(roots: Iterable[Any], wanted: set[int]) -> set[int]:
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


def _beside(one: Any) -> Iterator[Any]:
    """Yield what an object refers to; of a function, not all of its module, but the globals that its code names."""
    if isinstance(one, types.FunctionType):
        yield from (one.__closure__ or (), one.__defaults__ or (), one.__kwdefaults__ or {}, vars(one))
        yield from (one.__globals__[name] for name in used_names(one.__code__) if name in one.__globals__)
    elif isinstance(one, type):
        yield from (*one.__bases__, *(each for each in vars(one).values() if isinstance(each, types.FunctionType)))
    else:
        yield from gc.get_referents(one)


def _is_wrapped(optimizer: Any) -> bool:
    return hasattr(getattr(optimizer, "step", None), "_wrapped_by_lr_sched")
