"""Finding out which part of a call cannot travel.

In: a call that could not be encoded. Out: the error that names the function or the argument.
It is called after a failure only, and must not be slow to say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hetero.floor.errors import SerialisationError
from hetero.session.futures import Future
from hetero.session.tasks import TaskFunction

__all__ = ["blamed"]


def blamed(
    error: SerialisationError, task: TaskFunction[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> SerialisationError:
    """Return the error with the name of the part that cannot be pickled; as it was when none is found."""
    for name, value in _parts(task, args, kwargs):
        reason = _reason(value)
        if reason:
            return SerialisationError(f"{name} cannot travel to a worker: {reason}", remedy=_remedy(name))
    return error


def _parts(
    task: TaskFunction[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Iterator[tuple[str, object]]:
    plain = task.source.callable
    yield f"the function {task.name}", task.source.shipped or plain
    for word, code in task.source.implementations.items():
        yield f"the {word} implementation of {task.name}", code
    for number, value in enumerate(args, start=1):
        yield f"argument {number} of {task.name} (a {type(value).__name__})", value
    for word, value in kwargs.items():
        yield f"argument {word}= of {task.name} (a {type(value).__name__})", value


def _reason(value: object) -> str:
    import cloudpickle

    if isinstance(value, Future):
        return ""
    try:
        cloudpickle.dumps(value)
    except Exception as error:  # noqa: BLE001  pickling runs users' code
        problem = error.problem if isinstance(error, SerialisationError) else str(error)
        return (problem.splitlines() or [type(error).__name__])[0]
    return ""


def _remedy(name: str) -> str:
    if name.startswith("argument"):
        return "give what it was made from and make it inside the task"
    return "make what it uses inside the function, or give it as an argument"
