"""Learning-rate schedulers of torch's that hold an optimizer: who can step them, and their state in checkpoints.

In: an optimizer, callbacks, the options of a run. Out: the scheduler that the options ask for; the name of one that
nobody steps; states as plain values, and back; the way back to an epoch that comes again. It must not step one.
"""

from __future__ import annotations

import copy
import gc
import math
import re
import types
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from hetero.floor.errors import BadValueError, did_you_mean
from hetero.floor.units import shown
from hetero.session.functions import used_names
from hetero.train.callbacks import Callback
from hetero.train.compatibility import group_values, set_values

__all__ = [
    "ScheduleHistory",
    "load_schedule",
    "load_schedulers",
    "make_schedule",
    "schedule_state",
    "unstepped_scheduler",
]

_MOST_MET = 200_000
_SCHEDULER = re.compile(r"(?i:sched|warm_?up|anneal|decay)|LR$")


def _holding(optimizer: object) -> list[object]:
    """Return the schedulers of torch's that change the settings of an optimizer, however they come by it.

    Notes
    -----
    Called after every epoch, in programs with millions of objects. An object refers to its class, so that the
    collector of cycles names all schedulers in one look, in half the time of looking at every object here.
    """
    kinds: list[type] = [torch.optim.lr_scheduler.LRScheduler]
    for kind in kinds:
        below: list[type] = kind.__subclasses__()
        kinds += [each for each in below if each not in kinds]
    found = {id(one): one for one in _referring(kinds) if issubclass(type(one), kinds[0])}
    return [one for one in found.values() if _drives(one, optimizer)]


def _referring(wanted: Sequence[object]) -> list[object]:
    """Return what refers to some objects; what was frozen the collector of cycles does not look at."""
    frozen = gc.get_freeze_count() > 0
    if frozen:
        gc.unfreeze()
        gc.collect()
    found = gc.get_referrers(*wanted)
    if frozen:
        gc.freeze()
    return found


def _drives(scheduler: object, optimizer: object) -> bool:
    """Return whether a scheduler changes an optimizer's settings: it holds that one, or another with the same groups.

    Where what it holds is no optimizer, it does if it reaches this one by way of that.
    """
    held = _read(scheduler, "optimizer")
    if held is optimizer:
        return True
    groups = _read(held, "param_groups")
    if not isinstance(groups, list):
        return not _not_reached([scheduler], {id(optimizer)})
    own = {id(group) for group in _groups(optimizer)}
    return any(id(group) in own for group in groups)


def _groups(optimizer: object) -> list[object]:
    found = _read(optimizer, "param_groups")
    return found if isinstance(found, list) else []


def _read(one: object, name: str) -> object:
    """Return an attribute, None where there is none; it may be a property of the user's."""
    try:
        return getattr(one, name, None)
    except Exception:  # noqa: BLE001  of whatever it reads
        return None


def _like_schedulers(optimizer: object) -> list[object]:
    """Return the schedulers of others that hold an optimizer or its groups: what has a step and is named like one."""
    wanted = [optimizer, _groups(optimizer), *_groups(optimizer)]
    own = {id(one) for one in wanted}
    holders = _referring(wanted)
    tables = [one for one in holders if type(one) is dict and id(one) not in own]
    owners = _referring(tables) if tables else []
    kind = torch.optim.lr_scheduler.LRScheduler
    found = {id(one): one for one in (*holders, *owners) if not issubclass(type(one), kind)}
    return [one for one in found.values() if _steps_rates(type(one))]


def _steps_rates(kind: type) -> bool:
    own = callable(_read(kind, "step")) and not issubclass(kind, torch.optim.Optimizer)
    return own and any(_SCHEDULER.search(each.__name__) for each in kind.__mro__)


# --- what the options ask for --------------------------------------------------------------------------------


