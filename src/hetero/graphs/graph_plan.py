"""The calls of a `Graph`, taken down once and handed in any number of times.

In: a graph, and what its handles hold at the start. Out: futures of a Context. It must not place anything.
"""

from __future__ import annotations

import concurrent.futures
import operator
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hetero.drive.call_environment import Writes, WritingCall
from hetero.drive.frame import current
from hetero.floor.containers import is_container
from hetero.floor.errors import BadValueError
from hetero.floor.units import shown
from hetero.graphs.handles import Access, GraphData, GraphNode, Version, replaced
from hetero.session.context import Context
from hetero.session.futures import Future
from hetero.session.gathering import tree
from hetero.session.signature import describe_value
from hetero.session.task_context import NestedFuture, TaskContext
from hetero.session.tasks import TaskFunction, as_task

if TYPE_CHECKING:
    from hetero.graphs.program import Graph

__all__ = ["GraphPlan"]


class _NodeFutures(dict[GraphNode, Future]):
    """The futures of a graph's tasks."""

    def __missing__(self, node: object) -> Future:
        raise BadValueError(
            f"{shown(node)} was not in the graph when it was submitted", remedy="submit it again: graph.submit(ctx)"
        )


class _StepResult:
    """Stands in calls that are taken down for the future of one of their steps."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class _PutStep(NamedTuple):
    """A value that is put, or a future that is taken as it is."""

    value: object


class _CallStep(NamedTuple):
    """One call, with a `_StepResult` for the result of each step before that it needs.

    Attributes
    ----------
    is_flat
        True where no slot stands inside a container.
    """

    task: TaskFunction[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    behind: tuple[_StepResult, ...]
    writes: Writes | None
    is_flat: bool

    def given(self, futures: Sequence[object]) -> tuple[tuple[object, ...], Mapping[str, object]]:
        """Return the arguments with the futures of the steps so far in place of slots."""
        args, kwargs = self.args, self.kwargs
        if not self.is_flat:
            return replaced((args, kwargs), (_StepResult,), lambda slot: futures[slot.number])
        args = tuple([futures[each.number] if type(each) is _StepResult else each for each in args])
        if kwargs:
            kwargs = {
                word: futures[each.number] if type(each) is _StepResult else each for word, each in kwargs.items()
            }
        return args, kwargs


class GraphPlan:
    """The calls of a graph, taken down once, and run any number of times; made by `Graph.plan`.

    Attributes
    ----------
    runs
        How often it was handed in.

    Notes
    -----
    A run is that of `Graph.run`, with the same results. What handles hold at the start is taken anew each time, as it
    is then, unless `inputs` gives another value. Under the policy 'planned' a run begins with the plan that the one
    before came to, timed by what its tasks took, beside other plans taken in turn; while times keep to it nothing is
    planned anew.
    """

    def __init__(self, graph: Graph, ctx: Context | TaskContext) -> None:
        if not isinstance(ctx, Context | TaskContext):
            raise BadValueError(
                f"a graph cannot run on {shown(ctx)}", remedy="give a Context: graph.run(ctx), graph.plan(ctx)"
            )
        self.runs = 0
        self._graph, self._ctx, self._count = graph, ctx, len(graph)
        taken = _TakenDown(isinstance(ctx, TaskContext) or not ctx.driver.engine.copies_arguments)
        for node in graph._ordered():
            taken.add(node)
        held = [data for data in list(graph._data.values()) if data._version.has_value]
        self._latest = [(weakref.ref(data), taken.latest(data._version)) for data in held]
        self._steps, self._nodes = taken.steps, taken.nodes
        self._last = [taken.nodes[node].number for node in graph.last]
        self._unread = list(taken.unread)
        self._starts = {version: (slot.number, _form(version.start)) for version, slot in taken.starts.items()}
        if isinstance(ctx, TaskContext):
            self._steps = _inside_a_task(taken.steps)

    def run(self, inputs: Mapping[GraphData, object] | None = None) -> list[Any]:
        """Run the graph once more, and give the results of the tasks that no other reads and that write no handle.

        Parameters
        ----------
        inputs
            What handles hold at the start, of the same shape as at first; the others hold what `Graph.data` was given.

        Raises
        ------
        BadValueError
            An input is of another shape, or of a handle that takes none; the graph was added to since it was planned;
            or a task of the graph runs it.
        Exception
            Whatever one of the tasks raised.
        """
        frame = current()
        items = set[int]() if frame is None else {frame.task}
        with self._graph._waits(items):
            futures = self._handed_in([*self._last, *self._unread], inputs, items)
            results, unread = futures[: len(self._last)], futures[len(self._last) :]
            values = self._ctx.gather(results)
            concurrent.futures.wait(unread)
        for future in unread:
            if future._has_failed() if isinstance(future, Future) else future.exception() is not None:
                future.result()
        return values

    def submit(self, inputs: Mapping[GraphData, object] | None = None) -> dict[GraphNode, Future]:
        """Hand the graph in once more and give the future of each task; `inputs` as for `run`."""
        if isinstance(self._ctx, TaskContext):
            raise BadValueError("a graph is run inside a task, not submitted", remedy="call run")
        futures = self._handed_in([slot.number for slot in self._nodes.values()], inputs, set())
        return _NodeFutures(zip(self._nodes, cast("list[Future]", futures), strict=True))

    def _handed_in(
        self, wanted: Sequence[int], inputs: Mapping[GraphData, object] | None, items: set[int]
    ) -> list[Future] | list[NestedFuture]:
        """Hand all in at once; return the futures of some steps. The others are given back while the graph runs.

        Parameters
        ----------
        items
            Takes the ids of all tasks.
        """
        if len(self._graph) != self._count:
            raise BadValueError(
                f"{len(self._graph) - self._count} tasks were added to the graph since it was planned",
                remedy="plan it again: graph.plan(ctx)",
            )
        given = self._given({} if inputs is None else inputs)
        held = [(data, number) for handle, number in self._latest if (data := handle()) is not None]
        for data, _ in held:
            data._latest = None
        futures: list[Future] | list[NestedFuture]
        every = (*wanted, *[number for _, number in held])
        if isinstance(self._ctx, TaskContext):
            futures = _run_inside(self._ctx, self._steps, given, every)
        else:
            with self._ctx.driver.together():
                futures = _hand_in(self._ctx, self._steps, given, every, items)
        self.runs += 1
        for (data, _), value in zip(held, futures[len(wanted) :], strict=True):
            data._latest = value
        return futures[: len(wanted)]

    def _given(self, inputs: Mapping[GraphData, object]) -> dict[int, object]:
        """Return the inputs by step, checked."""
        if not isinstance(inputs, Mapping):
            raise BadValueError(f"{shown(inputs)} are no inputs", remedy="give a dict: plan.run({handle: value})")
        given: dict[int, object] = {}
        for data, value in inputs.items():
            if not isinstance(data, GraphData) or data._graph is not self._graph:
                raise BadValueError(f"{shown(data)} is no handle of this graph", remedy="give what graph.data returned")
            number, form = self._starts.get(data._first, (-1, ""))
            if number < 0:
                raise BadValueError(
                    f"{data.name} takes no input: no task reads a value that it holds at the start",
                    remedy="give graph.data a value, and add a task that reads it first",
                )
            if isinstance(value, GraphData | Access | GraphNode | concurrent.futures.Future):
                raise BadValueError(f"{data.name} was given {shown(value)}", remedy="give a value, as its result()")
            if _form(value) != form:
                raise BadValueError(
                    f"{data.name} was planned as {form or 'no array'} and given {_form(value) or shown(value)}",
                    remedy="plan a graph whose data has this shape",
                )
            given[number] = value
        return given

    def __repr__(self) -> str:
        return f"<hetero.graphs.GraphPlan of {self._count} tasks, {self.runs} runs>"


def _form(value: object) -> str:
    """Return type, shape and dtype of an array, '' for what is none."""
    return describe_value(value)[0] if getattr(value, "shape", ()) and hasattr(value, "dtype") else ""


def _hand_in(
    ctx: Context,
    steps: Sequence[_PutStep | _CallStep],
    given: Mapping[int, object],
    wanted: Iterable[int],
    items: set[int],
) -> list[Future]:
    futures: list[Future] = []
    for number, step in enumerate(steps):
        if isinstance(step, _PutStep):
            value = given.get(number, step.value)
            futures.append(value if isinstance(value, Future) else ctx.put(value))
            continue
        args, kwargs = step.given(futures)
        behind = tuple([futures[slot.number] for slot in step.behind])
        futures.append(ctx._submit_call(step.task, args, kwargs, behind, step.writes))
        items.add(futures[-1].item)
    return [futures[number] for number in wanted]


def _run_inside(
    ctx: TaskContext, steps: Sequence[_PutStep | _CallStep], given: Mapping[int, object], wanted: Iterable[int]
) -> list[NestedFuture]:
    """Do as `_hand_in` inside a task; what a task comes behind is waited for first."""
    futures: list[NestedFuture] = []
    for number, step in enumerate(steps):
        if isinstance(step, _PutStep):
            futures.append(ctx.put(given.get(number, step.value)))
            continue
        args, kwargs = step.given(futures)
        for slot in step.behind:
            futures[slot.number].result()
        futures.append(ctx.submit(step.task, *args, **kwargs))
    return [futures[number] for number in wanted]


def _inside_a_task(steps: Sequence[_PutStep | _CallStep]) -> list[_PutStep | _CallStep]:
    """Return steps whose functions write data by themselves, as tasks that others submit do not."""
    known: dict[tuple[int, Writes], TaskFunction[..., object]] = {}
    found: list[_PutStep | _CallStep] = []
    for step in steps:
        if isinstance(step, _CallStep) and step.writes is not None:
            key = (id(step.task), step.writes)
            if key not in known:
                known[key] = _writing(step.task, step.writes)
            step = step._replace(task=known[key], writes=None)
        found.append(step)
    return found


def _writing(given: TaskFunction[..., object], writes: Writes) -> TaskFunction[..., object]:
    function = given.source.callable
    if function is None or given.source.implementations:
        raise BadValueError(
            f"{given.name} has implementations for some devices, and writes {', '.join(writes.names)} inside a task",
            remedy="run the graph in the program, or give a function without them",
        )
    made: TaskFunction[..., object] = TaskFunction(
        partial(_written, function, writes), {**given._options, "name": given.name}
    )
    made.is_plain = given.is_plain
    return made


def _written(function: Callable[..., object], writes: Writes, *args: object, **kwargs: object) -> object:
    return WritingCall(function, writes)(*args, **kwargs)


class _TakenDown:
    """The calls of a graph while they are taken down, in the order in which they are handed in.

    Parameters
    ----------
    copies
        True where workers are handed the program's own objects.

    Attributes
    ----------
    steps
        The values that are put, and the calls.
    nodes
        What stands for the result of each task.
    starts
        What stands for the values that handles hold at the start, as far as anything reads them.
    unread
        Those that no task reads, by number.
    """

    def __init__(self, copies: bool) -> None:
        self.steps: list[_PutStep | _CallStep] = []
        self.nodes: dict[GraphNode, _StepResult] = {}
        self.starts: dict[Version, _StepResult] = {}
        self.unread: dict[int, _StepResult] = {}
        self._values: dict[Version, _StepResult] = {}
        self._futures: dict[int, _StepResult] = {}
        self._partial: dict[Version, dict[int, _StepResult]] = {}
        self._copies = copies

    def add(self, node: GraphNode) -> None:
        """Take down a task; those before it are."""
        given: Counter[int] = Counter()
        args, kwargs = replaced(node._call, (GraphNode, Version), partial(self._counted, given))
        behind = tuple([self.nodes[each] for each in node._after])
        writes = node._writes
        if writes is not None:
            changed = [args[at] if isinstance(at, int) else kwargs[at] for at in writes.changes]
            copies = self._copies or any(isinstance(each, _StepResult) and given[each.number] > 1 for each in changed)
            writes = writes._replace(copies=True) if copies else writes
        slot = self._noted(self._call(as_task(node._function), args, kwargs, behind, writes))
        self.nodes[node] = slot
        for place, version in enumerate(node._makes):
            value = slot if len(node._makes) == 1 else self._part(slot, place)
            if version.mode == "reduce":
                self._partial.setdefault(version, {})[node._index] = value
            else:
                self._values[version] = value

    def latest(self, version: Version) -> int:
        """Return the number of what a handle has in the end."""
        value = self._value(version)
        return (self._noted(value) if version.makers else value).number

    def _step(self, step: _PutStep | _CallStep) -> _StepResult:
        self.steps.append(step)
        return _StepResult(len(self.steps) - 1)

    def _call(
        self,
        task: TaskFunction[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        behind: tuple[_StepResult, ...] = (),
        writes: Writes | None = None,
    ) -> _StepResult:
        is_flat = not any(is_container(type(each)) for each in (*args, *kwargs.values()))
        return self._step(_CallStep(task, args, kwargs, behind, writes, is_flat))

    def _counted(self, given: Counter[int], each: GraphNode | Version) -> _StepResult:
        """Return what stands for an argument, and count how often the call is given its value."""
        value = self._value(each)
        given[value.number] += 1
        return value

    def _value(self, each: GraphNode | Version) -> _StepResult:
        if isinstance(each, Version) and each not in self._values:
            self._values[each] = self._begun(each)
        value = self.nodes[each] if isinstance(each, GraphNode) else self._values[each]
        self.unread.pop(value.number, None)
        return value

    def _begun(self, version: Version) -> _StepResult:
        """Return what a version holds before the tasks that commute have changed it, or after all that reduce."""
        start = version.start
        if version.mode == "reduce":
            return self._total(version)
        if version.before is not None:
            return self._value(version.before)
        if isinstance(start, GraphNode):
            return self._value(start)
        if isinstance(start, Future):
            if id(start) not in self._futures:
                self._futures[id(start)] = self._step(_PutStep(start))
            return self._futures[id(start)]
        self.starts[version] = self._step(_PutStep(start))
        return self.starts[version]

    def _total(self, version: Version) -> _StepResult:
        """Combine what tasks gave to be reduced, in the order in which they were added."""
        given, before = self._partial[version], version.before
        leaves = [self._value(before)] if before is not None and before.has_value else []
        leaves += [given[index] for index in sorted(given)]
        for leaf in leaves:
            self.unread.pop(leaf.number, None)
        return tree(self._call, as_task(version.operator), leaves, Writes((0,), (version.name,), self._copies))

    def _part(self, slot: _StepResult, place: int) -> _StepResult:
        """Return one of several values that a task returns, as an item of its own."""
        self.unread.pop(slot.number, None)
        return self._noted(self._call(as_task(operator.getitem), (slot, place), {}))

    def _noted(self, slot: _StepResult) -> _StepResult:
        self.unread[slot.number] = slot
        return slot
