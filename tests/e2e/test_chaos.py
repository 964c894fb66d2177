"""Chaos, as a sample: `python -m tests.chaos` runs as many seeds as one likes."""

from __future__ import annotations

import pytest

from tests.chaos.__main__ import run


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_hundred_seeds_give_no_wrong_value_no_hang_and_no_unexplained_error() -> None:
    assert not run(0, 200, jobs=2)
