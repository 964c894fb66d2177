"""What is found fits, and one more does not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hetero.advise.fit import does_it_fit, room_of
from hetero.catalog.load import find, find_model
from hetero.catalog.values import DeviceSpec
from hetero.cli.main import app
from hetero.errors import BadValueError
from hetero.model.workload import WorkloadSpec
from hetero.plan.sizing.footprint import Room, fit
from hetero.plan.sizing.footprint_search import changes, devices_needed, largest_batch, largest_context, shardings

SMALL, LARGE = find_model("Llama-3.1-8B"), find_model("Llama-3.1-70B")
CARD = room_of(find("H100-SXM"))


@given(
    gib=st.integers(16, 200), context=st.integers(64, 8192), framework=st.sampled_from(["torch", "vllm", "llama.cpp"])
)
def test_the_largest_batch_fits_and_one_more_does_not(gib: int, context: int, framework: str) -> None:
    work, room = WorkloadSpec(SMALL, context=context, framework=framework), Room(gib * 2**30)
    batch = largest_batch(work, room)
    if batch:
        assert fit(replace(work, batch=batch), room).answer == "fits"
    assert fit(replace(work, batch=batch + 1), room).answer != "fits"


@given(gib=st.integers(16, 200), batch=st.integers(1, 32))
def test_the_longest_context_fits_and_one_token_more_does_not(gib: int, batch: int) -> None:
    work, room = WorkloadSpec(SMALL, batch=batch), Room(gib * 2**30)
    context = largest_context(work, room)
    if context:
        assert fit(replace(work, context=context), room).answer == "fits"
    if context < SMALL.context:
        assert fit(replace(work, context=context + 1), room).answer != "fits"
    assert context <= SMALL.context


@pytest.mark.parametrize("job", ["inference", "lora", "finetune"])
def test_fewer_devices_than_needed_do_not_do(job: str) -> None:
    work = WorkloadSpec(LARGE, job=job)  # type: ignore[arg-type]
    found = devices_needed(work, CARD)
    assert found is not None
    count, spread = found
    assert spread.devices == count
    assert fit(work, CARD, spread).answer == "fits"
    for fewer in range(1, count):
        assert all(fit(work, CARD, other).answer != "fits" for other in shardings(work, fewer))


def test_no_number_of_devices_helps_where_one_sequence_does_not_fit_a_device() -> None:
    assert devices_needed(WorkloadSpec(LARGE, job="finetune", context=100_000), Room(2**30)) is None
    assert changes(WorkloadSpec(LARGE, job="finetune"), Room(2**20)) == []


@pytest.mark.parametrize("job", ["inference", "lora", "finetune", "pretrain"])
@pytest.mark.parametrize("gib", [6, 12, 24, 80])
def test_every_change_that_is_offered_makes_it_fit(job: str, gib: int) -> None:
    work, room = WorkloadSpec(SMALL, job=job, batch=8, context=4096, flash=False), Room(gib * 2**30)  # type: ignore[arg-type]
    offered = changes(work, room)
    assert bool(offered) == (fit(work, room).answer != "fits"), "more devices or a shorter context always help here"
    for change in offered:
        assert fit(change.work, room, change.spread) == change.fit
        assert change.fit.answer == "fits"
        assert (change.work, change.spread.devices) != (work, 1)
    assert len({change.what for change in offered}) == len(offered)


def test_nothing_is_offered_where_it_fits() -> None:
    assert changes(WorkloadSpec(SMALL), CARD) == []


def test_what_costs_least_is_offered_first() -> None:
    offered = changes(WorkloadSpec(SMALL, job="finetune", context=4096), CARD)
    assert offered[0].what == "checkpoint activations"
    assert changes(WorkloadSpec(LARGE), CARD)[-1].what == "2 devices"


def test_adapters_in_four_bits_fit_where_full_training_does_not() -> None:
    card = find("RTX-4090")
    assert does_it_fit(SMALL, card, job="finetune").answer == "does not fit"
    report = does_it_fit(SMALL, card, job="lora", weights="nf4-dq", checkpointing=True)
    assert report.answer == "fits"
    assert "largest batch" in report.explain()


def test_a_device_without_a_source_for_its_memory_is_an_error_that_says_so() -> None:
    with pytest.raises(BadValueError, match="no source for the memory of X; give a DeviceSpec with memory_bytes"):
        does_it_fit(SMALL, DeviceSpec("X", "Y", "cuda"))


def test_a_count_of_no_devices_or_of_too_many_is_refused() -> None:
    with pytest.raises(BadValueError, match="count is 0"):
        does_it_fit(SMALL, "H100-SXM", count=0)
    with pytest.raises(BadValueError, match="cannot be spread over 33 devices"):
        does_it_fit(SMALL, "H100-SXM", count=33)


def test_the_command_prints_what_the_report_says() -> None:
    done = CliRunner().invoke(app, ["plan", "fit", "Llama-3.1-70B", "--devices", "2xH100-SXM", "--json"])
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert document["answer"] == "fits"
    assert document["total_bytes"] == sum(document["bytes"].values()) <= document["usable_bytes"]
    assert document["devices_needed"] == 2


def test_the_command_ends_with_4_where_nothing_fits_and_tells_what_would() -> None:
    done = CliRunner().invoke(app, ["plan", "fit", "Llama-3.1-70B", "--devices", "H100-SXM"])
    assert done.exit_code == 4
    assert "does not fit" in done.stdout
    assert "would fit: weights in fp8 (costs accuracy)" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["Llama-9", "--devices", "T4"],
        ["Llama-3.1-8B", "--devices", "H100"],
        ["Llama-3.1-8B", "--devices", "T4", "--kv", "x"],
    ],
)
def test_a_name_that_nobody_knows_is_an_error_of_the_user(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["plan", "fit", *arguments])
    assert isinstance(done.exception, BadValueError)
    assert done.exception.exit_code == 2
