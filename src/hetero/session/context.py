"""The Context: a fleet, and the verbs by which a program gives it work.

In: a configuration, functions and arguments. Out: futures and results.
It must not choose devices: it hands tasks to the driver, which asks the core.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Unpack

from hetero.drive.call_environment import Writes, WritingCalls
from hetero.drive.frame import KEPT_MARK, current
from hetero.drive.profiling import Profiling
from hetero.engines.base import Call, ItemRef, Nest, NodeUsage
from hetero.floor.deprecation import Moved, moved_keywords, renamed_keywords
from hetero.floor.errors import BadValueError, HeteroError, SerialisationError
from hetero.floor.options import options_argument
from hetero.model.device import HOST_NODE
from hetero.model.tasks import Task
from hetero.session import runs
from hetero.session.asyncio_twins import AsyncTwins
from hetero.session.callbacks import Callbacks
from hetero.session.futures import Future, R, bind, refuse_held
from hetero.session.identity import call_identity, value_identity
from hetero.session.options import ContextOptions, Fleet, LeaseOptions, shows_lease_options
from hetero.session.requests import limited
from hetero.session.run_server import publish
from hetero.session.sharing import Sharing
from hetero.session.signature import describe, describe_value
from hetero.session.tasks import TaskFunction, as_task

if TYPE_CHECKING:
    import hetero
    from hetero.drive.live import Driver
    from hetero.model.device import Device
    from hetero.session.config import Config
    from hetero.session.executor import Executor
    from hetero.session.explain import Explained
    from hetero.session.leases import ContextLease, ContextLeases, PooledDevice
    from hetero.session.metrics import MetricsServer

__all__ = ["Context"]

P = ParamSpec("P")

_SPREADS, _ALONE = Nest(), Nest(spreads=False)
_MOVED = {name: name for name in ("initializer", "initargs", "profile", "progress")}
_UNFIT = re.compile(r"[^A-Za-z0-9_-]+")


def _passes_former(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate `Context.map_batches` so that former keywords reach `hetero.batch.map_batches`, which knows them."""
    parameters = signature(function).parameters

    @wraps(function)
    def accept(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs.keys() <= parameters.keys():
            return function(*args, **kwargs)
        import hetero

        ctx, *given = args
        found: R = hetero.batch.map_batches(*given, ctx=ctx, **kwargs)  # type: ignore[assignment, arg-type]
        return found

    return accept


class Context(AsyncTwins):
    """A fleet that takes tasks.

    Parameters
    ----------
    config
        A YAML file, a dict of the same form, or None.
    devices
        The fleet, as in '1xcpu,1xcpu*0.25', or a list of devices as in the file; every sound device of this host where
        nothing names any.
    engine
        'local', 'inline' or 'ray'.
    address
        Of the Ray cluster: 'local' for one of this program's own, 'auto' or 'host:port'.
    policy
        Name of a policy; 'auto' chooses.
    isolation
        'process' or 'thread'.
    memory_pool_size
        Of the memory that arrays travel through, as in '2GB'.
    name
        Of the run; calls of the same code and arguments find their checkpoints of earlier runs of this name again.
    trace
        File that the trace is written to; in its name {pid} is the process id, {n} the number of the Context.
    set
        Settings laid over the file, 'key.path=value'.
    history
        False neither reads nor writes the times measured in other runs.
    options
        Whatever is needed more seldom, such as a profiler or an initializer of workers.

    Raises
    ------
    ConfigError
        The configuration is wrong, or names devices that are not here; the message lists everything.
    BadValueError
        It is opened inside a task, or a keyword and `options` say the same thing.

    Notes
    -----
    A keyword and `options` win over `set`, this over the file, and the file over the environment. As a `with`
    block it waits for its tasks at the end and brings their results into the program; left by an exception, or
    at the end of the program, it stops them. It cannot be opened inside a task.

    Examples
    --------
    >>> import hetero
    >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
    ...     ctx.run(sum, [1, 2, 3])
    6
    """

    @moved_keywords(Moved("options", ContextOptions, _MOVED))
    def __init__(
        self,
        config: str | Path | Mapping[str, object] | Config | None = None,
        *,
        devices: Fleet = None,
        engine: str | None = None,
        address: str | None = None,
        policy: str | None = None,
        isolation: str | None = None,
        memory_pool_size: str | int | None = None,
        name: str | None = None,
        trace: str | Path | None = None,
        set: Sequence[str] | Mapping[str, object] = (),
        history: bool | None = None,
        options: ContextOptions | None = None,
    ) -> None:
        from hetero.engines.shared.worker_setup import Initializer, WorkerSetup
        from hetero.session.config import load
        from hetero.session.opening import Opened
        from hetero.session.split_tasks import cut_later

        self.closed = True
        runs.refuse_inside_a_task()
        given = (options_argument("options", options, ContextOptions) or ContextOptions()).overlaid(
            config=config, engine=engine, address=address, policy=policy, isolation=isolation,
            memory_pool_size=memory_pool_size, name=name, trace=trace, set=set, history=history,
        )  # fmt: skip
        self.config = runs.with_own_trace(load(given.config, set=given.set, devices=devices, **given.keys))
        self.name = self.config.name or ""
        self._run_key = self.name or runs.unnamed_run()
        self._numbers: dict[str, tuple[str, itertools.count[int]]] = {}
        self._live: dict[int, weakref.ref[Future]] = {}
        self._forked: HeteroError | None = None
        self.held: tuple[int, str] | None = None
        self._lock = threading.Lock()
        self._callbacks = Callbacks()
        self._ending: int | None = None
        this = weakref.ref(self)
        start = None if given.initializer is None else Initializer(given.initializer, tuple(given.initargs))
        setup = WorkerSetup(tag_output=self.config.tag_output, initializer=start)
        self._profiling = Profiling(self.config.profile) if self.config.profile else None
        self._metrics: MetricsServer | None = None
        remembers = given.history is not False and self._profiling is None
        self._opened = Opened(
            self.config, setup, lambda item: cut_later(this(), item), history=remembers, progress=given.progress
        )
        self.driver: Driver = self._opened.driver
        self.driver.nested.timeout_s = self.config.timeout_s or 0.0
        nodes = {device.memory_node for device in self._opened.devices}
        self._sharing = Sharing(self) if nodes - {HOST_NODE} else None
        self._writing = WritingCalls()
        self._leases: ContextLeases | None = None
        self._published = publish(self) if self.engine != "inline" else None
        self.closed = False
        runs.opened(self)
        if self.config.metrics is not None:
            from hetero.session.metrics import configured_metrics

            self._metrics = configured_metrics(self)

    # --- giving work ---------------------------------------------------------------------------------------

    def submit(self, function: Callable[..., R], /, *args: object, **kwargs: object) -> Future[R]:
        """Submit one call of a function and give its future at once.

        Parameters
        ----------
        function
            A task, or a plain function.
        *args, **kwargs
            Its arguments, taken as they are now; a future, also inside lists, tuples, dicts, sets, named tuples and
            dataclasses, makes the task wait for it. A future of another Context is waited for here, and its value
            passed.

        Raises
        ------
        SerialisationError
            The function or an argument cannot travel to a worker; the message says which.
        NothingFitsError
            No device of the fleet can meet the request; the message gives the reason per device.
        BadValueError
            An argument is a generator or contains itself, or the Context is closed.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     ctx.submit(pow, 2, 5).result()
        32
        """
        return self._submit_call(as_task(function), args, kwargs)

    def _submit_call(
        self,
        task: TaskFunction[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        behind: tuple[Future, ...] = (),
        writes: Writes | None = None,
    ) -> Future:
        """Submit one call of a task, its arguments as a tuple and a mapping.

        Parameters
        ----------
        behind
            Futures of this Context that must have ended before; their values do not travel.
        writes
            The data of which it returns new values, and the arguments that it may change in place.
        """
        if self._ending is not None:
            self._refuse_late()
        driver, source = self.driver, task.source
        function = source.current() if self._profiling is None else self._profiling.of(source.current())
        if task.surroundings is not None:
            function = task.surroundings.of(function)
        future = Future(self, driver.new_id(), task.name)
        failed = next((each for each in behind if each._has_failed()), None) if behind else None
        identity = call_identity(task, args, kwargs) if self.name else ""
        if task.request.splittable:
            future._cut = (task, args, kwargs)
        if args or kwargs:
            signature, size = describe(source.model_key, args, kwargs)
            if self._sharing is not None:
                if task.is_plain:
                    function = self._sharing.as_given(function, args, kwargs)
                args, kwargs = self._sharing.shared(args, kwargs)
            bound = bind(task.name, args, kwargs, self._reference)
            failed = bound.failed or failed
            args, kwargs, refs, after, keep, _ = bound
        else:
            signature, size, refs, after, keep = f"{source.model_key}|", 0.0, (), (), ()
        if failed is not None:
            future._fail_like(failed)
            return future
        if behind:
            after = (*after, *[each.item for each in behind])
        request = task.request if self.config.timeout_s is None else limited(task.request, self.config.timeout_s)
        if self._leases is not None:
            request = self._leases.around(task.name, signature, request)
        item = future.item
        task_key = self._checkpoint_key(task.name, identity)
        if self.name:
            future._task_key = task_key
        call = Call(function, args, kwargs, refs, None, task_key, keep, _ALONE if request.exclusive else _SPREADS)
        if writes is not None:
            self._writing.apply(call, writes)
        self._live[item] = weakref.ref(future)
        try:
            driver.submit(Task(item, task.name, signature, size, refs, after, request), call, future)
        except BaseException as error:
            if not driver.has(item):
                self._live.pop(item, None)
            if isinstance(error, SerialisationError):
                self._blame(error, task, args, kwargs)
            raise
        return future

    def run(self, function: Callable[..., R], /, *args: object, **kwargs: object) -> R:
        """Run one call of a function and give its result; interrupted, it stops the task.

        Raises
        ------
        Exception
            Whatever the function raised, with the remote traceback as its cause; and whatever `submit` raises.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     ctx.run(pow, 2, 5)
        32
        """
        future: Future[R] = self._submit_call(as_task(function), args, kwargs)
        try:
            return future.result()
        except (KeyboardInterrupt, BadValueError):  # it may not be waited for here, and nobody else has it
            future.cancel()
            raise

    def map(
        self,
        function: Callable[..., R],
        /,
        *iterables: Iterable[object],
        chunk: int | str = "auto",
        timeout: float | None = None,
    ) -> Iterator[R]:
        """Run a function over the items and give the results in order, as `concurrent.futures` does.

        Parameters
        ----------
        iterables
            Read at once, as far as the shortest lasts; the function gets one item of each. An array that comes more
            than once is copied once, as it is now; the items of one chunk share it.
        chunk
            How many items make a task; 'auto' measures some items first and makes tasks of 2 ms or more, at least four
            for each device.
        timeout
            Seconds from now within which each result must be there.

        Raises
        ------
        BadValueError
            The chunk is no whole number from 1.
        TimeoutError
            From the iterator: a result was not there in time.

        Notes
        -----
        The tasks are handed in before the iterator is read. An exception of the function comes from the iterator
        in place of the first result of its chunk and ends it, as in `concurrent.futures`: the tasks left are stopped.
        To go on after failures, `submit` the items and `gather(futures, return_exceptions=True)`. An iterator that is
        closed early stops the tasks left. The items of a chunk that ended its worker again and again are run one by
        one when they are read: only an item that ends its worker by itself raises, with its index.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     list(ctx.map(abs, [-1, 2, -3]))
        [1, 2, 3]
        """
        from hetero.session.mapping import start_map

        return start_map(self, as_task(function), iterables, chunk, timeout)

    def put(self, value: R) -> Future[R]:
        """Keep a value for many tasks, so that it travels once; give it to them as an argument.

        Raises
        ------
        SerialisationError
            The value cannot travel.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     rows = ctx.put([3, 1, 2])
        ...     ctx.run(max, rows), ctx.run(min, rows)
        (3, 1)
        """
        if self._ending is not None:
            self._refuse_late()
        driver = self.driver
        item = driver.put(value)
        future = Future(self, item, type(value).__name__, is_task=False)
        future._described = describe_value(value)
        if self.name:
            future._identity = value_identity(value)
        future._committed(lambda: driver.load(item))
        return future

    def gather(self, futures: object, *, return_exceptions: bool = False) -> list[Any]:
        """Wait for futures and return their values as a list; containers inside keep their form.

        Parameters
        ----------
        return_exceptions
            True puts the exception of a task that failed, or `CancelledError`, in the place of its value.

        Raises
        ------
        Exception
            The first exception of a task, in the order of the futures, unless `return_exceptions` is True.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     ctx.gather([ctx.submit(abs, -1), ctx.submit(abs, -2)])
        [1, 2]
        """
        from hetero.session.gathering import gather

        return gather(futures, return_exceptions)

    def reduce(self, function: Callable[..., object], futures: Iterable[object], *, ordered: bool = True) -> Future:
        """Combine the values of futures two by two and give the future of the total.

        Parameters
        ----------
        function
            Of two values, associative.
        futures
            At least one; values that are no futures are put first.
        ordered
            True keeps the order of the operands; False also lets the function swap them, so that all that lies on one
            memory node is combined there first.

        Raises
        ------
        BadValueError
            There is nothing to combine.

        Notes
        -----
        Waits for the futures, since only then it is known where they lie. Neighbours on one memory node are
        combined first, without a transfer; what is left is combined as a tree.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     parts = [ctx.submit(abs, -n) for n in range(4)]
        ...     ctx.reduce(max, parts).result()
        3
        """
        from hetero.session.gathering import reduce

        return reduce(self, as_task(function), futures, ordered)

    @renamed_keywords(out="output")
    @_passes_former
    def map_batches(
        self,
        fn: object,
        source: object,
        /,
        *,
        batch: str | int | Mapping[str, int] = "auto",
        merge: object = None,
        output: object = None,
        form: str | None = None,
        errors: float | str = 0,
        resume: bool = False,
        options: hetero.batch.BatchOptions | None = None,
        limits: hetero.batch.BatchLimits | None = None,
    ) -> hetero.batch.BatchOutcome:
        """Run a function or a model over many records, every device at its own batch size.

        The parameters are those of `hetero.batch.map_batches`; the devices are those of this Context.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     ctx.map_batches(lambda batch: [2 * x for x in batch], [1, 2, 3]).value
        [2, 4, 6]
        """
        import hetero

        return hetero.batch.map_batches(
            fn, source, batch=batch, merge=merge, output=output, form=form, errors=errors, resume=resume,
            options=options, limits=limits, ctx=self,
        )  # fmt: skip

    def explain(self, function: Callable[..., object], /, *args: object, **kwargs: object) -> Explained:
        """Return for each device how long this call would take, how that is known, and which would be chosen.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     _ = ctx.run(abs, -1)
        ...     print(str(ctx.explain(abs, -1)).splitlines()[0])
        abs on 1 device
        """
        from hetero.session.explain import Explained

        task = as_task(function)
        task.source.current()
        signature, size = describe(task.source.model_key, args, kwargs)
        return Explained(task.name, tuple(self.driver.explain(signature, size, task.request)))

    @shows_lease_options
    def lease(
        self, prepare: Callable[[PooledDevice], object] | None = None, **options: Unpack[LeaseOptions]
    ) -> ContextLease:
        """Hold devices of the fleet for oneself; other tasks that are submitted meanwhile keep away from them.

        Parameters
        ----------
        prepare, options
            As for `hetero.cluster.Pool.lease`.

        Returns
        -------
        ContextLease
            A `with` block gives it back; its `submit` and `run` use its devices.

        Raises
        ------
        NothingFitsError
            The fleet can never meet it, or did not within its `timeout`.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="2xcpu", isolation="thread", history=False) as ctx:
        ...     with ctx.lease(on="cpu:1") as mine:
        ...         mine.run(abs, -1), [device.id for device in mine.devices]
        (1, ['h0/cpu:1'])
        """
        from hetero.session.leases import ContextLeases

        if self.closed:
            self._refuse()
        with self._lock:
            if self._leases is None:
                self._leases = ContextLeases(self)
        return self._leases.lease(prepare, options)

    def executor(self) -> Executor:
        """Return a `concurrent.futures.Executor` over this Context.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     with ctx.executor() as pool:
        ...         pool.submit(abs, -1).result()
        1
        """
        from hetero.session.executor import Executor

        return Executor(self)

    # --- seeing --------------------------------------------------------------------------------------------

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of the fleet."""
        return self._opened.devices

    @property
    def usage(self) -> Mapping[str, NodeUsage]:
        """How full each memory node is."""
        return {} if self.closed and self._forked is None else self.driver.usage()

    @property
    def engine(self) -> str:
        """The engine that executes: 'local', 'inline' or 'ray'."""
        return self._opened.engine_name

    @property
    def policy_reason(self) -> str:
        """Why this policy places the tasks; what `policy: auto` chose and why."""
        return self._opened.policy_reason

    def left_out(self) -> list[tuple[str, str]]:
        """Return each device that ran none of at least four tasks a device, with the reason; also when closed.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     ctx.left_out()
        []
        """
        return self._opened.left_out()

    def flush_trace(self) -> None:
        """Write to its file what the trace of this Context holds so far.

        Examples
        --------
        >>> import hetero, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.jsonl"
        >>> with hetero.Context(devices="1xcpu", engine="inline", trace=path) as ctx:
        ...     _ = ctx.run(abs, -1)
        ...     ctx.flush_trace()
        ...     len(path.read_text().splitlines()) > 1
        True
        """
        self._opened.flush_trace()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self._opened.engine_name} engine"
        return f"<hetero.Context {', '.join(device.short for device in self.devices)}; {state}>"

    def _repr_html_(self) -> str:
        from hetero.session.explain import context_html

        return context_html(self)

    # --- opening and closing -------------------------------------------------------------------------------

    def _let_go(self, item: int) -> None:
        """Record that nobody holds an item any more; may be called by the garbage collector."""
        self._live.pop(item, None)
        if not self.closed:
            self.driver.release(item)

    def _call_soon(self, function: Callable[[], object]) -> None:
        """Call a function from the Context's own thread for users' callbacks."""
        self._callbacks.call_soon(function)

    def close(self, wait: bool = True) -> None:
        """End the workers and give everything back; safe to call twice.

        Parameters
        ----------
        wait
            True waits for the tasks and brings their results into the program; False stops them. From now on only
            tasks of this process and callbacks of futures may hand in more.

        Raises
        ------
        BadValueError
            A callback of what holds the devices, as a running `Trainer.fit`, would close them under it.

        Examples
        --------
        >>> import hetero
        >>> ctx = hetero.Context(devices="1xcpu", engine="inline")
        >>> future = ctx.submit(abs, -1)
        >>> ctx.close()
        >>> future.result()
        1
        """
        refuse_held(self.held, "close the Context")
        self._ending = threading.get_ident()
        if wait and not self.closed:
            try:
                self._bring_home()
            except BaseException:
                self._ending = None
                raise
        with self._lock:
            if self.closed:
                return
            self.closed = True
        with contextlib.ExitStack() as ends:  # from the last to the first, each whatever became of the others
            if not self.name:
                ends.callback(runs.forget_runs, self._run_key)
            ends.callback(self._callbacks.close)
            ends.callback(self._abandon)
            ends.callback(self._opened.close, wait)
            for part in (self._metrics, self._published):
                if part is not None:
                    ends.callback(part.close)

    def __enter__(self) -> Context:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.close(wait=kind is None)

    def __del__(self) -> None:
        if not self.__dict__.get("closed", True):
            self.close(wait=False)

    def __reduce__(self) -> NoReturn:
        raise SerialisationError(
            "a Context cannot travel to a worker",
            remedy="give tasks values or futures; inside a task, submit with hetero.current_context()",
        )

    # --- below ---------------------------------------------------------------------------------------------

    def _future_of(self, item: int) -> Future | None:
        """Return the future of a task as long as somebody holds it."""
        reference = self._live.get(item)
        return None if reference is None else reference()

    def _futures(self) -> list[Future]:
        return [future for reference in list(self._live.values()) if (future := reference()) is not None]

    def _abandon(self) -> None:
        for future in self._futures():
            future._abandoned()

    def _bring_home(self) -> None:
        seen: set[int] = set()
        while new := [future for future in self._futures() if future.item not in seen]:
            for future in new:
                seen.add(future.item)
                with contextlib.suppress(concurrent.futures.CancelledError):
                    future.exception()
            self._callbacks.settle()

    def _reference(self, future: Future) -> object:
        return ItemRef(future.item) if future.owner is self else future.result()

    def _checkpoint_key(self, name: str, identity: str) -> str:
        """Return the key of one call: its number among those of its name and, in a named run, among equal calls."""
        entry = self._numbers.get(name)
        words = f"{self._run_key}/{_UNFIT.sub('_', name)[:80]}" if entry is None else entry[0]
        key = self._numbered(name, words)
        if not identity:
            return key
        kept = f"{_UNFIT.sub('_', name)[:60]}-{identity}"
        return f"{key}{KEPT_MARK}{self._numbered(kept, kept)}"

    def _numbered(self, name: str, words: str) -> str:
        entry = self._numbers.get(name)
        if entry is None:
            entry = self._numbers[name] = (words, itertools.count(1))
        return f"{entry[0]}-{next(entry[1])}"

    def _blame(
        self,
        error: SerialisationError,
        task: TaskFunction[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> NoReturn:
        from hetero.session.tasks import blamed

        raise blamed(error, task, args, kwargs) from error

    @property
    def _is_forked(self) -> bool:
        """Return whether this process was forked from the one that opened the Context, which is of no use here."""
        return self._forked is not None

    def _leave_fork(self, error: HeteroError) -> None:
        """Take leave of the fleet in a process that was forked from the one that opened it; touches no lock."""
        self.closed, self._ending = True, threading.get_ident()
        self._forked = error
        self._lock, self._callbacks = threading.Lock(), Callbacks()
        for future in self._futures():
            future._forked(error)
        self.driver.leave(error)

    def _refuse_late(self) -> None:
        """Refuse work while the Context closes, but for what belongs to the work that it waits for."""
        inside = self._callbacks.is_own_thread or current() is not None or threading.get_ident() == self._ending
        if self.closed or not inside:
            self._refuse()

    def _refuse(self) -> NoReturn:
        """Raise what is said of a Context that takes no more work."""
        if self._forked is not None:
            raise self._forked.with_traceback(None)
        raise BadValueError("this Context is closed", remedy="open another one: ctx = hetero.Context()")
