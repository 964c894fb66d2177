"""Options of a Context, for programs that open one and for whatever opens one by itself.

In: what the user wrote. Out: a frozen value, and a Context. Fields that a configuration has too are named as its keys.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar, get_type_hints

from hetero.floor.deprecation import Moved
from hetero.floor.errors import BadValueError, did_you_mean
from hetero.floor.options import check_fields, options_argument, shows_keywords
from hetero.floor.units import parse_bytes, parse_seconds
from hetero.model.device import Device
from hetero.model.leases import LeaseRequest
from hetero.session.requests import flag, refuse_coroutine, text, whole, words

if TYPE_CHECKING:
    from hetero.session.config import Config
    from hetero.session.context import Context

__all__ = [
    "OPENING",
    "ContextOptions",
    "Fleet",
    "LeaseOptions",
    "devices_or_context",
    "lease_request",
    "lent_or_opened",
    "shows_lease_options",
]

Fleet: TypeAlias = str | Sequence[object] | None
"""A fleet as users write it: '2xcpu,cuda:0', a list of devices, or None for every sound device of the host."""

_OWN = ("config", "set", "history", "progress", "initializer", "initargs")


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """How a Context is opened, but for its devices.

    Attributes
    ----------
    config, engine, address, policy, isolation, memory_pool_size, name, trace, set
        As for `hetero.Context`.
    profile
        'torch' puts the operators that torch ran in each task into the trace; the times of such a run are not kept
        for others. None for the configuration's.
    tag_output
        True puts device and task in front of each line that a task prints; None for the configuration's.
    history
        False neither reads nor writes the times measured in other runs; None for what suits whoever opens it.
    progress
        True shows the tasks done on each device, as they are done; None as HETERO_PROGRESS says, and where that is
        not set only under `hetero run`.
    initializer, initargs
        Called as `initializer(*initargs)` by each worker before its first task, also after a restart; what it puts
        into `hetero.tasks.worker_state()` is there for the worker's tasks. A device whose initializer raises at its
        first start is not used, and tasks that find no other fail with what it raised; where it raises at a restart,
        the worker is started again until it succeeds.

    Raises
    ------
    BadValueError
        A field is of a wrong type, or `initargs` has no effect.

    Examples
    --------
    >>> with ContextOptions(engine="inline", initializer=list).open("1xcpu") as ctx:
    ...     ctx.run(sum, [1, 2, 3])
    6
    """

    config: str | Path | Mapping[str, object] | Config | None = None
    engine: str | None = None
    address: str | None = None
    policy: str | None = None
    isolation: str | None = None
    memory_pool_size: str | int | None = None
    name: str | None = None
    trace: str | Path | None = None
    set: Sequence[str] | Mapping[str, object] = ()
    profile: str | None = None
    tag_output: bool | None = None
    history: bool | None = None
    progress: bool | None = None
    initializer: Callable[..., object] | None = None
    initargs: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        if self.initializer is None and self.initargs != ():
            raise BadValueError(
                f"initargs={self.initargs!r} has no effect without initializer=",
                remedy="give the function too, or leave it out",
            )
        refuse_coroutine(self.initializer)

    def overlaid(self, **keywords: object) -> ContextOptions:
        """Return these options with the keywords that were given, which are those that are neither None nor ().

        Raises
        ------
        BadValueError
            These options say the same thing already.

        Examples
        --------
        >>> ContextOptions(name="night").overlaid(engine="inline", name=None).name
        'night'
        """
        given = {name: value for name, value in keywords.items() if value is not None and value != ()}
        usual = {each.name: each.default for each in fields(self)}
        for name in given:
            if getattr(self, name) != usual[name]:
                raise BadValueError(
                    f"Context was given both {name}= and options=ContextOptions({name}=…)", remedy=f"leave {name}= out"
                )
        return replace(self, **given) if given else self  # type: ignore[arg-type]

    @property
    def keys(self) -> dict[str, object]:
        """What stands under keys of the configuration too, by key; None where that decides."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _OWN}

    def open(self, devices: Fleet = None, *, history: bool = True) -> Context:
        """Open a Context.

        Parameters
        ----------
        devices
            The fleet, as `hetero.Context` takes it.
        history
            Used where these options leave it open.

        Examples
        --------
        >>> with ContextOptions(engine="inline").open("1xcpu") as ctx:
        ...     ctx.run(abs, -1)
        1
        """
        from hetero.session.context import Context

        return Context(
            devices=devices, options=replace(self, history=history if self.history is None else self.history)
        )


