"""Tasks: functions with what they ask of a device, as `@hetero.task` makes them.

In: a function or a kernel, and options. Out: a callable that a Context can submit. It must not start anything: a task
knows no fleet until it is submitted. Where a call cannot travel, `blamed` says which part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from inspect import Parameter
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeGuard, TypeVar, Unpack, get_type_hints, overload

from hetero.drive.call_environment import CallEnvironment
from hetero.floor.deprecation import renamed_keywords
from hetero.floor.errors import BadValueError, SerialisationError
from hetero.floor.options import shows_keywords
from hetero.floor.text import single_line
from hetero.model.tasks import JUDGED_BY_CALLER, Request
from hetero.session.functions import FunctionSource, source_of, travels_by_name
from hetero.session.requests import TaskOptions, build_request, check_word, checked_env, refuse_coroutine

if TYPE_CHECKING:
    from hetero.backends.base import Kernel

__all__ = ["TaskFunction", "as_task", "blamed", "judged_by_caller", "task"]

P = ParamSpec("P")
R = TypeVar("R")
Code = TypeVar("Code")

_SHOWN = [
    Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind)
    for name, kind in get_type_hints(TaskOptions).items()
]


class TaskFunction(Generic[P, R]):
    """A function that can be submitted, with what it asks of its device.

    Called directly it runs the plain function here and now. `options` gives a copy with other wishes,
    `implementation` adds code of its own for some devices.

    Attributes
    ----------
    source
        The function and its implementations.
    request
        What it asks of its device.
    surroundings
        Lays variables and a seed around a call, None for neither.
    name
        For people.
    is_plain
        True for a function that nobody marked as a task: it gets its arguments as they were given.

    Examples
    --------
    >>> twice = TaskFunction(lambda x: 2 * x, {"name": "twice", "memory": "1GB"})
    >>> twice(4), twice, twice.options(on="gpu").request.on
    (8, <task twice>, ('gpu',))
    """

    def __init__(
        self, plain: Callable[P, R] | None, options: Mapping[str, object], source: FunctionSource | None = None
    ) -> None:
        refuse_coroutine(plain)
        given: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
        name = given.get("name") or single_line(getattr(plain, "__name__", type(plain).__name__))
        self._options = given
        self.source = source if source is not None else FunctionSource(plain, {}, name)
        self.name: str = name
        self.request: Request = build_request(given, self.source.implementations, self.source.callable is not None)
        env, seed = checked_env(given), given.get("seed")
        self.surroundings: CallEnvironment | None = CallEnvironment(env, seed) if env or seed is not None else None
        self.is_plain = False
        if source is None and plain is not None:
            functools.update_wrapper(self, plain)
            self.source.shipped = self if _is_module_level(plain) else None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the plain function here and now."""
        plain = self.source.callable
        if plain is None:
            raise BadValueError(f"{self.name} has kernels only", remedy=f"run it with ctx.run({self.name}, …)")
        result: R = plain(*args, **kwargs)
        return result

    @property
    def split(self) -> Callable[..., Iterable[object]] | None:
        """How to cut the arguments of one call, None where it cannot be cut."""
        return self._options.get("split")

    @property
    def merge(self) -> Callable[..., object] | None:
        """How to join the results of the parts."""
        return self._options.get("merge")

    @renamed_keywords(kinds="on")
    @shows_keywords(_SHOWN)
    def options(self, **options: Unpack[TaskOptions]) -> TaskFunction[P, R]:
        """Return the same task with other options, those of `hetero.task`; what is not named stays.

        Raises
        ------
        BadValueError
            An option is unknown, or its value is not allowed.

        Examples
        --------
        >>> import hetero
        >>> @hetero.task
        ... def double(x):
        ...     return 2 * x
        >>> patient = double.options(retries=5)
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     ctx.run(patient, 4)
        8
        """
        merged = {option: value for option, value in {**self._options, **options}.items() if value is not None}
        made: TaskFunction[P, R] = TaskFunction(self.source.callable, merged, self.source)
        made.is_plain = self.is_plain
        return made

    @overload
    def implementation(self, *words: str) -> Callable[[Code], Code]: ...
    @overload
    def implementation(self, *words: object) -> Any: ...
    def implementation(self, *words: object) -> object:
        """Add code for some devices, as a decorator or directly.

        Parameters
        ----------
        *words
            Device words (kinds, types, labels); a function or a `hetero.tasks.Kernel` may follow them.

        Examples
        --------
        >>> area = TaskFunction(lambda r: 3.14 * r * r, {"name": "area"})
        >>> @area.implementation("cuda")
        ... def on_cuda(r):
        ...     return 3.14159 * r * r
        >>> sorted(area.source.implementations)
        ['cuda']
        """
        if words and not isinstance(words[-1], str):
            return self._add(words[:-1], words[-1])
        return lambda code: self._add(words, code)

    def _add(self, words: tuple[object, ...], code: object) -> object:
        if not words:
            raise BadValueError(
                f"an implementation of {self.name} names no device", remedy=f'write {self.name}.implementation("cuda")'
            )
        if not callable(code) and not _is_kernel(code):
            raise BadValueError(f"{code!r} is no implementation", remedy="give a function or a hetero.tasks.Kernel")
        refuse_coroutine(code)
        for word in words:
            self.source.implementations[check_word("implementation", word)] = code
        self.source.changed()
        self.request = build_request(self._options, self.source.implementations, self.source.callable is not None)
        return code

    def __reduce__(self) -> str | tuple[object, ...]:
        """Travel by name where a worker can import it, else with the function."""
        if travels_by_name(self):
            return str(getattr(self, "__qualname__"))  # noqa: B009
        return _rebuilt, (self.source.callable, self.source.implementations, self._travelling())

    def _travelling(self) -> dict[str, object]:
        return {option: value for option, value in self._options.items() if option not in ("near", "apart")}

    def __repr__(self) -> str:
        return f"<task {self.name}>"


