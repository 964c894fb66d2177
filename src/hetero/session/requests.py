"""Options of a task, as users write them, turned into a request.

In: keyword options with units and words. Out: a frozen `Request`, or one error that names the option.
It must not know a fleet: whether a device can meet the request is asked at submission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from inspect import isasyncgenfunction, iscoroutinefunction, isroutine
from numbers import Integral
from typing import TypedDict

from hetero.backends.registry import kinds, known_words
from hetero.floor.errors import BadValueError, did_you_mean
from hetero.floor.units import parse_bytes, parse_seconds
from hetero.model.device import KINDS, TYPE_WORDS, is_id
from hetero.model.tasks import PLAIN_PYTHON, SCOPES, Near, Request
from hetero.model.topology import LINK_KINDS

__all__ = [
    "OPTIONS",
    "TaskOptions",
    "build_request",
    "check_word",
    "checked_env",
    "flag",
    "implemented_words",
    "limited",
    "refuse_coroutine",
    "text",
    "whole",
    "words",
]


class TaskOptions(TypedDict, total=False):
    """What a task may ask for; `hetero.task` says what each option means, and None is as if it was left out."""

    on: str | Sequence[str] | None
    not_on: str | Sequence[str] | None
    devices: int | None
    memory: float | str | None
    min_cores: int | None
    near: object
    apart: object
    workload: str | None
    exclusive: bool | None
    timeout: float | str | None
    retries: int | None
    crashes: int | None
    priority: int | None
    split: Callable[..., object] | None
    merge: Callable[..., object] | None
    env: Mapping[str, str | None] | None
    seed: int | None
    name: str | None


OPTIONS = tuple(TaskOptions.__annotations__)
"""Every option of `hetero.task` and of `.options`."""


def build_request(options: Mapping[str, object], implementations: Iterable[str], has_plain: bool) -> Request:
    """Check the options of a task and give its request.

    Parameters
    ----------
    options
        Options by name, those not given left out.
    implementations
        Device words that the task has code of its own for.
    has_plain
        True where it has a plain Python function, too.

    Raises
    ------
    BadValueError
        An option is unknown, or its value is not allowed.

    Examples
    --------
    >>> request = build_request({"on": "GPU", "memory": "2GB", "timeout": "1.5s"}, (), True)
    >>> request.on, request.memory_bytes, request.timeout_s
    (('gpu',), 2000000000, 1.5)
    """
    for name in options:
        if name not in OPTIONS:
            allowed = ", ".join(OPTIONS)
            raise BadValueError(
                f"{name!r} is no option of a task{did_you_mean(name, OPTIONS)}", remedy=f"allowed: {allowed}"
            )
    options = {name: value for name, value in options.items() if value is not None}
    checked_env(options)
    if "seed" in options:
        whole("seed", options["seed"], 0)
    if not text("name", options.get("name", "task")):
        raise BadValueError("name='' is not allowed", remedy="give a text, or leave it out for the function's own name")
    return Request(
        on=words("on", options.get("on", ())),
        implemented=implemented_words(implementations, has_plain),
        not_on=words("not_on", options.get("not_on", ())),
        devices=whole("devices", options.get("devices", 1), 1),
        memory_bytes=parse_bytes(options.get("memory", 0)),
        min_cores=whole("min_cores", options.get("min_cores", 0), 0),
        near=_nears("near", options.get("near", ())),
        apart=_nears("apart", options.get("apart", ())),
        workload=text("workload", options.get("workload", "")),
        exclusive=flag("exclusive", options.get("exclusive", False)),
        timeout_s=_timeout_s(options),
        retries=whole("retries", options.get("retries", 0), 0),
        crashes=whole("crashes", options.get("crashes", 3), 0),
        priority=whole("priority", options.get("priority", 0), None),
        splittable=_split(options),
    )


def checked_env(options: Mapping[str, object]) -> Mapping[str, str | None]:
    """Return the environment variables that a task asks for.

    Raises
    ------
    BadValueError
        They are no mapping of names to texts.
    """
    given = options.get("env", {})
    if not isinstance(given, Mapping):
        raise BadValueError(f"env={given!r} is not allowed", remedy='give a dict, as in env={"NAME": "text"}')
    for name, text in given.items():
        if not isinstance(name, str) or not name or set("=\0") & set(name):
            raise BadValueError(f"env: {name!r} cannot name a variable", remedy="give a text without '='")
        if text is not None and (not isinstance(text, str) or "\0" in text):
            raise BadValueError(f"env: {name}={text!r} is no text", remedy="give a text, or None to unset it")
    return given


def implemented_words(implementations: Iterable[str], has_plain: bool) -> tuple[str, ...]:
    """Return the device words that a task has code for; empty where plain Python is all it needs.

    Examples
    --------
    >>> implemented_words(["opencl"], False), implemented_words(["cuda"], True)
    (('opencl',), ())
    >>> implemented_words(["opencl"], True)
    ('plain Python', 'opencl')
    """
    words = tuple(implementations)
    if not has_plain:
        return words
    return () if all(map(_runs_python, words)) else (PLAIN_PYTHON, *words)


def _runs_python(word: str) -> bool:
    kind = KINDS.get(word) or kinds().get(word)
    return kind is not None and kind.runs_python


@lru_cache(maxsize=4096)
def limited(request: Request, timeout_s: float) -> Request:
    """Return a request with a limit of time where it has none of its own; the same object each time."""
    return request if request.timeout_s else replace(request, timeout_s=timeout_s)


def check_word(option: str, word: object) -> str:
    """Return a device word in lower case, or say what was probably meant.

    Examples
    --------
    >>> check_word("on", "CUDA")
    'cuda'
    >>> check_word("on", "cudda")
    Traceback (most recent call last):
    hetero.floor.errors.BadValueError: on='cudda' is no kind or type of device; did you mean 'cuda'?; ...
    """
    if not isinstance(word, str) or not word.strip():
        raise BadValueError(
            f"{option}={word!r} is no word for a device", remedy="write a kind, a type or an id, as in 'cuda'"
        )
    given = word.strip().casefold()
    if set(given) & set(":/") and not is_id(given):
        raise BadValueError(
            f"{option}={word!r} fits no device",
            remedy="write an id as kind:index, the index without sign or leading zeros: 'cpu:1'",
        )
    if given in KINDS or given in TYPE_WORDS or set(given) & set(":/-"):
        return given
    known = known_words()
    hint = "" if given in known else did_you_mean(given, known)
    if hint:
        raise BadValueError(
            f"{option}={word!r} is no kind or type of device{hint}",
            remedy=f"allowed: {', '.join(known)}, or an id",
        )
    return given


def refuse_coroutine(code: object) -> None:
    """Refuse a coroutine function or an async generator where a worker would have to call it.

    Raises
    ------
    BadValueError
        Calling it gives something to be awaited.
    """
    called = code
    while isinstance(called, partial):
        called = called.func
    if not isroutine(called) and not isinstance(called, type):
        called = getattr(type(called), "__call__", None)  # noqa: B004  the function, not whether there is one
    awaited, generates = iscoroutinefunction(called), isasyncgenfunction(called)
    if awaited or generates:
        name = getattr(code, "__name__", None) or getattr(called, "__qualname__", type(code).__name__)
        raise BadValueError(
            f"{name} is {'a coroutine function' if awaited else 'an async generator'}: no event loop runs in a worker",
            remedy=f"write a plain function: def f(x): return asyncio.run({name}(x))"
            if awaited
            else f"write a plain function that returns what {name} yields as a list, with asyncio.run inside",
        )


def words(option: str, given: object) -> tuple[str, ...]:
    """Return one word for devices, or several, in lower case; see `check_word`."""
    listed = (given,) if isinstance(given, str) or hasattr(given, "id") else given
    if not isinstance(listed, Iterable) or isinstance(listed, bytes | Mapping):
        raise BadValueError(f"{option}={given!r} is no word for a device", remedy="write a word or a list of words")
    found = tuple(check_word(option, getattr(word, "id", word)) for word in listed)
    if option == "on" and not found and given != ():
        raise BadValueError(f"on={given!r} names no device", remedy="name one, or leave on= out for any device")
    return found


def whole(option: str, given: object, least: int | None) -> int:
    """Return a whole number, NumPy's too, as an int; refuse what is none, or less than `least`."""
    if isinstance(given, bool) or not isinstance(given, Integral) or (least is not None and given < least):
        limit = "" if least is None else f" of {least} or more"
        raise BadValueError(f"{option}={given!r} is not allowed", remedy=f"give a whole number{limit}")
    return int(given)