def lent_or_opened(
    devices: Fleet | Context, options: ContextOptions | None = None, *, history: bool = True
) -> AbstractContextManager[Context]:
    """Return the Context that was lent, which stays open, or a new one, which is closed at the end of the block.

    Raises
    ------
    BadValueError
        Options are given for a Context that is open.
    """
    fleet, lent = devices_or_context(devices, options)
    return nullcontext(lent) if lent is not None else (options or ContextOptions()).open(fleet, history=history)


def devices_or_context(devices: Fleet | Context, options: ContextOptions | None = None) -> tuple[Fleet, Context | None]:
    """Return the fleet of a Context that is to be opened, or the Context that is open.

    Raises
    ------
    BadValueError
        Options are given for a Context that is open, or are of another class.
    """
    from hetero.session.context import Context

    options_argument("context", options, ContextOptions)
    if not isinstance(devices, Context):
        return devices, None
    if options is not None:
        raise BadValueError(
            "context= has no effect where devices= is an open Context", remedy="give it where that Context is opened"
        )
    return None, devices


OPENING = Moved("context", ContextOptions, {name: name for name in ("config", "set", "trace")})
"""Former keywords of functions that open a Context for themselves."""


# --- options of a lease -------------------------------------------------------------------------------------

F = TypeVar("F", bound=Callable[..., object])


class LeaseOptions(TypedDict, total=False):
    """What a lease may ask for; docs/leases.md says what each option means."""

    on: str | Device | Sequence[str | Device]
    not_on: str | Device | Sequence[str | Device]
    count: int
    memory: int | str
    compute: float
    min_cores: int
    exclusive: bool
    together: str
    workload: str
    apart: str | Sequence[str]
    apart_by: str
    timeout: float | str
    expires: float | str
    priority: int


_FIELDS = {
    **{name: name for name in LeaseOptions.__annotations__},
    "memory": "memory_bytes",
    "compute": "compute_frac",
    "timeout": "timeout_s",
    "expires": "lease_s",
}
_READ: dict[str, Callable[..., object]] = {
    "on": lambda given: words("on", given),
    "not_on": lambda given: words("not_on", given),
    "apart": lambda given: tuple(text("apart", word) for word in ((given,) if isinstance(given, str) else given)),
    "count": lambda given: whole("count", given, 1),
    "min_cores": lambda given: whole("min_cores", given, 0),
    "priority": lambda given: whole("priority", given, None),
    "exclusive": lambda given: flag("exclusive", given),
    "workload": lambda given: text("workload", given),
    "memory": parse_bytes,
    "timeout": parse_seconds,
    "expires": parse_seconds,
}


def lease_request(options: LeaseOptions) -> LeaseRequest:
    """Return the request that options stand for.

    Raises
    ------
    BadValueError
        There is no such option, or its value is not allowed.

    Examples
    --------
    >>> lease_request({"count": 2, "memory": "1GB"}).memory_bytes
    1000000000
    """
    for name in options:
        if name not in _FIELDS:
            hint = did_you_mean(name, _FIELDS).removeprefix("; ")
            raise BadValueError(f"a lease has no option {name!r}", remedy=hint or f"allowed: {', '.join(_FIELDS)}")
    read: dict[str, Any] = {name: _READ[name](value) if name in _READ else value for name, value in options.items()}
    return LeaseRequest(**{_FIELDS[name]: value for name, value in read.items()})


def shows_lease_options(function: F) -> F:
    """Show in the signature of a function that takes `**options: Unpack[LeaseOptions]` which they are.

    Type checkers read that annotation; `inspect.signature`, help and notebooks read `__signature__`.

    Examples
    --------
    >>> import hetero, inspect
    >>> str(inspect.signature(hetero.cluster.Pool.lease).parameters["count"])
    'count: int = 1'
    """
    defaults = {each.name: each.default for each in fields(LeaseRequest)}
    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[_FIELDS[name]], annotation=kind)
        for name, kind in get_type_hints(LeaseOptions).items()
    ]
    return shows_keywords(shown)(function)
