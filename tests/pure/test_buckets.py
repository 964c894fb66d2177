"""Gradients are cut into buckets that are small, of one kind, and leave in the order in which they are complete."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hetero.train.gradients import Bucket, bucket_bytes, cut_buckets

MIB = 1 << 20

gradients = st.lists(st.tuples(st.integers(1, 6 * MIB), st.sampled_from(["f4", "f8", "f2"])), min_size=1, max_size=40)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], list[str], list[int]]:
    sizes, kinds = zip(*draw(gradients), strict=True)
    return list(sizes), list(kinds), draw(st.permutations(range(len(sizes))))


def bytes_of(bucket: Bucket, sizes: list[int]) -> int:
    return sum(sizes[index] for index in bucket.indices)


@given(problems())
def test_every_gradient_is_in_one_bucket_with_its_kind(problem: tuple[list[int], list[str], list[int]]) -> None:
    sizes, kinds, order = problem
    buckets = cut_buckets(sizes, kinds, order)
    assert sorted(index for bucket in buckets for index in bucket.indices) == list(range(len(sizes)))
    assert all(kinds[index] == bucket.kind for bucket in buckets for index in bucket.indices)


@given(problems())
def test_a_bucket_is_larger_than_its_limit_only_by_one_gradient(
    problem: tuple[list[int], list[str], list[int]],
) -> None:
    sizes, kinds, order = problem
    buckets = cut_buckets(sizes, kinds, order)
    lasts = [[bucket for bucket in buckets if bucket.kind == kind][-1] for kind in set(kinds)]
    for bucket in buckets:
        limit = MIB if bucket in lasts else bucket_bytes(sum(sizes))
        largest = max(sizes[index] for index in bucket.indices)
        assert bytes_of(bucket, sizes) <= limit or bytes_of(bucket, sizes) - largest < limit / 8


@given(problems())
def test_buckets_are_in_the_order_in_which_they_are_complete(problem: tuple[list[int], list[str], list[int]]) -> None:
    sizes, kinds, order = problem
    complete = [max(order.index(index) for index in bucket.indices) for bucket in cut_buckets(sizes, kinds, order)]
    assert complete == sorted(complete)


def test_a_small_model_is_one_bucket() -> None:
    assert cut_buckets([400_000, 500_000, 4_000], ["f4"] * 3, [2, 1, 0]) == (Bucket("f4", (2, 1, 0)),)
