"""Signatures tell apart what takes different times, and nothing else."""

from __future__ import annotations

import array
import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.session.signature import describe, describe_value


def test_a_call_without_arguments_is_its_key() -> None:
    assert describe("m.f@1", (), {}) == ("m.f@1|", 0.0)


def test_arrays_differ_by_shape_and_dtype() -> None:
    arrays = [np.zeros((2, 3)), np.zeros((3, 2)), np.zeros((2, 3), "float32"), np.zeros(6)]
    assert len({describe_value(each)[0] for each in arrays}) == 4


def test_the_contents_of_an_array_do_not_matter() -> None:
    assert describe_value(np.zeros(4)) == describe_value(np.arange(4.0))


def test_size_is_bytes_of_arrays_plus_the_numbers() -> None:
    _, size = describe("f", (np.zeros(10), -3, 2.5), {"k": 4j})
    assert size == 80 + 3 + 2.5 + 4


def test_numbers_of_one_type_share_a_signature() -> None:
    assert describe("f", (1,), {})[0] == describe("f", (10**9,), {})[0] != describe("f", (1.0,), {})[0]


def test_the_order_of_keywords_does_not_matter() -> None:
    assert describe("f", (), {"a": 1, "b": "x"})[0] == describe("f", (), {"b": "x", "a": 1})[0]


def test_texts_and_lists_fall_into_buckets_of_powers_of_two() -> None:
    assert describe_value("x" * 5)[0] == describe_value("x" * 8)[0] != describe_value("x" * 9)[0]
    assert describe_value([0] * 33)[0] == describe_value([0] * 64)[0] != describe_value([0] * 65)[0]


def test_a_list_of_arrays_counts_their_bytes() -> None:
    text, size = describe_value([np.zeros(100)] * 50)
    assert text == "list<=64:float64[100]"
    assert size == 50 * 800


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 10**400, -(10**400)])
def test_numbers_without_measure_give_a_finite_size(value: float) -> None:
    assert np.isfinite(describe_value(value)[1])


def test_buffers_count_their_bytes() -> None:
    for value in (b"12345678", bytearray(8), memoryview(b"12345678"), array.array("d", [1.0])):
        assert describe_value(value)[1] == 8


def test_tensors_of_torch_are_known_by_shape_and_dtype() -> None:
    import torch

    assert describe_value(torch.zeros(2, 3)) == ("torch.float32[2,3]", 24.0)


def test_an_object_is_known_by_its_class() -> None:
    @dataclasses.dataclass
    class Point:
        x: int

    text, size = describe_value(Point(3))
    assert text.endswith("Point")
    assert size == 0.0


def test_numpy_scalars_count_as_numbers() -> None:
    assert describe_value(np.int64(-7)) == ("int64", 7.0)
    assert describe_value(np.float32(2.0)) == ("float32", 2.0)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.lists(_VALUES, max_size=4), st.dictionaries(st.text(max_size=3), _VALUES, max_size=3))
def test_every_plain_value_has_a_text_and_a_finite_size(args: list[object], kwargs: dict[str, object]) -> None:
    text, size = describe("f", tuple(args), kwargs)
    assert text.startswith("f|")
    assert 0.0 <= size < float("inf")
    assert describe("f", tuple(args), kwargs) == (text, size)


def test_a_task_that_another_one_calls_is_read_alike_before_and_after_its_first_run() -> None:
    from hetero.session.identity import value_identity
    from hetero.session.tasks import task

    called = task(lambda x: x + 1)
    before = value_identity(called)
    called.source.current()
    assert value_identity(called) == before


def test_batches_of_joblib_are_told_apart_by_what_they_call() -> None:
    parallel = pytest.importorskip("joblib.parallel")
    from hetero.session.identity import call_identity
    from hetero.session.joblib import _batch_task

    def identity(factor: int, items: list[int]) -> str:
        def scaled(x: int) -> int:
            return factor * x

        batch = parallel.BatchedCalls([(scaled, (x,), {}) for x in items], None)
        return call_identity(_batch_task(batch, []), (batch, "hetero", None), {})

    assert identity(2, [1, 2]) == identity(2, [1, 2])
    assert len({identity(2, [1, 2]), identity(3, [1, 2]), identity(2, [1, 3]), identity(2, [1])}) == 4
