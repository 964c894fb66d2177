"""Sizes of passes, and what is said when not one sample fits, without a device."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetero.errors import OutOfDeviceMemoryError
from hetero.model.device import Device, DeviceType
from hetero.train.memory import KeptPasses, Need, PassLimit, beyond
from hetero.train.worker_deaths import KilledPasses

NEED = Need({"parameters": 40, "activations": 10}, held_bytes=80, fixed_bytes=20, sample_bytes=10, step_bytes=50)


def device(limit: int | None = None, memory: int | None = None, kind: str = "cuda") -> Device:
    return Device(f"h0/{kind}:0", kind, DeviceType("GPU"), "torch", memory_bytes=memory, memory_limit_bytes=limit)


def test_a_pass_that_ran_out_is_halved_and_told_again_when_it_grows() -> None:
    told: list[int] = []
    kept: list[int] = []
    limit = PassLimit(tell=told.append, keep=kept.append)
    for size in (8, 64):
        limit.tries(size)
    limit.ran_out(64)
    assert limit.size(64) == 32
    limit.tries(32)
    limit.tries(40)
    assert (told, kept) == ([8, 64, 40], [32])


def test_a_pass_that_must_stay_whole_is_not_cut() -> None:
    limit = PassLimit(most=4)
    limit.whole = "exact='bitwise'"
    assert limit.size(8) == 8
    with pytest.raises(OutOfDeviceMemoryError, match="pass of 8 samples, and exact='bitwise' forbids to cut it"):
        limit.ran_out(8)


def test_the_first_pass_is_what_the_estimate_says_that_fits() -> None:
    limit = PassLimit()
    limit.expect(NEED, 24_000_250.0)
    assert limit.size(1000) == 18
    with pytest.raises(OutOfDeviceMemoryError, match="has room for 120 B, and one sample takes 130 B"):
        limit.expect(NEED, 40.0)


@pytest.mark.parametrize(("limit", "memory", "fits"), [(None, None, True), (None, 129, False), (130, 1000, True)])
def test_a_device_is_left_out_when_one_sample_is_more_than_its_memory(
    limit: int | None, memory: int | None, fits: bool
) -> None:
    assert (beyond(device(limit, memory), NEED) == "") is fits


def test_the_limit_of_a_cpu_has_to_hold_torch_as_well() -> None:
    assert beyond(device(10**8, kind="cpu"), NEED) == (
        "its memory_limit is 100 MB; one sample takes 130 B, and torch itself 140 MB"
    )


def test_a_kill_for_memory_halves_the_passes_and_any_other_death_does_not(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("oom 0\noom_kill 3\n")
    killed = KilledPasses()
    assert killed.begins("cpu:0", 8, str(events))
    assert killed.was_killed("cpu:0") == ""
    assert killed.begins("cpu:0", 8, str(events))
    events.write_text("oom 1\noom_kill 4\n")
    assert killed.was_killed("cpu:0") == "the system killed it for its memory in a pass of 8 samples"
    assert killed.most("cpu:0") == 4


def test_a_device_that_is_killed_at_its_smallest_pass_is_given_up(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    killed = KilledPasses()
    for kills, samples in enumerate((2, 1)):
        events.write_text(f"oom_kill {kills}\n")
        assert killed.begins("cpu:0", samples, str(events))
        events.write_text(f"oom_kill {kills + 1}\n")
        killed.was_killed("cpu:0")
    assert killed.full == {"cpu:0": "the system killed it for its memory in a pass of one sample"}


def test_a_pass_that_cannot_be_cut_is_not_tried_twice_after_a_kill(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("oom_kill 0\n")
    killed = KilledPasses()
    killed.begins("cpu:0", 8, str(events))
    events.write_text("oom_kill 1\n")
    killed.was_killed("cpu:0")
    assert not killed.begins("cpu:0", 8, str(events))
    assert "which stays whole" in killed.full["cpu:0"]


def test_what_was_found_holds_for_devices_with_as_much_memory_and_for_no_others() -> None:
    KeptPasses("job", device(limit=100)).keep(16)
    assert KeptPasses("job", device(limit=100)).load() == 16
    assert KeptPasses("job", device(limit=200)).load() == float("inf")
    assert KeptPasses("other", device(limit=100)).load() == float("inf")
    assert KeptPasses("", device(limit=100)).load() == float("inf")