def _rebuilt(
    plain: Callable[..., object] | None, implementations: dict[str, object], options: dict[str, object]
) -> TaskFunction[..., object]:
    made: TaskFunction[..., object] = TaskFunction(plain, options)
    for word, code in implementations.items():
        made.implementation(word, code)
    return made


def _is_module_level(plain: object) -> bool:
    return getattr(plain, "__module__", "__main__") != "__main__" and "<" not in getattr(plain, "__qualname__", "<")


def _is_kernel(code: object) -> TypeGuard[Kernel]:
    return hasattr(code, "source") and hasattr(code, "entry")


@overload
def task(function: Callable[P, R], /) -> TaskFunction[P, R]: ...
@overload
def task(
    function: None = None, /, **options: Unpack[TaskOptions]
) -> Callable[[Callable[P, R]], TaskFunction[P, R]]: ...
@overload
def task(function: Any, /, **options: Unpack[TaskOptions]) -> TaskFunction[..., Any]: ...
@renamed_keywords(kinds="on")
@shows_keywords(_SHOWN)
def task(function: object = None, /, **options: Unpack[TaskOptions]) -> object:
    """Create a task of a function, bare or with options.

    Parameters
    ----------
    function
        A function, or a `hetero.tasks.Kernel` with `on=` the kind that it is written for.
    on
        Word or words of devices that may run it: a kind ('cuda'), a type ('GPU'), an id ('cpu:0').
    not_on
        Words of devices that must not run it.
    devices
        How many devices it takes together; inside, `rank()` and `world_size()` of `hetero.collectives` tell.
    memory
        Bytes it needs beyond its arguments, as in '2GB'.
    min_cores
        Cores that its device must have.
    near, apart
        A future or a workload, or (scope, that) with 'device', 'host', 'rack' or 'link:KIND'.
    workload
        Name of the workload that it belongs to.
    exclusive
        True when nothing else may run on its host meanwhile.
    timeout
        How long it may run, as in '30s'.
    retries, crashes
        How often its own exception, and the death of its worker, is retried.
    priority
        Higher goes first.
    split, merge
        Split(*args, **kwargs) gives a list of tuples of arguments, merge(results) the result; used when it does not
        fit into memory.
    env
        Environment variables while it runs, None for one that is not set; not in worker threads.
    seed
        Seeds `random`, NumPy and torch before each call, by this number, the task's name and the number of the call,
        so that the same program gets the same values wherever its tasks run; not in worker threads.
    name
        For people, when the function's own does not serve.

    Raises
    ------
    BadValueError
        An option is unknown, or its value is not allowed.

    Examples
    --------
    >>> import hetero
    >>> @hetero.task(on="gpu", timeout="30s")
    ... def train(x):
    ...     return x + 1
    >>> train(1)
    2
    """
    if function is None:
        build_request(options, (), True)
        return lambda plain: task(plain, **options)
    if isinstance(function, TaskFunction):
        return function.options(**options)
    if _is_kernel(function):
        return _kernel_task(function, options)
    if not callable(function):
        raise BadValueError(f"{function!r} is no function", remedy="put @hetero.task above a function")
    return TaskFunction(function, options)


def judged_by_caller(made: TaskFunction[P, R]) -> TaskFunction[P, R]:
    """Fail a task at the first death of its worker; its caller submits it again as it sees fit."""
    made.request = replace(made.request, crashes=JUDGED_BY_CALLER)
    return made


def _kernel_task(kernel: Kernel, options: TaskOptions) -> TaskFunction[..., object]:
    words = options.pop("on", None)
    if words is None:
        raise BadValueError(
            f"the kernel {kernel.entry} names no device", remedy='write hetero.task(kernel, on="opencl")'
        )
    made: TaskFunction[..., object] = TaskFunction(None, {"name": kernel.entry, **options})
    made.implementation(*((words,) if isinstance(words, str) else words), kernel)
    return made


def as_task(function: object) -> TaskFunction[..., object]:
    """Return a task as it is, and a plain function as a task without wishes; the same one each time.

    Raises
    ------
    SerialisationError
        It cannot be called.
    """
    if isinstance(function, TaskFunction):
        return function
    if not callable(function):
        raise SerialisationError(
            f"{function!r} is no function", remedy="give a function and its arguments: ctx.submit(f, x)"
        )
    source = source_of(function)
    made: TaskFunction[..., object] | None = source.plain_task
    if made is None:
        made = TaskFunction(function, {"name": source.name}, source)
        made.is_plain = True
        if isinstance(function, FunctionType):  # others have a new source each time, which a cycle would keep
            source.plain_task = made
    return made


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

    from hetero.session.futures import Future

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
