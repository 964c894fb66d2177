"""Options of a task become its request, and every wrong one is told in one line."""

from __future__ import annotations

import asyncio
import gc
import inspect
import pickle
import sys
import types
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import pytest

import hetero
from hetero.backends.base import Kernel
from hetero.batch.functions import prepared
from hetero.batch.precision import Wish
from hetero.drive.frame import enter
from hetero.engines.base import Function
from hetero.errors import BadValueError
from hetero.model.tasks import Near
from hetero.session.futures import bind
from hetero.session.sharing import LARGE_BYTES, Sharing
from hetero.session.tasks import as_task


def f(x: int) -> int:
    return x + 1


def kernel() -> Kernel:
    return Kernel("source", "entry", out=lambda x: (x.shape, x.dtype), global_size=lambda x: x.shape)


def test_a_bare_task_asks_for_nothing_and_can_be_called() -> None:
    assert hetero.task(f)(1) == 2
    assert hetero.task(f).request == hetero.task()(f).request


def test_options_with_units_and_words_become_a_request() -> None:
    made = hetero.task(
        on=["GPU", "cpu:0"], not_on="vulkan", memory="2GB", min_cores=4, timeout="1.5s", retries=2, priority=-1,
        exclusive=True, workload="night", devices=2,
    )(f)  # fmt: skip
    request = made.request
    assert request.on == ("gpu", "cpu:0")
    assert request.not_on == ("vulkan",)
    assert (request.memory_bytes, request.min_cores, request.timeout_s) == (2_000_000_000, 4, 1.5)
    assert (request.retries, request.priority, request.exclusive) == (2, -1, True)
    assert (request.workload, request.devices) == ("night", 2)


def test_options_for_one_call_leave_the_task_as_it_was() -> None:
    made = hetero.task(f, on="gpu", retries=1)
    other = made.options(on="cpu")
    assert (made.request.on, other.request.on, other.request.retries) == (("gpu",), ("cpu",), 1)
    assert other.source is made.source


def test_a_device_itself_is_a_word_for_it() -> None:
    device = hetero.inspect.Device("h0/cpu:1", "cpu", hetero.get_current_device().type, "cpu", 1)
    assert hetero.task(f, on=device).request.on == hetero.task(f, on=[device]).request.on == ("h0/cpu:1",)


def test_an_option_set_to_none_is_not_given() -> None:
    assert hetero.task(f, on="gpu").options(on=None).request.on == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env": "A=b"}, ["env='A=b'", "give a dict"]),
        ({"env": {"A=": "b"}}, ["'A='", "without '='"]),
        ({"env": {"A": 1}}, ["A=1", "or None to unset it"]),
        ({"seed": -1}, ["seed=-1", "0 or more"]),
        ({"seed": "one"}, ["seed='one'", "whole number"]),
        ({"onn": "gpu"}, ["'onn'", "did you mean 'on'?"]),
        ({"on": "cudda"}, ["'cudda'", "did you mean 'cuda'?"]),
        ({"on": 3}, ["3", "write a word"]),
        ({"on": "gpu", "kinds": "cpu"}, ["task was given both kinds= and on=", "leave kinds= out"]),
        ({"memory": "8GBB"}, ["8GBB", "did you mean 'GB'?"]),
        ({"timeout": "soon"}, ["soon", "30s"]),
        ({"devices": 0}, ["devices=0", "1 or more"]),
        ({"devices": True}, ["devices=True"]),
        ({"retries": -1}, ["retries=-1"]),
        ({"priority": 1.5}, ["priority=1.5"]),
        ({"exclusive": "yes"}, ["exclusive='yes'", "True or False"]),
        ({"near": 5}, ["near=5", "future"]),
        ({"near": ("hosst", "w")}, ["did you mean 'host'?"]),
        ({"split": lambda x: [x]}, ["belong together"]),
        ({"split": 1, "merge": sum}, ["split=1"]),
    ],
)
def test_a_wrong_option_is_told_with_its_value_and_the_remedy(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(BadValueError) as caught:
        hetero.task(f, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words)


def test_a_wrong_option_is_told_where_the_decorator_stands() -> None:
    with pytest.raises(BadValueError, match="did you mean 'retries'"):
        hetero.task(retrys=1)


def test_the_former_name_of_on_still_works_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match=r"task\(kinds=\) is deprecated: write on="):
        made = hetero.task(f, kinds="gpu")
    with pytest.warns(DeprecationWarning, match=r"TaskFunction.options\(kinds=\) is deprecated: write on=") as warned:
        other = made.options(kinds="cpu")
    assert warned[0].filename == __file__
    assert (made.request.on, other.request.on) == (("gpu",), ("cpu",))
    assert "kinds" not in inspect.signature(hetero.task).parameters


