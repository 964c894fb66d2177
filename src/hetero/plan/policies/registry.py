"""The registry of policies: ours, and those that other packages bring through entry points.

In: a name. Out: a policy. It must not import a policy before it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from hetero.floor.errors import BadValueError, did_you_mean
from hetero.plan.policies.base import Policy

__all__ = ["GROUP", "OURS", "get", "names"]

GROUP = "hetero.policies"
"""The entry point group in which other packages name a class (or function without arguments) that makes a policy."""

OURS: dict[str, str] = {
    "eft": "eft:EarliestFinishTime",
    "planned": "planned:Planned",
    "auto": "auto:Auto",
    "least_loaded": "least_loaded:LeastLoaded",
    "round_robin": "round_robin:RoundRobin",
    "consistent_hash": "consistent_hash:ConsistentHash",
    "work_stealing": "work_stealing:WorkStealing",
    "migration": "migration:Migration",
}
"""File and class in this folder by policy name, the default first."""


def names() -> tuple[str, ...]:
    """Return the names of all policies, ours first.

    Examples
    --------
    >>> names()[0]
    'eft'
    """
    return (*OURS, *sorted({point.name for point in _others()} - set(OURS)))


def get(name: str) -> Policy:
    """Make a policy.

    Parameters
    ----------
    name : one of `names()`

    Raises
    ------
    BadValueError
        No policy has this name, or the package that brings it cannot be loaded.

    Examples
    --------
    >>> get("eft").name
    'eft'
    """
    if name in OURS:
        file, _, made = OURS[name].partition(":")
        policy: Policy = getattr(import_module(f"hetero.plan.policies.{file}"), made)()
        return policy
    for point in _others():
        if point.name == name:
            return _made_by_others(point)
    known = names()
    raise BadValueError(f"no policy is named {name!r} (there are {', '.join(known)}){did_you_mean(name, known)}")


def _others() -> tuple[EntryPoint, ...]:
    return tuple(sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)))


def _made_by_others(point: EntryPoint) -> Policy:
    try:
        policy: Policy = point.load()()
    except Exception as error:
        raise BadValueError(
            f"policy {point.name!r} of {point.value} cannot be loaded ({type(error).__name__}: {error})",
            remedy="repair or uninstall the package that brings it",
        ) from error
    return policy