def make_schedule(schedule: object, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Return the scheduler of an optimizer that `TrainOptions.schedule` asks for.

    Raises
    ------
    BadValueError
        It is none of torch's, is of another optimizer, or needs more than a step.
    """
    kind = torch.optim.lr_scheduler
    made = schedule(optimizer) if callable(schedule) else _named_schedule(schedule, optimizer)
    if not isinstance(made, kind.LRScheduler):
        raise BadValueError(
            f"schedule returned {shown(made)}, which is no scheduler of torch's",
            remedy="return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100) or its like",
        )
    if isinstance(made, kind.ReduceLROnPlateau):
        raise BadValueError(
            "schedule makes a ReduceLROnPlateau, whose step takes a figure of the epoch",
            remedy="step it in a callback: callbacks=[lambda report: plateau.step(report.test_loss)]",
        )
    if made.optimizer is not optimizer:
        raise BadValueError(
            "schedule returned the scheduler of another optimizer than the one that it was called with",
            remedy="make it of the argument, as in schedule=lambda optimizer: StepLR(optimizer, 30)",
        )
    return made


def _named_schedule(named: object, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Return a scheduler by the name of its class; what it takes as `schedulers` is named in the same way."""
    module = torch.optim.lr_scheduler
    known = [
        name for name, kind in vars(module).items() if isinstance(kind, type) and name.endswith(("LR", "Restarts"))
    ]
    known = sorted({*known, "ChainedScheduler"})
    if not isinstance(named, Mapping) or len(named) != 1:
        raise BadValueError(
            f"schedule={shown(named)} names no scheduler",
            remedy="write its name and arguments: {StepLR: {step_size: 30}}",
        )
    [(name, arguments)] = named.items()
    if name not in known:
        raise BadValueError(
            f"schedule={name!r} is no scheduler of torch's{did_you_mean(name, known)}",
            remedy=f"give {', '.join(known)}",
        )
    parts = {
        key: [_named_schedule(each, optimizer) for each in value] if key == "schedulers" else value
        for key, value in dict(arguments or {}).items()
    }
    try:
        return getattr(module, name)(optimizer=optimizer, **parts)
    except (AttributeError, TypeError, ValueError) as error:
        raise BadValueError(
            f"schedule={name!r}: {' '.join(str(error).split())}",
            remedy=f"give the arguments of torch.optim.lr_scheduler.{name}",
        ) from error


def schedule_state(schedule: torch.optim.lr_scheduler.LRScheduler | None) -> dict[str, object] | None:
    """Return the state of a run's own scheduler as values that JSON can hold, None where there is none."""
    if schedule is None:
        return None
    name = type(schedule).__name__
    return {"class": name, "state": _plain(schedule.state_dict(), name)}


def load_schedule(schedule: torch.optim.lr_scheduler.LRScheduler | None, state: Mapping[str, object] | None) -> None:
    """Load what `schedule_state` returned.

    Raises
    ------
    BadValueError
        It is the state of a scheduler of another class, or of a run without one.
    """
    mine = "no schedule" if schedule is None else type(schedule).__name__
    kept = "no schedule" if state is None else str(state.get("class"))
    if kept != mine:
        raise BadValueError(
            f"the state was kept with {kept}, and this run has {mine}",
            remedy="give the schedule that was used, or another folder to begin anew",
        )
    if schedule is not None and state is not None:
        schedule.load_state_dict(_value(state.get("state")))


# --- their state ---------------------------------------------------------------------------------------------


def load_schedulers(optimizer: object, states: Mapping[str, object], callbacks: Sequence[object] = ()) -> None:
    """Load the states of a checkpoint into the schedulers that an optimizer has now, and into callbacks.

    Raises
    ------
    BadValueError
        There is none of a class that had a state.
    """
    here = {**_by_name(_outer(optimizer)), **_stateful(callbacks)} if states else {}
    for name in states:
        if name not in here:
            raise BadValueError(
                f"the checkpoint was kept with a {name}, and no scheduler of the optimizer and no callback is one",
                remedy="make it as before, and then call resume()",
            )
    for name, state in states.items():
        here[name].load_state_dict(_value(state))


def _plain_states(outer: Sequence[torch.optim.lr_scheduler.LRScheduler]) -> dict[str, object]:
    """Return the state of each scheduler by the name of its class, as values that JSON can hold.

    Raises
    ------
    BadValueError
        Two are of one class, or one keeps something that is not plain.
    """
    return {name: _plain(one.state_dict(), name) for name, one in _by_name(outer).items()}


def _outer(optimizer: object) -> list[torch.optim.lr_scheduler.LRScheduler]:
    """Return the schedulers of an optimizer that no other scheduler steps."""
    found = _holding(optimizer)
    within = {id(one) for scheduler in found for one in getattr(scheduler, "_schedulers", ())}
    return [one for one in found if id(one) not in within]


def _by_name(outer: Sequence[torch.optim.lr_scheduler.LRScheduler]) -> dict[str, torch.optim.lr_scheduler.LRScheduler]:
    """Return schedulers by the names of their classes."""
    names = Counter(type(one).__name__ for one in outer)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise BadValueError(
            f"{names[twice[0]]} {twice[0]} hold the optimizer, and a checkpoint cannot tell them apart",
            remedy="chain them by torch.optim.lr_scheduler.ChainedScheduler, or leave checkpoint out",
        )
    return {type(one).__name__: one for one in outer}


def _stateful(callbacks: Sequence[object]) -> dict[str, Callback]:
    """Return the callbacks that have a state, by the names of their classes; the second of a class as 'Name 2'."""
    found: dict[str, Callback] = {}
    numbers: Counter[str] = Counter()
    for one in callbacks:
        if isinstance(one, Callback) and one.state_dict():
            name = type(one).__name__
            numbers[name] += 1
            found[name if numbers[name] == 1 else f"{name} {numbers[name]}"] = one
    return found


def _plain(value: Any, of: str) -> object:
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


def _value(plain: object) -> object:
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
    plain
        States as checkpoints keep them.
    states
        Each scheduler with a copy of its state, or the error that copying it ended with.
    groups
        Settings of the optimizer's parameter groups.
    """

    plain: dict[str, object]
    states: list[tuple[Any, object]]
    groups: list[dict[str, object]]


class ScheduleHistory:
    """The schedulers of a run's optimizer after each epoch, to which the run may have to go back.

    Parameters
    ----------
    optimizer
        The program's, or the function that makes one, which no scheduler can hold.
    begin
        Steps done before the run.
    kept
        True where there are checkpoints; without them a run goes back to its beginning alone.
    callbacks
        Of the run; those that have a state go back with it.
    heard
        False where nobody hears of epochs: then nothing changes, and schedulers are not searched for.

    Notes
    -----
    A run whose members all died goes on from a checkpoint, and the program hears of some epochs once more. Its
    schedulers then go on from where they stood before these, as those of a run that nothing disturbed.
    """

    def __init__(
        self, optimizer: object, begin: int, *, kept: bool, callbacks: Sequence[object] = (), heard: bool = True
    ) -> None:
        self._optimizer = optimizer
        self._callbacks = callbacks
        self._kept = kept
        self._furthest = begin
        self._moments = {
            begin: self._moment() if kept or heard else _Moment({}, [], copy.deepcopy(group_values(optimizer)))
        }

    def ended(self, step: int) -> dict[str, object]:
        """Note how things stand after the callbacks of an epoch; return the states for checkpoints from then on.

        Parameters
        ----------
        step
            Steps done by then.
        """
        self._furthest = step
        if self._kept:
            self._moments[step] = self._moment()
        return self.at(step)

    def at(self, step: int) -> dict[str, object]:
        """Return the states for checkpoints from a step on."""
        return self._moments[max(each for each in self._moments if each <= step)].plain

    def again(self, step: int) -> None:
        """Go back to how things stood before an epoch if it was heard of already.

        Parameters
        ----------
        step
            At the end of the epoch.

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
            scheduler.load_state_dict(_copied(state, self._optimizer))

    def _moment(self) -> _Moment:
        outer = _outer(self._optimizer) if hasattr(self._optimizer, "param_groups") else []
        stateful = _stateful(self._callbacks)
        states = [(one, _copied(one.state_dict(), self._optimizer)) for one in (*outer, *stateful.values())]
        plain = {name: _plain(one.state_dict(), name) for name, one in stateful.items()}
        plain = {**_plain_states(outer), **plain} if self._kept else {}
        return _Moment(plain, states, copy.deepcopy(group_values(self._optimizer)))


def _copied(state: object, optimizer: object) -> object:
    """Return a copy of a state, which drives the same optimizer if it leads there."""
    try:
        return copy.deepcopy(state, {id(optimizer): optimizer})
    except Exception as error:  # noqa: BLE001  of whatever it keeps; it matters only where a run goes back
        return error


# --- who steps them ------------------------------------------------------------------------------------------


def unstepped_scheduler(optimizer: object, hearers: Sequence[object]) -> str:
    """Name a learning-rate scheduler that changes an optimizer's settings and that nobody can step; '' for none.

    Parameters
    ----------
    hearers
        What is called after every epoch: functions and objects. One steps a scheduler if it can reach it, by its
        closure, the globals that its code names, its arguments or its attributes.
    """
    if not hasattr(optimizer, "param_groups"):
        return ""
    found = [*_holding(optimizer), *_like_schedulers(optimizer)]
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
