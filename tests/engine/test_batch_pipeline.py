"""Pipelines: each record goes through every stage once, and devices go where they relieve most."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import hetero
from hetero.batch.options import BatchOptions
from hetero.errors import BadValueError, NothingFitsError
from hetero.plan.batch.next_stage import StagePlanner
from hetero.plan.batch.size_tuning import Sizes


@pytest.fixture(scope="module")
def ctx() -> Iterator[hetero.Context]:
    with hetero.Context(devices="2xcpu", history=False) as context:
        yield context


def waits(first_s: float, second_s: float) -> Any:
    """Make a stage that takes so long for a record on the first and on the second device."""

    def stage(batch: list[int]) -> list[int]:
        time.sleep((first_s, second_s)[hetero.get_current_device().index] * len(batch))
        return [x + 1 for x in batch]

    return stage


def test_every_record_goes_through_every_stage_once(ctx: hetero.Context) -> None:
    steps = hetero.batch.pipeline(
        lambda batch: [x + 1 for x in batch],
        lambda batch: [x * 2 for x in batch],
        lambda batch: [str(x) for x in batch],
    )
    assert ctx.map_batches(steps, range(2000), options=BatchOptions(part=300)).value == [
        str(2 * (x + 1)) for x in range(2000)
    ]


def test_a_stage_runs_only_where_it_may(ctx: hetero.Context) -> None:
    def where(batch: list[Any]) -> list[Any]:
        return [(x, hetero.get_current_device().short) for x in batch]

    found = ctx.map_batches(hetero.batch.pipeline((where, "cpu:0"), (where, "cpu:1")), range(100)).value
    assert {(first, second) for (_, first), second in found} == {("cpu:0", "cpu:1")}


def test_devices_that_are_good_at_different_stages_do_those(ctx: hetero.Context) -> None:
    def slow_on(place: int) -> Any:
        def stage(batch: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
            here = hetero.get_current_device().index
            time.sleep((0.004 if here == place else 0.0005) * len(batch))
            return [(*went, here) for went in batch]

        return stage

    went = ctx.map_batches(hetero.batch.pipeline(slow_on(1), slow_on(0)), [()] * 1500, batch=20).value
    assert len(went) == 1500
    assert sum(first == 0 for first, _ in went) > 0.7 * len(went)
    assert sum(second == 1 for _, second in went) > 0.7 * len(went)


def test_stages_that_all_devices_do_alike_run_in_one_piece(ctx: hetero.Context) -> None:
    stages = waits(0.001, 0.001), waits(0.001, 0.001)
    outcome = ctx.map_batches(hetero.batch.pipeline(*stages), range(3000), batch=20)
    assert sum(stats.calls for stats in outcome.devices) < 1.6 * 3000 / 20


@pytest.mark.parametrize("place", [0, 1])
def test_a_bad_record_is_found_at_whichever_stage_it_fails(ctx: hetero.Context, place: int) -> None:
    def fails(batch: list[int]) -> list[int]:
        if 37 in batch:
            raise ValueError("thirty-seven")
        return batch

    stages = [lambda batch: batch, lambda batch: batch]
    stages[place] = fails
    outcome = ctx.map_batches(hetero.batch.pipeline(*stages), range(200), errors=1, batch=16)
    assert [record.item for record in outcome.bad] == [37]
    assert outcome.value == [x for x in range(200) if x != 37]


def test_a_pipeline_merges_what_its_last_stage_gives(ctx: hetero.Context) -> None:
    steps = hetero.batch.pipeline(lambda batch: [x + 1 for x in batch], lambda batch: [2.0 * x for x in batch])
    assert ctx.map_batches(steps, range(100), merge="sum").value == sum(2.0 * (x + 1) for x in range(100))


def test_a_stage_that_no_device_may_run_is_refused(ctx: hetero.Context) -> None:
    with pytest.raises(NothingFitsError, match="no device may run stage 1 of the pipeline: it asks for cuda"):
        ctx.map_batches(hetero.batch.pipeline(waits(0, 0), (waits(0, 0), "cuda")), range(3))


@pytest.mark.parametrize(("stages", "words"), [((), "needs a stage"), (((len, "a", "b"),), "a stage of 3 parts")])
def test_a_pipeline_without_sense_is_refused(stages: tuple[Any, ...], words: str) -> None:
    with pytest.raises(BadValueError, match=words):
        hetero.batch.pipeline(*stages)


def test_a_device_goes_to_the_stage_whose_queue_grew() -> None:
    planner = StagePlanner({"a": (True, True)}, lambda name, step: Sizes(known=[(4, 0.1)], fixed=4))
    assert planner.choose("a", [8.0, 0.0]) in ((0, 0), (0, 1))
    assert planner.choose("a", [2.0, 60.0]) == (1, 1)
    assert planner.choose("a", [0.0, 3.0]) == (1, 1)
    assert planner.choose("a", [0.0, 0.0]) is None