def _timeout_s(options: Mapping[str, object]) -> float:
    given = options.get("timeout")
    seconds = 0.0 if given is None else parse_seconds(given)
    if given is not None and not seconds:
        raise BadValueError(
            f"timeout={given!r} would end each call at once", remedy="give more than 0, or None for no limit"
        )
    return seconds


def text(option: str, given: object) -> str:
    """Return a text as it is; refuse what is none, or has blanks around it."""
    if not isinstance(given, str) or given != given.strip() or not given.isprintable():
        raise BadValueError(
            f"{option}={given!r} is not allowed",
            remedy="give a text of characters that print, without blanks around it",
        )
    return given


def flag(option: str, given: object) -> bool:
    """Return True or False as it is; refuse what only resembles it."""
    if not isinstance(given, bool):
        raise BadValueError(f"{option}={given!r} is not allowed", remedy="give True or False")
    return given


def _split(options: Mapping[str, object]) -> bool:
    for option in ("split", "merge"):
        given = options.get(option)
        if given is not None and not callable(given):
            raise BadValueError(f"{option}={given!r} is not allowed", remedy="give a function")
        refuse_coroutine(given)
    if (options.get("split") is None) != (options.get("merge") is None):
        raise BadValueError(
            "split= and merge= belong together", remedy="give both: how to cut the arguments, how to join the results"
        )
    return options.get("split") is not None


def _nears(option: str, given: object) -> tuple[Near, ...]:
    targets = given if isinstance(given, list) else [given] if given != () else []
    return tuple(_near(option, target) for target in targets)


def _near(option: str, target: object) -> Near:
    scope, other = target if isinstance(target, tuple) and len(target) == 2 else ("device", target)
    if not isinstance(scope, str) or (scope not in SCOPES[:3] and not scope.startswith("link:")):
        raise BadValueError(
            f"{option}={target!r} has no known scope{did_you_mean(scope, SCOPES)}",
            remedy="write a future, or (scope, future) with 'device', 'host', 'rack' or 'link:KIND'",
        )
    kind = scope.partition(":")[2]
    if scope.startswith("link:") and kind not in LINK_KINDS:
        raise BadValueError(
            f"{option}={scope!r} names no kind of link{did_you_mean(kind, LINK_KINDS)}",
            remedy=f"allowed: {', '.join(f'link:{kind}' for kind in LINK_KINDS)}",
        )
    if isinstance(other, str):
        if other in SCOPES or not other or other.startswith("link:"):
            raise BadValueError(
                f"{option}={target!r} says not to what", remedy=f"write {option}=({other or 'host'!r}, future)"
            )
        return Near(scope, 0, text(option, other))
    task = getattr(other, "task_id", None)
    if not isinstance(task, int):
        raise BadValueError(
            f"{option}={target!r} names no task",
            remedy="give a future of a task, the name of a workload, or a list of them",
        )
    return Near(scope, task, "")
