"""A function has a new version exactly when what it would do has changed."""

from __future__ import annotations

import functools
import gc
import operator
import weakref
from typing import Any

import cloudpickle
import numpy as np

from hetero.backends.base import Kernel
from hetero.session.functions import source_of, travels_by_name
from hetero.session.tasks import TaskFunction, as_task, task


def define(text: str, names: dict[str, Any] | None = None) -> Any:
    """Run a notebook cell in these names, as `__main__` would."""
    names = {"__name__": "__main__"} if names is None else names
    exec(text, names)
    return names


def key(function: Any) -> str:
    return as_task(function).source.current().key


def model_key(function: Any) -> str:
    source = as_task(function).source
    source.current()
    return source.model_key


def test_the_same_function_is_one_version() -> None:
    f = define("def f(x): return x + 1")["f"]
    assert as_task(f).source.current() is as_task(f).source.current()


def test_a_cell_run_again_unchanged_is_the_same_version() -> None:
    assert key(define("def f(x): return x + 1")["f"]) == key(define("def f(x): return x + 1")["f"])


def test_a_function_redefined_is_a_new_version() -> None:
    assert key(define("def f(x): return x + 1")["f"]) != key(define("def f(x): return x + 2")["f"])


def test_a_changed_global_makes_a_new_version_and_keeps_the_measured_times() -> None:
    names = define("n = 1\ndef f(x): return x + n")
    before, times = key(names["f"]), model_key(names["f"])
    names["n"] = 2
    assert key(names["f"]) != before
    assert model_key(names["f"]) == times


def test_a_global_set_back_gives_the_first_version_again() -> None:
    names = define("n = 1\ndef f(x): return x + n")
    before = key(names["f"])
    names["n"] = 2
    key(names["f"])
    names["n"] = 1
    assert key(names["f"]) == before


def test_a_redefined_helper_of_a_helper_makes_a_new_version() -> None:
    names = define("def a(): return 1\ndef b(): return a()\ndef f(): return b()")
    before = key(names["f"])
    define("def a(): return 2", names)
    assert key(names["f"]) != before


def test_a_redefined_task_that_a_function_calls_makes_a_new_version() -> None:
    names = define("import hetero\n@hetero.task\ndef a(): return 1\ndef f(): return a()")
    before = key(names["f"])
    define("@hetero.task\ndef a(): return 2", names)
    assert key(names["f"]) != before


def test_a_global_that_is_only_an_attribute_name_does_not_count() -> None:
    names = define("real = 1\ndef f(z): return z.real")
    before = key(names["f"])
    names["real"] = 2
    assert key(names["f"]) == before


def test_closures_over_different_values_are_different_versions() -> None:
    names = define("def make(i):\n    def f(): return i\n    return f")
    one, two, again = (names["make"](i) for i in (1, 2, 1))
    assert key(one) != key(two)
    assert key(one) == key(again)
    assert model_key(one) == model_key(two)


def test_closures_over_arrays_are_never_taken_for_each_other() -> None:
    names = define("def make(a):\n    def f(): return a\n    return f")
    assert key(names["make"](np.zeros(1))) != key(names["make"](np.zeros(1)))


def test_a_closure_variable_bound_anew_makes_a_new_version() -> None:
    names = define(
        "def make():\n    n = 1\n    def f(): return n\n"
        "    def grow():\n        nonlocal n\n        n += 1\n    return f, grow"
    )
    f, grow = names["make"]()
    before = key(f)
    grow()
    assert key(f) != before


def test_other_defaults_are_another_version() -> None:
    assert key(define("def f(x=1): return x")["f"]) != key(define("def f(x=2): return x")["f"])


def test_a_function_of_a_module_travels_by_name() -> None:
    import json

    assert travels_by_name(json.dumps)
    assert not travels_by_name(define("def f(): pass")["f"])
    assert "#" not in key(json.dumps)


def test_functions_of_numpy_and_operators_have_one_key() -> None:
    for function in (np.dot, np.add, np.linalg.inv, operator.add, len, sum):
        assert key(function) == key(function)


def test_a_partial_of_plain_values_has_one_key_and_other_values_another() -> None:
    assert key(functools.partial(pow, 2)) == key(functools.partial(pow, 2)) != key(functools.partial(pow, 3))


def test_a_bound_method_is_taken_anew_since_its_object_may_have_changed() -> None:
    items = [1]
    assert key(items.count) != key(items.count)
    assert model_key(items.count) == model_key(items.count)


def test_another_kernel_is_another_version() -> None:
    def kernel(source: str) -> Kernel:
        return Kernel(source, "k", out=lambda x: (x.shape, x.dtype), global_size=lambda x: x.shape)

    keys = {key(task(kernel(source), on="opencl")) for source in ("a", "b")}
    assert len(keys) == 2


def test_an_added_implementation_makes_a_new_version() -> None:
    f = task(define("def f(x): return x")["f"])
    before = f.source.current().key
    f.implementation("cuda", define("def g(x): return x")["g"])
    assert f.source.current().key != before


def test_what_is_kept_on_a_function_does_not_travel_with_it() -> None:
    f = define("def f(x): return x + 1")["f"]
    before = len(cloudpickle.dumps(f))
    key(f)
    assert len(cloudpickle.dumps(f)) - before < 100
    assert cloudpickle.loads(cloudpickle.dumps(f))(1) == 2


def test_a_function_that_nobody_holds_is_forgotten() -> None:
    f = define("def f(x): return x")["f"]
    key(f)
    reference = weakref.ref(f)
    del f
    gc.collect()
    assert reference() is None


def test_a_task_of_the_main_program_travels_with_its_function_and_its_options() -> None:
    f: TaskFunction[..., int] = task(define("def f(x): return x + 1")["f"], on="cpu", retries=2)
    again = cloudpickle.loads(cloudpickle.dumps(f))
    assert again(1) == 2
    assert again.request == f.request


def test_the_source_of_a_plain_function_is_found_again() -> None:
    f = define("def f(x): return x")["f"]
    assert source_of(f) is source_of(f)
