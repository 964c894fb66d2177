"""What is laid around one task in its worker: variables, a seed, arguments copied, a check of its result.

In: a function, and what it needs. Out: a function that calls it with that, and leaves the worker as it was.
It must not be used where the process belongs to others as well: a worker thread refuses.
"""

from __future__ import annotations

import copy
import hashlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from hetero.drive.frame import Frame, called_key, current
from hetero.engines.base import Call, Function
from hetero.floor import platform, settings
from hetero.floor.contexts import transparent
from hetero.floor.errors import BadValueError
from hetero.model.device import HOST_NODE

__all__ = [
    "CallEnvironment",
    "HostArguments",
    "SeededCall",
    "Writes",
    "WritingCalls",
    "derived_seed",
    "kept_random_state",
]

_MOST = 1024


def derived_seed(seed: int, task_key: str, rank: int = 0) -> int:
    """Return the seed of one call: of the task's own seed, its name and its number among the calls of that name.

    The same program gets the same seeds, whichever devices run its tasks and however often they are tried again.

    Examples
    --------
    >>> derived_seed(7, "monday/f-1") == derived_seed(7, "tuesday/f-1") != derived_seed(7, "monday/f-2")
    True
    """
    words = f"{seed}/{called_key(task_key).partition('/')[2]}/{rank}"
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:4], "big")


class _RandomState:
    """Where the generators of `random`, NumPy and torch stand."""

    def __init__(self) -> None:
        import numpy as np

        torch = sys.modules.get("torch")
        self._python, self._numpy = random.getstate(), np.random.get_state()
        self._torch = None if torch is None else torch.get_rng_state()
        on_gpu = torch is not None and torch.cuda.is_initialized()
        self._gpus = torch.cuda.get_rng_state_all() if torch is not None and on_gpu else []

    def restore(self) -> None:
        """Set the generators back."""
        import numpy as np

        random.setstate(self._python)
        np.random.set_state(self._numpy)
        if self._torch is not None:
            torch = sys.modules["torch"]
            torch.set_rng_state(self._torch)
            if self._gpus:
                torch.cuda.set_rng_state_all(self._gpus)


@transparent
def kept_random_state() -> Iterator[None]:
    """Set the generators of `random`, NumPy and torch back at the end to where they were."""
    before = _RandomState()
    try:
        yield
    finally:
        before.restore()


class EnvironmentFound:
    """What a task with variables or a seed of its own has found in its worker.

    Parameters
    ----------
    names
        Of the variables that it replaces.
    seeded
        Whether it has a seed.
    """

    def __init__(self, names: Iterable[str], seeded: bool) -> None:
        self._env = settings.present(names)
        self._random = _RandomState() if seeded else None

    @transparent
    def again(self) -> Iterator[None]:
        """Have it again while another task runs on top of that one, whose own follows afterwards."""
        with settings.replaced(self._env):
            if self._random is None:
                yield
                return
            with kept_random_state():
                self._random.restore()
                try:
                    yield
                finally:
                    self._random = _RandomState()

    def restore(self) -> None:
        """Set the generators to where they were found, or where those on top have left them."""
        if self._random is not None:
            self._random.restore()


class SeededCall:
    """A function with variables and a seed around it.

    Parameters
    ----------
    function
        What is called.
    env
        Variables for the call, None for one that is not set then.
    seed
        Of the task, None for none.
    torch
        True where torch is seeded even if the worker has not imported it yet.
    """

    def __init__(self, function: Callable[..., object], env: Mapping[str, str | None], seed: int | None, torch: bool):
        self.function = function
        self.env = dict(env)
        self.seed = seed
        self.torch = torch

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Call the function."""
        frame = current()
        if frame is None:
            return self.function(*args, **kwargs)
        _refuse_threads(frame, "env=" if self.env else "seed=")
        if self.seed is not None and self.torch:
            import torch  # noqa: F401  so that it is there to be seeded
        found = frame.found = EnvironmentFound(self.env, self.seed is not None)
        try:
            with settings.replaced(self.env):
                if self.seed is not None:
                    _seed(derived_seed(self.seed, frame.task_key, 0 if frame.channel is None else frame.channel.rank))
                return self.function(*args, **kwargs)
        finally:
            frame.found = None
            found.restore()


def _refuse_threads(frame: Frame, option: str) -> None:
    if frame.device.isolation == "thread" or not platform.FEATURES.fd_passing:
        what = "its environment" if option == "env=" else "its random generators"
        raise BadValueError(
            f"{option} is not possible on {frame.device.id}: its worker is a thread, and the process shares {what}",
            remedy="use isolation: process",
        )


def _seed(number: int) -> None:
    import numpy as np

    random.seed(number)
    np.random.seed(number)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(number)


class CallEnvironment:
    """Provides the version of a function with variables and a seed around it, the same one for the same function."""

    def __init__(self, env: Mapping[str, str | None], seed: int | None) -> None:
        self.env = dict(env)
        self.seed = seed
        self._known: dict[str, Function] = {}

    def of(self, function: Function) -> Function:
        """Return a function with both around whatever Python it has."""
        torch = self.seed is not None and "torch" in sys.modules
        key = f"{function.key}|{sorted(self.env.items())} {self.seed} {torch}"
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            default = None if function.default is None else self._around(function.default, torch)
            parts = {word: self._around(each, torch) for word, each in function.implementations.items()}
            found = self._known[key] = Function(key, function.name, default, parts)
        return found

    def _around(self, code: object, torch: bool) -> Any:
        return SeededCall(code, self.env, self.seed, torch) if callable(code) else code


class _HostCall:
    """A function some of whose arguments are copied from the device to NumPy arrays before it is called."""

    def __init__(self, function: Callable[..., object], positions: tuple[int, ...], words: tuple[str, ...]) -> None:
        self.function = function
        self.positions = positions
        self.words = words

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Call the function."""
        frame = current()
        if frame is not None:
            backend, given = frame.backend, list(args)
            for position in self.positions:
                if backend.owns(given[position]):
                    given[position] = backend.copy_out(given[position])
            args = tuple(given)
            here = {word: backend.copy_out(kwargs[word]) for word in self.words if backend.owns(kwargs[word])}
            kwargs = {**kwargs, **here}
        return self.function(*args, **kwargs)


