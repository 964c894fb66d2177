"""Planning on this host: its devices are measured once, and kept by a pool as those of a file are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hetero.advise.fleet import read_fleet
from hetero.advise.match import match
from hetero.backends.base import Found
from hetero.model.device import Device, DeviceType
from hetero.session import fleet, fleet_speed


@pytest.mark.parametrize("name", ["a processor that nobody knows", "AMD EPYC 9654"])
def test_a_small_model_is_planned_on_the_processor_of_this_host_known_or_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = [Device(f"h0/cpu:{i}", "cpu", DeviceType("CPU"), "cpu", i, name=name, memory_bytes=10**10) for i in (0, 1)]

    def measured(alike: Sequence[Device]) -> list[Device]:
        return [replace(device, flop_per_s=5e10, bytes_per_s=1e10) for device in alike]

    monkeypatch.setattr(fleet, "survey", lambda: tuple(Found(core, "cpu") for core in cores))
    monkeypatch.setattr(fleet_speed, "measure", measured)
    (kind,) = kinds = read_fleet("here")
    assert kind.most_copies(1) == kind.count == 1
    assert kind.spec.flop_per_s["fp32"] == 1e11
    (found,) = match("Qwen2.5-0.5B", kinds, weights="Q4_K_M", framework="llama.cpp")
    assert not found.refused
    assert found.throughput_per_s