def test_near_and_apart_take_workloads_and_scopes() -> None:
    request = hetero.task(f, near=("host", "a"), apart=["b", ("rack", "c")]).request
    assert request.near == (Near("host", 0, "a"),)
    assert request.apart == (Near("device", 0, "b"), Near("rack", 0, "c"))


def test_a_plain_function_with_python_implementations_still_runs_everywhere() -> None:
    made = hetero.task(f)
    made.implementation("cuda", f)
    assert made.request.implemented == ()


def test_a_kernel_beside_a_plain_function_adds_its_kind() -> None:
    made = hetero.task(f)
    made.implementation("opencl", kernel())
    assert made.request.implemented == ("plain Python", "opencl")
    assert "vulkan" not in made.request.implemented


def test_a_task_of_kernels_only_runs_on_their_kinds_and_not_here() -> None:
    made = hetero.task(kernel(), on="opencl")
    made.implementation("vulkan", kernel())
    assert made.request.implemented == ("opencl", "vulkan")
    assert made.name == "entry"
    with pytest.raises(BadValueError, match="kernels only"):
        made(1)


def test_a_kernel_without_a_kind_is_refused() -> None:
    with pytest.raises(BadValueError, match="names no device"):
        hetero.task(kernel())


def test_an_implementation_decorator_gives_the_function_back() -> None:
    made = hetero.task(f)

    @made.implementation("cuda", "rocm")
    def other(x: int) -> int:
        return x

    assert other(3) == 3
    assert sorted(made.source.implementations) == ["cuda", "rocm"]


def test_an_implementation_for_a_misspelt_kind_is_refused() -> None:
    with pytest.raises(BadValueError, match="did you mean 'opencl'"):
        hetero.task(f).implementation("opencll", kernel())


async def coroutine(x: int) -> int:
    return x


async def generator(x: int) -> AsyncIterator[int]:
    yield x


class Awaited:
    async def __call__(self, x: int) -> int:
        return x


@pytest.mark.parametrize("function", [coroutine, generator, partial(coroutine, 1), Awaited(), Awaited().__call__])
def test_coroutine_functions_are_refused_wherever_a_task_is_made_of_them(function: Any) -> None:
    with pytest.raises(BadValueError, match=r"no event loop runs in a worker; .*asyncio\.run"):
        hetero.task(function)
    with pytest.raises(BadValueError, match="no event loop"):
        hetero.task(on="cpu")(function)
    with pytest.raises(BadValueError, match="no event loop"):
        as_task(function)
    with pytest.raises(BadValueError, match="no event loop"):
        hetero.task(f).implementation("cuda", function)
    with pytest.raises(BadValueError, match="no event loop"):
        hetero.task(f, split=function, merge=sum)
    with pytest.raises(BadValueError, match="no event loop"):
        prepared(function, Wish("float32"))


def test_a_class_of_batches_whose_call_is_a_coroutine_is_refused() -> None:
    with pytest.raises(BadValueError, match="no event loop"):
        prepared(Awaited, Wish("float32"))


def test_plain_callables_around_coroutines_are_tasks() -> None:
    def around(x: int) -> int:
        return asyncio.run(coroutine(x))

    for callable_ in (around, partial(f, 1), Awaited, len):
        assert as_task(callable_).source.callable is callable_
    assert hetero.task(around)(3) == 3


