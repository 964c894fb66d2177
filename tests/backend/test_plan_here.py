"""Planning on this host: its devices are measured once, and kept by a pool as those of a file are."""

from __future__ import annotations

import pytest

from hetero.advise.fleet import read_fleet
from hetero.advise.match import match


@pytest.mark.slow
def test_a_small_model_is_planned_on_the_devices_of_this_host() -> None:
    kinds = read_fleet("here")
    assert all(kind.most_copies(1) == kind.count for kind in kinds)
    found = match("Qwen2.5-0.5B", kinds, weights="Q4_K_M", engine="llama.cpp")
    assert any(not one.refused and one.throughput_per_s for one in found)
