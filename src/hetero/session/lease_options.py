"""The options of a lease as users write them: their names, types and defaults, and how each is read.

In: keywords. Out: a `LeaseRequest`. It must not ask for anything.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypedDict, TypeVar, get_type_hints

from hetero.floor.errors import BadValueError, did_you_mean
from hetero.floor.options import shows_keywords
from hetero.floor.units import parse_bytes, parse_seconds
from hetero.model.device import Device
from hetero.model.leases import LeaseRequest
from hetero.session.requests import flag, text, whole, words

__all__ = ["LeaseOptions", "lease_request", "shows_lease_options"]

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
_READ: dict[str, Callable[[Any], object]] = {
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
