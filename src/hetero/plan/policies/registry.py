"""The registry of policies: ours, and those that other packages bring through entry points.

In: a name, or a fleet for which one is to be chosen. Out: a policy. It must not import a policy before it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import signature

from hetero.floor.errors import BadValueError, did_you_mean
from hetero.model.device import Device
from hetero.plan.policies.base import Policy

__all__ = ["AUTO", "DEFAULT", "GROUP", "OURS", "choose", "get", "misnamed", "names", "unaskable", "why_unusable"]

GROUP = "hetero.policies"
"""The entry point group in which other packages name a class (or function without arguments) that makes a policy."""

OURS: dict[str, str] = {
    "eft": "eft:EarliestFinishTime",
    "planned": "planned:Planned",
    "least_loaded": "least_loaded:LeastLoaded",
    "round_robin": "round_robin:RoundRobin",
    "consistent_hash": "consistent_hash:ConsistentHash",
    "work_stealing": "work_stealing:WorkStealing",
    "migration": "migration:Migration",
}
"""File and class in this folder by policy name, the default first."""

DEFAULT = next(iter(OURS))

AUTO = "auto"
"""The word by which users let `choose` name the policy."""


def names() -> tuple[str, ...]:
    """Return the names of all policies, ours first.

    Examples
    --------
    >>> names()[0]
    'eft'
    """
    return (*OURS, AUTO, *sorted({point.name for point in _others()} - {*OURS, AUTO}))


def choose(devices: Sequence[Device]) -> tuple[Policy, str]:
    """Return the policy that `auto` takes for a fleet, and the reason.

    Notes
    -----
    Every policy is asked in turn, those of other packages first and the default last, whether it suits the fleet;
    the first that gives a reason is taken. One that does not answer is there to be asked for by name.

    The choice is a rule and not a search, with what is known of a fleet before the first task: algorithm selection
    in the sense of J. R. Rice, Advances in Computers 15 (1976), 65-118.

    Examples
    --------
    >>> policy, reason = choose(())
    >>> policy.name, reason
    ('eft', 'no device is known yet')
    """
    broken: list[str] = []
    for name in (*names()[len(OURS) + 1 :], *reversed(OURS)):
        try:
            policy = get(name)
        except BadValueError as error:
            broken.append(f"; {error.problem}")
            continue
        suits = getattr(policy, "suits", None)
        reason = suits(devices) if suits is not None else ""
        if reason:
            return policy, "".join((reason, *broken))
    raise AssertionError("the default policy suits every fleet")


def get(name: str, devices: Sequence[Device] = ()) -> Policy:
    """Make a policy.

    Parameters
    ----------
    name
        One of `names()`.
    devices
        The fleet, by which `auto` chooses.

    Raises
    ------
    BadValueError
        No policy has this name, or the package that brings it cannot be loaded.

    Examples
    --------
    >>> get("eft").name
    'eft'
    """
    if name == AUTO:
        return choose(devices)[0]
    if name in OURS:
        file, _, made = OURS[name].partition(":")
        policy: Policy = getattr(import_module(f"hetero.plan.policies.{file}"), made)()
        return policy
    for point in _others():
        if point.name == name:
            return _made_by_others(point)
    known = names()
    raise BadValueError(f"no policy is named {name!r} (there are {', '.join(known)}){did_you_mean(name, known)}")


def why_unusable(point: EntryPoint) -> str:
    """Return why a policy of another package cannot be used, '' where it can."""
    if point.name in (*OURS, AUTO):
        return f"the name {point.name!r} is taken"
    try:
        _made_by_others(point)
    except BadValueError as error:
        return error.problem
    return ""


def misnamed(policy: Policy, given: str) -> str:
    """Return what is wrong with the name of a policy that is registered under a name, '' where nothing is."""
    name = getattr(policy, "name", None)
    if not isinstance(name, str) or not name:
        return f"{type(policy).__name__} has no name: give it a class attribute 'name'"
    return "" if given in (name, AUTO) else f"{name!r} is registered as {given!r}: both names are the same"


def unaskable(policy: object) -> str:
    """Return why a policy cannot be asked for proposals, '' where it can."""
    name = getattr(policy, "name", None) or type(policy).__name__
    propose = getattr(policy, "propose", None)
    if not callable(propose):
        return f"{name} has no method propose(view, ready, memory)"
    try:
        given = signature(propose)
    except (TypeError, ValueError):  # a callable that was not written in Python
        return ""
    try:
        given.bind(None, None, None)
    except TypeError:
        return f"{name} has propose{given}, and is called as propose(view, ready, memory)"
    return ""


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
    if why := unaskable(policy):
        raise BadValueError(
            f"policy {point.name!r} of {point.value} cannot be asked: {why}",
            remedy="repair or uninstall the package that brings it",
        )
    return policy