@pytest.mark.parametrize("none", [0, 0.0, "0s"])
def test_a_timeout_of_nothing_is_refused_and_none_unsets_it(none: Any) -> None:
    with pytest.raises(BadValueError, match=r"timeout=.* would end each call at once.*None for no limit"):
        hetero.task(timeout=none)
    assert hetero.task(timeout=None, seed=None)(abs).request.timeout_s == 0.0


@pytest.mark.parametrize("option", ["on", "not_on"])
def test_an_index_with_leading_zeros_is_refused(option: str) -> None:
    with pytest.raises(BadValueError, match="without sign or leading zeros"):
        hetero.task(**{option: "cpu:01"})


def test_a_coroutine_as_an_argument_is_told_to_be_awaited() -> None:
    async def late() -> int:
        return 1

    given = late()
    with pytest.raises(BadValueError, match=r"is a coroutine.*await it first"):
        bind("f", (given,), {}, lambda future: future)
    given.close()


def calls_of(work: Callable[[], object]) -> int:
    """Count the calls of Python that some work makes, without those of a collection of garbage that falls into it."""
    count = 0

    def seen(frame: object, event: str, _: object) -> None:
        nonlocal count
        count += event == "call"

    gc.disable()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.parametrize("given", [{"a": [1, 2, 3], "b": "x" * 100}, [(1, 2.5), {3}, None], (1, {"k": np.float32(3)})])
def test_a_small_container_of_plain_values_is_looked_through_in_few_calls(given: Any) -> None:
    assert bind("f", (given,), {}, lambda future: None) == ((given,), {}, (), (), (), None)
    assert min(calls_of(lambda: bind("f", (given,), {}, lambda future: None)) for _ in range(5)) < 14


@pytest.mark.parametrize("wide", [1, 200])
@pytest.mark.parametrize("deep", [0, 1, 5, 50])
def test_what_must_be_found_in_containers_is_found_however_deep_and_wide(deep: int, wide: int) -> None:
    nested: Any = enumerate("ab")
    for level in range(deep):
        nested = {"k": nested} if level % 2 else [0, nested]
    given = [[number] for number in range(wide)]
    with pytest.raises(BadValueError, match="argument 1 of f is a enumerate, which can be read only once"):
        bind("f", ([*given, nested],), {}, lambda future: None)
    with pytest.raises(BadValueError, match="argument word= of f is a enumerate"):
        bind("f", (given,), {"word": nested}, lambda future: None)


class _OwnArray:
    def __init__(self, data: np.ndarray) -> None:
        self.data = data


class _OwnMemory:
    """A back end whose arrays are its own."""

    def owns(self, value: Any) -> bool:
        return isinstance(value, _OwnArray)

    def copy_out(self, value: Any) -> np.ndarray:
        return value.data


def test_a_plain_function_gets_arrays_as_they_were_given_and_nothing_else_changes() -> None:
    def show(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    large, small = np.ones(LARGE_BYTES), np.ones(3)
    owner = _OwnMemory()
    sharing = Sharing(owner)  # type: ignore[arg-type]
    plain = Function("key", "show", show, {})
    assert sharing.as_given(plain, (small, 1), {"x": small}) is plain
    found = sharing.as_given(plain, (small, large), {"x": large, "y": 2})
    assert sharing.as_given(plain, (1, large), {"x": large}) is found
    there = _OwnArray(large)
    before = enter(types.SimpleNamespace(backend=_OwnMemory()))  # type: ignore[arg-type]
    try:
        args, kwargs = pickle.loads(cloudpickle.dumps(found.default))(there, there, x=there, y=there)
    finally:
        enter(before)
    assert args[0] is there
    assert type(args[1]) is np.ndarray
    assert type(kwargs["x"]) is np.ndarray
    assert kwargs["y"] is there


def test_a_function_that_is_marked_as_a_task_is_not_a_plain_one() -> None:
    assert as_task(abs).is_plain
    assert as_task(abs).options(crashes=0).is_plain
    assert not as_task(hetero.task(abs)).is_plain
    assert not hetero.task(abs).options(on="cpu").is_plain