class HostArguments:
    """Provides the version of a plain function that gets NumPy arrays as NumPy arrays, also from a device's memory.

    A plain function was written for whatever calls it with arrays; one that is marked as a task asks for the module
    of the device's arrays.
    """

    def __init__(self) -> None:
        self._known: dict[str, Function] = {}

    def of(self, function: Function, positions: tuple[int, ...], words: tuple[str, ...]) -> Function:
        """Return a function whose arguments at these positions and under these words arrive as NumPy arrays."""
        key = f"{function.key}|host {positions} {words}"
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            default = None if function.default is None else _HostCall(function.default, positions, words)
            found = self._known[key] = Function(key, function.name, default, function.implementations)
        return found


class Writes(NamedTuple):
    """How one call writes data.

    Attributes
    ----------
    changes
        Positions and names of the arguments that it may change in place.
    names
        Of the data of which it returns new values: one value, or a tuple of several.
    copies
        True where these arguments are copied beforehand: workers are handed the program's own objects, or one of them
        is given to the call twice.
    """

    changes: tuple[int | str, ...]
    names: tuple[str, ...]
    copies: bool


class WritingCall:
    """A function that returns new values of data, and may change some of its arguments in place on the way.

    What it changes is its own copy, so that the values before stay for other tasks and for another attempt. In a worker
    process, values of the host's memory are private by themselves: pages are copied as they are written to, or all at
    once to where the result of the attempt will lie.

    Parameters
    ----------
    function
        What is called.
    writes
        How; without names where these are the first argument.
    """

    def __init__(self, function: Callable[..., object], writes: Writes) -> None:
        self.function = function
        self.writes = writes

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Call the function, and refuse what is not one value for each of the data."""
        names, (changes, _, copies) = self.writes.names, self.writes
        if not names:
            names, args = cast("tuple[str, ...]", args[0]), args[1:]
        frame = current()
        own: Callable[[object], object] | None = copy.deepcopy
        if not copies and frame is not None and frame.device.isolation != "thread":
            own = frame.own if frame.device.memory_node == HOST_NODE else own
        if own is not None:
            args = tuple([own(each) if at in changes else each for at, each in enumerate(args)])
            kwargs = {word: own(each) if word in changes else each for word, each in kwargs.items()}
        value = self.function(*args, **kwargs)
        if frame is None or frame.channel is None or frame.channel.rank == 0:
            self._check(value, names)
        return value

    def _check(self, value: object, names: tuple[str, ...]) -> None:
        several = len(names) > 1
        values = value if several and isinstance(value, tuple | list) else (value,)
        lacking = any(each is None for each in values)
        if len(values) == len(names) and not lacking:
            return
        name = getattr(self.function, "__name__", type(self.function).__name__)
        wanted = f"a tuple of {len(names)} values" if several else "the new value"
        given = "None" if lacking else f"{len(values)} value{'s' if len(values) != 1 else ''}"
        raise BadValueError(
            f"{name} writes {', '.join(names)} and returned {given}",
            remedy=f"return {wanted}, also where an argument was changed in place",
        )


class WritingCalls:
    """Provides the version of a function with a `WritingCall` around it, the same one for all data that it writes."""

    def __init__(self) -> None:
        self._known: dict[str, Function] = {}

    def apply(self, call: Call, writes: Writes) -> None:
        """Have a call go through a `WritingCall`; the names of the data travel as its first argument.

        Kernels take no such argument: where a function has some, the names are part of it.
        """
        function = call.function
        if all(map(callable, function.implementations.values())):
            call.args = (writes.names, *call.args)
            writes = writes._replace(names=())
        key = f"{function.key}|writes {writes}"
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            parts = {
                word: WritingCall(each, writes) if callable(each) else each
                for word, each in function.implementations.items()
            }
            default = None if function.default is None else WritingCall(function.default, writes)
            found = self._known[key] = Function(key, function.name, default, parts)
        call.function = found
